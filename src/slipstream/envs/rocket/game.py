"""Rocket League matches simulated by RocketSim, behind the `Vector` contract.

A match of two cars is determined bit for bit by its seed and its actions: it starts with new cars in a cleared arena
(see `arena.clear`). The state that the simulator exposes is incomplete: wheels and contacts have hidden state, and
values are rounded. So a snapshot holds seeds and actions, and `restore` replays each match. With more than two cars,
the simulator's internal order of cars changes the last bits, so a resumed run starts new matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, choose_target, target_tasks, vector_obs
from slipstream.envs.options import GameOptions, check_options
from slipstream.envs.rewards import CombinedReward
from slipstream.envs.rocket import arena, batch, layout
from slipstream.envs.rocket.actions import KINDS, SPECS, Controls
from slipstream.envs.rocket.layout import TICK_HZ
from slipstream.envs.rocket.rewards import SCHEME, TERMS
from slipstream.envs.rocket.user_functions import Matches, ObservationBuilder, compile_terms, value_term
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.errors import ConfigError
from slipstream.system.rng import check_seeds, first_games, next_game

SLOTS = 3
"""Car slots per team in the mixed variant."""
OPTIONS = ("", " scattered")
"""Suffixes of a team size in a task; with `scattered` every kick-off is from a random state."""
CAR_NUMBERS = 36
"""Columns of a car in the simulator's state, for each view."""

GIVEN, PLAYED = 0, 1
"""Columns of an env's tasks: the task of its next match (-1: its target), and the task of this match."""


