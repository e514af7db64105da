"""From the raw values of reward terms to rewards: weights, groups, normalising, clipping, team spirit, zero sum.

What is paid for a step: each term times its weight and its group's factor, divided by its running size if that is
asked for, clipped, summed for each row, mixed within teams, and less what the others earned. The terms that decide the
game are neither normalised nor clipped, and neither are those paid as potentials: a scale that changes would keep their
sum from telescoping. What `Rows.terms` accumulates is each term's share before rows are mixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import RewardSettings
from slipstream.system.numba_compile import Number, compiled, inlined

OWN = "own"
"""The group of a user's own terms."""
MEMORY = 100_000.0
"""Values after which the running size of a term begins to forget."""
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@dataclass(frozen=True)
class Scheme:
    """What a game says about its reward terms."""

    terms: tuple[str, ...]
    weights: Mapping[str, Mapping[str, float]]
    """Weights of each `rewards.mode`; those of `sparse` are the terms that decide the game."""
    groups: Mapping[str, tuple[str, ...]]
    """Every term is in one of them."""
    potentials: tuple[str, ...] = ()
    """Terms that have a potential."""


def weighted_terms(scheme: Scheme, rewards: RewardSettings, extra: Sequence[str] = ()) -> dict[str, float]:
    """The weight of each term, its group's factor included; a user's own terms are behind the game's, and weigh 1."""
    names = (*scheme.terms, *extra)
    taken = [name for name in extra if name in scheme.terms]
    if taken:
        raise ConfigError(f"Reward term `{taken[0]}` is built in.", "give your own term another name.")
    groups = {**scheme.groups, **({OWN: tuple(extra)} if extra else {})}
    _check_names("weights", rewards.weights, names, "terms")
    _check_names("groups", rewards.groups, groups, "groups")
    chosen = dict(scheme.weights[rewards.mode]) | dict.fromkeys(extra, 1.0) | rewards.weights
    factors = {name: rewards.groups.get(group, 1.0) for group, held in groups.items() for name in held}
    return {name: chosen.get(name, 0.0) * factors[name] for name in names}


def _check_names(key: str, given: Mapping[str, float], known: Sequence[str] | Mapping[str, object], what: str) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known).replace("`", f"`rewards.{key}.", 1)
            raise ConfigError(f"Unknown setting `rewards.{key}.{name}`.{near}", f"{what}: {', '.join(known)}.")


def discount(rewards: RewardSettings, step_seconds: float, gamma: float, env: str) -> float:
    """The discount per step: by `rewards.half_life_s` if there is one, else the one that is given."""
    if rewards.half_life_s is None:
        return gamma
    if step_seconds <= 0:
        raise ConfigError(
            f"`rewards.half_life_s` = {rewards.half_life_s:g} s, but `{env}` does not say how long a step takes.",
            "set ppo.gamma or sac.gamma instead",
        )
    return float(0.5 ** (step_seconds / rewards.half_life_s))


