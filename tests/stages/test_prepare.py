"""The arguments of a verb: stage options, sources of settings, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ConfigError
from slipstream.runs.layout import RunDir
from slipstream.stages.prepare import Sources, keyword_options, name_env, prepare, source_names
from slipstream.testing import ToyEnv


def stage(choice: Any, games: int, *, seed: int = 0, sampled: bool = False) -> None:
    """A stage with two keyword options."""


def test_options_are_split() -> None:
    """Keyword parameters of the stage are its options, known sources are sources, and the rest are settings."""
    assert list(keyword_options(stage)) == ["seed", "sampled"] and keyword_options(None) == {}
    sources, own = Sources.split({"seed": 3, "preset": "smoke", "tuned": False, "ppo__epochs": 2, "steps": 5}, stage)
    assert own == {"seed": 3}
    assert (sources.preset, sources.tuned, sources.settings) == ("smoke", False, {"ppo__epochs": 2, "steps": 5})
    own = {"terms", "observation", "modules", "agents", "network", "trust", "python"}
    assert set(source_names()) == {"preset", "config", "assignments", "tuned"} | own


def test_settings_override_assignments() -> None:
    """Settings by name, which flags become, override `--set` assignments, and both override presets."""
    options = {"preset": "smoke", "assignments": ["ppo.epochs=7", "seed=4", "ppo.rollout=8"], "seed": 5}
    choice, resolved, own = prepare("soccer", options)
    assert (resolved.settings.ppo.epochs, resolved.settings.seed, resolved.settings.ppo.rollout) == (7, 5, 8)
    assert resolved.origins["ppo.epochs"] == "flag" and choice.name == "soccer" and own == {}


def test_an_unknown_argument_is_an_unknown_setting() -> None:
    """A misspelt argument is reported as a setting, with the nearest key."""
    with pytest.raises(ConfigError, match=r"`sampeld`"):
        prepare("soccer", {"sampeld": True}, stage)


def test_settings_over_those_of_a_run(tmp_path: Path) -> None:
    """`resolve_over` starts from the settings of a run and applies assignments and settings."""
    (tmp_path / "config.yaml").write_text("ppo: {epochs: 3, value: 0.25}\nseed: 9\n")
    (tmp_path / "provenance.json").write_text('{"env": "soccer"}')
    sources, _ = Sources.split({"assignments": ["ppo.epochs=1"], "ppo__clip": 0.3})
    settings = sources.resolve_over(RunDir(tmp_path))
    assert (settings.ppo.epochs, settings.ppo.clip, settings.ppo.value_coef, settings.seed) == (1, 0.3, 0.25, 9)


def test_names_of_environments() -> None:
    """A string is its own name; a class and a function are named by the class that they make."""
    assert name_env("soccer") == ("soccer", None)
    assert name_env(ToyEnv) == ("python:ToyEnv", ToyEnv)
    made: list[Any] = []
    assert name_env(lambda: ToyEnv(), made)[0] == "python:ToyEnv" and len(made) == 1
