"""Images of games: positions, colours, and names of state columns."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart.drawing import ASPHALT
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.canvas import BLUE, ORANGE, WHITE
from slipstream.envs.render.scenes import SIZE, draw, measured_step_seconds, state_labels
from slipstream.vector.make import make_vector


def begun(env: str) -> dict[str, Array]:
    """The state of an env at the start of its first game."""
    vector = make_vector(EnvChoice(env), 1)
    vector.reset(empty_rows(vector.spec, 1))
    return vector.snapshot()


def near(frame: Array, colour: tuple[int, ...], within: int = 30) -> Array:
    """The pixels whose colour is close to the given one."""
    return (np.abs(frame.astype(int) - colour[:3]).max(axis=-1)) < within


def test_soccer() -> None:
    """The ball and the first car are drawn at their positions: x to the right, y upwards."""
    state = begun("soccer")
    values = {"ball.x": 21.0, "ball.y": 10.0, "cars.0.x": -21.0, "cars.0.y": -10.0, "cars.0.hx": 1.0, "cars.0.hy": 0.0}
    for name, value in values.items():
        state["state"][0, state_labels("soccer", state)["state"].index(name)] = value
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
    frame = draw("kart:easy", begun("kart:easy"))
    assert frame is not None
    middle = frame[SIZE[1] // 2 - 8 : SIZE[1] // 2 + 8, SIZE[0] // 2 - 8 : SIZE[0] // 2 + 8]
    assert near(middle, BLUE).any()
    assert near(frame, ASPHALT, 4).sum() > 5000
    assert draw("recall", {}) is None


def test_treechop() -> None:
    """The player's view is drawn enlarged: grass below, sky above."""
    frame = draw("treechop:sparse", begun("treechop:sparse"))
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
    """The columns named as the x of the two cars hold them: at a kick-off the first one is to the left."""
    snapshot = begun("soccer")
    first, second = (state_labels("soccer", snapshot)["state"].index(f"cars.{car}.x") for car in (0, 1))
    assert snapshot["state"][0, second] > 0 > snapshot["state"][0, first]
    assert (first, second) == (4 + 1 + 8, 4 + 1 + 8 + 13), "behind the ball, the goal, the pads and the first car"


def test_seconds_per_step() -> None:
    """Seconds per step are ticks between two clocks over 60; games without ticks keep the usual value."""
    one = begun("soccer")
    states = {name: np.repeat(array, 2, axis=0) for name, array in one.items()}
    array, column = next(
        (states[name], columns.index("ticks_left"))
        for name, columns in state_labels("soccer", one).items()
        if "ticks_left" in columns
    )
    array[:, column] = 3600, 3592
    assert measured_step_seconds("soccer", states, 0.5) == pytest.approx(8 / 60)
    assert measured_step_seconds("recall", states, 0.5) == measured_step_seconds("soccer", one, 0.5) == 0.5
