"""Reward terms: signs and sums computed by hand, and a user's own term."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from env_checks import check_reward_errors, check_rewards_are_sums_of_terms
from slipstream.contracts import Array, Rows
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer.columns import State
from slipstream.envs.soccer.game import game as soccer
from slipstream.settings import RewardSettings
from soccer_matches import BOOST, COAST, ball, begun, car, cornered, place_ball, place_car, score, set_score

SCHEME = soccer.scheme
TERMS = SCHEME.terms
ONES = RewardSettings(weights=dict.fromkeys(TERMS, 1.0))
SPARSE = RewardSettings(mode="sparse")


def still(**settings: Any) -> tuple[NativeVector, Rows]:
    """Return a game of one env with both cars at rest near their corners and every weight 1."""
    return cornered(**({"rewards": ONES} | settings))


def coast(game: NativeVector, out: Rows, steps: int = 1) -> Array:
    """Let the cars roll; return the terms by row."""
    out.terms[:] = 0
    for _ in range(steps):
        game.step(np.full((2, 1), COAST, np.int32), out)
    return out.terms


def test_a_goal_is_good_for_one_side_and_bad_for_the_other() -> None:
    """A goal at +x gives +1 to team 0 and -1 to team 1, is added to the score, and is followed by a kick-off."""
    for side in (1, -1):
        game, out = still()
        place_ball(game, side * 37, 0, side * 40, 0)
        terms = coast(game, out)
        assert terms[:, TERMS.index("goal")].tolist() == [side, -side]
        assert score(game).tolist() == [[side > 0, side < 0]]
        assert ball(game).tolist() == [[0, 0, 0, 0]]
        assert out.terminated.tolist() == [0, 0]


def test_ball_to_goal_telescopes_and_is_zero_sum() -> None:
    """The ball's progress sums to the change of its position for any action repeat, and is zero-sum."""
    sums = []
    for repeat in (2, 4):
        game, out = still(action_repeat=repeat)
        place_ball(game, -10, 3, 24, 2)
        before = ball(game)[0]
        terms = coast(game, out, 40 // repeat)
        way = terms[:, TERMS.index("ball_to_goal")]

        def place(row: Array) -> float:
            x, y = float(row[0]), float(row[1])
            return (math.hypot(x + 36, y) - math.hypot(x - 36, y)) / 72

        assert way[0] == pytest.approx(place(ball(game)[0]) - place(before), abs=1e-5)
        assert way[0] > 0 and way[0] == pytest.approx(-way[1], abs=1e-6)
        sums.append(way[0])
    assert sums[0] == pytest.approx(sums[1], abs=1e-5)


def test_car_to_ball_is_the_cars_own_way() -> None:
    """Driving 12 units towards the resting ball gives 12 / 36, and a ball that flies away costs nothing."""
    game, out = still(actions="continuous")
    place_car(game, 0, -20, 0, 15, 0, 1, 0, 0, 0)
    start = float(game.column("cars.0.x")[0])
    for _ in range(12):
        game.step(np.array([[0.5, 0, -1, -1], [0, 0, -1, -1]], np.float32), out)
    way = float(game.column("cars.0.x")[0]) - start
    assert out.terms[0, TERMS.index("car_to_ball")] == pytest.approx(way / 36, abs=1e-4)
    game, out = still()
    place_ball(game, 0, 0, 30, 0)
    assert coast(game, out)[0, TERMS.index("car_to_ball")] == 0


def test_touch_is_the_change_of_the_balls_speed() -> None:
    """A hit that gives a resting ball speed v gives about v / 60 to the car that hit it, and 0 to the other."""
    game, out = still()
    place_car(game, 0, -5, 0, 25, 0, 1, 0, 0, 0)
    terms = coast(game, out)[:, TERMS.index("touch")]
    assert terms[0] == pytest.approx(float(game.column("ball.vx")[0]) / 60, rel=0.03) and terms[0] > 0.4
    assert terms[1] == 0


def test_boost_gain_counts_pads_only() -> None:
    """Boost taken from a pad counts, boost used does not."""
    game, out = still()
    place_car(game, 0, 0, 20)
    assert coast(game, out, 2)[0, TERMS.index("boost_gain")] == 1
    out.terms[:] = 0
    game.step(np.array([[BOOST], [COAST]], np.int32), out)
    assert game.column("cars.0.boost")[0] < 1 and out.terms[0, TERMS.index("boost_gain")] == 0


def test_win_comes_with_the_end() -> None:
    """The team that leads at the end gets +1, the other -1, and a draw gives 0."""
    for goals, expected in (((2, 1), (1, -1)), ((0, 3), (-1, 1)), ((1, 1), (0, 0))):
        game, out = still()
        set_score(game, goals)
        game.column("ticks_left")[:] = 4
        game.column("overtime")[:] = goals[0] == goals[1]
        assert coast(game, out)[:, TERMS.index("win")].tolist() == list(expected)
        assert out.terminated.tolist() == [1, 1] and out.outcome.tolist() == list(expected)


def test_reward_is_the_weighted_sum_of_its_terms() -> None:
    """`terms` holds weighted contributions, and the reward is their sum."""
    game, _ = begun(32, random_starts=1.0)
    check_rewards_are_sums_of_terms(game, lambda rng: rng.integers(0, 18, (64, 1)).astype(np.int32))


def test_sparse_counts_goals_and_wins_only() -> None:
    """In sparse mode only goals and the result are rewarded, and an explicit weight overrides the mode."""
    assert dict(zip(TERMS, soccer.vector(1, rewards=SPARSE).payout.weights.tolist(), strict=True)) == {
        name: {"goal": 1.0, "win": 1.0}.get(name, 0.0) for name in TERMS
    }
    overridden = RewardSettings(mode="sparse", weights={"touch": 0.5})
    assert soccer.vector(1, rewards=overridden).payout.weights[TERMS.index("touch")] == 0.5


def test_every_term_is_in_one_group() -> None:
    """Every term is in exactly one group."""
    assert sorted(name for held in SCHEME.groups.values() for name in held) == sorted(TERMS)


def test_aim_is_the_balls_speed_towards_the_goal() -> None:
    """A ball at 30 units/s straight at team 1's goal gives 0.5 to team 0 and -0.5 to team 1."""
    game, out = still()
    place_ball(game, 0, 0, 30, 0)
    aim = coast(game, out)[:, TERMS.index("aim")]
    vx = float(game.column("ball.vx")[0])
    assert aim == pytest.approx([vx / 60, -vx / 60]) and aim[0] > 0.48


@pytest.mark.parametrize(("speed", "saved"), [(-30.0, 1), (-4.0, 0), (8.0, 0)])
def test_a_save_turns_away_a_ball_that_would_have_rolled_in(speed: float, saved: int) -> None:
    """Only a hit counts, and only if the ball was on its way into the own goal and fast enough to get there."""
    game, out = still()
    place_ball(game, -20, 0, speed, 0)
    place_car(game, 0, -25, 0, 36, 0, 1, 0, 0, 0)
    terms = coast(game, out, 3)
    assert terms[0, TERMS.index("touch")] > 0
    assert terms[:, TERMS.index("save")].tolist() == [saved, 0]


def test_waste_idling_and_conceding_cost() -> None:
    """Boost used at top speed, standing still and conceding are penalised; the first two only for the car itself."""
    game, out = still(actions="continuous")
    place_car(game, 0, -20, 15, 39, 0, 1, 0, 0, 1)
    game.step(np.array([[1, 0, 1, -1], [0, 0, -1, -1]], np.float32), out)
    assert out.terms[:, TERMS.index("boost_waste")] == pytest.approx([-4 / 180, 0], abs=1e-6)
    assert out.terms[:, TERMS.index("idle")].tolist() == [0, -1]
    game, out = still()
    place_ball(game, 37, 0, 40, 0)
    assert coast(game, out)[:, TERMS.index("concede")].tolist() == [0, -1]


def test_goal_side_is_between_the_ball_and_the_own_goal() -> None:
    """A car between its own goal and the ball gets 1, a car beyond the ball gets 0."""
    game, out = still()
    place_ball(game, 28, 0, 0, 0)
    assert coast(game, out)[:, TERMS.index("goal_side")].tolist() == [1, 0]


@pytest.mark.parametrize("variant", ["1v1", "2v2", "mixed"])
def test_shaped_returns_telescope_over_whole_matches(variant: str) -> None:
    """Over matches with goals and random kick-offs the discounted sum is minus the initial potential.

    Potentials are written out here once more, from the states that the decisions saw. Rows without a car earn nothing.
    """
    gamma, envs = 0.98, 9
    rewards = RewardSettings(weights={"ball_to_goal": 0.6, "car_to_ball": 0.1}, potential=True)
    starts = {"random_starts": 0.5, "match_seconds": 20.0}
    game, out = begun(envs, variant, rewards=rewards, gamma=gamma, seed=5, **starts)
    rows = game.spec.agents
    team_size, action = rows // 2, np.zeros((envs * rows, 1), np.int32)
    acting = out.active.reshape(envs, rows) > 0

    def potentials() -> Array:
        found = np.zeros((envs, rows, 2))
        places = ball(game).astype(float)
        cars = [car(game, number, "x", "y").astype(float) for number in range(rows)]
        for env, row in np.argwhere(acting):
            x, y = places[env, :2]
            side = 1 if row < team_size else -1
            size = acting[env].sum() // 2
            cx, cy = cars[row if side == 1 else size + row - team_size][env]
            place = (math.hypot(x + 36, y) - math.hypot(x - 36, y)) / 72
            found[env, row] = 0.6 * place * side, -0.1 * math.hypot(cx - x, cy - y) / 36
        return found.reshape(envs * rows, 2)

    first, sums, goals = potentials(), np.zeros((envs * rows, 2)), 0
    playing = np.ones(envs * rows, bool)
    columns = [TERMS.index(name) for name in ("ball_to_goal", "car_to_ball")]
    for t in range(600):
        soccer.act("rule", out.obs, "discrete", action)
        out.terms[:] = 0
        game.step(action, out)
        sums[playing] += gamma**t * out.terms[playing][:, columns]
        goals += int((out.terms[playing, TERMS.index("goal")] != 0).sum())
        playing &= out.terminated == 0
        if t == 50:
            assert sums == pytest.approx(gamma**51 * potentials() - first, abs=1e-5)
    assert not playing.any() and goals >= 4
    assert sums == pytest.approx(-first, abs=1e-5)
    assert acting.all() != (variant == "mixed") and (sums.reshape(envs, rows, 2)[~acting] == 0).all()


def test_potentials_leave_the_other_terms_alone() -> None:
    """With and without potentials the same games give the same other terms; only potential-based terms differ."""
    sums = []
    for potential in (False, True):
        game, out = begun(8, rewards=RewardSettings(potential=potential), random_starts=1.0)
        action = np.zeros((16, 1), np.int32)
        for _ in range(200):
            soccer.act("rule", out.obs, "discrete", action)
            game.step(action, out)
        sums.append(out.terms.copy())
    same = (sums[0] == sums[1]).all(axis=0)
    assert [name for name, kept in zip(TERMS, same, strict=True) if not kept] == ["ball_to_goal", "car_to_ball"]


def ball_speed(before: State, after: State, me: int) -> float:
    """The ball's speed over 60, as a user would write it."""
    return math.sqrt(after.ball.vx**2 + after.ball.vy**2) / 60


def never(before: State, after: State, me: int) -> float:
    """NaN where the ball rests."""
    return after.ball.vx / after.ball.vx


def test_a_users_term_is_compiled_and_logged() -> None:
    """A plain function becomes a term with its own name, weight and column."""
    rewards = RewardSettings(weights={"ball_speed": 2.0})
    game, out = still(extra_terms={"ball_speed": ball_speed}, rewards=rewards)
    assert game.spec.terms == (*TERMS, "ball_speed")
    place_ball(game, 0, 0, 30, 0)
    terms = coast(game, out)
    assert terms[:, -1] == pytest.approx(2 * float(game.column("ball.vx")[0]) / 60)
    assert out.reward == pytest.approx(terms.sum(1))


def test_a_users_term_sees_the_state_before_the_kick_off() -> None:
    """When a goal is scored, a user's term gets the state with the ball in the goal."""

    def depth(before: State, after: State, me: int) -> float:
        return abs(after.ball.x)

    game, out = still(extra_terms={"depth": depth})
    place_ball(game, 37, 0, 40, 0)
    assert coast(game, out)[0, -1] > 38


def test_nan_of_a_users_term_stays_in_its_envs() -> None:
    """A non-finite value appears in the column and rows of its term, where the collector masks and reports it."""
    game, out = begun(64, extra_terms={"never": never})
    game.column("ball.vx")[3:] = 5.0
    game.step(np.full((128, 1), COAST, np.int32), out)
    assert np.flatnonzero(np.isnan(out.reward)).tolist() == list(range(6))
    assert np.isnan(out.terms[:6, -1]).all() and np.isfinite(out.terms[:, :-1]).all()
    assert np.isfinite(out.obs).all()


def test_wrong_weights_and_terms_are_config_errors() -> None:
    """An unknown weight, a duplicate name and a function that cannot be compiled are errors with a hint."""

    def broken(before: State, after: State, me: int) -> float:
        return open(after)  # type: ignore[call-overload,no-any-return]

    check_reward_errors(soccer.vector, "tuch", "touch", {"touch": ball_speed, "broken": broken})
