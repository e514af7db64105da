"""Draws a MettaGrid game from above: walls, objects and agents by colour, and a panel with the score and a legend."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.render.canvas import (
    BLACK,
    DIM,
    INK,
    PAGE,
    PANEL,
    RULE,
    SIDES,
    WHITE,
    Brush,
    Colour,
    Point,
    blended,
    faded,
    write_text,
)

FLOOR, LINE = (24, 32, 46), (31, 41, 58)
WALL, WALL_EDGE, WALL_FRONT = (66, 80, 104), (98, 114, 142), (44, 54, 74)
THINGS = ((255, 203, 87), (171, 130, 255), (72, 207, 173), (255, 122, 138), (126, 190, 255), (190, 214, 92))
"""Colours of the kinds of objects other than walls, in turn."""
GROUPS = (*SIDES, (112, 214, 120), (250, 214, 96), (190, 130, 240), (240, 120, 170))
"""Colours of the teams of agents, if there is more than one."""
SHARE = 0.27
"""The share of the width that the panel takes."""
LEADERS = 5
"""Agents that the panel lists."""
TRAIL = 5
"""Past steps that an agent's trail shows."""


class GridScene:
    """The scene of a game, from the arrays of `Metta.view` at consecutive steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        self._size, self._arrays = size, arrays
        self.step_seconds = step_seconds or 1 / 15
        words = bytes(arrays["names"][0].tolist()).rstrip(b"\0").decode().split("\n")
        self._kinds, self._resources = (line.split(",") if line else [] for line in words)
        self._agents = np.asarray(arrays["agents"], np.float64)
        tall, wide = arrays["cells"].shape[1:]
        self._panel = round(SHARE * size[0])
        margin = round(0.025 * size[1])
        self._cell = whole_cell(min((size[0] - self._panel - 2 * margin) / wide, (size[1] - 2 * margin) / tall))
        left = round((size[0] - self._panel - wide * self._cell) / 2)
        self._corner: Point = (left, round((size[1] - tall * self._cell) / 2))
        kinds = arrays["cells"]
        self._bare = np.setdiff1d(kinds, kinds[arrays["stock"] > 0])
        """The kinds of objects that never hold anything; they are always drawn bright."""
        groups = arrays["agents"][0, :, 2]
        several = len(set(groups.tolist())) > 1
        self._colours = [
            GROUPS[max(0, int(g)) % len(GROUPS)] if several else own_colour(k) for k, g in enumerate(groups)
        ]

    def score(self, step: float) -> None:
        """None: the agents play together."""

    def clock(self, step: float) -> str:
        """The step of the episode."""
        done, limit = self._arrays["clock"][self._at(step)].tolist()
        return f"step {done:,} of {limit:,}"

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The image at `step`; agents slide from one cell to the next."""
        index = self._at(step)
        picture = self._ground(index).copy()
        box = (*self._corner, *self._end())
        with Brush(picture, box, 3 if self._cell < 14 else 2) as brush:
            self._paint_trails(brush, index, step)
            for agent in np.argsort(self._places(step)[:, 0], kind="stable").tolist():
                self._paint_agent(brush, self._places(step)[agent], self._colours[agent])
        self._paint_panel(picture, index)
        return picture

    def _at(self, step: float) -> int:
        return min(max(int(step), 0), len(self._agents) - 1)

    def _end(self) -> Point:
        tall, wide = self._arrays["cells"].shape[1:]
        return self._corner[0] + wide * self._cell, self._corner[1] + tall * self._cell

    def _places(self, step: float) -> Array:
        """The row and column of every agent, between two steps where an agent moves by one cell."""
        index = self._at(step)
        now: Array = self._agents[index, :, :2]
        after = self._agents[min(index + 1, len(self._agents) - 1), :, :2]
        near = np.abs(after - now).sum(axis=1, keepdims=True) <= 1.5
        share = min(max(step - index, 0.0), 1.0)
        return np.where(near, now + (after - now) * share, now)

    def _pixel(self, place: Array) -> Point:
        row, column = place.tolist()
        return self._corner[0] + (column + 0.5) * self._cell, self._corner[1] + (row + 0.5) * self._cell

    def _ground(self, index: int) -> Image.Image:
        cells = self._arrays["cells"][index]
        stock = np.where(np.isin(cells, self._bare), 1, self._arrays["stock"][index]).astype(np.uint16)
        kinds = tuple(self._kinds)
        return draw_ground(self._size, self._corner, self._cell, cells.tobytes(), stock.tobytes(), cells.shape, kinds)

    def _paint_trails(self, brush: Brush, index: int, step: float) -> None:
        """Draw the last cells of every agent."""
        past = self._agents[max(0, index - (TRAIL if self._cell >= 9 else 2)) : index + 1, :, :2]
        for agent, colour in enumerate(self._colours):
            way = [*past[:, agent], self._places(step)[agent]]
            for piece, (one, other) in enumerate(pairwise(way)):
                if 0 < np.abs(one - other).sum() <= 1.5:
                    share = 0.4 * (piece + 1) / len(way)
                    brush.line([self._pixel(one), self._pixel(other)], faded(colour, share), 0.3 * self._cell)

    def _paint_agent(self, brush: Brush, place: Array, colour: Colour) -> None:
        if place[0] < 0:
            return
        (x, y), size = self._pixel(place), self._cell * (1.0 if self._cell >= 9 else 1.25)
        brush.disc((x + 0.06 * size, y + 0.1 * size), 0.43 * size, faded(BLACK, 0.5))
        brush.disc((x, y), 0.43 * size, blended(colour, BLACK, 0.35))
        brush.disc((x, y - 0.02 * size), 0.37 * size, colour)
        if size >= 9:
            for side in (-1, 1):
                brush.disc((x + side * 0.14 * size, y - 0.08 * size), 0.1 * size, WHITE)
                brush.disc((x + side * 0.14 * size, y - 0.06 * size), 0.05 * size, BLACK)

    def _paint_panel(self, picture: Image.Image, index: int) -> None:
        """Draw what the agents earned and hold, the leaders, and the names of the objects."""
        unit = self._size[1] / 424
        left, right = self._size[0] - self._panel + 8 * unit, self._size[0] - 24 * unit
        earned, held = self._arrays["earned"][index], self._arrays["held"][index]
        write_text(picture, (left, 30 * unit), self.clock(index), round(14 * unit), INK, width=right - left)
        done, limit = self._arrays["clock"][index].tolist()
        with Brush(picture, (left, 42 * unit, right, 50 * unit), 2) as brush:
            brush.box((left, 44 * unit, right, 48 * unit), RULE, 2 * unit)
            if done:
                brush.box((left, 44 * unit, left + (right - left) * done / limit, 48 * unit), DIM, 2 * unit)
        y = 72 * unit
        rows = [("agents", f"{len(earned):,}"), ("mean return", f"{earned.mean():.2f}")]
        totals = [(name, int(held[:, k].sum())) for k, name in enumerate(self._resources)]
        rows += [(name, f"{total:,}") for name, total in totals if total][:4]
        for name, value in rows:
            write_text(picture, (left, y), name, round(12 * unit), DIM, width=(right - left) * 0.72)
            write_text(picture, (right, y), value, round(13 * unit), INK, "rm")
            y += 18 * unit
        y = self._paint_leaders(picture, earned, (left, right), y + 12 * unit, unit)
        self._paint_legend(picture, (left, right), y + 14 * unit, unit)

    def _paint_leaders(
        self, picture: Image.Image, earned: Array, sides: tuple[float, float], y: float, unit: float
    ) -> float:
        """Draw a bar for each of the agents that earned most; returns where the next part begins.

        There is none while all agents have earned the same.
        """
        left, right = sides
        if earned.min() == earned.max():
            return y - 12 * unit
        best = np.argsort(-earned, kind="stable")[:LEADERS].tolist()
        most = max(float(earned.max()), 1e-9)
        for agent in best:
            bar = (left + 46 * unit, right - 44 * unit)
            with Brush(picture, (left, y - 9 * unit, right, y + 9 * unit), 2) as brush:
                brush.disc((left + 6 * unit, y), 6 * unit, self._colours[agent])
                brush.box((bar[0], y - 3 * unit, bar[1], y + 3 * unit), RULE, 3 * unit)
                share = max(0.0, float(earned[agent]) / most)
                if share > 0.02:
                    end = bar[0] + (bar[1] - bar[0]) * share
                    brush.box((bar[0], y - 3 * unit, end, y + 3 * unit), self._colours[agent], 3 * unit)
            write_text(picture, (left + 17 * unit, y), str(agent), round(12 * unit), DIM)
            write_text(picture, (right, y), f"{earned[agent]:.4g}", round(12 * unit), INK, "rm")
            y += 19 * unit
        return y

    def _paint_legend(self, picture: Image.Image, sides: tuple[float, float], y: float, unit: float) -> None:
        """Name the kinds of objects that were on the map."""
        left, right = sides
        present = np.unique(self._arrays["cells"]).tolist()
        for kind in [kind for kind in present if kind]:
            if y > self._size[1] - 12 * unit:
                return
            name, size = self._kinds[kind - 1], 14 * unit
            with Brush(picture, (left, y - size, left + 2 * size, y + size), 3) as brush:
                paint_thing(brush, (left + size / 2, y), size, name, thing_colour(tuple(self._kinds), kind), True)
            write_text(picture, (left + 24 * unit, y), name, round(12 * unit), DIM, width=right - left - 24 * unit)
            y += 20 * unit


