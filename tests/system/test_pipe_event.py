"""PipeEvent: `notify` wakes a waiting process, a closed end is noticed, and a wait can time out."""

from __future__ import annotations

import os
import threading
import time

import pytest

from slipstream.system.pipe_event import PipeEvent

pytestmark = pytest.mark.skipif(os.name != "posix", reason="PipeEvent needs POSIX pipes")


def test_notify_wakes_a_waiting_thread() -> None:
    """A wait that began before `notify` ends with it, and notifications are counted, not lost."""
    event = PipeEvent()
    timer = threading.Timer(0.1, event.notify)
    timer.start()
    assert event.wait(5.0) is True
    timer.join()
    event.notify()
    event.notify()
    assert [event.wait(1.0), event.wait(1.0), event.wait(0.01)] == [True, True, None]
    event.close(read=True, write=True)


def test_a_wait_times_out() -> None:
    """Without `notify`, wait returns None after the timeout and not much later."""
    event = PipeEvent()
    began = time.monotonic()
    assert event.wait(0.1) is None
    assert 0.09 < time.monotonic() - began < 2.0
    event.close(read=True, write=True)


def test_a_closed_end_is_noticed_on_both_sides() -> None:
    """Waiting for a closed writer returns False at once, and notifying a closed reader does no harm."""
    event = PipeEvent()
    event.close(write=True)
    assert event.wait(5.0) is False
    event.close(read=True, write=True)
    unread = PipeEvent()
    unread.close(read=True)
    unread.notify()
    unread.close(read=True, write=True)
