"""The kart environment: laps and their ends, exact snapshots, difficulty, and splits of envs that change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from env_checks import SETTINGS_ERRORS, check_reset_of_one_env, check_reset_starts_again, play
from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart import scripted
from slipstream.envs.kart.game import Kart, difficulty_range
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError
from slipstream.settings import EnvSettings


def held_actions(steps: int, envs: int) -> Array:
    """Return random actions that are held for a while."""
    some = np.random.default_rng(0).uniform((-0.5, -0.2), (0.5, 1), (steps // 10, envs, 2))
    return np.repeat(some, 10, axis=0).astype(np.float32)


def test_kart_is_a_vector() -> None:
    """The class fulfils the contract, and its spec is complete."""
    game = Kart(3)
    assert isinstance(game, Vector)
    assert game.spec.name == "kart" and Kart(1, variant="easy").spec.name == "kart:easy"
    assert game.spec.agents == 1 and game.spec.exact and not game.spec.competitive
    assert game.spec.step_seconds == pytest.approx(4 / 60)
    assert game.spec.obs.width == 59 and game.spec.action.low == (-1, -1)


def test_a_lap_terminates_and_begins_the_next() -> None:
    """A finished lap terminates with outcome 1; its last observation is kept, and a new track begins."""
    envs = 8
    game = Kart(envs, seed=2)
    out, action = empty_rows(game.spec, envs), np.zeros((envs, 2), np.float32)
    game.reset(out)
    old, ended = game.tracks.copy(), np.zeros(envs, bool)
    for step in range(800):
        scripted.act("expert", out.obs, "continuous", action)
        game.step(action, out)
        assert not out.truncated.any() and out.active.all()
        for env in np.flatnonzero(out.terminated & ~ended):
            ended[env] = True
            assert out.outcome[env] == 1 and step > 150
            assert abs(out.final_obs[env, at.O_LEFT]) < 0.01 and out.final_obs[env, at.O_SPEED] > 0.2
            assert out.obs[env, at.O_LEFT] == 1 and out.obs[env, at.O_SPEED] == 0
            assert not np.array_equal(game.tracks[env], old[env]) and game.seeds()[env] & 0xFFFF == 1
        if ended.all():
            break
    assert ended.all()


def test_time_up_truncates() -> None:
    """A car that stands still is truncated at the time limit with outcome -1; its last observation is kept."""
    game = Kart(2, match_seconds=2.0)
    out = empty_rows(game.spec, 2)
    game.reset(out)
    first = out.obs.copy()
    for step in range(1, 31):
        game.step(np.zeros((2, 2), np.float32), out)
        assert out.truncated.any() == (step == 30) and not out.terminated.any()
    assert out.outcome.tolist() == [-1, -1] and np.array_equal(out.final_obs, first)
    assert not np.array_equal(out.obs, first) and (game.clock[:, at.TICKS_LEFT] == 120).all()


def test_backwards_over_the_line_does_not_count() -> None:
    """Rolling back over the line and forward again is no lap; a lap is one full round from the start."""
    game = Kart(16, seed=4)
    out = empty_rows(game.spec, 16)
    game.reset(out)
    for throttle, steps in ((-1.0, 60), (1.0, 60)):
        lows = []
        for _ in range(steps):
            game.step(np.full((16, 2), (0.0, throttle), np.float32), out)
            lows.append(game.state[:, at.DONE].copy())
            assert not out.terminated.any()
        if throttle < 0:
            assert (lows[-1] < -0.01).all() and (game.clock[:, at.PASSED] < 0).all()
            assert (out.obs[:, at.O_LEFT] > 1).all()
    assert (game.state[:, at.DONE] < 0.3).all()


def test_a_lap_from_anywhere_is_a_whole_lap() -> None:
    """After a random start the lap ends where it began, one length of the track later."""
    envs = 12
    game = Kart(envs, random_starts=1.0, seed=7)
    out, action = empty_rows(game.spec, envs), np.zeros((envs, 2), np.float32)
    game.reset(out)
    begun, ended = game.state[:, : at.Y + 1].copy(), 0
    assert len(set(game.clock[:, at.START].tolist())) > 8
    for _ in range(800):
        scripted.act("expert", out.obs, "continuous", action)
        before, episode = game.state.copy(), game.seeds() & 0xFFFF
        game.step(action, out)
        for env in np.flatnonzero(out.terminated & (episode == 0)):
            ended += 1
            assert np.hypot(*(before[env, : at.Y + 1] - begun[env])) < 12
        if ended == envs:
            break
    assert ended == envs


def test_random_starts_spread_over_the_track() -> None:
    """With random_starts = 1 cars are anywhere on the asphalt, rolling and askew; else all stand on the line."""
    game = Kart(1000, random_starts=1.0)
    s = game.state
    share = s[:, at.OFFSET] / s[:, at.EDGE]
    speed = np.hypot(s[:, at.VX], s[:, at.VY])
    assert share.std() > 0.4 and np.abs(share).max() <= 0.91 and speed.std() > 4 and speed.max() <= 20
    assert np.histogram(game.clock[:, at.START], 8, (0, at.POINTS))[0].min() > 80
    assert np.abs(s[:, at.DONE]).max() < 1e-4
    mixed = Kart(1000, random_starts=0.25)
    assert 0.2 < (mixed.state[:, at.OFFSET] != 0).mean() < 0.3
    still = Kart(100)
    assert (still.state[:, at.VX : at.VY + 1] == 0).all() and (still.clock[:, at.START] == 0).all()


def test_snapshot_and_restore_replay_exactly() -> None:
    """From a snapshot the same actions give the same bits, over ends and new tracks, also in another object."""
    settings: dict[str, float] = {"random_starts": 0.5, "match_seconds": 5.0}
    game = Kart(16, seed=9, **settings)  # type: ignore[arg-type]
    out = empty_rows(game.spec, 16)
    actions = held_actions(240, 16)
    play(game, actions[:75], out)
    game.set_difficulty(0.8, 0.9)
    saved = game.snapshot()
    expected = play(game, actions[75:], out)
    assert (game.seeds() & 0xFFFF).min() >= 3
    for other in (game, Kart(16, seed=1, **settings)):  # type: ignore[arg-type]
        other.restore(saved)
        seen = play(other, actions[75:], empty_rows(game.spec, 16))
        assert all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True))
        assert (other.state[:, at.DIFFICULTY] >= 0.79).all()


def test_how_envs_are_split_changes_nothing() -> None:
    """Two vectors of 4 envs with first = 0 and 4 equal one of 8, and another seed is another game."""
    actions = held_actions(150, 8)
    settings: dict[str, float] = {"random_starts": 0.5, "match_seconds": 4.0}
    whole = Kart(8, seed=4, **settings)  # type: ignore[arg-type]
    expected = play(whole, actions, empty_rows(whole.spec, 8))
    for first in (0, 4):
        half = Kart(4, seed=4, first=first, **settings)  # type: ignore[arg-type]
        seen = play(half, actions[:, first : first + 4].copy(), empty_rows(half.spec, 4))
        assert all(np.array_equal(a[first : first + 4], b) for a, b in zip(expected, seen, strict=True))
    assert not np.array_equal(Kart(4, seed=5).tracks, Kart(4, seed=6).tracks)


def test_reset_starts_the_same_laps_again() -> None:
    """Reset begins the first track of the seed again, with the difficulty that was set last."""
    game = Kart(4, seed=2, match_seconds=2.0)
    out = check_reset_starts_again(game, held_actions(50, 4))
    game.set_difficulty(1.0, 1.0)
    game.reset(out)
    assert (game.state[:, at.DIFFICULTY] == 1).all()


def test_reset_envs_starts_the_next_lap_of_some() -> None:
    """Only the named envs begin a new lap, whatever their state was."""
    out = check_reset_of_one_env(Kart(4, seed=2), held_actions(50, 4), width=at.EASIEST)
    assert out.obs[2, at.O_LEFT] == 1


def test_a_seed_begins_the_same_lap_anywhere() -> None:
    """A seed gives the same track, start and lap in any env of any vector, after any other laps."""
    settings: dict[str, float] = {"random_starts": 0.5, "match_seconds": 3.0}
    one, other = Kart(3, seed=1, **settings), Kart(5, seed=2, first=9, **settings)  # type: ignore[arg-type]
    out, again = empty_rows(one.spec, 3), empty_rows(one.spec, 5)
    actions = held_actions(160, 3)
    play(one, actions[:75], out)
    play(other, held_actions(30, 5), again)
    seed = int(one.seeds()[1])
    assert seed & 0xFFFF == 1, "this is the env's second lap"
    one.reset_envs([1], out, seeds=[seed])
    other.reset_envs([0, 4], again, seeds=[seed + 5, seed])
    for action in actions:
        for name in ("state", "clock", "tracks"):
            assert np.array_equal(getattr(one, name)[1], getattr(other, name)[4])
        assert np.array_equal(out.obs[1], again.obs[4])
        one.step(action, out)
        other.step(action[[0, 0, 0, 0, 1]], again)
    assert one.seeds()[1] == other.seeds()[4] > seed, "the next laps follow"
    other.reset_envs(range(5), again, seeds=range(5))
    assert len(np.unique(other.state[:, at.LENGTH])) == 5, "small seeds differ"


def test_difficulty_is_drawn_from_each_envs_range() -> None:
    """A range is set for all envs or for each, applies from the next lap on, and leaves the present lap alone."""
    game = Kart(200, difficulty=(0.2, 0.4), seed=3)
    drawn = game.state[:, at.DIFFICULTY]
    assert drawn.min() >= 0.2 and drawn.max() <= 0.4 and drawn.std() > 0.04
    tracks = game.tracks.copy()
    game.set_difficulty(np.linspace(0, 0.5, 200), np.linspace(0, 0.5, 200) + 0.1)
    assert np.array_equal(game.tracks, tracks)
    game.reset_envs(range(200), empty_rows(game.spec, 200))
    above = game.state[:, at.DIFFICULTY] - np.linspace(0, 0.5, 200)
    assert above.min() >= -1e-6 and above.max() <= 0.1 + 1e-6


def test_tasks_are_levels_of_an_envs_range() -> None:
    """Levels are five equal parts of the variant's range, from the next lap on; -1 is the whole range."""
    game = Kart(500, difficulty=(0.5, 1.0), seed=3)
    out = empty_rows(game.spec, 500)
    assert game.spec.tasks == ("level 1", "level 2", "level 3", "level 4", "level 5") and game.spec.target == ()
    levels = np.arange(500) % 6 - 1
    tracks = game.tracks.copy()
    game.assign(levels)
    assert np.array_equal(game.tracks, tracks), "the present lap is unchanged"
    game.reset_envs(range(500), out)
    hard = (game.state[:, at.DIFFICULTY] - 0.5) / 0.5
    for level in range(5):
        band = hard[levels == level]
        assert level / 5 - 1e-6 <= band.min() < level / 5 + 0.05 and level / 5 + 0.15 < band.max() <= level / 5 + 0.2
    assert hard[levels == -1].min() < 0.1 and hard[levels == -1].max() > 0.9
    other = Kart(500, difficulty=(0.5, 1.0), seed=4)
    other.restore(game.snapshot())
    for vector in (game, other):
        vector.reset_envs(range(500), out)
    assert np.array_equal(game.tracks, other.tracks), "tasks are in the snapshot"


