"""Treechop's lumberjack, who acts on the picture alone: finds bark, turns to it, walks there and holds the axe to it.

It looks for the widest stretch of bark in a row of pixels, which belongs to the nearest tree. What it sees tells all
that it needs: a block within reach is lit, and one that is 1 metre wide and so many pixels is that far away. It
remembers nothing, so whoever sees the same pictures can learn to do the same, or to do better: it stops for every turn,
knows no shorter way, and gives leaves that hide the last log no thought.
"""

from __future__ import annotations

import numpy as np

from slipstream.core.actions import BUTTONS, action_map
from slipstream.core.compile import compiled, inlined
from slipstream.core.contracts import Array
from slipstream.core.errors import ConfigError, did_you_mean
from slipstream.envs.treechop.game import MAPS, SCALARS
from slipstream.envs.treechop.layout import ATTACK, BUTTON_COUNT, FORWARD, PIXELS, F
from slipstream.envs.treechop.view import OPENING

SCRIPTED = ("lumberjack",)
MIDDLE = PIXELS // 2
STRAIGHT, STRIDE = 8, 12
"""Pixels off the middle that are straight ahead, and those that a look of 15 degrees moves the picture. The former is
more than half of the latter: who turned once and sees the same a little differently does not turn back."""
CLOSE, FAVOUR = 24.0, 1.5
"""Degrees that a trunk is wide when it is near enough, 2.3 metres, and what a tree ahead has before the others."""
ANGLES = np.degrees(np.arctan((np.arange(PIXELS + 1) - MIDDLE) / MIDDLE * OPENING))
"""How far to the right the left edge of each column is."""
LOOK = F(15.0)
FEW, MANY = PIXELS * PIXELS // 5, PIXELS * PIXELS * 4 // 5
"""Pixels of grass: with fewer one looks at the sky, with more at one's feet."""
NUMBERS = 4 * len(SCALARS)
"""Bytes before the picture, where numbers stand beside it."""
NO, BARK, LIT_BARK, LIT_LEAF, GRASS = 0, 1, 2, 3, 4


@inlined
def kind_of(picture: Array, row: int, column: int) -> int:
    """Return what a pixel shows, by its hue."""
    at = 3 * (row * PIXELS + column)
    r, g, b = int(picture[at]), int(picture[at + 1]), int(picture[at + 2])
    if 100 * r > 112 * g:
        return LIT_BARK if 100 * b > 50 * r else BARK
    if b > g:
        return NO
    if 100 * b > 48 * g:
        return LIT_LEAF
    return GRASS if 100 * r > 55 * g else NO


@inlined
def is_bark(picture: Array, row: int, column: int) -> bool:
    """Return whether a pixel shows a trunk."""
    kind = kind_of(picture, row, column)
    return kind == BARK or kind == LIT_BARK


@inlined
def find(picture: Array) -> tuple[int, float]:
    """Return the column and the width in degrees of the widest stretch of bark in any row; of width 0 if there is none.

    Degrees, not pixels: what is at the edge of a picture looks wider, and would be turned to in vain. What is ahead
    already is given some more, so that of two alike one is chosen for good.
    """
    best, chosen, width = 0.0, MIDDLE, 0.0
    for row in range(0, PIXELS, 2):
        begin = -1
        for column in range(PIXELS + 1):
            here = column < PIXELS and is_bark(picture, row, column)
            if here and begin < 0:
                begin = column
            elif not here and begin >= 0:
                wide, middle = ANGLES[column] - ANGLES[begin], (begin + column) // 2
                score = wide + (FAVOUR if abs(middle - MIDDLE) <= STRAIGHT else 0.0)
                if score > best:
                    best, chosen, width = score, middle, wide
                begin = -1
    return chosen, width


@inlined
def climb(picture: Array, column: int) -> int:
    """Return the looks down (or, below 0, up) to the next bark in a column: 0 if it is ahead or too little to aim at."""
    best, looks = PIXELS, 0
    for way in range(-1, 2, 2):
        off = 0
        while abs(off) < MIDDLE and not is_bark(picture, MIDDLE + off, column):
            off += way
        long = 0
        while abs(off + way * long) < MIDDLE and is_bark(picture, MIDDLE + off + way * long, column):
            long += 1
        if long and abs(off) < best:
            best = abs(off)
            looks = 0 if off == 0 or (best < STRIDE and long < STRIDE - best) else way
    return looks


@inlined
def search(picture: Array, camera: Array) -> None:
    """Look around, level."""
    grass = 0
    for row in range(PIXELS):
        for column in range(0, PIXELS, 4):
            grass += 4 if kind_of(picture, row, column) == GRASS else 0
    if grass < FEW:
        camera[0] = LOOK
    elif grass > MANY:
        camera[0] = -LOOK
    else:
        camera[1] = LOOK


@inlined
def decide(picture: Array, pressed: Array, camera: Array) -> None:
    """Say what to press and where to look."""
    for k in range(BUTTON_COUNT):
        pressed[k] = 0
    camera[0] = camera[1] = F(0.0)
    ahead = kind_of(picture, MIDDLE, MIDDLE)
    column, wide = find(picture)
    if ahead == LIT_BARK:
        pressed[ATTACK] = 1
        pressed[FORWARD] = 1 if wide < CLOSE else 0
        return
    if wide == 0.0:
        search(picture, camera)
        return
    if abs(column - MIDDLE) > STRAIGHT:
        camera[1] = LOOK if column > MIDDLE else -LOOK
        return
    looks = climb(picture, column)
    if looks != 0:
        camera[0] = LOOK * F(looks)
    elif ahead == LIT_LEAF:
        pressed[ATTACK] = 1
    else:
        pressed[FORWARD] = 1


@compiled
def decide_rows(obs: Array, buttons: Array, camera: Array) -> None:
    """Decide for every row; the picture is behind the numbers, if there are any."""
    start = NUMBERS if obs.shape[1] > 3 * PIXELS * PIXELS else 0
    for row in range(obs.shape[0]):
        decide(obs[row, start:], buttons[row], camera[row])


def act(name: str, obs: Array, spec_kind: str, out: Array) -> None:
    """Write the actions [rows, parts] of a scripted player for observations [rows, obs]."""
    if name not in SCRIPTED:
        near = did_you_mean(name, SCRIPTED)
        raise ConfigError(f"Unknown scripted player `{name}`.{near}", f"one of {', '.join(SCRIPTED)}.")
    buttons, camera = np.zeros((len(obs), BUTTON_COUNT), np.uint8), np.zeros((len(obs), 2), np.float32)
    decide_rows(obs, buttons, camera)
    out[:] = action_map(MAPS[spec_kind]).encode(dict(zip(BUTTONS, buttons.T, strict=True)) | {"camera": camera})
