"""The loops of native games, written once: one decision of an env, from its ticks to the next observation.

These functions are templates. Each game has copies of them, whose globals are the game's own functions, compiled for
the CPU and for a GPU, or left as plain Python. A function of the game is called with low-level arguments: the
arrays of all envs and the env's index. (Views of an env's rows would cost a reference count each.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from slipstream.contracts import Array
from slipstream.envs.native.mathematics import COUNTER, GAME, KEY
from slipstream.envs.rewards import ACTED, EARLIER, PayRules, pay_env
from slipstream.system.numba_compile import Number
from slipstream.system.rng import game_key, next_game

DECISIONS, GIVEN, TASK, READY, NUMBERS = 3, 4, 5, 6, 7
"""Further columns of the integers: the decisions of the game so far, the task that the env was given (-1: its
target), and the task that it plays. For the world of an env's next game: whether it was generated (1), and whether the
game has begun in this step (2)."""
LANES = 32
"""Threads of a GPU that copy an env's next world together."""
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
SUM, MEAN, MAXIMUM, LAST = range(4)
"""How a statistic is combined over the decisions of a game."""


class Games(NamedTuple):
    """The state of all games, and what they are played by."""

    state: Array
    """[envs, columns]"""
    before: Array
    """The states before a decision; `state` itself where no function reads them."""
    numbers: Array
    """[envs, NUMBERS]: the RNG, the seed and the task."""
    behaviour: Array
    """[envs, agents, statistics] of the present game."""
    world: Array
    """[envs, columns], or an empty one."""
    next_world: Array
    """The worlds of the next games, where they are generated ahead of time."""
    next_numbers: Array
    scratch: Array
    """[1 or envs, columns]: workspace."""
    controls: Array
    """[rows, controls]: the actions of this decision, decoded, where `env.actions` chooses their kind."""
    kind: int
    """The kind of actions, as `controls` numbers them."""
    targets: Array
    """The target task of each env."""
    table: Array
    """The numbers of the settings, followed by those without a task and of each task."""
    acted: Array
    """[rows]: whether a row acts in this decision."""
    ticks: int
    """Ticks of a decision."""
    limit: int
    """Decisions after which a game ends; 0: never."""
    at_limit: int
    """How it ends then: TERMINATED or TRUNCATED."""
    shaped: bool
    """Whether terms that have a potential are differences of it."""
    gamma: Number
    """The discount of these differences."""


class Results(NamedTuple):
    """The arrays of a step's results; see `contracts.Rows`."""

    vectors: Array
    """The numbers of the observations, and the whole rows as bytes: the same array unless there are images."""
    obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    outcome: Array
    final_vectors: Array
    final_obs: Array
    active: Array
    terms: Array
    behaviour: Array
    mask: Array


# Globals of each copy: the game's functions, and its numbers
reset: Any = None
generate: Any = None
task_place: Any = None
decode: Any = None
encode: Any = None
to_float: Any = None
step: Any = None
prepare: Any = None
observe: Any = None
clear: Any = None
done: Any = None
outcome_of: Any = None
acts_next: Any = None
takes_part: Any = None
allowed: Any = None
value_terms: Any = None
shape_terms: Any = None
value_statistics: Any = None
last_statistics: Any = None
play: Any = None
begin: Any = None
write_masks: Any = None
write_statistics: Any = None
observe_env: Any = None
observe_seldom: Any = None
mark_active: Any = None
act: Any = None
AGENTS, OBS, PIXELS, SETTINGS_SIZE, TASK_SIZE, CONTROLS, POTENTIALS = 1, 1, 0, 0, 0, 0, 0
TURNS, ABSENCES, BEFORE, WHOLE_DECISIONS, PREPARES, WORLD, MASKED = False, False, False, False, False, False, False


def task_place_template(numbers: Array, env: int) -> int:
    """The first number of an env's task in the table, where those of no task (-1) come first."""
    task: int = numbers[env, TASK] + 1
    return SETTINGS_SIZE + task * TASK_SIZE


def next_world_template(
    env: int, numbers: Array, next_world: Array, next_numbers: Array, scratch: Array, targets: Array, table: Array
) -> None:
    """Generate the world of an env's next game, unless there is one for its seed and task."""
    game = next_game(numbers[env, GAME])
    task = numbers[env, GIVEN] if numbers[env, GIVEN] >= 0 else targets[env]
    if next_numbers[env, READY] == 1 and next_numbers[env, GAME] == game and next_numbers[env, TASK] == task:
        return
    next_numbers[env, GAME], next_numbers[env, TASK] = game, task
    next_numbers[env, KEY], next_numbers[env, COUNTER] = game_key(game), 0
    place = task_place(next_numbers, env)
    generate(next_world, env, scratch, env % scratch.shape[0], next_numbers, table, place)
    next_numbers[env, READY] = 1


