"""The verb `report`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from slipstream.api import Run
from slipstream.cli import main


def test_a_report_is_written(trained: Run) -> None:
    """`report` writes the page and prints its path and sections, as text or JSON."""
    place = Path(trained.path) / "report.html"
    done = CliRunner().invoke(main, ["report", str(trained.path)])
    assert done.exit_code == 0 and done.stdout.startswith(f"{place}: curves, ")
    facts = json.loads(CliRunner().invoke(main, ["report", str(trained.path), "--json"]).stdout)
    assert facts["report"] == str(place) and place.is_file() and "Curves" in facts["sections"]


def test_a_tournament_has_a_report(tmp_path: Path) -> None:
    """A folder that holds only a ladder has a report."""
    players = [{"agent": "a", "rating": 1500.0}, {"agent": "b", "rating": 1400.0}]
    (tmp_path / "ladder.json").write_text(json.dumps({"tables": [{"players": players}]}))
    facts = json.loads(CliRunner().invoke(main, ["report", str(tmp_path), "--json"]).stdout)
    assert facts["sections"] == ["Ladder"] and (tmp_path / "report.html").is_file()


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    """A folder without a run is an error with exit code 5."""
    done = CliRunner().invoke(main, ["report", str(tmp_path / "none")])
    assert done.exit_code == 5 and str(tmp_path / "none") in done.stderr
