"""Games as pictures: which game is drawn by what, and one picture of a game as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from PIL import Image

from slipstream.contracts import Array, Vector, Viewed

SCENES = {
    "soccer": ("slipstream.envs.soccer.drawing", "Pitch"),
    "kart": ("slipstream.envs.kart.drawing", "Road"),
    "rocket": ("slipstream.envs.rocket.drawing", "Stadium"),
    "treechop": ("slipstream.envs.treechop.drawing", "Eyes"),
}
"""Where the drawing of each game is."""
SIZE = (480, 290)
"""The picture of a game as it stands, in pixels."""


class Scene(Protocol):
    """A stretch of a game that can be drawn at any time between its decisions."""

    def score(self, step: float) -> tuple[int, ...] | None:
        """Goals of each side, where there are goals."""

    def clock(self, step: float) -> str:
        """What a clock would show."""

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The picture at a time; `beyond` steps further if what moves went on as it did, through kick-offs and ends."""


def render_state(vector: Vector) -> dict[str, Array]:
    """What there is to draw and to tell of games as they stand; nothing where an env does not tell."""
    if isinstance(vector, Viewed):
        return vector.view()
    return vector.snapshot() if vector.spec.exact else {}


def make_scene(env: str, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> Scene | None:
    """What draws a game from its snapshots, stacked; None for games that have no picture."""
    place = SCENES.get(env.partition(":")[0])
    if place is None:
        return None
    scene: Any = getattr(import_module(place[0]), place[1])
    made: Scene = scene(size, arrays, step_seconds)
    return made


def draw(env: str, snapshot: Mapping[str, Array], size: tuple[int, int] = SIZE) -> Array | None:
    """A picture [height, width, 3] of the first env of a snapshot; None for games that have none."""
    first = {name: array[:1] for name, array in snapshot.items()}
    scene = make_scene(env, size, first, 0.0)
    return None if scene is None else np.asarray(scene.paint(0.0))


def pace(env: str, clocks: Array, usual: float) -> float:
    """Seconds that a step of this game takes, from its clocks [steps, columns]: some tasks have longer ones."""
    place = SCENES.get(env.partition(":")[0])
    if place is None or len(clocks) < 2:
        return usual
    at: Any = import_module(place[0]).at
    return float(clocks[0, at.TICKS_LEFT] - clocks[1, at.TICKS_LEFT]) / float(at.TICK_HZ)


def labels(env: str, snapshot: Mapping[str, Array]) -> dict[str, tuple[str, ...]]:
    """Names of the columns of a snapshot's arrays, for games that have names for them."""
    place = SCENES.get(env.partition(":")[0])
    named: Any = import_module(place[0]).labels if place else lambda widths: {}
    told: dict[str, tuple[str, ...]] = named({name: array.shape[-1] for name, array in snapshot.items()})
    return told
