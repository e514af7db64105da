"""The arguments of a verb: stage options, sources of settings, and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slipstream as ss
from slipstream.envs.registry import UserCode
from slipstream.errors import ConfigError
from slipstream.runs.layout import RunDir
from slipstream.stages.prepare import Sources, keyword_options, name_env, prepare, source_names
from slipstream.testing import ToyEnv

POLE = "gymnasium:CartPole-v1"


def still(obs: Any) -> int:
    """An agent that always takes the first action."""
    return 0


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


def test_one_module_may_be_a_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`modules="mine"` is the module `mine`, wherever modules are given."""
    (tmp_path / "prepared_module.py").write_text("def drive(obs):\n    return 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sources, _ = Sources.split({"modules": "prepared_module", "terms": "prepared_module:drive"})
    assert sources.command_flags() == " --import prepared_module --reward prepared_module:drive"
    assert sources.code().modules == UserCode(modules="prepared_module").modules == ("prepared_module",)  # type: ignore[arg-type]
    facts = ss.evaluate("prepared_module:drive", POLE, games=1, modules="prepared_module")
    assert facts["games"] == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ss.evaluate(None, POLE), "`agent` is None"),
        (lambda: ss.evaluate([still], POLE), "`agent` is one agent, not a list"),
        (lambda: ss.evaluate(still, POLE, beside=[still]), "`beside` is one agent, not a list"),
        (lambda: ss.evaluate(still, "soccer", opponent=[None]), "`opponent` is None"),
        (lambda: ss.train("soccer", teacher=[still]), "`teacher` is one agent, not a list"),
        (lambda: ss.record(None, POLE, 1, "demos"), "`agent` is None"),
        (lambda: ss.watch([None], POLE), "`agents` is None"),
        (lambda: ss.tournament("scripted:rule", "soccer", 2, run="cup"), "1 agent cannot play a tournament"),
        (lambda: ss.tournament(still, "soccer", 2, run="cup"), "1 agent cannot play a tournament"),
    ],
)
def test_what_is_no_agent_is_a_clear_error(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None and a list in the place of an agent, and one agent in the place of several, are errors with a hint."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said) as caught:
        call()
    assert caught.value.hint


def test_a_missing_module_is_named_for_python_too() -> None:
    """The hint has the flag and the Python argument."""
    with pytest.raises(ConfigError, match="names the module `mine`") as caught:
        ss.evaluate("mine:pilot", POLE, games=1)
    assert "--import mine" in caught.value.hint and "modules=['mine']" in caught.value.hint
