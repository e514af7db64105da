"""The report of a diagnosis: text for the terminal, and a self-contained page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from slipstream.api import diagnose
from slipstream.perf.diagnose import Diagnosis
from slipstream.perf.diagnose_report import summary, write_page
from slipstream.perf.measurements import PastFindings
from slipstream.perf.rules import RULES
from slipstream.testing import SlowEnv


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    """A complete diagnosis of a slow env."""
    small = {"plan__envs": 4, "plan__collector": "local", "ppo__rollout": 16, "ppo__minibatch": 64}
    return diagnose(lambda: SlowEnv("loop"), seconds=1.5, **small)


@pytest.mark.usefixtures("quiet_machine")
def test_the_summary_says_verdict_advice_and_command(diagnosis: Diagnosis) -> None:
    """The verdict comes first, and each advice has its rule, its gain and a command."""
    text = summary(diagnosis)
    assert text.startswith("python:SlowEnv: env-bound (")
    assert "1. testing.py:" in text and "[python-loop-in-step]" in text
    assert (
        "   try: slipstream.diagnose(SlowEnv, plan__envs=4, plan__collector='local', ppo__rollout=16" in text
        and "env reset: p50" in text
        and "learner: fused" in text
    )


def test_the_page_is_whole(diagnosis: Diagnosis, tmp_path: Path) -> None:
    """The page is well-formed, has its charts, all rules and the memory table, and loads nothing."""
    found = diagnosis.found
    past = PastFindings("runs/a", 10, ((1.0, 5.0), (2.0, 6.0)), ((1.0, 100.0), (2.0, 101.0)))
    place = tmp_path / "new" / "page.html"
    write_page(Diagnosis(diagnosis.verdict, diagnosis.advice, type(found)(**vars(found) | {"past": past})), place)
    text = place.read_text(encoding="utf-8")
    ElementTree.fromstring(text.partition("\n")[2])
    assert text.count("<svg") >= 5 and "replay buffer" not in text and "rollouts" in text
    assert all(rule.name in text for rule in RULES)
    assert "http://" not in text.replace("http-equiv", "") and "https://" not in text
