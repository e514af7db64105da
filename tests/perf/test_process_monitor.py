"""The monitor of a process."""

from __future__ import annotations

from slipstream.perf.process_monitor import ProcessMonitor, core_times


def test_memory_is_sampled() -> None:
    """Memory is sampled from the start; without workers there is no waiting share."""
    with ProcessMonitor() as monitor:
        pass
    assert monitor.memory and monitor.memory[0][1] > 10 and not core_times()
    assert monitor.waiting_share == -1.0 and not monitor.utilisation
