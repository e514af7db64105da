"""Acting: samples that follow the probabilities, greedy ones that follow the top, rows that ignore each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import MASKED, bound, sample
from slipstream.policies.fused_actor import FusedActor, make_actor
from slipstream.policies.parameter_layout import head_table
from slipstream.policies.torch_actor import TorchActor
from slipstream.policies.torch_policy import ActorCritic
from slipstream.system.rng import make_streams, uniform

TOPMOST = 8230406
"""The key of a stream whose first draw is the largest there is."""
KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "masked_multi", "binary", "masked_binary"]
KINDS += ["mixed", "masked_mixed"]
CHOICES = ["discrete", "multi_discrete", "masked", "masked_multi", "binary", "masked_binary"]
SEEN = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("eye", "image", (12, 12, 1))))


def act(
    design: Design,
    params_and_stats: Array,
    obs: Array,
    mask: Array,
    streams: Array,
    sampled: bool,
    *parts: Array,
    states: Array | None = None,
) -> Any:
    """Act for all rows, in one call or in the given parts; return action, log-probability and value."""
    acting = make_actor(design)
    acting.load(params_and_stats)
    count = len(obs)
    action = np.zeros((count, design.action.parts), design.action.dtype)
    log_prob, value = np.zeros(count, np.float32), np.zeros(count, np.float32)
    held = np.zeros((count, design.state_size), np.float32) if states is None else states
    for rows in parts or (np.arange(count),):
        acting.act(ActInputs(rows, obs, mask, held, streams), ActOutputs(action, log_prob, value), sampled)
    return action, log_prob, value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_how_rows_are_split_changes_nothing(
    kind: str, memory: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """Actions, log-probabilities, values, states and streams are the same bit for bit, however rows share out."""
    design, params_and_stats = make_policy(kind, 17, (50, 3), memory=memory)
    obs, mask, _ = make_samples(design, 150)
    results = []
    for cuts in ([], [1], [7, 8, 71], [64, 128], [3, 149]):
        streams, states = make_streams(1, "act", 0, len(obs)), np.full((150, design.state_size), 0.1, np.float32)
        parts = np.split(np.arange(150), cuts)
        results.append(
            (*act(design, params_and_stats, obs, mask, streams, True, *parts, states=states), streams, states)
        )
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert np.array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_log_probability_is_that_of_the_action_drawn(
    kind: str,
    memory: str,
    make_policy: Callable[..., Any],
    make_samples: Callable[..., Any],
    kernel_measure: Callable[..., Any],
) -> None:
    """What acting says of its own draw is what measuring that action says, and so is the value."""
    design, params_and_stats = make_policy(kind, memory=memory)
    obs, mask, _ = make_samples(design, 80)
    action, log_prob, value = act(design, params_and_stats, obs, mask, make_streams(0, "act", 0, 80), True)
    _, values, logps, _ = kernel_measure(design, params_and_stats, obs, mask, action)
    assert np.allclose(log_prob, logps, atol=1e-5)
    assert np.allclose(value, values, atol=1e-5)


@pytest.mark.parametrize("kind", CHOICES)
def test_frequencies_follow_the_probabilities(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """Over 20,000 draws each part's counts fit its chances (chi-square), and masked options never come."""
    design, params_and_stats = make_policy(kind)
    obs, mask, some = make_samples(design, 1)
    outputs = kernel_measure(design, params_and_stats, obs, mask, some)[0][0].astype(np.float64)
    rows, rounds = 500, 40
    many_obs, many_mask = np.repeat(obs, rows, axis=0), np.repeat(mask, rows, axis=0)
    streams = make_streams(4, "act", 0, rows)
    drawn = np.concatenate(
        [act(design, params_and_stats, many_obs, many_mask, streams, True)[0] for _ in range(rounds)]
    )
    start = column = 0
    for part, size in enumerate(design.action.sizes):
        switch = bool(design.action.binary) and design.action.binary[part]
        logits = np.array([0.0, outputs[start]]) if switch else outputs[start : start + size]
        weights = np.exp(logits)
        if mask.shape[1]:
            weights *= mask[0, column : column + size]
        expected = weights / weights.sum() * rows * rounds
        counts = np.bincount(drawn[:, part], minlength=size)
        assert not counts[expected == 0].any()
        rng = expected > 0
        freedom = max(1, int(rng.sum()) - 1)
        statistic = ((counts - expected)[rng] ** 2 / expected[rng]).sum()
        assert statistic < freedom + 6 * np.sqrt(2 * freedom)
        start, column = start + (1 if switch else size), column + size


