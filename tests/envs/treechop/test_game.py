"""Treechop as a whole: spaces, ends, tasks, exact replay, and independence of how it is split."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice, parse
from slipstream.envs.treechop import layout as at
from slipstream.envs.treechop.game import Treechop
from slipstream.errors import ConfigError
from slipstream.settings import EnvSettings


def play(game: Treechop, actions: Array, out: Rows) -> list[Array]:
    """Step through actions [T, envs, 1]; return all that was written, step by step."""
    seen = []
    for action in actions:
        game.step(action, out)
        seen.append(np.column_stack([out.obs, out.reward, out.terminated, out.truncated]))
    return seen


def some_actions(steps: int, envs: int) -> Array:
    """Return random actions that are held for a while."""
    chosen = np.random.default_rng(0).integers(0, 14, (steps // 5, envs, 1)).astype(np.int32)
    return np.repeat(chosen, 5, axis=0)


def test_treechop_is_a_vector_with_minerls_observation() -> None:
    """The vector fulfils the contract; observations are `pov`, 64 x 64 RGB, and scalars only if enabled."""
    game = Treechop(2)
    assert isinstance(game, Vector) and game.spec.exact and game.spec.step_seconds == pytest.approx(0.05)
    (field,) = game.spec.obs.fields
    assert (field.name, field.kind, field.shape) == ("pov", "image", (64, 64, 3))
    assert game.spec.action.sizes == (14,) and game.spec.tasks == ("dense", "medium", "sparse")
    more = Treechop(1, options={"scalars": True}, actions="multi_discrete").spec
    assert [field.name for field in more.obs.fields] == ["compass/angle", "inventory/log", "pov"]
    assert more.action.parts == 10


def test_time_is_up_by_truncation_and_a_new_world_begins() -> None:
    """After its seconds a game is truncated, lost without a log; the next has another world and view."""
    game = Treechop(2, match_seconds=1.0, seed=3)
    out = empty_rows(game.spec, 2)
    game.reset(out)
    old = game.cells.copy()
    for step in range(20):
        assert not out.truncated.any() or step == 0
        game.step(np.zeros((2, 1), np.int32), out)
    assert out.truncated.all() and not out.terminated.any() and (out.outcome == -1).all()
    assert not np.array_equal(game.cells, old) and not np.array_equal(out.final_obs, out.obs)
    assert (game.clock[:, at.TICKS_LEFT] == 20).all() and (out.behaviour[:, 4] == 1.0).all()


def test_enough_logs_end_the_game_won() -> None:
    """The 64th log terminates; fewer win where they keep MineRL's pace of 64 in 8000 ticks."""
    game = Treechop(1, match_seconds=60)
    out = empty_rows(game.spec, 1)
    game.reset(out)
    game.clock[0, at.LOGS] = at.ENOUGH
    game.step(np.zeros((1, 1), np.int32), out)
    assert out.terminated[0] == 1 and out.outcome[0] == 1
    game.clock[0, at.LOGS], game.clock[0, at.TICKS_LEFT] = 10, 1  # 9.6 logs are the pace of 60 seconds
    game.step(np.zeros((1, 1), np.int32), out)
    assert out.truncated[0] == 1 and out.outcome[0] == 1
    game.clock[0, at.LOGS], game.clock[0, at.TICKS_LEFT] = 9, 1
    game.step(np.zeros((1, 1), np.int32), out)
    assert out.outcome[0] == -1


def test_tasks_are_worlds_with_fewer_trees() -> None:
    """An assigned task holds from the next game on; each has its number of trees, and enough logs to win."""
    game = Treechop(3, variant="mixed", match_seconds=0.1)
    out = empty_rows(game.spec, 3)
    game.reset(out)
    trunks = [int(((cells >> at.WOOD) & 255 > 0).sum()) for cells in game.cells]
    assert trunks == list(at.TREES)
    game.assign(np.array([2, 2, -1]))
    for _ in range(2):
        game.step(np.zeros((3, 1), np.int32), out)
    assert [int(((cells >> at.WOOD) & 255 > 0).sum()) for cells in game.cells] == [16, 16, 16]
    assert all(bin(int(c)).count("1") <= 6 for c in (game.cells[0] >> at.WOOD) & 255)
    assert sum(bin(int(c)).count("1") for c in (game.cells[0] >> at.WOOD) & 255) >= at.ENOUGH


