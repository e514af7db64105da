"""Soccer's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode actions, ticks, built-in reward terms), then the user's reward terms if there are any, then
`finish_step` (ends, kick-offs, observations), so that a user's term gets the state before any kick-off. Potentials are
those after the kick-off: `shape` comes last, before the rewards are computed.

The kernels take flat arrays: as fields of NamedTuples they cost about 10 us per step, in reading the tuples and in
reference counts of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.contracts import Array
from slipstream.envs.rewards import pay_env
from slipstream.envs.soccer.actions import decode
from slipstream.envs.soccer.behaviours import count_cars, write_statistics
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
from slipstream.envs.soccer.rewards import shape_terms, value_extra_terms, value_terms
from slipstream.envs.soccer.rng import kick_off, new_match
from slipstream.envs.soccer.tasks import GIVEN, PLAYED, REPEAT, SCATTERED, SIZE
from slipstream.system.numba_compile import Number, compiled, compiled_here, inlined


@inlined
def advance_clock(s: Array, clock: Array, repeat: int, overtime_ticks: int) -> None:
    """Advance the match clock by one decision: goals, overtime, the end."""
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
def play_decision(s: Array, clock: Array, repeat: int, overtime_ticks: int, team_size: int) -> None:
    """Advance one env by one decision; nothing moves in the ticks after a goal."""
    cars = 2 * team_size
    s[GOAL] = ZERO
    left = clock[TICKS_LEFT]
    # The order in which cars hit the ball alternates between kick-offs and matches, so that neither team has an edge.
    last_first = (clock[KEY] + clock[GAME] + clock[SCORE] + clock[SCORE + 1]) & 1
    for k in range(repeat):
        tick(s, left - k, last_first, cars)
        if s[GOAL] != ZERO:
            break
    advance_clock(s, clock, repeat, overtime_ticks)


@inlined
def row_of(env: int, car: int, team_size: int, slots: int) -> int:
    """Return the row of a car: each team has `slots` rows, of which the first `team_size` have a car."""
    row = env * 2 * slots + car
    return row if car < team_size else row + slots - team_size


@inlined
def mark_rows(rows: Array, env: int, team_size: int, slots: int) -> None:
    """Write 1 for the rows of an env that have a car, 0 for the others."""
    first = env * 2 * slots
    for k in range(slots):
        rows[first + k] = rows[first + slots + k] = k < team_size


@inlined
def advance_env(
    env: int,
    state: Array,
    before: Array,
    clock: Array,
    tasks: Array,
    rules: Array,
    slots: int,
    action: Array,
    kind: int,
    table: Array,
    overtime_ticks: int,
    sizes: Array,
    acted: Array,
    sums: Array,
    values: Array,
) -> None:
    """Step one env by one decision and write its usual reward terms."""
    s, old, own, rule = state[env], before[env], clock[env], rules[tasks[env, PLAYED]]
    size = sizes[env] = rule[SIZE]
    for k in range(s.shape[0]):
        old[k] = s[k]
    mark_rows(acted, env, size, slots)
    for car in range(2 * size):
        decode(action, row_of(env, car, size, slots), kind, table, s, car_at(car))
        s[car_at(car) + TOUCH] = ZERO
    play_decision(s, own, rule[REPEAT], overtime_ticks, size)
    count_cars(old, s, own, size, rule[REPEAT], sums[env])
    for car in range(2 * size):
        value_terms(old, s, own, car, size, values[row_of(env, car, size, slots)])


@compiled
def advance(
    state: Array,
    before: Array,
    clock: Array,
    tasks: Array,
    rules: Array,
    slots: int,
    action: Array,
    kind: int,
    table: Array,
    overtime_ticks: int,
    sizes: Array,
    acted: Array,
    sums: Array,
    values: Array,
) -> None:
    """Step every env by one decision and write its usual reward terms into `values` [rows, terms].

    `sizes` [envs] and `acted` [rows] keep the team sizes of this decision and the rows that had a car for the kernels
    that follow, when the next match may have begun.
    """
    for env in range(state.shape[0]):
        advance_env(
            env,
            state,
            before,
            clock,
            tasks,
            rules,
            slots,
            action,
            kind,
            table,
            overtime_ticks,
            sizes,
            acted,
            sums,
            values,
        )


@inlined
def value_extra_env(
    env: int, before: Array, state: Array, clock: Array, sizes: Array, slots: int, values: Array
) -> None:
    """Write the built-in terms of one env that have no default weight."""
    size = sizes[env]
    for car in range(2 * size):
        value_extra_terms(before[env], state[env], clock[env], car, size, values[row_of(env, car, size, slots)])


@compiled
def value_extra(before: Array, state: Array, clock: Array, sizes: Array, slots: int, values: Array) -> None:
    """Write the built-in terms that have no default weight."""
    for env in range(state.shape[0]):
        value_extra_env(env, before, state, clock, sizes, slots, values)


@compiled_here
def value_user_term(
    term: Callable[..., Number],
    before: Array,
    state: Array,
    clock: Array,
    sizes: Array,
    slots: int,
    values: Array,
    column: int,
) -> None:
    """Write one of the user's terms for all rows; the collector masks and reports values that are not finite."""
    for env in range(state.shape[0]):
        size = sizes[env]
        for car in range(2 * size):
            value = term(before[env], state[env], clock[env], car, size)
            values[row_of(env, car, size, slots), column] = F(value)


