"""Draws soccer from above: pitch, cars, ball, boost pads and flames, also between two steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from slipstream.contracts import Array
from slipstream.envs.render.canvas import (
    BLUE,
    ORANGE,
    PAGE,
    SIDES,
    WHITE,
    YELLOW,
    Brush,
    Camera,
    Point,
    around,
    blended,
    faded,
    paint_ball,
    paint_car,
    paint_flame,
    paint_tanks,
    paint_trail,
    rounded,
    turned,
    veil,
)
from slipstream.envs.render.match_timeline import MatchTimeline
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.physics import BIG_WAIT, SMALL_WAIT, pad_x, pad_y

GRASS, STRIPE, LINE, WALL = (23, 37, 52), (27, 43, 60), (66, 90, 118), (120, 146, 180)
LENGTH, WIDTH, GOAL, DEPTH = float(at.LENGTH), float(at.WIDTH), float(at.GOAL_WIDTH), float(at.GOAL_DEPTH)
CORNER = float(at.DIAGONAL)
LONG, BALL = float(at.CAR_LONG), float(at.BALL_RADIUS)
REACH = LENGTH + DEPTH + 1.5, WIDTH + 1.5
"""Half the width and half the height of the view, in units."""
TRAIL_S = 0.55
"""Seconds of the ball's path that are drawn."""


class MatchScene(MatchTimeline):
    """The scene of a match, from the `state` and `clock` of consecutive steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        super().__init__(at, arrays, step_seconds or 1 / 15, (at.SCORE, at.SCORE + 1, at.OVERTIME, at.GAME))
        self.camera, self._empty, self._full = _ground(*size)
        self._size = size

    def between(self, step: float, beyond: float = 0.0) -> Array:
        """The state at `step`: interpolated, or extrapolated before a kick-off and at the end."""
        first = min(max(int(step), 0), len(self.states) - 1)
        share = step - first
        now: Array = self.states[first].copy()
        if share + beyond <= 0:
            return now
        starts = [at.BALL, *(at.CARS + car * at.CAR_SIZE for car in range(self.cars))]
        if first + 1 < len(self.states) and not self._breaks[first]:
            now += (self.states[first + 1] - now) * min(share, 1.0)
            for c in starts[1:]:
                length = math.hypot(now[c + at.HX], now[c + at.HY]) or 1.0
                now[c + at.HX], now[c + at.HY] = now[c + at.HX] / length, now[c + at.HY] / length
                now[c + at.BOOSTING] = self.states[first + 1][c + at.BOOSTING]
            return now
        seconds = min((share + beyond) * self.step_seconds, 0.6)
        for c in starts:
            _coast(now, c, (1 - math.exp(-3 * seconds)) / 3, BALL if c == at.BALL else float(at.CAR_RADIUS))
        return now

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The image at `step`, extrapolated by `beyond` steps before a kick-off and at the end."""
        picture = self._empty.copy()
        now = self.between(step, beyond)
        self._paint_pads(picture, now)
        self._paint_trail(picture, step, now)
        order = sorted(range(self.cars), key=lambda car: -now[at.CARS + car * at.CAR_SIZE + at.Y])
        for car in order:
            self._paint_flame(picture, now, car, step + beyond)
        for car in order:
            self._paint_car(picture, now, car)
        self._paint_ball(picture, now)
        self._paint_tanks(picture, now)
        return picture

    def _paint_pads(self, picture: Image.Image, now: Array) -> None:
        """Draw available pads bright, and the others with a ring that closes as they return."""
        for pad in range(at.PADS):
            left, wait = now[at.PAD + pad], float(BIG_WAIT if pad < 2 else SMALL_WAIT)
            centre, reach = self.camera.at(*pad_place(pad)), pad_size(pad) * 2.6 * self.camera.scale
            if left <= 0:
                x, y, right, bottom = (round(edge) for edge in around([centre], reach))
                picture.paste(self._full.crop((x, y, right, bottom)), (x, y))
                continue
            with Brush(picture, around([centre], reach)) as brush:
                size, wide = pad_size(pad) * self.camera.scale, 0.24 * self.camera.scale
                brush.ring(centre, size, faded(YELLOW, 0.55), wide, 1 - left / wait)

    def _paint_trail(self, picture: Image.Image, step: float, now: Array) -> None:
        """Draw the recent path of the ball."""
        paint_trail(picture, self.camera, self.ball_path(step, now, TRAIL_S), BALL * 0.8)

    def _paint_flame(self, picture: Image.Image, now: Array, car: int, step: float) -> None:
        """Draw the flickering flame of a car that boosts."""
        c = at.CARS + car * at.CAR_SIZE
        if now[c + at.BOOSTING] <= 0 or now[c + at.BOOST] <= 0.002:
            return
        heading = now[c + at.HX], now[c + at.HY]
        flicker = 0.8 + 0.2 * math.sin(step * 9.1 + car * 2.3) * math.sin(step * 23.7 + car)
        place = now[c + at.X], now[c + at.Y]
        paint_flame(picture, self.camera, place, heading, SIDES[self.team(car)], flicker)

    def _paint_car(self, picture: Image.Image, now: Array, car: int) -> None:
        c, mates = at.CARS + car * at.CAR_SIZE, self.cars // 2
        colour = blended(SIDES[self.team(car)], WHITE, 0.32 * (car % mates) / max(mates - 1, 1))
        place, heading = (now[c + at.X], now[c + at.Y]), (now[c + at.HX], now[c + at.HY])
        paint_car(picture, self.camera, place, heading, colour, now[c + at.STEER])

    def _paint_ball(self, picture: Image.Image, now: Array) -> None:
        place = now[at.X], now[at.Y]
        paint_ball(picture, self.camera, place, BALL, (now[at.X] + now[at.Y]) / BALL * 0.5)

    def _paint_tanks(self, picture: Image.Image, now: Array) -> None:
        """Draw the boost of each car, beside the pitch if there is space."""
        tanks = [float(np.clip(now[at.CARS + car * at.CAR_SIZE + at.BOOST], 0, 1)) for car in range(self.cars)]
        paint_tanks(picture, self.camera.at(-REACH[0], 0)[0], tanks)

    def team(self, car: int) -> int:
        """The team of a car."""
        return 0 if car < self.cars // 2 else 1


