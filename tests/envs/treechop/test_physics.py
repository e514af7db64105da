"""Treechop's ticks by hand: speeds, walls, jumps, hills, rocks, and how a log is broken."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Rows
from slipstream.envs.treechop.minerl_spaces import Treechop
from treechop_games import images, logs, place, press, put, worlds
from treechop_games import meadow as empty_meadow

TRUNK = 0b1111


@pytest.fixture
def meadow() -> tuple[Treechop, Rows]:
    """One game in a world without blocks, with the player in the middle, facing north."""
    return empty_meadow()


def at(game: Treechop, *names: str) -> list[float]:
    """Columns of the state."""
    return [float(game.column(name)[0]) for name in names]


def test_walking_settles_at_minecrafts_speed(meadow: tuple[Treechop, Rows]) -> None:
    """4.317 metres per second ahead, 1.3 times that in a sprint, 0.3 when sneaking."""
    game, out = meadow
    for buttons, speed in ((("forward",), 4.317), (("forward", "sprint"), 5.612), (("forward", "sneak"), 1.295)):
        press(game, out, *buttons, ticks=40)
        (before,) = at(game, "x")
        press(game, out, *buttons, ticks=10)
        assert (at(game, "x")[0] - before) * 2 == pytest.approx(speed, rel=0.01)
        place(game, x=32.5)


def test_the_camera_turns_and_the_way_follows(meadow: tuple[Treechop, Rows]) -> None:
    """Yaw 90 is east; strafing right is a quarter further; pitch ends at 90."""
    game, out = meadow
    press(game, out, camera=(120.0, 90.0))
    assert at(game, "pitch", "yaw") == [90.0, 90.0]
    press(game, out, "forward", ticks=5)
    x, y = at(game, "x", "y")
    assert y > 33 and abs(x - 32.5) < 1e-3
    press(game, out, camera=(0.0, 180.0))
    assert at(game, "yaw") == [-90.0]
    press(game, out, "right", ticks=10)  # north, a quarter to the right of west
    assert at(game, "x")[0] > x + 0.5


def test_a_trunk_stops_and_a_jump_rises_by_a_block(meadow: tuple[Treechop, Rows]) -> None:
    """A player stops with its side at the log; a jump is 1.25 high, and lands on a stump but not on a trunk."""
    game, out = meadow
    put(game, 35, 32, logs=TRUNK)
    press(game, out, "forward", ticks=40)
    x, vx = at(game, "x", "vx")
    assert x == pytest.approx(35 - 0.3, abs=1e-3) and vx == 0
    heights = []
    for _ in range(14):
        press(game, out, "jump" if not heights else "", "forward")
        heights += at(game, "z")
    assert max(heights) == pytest.approx(1.2522, abs=2e-3) and heights[-1] == 0
    put(game, 35, 32, logs=0b1)
    press(game, out, "jump", "forward", ticks=9)
    assert at(game, "z") == [1.0]
    press(game, out, "forward", ticks=20)
    x, z = at(game, "x", "z")
    assert z == 0.0 and x > 36


def test_ten_ticks_of_attack_break_a_log_and_a_pause_restarts(meadow: tuple[Treechop, Rows]) -> None:
    """Reward 1 at the tenth tick in a row, the block is gone, the count is one; out of reach nothing happens."""
    game, out = meadow
    put(game, 34, 32, logs=TRUNK)
    assert press(game, out, "attack", ticks=9) == 0 and at(game, "worn") == [9]
    press(game, out)
    assert press(game, out, "attack", ticks=9) == 0
    assert press(game, out, "attack") == 1.0
    assert logs(game)[34, 32] == 0b1101 and at(game, "logs") == [1]
    assert press(game, out, "attack", ticks=30) == 0  # through the gap there is nothing
    place(game, x=27.0)
    put(game, 34, 32, logs=TRUNK)
    assert press(game, out, "attack", ticks=30) == 0  # 7 metres away


def test_the_world_has_no_edge(meadow: tuple[Treechop, Rows]) -> None:
    """Who walks out in the north comes in from the south, and sees trees across the seam."""
    game, out = meadow
    place(game, x=62.0)
    put(game, 3, 32, logs=TRUNK)
    press(game, out)
    centre = images(game, out.obs)[0, 32, 32].astype(int)
    assert centre[0] > centre[1] > centre[2]  # bark
    press(game, out, "forward", ticks=60)
    assert at(game, "x")[0] == pytest.approx(2.7, abs=1e-3)


@pytest.mark.parametrize(("high", "climbs"), [(1, True), (2, False)])
def test_a_jump_climbs_one_block_of_a_hill_and_not_two(meadow: tuple[Treechop, Rows], high: int, climbs: bool) -> None:
    """A step of one block stops a walk, and a jump goes up it; a step of two blocks stops a jump as well."""
    game, out = meadow
    for x in range(34, 40):
        put(game, x, 32, ground=high)
    press(game, out, "forward", ticks=40)
    x, z, vx = at(game, "x", "z", "vx")
    assert x == pytest.approx(34 - 0.3, abs=1e-3) and (z, vx) == (0.0, 0.0)
    press(game, out, "forward", "jump", ticks=9)
    press(game, out, "forward", ticks=10)
    x, z = at(game, "x", "z")
    assert z == (high if climbs else 0) and (x > 34.5) == climbs


def test_a_player_falls_down_an_edge(meadow: tuple[Treechop, Rows]) -> None:
    """Beyond the last column of a hill the player falls, faster in each tick, down to the grass."""
    game, out = meadow
    for x in range(30, 34):
        put(game, x, 32, ground=3)
    place(game, z=3.0)
    heights = []
    for _ in range(40):
        press(game, out, "forward")
        heights += at(game, "z")
    steps = -np.diff(heights)
    falling = steps[steps > 0]
    assert heights[0] == 3.0 and heights[-1] == 0.0 and (steps >= 0).all()
    assert (np.diff(falling[:-1]) > 0).all() and 8 <= len(falling) <= 12
    (x,) = at(game, "x")
    assert x > 34.3


@pytest.mark.parametrize("high", [1, 2])
def test_rocks_stop_a_player_and_no_axe_breaks_them(meadow: tuple[Treechop, Rows], high: int) -> None:
    """A rock stops a walk at its side, and however long it is attacked, it stays and hides the tree behind it."""
    game, out = meadow
    put(game, 34, 32, ground=high, rock=True)
    put(game, 35, 32, logs=TRUNK)
    before = worlds(game).copy()
    press(game, out, "forward", ticks=40)
    assert at(game, "x")[0] == pytest.approx(34 - 0.3, abs=1e-3)
    press(game, out, camera=(40.0, 0.0))  # down to the rock
    for _ in range(2):
        assert press(game, out, "attack", ticks=30) == 0 and at(game, "aim", "worn") == [-1, 0]
        press(game, out, camera=(20.0, 0.0))
    assert np.array_equal(worlds(game), before)
    press(game, out, "forward", "jump", ticks=9)
    press(game, out, "forward", ticks=10)
    assert at(game, "z") == [1.0 if high == 1 else 0.0]


def test_a_hill_in_the_way_hides_what_is_behind_it(meadow: tuple[Treechop, Rows]) -> None:
    """A log behind a hill as high as the view is not aimed at until the hill is away."""
    game, out = meadow
    put(game, 34, 32, ground=2)
    put(game, 35, 32, logs=TRUNK)
    assert press(game, out, "attack", ticks=15) == 0
    put(game, 34, 32)
    assert press(game, out, "attack", ticks=10) == 1.0


def test_a_tree_on_a_hill_is_chopped(meadow: tuple[Treechop, Rows]) -> None:
    """A log above the ground of a hill breaks like any other, and the ground below it stays."""
    game, out = meadow
    for x in range(30, 36):
        put(game, x, 32, ground=2, logs=TRUNK << 2 if x == 35 else 0)
    place(game, z=2.0, x=32.5)
    assert press(game, out, "attack", ticks=10) == 1.0
    assert logs(game)[35, 32] == 0b1101 << 2
    press(game, out, "forward", ticks=40)
    x, z = at(game, "x", "z")
    assert x == pytest.approx(35 - 0.3, abs=1e-3) and z == 2.0