def own_colour(agent: int) -> Colour:
    """A colour for each agent; neighbouring numbers differ most."""
    hue, bright = (0.58 + 0.381966 * agent) % 1.0, 1.0 - 0.14 * (agent % 3)
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.62, bright))


def thing_colour(kinds: tuple[str, ...], kind: int) -> Colour:
    """The colour of a kind of object, by its place among those that are neither agents nor walls."""
    if kinds[kind - 1] == "wall":
        return WALL
    others = [name for name in kinds if name not in ("agent", "wall", "")]
    return THINGS[others.index(kinds[kind - 1]) % len(THINGS)] if kinds[kind - 1] in others else DIM


def whole_cell(cell: float) -> float:
    """The size of a cell, so that the edges of all cells fall on the pixels of the brush."""
    return max(math.floor(cell * fineness(cell)), 1) / fineness(cell)


def fineness(cell: float) -> int:
    """The supersampling factor for a map with cells of this size."""
    return 2 if cell >= 8 else 4


def paint_wall(brush: Brush, corner: Point, size: float, edge: bool, front: bool) -> None:
    """Draw a cell of a wall, with a bright edge where the wall begins above and a dark front where it ends below."""
    left, top = corner
    brush.box((left, top, left + size, top + size), WALL)
    if front:
        brush.box((left, top + 0.74 * size, left + size, top + size), WALL_FRONT)
    if edge:
        brush.box((left, top, left + size, top + 0.14 * size), WALL_EDGE)


