"""What keeps NaN and infinity out of the batch, and names where they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.core.compile import compiled
from slipstream.core.contracts import Array, Rows, Vector

TOLD = 3
"""Faults of one kind that are told one by one; of the rest, the number."""


@compiled
def all_finite(values: Array) -> bool:
    """Whether a flat array holds neither NaN nor infinity."""
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * np.float32(0)
    return bool(total == np.float32(0))


@dataclass
class Fault:
    """A non-finite number that was kept out of the batch."""

    env: int
    step: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} was not finite in env {self.env} at step {self.step}: masked, and the env was reset."


class Guard:
    """Looks at every step of a vector whose first env has the global number `first`."""

    def __init__(self, vector: Vector, first: int) -> None:
        self._vector = vector
        self._first = first
        self._faults: list[Fault] = []

    def check(self, t: int, step: int, rollout: Rollout, rows: Rows) -> list[int]:
        """Mend step t of a rollout, the actor's `step` in all, if anything in it is not finite; return those envs."""
        vectors = self._vector.spec.obs.vectors
        numbers = np.ascontiguousarray(vectors(rows.obs)).reshape(-1)
        if not (all_finite(numbers) and all_finite(rows.reward) and self._ends_finite(rows)):
            return self._mend(t, step, rollout, rows)
        return []

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

    def _ends_finite(self, rows: Rows) -> bool:
        ended = rows.terminated | rows.truncated
        numbers = self._vector.spec.obs.vectors(rows.final_obs)
        return not ended.any() or bool(np.isfinite(numbers[ended > 0]).all())

    def _mend(self, t: int, step: int, rollout: Rollout, rows: Rows) -> list[int]:
        """Mask the transition, cut there, reset the env."""
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
