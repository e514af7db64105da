"""The contents of a run directory for reports: metrics, evaluation, ladder, ratings, events, provenance."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.runs.checkpoint import steps_of
from slipstream.runs.figures import Line, Mark, Point
from slipstream.runs.layout import RunDir, read_json
from slipstream.runs.metrics import read

KINDS = ("curriculum", "snapshot", "promotion", "retired", "alarm", "replay", "notice")
"""Kinds of events; the last two are not marked on curves."""


@dataclass(frozen=True)
class RunData:
    """The contents of a run directory that a report shows; missing files are empty."""

    run: RunDir
    steps: int
    rows: list[dict[str, Any]]
    evaluation: dict[str, Any]
    ladder: dict[str, Any]
    rewards: dict[str, Any]
    story: dict[str, Any]
    origin: dict[str, Any]
    events: list[dict[str, Any]]
    ratings: list[dict[str, str]]

    @property
    def marks(self) -> list[Mark]:
        """The events that are marked on curves."""
        return [Mark(e["steps"], e["kind"], e["text"]) for e in self.events if e["kind"] not in KINDS[-2:]]

    def points(self, key: str) -> list[Point]:
        """A metric over steps, with its interval if it has one."""
        stem = key.removesuffix("_mean")
        return [
            (row["steps"], row[key], row.get(f"{stem}_low"), row.get(f"{stem}_high"))
            for row in self.rows
            if row.get(key) is not None
        ]

    def named(self, prefix: str) -> list[Line]:
        """Every metric with a prefix as a line, in the order of first appearance."""
        names = list(dict.fromkeys(key for row in self.rows for key in row if key.startswith(prefix)))
        return [Line(name.removeprefix(prefix), self.points(name)) for name in names]


def read_run(run: RunDir) -> RunData:
    """Read a run directory."""
    rows, path = read(run), run.path
    steps = max([*steps_of(run), *(row["steps"] for row in rows[-1:])], default=0)
    files = {
        name: read_json(path / f"{name}.json") or {}
        for name in ("evaluation", "ladder", "rewards", "story", "provenance")
    }
    origin = files.pop("provenance")
    ratings = _ratings(path / "league") or _ratings(path)
    return RunData(run, steps, rows, origin=origin, events=_events(run), ratings=ratings, **files)


def _events(run: RunDir) -> list[dict[str, Any]]:
    """The lines of events.jsonl in order of steps; incomplete lines are skipped."""
    try:
        lines = run.events.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("steps"), int):
            kind = event.get("kind") if event.get("kind") in KINDS else "notice"
            found.append({"steps": event["steps"], "kind": kind, "text": str(event.get("text", ""))})
    return sorted(found, key=lambda one: int(one["steps"]))


def _ratings(path: Path) -> list[dict[str, str]]:
    try:
        with open(path / "ratings.csv", encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if number(row.get("rating")) is not None]
    except FileNotFoundError:
        return []


def number(text: Any) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
