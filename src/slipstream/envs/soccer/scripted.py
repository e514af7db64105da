"""Soccer's scripted players chaser, keeper and rule: scalar functions from one observation to controls.

They use the same observation as a policy. Each player chooses a point to drive to, and `steer_to` drives there.
Positions are those of the observation: the player attacks +x in either team.
"""

from __future__ import annotations

from slipstream.contracts import Array
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
from slipstream.errors import ConfigError, did_you_mean
from slipstream.system.numba_compile import Number, compiled, inlined

SCRIPTED: tuple[str, ...] = ("chaser", "keeper", "rule")
CHASER, KEEPER, RULE = range(3)
FAR = ONE / NEAR
WALL = F(3.0)  # least distance of a target point from the walls
GAIN, DAMPING, INSIDE = F(4.0), F(0.156), F(0.625)  # of steering

LEAN, STROLL = F(0.8), F(22.0)  # chaser: offset to the own side of the ball in units, speed in units/s

# rule, in units and seconds
STEPS, STRIDE = 14, F(0.15)  # number and length of the predicted steps, in seconds
SLOW, IDLE = F(22.0), F(8.0)  # least speeds in its plans, for itself and for others, in units/s
TURNING, SLACK = F(0.35), F(0.1)  # seconds for a half turn, seconds that it may be late
AIM, KICK = F(1.5), F(27.0)  # half the width of its target in the goal mouth, speed of its shots
PATIENCE, HASTE, GOOD, RISKY = F(0.6), F(1.5), F(0.35), F(0.7)
MARGIN, RETREAT, WARY = F(0.3), F(0.45), F(0.5)
BACK, WIDE, ROUND = F(10.0), F(6.9), F(0.1)


@inlined
def steer_to(o: Array, ahead: Number, left: Number, top: Number, kind: int, action: Array, row: int) -> None:
    """Drive to a point given in the own frame at up to `top` units/s; beyond DRIVE_SPEED that takes boost."""
    away = max(root(ahead * ahead + left * left), TINY)
    sine, cosine = left / away, ahead / away
    speed = o[O_VELOCITY] * BOOST_SPEED
    steer = min(max((sine - o[O_SPIN] * DAMPING) * GAIN, -ONE), ONE)
    if cosine < ZERO:
        steer = ONE if left >= ZERO else -ONE
    # A point beside a fast car may lie inside its turning circle: lift the throttle.
    inside = cosine < F(0.8) and away < abs(sine) * speed * INSIDE
    throttle = ZERO if inside or speed > top else ONE
    drift = ONE if cosine < F(-0.3) and speed > F(12.0) else ZERO
    boost = ONE if top > DRIVE_SPEED and cosine > F(0.95) else ZERO
    encode(throttle, steer, boost, drift, kind, action, row)


@inlined
def go_to(o: Array, x: Number, y: Number, top: Number, kind: int, action: Array, row: int) -> None:
    """Drive to a point of the arena."""
    x = min(max(x, WALL - LENGTH), LENGTH - WALL)
    y = min(max(y, WALL - WIDTH), WIDTH - WALL)
    dx, dy = x - o[O_POSITION] * LENGTH, y - o[O_POSITION + 1] * WIDTH
    hx, hy = o[O_HEADING], o[O_HEADING + 1]
    steer_to(o, dx * hx + dy * hy, dy * hx - dx * hy, top, kind, action, row)


@inlined
def chaser(o: Array, kind: int, action: Array, row: int) -> None:
    """Always drive at the ball, slightly on the own side of it."""
    ahead, left = o[O_BALL] * FAR - o[O_SHOT] * LEAN, o[O_BALL + 1] * FAR - o[O_SHOT + 1] * LEAN
    steer_to(o, ahead, left, STROLL, kind, action, row)


@inlined
def keeper(o: Array, kind: int, action: Array, row: int) -> None:
    """Stay between the ball and the own goal, and clear a ball that comes near."""
    bx, by = o[O_BALL_POSITION] * LENGTH, o[O_BALL_POSITION + 1] * WIDTH
    away = o[O_BALL_DISTANCE] * FAR
    x, y = o[O_POSITION] * LENGTH, o[O_POSITION + 1] * WIDTH
    if bx - x > abs(by - y) and away < F(20.0):
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


@inlined
def soonest(o: Array, start: int, stop: int, present: int) -> Number:
    """Return the seconds until the first of some other cars can reach the ball; absent cars are ignored."""
    best = F(9.0)
    for k in range(start, stop):
        if present > 0 and o[present + k] == ZERO:
            continue
        at = O_OTHERS + k * OTHER_SIZE
        vx, vy = o[at + 2] + o[O_VELOCITY], o[at + 3] + o[O_VELOCITY + 1]
        speed = max(root(vx * vx + vy * vy) * BOOST_SPEED, IDLE)
        best = min(best, o[at + 7] * FAR / speed)
    return best


@inlined
def folded(place: Number, limit: Number) -> Number:
    """Return the position of a ball that would roll to `place`, after bouncing off the wall at `limit`."""
    if abs(place) <= limit:
        return place
    back = limit - (abs(place) - limit) * BALL_BOUNCE
    return back if place > ZERO else -back


@inlined
def cosine(ax: Number, ay: Number, bx: Number, by: Number) -> Number:
    """Return the cosine of the angle between two vectors."""
    return (ax * bx + ay * by) / max(root((ax * ax + ay * ay) * (bx * bx + by * by)), TINY)


