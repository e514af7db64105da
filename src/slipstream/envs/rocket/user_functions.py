"""The user's own reward terms and observation builder: functions of the state of one match in the view of a car's team.

A term is `term(before, after, car, team_size) -> float` and is compiled. An observation builder is
`build(state, car, team_size) -> array`; one that is compiled with `numba.njit` is called from a compiled loop, any
other one in Python. States are `MatchState`. Cars below `team_size` are blue; in the mixed variant `present` tells
which cars play.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from slipstream.contracts import Array
from slipstream.envs.rewards import (
    COMPILE_ERRORS,
    check_signature,
    compile_for,
    describe_compile_error,
    try_calls,
)
from slipstream.envs.rocket.batch import BODY, FORWARD, LEFT, ONE, POS, UP, ZERO, F
from slipstream.errors import ConfigError, EnvError
from slipstream.system.numba_compile import Number, compiled_here, compiled_with_arrays

TERM_FORM = ("before", "after", "car", "team_size")
OBSERVATION_FORM = ("state", "car", "team_size")


class MatchState(NamedTuple):
    """The state of a match in the view of one team, whose own goal is at -y; `batch` names the columns."""

    ball: Array  # [25]
    cars: Array  # [cars, 36]
    pads: Array  # [34]: 1 if a pad is available
    flips: Array  # [cars]: 1 if a car can jump or flip
    present: Array  # [cars]: 1 if a car plays
    time_left: Number  # share of the match
    goals: Number
    conceded: Number


class Matches(NamedTuple):
    """The states of all matches, each in the views of both teams."""

    balls: Array  # [envs, 2, 25]
    cars: Array  # [envs, cars, 2, 36]
    pads: Array  # [envs, 2, 34]
    flips: Array  # [envs, cars]
    present: Array  # [envs, cars]
    clock: Array  # [envs, 2]
    score: Array  # [envs, 2]

    def copy(self) -> Matches:
        """Copies of all arrays."""
        return Matches(*(array.copy() for array in self))

    def view(self) -> Matches:
        """Read-only views of all arrays; numba refuses to compile a function that writes to them."""
        views = Matches(*(array.view() for array in self))
        for array in views:
            array.flags.writeable = False
        return views


@compiled_with_arrays
def match_state(matches: Matches, env: int, team: int) -> MatchState:
    """The state of one match in the view of a team."""
    return MatchState(
        matches.balls[env, team],
        matches.cars[env, :, team],
        matches.pads[env, team],
        matches.flips[env],
        matches.present[env],
        matches.clock[env, LEFT],
        matches.score[env, team],
        matches.score[env, 1 - team],
    )


view_of = getattr(match_state, "py_func", match_state)
"""`match_state` for calls from Python."""


@compiled_here
def value_term(term: Callable[..., Number], before: Matches, after: Matches, values: Array, column: int) -> None:
    """Write a term of the user for all cars; the collector masks and reports values that are not finite."""
    cars = after.present.shape[1]
    for env in range(after.present.shape[0]):
        for car in range(cars):
            if after.present[env, car]:
                team = 0 if car < cars // 2 else 1
                old, new = match_state(before, env, team), match_state(after, env, team)
                values[env * cars + car, column] = F(term(old, new, car, cars // 2))


@compiled_here
def write_observations(build: Callable[..., Array], envs: Array, matches: Matches, obs: Array) -> tuple[int, int]:
    """Write the observations of a compiled builder; returns the first row of another width, and that width, or -1."""
    cars = matches.present.shape[1]
    for env in envs:
        for car in range(cars):
            row = obs[env * cars + car]
            if matches.present[env, car] == 0:
                row[:] = ZERO
                continue
            seen = build(match_state(matches, env, 0 if car < cars // 2 else 1), car, cars // 2)
            if len(seen) != row.size:
                return env * cars + car, len(seen)
            for k in range(row.size):
                row[k] = seen[k]
    return -1, 0


def compile_terms(terms: Mapping[str, Callable[..., Any]], matches: Matches, values: Array) -> list[Any]:
    """Compile the terms for the types of the arrays; no car may be present yet."""
    state, cars = numba.typeof(view_of(matches, 0, 0)), matches.present.shape[1]  # type: ignore[no-untyped-call]
    start, compiled = _kick_off(cars), []
    for name, function in terms.items():
        calls = _calls(cars, start, start)
        compiled.append(compile_for(name, function, TERM_FORM, (state, state, numba.int64, numba.int64), calls))
        value_term(compiled[-1], matches, matches, values, 0)
    return compiled


def _calls(cars: int, *matches: Matches) -> list[tuple[Any, ...]]:
    """The arguments with which a function of states is called for every car of the first match."""
    return [(*(view_of(one, 0, int(car >= cars // 2)) for one in matches), car, cars // 2) for car in range(cars)]


class ObservationBuilder:
    """Calls the user's function for every car that plays."""

    def __init__(self, function: Callable[..., Any], cars: int) -> None:
        self.name = str(getattr(function, "__name__", type(function).__name__))
        check_signature(self.name, function, OBSERVATION_FORM, "Observation builder")
        self._function, self._compiled = function, hasattr(function, "py_func")
        self._cars = cars
        self.width = self._probe()
        """Numbers of an observation."""

    def _probe(self) -> int:
        """Call the function once with a made-up kick-off and return the length of its result."""
        matches = _kick_off(self._cars).view()
        calls = _calls(self._cars, matches)
        if self._compiled:
            self._try(calls)
        try:
            with np.errstate(all="ignore"):
                seen = np.asarray(self._function(*calls[0]))
            real = seen.dtype.kind != "c"
            if self._compiled and real:
                write_observations(self._function, np.zeros(0, np.int64), matches, np.zeros((self._cars, 1), F))
            with np.errstate(all="ignore"):
                seen = np.asarray(seen, F) if real else seen
        except Exception as error:
            if self._compiled and isinstance(error, COMPILE_ERRORS):
                why = describe_compile_error(error, self._function)
                raise ConfigError(
                    f"Observation builder `{self.name}` cannot be compiled: {why}",
                    "return an array of one dimension; without numba.njit it is called in Python",
                ) from error
            if _is_write(error):
                self._try(calls[:1])
            raise ConfigError(
                f"Observation builder `{self.name}` raised {type(error).__name__}: {error}.",
                "return an array of numbers for every car of a kick-off",
            ) from error
        if not real:
            raise ConfigError(f"Observation builder `{self.name}` returns complex numbers.", "return real numbers")
        if seen.ndim != 1 or not seen.size:
            raise ConfigError(
                f"Observation builder `{self.name}` returns an array of shape {seen.shape}.",
                "return an array of one dimension",
            )
        if not np.isfinite(seen).all():
            raise ConfigError(
                f"Observation builder `{self.name}` returns {self._describe_nonfinite(seen)} at a kick-off.",
                "return finite numbers; at a kick-off all speeds are 0",
            )
        return int(seen.size)

    def _try(self, calls: Sequence[tuple[Any, ...]]) -> None:
        try_calls(self.name, self._function, OBSERVATION_FORM, calls, "Observation builder")

    def write(self, envs: Array, matches: Matches, obs: Array, first: int, steps: Array) -> None:
        """Write the observations of some envs; those of absent cars are zero. `first` is the index of the first env."""
        if self._compiled:
            row, size = write_observations(self._function, envs, matches, obs)
            if row >= 0:
                raise self._wrong_shape((size,), row, first, steps)
            return
        cars = self._cars
        for env in envs.tolist():
            states = view_of(matches, env, 0), view_of(matches, env, 1)
            for car in range(cars):
                row = env * cars + car
                if not matches.present[env, car]:
                    obs[row] = 0
                    continue
                try:
                    seen = np.asarray(self._function(states[car >= cars // 2], car, cars // 2), F)
                except Exception as error:
                    raise EnvError(
                        f"Observation builder `{self.name}` raised {type(error).__name__} in env {first + env}, car "
                        f"{car}, at step {steps[env]} of the match: {error}.",
                        "change a copy, such as state.ball.copy()" if _is_write(error) else "fix the function",
                    ) from error
                if seen.shape != (self.width,):
                    raise self._wrong_shape(seen.shape, row, first, steps)
                obs[row] = seen

    def check_start(self, envs: Array, obs: Array, first: int) -> None:
        """Raise for observations at the start of a match that are not finite: no agent could act on them."""
        rows = obs.reshape(-1, self._cars, self.width)
        for env, car in np.argwhere(~np.isfinite(rows[envs]).all(axis=2)).tolist():
            raise EnvError(
                f"Observation builder `{self.name}` returned {self._describe_nonfinite(rows[envs[env], car])} in env "
                f"{first + envs[env]}, car {car}, at the start of a match.",
                "return finite numbers",
            )

    @staticmethod
    def _describe_nonfinite(seen: Array) -> str:
        column = int(np.flatnonzero(~np.isfinite(seen))[0])
        return f"{seen[column]} as value {column}"

    def _wrong_shape(self, shape: tuple[int, ...], row: int, first: int, steps: Array) -> EnvError:
        env, car = divmod(row, self._cars)
        return EnvError(
            f"Observation builder `{self.name}` returned shape {shape} instead of ({self.width},) in env "
            f"{first + env}, car {car}, at step {steps[env]} of the match.",
            "return the same number of values every time",
        )


def _is_write(error: Exception) -> bool:
    """Whether an exception is NumPy's for writing to an array of the state."""
    return isinstance(error, ValueError) and "read-only" in str(error)


def _kick_off(cars: int) -> Matches:
    """One match with plausible numbers, from which the width of an observation is read."""
    balls, bodies = np.zeros((1, 2, 25), F), np.zeros((1, cars, 2, 36), F)
    balls[:, :, POS + 2] = 93
    for car in range(cars):
        for team in range(2):
            side = F(-1 if (car < cars // 2) == (team == 0) else 1)
            bodies[0, car, team, BODY : BODY + 3] = 256 * (car + 1), side * 3840, 17
            bodies[0, car, team, BODY + FORWARD + 1], bodies[0, car, team, BODY + UP + 2] = -side, ONE
    present, clock = np.ones((1, cars), np.uint8), np.ones((1, 2), F)
    return Matches(
        balls, bodies, np.ones((1, 2, 34), F), np.ones((1, cars), F), present, clock, np.zeros((1, 2), np.int64)
    )
