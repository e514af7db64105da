"""Advantages by hand and against a plain loop; running statistics against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.gae import GAECoefficients, Transitions, compute_gae
from slipstream.algorithms.running_stats import RunningMeanStd, sum_obs, sum_returns
from slipstream.contracts import Array

DEFAULTS = ("centre", 0.0), ("rho", 1.0), ("c", 1.0)


def advantages(gamma: float = 0.9, gae_lambda: float = 0.8, scale: float = 1.0, **columns: Any) -> Array:
    """Call the kernel with the dtypes of a rollout; a missing column is all 0 (`active`: all 1)."""
    reward = np.array(columns["reward"], np.float32)
    ones, zeros = np.ones_like(reward, np.uint8), np.zeros_like(reward, np.uint8)
    out = np.full(reward.shape, 99, np.float32)
    transitions = Transitions(
        reward,
        np.array(columns["value"], np.float32),
        np.array(columns.get("final_value", zeros), np.float32),
        np.array(columns.get("terminated", zeros), np.uint8),
        np.array(columns.get("truncated", zeros), np.uint8),
        np.array(columns.get("active", ones), np.uint8),
    )
    numbers = (gamma, gae_lambda, scale, *(columns.get(*default) for default in DEFAULTS))
    ratio = np.array(columns["ratio"], np.float32) if "ratio" in columns else None
    compute_gae(transitions, GAECoefficients(*(np.float32(number) for number in numbers)), ratio, out)
    return out


def test_by_hand_with_termination_and_truncation() -> None:
    """Five steps: one ends by termination, one by truncation, and the last is bootstrapped from what follows."""
    found = advantages(
        reward=[[1], [2], [3], [4], [5]],
        value=[[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]],
        terminated=[[0], [1], [0], [0], [0]],
        truncated=[[0], [0], [0], [1], [0]],
        final_value=[[0], [0], [0], [0.7], [0]],
    )
    a_4 = 5 + 0.9 * 0.6 - 0.5  # continues after the rollout: V of the last observation
    a_3 = 4 + 0.9 * 0.7 - 0.4  # truncated: V of its final observation, and nothing is carried over the cut
    a_2 = 3 + 0.9 * 0.4 - 0.3 + 0.9 * 0.8 * a_3
    a_1 = 2 + 0.9 * 0.0 - 0.2  # terminated: nothing follows
    a_0 = 1 + 0.9 * 0.2 - 0.1 + 0.9 * 0.8 * a_1
    assert found[:, 0].tolist() == pytest.approx([a_0, a_1, a_2, a_3, a_4], abs=1e-6)


def test_rewards_between_actions_are_summed_by_hand() -> None:
    """An agent that acts at steps 0 and 2 gets the rewards of 0 and 1 for its first action."""
    found = advantages(
        reward=[[1], [2], [3], [4]], value=[[0.1], [0.2], [0.3], [0.4], [0.5]], active=[[1], [0], [1], [0]]
    )
    a_2 = (3 + 4) + 0.9 * 0.5 - 0.3
    a_0 = (1 + 2) + 0.9 * 0.3 - 0.1 + 0.9 * 0.8 * a_2
    assert found[:, 0].tolist() == pytest.approx([a_0, 0.0, a_2, 0.0], abs=1e-6)


def test_the_centre_is_subtracted_from_every_action_by_hand() -> None:
    """The mean reward is subtracted once per action, before scaling, over however many steps it is rewarded."""
    found = advantages(
        reward=[[1], [2], [3]], value=[[0.1], [0.2], [0.3], [0.5]], active=[[1], [0], [1]], centre=0.4, scale=2.0
    )
    a_2 = 2 * (3 - 0.4) + 0.9 * 0.5 - 0.3
    a_0 = 2 * (1 + 2 - 0.4) + 0.9 * 0.3 - 0.1 + 0.9 * 0.8 * a_2
    assert found[:, 0].tolist() == pytest.approx([a_0, 0.0, a_2], abs=1e-6)


def test_vtrace_by_hand() -> None:
    """Ratios weight errors up to rho and the trace up to c; ratios of 1 give plain GAE."""
    columns = {"reward": [[1], [2], [3]], "value": [[0.1], [0.2], [0.3], [0.5]]}
    found = advantages(**columns, ratio=[[0.5], [3.0], [2.0]], rho=1.5, c=1.2)
    a_2 = 1.5 * (3 + 0.9 * 0.5 - 0.3)
    a_1 = 1.5 * (2 + 0.9 * 0.3 - 0.2) + 0.9 * 0.8 * 1.2 * a_2
    a_0 = 0.5 * (1 + 0.9 * 0.2 - 0.1) + 0.9 * 0.8 * 0.5 * a_1
    assert found[:, 0].tolist() == pytest.approx([a_0, a_1, a_2], abs=1e-5)
    ones = advantages(**columns, ratio=[[1], [1], [1]])
    assert ones.tolist() == advantages(**columns).tolist()


def test_rewards_are_scaled_and_values_are_not() -> None:
    """Return normalisation divides rewards; values are in its units already."""
    found = advantages(reward=[[10.0]], value=[[1.0], [2.0]], scale=0.5)
    assert found[0, 0] == pytest.approx(10 * 0.5 + 0.9 * 2.0 - 1.0)


def slowly(data: dict[str, Array], gamma: float, gae_lambda: float) -> Array:
    """The definition, act by act, looking forward."""
    steps, rows = data["reward"].shape
    result = np.zeros((steps, rows))
    for row in range(rows):
        for t in reversed(np.flatnonzero(data["active"][:, row])):
            u, total, carried = t, 0.0, 0.0
            while True:
                total += data["reward"][u, row]
                ended = data["terminated"][u, row] or data["truncated"][u, row]
                if ended or u + 1 == steps or data["active"][u + 1, row]:
                    break
                u += 1
            following = data["value"][u + 1, row]
            if data["terminated"][u, row]:
                following = 0.0
            elif data["truncated"][u, row]:
                following = data["final_value"][u, row]
            elif u + 1 < steps:
                carried = result[u + 1, row]
            result[t, row] = total + gamma * following - data["value"][t, row] + gamma * gae_lambda * carried
    return result


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_random_data_against_a_plain_loop(share: float) -> None:
    """Ends of both kinds at random, rows always active or active now and then: the same numbers to 1e-5."""
    random = np.random.default_rng(0)
    steps, rows = 40, 30
    ended = random.random((steps, rows))
    data = {
        "reward": random.normal(size=(steps, rows)).astype(np.float32),
        "value": random.normal(size=(steps + 1, rows)).astype(np.float32),
        "final_value": random.normal(size=(steps, rows)).astype(np.float32),
        "terminated": (ended < 0.05).astype(np.uint8),
        "truncated": (ended > 0.95).astype(np.uint8),
        "active": (random.random((steps, rows)) < share).astype(np.uint8),
    }
    found = advantages(0.97, 0.9, **data)
    assert np.allclose(found, slowly(data, 0.97, 0.9), atol=2e-5)
    assert not found[data["active"] == 0].any()


def test_lambda_one_is_the_discounted_return() -> None:
    """With lambda 1 the advantage is the discounted sum of rewards less the value."""
    found = advantages(0.9, 1.0, reward=[[1], [1], [1]], value=[[5], [6], [7], [0]], terminated=[[0], [0], [1]])
    assert found[0, 0] == pytest.approx(1 + 0.9 + 0.81 - 5, abs=1e-5)


def test_merged_statistics_are_those_of_all_data() -> None:
    """Batches of any sizes give the mean and variance that NumPy gives for all of them at once."""
    random = np.random.default_rng(1)
    data = random.normal(3, 2, (1000, 4))
    moments = RunningMeanStd(4)
    for part in np.split(data, [1, 2, 10, 600]):
        moments.merge(len(part), part.mean(axis=0), part.var(axis=0))
    moments.merge(0, np.full(4, np.nan), np.full(4, np.nan))
    assert moments.count[0] == 1000
    assert np.allclose(moments.mean, data.mean(axis=0))
    assert np.allclose(moments.variance, data.var(axis=0))
    assert np.allclose(moments.scale, 1 / data.std(axis=0))


def test_constant_features_are_not_scaled() -> None:
    """A constant feature is not divided by a tiny deviation."""
    moments = RunningMeanStd(2)
    moments.merge(10, np.array([5.0, 1.0]), np.array([0.0, 4.0]))
    assert moments.scale.tolist() == pytest.approx([1.0, 0.5])
    assert np.float32(moments.scale[0]) != 1, "that would lift the limit of observations"


def test_sums_over_observations_skip_inactive_rows() -> None:
    """Only active rows count, and the shift keeps the squares accurate far from zero."""
    random = np.random.default_rng(2)
    obs = random.normal(1000, 1, (6, 5, 3)).astype(np.float32)
    active = random.integers(0, 2, (5, 5)).astype(np.uint8)
    shift, total, squares = np.full(3, 1000.0), np.zeros(3), np.zeros(3)
    count = sum_obs(obs, active, shift, total, squares)
    chosen = obs[:5][active > 0].astype(np.float64)
    assert count == len(chosen)
    assert np.allclose(shift + total / count, chosen.mean(axis=0))
    assert np.allclose(squares / count - (total / count) ** 2, chosen.var(axis=0))


def test_running_returns_by_hand() -> None:
    """R = gamma R + r, carried from one rollout to the next and cut where an episode ends."""
    reward = np.array([[1.0], [2.0], [3.0]], np.float32)
    ends = np.array([[0], [1], [0]], np.uint8)
    running, sums = np.array([10.0]), np.zeros((1, 3))
    sum_returns(reward, ends, np.zeros_like(ends), np.ones_like(ends), 0.5, running, sums)
    seen = [0.5 * 10 + 1, 0.5 * 6 + 2, 3.0]
    assert sums[0].tolist() == pytest.approx([3, sum(seen), sum(x * x for x in seen)])
    assert running[0] == 3.0