def _coast(now: Array, c: int, seconds: float, radius: float) -> None:
    """Move a body along its velocity, within the walls or, if it crosses a goal line, within that goal."""
    x, y, vx, vy = (float(now[c + column]) for column in (at.X, at.Y, at.VX, at.VY))
    ahead, sideways = x + vx * seconds, y + vy * seconds
    crossing = y + vy * max(0.0, (LENGTH - abs(x)) / abs(vx)) if vx else y
    scored = abs(ahead) > LENGTH - radius and abs(crossing) < GOAL
    deep, wide = (LENGTH + DEPTH, GOAL) if scored else (LENGTH, WIDTH)
    now[c + at.X] = max(radius - deep, min(deep - radius, ahead))
    now[c + at.Y] = max(radius - wide, min(wide - radius, sideways))


def pad_place(pad: int) -> Point:
    """The position of a pad."""
    sign = 1 if pad % 2 == 0 else -1
    return sign * float(pad_x(pad // 2)), sign * float(pad_y(pad // 2))


def pad_size(pad: int) -> float:
    """The radius of a pad in the drawing."""
    return 1.15 if pad < 2 else 0.6


def outline() -> list[Point]:
    """The outline of the wall, goals included."""
    right = [(CORNER - WIDTH, WIDTH), (LENGTH, CORNER - LENGTH), (LENGTH, GOAL), (LENGTH + DEPTH, GOAL)]
    right += [(x, -y) for x, y in right[::-1]]
    return [*right, *((-x, -y) for x, y in right)]


@lru_cache(maxsize=4)
def _ground(width: int, height: int) -> tuple[Camera, Image.Image, Image.Image]:
    """The static parts: the camera, the pitch with every pad taken, and the pitch with every pad available."""
    scale = min(width / 2 / REACH[0], height / 2 / REACH[1])
    camera = Camera(scale, (width / 2, height / 2))
    smooth = 3
    whole = (0, 0, width, height)
    wall = camera.path(rounded(outline(), 1.6))
    mask = Image.new("L", (width * smooth, height * smooth), 0)
    ImageDraw.Draw(mask).polygon([(x * smooth, y * smooth) for x, y in wall], fill=255)
    mask = mask.reduce(smooth)
    floor = Image.new("RGB", (width, height), GRASS)
    with Brush(floor, whole, 2) as brush:
        for band in range(-6, 6, 2):
            left, right = camera.at(band * 7.2, 0)[0], camera.at((band + 1) * 7.2, 0)[0]
            brush.box((left, 0, right, height), STRIPE)
        _draw_lines(brush, camera)
    y, x = np.mgrid[0:height, 0:width]
    light = np.hypot((x - width / 2) / (width / 2), (y - height / 2) / (height / 2))
    shade = Image.fromarray((255 - 70 * np.clip(light, 0, 1) ** 2).astype(np.uint8))
    floor = ImageChops.multiply(floor, Image.merge("RGB", (shade,) * 3))
    page = Image.new("RGB", (width, height), PAGE)
    veil(page, [(wall, 0.5)], WALL, blur=1.1 * scale)
    page.paste(floor, mask=mask)
    with Brush(page, whole, smooth) as brush:
        brush.line(wall, WALL, 0.34 * scale, closed=True)
        for side in (-1, 1):
            posts = camera.path([(side * LENGTH, -GOAL), (side * LENGTH, GOAL)])
            net = [(LENGTH, GOAL), (LENGTH + DEPTH, GOAL), (LENGTH + DEPTH, -GOAL), (LENGTH, -GOAL)]
            colour = SIDES[0 if side < 0 else 1]
            brush.line(posts, faded(colour, 0.35), 0.3 * scale)
            brush.line(camera.path([(side * x, y) for x, y in rounded(net, 1.6, closed=False)]), colour, 0.42 * scale)
            for post in posts:
                brush.disc(post, 0.42 * scale, blended(colour, WHITE, 0.35))
    full = page.copy()
    for pad in range(at.PADS):
        halo = [(math.cos(k / 6), math.sin(k / 6)) for k in range(38)]
        spot = turned([(x * 1.5 * pad_size(pad), y * 1.5 * pad_size(pad)) for x, y in halo], pad_place(pad), (1.0, 0.0))
        veil(full, [(camera.path(spot), 0.45)], YELLOW, blur=0.42 * pad_size(pad) * scale)
    for picture, there in ((page, False), (full, True)):
        with Brush(picture, whole, smooth) as brush:
            for pad in range(at.PADS):
                _draw_pad(brush, camera, pad, there)
    return camera, page, full


def _draw_lines(brush: Brush, camera: Camera) -> None:
    """Draw the lines on the floor: halfway line, circle, penalty boxes, goals."""
    scale = camera.scale
    for side, colour in ((-1, BLUE), (1, ORANGE)):
        back = LENGTH + DEPTH
        goal = [(side * x, y) for x, y in ((LENGTH, GOAL), (back, GOAL), (back, -GOAL), (LENGTH, -GOAL))]
        brush.polygon(camera.path(goal), faded(colour, 0.2))
        for k in range(1, 6):
            x = side * (LENGTH + k)
            brush.line(camera.path([(x, -GOAL), (x, GOAL)]), faded(colour, 0.16), 0.09 * scale)
        for k in range(-8, 9):
            brush.line(camera.path([(side * LENGTH, k), (side * back, k)]), faded(colour, 0.16), 0.09 * scale)
        for reach in range(8):
            near = side * (LENGTH - 9 + reach)
            strip = [(near, 14), (side * LENGTH, 14), (side * LENGTH, -14), (near, -14)]
            brush.polygon(camera.path(strip), faded(colour, 0.012))
        area = [(side * x, y) for x, y in ((LENGTH, 14.0), (LENGTH - 9, 14.0), (LENGTH - 9, -14.0), (LENGTH, -14.0))]
        brush.line(camera.path(rounded(area, 2.5, closed=False)), LINE, 0.2 * scale)
    brush.line(camera.path([(0, -WIDTH), (0, WIDTH)]), LINE, 0.2 * scale)
    brush.ring(camera.at(0, 0), 8 * scale, LINE, 0.2 * scale)
    brush.disc(camera.at(0, 0), 0.5 * scale, LINE)


def _draw_pad(brush: Brush, camera: Camera, pad: int, there: bool) -> None:
    centre, size = camera.at(*pad_place(pad)), pad_size(pad) * camera.scale
    if not there:
        brush.disc(centre, size, (30, 38, 48))
        brush.ring(centre, size, (74, 76, 68), 0.16 * camera.scale)
        return
    brush.disc(centre, size, YELLOW)
    brush.disc((centre[0] - size * 0.18, centre[1] - size * 0.2), size * 0.5, faded(WHITE, 0.65))
