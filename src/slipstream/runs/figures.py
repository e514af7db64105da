"""Charts: lines, stacked shares, bars, rating ladders and payoff matrices, rendered as SVG or PNG.

A chart function turns values into a `Chart`, a list of shapes with style names. `to_svg` writes the shapes for an HTML
page, whose style sheet defines the colours, and adds tooltips with `<title>`. `save_png` draws the same shapes with
Pillow. The functions named after a chart (`lines`, `bars`, ...) return SVG, and `plot` writes PNG.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from slipstream.errors import ConfigError, MachineError
from slipstream.runs.display import human_count
from slipstream.runs.layout import write_bytes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8C6BB1")
"""Colours of styles c1 to c8 in PNG: distinguishable with colour blindness (after Okabe and Ito)."""
COLOURS = len(PALETTE)
PAGE, AXIS, GRID, INK, DIM = "#FFFFFF", "#B8C0C8", "#E8ECEF", "#1C2733", "#5B6875"
WIDTH, HEIGHT = 460, 210
NARROW, WIDE = 300, 940
POINTS = 300
"""Most points of a line in SVG."""
HITS = 60
"""Most places of an SVG chart that have a tooltip."""
NAME_LETTERS = 30
ROW = 26
CELL = 58
PNG_WIDTH, PANEL_HEIGHT, TITLE_HEIGHT, LEGEND_WIDTH, HEADING_HEIGHT = 1000, 230, 44, 176, 30
SCALE = 3
"""PNG shapes are drawn this much larger and then shrunk (anti-aliasing). Text is drawn afterwards and stays sharp."""

Point = tuple[float, float, float | None, float | None]
"""x, y, and the lower and upper end of the interval of y. A y of NaN is a gap."""
T = TypeVar("T")
Style = Literal["lines", "stairs", "dots", "bars"]


@dataclass(frozen=True)
class Line:
    """A named series of points, in the order of x."""

    name: str
    points: Sequence[Point]

    @classmethod
    def of(cls, name: str, x: Any, y: Any, low: Any = None, high: Any = None) -> Line:
        """A line from columns of the same length."""
        xs, ys = _column(x), _column(y)
        lows, highs = (_column(low), _column(high)) if low is not None else ([None] * len(xs), [None] * len(xs))
        return cls(name, list(zip(xs, ys, lows, highs, strict=True)))


@dataclass(frozen=True)
class Panel:
    """One chart of a PNG file: lines over a common x axis."""

    title: str
    lines: Sequence[Line]
    style: Style = "lines"
    """Connected points, values held until the next point, separate points, or vertical bars from zero."""
    along: str = ""
    """Name of the x axis."""


@dataclass(frozen=True)
class Mark:
    """An event at a place of the x axis."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Player:
    """A row of a ladder."""

    name: str
    rating: float
    low: float | None
    high: float | None
    words: tuple[str, ...] = ()
    """Texts of the columns behind the rating."""
    own: bool = False
    """Whether to highlight the name."""
    full: str = ""
    """The full name, if `name` is shortened."""


class Size(NamedTuple):
    """Size and margins of a chart in pixels."""

    width: int = WIDTH
    height: int = HEIGHT
    left: int = 46
    right: int = 12
    top: int = 14
    bottom: int = 24


PAGE_SIZE = Size()
"""A chart of an HTML page."""
PANEL = Size(PNG_WIDTH - LEGEND_WIDTH, PANEL_HEIGHT - HEADING_HEIGHT, 76, 14, 8, 24)
"""A chart of a PNG file, without its heading and its legend."""


class Shape(NamedTuple):
    """A shape with its style: `line`, `polyline`, `polygon`, `rect` (two corners), `circle`, `triangle` or `text`."""

    kind: str
    style: str
    points: Sequence[tuple[float, float]]
    text: str = ""
    anchor: str = "start"
    title: str = ""
    size: float = 0.0
    """Radius of a circle or of the corners of a rectangle."""
    opacity: float | None = None


