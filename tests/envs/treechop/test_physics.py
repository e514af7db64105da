"""Treechop's ticks by hand: speeds, walls, jumps, and how a log is broken."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Rows, empty_rows
from slipstream.envs.treechop import layout as at
from slipstream.envs.treechop.game import Treechop
from slipstream.envs.treechop.world import cell_at
from slipstream.minecraft.action_maps import BUTTONS


@pytest.fixture
def meadow() -> tuple[Treechop, Rows]:
    """One game in a world without trees, with the player in the middle, facing north."""
    game = Treechop(1, match_seconds=600)
    out = empty_rows(game.spec, 1)
    game.reset(out)
    game.cells[:] = 64 | 64 << at.GAP_WOOD
    game.state[0, at.YAW] = 0.0
    return game, out


def press(game: Treechop, out: Rows, *buttons: str, ticks: int = 1, camera: tuple[float, float] = (0, 0)) -> float:
    """Hold buttons; return the reward."""
    total = 0.0
    for _ in range(ticks):
        given = {name: np.array([name in buttons]) for name in BUTTONS}
        game.press(given | {"camera": np.array([camera])}, out)
        total += float(out.reward[0])
    return total


def trunk(game: Treechop, x: int, y: int, tall: int = 4) -> None:
    """Add a bare trunk to the world."""
    game.cells[0, cell_at(x, y)] = ((1 << tall) - 1) << at.WOOD
    for cell in range(at.SIDE**2):
        far = max(abs((cell >> at.BITS) - x), abs((cell & at.WRAP) - y))
        kept = int(game.cells[0, cell]) & ~0xFFFF
        game.cells[0, cell] = kept | far | far << at.GAP_WOOD


def test_walking_settles_at_minecrafts_speed(meadow: tuple[Treechop, Rows]) -> None:
    """4.317 metres per second ahead, 1.3 times that in a sprint, 0.3 when sneaking."""
    game, out = meadow
    for buttons, speed in ((("forward",), 4.317), (("forward", "sprint"), 5.612), (("forward", "sneak"), 1.295)):
        press(game, out, *buttons, ticks=40)
        before = game.state[0, at.X]
        press(game, out, *buttons, ticks=10)
        assert (game.state[0, at.X] - before) * 2 == pytest.approx(speed, rel=0.01)
        game.state[0, at.X] = 32.5


def test_the_camera_turns_and_the_way_follows(meadow: tuple[Treechop, Rows]) -> None:
    """Yaw 90 is east; strafing right is a quarter further; pitch ends at 90."""
    game, out = meadow
    press(game, out, camera=(120.0, 90.0))
    assert game.state[0, at.PITCH] == 90.0 and game.state[0, at.YAW] == 90.0
    press(game, out, "forward", ticks=5)
    assert game.state[0, at.Y] > 33 and abs(game.state[0, at.X] - 32.5) < 1e-3
    press(game, out, camera=(0.0, 180.0))
    assert game.state[0, at.YAW] == -90.0


def test_a_trunk_stops_and_a_jump_rises_by_a_block(meadow: tuple[Treechop, Rows]) -> None:
    """A player stops with its side at the log; a jump is 1.25 high, and lands on a stump but not on a trunk."""
    game, out = meadow
    trunk(game, 35, 32)
    press(game, out, "forward", ticks=40)
    assert game.state[0, at.X] == pytest.approx(35 - 0.3, abs=1e-3) and game.state[0, at.VX] == 0
    heights = []
    for _ in range(14):
        press(game, out, "jump" if not heights else "", "forward")
        heights.append(float(game.state[0, at.Z]))
    assert max(heights) == pytest.approx(1.2522, abs=2e-3) and heights[-1] == 0
    trunk(game, 35, 32, tall=1)
    press(game, out, "jump", "forward", ticks=9)
    assert game.state[0, at.Z] == 1.0
    press(game, out, "forward", ticks=20)
    assert game.state[0, at.Z] == 0.0 and game.state[0, at.X] > 36


def test_ten_ticks_of_attack_break_a_log_and_a_pause_restarts(meadow: tuple[Treechop, Rows]) -> None:
    """Reward 1 at the tenth tick in a row, the block is gone, the count is one; out of reach nothing happens."""
    game, out = meadow
    trunk(game, 34, 32)
    assert press(game, out, "attack", ticks=9) == 0 and game.clock[0, at.WORN] == 9
    press(game, out)
    assert press(game, out, "attack", ticks=9) == 0
    assert press(game, out, "attack") == 1.0
    assert (game.cells[0, cell_at(34, 32)] >> at.WOOD) & 255 == 0b1101 and game.clock[0, at.LOGS] == 1
    assert press(game, out, "attack", ticks=30) == 0  # through the gap there is nothing
    game.state[0, at.X] = 27.0
    trunk(game, 34, 32)
    assert press(game, out, "attack", ticks=30) == 0  # 7 metres away


def test_the_world_has_no_edge(meadow: tuple[Treechop, Rows]) -> None:
    """Who walks out in the north comes in from the south, and sees trees across the seam."""
    game, out = meadow
    game.state[0, at.X] = 62.0
    trunk(game, 3, 32)
    for cell in range(at.SIDE**2):
        dx, dy = abs((cell >> at.BITS) - 3), abs((cell & at.WRAP) - 32)
        far = max(min(dx, 64 - dx), dy)
        game.cells[0, cell] = (int(game.cells[0, cell]) & ~0xFFFF) | far | far << at.GAP_WOOD
    press(game, out)
    centre = out.obs[0].reshape(64, 64, 3)[32, 32].astype(int)
    assert centre[0] > centre[1] > centre[2]  # bark
    press(game, out, "forward", ticks=60)
    assert game.state[0, at.X] == pytest.approx(2.7, abs=1e-3)
