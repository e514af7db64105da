"""Antialiased shapes: position, size and opacity."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.render.canvas import (
    BLACK,
    WHITE,
    Brush,
    Camera,
    around,
    blended,
    faded,
    paint_car,
    ribbon,
    rounded,
    turned,
    veil,
    write_text,
)


def light(picture: Image.Image) -> Array:
    """The share of each pixel that is covered by white on black."""
    return np.asarray(picture.convert("L"), float) / 255


def blank(width: int = 80, height: int = 40) -> Image.Image:
    """A black image."""
    return Image.new("RGB", (width, height), (0, 0, 0))


def test_discs_are_smooth() -> None:
    """A disc covers its area within 3 %, is centred, and has an antialiased edge."""
    picture = blank()
    with Brush(picture, (10, 5, 50, 35)) as brush:
        brush.disc((30.25, 20.5), 9.0, (255, 255, 255))
    covered = light(picture)
    assert covered.sum() == pytest.approx(np.pi * 81, rel=0.03)
    y, x = np.mgrid[0:40, 0:80] + 0.5
    assert (x * covered).sum() / covered.sum() == pytest.approx(30.25, abs=0.2)
    assert (y * covered).sum() / covered.sum() == pytest.approx(20.5, abs=0.2)
    assert ((covered > 0.1) & (covered < 0.9)).sum() > 20


def test_only_the_box_is_touched() -> None:
    """Pixels outside the brush's box stay as they are, and a box outside the image draws nothing."""
    picture = blank()
    with Brush(picture, (0, 0, 20, 40)) as brush:
        brush.box((0, 0, 80, 40), (255, 255, 255))
    assert light(picture)[:, :20].min() == 1 and light(picture)[:, 20:].max() == 0
    with Brush(picture, (500, 500, 600, 600)) as brush:
        brush.disc((550, 550), 20, (255, 255, 255))
    with Brush(picture, (-50, -50, -10, -10)) as brush:
        brush.disc((-20, -20), 5, (255, 255, 255))
    assert light(picture)[:, 20:].max() == 0


def test_boxes_lines_and_rings() -> None:
    """A box covers its area, a line its length times its width, half a ring half of the ring's area."""
    picture = blank()
    with Brush(picture, (0, 0, 80, 40)) as brush:
        brush.box((10, 10, 30.5, 20), (255, 255, 255))
        brush.box((5, 5, 5.1, 30), (255, 255, 255))
    assert light(picture).sum() == pytest.approx(205, rel=0.05)
    picture = blank()
    with Brush(picture, (0, 0, 80, 40)) as brush:
        brush.line([(10, 20), (60, 20)], (255, 255, 255, 255), 3)
    assert light(picture).sum() == pytest.approx(150, rel=0.1)
    halves = []
    for share in (0.5, 1.0):
        picture = blank()
        with Brush(picture, (0, 0, 80, 40)) as brush:
            brush.ring((40, 20), 15, (255, 255, 255), 3, share)
        halves.append(light(picture).sum())
    assert halves[0] == pytest.approx(halves[1] / 2, rel=0.05)


def test_veils_do_not_add_up() -> None:
    """Overlapping pieces of a veil do not add up, and a blurred veil reaches further."""
    square = [(10, 10), (30, 10), (30, 30), (10, 30)]
    picture = blank()
    veil(picture, [(square, 0.5), (square, 0.5)], WHITE)
    assert light(picture).max() == pytest.approx(0.5, abs=0.02)
    soft = blank()
    veil(soft, [(square, 0.5)], WHITE, blur=3)
    assert (light(soft) > 0.02).sum() > (light(picture) > 0.02).sum() + 100
    veil(picture, [([(900, 900), (910, 900), (905, 910)], 1.0)], WHITE)


def test_from_lengths_to_pixels() -> None:
    """y points upwards in games and downwards in images."""
    camera = Camera(2.0, (100.0, 50.0))
    assert camera.at(3, 4) == (106, 42)
    assert camera.path([(0, 0), (-1, -1)]) == [(100, 50), (98, 52)]
    assert around([(1, 2), (5, -3)], 1) == (0, -4, 6, 3)


def test_turning_and_rounding() -> None:
    """A shape ahead of a body that faces up lies above it; rounded corners stay inside the outline."""
    assert turned([(2.0, 0.0), (0.0, 1.0)], (10.0, 10.0), (0.0, 1.0)) == [(10, 12), (9, 10)]
    square = [(0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0)]
    bent = rounded(square, 1.0)
    assert all(0 <= x <= 4 and 0 <= y <= 4 for x, y in bent)
    assert (0.0, 1.0) in bent and (1.0, 0.0) in bent and (0.0, 0.0) not in bent
    assert rounded([(0.0, 0.0), (4.0, 0.0), (4.0, 4.0)], 1.0, closed=False)[0] == (0, 0)


def test_the_width_of_a_ribbon() -> None:
    """A ribbon along x has the given half-width on both sides at each point."""
    edge = ribbon(np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), np.array([1.0, 2.0, 3.0]))
    assert edge == [(0, 1), (1, 2), (2, 3), (2, -3), (1, -2), (0, -1)]


def test_colours() -> None:
    """Colours are blended and faded by a share."""
    assert blended((0, 0, 0), (200, 100, 50), 0.5) == (100, 50, 25)
    assert blended((0, 0, 0), (200, 100, 50), 7) == (200, 100, 50)
    assert faded((1, 2, 3), 0.5) == (1, 2, 3, 128)


def test_a_car_points_along_its_heading() -> None:
    """The bright nose is ahead of the middle for every heading."""
    for heading in ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)):
        picture = Image.new("RGB", (100, 100), BLACK)
        paint_car(picture, Camera(10.0, (50.0, 50.0)), (0.0, 0.0), heading, (64, 150, 255), 0.0)
        pale = np.asarray(picture)[..., 0] > 150
        y, x = (np.nonzero(pale)[axis].mean() for axis in (0, 1))
        assert ((x - 50) * heading[0] - (y - 50) * heading[1]) > 10


def test_text_is_shortened_to_a_width() -> None:
    """Text that does not fit is cut and ends with dots."""
    wide, cut = blank(400, 40), blank(400, 40)
    write_text(wide, (0, 20), "a very long name of somebody", 20, WHITE)
    write_text(cut, (0, 20), "a very long name of somebody", 20, WHITE, width=90)
    assert light(wide)[:, 150:].any() and not light(cut)[:, 92:].any() and light(cut)[:, :80].any()
