"""Signals become wishes."""

from __future__ import annotations

import signal

import pytest

from slipstream.runs.signals import StopRequest, handle_signals


def test_signals_are_wishes_and_are_put_back() -> None:
    """The first signal asks, the second ends at once, and afterwards the handlers are those of before."""
    before = signal.getsignal(signal.SIGTERM)
    wishes = StopRequest()
    with handle_signals(wishes):
        signal.raise_signal(signal.SIGTERM)
        assert wishes.stop == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
