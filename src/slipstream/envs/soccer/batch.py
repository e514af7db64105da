"""Soccer's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode, ticks, built-in reward terms), then the user's terms if there are any, then
`settle` (ends, kick-offs, observations): a user's term sees the state before any kick-off. Potentials are those of
after it: `shape` comes last, before rewards are paid.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.contracts import Array
from slipstream.envs.rewards import pay_env
from slipstream.envs.soccer.actions import decode
from slipstream.envs.soccer.behaviours import conclude, count_cars
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
from slipstream.envs.soccer.observation import observe
from slipstream.envs.soccer.physics import ONE, ZERO, car_at, tick
from slipstream.envs.soccer.rewards import shape_terms, value_more, value_terms
from slipstream.envs.soccer.rng import kick_off, new_match
from slipstream.envs.soccer.tasks import GIVEN, PLAYED, REPEAT, SCATTERED, SIZE
from slipstream.system.numba_compile import Number, compiled, compiled_here, inlined


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
    left = clock[TICKS_LEFT]
    # Who hits first when both do at once changes with every kick-off and from match to match: neither side gains.
    last_first = (clock[KEY] + clock[GAME] + clock[SCORE] + clock[SCORE + 1]) & 1
    for k in range(repeat):
        tick(s, left - k, last_first, cars)
        if s[GOAL] != ZERO:
            break
    count(s, clock, repeat, overtime_ticks)


@inlined
def row_of(env: int, car: int, team_size: int, slots: int) -> int:
    """Return the row of a car: each team has `slots` rows, of which the first have a car."""
    row = env * 2 * slots + car
    return row if car < team_size else row + slots - team_size


@inlined
def mark(rows: Array, env: int, team_size: int, slots: int) -> None:
    """Write 1 for the rows of an env that have a car, 0 for the others."""
    first = env * 2 * slots
    for k in range(slots):
        rows[first + k] = rows[first + slots + k] = k < team_size


@inlined
def advance_env(
    env: int, state: Array, before: Array, clock: Array, tasks: Array, rules: Array, slots: int, action: Array,
    kind: int, table: Array, overtime_ticks: int, sizes: Array, acted: Array, sums: Array, values: Array,
) -> None:  # fmt: skip
    """Step one env by one decision and value its usual terms."""
    s, old, own, rule = state[env], before[env], clock[env], rules[tasks[env, PLAYED]]
    size = sizes[env] = rule[SIZE]
    for k in range(s.shape[0]):
        old[k] = s[k]
    mark(acted, env, size, slots)
    for car in range(2 * size):
        decode(action, row_of(env, car, size, slots), kind, table, s, car_at(car))
        s[car_at(car) + TOUCH] = ZERO
    decide(s, own, rule[REPEAT], overtime_ticks, size)
    count_cars(old, s, own, size, rule[REPEAT], sums[env])
    for car in range(2 * size):
        value_terms(old, s, own, car, size, values[row_of(env, car, size, slots)])


@compiled
def advance(
    state: Array, before: Array, clock: Array, tasks: Array, rules: Array, slots: int, action: Array, kind: int,
    table: Array, overtime_ticks: int, sizes: Array, acted: Array, sums: Array, values: Array,
) -> None:  # fmt: skip
    """Step every env by one decision and value its usual terms into `values` [rows, terms].

    How many cars a team had is kept in `sizes` [envs], and which rows had one in `acted`: what comes after needs both,
    when the next match may have begun.
    """
    for env in range(state.shape[0]):
        advance_env(
            env, state, before, clock, tasks, rules, slots, action, kind, table, overtime_ticks, sizes, acted, sums,
            values,
        )  # fmt: skip


@inlined
def value_others_env(
    env: int, before: Array, state: Array, clock: Array, sizes: Array, slots: int, values: Array
) -> None:
    """Value the built-in terms of one env that are seldom wanted."""
    size = sizes[env]
    for car in range(2 * size):
        value_more(before[env], state[env], clock[env], car, size, values[row_of(env, car, size, slots)])


@compiled
def value_others(before: Array, state: Array, clock: Array, sizes: Array, slots: int, values: Array) -> None:
    """Value the built-in terms that are seldom wanted."""
    for env in range(state.shape[0]):
        value_others_env(env, before, state, clock, sizes, slots, values)


@compiled_here
def value_user_term(
    term: Callable[..., Number], before: Array, state: Array, clock: Array, sizes: Array, slots: int, values: Array,
    column: int,
) -> None:  # fmt: skip
    """Write one user's term for all rows; what is not finite is masked and named by whoever collects."""
    for env in range(state.shape[0]):
        size = sizes[env]
        for car in range(2 * size):
            value = term(before[env], state[env], clock[env], car, size)
            values[row_of(env, car, size, slots), column] = F(value)


