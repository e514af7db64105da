"""The verb `diagnose`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.api import Run
from slipstream.cli import main
from slipstream.perf.rules import RULES
from slipstream.testing import ToyEnv

SMALL = ["--preset", "smoke", "--seconds", "0.5", "--test", "inference"]


def test_an_env_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict in words or JSON on stdout, what is being done on stderr, and a page in this folder."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["diagnose", "soccer", *SMALL, "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert done.exit_code == 0 and facts["page"] == "diagnosis.html" and (tmp_path / "diagnosis.html").is_file()
    assert facts["name"] == "soccer" and facts["env"] is None and facts["inference"]["rows"] == 8
    assert "training" in done.stderr


def test_a_run_is_diagnosed(trained: Run, tmp_path: Path) -> None:
    """A run's own settings and its past, with flags over them; `run:DIR` and `--run DIR` are the same."""
    page = str(tmp_path / "page.html")
    for words in ([f"run:{trained.path}"], ["--run", str(trained.path)]):
        more = ["--seconds", "0.5", "--test", "gpu", "--set", "plan.envs=8", "--out", page, "--json"]
        done = CliRunner().invoke(main, ["diagnose", *words, *more], catch_exceptions=False)
        facts = json.loads(done.stdout)
        assert facts["past"]["run"] == str(trained.path) and facts["past"]["steps"] == trained.facts["steps"]
        assert facts["train"]["plan"]["envs"] == 8 and facts["past"]["memory"]


def test_rules_are_listed() -> None:
    """--rules needs no env; each rule says when it holds and what to do."""
    done = CliRunner().invoke(main, ["diagnose", "--rules", "--json"])
    assert [rule["name"] for rule in json.loads(done.stdout)["rules"]] == [rule.name for rule in RULES]
    text = CliRunner().invoke(main, ["diagnose", "--rules"]).stdout
    assert "slow-reset (reset-bound)\n  when `reset` takes 20% of all time\n  then load and build once" in text


def test_what_cannot_be_diagnosed(trained: Run, quick: Callable[..., Run]) -> None:
    """Nothing named, a run of another env, and an env that has no name are errors with a hint."""
    nothing = CliRunner().invoke(main, ["diagnose"])
    assert nothing.exit_code == 2 and "hint: name an ENV, or a run by --run DIR" in nothing.stderr
    other = CliRunner().invoke(main, ["diagnose", "kart", "--run", str(trained.path)])
    assert other.exit_code == 2 and "is a run of `soccer`, not of `kart`" in other.stderr
    nameless = quick(lambda: ToyEnv(), steps=64)
    done = CliRunner().invoke(main, ["diagnose", f"run:{nameless.path}"])
    assert done.exit_code == 2 and "hint: diagnose it there: slipstream.diagnose(" in done.stderr
