"""Environments in another interpreter: spaces, values, isolation, and what is said when one fails."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.contracts import empty_rows
from slipstream.envs.adapters import bridge_server
from slipstream.envs.adapters.bridge import BridgeEnv
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvEnded, EnvError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.vector.make import choose_native, make_vector, spread_vector

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
