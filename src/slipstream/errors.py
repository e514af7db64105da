"""Every error a user can meet, each with its exit code and a hint.

    SlipstreamError                 1   a bug of ours, or one of the below
    |-- ConfigError                 2   a setting, a flag, an agent spec
    |-- EnvError                    3   an environment that is missing, raises, hangs or dies
    |   `-- EnvFault                3   one that raised, with its index, seed and step
    |-- DemoError                   4   recorded data that cannot be used
    |-- CheckpointError             5   a run or checkpoint that is missing, locked or damaged
    |-- MachineError                6   this machine lacks something (disk, memory, a device)
    `-- GateError                   7   `bench --gate`: slower than allowed

The numbers are exit codes.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class SlipstreamError(Exception):
    """What happened, and, in `hint`, what to do next."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(SlipstreamError):
    """A setting, a flag or an agent spec that cannot be used."""

    code = 2


class EnvError(SlipstreamError):
    """An environment that is missing, raises, hangs or dies."""

    code = 3


class EnvFault(EnvError):
    """An environment raised: which one, its seed and its step, so that it can be replayed, and its own traceback."""

    def __init__(self, env: int, seed: int, step: int, report: str) -> None:
        super().__init__(
            f"Env {env} (seed {seed}, step {step}) raised:\n{report.rstrip()}",
            "mend the environment; nothing else failed",
        )
        self.env, self.seed, self.step, self.report = env, seed, step, report


class DemoError(SlipstreamError):
    """Recorded data that cannot be used."""

    code = 4


class CheckpointError(SlipstreamError):
    """A run or a checkpoint that is missing, locked or damaged."""

    code = 5


class MachineError(SlipstreamError):
    """This machine lacks something that the run needs."""

    code = 6


class GateError(SlipstreamError):
    """A measured slow-down that is larger than was allowed."""

    code = 7


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean `x`?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean `{near[0]}`?" if near else ""


def guarded(work: Callable[..., Any], args: Sequence[Any], where: Callable[[], tuple[int, int, int]]) -> Any:
    """Do some work of environments; what goes wrong in them is a fault of the env, seed and step that `where` names."""
    try:
        return work(*args)
    except SlipstreamError:
        raise
    except Exception as error:
        raise EnvFault(*where(), traceback.format_exc()) from error
