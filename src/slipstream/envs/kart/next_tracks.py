"""Tracks of next laps, drawn before they are needed.

On a GPU one thread draws a track while the threads of all other envs wait; with many envs that happens in every step.
So all next tracks are drawn together before a rollout, and a lap that ends takes its own. A track follows from a seed,
a level and a range of difficulties alone. Where any of these has changed since, the track is drawn in the step instead.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import (
    COUNTER,
    DIFFICULTY,
    EASIEST,
    GAME,
    HARDEST,
    KEY,
    LENGTH,
    PER_METRE,
    POINTS,
    TRACK_SIZE,
)
from slipstream.envs.kart.tracks import draw_track
from slipstream.system.numba_compile import compiled, inlined
from slipstream.system.rng import game_key, next_game

LEVEL, READY, TAKEN = 0, 1, 2
"""Columns of `drawn` beside KEY, COUNTER and GAME, which are those of a clock: the level that the track was drawn for,
whether there is one, and whether a lap has begun on it in this step."""


@inlined
def is_drawn(s: Array, game: int, level: int, facts: Array, drawn: Array) -> bool:
    """Return whether the track of this game and level is ready."""
    if drawn[READY] == 0 or drawn[GAME] != game or drawn[LEVEL] != level:
        return False
    return bool(facts[EASIEST] == s[EASIEST] and facts[HARDEST] == s[HARDEST])


@compiled
def draw_ahead(
    env: int,
    state: Array,
    clock: Array,
    tasks: Array,
    targets: Array,
    scratch: Array,
    roads: Array,
    facts: Array,
    drawn: Array,
) -> None:
    """Draw the track of one env's next lap, unless it is ready."""
    s, own, lap = state[env], facts[env], drawn[env]
    game, level = next_game(clock[env, GAME]), tasks[env] if tasks[env] >= 0 else targets[env]
    if is_drawn(s, game, level, own, lap):
        return
    own[EASIEST], own[HARDEST] = s[EASIEST], s[HARDEST]
    lap[GAME], lap[KEY], lap[COUNTER], lap[LEVEL] = game, game_key(game), 0, level
    draw_track(own, lap, level, roads[env], scratch[env])
    lap[READY] = 1


@inlined
def take(s: Array, clock: Array, level: int, facts: Array, drawn: Array) -> bool:
    """Begin a lap on the track that was drawn for it, if it is ready; return whether it is."""
    if not is_drawn(s, clock[GAME], level, facts, drawn):
        return False
    s[DIFFICULTY], s[LENGTH], s[PER_METRE] = facts[DIFFICULTY], facts[LENGTH], facts[PER_METRE]
    clock[COUNTER] = drawn[COUNTER]
    drawn[TAKEN] = 1
    return True


@compiled
def move_point(index: int, tracks: Array, roads: Array, drawn: Array) -> None:
    """Copy one point of one env's track, if it was taken in this step."""
    env, point = index // POINTS, index % POINTS
    if drawn[env, TAKEN] == 1:
        for k in range(TRACK_SIZE):
            tracks[env, point, k] = roads[env, point, k]
