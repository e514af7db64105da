"""Soccer's reward terms: scalar functions of one env's state before and after a decision, and their weights.

A term is `term(before, after, clock, car, team_size) -> float`: `before` and `after` are state rows (see
`layout`), `clock` is that of after the decision, and no kick-off has been set yet. A user's own term has
the same form. Progress terms are differences, so that going back and forth earns nothing and
`action_repeat` does not change their sum.
"""

from __future__ import annotations

from slipstream.core.compile import Number, inlined
from slipstream.core.contracts import Array
from slipstream.envs.soccer.layout import (
    BALL,
    BALL_SPEED,
    BOOST,
    GOAL,
    INV_LENGTH,
    LENGTH,
    OVER,
    SCORE,
    TOUCH,
    X,
    Y,
)
from slipstream.envs.soccer.physics import HALF, ONE, TINY, ZERO, car_at, root

TERMS = ("goal", "win", "touch", "ball_to_goal", "car_to_ball", "boost_gain")
T_GOAL, T_WIN, T_TOUCH, T_BALL_TO_GOAL, T_CAR_TO_BALL, T_BOOST_GAIN = range(6)
INV_BALL_SPEED = ONE / BALL_SPEED

WEIGHTS: dict[str, dict[str, float]] = {
    "sparse": {"goal": 1.0, "win": 1.0},
    "dense": {"goal": 1.0, "win": 0.5, "touch": 0.1, "ball_to_goal": 0.6, "car_to_ball": 0.1, "boost_gain": 0.05},
}
"""Default weights of each `rewards.mode`; a term that is not named has weight 0."""


@inlined
def side(car: int, team_size: int) -> Number:
    """Return +1 for team 0, which attacks +x, and -1 for team 1."""
    return ONE if car < team_size else -ONE


@inlined
def goal(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """+1 for a goal of the car's team, -1 for one of the others."""
    return after[GOAL] * side(car, team_size)


@inlined
def win(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """+1 for a won match, -1 for a lost one, when it ends."""
    if clock[OVER] == 0 or clock[SCORE] == clock[SCORE + 1]:
        return ZERO
    return side(car, team_size) if clock[SCORE] > clock[SCORE + 1] else -side(car, team_size)


@inlined
def touch(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The change of the ball's speed by this car's hits, 1 = from rest to the fastest there is."""
    return after[car_at(car) + TOUCH] * INV_BALL_SPEED


@inlined
def ball_place(s: Array) -> Number:
    """How good the ball's place is for team 0, -1 in its own goal to 1 in the other."""
    x, y = s[BALL + X], s[BALL + Y]
    home, target = x + LENGTH, x - LENGTH
    return (root(home * home + y * y) - root(target * target + y * y)) * HALF * INV_LENGTH


@inlined
def ball_to_goal(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The ball's way from the own goal to the other; zero-sum and telescoping."""
    return (ball_place(after) - ball_place(before)) * side(car, team_size)


@inlined
def car_to_ball(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The car's own way towards where the ball was, in half lengths; hitting the ball away costs nothing."""
    c = car_at(car)
    dx, dy = before[BALL + X] - before[c + X], before[BALL + Y] - before[c + Y]
    way = (after[c + X] - before[c + X]) * dx + (after[c + Y] - before[c + Y]) * dy
    return way / max(root(dx * dx + dy * dy), TINY) * INV_LENGTH


@inlined
def boost_gain(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """Fuel taken from pads, 1 = a full tank."""
    c = car_at(car)
    return max(after[c + BOOST] - before[c + BOOST], ZERO)


@inlined
def value_terms(
    before: Array, after: Array, clock: Array, car: int, team_size: int, weights: Array, values: Array
) -> None:
    """Write the weighted built-in terms of one car."""
    values[T_GOAL] = weights[T_GOAL] * goal(before, after, clock, car, team_size)
    values[T_WIN] = weights[T_WIN] * win(before, after, clock, car, team_size)
    values[T_TOUCH] = weights[T_TOUCH] * touch(before, after, clock, car, team_size)
    values[T_BALL_TO_GOAL] = weights[T_BALL_TO_GOAL] * ball_to_goal(before, after, clock, car, team_size)
    values[T_CAR_TO_BALL] = weights[T_CAR_TO_BALL] * car_to_ball(before, after, clock, car, team_size)
    values[T_BOOST_GAIN] = weights[T_BOOST_GAIN] * boost_gain(before, after, clock, car, team_size)
