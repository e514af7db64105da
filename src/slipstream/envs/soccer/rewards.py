"""Soccer's reward terms and statistics of one car; `game` registers them with their weights and groups.

`before` and `after` are the states around a decision; a due kick-off has not been set yet. Progress terms are
differences, so that going back and forth earns nothing and `env.action_repeat` does not change their sum; `aim`,
`goal_side` and `idle` count once per decision.

With `rewards.potential` the terms that have a potential are gamma * potential(after) - potential(before). There
`after` is the state that the next decision starts from, kick-off included, and the potential after the end is 0. The
discounted sum over a match is therefore minus its initial potential, whatever was played and however many kick-offs
there were.

`goals` and `conceded` are the team's, and so is `possession`: the share of decisions in which the team was the last to
hit the ball since the kick-off (a decision in which both teams hit it changes nothing). The other statistics are the
car's own.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.soccer.columns import (
    BALL_SPEED,
    BOOST_SPEED,
    GOAL_WIDTH,
    LENGTH,
    SLOTS,
    Level,
    State,
    car_of,
    side_of,
)
from slipstream.envs.soccer.observation import INV_LENGTH
from slipstream.envs.soccer.physics import BURN, ROLL_OUT, TINY

INV_BALL_SPEED = 1.0 / BALL_SPEED
FAST = 0.9 * BOOST_SPEED
SLOW = 1.0


def goal(after: State, me: int) -> float:
    """+1 for a goal of the car's team, -1 for a goal of the opponents."""
    return after.goal * side_of(me)


def win(after: State, me: int) -> float:
    """+1 for a won match, -1 for a lost one, when it ends."""
    if not after.over or after.score[0] == after.score[1]:
        return 0.0
    return side_of(me) if after.score[0] > after.score[1] else -side_of(me)


def touch(after: State, me: int) -> float:
    """The change of the ball's speed by this car's hits, in maximum ball speeds."""
    return after.cars[car_of(after, me)].touch * INV_BALL_SPEED


@native.function
def ball_place(s: State) -> float:
    """The value of the ball's position for team 0, from -1 in its own goal to 1 in the opponents' goal."""
    x, y = s.ball.x, s.ball.y
    home, target = x + LENGTH, x - LENGTH
    return (native.sqrt(home * home + y * y) - native.sqrt(target * target + y * y)) * 0.5 * INV_LENGTH


def ball_to_goal(before: State, after: State, me: int) -> float:
    """The ball's progress from the own goal to the opponents' goal; zero-sum and telescoping."""
    return (ball_place(after) - ball_place(before)) * side_of(me)


def ball_potential(s: State, me: int) -> float:
    """The potential of `ball_to_goal`."""
    return ball_place(s) * side_of(me)


def car_to_ball(before: State, after: State, me: int) -> float:
    """The car's progress towards where the ball was, in half lengths; hitting the ball away costs nothing."""
    old = before.cars[car_of(before, me)]
    new = after.cars[car_of(after, me)]
    dx, dy = before.ball.x - old.x, before.ball.y - old.y
    way = (new.x - old.x) * dx + (new.y - old.y) * dy
    return way / max(native.sqrt(dx * dx + dy * dy), TINY) * INV_LENGTH


def car_potential(s: State, me: int) -> float:
    """The potential of `car_to_ball`: minus the car's distance from the ball, in half lengths."""
    car = s.cars[car_of(s, me)]
    dx, dy = s.ball.x - car.x, s.ball.y - car.y
    return -native.sqrt(dx * dx + dy * dy) * INV_LENGTH


def boost_gain(before: State, after: State, me: int) -> float:
    """Boost taken from pads, in full tanks."""
    return max(after.cars[car_of(after, me)].boost - before.cars[car_of(before, me)].boost, 0.0)


def aim(after: State, me: int) -> float:
    """The ball's speed towards the opponents' goal, in maximum ball speeds; negative if it moves away."""
    dx, dy = LENGTH * side_of(me) - after.ball.x, -after.ball.y
    way = after.ball.vx * dx + after.ball.vy * dy
    return way / max(native.sqrt(dx * dx + dy * dy), TINY) * INV_BALL_SPEED


