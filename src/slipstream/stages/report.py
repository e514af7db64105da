"""Report on a run: one page of curves, results and facts, read from the run directory alone."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.runs.checkpoint import steps_of
from slipstream.runs.display import human_count
from slipstream.runs.layout import RunDir, write_text
from slipstream.runs.metrics import read

WIDTH, HEIGHT, PAD = 640, 220, 46
CURVES = (
    ("Win rate in evaluation", "evaluate/win_rate", "evaluate/win_rate_low", "evaluate/win_rate_high"),
    ("Return", "episode/return_mean", "episode/return_low", "episode/return_high"),
    ("Entropy", "ppo/entropy", "", ""),
    ("Entropy", "sac/entropy", "", ""),
    ("Temperature", "sac/temperature", "", ""),
    ("Steps per second", "time/steps_per_second", "", ""),
)
STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #64748b; --line: #0b6e99; --band: #0b6e9933; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9aa7b4; --line: #56b4e9; --band: #56b4e933; --page: #11161c } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 46rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top }
th, .dim, text { color: var(--dim); fill: var(--dim) } svg { width: 100%; height: auto }
"""


def report(run: RunDir) -> dict[str, Any]:
    """Write report.html and return the facts it shows."""
    rows, steps = read(run), max(steps_of(run), default=0)
    evaluation = _json(run.path / "evaluation.json")
    facts = {"run": str(run.path), "steps": steps, "report": str(run.report), "evaluation": evaluation}
    write_text(run.report, _page(run, rows, steps, evaluation))
    return facts


def _page(run: RunDir, rows: Sequence[dict[str, Any]], steps: int, evaluation: dict[str, Any] | None) -> str:
    origin = _json(run.provenance) or {}
    parts = [f"<h1>{html.escape(str(origin.get('env', run.path.name)))}</h1>"]
    parts.append(f"<p class=dim>{html.escape(str(run.path))} &middot; {steps:,} steps</p>")
    if evaluation:
        parts.append("<h2>Result</h2>" + _results(evaluation))
    for title, *keys in CURVES:
        drawn = _curve(rows, *keys)
        if drawn:
            parts.append(f"<h2>{title}</h2>{drawn}")
    shown = ("time_utc", "cpu", "cores", "python", "slipstream", "versions", "git", "argv")
    lines = [f"<tr><th>{key}<td>{html.escape(str(origin[key]))}" for key in shown if origin.get(key) is not None]
    parts.append(f"<h2>Made by</h2><table>{''.join(lines)}</table>")
    title = html.escape(run.path.name)
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>{''.join(parts)}\n"


def _results(evaluation: dict[str, Any]) -> str:
    if not evaluation["opponents"]:
        return f"<p>Mean return {_span(evaluation, 'mean_return', 1.0, '')} over {evaluation['games']} episodes.</p>"
    lines = ["<tr><th>against<th>games<th>won<th>drawn<th>lost<th>win rate (95 %)"]
    for name, result in evaluation["opponents"].items():
        counts = "".join(f"<td>{result[key]}" for key in ("games", "wins", "draws", "losses"))
        lines.append(f"<tr><td>{html.escape(name)}{counts}<td>{_span(result, 'win_rate', 100.0, ' %')}")
    return f"<table>{''.join(lines)}</table>"


def _span(result: dict[str, Any], key: str, scale: float, unit: str) -> str:
    mean, low, high = (result[name] for name in (key, f"{key}_low", f"{key}_high"))
    if low is None or high is None:
        return f"{mean * scale:.1f}{unit}"
    return f"{mean * scale:.1f}{unit} <span class=dim>[{low * scale:.1f}, {high * scale:.1f}]</span>"


def _curve(rows: Sequence[dict[str, Any]], key: str, low_key: str, high_key: str) -> str:
    """An SVG line over steps with its interval as a band; nothing where there are too few points."""
    points = [(row["steps"], row[key], row.get(low_key), row.get(high_key)) for row in rows if row.get(key) is not None]
    if len(points) < 2:
        return ""
    points = points[:: max(1, len(points) // 400)]
    values = [v for _, *vs in points for v in vs if v is not None]
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0
    first, last = points[0][0], points[-1][0]

    def x(steps: Any) -> Any:
        return PAD + (steps - first) / max(1, last - first) * (WIDTH - PAD - 10)

    def y(value: Any) -> Any:
        return HEIGHT - 26 - (value - low) / (high - low) * (HEIGHT - 40)

    line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v, _, _ in points)
    banded = [(s, a, b) for s, _, a, b in points if a is not None and b is not None]
    edge = [f"{x(s):.1f},{y(b):.1f}" for s, _, b in banded] + [f"{x(s):.1f},{y(a):.1f}" for s, a, _ in reversed(banded)]
    marks = "".join(
        f'<text x="{PAD - 6}" y="{y(v) + 4:.1f}" text-anchor="end" font-size="11">{_label(v)}</text>'
        for v in (low, high)
    )
    marks += f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end" font-size="11">{last:,} steps</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><polygon points="{" ".join(edge)}" fill="var(--band)"/>'
        f'<polyline points="{line}" fill="none" stroke="var(--line)" stroke-width="2"/>{marks}</svg>'
    )


def _label(value: float) -> str:
    return human_count(value) if abs(value) >= 1000 else f"{value:.3g}"


def _json(path: Any) -> dict[str, Any] | None:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}", "remove it and evaluate again") from error
    return loaded if isinstance(loaded, dict) else None
