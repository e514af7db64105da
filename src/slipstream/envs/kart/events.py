"""Kart's events: a finished lap."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.events import episode_over
from slipstream.envs.game import StepEvent


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """A `lap` where the lap was finished; a lap that ran out of time is no event."""
    return [StepEvent("lap", 0)] if episode_over(rows) and rows.outcome[0] > 0 else []