@native.function
def rolls_in(s: State, side: float) -> bool:
    """Whether the ball, untouched, would roll over the goal line at x = LENGTH (side 1) or x = -LENGTH (-1)."""
    speed, way = s.ball.vx * side, LENGTH - s.ball.x * side
    if speed * ROLL_OUT <= way:
        return False
    return abs(s.ball.y + s.ball.vy * way / speed) < GOAL_WIDTH


@native.function
def is_save(before: State, after: State, me: int) -> bool:
    """Whether a car's hit keeps the ball from rolling into its own goal."""
    home = -side_of(me)
    if after.cars[car_of(after, me)].touch == 0.0 or after.goal != 0.0 or not rolls_in(before, home):
        return False
    return not rolls_in(after, home)


def save(before: State, after: State, me: int) -> float:
    """1 for a hit that keeps the ball from rolling into the own goal."""
    return is_save(before, after, me)


def goal_side(after: State, me: int) -> float:
    """1 while the car is nearer to its own goal line than the ball is."""
    return 1.0 if (after.ball.x - after.cars[car_of(after, me)].x) * side_of(me) > 0.0 else 0.0


def boost_waste(before: State, after: State, me: int) -> float:
    """Minus the boost used when the car was already close to its top speed."""
    old = before.cars[car_of(before, me)]
    fast = old.vx * old.vx + old.vy * old.vy > FAST * FAST
    return min(after.cars[car_of(after, me)].boost - old.boost, 0.0) if fast else 0.0


def concede(after: State, me: int) -> float:
    """-1 for a goal of the opponents, in addition to `goal`."""
    return min(after.goal * side_of(me), 0.0)


def idle(after: State, me: int) -> float:
    """-1 for a decision after which the car hardly moves."""
    car = after.cars[car_of(after, me)]
    return -1.0 if car.vx * car.vx + car.vy * car.vy < SLOW * SLOW else 0.0


def goals(after: State, me: int) -> float:
    """Goals of the team."""
    return after.score[0] if me < SLOTS else after.score[1]


def conceded(after: State, me: int) -> float:
    """Goals of the opponents."""
    return after.score[1] if me < SLOTS else after.score[0]


def touches(after: State, me: int) -> float:
    """Decisions in which the car hit the ball."""
    return after.cars[car_of(after, me)].touch > 0.0


def shots(after: State, me: int) -> float:
    """Touches after which the ball, untouched, rolls into the opponents' goal."""
    if after.cars[car_of(after, me)].touch <= 0.0:
        return 0.0
    return after.goal == side_of(me) or rolls_in(after, side_of(me))


def saves(before: State, after: State, me: int) -> float:
    """Touches that keep the ball from rolling into the own goal."""
    return is_save(before, after, me)


def possession(after: State, me: int) -> float:
    """Whether the team was the last to hit the ball since the kick-off."""
    return after.possession == (1 if me < SLOTS else 2)


def boost_used(before: State, after: State, me: int, settings: native.Settings, level: Level) -> float:
    """Boost used, in full tanks; if a pad filled the tank meanwhile, that of boosting throughout the decision."""
    car = after.cars[car_of(after, me)]
    if car.boosting <= 0.0:
        return 0.0
    tank = before.cars[car_of(before, me)].boost
    return tank - car.boost if tank >= car.boost else min(tank, BURN * (settings.ticks * level.slow))


def speed(after: State, me: int) -> float:
    """Mean speed in units/s."""
    car = after.cars[car_of(after, me)]
    return native.sqrt(car.vx * car.vx + car.vy * car.vy)


def ball_distance(after: State, me: int) -> float:
    """Mean distance from the ball in units."""
    car = after.cars[car_of(after, me)]
    dx, dy = after.ball.x - car.x, after.ball.y - car.y
    return native.sqrt(dx * dx + dy * dy)
