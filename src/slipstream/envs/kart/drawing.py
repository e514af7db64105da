"""A kart's lap from above: the road, the path coloured by speed, a map of the track; its event and its keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product

import numpy as np
from PIL import Image

from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows
from slipstream.envs.controls import driving_action
from slipstream.envs.events import episode_over
from slipstream.envs.game import StepEvent
from slipstream.envs.kart import columns
from slipstream.envs.kart.columns import POINTS, TICK_HZ, TOP_SPEED, VERGE, Track
from slipstream.envs.native.layout import columns_of
from slipstream.envs.native.mathematics import GAME
from slipstream.envs.render.canvas import (
    BLUE,
    DIM,
    INK,
    PAGE,
    PANEL,
    RULE,
    WHITE,
    Brush,
    Camera,
    Colour,
    Point,
    around,
    blended,
    faded,
    paint_car,
    write_text,
)

GROUND, GRASS, ASPHALT, TYRES = (14, 21, 28), (30, 51, 50), (47, 55, 69), (92, 108, 132)
RAMP = ((49, 54, 149), (69, 117, 200), (150, 190, 230), (255, 200, 120), (255, 128, 30))
"""Colours from slow to fast, distinguishable with colour blindness and by lightness."""
ACROSS = 104.0
"""Width of the view, in metres."""
TRAIL_S = 3.0
SIZE = 0.8
"""Size of a kart relative to a soccer car."""
FINE = 5
"""Line segments drawn from one point of the track to the next."""
AT = {name: column for column, name in enumerate(columns_of(columns.State).names())}
"""The column of the state of each name."""
POINT = {name: column for column, name in enumerate(columns_of(columns.Point).names())}
"""The column of each number of a point of the track."""
PLACE, VELOCITY, HEADING = ([AT[x], AT[y]] for x, y in (("x", "y"), ("vx", "vy"), ("hx", "hy")))


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """A `lap` where the lap was finished; a lap that ran out of time is no event."""
    return [StepEvent("lap", 0)] if episode_over(rows) and rows.outcome[0] > 0 else []


def keyboard_action(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action for the keys that are held: left and right steer, up accelerates, down brakes and reverses."""
    table = np.array(list(product((-1, 0, 1), repeat=2)), np.float32)
    return driving_action(keys, ("steer", "throttle"), table, action)


def track_of(world: Array) -> Array:
    """The points of a track [POINTS, numbers of a point]."""
    points = columns_of(Track).fields["points"]
    return np.ascontiguousarray(world[points.start : points.start + points.size].reshape(POINTS, -1), np.float32)


