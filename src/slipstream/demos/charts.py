"""Pictures as PNG: line plots, histograms and contact sheets, and the view of one episode made of them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from slipstream.contracts import Array
from slipstream.demos.reader import Demos
from slipstream.errors import MachineError
from slipstream.runs.layout import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8C6BB1")
"""Told apart by people who see colours differently (after Okabe and Ito)."""
PAGE, FRAME, GRID, INK, DIM = "#FFFFFF", "#B8C0C8", "#E8ECEF", "#1C2733", "#5B6875"
WIDTH, PANEL, TITLE = 1000, 230, 44
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 30, 30
"""Margins of a panel: numbers on the left, the legend on the right, its title above, the axis below."""
SMOOTH = 3
"""Lines are drawn this much larger and shrunk, which makes them smooth; text is written afterwards and stays sharp."""
SHEET = 1600
"""The most pixels across a contact sheet."""
Style = Literal["lines", "stairs", "dots", "bars"]
MOST = 8
"""Lines of one panel of an episode: as many as there are colours."""


@dataclass(frozen=True)
class Panel:
    """One plot: lines (or bars) over a common x; `None` and NaN leave gaps."""

    title: str
    x: Sequence[float] | Array
    lines: Mapping[str, Sequence[float | None] | Array]
    bands: Mapping[str, tuple[Sequence[float | None] | Array, Sequence[float | None] | Array]] = field(
        default_factory=dict
    )
    """Low and high around the line of the same name."""
    style: Style = "lines"
    """Lines from value to value, values that hold until the next, single values, or bars from zero."""
    across: str = ""
    """What x is."""


@dataclass(frozen=True)
class _Axes:
    """From numbers to pixels of the picture as it will be."""

    box: tuple[float, float, float, float]
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, values: Array) -> Array:
        low, high = self.x
        return self.box[0] + (values - low) / (high - low) * (self.box[2] - self.box[0])

    def up(self, values: Array) -> Array:
        low, high = self.y
        return self.box[3] - (values - low) / (high - low) * (self.box[3] - self.box[1])


def plot(path: Path, panels: Sequence[Panel], title: str = "") -> None:
    """Draw panels below one another."""
    above = TITLE if title else 8
    size = (WIDTH, above + PANEL * len(panels) + 8)
    large = Image.new("RGB", (size[0] * SMOOTH, size[1] * SMOOTH), PAGE)
    brush = ImageDraw.Draw(large, "RGBA")
    laid = [(panel, _lay_out(panel, above + PANEL * number)) for number, panel in enumerate(panels)]
    for panel, axes in laid:
        _draw_frame(brush, axes)
        _draw_values(brush, panel, axes)
    picture = large.resize(size, Image.Resampling.BOX)
    pen = ImageDraw.Draw(picture)
    if title:
        pen.text((LEFT, 14), _fitting(pen, title, WIDTH - LEFT - 8, _font(18)), INK, _font(18))
    for panel, axes in laid:
        _write_words(pen, panel, axes)
    _save(picture, path)


def sheet(path: Path, frames: Sequence[Array], labels: Sequence[str], columns: int = 6, title: str = "") -> None:
    """Draw frames (uint8 [height, width] or [height, width, 3], all alike) as a grid, a label below each."""
    height, width = frames[0].shape[:2]
    columns = max(1, min(columns, len(frames)))
    scale: float = max(1, min(160 // max(width, height), SHEET // (columns * width)))
    scale = min(scale, SHEET / (columns * width))
    cell, above, gap = (max(1, int(width * scale)), max(1, int(height * scale))), TITLE if title else 8, 8
    sampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    rows = -(-len(frames) // columns)
    size = (gap + columns * (cell[0] + gap), above + rows * (cell[1] + 22 + gap))
    picture = Image.new("RGB", (max(size[0], WIDTH if title else 0), size[1]), PAGE)
    pen = ImageDraw.Draw(picture)
    if title:
        pen.text((gap, 14), _fitting(pen, title, picture.width - 2 * gap, _font(18)), INK, _font(18))
    for number, (frame, label) in enumerate(zip(frames, labels, strict=True)):
        place = gap + number % columns * (cell[0] + gap), above + number // columns * (cell[1] + 22 + gap)
        picture.paste(Image.fromarray(frame).convert("RGB").resize(cell, sampling), place)
        pen.text((place[0] + 1, place[1] + cell[1] + 3), _fitting(pen, label, cell[0], _font(12)), DIM, _font(12))
    _save(picture, path)


def view(demos: Demos, episode: int, path: Path) -> str:
    """Draw one episode: a contact sheet where it is seen in pictures, plots where not; return which."""
    record = demos.episodes[episode]
    title = (
        f"{demos.schema.env}, episode {demos.label(episode)}: {record['steps']:,} steps, return {record['return']:.4g}"
    )
    image = next((f for f in demos.schema.obs.fields if f.kind == "image"), None)
    if image is None:
        plot(path, episode_panels(demos, episode), title)
        return "plot"
    obs = demos.episode(episode, ["obs"])["obs"]
    steps = np.unique(np.linspace(0, len(obs) - 1, 24).round().astype(int))
    frames = [to_picture(demos.schema.obs.split(np.array(obs[step]))[image.name]) for step in steps]
    sheet(path, frames, [f"step {step:,}" for step in steps], title=title)
    return "sheet"


def to_picture(image: Array) -> Array:
    """An image of any number of channels as one to look at: of stacked frames the newest, in colour by threes."""
    image = image[-1] if image.ndim == 4 else image
    channels = image.shape[-1]
    return np.ascontiguousarray(image[..., -3:] if channels % 3 == 0 else image[..., -1])


def episode_panels(demos: Demos, episode: int) -> list[Panel]:
    """Rewards, reward terms, actions and observations of an episode over its steps."""
    schema = demos.schema
    names = ["reward", "action", *(f"terms/{term}" for term in schema.terms)]
    values = demos.episode(episode, names)
    steps = np.arange(len(values["reward"]))
    reward = values["reward"].astype(np.float64)
    panels = [
        Panel("reward", steps, {"reward": reward}, across="step"),
        Panel("reward so far", steps, {"all": np.cumsum(reward)} | _largest_terms(schema.terms, values), across="step"),
    ]
    action = values["action"][:, :MOST]
    labels = ["action"] if schema.action.parts == 1 else [f"action {part}" for part in range(action.shape[1])]
    taken = dict(zip(labels, action.T, strict=True))
    style: Style = "stairs" if schema.action.kind == "continuous" else "dots"
    panels.append(Panel(_first_of("actions", schema.action.parts), steps, taken, style=style, across="step"))
    if schema.action.kind == "discrete":
        counts = np.bincount(values["action"][:, 0].clip(0), minlength=schema.action.sizes[0])
        panels.append(
            Panel(
                "times each action was taken", np.arange(len(counts)), {"action": counts}, style="bars", across="action"
            )
        )
    if schema.obs.floats:
        obs = schema.obs.vectors(demos.episode(episode, ["obs"])["obs"])[:-1, :MOST]
        seen = {label: obs[:, place] for place, label in enumerate(_obs_labels(demos))}
        panels.append(Panel(_first_of("observations", schema.obs.floats), steps, seen, across="step"))
    return panels


def _largest_terms(terms: Sequence[str], values: Mapping[str, Array]) -> dict[str, Array]:
    """The reward terms that move the most, summed up over time."""
    summed = {term: np.cumsum(values[f"terms/{term}"], dtype=np.float64) for term in terms}
    ranked = sorted(terms, key=lambda term: -float(np.abs(values[f"terms/{term}"]).sum()))
    return {term: summed[term] for term in ranked[: MOST - 1]}


def _obs_labels(demos: Demos) -> list[str]:
    vectors = [f for f in demos.schema.obs.fields if f.kind == "vector"]
    names = [f"{f.name or 'obs'} {place}" for f in vectors for place in range(math.prod(f.shape))]
    return names[:MOST]


def _first_of(what: str, count: int) -> str:
    return f"the first {MOST} of {count} {what}" if count > MOST else what


def _lay_out(panel: Panel, above: int) -> _Axes:
    """Where the values of a panel go: all of them fit, and what is flat lies in the middle."""
    x = np.asarray(panel.x, np.float64)
    shown = [_numbers(y) for y in panel.lines.values()]
    shown += [_numbers(edge) for band in panel.bands.values() for edge in band]
    y = np.concatenate([[0.0] if panel.style == "bars" else [], *shown])
    low, high = _span(y)
    margin = (high - low) * 0.05
    x_low, x_high = _span(x)
    if panel.style == "bars":
        x_low, x_high = (x.min() - 0.6, x.max() + 0.6) if len(x) else (x_low, x_high)
    bottom = low if panel.style == "bars" and low == 0 else low - margin
    box = (LEFT, above + TOP, WIDTH - RIGHT, above + PANEL - BOTTOM)
    return _Axes(box, (x_low, x_high), (bottom, high + margin))


def _numbers(values: Any) -> Array:
    """Floats, NaN where there is none."""
    return np.asarray(values, np.float64)


def _span(values: Array) -> tuple[float, float]:
    """The least and the greatest, a little apart where they are the same."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    apart = abs(low) * 0.1 or 1.0
    return low - apart, high + apart


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers within a range."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _tick_text(value: float, ticks: Sequence[float]) -> str:
    """A number with as many digits as tell it from its neighbours."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(value)
    largest = max(abs(tick) for tick in ticks)
    units = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))
    unit, scale = next((u for u in units if largest < 10_000 * u[1]), ("", 0.0))
    if not scale or 0 < largest < 1e-3:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step / scale) + 1e-9)) if step else 0
    text = f"{value / scale:.{min(digits, 6)}f}"
    return ("0" if float(text) == 0 else text) + (unit if value else "")


def _draw_frame(brush: ImageDraw.ImageDraw, axes: _Axes) -> None:
    left, top, right, bottom = (edge * SMOOTH for edge in axes.box)
    for y in axes.up(np.array(_ticks(*axes.y, 5))) * SMOOTH:
        brush.line([(left, y), (right, y)], GRID, SMOOTH)
    brush.line([(left, top), (left, bottom), (right, bottom)], FRAME, SMOOTH)
    if axes.y[0] < 0 < axes.y[1]:
        zero = float(axes.up(np.zeros(1))[0]) * SMOOTH
        brush.line([(left, zero), (right, zero)], FRAME, SMOOTH)


def _draw_values(brush: ImageDraw.ImageDraw, panel: Panel, axes: _Axes) -> None:
    x = np.asarray(panel.x, np.float64)
    for number, (label, values) in enumerate(panel.lines.items()):
        colour, y = COLOURS[number % len(COLOURS)], _numbers(values)
        if label in panel.bands:
            low, high = (_numbers(edge) for edge in panel.bands[label])
            whole = np.isfinite(low) & np.isfinite(high)
            edge = [*_points(axes, x[whole], high[whole]), *_points(axes, x[whole], low[whole])[::-1]]
            if len(edge) > 3:
                brush.polygon(edge, fill=colour + "33")
        if panel.style == "bars":
            _draw_bars(brush, axes, x, y, colour, number, len(panel.lines))
            continue
        for run in _runs(y):
            xs, ys = _thinned(x[run], y[run], axes, panel.style)
            if panel.style == "stairs":
                xs, ys = np.repeat(xs, 2)[1:], np.repeat(ys, 2)[:-1]
            points = _points(axes, xs, ys)
            if len(points) > 1 and panel.style != "dots":
                brush.line(points, colour, 2 * SMOOTH - 1, joint="curve")
                continue
            size = (2 if len(points) > 1 else 3) * SMOOTH
            for across, up in points:
                brush.ellipse([across - size, up - size, across + size, up + size], fill=colour)


def _draw_bars(
    brush: ImageDraw.ImageDraw, axes: _Axes, x: Array, y: Array, colour: str, number: int, count: int
) -> None:
    """Bars of one label; several labels stand side by side."""
    apart = float(np.diff(np.unique(x)).min()) if len(np.unique(x)) > 1 else 1.0
    width = 0.8 * apart / count
    for middle, height in zip(x, y, strict=True):
        if not math.isfinite(height):
            continue
        left = middle - 0.4 * apart + number * width
        corners = _points(axes, np.array([left, left + width]), np.array([height, 0.0]))
        (x0, y0), (x1, y1) = corners
        brush.rectangle([x0, min(y0, y1), x1, max(y0, y1)], fill=colour)


def _points(axes: _Axes, x: Array, y: Array) -> list[tuple[float, float]]:
    return list(zip((axes.across(x) * SMOOTH).tolist(), (axes.up(y) * SMOOTH).tolist(), strict=True))


def _runs(y: Array) -> list[slice]:
    """The stretches without gaps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.isfinite(y).astype(np.int8), [0]])))
    return [slice(int(low), int(high)) for low, high in zip(edges[::2], edges[1::2], strict=True)]


