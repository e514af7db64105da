"""Games of treechop for tests: begun, with blocks and the player where a test wants them, and played."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.treechop.columns import SIDE, TOP
from slipstream.envs.treechop.minerl_spaces import Treechop
from slipstream.minecraft.action_maps import BUTTONS

FULL = (1 << TOP) - 1
NEW = ("hills", "rocks", "rough")
"""The tasks whose ground is not flat."""


def begun(envs: int = 1, variant: str = "dense", **settings: Any) -> tuple[Treechop, Rows]:
    """Games that have begun, and their rows."""
    game = Treechop(envs, variant=variant, **settings)
    rows = empty_rows(game.spec, envs)
    game.reset(rows)
    return game, rows


def worlds(game: Treechop) -> Array:
    """The worlds of all envs, to change: blocks and gaps [envs, 2, x, y]."""
    assert game.games.world is not None
    return game.games.world.reshape(game.envs, 2, SIDE, SIDE)


def blocks(game: Treechop, env: int = 0) -> Array:
    """The bits of every column of a world [x, y]."""
    found: Array = worlds(game)[env, 0]
    return found


def logs(game: Treechop, env: int = 0) -> Array:
    """The logs of every column: bit z says whether there is one at height z."""
    return blocks(game, env) & FULL


def leaves(game: Treechop, env: int = 0) -> Array:
    """The leaves of every column."""
    return blocks(game, env) >> TOP & FULL


def ground(game: Treechop, env: int = 0) -> Array:
    """The height of the ground of every column."""
    return blocks(game, env) >> 2 * TOP & 15


def rock(game: Treechop, env: int = 0) -> Array:
    """Whether the ground of every column is rock."""
    return blocks(game, env) >> 2 * TOP + 4 == 1


def solid(game: Treechop, env: int = 0) -> Array:
    """The logs and the ground of every column."""
    return logs(game, env) | (1 << ground(game, env)) - 1


def column(*, logs: int = 0, leaves: int = 0, ground: int = 0, rock: bool = False) -> int:
    """The bits of a column."""
    return logs | leaves << TOP | ground << 2 * TOP | rock << 2 * TOP + 4


def chebyshev(found: Array) -> Array:
    """The distance from every column to the nearest one in `found` [x, y], through the edges of the world as well."""
    places, far = np.argwhere(found), np.full((SIDE, SIDE), SIDE)
    for x, y in places:
        gaps = [np.abs(np.arange(SIDE) - at) for at in (x, y)]
        dx, dy = (np.minimum(gap, SIDE - gap) for gap in gaps)
        far = np.minimum(far, np.maximum(dx[:, None], dy[None, :]))
    return far


def measure(game: Treechop) -> None:
    """Set the distances between columns, which rays need, after blocks were changed."""
    for env, world in enumerate(worlds(game)):
        hard = solid(game, env) != 0
        world[1] = chebyshev(hard | (leaves(game, env) != 0)) | chebyshev(hard) << 8


def clear(game: Treechop) -> None:
    """Remove all blocks from the worlds."""
    worlds(game)[:, 0] = 0
    measure(game)


def put(game: Treechop, x: int, y: int, **bits: Any) -> None:
    """Set the column of blocks at a place of the first world; `bits` are those of `column`."""
    blocks(game)[x, y] = column(**bits)
    measure(game)


def place(game: Treechop, **values: float) -> None:
    """Set columns of the state in every env."""
    for name, value in values.items():
        game.column(name)[:] = value


def meadow(**settings: Any) -> tuple[Treechop, Rows]:
    """A game in a world without blocks, with the player in the middle, facing north."""
    game, rows = begun(**({"match_seconds": 600} | settings))
    clear(game)
    place(game, x=32.5, y=32.5, z=0.0, yaw=0.0)
    return game, rows


def press(game: Treechop, rows: Rows, *buttons: str, ticks: int = 1, camera: tuple[float, float] = (0, 0)) -> float:
    """Hold buttons in every env; return the reward of the first."""
    total = 0.0
    for _ in range(ticks):
        given = {name: np.full(game.envs, name in buttons) for name in BUTTONS}
        game.press(given | {"camera": np.tile(np.array(camera, np.float32), (game.envs, 1))}, rows)
        total += float(rows.reward[0])
    return total


def images(game: Treechop, obs: Array) -> Array:
    """The images of observation rows [envs, height, width, 3]."""
    return game.spec.obs.split(obs)["pov"]