class LapScene:
    """The scene of a lap, from the states of consecutive steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        self.states = np.asarray(arrays["state"], np.float64)
        self.step_seconds = step_seconds or 1 / 15
        self._size = size
        track = track_of(arrays["world"][0])
        self._scale = size[0] / ACROSS
        self._ground, self._corner = _ground(track.tobytes(), self._scale, size)
        self._map, self._chart = _chart(track.tobytes(), (round(0.2 * size[0]), round(0.34 * size[1])))
        self._speeds = np.hypot(*self.states[:, VELOCITY].T)
        self._breaks = np.diff(arrays["numbers"][:, GAME]) != 0

    def score(self, step: float) -> None:
        """None: a lap has no score."""

    def clock(self, step: float) -> str:
        """The lap time so far."""
        left = self.states[:, AT["ticks_left"]]
        ticks = int(left[0] - left[min(int(step), len(left) - 1)])
        return f"{ticks / TICK_HZ + (step - int(step)) * self.step_seconds:.1f} s"

    def between(self, step: float, beyond: float = 0.0) -> Array:
        """The state at `step`: interpolated, or extrapolated for at most 0.6 s after the last one."""
        first = min(max(int(step), 0), len(self.states) - 1)
        now: Array = self.states[first].copy()
        share = step - first
        if first + 1 < len(self.states) and not self._breaks[first]:
            now += (self.states[first + 1] - now) * share
            now[HEADING] /= math.hypot(*now[HEADING]) or 1.0
        else:
            seconds = min((share + beyond) * self.step_seconds, 0.6)
            now[PLACE] += now[VELOCITY] * seconds
        return now

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The image at `step`, extrapolated by `beyond` steps after the end."""
        now = self.between(step, beyond)
        width, height = self._size
        ahead = now[PLACE] + 0.4 * now[VELOCITY]
        left = round((ahead[0] - self._corner[0]) * self._scale - width / 2)
        top = round((self._corner[1] - ahead[1]) * self._scale - height / 2)
        picture = Image.new("RGB", self._size, GROUND)
        picture.paste(self._ground, (-left, -top))
        camera = Camera(self._scale, (-self._corner[0] * self._scale - left, self._corner[1] * self._scale - top))
        self._paint_trail(picture, camera, step, now)
        (x, y), (hx, hy) = now[PLACE].tolist(), now[HEADING].tolist()
        paint_car(picture, camera, (x, y), (hx, hy), BLUE, now[AT["steer"]], SIZE)
        self._paint_map(picture, step, now)
        self._paint_dials(picture, now)
        return picture

    def _paint_trail(self, picture: Image.Image, camera: Camera, step: float, now: Array) -> None:
        last = min(int(step), len(self.states) - 1)
        first = max(0, last - round(TRAIL_S / self.step_seconds))
        places = [*self.states[first : last + 1, PLACE].tolist(), now[PLACE].tolist()]
        speeds = [*self._speeds[first : last + 1].tolist(), math.hypot(*now[VELOCITY])]
        pixels = camera.path(places)
        count = len(pixels) - 1
        with Brush(picture, around(pixels, self._scale), 2) as brush:
            for piece in range(count):
                share = (piece + 1) / count
                colour = blended(ASPHALT, ramp(speeds[piece]), share**0.7)
                brush.line(pixels[piece : piece + 2], colour, (0.3 + 0.7 * share) * SIZE * self._scale)

    def _paint_map(self, picture: Image.Image, step: float, now: Array) -> None:
        """Draw the map of the track with the path so far."""
        margin = round(0.03 * self._size[1])
        corner = self._size[0] - self._map.width - margin, margin
        chart = self._map.copy()
        unit = self._map.height / 150
        last = min(int(step), len(self.states) - 1)
        places = np.unique(np.append(np.arange(0, last, 3), last))
        pixels = self._chart.path(self.states[places][:, PLACE].tolist())
        dot = self._chart.at(*now[PLACE].tolist())
        with Brush(chart, (0, 0, *chart.size), 2) as brush:
            for piece, place in enumerate(places[:-1]):
                brush.line(pixels[piece : piece + 2], ramp(self._speeds[place]), 2.2 * unit)
            brush.disc(dot, 5 * unit, WHITE)
            brush.disc(dot, 3.6 * unit, BLUE)
        picture.paste(chart, corner)

    def _paint_dials(self, picture: Image.Image, now: Array) -> None:
        """Draw speed, pedals and the share of the lap that is done."""
        height = self._size[1]
        unit = height / 424
        speed = math.hypot(*now[VELOCITY])
        left, bottom = 20 * unit, height - 22 * unit
        wide = 170 * unit
        panel = (left - 12 * unit, bottom - 62 * unit, left + wide + 12 * unit, bottom + 12 * unit)
        with Brush(picture, panel, 3) as b:
            b.box(panel, faded(PAGE, 0.75), 8 * unit)
            b.box((left, bottom - 6 * unit, left + wide, bottom), RULE, 3 * unit)
            share = min(speed / TOP_SPEED, 1.0)
            if share > 0.02:
                b.box((left, bottom - 6 * unit, left + wide * share, bottom), ramp(speed), 3 * unit)
            pedal, middle = float(now[AT["throttle"]]), left + wide - 8 * unit
            b.box((middle - 3 * unit, bottom - 50 * unit, middle + 3 * unit, bottom - 16 * unit), RULE, 3 * unit)
            zero = bottom - 33 * unit
            end = zero - 17 * unit * max(-1.0, min(1.0, pedal))
            colour = BLUE if pedal >= 0 else RAMP[-1]
            b.box((middle - 3 * unit, min(zero, end), middle + 3 * unit, max(zero, end)), colour, 2 * unit)
        write_text(picture, (left, bottom - 33 * unit), f"{speed * 3.6:.0f}", round(32 * unit), INK)
        write_text(picture, (left + 66 * unit, bottom - 27 * unit), "km/h", round(13 * unit), DIM)
        done = max(0.0, float(now[AT["done"]]))
        write_text(picture, (left + 104 * unit, bottom - 27 * unit), f"{done:.0%}", round(15 * unit), INK)


def ramp(speed: float) -> Colour:
    """The colour of a speed."""
    place = max(0.0, min(speed / TOP_SPEED, 1.0)) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    return blended(RAMP[low], RAMP[low + 1], place - low)


