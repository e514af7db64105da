"""The verb `report`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from slipstream.api import Run
from slipstream.cli import main


def test_a_report_is_made(trained: Run) -> None:
    """The page is written, and its place and sections are told, for people and for programs."""
    place = Path(trained.path) / "report.html"
    done = CliRunner().invoke(main, ["report", str(trained.path)])
    assert done.exit_code == 0 and done.stdout.startswith(f"{place}: curves, ")
    facts = json.loads(CliRunner().invoke(main, ["report", str(trained.path), "--json"]).stdout)
    assert facts["report"] == str(place) and place.is_file() and "Curves" in facts["sections"]


def test_a_tournament_has_a_report(tmp_path: Path) -> None:
    """A folder with a ladder and nothing else will do."""
    players = [{"agent": "a", "rating": 1500.0}, {"agent": "b", "rating": 1400.0}]
    (tmp_path / "ladder.json").write_text(json.dumps({"tables": [{"players": players}]}))
    facts = json.loads(CliRunner().invoke(main, ["report", str(tmp_path), "--json"]).stdout)
    assert facts["sections"] == ["Ladder"] and (tmp_path / "report.html").is_file()


def test_no_run_no_report(tmp_path: Path) -> None:
    """A folder that holds no run is an error that says so."""
    done = CliRunner().invoke(main, ["report", str(tmp_path / "none")])
    assert done.exit_code == 5 and "No run at" in done.stderr
