"""Reward reports against hand-computed values, and ablations with real training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.api import configure, record
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, DemoError
from slipstream.settings import EnvSettings, RewardSettings
from slipstream.stages import reward_report as stage
from slipstream.training.build import choose_env

SHORT = EnvChoice("soccer", EnvSettings(match_seconds=4.0))


def test_shares_and_density_by_hand() -> None:
    """Two episodes of three terms: sums, rates, extremes, densities and shares of the return."""
    a = np.array([[1.0, 0.5, 0.0], [0.0, -0.5, 0.0]])
    b = np.array([[0.0, 0.5, 0.0], [0.0, 0.5, 0.0]])
    goal, near, off = stage.measure([a, b], 0.9, 0.5, seconds=0.1)
    assert (goal["per_game"], near["per_game"], off["per_game"]) == (0.5, 0.5, 0.0)
    assert (goal["per_second"], near["per_second"]) == pytest.approx((2.5, 2.5))
    assert (near["min"], near["max"], near["density"], goal["density"]) == (-0.5, 0.5, 1.0, 0.25)
    assert (goal["kind"], near["kind"], off["kind"]) == ("regional", "dense", "off")
    assert (goal["return_share"], near["return_share"], off["return_share"]) == pytest.approx((1 / 3, 2 / 3, 0))


def test_shares_of_the_advantage_by_hand() -> None:
    """With gamma * lambda = 0.5, returns (1, 0) and (0.25, 0.5) deviate by 0.5 and 0.125: shares 0.8 and 0.2."""
    episode = np.array([[1.0, 0.0], [0.0, 0.5]])
    assert stage.discounted_sums(episode, 0.5).tolist() == [[1.0, 0.25], [0.0, 0.5]]
    shares = [one["advantage_share"] for one in stage.measure([episode], 0.5, 1.0)]
    assert shares == pytest.approx([0.8, 0.2])


def test_a_constant_term_has_little_advantage() -> None:
    """A term that is constant over a long game has most of the return and little of the advantage."""
    episode = np.zeros((400, 2))
    episode[:, 0] = 1.0
    episode[200, 1] = 10.0
    steady, event = stage.measure([episode], 0.9, 0.5)
    assert steady["return_share"] > 0.97 and steady["advantage_share"] < 0.1
    assert event["kind"] == "sparse" and math.isclose(steady["advantage_share"] + event["advantage_share"], 1.0)


def test_demos_are_reported_as_they_were_recorded(tmp_path: Path) -> None:
    """The terms of demos sum to their returns, have a group, and can be limited to the first games."""
    own = {"env__match_seconds": 4.0, "rewards__zero_sum": 0.0}
    record("scripted:rule", "soccer", 6, tmp_path / "demos", seed=1, **own)
    demos = Demos.open(tmp_path / "demos")
    facts = stage.reward_report(demos, None, 0.99, 0.95)
    assert facts["games"] == 6 and facts["episodes"] == 12 and facts["steps"] == demos.steps
    assert sum(one["per_game"] for one in facts["terms"].values()) == pytest.approx(facts["mean_return"], abs=1e-5)
    assert facts["mean_return"] == pytest.approx(float(demos.episodes["return"].mean()), abs=1e-4)
    assert facts["terms"]["touch"]["group"] == "ball"
    curve = facts["curves"]["terms"]["touch"]
    assert curve["mean"][0] == 0 and curve["mean"][-1] == pytest.approx(facts["terms"]["touch"]["per_game"])
    assert facts["curves"]["at"][-1] == pytest.approx(max(demos.episodes["steps"]) * demos.schema.step_seconds)
    assert stage.reward_report(demos, 2, 0.99, 0.95)["games"] == 2


def test_demos_without_terms_have_their_reward(make_demos: Any) -> None:
    """Demos without terms are reported by their reward; demos without episodes are an error."""
    demos = Demos.open(make_demos())
    facts = stage.reward_report(demos, None, 0.99, 0.95)
    assert list(facts["terms"]) == ["reward"] and facts["terms"]["reward"]["kind"] == "dense"
    assert facts["terms"]["reward"]["per_second"] is None and facts["curves"]["unit"] == "steps"
    with pytest.raises(DemoError, match="holds no whole episode"):
        stage.reward_report(demos.pick([]), None, 0.99, 0.95)


def test_games_are_played_before_any_training() -> None:
    """Games of any agent can be reported with the settings of training; the temporary demos are removed."""
    opponent = stage.opponent_of(SHORT, None)
    assert opponent == "scripted:rule"
    with stage.played(SHORT, "scripted:chaser", opponent, 5) as demos:
        facts, folder = stage.reward_report(demos, None, 0.99, 0.95), demos.path
    assert facts["games"] == facts["episodes"] == 5 and not folder.exists()
    assert stage.opponent_of(EnvChoice("kart"), None) is None
    with pytest.raises(ConfigError, match="--games"), stage.played(SHORT, "random", None, 0):
        pass


def test_numbers_and_chart_are_written(tmp_path: Path) -> None:
    """The report writes its numbers as JSON and its chart as PNG."""
    with stage.played(SHORT, "random", "scripted:rule", 3) as demos:
        facts = stage.reward_report(demos, None, 0.99, 0.95)
    picture = stage.keep(facts, tmp_path, stage.draw_report, "rewards")
    assert json.loads((tmp_path / "rewards.json").read_text())["games"] == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_terms_of_an_ablation() -> None:
    """By default all shaping terms with a weight are removed; unknown terms and terms of weight 0 are errors."""
    shaping = ["touch", "ball_to_goal", "car_to_ball", "boost_gain"]
    assert stage.choose_terms(SHORT, []) == shaping
    assert stage.choose_terms(SHORT, ["goal", "touch"]) == ["goal", "touch"]
    without = EnvChoice("soccer", rewards=RewardSettings(groups={"ball": 0.0}))
    assert stage.choose_terms(without, []) == ["car_to_ball", "boost_gain"]
    for name, why in (("tuch", ".*Did you mean `touch`"), ("aim", "has weight 0")):
        with pytest.raises(ConfigError, match=f"Reward term `{name}` {why}"):
            stage.choose_terms(SHORT, [name])
    with pytest.raises(ConfigError, match="--terms a,b"):
        stage.choose_terms(EnvChoice("soccer", rewards=RewardSettings(mode="sparse")), [])
    with pytest.raises(ConfigError, match="`gymnasium:CartPole-v1` has no reward terms"):
        stage.choose_terms(EnvChoice("gymnasium:CartPole-v1"), [])


def test_verdicts_by_hand() -> None:
    """Paired gains of 0.2, 0.3 and 0.4 have the mean 0.3 +- 4.303 * 0.1 / sqrt(3), which is above 0."""
    found = stage.verdict([0.5, 0.7, 0.9], [0.3, 0.4, 0.5])
    assert found["verdict"] == "helps" and found["gain"] == pytest.approx(0.3)
    assert found["gain_low"] == pytest.approx(0.3 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert stage.verdict([0.3, 0.4, 0.5], [0.5, 0.7, 0.9])["verdict"] == "hurts"
    assert stage.verdict([0.5, 0.1, 0.9], [0.3, 0.4, 0.5])["verdict"] == "no difference"
    assert stage.verdict([0.9], [0.1])["verdict"] == "no difference"


def ablate(place: Path, env: str = "soccer", **more: Any) -> dict[str, Any]:
    """A tiny ablation of one term."""
    lines: list[str] = []
    resolved = configure(env, preset="smoke", flags={"steps": 128} | more.pop("flags", {}))
    choice = choose_env(env, resolved.settings)
    terms = more.pop("terms", ["touch"])
    facts = stage.ablate(choice, resolved, place, terms, seeds=2, games=4, on_notice=lines.append, **more)
    return facts | {"lines": lines}


def test_an_ablation_uses_common_seeds_and_finished_runs(tmp_path: Path) -> None:
    """Two variants with two seeds are measured by their win rate; finished runs are not repeated."""
    facts = ablate(tmp_path / "soccer")
    assert facts["measure"] == "win_rate" and facts["opponent"] == "scripted:rule"
    assert facts["lines"] == [
        "1 of 4: full, seed 0", "2 of 4: without touch, seed 0", "3 of 4: full, seed 1", "4 of 4: without touch, seed 1"
    ]  # fmt: skip
    assert set(facts["terms"]) == {"touch"} and len(facts["full"]) == 2
    runs = sorted(path.name for path in (tmp_path / "soccer").iterdir() if path.is_dir())
    assert runs == ["full-seed0", "full-seed1", "without-touch-seed0", "without-touch-seed1"]
    text = (tmp_path / "soccer" / "without-touch-seed1" / "config.yaml").read_text()
    assert "weights: {touch: 0.0}" in text and "seed: 1" in text
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "soccer").rglob("result.json")}
    (tmp_path / "soccer" / "full-seed1" / "result.json").unlink()
    again = ablate(tmp_path / "soccer")
    assert again["full"] == facts["full"] and again["terms"] == facts["terms"]
    kept = [path for path, then in saved.items() if path.stat().st_mtime_ns == then]
    assert len(kept) == 3
    picture = stage.keep(facts, tmp_path, stage.draw_ablation, "ablation")
    assert picture is None or picture.read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_another_ablation_is_an_error(tmp_path: Path) -> None:
    """A folder with an ablation of other steps, or with other files, is an error."""
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds no ablation"):
        ablate(tmp_path)
    (tmp_path / "was").mkdir()
    plan = {"env": "soccer", "steps": 64, "games": 4, "opponent": "scripted:rule"}
    (tmp_path / "was" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=r"`steps` = 64, not 128"):
        ablate(tmp_path / "was")


def test_one_sided_games_are_measured_by_sparse_rewards(tmp_path: Path) -> None:
    """A kart that does not finish a lap has a sparse return of -0.1 per second, whatever its shaped reward."""
    flags = {"env__actions": "continuous", "env__match_seconds": 1.0}
    facts = ablate(tmp_path / "kart", "kart", terms=["progress"], flags=flags)
    assert facts["measure"] == "return" and facts["opponent"] is None
    assert facts["full"] == pytest.approx([-0.1, -0.1], abs=0.01)
    assert facts["terms"]["progress"]["verdict"] == "no difference"


def test_an_interrupted_ablation_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is reported, and the same call resumes from the checkpoint with the same result."""
    whole = ablate(tmp_path / "whole")
    drive, runs = stage.begin, []

    def interrupted(choice: EnvChoice, resolved: Any, run: Path) -> Any:
        half = resolved.settings.model_copy(update={"steps": 64})
        done = drive(choice, replace(resolved, settings=half), run)
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("steps: 64 ", "steps: 128 "))
        runs.append(run.name)
        return replace(done, stopped="SIGTERM")

    monkeypatch.setattr(stage, "begin", interrupted)
    stopped = ablate(tmp_path / "cut")
    assert stopped["stopped"] == "SIGTERM" and runs == ["full-seed0"]
    monkeypatch.undo()
    again = ablate(tmp_path / "cut")
    assert again["full"] == whole["full"] and again["terms"] == whole["terms"]
