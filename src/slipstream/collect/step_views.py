"""The steps of a rollout as views, made once for each rollout that is filled in turn.

With few envs in a process, making the views of a step anew takes longer than a quick env's step.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.collect.nan_guard import checked_rows
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec, Rows

KEPT = 2
"""Rollouts whose steps are remembered: as many as are filled in turn."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One step: what acting reads and writes, and where the vector writes its results."""

    obs: Array
    mask: Array
    active: Array
    action: Array
    log_prob: Array
    value: Array
    rows: Rows
    looked: tuple[Array, int, Array, Array, Array, Array, Array]
    """What is inspected after the step."""


class StepViews:
    """The steps of the rollouts filled last; without off-policy learning all share `now`'s last observations."""

    def __init__(self, spec: EnvSpec, now: Rows) -> None:
        self._spec, self._now = spec, now
        self._known: list[tuple[Rollout, list[Moment]]] = []

    def of(self, rollout: Rollout) -> list[Moment]:
        """The steps of a rollout, in order."""
        for known, moments in self._known:
            if known is rollout:
                return moments
        made = [self._make(rollout, t) for t in range(rollout.steps)]
        self._known = [*self._known, (rollout, made)][-KEPT:]
        return made

    def _make(self, rollout: Rollout, t: int) -> Moment:
        final_obs = rollout.final_obs[t] if len(rollout.final_obs) else self._now.final_obs
        rows = rollout.at(t, final_obs, self._now.behaviour)
        return Moment(
            rollout.obs[t], rollout.mask[t], rollout.active[t], rollout.action[t], rollout.log_prob[t], rollout.value[t],
            rows, checked_rows(self._spec, rows),
        )  # fmt: skip
