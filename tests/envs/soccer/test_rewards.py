"""Reward terms: signs and sums computed by hand, and a user's own term."""

from __future__ import annotations

import math

import numpy as np
import pytest

from env_checks import check_reward_errors, check_rewards_are_sums_of_terms
from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer import scripted
from slipstream.envs.soccer.game import Soccer
from slipstream.envs.soccer.rewards import SCHEME, TERMS, WEIGHTS
from slipstream.settings import RewardSettings

COAST = 7
ONES = RewardSettings(weights=dict.fromkeys(TERMS, 1.0))
SPARSE = RewardSettings(mode="sparse")


def still(**settings: object) -> tuple[Soccer, Array, Rows]:
    """Return a game of one env with both cars at rest near their corners and every weight 1."""
    game = Soccer(1, **({"rewards": ONES} | settings))  # type: ignore[arg-type]
    s = game.state[0]
    for k, sign in enumerate((-1, 1)):
        c = at.CARS + k * at.CAR_SIZE
        s[c : c + 8] = (sign * 25, sign * 18, 0, 0, -sign, 0, 0, 0)
    return game, s, empty_rows(game.spec, 1)


def coast(game: Soccer, out: Rows, steps: int = 1) -> Array:
    """Let the cars roll; return the terms by row."""
    out.terms[:] = 0
    for _ in range(steps):
        game.step(np.full((2, 1), COAST, np.int32), out)
    return out.terms


def test_a_goal_is_good_for_one_side_and_bad_for_the_other() -> None:
    """A goal at +x gives +1 to team 0 and -1 to team 1, is added to the score, and is followed by a kick-off."""
    for side in (1, -1):
        game, s, out = still()
        s[at.BALL : at.BALL + 4] = (side * 37, 0, side * 40, 0)
        terms = coast(game, out)
        assert terms[:, TERMS.index("goal")].tolist() == [side, -side]
        assert game.clock[0, at.SCORE : at.SCORE + 2].tolist() == [side > 0, side < 0]
        assert s[at.BALL : at.BALL + 4].tolist() == [0, 0, 0, 0]
        assert out.terminated.tolist() == [0, 0]