@inlined
def observe_env(s: Array, clock: Array, env: int, team_size: int, slots: int, per_match: Number, obs: Array) -> None:
    """Write the observations of all rows of one env; rows without a car are zero."""
    for car in range(2 * team_size):
        observe(s, clock, car, team_size, slots, per_match, obs[row_of(env, car, team_size, slots)])
    if team_size < slots:
        for k in range(2 * slots):
            if k % slots >= team_size:
                for column in range(obs.shape[1]):
                    obs[env * 2 * slots + k, column] = ZERO


@inlined
def begin_match(
    s: Array,
    clock: Array,
    game: int,
    task: Array,
    sums: Array,
    rules: Array,
    target: int,
    match_ticks: int,
    random_starts: Number,
) -> None:
    """Begin a match of the env's task, from the seed `game` or, if that is negative, from the env's next seed."""
    task[PLAYED] = task[GIVEN] if task[GIVEN] >= 0 else target
    for car in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            sums[car, k] = ZERO
    rule = rules[task[PLAYED]]
    for k in range(car_at(2 * rule[SIZE]), s.shape[0]):
        s[k] = ZERO
    new_match(s, clock, game, rule[SIZE], match_ticks, ONE if rule[SCATTERED] == 1 else random_starts)


@inlined
def write_results(
    clock: Array, env: int, team_size: int, slots: int, sums: Array, outcome: Array, behaviour: Array
) -> None:
    """Write outcome and behaviour statistics of a finished match; rows without a car share their team's outcome."""
    lead = clock[SCORE] - clock[SCORE + 1]
    result = 1 if lead > 0 else (-1 if lead < 0 else 0)
    for k in range(2 * slots):
        outcome[env * 2 * slots + k] = result if k < slots else -result
        if k % slots >= team_size:
            for column in range(behaviour.shape[1]):
                behaviour[env * 2 * slots + k, column] = ZERO
    for car in range(2 * team_size):
        write_statistics(clock, sums[car], car, team_size, behaviour[row_of(env, car, team_size, slots)])


