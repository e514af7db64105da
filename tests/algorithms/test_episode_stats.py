"""Episodes counted by hand: returns, lengths, outcomes, across rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.episode_stats import WINDOW, EpisodeStats
from slipstream.collect.rollout import Rollout


def rollout(reward: Any, terminated: Any, truncated: Any = None, active: Any = None, outcome: Any = None) -> Rollout:
    """A rollout of which only what episodes need is given, as lists [T][rows]."""
    rewards = np.array(reward, np.float32)
    steps, rows = rewards.shape

    def column(values: Any, dtype: Any, fill: int) -> Any:
        return np.full((steps, rows), fill, dtype) if values is None else np.array(values, dtype)

    acting = np.concatenate([column(active, np.uint8, 1), np.ones((1, rows), np.uint8)])
    zeros = np.zeros((steps, rows), np.float32)
    return Rollout(
        obs=zeros,
        action=zeros,
        log_prob=zeros,
        value=zeros,
        reward=rewards,
        terminated=column(terminated, np.uint8, 0),
        truncated=column(truncated, np.uint8, 0),
        outcome=column(outcome, np.int8, 0),
        final_value=zeros,
        active=acting,
        mask=zeros,
        state=zeros,
        final_obs=zeros,
        terms=zeros,
    )


def test_returns_and_lengths_by_hand() -> None:
    """Two rows, three ends: (1 + 2), (3), and (10 + 20 + 30) over two rollouts."""
    episodes = EpisodeStats(2, versus=False)
    assert episodes.metrics() == {
        "episode/count": 0,
        "episode/return_mean": None,
        "episode/return_low": None,
        "episode/return_high": None,
        "episode/length_mean": None,
    }
    episodes.add(rollout([[1, 10], [2, 20]], [[0, 0], [1, 0]]))
    assert episodes.metrics()["episode/count"] == 1
    episodes.add(rollout([[3, 30], [4, 1]], [[0, 1], [0, 0]], truncated=[[1, 0], [0, 0]]))
    metrics = episodes.metrics()
    assert metrics["episode/count"] == 3
    assert metrics["episode/return_mean"] == pytest.approx((3 + 3 + 60) / 3)
    assert metrics["episode/length_mean"] == pytest.approx((2 + 1 + 3) / 3)
    assert metrics["episode/return_low"] < metrics["episode/return_mean"] < metrics["episode/return_high"]


def test_only_learning_rows_count_and_wins_are_theirs() -> None:
    """Against an opponent the win rate is of the learning rows; a draw is not a win."""
    episodes = EpisodeStats(4, versus=True)
    outcome = [[1, -1, 0, 0]]
    episodes.add(rollout([[5, 100, 7, 100]], [[1, 1, 1, 1]], outcome=outcome, active=[[1, 0, 1, 0]]))
    metrics = episodes.metrics()
    assert metrics["episode/count"] == 2
    assert metrics["episode/return_mean"] == 6
    assert metrics["episode/win_rate"] == 0.5
    assert metrics["episode/win_rate_low"] < 0.5 < metrics["episode/win_rate_high"]


def test_self_play_has_no_win_rate() -> None:
    """Where both sides learn, there is no win rate."""
    episodes = EpisodeStats(2, versus=False)
    episodes.add(rollout([[1, -1]], [[1, 1]], outcome=[[1, -1]]))
    assert "episode/win_rate" not in episodes.metrics()


def test_inactive_steps_add_reward_but_not_length() -> None:
    """In turn-based games rewards between actions count, steps between actions do not."""
    episodes = EpisodeStats(1, versus=False)
    episodes.add(rollout([[1], [2], [3]], [[0], [0], [1]], active=[[1], [0], [1]]))
    metrics = episodes.metrics()
    assert (metrics["episode/return_mean"], metrics["episode/length_mean"]) == (6, 2)


def test_an_episode_cut_by_a_fault_is_not_counted() -> None:
    """An episode that ends in a masked transition is not counted; the next one starts from zero."""
    episodes = EpisodeStats(1, versus=False)
    episodes.add(rollout([[5], [0], [1]], [[0], [0], [1]], truncated=[[0], [1], [0]], active=[[1], [0], [1]]))
    metrics = episodes.metrics()
    assert (metrics["episode/count"], metrics["episode/return_mean"]) == (1, 1)


def test_the_mean_is_over_the_last_hundred() -> None:
    """Older episodes leave the window."""
    episodes = EpisodeStats(1, versus=False)
    returns = np.arange(WINDOW + 50, dtype=np.float32)[:, None]
    episodes.add(rollout(returns, np.ones_like(returns)))
    metrics = episodes.metrics()
    assert metrics["episode/count"] == WINDOW + 50
    assert metrics["episode/return_mean"] == pytest.approx(returns[50:].mean())


def test_the_state_can_be_restored() -> None:
    """Arrays restored into new statistics continue unfinished episodes."""
    one, other = (EpisodeStats(1, versus=False) for _ in range(2))
    one.add(rollout([[4]], [[0]]))
    for name, array in other.arrays().items():
        array[:] = one.arrays()[name]
    other.add(rollout([[5]], [[1]]))
    assert other.metrics()["episode/return_mean"] == 9
