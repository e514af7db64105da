"""Kart's scripted players expert and cruiser: scalar functions from one observation to controls.

They use the same observation as a policy. Both steer towards a point ahead on the centre line (pure pursuit). The
expert plans its speed backwards from every corner in view; the cruiser keeps a constant speed that every corner allows.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.actions import KINDS, encode
from slipstream.envs.kart.layout import (
    AHEAD_SIZE,
    INV_BEND,
    INV_SPIN,
    LOOKS,
    O_AHEAD,
    O_SPEED,
    O_SPIN,
    TOP_SPEED,
    F,
)
from slipstream.envs.kart.observation import AHEAD, NEAR
from slipstream.envs.kart.physics import BRAKE, EAGER, EAGER_SPEED, GRIP, LOCK, PUSH, ROLL
from slipstream.envs.soccer.physics import ONE, TINY, TWO, ZERO, root
from slipstream.errors import ConfigError, did_you_mean
from slipstream.system.numba_compile import Number, compiled, inlined

SCRIPTED: tuple[str, ...] = ("expert", "cruiser")
EXPERT, CRUISER = range(2)
SIGHT, SIGHT_SECONDS = F(3.0), F(0.3)  # distance of the point to steer towards: in m, and in seconds of travel
DAMPING = F(0.1)
HOLD, CARE = F(0.97), F(0.9)  # shares of the grip used for turning and for braking
REACTION = F(0.1)  # seconds until a decision has an effect
GAIN = F(4.0)  # m/s**2 per m/s of speed error
STROLL = F(11.5)  # the cruiser's speed, in m/s


@inlined
def steer_for(o: Array, sight: Number) -> Number:
    """Return the steer for a circle through the point of the centre line `sight` metres ahead."""
    k = 0
    while k < LOOKS - 2 and AHEAD[k + 1] < sight:
        k += 1
    part = min(max((sight - AHEAD[k]) / (AHEAD[k + 1] - AHEAD[k]), ZERO), ONE)
    a, b = O_AHEAD + k * AHEAD_SIZE, O_AHEAD + (k + 1) * AHEAD_SIZE
    x = o[a] / NEAR[k] * (ONE - part) + o[b] / NEAR[k + 1] * part
    y = o[a + 1] / NEAR[k] * (ONE - part) + o[b + 1] / NEAR[k + 1] * part
    speed = o[O_SPEED] * TOP_SPEED
    bend = TWO * y / max(x * x + y * y, ONE)
    rate = bend * speed
    spin = o[O_SPIN] / INV_SPIN
    rate += (rate - spin) * DAMPING
    most = speed * LOCK if speed < EAGER_SPEED else EAGER * GRIP / speed
    return rate / max(most, TINY)


@inlined
def left_over(square: Number, bend: Number, grip: Number) -> Number:
    """Return the grip that remains besides turning, for a squared speed and a curvature."""
    turn = square * bend
    return root(max(grip * grip - turn * turn, ZERO))


@inlined
def allowed(o: Array) -> Number:
    """Return the square of the highest speed from which every corner in view can still be taken."""
    k = LOOKS - 1
    bend = abs(o[O_AHEAD + k * AHEAD_SIZE + 2]) / INV_BEND
    square = GRIP * HOLD / max(bend, F(1e-3))
    while k > 0:
        k -= 1
        gap = AHEAD[k + 1] - AHEAD[k]
        square += TWO * gap * min(BRAKE, left_over(square, bend, GRIP)) * CARE
        bend = abs(o[O_AHEAD + k * AHEAD_SIZE + 2]) / INV_BEND
        square = min(square, GRIP * HOLD / max(bend, F(1e-3)))
    speed = o[O_SPEED] * TOP_SPEED
    gap = max(AHEAD[0] - speed * REACTION, ZERO)
    return square + TWO * gap * min(BRAKE, left_over(square, bend, GRIP)) * CARE


@inlined
def pedal(o: Array, target: Number) -> Number:
    """Return the throttle that brings the car to a speed, within the grip that turning leaves."""
    speed = o[O_SPEED] * TOP_SPEED
    push = (target - speed) * GAIN + speed * ROLL
    turn = speed * o[O_SPIN] / INV_SPIN
    most = root(max(GRIP * GRIP - turn * turn, ZERO))
    push = min(max(push, -most), most)
    return push / PUSH if push > ZERO else push / BRAKE


@compiled
def act_rows(player: int, obs: Array, kind: int, action: Array) -> None:
    """Write the actions of one player for every row."""
    for row in range(obs.shape[0]):
        o = obs[row]
        target = root(allowed(o)) if player == EXPERT else STROLL
        sight = SIGHT + o[O_SPEED] * TOP_SPEED * SIGHT_SECONDS
        encode(steer_for(o, sight), pedal(o, target), kind, action, row)


def act(name: str, obs: Array, spec_kind: str, out: Array) -> None:
    """Write the actions [rows, parts] of a scripted player for observations [rows, obs]."""
    if name not in SCRIPTED:
        near = did_you_mean(name, SCRIPTED)
        raise ConfigError(f"Unknown scripted player `{name}`.{near}", f"one of {', '.join(SCRIPTED)}.")
    act_rows(SCRIPTED.index(name), obs, KINDS.index(spec_kind), out)
