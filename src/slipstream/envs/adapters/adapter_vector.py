"""What the adapters of external environments share: seeds, resets, error reports, and optional packages.

An adapter implements the `Vector` contract over environments of another library. Subclasses of `AdapterVector` define
`_reset_envs` and `_step`; the base class keeps the seeds and reports exceptions with the env's index, seed and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from slipstream.contracts import Array, Rows
from slipstream.envs.snapshot import NoSnapshot
from slipstream.errors import EnvError, guarded
from slipstream.system.rng import Seeds


def import_package(module: str, env: str, package: str, install: str) -> Any:
    """Import the package that an environment needs, or raise EnvError with the install command."""
    try:
        return import_module(module)
    except ImportError as error:
        raise EnvError(f"`{env}` needs {package}: {error}.", install) from error


def made_in_python(name: str) -> EnvError:
    """The error for an environment without a name where its Python function is not given."""
    return EnvError(
        f"`{name}` was given as a Python function and has no name.", "use Python and give the function again as `env`"
    )


class AdapterVector(NoSnapshot):
    """`envs` environments of another library, the first with the global index `first`."""

    def __init__(self, envs: int, first: int, seeds: Sequence[int]) -> None:
        self.envs, self.first = envs, first
        self._seeds = Seeds(seeds)
        self._steps = 0
        self._current = 0
        """The env that is being stepped, for error reports."""

    def reset(self, out: Rows) -> None:
        """Reset every environment; the first time from its own seed."""
        self.reset_envs(range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the given environments, each from its seed if there is one (-1: none)."""
        self._seeds.give(indices, seeds)
        self._guard(self._reset_envs, indices, out)

    def seeds(self) -> Array:
        """The seed of each running episode that was started from one, else -1."""
        return self._seeds.begun.copy()

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment."""
        self._steps += 1
        self._guard(self._step, action, out)

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        raise NotImplementedError

    def _step(self, action: Array, out: Rows) -> None:
        raise NotImplementedError

    def _guard(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call a function; an exception in it becomes an EnvFault of the current env."""
        return guarded(work, args, lambda: (self.first + self._current, self._seeds.named[self._current], self._steps))


class ThreadedAdapter(AdapterVector):
    """Environments stepped by the library's own threads: `send` starts a step, `receive` waits for it."""

    def __init__(self, envs: int, first: int, seeds: Sequence[int]) -> None:
        super().__init__(envs, first, seeds)
        self._out: Rows | None = None
        """The rows of the step in progress."""

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Start a step; its results are written to `out` by `receive`."""
        self._steps += 1
        self._out = out
        self._guard(self._send, action)

    def receive(self) -> None:
        """Wait for the step in progress and write its rows."""
        out, self._out = self._out, None
        assert out is not None
        self._guard(self._receive, out)

    def _send(self, action: Array) -> None:
        raise NotImplementedError

    def _receive(self, out: Rows) -> None:
        raise NotImplementedError