def test_a_snapshot_goes_on_bit_for_bit() -> None:
    """A game restored into another vector continues identically, through ends and new worlds."""
    first, second = (Treechop(3, match_seconds=2.0, seed=seed, options={"scalars": True}) for seed in (5, 6))
    out, other = empty_rows(first.spec, 3), empty_rows(first.spec, 3)
    first.reset(out)
    second.reset(other)
    actions = some_actions(100, 3)
    play(first, actions[:30], out)
    second.restore(first.snapshot())
    for one, two in zip(play(first, actions[30:], out), play(second, actions[30:], other), strict=True):
        assert np.array_equal(one, two)


def test_how_envs_are_split_changes_nothing() -> None:
    """Env 2 of four plays the same game as the only env of a vector with first = 2."""
    whole, part = Treechop(4, seed=9, match_seconds=1.5), Treechop(1, seed=9, first=2, match_seconds=1.5)
    out, own = empty_rows(whole.spec, 4), empty_rows(whole.spec, 1)
    whole.reset(out)
    part.reset(own)
    assert np.array_equal(out.obs[2], own.obs[0])
    actions = some_actions(60, 4)
    for one, two in zip(play(whole, actions, out), play(part, actions[:, 2:3], own), strict=True):
        assert np.array_equal(one[2], two[0])


def test_a_seed_begins_the_same_game_anywhere() -> None:
    """`seeds` returns the seed from which `reset_envs` starts the same game, in any env."""
    one, two = Treechop(2, seed=1), Treechop(3, seed=2)
    out, other = empty_rows(one.spec, 2), empty_rows(two.spec, 3)
    one.reset(out)
    two.reset(other)
    two.reset_envs([1], other, [int(one.seeds()[0])])
    assert np.array_equal(out.obs[0], other.obs[1]) and np.array_equal(one.cells[0], two.cells[1])


def test_the_compass_points_at_the_nearest_tree() -> None:
    """After turning by the compass angle, the compass is 0."""
    game = Treechop(4, options={"scalars": True}, seed=4)
    out = empty_rows(game.spec, 4)
    game.reset(out)
    angle = game.spec.obs.split(out.obs)["compass/angle"][:, 0].copy()
    still = {name: np.zeros(4) for name in ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint")}
    game.press(still | {"camera": np.column_stack([np.zeros(4), angle])}, out)
    assert np.abs(game.spec.obs.split(out.obs)["compass/angle"]).max() < 0.1


def test_user_terms_and_weights_are_paid() -> None:
    """A term of one's own is paid beside those of the game."""
    choice = EnvChoice("treechop", terms={"stroll": lambda before, after, clock: after[8]})
    game = parse("treechop")[0].make(choice, "dense", 1, 0, 0)  # type: ignore[union-attr]
    out = empty_rows(game.spec, 1)
    game.reset(out)
    game.step(np.array([[1]], np.int32), out)
    assert out.reward[0] == pytest.approx(0.098, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"options": {"scalar": True}}, "Unknown setting `env.options.scalar`. Did you mean `env.options.scalars`?"),
        ({"options": {"look": 2}}, "`env.options.look` = 2 is out of range."),
        ({"options": {"scalars": 3}}, "`env.options.scalars` = 3 is not a boolean."),
        ({"actions": "continuous"}, "`env.actions` = `continuous` is unknown."),
        ({"target": ("forest",)}, "`env.target`: `treechop` has no task `forest`."),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], told: str) -> None:
    """Invalid settings raise errors with the key."""
    choice = EnvChoice("treechop", EnvSettings(**settings))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        parse("treechop")[0].make(choice, "dense", 1, 0, 0)  # type: ignore[union-attr]
    assert told in caught.value.message