class Group(NamedTuple):
    """Shapes with a common style and a common tooltip."""

    style: str
    title: str
    shapes: Sequence[Shape]


class Chart(NamedTuple):
    """Shapes on a canvas, and the names of the series in the order of their colours."""

    width: float
    height: float
    shapes: Sequence[Shape | Group]
    names: Sequence[str] = ()


def number(value: float | None) -> str:
    """Format a number with three significant digits, or with a unit letter from 10,000 on."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return human_count(value) if abs(value) >= 10_000 else f"{value:.0f}"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def short(name: str, letters: int = NAME_LETTERS) -> str:
    """Shorten a name: keep the last part of a path, and replace the middle of a long name by an ellipsis."""
    rest = name.partition(":")[2]
    if "/" in rest:
        name = rest.rstrip("/").rpartition("/")[2]
    if len(name) > letters:
        name = f"{name[: letters // 2 - 1]}…{name[-(letters - letters // 2) :]}"
    return name


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a range: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if span / (s * power) <= most)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Format ticks with a common unit letter and just enough decimals to be exact."""
    if not values:
        return []
    largest = max(abs(value) for value in values)
    units = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))
    unit, scale = next((one for one in units if largest < 10_000 * one[1]), ("", 0.0))
    if not scale or 0 < largest < 1e-3:
        return [f"{value:.3g}" for value in values]
    step = (values[1] - values[0] if len(values) > 1 else largest) / scale
    digits = 0
    while digits < 6 and any(abs(round(v / scale, digits) - v / scale) > 1e-6 * abs(step) for v in values):
        digits += 1
    texts = [(value, f"{value / scale:.{digits}f}") for value in values]
    return ["0" if float(text) == 0 else text + (unit if value else "") for value, text in texts]


def lines(
    series: Sequence[Line],
    marks: Sequence[Mark] = (),
    unit: str = "",
    held: bool = False,
    zero: bool = False,
    width: int = WIDTH,
    along: str = "steps",
) -> str:
    """A line chart with intervals as bands, as SVG; empty if no line has two points.

    With `held`, a value holds until the next point. With `zero`, the y axis includes 0.
    """
    drawn = [line for line in series if len(line.points) > 1]
    if not drawn:
        return ""
    chart = xy_chart(drawn, marks, unit, "stairs" if held else "lines", zero, Size(width), along)
    return to_svg(chart) + (legend(chart.names) if len(drawn) > 1 else "")


def stacked(series: Sequence[Line], marks: Sequence[Mark] = ()) -> str:
    """Shares stacked on top of each other, as SVG. All series have the same x."""
    drawn = [Line(line.name, _thin(line.points)) for line in series if len(line.points) > 1]
    if not drawn:
        return ""
    places = [p[0] for p in drawn[0].points]
    plane = _Plane(min(places), max(places), 0.0, 1.0)
    shapes: list[Shape | Group] = []
    below = [0.0] * len(places)
    for n, line in enumerate(drawn):
        above = [b + p[1] for b, p in zip(below, line.points, strict=True)]
        edge = plane.points(zip(places, above, strict=True))
        edge += plane.points(zip(reversed(places), reversed(below), strict=True))
        shapes.append(Shape("polygon", f"area c{n % COLOURS + 1}", edge))
        below = above
    shapes += [*plane.axes("%"), *plane.marks(marks), *plane.tooltips(drawn, "%", dots=False)]
    return to_svg(Chart(WIDTH, HEIGHT, shapes)) + legend([line.name for line in drawn])


