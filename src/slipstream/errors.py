"""The exceptions that a user can see. Each has a message, a hint and an exit code of the command line.

    class                    exit code
    SlipstreamError                 1   base class; raised itself only for bugs in Slipstream
    |-- ConfigError                 2   an invalid setting, flag or agent spec
    |   |-- AgentFault              2   an agent raised, hangs or returned no action, with env, step and observation
    |   `-- NonFinitePolicy         2   a network of the user's own returned NaN or infinity
    |-- EnvError                    3   an environment is missing, raises, hangs or dies
    |   |-- EnvFault                3   an environment raised, with its index, seed, step and traceback
    |   |-- EnvEnded                3   the process of an environment ended
    |   `-- NonFiniteGame           3   a game that is played has an observation or a reward that is not finite
    |-- DemoError                   4   recorded data cannot be used
    |-- CheckpointError             5   a run or checkpoint is missing, locked or damaged
    |-- MachineError                6   this machine lacks disk, memory, a device or a package
    `-- GateError                   7   `bench --gate`: slower than allowed

A run that was stopped by SIGTERM or Ctrl-C and has saved exits with 143 or 130 (see `runs.signals`).
"""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class SlipstreamError(Exception):
    """The base class: `message` is what happened, `hint` what to do next."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(SlipstreamError):
    """A setting, a flag or an agent spec is invalid."""

    code = 2


class AgentFault(ConfigError):
    """An agent raised, hangs or returned no action: where, on which observation, and its traceback."""

    def __init__(self, agent: str, what: str, row: int, step: int, obs: str, report: str = "") -> None:
        super().__init__("", "fix the agent, or leave it out; nothing else failed")
        self.agent, self.row, self._what, self._step, self._obs, self._report = agent, row, what, step, obs, report
        self.locate()

    def locate(self, env: int | None = None, agents: int = 1) -> None:
        """Name the env whose row it was, if it is known, and the agent's index if the env has several."""
        places = [] if env is None else [f"env {env}"] + [f"agent {self.row % agents}"] * (agents > 1)
        self.what = f"{self._what} ({', '.join([*places, f'step {self._step}'])}; observation: {self._obs})"
        """What happened, without the agent's name and the traceback."""
        frames = [line.strip() for line in self._report.splitlines() if line.strip().startswith("File ")]
        self.brief = self.what + (f", in {frames[-1].removeprefix('File ')}" if frames else "")
        """`what` with the line of the agent's code, for one line of text."""
        self.message = f"`{self.agent}` {self.what}" + (f"\n{self._report}" if self._report else "")


class NonFinitePolicy(ConfigError):
    """A network of the user's own returned NaN or infinity; the weights that did are not saved at the end."""


class EnvError(SlipstreamError):
    """An environment is missing, raises, hangs or dies."""

    code = 3


class EnvFault(EnvError):
    """An environment raised: its index, seed and step, with which it can be reproduced, and its traceback."""

    def __init__(self, env: int, seed: int, step: int, report: str) -> None:
        report = report.rstrip()
        term = "\nslipstream.envs.python_terms.TermError: " in report
        super().__init__(
            f"Env {env} (seed {seed}, step {step}) raised:\n{report}",
            f"fix the {'reward term' if term else 'environment'}; nothing else failed",
        )
        self.env, self.seed, self.step, self.report = env, seed, step, report


class NonFiniteGame(EnvError):
    """A game that is played outside of training has an observation or a reward that is not finite."""

    def __init__(self, env: str, what: str, seed: int, step: int) -> None:
        super().__init__(
            f"{what} of `{env}` was not finite in the game of seed {seed} at step {step}.",
            "fix the environment or the reward term; training masks such steps, a game that is played does not",
        )


class EnvEnded(EnvError):
    """The process of an environment ended. Unlike after an `EnvFault`, a new one may work."""


class DemoError(SlipstreamError):
    """Recorded data cannot be used."""

    code = 4


class CheckpointError(SlipstreamError):
    """A run or a checkpoint is missing, locked or damaged."""

    code = 5


class MachineError(SlipstreamError):
    """This machine lacks something that the run needs."""

    code = 6


class GateError(SlipstreamError):
    """A benchmark is slower than allowed."""

    code = 7


def user_frames(error: BaseException) -> str:
    """The traceback without the frames of Slipstream and of Python's import system."""
    package = os.path.dirname(__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((package, "<frozen importlib")) and "importlib" not in frame.filename
    ]
    return "".join(traceback.format_list(frames)).rstrip()


def first_line(error: Exception) -> str:
    """The first line of an exception's message."""
    return (str(error).splitlines() or [repr(error)])[0]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean `x`?` for the most similar known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean `{near[0]}`?" if near else ""


def guarded(work: Callable[..., Any], args: Sequence[Any], where: Callable[[], tuple[int, int, int]]) -> Any:
    """Call `work(*args)`; an exception becomes an `EnvFault` with the env, seed and step that `where` returns."""
    try:
        return work(*args)
    except EnvEnded as error:
        raise EnvEnded("Env {} (seed {}, step {}): {}".format(*where(), error.message), error.hint) from None
    except SlipstreamError:
        raise
    except Exception as error:
        raise EnvFault(*where(), traceback.format_exc()) from error