def _line(track: Array, side: float = 0.0, verge: float = 0.0) -> Array:
    """The centre line, or a parallel line: `side` half-widths to its left, and `verge` metres more."""
    turns = np.concatenate([track, track[:1]]).astype(np.float64)
    spacing = np.linalg.norm(np.diff(turns[:, :2], axis=0), axis=1)[:, None]
    t = (np.arange(FINE) / FINE)[None, :, None]
    p, q = turns[:-1, None, :2], turns[1:, None, :2]
    m, n = (turns[k : k + len(track), None, [POINT["tx"], POINT["ty"]]] * spacing[:, None] for k in (0, 1))
    onward, back, there = t**3 - 2 * t**2 + t, t**3 - t**2, 3 * t**2 - 2 * t**3
    fine: Array = ((1 - there) * p + onward * m + there * q + back * n).reshape(-1, 2)
    if not side:
        return fine
    along = np.roll(fine, -1, axis=0) - np.roll(fine, 1, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    wide = np.interp(np.arange(len(fine)) / FINE, np.arange(len(turns)), turns[:, POINT["half_width"]]) + verge
    beside: Array = fine + side * wide[:, None] * np.stack([-along[:, 1], along[:, 0]], axis=1)
    return beside


def _points(line: Array) -> list[Point]:
    return [(float(x), float(y)) for x, y in line]


@lru_cache(maxsize=2)
def _ground(track_bytes: bytes, scale: float, size: tuple[int, int]) -> tuple[Image.Image, Point]:
    """An image of the whole road at the scale of the view, and the position of its top left corner."""
    track = np.frombuffer(track_bytes, np.float32).reshape(-1, len(POINT))
    margin = 14.0
    low, high = track[:, :2].min(axis=0) - margin, track[:, :2].max(axis=0) + margin
    pixels = [math.ceil(extent * scale) for extent in high - low]
    camera = Camera(scale, (-low[0] * scale, high[1] * scale))
    picture = Image.new("RGB", (pixels[0], pixels[1]), GROUND)
    sides = {verge: [_points(_line(track, side, verge)) for side in (1.0, -1.0)] for verge in (0.0, VERGE)}
    bend = np.repeat(np.abs(track[:, POINT["bend"]]), FINE)
    with Brush(picture, (0, 0, *picture.size), 2) as brush:
        for verge, colour in ((VERGE, GRASS), (0.0, ASPHALT)):
            left, right = (camera.path(line) for line in sides[verge])
            for k in range(len(left)):
                near = (k + 1) % len(left)
                brush.polygon([left[k], left[near], right[near], right[k]], colour)
        for line in sides[VERGE]:
            brush.line(camera.path(line), TYRES, 0.55 * scale, closed=True)
        for line in sides[0.0]:
            edge = camera.path(line)
            brush.line(edge, (170, 184, 204), 0.22 * scale, closed=True)
            for k in np.flatnonzero(bend > 0.03).tolist():
                colour = (238, 242, 248) if k // 3 % 2 else (214, 116, 42)
                brush.line([edge[k], edge[(k + 1) % len(edge)]], colour, 0.7 * scale)
        _draw_start(brush, camera, track)
    return picture, (float(low[0]), float(high[1]))


def _draw_start(brush: Brush, camera: Camera, track: Array) -> None:
    """Draw the chequered start line."""
    x, y, tx, ty, _, wide = (float(number) for number in track[0])
    rows, side = 3, 0.75
    across = max(2, round(2 * wide / side))
    step = 2 * wide / across
    for row in range(rows):
        for column in range(across):
            corners = [(row + i - rows / 2, -wide + (column + j) * step) for i, j in ((0, 0), (1, 0), (1, 1), (0, 1))]
            placed = [(x + tx * a * side - ty * b, y + ty * a * side + tx * b) for a, b in corners]
            brush.polygon(camera.path(placed), (232, 238, 246) if (row + column) % 2 else (24, 29, 38))


@lru_cache(maxsize=2)
def _chart(track_bytes: bytes, size: tuple[int, int]) -> tuple[Image.Image, Camera]:
    """A small map of the track."""
    track = np.frombuffer(track_bytes, np.float32).reshape(-1, len(POINT))
    low, high = track[:, :2].min(axis=0), track[:, :2].max(axis=0)
    margin = 0.1 * size[1]
    scale = min((size[0] - 2 * margin) / (high[0] - low[0]), (size[1] - 2 * margin) / (high[1] - low[1]))
    middle = (low + high) / 2
    camera = Camera(float(scale), (size[0] / 2 - float(middle[0] * scale), size[1] / 2 + float(middle[1] * scale)))
    chart = Image.new("RGB", size, GROUND)
    with Brush(chart, (0, 0, *size), 3) as brush:
        brush.box((0, 0, *size), PANEL, 8)
        brush.line(camera.path(_points(_line(track))), RULE, 0.05 * size[1], closed=True)
    return chart, camera
