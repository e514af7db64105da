"""All tiny games: exact snapshots, same-step resets, and results that do not depend on how envs are split."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice, games
from slipstream.vector.make import make_vector

TINY = ("recall", "pixels", "mixed")
NAMES = [f"{game}:{variant}" for game in TINY for variant in games()[game].variants]
names = pytest.mark.parametrize("name", NAMES)


def made(name: str, envs: int, seed: int = 0, first: int = 0) -> Vector:
    """A vector of the game."""
    return make_vector(EnvChoice(name), envs, seed=seed, first=first)


def actions(vector: Vector, steps: int, seed: int = 0) -> Array:
    """Random actions [T, rows, parts] for envs 0 to 5."""
    spec, random = vector.spec.action, np.random.default_rng(seed)
    shape = (steps, 6 * vector.spec.agents, spec.parts)
    if spec.kind == "continuous":
        return random.uniform(-1, 1, shape).astype(np.float32)
    return random.integers(0, spec.sizes[0], shape).astype(np.int32)


def play(vector: Vector, moves: Array, out: Rows) -> list[dict[str, Any]]:
    """Step and return everything that was written, `final_obs` only where an episode ended."""
    kept = []
    for move in moves:
        vector.step(move, out)
        step = {field.name: getattr(out, field.name).copy() for field in fields(Rows)}
        step["final_obs"][step["terminated"] == 0] = 0
        kept.append(step)
    return kept


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], rows: slice = slice(None)) -> bool:
    """Whether two rollouts are equal bit for bit; `rows` selects the rows of the first that the second has."""
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a[name][rows], b[name]) for a, b in pairs for name in a)


@names
def test_a_tiny_game_is_an_exact_vector(name: str) -> None:
    """Each game fulfils the contract, has the requested name, and rows of the size in its spec."""
    vector = made(name, 3)
    game, _, variant = name.partition(":")
    assert isinstance(vector, Vector) and vector.spec.exact and not vector.spec.competitive
    assert vector.spec.name == (game if variant == games()[game].variants[0] else name)
    out = empty_rows(vector.spec, 3)
    out.active[:] = 0
    vector.reset(out)
    assert out.obs.any(axis=1).all() and out.active.all()
    vector.close()
    vector.close()


@names
def test_a_restored_snapshot_continues_bit_for_bit(name: str) -> None:
    """Another vector restored in the middle of episodes continues bit for bit, and so does the first one."""
    one, other = made(name, 6, seed=3), made(name, 6, seed=4)
    out, again = empty_rows(one.spec, 6), empty_rows(one.spec, 6)
    one.reset(out)
    other.reset(again)
    moves = actions(one, 60)
    play(one, moves[:13], out)
    state = {key: array.copy() for key, array in one.snapshot().items()}
    assert all(len(array) == 6 for array in state.values())
    expected = play(one, moves[13:], out)
    other.restore(state)
    assert same(expected, play(other, moves[13:], again))
    one.restore(state)
    assert same(expected, play(one, moves[13:], out))


@names
def test_how_envs_are_split_changes_nothing(name: str) -> None:
    """Envs 2 to 5 made alone give the same results as among six; another seed gives others."""
    whole, part, stranger = made(name, 6, seed=5), made(name, 4, seed=5, first=2), made(name, 6, seed=6)
    moves, agents = actions(whole, 40), whole.spec.agents
    plays = []
    for vector in (whole, part, stranger):
        out = empty_rows(vector.spec, vector.envs)
        vector.reset(out)
        plays.append(play(vector, moves[:, (6 - vector.envs) * agents :], out))
    assert same(plays[0], plays[1], slice(2 * agents, None))
    assert not same(plays[0], plays[2])


@names
def test_reset_begins_the_same_first_episode(name: str) -> None:
    """A second reset repeats everything from the start, also with a large seed."""
    vector = made(name, 6, seed=2**64)
    out, moves = empty_rows(vector.spec, 6), actions(vector, 40)
    vector.reset(out)
    first = play(vector, moves, out)
    vector.reset(out)
    assert same(first, play(vector, moves, out))


@names
def test_a_seed_begins_the_same_game_anywhere(name: str) -> None:
    """A seed gives the same episode in any env of any vector; another seed gives another one."""
    one, other = made(name, 6, seed=5), made(name, 6, seed=7)
    agents, moves = one.spec.agents, actions(one, 40)
    out, again = empty_rows(one.spec, 6), empty_rows(one.spec, 6)
    one.reset(out)
    other.reset(again)
    play(one, moves, out)
    first = one.seeds()
    one.reset_envs(range(6), out, first.tolist())
    other.reset_envs(range(6), again, np.roll(first, 2).tolist())
    assert np.array_equal(np.roll(out.obs, 2 * agents, axis=0), again.obs)
    seen, theirs = play(one, moves, out), play(other, np.roll(moves, 2 * agents, axis=1), again)
    assert same(seen, [{key: np.roll(a, -2 * agents, axis=0) for key, a in step.items()} for step in theirs])
    one.reset_envs(range(6), out, range(6))
    assert not same(seen, play(one, moves, out))


@names
def test_an_end_starts_the_next_episode_in_the_same_step(name: str) -> None:
    """After the last step `final_obs` is the last observation and `obs` the next first one, in each env on its own."""
    vector = made(name, 2)
    out = empty_rows(vector.spec, 2)
    vector.reset(out)
    vector.step(actions(vector, 1)[0, : 2 * vector.spec.agents], out)
    before, agents = out.obs.copy(), vector.spec.agents
    out.active[:] = 0
    vector.reset_envs([1], out)
    assert out.active.tolist() == [0] * agents + [1] * agents
    assert np.array_equal(out.obs[:agents], before[:agents])
    ends = []
    for move in actions(vector, 80, seed=1)[:, : 2 * agents]:
        out.final_obs[:] = 99
        vector.step(move, out)
        ends.append(out.terminated.reshape(2, agents).all(axis=1).tolist())
        assert np.array_equal((out.final_obs != 99).any(axis=1), out.terminated == 1)
        assert not out.truncated.any() and not out.outcome.any() and out.active.all()
    length = ends.index([False, True]) + 1
    for env, shift in ((0, 1), (1, 0)):
        assert [t + shift for t, over in enumerate(ends, 1) if over[env]] == list(range(length, 81 + shift, length))
