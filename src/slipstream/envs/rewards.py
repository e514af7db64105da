"""From the values of reward terms to rewards: weights, groups, normalisation, clipping, team spirit, zero sum.

The reward of a row is the sum over terms of value times weight times the group's factor. On request each term is
divided by its running root mean square and clipped; then rewards are mixed within a team, and the mean reward of the
opponents is subtracted. Terms that decide the game are neither normalised nor clipped, and neither are potential-based
terms, whose sum would no longer telescope under a changing scale. `Rows.terms` accumulates each term's contribution
before rewards are mixed. The user's own terms are compiled when the environment is made.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from slipstream.contracts import Array, EnvSpec
from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import RewardSettings
from slipstream.system.numba_compile import OPTIONS, Number, compiled, inlined

OWN = "own"
"""The group of the user's own terms."""
WINDOW = 100_000.0
"""Number of values after which the running mean square of a term becomes an exponential average."""
ZERO, ONE = np.float32(0.0), np.float32(1.0)
ACTED, EARLIER = 1, 2
"""Rows of a step: the values belong to a decision; only the environment's reward for an earlier one arrived."""
COMPILE_ERRORS = (numba.core.errors.NumbaError, numba.core.errors.UnsupportedBytecodeError, AttributeError)
"""What numba raises for a function that it cannot compile: AttributeError for `+=` on a read-only array."""
LARGEST = float(np.finfo(np.float32).max)
FORM_NAMES = ("before", "action", "after", "info", "car", "team_size")
"""The names of parameters in the forms of all environments."""


@dataclass(frozen=True)
class RewardScheme:
    """The reward terms of a game, their default weights and groups."""

    terms: tuple[str, ...]
    weights: Mapping[str, Mapping[str, float]]
    """Weights for each `rewards.mode`; the terms of `sparse` decide the game."""
    groups: Mapping[str, tuple[str, ...]]
    """Terms of each group; every term is in exactly one."""
    potentials: tuple[str, ...] = ()
    """Terms that can be computed from a potential."""


def weighted_terms(scheme: RewardScheme, rewards: RewardSettings, extra: Sequence[str] = ()) -> dict[str, float]:
    """The weight of each term times its group's factor; the user's own terms come last, with weight 1 by default."""
    names = (*scheme.terms, *extra)
    duplicate = [name for name in extra if name in scheme.terms]
    if duplicate:
        raise ConfigError(f"Reward term `{duplicate[0]}` is built in.", "give your own term another name.")
    unusable = [name for name in extra if not name.isidentifier()]
    if unusable:
        raise ConfigError(
            f"`{unusable[0]}` cannot be the name of a reward term.",
            "use letters, digits and _, because rewards.weights.NAME, metrics and demos contain it",
        )
    groups = {**scheme.groups, **({OWN: tuple(extra)} if extra else {})}
    _check_names("weights", rewards.weights, names, "terms")
    _check_names("groups", rewards.groups, groups, "groups")
    for key, given in (("weights", rewards.weights), ("groups", rewards.groups)):
        for name, number in given.items():
            _check_finite(f"`rewards.{key}.{name}`", number)
    chosen = dict(scheme.weights[rewards.mode]) | dict.fromkeys(extra, 1.0) | rewards.weights
    factors = {name: rewards.groups.get(group, 1.0) for group, held in groups.items() for name in held}
    weights = {name: chosen.get(name, 0.0) * factors[name] for name in names}
    for name, number in weights.items():
        _check_finite(f"`rewards.weights.{name}` times the factor of its group", number)
    return weights


def _check_finite(what: str, number: float) -> None:
    if not abs(number) <= LARGEST:
        raise ConfigError(f"{what} is {number:g}, and rewards are finite float32 numbers.", "give a finite number")


def _check_names(key: str, given: Mapping[str, float], known: Sequence[str] | Mapping[str, object], what: str) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known).replace("`", f"`rewards.{key}.", 1)
            own = " A term of your own is given by --reward MODULE:NAME or terms={...}." if key == "weights" else ""
            raise ConfigError(f"Unknown setting `rewards.{key}.{name}`.{near}", f"{what}: {', '.join(known)}.{own}")


