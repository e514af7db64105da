"""Images of games: positions, colours, and names of state columns."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart.drawing import ASPHALT
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.canvas import BLUE, ORANGE, WHITE
from slipstream.envs.render.scenes import SIZE, draw, measured_step_seconds, state_labels
from slipstream.envs.soccer.layout import BALL, CARS, HX, HY, X, Y
from slipstream.vector.make import make_vector


def near(frame: Array, colour: tuple[int, ...], within: int = 30) -> Array:
    """The pixels whose colour is close to the given one."""
    return (np.abs(frame.astype(int) - colour[:3]).max(axis=-1)) < within


def test_soccer() -> None:
    """The ball and the first car are drawn at their positions: x to the right, y upwards."""
    state = make_vector(EnvChoice("soccer"), 1).snapshot()
    state["state"][0, [BALL + X, BALL + Y]] = (21.0, 10.0)
    state["state"][0, [CARS + X, CARS + Y, CARS + HX, CARS + HY]] = (-21.0, -10.0, 1.0, 0.0)
    frame = draw("soccer", state)
    assert frame is not None and frame.shape == (SIZE[1], SIZE[0], 3) and frame.dtype == np.uint8
    scale = min(SIZE[0] / 2 / 43.5, SIZE[1] / 2 / 26.5)
    rows, columns = np.nonzero(near(frame, WHITE, 20))
    assert np.median(columns) == pytest.approx(SIZE[0] / 2 + 21 * scale, abs=4)
    assert np.median(rows) == pytest.approx(SIZE[1] / 2 - 10 * scale, abs=4)
    pitch = near(frame, BLUE)
    pitch[:, : round(SIZE[0] / 2 - 34 * scale)] = False
    rows, columns = np.nonzero(pitch)
    assert np.median(columns) == pytest.approx(SIZE[0] / 2 - 21 * scale, abs=4)
    assert np.median(rows) == pytest.approx(SIZE[1] / 2 + 10 * scale, abs=4)
    assert near(frame, ORANGE).any()


def test_kart() -> None:
    """A kart at rest is drawn in the middle, on asphalt; a game without a scene gives None."""
    game = make_vector(EnvChoice("kart:easy"), 1)
    game.reset(empty_rows(game.spec, 1))
    frame = draw("kart:easy", game.snapshot())
    assert frame is not None
    middle = frame[SIZE[1] // 2 - 8 : SIZE[1] // 2 + 8, SIZE[0] // 2 - 8 : SIZE[0] // 2 + 8]
    assert near(middle, BLUE).any()
    assert near(frame, ASPHALT, 4).sum() > 5000
    assert draw("recall", {}) is None


def test_treechop() -> None:
    """The player's view is drawn enlarged: grass below, sky above."""
    game = make_vector(EnvChoice("treechop:sparse"), 1)
    game.reset(empty_rows(game.spec, 1))
    frame = draw("treechop:sparse", game.snapshot())
    assert frame is not None and frame.shape == (SIZE[1], SIZE[0], 3)
    sky, grass = frame[30, SIZE[0] // 2].astype(int), frame[-10, SIZE[0] // 2].astype(int)
    assert sky[2] > sky[1] > sky[0] and grass[1] > grass[0] > grass[2]


@pytest.mark.parametrize("env", ["soccer", "soccer:3v3", "kart", "treechop"])
def test_columns_have_names(env: str) -> None:
    """Every column of the state has a name of its own."""
    snapshot = make_vector(EnvChoice(env), 1).snapshot()
    named = state_labels(env, snapshot)
    assert len(set(named["state"])) == len(named["state"]) == snapshot["state"].shape[1]
    assert "ticks_left" in named["state"]
    assert state_labels("recall", {}) == {}


def test_names_mean_the_columns() -> None:
    """The column named as the second car's x holds it."""
    snapshot = make_vector(EnvChoice("soccer"), 1).snapshot()
    place = state_labels("soccer", snapshot)["state"].index("car.1.x")
    assert place == CARS + 13 + X and snapshot["state"][0, place] > 0 > snapshot["state"][0, CARS + X]


def test_seconds_per_step() -> None:
    """Seconds per step are ticks between two clocks over 60; games without ticks keep the usual value."""
    one = make_vector(EnvChoice("soccer"), 1).snapshot()
    states = {name: np.repeat(array, 2, axis=0) for name, array in one.items()}
    array, column = next(
        (states[name], columns.index("ticks_left"))
        for name, columns in state_labels("soccer", one).items()
        if "ticks_left" in columns
    )
    array[:, column] = 3600, 3592
    assert measured_step_seconds("soccer", states, 0.5) == pytest.approx(8 / 60)
    assert measured_step_seconds("recall", states, 0.5) == measured_step_seconds("soccer", one, 0.5) == 0.5
