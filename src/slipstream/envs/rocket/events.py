"""Rocket's events: touches and goals."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.events import match_events
from slipstream.envs.game import StepEvent
from slipstream.envs.rocket.layout import SCORE, cars_in


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """The events of one step of a match; see `match_events`."""
    cars = cars_in(before["state"][0])
    return match_events(spec, before, after, rows, last_touch, cars=cars, score_column=SCORE)
