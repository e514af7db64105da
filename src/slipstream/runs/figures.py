"""Figures for pages: lines, stacks, bars, intervals and maps as SVG that needs no script.

Colours are classes, so that the page's style decides about light, dark and paper. What lies under the pointer is told
by `<title>`, which every browser shows.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from slipstream.runs.display import human_count

WIDTH, HEIGHT = 460, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 24
POINTS = 300
"""Most points of a drawn line."""
HITS = 60
"""Most places of a figure that tell their values."""
COLOURS = 8
"""Classes c1 to c8 of the style."""
NAME_LETTERS = 30
NARROW, WIDE = 300, 940
ROW = 26
CELL = 58

Point = tuple[float, float, float | None, float | None]
"""Where, how much, and from where to where its interval reaches, if it has one."""


@dataclass(frozen=True)
class Line:
    """A named series of points, in order."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Mark:
    """Something that happened at a place of the x axis."""

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
    """What stands behind it, one text per column."""
    own: bool = False
    full: str = ""
    """The whole name, where that is a longer one."""


def number(value: float | None) -> str:
    """A number in few letters."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return human_count(value) if abs(value) >= 10_000 else f"{value:.0f}"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def short(name: str, letters: int = NAME_LETTERS) -> str:
    """A name that fits: of a path the last part, and the middle left out."""
    rest = name.partition(":")[2]
    if "/" in rest:
        name = rest.rstrip("/").rpartition("/")[2]
    if len(name) > letters:
        name = f"{name[: letters // 2 - 1]}…{name[-(letters - letters // 2) :]}"
    return name


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two others: the ends of steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if span / (s * power) <= most)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def lines(
    series: Sequence[Line], marks: Sequence[Mark] = (), unit: str = "", held: bool = False, zero: bool = False,
    width: int = WIDTH, along: str = "steps",
) -> str:  # fmt: skip
    """Lines along an axis with their intervals as bands; nothing where no line has two points.

    With `held` a value holds until the next, with `zero` the axis begins there.
    """
    drawn = [Line(line.name, _thin(line.points)) for line in series if len(line.points) > 1]
    if not drawn:
        return ""
    values = [v for line in drawn for _, *vs in line.points for v in vs if v is not None] + [0.0] * zero
    plot = _Plot.around([p[0] for line in drawn for p in line.points], values, unit, width, along)
    parts = [plot.axes(unit), plot.marks(marks)]
    for number_, line in enumerate(drawn):
        colour = f"c{number_ % COLOURS + 1}"
        banded = [(x, a, b) for x, _, a, b in line.points if a is not None and b is not None]
        if len(banded) > 1:
            edge = [plot.at(x, b) for x, _, b in banded] + [plot.at(x, a) for x, a, _ in reversed(banded)]
            parts.append(f'<polygon class="band {colour}" points="{" ".join(edge)}"/>')
        shown = _held(line.points) if held else [(p[0], p[1]) for p in line.points]
        parts.append(f'<polyline class="line {colour}" points="{" ".join(plot.at(x, v) for x, v in shown)}"/>')
    parts.append(plot.hits(drawn, unit))
    return _svg(width, HEIGHT, parts) + (legend([line.name for line in drawn]) if len(drawn) > 1 else "")


def stacked(series: Sequence[Line], marks: Sequence[Mark] = ()) -> str:
    """Shares over steps on top of each other; all series have their points at the same places."""
    drawn = [Line(line.name, _thin(line.points)) for line in series if len(line.points) > 1]
    if not drawn:
        return ""
    places = [p[0] for p in drawn[0].points]
    plot = _Plot(min(places), max(places), 0.0, 1.0)
    parts, below = [], [0.0] * len(places)
    for number_, line in enumerate(drawn):
        above = [b + p[1] for b, p in zip(below, line.points, strict=True)]
        edge = [plot.at(x, v) for x, v in zip(places, above, strict=True)]
        edge += [plot.at(x, v) for x, v in zip(reversed(places), reversed(below), strict=True)]
        parts.append(f'<polygon class="area c{number_ % COLOURS + 1}" points="{" ".join(edge)}"/>')
        below = above
    parts += [plot.axes("%"), plot.marks(marks), plot.hits(drawn, "%", dots=False)]
    return _svg(WIDTH, HEIGHT, parts) + legend([line.name for line in drawn])


def legend(names: Sequence[str]) -> str:
    """Which colour is which."""
    items = "".join(
        f'<li><i class="swatch c{n % COLOURS + 1}"></i>{html.escape(short(name, 44))}</li>'
        for n, name in enumerate(names)
    )
    return f'<ul class="key">{items}</ul>'


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars from zero, to the right or the left, each with its text."""
    if not rows:
        return ""
    low, high = min(0.0, *(v for _, v, _ in rows)), max(0.0, *(v for _, v, _ in rows))
    left, right, height = 190, 110, ROW * len(rows) + 8
    scale = (WIDTH - left - right) / ((high - low) or 1.0)
    zero = left - low * scale
    parts = [f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="2" y2="{height - 4}"/>']
    for n, (name, value, text) in enumerate(rows):
        y, start, end = 4 + n * ROW, min(zero, zero + value * scale), max(zero, zero + value * scale)
        bar = f'x="{start:.1f}" y="{y + 4}" width="{max(1.0, end - start):.1f}" height="{ROW - 10}" rx="2"'
        parts.append(f'<rect class="bar {"c2" if value < 0 else "c1"}" {bar}/>')
        parts.append(_text(left - 8, y + ROW / 2 + 2, short(name, 26), "end", title=name))
        parts.append(_text(end + 6, y + ROW / 2 + 2, text, extra="dim"))
    return _svg(WIDTH, height, parts)


def strip(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar of parts that make up a whole, and what each is."""
    whole = math.fsum(value for _, value, _ in parts)
    if not whole > 0:
        return ""
    drawn, x = [], 0.0
    for n, (name, value, text) in enumerate(parts):
        width = value / whole * WIDE
        said = html.escape(f"{name}: {text}, {value / whole:.0%}")
        drawn.append(
            f'<rect class="area c{n % COLOURS + 1}" x="{x:.1f}" y="0" width="{max(0.5, width - 1.5):.1f}" height="26">'
            f"<title>{said}</title></rect>"
        )
        x += width
    return _svg(WIDE, 26, drawn) + legend([f"{name} {text}" for name, _, text in parts])


def ladder(players: Sequence[Player], heads: Sequence[tuple[str, int]], anchor: float | None = None) -> str:
    """Ratings as dots with whiskers, one row each, and behind them columns, of which `heads` has names and widths."""
    if not players:
        return ""
    reach = [v for p in players for v in (p.rating, p.low, p.high) if v is not None and math.isfinite(v)]
    low, high = min(reach), max(reach)
    pad = max(10.0, 0.05 * (high - low))
    low, high = low - pad, high + pad
    left, right, height = 220, sum(width for _, width in heads) + 8, ROW * len(players) + 48
    ends = [WIDE - right + 8 + end for end in accumulate(width for _, width in heads)]
    scale = (WIDE - left - right) / (high - low)

    def x(rating: float) -> float:
        return left + (rating - low) * scale

    parts = []
    for value in ticks(low, high, 6):
        parts.append(f'<line class="gridline" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="20" y2="{height - 22}"/>')
        parts.append(_text(x(value), height - 6, f"{value:.0f}", "middle", "dim"))
    if anchor is not None and low <= anchor <= high:
        parts.append(f'<line class="anchor" x1="{x(anchor):.1f}" x2="{x(anchor):.1f}" y1="20" y2="{height - 22}"/>')
    parts += [_text(end, 13, head, "end", "dim") for end, (head, _) in zip(ends, heads, strict=True)]
    for n, player in enumerate(players):
        y = 24 + ROW * n + ROW / 2
        parts.append(_text(left - 14, y + 4, short(player.name), "end", "own" if player.own else "", player.full))
        if player.low is not None and player.high is not None:
            parts.append(
                f'<line class="whisker c1" x1="{x(player.low):.1f}" x2="{x(player.high):.1f}" y1="{y}" y2="{y}"/>'
            )
        said = html.escape(f"{player.name}: {player.rating:.0f}{_between(player.low, player.high)}")
        parts.append(
            f'<circle class="dot c1" cx="{x(player.rating):.1f}" cy="{y}" r="5"><title>{said}</title></circle>'
        )
        parts += [_text(end, y + 4, word, "end") for end, word in zip(ends, player.words, strict=True)]
    return _svg(WIDE, height, parts)


def heat(names: Sequence[str], score: Sequence[Sequence[float | None]], games: Sequence[Sequence[float | None]]) -> str:
    """A map of who scores how much against whom: rows against columns, with the games under each score."""
    if not names:
        return ""
    left, top, size = 220, 26, len(names)
    parts = []
    for n, name in enumerate(names):
        parts.append(_text(left + CELL * n + CELL / 2, top - 9, str(n + 1), "middle", "dim", name))
        parts.append(_text(left - 14, top + 40 * n + 24, f"{n + 1}  {short(name, 26)}", "end", title=name))
    for a in range(size):
        for b in range(size):
            value, count = score[a][b], games[a][b]
            place = f'x="{left + CELL * b}" y="{top + 40 * a}" width="{CELL - 2}" height="38" rx="3"'
            if a == b or value is None or not count:
                parts.append(f'<rect class="blank" {place}/>')
                continue
            strength = min(1.0, abs(value - 0.5) * 2)
            said = html.escape(f"{names[a]} against {names[b]}: score {value:.3f} in {count:,.0f} games")
            side = "won" if value >= 0.5 else "lost"
            parts.append(
                f'<g><title>{said}</title><rect class="blank" {place}/>'
                f'<rect class="{side}" {place} fill-opacity="{0.06 + 0.56 * strength:.2f}"/>'
                + _text(left + CELL * b + CELL / 2 - 1, top + 40 * a + 18, f"{value:.2f}", "middle")
                + _text(left + CELL * b + CELL / 2 - 1, top + 40 * a + 31, human_count(count), "middle", "tiny")
                + "</g>"
            )
    return _svg(max(WIDTH, left + CELL * size + 8), top + 40 * size + 4, parts)


@dataclass(frozen=True)
class _Plot:
    """The plane of a figure: what its edges stand for."""

    first: float
    last: float
    low: float
    high: float
    width: int = WIDTH
    along: str = "steps"

    @classmethod
    def around(cls, places: Sequence[float], values: Sequence[float], unit: str, width: int, along: str) -> _Plot:
        """A plane that all points are on, with a little air; a flat line lies in the middle; a share ends at 1."""
        low, high = min(values), max(values)
        air = 0.06 * (high - low) or max(0.5, abs(high) * 0.1)
        floor = 0.0 if 0 <= low < 0.4 * high else low - air
        ceiling = 1.0 if unit == "%" and 0.9 < high <= 1 else high + air
        return cls(min(places), max(places), floor, ceiling, width, along)

    def x(self, place: float) -> float:
        """Pixels from the left."""
        return LEFT + (place - self.first) / ((self.last - self.first) or 1.0) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def at(self, place: float, value: float) -> str:
        """A point as a polyline wants it."""
        return f"{self.x(place):.1f},{self.y(value):.1f}"

    def axes(self, unit: str) -> str:
        """Grid lines at round values, and a few numbers of steps below."""
        parts = []
        for value in ticks(self.low, self.high, 5):
            y = self.y(value)
            parts.append(f'<line class="gridline" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_text(LEFT - 7, y + 4, _value(value, unit), "end", "dim"))
        places = [p for p in ticks(self.first, self.last, self.width // 110) if self.x(p) < self.width - RIGHT - 60]
        parts += [_text(self.x(place), HEIGHT - 6, number(place), "middle", "dim") for place in places]
        parts.append(_text(self.width - RIGHT, HEIGHT - 6, f"{number(self.last)} {self.along}", "end", "dim"))
        return "".join(parts)

    def marks(self, marks: Sequence[Mark]) -> str:
        """Thin lines where something happened."""
        parts = []
        for mark in marks:
            if self.first <= mark.at <= self.last:
                x, kind = self.x(mark.at), html.escape(mark.kind, quote=True)
                said = html.escape(f"{number(mark.at)} {self.along}, {mark.kind}: {mark.text}")
                parts.append(
                    f'<g class="mark {kind}"><title>{said}</title>'
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                    f'<path d="M{x - 4:.1f} {TOP - 8} h8 l-4 7 z"/></g>'
                )
        return "".join(parts)

    def hits(self, series: Sequence[Line], unit: str, dots: bool = True) -> str:
        """Strips that show the values at their place when pointed at."""
        places = _thin([(x, 0.0, None, None) for x in sorted({p[0] for line in series for p in line.points})], HITS)
        found = [{p[0]: p for p in line.points} for line in series]
        edges = [self.x(places[0][0])]
        edges += [(self.x(a[0]) + self.x(b[0])) / 2 for a, b in pairwise(places)] + [self.x(places[-1][0])]
        parts = []
        for (place, *_), (left, right) in zip(places, pairwise(edges), strict=True):
            said, circles = [f"{number(place)} {self.along}"], []
            for n, (line, by_place) in enumerate(zip(series, found, strict=True)):
                if (point := by_place.get(place)) is not None:
                    head = f"{line.name}: " if len(series) > 1 else ""
                    said.append(f"{head}{_value(point[1], unit)}{_between(point[2], point[3], unit)}")
                    circles.append((n, point[1]))
            drawn = "".join(
                f'<circle class="dot c{n % COLOURS + 1}" cx="{self.x(place):.1f}" cy="{self.y(v):.1f}" r="3.5"/>'
                for n, v in circles
                if dots
            )
            parts.append(
                f'<g class="hit"><title>{html.escape(chr(10).join(said))}</title>'
                f'<rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
                f"{drawn}</g>"
            )
        return "".join(parts)


def _value(value: float, unit: str) -> str:
    return f"{100 * value:.3g} %" if unit == "%" else number(value) + (f" {unit}" if unit else "")


def _between(low: float | None, high: float | None, unit: str = "") -> str:
    if low is None or high is None:
        return ""
    return f" [{_value(low, unit)}, {_value(high, unit)}]"


def _thin(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most so many of the points, evenly, the last one always."""
    if len(points) <= most:
        return list(points)
    return [points[round(n * (len(points) - 1) / (most - 1))] for n in range(most)]


def _held(points: Sequence[Point]) -> list[tuple[float, float]]:
    """The corners of a staircase."""
    corners = [(points[0][0], points[0][1])]
    for before, after in pairwise(points):
        corners += [(after[0], before[1]), (after[0], after[1])]
    return corners


def _text(x: float, y: float, words: str, anchor: str = "start", extra: str = "", title: str = "") -> str:
    told = f"<title>{html.escape(title)}</title>" if title and title != words else ""
    kind = f' class="{extra}"' if extra else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}{told}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    most = f"max-width: {1.15 * width:.0f}px"
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" style="{most}">{"".join(parts)}</svg>'
