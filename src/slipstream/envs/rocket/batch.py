"""What cars see and earn, for all matches at once, from what the simulator tells.

Of an env: `balls` [2, 25], `cars` [slots, 2, 36] and `pads` [2, 34], each as the blue team and as the orange team sees
it, which is turned round: to both, their own goal is at -y. Columns are the simulator's own.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import Number, compiled, inlined

F = np.float32
ZERO, ONE = F(0), F(1)
DEMOS, DEMOED, GROUND, TOUCHED, BOOST, BODY = 5, 7, 8, 9, 10, 11
"""Columns of a car: demolitions so far, whether it is gone, stands, has just hit the ball; its boost; its body."""
POS, VEL, SPIN, FORWARD, RIGHT, UP = 0, 7, 10, 13, 16, 19
"""Columns of a body: the ball's is at 0, a car's at `BODY`."""
PADS = 34
BLUE_SCORE, ORANGE_SCORE, SCORES = 2, 3, 4
"""Columns of a score, and how many it has."""
LEFT, LEAD = 0, 1
"""Columns of a clock: the share of the match that is left, and the blue team's goals more than the orange team's."""
OWN, OTHER = 76, 20
"""Numbers that a car sees of itself, the ball and the arena; and of each other car."""
PLACE, SPEED, TURN = F(1 / 2300), F(1 / 2300), F(1 / 5.5)
GOAL_Y, BALL_SPEED, BALL_RADIUS, HEIGHT = F(5120), F(6000), F(91.25), F(2044)
BEHAVIOURS = ("goals", "conceded", "touches", "demos", "boost", "speed", "airborne", "ball_distance")
"""Counted for each car in a match; those from `boost` on are means over decisions (boost in tanks, lengths in uu)."""
B_GOALS, B_CONCEDED, B_TOUCHES, B_DEMOS, B_BOOST, B_SPEED, B_AIRBORNE, B_BALL_DISTANCE = range(8)


def obs_size(slots: int) -> int:
    """Numbers that a car sees where there is room for so many cars."""
    return OWN + (slots - 1) * OTHER


@inlined
def put(out: Array, at: int, source: Array, column: int, scale: Number) -> int:
    """Write a scaled vector; return the place behind it."""
    for k in range(3):
        out[at + k] = source[column + k] * scale
    return at + 3


@inlined
def put_local(out: Array, at: int, body: Array, x: Number, y: Number, z: Number, scale: Number) -> int:
    """Write a vector as a car sees it: ahead, to the right, above."""
    for k in range(3):
        axis = BODY + FORWARD + 3 * k
        out[at + k] = (body[axis] * x + body[axis + 1] * y + body[axis + 2] * z) * scale
    return at + 3


@inlined
def copy(told: Array, at: int, out: Array) -> int:
    """Take a table of two rows, as the simulator lays it out: column by column. Return the place behind it."""
    for k in range(out.shape[1]):
        out[0, k], out[1, k] = told[at], told[at + 1]
        at += 2
    return at


@inlined
def see(
    balls: Array, cars: Array, pads: Array, flips: Array, present: Array, clock: Array, car: int, out: Array
) -> None:
    """Write what one car sees: itself, the ball, pads, time and score, its mates, the others."""
    slots = present.shape[0]
    team = 0 if car < slots // 2 else 1
    own, ball = cars[car, team], balls[team]
    at = put(out, 0, own, BODY + POS, PLACE)
    at = put(out, at, own, BODY + FORWARD, ONE)
    at = put(out, at, own, BODY + UP, ONE)
    at = put(out, at, own, BODY + VEL, SPEED)
    at = put(out, at, own, BODY + SPIN, TURN)
    out[at], out[at + 1], out[at + 2], out[at + 3] = own[BOOST] * F(0.01), own[GROUND], own[DEMOED], flips[car]
    at = put(out, at + 4, ball, POS, PLACE)
    at = put(out, at, ball, VEL, SPEED)
    at = put(out, at, ball, SPIN, TURN)
    for start, scale in ((POS, PLACE), (VEL, SPEED)):
        x = ball[start] - own[BODY + start]
        y = ball[start + 1] - own[BODY + start + 1]
        z = ball[start + 2] - own[BODY + start + 2]
        out[at], out[at + 1], out[at + 2] = x * scale, y * scale, z * scale
        at = put_local(out, at + 3, own, x, y, z, scale)
    for k in range(PADS):
        out[at + k] = pads[team, k]
    at += PADS
    out[at], out[at + 1] = clock[LEFT], (clock[LEAD] if team == 0 else -clock[LEAD]) * F(0.2)
    at += 2
    for turn in range(2):
        for other in range(slots):
            mate = (other < slots // 2) == (car < slots // 2)
            if other == car or mate != (turn == 0):
                continue
            if present[other] == 0:
                out[at : at + OTHER] = ZERO
                at += OTHER
                continue
            seen = cars[other, team]
            out[at], out[at + 1] = ONE, ONE if mate else ZERO
            at = put(out, at + 2, seen, BODY + POS, PLACE)
            x = seen[BODY] - own[BODY]
            y = seen[BODY + 1] - own[BODY + 1]
            z = seen[BODY + 2] - own[BODY + 2]
            at = put_local(out, at, own, x, y, z, PLACE)
            at = put(out, at, seen, BODY + VEL, SPEED)
            at = put(out, at, seen, BODY + FORWARD, ONE)
            at = put(out, at, seen, BODY + UP, ONE)
            out[at], out[at + 1], out[at + 2] = seen[BOOST] * F(0.01), seen[GROUND], seen[DEMOED]
            at += 3


@compiled
def take(
    envs: Array, told: Array, jumps: Array, present: Array, earlier: Array, score: Array, pads: Array, balls: Array,
    cars: Array, flips: Array,
) -> None:  # fmt: skip
    """Read what the simulator told of some envs: of each its score, pads and ball, then the cars that play.

    `earlier` are the goals of matches that the arena has seen before this one.
    """
    at, seen = 0, 0
    for env in envs:
        score[env, 0] = told[at + BLUE_SCORE] - earlier[env, 0]
        score[env, 1] = told[at + ORANGE_SCORE] - earlier[env, 1]
        at += SCORES
        at = copy(told, at, pads[env])
        at = copy(told, at, balls[env])
        for slot in range(present.shape[1]):
            if present[env, slot]:
                at = copy(told, at, cars[env, slot])
                flips[env, slot] = jumps[seen]
                seen += 1


@compiled
def judge(before: Array, score: Array, played: Array, match: int) -> tuple[Array, Array, Array]:
    """Who has scored in each match, who has won it (1 the blue team, -1 the orange one), and whether it is over.

    It is over when time is up and one side leads, or when the overtime of a tie is up too. `played` and `match` are
    in ticks.
    """
    envs = len(score)
    scored, won, over = np.zeros(envs, F), np.zeros(envs, F), np.zeros(envs, np.bool_)
    for env in range(envs):
        lead = score[env, 0] - score[env, 1]
        scored[env] = np.sign(lead - (before[env, 0] - before[env, 1]))
        over[env] = played[env] >= match and (lead != 0 or played[env] >= match + match // 2)
        won[env] = np.sign(lead) if over[env] else 0
    return scored, won, over


@compiled
def tell_time(envs: Array, score: Array, played: Array, match: int, clock: Array) -> None:
    """Write the clock of some envs."""
    for env in envs:
        clock[env, LEFT] = max(match - played[env], 0) / match
        clock[env, LEAD] = min(max(score[env, 0] - score[env, 1], -5), 5)


@compiled
def observe(
    envs: Array, balls: Array, cars: Array, pads: Array, flips: Array, present: Array, clock: Array, obs: Array
) -> None:
    """Write the observations of all cars of some envs; an empty place sees nothing."""
    slots = present.shape[1]
    for env in envs:
        for car in range(slots):
            row = obs[env * slots + car]
            if present[env, car]:
                see(balls[env], cars[env], pads[env], flips[env], present[env], clock[env], car, row)
            else:
                row[:] = ZERO


@inlined
def away(body: Array, column: int, x: Number, y: Number, z: Number) -> Number:
    """How far a body is from a place."""
    dx, dy, dz = body[column] - x, body[column + 1] - y, body[column + 2] - z
    return math.sqrt(dx * dx + dy * dy + dz * dz)


@inlined
def ball_place(ball: Array) -> Number:
    """How good the ball's place is for the team that sees it so, about -1 in its own goal to 1 in the other."""
    home, target = away(ball, POS, ZERO, -GOAL_Y, ZERO), away(ball, POS, ZERO, GOAL_Y, ZERO)
    return (home - target) / (F(2) * GOAL_Y)


