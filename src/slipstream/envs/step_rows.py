"""The rows that one compiled step writes, as one argument of its kernels."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.contracts import Array, Rows


class StepRows(NamedTuple):
    """The arrays of `Rows` that a compiled step writes; games on a GPU have no action mask."""

    obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    outcome: Array
    final_obs: Array
    active: Array
    terms: Array
    behaviour: Array

    @classmethod
    def of(cls, rows: Rows) -> StepRows:
        """The arrays of `rows`, which are shared and not copied."""
        return cls(
            rows.obs,
            rows.reward,
            rows.terminated,
            rows.truncated,
            rows.outcome,
            rows.final_obs,
            rows.active,
            rows.terms,
            rows.behaviour,
        )
