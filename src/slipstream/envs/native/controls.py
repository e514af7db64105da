"""Controls of native games: parts of an action whose kind `env.actions` chooses, decoded before functions read them.

The functions are templates like those of `kernels`; their globals are the numbers of a game's controls.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.native.layout import Columns, Control
from slipstream.errors import ConfigError

KINDS = ("discrete", "multi_discrete", "continuous")
"""The values of `env.actions`; kernels know them by their numbers."""
DISCRETE, MULTI_DISCRETE, CONTINUOUS = range(3)
MOST = 1000
"""Most combinations that `discrete` may have."""

# Globals of each copy
CONTROLS = 0
VALUES: Any = None  # [controls, most options]
OPTIONS: Any = None  # [controls]: the number of options
SWITCHES: Any = None  # [controls] uint8
DEAD_ZONES: Any = None  # [controls]
LOW: Any = None  # [controls]
HIGH: Any = None
COMBINATIONS: Any = None  # [options, controls]: the number of each control's option
to_float: Any = None
option_of: Any = None


def decode_template(action: Array, row: int, kind: int, controls: Array) -> None:
    """Write the values of the controls of a row of actions; a number that is not finite is 0."""
    for k in range(CONTROLS):
        if kind == DISCRETE:
            index = min(max(int(action[row, 0]), 0), COMBINATIONS.shape[0] - 1)
            controls[row, k] = VALUES[k, COMBINATIONS[index, k]]
        elif kind == MULTI_DISCRETE:
            controls[row, k] = VALUES[k, min(max(int(action[row, k]), 0), OPTIONS[k] - 1)]
        elif SWITCHES[k]:
            controls[row, k] = VALUES[k, 1] if action[row, k] > 0 else VALUES[k, 0]
        else:
            value = to_float(action[row, k])
            controls[row, k] = min(max(value, LOW[k]), HIGH[k]) if value == value else to_float(0.0)


def option_template(value: Any, k: int) -> int:
    """The option of a control that is nearest to a value: 0 within the dead zone, and a switch is on above 0."""
    if SWITCHES[k]:
        return 1 if value > 0 else 0
    best, least = 0, to_float(np.inf)
    for option in range(OPTIONS[k]):
        away = abs(VALUES[k, option] - value)
        if abs(value) <= DEAD_ZONES[k]:
            away = abs(VALUES[k, option])
        elif abs(VALUES[k, option]) <= DEAD_ZONES[k]:
            continue
        if away < least:
            best, least = option, away
    return best


def encode_template(controls: Array, row: int, kind: int, action: Array) -> None:
    """Write the action that is nearest to the values of controls."""
    if kind == CONTINUOUS:
        for k in range(CONTROLS):
            value = min(max(controls[row, k], LOW[k]), HIGH[k])
            if SWITCHES[k]:
                value = HIGH[k] if controls[row, k] > 0 else LOW[k]
            action[row, k] = value
    elif kind == MULTI_DISCRETE:
        for k in range(CONTROLS):
            action[row, k] = option_of(controls[row, k], k)
    else:
        best, least = 0, to_float(np.inf)
        for index in range(COMBINATIONS.shape[0]):
            away = to_float(0.0)
            for k in range(CONTROLS):
                wanted = VALUES[k, option_of(controls[row, k], k)]
                away += abs(wanted - VALUES[k, COMBINATIONS[index, k]])
            if away < least:
                best, least = index, away
        action[row, 0] = best


def controls_of(columns: Columns) -> list[Control]:
    """The controls of a class of actions; empty if it has choices and boxes."""
    parts = [field.part for field in columns.fields.values()]
    return [part for part in parts if isinstance(part, Control)]


def combine(game: str, columns: Columns, listed: Sequence[Sequence[float]]) -> Array:
    """The combinations of the discrete kind [options, controls], by the number of each control's option."""
    parts, names = controls_of(columns), list(columns.fields)
    if not listed:
        found = list(product(*(range(len(part.values)) for part in parts)))
        if len(found) > MOST:
            raise ConfigError(f"`{game}` has {len(found)} combinations of controls.", "list some in game.combinations")
        return np.array(found, np.int64)
    rows = []
    for number, values in enumerate(listed):
        if len(values) != len(parts):
            raise ConfigError(f"`{game}`: combination {number} has {len(values)} values.", f"give {', '.join(names)}")
        for name, part, value in zip(names, parts, values, strict=True):
            if value not in part.values:
                known = ", ".join(f"{one:g}" for one in part.values)
                raise ConfigError(f"`{game}`: combination {number} has {name}={value}.", f"its values are {known}")
        rows.append([part.values.index(value) for part, value in zip(parts, values, strict=True)])
    return np.array(rows, np.int64)


def numbers_of(columns: Columns, combinations: Array, floats: type[np.generic]) -> dict[str, Any]:
    """The globals of the templates for one class of actions."""
    parts = controls_of(columns)
    values = np.zeros((len(parts), max((len(part.values) for part in parts), default=1)), floats)
    for k, part in enumerate(parts):
        values[k, : len(part.values)] = part.values
    return {
        "CONTROLS": len(parts),
        "VALUES": values,
        "OPTIONS": np.array([len(part.values) for part in parts], np.int64),
        "SWITCHES": np.array([part.switch for part in parts], np.uint8),
        "DEAD_ZONES": np.array([part.dead_zone for part in parts], floats),
        "LOW": np.array([part.low for part in parts], floats),
        "HIGH": np.array([part.high for part in parts], floats),
        "COMBINATIONS": combinations,
        "to_float": floats,
    }


def control_spec(columns: Columns, combinations: Array, kind: str) -> ActionSpec:
    """The action space of a kind."""
    parts = controls_of(columns)
    if kind == "discrete":
        return ActionSpec("discrete", (len(combinations),))
    if kind == "multi_discrete":
        return ActionSpec("multi_discrete", tuple(len(part.values) for part in parts))
    return ActionSpec("continuous", low=tuple(part.low for part in parts), high=tuple(part.high for part in parts))


def control_labels(
    columns: Columns, combinations: Array, kind: str
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The names of the parts of an action and of their options."""
    parts, names = controls_of(columns), tuple(columns.fields)
    if kind == "discrete":
        return ("action",), (tuple(_combination(names, parts, row) for row in combinations.tolist()),)
    return names, tuple(part.names for part in parts) if kind == "multi_discrete" else ()


def _combination(names: Sequence[str], parts: Sequence[Control], options: Sequence[int]) -> str:
    """What a combination does, such as `forward left boost`; parts whose value is 0 are left out."""
    held = [
        name if part.switch else part.names[option]
        for name, part, option in zip(names, parts, options, strict=True)
        if part.values[option]
    ]
    return " ".join(held) or parts[0].names[options[0]]
