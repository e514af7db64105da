"""The report of a comparison: a summary, a Markdown page and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.perf.timed_run import TimedRun
from slipstream.runs.figures import Line, Panel, plot

Facts = Mapping[str, Any]
POINTS = 60
"""Points of a learning curve."""


def headline(facts: Facts) -> str:
    """The verdict in one or two sentences."""
    if "verdict" not in facts:
        return f"{facts['b']['side']}: {_rate(facts['b'])} steps/s."
    text = {"faster": "B is faster", "slower": "B is slower"}.get(facts["verdict"], "No difference in speed")
    text += f": {interval(facts['speed'], 'x', 3)}"
    if not facts["like_for_like"]:
        reason = "; ".join(facts["bought_with"]) or ", ".join(_relevant_differences(facts))
        text += f", but not like for like: {reason}"
    score = facts["score"]
    if score is None:
        return f"{text}. No episode ended in both variants, so there is no score."
    difference = {"higher": "B's score is higher", "lower": "B's score is lower"}.get(
        score["verdict"], "no difference in score"
    )
    return f"{text}. At equal wall-clock: {difference} ({interval(score, '', 4, sign=True)})."


def lines(facts: Facts) -> str:
    """The summary of a comparison."""
    found = [headline(facts)]
    for name in ("a", "b"):
        if name in facts:
            one = facts[name]
            score = f", score {interval(one['score'], '', 4)}" if one["score"] else ""
            found.append(
                f"{name.upper()} ({one['side']}): {_rate(one)} steps/s{score}; not counted: {one['start_s']:.1f} s for "
                f"building, compiling and the first iteration ({one['cold_s']:.1f} s the first time)"
            )
    found += [f"note: {note}" for note in facts["notes"]]
    if "saved" in facts:
        found.append(f"saved: {facts['saved']}")
    if "gate" in facts:
        passed = "passed" if facts["gate"]["passed"] else "not passed"
        found.append(f"gate of {facts['gate']['percent']:g} %: {passed}")
    return "\n".join([*found, f"report: {facts['out']}/bench.md"])


def page(facts: Facts) -> str:
    """The comparison as Markdown."""
    names = [name for name in ("a", "b") if name in facts]
    parts = [f"# {facts['env']}: {' against '.join(facts[name]['side'] for name in reversed(names))}", headline(facts)]
    cells = [_cells(facts[name], facts["score_is"]) for name in names]
    rows = [[label, *(column[label] for column in cells)] for label in cells[0]]
    parts.append(table(["", *(name.upper() for name in names)], rows))
    if "differences" in facts:
        parts.append(_differences(facts))
    if "gate" in facts:
        passed = "passed" if facts["gate"]["passed"] else "**not passed**"
        parts.append(f"Gate: at most {facts['gate']['percent']:g} % slower: {passed}.")
    parts.append("\n".join(f"- {note}" for note in facts["notes"]))
    machine, git = facts["machine"], facts["git"] or {}
    state = f"{git.get('commit', 'unknown')[:12]}{' with changes' if git.get('dirty') else ''}"
    parts.append(
        f"{facts['seconds']:g} s of training per run, {facts['rounds']} rounds; {machine['cpu']}, {machine['cores']} "
        f"cores, {machine['gpu'] or 'no GPU'}; commit {state}; {facts['time_utc']}.\n\n    {facts['command']}"
    )
    return "\n\n".join([*parts, "![rates and scores](bench.png)"])


def _cells(one: Facts, score_is: str) -> dict[str, str]:
    """The cells of a variant."""
    return {
        "variant": one["side"],
        "steps/s": _rate(one),
        f"score ({score_is})": interval(one["score"], "", 4) if one["score"] else "-",
        "start-up, compiling and first iteration, s (not counted)": f"{one['start_s']:.1f}",
        "the same in the first run, s": f"{one['cold_s']:.1f}",
        "warm-up (first iteration minus a later one), s": f"{one['warm_s']:.1f}",
        "memory, MiB": f"{one['memory_mib']:,.0f}" if one["memory_mib"] else "-",
        "time": ", ".join(f"{name} {share:.0%}" for name, share in one["split"].items()),
        "batch": f"{one['batch']:,.0f}",
        "parameters of the policy": f"{one['weights']:,}",
        "gradient steps per step": f"{one['updates_per_step']:.4g}",
        "commit": one["commit"][:12] or "-",
    }


def _differences(facts: Facts) -> str:
    if not facts["differences"]:
        code = "" if facts["a"]["commit"] == facts["b"]["commit"] else " except their code"
        return f"The two variants have no differences{code}."
    rows = [
        [one["part"], f"`{one['key']}`", _value(one["a"]), _value(one["b"]), "yes" if one["matters"] else "no"]
        for one in facts["differences"]
    ]
    verdict = "Like for like: yes" if facts["like_for_like"] else "**Not like for like**"
    return f"{verdict}. Differences:\n\n" + table(["part", "setting", "A", "B", "changes the work"], rows)


def _relevant_differences(facts: Facts) -> list[str]:
    return [f"{one['key']} {_value(one['a'])} -> {_value(one['b'])}" for one in facts["differences"] if one["matters"]]


def _value(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _rate(one: Facts) -> str:
    return interval(one["steps_per_second"], "", 0)


def interval(found: Facts, unit: str, digits: int, sign: bool = False) -> str:
    """A median and its interval, with `digits` significant digits, or as whole numbers with 0."""

    def text(value: float) -> str:
        return f"{value:,.0f}" if not digits else f"{value:{'+' if sign else ''}.{digits}g}"

    return f"{text(found['median'])}{unit} [{text(found['low'])}, {text(found['high'])}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    shown = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown)


def draw(path: Path, facts: Facts, variants: Sequence[tuple[str, Sequence[TimedRun]]]) -> None:
    """Write the rates of each round and the scores over training time to a PNG file."""
    letters = ("A", "B")[-len(variants) :]
    labelled = [(f"{letter} {text}", runs) for letter, (text, runs) in zip(letters, variants, strict=True)]
    rates = [Line.of(label, range(1, len(runs) + 1), [run.rate for run in runs]) for label, runs in labelled]
    panels = [Panel("steps per second", rates, style="bars", along="round")]
    seconds = np.linspace(0, facts["seconds"], POINTS)
    curves = [(label, _curve(runs, seconds)) for label, runs in labelled]
    lines = [Line.of(label, seconds, *curve) for label, curve in curves if curve is not None]
    if lines:
        panels.append(Panel("mean return of the last episodes", lines, along="seconds"))
    plot(path, panels, f"{facts['env']}: {facts.get('verdict', 'measured alone')}")


def _curve(runs: Sequence[TimedRun], seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Median, minimum and maximum score over the rounds at each time. A score holds until the next."""
    rows = []
    for run in runs:
        if run.curve:
            at, score = np.array(run.curve).T
            place = np.searchsorted(at, seconds, side="right") - 1
            rows.append(np.where(place >= 0, score[np.maximum(place, 0)], np.nan))
    if not rows:
        return None
    stacked = np.array(rows)
    complete = np.isfinite(stacked).all(axis=0)
    middle, low, high = (np.full(len(seconds), np.nan) for _ in range(3))
    middle[complete] = np.median(stacked[:, complete], axis=0)
    low[complete], high[complete] = stacked[:, complete].min(0), stacked[:, complete].max(0)
    return middle, low, high
