"""Soccer's kernels: the scalar functions looped over a batch of environments.

A step is `advance` (decode actions, ticks, built-in reward terms), then the user's reward terms if there are any, then
`finish_step` (ends, kick-offs, observations), so that a user's term gets the state before any kick-off. Potentials are
those after the kick-off: `shape` comes last, before the rewards are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slipstream.contracts import Array
from slipstream.envs.rewards import RewardRules, pay_env
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
from slipstream.envs.step_rows import StepRows
from slipstream.system.numba_compile import Number, compiled, compiled_here, inlined


class Matches(NamedTuple):
    """The arrays of all matches."""

    state: Array  # [envs, state]
    before: Array  # [envs, state]: the state before the last decision
    clock: Array  # [envs, clock]
    tasks: Array  # [envs, 2]: the given task (-1: the target) and the task of the present match
    sums: Array  # [envs, cars, SUMS]: behaviour statistics of the present match
    sizes: Array  # [envs]: cars per team in the last decision
    acted: Array  # [rows]: 1 for rows that had a car in the last decision


class MatchRules(NamedTuple):
    """The settings of all matches."""

    tasks: Array  # [tasks, 3]: team size, ticks per decision and random kick-offs of each task
    targets: Array  # [envs]: the task of an env that is given none
    slots: int  # rows per team
    match_ticks: int
    overtime_ticks: int
    random_starts: Number  # probability of a random start at a kick-off
    action_kind: int
    action_table: Array  # [options, controls] of discrete actions
    extra_terms: bool  # whether any built-in term without a default weight has one


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
def advance_env(env: int, matches: Matches, rules: MatchRules, action: Array, values: Array) -> None:
    """Step one env by one decision and write its usual reward terms."""
    s, old, clock = matches.state[env], matches.before[env], matches.clock[env]
    task = rules.tasks[matches.tasks[env, PLAYED]]
    size = matches.sizes[env] = task[SIZE]
    for k in range(s.shape[0]):
        old[k] = s[k]
    mark_rows(matches.acted, env, size, rules.slots)
    for car in range(2 * size):
        row = row_of(env, car, size, rules.slots)
        decode(action, row, rules.action_kind, rules.action_table, s, car_at(car))
        s[car_at(car) + TOUCH] = ZERO
    play_decision(s, clock, task[REPEAT], rules.overtime_ticks, size)
    count_cars(old, s, clock, size, task[REPEAT], matches.sums[env])
    for car in range(2 * size):
        value_terms(old, s, clock, car, size, values[row_of(env, car, size, rules.slots)])


@compiled
def advance(matches: Matches, rules: MatchRules, action: Array, values: Array) -> None:
    """Step every env by one decision and write its usual reward terms into `values` [rows, terms].

    `matches.sizes` and `matches.acted` keep the team sizes of this decision for the kernels that follow, when the next
    match may have begun.
    """
    for env in range(matches.state.shape[0]):
        advance_env(env, matches, rules, action, values)


@inlined
def value_extra_env(env: int, matches: Matches, slots: int, values: Array) -> None:
    """Write the built-in terms of one env that have no default weight."""
    s, old, clock, size = matches.state[env], matches.before[env], matches.clock[env], matches.sizes[env]
    for car in range(2 * size):
        value_extra_terms(old, s, clock, car, size, values[row_of(env, car, size, slots)])


@compiled
def value_extra(matches: Matches, slots: int, values: Array) -> None:
    """Write the built-in terms that have no default weight."""
    for env in range(matches.state.shape[0]):
        value_extra_env(env, matches, slots, values)


@compiled_here
def value_user_term(term: Callable[..., Number], matches: Matches, slots: int, values: Array, column: int) -> None:
    """Write one of the user's terms for all rows; values that are not finite are masked and reported on collection."""
    for env in range(matches.state.shape[0]):
        size = matches.sizes[env]
        for car in range(2 * size):
            value = term(matches.before[env], matches.state[env], matches.clock[env], car, size)
            values[row_of(env, car, size, slots), column] = F(value)


@inlined
def observe_env(s: Array, clock: Array, env: int, team_size: int, rules: MatchRules, obs: Array) -> None:
    """Write the observations of all rows of one env; rows without a car are zero."""
    slots, per_match = rules.slots, F(1.0) / F(rules.match_ticks)
    for car in range(2 * team_size):
        observe(s, clock, car, team_size, slots, per_match, obs[row_of(env, car, team_size, slots)])
    if team_size < slots:
        for k in range(2 * slots):
            if k % slots >= team_size:
                for column in range(obs.shape[1]):
                    obs[env * 2 * slots + k, column] = ZERO


