"""Charts: round ticks, short names, and shapes at the right place in SVG and in PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image, ImageColor

from slipstream.contracts import Array
from slipstream.errors import MachineError
from slipstream.runs import figures
from slipstream.runs.figures import (
    HITS,
    PALETTE,
    PANEL,
    POINTS,
    Line,
    Mark,
    Panel,
    Player,
    Style,
    bars,
    heatmap,
    ladder,
    lines,
    number,
    plot,
    short,
    stacked,
    tick_labels,
    ticks,
)
from slipstream.runs.figures import strip as stripe


def line(count: int) -> Line:
    """A straight line of so many points."""
    return Line("name", [(float(n), 2.0 * n, None, None) for n in range(count)])


def drawn(text: str) -> ElementTree.Element:
    """A drawing and its legend as one element."""
    return ElementTree.fromstring(f"<div>{text}</div>")


def coordinates(text: str) -> list[tuple[float, float]]:
    """The points of a polyline."""
    return [(float(x), float(y)) for x, y in (point.split(",") for point in text.split())]


def test_ticks_are_round_and_inside() -> None:
    """Steps of 1, 2, 2.5 or 5; one value has one tick."""
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0, 1.0, 4) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert ticks(-3, 7, 4) == pytest.approx([-2.5, 0, 2.5, 5])
    assert ticks(5, 5) == [5]


def test_numbers_and_names_are_short() -> None:
    """Thousands stay whole, millions get a letter; of a path the last part is left."""
    assert [number(x) for x in (0.0, 0.12345, 1500.4, 2_500_000.0, float("nan"), None)] == [
        "0",
        "0.123",
        "1500",
        "2.5M",
        "-",
        "-",
    ]
    assert short("run:runs/soccer/deep@1000") == "deep@1000" and short("scripted:rule") == "scripted:rule"
    assert short("a" * 20 + "b" * 20, 10) == "aaaa…bbbbb"


def test_one_point_is_no_line() -> None:
    """A line without two points is not drawn."""
    assert lines([line(1)]) == "" and lines([]) == "" and stacked([line(1)]) == "" and bars([]) == ""
    assert ladder([], []) == "" and heatmap([], [], []) == "" and stripe([("a", 0.0, "")]) == ""


def test_a_line_goes_from_edge_to_edge() -> None:
    """Larger values are higher, later ones further right, and long lines are thinned out but keep their end."""
    picture = drawn(lines([line(10_000)], [Mark(5000, "alarm", "oh"), Mark(20_000, "alarm", "outside")]))
    (path,) = picture.iter("polyline")
    points = coordinates(path.attrib["points"])
    across, up = zip(*points, strict=True)
    assert len(points) == POINTS and list(across) == sorted(across) and list(up) == sorted(up, reverse=True)
    assert points[0][0] == 46 and points[-1][0] == 448
    hits = [one for one in picture.iter("g") if one.get("class") == "hit"]
    assert len(hits) == HITS and hits[-1].findtext("title") == "9999 steps\n20k"
    assert [one.findtext("title") for one in picture.iter("g") if one.get("class") == "mark alarm"] == [
        "5000 steps, alarm: oh"
    ]


def test_bands_and_stairs() -> None:
    """Intervals are bands around the line; a held value makes corners."""
    banded = Line("x", [(0.0, 1.0, 0.5, 1.5), (1.0, 2.0, 1.5, 2.5), (2.0, 2.0, None, None)])
    picture = drawn(lines([banded], held=True))
    assert len(coordinates(next(picture.iter("polygon")).attrib["points"])) == 4
    corners = coordinates(next(picture.iter("polyline")).attrib["points"])
    assert len(corners) == 5 and corners[0][1] == corners[1][1] and corners[1][0] == corners[2][0]


def test_shares_fill_the_plane() -> None:
    """The last of stacked shares that sum to one ends at the top."""
    parts = [Line(name, [(n, 0.5, None, None) for n in range(3)]) for name in "ab"]
    first, second = (coordinates(one.attrib["points"]) for one in drawn(stacked(parts)).iter("polygon"))
    assert min(y for _, y in second) == 14 and max(y for _, y in first) == 186
    assert {y for _, y in first} & {y for _, y in second} == {100}


def test_bars_grow_from_zero_both_ways() -> None:
    """Negative bars extend to the left of positive ones."""
    picture = drawn(bars([("up", 3.0, "3"), ("down", -1.0, "-1")]))
    up, down = (one.attrib for one in picture.iter("rect"))
    assert float(up["width"]) == pytest.approx(3 * float(down["width"]), abs=0.2)
    assert float(down["x"]) + float(down["width"]) == pytest.approx(float(up["x"]), abs=0.2)


def test_a_ladder_has_whiskers_where_they_are_known() -> None:
    """Better players are further right; a player without an interval is only a dot."""
    players = [Player("a", 1600, 1550, 1650, ("x",)), Player("b", 1500, None, None, ("y",))]
    picture = drawn(ladder(players, [("head", 60)], 1500))
    a, b = (float(one.attrib["cx"]) for one in picture.iter("circle"))
    (whisker,) = (one.attrib for one in picture.iter("line") if one.get("class") == "whisker c1")
    (anchor,) = (one.attrib for one in picture.iter("line") if one.get("class") == "anchor")
    assert float(whisker["x1"]) < a < float(whisker["x2"]) and b < a and float(anchor["x1"]) == b


def test_a_map_shows_who_takes_more() -> None:
    """Above a half is one colour, below another, and pairs that never met are blank."""
    picture = drawn(
        heatmap(
            ["a", "b", "c"],
            [[None, 0.9, None], [0.1, None, 0.5], [None, 0.5, None]],
            [[0, 10, 0], [10, 0, 4], [0, 4, 0]],
        )
    )
    kinds = [one.get("class") for one in picture.iter("rect")]
    assert kinds.count("won") == 3 and kinds.count("lost") == 1 and kinds.count("blank") == 9
    assert "a against b: score 0.900 in 10 games" in [one.text for one in picture.iter("title")]


def pixels(path: Path) -> Array:
    """The pixels of a PNG file [height, width, 3]."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB")).astype(int)


