"""Tests whose assertions depend on time: they measure the delay of the machine and skip if it is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any

import psutil
import pytest

from slipstream.perf.trial import Trial

SPIN_S = 0.15
BUSY_BEFORE, BUSY_AFTER = 0.3, 0.1
"""Share of a spinning loop's time without a core above which a test is skipped, before it and after a failure."""
OTHERS = 0.5
"""Share of the machine that other processes may use when a test fails."""


def waiting_share() -> float:
    """The share of its time that a spinning loop in this process waits for a core."""
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SPIN_S:
        pass
    return 1.0 - (time.process_time() - used) / (time.perf_counter() - began)


@pytest.fixture
def quiet_machine() -> None:
    """Skip a test that depends on time if the machine is busy; see also `pytest_runtest_makereport`."""
    if (share := waiting_share()) > BUSY_BEFORE:
        pytest.skip(f"machine busy: a spinning loop waits {share:.0%} of the time")


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    """Make a trial of one iteration with some measurements; the others are 0."""

    def make(**measured: Any) -> Trial:
        return Trial(**dict.fromkeys((field.name for field in fields(Trial)), 0) | {"iterations": 1} | measured)

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the failure of a test that depends on time into a skip if the machine is busy now."""
    report = yield
    timed = "quiet_machine" in getattr(item, "fixturenames", ())
    if timed and report.failed and (waiting_share() > BUSY_AFTER or psutil.cpu_percent(SPIN_S) / 100 > OTHERS):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: machine busy; {report.longreprtext.splitlines()[-1]}")
    return report
