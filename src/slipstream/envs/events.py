"""What happened in a step, told from a game's state before and after it: touches, shots, saves, goals, laps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipstream.core.contracts import Array, Rows
from slipstream.envs.soccer import layout as at

SOON_S = 2.0
"""A ball that would be in the goal by then is on its way there."""
Told = list[tuple[str, int]]
"""Kinds of events and the agents they belong to."""


def happened(env: str, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int) -> Told:
    """The events of a step of one env, from its snapshots before and after; `last_touch` is who touched the ball last.

    Where the game ended, `after` is already the next one: only `rows` tell how it ended.
    """
    game = env.partition(":")[0]
    over = bool((rows.terminated | rows.truncated).any())
    if game == "kart":
        return [("lap", 0)] if over and rows.outcome[0] > 0 else []
    if game != "soccer":
        return []
    states = before["state"][0], after["state"][0]
    score, new_score = (snapshot["clock"][0][at.SCORE : at.SCORE + 2] for snapshot in (before, after))
    cars = (len(states[0]) - at.CARS) // at.CAR_SIZE
    if over:
        return _goals(score, _last_goal(score, rows), cars, last_touch)
    told: Told = []
    heading = [aims(state) for state in states]
    for car in range(cars):
        if states[1][at.CARS + car * at.CAR_SIZE + at.TOUCH] > 0:
            told.append(("touch", car))
            side = 1 if car < cars // 2 else -1
            if heading[0] == -side and heading[1] != -side:
                told.append(("save", car))
            if heading[1] == side and heading[0] != side:
                told.append(("shot", car))
            last_touch = car
    return told + _goals(score, new_score, cars, last_touch)


def aims(state: Array) -> int:
    """Into which goal the ball would roll soon: 1 the right one, -1 the left one, 0 neither."""
    x, y, vx, vy = (float(state[at.BALL + column]) for column in (at.X, at.Y, at.VX, at.VY))
    if vx == 0:
        return 0
    side = 1 if vx > 0 else -1
    seconds = (float(at.LENGTH) - side * x) / abs(vx)
    return side if 0 <= seconds < SOON_S and abs(y + vy * seconds) < float(at.GOAL_WIDTH) else 0


def _goals(before: Array, after: Array, cars: int, last_touch: int) -> Told:
    """Goals by the score; they belong to who touched the ball last, or to the first car of a side that did not."""
    told: Told = []
    for side in (0, 1):
        if after[side] > before[side]:
            mates = range(side * cars // 2, (side + 1) * cars // 2)
            told.append(("goal", last_touch if last_touch in mates else mates[0]))
    return told


def _last_goal(before: Array, rows: Rows) -> Array:
    """The score at the end, as far as the outcome tells: in overtime, the goal that ended it."""
    score = before.copy()
    lead = int(np.sign(score[0] - score[1]))
    if int(rows.outcome[0]) != lead:
        score[0 if int(rows.outcome[0]) > lead else 1] += 1
    return score
