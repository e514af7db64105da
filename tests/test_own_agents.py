"""The user's own agents in every verb that takes an agent, from Python and from the command line."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import slipstream as ss
from command_server import CommandServer
from slipstream.agents import guarded
from slipstream.agents.own import PREFIX
from slipstream.errors import AgentFault, ConfigError
from slipstream.runs.layout import RunDir
from slipstream.testing import ToyEnv
from tiny_run import TINY_RUN

PENDULUM = "gymnasium:Pendulum-v1"
SMALL: dict[str, Any] = {"policy__hidden": (16,), "plan__envs": 8, "ppo__rollout": 16, "ppo__minibatch": 64}
CONTROLLER = '''
"""A controller for Pendulum, and opponents for soccer."""

import gymnasium
import numpy as np

from slipstream.testing import ToyEnv

gymnasium.register("Toys-v0", entry_point=ToyEnv, max_episode_steps=20)


class Pilot:
    """Pump energy, then balance, with some noise."""

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)

    def act(self, obs):
        cos, sin, speed = obs
        if cos > 0.9:
            torque = -20 * np.arctan2(sin, cos) - 3 * speed
        else:
            torque = 2 * np.sign(speed or 1) * (1 if 0.5 * speed**2 + 15 * (cos - 1) < 0 else -1)
        return [torque + self.rng.normal(0, 0.1)]


def still(obs):
    return 0


def broken(obs):
    raise RuntimeError("out of fuel")
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current folder."""
    (tmp_path / "my_pilot.py").write_text(CONTROLLER, encoding="utf-8")
    (tmp_path / "toys_only.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_pilot"
    sys.modules.pop("my_pilot", None)


@pytest.fixture(scope="module")
def slipstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs the command line, each time in a new process."""
    server = CommandServer(tmp_path_factory.mktemp("server"))

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(server.folder / "slipstream"), *words]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})

    yield run
    server.close()


def contents(folder: Path) -> dict[str, str]:
    """A hash of each episode of demos, by game and agent."""
    demos = ss.Demos.open(folder)
    found = {}
    for number, record in enumerate(demos.episodes):
        columns = demos.episode(number)
        whole = b"".join(name.encode() + np.ascontiguousarray(columns[name]).tobytes() for name in sorted(columns))
        found[f"{record['game']}/{record['agent']}"] = hashlib.sha256(whole).hexdigest()
    return found


class Pusher:
    """Plays soccer by drawing actions from its seed; keeps its memory in `state`."""

    def __init__(self) -> None:
        self.state = np.zeros(1)

    def reset(self, seed: int) -> None:
        """Begin a game."""
        self.state = np.array([seed % 97])

    def act(self, obs: Any) -> int:
        """Step a small generator."""
        self.state = self.state * 5 % 97
        return int(self.state[0]) % 3


@pytest.mark.slow
def test_demos_do_not_depend_on_the_number_of_workers(module: str, tmp_path: Path) -> None:
    """One, two and four workers record the same episodes of a seeded controller, bit for bit."""
    found = []
    for workers in (1, 2, 4):
        out = tmp_path / str(workers)
        facts = ss.record("my_pilot:Pilot", PENDULUM, 8, out, workers=workers, modules=[module])
        assert facts["workers"] == workers and facts["mean_return"] > -400
        found.append(contents(out))
    assert len(found[0]) == 8 and found[0] == found[1] == found[2]
    sys.modules.pop(module)
    import my_pilot  # type: ignore[import-not-found]

    ss.record(my_pilot.Pilot, PENDULUM, 8, tmp_path / "object", workers=1)
    assert contents(tmp_path / "object") == found[0], "a class given in Python plays the same games"


@pytest.mark.slow
def test_opponent_teacher_player_and_anchor(tmp_path: Path) -> None:
    """An object plays as opponent, teacher, expert, tournament player and league anchor, and a resumed run is exact."""
    soccer: dict[str, Any] = SMALL | {"preset": "smoke", "tuned": False, "every__evaluate": 0}
    whole = ss.train("soccer", run=tmp_path / "whole", steps=1024, opponent=Pusher(), **soccer)
    ss.train("soccer", run=tmp_path / "half", steps=512, opponent=Pusher(), **soccer)
    with pytest.raises(ConfigError, match=r"python:Pusher.*is not given here") as caught:
        ss.resume(tmp_path / "half", steps=1024)
    assert "agents=[Pusher]" in caught.value.hint
    half = ss.resume(tmp_path / "half", steps=1024, agents=[Pusher()])
    assert (whole.agent().params_and_stats == half.agent().params_and_stats).all()

    taught = ss.train("soccer", run=tmp_path / "taught", steps=512, teacher=Pusher, **soccer)
    assert taught.metrics()[-1]["ppo/teacher_loss"] > 0
    seen = ss.evaluate(lambda obs: 0, "soccer", opponent=[Pusher, "scripted:rule"], games=4)
    assert list(seen["opponents"]) == ["python:Pusher", "scripted:rule"]
    cup = ss.tournament([Pusher, "random", whole.agent()], "soccer", 2, run=tmp_path / "cup", anchor=Pusher)
    assert cup["agents"] == ["python:Pusher", "random", f"run:{whole.path}@1024"]
    league = ss.compete(
        "soccer", run=tmp_path / "league", steps=512, league__anchors=[Pusher, "random"], league__snapshot=256, **soccer
    )
    players = {one["agent"] for table in league.facts["ladder"]["tables"] for one in table["players"]}
    assert "python:Pusher" in players


@pytest.mark.slow
def test_an_agent_that_fails_is_retired_from_a_league_and_an_error_elsewhere(tmp_path: Path) -> None:
    """A league and a tournament retire a failing agent; a training against it and an evaluation stop tidily."""

    class Breaks:
        def __init__(self) -> None:
            self.left = 3

        def reset(self) -> None:
            self.left = 3

        def act(self, obs: Any) -> int:
            self.left -= 1
            return 1 // max(0, self.left)

    soccer: dict[str, Any] = SMALL | {"preset": "smoke", "tuned": False, "every__evaluate": 0}
    league = ss.compete("soccer", run=tmp_path / "league", steps=512, league__anchors=[Breaks, "random"], **soccer)
    events = (league.path / "events.jsonl").read_text(encoding="utf-8")
    assert "python:Breaks is retired: python:Breaks raised ZeroDivisionError" in events and "(env " in events
    cup = ss.tournament([Breaks, "random", "scripted:rule"], "soccer", 2, run=tmp_path / "cup", anchor="random")
    assert "ZeroDivisionError" in cup["retired"]["python:Breaks"]
    with pytest.raises(AgentFault, match=r"env \d+, agent \d, step 2; observation"):
        ss.evaluate(Breaks, "soccer", opponent="random", games=2)
    with pytest.raises(ConfigError, match="The opponent failed: python:Breaks raised ZeroDivisionError"):
        ss.train("soccer", run=tmp_path / "train", steps=512, opponent=Breaks, **soccer)


@pytest.mark.slow
def test_record_clone_and_dagger_with_a_controller(module: str, tmp_path: Path) -> None:
    """A controller records demos and labels what its clone visits, by default as the expert of its own demos."""
    ss.record("my_pilot:Pilot", PENDULUM, 6, tmp_path / "demos", workers=2, modules=[module])
    cloned = ss.clone(
        tmp_path / "demos",
        run=tmp_path / "clone",
        modules=[module],
        clone__epochs=1,
        clone__dagger=1,
        clone__dagger_games=2,
        clone__patience=1,
        policy__hidden=(16,),
    )
    demos = ss.Demos.open(tmp_path / "clone" / "dagger" / "1")
    assert demos.shards[0].origin["expert"] == "my_pilot:Pilot" and len(demos) == 2
    assert RunDir(cloned.path).modules == [module]
    import my_pilot

    again = ss.clone(
        tmp_path / "demos",
        run=tmp_path / "again",
        expert=my_pilot.Pilot,
        clone__epochs=1,
        clone__dagger=1,
        clone__dagger_games=2,
        policy__hidden=(16,),
    )
    stored = ss.Demos.open(again.path / "dagger" / "1").shards[0].origin
    assert stored["expert"] == f"{PREFIX}Pilot"


@pytest.mark.slow
def test_the_command_line_says_which_module_is_missing(
    module: str, slipstream: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A run remembers its modules: printed commands hold the flag, and commands without it name it."""
    small = [f"--set={name}" for name in ("policy.hidden=[8]", "plan.envs=4", "ppo.rollout=8", "ppo.minibatch=32")]
    done = slipstream("train", "gymnasium:Toys-v0", "--import", module, "--steps", "64", "--run", "toys", *small)
    assert "resume: slipstream resume toys --import my_pilot --steps 128" in done.stdout, done.stderr
    missing = slipstream("resume", "toys", "--steps", "128")
    assert missing.returncode == 2 and "was started with --import my_pilot" in missing.stderr
    assert "slipstream resume toys --import my_pilot" in missing.stderr
    missing = slipstream("evaluate", "run:toys", "--env", "gymnasium:Toys-v0", "--games", "2")
    assert missing.returncode == 2 and "hint: add --import my_pilot" in missing.stderr
    missing = slipstream("evaluate", "my_pilot:still", "--env", "gymnasium:CartPole-v1", "--games", "2")
    assert missing.returncode == 2 and "hint: add --import my_pilot" in missing.stderr
    fine = slipstream("evaluate", "run:toys", "--env", "gymnasium:Toys-v0", "--games", "2", SLIPSTREAM_IMPORT=module)
    assert fine.returncode == 0, fine.stderr
    fine = slipstream(
        *("evaluate", "my_pilot:still", "--import", module, "--env", "gymnasium:CartPole-v1", "--games", "2"),
        SLIPSTREAM_IMPORT="toys_only",
    )
    assert fine.returncode == 0, "modules of the shell and of the flag are both imported: " + fine.stderr
    for words in (["diagnose", "run:toys"], ["train", "gymnasium:Toys-v0", "--set", "start=run:toys", "--dry-run"]):
        missing = slipstream(*words)
        assert missing.returncode == 2 and "hint: add --import my_pilot" in missing.stderr, missing.stderr
    before = Path("toys/config.yaml").read_text()
    assert slipstream("resume", "toys", "--steps", "4096").returncode == 2
    assert Path("toys/config.yaml").read_text() == before, "a refused command changes nothing"
    record = ["record", "my_pilot:broken", "--import", module, "--env", "gymnasium:CartPole-v1"]
    wrong = slipstream(*record, "--episodes", "4", "--out", "d", "--workers", "2")
    assert wrong.returncode == 2 and "`my_pilot:broken` raised RuntimeError: out of fuel" in wrong.stderr
    assert "my_pilot.py" in wrong.stderr and "Traceback" not in wrong.stderr and "(env " in wrong.stderr


@pytest.mark.slow
def test_demos_remember_the_modules_of_their_env(module: str, tmp_path: Path) -> None:
    """A clone prints the flag that its env needs, and DAgger asks for it before the first epoch."""
    env, small = "gymnasium:Toys-v0", {"clone__epochs": 1, "policy__hidden": (8,), "on_notice": lambda _: None}
    ss.record("my_pilot:still", env, 4, tmp_path / "demos", workers=1, modules=[module])
    del gymnasium.registry["Toys-v0"]
    cloned = ss.clone(tmp_path / "demos", run=tmp_path / "clone", **small)  # type: ignore[arg-type]
    assert cloned.facts["next"][0].endswith("--import my_pilot")
    with pytest.raises(ConfigError, match="recorded with --import my_pilot") as caught:
        ss.clone(tmp_path / "demos", run=tmp_path / "dagger", clone__dagger=1, **small)  # type: ignore[arg-type]
    assert caught.value.hint == "add --import my_pilot" and not (tmp_path / "dagger").exists()


@pytest.mark.slow
def test_a_teacher_that_fails_is_named_with_its_env(tmp_path: Path) -> None:
    """The error of a teacher holds env, agent, step and observation."""

    class Tires:
        state = np.zeros(1)

        def act(self, obs: Any) -> int:
            self.state = self.state + 1
            return 1 // int(self.state[0] < 5)

    soccer: dict[str, Any] = SMALL | {"preset": "smoke", "tuned": False, "every__evaluate": 0}
    with pytest.raises(
        AgentFault, match=r"python:Tires` raised ZeroDivisionError.*\(env 0, agent 0, step 4; observation"
    ):
        ss.train("soccer", run=tmp_path / "run", steps=256, teacher=Tires, **soccer)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nan", "shape", "hang", "exit"])
def test_agents_that_hang_or_return_nonsense_are_retired(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tournament retires an agent that returns NaN or a wrong shape, or does not answer, and plays on."""
    monkeypatch.setattr(guarded, "DEADLINE_S", 0.3)

    def fails(obs: Any) -> Any:
        if fault == "hang":
            time.sleep(20)
        if fault == "exit":
            sys.exit(3)
        return np.nan if fault == "nan" else [0, 1, 2]

    cup = ss.tournament([fails, "random", "scripted:rule"], "soccer", 2, anchor="random", env__match_seconds=2.0)
    said = {"nan": "returned nan", "shape": "returned [0, 1, 2]", "hang": "did not answer within 0.3 s"}
    said["exit"] = "raised SystemExit: 3 (env"
    why = cup["retired"]["python:fails"]
    assert list(cup["retired"]) == ["python:fails"] and said[fault] in why
    assert ("test_own_agents.py" in why) == (fault == "exit"), "the line of the agent's code"


@pytest.mark.slow
def test_a_blocked_opponent_ends_a_training_that_overlaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At lag 1 agents act in a thread that no exception reaches while it sleeps; training still ends and says why."""
    monkeypatch.setattr(guarded, "DEADLINE_S", 0.3)

    def sleeps(obs: Any) -> int:
        time.sleep(15)
        return 0

    began = time.monotonic()
    soccer: dict[str, Any] = SMALL | {"preset": "smoke", "tuned": False, "every__evaluate": 0}
    soccer |= {"plan__collector": "batched", "plan__lag": 1}
    with pytest.raises((AgentFault, ConfigError), match=r"did not answer within 0\.3 s"):
        ss.train("soccer", run=tmp_path / "run", steps=512, opponent=sleeps, **soccer)
    assert time.monotonic() - began < 14


@pytest.mark.slow
def test_dagger_plays_in_an_env_of_your_own(tmp_path: Path) -> None:
    """The function that made the env of the demos is given again, and asked for where it is missing."""

    def first(obs: Any) -> int:
        return int(np.argmax(obs))

    small: dict[str, Any] = {"preset": "smoke", "clone__epochs": 1, "clone__dagger": 1, "policy__hidden": (8,)}
    ss.record(first, ToyEnv, 6, tmp_path / "demos", workers=1)
    with pytest.raises(ConfigError, match="`python:ToyEnv`, which a Python function made, and DAgger plays"):
        ss.clone(tmp_path / "demos", run=tmp_path / "x", expert=first, on_notice=lambda line: None, **small)
    with pytest.raises(ConfigError, match="other observation or action spaces"):
        ss.clone(tmp_path / "demos", env=lambda: gymnasium.make("Pendulum-v1"), expert=first, **small)
    run = ss.clone(
        tmp_path / "demos", run=tmp_path / "run", env=ToyEnv, expert=first, on_notice=lambda line: None, **small
    )
    assert (run.path / "dagger" / "1" / "demos.json").exists()


@pytest.mark.slow
def test_games_of_nameless_functions_are_not_added_up(tmp_path: Path) -> None:
    """A second tournament in a folder needs names: its lambda may be another one."""
    play = {"run": tmp_path / "cup", "anchor": "random", "env__match_seconds": 2.0, "replays": False}
    ss.tournament([lambda obs: 0, "random"], "soccer", 2, **play)
    with pytest.raises(ConfigError, match="`python:lambda` may be another function"):
        ss.tournament([lambda obs: 5, "random"], "soccer", 2, **play)


@pytest.mark.slow
def test_a_resumed_run_says_what_it_does_not_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An opponent with memory of its own is reset, which is said; one with `state` is restored."""

    class Remembers:
        def reset(self) -> None:
            self.count = 0

        def act(self, obs: Any) -> int:
            return 0

    class Saved:
        state = np.zeros(1)

        def act(self, obs: Any) -> int:
            return 0

    soccer: dict[str, Any] = SMALL | {"preset": "smoke", "tuned": False, "plan__collector": "local"}
    for agent, told in ((Remembers, True), (Saved, False)):
        run = ss.train("soccer", run=tmp_path / agent.__name__, steps=256, opponent=agent, **soccer)
        capsys.readouterr()
        ss.resume(run.path, steps=512, agents=[agent])
        assert ("is reset in the running episodes" in capsys.readouterr().err) == told


def test_a_sampled_agent_is_not_played_greedily(tmp_path: Path) -> None:
    """An agent object that samples is refused where the flag of the call decides."""
    run = ss.train("recall", run=tmp_path / "run", **TINY_RUN, steps=64)
    with pytest.raises(ConfigError, match="loaded with sampled=True"):
        ss.evaluate(ss.load_agent(f"run:{run.path}", sampled=True), "recall", games=2)