class Rocket(ArraySnapshot):
    """`envs` matches of two teams of `team_size` cars; with `mixed`, the task gives the team size (one to three)."""

    KEPT = ("games", "tasks", "count", "history", "behaviour")

    def __init__(
        self,
        envs: int,
        *,
        team_size: int = 1,
        mixed: bool = False,
        observation: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        """Make the matches; `observation` is the user's builder, other keyword arguments are those of `GameOptions`."""
        given = GameOptions(**({"action_repeat": 8} | options))
        given.check(envs, KINDS)
        actions, action_repeat, first = given.actions, given.action_repeat, given.first
        meshes = arena.load()
        self._simulator: Any = arena.require()
        self.envs, self._first, self._seed, self._ticks = envs, first, given.seed, action_repeat
        self._builder = ObservationBuilder(observation, 2 * (SLOTS if mixed else team_size)) if observation else None
        self.spec = _spec(team_size, mixed, actions, action_repeat, given, meshes, self._builder)
        self._slots = slots = self.spec.agents
        self._match = max(round(given.match_seconds * TICK_HZ), action_repeat)
        self._scatter, self._starts = given.random_starts, _read_starts(given.options, slots)
        self._controls = Controls(self._simulator, actions)
        self._arenas: list[Any] = [None] * envs
        self._cars: list[list[Any]] = [[] for _ in range(envs)]
        self._car_slots: list[list[int]] = [[] for _ in range(envs)]
        """The slot of each car of an arena."""
        self._rows: list[list[int]] = [[] for _ in range(envs)]
        """The row of each car of an arena."""
        longest = -(-self._match // action_repeat) + -(-self._match // (2 * action_repeat)) + 1
        parts = self.spec.action.parts
        kind = np.float32 if actions == "continuous" else np.int16
        self.games = np.zeros(envs, np.int64)
        self.tasks = np.full((envs, 2), -1)
        self.count = np.zeros(envs, np.int64)
        self.history = np.zeros((envs, longest if self.spec.exact else 0, slots, parts), kind)
        self.behaviour = np.zeros((envs, slots, len(batch.BEHAVIOURS)), np.float32)
        self._targets = target_tasks(self.spec, first, envs)
        self._everyone = np.arange(envs)
        self._signs = np.tile(np.where(np.array(self.spec.teams) == 0, 1, -1), envs)
        """1 for rows of the blue team, -1 for rows of the orange team."""
        self._sizes = [int(name[0]) for name in self.spec.tasks]
        self._balls, self._pads = np.zeros((envs, 2, 25), np.float32), np.zeros((envs, 2, batch.PADS), np.float32)
        self._bodies = np.zeros((envs, slots, 2, CAR_NUMBERS), np.float32)
        self._flips = np.zeros((envs, slots), np.float32)
        self._present, self._clock = np.zeros((envs, slots), np.uint8), np.zeros((envs, 2), np.float32)
        self._score = np.zeros((envs, 2), np.int64)
        self._kickoffs, self._returns = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        """Kick-offs and respawns of demolished cars in the match so far."""
        self._earlier = np.zeros((envs, 2), np.int64)
        """Goals of earlier matches in the same arena."""
        self.payout = CombinedReward(SCHEME, given.rewards, self.spec, envs, given.gamma, tuple(given.extra_terms))
        self._matches = Matches(
            self._balls, self._bodies, self._pads, self._flips, self._present, self._clock, self._score
        ).view()
        """What functions of the user see."""
        self._kept = self._matches.copy()
        self._before = self._kept.view()
        """The matches before a step, for terms of the user."""
        self._terms = compile_terms(dict(given.extra_terms), self._matches, self.payout.values)

    def reset(self, out: Rows) -> None:
        """Reset every env to the first match of its seed."""
        self.payout.reset()
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._start_matches(range(self.envs), games.tolist(), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the next match of the given envs, or the match of each seed."""
        given = check_seeds(indices, seeds)
        games = [next_game(self.games[env]) if seed < 0 else seed for env, seed in zip(indices, given, strict=True)]
        self._start_matches(indices, games, out)

    def seeds(self) -> Array:
        """The seed of every running match."""
        return self.games.copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next match on."""
        self.tasks[:, GIVEN] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Step every match."""
        old_balls, old_cars, old_score = self._balls.copy(), self._bodies.copy(), self._score.copy()
        present, acted = self._present, self._present.reshape(-1).copy()
        if self._terms:
            for kept, array in zip(self._kept, self._matches, strict=True):
                kept[:] = array
        self._advance(self._everyone, self._controls.of(action))
        if self.spec.exact:
            self.history[self._everyone, self.count] = action.reshape(self.envs, self._slots, -1)
        self.count += 1
        scored, won, over = batch.match_results(old_score, self._score, self.count * self._ticks, self._match)
        batch.value_terms(
            self._balls, self._bodies, old_balls, old_cars, present, scored, won, self.payout.values, self.behaviour
        )
        if self._terms:
            self._write_clock(self._everyone)
            for column, term in enumerate(self._terms, len(TERMS)):
                value_term(term, self._before, self._matches, self.payout.values, column)
        for env in np.flatnonzero((scored != 0) & ~over).tolist():
            self._kick_off(env)
        if self.payout.shaped:
            batch.shape_terms(
                self._balls, self._bodies, old_balls, old_cars, present, over, self.payout.gamma, self.payout.values
            )
        self.payout.pay(acted, out.reward, out.terms)
        ended = np.repeat(over, self._slots)
        out.terminated[:], out.truncated[:] = ended, 0
        out.outcome[:] = np.repeat(won, self._slots) * self._signs
        self._write_clock(self._everyone)
        self._write_obs(self._everyone, out)
        out.active[:] = present.reshape(-1)
        if over.any():
            out.final_obs[ended] = out.obs[ended]
            divisors, ends = np.ones(len(batch.BEHAVIOURS), np.float32), np.flatnonzero(over).tolist()
            for env in ends:
                divisors[batch.B_BOOST :] = max(int(self.count[env]), 1)
                rows = slice(env * self._slots, (env + 1) * self._slots)
                out.behaviour[rows] = self.behaviour[env] / divisors
            self._start_matches(ends, [next_game(self.games[env]) for env in ends], out)

    def snapshot(self) -> dict[str, Array]:
        """Seeds, tasks and actions of matches of two cars; empty for larger matches."""
        return super().snapshot() if self.spec.exact else {}

    def restore(self, state: dict[str, Array]) -> None:
        """Replay every match up to the snapshot."""
        self.payout.restore(state)
        played = {name: state[name].copy() for name in self.KEPT}
        self.tasks[:] = played["tasks"]
        for env in range(self.envs):
            self._start_match(env, int(played["games"][env]), int(played["tasks"][env, PLAYED]))
            for step in range(int(played["count"][env])):
                controls, before = self._controls.of(played["history"][env, step]), self._score[env].copy()
                self._advance(np.array([env]), [None] * (env * self._slots) + controls)
                if np.diff(self._score[env] - before)[0]:
                    self._kick_off(env)
        for name in ("games", "count", "history", "behaviour"):
            getattr(self, name)[:] = played[name]
        self._write_clock(self._everyone)

    def view(self) -> dict[str, Array]:
        """The state of every match for rendering (see `layout`), and its statistics."""
        played = self.count * self._ticks
        extra = played >= self._match
        clock = np.zeros((self.envs, layout.CLOCK_SIZE), np.int64)
        clock[:, layout.TICKS_LEFT] = self._match + extra * (self._match // 2) - played
        clock[:, layout.SCORE : layout.SCORE + 2] = self._score
        clock[:, layout.OVERTIME], clock[:, layout.GAME] = extra, self.games
        state = layout.fill(self._balls, self._pads, self._bodies, self._car_slots)
        return {"state": state, "clock": clock, "behaviour": self.behaviour.copy()}

    def close(self) -> None:
        """Free the arenas."""
        self._arenas, self._cars = [], []

    def _start_matches(self, envs: Sequence[int], games: Sequence[int], out: Rows) -> None:
        for env, game in zip(envs, games, strict=True):
            given = int(self.tasks[env, GIVEN])
            self._start_match(env, int(game), given if given >= 0 else int(self._targets[env]))
        some = np.array(list(envs), np.int64)
        self._write_clock(some)
        self._write_obs(some, out)
        if self._builder is not None:
            self._builder.check_start(some, out.obs, self._first)
        out.active.reshape(self.envs, -1)[some] = self._present[some]

    def _start_match(self, env: int, game: int, task: int) -> None:
        """Start the match of a seed, with new cars."""
        field, team = self._arenas[env], self._simulator.Team
        if field is None:
            field = self._arenas[env] = arena.make(self._simulator)
        else:
            arena.clear(self._simulator, field, self._cars[env])
        self._earlier[env] = field.blue_score, field.orange_score
        size, half = self._sizes[task], self._slots // 2
        self._cars[env] = [field.add_car(side) for side in (team.BLUE, team.ORANGE) for _ in range(size)]
        self._car_slots[env] = [side * half + k for side in range(2) for k in range(size)]
        self._rows[env] = [env * self._slots + slot for slot in self._car_slots[env]]
        self.games[env], self.tasks[env, PLAYED], self.count[env] = game, task, 0
        self._kickoffs[env] = self._returns[env] = 0
        self._present[env] = 0
        self._present[env, self._car_slots[env]] = 1
        self._bodies[env], self._flips[env], self.behaviour[env] = 0, 0, 0
        self._kick_off(env)
        assert [int(one[0, 0]) for one in field.get_gym_state()[3:]] == [car.id for car in self._cars[env]]

    def _kick_off(self, env: int) -> None:
        """Set the ball and the cars to a kick-off drawn from the match's RNG."""
        field, kick = self._arenas[env], int(self._kickoffs[env])
        self._kickoffs[env] += 1
        rng = np.random.default_rng([int(self.games[env]), kick])
        field.reset_kickoff(int(rng.integers(0, 2**31)))
        self._shuffle_cars(self._cars[env], rng)
        draw, task = rng.random(), self.spec.tasks[self.tasks[env, PLAYED]]
        if self._starts is not None and draw < self._starts.share:
            self._starts.apply(self._simulator, field, self._cars[env], self._car_slots[env], rng)
        elif "scattered" in task or rng.random() < self._scatter:
            self._scatter_cars(field, self._cars[env], rng)
        self._read_state(env)

    def _shuffle_cars(self, cars: Sequence[Any], rng: Any) -> None:
        """Assign the kick-off positions of a team with the match's RNG; the simulator uses the order in memory."""
        half = len(cars) // 2
        for team in (cars[:half], cars[half:]) if half > 1 else ():
            states = sorted((car.get_state() for car in team), key=lambda state: state.pos.as_tuple())
            for car, pick in zip(team, rng.permutation(half).tolist(), strict=True):
                car.set_state(states[pick])

    def _scatter_cars(self, field: Any, cars: Sequence[Any], rng: Any) -> None:
        sim = self._simulator
        ball = field.ball.get_state()
        ball.pos = sim.Vec(rng.uniform(-3000, 3000), rng.uniform(-4000, 4000), rng.uniform(100, 1500))
        ball.vel = sim.Vec(*rng.uniform(-1500, 1500, 3))
        field.ball.set_state(ball)
        for car in cars:
            state = car.get_state()
            state.pos = sim.Vec(rng.uniform(-3500, 3500), rng.uniform(-4500, 4500), 17.0)
            state.rot_mat = sim.Angle(yaw=float(rng.uniform(-np.pi, np.pi))).as_rot_mat()
            state.vel, state.boost = sim.Vec(*rng.uniform(-800, 800, 2), 0.0), float(rng.uniform(0, 100))
            car.set_state(state)

    def _advance(self, envs: Array, controls: Sequence[Any]) -> None:
        """Step some matches with the controls of each row."""
        ticks, tables, flips = self._ticks, [], []
        for env in envs[self._bodies[envs, :, 0, batch.DEMOED].any(axis=1)].tolist():
            self._respawn(env)
        for env in envs.tolist():
            field, cars = self._arenas[env], self._cars[env]
            for car, row in zip(cars, self._rows[env], strict=True):
                car.set_controls(controls[row])
            field.step(ticks)
            tables += field.get_gym_state()  # immediately, while the arena is in the CPU cache
            flips += [car.get_state().has_flip_or_jump() for car in cars]
        self._unpack(envs, tables, flips)

    def _respawn(self, env: int) -> None:
        """Respawn demolished cars at the start of the step in which they would respawn, using the match's RNG.

        The simulator's own RNG for respawns cannot be seeded.
        """
        for car in self._cars[env]:
            state = car.get_state()
            if state.is_demoed and state.demo_respawn_timer * TICK_HZ < self._ticks + 0.5:
                self._returns[env] += 1
                rng = np.random.default_rng([self.games[env], self._kickoffs[env], self._returns[env]])
                car.respawn(int(rng.integers(0, 2**31)))

    def _read_state(self, env: int) -> None:
        """Read the state of one arena from the simulator."""
        flips = [car.get_state().has_flip_or_jump() for car in self._cars[env]]
        self._unpack(np.array([env]), self._arenas[env].get_gym_state(), flips)

    def _unpack(self, envs: Array, tables: Sequence[Any], flips: Sequence[bool]) -> None:
        """Unpack the concatenated state tables of some arenas."""
        data = np.frombuffer(b"".join([table.T for table in tables]), np.float32)  # T: the order in memory
        batch.read_states(
            envs,
            data,
            np.array(flips, np.uint8),
            self._present,
            self._earlier,
            self._score,
            self._pads,
            self._balls,
            self._bodies,
            self._flips,
        )

    def _write_clock(self, envs: Array) -> None:
        batch.write_clock(envs, self._score, self.count * self._ticks, self._match, self._clock)

    def _write_obs(self, envs: Array, out: Rows) -> None:
        if self._builder is not None:
            self._builder.write(envs, self._matches, out.obs, self._first, self.count)
            return
        batch.observe(envs, self._balls, self._bodies, self._pads, self._flips, self._present, self._clock, out.obs)


class Starts:
    """Initial states from a file, such as those of a replay, that replace a share of the kick-offs."""

    def __init__(self, file: Path, share: float, cars: int) -> None:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                self._ball, self._cars = np.asarray(arrays["ball"], float), np.asarray(arrays["cars"], float)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"`env.options.starts`: {file} cannot be read: {error}.",
                "give an .npz with `ball` [n, 9] (position, velocity, spin) and `cars` [n, cars, 13] "
                "(position, yaw, pitch, roll, velocity, spin, boost)",
            ) from error
        shape = (len(self._ball), cars, 13)
        if self._ball.shape != (len(self._ball), 9) or self._cars.shape != shape or not len(self._ball):
            raise ConfigError(
                f"`env.options.starts`: {file} has `ball` {self._ball.shape} and `cars` {self._cars.shape}.",
                f"they must be [n, 9] and [n, {cars}, 13] for this variant",
            )
        self.share = share

    def apply(self, simulator: Any, field: Any, cars: Sequence[Any], slots: Sequence[int], rng: Any) -> None:
        """Set the arena to one of the states, drawn uniformly."""
        pick, vector = int(rng.integers(len(self._ball))), simulator.Vec
        ball = field.ball.get_state()
        ball.pos, ball.vel, ball.ang_vel = (vector(*self._ball[pick, k : k + 3]) for k in (0, 3, 6))
        field.ball.set_state(ball)
        for car, numbers in zip(cars, self._cars[pick, list(slots)], strict=True):
            state = car.get_state()
            state.pos, state.vel, state.ang_vel = (vector(*numbers[k : k + 3]) for k in (0, 6, 9))
            yaw, pitch, roll = numbers[3:6].tolist()
            state.rot_mat = simulator.Angle(yaw=yaw, pitch=pitch, roll=roll).as_rot_mat()
            state.boost, state.is_on_ground = float(numbers[12]), bool(numbers[2] < 25.0)
            car.set_state(state)


def _read_starts(options: Mapping[str, Any], cars: int) -> Starts | None:
    check_options("rocket", options, ("starts", "starts_share"))
    if "starts" not in options:
        return None
    return Starts(Path(options["starts"]), float(options.get("starts_share", 0.5)), cars)


def _spec(
    team_size: int,
    mixed: bool,
    actions: str,
    action_repeat: int,
    given: GameOptions,
    meshes: str,
    builder: ObservationBuilder | None,
) -> EnvSpec:
    slots = SLOTS if mixed else team_size
    sizes = tuple(range(1, SLOTS + 1)) if mixed else (team_size,)
    name = "rocket:mixed" if mixed else "rocket" if team_size == 1 else f"rocket:{team_size}v{team_size}"
    tasks = tuple(f"{size}v{size}{option}" for size in sizes for option in OPTIONS)
    return EnvSpec(
        name=name,
        obs=vector_obs(builder.width if builder else batch.obs_size(2 * slots)),
        action=SPECS[actions],
        teams=(0,) * slots + (1,) * slots,
        terms=(*TERMS, *given.extra_terms),
        exact=slots == 1,
        step_seconds=action_repeat / TICK_HZ,
        action_repeat=action_repeat,
        behaviours=batch.BEHAVIOURS,
        tasks=tasks,
        target=choose_target(name, tasks, tuple(f"{size}v{size}" for size in sizes), given.target),
        absences=mixed,
        world=(("meshes", meshes), *([("observation", builder.name)] if builder else [])),
    )


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Rocket:
    """Make matches from the settings."""
    mixed = variant == "mixed"
    team_size = SLOTS if mixed else int(variant[0])
    options = choice.game_options(first, seed, action_repeat=8)
    return Rocket(envs, team_size=team_size, mixed=mixed, observation=choice.observation, **options)
