"""Soccer from above: pitch, cars, ball, boost pads and flames, also between two steps; its events and its keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows
from slipstream.envs.controls import driving_action
from slipstream.envs.events import match_events
from slipstream.envs.game import StepEvent
from slipstream.envs.native.mathematics import GAME
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
from slipstream.envs.render.match_timeline import MatchClock, MatchTimeline
from slipstream.envs.soccer import columns
from slipstream.envs.soccer.columns import BIG_WAIT, DRIVING, LENGTH, PAD_X, PAD_Y, PADS, SMALL_WAIT, TICK_HZ, WIDTH
from slipstream.envs.soccer.game import game

GRASS, STRIPE, LINE, WALL = (23, 37, 52), (27, 43, 60), (66, 90, 118), (120, 146, 180)
GOAL, DEPTH, CORNER = columns.GOAL_WIDTH, columns.GOAL_DEPTH, columns.DIAGONAL
LONG, BALL = columns.CAR_LONG, columns.BALL_RADIUS
REACH = LENGTH + DEPTH + 1.5, WIDTH + 1.5
"""Half the width and half the height of the view, in units."""
TRAIL_S = 0.55
"""Seconds of the ball's path that are drawn."""


@cache
def places(width: int) -> dict[str, int]:
    """The column of the state of each name, by the number of columns."""
    return {name: column for column, name in enumerate(game.state_labels({"state": width})["state"])}


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """The events of one step of a match; see `match_events`."""
    at = places(before["state"].shape[-1])
    scores = [state["state"][0, [at["score.0"], at["score.1"]]] for state in (before, after)]
    cars = 2 * int(before["state"][0, at["team_size"]])
    return match_events(spec, before, after, rows, last_touch, cars=cars, scores=(scores[0], scores[1]))


