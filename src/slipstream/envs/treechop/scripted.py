"""Treechop's lumberjack, a scripted player that uses the image alone: find bark, turn to it, walk there and attack.

It searches for the widest run of bark in a row of pixels, which belongs to the nearest tree. A block within reach is
highlighted, and the width of a trunk in pixels gives its distance. The player has no memory, so a policy without memory
can imitate it, or do better: it stops for every turn, does not plan a path, and ignores logs hidden by leaves.
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
"""The largest offset in pixels that counts as straight ahead, and the pixels that a turn of 15 degrees moves the image.
The former is more than half of the latter, so a turn is never followed by a turn back."""
NEAR, CLOSE, FAVOUR = 12.0, 24.0, 3.0
"""The width of a trunk in degrees when it is about within reach, and when it is close enough (2.3 metres); and the
bonus in degrees of a tree straight ahead."""
ANGLES = np.degrees(np.arctan((np.arange(PIXELS + 1) - MIDDLE) / MIDDLE * OPENING))
"""The angle of the left edge of each pixel column, positive to the right."""
LOOK = F(15.0)
FEW, MANY = PIXELS * PIXELS // 5, PIXELS * PIXELS * 4 // 5
"""Grass pixels: fewer mean that the player looks at the sky, more that it looks at the ground."""
NUMBERS = 4 * len(SCALARS)
"""Bytes before the image if scalars are enabled."""
NO, BARK, LIT_BARK, LIT_LEAF, GRASS = 0, 1, 2, 3, 4


@inlined
def kind_of(image: Array, row: int, column: int) -> int:
    """Classify a pixel by its hue."""
    at = 3 * (row * PIXELS + column)
    r, g, b = int(image[at]), int(image[at + 1]), int(image[at + 2])
    if 100 * r > 112 * g:
        return LIT_BARK if 100 * b > 50 * r else BARK
    if b > g:
        return NO
    if 100 * b > 48 * g:
        return LIT_LEAF
    return GRASS if 100 * r > 55 * g else NO


@inlined
def is_bark(image: Array, row: int, column: int) -> bool:
    """Return whether a pixel shows a trunk."""
    kind = kind_of(image, row, column)
    return kind in (BARK, LIT_BARK)


@inlined
def find(image: Array) -> tuple[int, int, int, float]:
    """Return the row, the first and last column and the width of the bark to turn to; the width is 0 if there is none.

    Among near trunks, the one that needs the smallest turn is chosen, so that turning never changes the choice.
    Otherwise the widest one is chosen, in degrees, because objects at the edge of the image appear wider in pixels.
    """
    best, row_found, first, last, width = -1e9, MIDDLE, MIDDLE, MIDDLE, 0.0
    for row in range(0, PIXELS, 2):
        begin = -1
        for column in range(PIXELS + 1):
            here = column < PIXELS and is_bark(image, row, column)
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
    """Return the offset in pixels of a run from the middle: positive to the right, 0 if the run covers the middle."""
    return first - MIDDLE if first > MIDDLE else (last - MIDDLE if last < MIDDLE else 0)


@inlined
def thickness(image: Array, row: int, column: int, way: int) -> int:
    """Return the number of bark pixels from here upwards (-1) or downwards (1)."""
    long = 0
    while 0 <= row + way * long < PIXELS and is_bark(image, row + way * long, column):
        long += 1
    return long


@inlined
def count_grass(image: Array) -> int:
    """Return the approximate number of grass pixels."""
    grass = 0
    for row in range(PIXELS):
        for column in range(0, PIXELS, 4):
            grass += 4 if kind_of(image, row, column) == GRASS else 0
    return grass


@inlined
def search(image: Array, camera: Array) -> None:
    """Level the view, then turn right."""
    grass = count_grass(image)
    if grass < FEW:
        camera[0] = LOOK
    elif grass > MANY:
        camera[0] = -LOOK
    else:
        camera[1] = LOOK


@inlined
def decide(image: Array, pressed: Array, camera: Array) -> None:
    """Write the buttons and the camera turn for one image."""
    for k in range(BUTTON_COUNT):
        pressed[k] = 0
    camera[0] = camera[1] = F(0.0)
    ahead = kind_of(image, MIDDLE, MIDDLE)
    row, first, last, wide = find(image)
    if ahead == LIT_BARK:
        pressed[ATTACK] = 1
        pressed[FORWARD] = 1 if wide < CLOSE else 0
        return
    if wide == 0.0:
        search(image, camera)
        return
    right, below = off_middle(first, last), row - MIDDLE
    way = 1 if below > 0 else -1
    # Turn if the bark is far from the middle, or so large that a turn cannot overshoot it.
    aside = abs(right) > STRAIGHT or (right > 0 and last - MIDDLE >= STRIDE) or (right < 0 and MIDDLE - first >= STRIDE)
    high = abs(below) > STRAIGHT or (
        abs(below) > 1 and abs(below) + thickness(image, row, min(max(MIDDLE, first), last), way) > STRIDE
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
    """Decide for every row; the image follows the scalars, if there are any."""
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
