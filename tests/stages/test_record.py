"""The record stage and its verb: facts, appending, and the same games from any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from result_keys import RETURNS, WINS
from slipstream.api import Run
from slipstream.cli import main
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.scenes import state_labels
from slipstream.errors import ConfigError, MachineError
from slipstream.play.recorder import resimulate
from slipstream.runs.signals import StopRequest
from slipstream.settings import EnvSettings
from slipstream.stages import record as module
from slipstream.stages.record import record
from slipstream.system import machine

SHORT = EnvChoice("soccer", EnvSettings(match_seconds=2.0))
CHOSEN = {"out", "recording", "env", "agent", "opponent", "expert", "seed", "sampled", "workers"}
MEASURED = {"episodes", "steps", "seconds", "start_seconds", "steps_per_second", "mib", "dropped", "faults"}
FACTS = CHOSEN | MEASURED | WINS | RETURNS | {"time", "stopped"}


def call(*words: object) -> Result:
    """Run the command line."""
    return CliRunner().invoke(main, ["record", *(str(word) for word in words)])


def episodes(path: Path) -> dict[tuple[int, int], dict[str, bytes]]:
    """The columns of every episode by game and agent."""
    demos = Demos.open(path)
    return {
        (int(record["game"]), int(record["agent"])): {n: a.tobytes() for n, a in demos.episode(number).items()}
        for number, record in enumerate(demos.episodes)
    }


def test_workers_change_nothing(tmp_path: Path) -> None:
    """One, two and three processes record the same games, each in its own shard."""
    found = []
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        facts = record(SHORT, "scripted:rule", 7, out, opponent="random", seed=5, workers=workers)
        assert (facts["workers"], facts["games"], facts["episodes"]) == (workers, 7, 7)
        assert len(list((out / "shards").iterdir())) == workers
        found.append(episodes(out))
    assert found[0] == found[1] == found[2]


def test_facts_match_the_demos(tmp_path: Path) -> None:
    """Counts, means and rates match the folder; both sides of a game are episodes."""
    heard: list[tuple[int, int]] = []
    facts = record(SHORT, "scripted:rule", 9, tmp_path, workers=1, on_progress=lambda *now: heard.append(now))
    demos = Demos.open(tmp_path)
    assert set(facts) == FACTS
    assert (facts["games"], facts["episodes"], facts["steps"]) == (9, 18, demos.steps) == (9, len(demos), demos.steps)
    assert facts["mean_return"] == pytest.approx(demos.episodes["return"].mean())
    assert facts["mean_length"] == pytest.approx(demos.steps / 18)
    assert facts["win_rate"] is None, "an agent against itself wins as often as it loses"
    assert facts["mib"] * 2**20 == sum(file.stat().st_size for file in tmp_path.glob("shards/*/*.bin")) - 72 * 18
    assert facts["steps_per_second"] == pytest.approx(facts["steps"] / facts["seconds"])
    assert sum(facts["time"].values()) == pytest.approx(1.0)
    assert {total for _, total in heard} == {9}
    against = record(SHORT, "scripted:rule", 8, tmp_path / "b", opponent="random", workers=1)
    outcomes = Demos.open(tmp_path / "b").episodes["outcome"].tolist()
    counts = [outcomes.count(result) for result in (1, 0, -1)]
    assert [against[name] for name in ("wins", "draws", "losses")] == counts
    assert against["win_rate"] == counts[0] / 8


def test_the_origin_of_a_shard(tmp_path: Path) -> None:
    """A shard names its agent, env, settings and version, which is enough to play its games again."""
    facts = record(SHORT, "random", 2, tmp_path, seed=4, workers=1)
    demos = Demos.open(tmp_path)
    origin = demos.shards[0].origin
    wanted = {"agent": "random", "opponent": None, "env": "soccer", "seed": 4, "sampled": False, "episodes": 2}
    assert wanted.items() <= origin.items()
    assert {"git", "python", "versions", "cpu", "time_utc", "argv"} <= set(origin)
    assert (origin["recording"], origin["settings"]["env"]["match_seconds"]) == (facts["recording"], 2.0)
    assert demos.shards[0].name == f"{facts['recording']}-000"
    pair = np.flatnonzero(demos.games == 0).tolist()
    assert [c["obs"].tobytes() for c in resimulate(demos, pair)] == [demos.episode(n)["obs"].tobytes() for n in pair]


def test_recordings_append_without_repeating(tmp_path: Path) -> None:
    """A second recording is appended, with the lowest seed that the folder has not used."""
    seeds = [record(SHORT, "random", 3, tmp_path, workers=1)["seed"] for _ in range(2)]
    seeds.append(record(SHORT, "random", 3, tmp_path, seed=3, workers=1)["seed"])
    seeds.append(record(SHORT, "random", 3, tmp_path, workers=1)["seed"])
    assert seeds == [0, 1, 3, 2]
    demos = Demos.open(tmp_path)
    assert len(demos) == 24
    assert len({demos.episode(n)["obs"].tobytes() for n in range(24)}) == 24, "no game is recorded twice"


def test_settings_of_the_env_apply(tmp_path: Path) -> None:
    """Random starts are recorded, and plan.envs is the number of envs."""
    words = ["--env", "soccer", "--episodes", 6, "--workers", 1, "--set", "env.match_seconds=2", "--json"]
    for name, share in (("a", 0), ("b", 1)):
        out = tmp_path / name
        done = call("random", *words, "--out", out, "--set", f"env.random_starts={share}", "--set", "plan.envs=2")
        assert done.exit_code == 0, done.output
    kicked, placed = (Demos.open(tmp_path / name) for name in "ab")
    first, other = (demos.load(["start/state"])["start/state"] for demos in (kicked, placed))
    x, y = (state_labels("soccer", {"state": first})["state"].index(name) for name in ("ball.x", "ball.y"))
    assert (first[:, [x, y]] == 0).all()
    assert (other[:, x] != 0).all()
    assert set(kicked.episodes["env"].tolist()) == {0, 1}


def test_a_trained_agent_uses_its_action_space(trained: Run, tmp_path: Path) -> None:
    """`run:DIR` plays with the action space of its training."""
    words = ["--env", "soccer", "--episodes", 2, "--workers", 1, "--set", "env.match_seconds=2"]
    done = call(f"run:{trained.path}", *words, "--out", tmp_path / "d", "--sampled")
    assert done.exit_code == 0, done.output
    assert Demos.open(tmp_path / "d").shards[0].origin["sampled"] is True


def test_facts_without_episodes(tmp_path: Path) -> None:
    """A recording that is stopped before its first game ends has zeros and nulls in its facts, and no shard."""
    facts = record(SHORT, "random", 5, tmp_path, workers=1, stop_request=StopRequest(stop="quit"))
    assert set(facts) == FACTS
    assert (facts["games"], facts["episodes"], facts["steps"], facts["mean_return"]) == (0, 0, 0, None)
    assert list((tmp_path / "shards").iterdir()) == []
    assert len(Demos.open(tmp_path)) == 0


def test_the_verb(tmp_path: Path) -> None:
    """--json prints every fact, the default prints a few lines, and nothing else is on stdout."""
    words = ["random", "--env", "gymnasium:CartPole-v1", "--episodes", 5, "--out", tmp_path / "d", "--workers", 1]
    facts: dict[str, Any] = json.loads(call(*words, "--json").stdout)
    assert set(facts) == FACTS
    assert (facts["env"], facts["agent"], facts["episodes"]) == ("gymnasium:CartPole-v1", "random", 5)
    lines = call(*words).stdout.splitlines()
    assert lines[0].startswith("5 games, 5 episodes, ") and lines[0].endswith(f" MiB in {tmp_path / 'd'}")
    assert lines[1].startswith("mean return ") and " over games of " in lines[1]
    assert lines[2].startswith("time: env ")
    assert len(Demos.open(tmp_path / "d")) == 10
    one = call("random", "--env", "recall", "--episodes", 1, "--out", tmp_path / "one", "--workers", 1)
    assert one.stdout.splitlines()[1].endswith(" [nan, nan] over games of 10 steps")


def test_dropped_episodes_are_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes with NaN are counted in the facts and reported on stderr."""
    source = "import gymnasium\nfrom slipstream.testing import BrokenEnv\ngymnasium.register('Nan-v0', BrokenEnv)\n"
    (tmp_path / "nan_module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    done = call(
        "random",
        "--env",
        "gymnasium:Nan-v0",
        "--import",
        "nan_module",
        "--episodes",
        20,
        "--out",
        "d",
        "--workers",
        2,
        "--set",
        "plan.envs=4",
        "--set",
        "env.options.fault=nan_reward",
        "--set",
        "env.options.at=25",
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "dropped: 4 episodes with NaN or infinite values"
    assert done.stdout.startswith("16 games, 16 episodes, 160 steps in ")
    told = [line for line in done.stderr.splitlines() if "not finite" in line]
    assert sorted(told) == [
        "The reward was not finite in 2 episodes, first in env 0 at step 4 of game 8: left out.",
        "The reward was not finite in 2 episodes, first in env 2 at step 4 of game 10: left out.",
    ]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["rando", "--env", "soccer", "--episodes", 1], 2, "`rando` does not name an agent. Did you mean `random`?"),
        (["scripted:x", "--env", "soccer", "--episodes", 1], 2, "`soccer` has no player `scripted:x`."),
        (["random", "--env", "socer", "--episodes", 1], 3, "There is no environment `socer`. Did you mean `soccer`?"),
        (["random", "--env", "soccer", "--episodes", 0], 2, "0 episodes cannot be recorded.\nhint: give --episodes a"),
        (["random", "--env", "soccer", "--episodes", 1, "--workers", 0], 2, "0 workers cannot record."),
        (["random", "--env", "soccer", "--episodes", 1, "--seed", -1], 2, "-1 cannot be a seed."),
        (["random", "--env", "recall", "--episodes", 1, "--opponent", "random"], 2, "`recall` has one side"),
        (["random", "--env", "soccer", "--episodes", 1, "--fps", 9], 2, "--fps applies to a human player only."),
        (["run:none", "--env", "soccer", "--episodes", 1], 5, "No run at none: no such folder."),
    ],
)
def test_errors_before_anything_is_written(words: list[object], code: int, text: str, tmp_path: Path) -> None:
    """A wrong agent, env or number is an error with its exit code, and no folder is made."""
    done = call(*words, "--out", tmp_path / "d")
    assert done.exit_code == code, done.output
    assert done.stderr.startswith(f"error: {text}")
    assert done.stdout == ""
    assert not (tmp_path / "d").exists()


