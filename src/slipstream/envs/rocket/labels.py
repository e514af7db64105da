"""Names of rocket's actions and observation columns, and the events of its matches."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.events import match_events
from slipstream.envs.game import Labels, StepEvent
from slipstream.envs.rocket.actions import CONTROLS, JUMP, TABLE
from slipstream.envs.rocket.batch import PADS
from slipstream.envs.rocket.layout import SCORE, cars_in

ARENA, OWN_FRAME = ("x", "y", "z"), ("ahead", "right", "up")


def labels(spec: EnvSpec) -> Labels:
    """The names for one variant and kind of action."""
    kind = spec.action.kind
    options: tuple[tuple[str, ...], ...] = ()
    if kind == "discrete":
        options = (tuple(_combination(row) for row in TABLE.tolist()),)
    elif kind == "multi_discrete":
        options = tuple(("-1", "0", "1") if part < JUMP else ("off", "on") for part in range(len(CONTROLS)))
    own = "observation" in dict(spec.world)
    columns = tuple(f"obs.{k}" for k in range(spec.obs.floats)) if own else obs_labels(spec.agents // 2)
    return Labels(("controls",) if kind == "discrete" else CONTROLS, options, columns)


def _combination(row: list[float]) -> str:
    """The controls of a row of the table that are not at rest, such as `+throttle -steer boost`."""
    held = zip(CONTROLS, row, strict=True)
    names = [name if name in CONTROLS[JUMP:] else f"{value:+.0f}"[0] + name for name, value in held if value]
    return " ".join(names) or "none"


def obs_labels(slots: int) -> tuple[str, ...]:
    """The names of the observation's columns for `slots` cars per team, in the order in which `batch.see` writes."""
    others = [f"teammate.{k}" for k in range(slots - 1)] + [f"opponent.{k}" for k in range(slots)]
    return (
        *_vectors("", ARENA, "position", "forward", "up", "velocity", "spin"),
        *("boost", "on_ground", "demolished", "flip"),
        *_vectors("ball.", ARENA, "position", "velocity", "spin"),
        *_vectors("ball.", ARENA, "from_car"),
        *_vectors("ball.", OWN_FRAME, "from_car"),
        *_vectors("ball.", ARENA, "relative_velocity"),
        *_vectors("ball.", OWN_FRAME, "relative_velocity"),
        *(f"pad.{pad}" for pad in range(PADS)),
        *("time_left", "goal_lead"),
        *(name for other in others for name in _other_car(f"{other}.")),
    )


def _other_car(prefix: str) -> tuple[str, ...]:
    return (
        *(f"{prefix}present", f"{prefix}is_teammate"),
        *_vectors(prefix, ARENA, "position"),
        *_vectors(prefix, OWN_FRAME, "from_car"),
        *_vectors(prefix, ARENA, "velocity", "forward", "up"),
        *(f"{prefix}boost", f"{prefix}on_ground", f"{prefix}demolished"),
    )


def _vectors(prefix: str, axes: tuple[str, str, str], *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}.{axis}" for name in names for axis in axes)


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """The events of one step of a match; see `match_events`."""
    scores = before["clock"][0, SCORE : SCORE + 2], after["clock"][0, SCORE : SCORE + 2]
    return match_events(spec, before, after, rows, last_touch, cars=cars_in(before["state"][0]), scores=scores)
