"""The verb `tune`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.performance import tune_text

TUNED = {
    "env",
    "settings",
    "default_steps_per_second",
    "steps_per_second",
    "gain",
    "gain_low",
    "gain_high",
    "predicted",
    "batch",
    "model",
    "seconds",
    "memory_mib",
    "exact",
    "path",
    "tried",
}


def test_tune_keeps_a_plan_and_train_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune` prints one JSON object and saves the plan; `train --show` marks its values as `tuned`, unless ignored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["soccer", "--preset", "smoke", "--set", "plan.collector=local"]
    result = CliRunner().invoke(main, ["tune", *words, "--exact", "--minutes", "0.01", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts.keys() == TUNED and facts["settings"] == {} and facts["exact"] is True
    assert "default plan: about" in result.stderr
    path = Path(facts["path"])
    path.write_text(json.dumps(facts | {"settings": {"plan.envs": 2, "ppo.rollout": 32}}))
    shown = CliRunner().invoke(main, ["train", *words, "--show"]).stdout.splitlines()
    assert "plan.envs = 2  (tuned)" in shown and "ppo.rollout = 32  (tuned)" in shown
    shown = CliRunner().invoke(main, ["train", *words, "--show", "--no-tuned"]).stdout.splitlines()
    assert "plan.envs = 4  (preset smoke)" in shown


def test_the_text_of_a_result() -> None:
    """Predictions and measurements are columns of a table; changes that were not tried have a reason."""
    tried = [
        {
            "said": "plan.threads 2 -> 1",
            "changes": {},
            "predicted": 0.9,
            "measured": [1.1, 1.05, 1.15],
            "verdict": "kept",
            "why": "",
        },
        {
            "said": "plan.collector actors -> local",
            "changes": {},
            "predicted": 0.7,
            "measured": None,
            "verdict": "not tried",
            "why": "the model of the machine expects less",
        },
        {
            "said": "plan.learner fused -> torch",
            "changes": {},
            "predicted": None,
            "measured": [0.5, 0, None],
            "verdict": "slower",
            "why": "",
        },
    ]
    facts = {
        "env": "soccer",
        "settings": {"plan.threads": 1},
        "default_steps_per_second": 1000.0,
        "steps_per_second": 1100.0,
        "gain": 1.1,
        "gain_low": 1.05,
        "gain_high": 1.15,
        "predicted": 0.9,
        "batch": 65536,
        "model": {"env_us": 1.0, "inference_us": 2.0, "learn_us": 3.0, "rest_us": 0.0, "limit": 333.0},
        "tried": tried,
        "seconds": 40.0,
        "memory_mib": 500.0,
        "path": "/x/y.json",
    }
    assert tune_text(facts).splitlines() == [
        "soccer, batch 65,536: 1,000 steps/s by default",
        "on one core: env 1.00 us per step, inference 2.00, learning 3.00; with all cores busy: 333 steps/s",
        "",
        "switch                          predicted  measured             ",
        "plan.threads 2 -> 1                 0.90x  1.10x [1.05, 1.15]   kept",
        "plan.collector actors -> local      0.70x                       not tried: the model of the machine expects "
        "less",
        "plan.learner fused -> torch                0.50x                slower",
        "",
        "speed-up: 1.10x [1.05, 1.15] (predicted 0.90x), 1,100 steps/s, 500 MiB of memory",
        "  plan.threads = 1",
        "40 s of tuning; saved in /x/y.json",
    ]