def _thinned(x: Array, y: Array, axes: _Axes, style: Style) -> tuple[Array, Array]:
    """Where there are many more points than pixels, the least and the greatest of each pixel; of dots, some."""
    most = int(axes.box[2] - axes.box[0])
    if len(x) <= 4 * most:
        return x, y
    if style == "dots":
        return x[:: len(x) // (2 * most)], y[:: len(x) // (2 * most)]
    starts = np.linspace(0, len(x), most, endpoint=False).astype(int)
    pairs = np.stack([np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)], axis=1)
    return np.repeat(x[starts], 2), pairs.reshape(-1)


def _write_words(pen: ImageDraw.ImageDraw, panel: Panel, axes: _Axes) -> None:
    left, top, right, bottom = axes.box
    pen.text((left, top - 22), panel.title, INK, _font(14))
    ticks = _ticks(*axes.y, 5)
    for tick, y in zip(ticks, axes.up(np.array(ticks)), strict=True):
        pen.text((left - 8, float(y)), _tick_text(tick, ticks), DIM, _font(12), anchor="rm")
    whole = bool((np.mod(np.asarray(panel.x, np.float64), 1) == 0).all())
    ticks = [tick for tick in _ticks(*axes.x, 9) if not whole or float(tick).is_integer()]
    for tick, x in zip(ticks, axes.across(np.array(ticks)), strict=True):
        pen.line([(float(x), bottom), (float(x), bottom + 4)], FRAME)
        pen.text((float(x), bottom + 7), _tick_text(tick, ticks), DIM, _font(12), anchor="ma")
    pen.text((right + 14, bottom + 7), panel.across, DIM, _font(12))
    if panel.style == "bars" and len(panel.lines) == 1:
        return
    for number, label in enumerate(panel.lines):
        y = top + 8 + 20 * number
        pen.rectangle([right + 14, y - 2, right + 32, y + 2], COLOURS[number % len(COLOURS)])
        pen.text((right + 40, y), _fitting(pen, label, RIGHT - 48, _font(13)), INK, _font(13), anchor="lm")


def _fitting(pen: ImageDraw.ImageDraw, text: str, width: float, font: Any) -> str:
    """As much of a text as there is room for."""
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "...", font) > width:
        text = text[:-1]
    return text + "..."


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _save(picture: Image.Image, path: Path) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, buffer.getvalue())
    except OSError as error:
        raise MachineError(f"{path} could not be written: {error.strerror}.", "choose another file") from error