@inlined
def finish_env(
    env: int,
    state: Array,
    clock: Array,
    tasks: Array,
    sums: Array,
    rules: Array,
    targets: Array,
    slots: int,
    match_ticks: int,
    random_starts: Number,
    obs: Array,
    active: Array,
    terminated: Array,
    outcome: Array,
    behaviour: Array,
    final_obs: Array,
) -> None:
    """End the match of one env if it is over, set a kick-off if one is due, and observe."""
    per_match = F(1.0) / F(match_ticks)
    s, own = state[env], clock[env]
    size, over = rules[tasks[env, PLAYED], SIZE], own[OVER]
    if over == 1:
        observe_env(s, own, env, size, slots, per_match, final_obs)
        write_results(own, env, size, slots, sums[env], outcome, behaviour)
        begin_match(s, own, -1, tasks[env], sums[env], rules, targets[env], match_ticks, random_starts)
        size = rules[tasks[env, PLAYED], SIZE]
    elif own[KICKOFF] == 1:
        kick_off(s, own, size, ONE if rules[tasks[env, PLAYED], SCATTERED] == 1 else random_starts)
    for row in range(env * 2 * slots, (env + 1) * 2 * slots):
        terminated[row] = over
    mark_rows(active, env, size, slots)
    observe_env(s, own, env, size, slots, per_match, obs)


@compiled
def finish_step(
    state: Array,
    clock: Array,
    tasks: Array,
    sums: Array,
    rules: Array,
    targets: Array,
    slots: int,
    match_ticks: int,
    random_starts: Number,
    obs: Array,
    active: Array,
    terminated: Array,
    outcome: Array,
    behaviour: Array,
    final_obs: Array,
) -> None:
    """End matches, set kick-offs and observe."""
    for env in range(state.shape[0]):
        finish_env(
            env,
            state,
            clock,
            tasks,
            sums,
            rules,
            targets,
            slots,
            match_ticks,
            random_starts,
            obs,
            active,
            terminated,
            outcome,
            behaviour,
            final_obs,
        )


@inlined
def shape_env(
    env: int, before: Array, state: Array, terminated: Array, sizes: Array, slots: int, gamma: Number, values: Array
) -> None:
    """Write the potential-based terms of one env."""
    size = sizes[env]
    discount = ZERO if terminated[env * 2 * slots] else gamma
    for car in range(2 * size):
        shape_terms(before[env], state[env], discount, car, size, values[row_of(env, car, size, slots)])


@compiled
def shape(
    before: Array, state: Array, terminated: Array, sizes: Array, slots: int, gamma: Number, values: Array
) -> None:
    """Write the potential-based terms, from the state of each decision to the state of the next one."""
    for env in range(state.shape[0]):
        shape_env(env, before, state, terminated, sizes, slots, gamma, values)


@inlined
def step_env(
    env: int,
    state: Array,
    before: Array,
    clock: Array,
    tasks: Array,
    sums: Array,
    rules: Array,
    targets: Array,
    slots: int,
    match_ticks: int,
    random_starts: Number,
    kind: int,
    table: Array,
    overtime_ticks: int,
    sizes: Array,
    acted: Array,
    extra: bool,
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
    """Play one decision of one env, from its first tick to its rewards; a GPU runs this for all envs at once."""
    advance_env(
        env, state, before, clock, tasks, rules, slots, action, kind, table, overtime_ticks, sizes, acted, sums, values
    )
    if extra:
        value_extra_env(env, before, state, clock, sizes, slots, values)
    finish_env(
        env,
        state,
        clock,
        tasks,
        sums,
        rules,
        targets,
        slots,
        match_ticks,
        random_starts,
        obs,
        active,
        terminated,
        outcome,
        behaviour,
        final_obs,
    )
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
        observe_env(state[env], clock[env], env, rules[tasks[env, PLAYED], SIZE], slots, F(1.0) / F(match_ticks), obs)


@compiled
def begin_matches(
    chosen: Array,
    games: Array,
    state: Array,
    clock: Array,
    tasks: Array,
    sums: Array,
    rules: Array,
    targets: Array,
    slots: int,
    match_ticks: int,
    random_starts: Number,
    obs: Array,
    active: Array,
) -> None:
    """Begin a match in each chosen env, from its seed in `games` or, if negative, the env's next seed; observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        s, own, task = state[env], clock[env], tasks[env]
        begin_match(s, own, games[k], task, sums[env], rules, targets[env], match_ticks, random_starts)
        size = rules[task[PLAYED], SIZE]
        observe_env(s, own, env, size, slots, F(1.0) / F(match_ticks), obs)
        mark_rows(active, env, size, slots)
