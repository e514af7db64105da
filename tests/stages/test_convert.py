"""Stable-Baselines3 models, trained here, as opponent, teacher and start of a training; refused without --trust."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import slipstream as ss
from slipstream.api import Run, convert_sb3
from slipstream.cli import main
from slipstream.errors import CheckpointError, ConfigError
from slipstream.policies.sb3_model import read_model
from slipstream.runs.layout import RunDir
from slipstream.stages import convert as stage
from slipstream.stages.prepare import prepare

MODELS = {
    "ppo": ("stable_baselines3", "PPO", "MlpPolicy", {}),
    "recurrent": ("sb3_contrib", "RecurrentPPO", "MlpLstmPolicy", {"lstm_hidden_size": 16}),
}
TINY = {"plan__envs": 4, "plan__collector": "local", "ppo__rollout": 16, "ppo__minibatch": 64, "ppo__epochs": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A PPO and a RecurrentPPO model, trained for a moment on soccer."""
    folder, made = tmp_path_factory.mktemp("models"), {}
    for name, (package, kind, policy, more) in MODELS.items():
        env = ss.make_vector("soccer", envs=4, workers=1, api="sb3")
        algorithm = getattr(import_module(package), kind)
        model = algorithm(policy, env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu", policy_kwargs=more)
        model.learn(64)
        env.close()
        made[name] = folder / f"{name}.zip"
        model.save(made[name])
    return made


def cli(*words: object) -> Result:
    """Call the command line."""
    return CliRunner().invoke(main, [str(word) for word in words])


def convert(file: Path, env: str, out: Path, **options: Any) -> dict[str, Any]:
    """Convert a model in this process."""
    return convert_sb3(file, env, out, **options)


def check_refused(action: Callable[[], Any], file: Path) -> None:
    """The action is refused with the flag to add."""
    with pytest.raises(ConfigError) as caught:
        action()
    assert str(file) in caught.value.message and "--trust" in caught.value.hint
    assert caught.value.code == 2


def check_same_but_ties(original: Any, agent: Any, obs: np.ndarray) -> None:
    """Actions are the same, except where SB3's two largest logits differ by less than its own rounding of them.

    SB3 subtracts the log of the normaliser (2.89 for 18 nearly equal options), which rounds logits to 2.4e-7. A policy
    that has hardly been trained has a few observations with such ties.
    """
    one, two = original.act(obs), agent.act(obs)
    differ = np.flatnonzero(one != two)
    assert len(differ) <= 10
    logits, _, _ = original._forward(
        np.arange(len(obs)), obs, np.zeros((len(obs), original.model.state_size), np.float32)
    )
    top = np.sort(logits[differ], axis=1)
    assert (top[:, -1] - top[:, -2] < 1e-6).all()


@pytest.mark.parametrize("name", MODELS)
def test_as_opponent(name: str, models: dict[str, Path], quick: Callable[..., Run], tmp_path: Path) -> None:
    """A model plays against the policy in training and evaluation; a resumed run needs the permission again."""
    opponent = f"sb3:{models[name]}"
    check_refused(lambda: quick(**TINY, opponent=opponent, steps=128), models[name])
    check_refused(lambda: quick(**TINY, evaluation__opponent=opponent, every__evaluate=64, steps=128), models[name])
    run = quick(**TINY, opponent=opponent, steps=128, trust=True)
    assert "trust" not in (run.path / "config.yaml").read_text()
    check_refused(lambda: ss.resume(run.path, steps=256), models[name])
    assert ss.resume(run.path, steps=256, trust=True).facts["steps"] >= 256
    result = cli("evaluate", f"run:{run.path}", "--env", "soccer", "--games", 2, "--opponent", opponent)
    assert result.exit_code == 2 and "--trust" in str(result.output)
    result = cli("evaluate", f"run:{run.path}", "--env", "soccer", "--games", 2, "--opponent", opponent, "--trust")
    assert result.exit_code == 0, result.output


def test_a_worker_loads_the_model(models: dict[str, Path], quick: Callable[..., Run]) -> None:
    """The permission reaches the worker processes of the collector."""
    settings = TINY | {"plan__collector": "actors", "plan__workers": 2}
    assert quick(**settings, opponent=f"sb3:{models['recurrent']}", steps=128, trust=True).facts["steps"] >= 128


@pytest.mark.parametrize("name", MODELS)
def test_as_teacher(name: str, models: dict[str, Path], quick: Callable[..., Run]) -> None:
    """A policy imitates a model in the states of its own rollouts."""
    teacher = {"ppo__teacher": f"sb3:{models[name]}", "ppo__teacher_coef": 1.0}
    check_refused(lambda: quick(**TINY, **teacher, steps=128), models[name])
    run = quick(**TINY, **teacher, steps=256, trust=True)
    losses = [row["ppo/teacher_loss"] for row in run.metrics() if "ppo/teacher_loss" in row]
    assert losses and np.isfinite(losses).all()


@pytest.mark.parametrize("name", MODELS)
def test_as_start(name: str, models: dict[str, Path], quick: Callable[..., Run], tmp_path: Path) -> None:
    """A converted model acts as the original, and a training starts from it; it needs no permission any more."""
    file, out = models[name], tmp_path / "converted"
    check_refused(lambda: convert(file, "soccer", out), file)
    assert not out.exists()
    result = cli("convert", "sb3", file, "--env", "soccer", "--out", out, "--trust", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["compared"] == 10_000 and facts["same_actions"] >= 0.999  # the rest are ties, as below
    assert facts["steps"] == read_model(file, trust=True).steps >= 64
    original, agent = ss.load_agent(f"sb3:{file}", "soccer", trust=True), ss.load_agent(f"run:{out}")
    obs = np.random.default_rng(0).standard_normal((10_000, original.obs.width)).astype(np.float32)
    check_same_but_ties(original, agent, obs)
    run = quick(**TINY, start=f"run:{out}", steps=128, ppo__value_warmup=100)  # the policy is not trained in a warm-up
    trained = run.agent()
    assert trained.design.policy.memory == ("lstm" if name == "recurrent" else "none")
    trained.begin()
    agent.begin()
    assert np.array_equal(trained.act(obs), agent.act(obs))
    result = cli("evaluate", f"run:{out}", "--env", "soccer", "--games", 2, "--opponent", "random")
    assert result.exit_code == 0, result.output


def test_mistakes_are_explained(models: dict[str, Path], quick: Callable[..., Run], tmp_path: Path) -> None:
    """A model as `start`, another env, a folder in use, `resume`, and missing flags are errors with a hint."""
    file = models["ppo"]
    with pytest.raises(ConfigError) as caught:
        quick(**TINY, start=f"sb3:{file}", trust=True)
    assert f"slipstream convert sb3 {file}" in caught.value.hint
    with pytest.raises(CheckpointError, match="observations"):
        convert(file, "gymnasium:CartPole-v1", tmp_path / "other", trust=True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="already exists"):
        convert(file, "soccer", file.parent, trust=True)
    convert(file, "soccer", tmp_path / "made", trust=True)
    with pytest.raises(ConfigError) as caught:
        ss.resume(tmp_path / "made")
    assert caught.value.hint == f"train from it: slipstream train soccer --start run:{tmp_path / 'made'}"
    result = cli("convert", "sb3", file, "--out", tmp_path / "x", "--trust")
    assert result.exit_code == 2 and "--env ENV" in result.output
    result = cli("convert", "sb3", file, "--out", tmp_path / "x", "--env", "soccer")
    assert result.exit_code == 2 and "--trust" in result.output
    result = cli("convert", "sb4", file, "--out", tmp_path / "x", "--env", "soccer")
    assert result.exit_code == 2 and "Did you mean `sb3`?" in result.output
    result = cli("convert", "sb3", file, "--out", tmp_path / "x", "--env", "soccer", "--temperature", "3")
    assert result.exit_code == 2 and "--temperature applies to" in result.output
    result = cli("convert", "sb3", tmp_path / "none.zip", "--out", tmp_path / "x", "--env", "soccer")
    assert result.exit_code == 5 and "no such file" in result.output, "a missing file needs no trust to be named"


def test_a_converted_run_keeps_what_its_values_were_learned_with(models: dict[str, Path], tmp_path: Path) -> None:
    """Training goes on with the model's discount and the units of its values, and prints the modules it needs."""
    out = tmp_path / "with space"
    facts = convert(models["ppo"], "soccer", out, trust=True, modules=["json"])
    assert facts["flags"] == " --import json" and RunDir(out).modules == ["json"]
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("  gamma: 0.99", "  gamma: 0.9", 1))
    resolved = prepare("soccer", {"start": f"run:{out}", "tuned": False}).resolved
    assert resolved.settings.ppo.gamma == 0.9 and not resolved.settings.ppo.normalise_return
    assert prepare("soccer", {"start": f"run:{out}", "ppo__gamma": 0.5}).resolved.settings.ppo.gamma == 0.5
    result = cli("convert", "sb3", models["ppo"], "--env", "soccer", "--out", tmp_path / "a b", "--trust")
    assert f"--start run:'{tmp_path / 'a b'}'" in result.output


def test_a_policy_that_acts_otherwise_is_not_written(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the converted policy does not act like the original, nothing is written."""
    made = stage.convert_policy

    def wrong(*given: Any) -> Any:
        converted = made(*given)
        converted.params_and_stats[: converted.design.weights.size] *= -1
        return converted

    monkeypatch.setattr(stage, "convert_policy", wrong)
    with pytest.raises(CheckpointError, match="acts differently"):
        convert(models["ppo"], "soccer", tmp_path / "out", trust=True)
    assert not (tmp_path / "out").exists()