def near(picture: Array, colour: str) -> Array:
    """The pixels of an image that are close to a colour."""
    return np.abs(picture - np.array(ImageColor.getrgb(colour)[:3])).max(axis=-1) < 24


def panel(title: str, x: Any, columns: dict[str, Any], style: Style = "lines") -> Panel:
    """A panel from columns."""
    return Panel(title, [Line.of(name, x, column) for name, column in columns.items()], style)


def plotted(path: Path, one: Panel) -> Array:
    """The inside of the axes of one panel."""
    plot(path, [one])
    top = 8 + figures.HEADING_HEIGHT
    return pixels(path)[top + PANEL.top : top + PANEL.height - PANEL.bottom, PANEL.left + 2 : PANEL.width - PANEL.right]


def test_a_line_goes_where_its_values_are(tmp_path: Path) -> None:
    """A rising line starts at the bottom left and ends at the top right; a second line has another colour."""
    box = plotted(
        tmp_path / "a.png", panel("line", range(11), {"up": list(range(11)), "down": list(range(10, -1, -1))})
    )
    height, width = box.shape[:2]
    up, down = near(box, PALETTE[0]), near(box, PALETTE[1])
    assert up[: height // 4, -width // 4 :].any() and up[-height // 4 :, : width // 4].any()
    assert not up[: height // 4, : width // 4].any() and not up[-height // 4 :, -width // 4 :].any()
    assert down[: height // 4, : width // 4].any()
    middle, _ = np.nonzero(up[:, width // 4 - 4 : width // 4 + 5])
    assert abs(middle.mean() / height - 0.76) < 0.03


def test_gaps(tmp_path: Path) -> None:
    """Gaps are not drawn, and a single value is a dot."""
    values = [1.0, 1.0, 1.0, None, float("nan"), None, None, None, 1.0, None, None]
    columns = near(plotted(tmp_path / "a.png", panel("line", range(11), {"y": values})), PALETTE[0]).any(axis=0)
    width = len(columns)
    assert columns[: width // 6].all()
    assert not columns[width // 4 : width * 3 // 4].any()
    assert 3 <= columns[width * 3 // 4 : width * 17 // 20].sum() <= 9
    assert not columns[width * 17 // 20 :].any()


def test_a_band_is_a_pale_area(tmp_path: Path) -> None:
    """The interval around a line is filled with its colour, paler."""
    ones = np.ones(5)
    box = plotted(tmp_path / "a.png", Panel("line", [Line.of("y", range(5), ones, ones - 1, ones + 1)]))
    pale = near(box, "#CCE3F0")
    assert pale[:, box.shape[1] // 2].mean() > 0.7
    assert near(box, PALETTE[0])[round(box.shape[0] * (1 - 1 / 2.12)) + np.arange(-3, 4)].any()


def test_bars_are_as_high_as_their_values(tmp_path: Path) -> None:
    """Bars start at zero; bars of several labels are side by side."""
    box = near(plotted(tmp_path / "a.png", panel("bars", range(4), {"n": [4, 2, 0, 4]}, style="bars")), PALETTE[0])
    heights = box.sum(axis=0)
    width = len(heights)
    first, second, third = (int(heights[int(width * (n + 0.6) / 4.2)]) for n in range(3))
    assert second == pytest.approx(first / 2, abs=2)
    assert third <= 1
    both = plotted(tmp_path / "b.png", panel("bars", range(2), {"n": [1, 2], "m": [2, 1]}, style="bars"))
    assert near(both, PALETTE[0]).sum() == pytest.approx(near(both, PALETTE[1]).sum(), rel=0.05)
    assert not (near(both, PALETTE[0]).any(axis=0) & near(both, PALETTE[1]).any(axis=0)).any()


@pytest.mark.slow
def test_long_series_keep_their_peaks(tmp_path: Path) -> None:
    """One peak among a million values is visible, and drawing is not slower."""
    values = np.zeros(1_000_000)
    values[777_777] = 1.0
    box = near(plotted(tmp_path / "a.png", panel("line", np.arange(len(values)), {"y": values})), PALETTE[0])
    assert box[: box.shape[0] // 4].any()
    dots = plotted(tmp_path / "b.png", panel("dots", np.arange(len(values)), {"y": values}, style="dots"))
    assert near(dots, PALETTE[0]).any()


@pytest.mark.parametrize(
    "one",
    [
        panel("nothing", [], {}),
        panel("no values", [], {"y": []}),
        panel("all gaps", [0, 1], {"y": [None, None]}),
        panel("one", [3], {"y": [1e-7]}),
        panel("flat", [0, 1], {"y": [5, 5]}, style="stairs"),
        panel("huge", [0, 1e12], {"y": [-3e30, 3e30]}),
        panel("bars of nothing", [], {"y": []}, style="bars"),
        panel("many", [0, 1], {f"a rather long name of a line {n}": [n, n] for n in range(20)}),
    ],
    ids=lambda one: one.title,
)
def test_odd_panels(tmp_path: Path, one: Panel) -> None:
    """Any values give an image of the right size."""
    plot(tmp_path / "a.png", [one, one], "a title " * 40)
    assert pixels(tmp_path / "a.png").shape == (
        figures.TITLE_HEIGHT + 2 * figures.PANEL_HEIGHT + 8,
        figures.PNG_WIDTH,
        3,
    )


def test_tick_labels_are_distinct() -> None:
    """Ticks are within the range, and their labels are short and distinct."""
    for low, high in ((0, 1), (-3.7, 12.2), (0.00011, 0.00013), (1e6, 5e6), (99.5, 100.5), (-2e-5, 1e-5)):
        found = ticks(low, high, 5)
        assert 3 <= len(found) <= 11
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
        texts = tick_labels(found)
        assert len(set(texts)) == len(texts)
        assert max(map(len, texts)) <= 8
    assert tick_labels([0, 50_000, 100_000]) == ["0", "50k", "100k"]
    assert tick_labels([0, 0.5, 1.0]) == ["0", "0.5", "1.0"]
    assert tick_labels([0, 2.5, 5.0]) == ["0", "2.5", "5.0"]


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    """An error names the file and the reason, and missing folders are created."""
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match=r"a\.png could not be written"):
        plot(tmp_path / "file" / "a.png", [panel("line", [0, 1], {"y": [0, 1]})])
    plot(tmp_path / "on" / "the" / "way.png", [panel("line", [0, 1], {"y": [0, 1]})])
    assert (tmp_path / "on" / "the" / "way.png").exists()
