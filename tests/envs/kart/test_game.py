"""The kart environment: laps and their ends, exact snapshots, difficulty, and splits of envs that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from env_checks import SETTINGS_ERRORS, check_reset_of_one_env, check_reset_starts_again, play
from kart_laps import PLACE, SEEN, act, begun, columns, fact, hold, speed, tracks
from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.kart.columns import POINTS
from slipstream.envs.kart.game import game as kart
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError, EnvError
from slipstream.settings import EnvSettings

HALF: dict[str, float] = {"difficulty_low": 0.5, "difficulty_high": 1.0}
ALONE: dict[str, Any] = {"actions": "continuous"}


def held_actions(steps: int, envs: int) -> Array:
    """Return random actions that are held for a while."""
    some = np.random.default_rng(0).uniform((-0.5, -0.2), (0.5, 1), (steps // 10, envs, 2))
    return np.repeat(some, 10, axis=0).astype(np.float32)


def test_kart_is_a_vector() -> None:
    """The class fulfils the contract, and its spec is complete."""
    game, _ = begun(3)
    assert isinstance(game, Vector)
    assert game.spec.name == "kart" and begun(1, "easy")[0].spec.name == "kart:easy"
    assert game.spec.agents == 1 and game.spec.exact and not game.spec.competitive
    assert game.spec.step_seconds == pytest.approx(4 / 60)
    assert game.spec.obs.width == 59 and game.spec.action.low == (-1, -1)


def test_a_lap_terminates_and_begins_the_next() -> None:
    """A finished lap terminates with outcome 1; its last observation is kept, and a new track begins."""
    envs = 8
    game, out = begun(envs, seed=2)
    left, ahead = SEEN["lap_left"], SEEN["speed.ahead"]
    old, ended = tracks(game).copy(), np.zeros(envs, bool)
    for step in range(800):
        game.step(act("expert", game, out), out)
        assert not out.truncated.any() and out.active.all()
        for env in np.flatnonzero(out.terminated & ~ended):
            ended[env] = True
            assert out.outcome[env] == 1 and step > 150
            assert abs(out.final_obs[env, left]) < 0.01 and out.final_obs[env, ahead] > 0.2
            assert out.obs[env, left] == 1 and out.obs[env, ahead] == 0
            assert not np.array_equal(tracks(game)[env], old[env]) and game.seeds()[env] & 0xFFFF == 1
        if ended.all():
            break
    assert ended.all()


def test_time_up_truncates() -> None:
    """A car that stands still is truncated at the time limit with outcome -1; its last observation is kept."""
    game, out = begun(2, match_seconds=2.0)
    first = out.obs.copy()
    for step in range(1, 31):
        hold(game, out, 0, 0)
        assert out.truncated.any() == (step == 30) and not out.terminated.any()
    assert out.outcome.tolist() == [-1, -1] and np.array_equal(out.final_obs, first)
    assert not np.array_equal(out.obs, first) and (game.column("ticks_left") == 120).all()


def test_backwards_over_the_line_does_not_count() -> None:
    """Rolling back over the line and forward again is no lap; a lap is one full round from the start."""
    game, out = begun(16, seed=4)
    for throttle, steps in ((-1.0, 60), (1.0, 60)):
        lows = []
        for _ in range(steps):
            hold(game, out, 0, throttle)
            lows.append(game.column("done").copy())
            assert not out.terminated.any()
        if throttle < 0:
            assert (lows[-1] < -0.01).all() and (game.column("passed") < 0).all()
            assert (out.obs[:, SEEN["lap_left"]] > 1).all()
    assert (game.column("done") < 0.3).all()


def test_a_lap_from_anywhere_is_a_whole_lap() -> None:
    """After a random start the lap ends where it began, one length of the track later."""
    envs = 12
    game, out = begun(envs, random_starts=1.0, seed=7)
    first, ended = columns(game, *PLACE), 0
    assert len(set(game.column("segment").tolist())) > 8
    for _ in range(800):
        before, episode = columns(game, *PLACE), game.seeds() & 0xFFFF
        game.step(act("expert", game, out), out)
        for env in np.flatnonzero(out.terminated & (episode == 0)):
            ended += 1
            assert np.hypot(*(before[env] - first[env])) < 12
        if ended == envs:
            break
    assert ended == envs


def test_random_starts_spread_over_the_track() -> None:
    """With random_starts = 1 cars are anywhere on the asphalt, rolling and askew; else all stand on the line."""
    game, out = begun(1000, random_starts=1.0)
    share = game.column("offset") / game.column("edge")
    assert share.std() > 0.4 and np.abs(share).max() <= 0.91 and speed(game).std() > 4 and speed(game).max() <= 20
    assert np.abs(out.obs[:, SEEN["heading.sine"]]).max() < 0.5 and out.obs[:, SEEN["heading.sine"]].std() > 0.2
    assert np.histogram(game.column("segment"), 8, (0, POINTS))[0].min() > 80
    assert np.abs(game.column("done")).max() < 1e-4
    mixed, _ = begun(1000, random_starts=0.25)
    assert 0.2 < (mixed.column("offset") != 0).mean() < 0.3
    still, _ = begun(100)
    assert (columns(still, "vx", "vy", "segment", "passed", "along", "offset", "done") == 0).all()


def test_snapshot_and_restore_replay_exactly() -> None:
    """From a snapshot the same actions give the same bits, over ends and new tracks, also in another object."""
    settings: dict[str, Any] = {"random_starts": 0.5, "match_seconds": 5.0}
    game, out = begun(16, seed=9, **settings)
    actions = held_actions(240, 16)
    play(game, actions[:75], out)
    game.assign(np.full(16, 4))
    saved = game.snapshot()
    expected = play(game, actions[75:], out)
    assert (game.seeds() & 0xFFFF).min() >= 3
    for other in (game, kart.vector(16, seed=1, **ALONE, **settings)):
        other.restore(saved)
        seen = play(other, actions[75:], empty_rows(game.spec, 16))
        assert all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True))
        assert (fact(other, "difficulty") >= 0.79).all()


def test_how_envs_are_split_changes_nothing() -> None:
    """Two vectors of 4 envs with first = 0 and 4 equal one of 8, and another seed is another game."""
    actions = held_actions(150, 8)
    settings: dict[str, Any] = {"random_starts": 0.5, "match_seconds": 4.0, "seed": 4}
    whole, out = begun(8, **settings)
    expected = play(whole, actions, out)
    for first in (0, 4):
        half, rows = begun(4, first=first, **settings)
        seen = play(half, actions[:, first : first + 4].copy(), rows)
        assert all(np.array_equal(a[first : first + 4], b) for a, b in zip(expected, seen, strict=True))
    assert not np.array_equal(tracks(begun(4, seed=5)[0]), tracks(begun(4, seed=6)[0]))


def test_reset_starts_the_same_laps_again() -> None:
    """Reset begins the first track of the seed again, with the difficulty of the task that was assigned last."""
    game = kart.vector(4, seed=2, match_seconds=2.0, **ALONE)
    out = check_reset_starts_again(game, held_actions(50, 4))
    game.assign(np.full(4, 4))
    game.reset(out)
    assert (fact(game, "difficulty") >= 0.8).all() and (game.seeds() & 0xFFFF == 0).all()


def test_reset_envs_starts_the_next_lap_of_some() -> None:
    """Only the named envs begin a new lap, whatever their state was."""
    out = check_reset_of_one_env(kart.vector(4, seed=2, **ALONE), held_actions(50, 4))
    assert out.obs[2, SEEN["lap_left"]] == 1


def test_a_seed_begins_the_same_lap_anywhere() -> None:
    """A seed gives the same track, start and lap in any env of any vector, after any other laps."""
    settings: dict[str, Any] = {"random_starts": 0.5, "match_seconds": 3.0}
    (one, out), (other, again) = begun(3, seed=1, **settings), begun(5, seed=2, first=9, **settings)
    actions = held_actions(160, 3)
    play(one, actions[:75], out)
    play(other, held_actions(30, 5), again)
    seed = int(one.seeds()[1])
    assert seed & 0xFFFF == 1, "this is the env's second lap"
    one.reset_envs([1], out, seeds=[seed])
    other.reset_envs([0, 4], again, seeds=[seed + 5, seed])
    for action in actions:
        for name in ("state", "numbers", "world"):
            assert np.array_equal(getattr(one, name)[1], getattr(other, name)[4])
        assert np.array_equal(out.obs[1], again.obs[4])
        one.step(action, out)
        other.step(action[[0, 0, 0, 0, 1]], again)
    assert one.seeds()[1] == other.seeds()[4] > seed, "the next laps follow"
    other.reset_envs(range(5), again, seeds=range(5))
    assert len(np.unique(fact(other, "length"))) == 5, "small seeds differ"


def test_difficulty_is_drawn_from_the_range_of_the_options() -> None:
    """The range of the options applies to all envs; the part of it that a task sets applies from the next lap on."""
    game, out = begun(200, options={"difficulty_low": 0.2, "difficulty_high": 0.4}, seed=3)
    drawn = fact(game, "difficulty")
    assert drawn.min() >= 0.2 and drawn.max() <= 0.4 and drawn.std() > 0.04
    before = tracks(game).copy()
    levels = np.arange(200) % 5
    game.assign(levels)
    assert np.array_equal(tracks(game), before)
    game.reset_envs(range(200), out)
    above = fact(game, "difficulty") - (0.2 + 0.04 * levels)
    assert above.min() >= -1e-6 and above.max() <= 0.04 + 1e-6 and above.std() > 0.01


def test_tasks_are_levels_of_an_envs_range() -> None:
    """Levels are five equal parts of the variant's range, from the next lap on; -1 is the whole range."""
    game, out = begun(500, options=HALF, seed=3)
    assert game.spec.tasks == ("level 1", "level 2", "level 3", "level 4", "level 5") and game.spec.target == ()
    levels = np.arange(500) % 6 - 1
    before = tracks(game).copy()
    game.assign(levels)
    assert np.array_equal(tracks(game), before), "the present lap is unchanged"
    game.reset_envs(range(500), out)
    hard = (fact(game, "difficulty") - 0.5) / 0.5
    for level in range(5):
        band = hard[levels == level]
        assert level / 5 - 1e-6 <= band.min() < level / 5 + 0.05 and level / 5 + 0.15 < band.max() <= level / 5 + 0.2
    assert hard[levels == -1].min() < 0.1 and hard[levels == -1].max() > 0.9
    other, _ = begun(500, options=HALF, seed=4)
    other.restore(game.snapshot())
    for vector in (game, other):
        vector.reset_envs(range(500), out)
    assert np.array_equal(tracks(game), tracks(other)), "tasks are in the snapshot"