def take_world_template(index: int, world: Array, next_world: Array, next_numbers: Array) -> None:
    """Copy a share of the columns of an env's next world, if its game has begun in this step."""
    env, lane = index // LANES, index % LANES
    if next_numbers[env, READY] == 2:
        for column in range(lane, world.shape[1], LANES):
            world[env, column] = next_world[env, column]


def begin_template(env: int, game: int, games: Games, ahead: bool) -> bool:
    """Begin the game of the seed `game` in an env or, if that is negative, the env's next game.

    Return whether its world is the one that was generated ahead of time.
    """
    numbers, scratch = games.numbers, games.scratch
    for k in range(games.state.shape[1]):
        games.state[env, k] = 0
    for me in range(AGENTS):
        for k in range(games.behaviour.shape[2]):
            games.behaviour[env, me, k] = 0
    numbers[env, GAME] = game if game >= 0 else next_game(numbers[env, GAME])
    numbers[env, KEY] = game_key(numbers[env, GAME])
    numbers[env, COUNTER] = 0
    numbers[env, DECISIONS] = 0
    numbers[env, TASK] = numbers[env, GIVEN] if numbers[env, GIVEN] >= 0 else games.targets[env]
    place = task_place(numbers, env)
    row, world, taken = env % scratch.shape[0], games.world, False
    if WORLD:
        if ahead:
            ready = games.next_numbers
            taken = bool(
                ready[env, READY] == 1
                and ready[env, GAME] == numbers[env, GAME]
                and ready[env, TASK] == numbers[env, TASK]
            )
            if taken:
                ready[env, READY] = 2
                numbers[env, COUNTER] = ready[env, COUNTER]
                world = games.next_world
        if not taken:
            generate(world, env, scratch, row, numbers, games.table, place)
    reset(games.state, env, world, scratch, row, numbers, games.table, place)
    return taken


def observe_template(env: int, games: Games, world: Array, obs: Array, pixels: Array) -> None:
    """Write the observations of an env; columns that the game does not write are 0."""
    place, scratch = task_place(games.numbers, env), games.scratch
    for me in range(AGENTS):
        row = env * AGENTS + me
        for k in range(PIXELS):
            pixels[row, 4 * OBS + k] = 0
        if ABSENCES and not takes_part(games.state, env, world, me, games.table, place):
            for k in range(OBS):
                obs[row, k] = 0
        else:
            clear(obs, row)
            observe(games.state, env, world, scratch, env % scratch.shape[0], me, obs, pixels, row, games.table, place)


def active_template(env: int, games: Games, world: Array, active: Array) -> None:
    """Mark the rows of an env that act next."""
    place = task_place(games.numbers, env)
    for me in range(AGENTS):
        row = env * AGENTS + me
        active[row] = 1
        if ABSENCES:
            active[row] = takes_part(games.state, env, world, me, games.table, place)
        if TURNS and active[row]:
            active[row] = acts_next(games.state, env, world, me, games.table, place)


def masks_template(env: int, games: Games, world: Array, active: Array, mask: Array) -> None:
    """Write the action masks of an env; a row that does not act may do anything."""
    place = task_place(games.numbers, env)
    for me in range(AGENTS):
        row = env * AGENTS + me
        for option in range(mask.shape[1]):
            mask[row, option] = 1
            if active[row]:
                mask[row, option] = allowed(games.state, env, world, me, option, games.table, place)


