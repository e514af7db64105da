"""A scripted player for board games that searches one move ahead: win if possible, else block, else play anything."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled

DIRECTIONS = np.array([[0, 1], [1, 0], [1, 1], [1, -1]])


@compiled
def completes_line(board: Array, row: int, column: int, plane: int, need: int, directions: Array) -> bool:
    """Return whether a stone here would complete a line of `need` stones of one plane of the board [h, w, 2]."""
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
def mark_moves(boards: Array, need: int, falls: bool, directions: Array, mask: Array) -> None:
    """Mark the moves to choose from on boards [rows, h, w, 2], own stones first: wins, else blocks, else all.

    If stones fall, a move is a column, and the stone lands on the stones below it; otherwise a move is a square.
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
                if plane == 2 or completes_line(board, row, column, plane, need, directions):
                    mask[n, move] = 1
                    found = True
            if found:
                break


def best_moves(height: int, width: int, need: int, falls: bool, obs: Array) -> Array:
    """The mask [rows, moves] of moves to choose from, for observations [rows, h * w * 2] of one such game."""
    mask = np.zeros((len(obs), width if falls else height * width), np.uint8)
    boards = np.ascontiguousarray(obs, np.float32).reshape(-1, height, width, 2)
    mark_moves(boards, need, falls, DIRECTIONS, mask)
    return mask
