"""The verb `tournament`: the printed ladder and the JSON object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where commands are called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cli(*words: object) -> Result:
    """Call the command line with a short game."""
    return CliRunner().invoke(main, ["tournament", *map(str, words), "--env", "soccer", "--set", "env.match_seconds=4"])


def test_the_ladder_is_printed_and_more_games_are_added() -> None:
    """The ladder and the retired agents are printed; a second tournament adds games to the log."""
    result = cli("scripted:rule", "random", "run:gone", "--games", 4, "--run", "t")
    assert result.exit_code == 0, result.output
    assert "run:gone" in result.stderr
    assert "scripted:rule" in result.stdout and "1500" in result.stdout
    assert "retired: run:gone: " in result.stdout
    assert cli("scripted:rule", "random", "--games", 4, "--run", "t").stdout.endswith("(8 in all): t\n")
    assert {"games.jsonl", "ladder.json", "ratings.csv"} <= {path.name for path in Path("t").iterdir()}


def test_one_object_for_scripts() -> None:
    """With --json the last line of stdout is the result; without --run the folder gets a default name."""
    result = cli("scripted:rule", "scripted:chaser", "--games", 2, "--format", "knockout", "--json")
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["format"] == "knockout" and facts["games"] == 2 + 2 * facts["rounds"][0][0]["replayed_pairs"]
    assert Path(facts["run"]).parent == Path("runs") and facts["tables"][0]["players"][0]["rating"] is not None


def test_a_knockout_prints_its_rounds() -> None:
    """A knockout prints each match with its points, and the winner."""
    text = cli("scripted:rule", "random", "scripted:chaser", "--games", 2, "--format", "knockout").stdout
    assert "round 1: random" in text and "round 2: scripted:rule" in text and "\nwinner: " in text


def test_errors_end_with_their_codes() -> None:
    """An odd number of games and too few agents exit with code 2."""
    result = cli("scripted:rule", "random", "--games", 1)
    assert result.exit_code == 2 and "1 games" in result.stderr
    result = cli("scripted:rule", "run:gone", "--games", 2)
    assert result.exit_code == 2 and "run:gone" in result.stderr