@inlined
def rule(o: Array, others: int, present: int, kind: int, action: Array, row: int) -> None:
    """Meet the ball where a hit sends it to the goal, else get behind it; fall back when beaten, refuel when free."""
    x, y = o[O_POSITION] * LENGTH, o[O_POSITION + 1] * WIDTH
    ball_x, ball_y = o[O_BALL_POSITION] * LENGTH, o[O_BALL_POSITION + 1] * WIDTH
    ball_vx, ball_vy = o[O_BALL_MOTION] * BOOST_SPEED, o[O_BALL_MOTION + 1] * BOOST_SPEED
    pace = max(o[O_VELOCITY] * BOOST_SPEED + F(2.0), SLOW)
    mine = o[O_BALL_DISTANCE] * FAR / pace
    mates = (others - 1) // 2
    contested = soonest(o, mates, others, present) < mine + MARGIN

    # Predict where the ball will be, whether the car can be there, and where a hit would send the ball.
    best, time, mx, my, kx, ky = F(-9.0), ONE, ball_x, ball_y, ONE, ZERO
    for step in range(1, STEPS + 1):
        t = F(step) * STRIDE
        bx, by = ball_x + ball_vx * t * (ONE - t * F(0.13)), ball_y + ball_vy * t * (ONE - t * F(0.13))
        ux, uy = ball_vx * (ONE - t * F(0.22)), ball_vy * (ONE - t * F(0.22))
        ux = ux if abs(bx) <= LENGTH - BALL_RADIUS else -ux * BALL_BOUNCE
        uy = uy if abs(by) <= WIDTH - BALL_RADIUS else -uy * BALL_BOUNCE
        bx, by = folded(bx, LENGTH - BALL_RADIUS), folded(by, WIDTH - BALL_RADIUS)
        dx, dy = bx - x, by - y
        gap = max(root(dx * dx + dy * dy), TINY)
        dx, dy = dx / gap, dy / gap
        turn = (ONE - dx * o[O_HEADING] - dy * o[O_HEADING + 1]) * TURNING
        if (gap - F(3.5)) / pace + turn <= t + SLACK or step == STEPS:
            kick = (pace - ux * dx - uy * dy) * F(1.4)
            wx, wy = ux + kick * dx, uy + kick * dy
            sx, sy = LENGTH + F(2.0) - bx, min(max(by, -AIM), AIM) - by
            good = cosine(wx, wy, sx, sy) - t * PATIENCE
            if contested and cosine(wx, wy, -LENGTH - bx, -by) < RISKY:  # the first that is no own goal
                good += F(3.0) - t * HASTE
            if good > best:
                length = root(sx * sx + sy * sy)
                best, time, mx, my = good, t, bx, by
                kx, ky = sx / length * KICK - ux, sy / length * KICK - uy
    length = max(root(kx * kx + ky * ky), TINY)
    kx, ky = kx / length, ky / length  # the direction of the kick that makes the shot
    dx, dy = mx - x, my - y
    gap = root(dx * dx + dy * dy)

    shoot = best + time * PATIENCE > GOOD
    pad_x, pad_y = o[O_NEAREST_PAD] * FAR, o[O_NEAREST_PAD + 1] * FAR
    if o[O_BOOST] < F(0.2) and mine > ONE and not contested and abs(pad_y) * F(3.0) < pad_x < F(7.0):
        steer_to(o, pad_x, pad_y, DRIVE_SPEED, kind, action, row)
    elif soonest(o, 0, mates, present) < mine or (
        contested and dx < F(2.0) and not shoot
    ):  # a teammate has it, or beaten
        bx, by = ball_x + ball_vx * WARY, ball_y + ball_vy * WARY
        go_to(o, max((bx + LENGTH) * RETREAT, F(3.0)) - LENGTH, by * RETREAT, BOOST_SPEED, kind, action, row)
    elif shoot:  # onto the line of the kick, then through the ball
        back = gap * F(0.5) if gap > F(5.0) else ZERO
        go_to(o, mx - kx * back, my - ky * back, BOOST_SPEED if contested else DRIVE_SPEED, kind, action, row)
    else:  # get behind the ball, driving around it if it is in the way
        turn = ONE if dy * kx - dx * ky > ZERO else -ONE
        if abs(my) > WIDTH - F(9.0):  # there is no space between ball and wall
            turn = ONE if my * kx > ZERO else -ONE
        wide = WIDE * turn if dx * kx + dy * ky < gap * ROUND else ZERO
        top = BOOST_SPEED if gap > F(12.0) else DRIVE_SPEED
        go_to(o, mx - kx * BACK + ky * wide, my - ky * BACK - kx * wide, top, kind, action, row)


@compiled
def act_rows(player: int, obs: Array, others: int, present: int, kind: int, action: Array) -> None:
    """Write the actions of one player for every row; an absent car has no heading and does nothing."""
    for row in range(obs.shape[0]):
        if obs[row, O_HEADING] == ZERO and obs[row, O_HEADING + 1] == ZERO:
            encode(ZERO, ZERO, ZERO, ZERO, kind, action, row)
        elif player == CHASER:
            chaser(obs[row], kind, action, row)
        elif player == KEEPER:
            keeper(obs[row], kind, action, row)
        else:
            rule(obs[row], others, present, kind, action, row)


def act(name: str, obs: Array, spec_kind: str, out: Array) -> None:
    """Write the actions [rows, parts] of a scripted player for observations [rows, obs] of any variant."""
    if name not in SCRIPTED:
        raise ConfigError(
            f"Unknown scripted player `{name}`.{did_you_mean(name, SCRIPTED)}", hint=f"one of {', '.join(SCRIPTED)}."
        )
    others = (obs.shape[1] - O_OTHERS) // OTHER_SIZE
    last = O_OTHERS + others * OTHER_SIZE
    act_rows(SCRIPTED.index(name), obs, others, last if obs.shape[1] > last else 0, KINDS.index(spec_kind), out)
