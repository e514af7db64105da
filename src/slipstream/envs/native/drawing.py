"""Drawing of native games: a canvas in the game's own coordinates, and the scene that replays and `watch` show.

A game's `draw(s: State, canvas: native.Canvas)` is ordinary Python. Numbers are interpolated between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.native import kernels
from slipstream.envs.native.layout import Columns, Field
from slipstream.envs.native.mathematics import GAME
from slipstream.envs.render.canvas import (
    BLUE,
    DIM,
    INK,
    ORANGE,
    PAGE,
    PANEL,
    RULE,
    WHITE,
    YELLOW,
    Brush,
    Colour,
    write_text,
)
from slipstream.errors import EnvError, did_you_mean

COLOURS: dict[str, Colour] = {
    "blue": BLUE,
    "orange": ORANGE,
    "yellow": YELLOW,
    "green": (92, 204, 142),
    "red": (240, 96, 96),
    "purple": (176, 132, 240),
    "white": WHITE,
    "grey": DIM,
    "floor": PANEL,
    "line": RULE,
    "black": PAGE,
}
"""The colours by name; blue and orange are those of two sides, told apart by everyone."""
Ink = str | Sequence[int]
"""The name of a colour, or red, green, blue and, optionally, opacity from 0 to 255."""


class Canvas:
    """Shapes in the game's own coordinates; `window` says which part of them is shown."""

    def __init__(self, picture: Image.Image, brush: Brush) -> None:
        self._picture, self._brush = picture, brush
        self._scale, self._origin, self._flip = 1.0, (0.0, 0.0), -1.0
        self._texts: list[tuple[float, float, str, int, Colour]] = []
        self.window(-1.0, -1.0, 1.0, 1.0)

    def window(self, left: float, bottom: float, right: float, top: float) -> None:
        """Show this part, as large as fits. With `bottom` above `top`, y counts downwards."""
        width, height = abs(right - left), abs(top - bottom)
        if not width or not height:
            raise EnvError("canvas.window is empty.", "give two different corners")
        self._scale = min(self._picture.width / width, self._picture.height / height)
        self._flip = -1.0 if top > bottom else 1.0
        x, y = (left + right) / 2, (bottom + top) / 2
        self._origin = (
            self._picture.width / 2 - x * self._scale,
            self._picture.height / 2 - self._flip * y * self._scale,
        )

    def circle(self, x: float, y: float, radius: float, colour: Ink = "white") -> None:
        """Draw a filled circle."""
        self._brush.disc(self._at(x, y), radius * self._scale, colour_of(colour))

    def ring(self, x: float, y: float, radius: float, colour: Ink = "white", width: float = 0.05) -> None:
        """Draw a circle."""
        self._brush.ring(self._at(x, y), radius * self._scale, colour_of(colour), width * self._scale)

    def rectangle(self, left: float, bottom: float, right: float, top: float, colour: Ink = "white") -> None:
        """Draw a filled rectangle."""
        (x0, y0), (x1, y1) = self._at(left, bottom), self._at(right, top)
        self._brush.box((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)), colour_of(colour))

    def polygon(self, points: Iterable[Sequence[float]], colour: Ink = "white") -> None:
        """Draw a filled polygon."""
        self._brush.polygon([self._at(x, y) for x, y in points], colour_of(colour))

    def line(self, points: Iterable[Sequence[float]], colour: Ink = "white", width: float = 0.02) -> None:
        """Draw a line through two or more points."""
        self._brush.line([self._at(x, y) for x, y in points], colour_of(colour), width * self._scale)

    def text(self, x: float, y: float, text: str, colour: Ink = "white", size: int = 12) -> None:
        """Write a text, centred at a point; `size` is in pixels."""
        at_x, at_y = self._at(x, y)
        self._texts.append((at_x, at_y, str(text), size, colour_of(colour)))

    def finish(self) -> None:
        """Write the texts, on top of the shapes."""
        for x, y, text, size, colour in self._texts:
            write_text(self._picture, (x, y), text, size, colour, "mm")

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self._origin[0] + x * self._scale, self._origin[1] + self._flip * y * self._scale


def colour_of(given: Ink) -> Colour:
    """The colour of a name or of three or four numbers."""
    if not isinstance(given, str):
        return tuple(int(one) for one in given)
    if given not in COLOURS:
        raise EnvError(f"There is no colour `{given}`.{did_you_mean(given, COLOURS)}", f"use {', '.join(COLOURS)}")
    return COLOURS[given]


class Row:
    """Columns by name, read from a row of the state."""

    def __init__(self, columns: Columns, row: Array, start: int = 0) -> None:
        self._columns, self._row, self._start = columns, row, start

    def __getattr__(self, name: str) -> Any:
        field = self._columns.fields.get(name)
        if field is None:
            near = did_you_mean(name, self._columns.fields)
            raise AttributeError(f"{self._columns.name} has no column `{name}`.{near}")
        start = self._start + field.start
        if field.record is not None:
            size = field.record.size
            return [Row(field.record, self._row, start + k * size) for k in range(field.shape[0])]
        found = self._row[start : start + field.size].reshape(field.shape)
        return value_of(field, found)


def value_of(field: Field, found: Array) -> Any:
    """The numbers of a field, in its kind."""
    kind = {"int": int, "bool": bool}.get(field.number, float)
    return kind(found) if not field.shape else found.astype(kind)


class NativeScene:
    """Draws a game from its states at each step."""

    def __init__(
        self,
        columns: Columns,
        draw: Callable[..., None],
        size: tuple[int, int],
        arrays: Mapping[str, Array],
        step_seconds: float,
    ) -> None:
        self._columns, self._draw, self._size = columns, draw, size
        self._states, self._numbers = arrays["state"], arrays["numbers"]
        self._seconds = step_seconds
        self._moving = np.array(float_columns(columns), bool)
        """Which columns are floats; whole numbers change at a step."""

    def score(self, step: float) -> tuple[int, ...] | None:
        """None: a game draws its own score."""
        return None

    def clock(self, step: float) -> str:
        """The time since the game began, or the number of decisions."""
        decisions = int(self._numbers[self._at(step), kernels.DECISIONS])
        return f"{decisions * self._seconds:.1f} s" if self._seconds else f"{decisions}"

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """Draw the state at a step."""
        picture = Image.new("RGB", self._size, PAGE)
        with Brush(picture, (0, 0, *self._size), 2) as brush:
            canvas = Canvas(picture, brush)
            self._draw(Row(self._columns, self._state(step)), canvas)
        canvas.finish()
        write_text(picture, (8, self._size[1] - 12), self.clock(step), 11, INK)
        return picture

    def _state(self, step: float) -> Array:
        """The state at a step, between two states in proportion where columns are numbers that move little."""
        here = self._at(step)
        after = min(here + 1, len(self._states) - 1)
        part = min(max(step - here, 0.0), 1.0)
        one: Array = self._states[here]
        two: Array = self._states[after]
        if not part or self._numbers[here, GAME] != self._numbers[after, GAME]:
            return one
        between: Array = np.where(self._moving, one + (two - one) * part, one)
        return between

    def _at(self, step: float) -> int:
        return min(max(int(step), 0), len(self._states) - 1)


def float_columns(columns: Columns) -> list[bool]:
    """Whether each column is a float."""
    found: list[bool] = []
    for field in columns.fields.values():
        if field.record is not None:
            found += float_columns(field.record) * field.shape[0]
        else:
            found += [field.number == "float"] * field.size
    return found
