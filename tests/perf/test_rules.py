"""Rules: each applies where it should, predicts gains from the measured shares, and is in the guide."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.perf.diagnose_report import MEANS
from slipstream.perf.measurements import (
    EnvFindings,
    Findings,
    GpuFindings,
    InferenceFindings,
    LearnFindings,
    Limits,
    MemoryPart,
    PastFindings,
    Shares,
    Times,
    TrainFindings,
)
from slipstream.perf.rules import RULES, VERDICTS, apply_rules, batching, overlapped, speedup, wasted_times

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "troubleshooting.md"
QUICK = Times(100, 10.0, 10.0, 12.0, 15.0)
PLAN = {"envs": 64, "collector": "actors", "workers": 2, "threads": 1, "lag": 0}
STEADY = tuple((float(n), 500.0 + n % 2) for n in range(20))
RISING = tuple((float(n), 500.0 + 20 * n + n % 2) for n in range(20))


def found(**changes: Any) -> Findings:
    """Measurements of a healthy training on two cores, changed by `part__name`."""
    parts: dict[str, Any] = {
        "limits": Limits(cores=2, memory_mib=8192, gemm_gflops=50.0, copy_gib_s=10.0, line_us=0.02),
        "train": TrainFindings(
            steps=100_000,
            seconds=10.0,
            iterations=10,
            rate=10_000.0,
            start_s=1.0,
            shares=Shares(0.35, 0.3, 0.15, 0.2),
            updates=400,
            samples=400_000,
            rates=(10_000.0,) * 10,
            plan=PLAN,
        ),
        "env": EnvFindings(step=QUICK, rate=60_000.0),
        "inference": InferenceFindings({32: QUICK, 512: Times(9, 160.0, 160.0, 170.0, 180.0)}, 32),
        "learn": LearnFindings("fused", 1e6, 1.0, "tanh"),
    }
    for key, value in changes.items():
        part, _, name = key.partition("__")
        parts[part] = replace(parts[part], **{name: value}) if name else value
    return Findings("gymnasium:CartPole-v1", **parts)


ENV, ACTING, LEARNING = Shares(0.8, 0.1, 0.1, 0.0), Shares(0.1, 0.8, 0.1, 0.0), Shares(0.1, 0.1, 0.8, 0.0)
MANY = PLAN | {"workers": 4}
CASES: dict[str, dict[str, Any]] = {
    "leaking-env": {"env__leak_bytes": 100.0, "env__leak_at": "game.py:7"},
    "growing-memory": {"train__growth_bytes": 100.0},
    "more-workers-than-cores": {"train__plan": MANY, "train__waiting_share": 0.5, "train__fewer_rate": 12_000.0},
    "more-threads-than-cores": {"train__plan": PLAN | {"threads": 3}},
    "updates-without-data": {"train__shares": LEARNING, "train__updates": 100_000},
    "numbers-out-of-tensors-in-step": {"train__shares": ENV, "env__syncs": 9.0, "env__sync_share": 0.5},
    "numbers-out-of-tensors-in-updates": {"train__shares": LEARNING, "learn__syncs": 9.0, "learn__sync_share": 0.5},
    "slow-reset": {"train__shares": ENV, "env__reset": QUICK, "env__reset_share": 0.5},
    "copies-to-the-gpu": {"gpu": GpuFindings("H200", 0.3, 100.0, 1000.0, 10.0, 10.0, 0.5)},
    "dear-activations": {"train__shares": LEARNING, "learn__activation_share": 0.5},
    "python-loop-in-step": {"train__shares": ENV, "env__hottest_times": 500.0, "env__python_share": 0.9},
    "checkers-inside": {"train__shares": ENV, "env__checkers": 1, "env__wrapper_share": 0.5},
    "idle-cores": {"train__shares": ENV, "train__plan": PLAN | {"collector": "local", "workers": 1}},
    "slow-env": {"train__shares": ENV},
    "small-inference-batches": {
        "train__shares": ACTING,
        "inference__by_batch": {32: QUICK, 512: Times(9, 80.0, 80.0, 90.0, 99.0)},
    },
    "slow-policy": {"train__shares": ACTING},
    "torch-by-choice": {"train__shares": LEARNING, "learn__fused_ratio": 4.0},
    "slow-learner": {"train__shares": LEARNING},
    "no-overlap": {"train__shares": Shares(0.4, 0.1, 0.5, 0.0)},
    "slowing-down": {"train__rates": tuple(10_000.0 - 400 * n + 10 * (n % 2) for n in range(12))},
    "memory-short": {"memory": (MemoryPart("train", "in all", 7000.0),)},
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_holds_where_it_should(rule: Any) -> None:
    """No rule applies to a healthy training; each applies to its own problem, with a gain and a command."""
    assert not rule.holds(found())
    case = found(**CASES[rule.name])
    assert rule.holds(case)
    verdict, advice = apply_rules(case)
    (own,) = [one for one in advice if one.rule == rule.name]
    assert own.told and own.gain >= 1.0 and own.command.startswith("slipstream ")
    assert not rule.verdict or verdict == rule.verdict


def test_every_verdict_has_a_rule_and_a_meaning() -> None:
    """Every verdict except `balanced` belongs to a rule, and every verdict is explained."""
    assert {rule.verdict for rule in RULES if rule.verdict} | {"balanced"} == set(VERDICTS) == set(MEANS)
    assert len({rule.name for rule in RULES}) == len(RULES) == len(CASES)
    assert apply_rules(found()) == ("balanced", [])


def test_causes_go_before_symptoms() -> None:
    """With a slow reset, the verdict is reset-bound, and the advice includes both rules."""
    verdict, advice = apply_rules(found(**CASES["slow-reset"]))
    assert verdict == "reset-bound" and [one.rule for one in advice] == ["slow-reset", "slow-env"]


def test_advice_is_ranked_by_gain() -> None:
    """Among rules with the same verdict, the one with the largest gain comes first."""
    _, advice = apply_rules(found(**CASES["python-loop-in-step"], env__checkers=1, env__wrapper_share=0.1))
    assert [one.rule for one in advice] == ["python-loop-in-step", "slow-env", "checkers-inside"]
    gains = [one.gain for one in advice]
    assert gains == sorted(gains, reverse=True)


def test_gains_are_computed_by_hand() -> None:
    """Amdahl's law: removing half of the time is 2x, making it four times faster 1.6x; a share of 1 is limited."""
    assert speedup(0.5) == pytest.approx(2.0)
    assert speedup(0.5, 4.0) == pytest.approx(1.6)
    assert speedup(1.0) == pytest.approx(50.0)
    assert speedup(0.0, 9.0) == 1.0


