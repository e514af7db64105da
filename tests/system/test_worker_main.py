"""Errors of workers: the parent raises them as the same class, with message and hint."""

from __future__ import annotations

import pytest

from slipstream.errors import (
    AgentFault,
    ConfigError,
    EnvEnded,
    EnvError,
    EnvFault,
    MachineError,
    NonFinitePolicy,
    SlipstreamError,
)
from slipstream.system.worker_main import _describe
from slipstream.system.worker_pool import _rebuild


class Own(ConfigError):
    """A class of the user, which the parent may not have."""


CASES: list[tuple[Exception, type[SlipstreamError]]] = [
    (NonFinitePolicy("a", "b"), NonFinitePolicy),
    (ConfigError("a", "b"), ConfigError),
    (MachineError("a", "b"), MachineError),
    (EnvEnded("a", "b"), EnvEnded),
    (SlipstreamError("a", "b"), SlipstreamError),
    (Own("a", "b"), ConfigError),
    (AgentFault("mine:Agent", "raised", 0, 3, "[1]"), ConfigError),
    (EnvFault(3, 17, 880, "boom"), EnvFault),
    (ValueError("a"), EnvError),
]


@pytest.mark.parametrize(("error", "kind"), CASES)
def test_the_class_is_kept(error: Exception, kind: type[SlipstreamError]) -> None:
    """Ours keep their class, or the nearest one made of message and hint; other exceptions are an EnvError."""
    rebuilt = _rebuild(_describe(error))
    assert type(rebuilt) is kind
    if isinstance(error, SlipstreamError):
        assert (rebuilt.message, rebuilt.hint) == (error.message, error.hint)
