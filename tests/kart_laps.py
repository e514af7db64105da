"""Laps of kart for tests: begun, arranged by the names of columns, and as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs import native
from slipstream.envs.kart import columns as kart
from slipstream.envs.kart.game import game
from slipstream.envs.kart.starts import place
from slipstream.envs.native.layout import columns_of
from slipstream.envs.native.vector import NativeVector

POINT, TRACK = columns_of(kart.Point).names(), columns_of(kart.Track).names()
"""The names of the numbers of a point, and of a track."""
LOOKS, LOOK = len(kart.DISTANCES), len(columns_of(kart.SeenPoint).names())
"""The points ahead that are seen, and the numbers of each."""
PLACE, VELOCITY, HEADING = ("x", "y"), ("vx", "vy"), ("hx", "hy")
SEEN = {name: column for column, name in enumerate(game.classes().observation.names())}
"""The column of the observation of each name."""


def begun(envs: int, variant: str = "", **options: Any) -> tuple[NativeVector, Rows]:
    """Laps at their start, with continuous actions unless others are chosen, and their rows."""
    vector = game.vector(envs, variant, **({"actions": "continuous"} | options))
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def columns(vector: NativeVector, *names: str) -> Array:
    """A copy of columns of the state, [envs, names]."""
    return np.stack([vector.column(name) for name in names], axis=1)


def set_columns(vector: NativeVector, **values: Any) -> None:
    """Set columns of the state by their names."""
    for name, value in values.items():
        vector.column(name)[:] = value


def speed(vector: NativeVector) -> Array:
    """The speed of every car in m/s."""
    return np.hypot(vector.column("vx"), vector.column("vy"))


def tracks(vector: NativeVector) -> Array:
    """The points of every track [envs, POINTS, numbers of a point], to read or to change."""
    world = vector.world
    assert world is not None
    return world[:, : kart.POINTS * len(POINT)].reshape(len(world), kart.POINTS, -1)


def points(vector: NativeVector, name: str) -> Array:
    """A number of all points, such as `half_width` [envs, POINTS], to read or to change."""
    found: Array = tracks(vector)[:, :, POINT.index(name)]
    return found


def fact(vector: NativeVector, name: str) -> Array:
    """A number of every track, such as `length`, to read or to change."""
    assert vector.world is not None
    found: Array = vector.world[:, TRACK.index(name)]
    return found


def looks(obs: Array) -> Array:
    """The points ahead in observations [rows, LOOKS, LOOK], to read or to change."""
    return obs[:, SEEN["ahead.4m.ahead"] :].reshape(len(obs), LOOKS, LOOK)


def hold(vector: NativeVector, out: Rows, steer: float, throttle: float, steps: int = 1) -> None:
    """Hold the controls of all cars for some decisions."""
    for _ in range(steps):
        vector.step(np.full((vector.envs, 2), (steer, throttle), np.float32), out)


def act(player: str, vector: NativeVector, out: Rows, kind: str = "continuous") -> Array:
    """The actions of a scripted player for the present observations."""
    action = np.zeros((vector.envs, vector.spec.action.parts), vector.spec.action.dtype)
    game.act(player, out.obs, kind, action)
    return action


class Spot(native.Action):
    """Where to place a car, as `starts.place` takes it."""

    point: float = native.box(0.0, kart.POINTS - 1.0)
    offset: float = native.box(-100.0, 100.0)
    slope: float = native.box(-10.0, 10.0)
    speed: float = native.box(-100.0, 100.0)


class Placed(native.Observation):
    """What nobody looks at."""

    x: float


placing = native.Game("placing")
"""A game whose step places a car with kart's own function, which only functions of a game can call."""


@placing.step
def place_one(s: kart.State, track: kart.Track, spot: Spot) -> None:
    """Place the car."""
    place(s, track, int(spot.point), spot.offset, spot.slope, spot.speed)


@placing.observe
def observe_nothing(s: kart.State, seen: Placed) -> None:
    """See where it is."""
    seen.x = s.x


def place_cars(
    vector: NativeVector, point: int = 0, offset: float = 0.0, slope: float = 0.0, speed: float = 0.0
) -> None:
    """Place the car of every env on its track, as at a start: `offset` to the left of a point, `slope` its heading."""
    other = placing.vector(vector.envs, compiled=False)
    rows = empty_rows(other.spec, vector.envs)
    assert other.world is not None and vector.world is not None
    other.state[:], other.world[:] = vector.state, vector.world
    other.step(np.full((vector.envs, 4), (point, offset, slope, speed), np.float32), rows)
    vector.state[:] = other.state
