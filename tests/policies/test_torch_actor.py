"""Acting with torch: the module's outputs, sampled as the kernels sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import ObsField, ObsSpec
from slipstream.policies.design import ActInputs, ActOutputs
from slipstream.policies.distributions import apply_mask, sample
from slipstream.policies.torch_actor import TorchActor, split_blocks
from slipstream.policies.torch_policy import ActorCritic, torch_threads
from slipstream.system.rng import make_streams

IMAGE = ObsSpec((ObsField("", "image", (12, 12, 3)),))
TOKENS = ObsSpec((ObsField("", "tokens", (9, 3)),))
MIXED = ObsSpec(
    (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (12, 12, 1)), ObsField("map", "tokens", (6, 3)))
)
SEEN = {"image": IMAGE, "tokens": TOKENS, "mixed": MIXED}
KINDS = ["discrete", "masked_binary", "continuous", "squashed", "mixed", "masked_mixed"]


@pytest.fixture
def make_torch_actor(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> Callable[..., Any]:
    """A torch actor, its params_and_stats, and samples to act on."""

    def make(kind: str = "discrete", seen: str = "mixed", count: int = 70, **more: Any) -> Any:
        design, params_and_stats = make_policy(kind, SEEN[seen], (16,), **more)
        acting = TorchActor(design)
        acting.load(params_and_stats)
        obs, mask, _ = make_samples(design, count)
        return design, params_and_stats, acting, obs, mask

    return make


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_acting_equals_module_and_kernel_sampling(
    seen: str, kind: str, memory: str, make_torch_actor: Callable[..., Any]
) -> None:
    """Outputs, values and states are the module's; actions are sampled from each row's RNG stream."""
    design, params_and_stats, acting, obs, mask = make_torch_actor(
        kind, seen, memory=memory, memory_layers=2, shared=False
    )
    assert obs.dtype == np.uint8
    rows = np.array([0, 1, 5, 63, 64, 69])
    states = np.random.default_rng(0).normal(0, 0.5, (70, design.state_size)).astype(np.float32)
    start, streams = states.copy(), make_streams(2, "act", 0, 70)
    action = np.zeros((70, design.action.parts), design.action.dtype)
    log_prob, value = np.full(70, 9, np.float32), np.full(70, 9, np.float32)
    acting.act(ActInputs(rows, obs, mask, states, streams), ActOutputs(action, log_prob, value), True)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    named = design.weights.named(params)
    policy = ActorCritic(design)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in named.items()})
    with torch.no_grad():
        result = policy(*(torch.from_numpy(array) for array in (obs[rows], mean, scale, start[rows])))
    assert np.allclose(value[rows], result.value.numpy(), atol=1e-5)
    assert np.allclose(states[rows], result.state.numpy(), atol=1e-5)
    others = np.setdiff1d(np.arange(70), rows)
    assert np.array_equal(states[others], start[others])
    assert (value[others] == 9).all() and (log_prob[others] == 9).all()
    again, probs = make_streams(2, "act", 0, 70), np.zeros(design.outputs, np.float32)
    for row, outputs in zip(rows, result.outputs.numpy(), strict=True):
        if mask.shape[1]:
            apply_mask(outputs, mask[row], design.head)
        drawn = np.zeros(design.action.parts, design.action.dtype)
        expected = sample(outputs, named.get("log_std", np.zeros(0, np.float32)), design.head, again, row, probs, drawn)
        assert np.allclose(action[row], drawn, atol=1e-5)
        assert log_prob[row] == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(streams, again)


def test_greedy_advances_no_stream(make_torch_actor: Callable[..., Any]) -> None:
    """Greedy actions are the most likely ones and advance no RNG stream."""
    _, _, acting, obs, mask = make_torch_actor("masked_binary")
    streams, found = make_streams(0, "act", 0, 70), []
    for _ in range(2):
        action, one = np.zeros((70, 3), np.int32), np.zeros(70, np.float32)
        acting.act(
            ActInputs(np.arange(70), obs, mask, np.zeros((70, 0), np.float32), streams),
            ActOutputs(action, one, one.copy()),
            False,
        )
        found.append(action)
    assert np.array_equal(*found) and not streams[:, 1].any()


@pytest.mark.parametrize("kind", ["discrete", "continuous", "mixed"])
def test_outputs_and_value(kind: str, make_torch_actor: Callable[..., Any]) -> None:
    """`outputs` writes outputs and log standard deviations and advances states; `value` does not."""
    design, params_and_stats, acting, obs, mask = make_torch_actor(kind, memory="gru")
    rows, start = np.arange(70), np.full((70, design.state_size), 0.3, np.float32)
    width = design.outputs + design.action.continuous_parts
    outputs, output_states, value, value_states = (
        np.zeros((70, width), np.float32),
        start.copy(),
        np.zeros(70, np.float32),
        start.copy(),
    )
    acting.outputs(rows, obs, output_states, outputs)
    acting.value(rows, obs, value, value_states)
    action = np.zeros((70, design.action.parts), design.action.dtype)
    log_prob, acted, moved = np.zeros(70, np.float32), np.zeros(70, np.float32), start.copy()
    acting.act(
        ActInputs(rows, obs, mask, moved, make_streams(0, "act", 0, 70)), ActOutputs(action, log_prob, acted), True
    )
    assert np.array_equal(value, acted) and np.array_equal(output_states, moved)
    assert np.array_equal(value_states, start)
    if kind == "continuous":
        log_std = design.weights.named(design.split_params_and_stats(params_and_stats)[0])["log_std"]
        assert np.array_equal(outputs[:, 3:], np.tile(log_std, (70, 1)))
        noise = (action - outputs[:, :3]) / np.exp(log_std)
        expected = -(0.5 * noise**2 + log_std + 0.5 * np.log(2 * np.pi)).sum(axis=1)
        assert np.allclose(log_prob, expected, atol=1e-4)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_shares_of_whole_blocks_give_the_same_bits(memory: str, make_torch_actor: Callable[..., Any]) -> None:
    """A process with rows 64 to 191 computes the same bits as one with all rows."""
    design, params_and_stats, _, obs, mask = make_torch_actor("continuous", count=200, memory=memory)
    busy = np.flatnonzero(np.random.default_rng(0).random(200) < 0.8)
    results = []
    for low, high in ((0, 200), (64, 192)):
        other = TorchActor(design)
        other.load(params_and_stats)
        count, rows = high - low, busy[(busy >= low) & (busy < high)] - low
        action, log_prob, value = (
            np.zeros((count, 3), np.float32),
            np.zeros(count, np.float32),
            np.zeros(count, np.float32),
        )
        states, streams = np.full((count, design.state_size), 0.2, np.float32), make_streams(1, "act", low, count)
        other.act(
            ActInputs(rows, obs[low:high], mask[low:high], states, streams), ActOutputs(action, log_prob, value), True
        )
        results.append((action, log_prob, value, states, streams))
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one[64:192], two)


def test_blocks_depend_on_row_numbers() -> None:
    """Rows are split at multiples of 64, wherever they are in the list."""
    rows = np.array([0, 3, 63, 64, 130, 191, 192])
    assert [block.tolist() for block in split_blocks(rows)] == [[0, 3, 63], [64], [130, 191], [192]]
    assert split_blocks(rows[:0]) == []


def test_torch_threads_are_restored() -> None:
    """Acting uses its own number of threads and restores the previous one, even after an error."""
    before = torch.get_num_threads()
    with pytest.raises(ValueError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError
    assert torch.get_num_threads() == before
    with torch_threads(None):
        assert torch.get_num_threads() == before


def test_initial_weights_do_not_depend_on_threads(make_policy: Callable[..., Any]) -> None:
    """A seed gives the same weights bit for bit with any number of torch threads."""
    design, _ = make_policy("discrete", MIXED, (16,))
    found = []
    for threads in (1, 2):
        with torch_threads(threads):
            found.append(design.initial_weights(3))
    assert np.array_equal(*found)


def test_restored_states_continue(make_torch_actor: Callable[..., Any]) -> None:
    """States that were copied and restored continue equally."""
    design, _, acting, obs, _ = make_torch_actor(memory="lstm", memory_layers=2, shared=False)
    rows, outputs, again = np.arange(70), *np.zeros((2, 70, design.outputs), np.float32)
    states = np.zeros((70, design.state_size), np.float32)
    acting.outputs(rows, obs, states, outputs)
    kept = states.copy()
    acting.outputs(rows, obs, states, outputs)
    acting.outputs(rows, obs, kept, again)
    assert np.array_equal(outputs, again) and np.array_equal(states, kept)
    assert (states != 0).all()
