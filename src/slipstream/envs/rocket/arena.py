"""The standard arena as a collision mesh, built from its public dimensions, and the choice of meshes of a process.

RocketSim has the floor, the ceiling and the side walls as planes. A mesh adds the end walls, corners, ramps and goals.
The mesh built here is an octagonal bowl whose walls meet the floor and the ceiling in quarter circles. It is not an
exact replica: the ramps of the original game vary.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.adapters.adapter_vector import import_package
from slipstream.errors import EnvError

SIDE, END, CORNER, HEIGHT = 4096.0, 5120.0, 8064.0, 2044.0
"""Half width, half length, |x| + |y| of the corner walls, and height, in unreal units."""
GOAL_WIDTH, GOAL_HEIGHT, GOAL_DEPTH = 892.755, 642.775, 880.0
"""Half width, height and depth of a goal."""
RAMP, ARCS = 256.0, 6
"""The radius of the ramps, and the number of flat pieces of each."""
UNIT = 50.0
"""Unreal units per unit of a mesh file."""


def outline(inset: float) -> Array:
    """The eight corners [8, 2] of the bowl seen from above, anticlockwise, with the walls moved inwards by `inset`."""
    side, end = SIDE - inset, END - inset
    corner = CORNER - inset * np.sqrt(2.0)
    quarter = np.array([[side, corner - side], [corner - end, end]])
    flipped = quarter[::-1] * [-1, 1]
    half = np.concatenate([quarter, flipped])
    return np.concatenate([half, -half])


def levels() -> list[tuple[float, float]]:
    """The inset and height of each ring of the bowl, from floor to ceiling; one ring is at the height of the goals."""
    bends = np.linspace(0, np.pi / 2, ARCS + 1)
    low = [(RAMP * (1 - np.sin(bend)), RAMP * (1 - np.cos(bend))) for bend in bends]
    high = [(inset, HEIGHT - height) for inset, height in reversed(low)]
    return [*low, (0.0, GOAL_HEIGHT), *high]


def _ring(inset: float, height: float) -> Array:
    """The corners [12, 3] of a ring, with a point at each post of both goals."""
    points: list[tuple[float, float]] = []
    around = outline(inset)
    for here, there in zip(around, np.roll(around, -1, axis=0), strict=True):
        points.append((here[0], here[1]))
        if abs(here[1]) == END - inset and abs(there[1]) == END - inset:
            posts = sorted((-GOAL_WIDTH, GOAL_WIDTH), key=lambda x, start=here[0]: abs(x - start))  # type: ignore[misc]
            points += [(post, here[1]) for post in posts]
    return np.array([(x, y, height) for x, y in points])


def build() -> tuple[Array, Array]:
    """Triangles [n, 3] and corners [m, 3] of the arena, in unreal units, with faces pointing inwards."""
    corners: list[Array] = []
    triangles: list[tuple[int, int, int]] = []

    def add(*face: Array) -> None:
        """Add a flat face of three or four corners, anticlockwise seen from inside."""
        first = len(corners)
        corners.extend(np.asarray(corner, float) for corner in face)
        triangles.extend((first, first + k, first + k + 1) for k in range(1, len(face) - 1))

    rings = [_ring(inset, height) for inset, height in levels()]
    for low, high in pairwise(rings):
        for k in range(len(low)):
            n = (k + 1) % len(low)
            mouth = abs(low[k, 0]) == GOAL_WIDTH and abs(low[n, 0]) == GOAL_WIDTH and low[k, 1] == low[n, 1]
            if not (mouth and high[k, 2] <= GOAL_HEIGHT):
                add(low[n], low[k], high[k], high[n])
    bend = [(inset, height) for inset, height in levels() if height <= RAMP]
    for end in (-1.0, 1.0):
        for post in (-GOAL_WIDTH, GOAL_WIDTH):
            foot = np.array([post, end * END, 0.0])
            curve = [np.array([post, end * (END - inset), height]) for inset, height in bend]
            for one, other in pairwise(curve):  # the open end of a ramp beside the goal
                add(*((foot, other, one) if end * post < 0 else (foot, one, other)))
        front, back = end * END, end * (END + GOAL_DEPTH)
        box = [np.array([x, y, z]) for x in (-GOAL_WIDTH, GOAL_WIDTH) for y in (front, back) for z in (0, GOAL_HEIGHT)]
        faces = ((0, 1, 3, 2), (4, 6, 7, 5), (1, 5, 7, 3), (2, 3, 7, 6))  # left, right, roof, back
        for face in faces:
            turned = face[::-1] if end > 0 else face
            add(*(box[corner] for corner in turned))
    return np.array(triangles, np.int32), np.array(corners, np.float32)


def split(triangles: Array, corners: Array) -> list[tuple[Array, Array]]:
    """Split a mesh into spatial pieces, so that collision tests skip distant triangles."""
    middles = corners[triangles].mean(axis=1)
    borders = ((-SIDE / 2, SIDE / 2), (-END * 2 / 3, END * 2 / 3), (RAMP, HEIGHT - RAMP))
    cells = np.stack([np.digitize(middles[:, axis], border) for axis, border in enumerate(borders)], axis=1)
    pieces = []
    for cell in np.unique(cells, axis=0):
        own = triangles[(cells == cell).all(axis=1)]
        used, places = np.unique(own, return_inverse=True)
        pieces.append((places.reshape(own.shape).astype(np.int32), corners[used]))
    return pieces


def encode(triangles: Array, corners: Array) -> bytes:
    """A mesh in RocketSim's file format."""
    head = np.array([len(triangles), len(corners)], "<i4").tobytes()
    return head + triangles.astype("<i4").tobytes() + (corners / UNIT).astype("<f4").tobytes()


