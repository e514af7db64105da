"""Kart's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode actions, ticks, built-in reward terms), then the user's reward terms and potentials if there
are any, then `finish_step` (ends, new tracks, observations), so that terms get the state before a new lap.
"""

from __future__ import annotations

from typing import NamedTuple

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
from slipstream.envs.kart.next_tracks import TAKEN, NextTracks, take
from slipstream.envs.kart.observation import observe
from slipstream.envs.kart.physics import tick
from slipstream.envs.kart.rewards import shape_terms, value_terms
from slipstream.envs.kart.starts import new_lap, set_off
from slipstream.envs.kart.tracks import draw_track
from slipstream.envs.rewards import RewardRules, pay_env
from slipstream.envs.soccer.physics import ZERO
from slipstream.envs.step_rows import StepRows
from slipstream.system.numba_compile import Number, compiled, inlined


class Laps(NamedTuple):
    """The arrays of all laps."""

    state: Array  # [envs, state]
    before: Array  # [envs, state]: the state before the last decision
    clock: Array  # [envs, clock]
    tasks: Array  # [envs]: the given task; -1: the target
    tracks: Array  # [envs, POINTS, TRACK_SIZE]
    scratch: Array  # [1 or envs, *SCRATCH]: workspace of `draw_track`, one for all envs or one for each
    sums: Array  # [envs, statistics]: behaviour statistics of the present lap
    acted: Array  # [envs]: always 1


class LapRules(NamedTuple):
    """The settings of all laps."""

    targets: Array  # [envs]: the task of an env that is given none; -1: the whole range of difficulties
    limit_ticks: int
    random_starts: Number  # probability of a random start
    repeat: int  # ticks per decision
    action_kind: int
    action_table: Array  # [options, controls] of discrete actions


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
def advance_env(env: int, laps: Laps, rules: LapRules, action: Array, values: Array) -> None:
    """Step one env by one decision and write its built-in reward terms."""
    s, old, clock = laps.state[env], laps.before[env], laps.clock[env]
    for k in range(s.shape[0]):
        old[k] = s[k]
    decode(action, env, rules.action_kind, rules.action_table, s)
    drive_decision(s, clock, laps.tracks[env], rules.repeat)
    count(s, clock, laps.sums[env])
    value_terms(old, s, clock, values[env])


@compiled
def advance(laps: Laps, rules: LapRules, action: Array, values: Array) -> None:
    """Step every env by one decision and write its built-in reward terms into `values` [envs, terms]."""
    for env in range(laps.state.shape[0]):
        advance_env(env, laps, rules, action, values)


@inlined
def shape_env(env: int, laps: Laps, gamma: Number, values: Array) -> None:
    """Write the potential-based term of one env; a finished lap has potential 0, a lap that timed out keeps its own."""
    discount = ZERO if laps.clock[env, OVER] == LAPPED else gamma
    shape_terms(laps.before[env], laps.state[env], discount, values[env])


@compiled
def shape(laps: Laps, gamma: Number, values: Array) -> None:
    """Write the potential-based terms."""
    for env in range(laps.state.shape[0]):
        shape_env(env, laps, gamma, values)


@inlined
def level_of(env: int, laps: Laps, rules: LapRules) -> Number:
    """Return the difficulty level of the env's next lap, -1 for the whole range."""
    return laps.tasks[env] if laps.tasks[env] >= 0 else rules.targets[env]


@inlined
def finish_env(env: int, laps: Laps, rules: LapRules, next_tracks: NextTracks | None, out: StepRows) -> None:
    """End the lap of one env if it is over, begin a new one, and observe.

    The new track is taken from `next_tracks` if it was drawn ahead of time, and drawn now otherwise.
    """
    s, clock, track = laps.state[env], laps.clock[env], laps.tracks[env]
    if next_tracks is not None:
        next_tracks.drawn[env, TAKEN] = 0
    over = clock[OVER]
    out.terminated[env] = over == LAPPED
    out.truncated[env] = over == TIMED_OUT
    if over != RUNNING:
        observe(s, clock, track, out.final_obs[env])
        out.outcome[env] = 1 if over == LAPPED else -1
        write_statistics(s, clock, rules.limit_ticks, laps.sums[env], out.behaviour[env])
        level = level_of(env, laps, rules)
        new_lap(s, clock, -1, laps.sums[env], rules.limit_ticks)
        taken = False
        if next_tracks is not None:
            taken = take(s, clock, level, next_tracks.facts[env], next_tracks.drawn[env])
            if taken:
                track = next_tracks.tracks[env]
        if not taken:
            draw_track(s, clock, level, track, laps.scratch[env % laps.scratch.shape[0]])
        set_off(s, clock, track, rules.random_starts)
    out.active[env] = 1
    observe(s, clock, track, out.obs[env])


@compiled
def finish_step(laps: Laps, rules: LapRules, out: StepRows) -> None:
    """End laps, begin new ones and observe."""
    for env in range(laps.state.shape[0]):
        finish_env(env, laps, rules, None, out)


@inlined
def step_env(
    env: int,
    laps: Laps,
    rules: LapRules,
    next_tracks: NextTracks,
    rewards: RewardRules,
    action: Array,
    out: StepRows,
) -> None:
    """Drive one decision of one env, from its first tick to its rewards; a GPU runs this for all envs at once."""
    advance_env(env, laps, rules, action, rewards.values)
    if rewards.shaped:
        shape_env(env, laps, rewards.gamma, rewards.values)
    finish_env(env, laps, rules, next_tracks, out)
    pay_env(env, rewards, laps.acted, out.reward, out.terms)


@compiled
def observe_all(laps: Laps, obs: Array) -> None:
    """Write the observations of every env."""
    for env in range(laps.state.shape[0]):
        observe(laps.state[env], laps.clock[env], laps.tracks[env], obs[env])


@compiled
def begin_laps(chosen: Array, games: Array, laps: Laps, rules: LapRules, obs: Array) -> None:
    """Begin a lap in each chosen env, from its seed in `games` or, if negative, the env's next seed; observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        s, clock, track = laps.state[env], laps.clock[env], laps.tracks[env]
        new_lap(s, clock, games[k], laps.sums[env], rules.limit_ticks)
        draw_track(s, clock, level_of(env, laps, rules), track, laps.scratch[0])
        set_off(s, clock, track, rules.random_starts)
        observe(s, clock, track, obs[env])