def discount(rewards: RewardSettings, step_seconds: float, gamma: float, env: str) -> float:
    """The discount per step: from `rewards.half_life_s` if it is set, else `gamma`."""
    if rewards.half_life_s is None:
        return gamma
    if step_seconds <= 0:
        raise ConfigError(
            f"`rewards.half_life_s` = {rewards.half_life_s:g} s, but `{env}` does not declare the duration of a step.",
            "set ppo.gamma or sac.gamma instead",
        )
    return float(0.5 ** (step_seconds / rewards.half_life_s))


class PayRules(NamedTuple):
    """The arguments of `pay_env` after the env; `acted` comes before the last two."""

    values: Array  # [rows, terms]
    weights: Array  # [terms]
    weighted: Array  # columns of the terms whose weight is not 0; the others cost nothing
    exempt: Array  # [terms] uint8: 1 for terms that are neither normalised nor clipped
    mean_squares: Array  # [envs, 1 + terms]: number of values, mean square of each term; no rows: not normalised
    limit: Number
    teams: Array  # [agents]: 0 for the team of the first agent, else 1
    team_spirit: Number
    zero_sum: Number


class CombinedReward:
    """Turns the values that a game writes into `values` [rows, terms] into the rewards of its rows.

    The running mean squares belong to each env and are part of its snapshot. How envs are split over processes
    therefore changes nothing, and a resumed run computes the same rewards.
    """

    def __init__(
        self,
        scheme: RewardScheme,
        rewards: RewardSettings | None,
        spec: EnvSpec,
        envs: int,
        gamma: float,
        extra: Sequence[str] = (),
    ) -> None:
        rewards, teams = rewards or RewardSettings(), spec.teams
        weights = weighted_terms(scheme, rewards, extra)
        self.weights = np.array(list(weights.values()), np.float32)  # [terms]
        self.values = np.zeros((envs * len(teams), len(weights)), np.float32)
        self.gamma = np.float32(discount(rewards, spec.step_seconds, gamma, spec.name))
        self.shaped = rewards.potential and any(weights[name] for name in scheme.potentials)
        """Whether the game writes potential differences, discounted by `gamma`, for terms that have a potential."""
        kept = {*scheme.weights["sparse"], *(scheme.potentials if rewards.potential else ())}
        self._weighted = np.flatnonzero(self.weights)
        """Columns of the terms whose weight is not 0; the others cost nothing."""
        self._exempt = np.array([name in kept for name in weights], np.uint8)
        self._mean_squares = np.zeros((envs if rewards.normalise else 0, 1 + len(weights)))
        """Number of values of each env, and the mean square of each term."""
        self._limit = np.float32(np.inf if rewards.clip is None else rewards.clip)
        self._teams = np.array([team != teams[0] for team in teams], np.int64)
        self.rules = PayRules(
            self.values,
            self.weights,
            self._weighted,
            self._exempt,
            self._mean_squares,
            self._limit,
            self._teams,
            np.float32(rewards.team_spirit),
            np.float32(rewards.zero_sum),
        )

    def pay(self, acted: Array, reward: Array, terms: Array) -> None:
        """Write the rewards of the rows that acted and 0 for the others, and accumulate the terms."""
        pay(tuple(self.rules), acted, reward, terms)  # numba reads a plain tuple a microsecond faster

    def reset(self) -> None:
        """Reset the running mean squares."""
        self._mean_squares[:] = 0

    def snapshot(self) -> dict[str, Array]:
        """Copy the running mean squares; empty unless terms are normalised."""
        return {"moments": self._mean_squares.copy()} if len(self._mean_squares) else {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a snapshot."""
        if len(self._mean_squares):
            self._mean_squares[:] = state["moments"]


@inlined
def update_mean_squares(values: Array, live: Array, acted: Array, first: int, agents: int, moments: Array) -> None:
    """Update the mean squares of one env by the values of rows that acted; those that are not finite are skipped."""
    for row in range(first, first + agents):
        if acted[row] != ACTED:
            continue
        moments[0] = min(moments[0] + 1.0, WINDOW)
        for k in live:
            square = np.float64(values[row, k]) * np.float64(values[row, k])
            if math.isfinite(square):
                moments[1 + k] += (square - moments[1 + k]) / moments[0]


@inlined
def normalise_and_clip(value: Number, mean_square: Number, limit: Number) -> Number:
    """Divide by the root mean square, if it is positive, and clip; NaN stays NaN, which the collector reports."""
    if mean_square > 0.0:
        value = np.float32(value / math.sqrt(mean_square))
    if value > limit:
        return limit
    return -limit if value < -limit else value


@inlined
def mix_rewards(reward: Array, acted: Array, first: int, teams: Array, spirit: Number, rivalry: Number) -> None:
    """Mix the rewards of one env: (1 - spirit) * own + spirit * team mean - rivalry * mean of the opponents."""
    sums, counts = (ZERO, ZERO), (ZERO, ZERO)
    for k in range(teams.shape[0]):
        if acted[first + k] != 0:
            one = reward[first + k]
            if teams[k] == 0:
                sums, counts = (sums[0] + one, sums[1]), (counts[0] + ONE, counts[1])
            else:
                sums, counts = (sums[0], sums[1] + one), (counts[0], counts[1] + ONE)
    means = sums[0] / max(counts[0], ONE), sums[1] / max(counts[1], ONE)
    for k in range(teams.shape[0]):
        if acted[first + k] != 0:
            own, other = (means[0], means[1]) if teams[k] == 0 else (means[1], means[0])
            reward[first + k] = (ONE - spirit) * reward[first + k] + spirit * own - rivalry * other


@inlined
def pay_env(
    env: int,
    values: Array,
    weights: Array,
    live: Array,
    kept: Array,
    moments: Array,
    limit: Number,
    teams: Array,
    acted: Array,
    spirit: Number,
    rivalry: Number,
    reward: Array,
    terms: Array,
) -> None:
    """Write the rewards of one step of one env; see the top of this file."""
    agents = teams.shape[0]
    first, normalised = env * agents, moments.shape[0] > 0
    as_is = not normalised and math.isinf(limit)
    if normalised:
        update_mean_squares(values, live, acted, first, agents, moments[env])
    for row in range(first, first + agents):
        total = ZERO
        if acted[row] != 0:
            for k in live:
                value = weights[k] * values[row, k]
                if not as_is and kept[k] == 0:
                    value = normalise_and_clip(value, moments[env, 1 + k] if normalised else 0.0, limit)
                total += value
                terms[row, k] += value
        reward[row] = total
    if spirit > ZERO or rivalry > ZERO:
        mix_rewards(reward, acted, first, teams, spirit, rivalry)


@compiled
def pay(rules: tuple[Any, ...], acted: Array, reward: Array, terms: Array) -> None:
    """Write the rewards of one step of all envs."""
    values, weights, live, kept, moments, limit, teams, spirit, rivalry = rules
    for env in range(values.shape[0] // teams.shape[0]):
        pay_env(env, values, weights, live, kept, moments, limit, teams, acted, spirit, rivalry, reward, terms)


def check_signature(name: str, function: Callable[..., Any], form: Sequence[str], what: str = "Reward term") -> None:
    """Raise a ConfigError if a function of the user cannot be called with the parameters `form`."""
    shape = f"def {name}({', '.join(form)})"
    if not callable(function):
        raise ConfigError(f"{what} `{name}` is a {type(function).__name__}, not a function.", f"write {shape}: ...")
    try:
        signature = inspect.signature(getattr(function, "py_func", function))
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*form)
    except TypeError as error:
        raise ConfigError(
            f"{what} `{name}` is {name}{signature} and is called with {len(form)} arguments: {error}.",
            f"write {shape}: ...",
        ) from error
    for place, (given, meant) in enumerate(zip(_positional(signature), form, strict=False), 1):
        if given in FORM_NAMES and given != meant:
            raise ConfigError(
                f"{what} `{name}` is {name}{signature}, but argument {place} is `{meant}`, not `{given}`.",
                f"write {shape}: ..., or choose other names for the parameters",
            )


def _positional(signature: inspect.Signature) -> list[str]:
    """The names of the parameters that take positional arguments, one each."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def compile_for(
    name: str,
    function: Callable[..., Any],
    form: Sequence[str],
    types: tuple[Any, ...],
    calls: Iterable[Sequence[Any]] = (),
) -> Any:
    """Compile a term with the parameters `form` for argument types, or raise a ConfigError that says why not.

    The term is first tried with the arguments of each of `calls`.
    """
    check_signature(name, function, form)
    try_calls(name, function, form, calls)
    term: Any = function if hasattr(function, "py_func") else _compile(name, function)
    if not hasattr(term, "compile"):  # numba is disabled
        return term
    hint = f"use arithmetic, `math` and indexing only, and return a number: term({', '.join(form)}) -> float"
    try:
        types = tuple(term.get_call_template(types, {})[2])  # compiles, with default values of further parameters
    except COMPILE_ERRORS as error:
        raise ConfigError(
            f"Reward term `{name}` cannot be compiled: {describe_compile_error(error, term)}", hint
        ) from error
    returned = term.overloads[types].signature.return_type
    if not isinstance(returned, numba.types.Number | numba.types.Boolean):
        kind = str(returned).removeprefix("readonly ")
        raise ConfigError(f"Reward term `{name}` returns {kind}, not a number.", "return a float")
    return term


