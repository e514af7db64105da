"""Rewriting: kinds of numbers, references to columns, and mistakes at the user's own line."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream import native
from slipstream.contracts import Array, empty_rows
from slipstream.envs.native.game import Game
from slipstream.envs.native.sources import GameError

TABLE = ((1, 2), (3, 4))
HALF, BIG = 0.5, 3


class Part(native.Record):
    """A record."""

    x: float
    hits: int


class State(native.State):
    """All kinds of columns."""

    a: float
    b: float
    n: int
    on: bool
    parts: list[Part] = native.records(3)
    grid: native.Array[int] = native.array(2, 3)


class Action(native.Action):
    """One button."""

    press: int = native.choice("no", "yes")


class Seen(native.Observation):
    """Nothing of interest."""

    a: float


@native.function
def twice(x: float) -> float:
    """A helper of a number."""
    return 2 * x


@native.function
def shift(part: Part, by: int) -> None:
    """A helper that writes a record."""
    part.x += by
    part.hits = part.hits + by


@native.function
def halves(x: float) -> tuple[float, float]:
    """A helper with two results."""
    return x / 2, x - HALF


def idle(seen: Seen, action: Action) -> None:
    """A scripted player that presses nothing."""
    action.press = 0


def probe(name: str, step: Callable[..., None]) -> Game:
    """A game with one function of interest."""
    game = Game(name, max_decisions=100)
    game.step(step)
    game.observe(observe)
    game.player(idle)
    return game


def after(step: Callable[..., None], compiled: bool = False, **given: float) -> dict[str, float]:
    """The state after one step of a game, by column."""
    game = probe("probe", step)
    vector = game.vector(1, compiled=compiled)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    names = game.classes().state.names()
    for name, value in given.items():
        vector.state[0, names.index(name.replace("__", "."))] = value
    vector.step(np.ones((1, 1), np.int32), out)
    return dict(zip(names, vector.state[0].tolist(), strict=True))


def observe(s: State, seen: Seen) -> None:
    """See one column."""
    seen.a = s.a


def numbers(s: State, action: Action) -> None:
    """Whole numbers meet floats."""
    s.a = s.b * 2 + 1 / 3 + BIG * HALF
    s.n = (7 // 2 + 7 % 4) * 0 + TABLE[1][0] + action.press
    x = 0
    x = x + 0.25
    s.b = x + math.pi
    s.on = s.n > 3 and not s.on


def records(s: State) -> None:
    """Records by index, by name and in a loop."""
    for part in s.parts:
        part.x = len(s.parts)
    part, last = s.parts[1], s.parts[2]
    shift(part, 2)
    shift(last, 5)
    for i in range(1, 3):
        s.grid[i - 1, i] = i
    s.a, s.b = halves(twice(s.parts[1].x))
    s.n = max(s.parts[2].hits, 4) - min(1, 2)


def control(s: State) -> None:
    """Loops, conditions and powers."""
    k, total = 0, 0.0
    while True:
        k += 1
        if k == 3:
            continue
        if k > 5:
            break
        total += k**2
    s.a = total
    s.b = -(2.0**3) if 1 < k <= 6 else 0
    s.n = int(2.9) + native.floor(-1.5)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_values_are_those_of_python(compiled: bool) -> None:
    """Arithmetic, records, arrays, helpers and loops do what they say, compiled or not."""
    found = after(numbers, compiled, b=1.5)
    assert found["a"] == np.float32(1.5 * 2 + np.float32(1) / np.float32(3) + 1.5)
    assert (found["n"], found["b"], found["on"]) == (4, np.float32(0.25) + np.float32(math.pi), 1)
    found = after(records, compiled)
    assert [found[f"parts.{i}.x"] for i in range(3)] == [3, 5, 8]
    assert [found[f"parts.{i}.hits"] for i in range(3)] == [0, 2, 5]
    assert (found["grid.0.1"], found["grid.1.2"], found["a"], found["b"], found["n"]) == (1, 2, 5, 9.5, 4)
    found = after(control, compiled)
    assert (found["a"], found["b"], found["n"]) == (1 + 4 + 16 + 25, -8, 0)


def wrong_column(s: State) -> None:
    """A mistake."""
    s.speed = 1.0  # type: ignore[attr-defined]


def wrong_name(s: State) -> None:
    """A mistake."""
    s.a = HALFF  # type: ignore[name-defined]  # noqa: F821


def wrong_call(s: State) -> None:
    """A mistake."""
    s.a = math.erf(s.b)


def wrong_index(s: State) -> None:
    """A mistake."""
    s.grid[2, 0] = 1


def wrong_power(s: State) -> None:
    """A mistake."""
    s.a = s.b**0.5


def text(s: State) -> None:
    """A mistake."""
    s.a = "one"  # type: ignore[assignment]


def comprehension(s: State) -> None:
    """A mistake."""
    s.a = sum([part.x for part in s.parts])


def of_records(s: State) -> None:
    """A mistake."""
    s.a = s.parts.x  # type: ignore[attr-defined]


def wrong_helper(s: State) -> None:
    """A mistake."""
    shift(s, 2)  # type: ignore[arg-type]


def pythons_random(s: State) -> None:
    """A mistake."""
    s.a = random.random()


def numpys_random(s: State) -> None:
    """A mistake."""
    s.a = np.random.rand()


def the_time(s: State) -> None:
    """A mistake."""
    s.a = time.time()


def unused(s: State) -> None:
    """A mistake."""
    s.a + 1.0


def counted(s: State) -> None:
    """A mistake."""
    for i, part in enumerate(s.parts):
        part.x = i


def without_random(s: State) -> None:
    """A mistake."""
    s.a = rng.uniform(0.0, 1.0)  # type: ignore[name-defined] # noqa: F821


def a_global(s: State) -> None:
    """A mistake."""
    global BIG
    BIG = 2


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (wrong_column, r"State has no column `speed`"),
        (wrong_name, r"there is no `HALFF`. Did you mean `HALF`\?"),
        (wrong_call, r"`math.erf` differs between machines"),
        (wrong_index, r"index 2 is not below 2"),
        (wrong_power, r"only `\*\* 2` and `\*\* 3`"),
        (text, r"'one' is not a number"),
        (comprehension, r"`sum` cannot be called|cannot use `\[part"),
        (of_records, r"`s.parts` is a list"),
        (wrong_helper, r"`part` of `shift` is Part"),
        (pythons_random, r"`random.random` cannot be called"),
        (numpys_random, r"`np.random.rand` cannot be called"),
        (the_time, r"`time.time` cannot be called"),
        (unused, r"this value is not used"),
        (counted, r"a loop needs `range\(...\)` or a list of records"),
        (without_random, r"there is no `rng`"),
        (a_global, r"`BIG` would change outside of the state"),
    ],
)
def test_a_mistake_is_named_at_its_line(step: Any, said: str) -> None:
    """The error has the file, the line and its text, and a hint."""
    with pytest.raises(GameError, match=said) as caught:
        after(step)
    line = step.__code__.co_firstlineno + 2
    assert f'test_rewrite.py", line {line}, in {step.__name__}' in caught.value.message and caught.value.hint


def test_hints_name_what_belongs_to_the_state() -> None:
    """Random numbers and the time of somewhere else have a hint of what to use instead."""
    for step, hint in ((pythons_random, "rng: native.Random"), (the_time, "count ticks")):
        with pytest.raises(GameError) as caught:
            after(step)
        assert hint in caught.value.hint


def test_only_step_and_reset_change_the_state() -> None:
    """An observation or a reward term that writes the state is refused."""

    def cheat(before: State, now: State) -> float:
        now.a = 100.0
        return 0.0

    game = probe("cheating", control)
    game.reward(cheat)
    with pytest.raises(GameError, match="belongs to what this function only reads"):
        game.vector(1, compiled=False)


def test_a_helper_cannot_change_what_is_only_read() -> None:
    """Also not through a helper that writes its record."""

    def cheat(before: State, now: State) -> float:
        shift(now.parts[0], 1)
        return 0.0

    game = probe("cheating", control)
    game.reward(cheat)
    with pytest.raises(GameError, match="`shift` changes `part`, which this function only reads"):
        game.vector(1, compiled=False)


def test_an_index_out_of_range_is_an_error_in_plain_python() -> None:
    """Compiled code does not check; the plain one, which `check-env` plays, names the index."""

    def step(s: State) -> None:
        s.n += 1
        s.grid[0, s.n] = 1

    with pytest.raises(IndexError, match="index 9 is not from 0 to 2"):
        after(step, n=8)


@pytest.mark.parametrize("x", [0.0, 1.0, -2.5, 3.0, 700.0, -1e4, 1e5])
def test_functions_are_those_of_math(x: float) -> None:
    """Sines and exponentials agree with the library to 1e-15."""
    assert native.sin(x) == pytest.approx(math.sin(x), abs=1e-15, rel=1e-11)
    assert native.cos(x) == pytest.approx(math.cos(x), abs=1e-15, rel=1e-11)
    if x < 700:
        assert native.exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    if x > 0:
        assert native.log(x) == pytest.approx(math.log(x), rel=1e-15)
    assert native.atan2(x, 2.0) == pytest.approx(math.atan2(x, 2.0), rel=1e-15)
    assert native.atan2(x, -2.0) == pytest.approx(math.atan2(x, -2.0), rel=1e-15)


def test_random_numbers_have_their_distributions() -> None:
    """Uniform, whole and normal numbers have the mean and variance that they should."""

    def step(s: State, rng: native.Random) -> None:
        s.a, s.b, s.n = rng.uniform(-1.0, 3.0), rng.normal(), rng.integer(5)

    game = probe("dice", step)
    vector = game.vector(20_000)
    out = empty_rows(vector.spec, 20_000)
    vector.reset(out)
    vector.step(np.zeros((20_000, 1), np.int32), out)
    a, b, n = (vector.state[:, column] for column in range(3))
    assert a.min() >= -1 and a.max() < 3 and a.mean() == pytest.approx(1, abs=0.03)
    assert b.mean() == pytest.approx(0, abs=0.03) and b.std() == pytest.approx(1, abs=0.03)
    counts: Array = np.bincount(n.astype(int))
    assert len(counts) == 5 and counts.min() > 3_700
