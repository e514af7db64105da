"""Actions: every control value can be reached by every kind of action."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kart_laps import begun, columns
from slipstream.contracts import Array
from slipstream.envs.kart.game import game as kart
from slipstream.envs.native import controls
from slipstream.envs.native.controls import KINDS
from slipstream.system.numba_compile import twin

TABLE = np.array(list(product((-1, 0, 1), repeat=2)), np.float32)
"""Steer and throttle of each discrete action."""
ALL = set(product((-1.0, 0.0, 1.0), repeat=2))


def decoded(kind: str, actions: Array) -> list[tuple[float, ...]]:
    """Return steer and throttle that cars get from each action."""
    game, out = begun(len(actions), actions=kind)
    game.step(actions.astype(game.spec.action.dtype), out)
    return [tuple(float(v) for v in row) for row in columns(game, "steer", "throttle")]


def test_discrete_table() -> None:
    """Nine actions are all of left, straight and right with brake, coast and throttle; a wrong index stays inside."""
    table = decoded("discrete", np.arange(9)[:, None])
    assert set(table) == ALL and table == [tuple(map(float, row)) for row in TABLE]
    assert decoded("discrete", np.array([[-5], [999]])) == [(-1, -1), (1, 1)]
    assert kart.spec(actions="discrete").action.sizes == (9,)


def test_multi_discrete() -> None:
    """Three options for each control reach the same nine."""
    assert set(decoded("multi_discrete", np.array(list(product(range(3), repeat=2))))) == ALL
    assert kart.spec(actions="multi_discrete").action.sizes == (3, 3)


def test_continuous() -> None:
    """Both controls take any value in [-1, 1], the rest is clipped, and NaN is 0."""
    actions = np.array([[0.25, -0.5], [9, -9], [np.nan, np.nan]])
    assert decoded("continuous", actions) == [(0.25, -0.5), (1, -1), (0, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_encode_is_the_inverse(kind: str) -> None:
    """Encoding the controls of the table and decoding them again changes nothing."""
    spec = kart.spec(actions=kind).action
    actions = np.zeros((len(TABLE), spec.parts), spec.dtype)
    held = kart.classes().action
    numbers = controls.numbers_of(held, controls.combine("kart", held, ()), np.float32)
    option_of = twin(controls.option_template, "option_of", **numbers)
    encode = twin(controls.encode_template, "encode", option_of=option_of, **numbers)
    for row in range(len(TABLE)):
        encode(TABLE, row, KINDS.index(kind), actions)
    assert decoded(kind, actions) == [tuple(map(float, row)) for row in TABLE]