def _compile(name: str, function: Callable[..., Any]) -> Any:
    """Like `compiled_here`, under another name."""
    term: Any = numba.njit(**OPTIONS | {"cache": False})(function)
    if term is not function:
        term.__name__ = name
    return term


def try_calls(
    name: str,
    function: Callable[..., Any],
    form: Sequence[str],
    calls: Iterable[Sequence[Any]],
    what: str = "Reward term",
) -> None:
    """Call a function of the user in Python with copies of these arguments: arrays, named tuples of them, numbers.

    Raise a ConfigError if it reads beyond an array or writes to one: compiled code could do both unnoticed. Other
    exceptions are ignored, because the numbers may be made up.
    """
    plain = getattr(function, "py_func", function)
    for arguments in calls:
        copies = [_copy_arrays(argument) for argument in arguments]
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                plain(*copies)
        except IndexError as error:
            raise ConfigError(
                f"{what} `{name}` reads beyond an array{_line_of(plain, error)}: {error}.",
                f"shapes: {_describe_shapes(form, arguments)}",
            ) from error
        except Exception:  # such as a division by zero
            pass
        for (array, old), new in zip(_named_arrays(form, arguments), _named_arrays(form, copies), strict=True):
            if not np.array_equal(old, new[1], equal_nan=True):
                raise ConfigError(
                    f"{what} `{name}` writes to `{array}`, which belongs to the game.",
                    f"change a copy: {array.rpartition('.')[2]} = {array}.copy()",
                )