def test_ball_to_goal_telescopes_and_is_zero_sum() -> None:
    """The ball's progress sums to the change of its position for any action repeat, and is zero-sum."""
    sums = []
    for repeat in (2, 4):
        game, s, out = still(action_repeat=repeat)
        s[at.BALL : at.BALL + 4] = (-10, 3, 24, 2)
        before = s.copy()
        terms = coast(game, out, 40 // repeat)
        way = terms[:, TERMS.index("ball_to_goal")]

        def place(row: Array) -> float:
            x, y = float(row[at.X]), float(row[at.Y])
            return (math.hypot(x + 36, y) - math.hypot(x - 36, y)) / 72

        assert way[0] == pytest.approx(place(s) - place(before), abs=1e-5)
        assert way[0] > 0 and way[0] == pytest.approx(-way[1], abs=1e-6)
        sums.append(way[0])
    assert sums[0] == pytest.approx(sums[1], abs=1e-5)


def test_car_to_ball_is_the_cars_own_way() -> None:
    """Driving 12 units towards the resting ball gives 12 / 36, and a ball that flies away costs nothing."""
    game, s, out = still(actions="continuous")
    s[at.CARS : at.CARS + 8] = (-20, 0, 15, 0, 1, 0, 0, 0)
    start = float(s[at.CARS])
    for _ in range(12):
        game.step(np.array([[0.5, 0, -1, -1], [0, 0, -1, -1]], np.float32), out)
    assert out.terms[0, TERMS.index("car_to_ball")] == pytest.approx((float(s[at.CARS]) - start) / 36, abs=1e-4)
    game, s, out = still()
    s[at.BALL : at.BALL + 4] = (0, 0, 30, 0)
    assert coast(game, out)[0, TERMS.index("car_to_ball")] == 0


def test_touch_is_the_change_of_the_balls_speed() -> None:
    """A hit that gives a resting ball speed v gives about v / 60 to the car that hit it, and 0 to the other."""
    game, s, out = still()
    s[at.CARS : at.CARS + 8] = (-5, 0, 25, 0, 1, 0, 0, 0)
    terms = coast(game, out)[:, TERMS.index("touch")]
    assert terms[0] == pytest.approx(float(s[at.VX]) / 60, rel=0.03) and terms[0] > 0.4
    assert terms[1] == 0


def test_boost_gain_counts_pads_only() -> None:
    """Boost taken from a pad counts, boost used does not."""
    game, s, out = still()
    s[at.CARS : at.CARS + 2] = (0, 20)
    assert coast(game, out, 2)[0, TERMS.index("boost_gain")] == 1
    out.terms[:] = 0
    game.step(np.array([[9], [COAST]], np.int32), out)
    assert s[at.CARS + at.BOOST] < 1 and out.terms[0, TERMS.index("boost_gain")] == 0


def test_win_comes_with_the_end() -> None:
    """The team that leads at the end gets +1, the other -1, and a draw gives 0."""
    for score, expected in (((2, 1), (1, -1)), ((0, 3), (-1, 1)), ((1, 1), (0, 0))):
        game, _, out = still()
        game.clock[0, at.SCORE : at.SCORE + 2] = score
        game.clock[0, at.TICKS_LEFT] = 4
        game.clock[0, at.OVERTIME] = score[0] == score[1]
        assert coast(game, out)[:, TERMS.index("win")].tolist() == list(expected)
        assert out.terminated.tolist() == [1, 1] and out.outcome.tolist() == list(expected)


def test_reward_is_the_weighted_sum_of_its_terms() -> None:
    """`terms` holds weighted contributions, and the reward is their sum."""
    game = Soccer(32, random_starts=1.0)
    check_rewards_are_sums_of_terms(game, lambda rng: rng.integers(0, 18, (64, 1)).astype(np.int32))


def test_sparse_counts_goals_and_wins_only() -> None:
    """In sparse mode only goals and the result are rewarded, and an explicit weight overrides the mode."""
    assert dict(zip(TERMS, Soccer(1, rewards=SPARSE).payout.weights.tolist(), strict=True)) == {
        name: WEIGHTS["sparse"].get(name, 0.0) for name in TERMS
    }
    overridden = RewardSettings(mode="sparse", weights={"touch": 0.5})
    assert Soccer(1, rewards=overridden).payout.weights[TERMS.index("touch")] == 0.5


def test_every_term_is_in_one_group() -> None:
    """Every term is in exactly one group."""
    assert sorted(name for held in SCHEME.groups.values() for name in held) == sorted(TERMS)


def test_aim_is_the_balls_speed_towards_the_goal() -> None:
    """A ball at 30 units/s straight at team 1's goal gives 0.5 to team 0 and -0.5 to team 1."""
    game, s, out = still()
    s[at.BALL : at.BALL + 4] = (0, 0, 30, 0)
    aim = coast(game, out)[:, TERMS.index("aim")]
    assert aim == pytest.approx([float(s[at.VX]) / 60, -float(s[at.VX]) / 60]) and aim[0] > 0.48


@pytest.mark.parametrize(("speed", "saved"), [(-30.0, 1), (-4.0, 0), (8.0, 0)])
def test_a_save_turns_away_a_ball_that_would_have_rolled_in(speed: float, saved: int) -> None:
    """Only a hit counts, and only if the ball was on its way into the own goal and fast enough to get there."""
    game, s, out = still()
    s[at.BALL : at.BALL + 4] = (-20, 0, speed, 0)
    s[at.CARS : at.CARS + 8] = (-25, 0, 36, 0, 1, 0, 0, 0)
    terms = coast(game, out, 3)
    assert terms[0, TERMS.index("touch")] > 0
    assert terms[:, TERMS.index("save")].tolist() == [saved, 0]


def test_waste_idling_and_conceding_cost() -> None:
    """Boost used at top speed, standing still and conceding are penalised; the first two only for the car itself."""
    game, s, out = still(actions="continuous")
    s[at.CARS : at.CARS + 8] = (-20, 15, 39, 0, 1, 0, 0, 1)
    game.step(np.array([[1, 0, 1, -1], [0, 0, -1, -1]], np.float32), out)
    assert out.terms[:, TERMS.index("boost_waste")] == pytest.approx([-4 / 180, 0], abs=1e-6)
    assert out.terms[:, TERMS.index("idle")].tolist() == [0, -1]
    game, s, out = still()
    s[at.BALL : at.BALL + 4] = (37, 0, 40, 0)
    assert coast(game, out)[:, TERMS.index("concede")].tolist() == [0, -1]


def test_goal_side_is_between_the_ball_and_the_own_goal() -> None:
    """A car between its own goal and the ball gets 1, a car beyond the ball gets 0."""
    game, s, out = still()
    s[at.BALL : at.BALL + 4] = (28, 0, 0, 0)
    assert coast(game, out)[:, TERMS.index("goal_side")].tolist() == [1, 0]


@pytest.mark.parametrize(("team_size", "mixed"), [(1, False), (2, False), (3, True)])
def test_shaped_returns_telescope_over_whole_matches(team_size: int, mixed: bool) -> None:
    """Over matches with goals and random kick-offs the discounted sum is minus the initial potential.

    Potentials are written out here once more, from the states that the decisions saw. Rows without a car earn nothing.
    """
    gamma, envs, rows = 0.98, 9, 2 * team_size
    rewards = RewardSettings(weights={"ball_to_goal": 0.6, "car_to_ball": 0.1}, potential=True)
    starts = {"random_starts": 0.5, "match_seconds": 20.0}
    game = Soccer(envs, team_size=team_size, mixed=mixed, rewards=rewards, gamma=gamma, seed=5, **starts)
    out, action = empty_rows(game.spec, envs), np.zeros((envs * rows, 1), np.int32)
    game.reset(out)
    acting = out.active.reshape(envs, rows) > 0

    def potentials() -> Array:
        found = np.zeros((envs, rows, 2))
        for env, row in np.argwhere(acting):
            state = game.state[env].astype(float)
            side = 1 if row < team_size else -1
            size = acting[env].sum() // 2
            c = at.CARS + at.CAR_SIZE * (row if side == 1 else size + row - team_size)
            place = (math.hypot(state[0] + 36, state[1]) - math.hypot(state[0] - 36, state[1])) / 72
            found[env, row] = 0.6 * place * side, -0.1 * math.hypot(state[c] - state[0], state[c + 1] - state[1]) / 36
        return found.reshape(envs * rows, 2)

    first, sums, goals = potentials(), np.zeros((envs * rows, 2)), 0
    playing = np.ones(envs * rows, bool)
    columns = [TERMS.index(name) for name in ("ball_to_goal", "car_to_ball")]
    for t in range(600):
        scripted.act("rule", out.obs, "discrete", action)
        out.terms[:] = 0
        game.step(action, out)
        sums[playing] += gamma**t * out.terms[playing][:, columns]
        goals += int((out.terms[playing, TERMS.index("goal")] != 0).sum())
        playing &= out.terminated == 0
        if t == 50:
            assert sums == pytest.approx(gamma**51 * potentials() - first, abs=1e-5)
    assert not playing.any() and goals >= 4
    assert sums == pytest.approx(-first, abs=1e-5)
    assert acting.all() != mixed and (sums.reshape(envs, rows, 2)[~acting] == 0).all()


def test_potentials_leave_the_other_terms_alone() -> None:
    """With and without potentials the same games give the same other terms; only potential-based terms differ."""
    sums = []
    for potential in (False, True):
        game = Soccer(8, rewards=RewardSettings(potential=potential), random_starts=1.0)
        out, action = empty_rows(game.spec, 8), np.zeros((16, 1), np.int32)
        game.reset(out)
        for _ in range(200):
            scripted.act("rule", out.obs, "discrete", action)
            game.step(action, out)
        sums.append(out.terms.copy())
    same = (sums[0] == sums[1]).all(axis=0)
    assert [name for name, kept in zip(TERMS, same, strict=True) if not kept] == ["ball_to_goal", "car_to_ball"]


def ball_speed(before: Array, after: Array, clock: Array, car: int, team_size: int) -> float:
    """The ball's speed over 60, as a user would write it."""
    return math.sqrt(after[2] ** 2 + after[3] ** 2) / 60


def never(before: Array, after: Array, clock: Array, car: int, team_size: int) -> float:
    """NaN where the ball rests."""
    return float(after[2] / after[2])


def test_a_users_term_is_compiled_and_logged() -> None:
    """A plain function becomes a term with its own name, weight and column."""
    rewards = RewardSettings(weights={"ball_speed": 2.0})
    game, s, out = still(extra_terms={"ball_speed": ball_speed}, rewards=rewards)
    assert game.spec.terms == (*TERMS, "ball_speed")
    s[at.BALL : at.BALL + 4] = (0, 0, 30, 0)
    terms = coast(game, out)
    assert terms[:, -1] == pytest.approx(2 * float(s[at.VX]) / 60)
    assert out.reward == pytest.approx(terms.sum(1))


def test_a_users_term_sees_the_state_before_the_kick_off() -> None:
    """When a goal is scored, a user's term gets the state with the ball in the goal."""

    def depth(before, after, clock, car, team_size):  # type: ignore[no-untyped-def]
        return abs(after[0])

    game, s, out = still(extra_terms={"depth": depth})
    s[at.BALL : at.BALL + 4] = (37, 0, 40, 0)
    assert coast(game, out)[0, -1] > 38


def test_nan_of_a_users_term_stays_in_its_envs() -> None:
    """A non-finite value appears in the column and rows of its term, where the collector masks and reports it."""
    game = Soccer(64, extra_terms={"never": never})
    out = empty_rows(game.spec, 64)
    game.state[3:, at.VX] = 5.0
    game.step(np.full((128, 1), COAST, np.int32), out)
    assert np.flatnonzero(np.isnan(out.reward)).tolist() == list(range(6))
    assert np.isnan(out.terms[:6, -1]).all() and np.isfinite(out.terms[:, :-1]).all()
    assert np.isfinite(out.obs).all()


def test_wrong_weights_and_terms_are_config_errors() -> None:
    """An unknown weight, a duplicate name and a function that cannot be compiled are errors with a hint."""

    def broken(before, after, clock, car, team_size):  # type: ignore[no-untyped-def]
        return open(after)

    check_reward_errors(Soccer, "tuch", "touch", {"touch": ball_speed, "broken": broken})
