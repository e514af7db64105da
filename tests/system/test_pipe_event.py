"""A bell: rung, it wakes; dropped, it says so; silent, it lets go when the time is over."""

from __future__ import annotations

import os
import threading
import time

import pytest

from slipstream.system.pipe_event import PipeEvent

pytestmark = pytest.mark.skipif(os.name != "posix", reason="bells are POSIX pipes")


def test_a_ring_wakes_the_one_who_waits() -> None:
    """A wait that began before the ring ends with it, and rings are counted, not lost."""
    bell = PipeEvent()
    timer = threading.Timer(0.1, bell.ring)
    timer.start()
    assert bell.wait(5.0) is True
    timer.join()
    bell.ring()
    bell.ring()
    assert [bell.wait(1.0), bell.wait(1.0), bell.wait(0.01)] == [True, True, None]
    bell.drop(ear=True, cord=True)


def test_silence_ends_at_the_deadline() -> None:
    """Nobody rings: None, after the time and not much later."""
    bell = PipeEvent()
    began = time.monotonic()
    assert bell.wait(0.1) is None
    assert 0.09 < time.monotonic() - began < 2.0
    bell.drop(ear=True, cord=True)


def test_a_dead_other_side_is_noticed_on_both_ends() -> None:
    """Whoever waits for the dead is told at once, and ringing them does no harm."""
    bell = PipeEvent()
    bell.drop(cord=True)
    assert bell.wait(5.0) is False
    bell.drop(ear=True, cord=True)
    deaf = PipeEvent()
    deaf.drop(ear=True)
    deaf.ring()
    deaf.drop(ear=True, cord=True)
