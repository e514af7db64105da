"""Antialiased drawing on Pillow images: shapes, cars, balls, text, and the camera from game coordinates to pixels.

A shape is drawn several times larger on the part of the image that it covers, which is then reduced. Edges come out
smooth, and the rest of the image costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from slipstream.contracts import Array

Point = tuple[float, float]
Colour = tuple[int, ...]
"""Red, green, blue and, optionally, opacity: 0 to 255 each."""
PAGE, PANEL, RULE, DIM, INK = (11, 16, 26), (22, 31, 46), (46, 60, 82), (138, 152, 174), (234, 240, 248)
BLUE, ORANGE, YELLOW, WHITE, BLACK = (64, 150, 255), (255, 148, 46), (255, 216, 96), (250, 252, 255), (4, 7, 12)
SIDES = (BLUE, ORANGE)
"""Colours of the two sides, distinguishable with colour blindness."""
SMOOTH = 4
"""Supersampling factor: shapes are drawn so many times larger, then reduced."""


def faded(colour: Colour, share: float) -> Colour:
    """The colour with an opacity of `share`."""
    return (*colour[:3], max(0, min(255, round(255 * share))))


def blended(one: Colour, other: Colour, share: float) -> Colour:
    """The colour `share` of the way from one to another."""
    share = max(0.0, min(1.0, share))
    return tuple(round(a + (b - a) * share) for a, b in zip(one[:3], other[:3], strict=True))


@dataclass(frozen=True)
class Camera:
    """Maps game coordinates, y upwards, to pixels, y downwards."""

    scale: float
    """Pixels per unit of length."""
    origin: Point
    """The pixel of (0, 0)."""

    def at(self, x: float, y: float) -> Point:
        """The pixel of a point."""
        return self.origin[0] + x * self.scale, self.origin[1] - y * self.scale

    def path(self, places: Iterable[Sequence[float]]) -> list[Point]:
        """The pixels of some points."""
        return [self.at(x, y) for x, y in places]


class Brush:
    """Draws antialiased shapes in a box (left, top, right, bottom) of an image, pasted when the `with` block ends."""

    def __init__(self, picture: Image.Image, box: tuple[float, float, float, float], smooth: int = SMOOTH) -> None:
        left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
        right, bottom = min(picture.width, math.ceil(box[2])), min(picture.height, math.ceil(box[3]))
        self._picture, self._corner, self._smooth = picture, (left, top), smooth
        self._seen = right > left and bottom > top
        self._part = picture.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        if smooth > 1:
            size = self._part.width * smooth, self._part.height * smooth
            self._part = self._part.resize(size, Image.Resampling.NEAREST)
        self._pen = ImageDraw.Draw(self._part, "RGBA")

    def __enter__(self) -> Brush:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seen and kind is None:
            part = self._part.reduce(self._smooth) if self._smooth > 1 else self._part
            self._picture.paste(part, self._corner)

    def polygon(self, points: Iterable[Point], fill: Colour) -> None:
        """Draw a filled polygon."""
        self._pen.polygon(self._own(points), fill=fill)

    def line(self, points: Sequence[Point], fill: Colour, width: float, closed: bool = False) -> None:
        """Draw a line with rounded corners, and with rounded ends if it is opaque."""
        own = self._own([*points, *points[:2]] if closed else points)
        self._pen.line(own, fill, max(1, round(width * self._smooth)), joint="curve")
        if len(fill) == 3 and width * self._smooth > 3 and not closed:
            for end in (own[0], own[-1]):
                self._disc(end, width * self._smooth / 2, fill)

    def disc(self, centre: Point, radius: float, fill: Colour) -> None:
        """Draw a filled circle."""
        self._disc(self._own([centre])[0], radius * self._smooth, fill)

    def ring(self, centre: Point, radius: float, fill: Colour, width: float, share: float = 1.0) -> None:
        """Draw a circle, or a share of one, clockwise from the top."""
        (x, y), reach = self._own([centre])[0], radius * self._smooth
        box, thick = (x - reach, y - reach, x + reach, y + reach), max(1, round(width * self._smooth))
        self._pen.arc(box, -90, -90 + 360 * share, fill, thick)

    def box(self, edges: tuple[float, float, float, float], fill: Colour, radius: float = 0.0) -> None:
        """Draw a filled rectangle with rounded corners."""
        (left, top), (right, bottom) = self._own([edges[:2], edges[2:]])
        if right >= left + 1 and bottom >= top + 1:
            self._pen.rounded_rectangle((left, top, right - 1, bottom - 1), radius * self._smooth, fill=fill)

    def _own(self, points: Iterable[Point]) -> list[Point]:
        left, top = self._corner
        return [((x - left) * self._smooth, (y - top) * self._smooth) for x, y in points]

    def _disc(self, centre: Point, radius: float, fill: Colour) -> None:
        x, y = centre
        self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


def around(points: Iterable[Point], margin: float) -> tuple[float, float, float, float]:
    """The bounding box of some points, with a margin."""
    xs, ys = zip(*points, strict=True)
    return min(xs) - margin, min(ys) - margin, max(xs) + margin, max(ys) + margin


def rounded(points: Sequence[Point], radius: float, closed: bool = True, pieces: int = 5) -> list[Point]:
    """A polygon or a line with rounded corners; each curve begins at most `radius` before its corner."""
    smooth: list[Point] = []
    for place, corner in enumerate(points):
        if not closed and place in (0, len(points) - 1):
            smooth.append(corner)
            continue
        ends = []
        for other in (points[place - 1], points[(place + 1) % len(points)]):
            away = math.dist(corner, other)
            share = min(radius / away, 0.5) if away else 0.0
            ends.append((corner[0] + (other[0] - corner[0]) * share, corner[1] + (other[1] - corner[1]) * share))
        for piece in range(pieces + 1):
            t = piece / pieces
            a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
            smooth.append(
                (
                    a * ends[0][0] + b * corner[0] + c * ends[1][0],
                    a * ends[0][1] + b * corner[1] + c * ends[1][1],
                )
            )
    return smooth


def turned(shape: Sequence[Point], at: Point, heading: Point) -> list[Point]:
    """A shape, x ahead and y to the left, moved to a point and rotated to a heading."""
    (hx, hy), (px, py) = heading, at
    return [(px + x * hx - y * hy, py + x * hy + y * hx) for x, y in shape]


def ribbon(points: Array, widths: Array) -> list[Point]:
    """The outline of a line [points, 2] with a half-width at each of its points."""
    along = np.gradient(points, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1) * widths[:, None]
    outline: list[Point] = [*map(tuple, (points + across).tolist()), *map(tuple, (points - across).tolist()[::-1])]
    return outline


def veil(
    picture: Image.Image, pieces: Sequence[tuple[Sequence[Point], float]], colour: Colour, blur: float = 0.0
) -> None:
    """Blend a colour over polygons, each with its own opacity; where they overlap, the later one counts."""
    box = around([point for points, _ in pieces for point in points], 2 + 3 * blur)
    left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
    right, bottom = min(picture.width, math.ceil(box[2])), min(picture.height, math.ceil(box[3]))
    if right <= left or bottom <= top:
        return
    mask = Image.new("L", ((right - left) * 2, (bottom - top) * 2), 0)
    pen = ImageDraw.Draw(mask)
    for points, share in pieces:
        pen.polygon([((x - left) * 2, (y - top) * 2) for x, y in points], fill=round(255 * share))
    mask = mask.reduce(2)
    if blur:
        mask = mask.filter(ImageFilter.GaussianBlur(blur))
    picture.paste(colour[:3], (left, top, right, bottom), mask)


LONG, WIDE = 2.1, 1.4
"""Half the length and half the width of a car."""
_BODY = rounded([(-LONG, -WIDE), (LONG, -WIDE * 0.8), (LONG, WIDE * 0.8), (-LONG, WIDE)], 0.75)
_PAINT = [(x * 0.93, y * 0.89) for x, y in _BODY]
_GLASS = rounded([(0.05, -WIDE * 0.66), (1.0, -WIDE * 0.5), (1.0, WIDE * 0.5), (0.05, WIDE * 0.66)], 0.3)
_TAIL = rounded([(-1.75, -WIDE * 0.62), (-0.75, -WIDE * 0.68), (-0.75, WIDE * 0.68), (-1.75, WIDE * 0.62)], 0.25)
_NOSE = rounded([(1.45, -WIDE * 0.55), (LONG, -WIDE * 0.45), (LONG, WIDE * 0.45), (1.45, WIDE * 0.55)], 0.2)
_WHEEL = rounded([(-0.5, -0.28), (0.5, -0.28), (0.5, 0.28), (-0.5, 0.28)], 0.2)


def paint_car(
    picture: Image.Image, camera: Camera, place: Point, heading: Point, colour: Colour, steer: float, size: float = 1.0
) -> None:
    """Draw a car from above, with its front wheels turned."""

    def placed(shape: Sequence[Point]) -> list[Point]:
        return camera.path(turned([(x * size, y * size) for x, y in shape], place, heading))

    body, drop = placed(_BODY), 0.45 * size * camera.scale
    with Brush(picture, around(body, 0.9 * size * camera.scale)) as brush:
        brush.polygon([(x + drop * 0.6, y + drop) for x, y in body], faded(BLACK, 0.5))
        for x in (-1.25, 1.25):
            angle = 0.4 * steer if x > 0 else 0.0
            for y in (-WIDE * 0.95, WIDE * 0.95):
                brush.polygon(placed(turned(_WHEEL, (x, y), (math.cos(angle), math.sin(angle)))), BLACK)
        brush.polygon(body, blended(colour, BLACK, 0.45))
        brush.polygon(placed(_PAINT), colour)
        brush.polygon(placed(_NOSE), blended(colour, WHITE, 0.6))
        brush.polygon(placed(_GLASS), (14, 22, 36))
        brush.polygon(placed(_TAIL), blended(colour, BLACK, 0.3))


def paint_flame(
    picture: Image.Image,
    camera: Camera,
    place: Point,
    heading: Point,
    colour: Colour,
    flicker: float,
    size: float = 1.0,
) -> None:
    """Draw the flame of the boost behind a car."""

    def placed(shape: Sequence[Point]) -> list[Point]:
        return camera.path(turned([(x * size, y * size) for x, y in shape], place, heading))

    flames = (
        (3.6, 1.05, faded(colour, 0.45)),
        (2.5, 0.8, faded(blended(colour, YELLOW, 0.6), 0.75)),
        (1.5, 0.45, WHITE),
    )
    whole = placed([(-LONG - 4.2, -1.3), (-LONG + 0.4, 1.3), (-LONG - 4.2, 1.3)])
    with Brush(picture, around(whole, 6)) as brush:
        for length, wide, fill in flames:
            tip = -LONG - length * flicker
            neck = -LONG - 0.35 * length
            outline = [(-LONG + 0.5, -wide), (neck, -wide), (tip, 0.0), (neck, wide), (-LONG + 0.5, wide)]
            brush.polygon(placed(rounded(outline, 0.8)), fill)


def paint_ball(
    picture: Image.Image, camera: Camera, place: Point, radius: float, rolled: float, lift: float = 0.0
) -> None:
    """Draw a ball from above; `rolled` turns its seam, and `lift` (0 to 1) moves its shadow away."""
    centre, radius = camera.at(*place), radius * camera.scale
    off = 1.0 + 6.0 * lift
    with Brush(picture, around([centre], radius * (1.4 + 0.3 * off))) as brush:
        for reach, share in ((1.28, 0.16), (1.12, 0.3)):
            shadow = centre[0] + radius * 0.16 * off, centre[1] + radius * 0.3 * off
            brush.disc(shadow, radius * reach, faded(BLACK, share))
        brush.disc(centre, radius, (150, 162, 182))
        brush.disc((centre[0] - radius * 0.05, centre[1] - radius * 0.06), radius * 0.93, (222, 229, 239))
        brush.disc((centre[0] - radius * 0.16, centre[1] - radius * 0.2), radius * 0.68, (243, 246, 251))
        brush.disc((centre[0] - radius * 0.28, centre[1] - radius * 0.34), radius * 0.32, WHITE)
        for turn in range(3):  # a seam that turns as the ball rolls
            angle = rolled + turn * 2 * math.pi / 3
            spot = centre[0] + math.cos(angle) * radius * 0.55, centre[1] + math.sin(angle) * radius * 0.55
            brush.disc(spot, radius * 0.13, faded((96, 112, 140), 0.55))


def paint_trail(picture: Image.Image, camera: Camera, way: Sequence[Sequence[float]], width: float) -> None:
    """Draw the path [points, 2] of a ball, wider and brighter towards its end."""
    places = np.array([place for k, place in enumerate(way) if not k or math.dist(place, way[k - 1]) > 0.05])
    if len(places) < 2:
        return
    pixels = np.array(camera.path(places.tolist()))
    widths = np.linspace(0.1, width, len(pixels)) * camera.scale
    edge, last = ribbon(pixels, widths), len(pixels) - 1
    pieces = []
    for piece in range(last):
        mirrored = len(edge) - 1 - piece
        quad = [edge[piece], edge[piece + 1], edge[mirrored - 1], edge[mirrored]]
        pieces.append((quad, 0.34 * ((piece + 1) / last) ** 2))
    veil(picture, pieces, WHITE)


def paint_tanks(picture: Image.Image, left: float, shares: Sequence[float]) -> None:
    """Draw the boost of each car, the first side's first, beside a field that begins at `left`, if there is space."""
    wide_picture, tall_picture = picture.size
    unit = tall_picture / 424
    if left < 34 * unit:
        return
    mates, height, wide = len(shares) // 2, tall_picture * 0.42, 9 * unit
    gap = min(24 * unit, (left - 10 * unit) / mates)
    top = tall_picture / 2 - height / 2
    for car, share in enumerate(shares):
        place = left * 0.5 + ((car % mates) - (mates - 1) / 2) * gap
        x = place if car < mates else wide_picture - place
        with Brush(picture, (x - wide, top - 2, x + wide, top + height + 2), 3) as brush:
            brush.box((x - wide / 2, top, x + wide / 2, top + height), PANEL, wide / 2)
            full = top + height * (1 - share)
            if share > 0.01:
                box = (x - wide / 2, min(full, top + height - wide), x + wide / 2, top + height)
                brush.box(box, SIDES[0 if car < mates else 1], wide / 2)
    for x in (left * 0.5, wide_picture - left * 0.5):
        write_text(picture, (x, top + height + 14 * unit), "boost", round(12 * unit), DIM, "mm")


@lru_cache(maxsize=64)
def font(size: int) -> Any:
    """Pillow's default font."""
    return ImageFont.load_default(max(size, 6))


def write_text(
    picture: Image.Image, at: Point, text: str, size: int, colour: Colour = INK, anchor: str = "lm", width: float = 0.0
) -> None:
    """Write a line of text, shortened to `width` pixels unless that is 0."""
    pen = ImageDraw.Draw(picture, "RGBA")
    if width and pen.textlength(text, font(size)) > width:
        while text and pen.textlength(text + "...", font(size)) > width:
            text = text[:-1]
        text += "..."
    pen.text((round(at[0]), round(at[1])), text, colour, font(size), anchor=anchor)
