"""Treechop as a whole: spaces, options, ends, tasks, exact replay, and independence of how it is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.registry import EnvChoice, labels_of, parse
from slipstream.envs.treechop.columns import ENOUGH, HALF, SCALAR_NAMES, SIDE, TASKS, State
from slipstream.envs.treechop.game import game as treechop
from slipstream.envs.treechop.minerl_spaces import Treechop
from slipstream.errors import ConfigError
from slipstream.minecraft.action_maps import BUTTONS, FULL, NAMES, TABLE_8, TABLE_14
from slipstream.settings import EnvSettings
from treechop_games import NEW, begun, ground, leaves, logs, place, press, rock, solid, worlds

STILL = np.zeros((1, 1), np.int32)


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


def made(variant: str = "dense", **settings: Any) -> Vector:
    """One game as the registry makes it."""
    game = parse("treechop")[0]
    assert game is not None
    return game.make(EnvChoice("treechop", EnvSettings(**settings)), variant, 1, 0, 0)


def trees(game: Treechop, env: int = 0) -> int:
    """The number of trees in a world."""
    return int((logs(game, env) > 0).sum())


def test_treechop_is_a_vector_with_minerls_observation() -> None:
    """The vector fulfils the contract; observations are `pov`, 64 x 64 RGB, and scalars only if enabled."""
    game = Treechop(2)
    assert isinstance(game, Vector) and game.spec.exact and game.spec.step_seconds == pytest.approx(0.05)
    (field,) = game.spec.obs.fields
    assert (field.name, field.kind, field.shape) == ("pov", "image", (64, 64, 3))
    assert game.spec.action.sizes == (14,)
    assert game.spec.tasks == ("dense", "medium", "sparse", "hills", "rocks", "rough")
    assert game.spec.target == ("dense",)
    more = Treechop(1, options={"scalars": True}, actions="multi_discrete").spec
    assert [field.name for field in more.obs.fields] == ["compass/angle", "inventory/log", "pov"]
    assert more.action.parts == 10


def test_time_is_up_by_truncation_and_a_new_world_begins() -> None:
    """After its seconds a game is truncated, lost without a log; the next has another world and view."""
    game, out = begun(2, match_seconds=1.0, seed=3)
    old = worlds(game).copy()
    for step in range(20):
        assert not out.truncated.any() or step == 0
        game.step(np.zeros((2, 1), np.int32), out)
    assert out.truncated.all() and not out.terminated.any() and (out.outcome == -1).all()
    assert not np.array_equal(worlds(game), old) and not np.array_equal(out.final_obs, out.obs)
    seconds = out.behaviour[:, game.spec.behaviours.index("seconds")]
    assert (game.column("ticks_left") == 20).all() and (seconds == 1.0).all()


def test_enough_logs_end_the_game_won() -> None:
    """The 64th log terminates; fewer win where they keep MineRL's pace of 64 in 8000 ticks."""
    game, out = begun(match_seconds=60)
    place(game, logs=ENOUGH)
    game.step(STILL, out)
    assert out.terminated[0] == 1 and out.outcome[0] == 1
    place(game, logs=10, ticks_left=1)  # 9.6 logs are the pace of 60 seconds
    game.step(STILL, out)
    assert out.truncated[0] == 1 and out.outcome[0] == 1
    place(game, logs=9, ticks_left=1)
    game.step(STILL, out)
    assert out.outcome[0] == -1


def test_tasks_are_worlds_with_fewer_trees() -> None:
    """An assigned task holds from the next game on; each has its number of trees, and enough logs to win."""
    game, out = begun(3, "mixed", match_seconds=0.1)
    assert [trees(game, env) for env in range(3)] == [128, 48, 16]
    game.assign(np.array([2, 2, -1]))
    for _ in range(2):
        game.step(np.zeros((3, 1), np.int32), out)
    assert [trees(game, env) for env in range(3)] == [16, 16, 16]
    assert all(bin(int(c)).count("1") <= 6 for c in logs(game).flat)
    assert sum(bin(int(c)).count("1") for c in logs(game).flat) >= ENOUGH


def test_all_tasks_are_played_by_assignment() -> None:
    """Every variant plays its own task, and an env goes on with any other that it is given."""
    for name, forest in TASKS.items():
        game, out = begun(1, name, match_seconds=0.1)
        assert game.spec.target == (name,) and trees(game) == forest.trees
        assert (ground(game) > 0).any() == (name in NEW)
        game.assign(np.array([list(TASKS).index("rough")]))
        for _ in range(2):
            game.step(STILL, out)
        assert trees(game) == 16 and (ground(game) > 0).any() and rock(game).any()
        assert sum(bin(int(c)).count("1") for c in logs(game).flat) >= ENOUGH


