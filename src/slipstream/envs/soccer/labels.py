"""Names of soccer's actions, observation columns and state columns, and the events of its matches."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.events import match_events
from slipstream.envs.game import Labels, StepEvent
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.actions import CONTROLS

TURNS = ("right", "straight", "left")
PEDALS = ("reverse", "coast", "forward", "boost", "drift", "boost drift")
"""In the order of `actions.TABLE`."""
OPTIONS = {
    "discrete": (tuple(pedal if turn == "straight" else f"{pedal} {turn}" for turn in TURNS for pedal in PEDALS),),
    "multi_discrete": (("reverse", "coast", "forward"), TURNS, ("off", "on"), ("off", "on")),
    "continuous": (),
}
OWN_FRAME, ARENA = ("ahead", "left"), ("x", "y")
OTHER = (
    *(f"position.{axis}" for axis in OWN_FRAME),
    *(f"velocity.{axis}" for axis in OWN_FRAME),
    *(f"heading.{axis}" for axis in OWN_FRAME),
    "boost",
    "ball_distance",
)


def labels(spec: EnvSpec) -> Labels:
    """The names for one variant and kind of action."""
    kind = spec.action.kind
    parts = ("drive",) if kind == "discrete" else CONTROLS
    return Labels(parts, OPTIONS[kind], obs_labels(spec.agents // 2, spec.absences))


def obs_labels(slots: int, mixed: bool) -> tuple[str, ...]:
    """The names of the observation's columns for `slots` cars per team; see `layout` for their units."""
    others = [f"teammate.{k}" for k in range(slots - 1)] + [f"opponent.{k}" for k in range(slots)]
    return (
        *_pair("position", ARENA),
        *_pair("heading", ARENA),
        *_pair("velocity", OWN_FRAME),
        "spin",
        "boost",
        "time_left",
        "overtime",
        "goal_lead",
        *_pair("ball", OWN_FRAME),
        "ball.distance",
        *_pair("ball.relative_velocity", OWN_FRAME),
        *_pair("ball.position", ARENA),
        *_pair("ball.velocity", ARENA),
        *_pair("opponent_goal", OWN_FRAME),
        *_pair("own_goal", OWN_FRAME),
        *_pair("shot_direction", OWN_FRAME),
        *_pair("nearest_pad", OWN_FRAME),
        *(f"pad.{pad}" for pad in range(at.PADS)),
        *(f"{other}.{name}" for other in others for name in OTHER),
        *(f"{other}.present" for other in others if mixed),
    )


def _pair(name: str, axes: tuple[str, str]) -> tuple[str, str]:
    return f"{name}.{axes[0]}", f"{name}.{axes[1]}"


def state_labels(widths: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The names of the columns of `state` and `clock`."""
    cars = (widths["state"] - at.CARS) // at.CAR_SIZE
    body = ("x", "y", "vx", "vy")
    car = (*body, "hx", "hy", "spin", "boost", "throttle", "steer", "boosting", "drifting", "touch")
    state = (*(f"ball.{name}" for name in body), "goal", *(f"pad.{pad}" for pad in range(at.PADS)))
    clock = {at.TICKS_LEFT: "ticks_left", at.SCORE: "score.0", at.SCORE + 1: "score.1", at.OVERTIME: "overtime"}
    return {
        "state": (*state, *(f"car.{k}.{name}" for k in range(cars) for name in car)),
        "clock": tuple(clock.get(column, "") for column in range(widths["clock"])),
    }


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """The events of one step of a match; see `match_events`."""
    cars = at.cars_in(before["state"][0])
    return match_events(spec, before, after, rows, last_touch, cars=cars, score_column=at.SCORE)
