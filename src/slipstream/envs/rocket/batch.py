"""Observations, reward terms and match results for all matches at once, from the state of the simulator.

The state of an env is `balls` [2, 25], `cars` [slots, 2, 36] and `pads` [2, 34], each from the view of the blue and of
the orange team. The views are rotated, so the own goal is at -y for both. Columns are those of the simulator.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import Number, compiled, compiled_with_arrays, inlined

F = np.float32
ZERO, ONE = F(0), F(1)
DEMOS, DEMOED, GROUND, TOUCHED, BOOST, BODY = 5, 7, 8, 9, 10, 11
"""Columns of a car: demolitions so far, is demolished, is on the ground, touched the ball, boost, first body column."""
POS, VEL, SPIN, FORWARD, RIGHT, UP = 0, 7, 10, 13, 16, 19
"""Columns of a body, which starts at column 0 for the ball and at `BODY` for a car."""
PADS = 34
BLUE_SCORE, ORANGE_SCORE, SCORES = 2, 3, 4
"""Columns of a score, and their number."""
LEFT, LEAD = 0, 1
"""Columns of a clock: the remaining share of the match, and the goal difference (blue minus orange)."""
OWN, OTHER = 76, 20
"""Observation columns of the car itself, the ball and the arena; and of each other car."""
PLACE, SPEED, TURN = F(1 / 2300), F(1 / 2300), F(1 / 5.5)
GOAL_Y, BALL_SPEED, BALL_RADIUS, HEIGHT = F(5120), F(6000), F(91.25), F(2044)
BEHAVIOURS = ("goals", "conceded", "touches", "demos", "boost", "speed", "airborne", "ball_distance")
"""Statistics of each car in a match; those from `boost` on are means over steps (boost in tanks, lengths in uu)."""
B_GOALS, B_CONCEDED, B_TOUCHES, B_DEMOS, B_BOOST, B_SPEED, B_AIRBORNE, B_BALL_DISTANCE = range(8)


def obs_size(slots: int) -> int:
    """The observation width for this many car slots."""
    return OWN + (slots - 1) * OTHER


@inlined
def write_vector(out: Array, at: int, source: Array, column: int, scale: Number) -> int:
    """Write a scaled vector; returns the next column."""
    for k in range(3):
        out[at + k] = source[column + k] * scale
    return at + 3


@inlined
def write_local_vector(out: Array, at: int, body: Array, x: Number, y: Number, z: Number, scale: Number) -> int:
    """Write a vector in the frame of a car: forward, right, up."""
    for k in range(3):
        axis = BODY + FORWARD + 3 * k
        out[at + k] = (body[axis] * x + body[axis + 1] * y + body[axis + 2] * z) * scale
    return at + 3


@inlined
def copy_table(data: Array, at: int, out: Array) -> int:
    """Copy a table of two rows, stored column by column; returns the next position in `data`."""
    for k in range(out.shape[1]):
        out[0, k], out[1, k] = data[at], data[at + 1]
        at += 2
    return at


@inlined
def write_observation(
    balls: Array, cars: Array, pads: Array, flips: Array, present: Array, clock: Array, car: int, out: Array
) -> None:
    """Write the observation of one car: itself, the ball, pads, time and score, its teammates, its opponents."""
    slots = present.shape[0]
    team = 0 if car < slots // 2 else 1
    own, ball = cars[car, team], balls[team]
    at = write_vector(out, 0, own, BODY + POS, PLACE)
    at = write_vector(out, at, own, BODY + FORWARD, ONE)
    at = write_vector(out, at, own, BODY + UP, ONE)
    at = write_vector(out, at, own, BODY + VEL, SPEED)
    at = write_vector(out, at, own, BODY + SPIN, TURN)
    out[at], out[at + 1], out[at + 2], out[at + 3] = own[BOOST] * F(0.01), own[GROUND], own[DEMOED], flips[car]
    at = write_vector(out, at + 4, ball, POS, PLACE)
    at = write_vector(out, at, ball, VEL, SPEED)
    at = write_vector(out, at, ball, SPIN, TURN)
    for start, scale in ((POS, PLACE), (VEL, SPEED)):
        x = ball[start] - own[BODY + start]
        y = ball[start + 1] - own[BODY + start + 1]
        z = ball[start + 2] - own[BODY + start + 2]
        out[at], out[at + 1], out[at + 2] = x * scale, y * scale, z * scale
        at = write_local_vector(out, at + 3, own, x, y, z, scale)
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
            at = write_vector(out, at + 2, seen, BODY + POS, PLACE)
            x = seen[BODY] - own[BODY]
            y = seen[BODY + 1] - own[BODY + 1]
            z = seen[BODY + 2] - own[BODY + 2]
            at = write_local_vector(out, at, own, x, y, z, PLACE)
            at = write_vector(out, at, seen, BODY + VEL, SPEED)
            at = write_vector(out, at, seen, BODY + FORWARD, ONE)
            at = write_vector(out, at, seen, BODY + UP, ONE)
            out[at], out[at + 1], out[at + 2] = seen[BOOST] * F(0.01), seen[GROUND], seen[DEMOED]
            at += 3


@compiled
def read_states(
    envs: Array,
    data: Array,
    jumps: Array,
    present: Array,
    earlier: Array,
    score: Array,
    pads: Array,
    balls: Array,
    cars: Array,
    flips: Array,
) -> None:
    """Unpack the simulator's state of some envs: for each its score, pads, ball, and the cars that are present.

    `earlier` are the goals of earlier matches in the same arena.
    """
    at, seen = 0, 0
    for env in envs:
        score[env, 0] = data[at + BLUE_SCORE] - earlier[env, 0]
        score[env, 1] = data[at + ORANGE_SCORE] - earlier[env, 1]
        at += SCORES
        at = copy_table(data, at, pads[env])
        at = copy_table(data, at, balls[env])
        for slot in range(present.shape[1]):
            if present[env, slot]:
                at = copy_table(data, at, cars[env, slot])
                flips[env, slot] = jumps[seen]
                seen += 1


@compiled_with_arrays
def match_results(before: Array, score: Array, played: Array, match: int) -> tuple[Array, Array, Array]:
    """For each match: who scored (1 blue, -1 orange), who won (1 blue, -1 orange), and whether it is over.

    A match is over when the time is up and one team leads, or when the overtime of a tie is up. `played` and `match`
    are in ticks.
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
def write_clock(envs: Array, score: Array, played: Array, match: int, clock: Array) -> None:
    """Write the clock of some envs."""
    for env in envs:
        clock[env, LEFT] = max(match - played[env], 0) / match
        clock[env, LEAD] = min(max(score[env, 0] - score[env, 1], -5), 5)


