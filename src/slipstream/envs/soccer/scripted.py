"""Soccer's scripted players: chaser, keeper and rule, scalar functions from one observation to controls.

They see what a policy sees and nothing else. Each one chooses a point to drive to; `steer_to` gets there.
The arena is that of the observation: the player attacks +x whatever its team.
"""

from __future__ import annotations

from slipstream.core.compile import compiled
from slipstream.core.contracts import Array
from slipstream.core.errors import ConfigError, did_you_mean
from slipstream.envs.soccer.actions import KINDS, encode
from slipstream.envs.soccer.layout import (
    BALL_RADIUS,
    BOOST_SPEED,
    DRIVE_SPEED,
    LENGTH,
    NEAR,
    O_BALL,
    O_BALL_DISTANCE,
    O_BALL_MOTION,
    O_BALL_POSITION,
    O_BOOST,
    O_HEADING,
    O_NEAREST_PAD,
    O_OTHERS,
    O_POSITION,
    O_SHOT,
    O_SPIN,
    O_VELOCITY,
    OTHER_SIZE,
    WIDTH,
    F,
)
from slipstream.envs.soccer.physics import BALL_BOUNCE, ONE, TINY, ZERO, root

SCRIPTED: tuple[str, ...] = ("chaser", "keeper", "rule")
CHASER, KEEPER, RULE = range(3)
FAR = ONE / NEAR
WALL = F(3.0)
GAIN, DAMPING, INSIDE = F(4.0), F(0.156), F(0.625)  # of steering
LEAN, STROLL = F(1.2), F(16.0)
STEPS, STRIDE = 14, F(0.15)  # how far rule looks ahead
AIM, KICK = F(3.0), F(32.0)
TURNING, SLACK, PATIENCE, GOOD = F(0.495), F(0.1), F(0.1), F(0.35)
HASTE, ENOUGH = F(1.5), F(0.7)
SWING, CLOSE = F(3.75), F(6.0)
RUSH = F(20.0)
BEATEN, RETREAT = F(0.3), F(0.45)
BACK, WIDE, ROUND = F(10.0), F(6.9), F(0.1)
WARY = F(0.5)
SLOW, IDLE = F(20.0), F(8.0)


@compiled
def steer_to(o, ahead, left, top, kind, action, row):  # type: ignore[no-untyped-def]
    """Drive to a point given in the own frame at up to `top` units/s; beyond DRIVE_SPEED that takes boost."""
    away = max(root(ahead * ahead + left * left), TINY)
    sine, cosine = left / away, ahead / away
    speed = o[O_VELOCITY] * BOOST_SPEED
    steer = min(max((sine - o[O_SPIN] * DAMPING) * GAIN, -ONE), ONE)
    if cosine < ZERO:
        steer = ONE if left >= ZERO else -ONE
    # A point beside a fast car may lie inside the circle that it can drive: lift.
    inside = cosine < F(0.8) and away < abs(sine) * speed * INSIDE
    throttle = ZERO if inside or speed > top else ONE
    drift = ONE if cosine < F(-0.3) and speed > F(12.0) else ZERO
    boost = ONE if top > DRIVE_SPEED and cosine > F(0.95) else ZERO
    encode(throttle, steer, boost, drift, kind, action, row)


@compiled
def go_to(o, x, y, top, kind, action, row):  # type: ignore[no-untyped-def]
    """Drive to a point of the arena."""
    x = min(max(x, WALL - LENGTH), LENGTH - WALL)
    y = min(max(y, WALL - WIDTH), WIDTH - WALL)
    dx, dy = x - o[O_POSITION] * LENGTH, y - o[O_POSITION + 1] * WIDTH
    hx, hy = o[O_HEADING], o[O_HEADING + 1]
    steer_to(o, dx * hx + dy * hy, dy * hx - dx * hy, top, kind, action, row)


