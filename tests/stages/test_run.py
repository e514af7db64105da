"""The pipeline of `run`: each stage reads the results of the one before, and an interrupted pipeline resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.api import configure
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError
from slipstream.perf import plan_cache
from slipstream.perf.paired_timing import Ratio
from slipstream.perf.tune import Tuned
from slipstream.runs.layout import RunDir
from slipstream.runs.provenance import read_config
from slipstream.stages import run as pipeline
from slipstream.stages.run import run
from slipstream.training.build import choose_env


def run_pipeline(
    place: Path, env: str = "soccer", skip: tuple[str, ...] = (), **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """Run the pipeline of a game with the smoke preset; return the results and the notices."""
    notices: list[str] = []

    def settings(extra: dict[str, Any]) -> Any:
        return configure(env, preset="smoke", flags=more | extra)

    choice = choose_env(env, settings({}).settings)
    return run(choice, settings, run=place, skip=skip, on_notice=notices.append), notices


def test_the_whole_pipeline(tmp_path: Path) -> None:
    """Every stage starts from the result of the one before, and finished stages are not repeated."""
    facts, notices = run_pipeline(tmp_path / "run")
    assert facts["stages"] == ["tune", "record", "clone", "train", "compete", "evaluate", "tournament", "report"]
    assert len(set(Demos.open(tmp_path / "run" / "demos").games)) == 8
    settings, _ = read_config(RunDir.open(tmp_path / "run"))
    assert settings.start == f"run:{tmp_path / 'run' / 'clone'}"
    assert settings.ppo.reference == settings.start
    assert facts["train"]["steps"] == 1024
    league, _ = read_config(RunDir.open(tmp_path / "run" / "league"))
    assert league.start == f"run:{tmp_path / 'run'}@best" and facts["compete"]["steps"] >= 600
    assert facts["evaluate"]["games"] == 8
    assert facts["evaluate"]["agent"].startswith(f"run:{tmp_path / 'run' / 'league'}")
    players = [player["agent"] for player in facts["tournament"]["tables"][0]["players"]]
    assert len(players) == 6 and sum(name.startswith("run:") for name in players) == 3
    assert (tmp_path / "run" / "replays" / "best.png").stat().st_size > 1000
    assert Path(facts["report"]).exists()
    assert sum(one["share"] for one in facts["times"].values()) == pytest.approx(1.0)
    again, notices = run_pipeline(tmp_path / "run")
    assert [line for line in notices if "finished already" in line] == [
        f"{n}: finished already" for n in ("record", "clone", "train", "compete")
    ]
    assert again["train"] == facts["train"]


@pytest.mark.parametrize("stopped", ["record", "clone", "train", "compete"])
def test_an_interrupted_pipeline_resumes(stopped: str, tmp_path: Path) -> None:
    """A stage that is not in story.json is completed: missing games are recorded, runs are resumed."""
    place = tmp_path / "run"
    run_pipeline(place)
    story = json.loads((place / "story.json").read_text())
    order = ["record", "clone", "train", "compete", "evaluate", "tournament", "report"]
    for name in order[order.index(stopped) :]:
        story.pop(name)
    (place / "story.json").write_text(json.dumps(story))
    if stopped == "record":
        shutil.rmtree(place / "clone")
        shutil.rmtree(place / "league")
        more = {"record.games": 12}
    else:
        more = {}
    if stopped in ("record", "clone"):
        for path in (place / "checkpoints", place / "config.yaml", place / "metrics.jsonl", place / "provenance.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if stopped == "clone":
        shutil.rmtree(place / "clone")
        shutil.rmtree(place / "league")
    if stopped == "train":
        shutil.rmtree(place / "league")
        text = (place / "config.yaml").read_text().replace("steps: 1000", "steps: 2000")
        (place / "config.yaml").write_text(text)
    if stopped == "compete":
        text = (place / "league" / "config.yaml").read_text().replace("\nsteps: 600", "\nsteps: 1200")
        (place / "league" / "config.yaml").write_text(text)
    facts, notices = run_pipeline(place, **more)
    assert facts["evaluate"]["games"] == 8
    if stopped == "compete":
        assert facts["compete"]["steps"] >= 1200
    if stopped == "record":
        assert len(set(Demos.open(place / "demos").games)) == 12
    if stopped == "train":
        assert facts["train"]["steps"] > 2000 - 128
        assert "clone: finished already" in notices


def test_stages_can_be_skipped(tmp_path: Path) -> None:
    """Without a clone, training starts from random weights; without training, an existing run is needed."""
    facts, _ = run_pipeline(tmp_path / "run", skip=("record", "clone", "compete", "tournament", "report"))
    assert facts["stages"] == ["tune", "train", "evaluate"]
    assert read_config(RunDir.open(tmp_path / "run"))[0].start is None
    with pytest.raises(ConfigError, match="There is no stage `lcone`"):
        run_pipeline(tmp_path / "run", skip=("lcone",))
    with pytest.raises(ConfigError, match="--run DIR"):
        run(choose_env("soccer", configure("soccer").settings), lambda more: configure("soccer"), skip=["train"])


def test_more_steps_and_foreign_folders(tmp_path: Path) -> None:
    """A finished pipeline trains on when more steps are requested; a run of another command is an error."""
    skip = ("record", "clone", "compete", "tournament", "report")
    run_pipeline(tmp_path / "run", skip=skip)
    facts, _ = run_pipeline(tmp_path / "run", skip=skip, steps=2048)
    assert facts["train"]["steps"] == 2048
    (tmp_path / "run" / "story.json").unlink()
    with pytest.raises(ConfigError, match="slipstream resume"):
        run_pipeline(tmp_path / "run")


def test_games_without_an_expert_have_fewer_stages(tmp_path: Path) -> None:
    """A game without an expert is neither recorded nor cloned."""
    facts, _ = run_pipeline(tmp_path / "run", "recall")
    assert facts["stages"] == ["tune", "train", "evaluate", "report"]


def test_a_game_with_one_side_is_compared_with_its_expert(tmp_path: Path) -> None:
    """In a game with one side, the expert plays from the same initial states."""
    facts, _ = run_pipeline(tmp_path / "run", "pixels", **{"record.agent": "scripted:oracle"})
    beside = facts["evaluate"]["beside"]
    assert beside["agent"] == "scripted:oracle"
    assert beside["return_gain"] <= 0
    assert beside["return_gain_low"] <= beside["return_gain"] <= beside["return_gain_high"]


def test_expected_times_come_from_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pipeline predicts the time of training, the next one that of every stage; the report shows both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    skip = ("record", "clone", "compete", "tournament")
    facts, notices = run_pipeline(tmp_path / "one", skip=skip)
    assert any(line.startswith("tuning is skipped: ") for line in notices)
    assert facts["tune"]["settings"] == {} and facts["times"]["evaluate"]["expected"] is None
    assert facts["times"]["train"]["expected"] == pytest.approx(1000 / facts["tune"]["steps_per_second"])
    took = facts["times"]["train"]["seconds"]
    facts, notices = run_pipeline(tmp_path / "two", skip=skip, steps=2000)
    assert facts["times"]["train"]["expected"] == pytest.approx(2 * took)
    assert facts["times"]["report"]["expected"] > 0
    assert any(line.startswith("evaluate: expected to take ") for line in notices)
    story = json.loads((tmp_path / "two" / "story.json").read_text())
    assert story["expected"]["train"] == pytest.approx(2 * took)
    assert "<th>expected</th>" in Path(facts["report"]).read_text().replace(' class="number"', "")
    facts, notices = run_pipeline(tmp_path / "two", skip=skip, steps=3000)
    assert facts["times"]["train"]["expected"] is None, "the rest of a training is not a whole training"


def test_a_saved_plan_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a saved plan nothing is tuned, and training uses the plan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = configure("soccer", preset="smoke").settings
    plan_cache.save(
        "soccer",
        base,
        Tuned(
            "soccer",
            {"plan.envs": 2, "ppo.rollout": 32},
            1.0,
            2.0,
            Ratio(2.0, 1.9, 2.1, 5),
            None,
            128,
            [],
            {},
            1.0,
            1.0,
        ),
    )
    facts, notices = run_pipeline(
        tmp_path / "run", skip=("record", "clone", "compete", "tournament", "evaluate", "report")
    )
    assert "a tuned plan is saved on this machine" in notices
    assert facts["tune"] == {
        "settings": {"plan.envs": 2, "ppo.rollout": 32},
        "steps_per_second": 2.0,
        "gain": 2.0,
        "exact": False,
    }
    settings, _ = read_config(RunDir.open(tmp_path / "run"))
    assert (settings.plan.envs, settings.ppo.rollout) == (2, 32)


def test_long_trainings_are_tuned_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long training is tuned first, with exact changes only, and the plan is saved."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pipeline, "WORTH_TUNING_S", 0.0)
    skip = ("record", "clone", "compete", "tournament", "evaluate", "report")
    facts, notices = run_pipeline(tmp_path / "run", skip=skip, **{"plan.collector": "local"})
    assert facts["tune"]["exact"] is True and facts["tune"]["settings"] == {}
    assert any(line.startswith("default plan: about ") for line in notices)
    assert len(list(plan_cache.folder().rglob("soccer-????????????.json"))) == 1


def test_an_opponent_plays_in_training_only(tmp_path: Path) -> None:
    """The league of a pipeline with an opponent chooses its own opponents, and a notice says so at the start."""
    place, skip = tmp_path / "run", ("record", "clone", "tournament", "report")
    facts, notices = run_pipeline(place, skip=skip, opponent="scripted:chaser")
    assert "scripted:chaser plays in training only" in notices[0]
    assert read_config(RunDir.open(place))[0].opponent == "scripted:chaser"
    assert read_config(RunDir.open(place / "league"))[0].opponent is None and facts["compete"]["steps"] >= 600