@compiled
def observe(
    envs: Array, balls: Array, cars: Array, pads: Array, flips: Array, present: Array, clock: Array, obs: Array
) -> None:
    """Write the observations of all cars of some envs; those of empty slots are zero."""
    slots = present.shape[1]
    for env in envs:
        for car in range(slots):
            row = obs[env * slots + car]
            if present[env, car]:
                write_observation(balls[env], cars[env], pads[env], flips[env], present[env], clock[env], car, row)
            else:
                row[:] = ZERO


@inlined
def distance(body: Array, column: int, x: Number, y: Number, z: Number) -> Number:
    """The distance of a body from a point."""
    dx, dy, dz = body[column] - x, body[column + 1] - y, body[column + 2] - z
    return math.sqrt(dx * dx + dy * dy + dz * dz)


@inlined
def ball_potential(ball: Array) -> Number:
    """The potential of the ball's position for a team, from about -1 in its own goal to 1 in the opponent's goal."""
    home, target = distance(ball, POS, ZERO, -GOAL_Y, ZERO), distance(ball, POS, ZERO, GOAL_Y, ZERO)
    return (home - target) / (F(2) * GOAL_Y)


@inlined
def car_potential(ball: Array, car: Array) -> Number:
    """Minus the distance from a car to the ball, in half arena lengths."""
    return -distance(ball, POS, car[BODY], car[BODY + 1], car[BODY + 2]) / GOAL_Y


@compiled
def value_terms(
    balls: Array,
    cars: Array,
    old_balls: Array,
    old_cars: Array,
    present: Array,
    scored: Array,
    won: Array,
    values: Array,
    sums: Array,
) -> None:
    """Write the value of each reward term for the last step, in the order of `rewards.TERMS`, and update statistics."""
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
            change = distance(ball, VEL, old_ball[VEL], old_ball[VEL + 1], old_ball[VEL + 2])
            toward = distance(old_ball, POS, old[BODY], old[BODY + 1], old[BODY + 2])
            now = distance(old_ball, POS, own[BODY], own[BODY + 1], own[BODY + 2])
            gained = max(own[BOOST] - old[BOOST], ZERO)
            values[row, 0] = scored[env] * side
            values[row, 1] = won[env] * side
            values[row, 2] = change / BALL_SPEED if hit else ZERO
            values[row, 3] = ball_potential(ball) - ball_potential(old_ball)
            values[row, 4] = (toward - now) / GOAL_Y if own[DEMOED] == ZERO and old[DEMOED] == ZERO else ZERO
            values[row, 5] = gained * F(0.01)
            values[row, 6] = (ball[POS + 2] - BALL_RADIUS) / HEIGHT if hit and own[GROUND] == ZERO else ZERO
            demos = max(own[DEMOS] - old[DEMOS], ZERO)
            values[row, 7] = demos - (ONE if own[DEMOED] > old[DEMOED] else ZERO)
            speed = distance(own, BODY + VEL, ZERO, ZERO, ZERO)
            values[row, 8] = speed * SPEED
            count = sums[env, car]
            count[B_GOALS] += max(scored[env] * side, ZERO)
            count[B_CONCEDED] += max(-scored[env] * side, ZERO)
            count[B_TOUCHES] += ONE if hit else ZERO
            count[B_DEMOS] += demos
            count[B_BOOST] += own[BOOST] * F(0.01)
            count[B_SPEED] += speed
            count[B_AIRBORNE] += ONE - own[GROUND]
            count[B_BALL_DISTANCE] += distance(ball, POS, own[BODY], own[BODY + 1], own[BODY + 2])


@compiled
def shape_terms(
    balls: Array,
    cars: Array,
    old_balls: Array,
    old_cars: Array,
    present: Array,
    over: Array,
    gamma: Number,
    values: Array,
) -> None:
    """Write the potential-based terms as gamma * after - before; the potential after the end is zero."""
    slots = present.shape[1]
    for env in range(len(balls)):
        for car in range(slots):
            if present[env, car] == 0:
                continue
            team, row = 0 if car < slots // 2 else 1, env * slots + car
            after = ZERO if over[env] else ball_potential(balls[env, team])
            values[row, 3] = gamma * after - ball_potential(old_balls[env, team])
            near = ZERO if over[env] else car_potential(balls[env, team], cars[env, car, team])
            values[row, 4] = gamma * near - car_potential(old_balls[env, team], old_cars[env, car, team])
