"""The report: one page that needs nothing but itself, made from the run directory alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.api import Run
from slipstream.core.errors import CheckpointError
from slipstream.runs.layout import RunDir
from slipstream.stages.report import report


def directory(path: Path, rows: list[dict[str, Any]], **files: Any) -> RunDir:
    """A run directory with just what a report reads."""
    run = RunDir.create(path)
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, value in files.items():
        (run.path / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return run


def test_the_page_of_a_real_run(trained: Run) -> None:
    """Curves, the machine and the command are on the page, and nothing is fetched from elsewhere."""
    facts = report(RunDir.open(trained.path))
    assert facts.keys() == {"run", "steps", "report", "evaluation"}
    page = Path(facts["report"]).read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") >= 2
    assert "Made by" in page and "1,024 steps" in page
    assert not any(word in page for word in ("http:", "https:", "<script", "src=", "<link"))


def test_names_are_escaped(tmp_path: Path) -> None:
    """What others wrote cannot become markup."""
    rows = [{"steps": n, "episode/return_mean": float(n)} for n in (1, 2)]
    run = directory(tmp_path / "r", rows, provenance={"env": "<script>alert(1)</script>"})
    report(run)
    assert "<script" not in run.report.read_text()
    assert "&lt;script&gt;" in run.report.read_text()


def test_gaps_and_flat_lines_are_drawn(tmp_path: Path) -> None:
    """Missing values are left out, a constant curve has a height, and one point is no curve."""
    rows = [{"steps": n, "episode/return_mean": 5.0 if n % 2 else None, "ppo/entropy": 1.0 if n == 1 else None}
            for n in range(1, 8)]  # fmt: skip
    run = directory(tmp_path / "r", rows)
    report(run)
    page = run.report.read_text()
    assert page.count("<svg") == 1 and "nan" not in page


def test_a_run_without_metrics(tmp_path: Path) -> None:
    """A run that logged nothing has a page without curves."""
    facts = report(directory(tmp_path / "r", []))
    assert facts["steps"] == 0
    page = Path(facts["report"]).read_text()
    assert "0 steps" in page and "<svg" not in page


def test_a_broken_evaluation_is_named(tmp_path: Path) -> None:
    """A damaged evaluation.json is said, not skipped."""
    run = directory(tmp_path / "r", [{"steps": 1}], evaluation="{")
    with pytest.raises(CheckpointError, match=r"evaluation\.json is not valid JSON"):
        report(run)


def test_results_against_opponents(tmp_path: Path) -> None:
    """Counts and the win rate with its interval stand in a table, opponent by opponent."""
    result = {
        "games": 10,
        "wins": 7,
        "draws": 1,
        "losses": 2,
        "win_rate": 0.7,
        "win_rate_low": 0.4,
        "win_rate_high": 0.9,
    }
    run = directory(tmp_path / "r", [{"steps": 1}], evaluation={"opponents": {"scripted:rule": result}})
    report(run)
    page = run.report.read_text()
    assert "<td>scripted:rule<td>10<td>7<td>1<td>2<td>70.0 %" in page
    assert "[40.0, 90.0]" in page
