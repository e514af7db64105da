"""The verb `compete`: JSON keys, text, `resume`, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main

SMALL = ["--preset", "smoke", "--set", "every.evaluate=0", "--set", "env.match_seconds=1"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words])


def facts(result: Result) -> dict[str, Any]:
    """The JSON object of a successful command."""
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_a_league_and_its_resumption(cli: Callable[..., Result]) -> None:
    """`compete --json` has the keys of training and the ladder; `resume` resumes a league and prints its ladder."""
    found = facts(cli("compete", "soccer", *SMALL, "--steps", 400, "--run", "l", "--json"))
    assert found["steps"] >= 400 and found["run"] == "l"
    assert {table["play"] for table in found["ladder"]["tables"]} == {"greedy", "sampled"}
    assert json.loads(Path("l/provenance.json").read_text())["stage"] == "compete"
    again = cli("resume", "l", "--steps", 800)
    assert again.exit_code == 0, again.output
    assert "scripted:rule is fixed at 1500" in again.stdout and "main@0" in again.stdout
    assert "slipstream resume l --steps" in again.stdout


def test_a_copy_starts_a_league(cli: Callable[..., Result]) -> None:
    """`--start` takes any trained agent, including a frozen copy of another league."""
    facts(cli("compete", "soccer", *SMALL, "--steps", 200, "--run", "l", "--json"))
    found = facts(cli("compete", "soccer", *SMALL, "--steps", 200, "--run", "m", "--start", "run:l/pool@0", "--json"))
    assert found["steps"] >= 200


def test_compete_errors(cli: Callable[..., Result]) -> None:
    """A fixed opponent and a game with one side are errors; no files are written."""
    versus = cli("compete", "soccer", *SMALL, "--opponent", "random", "--run", "l")
    assert versus.exit_code == 2
    assert "`opponent` = random" in versus.stderr and "--set 'league.anchors=[random]'" in versus.stderr
    alone = cli("compete", "kart", *SMALL, "--run", "l")
    assert alone.exit_code == 2 and "`kart` has one side and takes no opponent." in alone.stderr
    assert not Path("l").exists()
