"""The verb `diagnose`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.api import Run
from slipstream.cli import main
from slipstream.perf.rules import RULES
from slipstream.testing import ToyEnv

SMALL = ["--preset", "smoke", "--seconds", "0.5", "--test", "inference"]


def test_an_env_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diagnose` prints the verdict on stdout and its progress on stderr, and writes a page."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["diagnose", "soccer", *SMALL, "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert done.exit_code == 0 and facts["page"] == "diagnosis.html" and (tmp_path / "diagnosis.html").is_file()
    assert facts["name"] == "soccer" and facts["env"] is None and facts["inference"]["rows"] == 8
    assert done.stderr


def test_a_run_is_diagnosed(trained: Run, tmp_path: Path) -> None:
    """`run:DIR` and `--run DIR` use the settings and metrics of a run, with flags on top."""
    page = str(tmp_path / "page.html")
    for words in ([f"run:{trained.path}"], ["--run", str(trained.path)]):
        more = ["--seconds", "0.5", "--test", "gpu", "--set", "plan.envs=8", "--out", page, "--json"]
        done = CliRunner().invoke(main, ["diagnose", *words, *more], catch_exceptions=False)
        facts = json.loads(done.stdout)
        assert facts["past"]["run"] == str(trained.path) and facts["past"]["steps"] == trained.facts["steps"]
        assert facts["train"]["plan"]["envs"] == 8 and facts["past"]["memory"]


def test_rules_are_listed() -> None:
    """`--rules` needs no env and prints the condition and the advice of each rule."""
    done = CliRunner().invoke(main, ["diagnose", "--rules", "--json"])
    assert [rule["name"] for rule in json.loads(done.stdout)["rules"]] == [rule.name for rule in RULES]
    text = CliRunner().invoke(main, ["diagnose", "--rules"]).stdout
    assert "slow-reset (reset-bound)\n  when " in text and "\n  then " in text


def test_diagnose_errors(trained: Run, quick: Callable[..., Run]) -> None:
    """No env and no run, a run of another env, and an env without a name are errors with a hint."""
    nothing = CliRunner().invoke(main, ["diagnose"])
    assert nothing.exit_code == 2 and "--run DIR" in nothing.stderr
    other = CliRunner().invoke(main, ["diagnose", "kart", "--run", str(trained.path)])
    assert other.exit_code == 2 and "`soccer`" in other.stderr and "`kart`" in other.stderr
    nameless = quick(lambda: ToyEnv(), steps=64)
    done = CliRunner().invoke(main, ["diagnose", f"run:{nameless.path}"])
    assert done.exit_code == 2 and "slipstream.diagnose(" in done.stderr


def test_suggestions_repeat_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suggested command has the module, the preset and the opponent that were given, so it can be pasted."""
    (tmp_path / "mine.py").write_text("class Pilot:\n    def act(self, obs):\n        return 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    always = [replace(rule, holds=lambda found: True) for rule in RULES if rule.name == "slowing-down"]
    monkeypatch.setattr("slipstream.perf.rules.RULES", always)
    words = ["soccer", *SMALL, "--opponent", "mine:Pilot", "--import", "mine"]
    done = CliRunner().invoke(main, ["diagnose", *words], catch_exceptions=False)
    command = "slipstream diagnose soccer --preset smoke --opponent mine:Pilot --seconds 60 --import mine"
    assert f"   try: {command}\n" in done.stdout
