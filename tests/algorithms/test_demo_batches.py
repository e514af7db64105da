"""Batches from demos: returns, statistics, windows, sequences and recurrent states."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.demo_batches import (
    DemoBatches,
    demo_statistics,
    discounted_returns,
    policy_actions,
    sequence_index,
)
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError
from slipstream.policies.distributions import bound
from slipstream.policies.fused_actor import make_actor


def batches_of(folder: Path, design: Any, window_mib: int = 64, gamma: float = 0.9) -> DemoBatches:
    """DemoBatches with unscaled returns."""
    return DemoBatches(Demos.open(folder), design, 1.0, gamma, window_mib)


def test_returns_by_hand() -> None:
    """Rewards 1, 2, 4 with gamma 1/2 give returns 3, 4, 4, and episodes are independent."""
    out = np.zeros(5, np.float32)
    discounted_returns(np.array([1, 2, 4, 8, 8], np.float32), np.array([3, 5]), 0.5, out)
    assert out.tolist() == [3.0, 4.0, 4.0, 12.0, 8.0]


def test_statistics_are_those_of_all_observations(make_demos: Callable[..., Path]) -> None:
    """Mean and std of observations and running returns are those that PPO would compute."""
    demos = Demos.open(make_demos(episodes=9))
    found = demo_statistics(demos, 0.5)
    obs = demos.load(["obs"])["obs"].astype(np.float64)
    assert np.allclose(found.obs.mean, obs.mean(0))
    assert np.allclose(found.obs.variance, obs.var(0))
    running = np.concatenate([2 - 0.5 ** np.arange(steps) for steps in demos.episodes["steps"]])
    assert found.returns.mean[0] == pytest.approx(running.mean())
    assert found.returns.variance[0] == pytest.approx(running.var())


@pytest.mark.parametrize("kind", ["continuous", "squashed"])
def test_policy_actions_invert_the_bounds(kind: str, make_policy: Callable[..., Any]) -> None:
    """Squashing and scaling a converted action returns the recorded action."""
    design, _ = make_policy(kind)
    given = np.array([[0.5, -1.5, 0.3], [-0.25, 1.0, -0.7]], np.float32)
    raw, out = policy_actions(design, given), np.zeros((2, 3), np.float32)
    low, high = np.array(design.action.low, np.float32), np.array(design.action.high, np.float32)
    bound(np.ascontiguousarray(raw, np.float32), low, high, design.squashed, out)
    assert np.allclose(out, given, atol=1e-6)


def test_windows_hold_every_episode_once(make_demos: Callable[..., Path], make_policy: Callable[..., Any]) -> None:
    """Small windows hold each whole episode exactly once, in another order every epoch."""
    design, _ = make_policy(obs=6)
    demo_batches = batches_of(make_demos(episodes=60), design)
    demo_batches._window_steps = 100
    assert not demo_batches.fits_in_memory
    orders = []
    for epoch in range(2):
        windows = demo_batches.windows(np.random.default_rng(epoch))
        assert sorted(np.concatenate(windows).tolist()) == list(range(60))
        assert len(windows) > 5
        orders.append(np.concatenate(windows).tolist())
    assert orders[0] != orders[1]


@pytest.mark.parametrize("prefetch", [False, True])
def test_batches_are_the_demos(
    prefetch: bool, make_demos: Callable[..., Path], make_policy: Callable[..., Any]
) -> None:
    """Every step has its observation, action, mask and return, with and without prefetching."""
    design, _ = make_policy("masked", obs=6)
    demo_batches = batches_of(make_demos("masked", episodes=50), design)
    demo_batches._window_steps = 200
    mean, scale = np.zeros(6, np.float32), np.ones(6, np.float32)
    batches = [w.batch for w in demo_batches.batches(np.random.default_rng(0), mean, scale, prefetch)]
    windows = demo_batches.windows(np.random.default_rng(0))
    for batch, episodes in zip(batches, windows, strict=True):
        want = demo_batches.demos.pick(episodes).load(["obs", "action", "mask"])
        assert np.array_equal(batch.obs, want["obs"])
        assert np.array_equal(batch.action, want["action"])
        assert np.array_equal(batch.mask, want["mask"])
        first = int(demo_batches.demos.episodes["steps"][episodes[0]])
        assert batch.value_target[0] == pytest.approx((1 - 0.9**first) / 0.1, rel=1e-5)


def test_an_error_while_prefetching_is_raised(make_demos: Callable[..., Path], make_policy: Callable[..., Any]) -> None:
    """An error in the prefetching thread is raised where the batches are used."""
    design, _ = make_policy(obs=6)
    demo_batches = batches_of(make_demos(episodes=50), design)
    demo_batches._window_steps = 200
    demo_batches.windows = lambda random: [np.array([999])]  # type: ignore[method-assign]
    with pytest.raises(IndexError):
        list(demo_batches.batches(None, np.zeros(6, np.float32), np.ones(6, np.float32), True))


def test_prefetching_holds_two_windows(make_demos: Callable[..., Path], make_policy: Callable[..., Any]) -> None:
    """One window is read while another is in use, no third one, and closing the iterator stops the thread."""
    design, _ = make_policy(obs=6)
    demo_batches = batches_of(make_demos(episodes=60), design)
    demo_batches._window_steps = 100
    reads, read = [0], demo_batches._read
    demo_batches._read = lambda *given: (reads.__setitem__(0, reads[0] + 1), read(*given))[1]  # type: ignore[method-assign]
    threads = threading.active_count()
    batches = demo_batches.batches(None, np.zeros(6, np.float32), np.ones(6, np.float32), True)
    for used in range(1, 4):
        next(batches)
        time.sleep(0.1)
        assert reads[0] == used + 1
    batches.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert threading.active_count() == threads
    assert reads[0] == 4


def test_sequences_by_hand() -> None:
    """Episodes of 5 and 2 steps become three sequences of up to 3 steps, with padding marked."""
    index, there, ordinal = sequence_index(np.array([0, 5, 7]), 3)
    assert index.reshape(3, 3).tolist() == [[0, 3, 5], [1, 4, 6], [2, 4, 6]]
    assert there.reshape(3, 3).tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert ordinal.tolist() == [0, 1, 0]


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_states_equal_stepping_through_the_episode(
    memory: str, make_demos: Callable[..., Path], make_policy: Callable[..., Any]
) -> None:
    """The state at the start of every sequence equals stepping through the episode."""
    design, params_and_stats = make_policy(obs=6, memory=memory, sequence=4)
    demo_batches = batches_of(make_demos(episodes=5), design)
    _, mean, scale = design.split_params_and_stats(params_and_stats)
    (window,) = demo_batches.batches(None, mean, scale, False)
    acting = make_actor(design)
    acting.load(params_and_stats)
    demo_batches.compute_states(window, acting)
    outputs, column = np.zeros((1, design.outputs), np.float32), 0
    for episode in range(5):
        state = np.zeros((1, design.state_size), np.float32)
        for t in range(int(demo_batches.demos.episodes["steps"][episode])):
            if t % 4 == 0:
                assert np.allclose(window.batch.state[column], state[0], atol=1e-6)
                column += 1
            acting.outputs(
                np.arange(1), np.array(demo_batches.demos.episode(episode)["obs"][t : t + 1]), state, outputs
            )
    assert column == len(window.ordinal) == len(window.batch.state)


def test_no_episode_is_an_error(make_demos: Callable[..., Path], make_policy: Callable[..., Any]) -> None:
    """Demos without an episode raise."""
    design, _ = make_policy(obs=6)
    with pytest.raises(DemoError, match="holds no episode"):
        DemoBatches(Demos.open(make_demos()).pick([]), design, 1.0, 0.9, 1)