@inlined
def see(s: Array, clock: Array, env: int, team_size: int, slots: int, per_match: Number, obs: Array) -> None:
    """Write the observations of all rows of one env; those without a car are zero."""
    for car in range(2 * team_size):
        observe(s, clock, car, team_size, slots, per_match, obs[row_of(env, car, team_size, slots)])
    if team_size < slots:
        for k in range(2 * slots):
            if k % slots >= team_size:
                for column in range(obs.shape[1]):
                    obs[env * 2 * slots + k, column] = ZERO


@inlined
def start(
    s: Array, clock: Array, game: int, task: Array, sums: Array, rules: Array, target: int, match_ticks: int,
    random_starts: Number,
) -> None:  # fmt: skip
    """Begin a match of the task that the env was given, from a seed or, below 0, from the env's next one."""
    task[PLAYED] = task[GIVEN] if task[GIVEN] >= 0 else target
    for car in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            sums[car, k] = ZERO
    rule = rules[task[PLAYED]]
    for k in range(car_at(2 * rule[SIZE]), s.shape[0]):
        s[k] = ZERO
    new_match(s, clock, game, rule[SIZE], match_ticks, ONE if rule[SCATTERED] == 1 else random_starts)


@inlined
def tell(clock: Array, env: int, team_size: int, slots: int, sums: Array, outcome: Array, behaviour: Array) -> None:
    """Write how the match of an env ended, and what was counted; rows without a car share their team's result."""
    lead = clock[SCORE] - clock[SCORE + 1]
    result = 1 if lead > 0 else (-1 if lead < 0 else 0)
    for k in range(2 * slots):
        outcome[env * 2 * slots + k] = result if k < slots else -result
        if k % slots >= team_size:
            for column in range(behaviour.shape[1]):
                behaviour[env * 2 * slots + k, column] = ZERO
    for car in range(2 * team_size):
        conclude(clock, sums[car], car, team_size, behaviour[row_of(env, car, team_size, slots)])


@inlined
def settle_env(
    env: int, state: Array, clock: Array, tasks: Array, sums: Array, rules: Array, targets: Array, slots: int,
    match_ticks: int, random_starts: Number, obs: Array, active: Array, terminated: Array, outcome: Array,
    behaviour: Array, final_obs: Array,
) -> None:  # fmt: skip
    """End the match of one env if it is over, set a kick-off if one is due, and observe."""
    per_match = F(1.0) / F(match_ticks)
    s, own = state[env], clock[env]
    size, over = rules[tasks[env, PLAYED], SIZE], own[OVER]
    if over == 1:
        see(s, own, env, size, slots, per_match, final_obs)
        tell(own, env, size, slots, sums[env], outcome, behaviour)
        start(s, own, -1, tasks[env], sums[env], rules, targets[env], match_ticks, random_starts)
        size = rules[tasks[env, PLAYED], SIZE]
    elif own[KICKOFF] == 1:
        kick_off(s, own, size, ONE if rules[tasks[env, PLAYED], SCATTERED] == 1 else random_starts)
    for row in range(env * 2 * slots, (env + 1) * 2 * slots):
        terminated[row] = over
    mark(active, env, size, slots)
    see(s, own, env, size, slots, per_match, obs)


