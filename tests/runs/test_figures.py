"""Figures: round numbers, names that fit, and drawings that lie where they should."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from slipstream.runs.figures import (
    HITS,
    POINTS,
    Line,
    Mark,
    Player,
    bars,
    heat,
    ladder,
    lines,
    number,
    short,
    stacked,
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
    """Points as a polyline tells them."""
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
        "0", "0.123", "1500", "2.5M", "-", "-"
    ]  # fmt: skip
    assert short("run:runs/soccer/deep@1000") == "deep@1000" and short("scripted:rule") == "scripted:rule"
    assert short("a" * 20 + "b" * 20, 10) == "aaaa…bbbbb"


def test_one_point_is_no_line() -> None:
    """Nothing is drawn where there is nothing to connect."""
    assert lines([line(1)]) == "" and lines([]) == "" and stacked([line(1)]) == "" and bars([]) == ""
    assert ladder([], []) == "" and heat([], [], []) == "" and stripe([("a", 0.0, "")]) == ""


def test_a_line_goes_from_edge_to_edge() -> None:
    """Larger values are higher, later ones further right, and long lines are thinned out but keep their end."""
    picture = drawn(lines([line(10_000)], [Mark(5000, "alarm", "oh"), Mark(20_000, "alarm", "outside")]))
    (path,) = picture.iter("polyline")
    points = coordinates(path.attrib["points"])
    assert len(points) == POINTS and points == sorted(points) and points[0][1] > points[-1][1]
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
    """Negative values go left of where positive ones begin."""
    picture = drawn(bars([("up", 3.0, "3"), ("down", -1.0, "-1")]))
    up, down = (one.attrib for one in picture.iter("rect"))
    assert float(up["width"]) == pytest.approx(3 * float(down["width"]), abs=0.2)
    assert float(down["x"]) + float(down["width"]) == pytest.approx(float(up["x"]), abs=0.2)


def test_a_ladder_has_whiskers_where_they_are_known() -> None:
    """Better players are further right; one without an interval is a dot alone."""
    players = [Player("a", 1600, 1550, 1650, ("x",)), Player("b", 1500, None, None, ("y",))]
    picture = drawn(ladder(players, [("head", 60)], 1500))
    a, b = (float(one.attrib["cx"]) for one in picture.iter("circle"))
    (whisker,) = (one.attrib for one in picture.iter("line") if one.get("class") == "whisker c1")
    (anchor,) = (one.attrib for one in picture.iter("line") if one.get("class") == "anchor")
    assert float(whisker["x1"]) < a < float(whisker["x2"]) and b < a and float(anchor["x1"]) == b


def test_a_map_shows_who_takes_more() -> None:
    """Above a half is one colour, below another, and pairs that never met are blank."""
    picture = drawn(heat(["a", "b", "c"], [[None, 0.9, None], [0.1, None, 0.5], [None, 0.5, None]],
                         [[0, 10, 0], [10, 0, 4], [0, 4, 0]]))  # fmt: skip
    kinds = [one.get("class") for one in picture.iter("rect")]
    assert kinds.count("won") == 3 and kinds.count("lost") == 1 and kinds.count("blank") == 9
    assert "a against b: score 0.900 in 10 games" in [one.text for one in picture.iter("title")]
