"""Keeps NaN and infinity out of the batch and reports which env, seed, step and reward term they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec, Rows, Vector
from slipstream.system.numba_compile import compiled

MAX_REPORTED = 3
"""Faults of one kind that are reported one by one; the others are counted."""
NONFINITE, ENDED, TRUNCATED, INACTIVE = 1, 2, 4, 8
"""Flags of a step: a number is not finite, an episode ended, one was truncated, a row does not act next."""
EXPONENT = np.uint32(0x7F800000)
"""The exponent bits of a float32. They are all set in NaN and infinity and in no other number."""


@compiled
def check_rows(
    obs: Array, floats: int, reward: Array, terminated: Array, truncated: Array, final_obs: Array, active: Array
) -> int:
    """Return the flags of one step. Numbers are given as uint32 bits; the first `floats` columns of `obs` are numbers.

    `final_obs` is checked only in rows whose episode ended.
    """
    flags, nonfinite = 0, False
    for row in range(reward.size):
        nonfinite |= (reward[row] & EXPONENT) == EXPONENT
        for k in range(floats):
            nonfinite |= (obs[row, k] & EXPONENT) == EXPONENT
        if terminated[row] | truncated[row]:
            flags |= ENDED | TRUNCATED if truncated[row] else ENDED
            for k in range(floats):
                nonfinite |= (final_obs[row, k] & EXPONENT) == EXPONENT
        if not active[row]:
            flags |= INACTIVE
    return flags | NONFINITE if nonfinite else flags


CheckArgs = tuple[Array, int, Array, Array, Array, Array, Array]
"""The arguments of `check_rows`."""


def check_args(spec: EnvSpec, rows: Rows) -> CheckArgs:
    """Return the arguments of `check_rows` for `rows`, as views."""
    obs, reward, final_obs = (array.view(np.uint32) for array in (rows.obs, rows.reward, rows.final_obs))
    return obs, spec.obs.floats, reward, rows.terminated, rows.truncated, final_obs, rows.active


@dataclass
class Fault:
    """A non-finite number that was kept out of the batch."""

    env: int
    seed: int
    """The seed of the episode; -1 if it was not started from one, or is over."""
    step: int
    what: str

    def __str__(self) -> str:
        seed = f" (seed {self.seed})" if self.seed >= 0 else ""
        return f"{self.what} was not finite in env {self.env}{seed} at step {self.step}: masked, and the env was reset."


class NanGuard:
    """Masks non-finite transitions of a vector whose first env has the global index `first`."""

    def __init__(self, vector: Vector, first: int) -> None:
        self._vector = vector
        self._first = first
        self._faults: list[Fault] = []
        builder = dict(vector.spec.world).get("observation")
        self._observation = f"The observation of your builder `{builder}`" if builder else "The observation"

    def mask(self, t: int, step: int, rollout: Rollout, rows: Rows) -> list[int]:
        """Mask the envs with a non-finite number at step `t` of a rollout, truncate their episodes and reset them.

        `step` is the actor's total step count, for the report. Returns the indices of these envs.
        """
        spec = self._vector.spec
        agents, terms = spec.agents, spec.terms
        ended = (rows.terminated | rows.truncated) > 0
        obs_ok, final_ok = (np.isfinite(spec.obs.vectors(obs)).all(axis=1) for obs in (rows.obs, rows.final_obs))
        bad_obs = ~obs_ok | (ended & ~final_ok)
        bad = bad_obs | ~np.isfinite(rows.reward)
        envs: list[int] = np.unique(np.flatnonzero(bad) // agents).tolist()
        seeds = self._vector.seeds().tolist() if envs else []
        for env in envs:
            own = slice(env * agents, (env + 1) * agents)
            bad_terms = [name for k, name in enumerate(terms) if not np.isfinite(rows.terms[own, k]).all()]
            what = self._observation if bad_obs[own].any() else "The reward"
            what = f"Reward term `{'`, `'.join(bad_terms)}`" if bad_terms else what
            seed = -1 if ended[own].any() else seeds[env]  # after an end the vector has begun the next episode
            self._faults.append(Fault(self._first + env, seed, step, what))
            rows.reward[own] = 0
            rows.terminated[own] = 0
            rows.truncated[own] = 1
            rollout.active[t][own] = 0
            rollout.final_value[t][own] = rollout.value[t][own]
            rows.terms[own] = np.nan_to_num(rows.terms[own], nan=0.0, posinf=0.0, neginf=0.0)
        self._vector.reset_envs(envs, rows)
        return envs

    @property
    def first_fault(self) -> str:
        """The report of the first fault since the last drain; empty if there is none."""
        return str(self._faults[0]) if self._faults else ""

    def drain(self) -> list[str]:
        """Return reports of the faults since the last call."""
        faults, self._faults = self._faults, []
        lines = []
        for what in dict.fromkeys(fault.what for fault in faults):
            same = [fault for fault in faults if fault.what == what]
            lines += [str(fault) for fault in same[:MAX_REPORTED]]
            if len(same) > MAX_REPORTED:
                lines.append(f"{what} was not finite {len(same) - MAX_REPORTED} times more.")
        return lines
