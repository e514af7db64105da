"""Treechop's lumberjack, who acts on the picture alone: finds bark, turns to it, walks there and holds the axe to it.

It looks for the widest stretch of bark in a row of pixels, which belongs to the nearest tree. What it sees tells all
that it needs: a block within reach is lit, and one that is 1 metre wide and so many pixels is that far away. It
remembers nothing, so whoever sees the same pictures can learn to do the same, or to do better: it stops for every turn,
knows no shorter way, and gives leaves that hide the last log no thought.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.treechop.game import MAPS, SCALARS
from slipstream.envs.treechop.layout import ATTACK, BUTTON_COUNT, FORWARD, JUMP, PIXELS, F
from slipstream.envs.treechop.rendering import OPENING
from slipstream.errors import ConfigError, did_you_mean
from slipstream.minecraft.action_maps import BUTTONS, action_map
from slipstream.system.numba_compile import compiled, inlined

SCRIPTED = ("lumberjack",)
MIDDLE = PIXELS // 2
STRAIGHT, STRIDE = 7, 12
"""Pixels off the middle that are straight ahead, and those that a look of 15 degrees moves the picture. The former is
more than half of the latter: who turned once and sees the same a little differently does not turn back."""
NEAR, CLOSE, FAVOUR = 12.0, 24.0, 3.0
"""Degrees that a trunk is wide when it is within reach, about, and when it is near enough, at 2.3 metres; and what a
tree ahead has before the others."""
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
    return kind in (BARK, LIT_BARK)


@inlined
def find(picture: Array) -> tuple[int, int, int, float]:
    """Return the row, the first and the last column of the bark to turn to, and its width; 0 wide if there is none.

    Of what is near, that which needs the least turning: so turning towards it never makes another the better one, and
    nobody looks from one to the other for ever. Else the widest, in degrees and not in pixels, since what is at the
    edge of a picture looks wider.
    """
    best, row_found, first, last, width = -1e9, MIDDLE, MIDDLE, MIDDLE, 0.0
    for row in range(0, PIXELS, 2):
        begin = -1
        for column in range(PIXELS + 1):
            here = column < PIXELS and is_bark(picture, row, column)
            if here and begin < 0:
                begin = column
            elif not here and begin >= 0:
                wide = ANGLES[column] - ANGLES[begin]
                score = wide - 0.06 * abs(row - MIDDLE)
                score += FAVOUR if begin - STRAIGHT <= MIDDLE < column + STRAIGHT else 0.0
                if wide >= NEAR:
                    score = 1000.0 - abs(off_middle(begin, column - 1)) - abs(row - MIDDLE)
                if score > best:
                    best, row_found, first, last, width = score, row, begin, column - 1, wide
                begin = -1
    return row_found, first, last, width


@inlined
def off_middle(first: int, last: int) -> int:
    """Return how many pixels right of the middle a stretch begins, below 0: left of it ends, and 0 if it is there."""
    return first - MIDDLE if first > MIDDLE else (last - MIDDLE if last < MIDDLE else 0)


@inlined
def thickness(picture: Array, row: int, column: int, way: int) -> int:
    """Return how many pixels on from here, upwards (-1) or downwards (1), there is bark."""
    long = 0
    while 0 <= row + way * long < PIXELS and is_bark(picture, row + way * long, column):
        long += 1
    return long


@inlined
def count_grass(picture: Array) -> int:
    """Return how many pixels show grass, about."""
    grass = 0
    for row in range(PIXELS):
        for column in range(0, PIXELS, 4):
            grass += 4 if kind_of(picture, row, column) == GRASS else 0
    return grass


@inlined
def search(picture: Array, camera: Array) -> None:
    """Look around, level."""
    grass = count_grass(picture)
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
    row, first, last, wide = find(picture)
    if ahead == LIT_BARK:
        pressed[ATTACK] = 1
        pressed[FORWARD] = 1 if wide < CLOSE else 0
        return
    if wide == 0.0:
        search(picture, camera)
        return
    right, below = off_middle(first, last), row - MIDDLE
    way = 1 if below > 0 else -1
    # Worth a look: what is far off, and what is so large that a look cannot miss it
    aside = abs(right) > STRAIGHT or (right > 0 and last - MIDDLE >= STRIDE) or (right < 0 and MIDDLE - first >= STRIDE)
    high = abs(below) > STRAIGHT or (
        abs(below) > 1 and abs(below) + thickness(picture, row, min(max(MIDDLE, first), last), way) > STRIDE
    )
    if aside and (abs(right) >= abs(below) or not high):
        camera[1] = LOOK if right > 0 else -LOOK
    elif (high and wide >= NEAR) or abs(below) > STRAIGHT:
        camera[0] = LOOK * F(way)
    elif ahead == LIT_LEAF:
        pressed[ATTACK] = 1
    else:
        pressed[FORWARD] = 1
        pressed[JUMP] = 1 if wide >= NEAR and ahead != BARK else 0


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