def legend(names: Sequence[str]) -> str:
    """The legend of a chart as HTML."""
    items = "".join(
        f'<li><i class="swatch c{n % COLOURS + 1}"></i>{html.escape(short(name, 44))}</li>'
        for n, name in enumerate(names)
    )
    return f'<ul class="key">{items}</ul>'


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars (name, value, text) as SVG."""
    return to_svg(bar_chart(rows)) if rows else ""


def strip(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar of the parts (name, value, text) of a whole with its legend, as SVG."""
    whole = math.fsum(value for _, value, _ in parts)
    if not whole > 0:
        return ""
    shapes: list[Shape | Group] = []
    x = 0.0
    for n, (name, value, text) in enumerate(parts):
        width = value / whole * WIDE
        corners = [(x, 0.0), (x + max(0.5, width - 1.5), 26.0)]
        shapes.append(Shape("rect", f"area c{n % COLOURS + 1}", corners, title=f"{name}: {text}, {value / whole:.0%}"))
        x += width
    return to_svg(Chart(WIDE, 26, shapes)) + legend([f"{name} {text}" for name, _, text in parts])


def ladder(players: Sequence[Player], heads: Sequence[tuple[str, int]], anchor: float | None = None) -> str:
    """Ratings as dots with intervals, one row per player, as SVG; `heads` are names and widths of the columns."""
    return to_svg(ladder_chart(players, heads, anchor)) if players else ""


def heatmap(
    names: Sequence[str], score: Sequence[Sequence[float | None]], games: Sequence[Sequence[float | None]]
) -> str:
    """A payoff matrix as SVG: the score of the row's player against the column's, and the number of games."""
    return to_svg(payoff_chart(names, score, games)) if names else ""


def plot(path: Path, panels: Sequence[Panel], title: str = "") -> None:
    """Write panels below each other to a PNG file."""
    Figure(panels, title).save(path)


@dataclass(frozen=True, repr=False)
class Figure:
    """Panels below each other: shown by notebooks, and saved as a PNG file."""

    panels: Sequence[Panel]
    title: str = ""
    wide: bool = False
    """Whether the charts take the place of the legends."""

    def __repr__(self) -> str:
        return f"<Figure: {', '.join(panel.title for panel in self.panels)}>"

    def image(self) -> Any:
        """The figure as a Pillow image."""
        size = PANEL._replace(width=PNG_WIDTH - 10) if self.wide else PANEL
        charts = [
            (one.title, xy_chart(one.lines, style=one.style, size=size, along=one.along, most=2 * size.width))
            for one in self.panels
        ]
        return draw_charts(charts, self.title)

    def save(self, path: str | Path) -> None:
        """Write a PNG file."""
        if Path(path).suffix.lower() != ".png":
            raise ConfigError(f"A figure cannot be saved as `{path}`.", "give a file that ends in .png")
        save_image(self.image(), Path(path))

    def _repr_png_(self) -> bytes:
        """The image that a notebook shows."""
        return _png(self.image())


def xy_chart(
    series: Sequence[Line],
    marks: Sequence[Mark] = (),
    unit: str = "",
    style: Style = "lines",
    zero: bool = False,
    size: Size = PAGE_SIZE,
    along: str = "steps",
    most: int = POINTS,
) -> Chart:
    """Series over a common x axis with at most `most` points each. A value of NaN leaves a gap."""
    values = [v for line in series for p in line.points for v in p[1:] if v is not None and math.isfinite(v)]
    values += [0.0] * (zero or style == "bars")
    places = [p[0] for line in series for p in line.points]
    plane = _Plane.around(places, values, unit, size, along, wide=style == "bars")
    shapes: list[Shape | Group] = [*plane.axes(unit), *plane.marks(marks)]
    for n, line in enumerate(series):
        colour = f"c{n % COLOURS + 1}"
        if style == "bars":
            shapes += plane.columns(line, colour, n, len(series))
            continue
        banded = [(x, a, b) for x, _, a, b in _thin(line.points, most) if _finite(a) and _finite(b)]
        if len(banded) > 1:
            edge = plane.points((x, b) for x, _, b in banded)
            edge += plane.points((x, a) for x, a, _ in reversed(banded))
            shapes.append(Shape("polygon", f"band {colour}", edge))
        for run in _finite_runs(line.points):
            if len(run) == 1 or style == "dots":
                radius = 3.5 if len(run) == 1 else 2.5
                shapes += [Shape("circle", f"dot {colour}", [at], size=radius) for at in plane.points(_thin(run, most))]
                continue
            shown = _thin_peaks(run, most)
            corners = plane.points(_staircase(shown) if style == "stairs" else shown)
            shapes.append(Shape("polyline", f"line {colour}", corners))
    if places and most == POINTS:
        shapes += plane.tooltips(series, unit)
    return Chart(size.width, size.height, shapes, [line.name for line in series])


