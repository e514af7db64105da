"""The lookahead player on boards set up by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from slipstream.agents.specs import load_agent, scripted_players
from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.envs.lookahead import best_moves
from slipstream.envs.registry import EnvChoice
from slipstream.system.rng import make_streams

FOUR = partial(best_moves, 6, 7, 4, True)
THREE = partial(best_moves, 3, 3, 3, False)


def board(*lines: str) -> np.ndarray:
    """A board of x (own stones), o (the other's) and dots, the top line first, as an observation."""
    cells = np.array([list(line) for line in lines])
    return np.stack([cells == "x", cells == "o"], axis=-1).astype(np.float32).reshape(1, -1)


EMPTY = ".......", ".......", "......."


@pytest.mark.parametrize(
    ("lines", "moves"),
    [
        ((*EMPTY, ".......", ".......", "......."), [0, 1, 2, 3, 4, 5, 6]),
        ((*EMPTY, ".......", ".......", "xxx.ooo"), [3]),  # a win that also blocks
        ((*EMPTY, ".......", ".......", ".xxx..."), [0, 4]),
        ((*EMPTY, ".......", ".......", ".ooo..."), [0, 4]),  # either blocks one of two
        ((*EMPTY, "o......", "o.....x", "o.x.x.x"), [0]),  # upwards
        (
            (*EMPTY, "...x...", "..xo...", ".xoo..."),
            [0, 1, 2, 3, 4, 5, 6],
        ),  # a diagonal without support
        ((".......", ".......", "....o..", "...xo..", "..xoo..", ".xoox.."), [4]),  # the same with support
        (("...o...", "...x...", "...o...", "...x...", "...o...", "...x..."), [0, 1, 2, 4, 5, 6]),  # a full column
        ((*EMPTY, ".......", ".......", "xx.x..."), [2]),
    ],
)
def test_connect_four(lines: tuple[str, ...], moves: list[int]) -> None:
    """Wins come before blocks before all moves, along rows, columns and both diagonals, where a stone can land."""
    assert np.flatnonzero(FOUR(board(*lines))[0]).tolist() == moves


@pytest.mark.parametrize(
    ("lines", "moves"),
    [
        (("...", "...", "..."), list(range(9))),
        (("x.o", ".xo", "..."), [8]),
        (("o..", ".o.", "x.."), [8]),
        (("xox", "oxo", "oxo"), []),
    ],
)
def test_tictactoe(lines: tuple[str, ...], moves: list[int]) -> None:
    """Squares instead of columns."""
    assert np.flatnonzero(THREE(board(*lines))[0]).tolist() == moves


def test_the_player_chooses_at_random_among_them() -> None:
    """The player is an agent that draws its moves evenly from the row's own stream."""
    choice = EnvChoice("pettingzoo:connect_four")
    assert scripted_players(choice.name) == ["lookahead"]
    spec = EnvSpec(choice.name, vector_obs(84), ActionSpec("discrete", (7,), masked=True), teams=(0, 1))
    agent = load_agent("scripted:lookahead", spec, choice)
    obs = np.repeat(board(*EMPTY, ".......", ".......", ".ooo..."), 400, axis=0)
    out, streams = np.zeros((400, 1), np.int32), make_streams(0, "x", 0, 400)
    agent.act_into(obs, np.ones((400, 7), np.uint8), streams, out)
    counts = np.bincount(out[:, 0], minlength=7)
    assert counts.sum() == counts[0] + counts[4] and 150 < counts[0] < 250