@inlined
def nearness(ball: Array, car: Array) -> Number:
    """Minus the way from a car to the ball, in half lengths."""
    return -away(ball, POS, car[BODY], car[BODY + 1], car[BODY + 2]) / GOAL_Y


@compiled
def value(
    balls: Array, cars: Array, old_balls: Array, old_cars: Array, present: Array, scored: Array, won: Array,
    values: Array, sums: Array,
) -> None:  # fmt: skip
    """Write the value of each term for what the last decision brought, and count; terms as in `rewards`."""
    slots = present.shape[1]
    for env in range(len(balls)):
        for car in range(slots):
            row = env * slots + car
            values[row] = ZERO
            if present[env, car] == 0:
                continue
            team = 0 if car < slots // 2 else 1
            side = ONE if team == 0 else -ONE
            ball, old_ball = balls[env, team], old_balls[env, team]
            own, old = cars[env, car, team], old_cars[env, car, team]
            hit = own[TOUCHED] > ZERO
            change = away(ball, VEL, old_ball[VEL], old_ball[VEL + 1], old_ball[VEL + 2])
            toward = away(old_ball, POS, old[BODY], old[BODY + 1], old[BODY + 2])
            now = away(old_ball, POS, own[BODY], own[BODY + 1], own[BODY + 2])
            gained = max(own[BOOST] - old[BOOST], ZERO)
            values[row, 0] = scored[env] * side
            values[row, 1] = won[env] * side
            values[row, 2] = change / BALL_SPEED if hit else ZERO
            values[row, 3] = ball_place(ball) - ball_place(old_ball)
            values[row, 4] = (toward - now) / GOAL_Y if own[DEMOED] == ZERO and old[DEMOED] == ZERO else ZERO
            values[row, 5] = gained * F(0.01)
            values[row, 6] = (ball[POS + 2] - BALL_RADIUS) / HEIGHT if hit and own[GROUND] == ZERO else ZERO
            demos = max(own[DEMOS] - old[DEMOS], ZERO)
            values[row, 7] = demos - (ONE if own[DEMOED] > old[DEMOED] else ZERO)
            speed = away(own, BODY + VEL, ZERO, ZERO, ZERO)
            values[row, 8] = speed * SPEED
            count = sums[env, car]
            count[B_GOALS] += max(scored[env] * side, ZERO)
            count[B_CONCEDED] += max(-scored[env] * side, ZERO)
            count[B_TOUCHES] += ONE if hit else ZERO
            count[B_DEMOS] += demos
            count[B_BOOST] += own[BOOST] * F(0.01)
            count[B_SPEED] += speed
            count[B_AIRBORNE] += ONE - own[GROUND]
            count[B_BALL_DISTANCE] += away(ball, POS, own[BODY], own[BODY + 1], own[BODY + 2])


@compiled
def shape(
    balls: Array, cars: Array, old_balls: Array, old_cars: Array, present: Array, over: Array, gamma: Number,
    values: Array,
) -> None:  # fmt: skip
    """Write the terms that have a potential as gamma * after - before; after the end there is none."""
    slots = present.shape[1]
    for env in range(len(balls)):
        for car in range(slots):
            if present[env, car] == 0:
                continue
            team, row = 0 if car < slots // 2 else 1, env * slots + car
            after = ZERO if over[env] else ball_place(balls[env, team])
            values[row, 3] = gamma * after - ball_place(old_balls[env, team])
            near = ZERO if over[env] else nearness(balls[env, team], cars[env, car, team])
            values[row, 4] = gamma * near - nearness(old_balls[env, team], old_cars[env, car, team])