def bar_chart(rows: Sequence[tuple[str, float, str]]) -> Chart:
    """Horizontal bars from zero, to the right or to the left, each with its text."""
    low, high = min(0.0, *(v for _, v, _ in rows)), max(0.0, *(v for _, v, _ in rows))
    left, right, height = 190, 110, ROW * len(rows) + 8
    scale = (WIDTH - left - right) / ((high - low) or 1.0)
    zero = left - low * scale
    shapes: list[Shape | Group] = [Shape("line", "axis", [(zero, 2), (zero, height - 4)])]
    for n, (name, value, text) in enumerate(rows):
        y, start, end = 4 + n * ROW, min(zero, zero + value * scale), max(zero, zero + value * scale)
        corners = [(start, y + 4), (start + max(1.0, end - start), y + ROW - 6)]
        shapes.append(Shape("rect", f"bar {'c2' if value < 0 else 'c1'}", corners, size=2))
        shapes.append(_text(left - 8, y + ROW / 2 + 2, short(name, 26), "end", title=name))
        shapes.append(_text(end + 6, y + ROW / 2 + 2, text, style="dim"))
    return Chart(WIDTH, height, shapes)


def ladder_chart(
    players: Sequence[Player], heads: Sequence[tuple[str, int]], anchor: float | None = None, margin: float = 10.0
) -> Chart:
    """Ratings as dots with intervals, one row per player, with columns of text and at least `margin` on both sides."""
    reach = [v for p in players for v in (p.rating, p.low, p.high) if v is not None and math.isfinite(v)]
    low, high = min(reach), max(reach)
    margin = max(margin, 0.05 * (high - low))
    low, high = low - margin, high + margin
    left, right, height = 220, sum(width for _, width in heads) + 8, ROW * len(players) + 48
    ends = [WIDE - right + 8 + end for end in accumulate(width for _, width in heads)]
    scale = (WIDE - left - right) / (high - low)

    def x(rating: float) -> float:
        return left + (rating - low) * scale

    shapes: list[Shape | Group] = []
    values = ticks(low, high, 6)
    for value, label in zip(values, tick_labels(values), strict=True):
        shapes.append(Shape("line", "gridline", [(x(value), 20), (x(value), height - 22)]))
        shapes.append(_text(x(value), height - 6, label, "middle", "dim"))
    if anchor is not None and low <= anchor <= high:
        shapes.append(Shape("line", "anchor", [(x(anchor), 20), (x(anchor), height - 22)]))
    shapes += [_text(end, 13, head, "end", "dim") for end, (head, _) in zip(ends, heads, strict=True)]
    for n, player in enumerate(players):
        y = 24 + ROW * n + ROW / 2
        shapes.append(_text(left - 14, y + 4, short(player.name), "end", "own" if player.own else "", player.full))
        if player.low is not None and player.high is not None:
            shapes.append(Shape("line", "whisker c1", [(x(player.low), y), (x(player.high), y)]))
        tooltip = f"{player.name}: {player.rating:.0f}{_between(player.low, player.high)}"
        shapes.append(Shape("circle", "dot c1", [(x(player.rating), y)], title=tooltip, size=5))
        shapes += [_text(end, y + 4, word, "end") for end, word in zip(ends, player.words, strict=True)]
    return Chart(WIDE, height, shapes)


