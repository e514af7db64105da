"""What keeps NaN and infinity out of the batch, and names where they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec, Rows, Vector
from slipstream.system.numba_compile import compiled

TOLD = 3
"""Faults of one kind that are told one by one; of the rest, the number."""


BROKEN, ENDED, CUT, ABSENT = 1, 2, 4, 8
"""What a step can hold: a number that is not finite, an episode's end, a truncation, a row that does not act next."""
EXPONENT = np.uint32(0x7F800000)
"""The bits of a float32 that are all set in NaN and infinity, and in nothing else."""


@compiled
def check_rows(
    obs: Array, floats: int, reward: Array, terminated: Array, truncated: Array, final_obs: Array, active: Array
) -> int:
    """What a step holds, by the bits of its float32 numbers, of which a row of observations begins with so many.

    Last observations count only where an episode ended.
    """
    found, odd = 0, False
    for row in range(reward.size):
        odd |= (reward[row] & EXPONENT) == EXPONENT
        for k in range(floats):
            odd |= (obs[row, k] & EXPONENT) == EXPONENT
        if terminated[row] | truncated[row]:
            found |= ENDED | CUT if truncated[row] else ENDED
            for k in range(floats):
                odd |= (final_obs[row, k] & EXPONENT) == EXPONENT
        if not active[row]:
            found |= ABSENT
    return found | BROKEN if odd else found


def checked_rows(spec: EnvSpec, rows: Rows) -> tuple[Array, int, Array, Array, Array, Array, Array]:
    """What `check_rows` looks at, as views."""
    obs, reward, final_obs = (given.view(np.uint32) for given in (rows.obs, rows.reward, rows.final_obs))
    return obs, spec.obs.floats, reward, rows.terminated, rows.truncated, final_obs, rows.active


@dataclass
class Fault:
    """A non-finite number that was kept out of the batch."""

    env: int
    step: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} was not finite in env {self.env} at step {self.step}: masked, and the env was reset."


class NanGuard:
    """Looks at every step of a vector whose first env has the global number `first`."""

    def __init__(self, vector: Vector, first: int) -> None:
        self._vector = vector
        self._first = first
        self._faults: list[Fault] = []

    def check(self, t: int, step: int, rollout: Rollout, rows: Rows) -> list[int]:
        """Mend step t of a rollout, the actor's `step` in all, if anything in it is not finite; return those envs."""
        found = check_rows(*checked_rows(self._vector.spec, rows))
        return self.mend(t, step, rollout, rows) if found & BROKEN else []

    def drain(self) -> list[str]:
        """What was kept out since the last call."""
        faults, self._faults = self._faults, []
        lines = []
        for what in dict.fromkeys(fault.what for fault in faults):
            same = [fault for fault in faults if fault.what == what]
            lines += [str(fault) for fault in same[:TOLD]]
            if len(same) > TOLD:
                lines.append(f"{what} was not finite {len(same) - TOLD} times more.")
        return lines

    def mend(self, t: int, step: int, rollout: Rollout, rows: Rows) -> list[int]:
        """Mask what is not finite in a step, cut the episode there and reset the env; return those envs."""
        spec = self._vector.spec
        agents, terms = spec.agents, spec.terms
        ended = (rows.terminated | rows.truncated) > 0
        fine, ends_fine = (np.isfinite(spec.obs.vectors(obs)).all(axis=1) for obs in (rows.obs, rows.final_obs))
        bad_obs = ~fine | (ended & ~ends_fine)
        bad = bad_obs | ~np.isfinite(rows.reward)
        envs = np.unique(np.flatnonzero(bad) // agents)
        for env in envs.tolist():
            its = slice(env * agents, (env + 1) * agents)
            named = [name for k, name in enumerate(terms) if not np.isfinite(rows.terms[its, k]).all()]
            what = "The observation" if bad_obs[its].any() else "The reward"
            what = f"Reward term `{'`, `'.join(named)}`" if named else what
            self._faults.append(Fault(self._first + env, step, what))
            rows.reward[its] = 0
            rows.terminated[its] = 0
            rows.truncated[its] = 1
            rollout.active[t][its] = 0
            rollout.final_value[t][its] = rollout.value[t][its]
            rows.terms[its] = np.nan_to_num(rows.terms[its], nan=0.0, posinf=0.0, neginf=0.0)
        self._vector.reset_envs(envs.tolist(), rows)
        return [int(env) for env in envs]