@inlined
def begin_match(env: int, game: int, matches: Matches, rules: MatchRules) -> None:
    """Begin a match of the env's task, from the seed `game` or, if that is negative, from the env's next seed."""
    s, tasks, sums = matches.state[env], matches.tasks[env], matches.sums[env]
    tasks[PLAYED] = tasks[GIVEN] if tasks[GIVEN] >= 0 else rules.targets[env]
    for car in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            sums[car, k] = ZERO
    task = rules.tasks[tasks[PLAYED]]
    for k in range(car_at(2 * task[SIZE]), s.shape[0]):
        s[k] = ZERO
    random_starts = ONE if task[SCATTERED] == 1 else rules.random_starts
    new_match(s, matches.clock[env], game, task[SIZE], rules.match_ticks, random_starts)


@inlined
def write_results(env: int, team_size: int, matches: Matches, slots: int, outcome: Array, behaviour: Array) -> None:
    """Write outcome and behaviour statistics of a finished match; rows without a car share their team's outcome."""
    clock = matches.clock[env]
    lead = clock[SCORE] - clock[SCORE + 1]
    result = 1 if lead > 0 else (-1 if lead < 0 else 0)
    for k in range(2 * slots):
        outcome[env * 2 * slots + k] = result if k < slots else -result
        if k % slots >= team_size:
            for column in range(behaviour.shape[1]):
                behaviour[env * 2 * slots + k, column] = ZERO
    for car in range(2 * team_size):
        row = row_of(env, car, team_size, slots)
        write_statistics(clock, matches.sums[env, car], car, team_size, behaviour[row])


@inlined
def finish_env(env: int, matches: Matches, rules: MatchRules, out: StepRows) -> None:
    """End the match of one env if it is over, set a kick-off if one is due, and observe."""
    s, clock, slots = matches.state[env], matches.clock[env], rules.slots
    task = rules.tasks[matches.tasks[env, PLAYED]]
    size, over = task[SIZE], clock[OVER]
    if over == 1:
        observe_env(s, clock, env, size, rules, out.final_obs)
        write_results(env, size, matches, slots, out.outcome, out.behaviour)
        begin_match(env, -1, matches, rules)
        size = rules.tasks[matches.tasks[env, PLAYED], SIZE]
    elif clock[KICKOFF] == 1:
        kick_off(s, clock, size, ONE if task[SCATTERED] == 1 else rules.random_starts)
    for row in range(env * 2 * slots, (env + 1) * 2 * slots):
        out.terminated[row] = over
        out.truncated[row] = 0
    mark_rows(out.active, env, size, slots)
    observe_env(s, clock, env, size, rules, out.obs)


@compiled
def finish_step(matches: Matches, rules: MatchRules, out: StepRows) -> None:
    """End matches, set kick-offs and observe."""
    for env in range(matches.state.shape[0]):
        finish_env(env, matches, rules, out)


@inlined
def shape_env(env: int, matches: Matches, slots: int, gamma: Number, terminated: Array, values: Array) -> None:
    """Write the potential-based terms of one env."""
    size = matches.sizes[env]
    discount = ZERO if terminated[env * 2 * slots] else gamma
    for car in range(2 * size):
        row = row_of(env, car, size, slots)
        shape_terms(matches.before[env], matches.state[env], discount, car, size, values[row])


@compiled
def shape(matches: Matches, slots: int, gamma: Number, terminated: Array, values: Array) -> None:
    """Write the potential-based terms, from the state of each decision to the state of the next one."""
    for env in range(matches.state.shape[0]):
        shape_env(env, matches, slots, gamma, terminated, values)


@inlined
def step_env(env: int, matches: Matches, rules: MatchRules, rewards: RewardRules, action: Array, out: StepRows) -> None:
    """Play one decision of one env, from its first tick to its rewards; a GPU runs this for all envs at once."""
    advance_env(env, matches, rules, action, rewards.values)
    if rules.extra_terms:
        value_extra_env(env, matches, rules.slots, rewards.values)
    finish_env(env, matches, rules, out)
    if rewards.shaped:
        shape_env(env, matches, rules.slots, rewards.gamma, out.terminated, rewards.values)
    pay_env(env, rewards, matches.acted, out.reward, out.terms)


@compiled
def observe_all(matches: Matches, rules: MatchRules, obs: Array) -> None:
    """Write the observations of every row."""
    for env in range(matches.state.shape[0]):
        size = rules.tasks[matches.tasks[env, PLAYED], SIZE]
        observe_env(matches.state[env], matches.clock[env], env, size, rules, obs)


@compiled
def begin_matches(chosen: Array, games: Array, matches: Matches, rules: MatchRules, obs: Array, active: Array) -> None:
    """Begin a match in each chosen env, from its seed in `games` or, if negative, the env's next seed; observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        begin_match(env, games[k], matches, rules)
        size = rules.tasks[matches.tasks[env, PLAYED], SIZE]
        observe_env(matches.state[env], matches.clock[env], env, size, rules, obs)
        mark_rows(active, env, size, rules.slots)
