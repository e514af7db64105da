"""Soccer's columns and dimensions.

The arena is centred on (0, 0), team 0 attacks +x and team 1 attacks -x. Lengths are in units, of which a car is about
four long. In the mixed variant a match has one to three cars per team; those that play come first in `State.cars`.
"""

from __future__ import annotations

from slipstream.envs import native

TICK_HZ = 60
LENGTH = 36.0
"""Half the length: the goal lines are at x = -LENGTH and x = LENGTH."""
WIDTH = 25.0
"""Half the width."""
DIAGONAL = 52.0
"""The angled corners: |x| + |y| <= DIAGONAL."""
GOAL_WIDTH = 9.0
"""Half the width of a goal mouth."""
GOAL_DEPTH = 6.0
BALL_RADIUS = 2.3
CAR_RADIUS = 1.9
"""For walls and other cars a car is a circle of this radius; for the ball it is a box."""
CAR_LONG, CAR_WIDE = 2.1, 1.4
"""Half the length and half the width of that box."""
PADS = 8
"""Pads come in pairs at (x, y) and (-x, -y): pad 2k and pad 2k + 1. The first pair are the big ones."""
BALL_SPEED = 60.0
"""Maximum speed of the ball, in units/s."""
DRIVE_SPEED, BOOST_SPEED = 26.0, 40.0
"""Speed of a car at full throttle, without and with boost, in units/s."""
BIG_WAIT, SMALL_WAIT = 600.0, 240.0
"""Ticks until a pad returns."""
PAD_X, PAD_Y = (0.0, 14.0, 24.0, 24.0), (20.0, 0.0, 12.5, -12.5)
"""The position of the first pad of each pair."""

SLOTS: int = native.size("slots")
"""Most cars per team."""
PRESENT: int = native.size("present")
"""In the mixed variant the number of other cars that may be absent, else 0."""


class Body(native.Record):
    """Position in units and velocity in units/s."""

    x: float
    y: float
    vx: float
    vy: float


class Car(Body):
    """A car; the controls are those of the last decision."""

    hx: float
    hy: float
    """Heading, a unit vector."""
    spin: float
    """Angular velocity in rad/s, counter-clockwise."""
    boost: float
    """Boost in the tank, 0 to 1."""
    throttle: float
    steer: float
    boosting: float
    drifting: float
    touch: float
    """Change of the ball's speed by this car in the last decision, in units/s."""


class State(native.State):
    """One match."""

    ball: Body
    goal: float
    """+1 if team 0 scored in the last decision, -1 if team 1 did, else 0."""
    pads: native.Array[float] = native.array(PADS)
    """Ticks until each pad returns; 0: it is available."""
    cars: list[Car] = native.records(2 * SLOTS)
    """Those of team 0, then those of team 1, then columns of cars that do not play."""
    team_size: int
    ticks_left: int
    score: native.Array[int] = native.array(2)
    overtime: bool
    kick_off_due: bool
    """After a goal, and when overtime begins."""
    over: bool
    possession: int
    """The team that hit the ball last since the kick-off, 1 or 2; 0 if none did."""


class Action(native.Action):
    """What a car does; steer 1 is to the left."""

    throttle: float = native.control(dead_zone=0.33, reverse=-1, coast=0, forward=1)
    steer: float = native.control(dead_zone=0.33, right=-1, straight=0, left=1)
    boost: float = native.control(off=0, on=1)
    drift: float = native.control(off=0, on=1)


PEDALS = ((-1, 0, 0), (0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1))
"""Throttle, boost and drift of the discrete actions, for each direction of the wheel."""
DRIVING = tuple((throttle, steer, boost, drift) for steer in (-1, 0, 1) for throttle, boost, drift in PEDALS)
"""The discrete actions."""


class Arena(native.Record):
    """A vector in the arena, rotated so that the car attacks +x."""

    x: float
    y: float


class OwnFrame(native.Record):
    """A vector in the frame of the car."""

    ahead: float
    left: float


class SeenBall(native.Record):
    """The ball, from the car."""

    ahead: float
    left: float
    distance: float
    relative_velocity: OwnFrame
    position: Arena
    velocity: Arena


class SeenCar(native.Record):
    """Another car, from the car; its velocity is relative."""

    position: OwnFrame
    velocity: OwnFrame
    heading: OwnFrame
    boost: float
    ball_distance: float


class Seen(native.Observation):
    """What a car sees: positions / (LENGTH, WIDTH) or * NEAR, velocities / BOOST_SPEED."""

    position: Arena
    heading: Arena
    velocity: OwnFrame
    spin: float
    boost: float
    time_left: float
    """The remaining share of the match."""
    overtime: float
    goal_lead: float
    """Goals ahead, / 3, clipped."""
    ball: SeenBall
    opponent_goal: OwnFrame
    own_goal: OwnFrame
    shot_direction: OwnFrame
    """Unit vector from the ball to the opponents' goal."""
    nearest_pad: OwnFrame
    """The nearest available pad."""
    pad: native.Array[float] = native.array(PADS)
    """1 for an available pad, else rising from 0 until it returns; the own pad of each pair is first."""
    teammate: list[SeenCar] = native.records(SLOTS - 1)
    opponent: list[SeenCar] = native.records(SLOTS)
    present: native.Array[float] = native.array(PRESENT)
    """1 for each of these cars that plays, teammates first; only in the mixed variant."""


NEAR = 1.0 / 45.0
"""The scale of distances in observations."""


class Level(native.Task):
    """What tasks differ in."""

    team_size: int
    slow: int
    """The factor of the ticks of a decision."""
    scattered: bool
    """Whether every kick-off is a random state."""


def levels(*sizes: int) -> dict[str, Level]:
    """The tasks of these team sizes by name: `scattered` kick-offs, and `slow` with half as many decisions."""
    return {
        f"{size}v{size}{' scattered' * scattered}{' slow' * (slow == 2)}": Level(
            team_size=size, slow=slow, scattered=scattered
        )
        for size in sizes
        for slow in (1, 2)
        for scattered in (False, True)
    }


@native.function
def team_size(s: State) -> int:
    """Cars per team that play; a constant of the compiled code unless the variant is mixed."""
    return s.team_size if PRESENT > 0 else SLOTS


@native.function
def car_of(s: State, me: int) -> int:
    """The number of an agent's car."""
    return me if me < SLOTS else me - SLOTS + team_size(s)


@native.function
def agent_of(s: State, car: int) -> int:
    """The agent that drives a car."""
    return car if car < team_size(s) else car + SLOTS - team_size(s)


@native.function
def side_of(me: int) -> float:
    """+1 for an agent of team 0, which attacks +x, and -1 for one of team 1."""
    return 1.0 if me < SLOTS else -1.0