def payoff_chart(
    names: Sequence[str], score: Sequence[Sequence[float | None]], games: Sequence[Sequence[float | None]]
) -> Chart:
    """A matrix of scores between players, coloured by who scores more."""
    left, top, size = 220, 26, len(names)
    shapes: list[Shape | Group] = []
    for n, name in enumerate(names):
        shapes.append(_text(left + CELL * n + CELL / 2, top - 9, str(n + 1), "middle", "dim", name))
        shapes.append(_text(left - 14, top + 40 * n + 24, f"{n + 1}  {short(name, 26)}", "end", title=name))
    for a in range(size):
        for b in range(size):
            value, count = score[a][b], games[a][b]
            x, y = left + CELL * b, top + 40 * a
            corners = [(x, y), (x + CELL - 2, y + 38)]
            blank = Shape("rect", "blank", corners, size=3)
            if a == b or value is None or not count:
                shapes.append(blank)
                continue
            opacity = 0.06 + 0.56 * min(1.0, abs(value - 0.5) * 2)
            colour = Shape("rect", "won" if value >= 0.5 else "lost", corners, size=3, opacity=opacity)
            middle = x + CELL / 2 - 1
            texts = [
                _text(middle, y + 18, f"{value:.2f}", "middle"),
                _text(middle, y + 31, human_count(count), "middle", "tiny"),
            ]
            tooltip = f"{names[a]} against {names[b]}: score {value:.3f} in {count:,.0f} games"
            shapes.append(Group("", tooltip, [blank, colour, *texts]))
    return Chart(max(WIDTH, left + CELL * size + 8), top + 40 * size + 4, shapes)


