"""A look at a process while it works."""

from __future__ import annotations

from slipstream.perf.process_monitor import ProcessMonitor, core_times


def test_a_watch_sees_memory() -> None:
    """Memory is sampled from the first moment on; a process without workers has nobody who waits."""
    with ProcessMonitor() as monitor:
        pass
    assert monitor.memory and monitor.memory[0][1] > 10 and not core_times()
    assert monitor.waiting_share == -1.0 and not monitor.utilisation
