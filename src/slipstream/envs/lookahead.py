"""A player for board games that looks one move ahead: it wins where it can, else stops a win, else plays anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled

DIRECTIONS = np.array([[0, 1], [1, 0], [1, 1], [1, -1]])


@compiled
def makes_line(board: Array, row: int, column: int, plane: int, need: int, directions: Array) -> bool:
    """Whether a stone at this place would stand in a line of so many, of those on one plane of a board [h, w, 2]."""
    height, width = board.shape[0], board.shape[1]
    for k in range(len(directions)):
        count = 1
        for sign in (-1, 1):
            r, c = row + sign * directions[k, 0], column + sign * directions[k, 1]
            while 0 <= r < height and 0 <= c < width and board[r, c, plane] > 0:
                count += 1
                r, c = r + sign * directions[k, 0], c + sign * directions[k, 1]
        if count >= need:
            return True
    return False


@compiled
def look_ahead(boards: Array, need: int, falls: bool, directions: Array, mask: Array) -> None:
    """Mark the moves worth playing on boards [rows, h, w, 2], own stones first: wins, else what stops one, else all.

    Where stones fall, a move is a column and its stone comes to lie on what is there; else it is a square.
    """
    height, width = boards.shape[1], boards.shape[2]
    for n in range(len(boards)):
        board = boards[n]
        for plane in (0, 1, 2):
            found = False
            for move in range(width if falls else height * width):
                row, column = (0, move) if falls else (move // width, move % width)
                mask[n, move] = 0
                if board[row, column, 0] > 0 or board[row, column, 1] > 0:
                    continue
                while falls and row + 1 < height and board[row + 1, column, 0] + board[row + 1, column, 1] == 0:
                    row += 1
                if plane == 2 or makes_line(board, row, column, plane, need, directions):
                    mask[n, move] = 1
                    found = True
            if found:
                break


def looker(height: int, width: int, need: int, falls: bool) -> Callable[[Array], Array]:
    """A player of one such game: the moves, for observations [rows, h * w * 2], one of which is to be played."""

    def choose(obs: Array) -> Array:
        mask = np.zeros((len(obs), width if falls else height * width), np.uint8)
        boards = np.ascontiguousarray(obs, np.float32).reshape(-1, height, width, 2)
        look_ahead(boards, need, falls, DIRECTIONS, mask)
        return mask

    return choose
