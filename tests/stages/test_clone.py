"""The clone stage: run directory, early stopping, resume, DAgger, frozen trunks and errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from slipstream import api
from slipstream.agents.trained import TrainedAgent
from slipstream.api import configure
from slipstream.cli import main
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import read
from slipstream.runs.provenance import read_config
from slipstream.runs.sinks import RunInfo
from slipstream.stages.clone import clone, confusion, resume
from slipstream.stages.record import record

QUICK = {"clone.epochs": 4, "clone.batch_size": 64, "policy.hidden": [16]}


def cloned(folder: Path, run: Path, env: str = "", **more: Any) -> Any:
    """Clone a folder of demos."""
    settings = QUICK | {"clone.demos": str(folder)} | {key.replace("__", "."): value for key, value in more.items()}
    said: list[str] = []
    result = clone(configure(env, flags=settings), folder, run, said.append, lambda done, total: None)
    return result, said


def test_a_clone_is_a_run(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """The run has metrics, checkpoints, a confusion matrix and a chart, and its agent imitates the demos."""
    folder = make_demos(episodes=100)
    result, said = cloned(folder, tmp_path / "run")
    run = RunDir.open(tmp_path / "run")
    rows = read(run)
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["clone/held_out_loss"] < rows[0]["clone/held_out_loss"]
    assert (run.path / "clone.png").read_bytes()[:4] == b"\x89PNG"
    (matrix,) = confusion(run.path)
    assert np.trace(matrix) / matrix.sum() == pytest.approx(result.best["clone/accuracy"])
    assert any("reading takes" in line and "fit in memory" in line for line in said)
    assert said[-1].startswith("epoch 4/4: loss ")
    facts = result.facts()
    assert facts["best_epoch"] == 4
    assert facts["accuracy"] > 0.5
    assert sum(facts["time"].values()) == pytest.approx(1.0)
    agent, demos = TrainedAgent.from_run(run.path), Demos.open(folder)
    columns = demos.load(["obs", "action"])
    assert (agent.act(columns["obs"]) == columns["action"][:, 0]).mean() > 0.5


def test_a_clone_resumes_bit_for_bit(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """A clone interrupted after two epochs and resumed equals an uninterrupted one bit for bit."""
    folder = make_demos()
    cloned(folder, tmp_path / "whole")
    cloned(folder, tmp_path / "half")
    half = RunDir.open(tmp_path / "half")
    kept = sorted(half.checkpoints.glob("0*"))
    for path in kept[-2:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    resume(half.path, read_config(half)[0], lambda line: None, lambda done, total: None)
    one, two = (load(find(RunDir.open(tmp_path / name))) for name in ("whole", "half"))
    assert one.steps == two.steps
    for group in ("policy", "learner"):
        for name, array in one.groups[group].items():
            assert np.array_equal(array, two.groups[group][name]), name
    rows = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read(RunDir(tmp_path / name))]
        for name in ("whole", "half")
    ]
    assert rows[0] == rows[1]
    with pytest.raises(ConfigError, match="is finished: it has 4 epochs"):
        resume(half.path, read_config(half)[0], lambda line: None, lambda done, total: None)


def test_resuming_with_changed_demos_raises(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """Resuming raises if the demos have changed."""
    folder = make_demos()
    cloned(folder, tmp_path / "run", clone__epochs=1)
    make_demos(seed=5)
    run = RunDir.open(tmp_path / "run")
    settings = read_config(run)[0]
    longer = settings.model_copy(update={"clone": settings.clone.model_copy(update={"epochs": 9})})
    with pytest.raises(DemoError, match="are not those that"):
        resume(run.path, longer, lambda line: None, lambda done, total: None)


def test_it_stops_early_and_keeps_the_best(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """After `clone.patience` epochs without progress it stops, and the newest checkpoint has the best weights."""
    result, _ = cloned(
        make_demos(episodes=8), tmp_path / "run", clone__epochs=60, clone__patience=2, clone__learning_rate=0.05
    )
    assert result.epochs < 60
    assert result.best["epoch"] == result.epochs - 2
    run = RunDir.open(tmp_path / "run")
    best, latest = (load(find(run, which)).groups["policy"] for which in ("best", "latest"))
    assert all(np.array_equal(best[name], latest[name]) for name in best)


def test_fewer_samples(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """`clone.max_samples` uses whole episodes up to that many steps."""
    result, _ = cloned(make_demos(episodes=100), tmp_path / "run", clone__max_samples=300, clone__epochs=1)
    assert 150 < result.samples <= 300


def test_dagger_records_the_experts_actions(tmp_path: Path) -> None:
    """The clone plays the rounds, their demos hold the expert's actions, and resume loads them."""
    choice = configure("soccer", flags={"env__match_seconds": 4.0}).settings
    from slipstream.training.build import choose_env

    record(choose_env("soccer", choice), "scripted:rule", 6, tmp_path / "demos", workers=1)
    more = {"env__match_seconds": 4.0, "clone__dagger": 2, "clone__dagger_games": 4, "clone__epochs": 2}
    result, said = cloned(tmp_path / "demos", tmp_path / "run", "soccer", **more)
    assert result.epochs == 6
    assert sum("labelled by scripted:rule" in line for line in said) == 2
    from slipstream.agents.specs import load_agent
    from slipstream.vector.make import make_vector

    played = Demos.open(tmp_path / "run" / "dagger" / "2")
    assert len(played) == 4
    columns = played.load(["obs", "action"])
    spec = make_vector(choose_env("soccer", choice), 1).spec
    expert = load_agent("scripted:rule", spec, choose_env("soccer", choice))
    assert np.array_equal(expert.act(columns["obs"]), columns["action"][:, 0])
    clone_agent = TrainedAgent.from_run(tmp_path / "run")
    assert not np.array_equal(clone_agent.act(columns["obs"]), columns["action"][:, 0])