def test_the_target_can_be_some_levels() -> None:
    """`env.target` restricts the laps without a given task; an unknown level is an error that names it."""
    game, _ = begun(4, target=("level 5", "level 1"), first=1)
    assert game.spec.target == ("level 5", "level 1")
    assert (fact(game, "difficulty") >= 0.8).tolist() == [False, True, False, True]
    with pytest.raises(ConfigError) as caught:
        kart.vector(1, target=("level 6",))
    assert caught.value.message.startswith("`env.target`: `kart` has no task `level 6`. Did you mean `level ")
    assert caught.value.hint == "tasks: level 1, level 2, level 3, level 4, level 5"


def made(name: str, **options: float) -> NativeVector:
    """Return the env that the registry makes of a name and options, with its first laps."""
    game, variant = parse(name)
    assert game is not None
    choice = EnvChoice(name, EnvSettings(actions="continuous", options=options))
    vector = game.make(choice, variant, 300, 0, 5)
    assert isinstance(vector, NativeVector)
    vector.reset(empty_rows(vector.spec, 300))
    return vector


def test_variants_and_options_say_how_hard() -> None:
    """`kart`, `kart:easy` and `kart:hard` have their ranges, and options move them."""
    for name, options, low, high in (
        ("kart", {}, 0.0, 1.0),
        ("kart:easy", {}, 0.0, 0.33),
        ("kart:hard", {}, 0.67, 1.0),
        ("kart", {"difficulty": 0.5}, 0.5, 0.5),
        ("kart:hard", {"difficulty_low": 0.9}, 0.9, 1.0),
    ):
        game = made(name, **options)
        drawn = fact(game, "difficulty")
        assert drawn.min() == pytest.approx(low, abs=0.02) and drawn.max() == pytest.approx(high, abs=0.02)
        assert game.spec.name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dificulty": 0.5},
            "Unknown setting `env.options.dificulty`. Did you mean `env.options.difficulty`?",
        ),
        ({"difficulty": 2}, "`env.options.difficulty` = 2 is out of range."),
        ({"difficulty_low": "much"}, "`env.options.difficulty_low` = 'much' is not a number."),
        ({"difficulty_low": True}, "`env.options.difficulty_low` = True is not a number."),
        (
            {"difficulty": 0.5, "difficulty_low": 0.1},
            "`env.options.difficulty` excludes the other options.",
        ),
        ({"difficulty_low": 0.5, "difficulty_high": 0.1}, "A difficulty from 0.5 to 0.1 is out of range."),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    """An option that is unknown, not a number or out of range is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        kart.vector(1, options=options)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *SETTINGS_ERRORS,
        ({"match_seconds": 0.0}, "`env.match_seconds` = 0.0 is out of range."),
        ({"actions": "continous"}, "`env.actions` = `continous` is unknown. Did you mean `continuous`?"),
        (
            {"variant": "hard", "options": {"difficulty_high": 0.1}},
            "A difficulty from 0.67 to 0.1 is out of range.",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    """A setting out of range or unknown is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        kart.vector(1, **settings)
    assert caught.value.message == message


def test_an_unknown_variant_is_named() -> None:
    """A misspelt variant is an error with the nearest name and all of them."""
    with pytest.raises(EnvError) as caught:
        kart.vector(1, "eazy")
    assert caught.value.message == "`kart` has no variant `eazy`. Did you mean `easy`?"
    assert caught.value.hint == "mixed, easy, hard"
