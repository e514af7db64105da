"""PNG views of one episode of demos: plots of its numbers, or a contact sheet of its images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from slipstream.contracts import Array
from slipstream.demos.reader import Demos
from slipstream.runs.figures import (
    COLOURS,
    DIM,
    INK,
    PAGE,
    PNG_WIDTH,
    TITLE_HEIGHT,
    Line,
    Panel,
    Style,
    fit_text,
    font,
    plot,
    save_image,
)

SHEET_WIDTH = 1600
"""The most pixels across a contact sheet."""
FRAMES = 24
"""Frames of an episode on a contact sheet."""
MAX_LINES = COLOURS
"""Lines of one panel of an episode."""


def contact_sheet(
    path: Path, frames: Sequence[Array], labels: Sequence[str], columns: int = 6, title: str = ""
) -> None:
    """Write frames (uint8 [height, width] or [height, width, 3], all of one shape) as a grid with labels."""
    height, width = frames[0].shape[:2]
    columns = max(1, min(columns, len(frames)))
    scale: float = max(1, min(160 // max(width, height), SHEET_WIDTH // (columns * width)))
    scale = min(scale, SHEET_WIDTH / (columns * width))
    cell, above, gap = (max(1, int(width * scale)), max(1, int(height * scale))), TITLE_HEIGHT if title else 8, 8
    sampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    rows = -(-len(frames) // columns)
    size = (gap + columns * (cell[0] + gap), above + rows * (cell[1] + 22 + gap))
    picture = Image.new("RGB", (max(size[0], PNG_WIDTH if title else 0), size[1]), PAGE)
    pen = ImageDraw.Draw(picture)
    if title:
        pen.text((gap, 14), fit_text(pen, title, picture.width - 2 * gap, 18), INK, font(18))
    for n, (frame, label) in enumerate(zip(frames, labels, strict=True)):
        x, y = gap + n % columns * (cell[0] + gap), above + n // columns * (cell[1] + 22 + gap)
        picture.paste(Image.fromarray(frame).convert("RGB").resize(cell, sampling), (x, y))
        pen.text((x + 1, y + cell[1] + 3), fit_text(pen, label, cell[0], 12), DIM, font(12))
    save_image(picture, path)


def view(demos: Demos, episode: int, path: Path) -> str:
    """Write a PNG of one episode: a contact sheet if it has images, plots otherwise. Return "sheet" or "plot"."""
    record = demos.episodes[episode]
    title = (
        f"{demos.schema.env}, episode {demos.label(episode)}: {record['steps']:,} steps, return {record['return']:.4g}"
    )
    image = next((f for f in demos.schema.obs.fields if f.kind == "image"), None)
    if image is None:
        plot(path, episode_panels(demos, episode), title)
        return "plot"
    obs = demos.episode(episode, ["obs"])["obs"]
    steps = np.unique(np.linspace(0, len(obs) - 1, FRAMES).round().astype(int))
    frames = [to_picture(demos.schema.obs.split(np.array(obs[step]))[image.name]) for step in steps]
    contact_sheet(path, frames, [f"step {step:,}" for step in steps], title=title)
    return "sheet"


def to_picture(image: Array) -> Array:
    """Convert an image of any number of channels: of stacked frames, return the newest, in colour or grey."""
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

    def panel(title: str, columns: Mapping[str, Array], style: Style = "lines") -> Panel:
        return Panel(title, [Line.of(name, steps, column) for name, column in columns.items()], style, "step")

    panels = [
        panel("reward", {"reward": reward}),
        panel("reward so far", {"all": np.cumsum(reward)} | _largest_terms(schema.terms, values)),
    ]
    action = values["action"][:, :MAX_LINES]
    labels = ["action"] if schema.action.parts == 1 else [f"action {part}" for part in range(action.shape[1])]
    style: Style = "stairs" if schema.action.continuous_parts else "dots"
    panels.append(panel(_first_of("actions", schema.action.parts), dict(zip(labels, action.T, strict=True)), style))
    if schema.action.kind == "discrete":
        counts = np.bincount(values["action"][:, 0].clip(0), minlength=schema.action.sizes[0])
        counted = Line.of("action", np.arange(len(counts)), counts)
        panels.append(Panel("times each action was taken", [counted], "bars", "action"))
    if schema.obs.floats:
        obs = schema.obs.vectors(demos.episode(episode, ["obs"])["obs"])[:-1, :MAX_LINES]
        columns = {label: obs[:, place] for place, label in enumerate(_obs_labels(demos))}
        panels.append(panel(_first_of("observations", schema.obs.floats), columns))
    return panels


def _largest_terms(terms: Sequence[str], values: Mapping[str, Array]) -> dict[str, Array]:
    """Cumulative sums of the reward terms with the largest absolute rewards."""
    summed = {term: np.cumsum(values[f"terms/{term}"], dtype=np.float64) for term in terms}
    ranked = sorted(terms, key=lambda term: -float(np.abs(values[f"terms/{term}"]).sum()))
    return {term: summed[term] for term in ranked[: MAX_LINES - 1]}


def _obs_labels(demos: Demos) -> list[str]:
    vectors = [f for f in demos.schema.obs.fields if f.kind == "vector"]
    names = [f"{f.name or 'obs'} {place}" for f in vectors for place in range(math.prod(f.shape))]
    return names[:MAX_LINES]


def _first_of(what: str, count: int) -> str:
    return f"the first {MAX_LINES} of {count} {what}" if count > MAX_LINES else what