def play_template(env: int, games: Games, rules: PayRules, action: Array, out: Results, ahead: bool) -> None:
    """Play one decision of one env; `ahead`: the worlds of next games are generated ahead of time."""
    state, before, numbers, acted, world = games.state, games.before, games.numbers, games.acted, games.world
    table, scratch = games.table, games.scratch
    first, place, workspace = env * AGENTS, task_place(numbers, env), env % scratch.shape[0]
    if WORLD and ahead and games.next_numbers[env, READY] == 2:
        games.next_numbers[env, READY] = 0
    if BEFORE:
        for k in range(state.shape[1]):
            before[env, k] = state[env, k]
    for me in range(AGENTS):
        row = first + me
        if ABSENCES:
            acted[row] = takes_part(state, env, world, me, table, place)
        if TURNS:
            acted[row] = ACTED if acts_next(state, env, world, me, table, place) else EARLIER
        if CONTROLS:
            decode(action, row, games.kind, games.controls)
    over, ticks = RUNNING, 0
    given = games.controls if CONTROLS else action
    if WHOLE_DECISIONS:
        step(state, env, world, scratch, workspace, given, first, games.ticks, numbers, table, place)
        over = int(done(state, env, world, table, place))
    else:
        while ticks < games.ticks and over == RUNNING:
            step(state, env, world, scratch, workspace, given, first, games.ticks, numbers, table, place)
            over = int(done(state, env, world, table, place))
            ticks += 1
    numbers[env, DECISIONS] += 1
    if over == RUNNING and games.limit > 0 and numbers[env, DECISIONS] >= games.limit:
        over = games.at_limit
    for me in range(AGENTS):
        row = first + me
        if not ABSENCES or acted[row]:
            value_terms(before, state, env, world, given, first, me, table, place, rules.values, row, rules.weights)
            value_statistics(before, state, env, world, given, first, me, table, place, games.behaviour)
        out.terminated[row] = over == TERMINATED
        out.truncated[row] = over == TRUNCATED
    if PREPARES and over == RUNNING:
        prepare(state, env, world, numbers, table, place)
    if POTENTIALS and games.shaped:
        discount = to_float(0.0) if over == TERMINATED else games.gamma
        for me in range(AGENTS):
            if not ABSENCES or acted[first + me]:
                shape_terms(before, state, env, world, me, table, place, discount, rules.values, first + me)
    if over != RUNNING:
        observe_seldom(env, games, world, out.final_vectors, out.final_obs)
        for me in range(AGENTS):
            row = first + me
            out.outcome[row] = int(outcome_of(state, env, world, me, table, place))
            if not ABSENCES or acted[row]:
                last_statistics(before, state, env, world, given, first, me, table, place, games.behaviour)
            write_statistics(games.behaviour, env, me, numbers[env, DECISIONS], out.behaviour, row)
        if begin(env, -1, games, ahead):
            world = games.next_world
    mark_active(env, games, world, out.active)
    observe_env(env, games, world, out.vectors, out.obs)
    if MASKED:
        write_masks(env, games, world, out.active, out.mask)
    pay_env(
        env,
        rules.values,
        rules.weights,
        rules.weighted,
        rules.exempt,
        rules.mean_squares,
        rules.limit,
        rules.teams,
        acted,
        rules.team_spirit,
        rules.zero_sum,
        out.reward,
        out.terms,
    )


def step_on_device_template(
    env: int,
    games: tuple[Any, ...],
    rules: tuple[Any, ...],
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
    out = Results(obs, obs, reward, terminated, truncated, outcome, final_obs, final_obs, active, terms, behaviour, obs)
    play(env, Games(*games), PayRules(*rules), action, out, True)


def step_all_template(games: tuple[Any, ...], rules: tuple[Any, ...], action: Array, out: tuple[Any, ...]) -> None:
    """Play one decision of every env. Numba reads plain tuples sooner than named ones."""
    all_games, pay, results = Games(*games), PayRules(*rules), Results(*out)
    for env in range(all_games.state.shape[0]):
        play(env, all_games, pay, action, results, False)


def begin_all_template(
    chosen: Array,
    seeds: Array,
    games: tuple[Any, ...],
    obs: Array,
    pixels: Array,
    active: Array,
    mask: Array,
) -> None:
    """Begin a game in each chosen env, and observe it."""
    all_games = Games(*games)
    for k in range(chosen.shape[0]):
        env = chosen[k]
        begin(env, seeds[k], all_games, False)
        mark_active(env, all_games, all_games.world, active)
        observe_seldom(env, all_games, all_games.world, obs, pixels)
        if MASKED:
            write_masks(env, all_games, all_games.world, active, mask)


def observe_all_template(games: tuple[Any, ...], obs: Array, pixels: Array) -> None:
    """Write the observations of every row."""
    all_games = Games(*games)
    for env in range(all_games.state.shape[0]):
        observe_seldom(env, all_games, all_games.world, obs, pixels)


def act_all_template(vectors: Array, pixels: Array, chosen: Array, kind: int, actions: Array) -> None:
    """Write the actions of a scripted player for every row; `chosen` are the values of controls if there are any."""
    for row in range(actions.shape[0]):
        for k in range(CONTROLS):
            chosen[row, k] = to_float(0.0)
        act(vectors, pixels, row, chosen)
        if CONTROLS:
            encode(chosen, row, kind, actions)