def test_a_clone_plays_as_its_demos_were_recorded(tmp_path: Path) -> None:
    """The env settings of a clone come from the recording."""
    from slipstream.api import evaluate
    from slipstream.api import record as record_it

    record_it(
        "scripted:rule",
        "soccer",
        4,
        tmp_path / "demos",
        workers=1,
        env__actions="multi_discrete",
        env__match_seconds=4.0,
    )
    cloned(tmp_path / "demos", tmp_path / "run", "soccer", clone__epochs=1)
    settings, _ = read_config(RunDir.open(tmp_path / "run"))
    assert (settings.env.actions, settings.env.match_seconds) == ("multi_discrete", 4.0)
    facts = evaluate(f"run:{tmp_path / 'run'}", "soccer", opponent="scripted:rule", games=2, env__match_seconds=4.0)
    assert facts["games"] == 2


def test_a_resumed_clone_keeps_its_best_epoch(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """If no epoch after a resume is better, the newest checkpoint gets the best epoch's weights."""
    bad = {"clone__epochs": 60, "clone__patience": 4, "clone__learning_rate": 0.05}
    result, _ = cloned(make_demos(episodes=8), tmp_path / "run", **bad, keep=9)
    run, steps = RunDir.open(tmp_path / "run"), result.samples // result.epochs
    for path in sorted(run.checkpoints.glob("0*"))[-1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    assert steps
    resume(run.path, read_config(run)[0], lambda line: None, lambda done, total: None)
    best, latest = (load(find(run, which)).groups["policy"] for which in ("best", "latest"))
    assert all(np.array_equal(best[name], latest[name]) for name in best)


def test_dagger_needs_an_expert(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """Demos without a scripted agent need --expert."""
    folder = make_demos()
    for shard in (folder / "shards").iterdir():
        (shard / "shard.json").write_text("{}")
    with pytest.raises(ConfigError, match="DAgger needs an expert"):
        cloned(folder, tmp_path / "run", clone__dagger=1)


def test_the_command(make_demos: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clone DEMOS` prints a summary, `--json` one object, and resume continues the clone."""
    monkeypatch.chdir(tmp_path)
    make_demos()
    words = ["--set", "policy.hidden=[8]", "--epochs", "1", "--batch", "64"]
    done = CliRunner().invoke(main, ["clone", "demos", "--run", "r", *words])
    assert done.exit_code == 0, done.output
    assert "slipstream train ENV --start run:r, where ENV has the spaces of these demos of `made-up`" in done.stdout
    done = CliRunner().invoke(main, ["clone", "demos", "--run", "s", "--json", *words])
    assert json.loads(done.stdout.splitlines()[-1])["epochs"] == 1
    done = CliRunner().invoke(main, ["resume", "s"])
    assert done.exit_code == 2
    assert "s is finished: it has 1 epochs." in done.stderr
    done = CliRunner().invoke(main, ["clone", "nowhere"])
    assert done.exit_code == 4
    assert "No demos at nowhere: no such folder." in done.stderr


@pytest.mark.parametrize("words", [["--observation", "my_rocket:see"], ["--observation=my_rocket:see"]])
def test_the_observation_builder_of_demos_is_named(
    words: list[str], make_demos: Callable[..., Path], tmp_path: Path
) -> None:
    """A clone of demos recorded with a builder prints and stores its flag; other words of a file are not printed."""
    folder = make_demos(env="rocket")
    (origin,) = folder.glob("shards/*/shard.json")
    told = {"argv": ["slipstream", "record", "run:r", *words, "--episodes", "2"], "modules": ["my_rocket"]}
    origin.write_text(json.dumps(told))
    result, _ = cloned(folder, tmp_path / "run", clone__epochs=1)
    (line,) = result.next_steps
    assert line.endswith("--import my_rocket --observation my_rocket:see")
    assert json.loads(RunDir(tmp_path / "run").provenance.read_text())["observation"] == "my_rocket:see"
    origin.write_text(json.dumps({"argv": ["record", "--observation", "a:b; rm"]}))
    assert "--observation" not in cloned(folder, tmp_path / "other", clone__epochs=1)[0].next_steps[0]


def test_a_frozen_trunk_uses_cached_features(tmp_path: Path) -> None:
    """Heads are trained on cached features, and the clone plays on pixels."""
    from slipstream.api import train
    from slipstream.training.build import choose_env

    small = {"preset": "smoke", "every__evaluate": 0, "steps": 512, "policy__features": 64}
    train("pixels", run=tmp_path / "cnn", **small)
    choice = choose_env("pixels", configure("pixels").settings)
    record(choice, "scripted:oracle", 300, tmp_path / "demos", workers=1)
    frozen = {"policy__image": "frozen", "policy__trunk": f"run:{tmp_path / 'cnn'}"}
    cloned(tmp_path / "demos", tmp_path / "run", "pixels", clone__epochs=30, clone__patience=30, **frozen)
    assert list((tmp_path / "demos" / "features").glob("*.bin"))
    agent, demos = TrainedAgent.from_run(tmp_path / "run"), Demos.open(tmp_path / "demos")
    columns = demos.load(["obs", "action"])
    assert (agent.act(columns["obs"]) == columns["action"][:, 0]).mean() > 0.7


def test_sinks_get_the_metrics_of_a_clone(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """A name and an object get every epoch, and a resumed clone continues; what sinks say is a notice."""
    seen: list[Any] = []

    class Sink:
        def open(self, run: RunInfo) -> str:
            seen.append((run.stage, run.resumed_at))
            return "the sink is open"

        def log(self, steps: int, row: dict[str, Any]) -> None:
            seen.append((steps, row["epoch"]))

        def close(self) -> None:
            pass

    said: list[str] = []
    more = {"clone__epochs": 2, "clone__batch_size": 64, "policy__hidden": [16], "on_notice": said.append}
    run = api.clone(make_demos(), run=tmp_path / "run", sinks=["csv", Sink()], **more)
    first, last = (row["steps"] for row in run.metrics())
    assert seen == [("clone", None), (first, 1), (last, 2)] and "the sink is open" in said
    (newest := find(RunDir(run.path))).rename(tmp_path / newest.name)
    api.resume(run.path, sinks=[Sink()], on_notice=said.append)
    assert seen[3:] == [("clone", first), (last, 2)] and said.count("the sink is open") == 2
    with open(run.path / "metrics.csv", encoding="utf-8", newline="") as file:
        assert [int(row["steps"]) for row in csv.DictReader(file)] == [first, last]


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_a_missing_tracker_is_an_error_before_cloning(make_demos: Callable[..., Path], tmp_path: Path) -> None:
    """Without the package of a sink nothing is written, by the flag of the command line too."""
    done = CliRunner().invoke(main, ["clone", str(make_demos()), "--run", str(tmp_path / "run"), "--sink", "mlflow"])
    assert done.exit_code == 6 and "slipstream[mlflow]" in done.output
    assert not (tmp_path / "run").exists()
