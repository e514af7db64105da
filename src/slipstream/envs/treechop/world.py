"""Treechop's worlds: hills, rocks and trees at random positions, and the distances between columns with blocks."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.treechop.columns import (
    SIDE,
    TOP,
    WRAP,
    Forest,
    World,
    ground_of,
    is_rock,
    leaves_of,
    logs_of,
    solid_of,
)

SHORTEST, TALLER = 4, 3
"""Logs of a tree: the minimum, and the number of possible heights."""
APART, TRIES = 3, 30
"""The smallest distance between trees, and from the player; after this many tries the distance is ignored."""
MIDDLE = SIDE // 2
HIGHEST, WIDEST = 3, 9
"""The height of the highest hill, and the number of its possible widths."""
STEP = 2
"""Metres of a slope for each block of height, so that a player can jump up."""
LONGEST, ROCK_HEIGHTS = 5, 2
"""Rocks are walls up to 5 metres long, 1 or 2 blocks above the ground: one can be jumped on, the other not."""


@native.function
def plant(w: World, x: int, y: int, tall: int) -> None:
    """Add a tree: a trunk, leaves around its topmost log, and a cross of leaves above."""
    foot = ground_of(w.blocks[x, y])
    w.blocks[x, y] = w.blocks[x, y] | (((1 << tall) - 1) << foot)
    for dx in range(-1, 2):
        for dy in range(-1, 2):
            leaves = 0 if dx == 0 and dy == 0 else 1 << (foot + tall - 1)
            if dx == 0 or dy == 0:
                leaves |= 1 << (foot + tall)
            w.blocks[(x + dx) & WRAP, (y + dy) & WRAP] = w.blocks[(x + dx) & WRAP, (y + dy) & WRAP] | leaves << TOP


@native.function
def at_start(x: int, y: int) -> bool:
    """Whether a column is near the player's start in the middle."""
    return max(abs(x - MIDDLE), abs(y - MIDDLE)) < APART


@native.function
def crowded(w: World, x: int, y: int) -> bool:
    """Whether a trunk, or the player's start, is near."""
    if at_start(x, y):
        return True
    for dx in range(1 - APART, APART):
        for dy in range(1 - APART, APART):
            if logs_of(w.blocks[(x + dx) & WRAP, (y + dy) & WRAP]):
                return True
    return False


@native.function
def raise_hill(w: World, x: int, y: int, wide: int, high: int) -> None:
    """Raise the ground around a column: `high` blocks in a circle of `wide` metres, and a slope around it."""
    reach = wide + STEP * (high - 1)
    for dx in range(-reach, reach + 1):
        for dy in range(-reach, reach + 1):
            height = 0
            for level in range(1, high + 1):
                radius = wide + STEP * (high - level)
                if dx * dx + dy * dy <= radius * radius:
                    height = level
            old = w.blocks[(x + dx) & WRAP, (y + dy) & WRAP]
            if height > ground_of(old):
                w.blocks[(x + dx) & WRAP, (y + dy) & WRAP] = height << (2 * TOP)


@native.function
def place_rock(w: World, x: int, y: int, long: int, north: bool, high: int) -> None:
    """Add a wall of rock, except near the player's start and on other rocks."""
    for k in range(long):
        rx, ry = (x + k) & WRAP if north else x, y if north else (y + k) & WRAP
        old = w.blocks[rx, ry]
        if not at_start(rx, ry) and not is_rock(old):
            w.blocks[rx, ry] = ((ground_of(old) + high) | 16) << (2 * TOP)


@native.function(inline=False)
def measure(w: World, low: bool) -> None:
    """Write the Chebyshev distance to the nearest column with blocks, by relaxation until nothing changes.

    `low` is the distance to columns with logs or ground.
    """
    shift = 8 if low else 0
    for x in range(SIDE):
        for y in range(SIDE):
            here = w.blocks[x, y]
            kept = w.gaps[x, y] & ~(255 << shift)
            found = solid_of(here) if low else solid_of(here) | leaves_of(here)
            w.gaps[x, y] = kept if found else kept | SIDE << shift
    changed = True
    while changed:
        changed = False
        for x in range(SIDE):
            for y in range(SIDE):
                own = w.gaps[x, y]
                gap = (own >> shift) & 255
                least = gap
                for dx in range(-1, 2):
                    for dy in range(-1, 2):
                        near = w.gaps[(x + dx) & WRAP, (y + dy) & WRAP]
                        least = min(least, ((near >> shift) & 255) + 1)
                if least < gap:
                    w.gaps[x, y] = (own & ~(255 << shift)) | least << shift
                    changed = True


@native.function(inline=False)
def grow(w: World, rng: native.Random, forest: Forest) -> None:
    """Generate a world: hills, then rocks, then trees."""
    for x in range(SIDE):
        for y in range(SIDE):
            w.blocks[x, y], w.gaps[x, y] = 0, 0
    for _ in range(forest.hills):
        x, y = rng.integer(SIDE), rng.integer(SIDE)
        raise_hill(w, x, y, 1 + rng.integer(WIDEST), 1 + rng.integer(HIGHEST))
    for _ in range(forest.rocks):
        x, y = rng.integer(SIDE), rng.integer(SIDE)
        place_rock(w, x, y, 1 + rng.integer(LONGEST), rng.integer(2) == 1, 1 + rng.integer(ROCK_HEIGHTS))
    for _ in range(forest.trees):
        x, y, tries, placed = 0, 0, 0, False
        while not placed:
            x, y = int(rng.uniform(0.0, SIDE)), int(rng.uniform(0.0, SIDE))
            tries += 1
            here = w.blocks[x, y]
            free = not at_start(x, y) and not logs_of(here)
            placed = not is_rock(here) and (not crowded(w, x, y) or (tries > TRIES and free))
        plant(w, x, y, SHORTEST + int(rng.uniform(0.0, TALLER)))
    for x in range(SIDE):
        for y in range(SIDE):  # where trees touch, logs replace leaves, and so does the ground
            here = w.blocks[x, y]
            w.blocks[x, y] = here & ~((leaves_of(here) & solid_of(here)) << TOP)
    measure(w, False)
    measure(w, True)
