"""Cached plans: when they apply, which settings they may hold, and that nothing else is read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.api import configure
from slipstream.errors import ConfigError
from slipstream.perf import plan_cache
from slipstream.perf.paired_timing import Ratio
from slipstream.perf.tune import Tuned
from slipstream.settings import Settings
from slipstream.system import machine

FOUND = {"plan.envs": 1024, "ppo.rollout": 32, "plan.threads": 1}


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate cache for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(settings: dict[str, Any], env: str = "soccer") -> Path:
    """Save a plan for the game with default settings."""
    base = configure(env, tuned=False).settings
    found = Tuned(env, settings, 1.0, 2.0, Ratio(2.0, 1.9, 2.1, 5), 1.5, 65_536, [], {}, 3.0, 4.0)
    return Path(plan_cache.save(env, base, found).path)


def test_a_plan_is_a_layer_between_preset_and_file(tmp_path: Path) -> None:
    """A cached plan overrides presets, is overridden by files and flags, and its values have the origin `tuned`."""
    keep(FOUND)
    resolved = configure("soccer")
    origins = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert origins["plan.envs"] == (1024, "tuned") and origins["ppo.rollout"] == (32, "tuned")
    assert origins["ppo.minibatch"] == (4096, "preset soccer")
    assert resolved.untuned == configure("soccer", tuned=False).settings
    assert configure("soccer", flags={"seed": 3}).settings.plan.threads == 1
    mine = tmp_path / "mine.yaml"
    mine.write_text("seed: 7\n")
    assert configure("soccer", config=mine).settings.plan.envs == 1024


@pytest.mark.parametrize(
    "flags",
    [
        {"plan.envs": 128},
        {"ppo.rollout": 128},
        {"ppo.minibatch": 1024},
        {"policy.hidden": [64]},
        {"plan.lag": 1},
        {"algorithm": "sac"},
        {"env.actions": "continuous"},
        {"opponent": "random"},
    ],
)
def test_another_kind_of_training_has_no_part_in_it(flags: dict[str, Any]) -> None:
    """A plan does not apply to another batch, network, game or requested plan."""
    keep(FOUND)
    assert configure("soccer", flags=flags).untuned is None
    assert configure("soccer:2v2").untuned is None


def test_what_speed_does_not_depend_on_does_not_matter() -> None:
    """Seeds, steps, rates and coefficients share a plan."""
    keep(FOUND)
    flags = {"seed": 5, "steps": 10, "ppo.learning_rate": 1e-4, "every.log": 5, "plan.deadline_s": 5.0}
    assert configure("soccer", flags=flags).settings.plan.envs == 1024


def test_another_machine_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU is another machine."""
    path = keep(FOUND)
    assert path.parent.name == machine.fingerprint()
    monkeypatch.setattr(machine, "gpu_name", lambda: "Some GPU")
    assert configure("soccer").untuned is None


def test_an_empty_plan_leaves_everything_as_it_is() -> None:
    """The result that no plan is faster is saved too."""
    keep({})
    assert configure("soccer").untuned is None
    assert plan_cache.load("soccer", configure("soccer").settings) is not None


def test_envs_without_a_name_keep_nothing() -> None:
    """An env given as a function has no name, so no plan is saved for it."""
    found = Tuned("python:X", FOUND, 1.0, 2.0, Ratio(1, 1, 1, 0), None, 1, [], {}, 1.0, 1.0)
    assert plan_cache.save("python:X", Settings(), found).path == ""
    assert plan_cache.load("python:X", Settings()) is None and not plan_cache.folder().exists()


def test_files_that_were_tampered_with_are_refused() -> None:
    """Only settings that tuning may change are read, only with valid values, and only from JSON."""
    path = keep(FOUND | {"ppo.learning_rate": 1.0})
    with pytest.raises(ConfigError) as caught:
        configure("soccer")
    assert str(caught.value) == (
        f"The tuned plan {path} has `ppo.learning_rate`, which tuning never sets.\n"
        "hint: remove it, and tune again with the same flags: slipstream tune soccer"
    )
    keep({"plan.envs": "many"})
    with pytest.raises(ConfigError, match=r"Setting `plan.envs` \(tuned\) cannot be 'many'"):
        configure("soccer")
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        configure("soccer")
    path.write_text(json.dumps({"settings": 3}))
    with pytest.raises(ConfigError, match="`settings`"):
        configure("soccer")
    assert configure("soccer", tuned=False).settings.plan.envs == 512


def test_costs_of_stages() -> None:
    """The time of a stage per unit of work is saved, the last one counts, and invalid values are ignored."""
    settings = configure("soccer").settings
    assert plan_cache.stage_costs("soccer", settings) == {}
    plan_cache.keep_stage_cost("soccer", settings, "train", 0.5)
    plan_cache.keep_stage_cost("soccer", settings, "train", 0.25)
    plan_cache.keep_stage_cost("soccer", settings, "record", -1.0)
    assert plan_cache.stage_costs("soccer", settings) == {"train": 0.25}
