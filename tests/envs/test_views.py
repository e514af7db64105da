"""Games from above: what stands where, in which colour."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.collect.vectors import make_vector
from slipstream.core.contracts import Array
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer.layout import BALL, CARS, HX, HY, X, Y
from slipstream.envs.views import ASPHALT, BLUE, GRASS, ORANGE, WHITE, draw, paint


def has(frame: Array, colour: tuple[int, int, int]) -> Array:
    """Where a colour is."""
    return (frame == colour).all(axis=-1)


def test_discs_stand_where_they_are_put() -> None:
    """x goes to the right and y upwards from the centre."""
    frame = paint([(3.0, 1.0, 0.5, WHITE)], (1.0, 0.0), (4.0, 2.0))
    assert frame.shape == (120, 240, 3)
    rows, columns = np.nonzero(has(frame, WHITE))
    assert rows.mean() == pytest.approx(120 * (2 - 1) / 4, abs=1)
    assert columns.mean() == pytest.approx(240 * (4 + 2) / 8, abs=1)
    assert has(frame, GRASS).sum() == 240 * 120 - len(rows)


def test_soccer() -> None:
    """Both teams and the ball are seen, the ball where the state says."""
    state = make_vector(EnvChoice("soccer"), 1).snapshot()
    state["state"][0, [BALL + X, BALL + Y]] = (21.0, 10.0)
    state["state"][0, [CARS + X, CARS + Y, CARS + HX, CARS + HY]] = (-21.0, -10.0, 1.0, 0.0)
    frame = draw("soccer", state)
    assert frame is not None
    height, width, _ = frame.shape
    rows, columns = np.nonzero(has(frame, WHITE))
    right = columns > width / 2 + 20
    assert rows[right].mean() < height / 2 < rows[columns < width / 2 - 20].mean()
    assert has(frame, BLUE)[height // 2 :, : width // 2].any()
    assert has(frame, ORANGE).any()


def test_kart() -> None:
    """The kart is in the middle, on asphalt; other games have no picture."""
    frame = draw("kart", make_vector(EnvChoice("kart"), 1).snapshot())
    assert frame is not None
    height, width, _ = frame.shape
    assert has(frame, BLUE)[height // 2 - 2 : height // 2 + 3, width // 2 - 2 : width // 2 + 3].any()
    assert has(frame, ASPHALT).sum() > 500
    assert draw("recall", {}) is None
