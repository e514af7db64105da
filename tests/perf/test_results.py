"""Benchmark results: the pages are up to date, and the frame writes one file per benchmark."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a benchmark script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/guides/games.md is the page generated from the results; `docs/generate.py --check` checks the others."""
    games = load("games", monkeypatch)
    summary = json.loads((BENCHMARKS / "results" / "games.json").read_text())["summary"]
    assert games.PAGE.read_text(encoding="utf-8") == games.page(summary), "run: python benchmarks/games.py --write"


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_complete(path: Path) -> None:
    """A result file has its provenance, its rows and its report, and stays small."""
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["name"] == path.stem and path.stat().st_size < 200_000
    assert {"name", "command", "commit", "date", "machine", "rows", "summary", "report"} == set(result)
    assert result["rows"] and result["report"] and {"cpu", "cores", "python"} <= set(result["machine"])
    assert all({"work", "contestant"} <= set(row) for row in result["rows"])


def test_rounds_are_interleaved_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second round runs in reverse order, and each measurement is a row of the file."""
    harness = load("harness", monkeypatch)
    result = harness.Result("toy", Namespace(out=tmp_path / "toy.json", quick=False, wait=0.0))
    contestants = {name: (lambda turn, name=name: {"steps_per_second": turn + 1.0}) for name in "ab"}
    harness.run_rounds(result, "toy", contestants, 3)
    assert "".join(row["contestant"] for row in result.rows) == "abbaab"
    result.close({"met": True}, "# Toy")
    written = json.loads((tmp_path / "toy.json").read_text())
    assert written["rows"] == result.rows and written["summary"] == {"met": True} and written["report"] == "# Toy"
    rates = harness.rates_of(written["rows"])
    assert rates["a"] == {0: 1.0, 1: 2.0, 2: 3.0} and harness.ratios(rates, "a", "b") == [1.0, 1.0, 1.0]
    assert list(harness.interleave(5, "ab", budget_s=0.0)) == [(0, "a"), (0, "b")]
    again = harness.Result("toy", Namespace(out=tmp_path / "toy.json"), resume=True)
    assert len(again.rows) == 6
