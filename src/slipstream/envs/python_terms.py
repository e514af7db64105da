"""The user's reward terms in Python environments: functions of the observations around a step.

A term is `term(before, action, after, info) -> float`: the env's own observations before and after a step, the action
as the env receives it, and the info of the step. The environment's own reward is the term `env`. Both go through
`CombinedReward`, so weights, metrics, reports and ablations treat them like the terms of a built-in game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.game import EnvChoice
from slipstream.envs.rewards import ACTED, EARLIER, CombinedReward, RewardScheme, check_signature
from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import RewardSettings

ENV = "env"
"""The term that holds the environment's own reward."""
SCHEME = RewardScheme((ENV,), {"sparse": {ENV: 1.0}, "dense": {ENV: 1.0}}, groups={ENV: (ENV,)})
FORM = ("before", "action", "after", "info")
"""The parameters of a term."""
INDEPENDENT = ("mode", "half_life_s")
"""Settings of `rewards` that need no terms."""


def changed_settings(rewards: RewardSettings) -> list[str]:
    """The settings of rewards that act on terms and are not at their defaults."""
    default = RewardSettings()
    names = [name for name in RewardSettings.model_fields if name not in INDEPENDENT]
    return [name for name in names if getattr(rewards, name) != getattr(default, name)]


def has_terms(choice: EnvChoice) -> bool:
    """Whether the rewards of a Python environment are composed of terms; otherwise they pass unchanged."""
    return bool(choice.terms or changed_settings(choice.rewards))


def check_rewards(choice: EnvChoice, spec: EnvSpec) -> None:
    """Raise a ConfigError for terms, weights or other code and settings of the user that an environment ignores."""
    if choice.observation is not None and "observation" not in dict(spec.world):
        raise ConfigError(f"`{spec.name}` takes no observation builder of your own.", "only `rocket` does")
    unused = [name for name in choice.terms if name not in spec.terms]
    if unused:
        raise ConfigError(
            f"`{spec.name}` takes no reward terms of your own, such as `{unused[0]}`.",
            "soccer, kart, treechop, rocket, mettagrid and Gymnasium, PettingZoo and RLGym envs do; see "
            "docs/guides/rewards.md",
        )
    changed = changed_settings(choice.rewards)
    if not spec.terms and changed:
        name = changed[0]
        key = f"rewards.{name}.{next(iter(choice.rewards.weights))}" if name == "weights" else f"rewards.{name}"
        raise ConfigError(f"`{key}` is set, but `{spec.name}` has no reward terms.", f"remove {key}")
    for name in choice.rewards.weights:
        if name not in spec.terms:
            near = did_you_mean(name, spec.terms).replace("`", "`rewards.weights.", 1)
            raise ConfigError(f"Unknown setting `rewards.weights.{name}`.{near}", f"terms: {', '.join(spec.terms)}.")


def copy_observation(obs: Any) -> Any:
    """Copy an observation, because an environment may reuse its arrays in the next step."""
    if isinstance(obs, np.ndarray):
        return obs.copy()
    if isinstance(obs, Mapping):
        return {key: copy_observation(value) for key, value in obs.items()}
    if isinstance(obs, tuple | list):
        return tuple(copy_observation(value) for value in obs)
    return obs


class TermError(Exception):
    """A reward term raised or returned something that is not a number; the vector adds env, seed and step."""


class PythonTerms:
    """Values the terms of all rows of a vector of Python environments and pays the rewards."""

    def __init__(self, choice: EnvChoice, spec: EnvSpec, envs: int) -> None:
        if choice.rewards.potential:
            raise ConfigError(
                f"`rewards.potential` is set, but no reward term of `{spec.name}` has a potential.",
                "remove rewards.potential",
            )
        for name, function in choice.terms.items():
            check_signature(name, function, FORM)
        self._functions: list[tuple[str, Callable[..., Any]]] = list(choice.terms.items())
        self._payout = CombinedReward(SCHEME, choice.rewards, spec, envs, choice.gamma, tuple(choice.terms))
        self._before: list[Any] = [None] * len(self._payout.values)
        self._action: list[Any] = [None] * len(self._payout.values)
        self._acted = np.zeros(len(self._payout.values), np.uint8)

    def observe(self, row: int, obs: Any) -> None:
        """Keep the observation on which a row acts next."""
        self._before[row] = copy_observation(obs)

    def act(self, row: int, action: Any) -> None:
        """Keep the action of a row until `value` is called."""
        self._action[row] = action

    def reward(self, row: int, reward: float) -> None:
        """Set the environment's own reward of a row in this step, which may belong to an earlier action."""
        self._payout.values[row, 0], self._acted[row] = reward, EARLIER

    def value(self, row: int, after: Any, info: Any) -> None:
        """Value the terms of a row's last action; `after` is then the observation on which it acts next."""
        before, values = self._before[row], self._payout.values[row]
        after = copy_observation(after)
        for column, (name, function) in enumerate(self._functions, 1):
            try:
                value = function(before, self._action[row], after, info)
            except Exception as error:
                raise TermError(f"Reward term `{name}`: {type(error).__name__}: {error}") from error
            try:
                values[column] = float(value)
            except (TypeError, ValueError) as error:
                raise TermError(f"Reward term `{name}` returned {value!r:.60}, not a number.") from error
        self._acted[row], self._before[row] = ACTED, after

    def pay(self, out: Rows) -> None:
        """Write the rewards of the step and accumulate the terms."""
        self._payout.pay(self._acted, out.reward, out.terms)
        self._acted[:] = 0
        self._payout.values[:] = 0

    def reset(self) -> None:
        """Reset the running mean squares."""
        self._payout.reset()

    def snapshot(self) -> dict[str, Array]:
        """Copy the running mean squares; empty unless terms are normalised."""
        return self._payout.snapshot()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a snapshot."""
        self._payout.restore(state)


def make_python_terms(choice: EnvChoice | None, spec: EnvSpec, envs: int) -> tuple[EnvSpec, PythonTerms | None]:
    """The spec with its reward terms, and their values; the spec as it is and None if rewards pass unchanged."""
    if choice is None or not has_terms(choice):
        return spec, None
    spec = replace(spec, terms=(ENV, *choice.terms))
    return spec, PythonTerms(choice, spec, envs)