@compiled
def chaser(o, others, kind, action, row):  # type: ignore[no-untyped-def]
    """Drive at the ball, always, a little on the own side of it."""
    ahead, left = o[O_BALL] * FAR - o[O_SHOT] * LEAN, o[O_BALL + 1] * FAR - o[O_SHOT + 1] * LEAN
    steer_to(o, ahead, left, STROLL, kind, action, row)


@compiled
def keeper(o, others, kind, action, row):  # type: ignore[no-untyped-def]
    """Stay between the ball and the own goal, and clear a ball that comes near."""
    bx, by = o[O_BALL_POSITION] * LENGTH, o[O_BALL_POSITION + 1] * WIDTH
    away = o[O_BALL_DISTANCE] * FAR
    x, y = o[O_POSITION] * LENGTH, o[O_POSITION + 1] * WIDTH
    if x < bx - ONE and (away < F(16.0) or bx < F(-25.0)):
        go_to(o, bx, by, BOOST_SPEED, kind, action, row)
        return
    # A third of the way from the goal to the ball; wait there, facing the ball.
    px, py = (bx + LENGTH) * F(0.3) - LENGTH + F(3.0), by * F(0.3)
    dx, dy = px - x, py - y
    if dx * dx + dy * dy > F(25.0):
        go_to(o, px, py, BOOST_SPEED if dx * dx + dy * dy > F(400.0) else DRIVE_SPEED, kind, action, row)
    else:
        facing = o[O_BALL] > ZERO and abs(o[O_BALL + 1]) < o[O_BALL] * F(0.3)
        turn = ZERO if facing else (ONE if o[O_BALL + 1] > ZERO else -ONE)
        slow = o[O_VELOCITY] * BOOST_SPEED < F(4.0)
        throttle = ZERO if facing else (ONE if slow else ZERO)
        encode(throttle, turn, ZERO, ZERO, kind, action, row)


@compiled
def rival_time(o, start, stop):  # type: ignore[no-untyped-def]
    """Return how soon the first of some other cars could be at the ball, in seconds."""
    soonest = F(9.0)
    for k in range(start, stop):
        at = O_OTHERS + k * OTHER_SIZE
        vx, vy = o[at + 2] + o[O_VELOCITY], o[at + 3] + o[O_VELOCITY + 1]
        speed = max(root(vx * vx + vy * vy) * BOOST_SPEED, IDLE)
        soonest = min(soonest, o[at + 7] * FAR / speed)
    return soonest


