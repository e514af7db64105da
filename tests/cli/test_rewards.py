"""The verbs `rewards report` and `rewards ablate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.api import Run, record
from slipstream.cli import main

Cli = Callable[..., Result]
SHORT = ("--set", "env.match_seconds=4")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call `slipstream rewards` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, ["rewards", *(str(word) for word in words)])


def facts(result: Result) -> dict[str, Any]:
    """The one JSON object, which is the last line of stdout."""
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return loaded


def test_a_player_is_reported_before_any_training(cli: Cli) -> None:
    """The report of an agent is printed as a table and saved in the given folder."""
    result = cli("report", "--env", "soccer", "--agent", "scripted:rule", "--games", 4, "--out", "seen", *SHORT)
    assert result.exit_code == 0, result.output
    head, columns, *rows = result.stdout.splitlines()
    assert head.startswith("soccer: scripted:rule against scripted:rule, 4 games, ")
    assert columns.split()[:2] == ["term", "group"] and [row.split()[0] for row in rows[:3]] == ["goal", "win", "touch"]
    saved = json.loads(Path("seen/rewards.json").read_text())
    assert saved["games"] == 4 and saved["curves"]["unit"] == "seconds"


def test_settings_are_those_of_the_flags(cli: Cli) -> None:
    """A term that is switched off is off, and a half-life is the discount of the shares."""
    more = ("--set", "rewards.groups.ball=0", "--set", "rewards.half_life_s=10")
    found = facts(
        cli("report", "--env", "soccer", "--agent", "random", "--games", 2, "--out", "x", *SHORT, *more, "--json")
    )
    assert found["terms"]["touch"]["kind"] == "off" and found["gamma"] ** 150 == pytest.approx(0.5)
    assert sum(one["advantage_share"] for one in found["terms"].values()) == pytest.approx(1)


def test_a_run_is_reported_into_its_folder(cli: Cli, quick: Callable[..., Run]) -> None:
    """The report uses the policy, env and rewards of the run, and is saved in the run directory."""
    run = quick(steps=128, rewards={"weights": {"touch": 0.0}})
    found = facts(cli("report", run.path, "--games", 3, "--json"))
    assert found["agent"] == f"run:{run.path}" and found["opponent"] == "scripted:rule" and found["games"] == 3
    assert found["terms"]["touch"]["kind"] == "off"
    assert json.loads((run.path / "rewards.json").read_text())["env"] == "soccer"
    other = facts(cli("report", f"run:{run.path}@latest", "--games", 2, "--out", "there", "--json"))
    assert other["games"] == 2 and Path("there/rewards.json").exists()


def test_demos_are_reported(cli: Cli) -> None:
    """A report of demos covers all games, or the first ones."""
    record("scripted:chaser", "soccer", 4, "demos", seed=0, env__match_seconds=4.0)
    assert facts(cli("report", "demos", "--json"))["games"] == 4
    found = facts(cli("report", "demos", "--games", 2, "--json"))
    assert found["games"] == 2 and found["agent"] == "scripted:chaser" and Path("demos/rewards.json").exists()
    refused = cli("report", "demos", "--agent", "random")
    assert refused.exit_code == 2 and "leave out --agent and --env" in refused.stderr


def test_a_report_needs_a_source(cli: Cli) -> None:
    """Without a run, demos or an agent the exit code is 2; with a missing folder it is 5."""
    nothing = cli("report", "--env", "soccer")
    assert nothing.exit_code == 2 and "--env soccer --agent scripted:rule" in nothing.stderr
    assert cli("report", "missing").exit_code == 5


def test_an_ablation_ends_in_a_table(cli: Cli) -> None:
    """`ablate` prints a verdict per term and writes files; an unknown term is a config error."""
    words = ("ablate", "soccer", "--preset", "smoke", "--terms", "touch", "--seeds", 2)
    result = cli(*words, "--steps", 64, "--games", 2, "--run", "ablation")
    assert result.exit_code == 0, result.output
    assert "== 2 of 4: without touch, seed 0" in result.stderr
    head, columns, row = result.stdout.splitlines()[:3]
    assert head.startswith("soccer: 2 seeds of 64 steps, 2 games each against scripted:rule; win rate with all terms")
    assert columns.split()[0] == "term" and row.split()[0] == "touch"
    assert json.loads(Path("ablation/ablation.json").read_text())["terms"]["touch"]["verdict"]
    again = facts(cli(*words, "--steps", 64, "--games", 2, "--run", "ablation", "--json"))
    assert again["stopped"] == "" and list(again["terms"]) == ["touch"]
    wrong = cli("ablate", "soccer", "--terms", "tuch", "--run", "other")
    assert wrong.exit_code == 2 and "`tuch`" in wrong.stderr and "Did you mean `touch`?" in wrong.stderr
