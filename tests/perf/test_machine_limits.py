"""The limits of the machine."""

from __future__ import annotations

import pytest

from slipstream.perf.machine_limits import best_of, measure_limits


@pytest.mark.usefixtures("quiet_machine")
def test_limits_are_measured() -> None:
    """Matrix products, copies and lines of Python have a plausible speed."""
    limits = measure_limits(0.05)
    assert limits.cores >= 1 and limits.memory_mib > 100
    assert limits.gemm_gflops > 0.1 and limits.copy_gib_s > 0.1 and 0.001 < limits.line_us < 10
    assert best_of(lambda: None, 0.0, least=2) < 0.1
