"""The user's function that runs after every iteration, and the handle with which it steers the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slipstream.algorithms.schedules import Schedules
from slipstream.errors import ConfigError
from slipstream.runs.signals import StopRequest


class TrainingHandle:
    """What `on_iteration` can do to the run that calls it."""

    def __init__(self, request: StopRequest, schedules: Schedules) -> None:
        self._request, self._schedules = request, schedules

    def stop(self, why: str = "on_iteration") -> None:
        """End the run after this iteration, with a checkpoint; `run.facts["stopped"]` then holds `why`."""
        self._request.stop = self._request.stop or why or "on_iteration"

    def save(self) -> None:
        """Save a checkpoint of this iteration."""
        self._request.save = True

    def set(self, key: str, value: float | None) -> None:
        """Give a setting a new value from the next iteration on, for example `handle.set("ppo.clip", 0.1)`.

        The key is one that can have a schedule, and the value replaces that schedule. None returns the setting to its
        schedule or first value. Checkpoints hold the value, so a resumed run continues with it.
        """
        self._schedules.set(key, value)


OnIteration = Callable[[int, dict[str, Any], TrainingHandle], object]
"""(steps, metrics of the iteration by name, handle): called after every iteration."""


def check_on_iteration(function: Any) -> None:
    """Raise if `on_iteration` cannot be called with steps, metrics and handle."""
    hint = "write def on_iteration(steps, metrics, handle): ..."
    if not callable(function):
        raise ConfigError(f"`on_iteration` = {function!r} is not a function.", hint)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some compiled functions have no signature
        return
    try:
        signature.bind(0, {}, None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"`on_iteration` = {name}{signature} cannot be called with (steps, metrics, handle): {error}.", hint
        ) from error


class IterationCallback:
    """Calls the user's function; an exception in it ends the run after this iteration and is raised at the end."""

    def __init__(self, function: OnIteration, request: StopRequest, schedules: Schedules) -> None:
        self._function, self._request = function, request
        self._handle = TrainingHandle(request, schedules)
        self.error: BaseException | None = None

    def __call__(self, steps: int, row: dict[str, Any]) -> None:
        """Call the function with a copy of the metrics."""
        try:
            self._function(steps, dict(row), self._handle)
        except BaseException as error:  # also sys.exit: the iteration is logged and saved first
            self.error = error
            self._request.stop = self._request.stop or "error"
