"""Soccer's reward terms: scalar functions of one env's state before and after a decision, their weights and groups.

A term is `term(before, after, clock, car, team_size) -> float`: `before` and `after` are state rows (see `layout`),
`clock` is the clock after the decision, and a due kick-off has not been set yet. A user's own term has the same form.
Progress terms are differences, so that going back and forth earns nothing and `action_repeat` does not change their
sum; `aim`, `goal_side` and `idle` count once per decision.

With `rewards.potential` the terms that have a potential are gamma * potential(after) - potential(before). There
`after` is the state that the next decision starts from, kick-off included, and the potential after the end is 0. The
discounted sum over a match is therefore minus its initial potential, whatever was played and however many kick-offs
there were.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.rewards import RewardScheme
from slipstream.envs.soccer.layout import (
    BALL,
    BALL_SPEED,
    BOOST,
    BOOST_SPEED,
    GOAL,
    GOAL_WIDTH,
    INV_LENGTH,
    LENGTH,
    OVER,
    SCORE,
    TOUCH,
    VX,
    VY,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import BALL_DRAG, DT, HALF, ONE, TINY, ZERO, car_at, root
from slipstream.system.numba_compile import Number, inlined

TERMS = (
    *("goal", "win", "touch", "ball_to_goal", "car_to_ball", "boost_gain"),
    *("aim", "save", "goal_side", "boost_waste", "concede", "idle"),
)
T_GOAL, T_WIN, T_TOUCH, T_BALL_TO_GOAL, T_CAR_TO_BALL, T_BOOST_GAIN = range(6)
T_AIM, T_SAVE, T_GOAL_SIDE, T_BOOST_WASTE, T_CONCEDE, T_IDLE = range(6, 12)
T_EXTRA = T_AIM
"""The first of the terms without a default weight; they are computed only if one of them has a weight."""
INV_BALL_SPEED = ONE / BALL_SPEED
REACH = DT / (ONE - BALL_DRAG)
"""Distance that a ball rolls until it rests, per unit/s of speed, in seconds."""
FAST = F(0.9) * BOOST_SPEED
SLOW = ONE

WEIGHTS: dict[str, dict[str, float]] = {
    "sparse": {"goal": 1.0, "win": 1.0},
    "dense": {"goal": 1.0, "win": 0.5, "touch": 0.1, "ball_to_goal": 0.6, "car_to_ball": 0.1, "boost_gain": 0.05},
}
"""Default weights for each `rewards.mode`; terms that are not listed have weight 0."""
SCHEME = RewardScheme(
    TERMS,
    WEIGHTS,
    groups={
        "sparse": ("goal", "win"),
        "ball": ("touch", "ball_to_goal"),
        "goal": ("aim", "save"),
        "positioning": ("car_to_ball", "goal_side"),
        "boost": ("boost_gain", "boost_waste"),
        "penalties": ("concede", "idle"),
    },
    potentials=("ball_to_goal", "car_to_ball"),
)


@inlined
def side(car: int, team_size: int) -> Number:
    """Return +1 for team 0, which attacks +x, and -1 for team 1."""
    return ONE if car < team_size else -ONE


@inlined
def goal(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """+1 for a goal of the car's team, -1 for a goal of the opponents."""
    return after[GOAL] * side(car, team_size)


