"""Actions: every control value can be reached by every kind of action."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.native import controls
from slipstream.envs.native.controls import KINDS
from slipstream.envs.soccer.columns import DRIVING
from slipstream.envs.soccer.game import game as soccer
from slipstream.system.numba_compile import twin
from soccer_matches import begun, car

TABLE = np.array(DRIVING, np.float32)


def decoded(kind: str, actions: Array) -> set[tuple[float, ...]]:
    """Return the controls that car 0 gets from each action."""
    envs = len(actions)
    game, out = begun(envs, actions=kind)
    both = np.repeat(actions, 2, axis=0)
    game.step(both.astype(game.spec.action.dtype), out)
    held = car(game, 0, "throttle", "steer", "boosting", "drifting")
    return {tuple(float(v) for v in row) for row in held}


def test_discrete_table() -> None:
    """The rows of the table are unique, and each steering value has reverse, coast, forward, boost and drift."""
    reached = decoded("discrete", np.arange(len(TABLE))[:, None])
    assert len(reached) == len(TABLE) == 18
    for steer in (-1, 0, 1):
        for pedals in ((-1, 0, 0), (0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)):
            assert (pedals[0], steer, *pedals[1:]) in reached
    assert (1, 0, 0, 0) in reached


def test_multi_discrete() -> None:
    """All 36 combinations are reached."""
    options = np.array(list(itertools.product(range(3), range(3), range(2), range(2))))
    expected = set(itertools.product((-1, 0, 1), (-1, 0, 1), (0, 1), (0, 1)))
    assert decoded("multi_discrete", options) == expected


def test_continuous() -> None:
    """Throttle and steer take any value in [-1, 1], boost and drift are on above 0, and the rest is clipped."""
    reached = decoded("continuous", np.array([[1, 0, -1, -1], [-0.5, 0.25, 0.1, -0.1], [9, -9, 9, 9], [np.nan] * 4]))
    assert reached == {(1, 0, 0, 0), (-0.5, 0.25, 1, 0), (1, -1, 1, 1), (0, 0, 0, 0)}


def test_an_index_out_of_the_table_is_held_inside() -> None:
    """A wrong index never reads outside the table."""
    assert decoded("discrete", np.array([[-5], [999]])) == {tuple(map(float, TABLE[0])), tuple(map(float, TABLE[-1]))}


@pytest.mark.parametrize("kind", KINDS)
def test_encode_is_the_inverse(kind: str) -> None:
    """Encoding the controls of the table and decoding them again changes nothing."""
    parts = {"discrete": 1}.get(kind, 4)
    actions = np.zeros((len(TABLE), parts), np.float32 if kind == "continuous" else np.int32)
    columns = soccer.classes().action
    indices = controls.combine("soccer", columns, DRIVING)
    numbers = controls.numbers_of(columns, indices, np.float32)
    option_of = twin(controls.option_template, "option_of", **numbers)
    encode = twin(controls.encode_template, "encode", option_of=option_of, **numbers)
    for row in range(len(TABLE)):
        encode(TABLE, row, KINDS.index(kind), actions)
    assert decoded(kind, actions) == {tuple(map(float, row)) for row in TABLE}