def test_overlap_by_hand() -> None:
    """Two workers collect for half of the time, one thread learns for the other: 1.5 core halves fill 0.75."""
    assert overlapped(found(train__shares=Shares(0.4, 0.1, 0.5, 0.0))) == pytest.approx(1 / 0.75)


def test_a_row_in_larger_batches_by_hand() -> None:
    """10 us for 32 rows and 160 us for 512 are the same cost per row."""
    assert batching(found()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("algorithm", "updates", "critics", "times"),
    [
        ("ppo", 15_600, 2, 0.0),
        ("ppo", 100_000, 2, 10.0),
        ("sac", 100_000, 2, 0.0),
        ("sac", 1_600_000, 2, 16.0),
        ("sac", 2_000_000, 10, 0.0),
        ("sac", 4_000_000, 10, 2.0),
    ],
)
def test_what_is_wasted(algorithm: str, updates: int, critics: int, times: float) -> None:
    """Usual update ratios of PPO, SAC and ensembles are not wasted; ten, sixteen and two times as many are."""
    case = replace(found(train__algorithm=algorithm, train__updates=updates), settings={"sac.critics": critics})
    assert wasted_times(case) == pytest.approx(times)


def test_waiting_is_what_oversubscribes() -> None:
    """More workers than cores are allowed if they sleep; without a measurement, their number decides."""
    (rule,) = [rule for rule in RULES if rule.name == "more-workers-than-cores"]
    assert not rule.holds(found(train__plan=MANY, train__waiting_share=0.05))
    assert rule.holds(found(train__plan=MANY, train__waiting_share=-1.0))


@pytest.mark.parametrize(("memory", "leaks"), [(STEADY, False), (RISING, True)])
def test_the_past_of_a_run_counts(memory: Any, leaks: bool) -> None:
    """A run whose memory rose throughout leaks, regardless of the short measurement."""
    past = PastFindings("runs/a", 100, (), memory)
    verdict, advice = apply_rules(replace(found(), past=past))
    assert (verdict == "leak") is leaks
    assert not leaks or "memory rose from 500 to 881 MiB" in advice[0].told


def test_what_to_type_next() -> None:
    """The advice is a command if the env has a name, and a Python call otherwise."""
    (rule,) = [rule for rule in RULES if rule.name == "idle-cores"]
    assert rule.command(found()) == (
        "slipstream train gymnasium:CartPole-v1 --set plan.collector=actors --set plan.workers=2 --set plan.envs=256"
    )
    assert rule.command(replace(found(), name="python:MyEnv")) == (
        "slipstream.train(MyEnv, plan__collector='actors', plan__workers=2, plan__envs=256)"
    )
    (rule,) = [rule for rule in RULES if rule.name == "growing-memory"]
    assert rule.command(found()) == "slipstream diagnose gymnasium:CartPole-v1 --test memory --seconds 60"


def rows_of(text: str) -> list[list[str]]:
    """The cells of a page's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_guide_and_the_rules_agree() -> None:
    """Every row of the troubleshooting page is a rule, in order, word for word, and no rule is missing."""
    listed = [[row[0], re.sub(r"`", "", row[1]), row[2], row[3]] for row in rows_of(GUIDE.read_text(encoding="utf-8"))]
    assert listed == [[rule.symptom, rule.name, rule.verdict or "advice", rule.do] for rule in RULES]
