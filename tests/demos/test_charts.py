"""Pictures: what is drawn stands where it should, in its colour, and an episode can be looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.demos import charts
from slipstream.demos.charts import COLOURS, Panel, plot, sheet, to_picture, view
from slipstream.demos.format import Schema
from slipstream.demos.reader import Demos
from slipstream.errors import MachineError

Write = Callable[..., Path]
IMAGES = ObsSpec((ObsField("eye", "image", (8, 10, 3)),))


def pixels(path: Path) -> Array:
    """The picture as numbers [height, width, 3]."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB")).astype(int)


def near(picture: Array, colour: str) -> Array:
    """Where a picture has a colour, about."""
    return np.abs(picture - np.array(ImageColor.getrgb(colour)[:3])).max(axis=-1) < 24


def drawn(path: Path, panel: Panel) -> Array:
    """The inside of one panel's frame."""
    plot(path, [panel])
    picture = pixels(path)
    return picture[8 + charts.TOP : 8 + charts.PANEL - charts.BOTTOM, charts.LEFT + 2 : -charts.RIGHT]


def test_a_line_goes_where_its_values_are(tmp_path: Path) -> None:
    """A rising line starts at the bottom left and ends at the top right; a second has a colour of its own."""
    box = drawn(tmp_path / "a.png", Panel("line", range(11), {"up": list(range(11)), "down": list(range(10, -1, -1))}))
    height, width = box.shape[:2]
    up, down = near(box, COLOURS[0]), near(box, COLOURS[1])
    assert up[: height // 4, -width // 4 :].any() and up[-height // 4 :, : width // 4].any()
    assert not up[: height // 4, : width // 4].any() and not up[-height // 4 :, -width // 4 :].any()
    assert down[: height // 4, : width // 4].any()
    middle = np.flatnonzero(up[:, width // 4])
    assert abs(middle.mean() / height - 0.73) < 0.03


def test_gaps(tmp_path: Path) -> None:
    """Nothing is drawn where there is no value; a single value is a dot."""
    values = [1.0, 1.0, 1.0, None, float("nan"), None, None, None, 1.0, None, None]
    columns = near(drawn(tmp_path / "a.png", Panel("line", range(11), {"y": values})), COLOURS[0]).any(axis=0)
    width = len(columns)
    assert columns[: width // 6].all()
    assert not columns[width // 4 : width * 3 // 4].any()
    assert 3 <= columns[width * 3 // 4 : width * 17 // 20].sum() <= 9
    assert not columns[width * 17 // 20 :].any()


def test_a_band_is_a_pale_area(tmp_path: Path) -> None:
    """The interval around a line is filled with its colour, paler."""
    ones = np.ones(5)
    box = drawn(tmp_path / "a.png", Panel("line", range(5), {"y": ones}, {"y": (ones - 1, ones + 1)}))
    pale = near(box, "#CCE3F0")
    assert pale[:, box.shape[1] // 2].mean() > 0.7
    assert near(box, COLOURS[0])[box.shape[0] // 2 - 3 : box.shape[0] // 2 + 3].any()


def test_bars_are_as_high_as_their_values(tmp_path: Path) -> None:
    """Bars stand on zero; those of several labels stand side by side."""
    box = near(drawn(tmp_path / "a.png", Panel("bars", range(4), {"n": [4, 2, 0, 4]}, style="bars")), COLOURS[0])
    heights = box.sum(axis=0)
    width = len(heights)
    first, second, third = (int(heights[int(width * (n + 0.6) / 4.2)]) for n in range(3))
    assert second == pytest.approx(first / 2, abs=2)
    assert third <= 1
    both = drawn(tmp_path / "b.png", Panel("bars", range(2), {"n": [1, 2], "m": [2, 1]}, style="bars"))
    assert near(both, COLOURS[0]).sum() == pytest.approx(near(both, COLOURS[1]).sum(), rel=0.05)
    assert not (near(both, COLOURS[0]).any(axis=0) & near(both, COLOURS[1]).any(axis=0)).any()


def test_long_series_keep_their_peaks(tmp_path: Path) -> None:
    """Of a million values one peak is still seen, and drawing takes no longer for the rest."""
    values = np.zeros(1_000_000)
    values[777_777] = 1.0
    box = near(drawn(tmp_path / "a.png", Panel("line", np.arange(len(values)), {"y": values})), COLOURS[0])
    assert box[: box.shape[0] // 4].any()
    dots = drawn(tmp_path / "b.png", Panel("dots", np.arange(len(values)), {"y": values}, style="dots"))
    assert near(dots, COLOURS[0]).any()


@pytest.mark.parametrize(
    "panel",
    [
        Panel("nothing", [], {}),
        Panel("no values", [], {"y": []}),
        Panel("all gaps", [0, 1], {"y": [None, None]}),
        Panel("one", [3], {"y": [1e-7]}),
        Panel("flat", [0, 1], {"y": [5, 5]}, style="stairs"),
        Panel("huge", [0, 1e12], {"y": [-3e30, 3e30]}),
        Panel("bars of nothing", [], {"y": []}, style="bars"),
        Panel("many", [0, 1], {f"a rather long name of a line {n}": [n, n] for n in range(20)}),
    ],
    ids=lambda panel: panel.title,
)
def test_odd_panels(tmp_path: Path, panel: Panel) -> None:
    """Whatever the values, there is a picture of the right size."""
    plot(tmp_path / "a.png", [panel, panel], "a title " * 40)
    assert pixels(tmp_path / "a.png").shape == (charts.TITLE + 2 * charts.PANEL + 8, charts.WIDTH, 3)


def test_ticks_are_round_and_told_apart() -> None:
    """Ticks are round numbers within the range, written with no more digits than tell them apart."""
    for low, high in ((0, 1), (-3.7, 12.2), (0.00011, 0.00013), (1e6, 5e6), (99.5, 100.5), (-2e-5, 1e-5)):
        ticks = charts._ticks(low, high, 5)
        assert 3 <= len(ticks) <= 11
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
        texts = [charts._tick_text(tick, ticks) for tick in ticks]
        assert len(set(texts)) == len(texts)
        assert max(map(len, texts)) <= 8
    assert [charts._tick_text(t, [0, 50_000, 100_000]) for t in (0, 50_000, 100_000)] == ["0", "50k", "100k"]
    assert [charts._tick_text(t, [0, 0.5, 1.0]) for t in (0, 0.5, 1.0)] == ["0", "0.5", "1.0"]


def test_a_sheet_shows_its_frames(tmp_path: Path) -> None:
    """Small frames are enlarged pixel by pixel, in rows, each with its label below."""
    frames = [np.full((10, 20, 3), [25 * n, 0, 255], np.uint8) for n in range(5)]
    sheet(tmp_path / "a.png", frames, [f"step {n}" for n in range(5)], columns=3)
    picture = pixels(tmp_path / "a.png")
    assert picture.shape[1] == 8 + 3 * (160 + 8)
    for number in range(5):
        x, y = 8 + number % 3 * 168, 8 + number // 3 * (80 + 30)
        assert (picture[y : y + 80, x : x + 160] == [25 * number, 0, 255]).all()
        label = picture[y + 80 : y + 102, x : x + 160]
        assert (label.min(axis=-1) < 160).any(), "there is a label"


def test_large_and_grey_frames(tmp_path: Path) -> None:
    """Large frames are shrunk until they fit, and grey ones are grey."""
    sheet(tmp_path / "a.png", [np.full((720, 1280), 90, np.uint8)] * 6, [str(n) for n in range(6)])
    picture = pixels(tmp_path / "a.png")
    assert picture.shape[1] <= charts.SHEET + 7 * 8
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
    assert set(panels[1].lines) == {"all", "goal", "touch"}
    assert np.allclose(panels[1].lines["all"], np.cumsum(values["reward"]), atol=1e-4)
    assert np.array_equal(panels[2].lines["action 1"], values["action"][:, 1])
    assert np.array_equal(panels[3].lines["obs 2"], values["obs"][:-1, 2])
    assert pixels(tmp_path / "a.png").shape[0] == charts.TITLE + 4 * charts.PANEL + 8
    wide = replace(plain, action=ActionSpec("continuous", (), (-1.0,) * 20, (1.0,) * 20))
    panels = charts.episode_panels(Demos.open(write("wide", schema=wide)), 0)
    assert [panel.title for panel in panels][2:] == ["the first 8 of 20 actions", "observations"]
    single = charts.episode_panels(Demos.open(write("single")), 0)
    counts = next(panel for panel in single if panel.style == "bars")
    assert np.sum(list(counts.lines["action"])) == 40


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    """The file and the reason are named, and folders on the way are made."""
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match=r"a\.png could not be written"):
        plot(tmp_path / "file" / "a.png", [Panel("line", [0, 1], {"y": [0, 1]})])
    plot(tmp_path / "on" / "the" / "way.png", [Panel("line", [0, 1], {"y": [0, 1]})])
    assert (tmp_path / "on" / "the" / "way.png").exists()
