"""The train stage: files of a run directory, keys of the display, and errors of resume."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from slipstream.algorithms.ppo import PPO
from slipstream.api import Run, configure, evaluate, resume
from slipstream.envs.soccer.columns import State
from slipstream.errors import CheckpointError, ConfigError
from slipstream.play.replay_recording import verify
from slipstream.runs.checkpoint import find, load, read_best, steps_of
from slipstream.runs.layout import RunDir
from slipstream.runs.provenance import read_config
from slipstream.runs.replays import Replay
from slipstream.runs.signals import StopRequest
from slipstream.system import numba_compile
from slipstream.testing import ToyEnv
from slipstream.training.runner import _handle_keys


class Keys:
    """A display with given key presses."""

    def __init__(self, *keys: str | None) -> None:
        self.keys, self.said = list(keys), list[str]()

    def poll_key(self) -> str | None:
        """The next key."""
        return self.keys.pop(0) if self.keys else None

    def message(self, text: str) -> None:
        """Store a message."""
        self.said.append(text)


@pytest.mark.parametrize(
    ("keys", "stop", "save"),
    [(["c"], "", True), (["q"], "quit", False), ([None], "", False), (["x"], "", False), (["p", None, "p"], "", False),
     (["p", "q"], "quit", False)],
)  # fmt: skip
def test_keys(keys: list[str | None], stop: str, save: bool) -> None:
    """c saves, q saves and quits, p pauses until p or q, and other keys do nothing."""
    wishes, display = StopRequest(), Keys(*keys)
    _handle_keys(display, wishes)  # type: ignore[arg-type]
    assert (wishes.stop, wishes.save) == (stop, save)
    if keys[0] == "p":
        assert display.said[0].startswith("paused")


def test_training_works_in_a_thread(quick: Callable[..., Run]) -> None:
    """Outside the main thread, training runs without signal handlers."""
    found: list[Run] = []
    thread = threading.Thread(target=lambda: found.append(quick(lambda: ToyEnv(), steps=64)))
    thread.start()
    thread.join(30)
    assert found[0].facts["steps"] == 64


def test_the_best_is_by_evaluation(trained: Run) -> None:
    """The best checkpoint is the one with the highest score in evaluation games, and it is kept."""
    rows = [row for row in trained.metrics() if "evaluate/score" in row]
    best = read_best(RunDir.open(trained.path))
    assert best is not None
    assert best["score"] == max(row["evaluate/score"] for row in rows)
    assert trained.agent("best").name.endswith(f"@{best['steps']}")


def test_a_run_knows_its_settings_and_env(trained: Run) -> None:
    """config.yaml reads back to the same settings, and provenance.json names the env."""
    settings, env = read_config(RunDir.open(trained.path))
    assert env == "soccer"
    assert settings == configure("soccer", preset="smoke", flags={"every.profile": 512}).settings
    more, _ = read_config(RunDir.open(trained.path), steps=9999)
    assert more.steps == 9999


def test_configs_that_were_tampered_with(tmp_path: Path) -> None:
    """A run without config.yaml or without the name of its env is an error with exit code 5."""
    run = RunDir.create(tmp_path / "r")
    run.checkpoints.mkdir()
    with pytest.raises(CheckpointError) as caught:
        read_config(run)
    assert f"{run.path} has no config.yaml" in caught.value.message and caught.value.hint
    run.config.write_text("seed: 1\n")
    for text in (None, "no JSON", "[]", "{}"):
        if text is not None:
            run.provenance.write_text(text)
        with pytest.raises(CheckpointError) as caught:
            read_config(run)
        assert str(run.provenance) in caught.value.message and '"env": "NAME"' in caught.value.hint


def test_a_run_of_a_python_env_needs_it_again(quick: Callable[..., Run]) -> None:
    """The hint is the call that resumes the run, and this call works."""
    run = quick(lambda: ToyEnv(), steps=128)
    with pytest.raises(ConfigError) as caught:
        resume(run.path, steps=256)
    assert str(run.path) in caught.value.message
    assert f"slipstream.resume({str(run.path)!r}, env=lambda: ToyEnv(...))" in caught.value.hint
    assert resume(run.path, steps=256, env=lambda: ToyEnv()).facts["steps"] == 256


def test_an_env_that_cannot_be_restored_starts_new_episodes(
    quick: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """A Gymnasium env starts new episodes on resume, with a notice."""
    run = quick("gymnasium:CartPole-v1", steps=128)
    resume(run.path, steps=192)
    assert "Environment state of `gymnasium:CartPole-v1` cannot be restored" in capsys.readouterr().err


def test_an_env_must_be_a_name_or_a_function(quick: Callable[..., Run]) -> None:
    """An env object is an error whose hint shows the function to write."""
    env: Any = ToyEnv()
    with pytest.raises(ConfigError) as caught:
        quick(env)
    assert "ToyEnv" in caught.value.message and "ss.train(lambda: MyEnv())" in caught.value.hint


def test_users_own_reward_terms(quick: Callable[..., Run]) -> None:
    """A Python function of the state of one env is compiled, weighted and logged by name."""

    run = quick("soccer", steps=128, terms={"still": still}, rewards__weights={"still": 2.0})
    assert run.metrics()[-1]["reward/still"] == pytest.approx(2.0, rel=1e-3)


def still(before: State, after: State, me: int) -> float:
    """A user-defined reward term."""
    return 1.0


def test_a_run_needs_its_own_terms_again(quick: Callable[..., Run]) -> None:
    """A run with a user-defined reward term resumes only with that term."""
    run = quick("soccer", steps=128, terms={"still": still})
    with pytest.raises(ConfigError) as caught:
        resume(run.path, steps=256)
    assert caught.value.message.startswith("This run was trained with the reward terms [")
    assert "still" in caught.value.hint and "slipstream.resume(run, terms={...})" in caught.value.hint
    assert resume(run.path, steps=256, terms={"still": still}).facts["steps"] == 256


def test_a_new_total_is_remembered(quick: Callable[..., Run]) -> None:
    """`resume --steps` writes the new total into config.yaml for the next resume."""
    run = quick(lambda: ToyEnv(), steps=64)
    resume(run.path, steps=128, env=lambda: ToyEnv())
    assert read_config(RunDir.open(run.path))[0].steps == 128
    with pytest.raises(ConfigError, match="128 steps"):
        resume(run.path, env=lambda: ToyEnv())


def test_a_trained_agent_brings_its_own_interface(quick: Callable[..., Run]) -> None:
    """An agent trained with another action space is evaluated with it; a flag overrides it."""
    run = quick("soccer", steps=128, env__actions="continuous")
    resolved = configure("soccer", agent=f"run:{run.path}")
    assert resolved.settings.env.actions == "continuous"
    assert evaluate(f"run:{run.path}", "soccer", opponent="random", games=2, env__match_seconds=1.0)["games"] == 2
    asked = configure("soccer", agent=f"run:{run.path}", flags={"env__actions": "discrete"})
    assert asked.settings.env.actions == "discrete"


def test_compiling_is_announced(
    monkeypatch: pytest.MonkeyPatch, quick: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run of a version announces compilation; later runs do not."""
    monkeypatch.setattr(numba_compile, "COLD", True)
    quick(steps=64)
    assert "Compiling the kernels, once for this version" in capsys.readouterr().err
    monkeypatch.setattr(numba_compile, "COLD", False)
    quick(steps=64, name="again")
    assert "Compiling" not in capsys.readouterr().err


