"""Soccer's observations, in the car's own frame and in the arena rotated so that the car always attacks +x.

Rotating by 180 degrees is a change of sign, so both teams get exactly the same numbers for mirrored states.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.layout import (
    BALL,
    BOOST,
    HX,
    HY,
    INV_LENGTH,
    INV_SPEED,
    INV_SPIN,
    INV_WIDTH,
    LENGTH,
    NEAR,
    O_BALL,
    O_BALL_DISTANCE,
    O_BALL_MOTION,
    O_BALL_POSITION,
    O_BALL_VELOCITY,
    O_BOOST,
    O_CLOCK,
    O_HEADING,
    O_HOME,
    O_NEAREST_PAD,
    O_OTHERS,
    O_OVERTIME,
    O_PADS,
    O_POSITION,
    O_SCORE,
    O_SHOT,
    O_SPIN,
    O_TARGET,
    O_VELOCITY,
    OTHER_SIZE,
    OVERTIME,
    PAD,
    PAIRS,
    SCORE,
    SPIN,
    TICKS_LEFT,
    VX,
    VY,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import BIG_WAIT, ONE, SMALL_WAIT, TINY, ZERO, car_at, pad_x, pad_y, root
from slipstream.system.numba_compile import Number, inlined

THIRD = F(1.0 / 3.0)
INV_BIG, INV_SMALL = F(1.0) / BIG_WAIT, F(1.0) / SMALL_WAIT
FAR = F(1e9)


@inlined
def observe_other(s: Array, c: int, o: int, bx: Number, by: Number, out: Array, at: int) -> None:
    """Write the observation that the car at column `c` has of the car at column `o`."""
    hx, hy = s[c + HX], s[c + HY]
    dx, dy = s[o + X] - s[c + X], s[o + Y] - s[c + Y]
    ux, uy = s[o + VX] - s[c + VX], s[o + VY] - s[c + VY]
    ox, oy = s[o + HX], s[o + HY]
    rx, ry = bx - s[o + X], by - s[o + Y]
    out[at] = (dx * hx + dy * hy) * NEAR
    out[at + 1] = (dy * hx - dx * hy) * NEAR
    out[at + 2] = (ux * hx + uy * hy) * INV_SPEED
    out[at + 3] = (uy * hx - ux * hy) * INV_SPEED
    out[at + 4] = ox * hx + oy * hy
    out[at + 5] = oy * hx - ox * hy
    out[at + 6] = s[o + BOOST]
    out[at + 7] = root(rx * rx + ry * ry) * NEAR


@inlined
def observe_pads(s: Array, c: int, flip: int, out: Array) -> None:
    """Write which pads are available, and the position of the nearest one."""
    cx, cy = s[c + X], s[c + Y]
    nearest, ax, ay = FAR, ZERO, ZERO
    for pair in range(PAIRS):
        x, y = pad_x(pair), pad_y(pair)
        back = INV_BIG if pair == 0 else INV_SMALL
        for k in range(2):
            left = s[PAD + 2 * pair + k]
            out[O_PADS + 2 * pair + (k ^ flip)] = ONE - left * back
            dx, dy = x - cx, y - cy
            square = dx * dx + dy * dy
            if left <= ZERO and square < nearest:
                nearest, ax, ay = square, dx, dy
            x, y = -x, -y
    hx, hy = s[c + HX], s[c + HY]
    out[O_NEAREST_PAD] = (ax * hx + ay * hy) * NEAR
    out[O_NEAREST_PAD + 1] = (ay * hx - ax * hy) * NEAR


@inlined
def mark_present(team_size: int, slots: int, out: Array, at: int) -> None:
    """Zero the columns of `slots` cars per team, and write behind them which cars are present."""
    for k in range(O_OTHERS, at):
        out[k] = ZERO
    for k in range(2 * slots - 1):
        mate, opponent = k < team_size - 1, slots - 1 <= k < slots - 1 + team_size
        out[at + k] = ONE if mate or opponent else ZERO


@inlined
def observe(s: Array, clock: Array, car: int, team_size: int, slots: int, per_match: Number, out: Array) -> None:
    """Write the observation of one car; `per_match` is 1 / ticks of a match, `slots` the most cars per team."""
    c = car_at(car)
    team = 0 if car < team_size else 1
    sign = ONE if team == 0 else -ONE
    x, y, vx, vy = s[c + X], s[c + Y], s[c + VX], s[c + VY]
    hx, hy = s[c + HX], s[c + HY]
    bx, by, bvx, bvy = s[BALL + X], s[BALL + Y], s[BALL + VX], s[BALL + VY]
    out[O_POSITION], out[O_POSITION + 1] = sign * x * INV_LENGTH, sign * y * INV_WIDTH
    out[O_HEADING], out[O_HEADING + 1] = sign * hx, sign * hy
    out[O_VELOCITY] = (vx * hx + vy * hy) * INV_SPEED
    out[O_VELOCITY + 1] = (vy * hx - vx * hy) * INV_SPEED
    out[O_SPIN] = s[c + SPIN] * INV_SPIN
    out[O_BOOST] = s[c + BOOST]
    out[O_CLOCK] = F(clock[TICKS_LEFT]) * per_match
    out[O_OVERTIME] = F(clock[OVERTIME])
    out[O_SCORE] = min(max(sign * F(clock[SCORE] - clock[SCORE + 1]) * THIRD, -ONE), ONE)

    dx, dy, ux, uy = bx - x, by - y, bvx - vx, bvy - vy
    out[O_BALL] = (dx * hx + dy * hy) * NEAR
    out[O_BALL + 1] = (dy * hx - dx * hy) * NEAR
    out[O_BALL_DISTANCE] = root(dx * dx + dy * dy) * NEAR
    out[O_BALL_VELOCITY] = (ux * hx + uy * hy) * INV_SPEED
    out[O_BALL_VELOCITY + 1] = (uy * hx - ux * hy) * INV_SPEED
    out[O_BALL_POSITION], out[O_BALL_POSITION + 1] = sign * bx * INV_LENGTH, sign * by * INV_WIDTH
    out[O_BALL_MOTION], out[O_BALL_MOTION + 1] = sign * bvx * INV_SPEED, sign * bvy * INV_SPEED

    gx = sign * LENGTH
    out[O_TARGET] = ((gx - x) * hx - y * hy) * NEAR
    out[O_TARGET + 1] = (-y * hx - (gx - x) * hy) * NEAR
    out[O_HOME] = ((-gx - x) * hx - y * hy) * NEAR
    out[O_HOME + 1] = (-y * hx - (-gx - x) * hy) * NEAR
    sx, sy = gx - bx, -by
    inverse = ONE / max(root(sx * sx + sy * sy), TINY)
    out[O_SHOT] = (sx * hx + sy * hy) * inverse
    out[O_SHOT + 1] = (sy * hx - sx * hy) * inverse
    observe_pads(s, c, team, out)

    last = O_OTHERS + (2 * slots - 1) * OTHER_SIZE
    if out.shape[0] > last:
        mark_present(team_size, slots, out, last)
    at = O_OTHERS
    mine = team * team_size
    for k in range(team_size):
        if mine + k != car:
            observe_other(s, c, car_at(mine + k), bx, by, out, at)
            at += OTHER_SIZE
    at = O_OTHERS + (slots - 1) * OTHER_SIZE
    for k in range(team_size):
        observe_other(s, c, car_at(team_size - mine + k), bx, by, out, at)
        at += OTHER_SIZE