@compiled
def settle(
    state: Array, clock: Array, tasks: Array, sums: Array, rules: Array, targets: Array, slots: int, match_ticks: int,
    random_starts: Number, obs: Array, active: Array, terminated: Array, outcome: Array, behaviour: Array,
    final_obs: Array,
) -> None:  # fmt: skip
    """End matches, set kick-offs and observe."""
    for env in range(state.shape[0]):
        settle_env(
            env, state, clock, tasks, sums, rules, targets, slots, match_ticks, random_starts, obs, active, terminated,
            outcome, behaviour, final_obs,
        )  # fmt: skip


@inlined
def shape_env(
    env: int, before: Array, state: Array, terminated: Array, sizes: Array, slots: int, gamma: Number, values: Array
) -> None:
    """Write the terms of one env that have a potential by it."""
    size = sizes[env]
    later = ZERO if terminated[env * 2 * slots] else gamma
    for car in range(2 * size):
        shape_terms(before[env], state[env], later, car, size, values[row_of(env, car, size, slots)])


@compiled
def shape(
    before: Array, state: Array, terminated: Array, sizes: Array, slots: int, gamma: Number, values: Array
) -> None:
    """Write the terms that have a potential by it, from what each decision saw to what the next one sees."""
    for env in range(state.shape[0]):
        shape_env(env, before, state, terminated, sizes, slots, gamma, values)


@inlined
def step_env(
    env: int, state: Array, before: Array, clock: Array, tasks: Array, sums: Array, rules: Array, targets: Array,
    slots: int, match_ticks: int, random_starts: Number, kind: int, table: Array, overtime_ticks: int, sizes: Array,
    acted: Array, more: bool, shaped: bool, gamma: Number, values: Array, weights: Array, live: Array, kept: Array,
    moments: Array, limit: Number, teams: Array, spirit: Number, rivalry: Number, action: Array, obs: Array,
    reward: Array, terminated: Array, truncated: Array, outcome: Array, final_obs: Array, active: Array, terms: Array,
    behaviour: Array,
) -> None:  # fmt: skip
    """Play one decision of one env from its first tick to its rewards: what a GPU runs for each env at once."""
    advance_env(
        env, state, before, clock, tasks, rules, slots, action, kind, table, overtime_ticks, sizes, acted, sums, values
    )  # fmt: skip
    if more:
        value_others_env(env, before, state, clock, sizes, slots, values)
    settle_env(
        env, state, clock, tasks, sums, rules, targets, slots, match_ticks, random_starts, obs, active, terminated,
        outcome, behaviour, final_obs,
    )  # fmt: skip
    if shaped:
        shape_env(env, before, state, terminated, sizes, slots, gamma, values)
    for row in range(env * 2 * slots, (env + 1) * 2 * slots):
        truncated[row] = 0
    pay_env(env, values, weights, live, kept, moments, limit, teams, acted, spirit, rivalry, reward, terms)


@compiled
def observe_all(
    state: Array, clock: Array, tasks: Array, rules: Array, slots: int, match_ticks: int, obs: Array
) -> None:
    """Write the observations of every row."""
    for env in range(state.shape[0]):
        see(state[env], clock[env], env, rules[tasks[env, PLAYED], SIZE], slots, F(1.0) / F(match_ticks), obs)


@compiled
def renew(
    chosen: Array, games: Array, state: Array, clock: Array, tasks: Array, sums: Array, rules: Array, targets: Array,
    slots: int, match_ticks: int, random_starts: Number, obs: Array, active: Array,
) -> None:  # fmt: skip
    """Begin a match in each of the chosen envs, from these seeds or, below 0, the env's next one, and observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        s, own, task = state[env], clock[env], tasks[env]
        start(s, own, games[k], task, sums[env], rules, targets[env], match_ticks, random_starts)
        size = rules[task[PLAYED], SIZE]
        see(s, own, env, size, slots, F(1.0) / F(match_ticks), obs)
        mark(active, env, size, slots)