def _copy_arrays(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(_copy_arrays(one) for one in value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _named_arrays(form: Sequence[str], arguments: Sequence[Any]) -> list[tuple[str, Array]]:
    """The arrays among arguments, named as `after`, or `after.ball` in a tuple."""
    found = []
    for name, value in zip(form, arguments, strict=True):
        fields = value._asdict() if isinstance(value, tuple) else {"": value}  # type: ignore[attr-defined]
        found += [(f"{name}.{key}".rstrip("."), one) for key, one in fields.items() if isinstance(one, np.ndarray)]
    return found


def _describe_shapes(form: Sequence[str], arguments: Sequence[Any]) -> str:
    """The shapes of the arrays among arguments; those of tuples only once."""
    shapes = {name.rpartition(".")[2]: list(array.shape) for name, array in _named_arrays(form, arguments)}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _line_of(function: Any, error: Exception) -> str:
    """The line of the user's function, or of what it called in the same file, in which an exception was raised."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", in line {frames[-1].lineno} of {os.path.basename(file)}: {frames[-1].line}" if frames else ""


def describe_compile_error(error: Exception, function: Any) -> str:
    """What numba says about a function that it cannot compile, without what surrounds it, and the function's line."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in nopython")]
    reason = (lines or [type(error).__name__])[0].partition(". Raised from")[0]
    reason = re.sub(r"of type (\w+)\(.*\)", r"of type \1", reason)
    if (isinstance(error, AttributeError) and "'args'" in text) or "Cannot modify readonly array" in text:
        reason = "it writes to an array that belongs to the game; change a copy"
    elif reason.startswith("No implementation"):
        reason = "numba has no " + next((line[4:] for line in lines if line.startswith(">>> ")), reason)
    file = getattr(function, "py_func", function).__code__.co_filename
    places = [int(line) for path, line in re.findall(r"(?:at|from) (.+?) \((\d+)\)", text) if path == file]
    if not places:
        return reason
    return f"{reason}, in line {places[0]} of {os.path.basename(file)}: {linecache.getline(file, places[0]).strip()}"
