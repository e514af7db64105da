"""Rocket from above: the arena, cars, ball and boost pads, interpolated between steps; airborne objects are larger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.render.canvas import (
    PAGE,
    SIDES,
    WHITE,
    YELLOW,
    Brush,
    Camera,
    Point,
    blended,
    faded,
    paint_ball,
    paint_car,
    paint_flame,
    paint_tanks,
    paint_trail,
    rounded,
    veil,
)
from slipstream.envs.render.match_timeline import MatchClock, MatchTimeline
from slipstream.envs.rocket import arena
from slipstream.envs.rocket import layout as at

FLOOR, LINE, WALL = (23, 37, 52), (66, 90, 118), (120, 146, 180)
LENGTH, WIDTH, CEILING = (size * at.SCALE for size in (arena.END, arena.SIDE, arena.HEIGHT))
GOAL, DEPTH = arena.GOAL_WIDTH * at.SCALE, arena.GOAL_DEPTH * at.SCALE
REACH = LENGTH + DEPTH + 1.5, WIDTH + 1.5
"""Half of the visible area, from the centre."""
CAR, BALL = 0.75, 1.6
"""The scale of a car, and the radius of the ball; both are drawn larger than they are."""
TRAIL_S = 0.55
"""How long the ball's trail stays visible."""
_NEAR = ((0, -4240), (1792, -4184), (3072, -4096), (940, -3308), (0, -2816), (3584, -2484), (1788, -2300))
_MIDDLE = ((-2048, -1036), (0, -1024), (2048, -1036), (-3584, 0), (-1024, 0))
BIG = (3, 4, 15, 18, 29, 30)


def pad_places() -> list[Point]:
    """The positions of the pads in the simulator's order: from the blue to the orange goal, left to right."""
    half = [place for x, y in _NEAR for place in (((-x, y), (x, y)) if x else ((x, y),))]
    half += _MIDDLE
    whole = half + [(-x, -y) for x, y in reversed(half)]
    return [(y * at.SCALE, -x * at.SCALE) for x, y in whole]


class Stadium(MatchTimeline):
    """Draws a match from the `state` and `clock` of consecutive steps, at any time between them."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        clocks = arrays["clock"]
        clock = MatchClock(
            clocks[:, at.TICKS_LEFT], clocks[:, at.SCORE : at.SCORE + 2], clocks[:, at.OVERTIME], clocks[:, at.GAME]
        )
        super().__init__(
            arrays["state"],
            clock,
            cars=at.cars_in(arrays["state"][0]),
            tick_hz=at.TICK_HZ,
            step_seconds=step_seconds or 8 / at.TICK_HZ,
        )
        self.camera, self._ground = _ground(*size)

    def between(self, step: float, beyond: float = 0.0) -> Array:
        """The state at a time between steps: interpolated, or extrapolated before a kick-off and at the end."""
        first = min(max(int(step), 0), len(self.states) - 1)
        share, now = step - first, self.states[first].copy()
        if first + 1 < len(self.states) and not self._breaks[first]:
            now += (self.states[first + 1] - now) * min(share, 1.0)
            now[at.PAD : at.CARS] = self.states[first, at.PAD : at.CARS]
            return np.asarray(now)
        ahead = min((share + beyond) * self.step_seconds, 0.6)
        for c in (0, *(self._column(car) for car in range(self.cars))):
            now[c + at.X] = np.clip(now[c + at.X] + now[c + at.VX] * ahead, -LENGTH - DEPTH, LENGTH + DEPTH)
            now[c + at.Y] = np.clip(now[c + at.Y] + now[c + at.VY] * ahead, -WIDTH, WIDTH)
        return np.asarray(now)

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """Draw the arena at a time; `beyond` extrapolates by so many steps where play is interrupted."""
        picture, now = self._ground.copy(), self.between(step, beyond)
        with Brush(picture, (0, 0, *picture.size), 2) as brush:
            for pad, place in enumerate(pad_places()):
                _draw_pad(brush, self.camera, place, pad in BIG, now[at.PAD + pad] > 0)
        self._paint_trail(picture, step, now)
        cars = [car for car in range(self.cars) if now[self._column(car) + at.GONE] < 0.5]
        cars.sort(key=lambda car: now[self._column(car) + at.Z])
        for car in cars:
            self._paint_car(picture, now, car, step + beyond)
        lift = float(np.clip(now[at.Z] / CEILING, 0, 1))
        place = float(now[at.X]), float(now[at.Y])
        paint_ball(picture, self.camera, place, BALL * (1 + 0.6 * lift), (place[0] + place[1]) / BALL * 0.5, lift)
        tanks = [float(np.clip(now[self._column(car) + at.BOOST], 0, 1)) for car in range(self.cars)]
        paint_tanks(picture, self.camera.at(-REACH[0], 0)[0], tanks)
        return picture

    def _paint_trail(self, picture: Image.Image, step: float, now: Array) -> None:
        """Draw the recent path of the ball."""
        paint_trail(picture, self.camera, self.ball_path(step, now, TRAIL_S), BALL * 0.8)

    def _paint_car(self, picture: Image.Image, now: Array, car: int, step: float) -> None:
        c, mates, side = self._column(car), self.cars // 2, 0 if car < self.cars // 2 else 1
        lift = float(np.clip(now[c + at.Z] / CEILING, 0, 1))
        place, size = (float(now[c + at.X]), float(now[c + at.Y])), CAR * (1 + 0.6 * lift)
        flat = math.hypot(now[c + at.HX], now[c + at.HY]) or 1.0
        heading = float(now[c + at.HX] / flat), float(now[c + at.HY] / flat)
        if self._burns(step, c):
            flicker = 0.8 + 0.2 * math.sin(step * 9.1 + car * 2.3) * math.sin(step * 23.7 + car)
            paint_flame(picture, self.camera, place, heading, SIDES[side], flicker, size)
        colour = blended(SIDES[side], WHITE, 0.32 * (car % mates) / max(mates - 1, 1))
        if now[c + at.UP] < 0:  # upside down
            colour = blended(colour, PAGE, 0.55)
        paint_car(picture, self.camera, place, heading, colour, 0.0, size)

    def _burns(self, step: float, c: int) -> bool:
        """Whether a car is using boost."""
        first = min(int(step), len(self.states) - 1)
        last = min(first + 1, len(self.states) - 1)
        first = first if first < last else max(0, last - 1)
        return bool(self.states[last, c + at.BOOST] < self.states[first, c + at.BOOST]) and not self._broken(first)

    def _broken(self, first: int) -> bool:
        return bool(first < len(self._breaks) and self._breaks[first])

    def _column(self, car: int) -> int:
        return at.CARS + car * at.CAR_SIZE


def labels(widths: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Names of the columns of `state` and `clock`."""
    cars = (widths["state"] - at.CARS) // at.CAR_SIZE
    body = ("x", "y", "z", "vx", "vy")
    car = (*body, "hx", "hy", "up", "boost", "gone", "there")
    state = (*(f"ball.{name}" for name in body), *(f"pad.{pad}" for pad in range(at.CARS - at.PAD)))
    return {
        "state": (*state, *(f"car.{k}.{name}" for k in range(cars) for name in car)),
        "clock": ("ticks_left", "score.0", "score.1", "overtime", "game"),
    }