@inlined
def win(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """+1 for a won match, -1 for a lost one, when it ends."""
    if clock[OVER] == 0 or clock[SCORE] == clock[SCORE + 1]:
        return ZERO
    return side(car, team_size) if clock[SCORE] > clock[SCORE + 1] else -side(car, team_size)


@inlined
def touch(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The change of the ball's speed by this car's hits, in maximum ball speeds."""
    return after[car_at(car) + TOUCH] * INV_BALL_SPEED


@inlined
def ball_place(s: Array) -> Number:
    """The value of the ball's position for team 0, from -1 in its own goal to 1 in the opponents' goal."""
    x, y = s[BALL + X], s[BALL + Y]
    home, target = x + LENGTH, x - LENGTH
    return (root(home * home + y * y) - root(target * target + y * y)) * HALF * INV_LENGTH


@inlined
def ball_to_goal(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The ball's progress from the own goal to the opponents' goal; zero-sum and telescoping."""
    return (ball_place(after) - ball_place(before)) * side(car, team_size)


@inlined
def car_to_ball(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The car's progress towards where the ball was, in half lengths; hitting the ball away costs nothing."""
    c = car_at(car)
    dx, dy = before[BALL + X] - before[c + X], before[BALL + Y] - before[c + Y]
    way = (after[c + X] - before[c + X]) * dx + (after[c + Y] - before[c + Y]) * dy
    return way / max(root(dx * dx + dy * dy), TINY) * INV_LENGTH


@inlined
def boost_gain(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """Boost taken from pads, in full tanks."""
    c = car_at(car)
    return max(after[c + BOOST] - before[c + BOOST], ZERO)


@inlined
def aim(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """The ball's speed towards the opponents' goal, in maximum ball speeds; negative if it moves away."""
    dx, dy = LENGTH * side(car, team_size) - after[BALL + X], -after[BALL + Y]
    way = after[BALL + VX] * dx + after[BALL + VY] * dy
    return way / max(root(dx * dx + dy * dy), TINY) * INV_BALL_SPEED


@inlined
def rolls_in(s: Array, line: Number) -> Number:
    """Whether the ball, untouched, would roll over the goal line at x = LENGTH (1) or x = -LENGTH (-1)."""
    speed, way = s[BALL + VX] * line, LENGTH - s[BALL + X] * line
    if speed * REACH <= way:
        return False
    return abs(s[BALL + Y] + s[BALL + VY] * way / speed) < GOAL_WIDTH


@inlined
def save(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """1 for a hit that keeps the ball from rolling into the own goal."""
    home = -side(car, team_size)
    if after[car_at(car) + TOUCH] == ZERO or after[GOAL] != ZERO or not rolls_in(before, home):
        return ZERO
    return ZERO if rolls_in(after, home) else ONE


@inlined
def goal_side(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """1 while the car is nearer to its own goal line than the ball is."""
    return ONE if (after[BALL + X] - after[car_at(car) + X]) * side(car, team_size) > ZERO else ZERO


@inlined
def boost_waste(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """Minus the boost used when the car was already close to its top speed."""
    c = car_at(car)
    vx, vy = before[c + VX], before[c + VY]
    return min(after[c + BOOST] - before[c + BOOST], ZERO) if vx * vx + vy * vy > FAST * FAST else ZERO


@inlined
def concede(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """-1 for a goal of the opponents, in addition to `goal`."""
    return min(after[GOAL] * side(car, team_size), ZERO)


@inlined
def idle(before: Array, after: Array, clock: Array, car: int, team_size: int) -> Number:
    """-1 for a decision after which the car hardly moves."""
    vx, vy = after[car_at(car) + VX], after[car_at(car) + VY]
    return -ONE if vx * vx + vy * vy < SLOW * SLOW else ZERO


@inlined
def value_terms(before: Array, after: Array, clock: Array, car: int, team_size: int, values: Array) -> None:
    """Write the terms of one car that have a default weight."""
    values[T_GOAL] = goal(before, after, clock, car, team_size)
    values[T_WIN] = win(before, after, clock, car, team_size)
    values[T_TOUCH] = touch(before, after, clock, car, team_size)
    values[T_BALL_TO_GOAL] = ball_to_goal(before, after, clock, car, team_size)
    values[T_CAR_TO_BALL] = car_to_ball(before, after, clock, car, team_size)
    values[T_BOOST_GAIN] = boost_gain(before, after, clock, car, team_size)


@inlined
def value_extra_terms(before: Array, after: Array, clock: Array, car: int, team_size: int, values: Array) -> None:
    """Write the other built-in terms of one car."""
    values[T_AIM] = aim(before, after, clock, car, team_size)
    values[T_SAVE] = save(before, after, clock, car, team_size)
    values[T_GOAL_SIDE] = goal_side(before, after, clock, car, team_size)
    values[T_BOOST_WASTE] = boost_waste(before, after, clock, car, team_size)
    values[T_CONCEDE] = concede(before, after, clock, car, team_size)
    values[T_IDLE] = idle(before, after, clock, car, team_size)


@inlined
def nearness(s: Array, car: int) -> Number:
    """The potential of `car_to_ball`: minus the car's distance from the ball, in half lengths."""
    dx, dy = s[BALL + X] - s[car_at(car) + X], s[BALL + Y] - s[car_at(car) + Y]
    return -root(dx * dx + dy * dy) * INV_LENGTH


@inlined
def shape_terms(before: Array, after: Array, discount: Number, car: int, team_size: int, values: Array) -> None:
    """Write the potential-based terms; `discount` is gamma, or 0 after the end."""
    values[T_BALL_TO_GOAL] = (discount * ball_place(after) - ball_place(before)) * side(car, team_size)
    values[T_CAR_TO_BALL] = discount * nearness(after, car) - nearness(before, car)
