"""Environments in another interpreter: spaces, values, isolation, and what is said when one fails."""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from slipstream.contracts import empty_rows
from slipstream.envs.adapters import bridge, bridge_server
from slipstream.envs.adapters.bridge import BridgeEnv
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvEnded, EnvError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.vector.make import choose_native, make_one, make_vector, spread_vector

SERVER = Path(bridge_server.__file__)


def minerl(python: str, name: str = "MineRLTreechop-v0", **options: Any) -> EnvChoice:
    """A game of the stand-in for minerl."""
    return EnvChoice(f"minerl:{name}", EnvSettings(options=options), python=python)


def play(choice: EnvChoice, steps: int, option: int = 8, envs: int = 1) -> list[Any]:
    """Repeat one action; return the observations, rewards and ends of each step."""
    vector = make_vector(choice, envs, seed=3)
    rows, found = empty_rows(vector.spec, envs), []
    try:
        vector.reset(rows)
        for _ in range(steps):
            vector.step(np.full((envs, 1), option, np.int32), rows)
            found.append(tuple(np.copy(part) for part in (rows.obs, rows.reward, rows.terminated, rows.truncated)))
    finally:
        vector.close()
    return found


def test_the_server_is_written_for_an_old_python() -> None:
    """It parses as Python 3.8, imports the standard library and NumPy only, and no file beside it hides a module."""
    tree = ast.parse(SERVER.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy"}
    assert not {path.stem for path in SERVER.parent.glob("*.py")} & set(sys.stdlib_module_names)


def test_values_cross_the_bridge(other_python: str) -> None:
    """Nested observations, words, numbers and infos arrive, and what the game prints does not disturb them."""
    env = BridgeEnv(other_python, "MineRLObtainDiamond-v0", {}, packages=("gym",), imports=("minerl",))
    try:
        assert isinstance(env.observation_space, spaces.Dict) and isinstance(env.action_space, spaces.Dict)
        assert env.action_space["craft"].values == ("none", "planks", "torch")  # type: ignore[attr-defined]
        assert env.observation_space["pov"] == spaces.Box(0, 255, (64, 64, 3), np.uint8)
        first, info = env.reset(seed=5)
        assert first["equipped_items"]["mainhand"] == {"type": "none", "damage": 3} and info == {}
        action = dict.fromkeys(env.action_space, 0) | {"attack": 1, "camera": np.zeros(2), "craft": "torch"}
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs["equipped_items"]["mainhand"]["type"] == "iron_axe" and obs["inventory"]["log"] == 1
        assert (reward, terminated, truncated, info) == (1.0, False, False, {"note": "chopped"})
        assert not np.array_equal(first["pov"], obs["pov"]), "an observation is not overwritten by the next"
        assert np.array_equal(first["pov"], env.reset(seed=5)[0]["pov"])
    finally:
        env.close()
        env.close()


def test_a_step_is_one_exchange(other_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without an info writes five bytes and reads five; frames do not go through the pipes."""
    env = BridgeEnv(other_python, "MineRLTreechop-v0", {}, packages=("gym",), imports=("minerl",))
    env.reset(seed=1)
    sizes: list[int] = []
    real = {name: getattr(os, name) for name in ("read", "write")}
    monkeypatch.setattr(os, "write", lambda to, data: sizes.append(len(data)) or real["write"](to, data))
    monkeypatch.setattr(os, "read", lambda at, size: (found := real["read"](at, size), sizes.append(len(found)))[0])
    env.step(dict.fromkeys(env.action_space, 0) | {"camera": np.zeros(2)})  # type: ignore[attr-defined]
    monkeypatch.undo()
    env.close()
    assert sizes == [5, 5]


def test_rows_are_those_of_the_same_env_here() -> None:
    """A Gymnasium env behind the bridge has the same spec, observations, rewards and ends."""
    here, there = EnvChoice("gymnasium:CartPole-v1"), EnvChoice("gymnasium:CartPole-v1", python=sys.executable)
    for ours, theirs in zip(play(here, 30, 1, 2), play(there, 30, 1, 2), strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    vector = make_vector(here, 1)
    assert choose_native(there, vector.spec, 2) == ("it runs in another interpreter", 0.0)


def test_minerl_there_is_mapped_as_minerl_here(other_python: str) -> None:
    """Action map, frame options, seeds by the method `seed`, and truncation by gym's own time limit."""
    steps = play(minerl(other_python, size=32, grey=True, stack=2), 25)
    vector = make_vector(minerl(other_python, size="16x32", actions="full", camera="6,3,0"), 1)
    assert vector.spec.obs.fields[0].shape == (16, 32, 3) and vector.spec.action.sizes == (2,) * 8 + (5, 5)
    vector.close()
    assert [bool(truncated[0]) for *_, truncated in steps] == [step == 19 for step in range(25)]
    assert all(reward[0] == 1 for _, reward, *_ in steps) and not any(terminated[0] for *_, terminated, _ in steps)


def test_the_actions_of_vpt_there(other_python: str) -> None:
    """The spaces are those of VPT's agents; buttons that a game lacks are left out, and those of its own are null."""
    env = make_one(minerl(other_python, "MineRLBasaltFindCave-v0", actions="vpt"))
    try:
        obs, _ = env.reset(seed=1)
        assert obs.shape == (128, 128, 3) and env.action_space == spaces.MultiDiscrete([8641, 121])
        *_, info = env.step(np.array([864 * 2 + 288 + 4 + 1, 5 * 11]))
        assert info == {"pressed": ["attack", "forward", "hotbar.2"], "camera": [0.0, -10.0]}
        assert env.step(np.array([8640, 0]))[-1] == {"pressed": ["inventory"], "camera": [0.0, 0.0]}
    finally:
        env.close()
    small = make_vector(minerl(other_python, "MineRLObtainDiamond-v0", actions="vpt", size=16), 1)
    rows = empty_rows(small.spec, 1)
    small.reset(rows)
    small.step(np.array([[8639, 60]], np.int32), rows)
    small.close()
    assert small.spec.obs.fields[0].shape == (16, 16, 3) and len(small.spec.obs.fields) == 1 and rows.reward[0] == 1


def test_nothing_of_this_process_is_imported_there(
    other_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the current folder nor PYTHONPATH are searched, and no file or variable chooses an interpreter."""
    for name in ("gym", "minerl", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported by mistake')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    assert len(play(minerl(other_python), 2)) == 2
    with pytest.raises(ConfigError, match=r"Unknown setting `env\.options\.python`"):
        make_vector(EnvChoice("minerl:Any-v0", EnvSettings(options={"python": other_python})), 1)


@pytest.mark.parametrize("name", ["gymnasium:os:Any-v0", "minerl:os:Any-v0"])
@pytest.mark.parametrize("here", [True, False])
def test_an_id_cannot_import_a_module(other_python: str, name: str, here: bool) -> None:
    """Gym imports what stands before a colon in an id; files hold ids, so that is refused in both interpreters."""
    with pytest.raises(EnvError, match="names a module to import"):
        make_vector(EnvChoice(name, python="" if here else other_python), 1)


def test_modules_are_imported_there_too(other_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of --import that the other interpreter finds registers its env there."""
    (tmp_path / "own_games.py").write_text(
        "try:\n    import gym, minerl\n    gym.register('Own-v0', minerl.Treechop, 5)\nexcept ImportError:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    choice = EnvChoice("minerl:Own-v0", python=other_python, modules=("own_games",))
    assert [bool(truncated[0]) for *_, truncated in play(choice, 5)] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("raise", EnvFault, r"Env 0 \(seed \d+, step 10\) raised:[\s\S]*in _fail[\s\S]*ValueError: the server lost"),
        ("exit", EnvFault, r"Env 0 \(seed \d+, step 10\) raised:[\s\S]*SystemExit: bye"),
        ("die", EnvEnded, r"Env 0 \(seed \d+, step 10\): The interpreter \S+ ended with exit code 7"),
        ("leave", EnvEnded, r"Env 0 \(seed \d+, step 10\): The interpreter \S+ ended with exit code 200"),
        ("kill", EnvEnded, r"Env 0 \(seed \d+, step 10\): The interpreter \S+ was killed by signal 9"),
        ("make", EnvFault, r"Env 0 \(seed \d+, step 0\) raised:[\s\S]*RuntimeError: no Java here"),
    ],
)
def test_faults_name_the_env_and_show_its_traceback(
    other_python: str, fault: str, kind: type[EnvError], message: str
) -> None:
    """What the env raises has its own traceback; a death has its exit code or signal."""
    with pytest.raises(kind, match=message):
        play(minerl(other_python, f"{fault.title()}-v0"), 12)


@pytest.mark.parametrize(
    ("python", "name", "kind", "message"),
    [
        ("/no/such/python", "minerl:MineRLTreechop-v0", ConfigError, r"--python /no/such/python cannot be started"),
        ("/bin/true", "minerl:MineRLTreechop-v0", EnvError, r"/bin/true ended with exit code 0\. That was before"),
        (sys.executable, "minerl:MineRLTreechop-v0", EnvError, "cannot import what the environment needs: No module"),
        (sys.executable, "gymnasium:NoSuch-v0", EnvError, "has no such environment: .*NoSuch"),
        (sys.executable, "soccer", ConfigError, "`soccer` runs in this interpreter"),
    ],
)
def test_what_cannot_start(python: str, name: str, kind: type[EnvError], message: str) -> None:
    """A wrong path, a program that is not Python, a missing package and an unknown id are different errors."""
    with pytest.raises(kind, match=message):
        make_vector(EnvChoice(name, python=python), 1)


def test_a_hanging_step_is_an_error(other_python: str) -> None:
    """A vector in this process has a deadline too, and the error names env, seed and step."""
    choice = replace(minerl(other_python, "Hang-v0"), deadline_s=0.5)
    with pytest.raises(EnvEnded, match=r"Env 0 \(seed \d+, step 10\): .* did not return from `step` within 0\.5 s"):
        play(choice, 12)


def test_a_game_that_is_never_made_is_an_error(other_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a game has a longer deadline than a step."""
    monkeypatch.setattr(bridge, "SLOW_S", 0.5)
    with pytest.raises(
        EnvError, match=r"did not return from `make` within 0\.5 s\. That was before it made `Stuck-v0`"
    ):
        make_vector(replace(minerl(other_python, "Stuck-v0"), deadline_s=0.2), 1)


def test_a_program_that_never_answers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a Python interpreter, but runs on, is ended with its children."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(bridge, "DEADLINE_S", 0.5)
    with pytest.raises(EnvError, match=r"did not return from `start` within 0\.5 s") as caught:
        make_vector(minerl(str(program)), 1)
    assert "--version" in caught.value.hint
    assert not running(int((tmp_path / "pid").read_text()))


def test_a_signal_ends_a_hanging_step_soon(other_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of SIGTERM is called, and the wait ends long before its deadline."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bridge, "STOP_S", 0.3)
    env = BridgeEnv(other_python, "Hang-v0", {}, packages=("gym",), imports=("minerl",))
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        env.reset()
        timer.start()
        with pytest.raises(EnvEnded, match=r"from `step` within 0\.3 s after the signal to stop"):
            idle(env, 10)
        assert got == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is mine
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
        env.close()


@pytest.mark.parametrize("stepped", [True, False])
def test_nothing_outlives_a_killed_supervisor(other_python: str, stepped: bool) -> None:
    """When the process is killed that would end the game, its processes end by the next call, in any session."""
    env = BridgeEnv(other_python, "Java-v0", {}, packages=("gym",), imports=("minerl",))
    supervisor = psutil.Process(env._process.pid)  # type: ignore[union-attr]
    below = [one.pid for one in supervisor.children(recursive=True)]
    assert len(below) == 3, "the server, and two processes of the game"
    env.reset(seed=1)
    supervisor.kill()
    if stepped:
        with pytest.raises(EnvEnded, match="was killed by signal 9"):
            idle(env, 10)
    env.close()
    assert not any(running(pid) for pid in below)


def idle(env: BridgeEnv, steps: int) -> None:
    """Do nothing for some steps."""
    for _ in range(steps):
        env.step(dict.fromkeys(env.action_space, 0) | {"camera": np.zeros(2)})  # type: ignore[attr-defined]


def running(pid: int) -> bool:
    """Whether a process runs; one that was killed may take a moment to end."""
    try:
        psutil.Process(pid).wait(5)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [("Hang-v0", "did not return from `step` or `reset` within 2 s"), ("Kill-v0", "was killed by signal 9")],
)
def test_a_vector_that_respawns_workers_goes_on(other_python: str, fault: str, message: str) -> None:
    """If a server hangs or dies, its worker is replaced and its episode is truncated."""
    vector = spread_vector(minerl(other_python, fault), 1, "processes", 1, deadline_s=2, respawn=True)
    rows, ends = empty_rows(vector.spec, 1), []

    def step_on() -> None:
        for _ in range(12):
            vector.step(np.zeros((1, 1), np.int32), rows)
            ends.append(bool(rows.truncated[0]))

    vector.reset(rows)
    with pytest.warns(RuntimeWarning, match=message):
        step_on()
    vector.close()
    assert ends == [step == 9 for step in range(12)]
