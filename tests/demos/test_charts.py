"""PNG views of episodes: plots of numbers and contact sheets of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.demos import charts
from slipstream.demos.charts import contact_sheet, to_picture, view
from slipstream.demos.format import Schema
from slipstream.demos.reader import Demos
from slipstream.runs.figures import PANEL_HEIGHT, TITLE_HEIGHT, Panel

Write = Callable[..., Path]
IMAGES = ObsSpec((ObsField("eye", "image", (8, 10, 3)),))


def pixels(path: Path) -> Array:
    """The pixels of a PNG file [height, width, 3]."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB")).astype(int)


def column(panel: Panel, name: str) -> list[float]:
    """The values of one line of a panel."""
    (line,) = (line for line in panel.lines if line.name == name)
    return [point[1] for point in line.points]


def test_a_sheet_shows_its_frames(tmp_path: Path) -> None:
    """Small frames are enlarged pixel by pixel, in rows, each with its label below."""
    frames = [np.full((10, 20, 3), [25 * n, 0, 255], np.uint8) for n in range(5)]
    contact_sheet(tmp_path / "a.png", frames, [f"step {n}" for n in range(5)], columns=3)
    picture = pixels(tmp_path / "a.png")
    assert picture.shape[1] == 8 + 3 * (160 + 8)
    for number in range(5):
        x, y = 8 + number % 3 * 168, 8 + number // 3 * (80 + 30)
        assert (picture[y : y + 80, x : x + 160] == [25 * number, 0, 255]).all()
        label = picture[y + 80 : y + 102, x : x + 160]
        assert (label.min(axis=-1) < 160).any(), "there is a label"


def test_large_and_grey_frames(tmp_path: Path) -> None:
    """Large frames are shrunk until they fit, and grey ones are grey."""
    contact_sheet(tmp_path / "a.png", [np.full((720, 1280), 90, np.uint8)] * 6, [str(n) for n in range(6)])
    picture = pixels(tmp_path / "a.png")
    assert picture.shape[1] <= charts.SHEET_WIDTH + 7 * 8
    assert (picture[40, 40] == 90).all()


@pytest.mark.parametrize(("channels", "shape"), [(1, (4, 6)), (3, (4, 6, 3)), (4, (4, 6)), (12, (4, 6, 3))])
def test_stacked_frames(channels: int, shape: tuple[int, ...]) -> None:
    """Of stacked frames the newest is shown: in colour by threes, grey by ones."""
    image = np.arange(4 * 6 * channels, dtype=np.uint8).reshape(4, 6, channels)
    shown = to_picture(image)
    assert shown.shape == shape
    assert np.array_equal(shown.reshape(4, 6, -1)[..., -1], image[..., -1])


def test_an_episode_seen_in_images(write: Write, plain: Schema, tmp_path: Path) -> None:
    """Its frames are spread evenly over it, the first and the last among them."""
    demos = Demos.open(write(schema=replace(plain, obs=IMAGES), steps=100))
    assert view(demos, 1, tmp_path / "a.png") == "sheet"
    picture = pixels(tmp_path / "a.png")
    frames = IMAGES.split(demos.episode(1)["obs"])["eye"]
    scale = 16
    assert np.array_equal(picture[44 : 44 + 8 * scale : scale, 8 : 8 + 10 * scale : scale], frames[0])
    y, x = 44 + 3 * (8 * scale + 30), 8 + 5 * (10 * scale + 8)
    assert np.array_equal(picture[y : y + 8 * scale : scale, x : x + 10 * scale : scale], frames[-1])


def test_an_episode_in_numbers(write: Write, everything: Schema, plain: Schema, tmp_path: Path) -> None:
    """Rewards, terms, actions and the first observations are drawn, over the steps of the episode."""
    demos = Demos.open(write(schema=replace(everything, obs=plain.obs), steps=100))
    assert view(demos, 0, tmp_path / "a.png") == "plot"
    panels = charts.episode_panels(demos, 0)
    assert [panel.title for panel in panels] == ["reward", "reward so far", "actions", "observations"]
    values = demos.episode(0)
    assert {line.name for line in panels[1].lines} == {"all", "goal", "touch"}
    assert np.allclose(column(panels[1], "all"), np.cumsum(values["reward"]), atol=1e-4)
    assert np.array_equal(column(panels[2], "action 1"), values["action"][:, 1])
    assert np.array_equal(column(panels[3], "obs 2"), values["obs"][:-1, 2])
    assert pixels(tmp_path / "a.png").shape[0] == TITLE_HEIGHT + 4 * PANEL_HEIGHT + 8
    wide = replace(plain, action=ActionSpec("continuous", (), (-1.0,) * 20, (1.0,) * 20))
    panels = charts.episode_panels(Demos.open(write("wide", schema=wide)), 0)
    assert [panel.title for panel in panels][2:] == ["the first 8 of 20 actions", "observations"]
    single = charts.episode_panels(Demos.open(write("single")), 0)
    counts = next(panel for panel in single if panel.style == "bars")
    assert np.sum(column(counts, "action")) == 40