@compiled
def rule(o, others, kind, action, row):  # type: ignore[no-untyped-def]
    """Meet the ball where a hit sends it to the goal; else get behind it; fall back when beaten."""
    x, y = o[O_POSITION] * LENGTH, o[O_POSITION + 1] * WIDTH
    hx, hy = o[O_HEADING], o[O_HEADING + 1]
    away = o[O_BALL_DISTANCE] * FAR
    speed = o[O_VELOCITY] * BOOST_SPEED
    pace = max(speed, SLOW) + F(2.0)
    mates = (others - 1) // 2
    contested = rival_time(o, mates, others) < away / pace + BEATEN
    # Look ahead: where the ball will be, whether the car can be there, and where a hit would send the ball.
    best, time, mx, my, kx, ky = F(-9.0), F(1.0), ZERO, ZERO, ONE, ZERO
    for step in range(1, STEPS + 1):
        t = F(step) * STRIDE
        roll = t * (ONE - t * F(0.13))
        slow = ONE - t * F(0.22)
        ux, uy = o[O_BALL_MOTION] * BOOST_SPEED * slow, o[O_BALL_MOTION + 1] * BOOST_SPEED * slow
        bx = o[O_BALL_POSITION] * LENGTH + o[O_BALL_MOTION] * BOOST_SPEED * roll
        by = o[O_BALL_POSITION + 1] * WIDTH + o[O_BALL_MOTION + 1] * BOOST_SPEED * roll
        if abs(bx) > LENGTH - BALL_RADIUS:
            bx = (LENGTH - BALL_RADIUS - (abs(bx) - LENGTH + BALL_RADIUS) * BALL_BOUNCE) * (ONE if bx > ZERO else -ONE)
            ux *= -BALL_BOUNCE
        if abs(by) > WIDTH - BALL_RADIUS:
            by = (WIDTH - BALL_RADIUS - (abs(by) - WIDTH + BALL_RADIUS) * BALL_BOUNCE) * (ONE if by > ZERO else -ONE)
            uy *= -BALL_BOUNCE
        dx, dy = bx - x, by - y
        gap = max(root(dx * dx + dy * dy), TINY)
        dx, dy = dx / gap, dy / gap
        need = (gap - F(3.5)) / pace + (ONE - dx * hx - dy * hy) * TURNING
        if need <= t + SLACK or step == STEPS:
            kick = (pace - ux * dx - uy * dy) * F(1.4)
            wx, wy = ux + kick * dx, uy + kick * dy
            sx, sy = LENGTH + F(2.0) - bx, min(max(by, -AIM), AIM) - by
            length = root(sx * sx + sy * sy)
            sx, sy = sx / length, sy / length
            pace_out = max(root(wx * wx + wy * wy), TINY)
            good = (wx * sx + wy * sy) / pace_out - t * PATIENCE
            if contested:  # the first that does not send the ball home
                ox, oy = -LENGTH - bx, -by
                risk = (wx * ox + wy * oy) / (pace_out * max(root(ox * ox + oy * oy), TINY))
                good += (F(3.0) - t * HASTE) if risk < ENOUGH else ZERO
            if good > best:
                best, time, mx, my = good, t, bx, by
                kx, ky = sx * KICK - ux, sy * KICK - uy
    length = max(root(kx * kx + ky * ky), TINY)
    kx, ky = kx / length, ky / length  # the direction of the kick that is needed
    dx, dy = mx - x, my - y
    gap = root(dx * dx + dy * dy)

    if best + time * PATIENCE > GOOD:  # shoot
        back = SWING if gap > CLOSE else ZERO
        go_to(o, mx - kx * back, my - ky * back, BOOST_SPEED if contested or gap > time * RUSH else DRIVE_SPEED, kind, action, row)
    elif dx < F(2.0) and contested:  # beaten: home first
        bx = o[O_BALL_POSITION] * LENGTH + o[O_BALL_MOTION] * BOOST_SPEED * WARY
        by = o[O_BALL_POSITION + 1] * WIDTH + o[O_BALL_MOTION + 1] * BOOST_SPEED * WARY
        go_to(o, max((bx + LENGTH) * RETREAT, F(3.0)) - LENGTH, by * RETREAT, BOOST_SPEED, kind, action, row)
    else:  # get behind the ball, round it if it is in the way
        turn = ONE if dy * kx - dx * ky > ZERO else -ONE
        if abs(my) > WIDTH - F(9.0):  # there is no way between ball and wall
            turn = ONE if my * kx > ZERO else -ONE
        wide = WIDE if dx * kx + dy * ky < gap * ROUND else ZERO
        back = BACK
        go_to(o, mx - kx * back + ky * turn * wide, my - ky * back - kx * turn * wide, BOOST_SPEED if gap > F(25.0) else DRIVE_SPEED, kind, action, row)


@compiled
def act_rows(player, obs, others, kind, action):  # type: ignore[no-untyped-def]
    """Let one player act for every row."""
    for row in range(obs.shape[0]):
        if player == CHASER:
            chaser(obs[row], others, kind, action, row)
        elif player == KEEPER:
            keeper(obs[row], others, kind, action, row)
        else:
            rule(obs[row], others, kind, action, row)


def act(name: str, obs: Array, spec_kind: str, out: Array) -> None:
    """Write the actions [rows, parts] of a scripted player for observations [rows, obs] of any team size."""
    if name not in SCRIPTED:
        raise ConfigError(
            f"Unknown scripted player `{name}`.{did_you_mean(name, SCRIPTED)}", hint=f"one of {', '.join(SCRIPTED)}."
        )
    others = (obs.shape[1] - O_OTHERS) // OTHER_SIZE
    act_rows(SCRIPTED.index(name), obs, others, KINDS.index(spec_kind), out)
