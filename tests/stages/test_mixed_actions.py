"""Mixed actions through the stages: train, record, check, clone, DAgger, teach, evaluate, and what refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream as ss
from slipstream.api import Run, configure, evaluate, record, train
from slipstream.demos.quality import check_quality
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.play.assignments import invalid_action
from slipstream.testing import ToyEnv, check_env
from slipstream.training.build import off_device, probe_env
from slipstream.vector.make import make_vector

SETTINGS: dict[str, Any] = {
    "plan__collector": "local", "plan__envs": 16, "plan__threads": 1, "ppo__rollout": 32, "ppo__minibatch": 128,
    "ppo__epochs": 4, "ppo__learning_rate": 3e-3, "ppo__gamma": 0.9, "policy__hidden": [32], "every__checkpoint": 0,
}  # fmt: skip


def toy() -> ToyEnv:
    """An env whose actions are an option and a number."""
    return ToyEnv("mixed")


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A trained run."""
    return train(toy, steps=20_000, run=tmp_path_factory.mktemp("mixed") / "expert", **SETTINGS)


def test_demos_of_mixed_actions_are_recorded_checked_and_learned_from(expert: Run, tmp_path: Path) -> None:
    """Recorded actions are valid and those of the expert, and PPO takes demos, teacher and reference at once."""
    agent, folder = f"run:{expert.path}", tmp_path / "demos"
    record(agent, toy, 40, folder, workers=1)
    report = check_quality(folder)
    assert not report.bad and len(report.facts()["actions"]) == 2
    assert any(line.startswith("action 0: 4 of 4 options used") for line in report.lines())
    assert any("of [-1, 1]" in line for line in report.lines() if line.startswith("action 1: min"))
    columns = Demos.open(folder).load(["obs", "action"])
    cue = columns["obs"].argmax(axis=1)
    assert (columns["action"][:, 0] == cue).mean() > 0.95
    assert np.abs(columns["action"][:, 1] - (1.6 * cue / 3 - 0.8)).mean() < 0.2
    more = {"ppo__demos": str(folder), "ppo__teacher": agent, "ppo__reference": agent, "ppo__reference_kl_coef": 0.1}
    for learner in ("fused", "torch"):
        run = train(toy, steps=5_000, run=tmp_path / learner, plan__learner=learner, **SETTINGS | more)
        assert evaluate(f"run:{run.path}", toy, games=20)["mean_return"] > 8.0


def test_a_clone_of_mixed_actions_plays_and_dagger_labels_them(tmp_path: Path) -> None:
    """Both an accuracy and an error are reported, and the rounds of DAgger hold the expert's actions."""
    record("scripted:oracle", "mixed:hybrid", 12, tmp_path / "demos", workers=1)
    run = ss.clone(
        tmp_path / "demos", run=tmp_path / "run", clone__epochs=1, clone__dagger=1, clone__dagger_games=3,
        policy__features=16, policy__hidden=[16],
    )  # fmt: skip
    assert {"accuracy", "error"} <= run.facts.keys()
    played = Demos.open(tmp_path / "run" / "dagger" / "1").load(["obs", "action"])
    oracle = ss.load_agent("scripted:oracle", env="mixed:hybrid")
    assert np.allclose(oracle.act(played["obs"]), played["action"])
    assert evaluate("scripted:oracle", "mixed:hybrid", games=3)["mean_return"] == pytest.approx(8.0)


def test_other_trainers_see_the_spaces_of_the_env() -> None:
    """A Gymnasium vector takes batches of the nested actions, and the random agent's actions are valid."""
    assert check_env(toy()) == []
    envs = ss.make_vector(toy, envs=3, vector="serial")
    try:
        assert envs.single_action_space == toy().action_space
        envs.reset(seed=0)
        cue = envs.reset(seed=0)[0].argmax(axis=1)
        best = {"number": (1.6 * cue / 3 - 0.8).astype(np.float32)[:, None], "option": cue}
        assert envs.step(best)[1] == pytest.approx(np.ones(3), abs=1e-6)
    finally:
        envs.close()
    assert evaluate("random", toy, games=5)["games"] == 5


def test_what_does_not_support_mixed_actions_says_so(tmp_path: Path) -> None:
    """SAC and the device collector refuse them; an option must be a whole number in range."""
    with pytest.raises(ConfigError, match="1 discrete and 1 continuous parts") as raised:
        train(toy, steps=100, run=tmp_path / "sac", algorithm="sac")
    assert "algorithm=ppo" in raised.value.hint
    settings = configure("recall").settings
    probe = probe_env(EnvChoice("gymnasium:toy", factory=toy), settings)._replace(on_device=True)
    assert "mixed actions" in off_device(settings, probe, terms=False, opponents=False)
    spec = make_vector(EnvChoice("gymnasium:toy", factory=toy), 1).spec
    valid = np.array([[3, 0.5]], np.float32)
    assert invalid_action(valid, spec) == ""
    assert "does not exist" in invalid_action(np.array([[4, 0.5]], np.float32), spec)
    assert "does not exist" in invalid_action(np.array([[1.5, 0.5]], np.float32), spec)
    assert "not a number" in invalid_action(np.array([[1, np.nan]], np.float32), spec)