class Payout:
    """Turns the values that a game writes into `values` [rows, terms] into the rewards of its rows.

    The running size of a term is that of its own env, and part of a snapshot: how envs are split over processes
    changes nothing, and a run that goes on pays as it did.
    """

    def __init__(
        self, scheme: Scheme, rewards: RewardSettings, *, env: str, envs: int, teams: Sequence[int],
        step_seconds: float, gamma: float, extra: Sequence[str] = (),
    ) -> None:  # fmt: skip
        weights = weighted_terms(scheme, rewards, extra)
        self.weights = np.array(list(weights.values()), np.float32)  # [terms]
        self.values = np.zeros((envs * len(teams), len(weights)), np.float32)
        self.gamma = np.float32(discount(rewards, step_seconds, gamma, env))
        self.shaped = rewards.potential and any(weights[name] for name in scheme.potentials)
        """Whether the game is to write potential differences, by `gamma`, where it has potentials."""
        kept = {*scheme.weights["sparse"], *(scheme.potentials if rewards.potential else ())}
        self._live = np.flatnonzero(self.weights)
        """Columns of the terms that have a weight: the others cost nothing."""
        self._kept = np.array([name in kept for name in weights], np.uint8)
        self._moments = np.zeros((envs if rewards.normalise else 0, 1 + len(weights)))
        """How many values each env has seen, and the mean square of each term."""
        self._limit = np.float32(np.inf if rewards.clip is None else rewards.clip)
        self._teams = np.array([team != teams[0] for team in teams], np.int64)
        self.rules: tuple[Any, ...] = (
            self.values, self.weights, self._live, self._kept, self._moments, self._limit, self._teams,
            np.float32(rewards.team_spirit), np.float32(rewards.zero_sum),
        )  # fmt: skip
        """All that `pay_env` goes by, `acted` aside, which comes before the last two."""

    def pay(self, acted: Array, reward: Array, terms: Array) -> None:
        """Write the rewards of the rows that acted, 0 for the others, and add their terms up."""
        values, weights, live, kept, moments, limit, teams, spirit, rivalry = self.rules
        pay(values, weights, live, kept, moments, limit, teams, acted, spirit, rivalry, reward, terms)

    def reset(self) -> None:
        """Forget the sizes of the terms."""
        self._moments[:] = 0

    def snapshot(self) -> dict[str, Array]:
        """Copies of what it remembers of each env: nothing, unless terms are normalised."""
        return {"moments": self._moments.copy()} if len(self._moments) else {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        if len(self._moments):
            self._moments[:] = state["moments"]


@inlined
def remember(values: Array, live: Array, acted: Array, first: int, agents: int, moments: Array) -> None:
    """Move the mean squares of an env's terms by the values of its rows; what is not finite is passed over."""
    for row in range(first, first + agents):
        if acted[row] == 0:
            continue
        moments[0] = min(moments[0] + 1.0, MEMORY)
        for k in live:
            square = np.float64(values[row, k]) * np.float64(values[row, k])
            if math.isfinite(square):
                moments[1 + k] += (square - moments[1 + k]) / moments[0]


@inlined
def scaled(value: Number, mean_square: Number, limit: Number) -> Number:
    """Divide by the running size, if there is one, and clip; NaN stays NaN, to be named by whoever collects."""
    if mean_square > 0.0:
        value = np.float32(value / math.sqrt(mean_square))
    if value > limit:
        return limit
    return -limit if value < -limit else value


@inlined
def share(reward: Array, acted: Array, first: int, teams: Array, spirit: Number, rivalry: Number) -> None:
    """Mix the rewards of one env: some of a row's own becomes its team's mean, and some of the others' is taken off."""
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
    env: int, values: Array, weights: Array, live: Array, kept: Array, moments: Array, limit: Number, teams: Array,
    acted: Array, spirit: Number, rivalry: Number, reward: Array, terms: Array,
) -> None:  # fmt: skip
    """Pay one step of one env; see the top of this file."""
    agents = teams.shape[0]
    first, normalised = env * agents, moments.shape[0] > 0
    as_is = not normalised and math.isinf(limit)
    if normalised:
        remember(values, live, acted, first, agents, moments[env])
    for row in range(first, first + agents):
        total = ZERO
        if acted[row] != 0:
            for k in live:
                value = weights[k] * values[row, k]
                if not as_is and kept[k] == 0:
                    value = scaled(value, moments[env, 1 + k] if normalised else 0.0, limit)
                total += value
                terms[row, k] += value
        reward[row] = total
    if spirit > ZERO or rivalry > ZERO:
        share(reward, acted, first, teams, spirit, rivalry)


@compiled
def pay(
    values: Array, weights: Array, live: Array, kept: Array, moments: Array, limit: Number, teams: Array, acted: Array,
    spirit: Number, rivalry: Number, reward: Array, terms: Array,
) -> None:  # fmt: skip
    """Pay one step of all envs."""
    for env in range(values.shape[0] // teams.shape[0]):
        pay_env(env, values, weights, live, kept, moments, limit, teams, acted, spirit, rivalry, reward, terms)
