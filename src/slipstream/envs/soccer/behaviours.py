"""Behaviour statistics of each soccer car in a match: never rewarded, reported when the match ends.

`goals` and `conceded` are the team's, and so is `possession`: the share of decisions in which the team was the last to
hit the ball since the kick-off (a decision in which both teams hit it changes nothing). The others are the car's own:
`touches` are decisions in which it hit the ball, `shots` are touches after which the ball, untouched, rolls into the
opponents' goal, `saves` are touches that keep the ball from rolling into the own goal. `boost_used` is in full tanks;
`speed` and `ball_distance` are means over decisions, in units/s and units.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.layout import BALL, BOOST, BOOSTING, DECISIONS, GOAL, KICKOFF, SCORE, TOUCH, VX, VY, F, X, Y
from slipstream.envs.soccer.physics import BURN, ONE, ZERO, car_at, root
from slipstream.envs.soccer.rewards import rolls_in, save, side
from slipstream.system.numba_compile import Number, inlined

BEHAVIOURS = (
    "goals",
    "conceded",
    "touches",
    "shots",
    "saves",
    "possession",
    "boost_used",
    "speed",
    "ball_distance",
)
B_GOALS, B_CONCEDED, B_TOUCHES, B_SHOTS, B_SAVES, B_POSSESSION, B_BOOST_USED, B_SPEED, B_BALL_DISTANCE = range(9)
B_HOLDS = len(BEHAVIOURS)
"""The column after them: 1 while the car's team was the last to hit the ball."""
SUMS = len(BEHAVIOURS) + 1
"""Columns of the sums of a match."""


@inlined
def boost_used(before: Array, after: Array, c: int, repeat: int) -> Number:
    """The boost that a car used in a decision; if a pad filled the tank meanwhile, that of boosting throughout."""
    if after[c + BOOSTING] <= ZERO:
        return ZERO
    used = before[c + BOOST] - after[c + BOOST]
    return used if used >= ZERO else min(before[c + BOOST], BURN * F(repeat))


@inlined
def count_car(
    before: Array, after: Array, clock: Array, car: int, team_size: int, repeat: int, holder: int, sums: Array
) -> None:
    """Add one decision of one car; `holder` is the team that alone hit the ball, or -1."""
    c = car_at(car)
    if after[c + TOUCH] > ZERO:
        goal = side(car, team_size)
        sums[B_TOUCHES] += ONE
        if after[GOAL] == goal or rolls_in(after, goal):
            sums[B_SHOTS] += ONE
        sums[B_SAVES] += save(before, after, clock, car, team_size)
    if holder >= 0:
        sums[B_HOLDS] = ONE if (car < team_size) == (holder == 0) else ZERO
    sums[B_POSSESSION] += sums[B_HOLDS]
    if clock[KICKOFF] == 1:
        sums[B_HOLDS] = ZERO
    sums[B_BOOST_USED] += boost_used(before, after, c, repeat)
    vx, vy = after[c + VX], after[c + VY]
    dx, dy = after[BALL + X] - after[c + X], after[BALL + Y] - after[c + Y]
    sums[B_SPEED] += root(vx * vx + vy * vy)
    sums[B_BALL_DISTANCE] += root(dx * dx + dy * dy)


@inlined
def count_cars(before: Array, after: Array, clock: Array, team_size: int, repeat: int, sums: Array) -> None:
    """Add one decision of all cars of one env to `sums` [cars, SUMS]."""
    first, second = False, False
    for car in range(team_size):
        first = first or after[car_at(car) + TOUCH] > ZERO
        second = second or after[car_at(car + team_size) + TOUCH] > ZERO
    holder = -1
    if first != second:
        holder = 0 if first else 1
    for car in range(2 * team_size):
        count_car(before, after, clock, car, team_size, repeat, holder, sums[car])


@inlined
def write_statistics(clock: Array, sums: Array, car: int, team_size: int, out: Array) -> None:
    """Write the statistics of one car in the match that ended."""
    team = 0 if car < team_size else 1
    share = ONE / F(max(clock[DECISIONS], 1))
    out[B_GOALS], out[B_CONCEDED] = clock[SCORE + team], clock[SCORE + 1 - team]
    for k in (B_TOUCHES, B_SHOTS, B_SAVES, B_BOOST_USED):
        out[k] = sums[k]
    for k in (B_POSSESSION, B_SPEED, B_BALL_DISTANCE):
        out[k] = sums[k] * share