_loaded: list[str] = []
"""The meshes loaded in this process; RocketSim can load them only once."""


def load() -> str:
    """Load the collision meshes once per process and return their name.

    The first available: the folder in RS_COLLISION_MESHES, the meshes of rlgym, the mesh built here.
    """
    if not _loaded:
        simulator = require()
        folder = _folder()
        if folder is not None:
            name = f"{_digest(folder)} ({folder.name})"
            simulator.init(str(folder))
        else:
            with tempfile.TemporaryDirectory(prefix="slipstream-arena-") as made:
                place = Path(made) / "soccar"
                place.mkdir()
                for number, piece in enumerate(split(*build())):
                    (place / f"arena{number:02}.cmf").write_bytes(encode(*piece))
                name = f"{_digest(Path(made))} (slipstream)"
                simulator.init(made)
        _loaded.append(name)
    return _loaded[0]


def make(simulator: Any) -> Any:
    """Make an empty arena. This takes milliseconds, and its first match is slow, so use `clear` between matches.

    In an arena that never had a contact, some contacts differ in the last bits. A few steps with two cars make all
    arenas behave alike.
    """
    field = simulator.Arena(simulator.GameMode.SOCCAR)
    cars = [field.add_car(team) for team in (simulator.Team.BLUE, simulator.Team.ORANGE)]
    field.reset_kickoff(0)
    field.step(4)
    clear(simulator, field, cars)
    return field


def clear(simulator: Any, field: Any, cars: Sequence[Any]) -> None:
    """Remove the cars of an arena, so that the next match of two cars is bit-exact with one in a new arena.

    Cars are removed in reverse order, so that the next cars get the same slots. Two steps of the ball in mid-air clear
    its contact cache. Counters (goals, ticks, car ids) are not reset.
    """
    for car in reversed(cars):
        field.remove_car(car)
    ball = field.ball.get_state()
    ball.pos, ball.vel, ball.ang_vel = simulator.Vec(0, 0, HEIGHT / 2), simulator.Vec(0, 0, 0), simulator.Vec(0, 0, 0)
    field.ball.set_state(ball)
    field.step(2)


def require() -> Any:
    """Import the simulator."""
    return import_package("RocketSim", "rocket", "RocketSim", 'pip install "slipstream[rocket]"')


def _folder() -> Path | None:
    """A folder with external meshes, if there is one."""
    named = os.environ.get("RS_COLLISION_MESHES")
    if named:
        if not list((Path(named) / "soccar").glob("*.cmf")):
            raise EnvError(
                f"RS_COLLISION_MESHES is {named}, which has no soccar/*.cmf.", "unset it to use the built-in arena"
            )
        return Path(named)
    found = importlib.util.find_spec("rlgym") and importlib.util.find_spec("rlgym.rocket_league")
    for place in (found.submodule_search_locations or ()) if found else ():
        folder = Path(place) / "sim" / "collision_meshes"
        if list((folder / "soccar").glob("*.cmf")):
            return folder
    return None


def _digest(folder: Path) -> str:
    """A hash of a set of meshes."""
    digest = hashlib.sha256()
    for file in sorted((folder / "soccar").glob("*.cmf")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