@pytest.mark.parametrize("task", ["hills", "rough"])
def test_hills_are_real_and_can_be_climbed(task: str) -> None:
    """The ground rises to 3 blocks, one at a time; a walk with jumps from the middle goes up and down again."""
    game, out = begun(8, task, seed=1, match_seconds=600)
    for env in range(8):
        high = ground(game, env)
        hills = np.where(rock(game, env), -1, high)
        assert 0.05 < (hills > 0).mean() < 0.95 and hills.max() == 3
        if task == "hills":
            assert not rock(game, env).any()
            assert max(np.abs(high - np.roll(high, 1, axis)).max() for axis in (0, 1)) == 1
    heights = []
    for _ in range(300):
        press(game, out, "forward", "jump")
        heights.append(game.column("z").copy())
    found = np.array(heights)
    under = [ground(game, env)[int(game.column("x")[env]), int(game.column("y")[env])] for env in range(8)]
    assert (game.column("z") >= under).all(), "nobody is inside the ground"
    assert (found.max(0) - found.min(0) >= 2).sum() >= 4


@pytest.mark.parametrize("task", ["rocks", "rough"])
def test_rocks_are_one_or_two_blocks_above_the_ground(task: str) -> None:
    """Rocks are walls of up to 5 metres, no tree is on one, and the middle, where players start, is free of them."""
    game, _ = begun(8, task, seed=1)
    for env in range(8):
        rocks, high = rock(game, env), ground(game, env)
        assert 60 <= rocks.sum() <= 5 * 60
        assert not (rocks & (logs(game, env) > 0)).any()
        middle = slice(SIDE // 2 - 2, SIDE // 2 + 3)
        assert not rocks[middle, middle].any()
        if task == "rocks":
            assert set(np.unique(high[rocks])) == {1, 2} and not high[~rocks].any()


@pytest.mark.parametrize("task", TASKS)
def test_trees_stand_on_the_ground(task: str) -> None:
    """The lowest log of every tree lies on the ground of its column, and no leaf is inside a log or the ground."""
    game, _ = begun(4, task, seed=2)
    for env in range(4):
        trunks, high = logs(game, env), ground(game, env)
        foot = np.log2((trunks & -trunks)[trunks > 0])
        assert np.array_equal(foot, high[trunks > 0])
        assert set(np.unique(trunks[trunks > 0] >> high[trunks > 0])) == {0b1111, 0b11111, 0b111111}
        assert not (leaves(game, env) & solid(game, env)).any()
        if task in ("hills", "rough"):
            assert (high[trunks > 0] > 0).any()


@pytest.mark.parametrize("task", TASKS)
def test_a_game_begins_on_the_ground_and_never_inside_it(task: str) -> None:
    """From the middle and from random starts, the player stands on the highest ground below it and can walk away."""
    for share in (0.0, 1.0):
        game, out = begun(64, task, seed=7, random_starts=share)
        x, y, z = (game.column(name).copy() for name in "xyz")
        for env in range(64):
            touched = np.ix_(*(np.floor([at - HALF, at + HALF]).astype(int) % SIDE for at in (x[env], y[env])))
            assert z[env] == ground(game, env)[touched].max() and not logs(game, env)[touched].any()
        press(game, out, "forward", "jump", ticks=15)
        press(game, out, "right", "jump", ticks=15)
        moved = np.hypot(game.column("x") - x, game.column("y") - y)
        assert (moved > 0.3).all()


@pytest.mark.parametrize("task", ["dense", "rough"])
def test_a_snapshot_goes_on_bit_for_bit(task: str) -> None:
    """A game restored into another vector continues identically, through ends and new worlds."""
    options = {"scalars": True}
    first, out = begun(3, task, match_seconds=2.0, seed=5, options=options)
    second, other = begun(3, task, match_seconds=2.0, seed=6, options=options)
    actions = some_actions(100, 3)
    play(first, actions[:30], out)
    kept = first.snapshot()
    assert np.array_equal(kept["world"], first.games.world) and not np.array_equal(kept["world"], second.games.world)
    second.restore(kept)
    assert np.array_equal(worlds(second), worlds(first))
    for one, two in zip(play(first, actions[30:], out), play(second, actions[30:], other), strict=True):
        assert np.array_equal(one, two)
    assert np.array_equal(worlds(second), worlds(first)) and np.array_equal(first.seeds(), second.seeds())
    first.restore(kept)
    again = empty_rows(first.spec, 3)
    assert len(play(first, actions[30:], again)) == 70 and np.array_equal(again.obs, out.obs)


@pytest.mark.parametrize("task", ["dense", "rough"])
def test_how_envs_are_split_changes_nothing(task: str) -> None:
    """Env 2 of four plays the same game as the only env of a vector with first = 2."""
    whole, out = begun(4, task, seed=9, match_seconds=1.5)
    part, own = begun(1, task, seed=9, first=2, match_seconds=1.5)
    assert np.array_equal(out.obs[2], own.obs[0])
    actions = some_actions(60, 4)
    for one, two in zip(play(whole, actions, out), play(part, actions[:, 2:3], own), strict=True):
        assert np.array_equal(one[2], two[0])


@pytest.mark.parametrize("task", ["dense", "rough"])
def test_a_seed_begins_the_same_game_anywhere(task: str) -> None:
    """`seeds` returns the seed from which `reset_envs` starts the same game, in any env."""
    one, out = begun(2, task, seed=1)
    two, other = begun(3, task, seed=2)
    two.reset_envs([1], other, [int(one.seeds()[0])])
    assert np.array_equal(out.obs[0], other.obs[1]) and np.array_equal(worlds(one)[0], worlds(two)[1])


def test_compiled_equals_uncompiled() -> None:
    """From a game of the lumberjack among hills and rocks, plain Python plays the same bits, also into a new world."""
    played, out = begun(2, "rough", seed=4, match_seconds=30.0)
    action = np.zeros((2, 10), np.float32)
    for _ in range(580):
        treechop.act("lumberjack", out.obs, "mixed", action)
        played.games.step(action, out)
    saved, rng = played.snapshot(), np.random.default_rng(0)
    found: list[list[Array]] = [[], []]
    both: list[NativeVector] = [
        treechop.vector(2, "rough", match_seconds=30.0, compiled=compiled, options={"scalars": 1})
        for compiled in (True, False)
    ]
    for step in range(25):
        action[:, :8] = rng.random((2, 8)) < (0.9, 0.1, 0.6, 0.3, 0.1, 0.1, 0.1, 0.2)
        action[:, 8:] = rng.normal(0, 8, (2, 2))
        for vector, written in zip(both, found, strict=True):
            if step == 0:
                vector.restore(saved)
            rows = empty_rows(vector.spec, 2)
            with np.errstate(all="ignore"):
                vector.step(action, rows)
            assert rows.truncated.all() == (step == 19)
            written += [rows.obs, rows.final_obs, rows.reward, rows.terms, rows.behaviour, vector.state.copy()]
    assert all(np.array_equal(one, two) for one, two in zip(*found, strict=True))
    assert np.array_equal(both[0].snapshot()["world"], both[1].snapshot()["world"])


def test_the_compass_points_at_the_nearest_tree() -> None:
    """After turning by the compass angle, the compass is 0."""
    game, out = begun(4, options={"scalars": True}, seed=4)
    angle = game.spec.obs.split(out.obs)["compass/angle"][:, 0].copy()
    still = {name: np.zeros(4) for name in BUTTONS}
    game.press(still | {"camera": np.column_stack([np.zeros(4), angle])}, out)
    assert np.abs(game.spec.obs.split(out.obs)["compass/angle"]).max() < 0.1
    assert np.abs(angle).max() > 1


def stroll(before: State, after: State) -> float:
    """Metres walked in this step."""
    return after.walked


def test_user_terms_and_weights_are_paid() -> None:
    """A term of one's own is paid beside those of the game."""
    choice = EnvChoice("treechop", terms={"stroll": stroll})
    game = parse("treechop")[0].make(choice, "dense", 1, 0, 0)  # type: ignore[union-attr]
    out = empty_rows(game.spec, 1)
    game.reset(out)
    game.step(np.array([[1]], np.int32), out)
    assert out.reward[0] == pytest.approx(0.098, rel=1e-3)
    assert game.spec.terms == ("log", "chop", "leaf", "time", "stroll")


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, TABLE_14.spec.sizes),
        ({"options": {"actions": "14"}}, TABLE_14.spec.sizes),
        ({"options": {"actions": "8"}}, TABLE_8.spec.sizes),
        ({"options": {"actions": 8}}, TABLE_8.spec.sizes),
        ({"options": {"actions": "full"}}, FULL.spec.sizes),
        ({"actions": "multi_discrete"}, FULL.spec.sizes),
        ({"actions": "multi_discrete", "options": {"actions": "8"}}, TABLE_8.spec.sizes),
    ],
)
def test_action_maps_have_their_spaces_and_labels(settings: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """`env.options.actions` chooses the table or the full map, before `env.actions`; each option is named."""
    game = made(**settings)
    assert game.spec.action.sizes == sizes and len(sizes) in (1, 10)
    assert game.spec.action.kind == ("discrete" if len(sizes) == 1 else "multi_discrete")
    found = labels_of(game.spec)
    if len(sizes) == 1:
        assert found.parts == ("action",) and found.options == (NAMES[str(sizes[0])],) and not found.obs
    else:
        assert found.parts == (*BUTTONS, "camera.pitch", "camera.yaw")
        assert found.options[:8] == (("off", "on"),) * 8 and found.options[8][5] == "+0.0"
    out = empty_rows(game.spec, 1)
    game.reset(out)
    before = out.obs.copy()
    game.step(np.array([FULL.encode({"forward": [1], "camera": [[0, 0]]})[0] if len(sizes) > 1 else [1]]), out)
    assert not np.array_equal(out.obs, before)


def test_the_same_presses_by_every_action_map() -> None:
    """Table entries and switches of the same name play the same game: walk, jump, attack, and a look of its degrees."""
    shown = {"8": {}, "14": {}, "full": {}}
    for kind, found in shown.items():
        game, out = begun(options={"actions": kind, "look": 9.0} if kind != "full" else {"actions": kind}, seed=3)
        for name in NAMES["8"]:
            if kind == "full" and name.startswith("look"):
                continue
            pressed = {button: np.array([button in name.split("+")]) for button in BUTTONS}
            action = (
                FULL.encode(pressed | {"camera": np.zeros((1, 2))})
                if kind == "full"
                else np.array([[NAMES[kind].index(name)]], np.int32)
            )
            game.step(action, out)
            found[name] = game.games.state[0].copy()
    assert all(np.array_equal(shown["8"][name], shown["14"][name]) for name in NAMES["8"])
    assert all(np.array_equal(shown["8"][name], state) for name, state in shown["full"].items())
    names = treechop.classes("dense").state.names()
    right, left = (shown["8"][f"look {way}"][names.index("yaw")] for way in ("right", "left"))
    assert right - left == pytest.approx(9.0, abs=1e-4)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("scalars", [False, True])
def test_the_size_is_that_of_the_image(size: int, scalars: bool) -> None:
    """`env.options.size` is the side of the image in the spec, in observations and beside scalars, with labels."""
    game = made("rough", options={"size": size, "scalars": scalars})
    field = game.spec.obs.fields[-1]
    assert (field.name, field.kind, field.shape) == ("pov", "image", (size, size, 3))
    out = empty_rows(game.spec, 1)
    game.reset(out)
    image = game.spec.obs.split(out.obs)["pov"][0]
    assert image.shape == (size, size, 3) and len(np.unique(image)) > 40
    assert labels_of(game.spec).obs == (SCALAR_NAMES if scalars else ())
    assert labels_of(game.spec).options == (NAMES["14"],)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"options": {"scalar": True}}, "Unknown setting `env.options.scalar`. Did you mean `env.options.scalars`?"),
        ({"options": {"look": 2}}, "`env.options.look` = 2 is out of range."),
        ({"options": {"scalars": 3}}, "`env.options.scalars` = 3 is not a boolean."),
        ({"options": {"actions": "13"}}, "`env.options.actions` = `13` is unknown."),
        ({"options": {"actions": "ful"}}, "`env.options.actions` = `ful` is unknown. Did you mean `full`?"),
        ({"options": {"actions": "vpt"}}, "`env.options.actions` = `vpt` is unknown."),
        ({"options": {"size": 96}}, "`env.options.size` = 96 is not possible."),
        ({"options": {"size": "big"}}, "`env.options.size` = 'big' is not possible."),
        ({"actions": "continuous"}, "`env.actions` = `continuous` is unknown."),
        ({"target": ("forest",)}, "`env.target`: `treechop` has no task `forest`."),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], told: str) -> None:
    """Invalid settings raise errors with the key."""
    with pytest.raises(ConfigError) as caught:
        made(**settings)
    assert told in caught.value.message
