"""Kart's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode, ticks, built-in reward terms), then the user's terms and potentials if there are any, then
`settle` (ends, new tracks, observations): terms see the state before a new lap.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.core.compile import Number, compiled, inlined
from slipstream.core.contracts import Array
from slipstream.envs.kart.actions import decode
from slipstream.envs.kart.layout import (
    DECISIONS,
    GRASS,
    LAPPED,
    OVER,
    PASSED,
    POINTS,
    RUNNING,
    TICKS,
    TICKS_LEFT,
    TIMED_OUT,
    F,
)
from slipstream.envs.kart.observe import observe
from slipstream.envs.kart.physics import tick
from slipstream.envs.kart.rewards import shape_terms, value_terms
from slipstream.envs.kart.starts import new_lap
from slipstream.envs.soccer.chance import first_game
from slipstream.envs.soccer.physics import ZERO


@inlined
def decide(s: Array, clock: Array, track: Array, repeat: int) -> None:
    """Advance one env by one decision, at most to the end of its lap."""
    s[GRASS] = ZERO
    ticks = 0
    while ticks < repeat and clock[OVER] == RUNNING:
        tick(s, clock, track)
        ticks += 1
        if clock[PASSED] >= POINTS:
            clock[OVER] = LAPPED
    clock[TICKS] = ticks
    clock[DECISIONS] += 1
    clock[TICKS_LEFT] -= ticks
    if clock[TICKS_LEFT] <= 0 and clock[OVER] == RUNNING:
        clock[OVER] = TIMED_OUT


@compiled
def advance(
    state: Array, before: Array, clock: Array, tracks: Array, action: Array, kind: int, table: Array, repeat: int,
    values: Array,
) -> None:  # fmt: skip
    """Step every env by one decision and value its built-in terms into `values` [envs, terms]."""
    for env in range(state.shape[0]):
        s, old, own = state[env], before[env], clock[env]
        for k in range(s.shape[0]):
            old[k] = s[k]
        decode(action, env, kind, table, s)
        decide(s, own, tracks[env], repeat)
        value_terms(old, s, own, values[env])


def value_user_term(term: Callable[..., Number], before: Array, state: Array, clock: Array, values: Array) -> None:
    """Write one user's term into its column; what is not finite is masked and named by whoever collects."""
    for env in range(state.shape[0]):
        values[env] = F(term(before[env], state[env], clock[env]))


@compiled
def shape(before: Array, state: Array, clock: Array, gamma: Number, values: Array) -> None:
    """Write the terms that have a potential by it; only a lap that is done has none after it."""
    for env in range(state.shape[0]):
        shape_terms(before[env], state[env], ZERO if clock[env, OVER] == LAPPED else gamma, values[env])


@compiled
def settle(
    state: Array, clock: Array, tracks: Array, scratch: Array, limit_ticks: int, random_starts: Number, obs: Array,
    terminated: Array, truncated: Array, outcome: Array, final_obs: Array,
) -> None:  # fmt: skip
    """End laps, begin new ones and observe."""
    for env in range(state.shape[0]):
        s, own, track = state[env], clock[env], tracks[env]
        over = own[OVER]
        terminated[env] = over == LAPPED
        truncated[env] = over == TIMED_OUT
        if over != RUNNING:
            observe(s, own, track, final_obs[env])
            outcome[env] = 1 if over == LAPPED else -1
            new_lap(s, own, -1, track, scratch, limit_ticks, random_starts)
        observe(s, own, track, obs[env])


@compiled
def observe_all(state: Array, clock: Array, tracks: Array, obs: Array) -> None:
    """Write the observations of every env."""
    for env in range(state.shape[0]):
        observe(state[env], clock[env], tracks[env], obs[env])


@compiled
def renew(
    s: Array, clock: Array, game: int, track: Array, scratch: Array, limit_ticks: int, random_starts: Number, obs: Array
) -> None:
    """Begin the lap of this seed in one env, or its next one, and observe it."""
    new_lap(s, clock, game, track, scratch, limit_ticks, random_starts)
    observe(s, clock, track, obs)


@compiled
def begin(
    state: Array, clock: Array, tracks: Array, scratch: Array, seed: int, first: int, limit_ticks: int,
    random_starts: Number,
) -> None:  # fmt: skip
    """Start every env with the first lap of the run's seed and its global index."""
    for env in range(state.shape[0]):
        new_lap(state[env], clock[env], first_game(seed, first + env), tracks[env], scratch, limit_ticks, random_starts)
