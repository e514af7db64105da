"""Treechop's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (ticks, built-in reward terms), then the user's reward terms, then `settle` (ends, new worlds,
observations), so reward terms see the state before a new game starts.
"""

from __future__ import annotations

from typing import NamedTuple

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
from slipstream.envs.treechop.rendering import RenderBuffers, render
from slipstream.envs.treechop.rewards import value_terms
from slipstream.envs.treechop.world import new_game
from slipstream.system.numba_compile import Number, compiled


class Games(NamedTuple):
    """The state of all games; see `layout`."""

    state: Array
    clock: Array
    cells: Array


class Rules(NamedTuple):
    """The settings of all games."""

    targets: Array
    """The target task of each env."""
    trees: Array
    """The number of trees of each task."""
    limit_ticks: int
    random_starts: Number


class ObsRows(NamedTuple):
    """The observation rows of all games."""

    rows: Array
    """Whole rows as bytes."""
    scalars: Array
    """The float32 columns before the image."""
    image_start: int
    """The first byte of the image; 0 if there are no scalars."""


@compiled
def advance(
    games: Games, before: Array, buttons: Array, camera: Array, repeat: int, sums: Array, values: Array
) -> None:
    """Step every env and compute its built-in reward terms; the camera turns once, buttons are held for all ticks."""
    for env in range(games.state.shape[0]):
        s, own = games.state[env], games.clock[env]
        for k in range(s.shape[0]):
            before[env, k] = s[k]
        s[WALKED] = ZERO
        own[GOT] = own[CUT] = own[HIT] = 0
        turn(s, camera[env, 0], camera[env, 1])
        ticks = 0
        while ticks < repeat and own[LOGS] < ENOUGH:
            tick(s, own, games.cells[env], buttons[env])
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
    """Return the angle in degrees (positive: right) from the view direction to the nearest tree with logs."""
    best, north, east = F(1e9), F(1.0), ZERO
    for cell in range(SIDE * SIDE):
        if (bits_of(cells, cell) >> WOOD) & 255:
            dx, dy = F(cell >> BITS) + F(0.5) - s[X], F(cell & WRAP) + F(0.5) - s[Y]
            dx -= F(SIDE) if dx > F(SIDE // 2) else (-F(SIDE) if dx < -F(SIDE // 2) else ZERO)
            dy -= F(SIDE) if dy > F(SIDE // 2) else (-F(SIDE) if dy < -F(SIDE // 2) else ZERO)
            if dx * dx + dy * dy < best:
                best, north, east = dx * dx + dy * dy, dx, dy
    # Bisection: a turn is accepted if the tree stays to the right of the view direction.
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
def observe(s: Array, clock: Array, cells: Array, buffers: RenderBuffers, obs: ObsRows, env: int) -> None:
    """Write the observation of one player: compass and logs if they are enabled, followed by the image."""
    if obs.image_start > 0:
        obs.scalars[env, 0], obs.scalars[env, 1] = bearing(s, cells), F(clock[LOGS])
    render(s, clock, cells, buffers, obs.rows[env, obs.image_start :])


@compiled
def settle(
    games: Games,
    tasks: Array,
    rules: Rules,
    sums: Array,
    buffers: RenderBuffers,
    obs: ObsRows,
    final_obs: ObsRows,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    behaviour: Array,
) -> None:
    """End games, start new ones, and write the observations."""
    for env in range(games.state.shape[0]):
        s, own, cells = games.state[env], games.clock[env], games.cells[env]
        over = own[OVER]
        terminated[env] = over == DONE
        truncated[env] = over == TIMED_OUT
        if over != RUNNING:
            observe(s, own, cells, buffers, final_obs, env)
            outcome[env] = 1 if own[LOGS] * ENOUGH_TICKS >= ENOUGH * min(rules.limit_ticks, ENOUGH_TICKS) else -1
            conclude(sums[env], behaviour[env])
            task = tasks[env] if tasks[env] >= 0 else rules.targets[env]
            new_game(s, own, cells, -1, rules.trees[task], sums[env], rules.limit_ticks, rules.random_starts)
        observe(s, own, cells, buffers, obs, env)


@compiled
def start_games(
    indices: Array,
    seeds: Array,
    games: Games,
    tasks: Array,
    rules: Rules,
    sums: Array,
    buffers: RenderBuffers,
    obs: ObsRows,
) -> None:
    """Start a game in each of the given envs, from its seed or (below 0) the env's next one, and write observations."""
    for k in range(indices.shape[0]):
        env = indices[k]
        task = tasks[env] if tasks[env] >= 0 else rules.targets[env]
        s, own, cells = games.state[env], games.clock[env], games.cells[env]
        new_game(s, own, cells, seeds[k], rules.trees[task], sums[env], rules.limit_ticks, rules.random_starts)
        observe(s, own, cells, buffers, obs, env)


@compiled
def observe_all(games: Games, buffers: RenderBuffers, obs: ObsRows) -> None:
    """Write the observations of all players."""
    for env in range(games.state.shape[0]):
        observe(games.state[env], games.clock[env], games.cells[env], buffers, obs, env)
