"""Kart's scripted players expert and cruiser.

They use the same observation as a policy. Both steer towards a point ahead on the centre line (pure pursuit). The
expert plans its speed backwards from every corner in view; the cruiser keeps a constant speed that every corner allows.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import DISTANCES, TOP_SPEED, Action, Seen
from slipstream.envs.kart.observation import INV_BEND, INV_SPIN, NEAR
from slipstream.envs.kart.physics import BRAKE, EAGER, EAGER_SPEED, GRIP, LOCK, PUSH, ROLL
from slipstream.envs.soccer.physics import TINY

SIGHT, SIGHT_SECONDS = 3.0, 0.3  # distance of the point to steer towards: in m, and in seconds of travel
DAMPING = 0.1
HOLD, CARE = 0.97, 0.9  # shares of the grip used for turning and for braking
REACTION = 0.1  # seconds until a decision has an effect
GAIN = 4.0  # m/s**2 per m/s of speed error
STROLL = 11.5  # the cruiser's speed, in m/s
STRAIGHT = 1e-3  # least curvature in plans, in 1/m


@native.function
def steer_for(seen: Seen, sight: float) -> float:
    """The steer for a circle through the point of the centre line `sight` metres ahead."""
    k = 0
    while k < len(seen.ahead) - 2 and DISTANCES[k + 1] < sight:
        k += 1
    share = min(max((sight - DISTANCES[k]) / (DISTANCES[k + 1] - DISTANCES[k]), 0.0), 1.0)
    a = seen.ahead[k]
    b = seen.ahead[k + 1]
    x = a.ahead / NEAR[k] * (1.0 - share) + b.ahead / NEAR[k + 1] * share
    y = a.left / NEAR[k] * (1.0 - share) + b.left / NEAR[k + 1] * share
    speed = seen.speed.ahead * TOP_SPEED
    bend = 2.0 * y / max(x * x + y * y, 1.0)
    rate = bend * speed
    rate += (rate - seen.spin / INV_SPIN) * DAMPING
    most = speed * LOCK if speed < EAGER_SPEED else EAGER * GRIP / speed
    return rate / max(most, TINY)


@native.function
def left_over(square: float, bend: float) -> float:
    """The grip that remains besides turning, for a squared speed and a curvature."""
    pull = square * bend
    return native.sqrt(max(GRIP * GRIP - pull * pull, 0.0))


@native.function
def before(gap: float, square: float, bend: float) -> float:
    """The square of the speed from which a car can brake to a squared speed within `gap` metres of this curvature."""
    return square + 2.0 * gap * min(BRAKE, left_over(square, bend)) * CARE


@native.function
def allowed(seen: Seen) -> float:
    """The square of the highest speed from which every corner in view can still be taken."""
    k = len(seen.ahead) - 1
    bend = abs(seen.ahead[k].curvature) / INV_BEND
    square = GRIP * HOLD / max(bend, STRAIGHT)
    while k > 0:
        k -= 1
        square = before(DISTANCES[k + 1] - DISTANCES[k], square, bend)
        bend = abs(seen.ahead[k].curvature) / INV_BEND
        square = min(square, GRIP * HOLD / max(bend, STRAIGHT))
    gap = max(DISTANCES[0] - seen.speed.ahead * TOP_SPEED * REACTION, 0.0)
    return before(gap, square, bend)


@native.function
def pedal(seen: Seen, target: float) -> float:
    """The throttle that brings the car to a speed, within the grip that turning leaves."""
    speed = seen.speed.ahead * TOP_SPEED
    push = (target - speed) * GAIN + speed * ROLL
    pull = speed * seen.spin / INV_SPIN
    most = native.sqrt(max(GRIP * GRIP - pull * pull, 0.0))
    push = min(max(push, -most), most)
    return push / PUSH if push > 0.0 else push / BRAKE


@native.function
def follow(seen: Seen, speed: float, action: Action) -> None:
    """Follow the centre line at a speed."""
    action.steer = steer_for(seen, SIGHT + seen.speed.ahead * TOP_SPEED * SIGHT_SECONDS)
    action.throttle = pedal(seen, speed)


def expert(seen: Seen, action: Action) -> None:
    """Brake for every corner in view as late as the tyres allow."""
    follow(seen, native.sqrt(allowed(seen)), action)


def cruiser(seen: Seen, action: Action) -> None:
    """Keep a speed that is safe in any corner."""
    follow(seen, STROLL, action)
