"""Names of kart's actions, observation columns and state columns, and the event of a lap."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.events import episode_over
from slipstream.envs.game import Labels, StepEvent
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.actions import CONTROLS

TURNS, PEDALS = ("right", "straight", "left"), ("brake", "coast", "accelerate")
OPTIONS = {
    "discrete": (tuple(pedal if turn == "straight" else f"{pedal} {turn}" for turn in TURNS for pedal in PEDALS),),
    "multi_discrete": (TURNS, PEDALS),
    "continuous": (),
}
STATE = (
    *("x", "y", "vx", "vy", "hx", "hy", "spin", "steer", "throttle", "along", "offset", "edge", "done", "grass"),
    *("length", "per_metre", "difficulty", "easiest", "hardest"),
)


def labels(spec: EnvSpec) -> Labels:
    """The names for one kind of action."""
    parts = ("drive",) if spec.action.kind == "discrete" else CONTROLS
    return Labels(parts, OPTIONS[spec.action.kind], obs_labels())


def obs_labels() -> tuple[str, ...]:
    """The names of the observation's columns; see `layout` for their units."""
    return (
        "speed.ahead",
        "speed.left",
        "spin",
        "offset",
        "heading.sine",
        "heading.cosine",
        "on_asphalt",
        "lap_left",
        "half_width",
        "steer",
        "throttle",
        *(
            f"ahead.{distance:g}m.{name}"
            for distance in at.DISTANCES
            for name in ("ahead", "left", "curvature", "half_width")
        ),
    )


def state_labels(widths: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The names of the columns of `state` and `clock`."""
    clock = {at.TICKS_LEFT: "ticks_left", at.SEGMENT: "segment", at.PASSED: "passed"}
    return {
        "state": tuple(STATE[column] if column < len(STATE) else "" for column in range(widths["state"])),
        "clock": tuple(clock.get(column, "") for column in range(widths["clock"])),
    }


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """A `lap` where the lap was finished; a lap that ran out of time is no event."""
    return [StepEvent("lap", 0)] if episode_over(rows) and rows.outcome[0] > 0 else []
