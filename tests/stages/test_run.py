"""The story: every stage from what the one before left, and on from wherever it was stopped."""

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
from slipstream.stages import run as stories
from slipstream.stages.run import run
from slipstream.training.build import choose_env


def told(place: Path, env: str = "soccer", skip: tuple[str, ...] = (), **more: Any) -> tuple[dict[str, Any], list[str]]:
    """Run the story of a game in its smallest form."""
    said: list[str] = []

    def settings(extra: dict[str, Any]) -> Any:
        return configure(env, preset="smoke", flags=more | extra)

    return run(choose_env(env, settings({}).settings), settings, place, skip, said.append), said


def test_the_whole_story(tmp_path: Path) -> None:
    """Demos, clone, training from it, a league from that, games of all of them, and a report; times add up."""
    facts, said = told(tmp_path / "run")
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
    again, said = told(tmp_path / "run")
    assert [line for line in said if "done before" in line] == [
        f"{n}: done before" for n in ("record", "clone", "train", "compete")
    ]
    assert again["train"] == facts["train"]


@pytest.mark.parametrize("stopped", ["record", "clone", "train", "compete"])
def test_it_goes_on_where_it_was_stopped(stopped: str, tmp_path: Path) -> None:
    """A stage that is not in story.json is gone on with: games are topped up, runs are resumed."""
    place = tmp_path / "run"
    told(place)
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
    facts, said = told(place, **more)
    assert facts["evaluate"]["games"] == 8
    if stopped == "compete":
        assert facts["compete"]["steps"] >= 1200
    if stopped == "record":
        assert len(set(Demos.open(place / "demos").games)) == 12
    if stopped == "train":
        assert facts["train"]["steps"] > 2000 - 128
        assert "clone: done before" in said


def test_stages_can_be_left_out(tmp_path: Path) -> None:
    """Without a clone training starts from nothing; without training there must be a run."""
    facts, _ = told(tmp_path / "run", skip=("record", "clone", "compete", "tournament", "report"))
    assert facts["stages"] == ["tune", "train", "evaluate"]
    assert read_config(RunDir.open(tmp_path / "run"))[0].start is None
    with pytest.raises(ConfigError, match="There is no stage `lcone`"):
        told(tmp_path / "run", skip=("lcone",))
    with pytest.raises(ConfigError, match="Without training there must be a run"):
        run(
            choose_env("soccer", configure("soccer").settings), lambda more: configure("soccer"), None, ["train"], print
        )


def test_more_steps_and_folders_of_others(tmp_path: Path) -> None:
    """A story that is done goes on when more steps are asked for; a run that somebody else began is refused."""
    skip = ("record", "clone", "compete", "tournament", "report")
    told(tmp_path / "run", skip=skip)
    facts, _ = told(tmp_path / "run", skip=skip, steps=2048)
    assert facts["train"]["steps"] == 2048
    (tmp_path / "run" / "story.json").unlink()
    with pytest.raises(ConfigError, match="holds a run that `run` did not begin"):
        told(tmp_path / "run")


def test_games_without_an_expert_have_a_shorter_story(tmp_path: Path) -> None:
    """Nobody is recorded where nobody knows how to play."""
    facts, _ = told(tmp_path / "run", "recall")
    assert facts["stages"] == ["tune", "train", "evaluate", "report"]


def test_a_game_of_one_side_is_told_beside_its_expert(tmp_path: Path) -> None:
    """Where there is nobody to play against, the expert plays the same starts."""
    facts, _ = told(tmp_path / "run", "pixels", **{"record.agent": "scripted:oracle"})
    beside = facts["evaluate"]["beside"]
    assert beside["agent"] == "scripted:oracle"
    assert beside["return_gain"] <= 0
    assert beside["return_gain_low"] <= beside["return_gain"] <= beside["return_gain_high"]


def test_stages_are_expected_by_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first story knows how long training takes, the next one every stage; story and report say both times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    skip = ("record", "clone", "compete", "tournament")
    facts, said = told(tmp_path / "one", skip=skip)
    assert any(line.startswith("not worth it: training takes about ") for line in said)
    assert facts["tune"]["settings"] == {} and facts["times"]["evaluate"]["expected"] is None
    assert facts["times"]["train"]["expected"] == pytest.approx(1000 / facts["tune"]["steps_per_second"])
    took = facts["times"]["train"]["seconds"]
    facts, said = told(tmp_path / "two", skip=skip, steps=2000)
    assert facts["times"]["train"]["expected"] == pytest.approx(2 * took)
    assert facts["times"]["report"]["expected"] > 0
    assert any(line.startswith("evaluate: about ") and line.endswith(" expected") for line in said)
    story = json.loads((tmp_path / "two" / "story.json").read_text())
    assert story["expected"]["train"] == pytest.approx(2 * took)
    assert "<th>expected</th>" in Path(facts["report"]).read_text().replace(' class="number"', "")
    facts, said = told(tmp_path / "two", skip=skip, steps=3000)
    assert facts["times"]["train"]["expected"] is None, "the rest of a training is not a whole one"


def test_a_tuned_plan_is_used_by_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan is kept nothing is tuned, and training runs by it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = configure("soccer", preset="smoke").settings
    plan_cache.save("soccer", base, Tuned("soccer", {"plan.envs": 2, "ppo.rollout": 32}, 1.0, 2.0, Ratio(2.0, 1.9, 2.1, 5),
                                     None, 128, [], {}, 1.0, 1.0))  # fmt: skip
    facts, said = told(tmp_path / "run", skip=("record", "clone", "compete", "tournament", "evaluate", "report"))
    assert "tuned before on this machine" in said
    assert facts["tune"] == {"settings": {"plan.envs": 2, "ppo.rollout": 32}, "steps_per_second": 2.0, "gain": 2.0,
                             "exact": False}  # fmt: skip
    settings, _ = read_config(RunDir.open(tmp_path / "run"))
    assert (settings.plan.envs, settings.ppo.rollout) == (2, 32)


def test_long_trainings_are_tuned_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where training takes long enough a plan is looked for, by what changes no bit, and kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stories, "WORTH_TUNING_S", 0.0)
    skip = ("record", "clone", "compete", "tournament", "evaluate", "report")
    facts, said = told(tmp_path / "run", skip=skip, **{"plan.collector": "local"})
    assert facts["tune"]["exact"] is True and facts["tune"]["settings"] == {}
    assert any(line.startswith("default plan: about ") for line in said)
    assert len(list(plan_cache.folder().rglob("soccer-????????????.json"))) == 1
