"""`slipstream tune` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.tune import tuned

TUNED = {
    "env", "settings", "default_steps_per_second", "steps_per_second", "gain", "gain_low", "gain_high", "predicted",
    "batch", "model", "seconds", "memory_mib", "exact", "path", "tried",
}  # fmt: skip


def test_tune_keeps_a_plan_and_train_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON object at the end of stdout, progress on stderr; what was found shows as `tuned`, unless ignored."""
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


def test_what_was_found_in_words() -> None:
    """Predicted, measured and gained stand side by side; what was not tried says why."""
    tried = [
        {"said": "plan.threads 2 -> 1", "changes": {}, "predicted": 0.9, "measured": [1.1, 1.05, 1.15],
         "verdict": "kept", "why": ""},
        {"said": "plan.collector actors -> local", "changes": {}, "predicted": 0.7, "measured": None,
         "verdict": "not tried", "why": "the model of the machine expects less"},
        {"said": "plan.learner fused -> torch", "changes": {}, "predicted": None, "measured": [0.5, 0, None],
         "verdict": "slower", "why": ""},
    ]  # fmt: skip
    facts = {
        "env": "soccer", "settings": {"plan.threads": 1}, "default_steps_per_second": 1000.0,
        "steps_per_second": 1100.0, "gain": 1.1, "gain_low": 1.05, "gain_high": 1.15, "predicted": 0.9, "batch": 65536,
        "model": {"env_us": 1.0, "inference_us": 2.0, "learn_us": 3.0, "rest_us": 0.0, "limit": 333.0}, "tried": tried,
        "seconds": 40.0, "memory_mib": 500.0, "path": "/x/y.json",
    }  # fmt: skip
    assert tuned(facts).splitlines() == [
        "soccer, batch 65,536: 1,000 steps/s by default",
        "one core alone: env 1.00 us per step, inference 2.00, learning 3.00; limit of all cores: 333 steps/s",
        "",
        "switch                          predicted  measured             ",
        "plan.threads 2 -> 1                 0.90x  1.10x [1.05, 1.15]   kept",
        "plan.collector actors -> local      0.70x                       not tried: the model of the machine expects "
        "less",
        "plan.learner fused -> torch                0.50x                slower",
        "",
        "gained: 1.10x [1.05, 1.15] (predicted 0.90x), 1,100 steps/s, 500 MiB of memory",
        "  plan.threads = 1",
        "40 s of tuning; cached in /x/y.json",
    ]
