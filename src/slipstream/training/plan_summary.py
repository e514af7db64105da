"""The plan of a run as people see it: what was asked for, what is done, and why."""

from __future__ import annotations

from typing import Any

from slipstream.plan import ADDED
from slipstream.settings import Settings
from slipstream.training.build import TrainingParts

Row = tuple[str, Any, Any, str]
"""Name, requested, applied, why."""
PLAINEST = ADDED | {"workers": 1, "lag": 0, "threads": 1, "activation_checkpointing": False}
"""What goes without saying; envs, collector and learner never do."""
UNASKED = (None, "auto")


def plan_rows(parts: TrainingParts, settings: Settings) -> list[Row]:
    """Every switch of the plan, and the settings of learning and of the env that speed depends on as well."""
    return [*parts.plan.rows(), _minibatch(parts, settings), _repeat(parts, settings)]


def notable_switches(rows: list[Row]) -> list[Row]:
    """The rows that say something: what somebody asked for, and what is not done in the plainest way."""
    batch = next(applied for name, _, applied, _ in rows if name in ("ppo.minibatch", "sac.batch_size"))
    plainest: dict[str, tuple[Any, ...]] = {f"plan.{name}": (value,) for name, value in PLAINEST.items()}
    plainest |= {"plan.micro_batch": (None, batch), "env.action_repeat": (1,)}
    return [
        (name, asked, applied, why)
        for name, asked, applied, why in rows
        if applied not in plainest.get(name, ()) or asked not in (*UNASKED, *plainest[name])
    ]


def table(rows: list[Row]) -> list[str]:
    """Columns under a heading; what was not asked for stays empty."""
    cells = [("switch", "requested", "applied", "why")]
    cells += [
        (name, "" if asked in UNASKED else _word(asked), _word(applied), why) for name, asked, applied, why in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return ["  ".join([*(row[k].ljust(widths[k]) for k in range(3)), row[3]]) for row in cells]


def _minibatch(parts: TrainingParts, settings: Settings) -> Row:
    if settings.algorithm == "sac":
        return "sac.batch_size", settings.sac.batch_size, settings.sac.batch_size, "drawn from the replay buffer"
    minibatch = settings.ppo.minibatch
    return "ppo.minibatch", minibatch, minibatch, f"{parts.batch // minibatch} of them in a batch of {parts.batch:,}"


def _repeat(parts: TrainingParts, settings: Settings) -> Row:
    asked, done = settings.env.action_repeat, parts.spec.action_repeat
    if asked is None:
        return "env.action_repeat", None, done, "the game's own"
    return "env.action_repeat", asked, done, "asked for" if asked == done else "this game takes every action once"


def _word(value: Any) -> str:
    words = {None: "none", True: "on", False: "off"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