def test_what_breaks_an_update_is_not_saved(quick: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails during an update keeps its last checkpoint and resumes from it exactly."""
    whole = quick(name="whole", steps=512, every__checkpoint=256)
    update, calls = PPO.update, []

    def break_off(self: PPO, rollout: Any, steps: int) -> Any:
        calls.append(steps)
        result = update(self, rollout, steps)
        if steps == 384:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(PPO, "update", break_off)
        with pytest.raises(KeyboardInterrupt):
            quick(name="broken", steps=512, every__checkpoint=256)
    broken = RunDir.open(whole.path.parent / "broken")
    assert steps_of(broken) == [256]
    resume(broken.path)
    ends = [load(find(run)).groups["policy"] for run in (RunDir.open(whole.path), broken)]
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])


class Steps(ToyEnv):
    """A toy with tasks: `long` lasts three times as long as `short`."""

    tasks = ("short", "long")
    target = ("long",)
    seen: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Set the length of the episode by the task."""
        task = (options or {}).get("task", "none")
        Steps.seen.append(task)
        found = super().reset(seed=seed)
        self._left = {"short": 3, "long": 9}[task]
        return found


def test_a_curriculum_over_the_tasks_of_a_gymnasium_env(quick: Callable[..., Run]) -> None:
    """The curriculum chooses among the tasks of an env, and evaluation uses the target tasks."""
    Steps.seen.clear()
    settings = {"curriculum__kind": "uniform", "every__evaluate": 400, "evaluation__games": 6, "steps": 800}
    run = quick(lambda: Steps(), plan__collector="local", **settings)
    row = next(row for row in reversed(run.metrics()) if "evaluate/games" in row)
    assert row["evaluate/mean_length"] == 9.0
    assert 3.0 < row["episode/length_mean"] < 9.0
    assert row["curriculum/share/short"] == row["curriculum/share/long"] == 0.5
    assert {"short", "long"} == set(Steps.seen)


def test_a_curriculum_of_karts_resumes_exactly(quick: Callable[..., Run]) -> None:
    """Levels of difficulty are sampled, evaluated and resumed."""
    wanted = {
        "curriculum__kind": "learnability", "env__match_seconds": 4.0, "every__log": 64, "every__checkpoint": 10**9
    }  # fmt: skip
    whole = quick("kart", "whole", steps=2000, **wanted)
    half = quick("kart", "half", steps=1000, **wanted)
    again = resume(half.path, steps=2000)

    def exact(run: Run) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "system/"))} for row in run.metrics()]

    assert exact(whole) == exact(again)
    assert sum(whole.metrics()[-1][f"curriculum/share/level {k}"] for k in range(1, 6)) == pytest.approx(1.0)


def test_replays_are_kept_at_an_interval(quick: Callable[..., Run]) -> None:
    """Replays of evaluation games are written and can be played again bit for bit."""
    run = quick("soccer", steps=600, every__replay=256, env__match_seconds=2.0)
    kept = sorted((Path(run.path) / "replays").glob("*.replay"))
    assert {path.name.partition("-")[2].partition("-")[0] for path in kept} >= {"best", "worst"}
    for path in kept:
        replay = Replay.open(path)
        assert any("learner" in name or "@" in name for name in replay.facts.players)
        verify(replay)
    events = [json.loads(line) for line in (Path(run.path) / "events.jsonl").read_text().splitlines()]
    assert any(event["kind"] == "replay" for event in events)