@lru_cache(maxsize=4)
def _ground(width: int, height: int) -> tuple[Camera, Image.Image]:
    """The static background: the camera, and the arena without its pads."""
    scale = min(width / 2 / REACH[0], height / 2 / REACH[1])
    camera = Camera(scale, (width / 2, height / 2))
    wall = camera.path(rounded([(y * at.SCALE, -x * at.SCALE) for x, y in arena.outline(0.0).tolist()], 1.2))
    page = Image.new("RGB", (width, height), PAGE)
    veil(page, [(wall, 0.5)], WALL, blur=1.1 * scale)
    with Brush(page, (0, 0, width, height), 3) as brush:
        for side, colour in zip((-1, 1), SIDES, strict=True):
            net = [(LENGTH, GOAL), (LENGTH + DEPTH, GOAL), (LENGTH + DEPTH, -GOAL), (LENGTH, -GOAL)]
            brush.polygon(camera.path([(side * x, y) for x, y in net]), blended(colour, PAGE, 0.7))
        brush.polygon(wall, FLOOR)
        brush.line(camera.path([(0, -WIDTH), (0, WIDTH)]), LINE, 0.25 * scale)
        brush.ring(camera.at(0, 0), 9.4 * scale, LINE, 0.25 * scale)
        brush.line(wall, WALL, 0.4 * scale, closed=True)
        for side, colour in zip((-1, 1), SIDES, strict=True):
            mouth = camera.path([(side * LENGTH, -GOAL), (side * LENGTH, GOAL)])
            brush.line(mouth, blended(colour, FLOOR, 0.4), 0.45 * scale)
            net = [(LENGTH, GOAL), (LENGTH + DEPTH, GOAL), (LENGTH + DEPTH, -GOAL), (LENGTH, -GOAL)]
            brush.line(camera.path([(side * x, y) for x, y in rounded(net, 1.6, closed=False)]), colour, 0.5 * scale)
    return camera, page


def _draw_pad(brush: Brush, camera: Camera, place: Point, big: bool, there: bool) -> None:
    centre, size = camera.at(*place), (1.3 if big else 0.7) * camera.scale
    if there:
        brush.disc(centre, size * 1.5, faded(YELLOW, 0.2))
        brush.disc(centre, size, YELLOW)
    else:
        brush.disc(centre, size, (30, 38, 48))
        brush.ring(centre, size, (74, 76, 68), 0.2 * camera.scale)
