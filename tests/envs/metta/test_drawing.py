"""The drawing of MettaGrid games: walls are one surface without seams, and leaders are shown only if there are any."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.metta.drawing import WALL, GridScene


def world(tall: int, wide: int, earned: float = 0.0) -> dict[str, Array]:
    """One step of a walled room with two agents, the first of which has earned something."""
    cells = np.zeros((1, tall, wide), np.uint8)
    cells[0, [0, -1]], cells[0, :, [0, -1]] = 2, 2
    return {
        "cells": cells,
        "stock": np.zeros((1, tall, wide), np.uint16),
        "agents": np.array([[[1, 1, 0], [2, 2, 0]]], np.int16),
        "held": np.zeros((1, 2, 1), np.uint16),
        "earned": np.array([[earned, 0.0]], np.float32),
        "clock": np.array([[3, 30]], np.int32),
        "names": np.frombuffer(b"agent,wall\nheart", np.uint8)[None],
    }


@pytest.mark.parametrize(("size", "tall", "wide"), [((699, 433), 30, 60), ((480, 290), 11, 11), ((640, 360), 101, 151)])
def test_walls_are_one_surface(size: tuple[int, int], tall: int, wide: int) -> None:
    """Along the middle of a wall, across or down, all pixels have its colour, whatever the size of a cell."""
    scene = GridScene(size, world(tall, wide), 0.0)
    picture = np.asarray(scene.paint(0)).astype(int)
    cell, (left, top) = scene._cell, scene._corner
    middle = int(cell / 2)
    across = picture[int(top) + middle, int(left) + 1 : int(left + wide * cell) - 1]
    down = picture[int(top + cell) : int(top + (tall - 1) * cell), int(left) + middle]
    assert np.abs(down - WALL).max() <= 2
    assert np.ptp(across, axis=0).max() <= 2


def test_leaders_need_different_rewards() -> None:
    """While all agents have earned the same, the panel lists none of them."""
    equal, other = (np.asarray(GridScene((640, 360), world(9, 9, earned), 0.0).paint(0)) for earned in (0.0, 5.0))
    empty = [len(np.unique(picture[112:300, 480:620].reshape(-1, 3), axis=0)) == 1 for picture in (equal, other)]
    assert empty == [True, False]
