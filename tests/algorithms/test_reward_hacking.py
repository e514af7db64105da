"""Reward hacking detection: a warning when returns rise and win rates fall, and only then."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.reward_hacking import RewardHackingDetector, rose


def evaluated(step: int, returns: float, rate: float, **terms: float) -> dict[str, Any]:
    """A logged row with an evaluation of 100 games."""
    row = {"steps": step, "evaluate/mean_return": returns, "evaluate/win_rate": rate, "evaluate/games": 100}
    return row | {f"reward/{name}": value for name, value in terms.items()}


def heard(alarm: RewardHackingDetector, rows: list[dict[str, Any]]) -> list[str]:
    """What an alarm says about rows."""
    return [said for row in rows if (said := alarm.see(row))]


def noisy(seed: int, count: int, gain: float = 0.0, fall: float = 0.0) -> list[dict[str, Any]]:
    """Rows of noise around lines: returns of deviation 0.3, win rates of 100 games."""
    random = np.random.default_rng(seed)
    rows = []
    for k in range(count):
        rate = random.binomial(100, min(max(0.6 - fall * k, 0.0), 1.0)) / 100
        rows.append(evaluated(1000 * k, 2.0 + gain * k + random.normal(0, 0.3), rate, touch=0.01 * k, value_target=0.0))
    return rows


def test_hacked_rewards_are_reported_once_with_numbers_and_terms() -> None:
    """One warning reports the changes, the terms that grew and what to do."""
    rows = [
        evaluated(1000 * k, 1.0 + 0.5 * (k >= 3) + 0.01 * (k % 2), 0.8 - 0.5 * (k >= 3), touch=0.1 * k, goal=-0.1 * k)
        for k in range(20)
    ]
    assert heard(RewardHackingDetector(), rows) == [
        "Possible reward hacking: from step 0 to 5,000 the return in evaluation rose from 1 to 1.51 while the win "
        "rate fell from 80% to 30%. Terms that grew most: touch by 0.3 per step. Lower rewards.weights.touch, or set "
        "rewards.potential=true."
    ]


def test_terms_of_the_user_are_named_without_potentials() -> None:
    """In a Python environment, whose own reward is the term `env`, the warning suggests weights only."""
    rows = [evaluated(k, 1.0 + 0.5 * (k >= 3), 0.8 - 0.5 * (k >= 3), env=-0.1 * k, mine=0.1 * k) for k in range(20)]
    (said,) = heard(RewardHackingDetector(), rows)
    assert said.endswith("Terms that grew most: mine by 0.3 per step. Lower rewards.weights.mine.")


def test_a_slow_drift_is_detected() -> None:
    """Slowly rising returns and slowly falling win rates are detected through noise."""
    assert sum(bool(heard(RewardHackingDetector(), noisy(seed, 40, gain=0.1, fall=0.015))) for seed in range(20)) == 20


@pytest.mark.parametrize(("gain", "fall"), [(0.0, 0.0), (0.1, 0.0), (0.1, -0.01), (0.0, 0.015), (-0.1, 0.015)])
def test_noise_progress_and_plain_failure_give_no_warning(gain: float, fall: float) -> None:
    """Of 100 runs of 60 evaluations without both changes, at most two give a warning."""
    assert sum(bool(heard(RewardHackingDetector(), noisy(seed, 60, gain, fall))) for seed in range(100)) <= 2


def test_rates_of_few_games_are_not_significant() -> None:
    """Five evaluations of two games each that fall from 1.0 to 0.5 are not significant."""
    rows = [evaluated(k, 1.0 + (k >= 5), 1.0 - 0.5 * (k >= 5)) | {"evaluate/games": 2} for k in range(10)]
    assert heard(RewardHackingDetector(), rows) == []
    assert heard(RewardHackingDetector(), [row | {"evaluate/games": 200} for row in rows])


def trained(step: int, count: int, returns: float, rate: float) -> dict[str, Any]:
    """A logged row of training against an opponent."""
    return {"steps": step, "episode/count": count, "episode/return_mean": returns, "episode/win_rate": rate}


def test_training_episodes_are_used_without_evaluations() -> None:
    """Rows whose windows of 100 episodes overlap count once, and games that are not steady are not compared."""
    falling = [trained(k, 100 * (k + 1), 1.0 + (k >= 5), 0.8 - 0.5 * (k >= 5)) for k in range(10)]
    assert "the return in training rose from 1 to 2" in heard(RewardHackingDetector(), falling)[0]
    assert heard(RewardHackingDetector(steady=False), falling) == []
    assert heard(RewardHackingDetector(), [row | {"episode/count": 10 * k} for k, row in enumerate(falling)]) == []
    none_yet = trained(0, 0, 0.0, 0.0) | {"episode/return_mean": None}
    assert heard(RewardHackingDetector(), [none_yet, *falling])


def test_evaluations_take_precedence_over_training() -> None:
    """After the first evaluation, rows without one are ignored."""
    alarm = RewardHackingDetector()
    alarm.see(evaluated(0, 1.0, 0.5))
    assert heard(alarm, [trained(k, 100 * (k + 1), 1.0 + (k >= 5), 0.8 - 0.5 * (k >= 5)) for k in range(10)]) == []


def test_the_state_can_be_restored() -> None:
    """Restored from JSON it gives the same warning at the same row, and no second one."""
    rows = noisy(3, 40, gain=0.1, fall=0.015)
    whole = RewardHackingDetector()
    expected = [whole.see(row) for row in rows]
    said, alarm = [], RewardHackingDetector()
    for row in rows:
        episode_start = RewardHackingDetector()
        episode_start.restore(json.loads(json.dumps(alarm.describe())))
        alarm = episode_start
        said.append(alarm.see(row))
    assert said == expected and sum(bool(line) for line in said) == 1


def test_rose_against_a_hand_computed_t() -> None:
    """(1, 2, 3) and (3, 4, 5): t = 2 / sqrt(2 / 3) with 4 degrees of freedom, 96.48 % confident."""
    assert rose([1, 2, 3], [3, 4, 5]) == pytest.approx(0.964758, abs=1e-6)
    assert rose([1, 1], [1, 1]) == 0.0 and rose([1, 1], [2, 2]) == 1.0
