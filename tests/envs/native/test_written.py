"""Columns that a function writes on every path; all others are cleared before it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream import native
from slipstream.contracts import empty_rows
from slipstream.envs.kart.game import game as kart
from slipstream.envs.native.build import build
from slipstream.envs.soccer.game import game as soccer
from slipstream.stages.check_game import random_actions

EXAMPLES = ("acrobot", "cartpole", "mountain_car", "pendulum", "pong", "tag")


class State(native.State):
    """A number."""

    n: int


class Press(native.Action):
    """A button."""

    button: int = native.choice("off", "on")


class Pair(native.Record):
    """Two numbers."""

    x: float
    y: float


class Seen(native.Observation):
    """Columns 0, 1 and 2, then 3 to 8."""

    a: float
    rest: native.Array[float] = native.array(2)
    pairs: list[Pair] = native.records(3)


def reset(s: State, rng: native.Random) -> None:
    """Begin anywhere."""
    s.n = rng.integer(3)


def step(s: State, action: Press) -> None:
    """Go on."""
    s.n = (s.n + 1) % 3


@native.function
def write_pair(pair: Pair, both: bool) -> None:
    """Write one number, and perhaps the other one."""
    pair.x = 1.0
    if both:
        pair.y = 1.0


def everything(s: State, seen: Seen) -> None:
    """Loops over all of them."""
    seen.a = 1.0
    for k in range(2):
        seen.rest[k] = 1.0
    for pair in seen.pairs:
        pair.x, pair.y = 1.0, 1.0


def branches(s: State, seen: Seen) -> None:
    """One column in both branches, another in one."""
    if s.n == 0:
        seen.a, seen.rest[0] = 1.0, 1.0
    else:
        seen.a, seen.rest[1] = 1.0, 1.0


def leaves(s: State, seen: Seen) -> None:
    """The second column only where the function goes on."""
    seen.a = 1.0
    if s.n == 0:
        return
    seen.rest[0] = 1.0


def unknown(s: State, seen: Seen) -> None:
    """A column that depends on the state, one of a loop that may end, and one after it."""
    seen.rest[min(s.n, 1)] = 1.0
    for k in range(2):
        if k == s.n:
            break
        seen.rest[k] = 1.0
    while s.n > 5:
        seen.pairs[0].x = 1.0
    seen.a = 1.0


def helpers(s: State, seen: Seen) -> None:
    """A helper writes a column of two records on every path."""
    write_pair(seen.pairs[1], s.n == 0)
    write_pair(seen.pairs[2], s.n == 0)


def made(observe: Callable[..., None]) -> Any:
    """The game with this observation, and what it clears."""
    game = native.Game("columns", max_decisions=5)
    game.reset(reset)
    game.step(step)
    game.observe(observe)
    play = build(game.plan(), compiled=False).step_all.__globals__["play"]
    obs = np.ones((1, 9), np.float32)
    play.__globals__["observe_env"].__globals__["clear"](obs, 0)
    return game, set(np.flatnonzero(obs[0]).tolist())


@pytest.mark.parametrize(
    ("observe", "written"),
    [
        (everything, set(range(9))),
        (branches, {0}),
        (leaves, {0}),
        (unknown, {0}),
        (helpers, {5, 7}),
    ],
)
def test_only_columns_of_every_path_are_left(observe: Callable[..., None], written: set[int]) -> None:
    """What is written in one branch, after a return, at an unknown index or in a loop that may end is cleared."""
    game, left = made(observe)
    assert left == written
    observed_without_remains(game, "")


def observed_without_remains(game: native.Game, variant: str) -> None:
    """Observe states of random play into numbers that are not finite: none of them is left."""
    vector = game.vector(3, variant, compiled=False)
    out, rng = empty_rows(vector.spec, 3), np.random.default_rng(0)
    vector.reset(out)
    for _ in range(12):
        obs = np.full_like(out.obs, np.nan)
        vector.observe(obs)
        assert np.array_equal(obs, out.obs) and np.isfinite(obs).all()
        out.obs[:] = np.nan
        vector.step(random_actions(vector.spec, out.mask, rng), out)


@pytest.mark.parametrize("name", EXAMPLES)
def test_observations_of_examples_hold_nothing_old(name: str) -> None:
    """Every column of an example's observation is written or cleared."""
    observed_without_remains(importlib.import_module(f"slipstream.envs.native.examples.{name}").game, "")


@pytest.mark.parametrize(("game", "variant"), [(soccer, "1v1"), (soccer, "mixed"), (kart, "")])
def test_observations_of_built_in_games_hold_nothing_old(game: native.Game, variant: str) -> None:
    """Every column of a built-in game's observation is written or cleared."""
    observed_without_remains(game, variant)
