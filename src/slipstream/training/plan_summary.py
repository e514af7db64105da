"""The plan as a table for the user: what was requested, what is applied, and why."""

from __future__ import annotations

from typing import Any

from slipstream.plan import DEFAULTS
from slipstream.settings import Settings
from slipstream.training.parts import TrainingParts

Row = tuple[str, Any, Any, str]
"""Name, requested, applied, why."""
NOT_NOTABLE = DEFAULTS | {"workers": 1, "lag": 0, "threads": 1, "activation_checkpointing": False}
"""Applied values that are not listed when a run starts; envs, collector and learner are always listed."""
NOT_REQUESTED = (None, "auto")


def plan_rows(parts: TrainingParts, settings: Settings) -> list[Row]:
    """Return every switch of the plan, and the settings of algorithm and env that affect speed as well."""
    return [*parts.plan.rows(), _minibatch(parts, settings), _action_repeat(parts, settings)]


def notable_switches(rows: list[Row]) -> list[Row]:
    """Return the rows that differ from the defaults, in what was requested or in what is applied."""
    batch = next(applied for name, _, applied, _ in rows if name in ("ppo.minibatch", "sac.batch_size"))
    defaults: dict[str, tuple[Any, ...]] = {f"plan.{name}": (value,) for name, value in NOT_NOTABLE.items()}
    defaults |= {"plan.micro_batch": (None, batch), "env.action_repeat": (1,)}
    return [
        (name, requested, applied, why)
        for name, requested, applied, why in rows
        if applied not in defaults.get(name, ()) or requested not in (*NOT_REQUESTED, *defaults[name])
    ]


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a table with a header; `requested` is empty where nothing was requested."""
    cells = [("switch", "requested", "applied", "why")]
    cells += [
        (name, "" if requested in NOT_REQUESTED else _format(requested), _format(applied), why)
        for name, requested, applied, why in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return ["  ".join([*(row[k].ljust(widths[k]) for k in range(3)), row[3]]) for row in cells]


def _minibatch(parts: TrainingParts, settings: Settings) -> Row:
    if settings.algorithm == "sac":
        return "sac.batch_size", settings.sac.batch_size, settings.sac.batch_size, "sampled from the replay buffer"
    minibatch = settings.ppo.minibatch
    return "ppo.minibatch", minibatch, minibatch, f"{parts.batch // minibatch} per batch of {parts.batch:,}"


def _action_repeat(parts: TrainingParts, settings: Settings) -> Row:
    requested, applied = settings.env.action_repeat, parts.spec.action_repeat
    if requested is None:
        return "env.action_repeat", None, applied, "the game's default"
    why = "requested" if requested == applied else "this game does not repeat actions"
    return "env.action_repeat", requested, applied, why


def _format(value: Any) -> str:
    words = {None: "none", True: "on", False: "off"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
