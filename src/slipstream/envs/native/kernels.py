"""The loops of native games, written once: one decision of an env, from its ticks to the next observation.

These functions are templates. Each game has copies of them, whose globals are the game's own functions, compiled for
the CPU and for a GPU, or left as plain Python. A function of the game is called with low-level arguments: the
arrays of all envs and the env's index. (Views of an env's rows would cost a reference count each.)
"""

from __future__ import annotations

from typing import Any

from slipstream.contracts import Array
from slipstream.envs.native.mathematics import COUNTER, KEY
from slipstream.envs.rewards import ACTED, EARLIER, pay_env
from slipstream.system.numba_compile import Number
from slipstream.system.rng import game_key, next_game

GAME, DECISIONS, GIVEN, TASK, NUMBERS = 2, 3, 4, 5, 6
"""Further columns of the integers: the seed of the game, its decisions so far, the task that the env was given (-1: its
target), and the task that it plays."""
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
SUM, MEAN, MAXIMUM, LAST = range(4)
"""How a statistic is combined over the decisions of a game."""

# Globals of each copy: the game's functions, and its numbers
reset: Any = None
step: Any = None
observe: Any = None
done: Any = None
outcome_of: Any = None
acts_next: Any = None
allowed: Any = None
value_terms: Any = None
value_statistics: Any = None
play: Any = None
begin: Any = None
write_masks: Any = None
write_statistics: Any = None
observe_env: Any = None
mark_active: Any = None
act: Any = None
AGENTS, OBS, PIXELS, TASK_SIZE = 1, 1, 0, 0
TURNS, BEFORE = False, False


def begin_template(
    env: int, game: int, state: Array, numbers: Array, sums: Array, targets: Array, table: Array
) -> None:
    """Begin the game of the seed `game` in an env or, if that is negative, the env's next game."""
    for k in range(state.shape[1]):
        state[env, k] = 0
    for me in range(AGENTS):
        for k in range(sums.shape[2]):
            sums[env, me, k] = 0
    numbers[env, GAME] = game if game >= 0 else next_game(numbers[env, GAME])
    numbers[env, KEY] = game_key(numbers[env, GAME])
    numbers[env, COUNTER] = 0
    numbers[env, DECISIONS] = 0
    numbers[env, TASK] = numbers[env, GIVEN] if numbers[env, GIVEN] >= 0 else targets[env]
    reset(state, env, numbers, table, max(numbers[env, TASK], 0) * TASK_SIZE)


def observe_template(env: int, state: Array, numbers: Array, table: Array, obs: Array, pixels: Array) -> None:
    """Write the observations of an env; columns that the game does not write are 0."""
    place = max(numbers[env, TASK], 0) * TASK_SIZE
    for me in range(AGENTS):
        row = env * AGENTS + me
        for k in range(OBS):
            obs[row, k] = 0
        for k in range(PIXELS):
            pixels[row, 4 * OBS + k] = 0
        observe(state, env, me, obs, pixels, row, table, place)


def active_template(env: int, state: Array, numbers: Array, table: Array, active: Array) -> None:
    """Mark the rows of an env that act next."""
    place = max(numbers[env, TASK], 0) * TASK_SIZE
    for me in range(AGENTS):
        active[env * AGENTS + me] = 1
        if TURNS:
            active[env * AGENTS + me] = acts_next(state, env, me, table, place)


def masks_template(env: int, state: Array, numbers: Array, table: Array, mask: Array) -> None:
    """Write the action masks of an env; a row that does not act may do anything."""
    place = max(numbers[env, TASK], 0) * TASK_SIZE
    for me in range(AGENTS):
        row = env * AGENTS + me
        free = TURNS and not acts_next(state, env, me, table, place)
        for option in range(mask.shape[1]):
            mask[row, option] = 1 if free else allowed(state, env, me, option, table, place)


