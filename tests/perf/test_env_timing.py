"""Timing of environments: legal actions, and the trace of a step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from slipstream.api import configure
from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.perf.env_timing import draw_actions, measure_env
from slipstream.perf.machine_limits import measure_limits
from slipstream.testing import ToyEnv
from slipstream.training.build import choose_env

LIMITS = measure_limits(0.05)


def test_actions_are_legal() -> None:
    """Random actions are within their bounds (1 if there are none) and allowed by the masks."""
    random = np.random.default_rng(0)
    bounded = ActionSpec("continuous", (), (-2.0, -np.inf), (-1.0, np.inf))
    drawn = draw_actions(EnvSpec("x", vector_obs(1), bounded), np.ones((100, 0), np.uint8), random)
    assert drawn.dtype == np.float32 and (drawn[:, 0] >= -2).all() and (drawn[:, 0] <= -1).all()
    assert np.abs(drawn[:, 1]).max() <= 1
    masked = ActionSpec("multi_discrete", (3, 2), masked=True)
    mask: Array = np.tile(np.array([1, 0, 1, 0, 1], np.uint8), (100, 1))
    drawn = draw_actions(EnvSpec("x", vector_obs(1), masked), mask, random)
    assert set(drawn[:, 0]) == {0, 2} and set(drawn[:, 1]) == {1}


@pytest.mark.usefixtures("quiet_machine")
def test_a_native_game_is_measured() -> None:
    """A native game has rows, no Python lines per step, and no separate reset time."""
    settings = configure("soccer", preset="smoke").settings
    env = measure_env(choose_env("soccer", settings), 4, LIMITS, 0.3)
    assert env.native and env.reset is None and env.hottest_times < 50 and not env.leak_bytes
    assert env.rate == pytest.approx(1e6 / env.step.mean_us, rel=1e-6)


@pytest.mark.usefixtures("quiet_machine")
def test_checks_inside_of_wrappers_are_found() -> None:
    """Gymnasium's outermost checking wrappers are removed, and those inside other wrappers are counted."""

    def hidden() -> Any:
        return gymnasium.Wrapper(gymnasium.make("CartPole-v1"))

    settings = configure("python:x").settings
    plain = measure_env(choose_env("gymnasium:CartPole-v1", settings), 1, LIMITS, 0.3)
    assert plain.checkers == 0 and plain.lines > 10 and 0 < plain.python_share <= 1
    assert measure_env(choose_env("python:x", settings, factory=hidden), 1, LIMITS, 0.3).checkers == 2


@pytest.mark.usefixtures("quiet_machine")
def test_processes_are_compared_where_there_is_time() -> None:
    """With enough time, the same envs are also timed in several processes."""
    settings = configure("python:x").settings
    choice = choose_env("python:x", settings, factory=lambda: ToyEnv())
    if LIMITS.cores < 2:
        pytest.skip("one core")
    env = measure_env(choice, 4, LIMITS, 3.0)
    assert env.workers == min(LIMITS.cores, 4) and env.workers_rate > 0
