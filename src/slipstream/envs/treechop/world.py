"""Treechop's worlds: trees at random positions, and the distance from every cell to the nearest tree."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ZERO
from slipstream.envs.soccer.rng import draw
from slipstream.envs.treechop.layout import (
    AIM,
    BITS,
    CLOCK_SIZE,
    COUNTER,
    GAME,
    GAP,
    GAP_WOOD,
    GREEN,
    KEY,
    SHORTEST,
    SIDE,
    STATE_SIZE,
    TALLER,
    TICKS_LEFT,
    WOOD,
    WRAP,
    YAW,
    F,
    X,
    Y,
)
from slipstream.envs.treechop.raycast import bits_of
from slipstream.system.numba_compile import Number, compiled, inlined
from slipstream.system.rng import game_key, next_game

APART, TRIES = 3, 30
"""The smallest distance between trees, and from the player; after this many tries the distance is ignored."""
MIDDLE = SIDE // 2
FARTHEST = SIDE


@inlined
def cell_at(x: int, y: int) -> int:
    """Return the index of a cell; coordinates wrap around."""
    return ((x & WRAP) << BITS) | (y & WRAP)


@inlined
def plant(cells: Array, x: int, y: int, tall: int) -> None:
    """Add a tree: a trunk, leaves around its topmost log, and a cross of leaves above."""
    here = cell_at(x, y)
    cells[here] = bits_of(cells, here) | ((1 << tall) - 1) << WOOD
    for dx in range(-1, 2):
        for dy in range(-1, 2):
            cell = cell_at(x + dx, y + dy)
            green = 0 if dx == 0 and dy == 0 else 1 << (tall - 1)
            if dx == 0 or dy == 0:
                green |= 1 << tall
            cells[cell] = bits_of(cells, cell) | green << GREEN


@inlined
def crowded(cells: Array, x: int, y: int) -> bool:
    """Return whether a trunk, or the player's start in the middle, is near."""
    if max(abs(x - MIDDLE), abs(y - MIDDLE)) < APART:
        return True
    for dx in range(1 - APART, APART):
        for dy in range(1 - APART, APART):
            if (bits_of(cells, cell_at(x + dx, y + dy)) >> WOOD) & 255:
                return True
    return False


@compiled
def measure(cells: Array, kept: int, gap: int) -> None:
    """Write the Chebyshev distance to the nearest cell with any of these bits, by relaxation until nothing changes."""
    for cell in range(SIDE * SIDE):
        own = bits_of(cells, cell) & ~(255 << gap)
        cells[cell] = own if own & kept else own | FARTHEST << gap
    changed = True
    while changed:
        changed = False
        for cell in range(SIDE * SIDE):
            own = bits_of(cells, cell)
            far = (own >> gap) & 255
            least = far
            x, y = cell >> BITS, cell & WRAP
            for dx in range(-1, 2):
                for dy in range(-1, 2):
                    least = min(least, ((bits_of(cells, cell_at(x + dx, y + dy)) >> gap) & 255) + 1)
            if least < far:
                cells[cell] = own & ~(255 << gap) | least << gap
                changed = True


@compiled
def grow(clock: Array, cells: Array, trees: int) -> None:
    """Generate a new world with this many trees."""
    for cell in range(SIDE * SIDE):
        cells[cell] = 0
    for _ in range(trees):
        x, y, tries = 0, 0, 0
        while True:
            x, y = int(draw(clock) * F(SIDE)), int(draw(clock) * F(SIDE))
            tries += 1
            if not crowded(cells, x, y):
                break
            near = max(abs(x - MIDDLE), abs(y - MIDDLE)) < APART
            if tries > TRIES and not near and not (bits_of(cells, cell_at(x, y)) >> WOOD) & 255:
                break
        plant(cells, x, y, SHORTEST + int(draw(clock) * F(TALLER)))
    for cell in range(SIDE * SIDE):  # where trees touch, trunks replace leaves
        own = bits_of(cells, cell)
        cells[cell] = own & ~(((own >> WOOD) & 255) << GREEN)
    measure(cells, (255 << WOOD) | (255 << GREEN), GAP)
    measure(cells, 255 << WOOD, GAP_WOOD)


@compiled
def new_game(
    s: Array, clock: Array, cells: Array, game: int, trees: int, sums: Array, limit_ticks: int, random_starts: Number
) -> None:
    """Start the game of a seed, or (below 0) the env's next one, in the middle of a new world."""
    own = game if game >= 0 else next_game(clock[GAME])
    for k in range(sums.shape[0]):
        sums[k] = ZERO
    for k in range(STATE_SIZE):
        s[k] = ZERO
    for k in range(CLOCK_SIZE):
        clock[k] = 0
    clock[GAME], clock[KEY], clock[COUNTER] = own, game_key(own), 0
    clock[TICKS_LEFT], clock[AIM] = limit_ticks, -1
    grow(clock, cells, trees)
    s[X] = s[Y] = F(MIDDLE) + F(0.5)
    s[YAW] = draw(clock) * F(360.0) - F(180.0)
    if draw(clock) < random_starts:
        while True:
            x, y = draw(clock) * F(SIDE), draw(clock) * F(SIDE)
            if not crowded(cells, int(x), int(y)):
                s[X], s[Y] = x, y
                break
