"""Keyboard controls: from the keys that are held to actions, for driving games and for games without their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from slipstream.contracts import ActionSpec, Array

DRIVING_KEYS = {"throttle": ("up", "down"), "steer": ("left", "right"), "boost": ("space", ""), "drift": ("x", "")}
"""The keys that push each control to 1 and to -1; steer 1 is to the left."""


def axis(keys: Iterable[str], positive: str, negative: str) -> float:
    """1 or -1 by the newer of two keys, 0 if neither is held."""
    newest = [key for key in keys if key in (positive, negative)][-1:]
    return 0.0 if not newest else 1.0 if newest == [positive] else -1.0


def driving_action(keys: Iterable[str], controls: Sequence[str], table: Array, action: ActionSpec) -> Array:
    """The action of a driving game nearest to the keys that are held.

    `controls` names the columns of `table` [options, controls], the game's discrete actions. Boost and drift imply
    full throttle unless a throttle key is held.
    """
    keys = list(keys)
    pushed = {name: axis(keys, *pair) for name, pair in DRIVING_KEYS.items()}
    if (pushed["boost"] or pushed["drift"]) and not pushed["throttle"]:
        pushed["throttle"] = 1.0
    values = np.array([pushed[name] for name in controls], np.float32)
    if action.kind == "discrete":
        return np.array([np.abs(table - values).sum(axis=1).argmin()], np.int32)
    centre = np.array(action.sizes) == 3 if action.kind == "multi_discrete" else 0
    return np.asarray(values + centre, action.dtype)


def default_action(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action of a game without its own controls.

    With one discrete choice a digit selects that option until another digit is pressed, and space selects option 0.
    Continuous actions follow the arrow keys: left and right set the first number, down and up the second, to its
    bounds.
    """
    if action.kind == "discrete":
        options = [0 if key == "space" else int(key) for key in keys if key == "space" or key.isdigit()]
        allowed = [option for option in options if option < action.sizes[0]]
        return np.array(allowed[-1:] or last, np.int32)
    keys, pushes = list(keys), np.zeros(action.parts)
    for part, pair in zip(range(action.parts), (("right", "left"), ("up", "down")), strict=False):
        pushes[part] = axis(keys, *pair)
    low, high = (np.nan_to_num(np.array(bound), posinf=1.0, neginf=-1.0) for bound in (action.low, action.high))
    return np.asarray((low + high) / 2 + pushes * (high - low) / 2, np.float32)
