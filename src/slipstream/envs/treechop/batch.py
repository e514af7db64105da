"""Treechop's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (ticks, built-in reward terms), then the user's terms if there are any, then `settle` (ends, new
worlds, pictures): terms see the state before a new game.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ZERO
from slipstream.envs.treechop.behaviours import conclude, count
from slipstream.envs.treechop.layout import (
    BITS,
    CUT,
    DECISIONS,
    DONE,
    ENOUGH,
    ENOUGH_TICKS,
    GOT,
    HIT,
    LOGS,
    OVER,
    RUNNING,
    SIDE,
    TICKS,
    TICKS_LEFT,
    TIMED_OUT,
    WALKED,
    WOOD,
    WRAP,
    YAW,
    F,
    X,
    Y,
)
from slipstream.envs.treechop.physics import tick, turn
from slipstream.envs.treechop.raycast import bits_of, cosine, sine
from slipstream.envs.treechop.rendering import paint
from slipstream.envs.treechop.rewards import value_terms
from slipstream.envs.treechop.world import new_game
from slipstream.system.numba_compile import Number, compiled


@compiled
def advance(
    state: Array, before: Array, clock: Array, cells: Array, buttons: Array, camera: Array, repeat: int, sums: Array,
    values: Array,
) -> None:  # fmt: skip
    """Step every env by one decision and value its built-in terms; the head turns once, buttons are held all along."""
    for env in range(state.shape[0]):
        s, own = state[env], clock[env]
        for k in range(s.shape[0]):
            before[env, k] = s[k]
        s[WALKED] = ZERO
        own[GOT] = own[CUT] = own[HIT] = 0
        turn(s, camera[env, 0], camera[env, 1])
        ticks = 0
        while ticks < repeat and own[LOGS] < ENOUGH:
            tick(s, own, cells[env], buttons[env])
            ticks += 1
        own[TICKS] = ticks
        own[DECISIONS] += 1
        own[TICKS_LEFT] -= ticks
        if own[LOGS] >= ENOUGH:
            own[OVER] = DONE
        elif own[TICKS_LEFT] <= 0:
            own[OVER] = TIMED_OUT
        count(s, own, sums[env])
        value_terms(own, values[env])


@compiled
def bearing(s: Array, cells: Array) -> Number:
    """Return the degrees by which the player would have to turn right to face the nearest tree that has logs."""
    best, north, east = F(1e9), F(1.0), ZERO
    for cell in range(SIDE * SIDE):
        if (bits_of(cells, cell) >> WOOD) & 255:
            dx, dy = F(cell >> BITS) + F(0.5) - s[X], F(cell & WRAP) + F(0.5) - s[Y]
            dx -= F(SIDE) if dx > F(SIDE // 2) else (-F(SIDE) if dx < -F(SIDE // 2) else ZERO)
            dy -= F(SIDE) if dy > F(SIDE // 2) else (-F(SIDE) if dy < -F(SIDE // 2) else ZERO)
            if dx * dx + dy * dy < best:
                best, north, east = dx * dx + dy * dy, dx, dy
    # The angle by halving: a turn that leaves the tree to the right is taken, one that passes it is not.
    ahead = north * cosine(s[YAW]) + east * sine(s[YAW])
    aside = east * cosine(s[YAW]) - north * sine(s[YAW])
    right = F(1.0) if aside >= ZERO else F(-1.0)
    angle, part = 0.0, 90.0
    for _ in range(12):
        part_x, part_y = cosine(angle + part), sine(angle + part)
        if part_x * abs(aside) - part_y * ahead >= ZERO:
            angle += part
        part *= 0.5
    return right * F(angle)


@compiled
def observe(
    s: Array, clock: Array, cells: Array, look: Array, samples: Array, ways: Array, start: int,
    numbers: Array, row: Array,
) -> None:  # fmt: skip
    """Write what one player sees: its logs and the compass, where they are shown, and the picture behind them."""
    if start > 0:
        numbers[0], numbers[1] = bearing(s, cells), F(clock[LOGS])
    paint(s, clock, cells, look, samples, ways, row[start:])


@compiled
def settle(
    state: Array, clock: Array, cells: Array, tasks: Array, targets: Array, trees: Array, sums: Array,
    limit_ticks: int, random_starts: Number, look: Array, samples: Array, ways: Array, start: int,
    numbers: Array, obs: Array, final_numbers: Array, final_obs: Array, terminated: Array, truncated: Array,
    outcome: Array, behaviour: Array,
) -> None:  # fmt: skip
    """End games, begin new ones and look."""
    for env in range(state.shape[0]):
        s, own = state[env], clock[env]
        over = own[OVER]
        terminated[env] = over == DONE
        truncated[env] = over == TIMED_OUT
        if over != RUNNING:
            observe(s, own, cells[env], look, samples, ways, start, final_numbers[env], final_obs[env])
            outcome[env] = 1 if own[LOGS] * ENOUGH_TICKS >= ENOUGH * min(limit_ticks, ENOUGH_TICKS) else -1
            conclude(sums[env], behaviour[env])
            task = tasks[env] if tasks[env] >= 0 else targets[env]
            new_game(s, own, cells[env], -1, trees[task], sums[env], limit_ticks, random_starts)
        observe(s, own, cells[env], look, samples, ways, start, numbers[env], obs[env])


@compiled
def renew(
    chosen: Array, games: Array, state: Array, clock: Array, cells: Array, tasks: Array, targets: Array, trees: Array,
    sums: Array, limit_ticks: int, random_starts: Number, look: Array, samples: Array, ways: Array,
    start: int, numbers: Array, obs: Array,
) -> None:  # fmt: skip
    """Begin a game in each of the chosen envs, from these seeds or, below 0, the env's next one, and look."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        task = tasks[env] if tasks[env] >= 0 else targets[env]
        s, own = state[env], clock[env]
        new_game(s, own, cells[env], games[k], trees[task], sums[env], limit_ticks, random_starts)
        observe(s, own, cells[env], look, samples, ways, start, numbers[env], obs[env])


@compiled
def observe_all(
    state: Array, clock: Array, cells: Array, look: Array, samples: Array, ways: Array, start: int,
    numbers: Array, obs: Array,
) -> None:  # fmt: skip
    """Write what every player sees."""
    for env in range(state.shape[0]):
        observe(
            state[env], clock[env], cells[env], look, samples, ways, start, numbers[env], obs[env]
        )  # fmt: skip