def test_a_folder_with_something_else(tmp_path: Path) -> None:
    """A folder with other files or demos of another env is an error, and so is a missing --out."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes.txt").write_text("mine")
    done = call("random", "--env", "recall", "--episodes", 1, "--out", tmp_path / "d")
    assert (done.exit_code, (tmp_path / "d" / "notes.txt").read_text()) == (4, "mine")
    assert "is not empty and holds no demos.\nhint: choose another folder with --out DIR" in done.stderr
    record(SHORT, "random", 1, tmp_path / "s", workers=1)
    done = call("random", "--env", "recall", "--episodes", 1, "--out", tmp_path / "s")
    assert done.exit_code == 4
    assert 'holds demos with another `env`: "soccer", not "recall".' in done.stderr
    done = call("random", "--env", "recall", "--episodes", 1, "--out", tmp_path / "d" / "notes.txt")
    assert done.exit_code == 6
    assert done.stderr.endswith(
        "notes.txt cannot hold demos: File exists.\nhint: choose another folder with --out DIR\n"
    )
    assert call("random", "--env", "recall", "--episodes", 1).exit_code == 2


def test_a_disk_that_is_too_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that does not fit on the disk is an error before it starts."""
    monkeypatch.setattr(machine, "disk_free_bytes", lambda path: 100 * 2**20)
    record(SHORT, "random", 1, tmp_path, workers=1)
    with pytest.raises(MachineError) as caught:
        record(SHORT, "random", 10_000, tmp_path, workers=1)
    assert "has 100 MiB free; 20,000 episodes need about " in caught.value.message
    assert caught.value.hint == "free some space, record fewer, or choose another disk with --out DIR"


def test_workers_follow_the_usable_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default there is one worker per usable core, but no more than envs."""
    asked: list[int] = []

    def shares(order: Any, count: int, *rest: Any) -> Any:
        asked.append(count)
        raise ConfigError("enough", "")

    monkeypatch.setattr(module, "_shares", shares)
    monkeypatch.setattr(machine, "cores", lambda: 5)
    for games in (100, 3):
        with pytest.raises(ConfigError, match="enough"):
            record(SHORT, "random", games, tmp_path)
    assert asked == [5, 3]
