"""Kart's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode actions, ticks, built-in reward terms), then the user's reward terms and potentials if there
are any, then `finish_step` (ends, new tracks, observations), so that terms get the state before a new lap.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.actions import decode
from slipstream.envs.kart.behaviours import count, write_statistics
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
)
from slipstream.envs.kart.next_tracks import TAKEN, take
from slipstream.envs.kart.observation import observe
from slipstream.envs.kart.physics import tick
from slipstream.envs.kart.rewards import shape_terms, value_terms
from slipstream.envs.kart.starts import new_lap, set_off
from slipstream.envs.kart.tracks import draw_track
from slipstream.envs.rewards import pay_env
from slipstream.envs.soccer.physics import ZERO
from slipstream.system.numba_compile import Number, compiled, inlined


@inlined
def drive_decision(s: Array, clock: Array, track: Array, repeat: int) -> None:
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


@inlined
def advance_env(
    env: int,
    state: Array,
    before: Array,
    clock: Array,
    tracks: Array,
    action: Array,
    kind: int,
    table: Array,
    repeat: int,
    sums: Array,
    values: Array,
) -> None:
    """Step one env by one decision and write its built-in reward terms."""
    s, old, own = state[env], before[env], clock[env]
    for k in range(s.shape[0]):
        old[k] = s[k]
    decode(action, env, kind, table, s)
    drive_decision(s, own, tracks[env], repeat)
    count(s, own, sums[env])
    value_terms(old, s, own, values[env])


@compiled
def advance(
    state: Array,
    before: Array,
    clock: Array,
    tracks: Array,
    action: Array,
    kind: int,
    table: Array,
    repeat: int,
    sums: Array,
    values: Array,
) -> None:
    """Step every env by one decision and write its built-in reward terms into `values` [envs, terms]."""
    for env in range(state.shape[0]):
        advance_env(env, state, before, clock, tracks, action, kind, table, repeat, sums, values)


@inlined
def shape_env(env: int, before: Array, state: Array, clock: Array, gamma: Number, values: Array) -> None:
    """Write the potential-based term of one env; the potential after a finished lap is 0."""
    shape_terms(before[env], state[env], ZERO if clock[env, OVER] == LAPPED else gamma, values[env])


@compiled
def shape(before: Array, state: Array, clock: Array, gamma: Number, values: Array) -> None:
    """Write the potential-based terms."""
    for env in range(state.shape[0]):
        shape_env(env, before, state, clock, gamma, values)


@inlined
def finish_env(
    env: int,
    state: Array,
    clock: Array,
    tasks: Array,
    tracks: Array,
    scratch: Array,
    roads: Array,
    facts: Array,
    drawn: Array | None,
    sums: Array,
    targets: Array,
    limit_ticks: int,
    random_starts: Number,
    obs: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    behaviour: Array,
    final_obs: Array,
) -> None:
    """End the lap of one env if it is over, begin a new one and observe.

    The new track is taken from `roads` if it was drawn ahead of time (unless `drawn` is None), and drawn now otherwise.
    """
    s, own, track = state[env], clock[env], tracks[env]
    if drawn is not None:
        drawn[env, TAKEN] = 0
    over = own[OVER]
    terminated[env] = over == LAPPED
    truncated[env] = over == TIMED_OUT
    if over != RUNNING:
        observe(s, own, track, final_obs[env])
        outcome[env] = 1 if over == LAPPED else -1
        write_statistics(s, own, limit_ticks, sums[env], behaviour[env])
        level = tasks[env] if tasks[env] >= 0 else targets[env]
        new_lap(s, own, -1, sums[env], limit_ticks)
        taken = False
        if drawn is not None:
            taken = take(s, own, level, facts[env], drawn[env])
            if taken:
                track = roads[env]
        if not taken:
            draw_track(s, own, level, track, scratch[env % scratch.shape[0]])  # one workspace, or one per env
        set_off(s, own, track, random_starts)
    observe(s, own, track, obs[env])


@compiled
def finish_step(
    state: Array,
    clock: Array,
    tasks: Array,
    tracks: Array,
    scratch: Array,
    sums: Array,
    targets: Array,
    limit_ticks: int,
    random_starts: Number,
    obs: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    behaviour: Array,
    final_obs: Array,
) -> None:
    """End laps, begin new ones and observe."""
    for env in range(state.shape[0]):
        finish_env(
            env,
            state,
            clock,
            tasks,
            tracks,
            scratch,
            tracks,
            state,
            None,
            sums,
            targets,
            limit_ticks,
            random_starts,
            obs,
            terminated,
            truncated,
            outcome,
            behaviour,
            final_obs,
        )


@inlined
def step_env(
    env: int,
    state: Array,
    before: Array,
    clock: Array,
    tasks: Array,
    tracks: Array,
    scratch: Array,
    roads: Array,
    facts: Array,
    drawn: Array,
    sums: Array,
    targets: Array,
    limit_ticks: int,
    random_starts: Number,
    kind: int,
    table: Array,
    repeat: int,
    acted: Array,
    shaped: bool,
    gamma: Number,
    values: Array,
    weights: Array,
    live: Array,
    kept: Array,
    moments: Array,
    limit: Number,
    teams: Array,
    spirit: Number,
    rivalry: Number,
    action: Array,
    obs: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    final_obs: Array,
    active: Array,
    terms: Array,
    behaviour: Array,
) -> None:
    """Drive one decision of one env, from its first tick to its rewards; a GPU runs this for all envs at once."""
    advance_env(env, state, before, clock, tracks, action, kind, table, repeat, sums, values)
    if shaped:
        shape_env(env, before, state, clock, gamma, values)
    finish_env(
        env,
        state,
        clock,
        tasks,
        tracks,
        scratch,
        roads,
        facts,
        drawn,
        sums,
        targets,
        limit_ticks,
        random_starts,
        obs,
        terminated,
        truncated,
        outcome,
        behaviour,
        final_obs,
    )
    active[env] = 1
    pay_env(env, values, weights, live, kept, moments, limit, teams, acted, spirit, rivalry, reward, terms)


@compiled
def observe_all(state: Array, clock: Array, tracks: Array, obs: Array) -> None:
    """Write the observations of every env."""
    for env in range(state.shape[0]):
        observe(state[env], clock[env], tracks[env], obs[env])


@compiled
def begin_laps(
    chosen: Array,
    games: Array,
    state: Array,
    clock: Array,
    tasks: Array,
    tracks: Array,
    scratch: Array,
    sums: Array,
    targets: Array,
    limit_ticks: int,
    random_starts: Number,
    obs: Array,
) -> None:
    """Begin a lap in each chosen env, from its seed in `games` or, if negative, the env's next seed; observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        s, own, track = state[env], clock[env], tracks[env]
        level = tasks[env] if tasks[env] >= 0 else targets[env]
        new_lap(s, own, games[k], sums[env], limit_ticks)
        draw_track(s, own, level, track, scratch[0])
        set_off(s, own, track, random_starts)
        observe(s, own, track, obs[env])