def test_a_masked_option_is_not_drawn_even_by_the_topmost_draw() -> None:
    """A draw of 1 passes the sum of all probabilities; it gives the last allowed option, not a masked one behind it."""
    head = head_table(ActionSpec("discrete", (4,), masked=True), False, False, 0, 0)
    streams = np.array([[TOPMOST, 0]], np.int64)
    assert uniform(streams.copy(), 0) == 1.0
    logits, probs, action = np.array([0, 0, MASKED, MASKED], np.float32), np.zeros(4, np.float32), np.zeros(1, np.int32)
    log_prob = sample(logits, np.zeros(0, np.float32), head, streams, 0, probs, action)
    assert action[0] == 1
    assert log_prob == pytest.approx(np.log(0.5), abs=1e-6)


def test_a_switch_that_must_be_on_is_on_even_by_the_topmost_draw() -> None:
    """A random number of 1 is not below a probability of 1, but the impossible option is not chosen."""
    head = head_table(ActionSpec("multi_discrete", (2,), masked=True, binary=(True,)), False, False, 0, 0)
    streams, action = np.array([[TOPMOST, 0]], np.int64), np.zeros(1, np.int32)
    sample(np.array([-MASKED]), np.zeros(0, np.float32), head, streams, 0, np.zeros(1, np.float32), action)
    assert action[0] == 1


