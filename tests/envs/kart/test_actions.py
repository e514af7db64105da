"""Actions: every control value can be reached by every kind of action."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.actions import KINDS, SPECS, TABLE, encode
from slipstream.envs.kart.game import Kart

ALL = set(product((-1.0, 0.0, 1.0), repeat=2))


def decoded(kind: str, actions: Array) -> list[tuple[float, ...]]:
    """Return steer and throttle that cars get from each action."""
    game = Kart(len(actions), actions=kind)
    game.step(actions.astype(game.spec.action.dtype), empty_rows(game.spec, len(actions)))
    return [tuple(float(v) for v in row) for row in game.state[:, at.STEER : at.THROTTLE + 1]]


def test_discrete_table() -> None:
    """Nine actions are all of left, straight and right with brake, coast and throttle; a wrong index stays inside."""
    assert set(decoded("discrete", np.arange(9)[:, None])) == ALL
    assert decoded("discrete", np.array([[-5], [999]])) == [(-1, -1), (1, 1)]
    assert SPECS["discrete"].sizes == (9,)


def test_multi_discrete() -> None:
    """Three options for each control reach the same nine."""
    assert set(decoded("multi_discrete", np.array(list(product(range(3), repeat=2))))) == ALL


def test_continuous() -> None:
    """Both controls take any value in [-1, 1], the rest is clipped, and NaN is 0."""
    actions = np.array([[0.25, -0.5], [9, -9], [np.nan, np.nan]])
    assert decoded("continuous", actions) == [(0.25, -0.5), (1, -1), (0, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_encode_is_the_inverse(kind: str) -> None:
    """Encoding the controls of the table and decoding them again changes nothing."""
    spec = SPECS[kind]
    actions = np.zeros((len(TABLE), spec.parts), spec.dtype)
    for row, (steer, throttle) in enumerate(TABLE):
        encode(steer, throttle, KINDS.index(kind), actions, row)
    assert decoded(kind, actions) == [tuple(map(float, row)) for row in TABLE]
