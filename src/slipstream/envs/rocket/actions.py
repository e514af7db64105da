"""Rocket's actions: a table of 90 combinations, eight discrete controls, or eight continuous controls."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array

CONTROLS = ("throttle", "steer", "pitch", "yaw", "roll", "jump", "boost", "handbrake")
THROTTLE, STEER, PITCH, YAW, ROLL, JUMP, BOOST, HANDBRAKE = range(8)
SIZES = (3, 3, 3, 3, 3, 2, 2, 2)
"""The number of options of each control: -1, 0, 1; or off, on."""


def table() -> Array:
    """The 90 combinations of controls [90, 8]: 24 for the ground, the others for the air.

    On the ground, boost implies full throttle. In the air, pitch and roll give the direction of a flip, steering equals
    yaw, and a flip presses the handbrake, so that the car slides on landing.
    """
    rows = []
    for throttle, steer, boost, handbrake in product((-1, 0, 1), (-1, 0, 1), (0, 1), (0, 1)):
        if not boost or throttle == 1:
            rows.append((throttle, steer, 0, steer, 0, 0, boost, handbrake))
    for pitch, yaw, roll, jump, boost in product((-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (0, 1), (0, 1)):
        if (jump and yaw) or not (pitch or roll or jump):
            continue
        rows.append((boost, yaw, pitch, yaw, roll, jump, boost, int(jump and bool(pitch or roll))))
    return np.array(rows, np.float32)


TABLE = table()
SPECS = {
    "discrete": ActionSpec("discrete", (len(TABLE),)),
    "multi_discrete": ActionSpec("multi_discrete", SIZES),
    "continuous": ActionSpec("continuous", (), (-1.0,) * 8, (1.0,) * 8),
}
KINDS = tuple(SPECS)


class Controls:
    """Turns actions into the simulator's control objects; those of discrete actions are cached."""

    def __init__(self, simulator: Any, kind: str) -> None:
        self._make, self._kind = simulator.CarControls, kind
        self._known: dict[Any, Any] = {}
        if kind == "discrete":
            self._known = {number: self._build(row) for number, row in enumerate(TABLE)}

    def of(self, action: Array) -> list[Any]:
        """One control object for each row of actions [rows, parts]."""
        if self._kind == "discrete":
            known = self._known
            return [known[number] for number in action[:, 0].tolist()]
        if self._kind == "multi_discrete":
            return [self._chosen(tuple(row)) for row in action.tolist()]
        return [self._build(row) for row in np.clip(action, -1, 1)]

    def _chosen(self, choice: tuple[int, ...]) -> Any:
        if choice not in self._known:
            values = [part - 1 if size == 3 else part for part, size in zip(choice, SIZES, strict=True)]
            self._known[choice] = self._build(values)
        return self._known[choice]

    def _build(self, values: Any) -> Any:
        numbers = [float(value) for value in values]
        switches = {name: value > 0 for name, value in zip(CONTROLS[JUMP:], numbers[JUMP:], strict=True)}
        return self._make(**dict(zip(CONTROLS[:JUMP], numbers[:JUMP], strict=True)), **switches)