def paint_thing(brush: Brush, centre: Point, size: float, name: str, colour: Colour, bright: bool) -> None:
    """Draw an object: a wall is a block, others are tiles with a gem, which is bright while they hold something."""
    x, y = centre
    if name == "wall":
        paint_wall(brush, (x - size / 2, y - size / 2), size, True, True)
        return
    brush.box((x - 0.46 * size, y - 0.42 * size, x + 0.46 * size, y + 0.48 * size), faded(BLACK, 0.45), 0.18 * size)
    dull = blended(colour, PAGE, 0.62)
    brush.box((x - 0.46 * size, y - 0.46 * size, x + 0.46 * size, y + 0.42 * size), dull, 0.18 * size)
    middle = y - 0.02 * size
    gem = [(x, y - 0.34 * size), (x + 0.3 * size, middle), (x, y + 0.3 * size), (x - 0.3 * size, middle)]
    brush.polygon(gem, colour if bright else blended(colour, dull, 0.72))
    if bright:
        brush.polygon([gem[0], (x, middle), gem[3]], blended(colour, WHITE, 0.5))


@lru_cache(maxsize=8)
def draw_ground(
    size: tuple[int, int],
    corner: Point,
    cell: float,
    cells: bytes,
    stock: bytes,
    shape: tuple[int, int],
    kinds: tuple[str, ...],
) -> Image.Image:
    """An image of the floor, the walls and the objects."""
    kind_of = np.frombuffer(cells, np.uint8).reshape(shape)
    holds = np.frombuffer(stock, np.uint16).reshape(shape)
    picture = Image.new("RGB", size, PAGE)
    box = (*corner, corner[0] + shape[1] * cell, corner[1] + shape[0] * cell)
    panel = (box[2] + 0.02 * size[1], 0.025 * size[1], size[0] - 0.025 * size[1], 0.975 * size[1])
    panel = (max(panel[0], size[0] * (1 - SHARE) - 6 * size[1] / 424), *panel[1:])
    with Brush(picture, panel, 2) as brush:
        brush.box(panel, PANEL, 8 * size[1] / 424)
    walls = np.pad(kind_of == (kinds.index("wall") + 1 if "wall" in kinds else 0), ((1, 1), (0, 0)))
    with Brush(picture, box, fineness(cell)) as brush:
        brush.box(box, FLOOR)
        for row in range(shape[0]):
            for column in range(shape[1]):
                kind = int(kind_of[row, column])
                left, top = corner[0] + column * cell, corner[1] + row * cell
                centre = left + cell / 2, top + cell / 2
                if (row + column) % 2 and not kind:
                    brush.box((left, top, left + cell, top + cell), LINE)
                if kind and walls[row + 1, column]:
                    above, below = walls[row, column], walls[row + 2, column]
                    paint_wall(brush, (left, top), cell, not above, not below)
                elif kind:
                    colour = thing_colour(kinds, kind)
                    paint_thing(brush, centre, cell, kinds[kind - 1], colour, bool(holds[row, column]))
    return picture