@dataclass(frozen=True)
class _Plane:
    """The plane of a chart: the values at its edges."""

    first: float
    last: float
    low: float
    high: float
    size: Size = PAGE_SIZE
    along: str = "steps"
    wide: bool = False
    """Whether there is space for bars beside the first and the last place."""

    @classmethod
    def around(
        cls, places: Sequence[float], values: Sequence[float], unit: str, size: Size, along: str, wide: bool
    ) -> _Plane:
        """A plane with a margin around all points. A flat line is in the middle, and a share ends at 1."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        margin = 0.06 * (high - low) or max(0.5, abs(high) * 0.1)
        floor = 0.0 if 0 <= low < 0.4 * high else low - margin
        ceiling = 1.0 if unit == "%" and 0.9 < high <= 1 else high + margin
        first, last = (min(places), max(places)) if places else (0.0, 1.0)
        if wide and places:
            first, last = first - 0.6, last + 0.6
        return cls(first, last, floor, ceiling, size, along, wide)

    def x(self, place: float) -> float:
        """Pixels from the left."""
        inner = self.size.width - self.size.left - self.size.right
        return self.size.left + (place - self.first) / ((self.last - self.first) or 1.0) * inner

    def y(self, value: float) -> float:
        """Pixels from the top."""
        inner = self.size.height - self.size.top - self.size.bottom
        return self.size.height - self.size.bottom - (value - self.low) / (self.high - self.low) * inner

    def points(self, pairs: Any) -> list[tuple[float, float]]:
        """Pixels of pairs of x and y."""
        return [(self.x(place), self.y(value)) for place, value in pairs]

    def axes(self, unit: str) -> Iterator[Shape]:
        """Grid lines at round values, and ticks of the x axis."""
        size, values = self.size, ticks(self.low, self.high, 5)
        labels = [_value(v, unit) for v in values] if unit else tick_labels(values)
        for value, label in zip(values, labels, strict=True):
            y = self.y(value)
            yield Shape("line", "gridline", [(size.left, y), (size.width - size.right, y)])
            yield _text(size.left - 7, y + 4, label, "end", "dim")
        if self.low < 0 < self.high:
            yield Shape("line", "axis", [(size.left, self.y(0)), (size.width - size.right, self.y(0))])
        whole = self.wide or (float(self.first).is_integer() and float(self.last).is_integer())
        places = [p for p in ticks(self.first, self.last, size.width // 110) if not whole or float(p).is_integer()]
        for place, label in zip(places, tick_labels(places), strict=True):
            if self.x(place) < size.width - size.right - 60:
                yield _text(self.x(place), size.height - 6, label, "middle", "dim")
        end = self.along if self.wide else f"{number(self.last)} {self.along}"
        yield _text(size.width - size.right, size.height - 6, end, "end", "dim")

    def marks(self, marks: Sequence[Mark]) -> Iterator[Group]:
        """Thin vertical lines at events."""
        for mark in marks:
            if self.first <= mark.at <= self.last:
                x, top = self.x(mark.at), self.size.top
                tooltip = f"{number(mark.at)} {self.along}, {mark.kind}: {mark.text}"
                line = Shape("line", "", [(x, top), (x, self.size.height - self.size.bottom)])
                arrow = Shape("triangle", "", [(x - 4, top - 8), (x + 4, top - 8), (x, top - 1)])
                yield Group(f"mark {mark.kind}", tooltip, [line, arrow])

    def columns(self, line: Line, colour: str, n: int, count: int) -> Iterator[Shape]:
        """Vertical bars of one of several series, side by side."""
        places = sorted({point[0] for point in line.points})
        apart = min((b - a for a, b in pairwise(places)), default=1.0)
        width = 0.8 * apart / count
        for place, value, *_ in line.points:
            if _finite(value):
                left = place - 0.4 * apart + n * width
                yield Shape(
                    "rect", f"bar {colour}", self.points([(left, max(value, 0)), (left + width, min(value, 0))])
                )

    def tooltips(self, series: Sequence[Line], unit: str, dots: bool = True) -> Iterator[Group]:
        """Vertical strips that show the values at their place under the pointer."""
        places = _thin(sorted({p[0] for line in series for p in line.points}), HITS)
        found = [{p[0]: p for p in line.points} for line in series]
        edges = [self.x(places[0])]
        edges += [(self.x(a) + self.x(b)) / 2 for a, b in pairwise(places)] + [self.x(places[-1])]
        for place, (left, right) in zip(places, pairwise(edges), strict=True):
            texts, circles = [f"{number(place)} {self.along}"], []
            for n, (line, by_place) in enumerate(zip(series, found, strict=True)):
                point = by_place.get(place)
                if point is not None and _finite(point[1]):
                    head = f"{line.name}: " if len(series) > 1 else ""
                    texts.append(f"{head}{_value(point[1], unit)}{_between(point[2], point[3], unit)}")
                    circle = Shape("circle", f"dot c{n % COLOURS + 1}", self.points([(place, point[1])]), size=3.5)
                    circles += [circle] if dots else []
            strip_ = Shape("rect", "", [(left, self.size.top), (right, self.size.height - self.size.bottom)])
            yield Group("hit", "\n".join(texts), [strip_, *circles])


def _column(values: Any) -> list[float]:
    return np.asarray(values, np.float64).tolist()  # type: ignore[no-any-return]


def _finite(value: float | None) -> Any:
    return value is not None and math.isfinite(value)


def _value(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g} %"
    return number(value) + (f" {unit}" if unit else "")


def _between(low: float | None, high: float | None, unit: str = "") -> str:
    if low is None or high is None:
        return ""
    return f" [{_value(low, unit)}, {_value(high, unit)}]"


def _thin(points: Sequence[T], most: int = POINTS) -> list[T]:
    """At most `most` of the points, evenly spaced, including the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(n * (len(points) - 1) / (most - 1))] for n in range(most)]