def test_the_target_can_be_some_levels() -> None:
    """`env.target` restricts the laps without a given task; an unknown level is an error that names it."""
    game = Kart(4, target=("level 5", "level 1"), first=1)
    assert game.spec.target == ("level 5", "level 1")
    assert (game.state[:, at.DIFFICULTY] >= 0.8).tolist() == [False, True, False, True]
    with pytest.raises(ConfigError) as caught:
        Kart(1, target=("level 6",))
    assert caught.value.message.startswith("`env.target`: `kart` has no task `level 6`. Did you mean `level ")
    assert caught.value.hint == "tasks: level 1, level 2, level 3, level 4, level 5"


def made(name: str, **options: float) -> Kart:
    """Return the env that the registry makes of a name and options."""
    game, variant = parse(name)
    assert game is not None
    choice = EnvChoice(name, EnvSettings(actions="continuous", options=options))
    kart = game.make(choice, variant, 300, 0, 5)
    assert isinstance(kart, Kart)
    return kart


def test_variants_and_options_say_how_hard() -> None:
    """`kart`, `kart:easy` and `kart:hard` have their ranges, and options move them."""
    for name, options, low, high in (
        ("kart", {}, 0.0, 1.0),
        ("kart:easy", {}, 0.0, 0.33),
        ("kart:hard", {}, 0.67, 1.0),
        ("kart", {"difficulty": 0.5}, 0.5, 0.5),
        ("kart:hard", {"difficulty_low": 0.9}, 0.9, 1.0),
    ):
        game = made(name, **options)  # type: ignore[arg-type]
        drawn = game.state[:, at.DIFFICULTY]
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
        ({"difficulty_low": "much"}, "`env.options.difficulty_low` = much is out of range."),
        (
            {"difficulty": 0.5, "difficulty_low": 0.1},
            "`env.options.difficulty` excludes the other options.",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    """An option that is unknown or out of range is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        difficulty_range("mixed", options)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *SETTINGS_ERRORS,
        ({"match_seconds": 0.0}, "`env.match_seconds` = 0.0 is out of range."),
        ({"actions": "continous"}, "`env.actions` = `continous` is unknown. Did you mean `continuous`?"),
        ({"variant": "eazy"}, "`variant` = `eazy` is unknown. Did you mean `easy`?"),
        ({"difficulty": (0.5, 0.1)}, "A difficulty from 0.5 to 0.1 is out of range."),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    """A setting out of range or unknown is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        Kart(1, **settings)  # type: ignore[arg-type]
    assert caught.value.message == message
