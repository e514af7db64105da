"""Soccer's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode, ticks, built-in reward terms), then the user's terms if there are any, then
`settle` (ends, kick-offs, observations): a user's term sees the state before any kick-off. Potentials are those of
after it: `shape` comes last, before rewards are paid.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.core.compile import Number, compiled, inlined
from slipstream.core.contracts import Array
from slipstream.envs.soccer.actions import decode
from slipstream.envs.soccer.chance import first_game, kick_off, new_match
from slipstream.envs.soccer.layout import (
    DECISIONS,
    GAME,
    GOAL,
    KEY,
    KICKOFF,
    OVER,
    OVERTIME,
    SCORE,
    TICKS_LEFT,
    TOUCH,
    F,
)
from slipstream.envs.soccer.observe import observe
from slipstream.envs.soccer.physics import ZERO, car_at, tick
from slipstream.envs.soccer.rewards import shape_terms, value_more, value_terms


@inlined
def count(s: Array, clock: Array, repeat: int, overtime_ticks: int) -> None:
    """Move the match clock over one decision: goals, overtime, the end."""
    clock[DECISIONS] += 1
    clock[TICKS_LEFT] -= repeat
    scored = s[GOAL] != ZERO
    if scored:
        clock[SCORE if s[GOAL] > ZERO else SCORE + 1] += 1
        clock[KICKOFF] = 1
    if clock[OVERTIME] == 1:
        if scored or clock[TICKS_LEFT] <= 0:
            clock[OVER] = 1
    elif clock[TICKS_LEFT] <= 0:
        if clock[SCORE] == clock[SCORE + 1] and overtime_ticks > 0:
            clock[OVERTIME] = 1
            clock[TICKS_LEFT] = overtime_ticks
            clock[KICKOFF] = 1
        else:
            clock[OVER] = 1


@inlined
def decide(s: Array, clock: Array, repeat: int, overtime_ticks: int, team_size: int) -> None:
    """Advance one env by one decision; the ticks after a goal are a pause."""
    cars = 2 * team_size
    s[GOAL] = ZERO
    for car in range(cars):
        s[car_at(car) + TOUCH] = ZERO
    left = clock[TICKS_LEFT]
    # Who hits first when both do at once changes with every kick-off and from match to match: neither side gains.
    last_first = (clock[KEY] + clock[GAME] + clock[SCORE] + clock[SCORE + 1]) & 1
    for k in range(repeat):
        tick(s, left - k, last_first, cars)
        if s[GOAL] != ZERO:
            break
    count(s, clock, repeat, overtime_ticks)


@compiled
def advance(
    state: Array,
    before: Array,
    clock: Array,
    action: Array,
    kind: int,
    table: Array,
    repeat: int,
    overtime_ticks: int,
    team_size: int,
    values: Array,
) -> None:
    """Step every env by one decision and value its usual terms into `values` [rows, terms]."""
    cars = 2 * team_size
    for env in range(state.shape[0]):
        s, old, own = state[env], before[env], clock[env]
        for k in range(s.shape[0]):
            old[k] = s[k]
        for car in range(cars):
            decode(action, env * cars + car, kind, table, s, car_at(car))
        decide(s, own, repeat, overtime_ticks, team_size)
        for car in range(cars):
            value_terms(old, s, own, car, team_size, values[env * cars + car])


@compiled
def value_others(before: Array, state: Array, clock: Array, team_size: int, values: Array) -> None:
    """Value the built-in terms that are seldom wanted."""
    cars = 2 * team_size
    for env in range(state.shape[0]):
        for car in range(cars):
            value_more(before[env], state[env], clock[env], car, team_size, values[env * cars + car])


def value_user_term(
    term: Callable[..., Number],
    before: Array,
    state: Array,
    clock: Array,
    team_size: int,
    values: Array,
    column: int,
) -> None:
    """Write one user's term for all rows; what is not finite is masked and named by whoever collects."""
    cars = 2 * team_size
    for env in range(state.shape[0]):
        for car in range(cars):
            values[env * cars + car, column] = F(term(before[env], state[env], clock[env], car, team_size))


@inlined
def see(s: Array, clock: Array, team_size: int, per_match: Number, first: int, obs: Array) -> None:
    """Write the observations of all cars of one env."""
    for car in range(2 * team_size):
        observe(s, clock, car, team_size, per_match, obs[first + car])


@compiled
def settle(
    state: Array,
    clock: Array,
    team_size: int,
    match_ticks: int,
    random_starts: Number,
    obs: Array,
    terminated: Array,
    outcome: Array,
    final_obs: Array,
) -> None:
    """End matches, set kick-offs and observe."""
    cars = 2 * team_size
    per_match = F(1.0) / F(match_ticks)
    for env in range(state.shape[0]):
        s, own, first = state[env], clock[env], env * cars
        over = own[OVER]
        for row in range(first, first + cars):
            terminated[row] = over
        if over == 1:
            see(s, own, team_size, per_match, first, final_obs)
            lead = own[SCORE] - own[SCORE + 1]
            result = 1 if lead > 0 else (-1 if lead < 0 else 0)
            for car in range(cars):
                outcome[first + car] = result if car < team_size else -result
            new_match(s, own, -1, team_size, match_ticks, random_starts)
        elif own[KICKOFF] == 1:
            kick_off(s, own, team_size, random_starts)
        see(s, own, team_size, per_match, first, obs)


@compiled
def shape(before: Array, state: Array, terminated: Array, team_size: int, gamma: Number, values: Array) -> None:
    """Write the terms that have a potential by it, from what each decision saw to what the next one sees."""
    cars = 2 * team_size
    for env in range(state.shape[0]):
        later = ZERO if terminated[env * cars] else gamma
        for car in range(cars):
            shape_terms(before[env], state[env], later, car, team_size, values[env * cars + car])


@compiled
def observe_all(state: Array, clock: Array, team_size: int, match_ticks: int, obs: Array) -> None:
    """Write the observations of every row."""
    for env in range(state.shape[0]):
        see(state[env], clock[env], team_size, F(1.0) / F(match_ticks), env * 2 * team_size, obs)


@compiled
def renew(
    s: Array, clock: Array, game: int, team_size: int, match_ticks: int, random_starts: Number, obs: Array
) -> None:
    """Begin the match of this seed in one env, or its next one, and observe it."""
    new_match(s, clock, game, team_size, match_ticks, random_starts)
    see(s, clock, team_size, F(1.0) / F(match_ticks), 0, obs)


@compiled
def begin(
    state: Array, clock: Array, seed: int, first: int, team_size: int, match_ticks: int, random_starts: Number
) -> None:
    """Start every env with the first match of the run's seed and its global index."""
    for env in range(state.shape[0]):
        new_match(state[env], clock[env], first_game(seed, first + env), team_size, match_ticks, random_starts)