def keyboard_action(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action for the keys that are held: arrows drive, space boosts, x drifts."""
    return driving_action(keys, ("throttle", "steer", "boost", "drift"), np.array(DRIVING, np.float32), action)


class MatchScene(MatchTimeline):
    """The scene of a match, from the states of consecutive steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        states = arrays["state"]
        at = self._at = places(states.shape[-1])
        clock = MatchClock(
            states[:, at["ticks_left"]],
            states[:, [at["score.0"], at["score.1"]]],
            states[:, at["overtime"]],
            arrays["numbers"][:, GAME],
        )
        super().__init__(
            states,
            clock,
            cars=2 * int(states[0, at["team_size"]]),
            tick_hz=TICK_HZ,
            step_seconds=step_seconds or 1 / 15,
            overtime_kick_off=True,
        )
        self.camera, self._empty, self._full = _ground(*size)
        self._size = size

    def car(self, now: Array, car: int, *names: str) -> tuple[float, ...]:
        """Columns of a car in a state."""
        return tuple(float(now[self._at[f"cars.{car}.{name}"]]) for name in names)

    def between(self, step: float, beyond: float = 0.0) -> Array:
        """The state at `step`: interpolated, or extrapolated before a kick-off and at the end."""
        first = min(max(int(step), 0), len(self.states) - 1)
        share = step - first
        now: Array = self.states[first].copy()
        if share + beyond <= 0:
            return now
        cars = [f"cars.{car}." for car in range(self.cars)]
        if first + 1 < len(self.states) and not self._breaks[first]:
            now += (self.states[first + 1] - now) * min(share, 1.0)
            for car in cars:
                heading = [self._at[f"{car}hx"], self._at[f"{car}hy"]]
                now[heading] /= math.hypot(*now[heading]) or 1.0
                now[self._at[f"{car}boosting"]] = self.states[first + 1][self._at[f"{car}boosting"]]
            return now
        seconds = min((share + beyond) * self.step_seconds, 0.6)
        for body in ("ball.", *cars):
            radius = BALL if body == "ball." else columns.CAR_RADIUS
            columns_of_body = [self._at[body + name] for name in ("x", "y", "vx", "vy")]
            now[columns_of_body[:2]] = _coasted(now[columns_of_body], (1 - math.exp(-3 * seconds)) / 3, radius)
        return now

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The image at `step`, extrapolated by `beyond` steps before a kick-off and at the end."""
        picture = self._empty.copy()
        now = self.between(step, beyond)
        self._paint_pads(picture, now)
        self._paint_trail(picture, step, now)
        order = sorted(range(self.cars), key=lambda car: -self.car(now, car, "y")[0])
        for car in order:
            self._paint_flame(picture, now, car, step + beyond)
        for car in order:
            self._paint_car(picture, now, car)
        self._paint_ball(picture, now)
        self._paint_tanks(picture, now)
        return picture

    def _paint_pads(self, picture: Image.Image, now: Array) -> None:
        """Draw available pads bright, and the others with a ring that closes as they return."""
        for pad in range(PADS):
            left, wait = now[self._at[f"pads.{pad}"]], BIG_WAIT if pad < 2 else SMALL_WAIT
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
        x, y, hx, hy, boosting, boost = self.car(now, car, "x", "y", "hx", "hy", "boosting", "boost")
        if boosting <= 0 or boost <= 0.002:
            return
        flicker = 0.8 + 0.2 * math.sin(step * 9.1 + car * 2.3) * math.sin(step * 23.7 + car)
        paint_flame(picture, self.camera, (x, y), (hx, hy), SIDES[self.team(car)], flicker)

    def _paint_car(self, picture: Image.Image, now: Array, car: int) -> None:
        mates = self.cars // 2
        colour = blended(SIDES[self.team(car)], WHITE, 0.32 * (car % mates) / max(mates - 1, 1))
        x, y, hx, hy, steer = self.car(now, car, "x", "y", "hx", "hy", "steer")
        paint_car(picture, self.camera, (x, y), (hx, hy), colour, steer)

    def _paint_ball(self, picture: Image.Image, now: Array) -> None:
        x, y = float(now[self._at["ball.x"]]), float(now[self._at["ball.y"]])
        paint_ball(picture, self.camera, (x, y), BALL, (x + y) / BALL * 0.5)

    def _paint_tanks(self, picture: Image.Image, now: Array) -> None:
        """Draw the boost of each car, beside the pitch if there is space."""
        tanks = [float(np.clip(self.car(now, car, "boost")[0], 0, 1)) for car in range(self.cars)]
        paint_tanks(picture, self.camera.at(-REACH[0], 0)[0], tanks)

    def team(self, car: int) -> int:
        """The team of a car."""
        return 0 if car < self.cars // 2 else 1


def _coasted(body: Array, seconds: float, radius: float) -> tuple[float, float]:
    """Where a body rolls along its velocity, within the walls or, if it crosses a goal line, within that goal."""
    x, y, vx, vy = body.tolist()
    ahead, sideways = x + vx * seconds, y + vy * seconds
    crossing = y + vy * max(0.0, (LENGTH - abs(x)) / abs(vx)) if vx else y
    scored = abs(ahead) > LENGTH - radius and abs(crossing) < GOAL
    deep, wide = (LENGTH + DEPTH, GOAL) if scored else (LENGTH, WIDTH)
    return max(radius - deep, min(deep - radius, ahead)), max(radius - wide, min(wide - radius, sideways))


def pad_place(pad: int) -> Point:
    """The position of a pad."""
    sign = 1 if pad % 2 == 0 else -1
    return sign * PAD_X[pad // 2], sign * PAD_Y[pad // 2]


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
    for pad in range(PADS):
        halo = [(math.cos(k / 6), math.sin(k / 6)) for k in range(38)]
        spot = turned([(x * 1.5 * pad_size(pad), y * 1.5 * pad_size(pad)) for x, y in halo], pad_place(pad), (1.0, 0.0))
        veil(full, [(camera.path(spot), 0.45)], YELLOW, blur=0.42 * pad_size(pad) * scale)
    for picture, there in ((page, False), (full, True)):
        with Brush(picture, whole, smooth) as brush:
            for pad in range(PADS):
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
