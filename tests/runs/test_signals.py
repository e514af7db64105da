"""Signals set the flags of a stop request."""

from __future__ import annotations

import signal

import pytest

from slipstream.runs.signals import StopRequest, handle_signals


def test_signals_set_flags_and_handlers_are_restored() -> None:
    """The first signal requests a stop, the second raises at once, and the handlers are restored."""
    before = signal.getsignal(signal.SIGTERM)
    request = StopRequest()
    with handle_signals(request):
        signal.raise_signal(signal.SIGTERM)
        assert request.stop == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
