"""Treechop's lumberjack, a scripted player that uses the image alone: find bark, turn to it, walk there and attack.

It searches for the widest run of bark in a row of pixels, which belongs to the nearest tree. A block within reach is
highlighted, and the width of a trunk in pixels gives its distance. The player has no memory, so a policy without memory
can imitate it, or do better: it stops for every turn, does not plan a path, and ignores logs hidden by leaves. Of a
larger image it looks at 64 x 64 pixels.
"""

from __future__ import annotations

import numpy as np

from slipstream.envs import native
from slipstream.envs.treechop.columns import PIXELS, Action, Seen
from slipstream.envs.treechop.rendering import OPENING

GRID = 64
MIDDLE = GRID // 2
STRAIGHT, STRIDE = 7, 12
"""The largest offset in pixels that counts as straight ahead, and the pixels that a turn of 15 degrees moves the image.
The former is more than half of the latter, so a turn is never followed by a turn back."""
NEAR, CLOSE, FAVOUR = 12.0, 24.0, 3.0
"""The width of a trunk in degrees when it is about within reach, and when it is close enough (2.3 metres); and the
bonus in degrees of a tree straight ahead."""
ANGLES = np.degrees(np.arctan((np.arange(GRID + 1) - MIDDLE) / MIDDLE * OPENING))
"""The angle of the left edge of each pixel column, positive to the right."""
LOOK = 15.0
FEW, MANY = GRID * GRID // 5, GRID * GRID * 4 // 5
"""Grass pixels: fewer mean that the player looks at the sky, more that it looks at the ground."""
NO, BARK, LIT_BARK, LIT_LEAF, GRASS = 0, 1, 2, 3, 4


@native.function
def kind_of(seen: Seen, row: int, column: int) -> int:
    """Classify a pixel by its hue."""
    y, x = row * (PIXELS // GRID), column * (PIXELS // GRID)
    r, g, b = seen.pov[y, x, 0], seen.pov[y, x, 1], seen.pov[y, x, 2]
    if 100 * r > 112 * g:
        return LIT_BARK if 100 * b > 50 * r else BARK
    if b > g:
        return NO
    if 100 * b > 48 * g:
        return LIT_LEAF
    return GRASS if 100 * r > 55 * g else NO


@native.function
def is_bark(seen: Seen, row: int, column: int) -> bool:
    """Whether a pixel shows a trunk."""
    kind = kind_of(seen, row, column)
    return BARK <= kind <= LIT_BARK


@native.function
def off_middle(first: int, last: int) -> int:
    """The offset in pixels of a run from the middle: positive to the right, 0 if the run covers the middle."""
    if first > MIDDLE:
        return first - MIDDLE
    return last - MIDDLE if last < MIDDLE else 0


@native.function
def find(seen: Seen) -> tuple[int, int, int, float]:
    """The row, the first and last column and the width of the bark to turn to; the width is 0 if there is none.

    Among near trunks, the one that needs the smallest turn is chosen, so that turning never changes the choice.
    Otherwise the widest one is chosen, in degrees, because objects at the edge of the image appear wider in pixels.
    """
    best, row_found, first, last, width = -1e9, MIDDLE, MIDDLE, MIDDLE, 0.0
    for half_row in range(GRID // 2):
        row = 2 * half_row
        begin = -1
        for column in range(GRID + 1):
            here = column < GRID and is_bark(seen, row, min(column, GRID - 1))
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


@native.function
def thickness(seen: Seen, row: int, column: int, way: int) -> int:
    """The number of bark pixels from here upwards (-1) or downwards (1)."""
    long = 0
    while 0 <= row + way * long < GRID and is_bark(seen, row + way * long, column):
        long += 1
    return long


@native.function
def count_grass(seen: Seen) -> int:
    """The approximate number of grass pixels."""
    grass = 0
    for row in range(GRID):
        for column in range(GRID // 4):
            grass += 4 if kind_of(seen, row, 4 * column) == GRASS else 0
    return grass


@native.function
def search(seen: Seen, action: Action) -> None:
    """Level the view, then turn right."""
    grass = count_grass(seen)
    if grass < FEW:
        action.pitch = LOOK
    elif grass > MANY:
        action.pitch = -LOOK
    else:
        action.yaw = LOOK


def lumberjack(seen: Seen, action: Action) -> None:
    """Find bark, turn to it, walk there and attack."""
    action.attack, action.forward, action.jump, action.pitch, action.yaw = 0, 0, 0, 0.0, 0.0
    action.back, action.left, action.right, action.sneak, action.sprint = 0, 0, 0, 0, 0
    ahead = kind_of(seen, MIDDLE, MIDDLE)
    row, first, last, wide = find(seen)
    if ahead == LIT_BARK:
        action.attack = 1
        action.forward = 1 if wide < CLOSE else 0
        return
    if wide == 0.0:
        search(seen, action)
        return
    right, below = off_middle(first, last), row - MIDDLE
    way = 1 if below > 0 else -1
    # Turn if the bark is far from the middle, or so large that a turn cannot overshoot it.
    aside = abs(right) > STRAIGHT or (right > 0 and last - MIDDLE >= STRIDE) or (right < 0 and MIDDLE - first >= STRIDE)
    high = abs(below) > STRAIGHT or (
        abs(below) > 1 and abs(below) + thickness(seen, row, min(max(MIDDLE, first), last), way) > STRIDE
    )
    if aside and (abs(right) >= abs(below) or not high):
        action.yaw = LOOK if right > 0 else -LOOK
    elif (high and wide >= NEAR) or abs(below) > STRAIGHT:
        action.pitch = LOOK * way
    elif ahead == LIT_LEAF:
        action.attack = 1
    else:
        action.forward = 1
        action.jump = 1 if wide >= NEAR and ahead != BARK else 0
