"""The soccer environment: clock, ends, exact snapshots, and results that do not depend on how envs are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from env_checks import SETTINGS_ERRORS, check_reset_of_one_env, check_reset_starts_again, play
from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.game import Soccer
from slipstream.errors import ConfigError

COAST = 7


def random_actions(steps: int, rows: int) -> Array:
    """Return one block of random actions."""
    return np.random.default_rng(0).integers(0, 18, (steps, rows, 1)).astype(np.int32)


def test_soccer_is_a_vector() -> None:
    """The class fulfils the contract, and its spec is complete."""
    game = Soccer(3, team_size=2)
    assert isinstance(game, Vector)
    assert game.spec.name == "soccer:2v2" and Soccer(1).spec.name == "soccer"
    assert game.spec.teams == (0, 0, 1, 1) and game.spec.competitive and game.spec.exact
    assert game.spec.step_seconds == pytest.approx(4 / 60)
    assert empty_rows(game.spec, 3).mask.shape == (12, 0)


def test_a_match_lasts_900_decisions_and_overtime_450() -> None:
    """Without movement a match has 60 s, then 30 s of overtime, then a draw; the last observation is kept."""
    game = Soccer(2)
    out = empty_rows(game.spec, 2)
    game.reset(out)
    first = out.obs.copy()
    action = np.full((4, 1), COAST, np.int32)
    for step in range(1, 1351):
        game.step(action, out)
        assert out.terminated.any() == (step == 1350), step
        assert out.obs[0, at.O_OVERTIME] == (900 <= step < 1350)
        assert not out.truncated.any() and out.active.all()
    assert out.outcome.tolist() == [0] * 4
    assert (out.final_obs[:, at.O_CLOCK] == 0).all() and (out.final_obs[:, at.O_OVERTIME] == 1).all()
    assert (out.obs[:, at.O_CLOCK] == 1).all() and (game.seeds() & 0xFFFF).tolist() == [1, 1]
    assert not np.array_equal(out.obs, first)


def test_a_lead_ends_the_match_on_time_and_a_golden_goal_at_once() -> None:
    """With a lead there is no overtime; in overtime the first goal ends the match, and the outcome is written."""
    game = Soccer(2)
    out = empty_rows(game.spec, 2)
    game.clock[0, at.SCORE], game.clock[0, at.TICKS_LEFT] = 1, 4
    game.clock[1, at.OVERTIME] = 1
    game.state[1, at.BALL : at.BALL + 4] = (-37, 0, -40, 0)
    game.step(np.full((4, 1), COAST, np.int32), out)
    assert out.terminated.tolist() == [1] * 4
    assert out.outcome.tolist() == [1, -1, -1, 1]


def test_match_seconds_and_action_repeat_set_the_length() -> None:
    """A match of 2 s at 6 ticks a decision has 20 decisions, and its overtime 10."""
    game = Soccer(1, match_seconds=2.0, action_repeat=6)
    out = empty_rows(game.spec, 1)
    ends = 0
    for step in range(1, 31):
        game.step(np.full((2, 1), COAST, np.int32), out)
        ends += int(out.terminated[0])
        assert ends == (step == 30)


@pytest.mark.parametrize("team_size", [1, 3])
def test_snapshot_and_restore_replay_exactly(team_size: int) -> None:
    """From a snapshot the same actions give the same bits, over ends and kick-offs, also in another object."""
    game = Soccer(16, team_size=team_size, random_starts=0.3, match_seconds=4.0, seed=9)
    out = empty_rows(game.spec, 16)
    actions = random_actions(200, 32 * team_size)
    play(game, actions[:80], out)
    saved = game.snapshot()
    expected = play(game, actions[80:], out)
    for other in (game, Soccer(16, team_size=team_size, random_starts=0.3, match_seconds=4.0, seed=1)):
        other.restore(saved)
        seen = play(other, actions[80:], empty_rows(game.spec, 16))
        assert all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True))


def test_how_envs_are_split_changes_nothing() -> None:
    """Two vectors of 4 envs with first = 0 and 4 equal one of 8, and another seed is another game."""
    actions = random_actions(150, 16)
    whole = Soccer(8, random_starts=0.5, match_seconds=5.0, seed=4)
    halves = [Soccer(4, random_starts=0.5, match_seconds=5.0, seed=4, first=k) for k in (0, 4)]
    expected = play(whole, actions, empty_rows(whole.spec, 8))
    for k, half in enumerate(halves):
        seen = play(half, actions[:, 8 * k : 8 * k + 8].copy(), empty_rows(half.spec, 4))
        assert all(np.array_equal(a[8 * k : 8 * k + 8], b) for a, b in zip(expected, seen, strict=True))
    assert not np.array_equal(Soccer(4, seed=5).state, Soccer(4, seed=6).state)


def test_reset_starts_the_same_games_again() -> None:
    """Reset begins the first match of the seed again."""
    check_reset_starts_again(Soccer(4, seed=2), random_actions(50, 8))


def test_reset_envs_starts_the_next_match_of_some() -> None:
    """Only the named envs begin a new match, whatever their state was."""
    out = check_reset_of_one_env(Soccer(4, seed=2), random_actions(50, 8))
    assert (out.obs[4:6, at.O_CLOCK] == 1).all()


@pytest.mark.parametrize("team_size", [1, 3])
def test_a_seed_begins_the_same_match_anywhere(team_size: int) -> None:
    """A seed gives the same match bit for bit in any env of any vector, after any other matches."""
    settings: dict[str, Any] = {"team_size": team_size, "match_seconds": 6.0, "random_starts": 0.5}
    one, other = Soccer(3, seed=1, **settings), Soccer(5, seed=2, first=9, **settings)
    out, again = empty_rows(one.spec, 3), empty_rows(one.spec, 5)
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
        assert np.array_equal(one.state[1], other.state[4]) and np.array_equal(one.clock[1], other.clock[4])
        assert np.array_equal(out.obs[cars : 2 * cars], again.obs[4 * cars :])
        mine, theirs = action.copy(), np.zeros((5 * cars, 1), np.int32)
        theirs[4 * cars :] = mine[cars : 2 * cars]
        one.step(mine, out)
        other.step(theirs, again)
        ended += int(out.terminated[cars])
    assert ended >= 1 and one.seeds()[1] == other.seeds()[4] == seed + ended, "the next matches follow"


def test_small_seeds_are_far_apart() -> None:
    """Seeds 0, 1, 2 ... give independent matches, and a seed that is too large is an error."""
    game = Soccer(1000, random_starts=1.0)
    out = empty_rows(game.spec, 1000)
    game.reset_envs(range(1000), out, seeds=range(1000))
    places = game.state[:, at.BALL]
    assert len(np.unique(places)) > 990 and abs(places.mean()) < 1.5 and 12 < places.std() < 17
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.1
    assert 0.45 < (game.clock[:, at.KEY] & 1).mean() < 0.55, "both hit orders are equally frequent"
    with pytest.raises(ConfigError) as caught:
        game.reset_envs([0], out, seeds=[2**48])
    assert "281474976710656" in caught.value.message and "0 to 281474976710655" in caught.value.hint


def test_kick_offs_are_symmetric_and_varied() -> None:
    """At a kick-off each car has a counterpart at the opposite point, and positions differ from match to match."""
    game = Soccer(200, team_size=2)
    cars = game.state[:, at.CARS :].reshape(200, 2, 2, at.CAR_SIZE)
    assert np.array_equal(cars[:, 0, :, : at.HY + 1], -cars[:, 1, :, : at.HY + 1])
    assert np.array_equal(cars[:, 0, :, at.BOOST], cars[:, 1, :, at.BOOST])
    assert len(np.unique(cars[:, 0, 0, at.X].round())) > 5
    assert (game.state[:, at.BALL : at.BALL + 4] == 0).all()


def test_random_starts_spread_over_the_arena() -> None:
    """With random_starts = 1 ball and cars are anywhere, moving, with any amount of boost."""
    s = Soccer(1000, random_starts=1.0).state
    assert s[:, at.X].std() > 12 and s[:, at.Y].std() > 8 and s[:, at.VX].std() > 4
    assert s[:, at.CARS + at.BOOST].std() > 0.2 and s[:, at.CARS + at.HX].std() > 0.5
    share = (Soccer(1000, random_starts=0.25).state[:, at.X] != 0).mean()
    assert 0.2 < share < 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"team_size": 4}, "`team_size` = 4 is out of range."),
        *SETTINGS_ERRORS,
        ({"actions": "discreet"}, "`env.actions` = `discreet` is unknown. Did you mean `discrete`?"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    """A setting out of range or unknown is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        Soccer(1, **settings)  # type: ignore[arg-type]
    assert caught.value.message == message
