"""The soccer environment: clock, ends, exact snapshots, and results that do not depend on how envs are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from env_checks import SETTINGS_ERRORS, check_reset_of_one_env, check_reset_starts_again, play
from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.native.mathematics import KEY
from slipstream.envs.soccer.game import game as soccer
from slipstream.errors import ConfigError, EnvError
from soccer_matches import BODY, ball, begun, car, coasting, place_ball, places

SEEN = places()


def random_actions(steps: int, rows: int) -> Array:
    """Return one block of random actions."""
    return np.random.default_rng(0).integers(0, 18, (steps, rows, 1)).astype(np.int32)


def play_begun(actions: Array, envs: int, **settings: Any) -> list[Array]:
    """Play new matches; return everything that was written."""
    game, out = begun(envs, **settings)
    return play(game, actions, out)


def test_soccer_is_a_vector() -> None:
    """The class fulfils the contract, and its spec is complete."""
    game = soccer.vector(3, "2v2")
    assert isinstance(game, Vector)
    assert game.spec.name == "soccer:2v2" and soccer.vector(1).spec.name == "soccer"
    assert game.spec.teams == (0, 0, 1, 1) and game.spec.competitive and game.spec.exact
    assert game.spec.step_seconds == pytest.approx(4 / 60)
    assert empty_rows(game.spec, 3).mask.shape == (12, 0)


def test_a_match_lasts_900_decisions_and_overtime_450() -> None:
    """Without movement a match has 60 s, then 30 s of overtime, then a draw; the last observation is kept."""
    game, out = begun(2)
    first = out.obs.copy()
    for step in range(1, 1351):
        game.step(coasting(game), out)
        assert out.terminated.any() == (step == 1350), step
        assert out.obs[0, SEEN["overtime"]] == (900 <= step < 1350)
        assert not out.truncated.any() and out.active.all()
    assert out.outcome.tolist() == [0] * 4
    assert (out.final_obs[:, SEEN["time_left"]] == 0).all() and (out.final_obs[:, SEEN["overtime"]] == 1).all()
    assert (out.obs[:, SEEN["time_left"]] == 1).all() and (game.seeds() & 0xFFFF).tolist() == [1, 1]
    assert not np.array_equal(out.obs, first)


def test_a_lead_ends_the_match_on_time_and_a_golden_goal_at_once() -> None:
    """With a lead there is no overtime; in overtime the first goal ends the match, and the outcome is written."""
    game, out = begun(2)
    place_ball(game, -37, 0, -40, 0)
    for name in ("ball.x", "ball.vx", "overtime"):
        game.column(name)[0] = 0
    game.column("score.0")[0], game.column("ticks_left")[0] = 1, 4
    game.column("overtime")[1] = 1
    game.step(coasting(game), out)
    assert out.terminated.tolist() == [1] * 4
    assert out.outcome.tolist() == [1, -1, -1, 1]


def test_match_seconds_and_action_repeat_set_the_length() -> None:
    """A match of 2 s at 6 ticks a decision has 20 decisions, and its overtime 10."""
    game, out = begun(1, match_seconds=2.0, action_repeat=6)
    ends = 0
    for step in range(1, 31):
        game.step(coasting(game), out)
        ends += int(out.terminated[0])
        assert ends == (step == 30)


@pytest.mark.parametrize("team_size", [1, 3])
def test_snapshot_and_restore_replay_exactly(team_size: int) -> None:
    """From a snapshot the same actions give the same bits, over ends and kick-offs, also in another object."""
    settings: dict[str, Any] = {"random_starts": 0.3, "match_seconds": 4.0}
    variant = f"{team_size}v{team_size}"
    game, out = begun(16, variant, seed=9, **settings)
    actions = random_actions(200, 32 * team_size)
    play(game, actions[:80], out)
    saved = game.snapshot()
    expected = play(game, actions[80:], out)
    for other in (game, soccer.vector(16, variant, seed=1, **settings)):
        other.restore(saved)
        seen = play(other, actions[80:], empty_rows(game.spec, 16))
        assert all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True))


def test_how_envs_are_split_changes_nothing() -> None:
    """Two vectors of 4 envs with first = 0 and 4 equal one of 8, and another seed is another game."""
    actions = random_actions(150, 16)
    settings: dict[str, Any] = {"random_starts": 0.5, "match_seconds": 5.0, "seed": 4}
    expected = play_begun(actions, 8, **settings)
    for k in (0, 1):
        seen = play_begun(actions[:, 8 * k : 8 * k + 8].copy(), 4, first=4 * k, **settings)
        assert all(np.array_equal(a[8 * k : 8 * k + 8], b) for a, b in zip(expected, seen, strict=True))
    assert not np.array_equal(begun(4, seed=5)[0].state, begun(4, seed=6)[0].state)


def test_reset_starts_the_same_games_again() -> None:
    """Reset begins the first match of the seed again."""
    check_reset_starts_again(soccer.vector(4, seed=2), random_actions(50, 8))


def test_reset_envs_starts_the_next_match_of_some() -> None:
    """Only the named envs begin a new match, whatever their state was."""
    out = check_reset_of_one_env(soccer.vector(4, seed=2), random_actions(50, 8))
    assert (out.obs[4:6, SEEN["time_left"]] == 1).all()


@pytest.mark.parametrize("team_size", [1, 3])
def test_a_seed_begins_the_same_match_anywhere(team_size: int) -> None:
    """A seed gives the same match bit for bit in any env of any vector, after any other matches."""
    settings: dict[str, Any] = {"variant": f"{team_size}v{team_size}", "match_seconds": 6.0, "random_starts": 0.5}
    (one, out), (other, again) = begun(3, seed=1, **settings), begun(5, seed=2, first=9, **settings)
    cars = 2 * team_size
    actions = random_actions(200, 3 * cars)
    play(one, actions[:140], out)
    play(other, random_actions(101, 5 * cars), again)
    seed = int(one.seeds()[1])
    assert seed & 0xFFFF == 1, "this is the env's second match"
    one.reset_envs([1], out, seeds=[seed])
    other.reset_envs([0, 4], again, seeds=[seed + 5, seed])
    assert other.seeds()[[0, 4]].tolist() == [seed + 5, seed]
    ended = 0
    for action in actions:
        assert np.array_equal(one.state[1], other.state[4]) and np.array_equal(one.numbers[1], other.numbers[4])
        assert np.array_equal(out.obs[cars : 2 * cars], again.obs[4 * cars :])
        mine, theirs = action.copy(), np.zeros((5 * cars, 1), np.int32)
        theirs[4 * cars :] = mine[cars : 2 * cars]
        one.step(mine, out)
        other.step(theirs, again)
        ended += int(out.terminated[cars])
    assert ended >= 1 and one.seeds()[1] == other.seeds()[4] == seed + ended, "the next matches follow"


def test_small_seeds_are_far_apart() -> None:
    """Seeds 0, 1, 2 ... give independent matches, and a seed that is too large is an error."""
    game, out = begun(1000, random_starts=1.0)
    game.reset_envs(range(1000), out, seeds=range(1000))
    places = game.column("ball.x").copy()
    assert len(np.unique(places)) > 990 and abs(places.mean()) < 1.5 and 12 < places.std() < 17
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.1
    assert 0.45 < (game.numbers[:, KEY] & 1).mean() < 0.55, "both hit orders are equally frequent"
    with pytest.raises(ConfigError) as caught:
        game.reset_envs([0], out, seeds=[2**48])
    assert "281474976710656" in caught.value.message and "0 to 281474976710655" in caught.value.hint


def test_kick_offs_are_symmetric_and_varied() -> None:
    """At a kick-off each car has a counterpart at the opposite point, and positions differ from match to match."""
    game, _ = begun(200, "2v2")
    for k in (0, 1):
        assert np.array_equal(car(game, k, *BODY, "hx", "hy"), -car(game, k + 2, *BODY, "hx", "hy"))
        assert np.array_equal(car(game, k, "boost"), car(game, k + 2, "boost"))
    assert len(np.unique(game.column("cars.0.x").round())) > 5
    assert (ball(game) == 0).all()


def test_random_starts_spread_over_the_arena() -> None:
    """With random_starts = 1 ball and cars are anywhere, moving, with any amount of boost."""
    game, _ = begun(1000, random_starts=1.0)
    least = {"ball.x": 12, "ball.y": 8, "ball.vx": 4, "cars.0.boost": 0.2, "cars.0.hx": 0.5}
    assert all(game.column(name).std() > spread for name, spread in least.items())
    share = (begun(1000, random_starts=0.25)[0].column("ball.x") != 0).mean()
    assert 0.2 < share < 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *SETTINGS_ERRORS,
        ({"actions": "discreet"}, "`env.actions` = `discreet` is unknown. Did you mean `discrete`?"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    """A setting out of range or unknown is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        soccer.vector(1, **settings)
    assert caught.value.message == message


def test_an_unknown_variant_is_named() -> None:
    """There are no four cars per team."""
    with pytest.raises(EnvError, match="`soccer` has no variant `4v4`") as caught:
        soccer.vector(1, "4v4")
    assert caught.value.hint == "1v1, 2v2, 3v3, mixed"