@pytest.mark.parametrize("kind", ["continuous", "squashed"])
def test_continuous_draws_have_the_mean_and_deviation(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """20,000 draws have the network's mean, the learned deviation, no skew and the kurtosis of a Gaussian."""
    design, params_and_stats = make_policy(kind)
    obs, mask, some = make_samples(design, 1)
    mean = kernel_measure(design, params_and_stats, obs, mask, some)[0][0]
    deviation = np.exp(design.weights.named(design.split_params_and_stats(params_and_stats)[0])["log_std"])
    streams = make_streams(4, "act", 0, 500)
    many, none = np.repeat(obs, 500, axis=0), np.zeros((500, 0), np.uint8)
    drawn = np.concatenate([act(design, params_and_stats, many, none, streams, True)[0] for _ in range(40)])
    noise = (drawn - mean) / deviation
    assert np.abs(noise.mean(axis=0)).max() < 0.03
    assert np.abs(noise.std(axis=0) - 1).max() < 0.03
    assert np.abs((noise**3).mean(axis=0)).max() < 0.1
    assert np.abs((noise**4).mean(axis=0) - 3).max() < 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_likeliest(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """The top allowed option of each part, or the mean; no stream moves."""
    design, params_and_stats = make_policy(kind)
    obs, mask, some = make_samples(design, 60)
    streams = make_streams(0, "act", 0, 60)
    action, _, _ = act(design, params_and_stats, obs, mask, streams, False)
    assert not streams[:, 1].any()
    outputs = kernel_measure(design, params_and_stats, obs, mask, some)[0]
    if design.action.kind == "continuous":
        assert np.allclose(action, outputs, atol=1e-6)
        return
    start = column = 0
    for part, size in enumerate(design.action.sizes):
        switch = bool(design.action.binary) and design.action.binary[part]
        logits = outputs[:, start : start + (1 if switch else size)]
        logits = np.concatenate([np.zeros((60, 1)), logits], axis=1) if switch else logits
        allowed = np.where(mask[:, column : column + size] > 0, logits, -np.inf) if mask.shape[1] else logits
        assert np.array_equal(action[:, part], allowed.argmax(axis=1))
        start, column = start + (1 if switch else size), column + size


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_values_alone_equal_those_of_acting(
    memory: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """`value` equals the values of `act` bit for bit, only at the given rows, and does not change states."""
    design, params_and_stats = make_policy("discrete", shared=False, memory=memory)
    obs, mask, _ = make_samples(design, 70)
    start = np.full((70, design.state_size), 0.2, np.float32)
    value = act(design, params_and_stats, obs, mask, make_streams(0, "act", 0, 70), True, states=start.copy())[2]
    acting = FusedActor(design)
    acting.load(params_and_stats)
    alone, held = np.full(70, 9.0, np.float32), start.copy()
    acting.value(np.array([3, 5, 69]), obs, alone, held)
    assert np.array_equal(alone[[3, 5, 69]], value[[3, 5, 69]])
    assert (np.delete(alone, [3, 5, 69]) == 9).all()
    assert np.array_equal(held, start)


@pytest.mark.parametrize("kind", ["masked", "continuous"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_telling_gives_outputs_and_moves_states(
    kind: str, memory: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """`outputs` gives the module's outputs, log standard deviations after means, and the states of `act`."""
    design, params_and_stats = make_policy(kind, memory=memory)
    obs, mask, _ = make_samples(design, 70)
    acting = FusedActor(design)
    acting.load(params_and_stats)
    behind = design.outputs if kind == "continuous" else 0
    told = np.zeros((70, design.outputs + behind), np.float32)
    held, moved = np.zeros((2, 70, design.state_size), np.float32)
    acting.outputs(np.arange(70), obs, held, told)
    act(design, params_and_stats, obs, mask, make_streams(0, "act", 0, 70), True, states=moved)
    assert np.array_equal(held, moved)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    policy = ActorCritic(design)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in design.weights.named(params).items()})
    with torch.no_grad():
        expected = policy(
            torch.from_numpy(obs), torch.from_numpy(mean), torch.from_numpy(scale), torch.zeros(70, design.state_size)
        )
    assert np.allclose(told[:, : design.outputs], expected.outputs.numpy(), atol=1e-5)
    if behind:
        assert np.array_equal(told[:, behind:], np.tile(design.weights.named(params)["log_std"], (70, 1)))


@pytest.mark.parametrize("obs", [7, SEEN], ids=["fused", "torch"])
def test_the_pack_is_used_where_it_stands(
    obs: Any, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """New weights written into the pack act at once: nothing is copied."""
    design, params_and_stats = make_policy("discrete", obs)
    seen, _, _ = make_samples(design, 4)
    acting = make_actor(design)
    assert isinstance(acting, FusedActor if obs == 7 else TorchActor)
    acting.load(params_and_stats)
    before, after, none = np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros((4, 0), np.float32)
    acting.value(np.arange(4), seen, before, none)
    design.split_params_and_stats(params_and_stats)[0][:] *= 2
    acting.value(np.arange(4), seen, after, none)
    assert not np.array_equal(before, after)
    design.split_params_and_stats(params_and_stats)[1][:] += 1
    acting.value(np.arange(4), seen, before, none)
    assert not np.array_equal(before, after)


def test_bound_maps_onto_the_range_of_the_env() -> None:
    """[-1, 1] onto [low, high], further out is held at the edge or bent, and unbounded actions pass unchanged."""
    raw = np.array([[-1.0, -1.0, -5.0], [0.0, 0.0, 0.5], [3.0, 1.0, 7.0]], np.float32)
    low, high = np.array([0.0, -2.0, -np.inf], np.float32), np.array([4.0, 6.0, np.inf], np.float32)
    out = np.zeros_like(raw)
    bound(raw, low, high, False, out)
    assert out.tolist() == [[0.0, -2.0, -5.0], [2.0, 2.0, 0.5], [4.0, 6.0, 7.0]]
    bound(raw, low, high, True, out)
    bent = np.tanh(raw)
    assert np.allclose(out[:, 0], 2 + 2 * bent[:, 0], atol=1e-5)
    assert np.allclose(out[:, 1], 2 + 4 * bent[:, 1], atol=1e-5)
    assert np.allclose(out[:, 2], bent[:, 2], atol=1e-5)
