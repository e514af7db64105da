"""What notebooks show of a run: a table of its results, and charts of its metrics."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.errors import ConfigError, did_you_mean
from slipstream.runs.display import human_count, human_time
from slipstream.runs.figures import Figure, Line, Panel

DEFAULTS = (
    ("episode/return_mean",),
    ("evaluate/win_rate", "evaluate/mean_return"),
    ("ppo/explained_variance", "sac/entropy", "clone/held_out_loss"),
)
"""The charts without names: of each group, the first metric that the run has."""


def metrics_figure(rows: Sequence[Mapping[str, Any]], keys: Sequence[str] = (), title: str = "") -> Figure:
    """A panel for each metric over steps, with its interval where the metrics have one."""
    known = dict.fromkeys(key for row in rows for key, value in row.items() if key != "steps" and _is_number(value))
    if not known:
        raise ConfigError("This run has no metrics yet.", "train it for longer, or set every.log to fewer steps")
    for key in keys:
        if key not in known:
            groups = sorted({name.partition("/")[0] for name in known})
            raise ConfigError(
                f"This run has no metric `{key}`.{did_you_mean(key, known)}", f"it has metrics of {', '.join(groups)}"
            )
    found = [next((key for key in group if key in known), "") for group in DEFAULTS]
    chosen = keys or [key for key in found if key] or list(known)[:1]
    return Figure([_panel(rows, key) for key in chosen], title, wide=True)


def _panel(rows: Sequence[Mapping[str, Any]], key: str) -> Panel:
    stem = key.removesuffix("_mean")
    own = [row for row in rows if _is_number(row.get(key))]
    ends = [[_number(row, (f"{key}{end}", f"{stem}{end}")) for row in own] for end in ("_low", "_high")]
    points = [(float(row["steps"]), float(row[key]), low, high) for row, low, high in zip(own, *ends, strict=True)]
    edges = [(float(row["steps"]), math.nan, None, None) for row in (rows[0], rows[-1])]  # the same x axis everywhere
    return Panel(key, [Line(key, [edges[0], *points, edges[1]])], along="steps")


def _number(row: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    return next((float(row[key]) for key in keys if _is_number(row.get(key))), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def facts_table(path: str, facts: Mapping[str, Any]) -> str:
    """The most important results of a run as an HTML table."""
    rows = {"run": path}
    if "steps" in facts:
        rows["steps"] = f"{facts['steps']:,}"
    if "seconds" in facts:
        rate = facts.get("steps_per_second")
        rows["time"] = human_time(facts["seconds"]) + (f" ({human_count(rate)} steps/s)" if rate else "")
    if facts.get("mean_return") is not None:
        rows["mean return"] = f"{facts['mean_return']:.4g}"
    if facts.get("held_out_loss") is not None:
        rows["held-out loss"] = f"{facts['held_out_loss']:.4g}"
    if facts.get("stopped"):
        rows["stopped"] = str(facts["stopped"])
    if "checkpoint" in facts:
        rows["checkpoint"] = str(facts["checkpoint"])
    cell = "text-align: left; padding: 2px 14px 2px 0"
    lines = "".join(
        f'<tr><th style="{cell}">{html.escape(name)}</th><td style="{cell}">{html.escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<table>{lines}</table>"
