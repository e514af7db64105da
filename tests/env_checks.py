"""Steps and checks that tests of several environments and vectors share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.settings import RewardSettings
from slipstream.vector.make import make_vector, spread_vector

SETTINGS_ERRORS: list[tuple[dict[str, object], str]] = [
    ({"random_starts": 1.5}, "`env.random_starts` = 1.5 is out of range."),
    ({"action_repeat": 0}, "`env.action_repeat` = 0 is out of range."),
]
"""Wrong settings that every built-in game reports with the same message."""


def play(game: Vector, actions: Array, out: Rows) -> list[Array]:
    """Step through actions [T, rows, parts]; return everything that was written, step by step."""
    seen = []
    for action in actions:
        game.step(action, out)
        ended = (out.terminated | out.truncated)[:, None] == 1  # outcome and final_obs are defined only there
        last = np.where(ended, np.column_stack([out.outcome, out.final_obs]), 0)
        seen.append(np.column_stack([out.obs, out.reward, out.terminated, out.truncated, last]))
    return seen


def play_with_resets(vector: Vector, steps: int) -> list[dict[str, Any]]:
    """Step with random actions, reset and assign some envs meanwhile; return all rows and seeds."""
    rows, random = empty_rows(vector.spec, vector.envs), np.random.default_rng(0)
    last, shape = vector.envs - 1, (vector.envs * vector.spec.agents, vector.spec.action.parts)
    kept = []
    vector.reset(rows)
    for t in range(steps):
        vector.step(random.integers(0, 2, shape).astype(vector.spec.action.dtype), rows)
        if t == 5:
            vector.assign(np.full(vector.envs, -1))
            vector.reset_envs([last, 0], rows)
        if t == 7 and vector.spec.tasks:
            vector.assign(np.arange(vector.envs) % (len(vector.spec.tasks) + 1) - 1)
        if t == 9:
            vector.reset_envs([last, 0, 1], rows, seeds=[7, 8, 9])
        kept.append({field.name: getattr(rows, field.name).copy() for field in fields(Rows)})
        kept[-1]["seeds"] = vector.seeds()
    return kept


def check_same_play(one: Vector, other: Vector, steps: int) -> None:
    """Every array of every step of two vectors is the same, bit for bit; both are closed, the other one twice."""
    try:
        for a, b in zip(play_with_resets(one, steps), play_with_resets(other, steps), strict=True):
            for name in a:
                assert np.array_equal(a[name], b[name]), name
    finally:
        one.close()
        other.close()
        other.close()


def check_same_in_processes(
    env: str, envs: int, seed: int, steps: int, choose: Callable[[Rows], Array], names: tuple[str, ...]
) -> None:
    """The named arrays of every step are the same in one process and in two."""
    choice = EnvChoice(env)
    one, other = make_vector(choice, envs, seed=seed), spread_vector(choice, envs, "processes", 2, seed=seed)
    a, b = empty_rows(one.spec, envs), empty_rows(one.spec, envs)
    one.reset(a)
    other.reset(b)
    for _ in range(steps):
        action = choose(a)
        one.step(action, a)
        other.step(action, b)
        for name in names:
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
    other.close()
    one.close()


def check_reset_starts_again(game: Any, actions: Array) -> Rows:
    """After some steps, a reset begins the first episodes of the seed again; return the rows."""
    out = empty_rows(game.spec, game.envs)
    game.reset(out)
    first = out.obs.copy()
    play(game, actions, out)
    game.reset(out)
    assert np.array_equal(out.obs, first)
    return out


def check_reset_of_one_env(game: Any, actions: Array, width: int | None = None) -> Rows:
    """Only env 2 of 4 begins a new episode, although the first `width` values of its state are NaN; return the rows."""
    out = empty_rows(game.spec, 4)
    game.reset(out)
    play(game, actions, out)
    before = out.obs.copy()
    game.state[2, :width] = np.nan
    game.reset_envs([2], out)
    assert np.isfinite(game.state).all()
    assert (game.seeds() & 0xFFFF).tolist() == [0, 0, 1, 0]
    others = np.repeat(np.arange(4) != 2, game.spec.agents)
    assert np.array_equal(out.obs[others], before[others])
    return out


def check_rewards_are_sums_of_terms(game: Vector, draw: Callable[[np.random.Generator], Array]) -> None:
    """`terms` holds weighted contributions, and the reward is their sum."""
    out, rng = empty_rows(game.spec, game.envs), np.random.default_rng(0)
    for _ in range(50):
        out.terms[:] = 0
        game.step(draw(rng), out)
        assert np.allclose(out.terms.sum(1), out.reward, atol=1e-6)


def check_reward_errors(make: Callable[..., Vector], wrong: str, near: str, terms: dict[str, Any]) -> None:
    """An unknown weight, a built-in name and a function that cannot be compiled, the two `terms`, are errors."""
    (built_in, term), (broken, function) = terms.items()
    with pytest.raises(ConfigError) as caught:
        make(1, rewards=RewardSettings(weights={wrong: 1.0}))
    unknown = f"Unknown setting `rewards.weights.{wrong}`."
    assert caught.value.message == f"{unknown} Did you mean `rewards.weights.{near}`?"
    with pytest.raises(ConfigError, match=f"Reward term `{built_in}` is built in"):
        make(1, extra_terms={built_in: term})
    with pytest.raises(ConfigError, match=f"Reward term `{broken}` cannot be compiled"):
        make(1, extra_terms={broken: function})


def evaluate_on_plain_cpu(test_file: str, expression: str) -> str:
    """Evaluate an expression of a test module `t`, compiled for a CPU without vector extensions; return its text.

    The compiler optimises less there, which takes half the time and must not change a bit either.
    """
    path = Path(test_file)
    code = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(path.parent)!r}];"
        f" import {path.stem} as t; print({expression})"
    )
    plain = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_OPT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, check=True, capture_output=True, text=True)
    return done.stdout.strip()