def play_template(
    env: int,
    state: Array,
    before: Array,
    numbers: Array,
    sums: Array,
    targets: Array,
    table: Array,
    acted: Array,
    repeat: int,
    limit: int,
    at_limit: int,
    values: Array,
    weights: Array,
    weighted: Array,
    exempt: Array,
    mean_squares: Array,
    clip: Number,
    teams: Array,
    team_spirit: Number,
    zero_sum: Number,
    action: Array,
    obs: Array,
    pixels: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    final_obs: Array,
    final_pixels: Array,
    active: Array,
    terms: Array,
    behaviour: Array,
) -> None:
    """Play one decision of one env."""
    first = env * AGENTS
    place = max(numbers[env, TASK], 0) * TASK_SIZE
    if BEFORE:
        for k in range(state.shape[1]):
            before[env, k] = state[env, k]
    if TURNS:
        for me in range(AGENTS):
            acted[first + me] = ACTED if acts_next(state, env, me, table, place) else EARLIER
    over, ticks = RUNNING, 0
    while ticks < repeat and over == RUNNING:
        step(state, env, action, first, numbers, table, place)
        over = int(done(state, env, table, place))
        ticks += 1
    numbers[env, DECISIONS] += 1
    if over == RUNNING and limit > 0 and numbers[env, DECISIONS] >= limit:
        over = at_limit
    for me in range(AGENTS):
        row = first + me
        value_terms(before, state, env, action, first, me, table, place, values, row)
        value_statistics(before, state, env, action, first, me, table, place, sums)
        terminated[row] = over == TERMINATED
        truncated[row] = over == TRUNCATED
    if over != RUNNING:
        observe_env(env, state, numbers, table, final_obs, final_pixels)
        for me in range(AGENTS):
            outcome[first + me] = int(outcome_of(state, env, me, table, place))
            write_statistics(sums, env, me, numbers[env, DECISIONS], behaviour, first + me)
        begin(env, -1, state, numbers, sums, targets, table)
    mark_active(env, state, numbers, table, active)
    observe_env(env, state, numbers, table, obs, pixels)
    pay_env(
        env,
        values,
        weights,
        weighted,
        exempt,
        mean_squares,
        clip,
        teams,
        acted,
        team_spirit,
        zero_sum,
        reward,
        terms,
    )


def step_on_device_template(
    env: int,
    state: Array,
    before: Array,
    numbers: Array,
    sums: Array,
    targets: Array,
    table: Array,
    acted: Array,
    repeat: int,
    limit: int,
    at_limit: int,
    values: Array,
    weights: Array,
    weighted: Array,
    exempt: Array,
    mean_squares: Array,
    clip: Number,
    teams: Array,
    team_spirit: Number,
    zero_sum: Number,
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
    """Play one decision of one env whose observation is a vector, as `DeviceVector` calls it."""
    play(
        env,
        state,
        before,
        numbers,
        sums,
        targets,
        table,
        acted,
        repeat,
        limit,
        at_limit,
        values,
        weights,
        weighted,
        exempt,
        mean_squares,
        clip,
        teams,
        team_spirit,
        zero_sum,
        action,
        obs,
        obs,
        reward,
        terminated,
        truncated,
        outcome,
        final_obs,
        final_obs,
        active,
        terms,
        behaviour,
    )


def step_all_template(
    state: Array,
    before: Array,
    numbers: Array,
    sums: Array,
    targets: Array,
    table: Array,
    acted: Array,
    repeat: int,
    limit: int,
    at_limit: int,
    values: Array,
    weights: Array,
    weighted: Array,
    exempt: Array,
    mean_squares: Array,
    clip: Number,
    teams: Array,
    team_spirit: Number,
    zero_sum: Number,
    action: Array,
    obs: Array,
    pixels: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    final_obs: Array,
    final_pixels: Array,
    active: Array,
    terms: Array,
    behaviour: Array,
    mask: Array,
) -> None:
    """Play one decision of every env."""
    for env in range(state.shape[0]):
        play(
            env,
            state,
            before,
            numbers,
            sums,
            targets,
            table,
            acted,
            repeat,
            limit,
            at_limit,
            values,
            weights,
            weighted,
            exempt,
            mean_squares,
            clip,
            teams,
            team_spirit,
            zero_sum,
            action,
            obs,
            pixels,
            reward,
            terminated,
            truncated,
            outcome,
            final_obs,
            final_pixels,
            active,
            terms,
            behaviour,
        )
        if mask.shape[1] > 0:
            write_masks(env, state, numbers, table, mask)


def begin_all_template(
    chosen: Array,
    games: Array,
    state: Array,
    numbers: Array,
    sums: Array,
    targets: Array,
    table: Array,
    obs: Array,
    pixels: Array,
    active: Array,
    mask: Array,
) -> None:
    """Begin a game in each chosen env, and observe it."""
    for k in range(chosen.shape[0]):
        env = chosen[k]
        begin(env, games[k], state, numbers, sums, targets, table)
        mark_active(env, state, numbers, table, active)
        observe_env(env, state, numbers, table, obs, pixels)
        if mask.shape[1] > 0:
            write_masks(env, state, numbers, table, mask)


def observe_all_template(state: Array, numbers: Array, table: Array, obs: Array, pixels: Array) -> None:
    """Write the observations of every row."""
    for env in range(state.shape[0]):
        observe_env(env, state, numbers, table, obs, pixels)


def act_all_template(vectors: Array, pixels: Array, actions: Array) -> None:
    """Write the actions of a scripted player for every row."""
    for row in range(actions.shape[0]):
        act(vectors, pixels, row, actions)