def _thin_peaks(run: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points: the smallest and the largest of each of equal parts, in order, with both ends."""
    if len(run) <= most:
        return list(run)
    values = np.array([value for _, value in run])
    edges = np.linspace(0, len(run), most // 2 + 1).astype(int)
    kept: list[int] = []
    for start, end in pairwise(edges.tolist()):
        low, high = start + int(values[start:end].argmin()), start + int(values[start:end].argmax())
        kept += sorted((low, high))
    kept[0], kept[-1] = 0, len(run) - 1
    return [run[n] for n in kept]


def _finite_runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """The sections of a line without gaps."""
    runs = []
    for finite, group in groupby(points, key=lambda point: bool(_finite(point[1]))):
        if finite:
            runs.append([(x, y) for x, y, *_ in group])
    return runs


def _staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a line whose values hold until the next point."""
    corners = [points[0]]
    for before, after in pairwise(points):
        corners += [(after[0], before[1]), after]
    return corners


def _text(x: float, y: float, words: str, anchor: str = "start", style: str = "", title: str = "") -> Shape:
    return Shape("text", style, [(x, y)], words, anchor, title if title != words else "")


def to_svg(chart: Chart) -> str:
    """Render a chart as an SVG element; its colours come from the style sheet of the page."""
    inner = "".join(_svg_group(shape) if isinstance(shape, Group) else _svg_shape(shape) for shape in chart.shapes)
    style = f"max-width: {1.15 * chart.width:.0f}px"
    return f'<svg viewBox="0 0 {chart.width:.0f} {chart.height:.0f}" role="img" style="{style}">{inner}</svg>'


def _svg_group(group: Group) -> str:
    kind = f' class="{html.escape(group.style, quote=True)}"' if group.style else ""
    inner = "".join(_svg_shape(shape) for shape in group.shapes)
    return f"<g{kind}><title>{html.escape(group.title)}</title>{inner}</g>"


def _svg_shape(shape: Shape) -> str:
    kind = f' class="{shape.style}"' if shape.style else ""
    inner = f"<title>{html.escape(shape.title)}</title>" if shape.title else ""
    (x, y), *others = shape.points
    if shape.kind == "text":
        words = html.escape(shape.text)
        return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{shape.anchor}">{words}{inner}</text>'
    if shape.kind == "circle":
        return f'<circle{kind} cx="{x:.1f}" cy="{y:.1f}" r="{shape.size:g}">{inner}</circle>'
    if shape.kind == "line":
        ((x2, y2),) = others
        return f'<line{kind} x1="{x:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y2:.1f}"/>'
    if shape.kind == "rect":
        ((x2, y2),) = others
        corner = f' rx="{shape.size:g}"' if shape.size else ""
        corner += f' fill-opacity="{shape.opacity:.2f}"' if shape.opacity is not None else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{x2 - x:.1f}" height="{y2 - y:.1f}"'
        return f"<rect{kind} {place}{corner}>{inner}</rect>"
    if shape.kind == "triangle":
        return f'<path{kind} d="M{" L".join(f"{a:.1f} {b:.1f}" for a, b in shape.points)} z"/>'
    return f'<{shape.kind}{kind} points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in shape.points)}"/>'


def save_png(path: Path, charts: Sequence[tuple[str, Chart]], title: str = "") -> None:
    """Write charts with their headings below each other to a PNG file, with legends on the right."""
    save_image(draw_charts(charts, title), path)


def draw_charts(charts: Sequence[tuple[str, Chart]], title: str = "") -> Any:
    """Draw charts with their headings below each other as a Pillow image, with legends on the right."""
    from PIL import Image, ImageDraw

    widths = [chart.width + LEGEND_WIDTH * (len(chart.names) > 1) for _, chart in charts]
    width, top = int(max(PNG_WIDTH, *widths)), TITLE_HEIGHT if title else 8
    height = top + sum(HEADING_HEIGHT + int(chart.height) for _, chart in charts) + 8
    large = Image.new("RGB", (width * SCALE, height * SCALE), PAGE)
    brush = ImageDraw.Draw(large, "RGBA")
    texts: list[tuple[Shape, float]] = []
    headings: list[tuple[str, Chart, float]] = []
    for heading, chart in charts:
        headings.append((heading, chart, top))
        top += HEADING_HEIGHT
        for shape in _flat(chart.shapes):
            if shape.kind == "text":
                texts.append((shape, top))
            else:
                _draw_shape(brush, shape, top)
        top += int(chart.height)
    picture = large.resize((width, height), Image.Resampling.BOX)
    pen = ImageDraw.Draw(picture)
    if title:
        pen.text((PANEL.left, 14), fit_text(pen, title, width - PANEL.left - 8, 18), INK, font(18))
    for heading, chart, above in headings:
        pen.text((PANEL.left, above + 8), heading, INK, font(14))
        fitting = int(chart.height) // 20
        for n, name in enumerate(chart.names[:fitting] if len(chart.names) > 1 else ()):
            x, y = chart.width + 4, above + HEADING_HEIGHT + 16 + 20 * n
            pen.rectangle([x, y - 2, x + 18, y + 2], PALETTE[n % COLOURS])
            pen.text((x + 26, y), fit_text(pen, name, LEGEND_WIDTH - 34, 13), INK, font(13), anchor="lm")
    for shape, above in texts:
        ((x, y),) = shape.points
        colour, size = DIM if shape.style == "dim" else INK, 10 if shape.style == "tiny" else 12
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
        pen.text((x, y + above), shape.text, colour, font(size), anchor=anchor)
    return picture


def _flat(shapes: Sequence[Shape | Group]) -> Iterator[Shape]:
    """The shapes of a PNG chart: tooltips are left out, and marks keep their style."""
    for shape in shapes:
        if isinstance(shape, Shape):
            yield shape
        elif shape.style != "hit":
            yield from (one._replace(style=one.style or "mark") for one in shape.shapes)


def _draw_shape(brush: Any, shape: Shape, top: float) -> None:
    points = [(x * SCALE, (y + top) * SCALE) for x, y in shape.points]
    word, _, colour = shape.style.partition(" ")
    hue = PALETTE[int(colour[1:]) - 1] if colour else {"won": PALETTE[0], "lost": PALETTE[1], "blank": GRID}.get(word)
    if shape.kind == "polyline":
        brush.line(points, hue, 2 * SCALE - 1, joint="curve")
    elif shape.kind == "line":
        plain = {"gridline": GRID, "axis": AXIS, "anchor": DIM, "mark": AXIS}
        brush.line(points, plain.get(word) or f"{hue}73", 2 * SCALE + 1 if colour else SCALE)
    elif shape.kind == "circle":
        ((x, y),), radius = points, shape.size * SCALE
        brush.ellipse([x - radius, y - radius, x + radius, y + radius], fill=hue)
    elif shape.kind == "rect":
        (left, above), (right, below) = points
        alpha = "" if shape.opacity is None else f"{round(255 * shape.opacity):02x}"
        brush.rectangle([left, above, max(left, right - 1), max(above, below - 1)], fill=f"{hue}{alpha}")
    else:
        brush.polygon(points, fill=f"{hue}{'33' if word == 'band' else ''}" if hue else AXIS)


def font(size: int) -> Any:
    """Pillow's default font."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def fit_text(pen: Any, text: str, width: float, size: int) -> str:
    """Cut a text to a width in pixels."""
    if pen.textlength(text, font(size)) <= width:
        return text
    while text and pen.textlength(text + "...", font(size)) > width:
        text = text[:-1]
    return text + "..."


def _png(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def save_image(picture: Any, path: Path) -> None:
    """Write a Pillow image as PNG."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _png(picture))
    except OSError as error:
        raise MachineError(f"{path} could not be written: {error.strerror}.", "choose another file") from error
