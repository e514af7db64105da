"""Images of games from their states: the scene of an episode, and one image of the present state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipstream.contracts import Array, Vector, Viewed
from slipstream.envs.game import Scene
from slipstream.envs.registry import find_game
from slipstream.errors import EnvError

__all__ = ["SIZE", "Scene", "draw", "make_scene", "measured_step_seconds", "render_state", "state_labels"]

SIZE = (480, 290)
"""Width and height of one image, in pixels."""


def render_state(vector: Vector) -> dict[str, Array]:
    """The state that drawings and events are made of; empty for an environment that cannot give its state."""
    if isinstance(vector, Viewed):
        return vector.view()
    return vector.snapshot() if vector.spec.exact else {}


def make_scene(env: str, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> Scene | None:
    """The scene of an episode from its states, stacked over steps; None for a game without a drawing."""
    game = find_game(env)
    if game is None or game.scene is None:
        return None
    if game.definition is not None and "state" not in state_labels(env, arrays):
        raise EnvError(
            f"These states are not those of `{env}`: another version of the game has recorded them.",
            "record or play it again, or draw it with that version",
        )
    return game.scene(size, arrays, step_seconds)


def draw(env: str, snapshot: Mapping[str, Array], size: tuple[int, int] = SIZE) -> Array | None:
    """An image [height, width, 3] of the first env of a snapshot; None for a game without a drawing."""
    first = {name: array[:1] for name, array in snapshot.items()}
    scene = make_scene(env, size, first, 0.0)
    return None if scene is None else np.asarray(scene.paint(0.0))


def state_labels(env: str, snapshot: Mapping[str, Array]) -> dict[str, tuple[str, ...]]:
    """The names of the columns of a snapshot's arrays; empty for a game that declares none."""
    game = find_game(env)
    if game is None or game.state_labels is None:
        return {}
    return game.state_labels({name: array.shape[-1] for name, array in snapshot.items()})


def measured_step_seconds(env: str, states: Mapping[str, Array], usual: float) -> float:
    """Seconds that a step takes in an episode with these states, stacked over steps; some tasks have longer steps.

    They are measured for games that have a column `ticks_left`.
    """
    game = find_game(env)
    if game is None or not game.tick_hz:
        return usual
    for name, columns in state_labels(env, states).items():
        if "ticks_left" in columns and len(states[name]) > 1:
            left = states[name][:2, columns.index("ticks_left")]
            return float(left[0] - left[1]) / game.tick_hz
    return usual
