"""Rocket League matches by RocketSim behind the `Vector` contract.

A match of two cars is told by its seed and by what they did, bit for bit: it begins with new cars in an arena that
has forgotten those before (see `arena.clear`). The state that the simulator itself tells is not the whole of it:
wheels and contacts keep theirs, and lengths are rounded on the way out. So a snapshot holds seeds and actions, and a
restored match is played again up to where it was. With more cars the order in which the simulator happens to hold
them matters in the last bits: such a run resumes with new matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, choose_target, target_tasks, vector_obs
from slipstream.envs.options import check_choice, check_options
from slipstream.envs.rewards import Payout
from slipstream.envs.rocket import arena, batch, layout
from slipstream.envs.rocket.actions import KINDS, SPECS, Controls
from slipstream.envs.rocket.layout import TICK_HZ
from slipstream.envs.rocket.rewards import SCHEME, TERMS
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.envs.soccer.tasks import GIVEN, PLAYED
from slipstream.errors import ConfigError
from slipstream.settings import RewardSettings
from slipstream.system.rng import check_seeds, first_games, next_game

SLOTS = 3
"""Cars per team that the mixed variant has room for."""
OPTIONS = ("", " scattered")
"""What may stand behind a team size in a task: every kick-off from a random state."""
CAR_NUMBERS = 36
"""What the simulator tells of a car, seen from each side."""


class Rocket(ArraySnapshot):
    """`envs` matches of two teams of `team_size` cars; with `mixed` of one to three, as the task says."""

    KEPT = ("games", "tasks", "count", "history", "behaviour")

    def __init__(
        self, envs: int, *, team_size: int = 1, mixed: bool = False, seed: int = 0, first: int = 0,
        match_seconds: float = 60.0, action_repeat: int = 8, actions: str = "discrete", random_starts: float = 0.0,
        target: Sequence[str] = (), rewards: RewardSettings | None = None, gamma: float = 0.99,
        options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        check_choice("env.actions", actions, KINDS)
        meshes = arena.load()
        self._simulator: Any = arena.require()
        self.envs, self._first, self._seed, self._ticks = envs, first, seed, action_repeat
        self.spec = _spec(team_size, mixed, actions, action_repeat, target, meshes)
        self._slots = slots = self.spec.agents
        self._match = max(round(match_seconds * TICK_HZ), action_repeat)
        self._scatter, self._starts = random_starts, _read_starts(options or {}, slots)
        self._controls = Controls(self._simulator, actions)
        self._arenas: list[Any] = [None] * envs
        self._cars: list[list[Any]] = [[] for _ in range(envs)]
        self._places: list[list[int]] = [[] for _ in range(envs)]
        """The slot of each of an arena's cars."""
        self._rows: list[list[int]] = [[] for _ in range(envs)]
        """The row of each of an arena's cars."""
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
        """Of each row: 1 in the blue team, -1 in the orange one."""
        self._sizes = [int(name[0]) for name in self.spec.tasks]
        self._balls, self._pads = np.zeros((envs, 2, 25), np.float32), np.zeros((envs, 2, batch.PADS), np.float32)
        self._bodies = np.zeros((envs, slots, 2, CAR_NUMBERS), np.float32)
        self._flips = np.zeros((envs, slots), np.float32)
        self._present, self._clock = np.zeros((envs, slots), np.uint8), np.zeros((envs, 2), np.float32)
        self._score = np.zeros((envs, 2), np.int64)
        self._kickoffs, self._returns = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        """Kick-offs of a match so far, and how often a demolished car has come back."""
        self._earlier = np.zeros((envs, 2), np.int64)
        """Goals of earlier matches in the same arena."""
        self.payout = Payout(
            SCHEME, rewards or RewardSettings(), env=self.spec.name, envs=envs, teams=self.spec.teams,
            step_seconds=self.spec.step_seconds, gamma=gamma,
        )  # fmt: skip

    def reset(self, out: Rows) -> None:
        """Start every match anew, from the first one of its seed."""
        self.payout.reset()
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._renew(range(self.envs), games.tolist(), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next match of the named envs at once, or the one of each seed."""
        given = check_seeds(indices, seeds)
        games = [next_game(self.games[env]) if seed < 0 else seed for env, seed in zip(indices, given, strict=True)]
        self._renew(indices, games, out)

    def seeds(self) -> Array:
        """The seed of every match that is being played."""
        return self.games.copy()

    def assign(self, tasks: Array) -> None:
        """Say which task each env plays from its next match on."""
        self.tasks[:, GIVEN] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every match."""
        old_balls, old_cars, old_score = self._balls.copy(), self._bodies.copy(), self._score.copy()
        present, acted = self._present, self._present.reshape(-1).copy()
        self._advance(self._everyone, self._controls.of(action))
        if self.spec.exact:
            self.history[self._everyone, self.count] = action.reshape(self.envs, self._slots, -1)
        self.count += 1
        scored, won, over = batch.judge(old_score, self._score, self.count * self._ticks, self._match)
        batch.value(
            self._balls, self._bodies, old_balls, old_cars, present, scored, won, self.payout.values, self.behaviour
        )
        for env in np.flatnonzero((scored != 0) & ~over).tolist():
            self._kick_off(env)
        if self.payout.shaped:
            batch.shape(
                self._balls, self._bodies, old_balls, old_cars, present, over, self.payout.gamma, self.payout.values
            )
        self.payout.pay(acted, out.reward, out.terms)
        ended = np.repeat(over, self._slots)
        out.terminated[:], out.truncated[:] = ended, 0
        out.outcome[:] = np.repeat(won, self._slots) * self._signs
        self._tell_time(self._everyone)
        self._show(self._everyone, out)
        out.active[:] = present.reshape(-1)
        if over.any():
            out.final_obs[ended] = out.obs[ended]
            decisions, ends = np.ones(len(batch.BEHAVIOURS), np.float32), np.flatnonzero(over).tolist()
            for env in ends:
                decisions[batch.B_BOOST :] = max(int(self.count[env]), 1)
                rows = slice(env * self._slots, (env + 1) * self._slots)
                out.behaviour[rows] = self.behaviour[env] / decisions
            self._renew(ends, [next_game(self.games[env]) for env in ends], out)

    def snapshot(self) -> dict[str, Array]:
        """Seeds, tasks and what the cars did: all that there is to a match of two; nothing of larger ones."""
        return super().snapshot() if self.spec.exact else {}

    def restore(self, state: dict[str, Array]) -> None:
        """Play every match again up to where it was."""
        self.payout.restore(state)
        played = {name: state[name].copy() for name in self.KEPT}
        self.tasks[:] = played["tasks"]
        for env in range(self.envs):
            self._begin(env, int(played["games"][env]), int(played["tasks"][env, PLAYED]))
            for decision in range(int(played["count"][env])):
                chosen, before = self._controls.of(played["history"][env, decision]), self._score[env].copy()
                self._advance(np.array([env]), [None] * (env * self._slots) + chosen)
                if np.diff(self._score[env] - before)[0]:
                    self._kick_off(env)
        for name in ("games", "count", "history", "behaviour"):
            getattr(self, name)[:] = played[name]
        self._tell_time(self._everyone)

    def view(self) -> dict[str, Array]:
        """What a picture shows of every match, and what was counted in it; see `layout`."""
        played = self.count * self._ticks
        extra = played >= self._match
        clock = np.zeros((self.envs, layout.CLOCK_SIZE), np.int64)
        clock[:, layout.TICKS_LEFT] = self._match + extra * (self._match // 2) - played
        clock[:, layout.SCORE : layout.SCORE + 2] = self._score
        clock[:, layout.OVERTIME], clock[:, layout.GAME] = extra, self.games
        counted = np.zeros_like(self.behaviour)
        for env, playing in enumerate(self._places):
            counted[env, : len(playing)] = self.behaviour[env, playing]
        state = layout.fill(self._balls, self._pads, self._bodies, self._places)
        return {"state": state, "clock": clock, "behaviour": counted}

    def close(self) -> None:
        """Let the arenas go."""
        self._arenas, self._cars = [], []

    def _renew(self, envs: Sequence[int], games: Sequence[int], out: Rows) -> None:
        for env, game in zip(envs, games, strict=True):
            given = int(self.tasks[env, GIVEN])
            self._begin(env, int(game), given if given >= 0 else int(self._targets[env]))
        some = np.array(list(envs), np.int64)
        self._tell_time(some)
        self._show(some, out)
        out.active.reshape(self.envs, -1)[some] = self._present[some]

    def _begin(self, env: int, game: int, task: int) -> None:
        """Begin the match of a seed, with new cars."""
        field, team = self._arenas[env], self._simulator.Team
        if field is None:
            field = self._arenas[env] = arena.make(self._simulator)
        else:
            arena.clear(self._simulator, field, self._cars[env])
        self._earlier[env] = field.blue_score, field.orange_score
        size, half = self._sizes[task], self._slots // 2
        self._cars[env] = [field.add_car(side) for side in (team.BLUE, team.ORANGE) for _ in range(size)]
        self._places[env] = [side * half + k for side in range(2) for k in range(size)]
        self._rows[env] = [env * self._slots + place for place in self._places[env]]
        self.games[env], self.tasks[env, PLAYED], self.count[env] = game, task, 0
        self._kickoffs[env] = self._returns[env] = 0
        self._present[env] = 0
        self._present[env, self._places[env]] = 1
        self._bodies[env], self._flips[env], self.behaviour[env] = 0, 0, 0
        self._kick_off(env)
        assert [int(one[0, 0]) for one in field.get_gym_state()[3:]] == [car.id for car in self._cars[env]]

    def _kick_off(self, env: int) -> None:
        """Put ball and cars where the match's own chance says."""
        field, kick = self._arenas[env], int(self._kickoffs[env])
        self._kickoffs[env] += 1
        rng = np.random.default_rng([int(self.games[env]), kick])
        field.reset_kickoff(int(rng.integers(0, 2**31)))
        self._take_places(self._cars[env], rng)
        draw, task = rng.random(), self.spec.tasks[self.tasks[env, PLAYED]]
        if self._starts is not None and draw < self._starts.share:
            self._starts.put(self._simulator, field, self._cars[env], self._places[env], rng)
        elif "scattered" in task or rng.random() < self._scatter:
            self._put_anywhere(field, self._cars[env], rng)
        self._look(env)

    def _take_places(self, cars: Sequence[Any], rng: Any) -> None:
        """Let the match's chance say who of a team stands where: the simulator goes by where cars lie in memory."""
        half = len(cars) // 2
        for team in (cars[:half], cars[half:]) if half > 1 else ():
            states = sorted((car.get_state() for car in team), key=lambda state: state.pos.as_tuple())
            for car, pick in zip(team, rng.permutation(half).tolist(), strict=True):
                car.set_state(states[pick])

    def _put_anywhere(self, field: Any, cars: Sequence[Any], rng: Any) -> None:
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

    def _advance(self, envs: Array, chosen: Sequence[Any]) -> None:
        """Play one decision of some matches by the controls of each row."""
        ticks, told, flips = self._ticks, [], []
        for env in envs[self._bodies[envs, :, 0, batch.DEMOED].any(axis=1)].tolist():
            self._bring_back(env)
        for env in envs.tolist():
            field, cars = self._arenas[env], self._cars[env]
            for car, row in zip(cars, self._rows[env], strict=True):
                car.set_controls(chosen[row])
            field.step(ticks)
            told += field.get_gym_state()  # at once, while the arena is in the processor's cache
            flips += [car.get_state().has_flip_or_jump() for car in cars]
        self._take(envs, told, flips)

    def _bring_back(self, env: int) -> None:
        """Let cars come back, at the beginning of the decision in which they would, where the match's chance says.

        Left to itself the simulator draws the place by a chance of its own, which nobody can seed.
        """
        for car in self._cars[env]:
            state = car.get_state()
            if state.is_demoed and state.demo_respawn_timer * TICK_HZ < self._ticks + 0.5:
                self._returns[env] += 1
                rng = np.random.default_rng([self.games[env], self._kickoffs[env], self._returns[env]])
                car.respawn(int(rng.integers(0, 2**31)))

    def _look(self, env: int) -> None:
        """Read what the simulator tells of an arena."""
        flips = [car.get_state().has_flip_or_jump() for car in self._cars[env]]
        self._take(np.array([env]), self._arenas[env].get_gym_state(), flips)

    def _take(self, envs: Array, told: Sequence[Any], flips: Sequence[bool]) -> None:
        """Take what the simulator told of some arenas, one behind the other."""
        numbers = np.frombuffer(b"".join([table.T for table in told]), np.float32)  # T: as they lie in memory
        batch.take(
            envs, numbers, np.array(flips, np.uint8), self._present, self._earlier, self._score, self._pads,
            self._balls, self._bodies, self._flips,
        )  # fmt: skip

    def _tell_time(self, envs: Array) -> None:
        batch.tell_time(envs, self._score, self.count * self._ticks, self._match, self._clock)

    def _show(self, envs: Array, out: Rows) -> None:
        batch.observe(
            envs, self._balls, self._bodies, self._pads, self._flips, self._present, self._clock, out.obs
        )  # fmt: skip


class Starts:
    """States from a file, such as those of a replay, from which some kick-offs begin instead."""

    def __init__(self, file: Path, share: float, cars: int) -> None:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                self._ball, self._cars = np.asarray(arrays["ball"], float), np.asarray(arrays["cars"], float)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"`env.options.starts`: {file} cannot be read: {error}.",
                "give an .npz with `ball` [n, 9] (place, velocity, spin) and `cars` [n, cars, 13] "
                "(place, yaw, pitch, roll, velocity, spin, boost)",
            ) from error
        shape = (len(self._ball), cars, 13)
        if self._ball.shape != (len(self._ball), 9) or self._cars.shape != shape or not len(self._ball):
            raise ConfigError(
                f"`env.options.starts`: {file} has `ball` {self._ball.shape} and `cars` {self._cars.shape}.",
                f"they must be [n, 9] and [n, {cars}, 13] for this variant",
            )
        self.share = share

    def put(self, simulator: Any, field: Any, cars: Sequence[Any], places: Sequence[int], rng: Any) -> None:
        """Set one of the states, drawn evenly."""
        pick, vector = int(rng.integers(len(self._ball))), simulator.Vec
        ball = field.ball.get_state()
        ball.pos, ball.vel, ball.ang_vel = (vector(*self._ball[pick, k : k + 3]) for k in (0, 3, 6))
        field.ball.set_state(ball)
        for car, numbers in zip(cars, self._cars[pick, list(places)], strict=True):
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


def _spec(team_size: int, mixed: bool, actions: str, action_repeat: int, target: Sequence[str], meshes: str) -> EnvSpec:
    slots = SLOTS if mixed else team_size
    sizes = tuple(range(1, SLOTS + 1)) if mixed else (team_size,)
    name = "rocket:mixed" if mixed else "rocket" if team_size == 1 else f"rocket:{team_size}v{team_size}"
    tasks = tuple(f"{size}v{size}{option}" for size in sizes for option in OPTIONS)
    return EnvSpec(
        name=name,
        obs=vector_obs(batch.obs_size(2 * slots)),
        action=SPECS[actions],
        teams=(0,) * slots + (1,) * slots,
        terms=TERMS,
        exact=slots == 1,
        step_seconds=action_repeat / TICK_HZ,
        action_repeat=action_repeat,
        behaviours=batch.BEHAVIOURS,
        tasks=tasks,
        target=choose_target(name, tasks, tuple(f"{size}v{size}" for size in sizes), target),
        absences=mixed,
        world=(("meshes", meshes),),
    )


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Rocket:
    """Make matches as the settings say."""
    mixed = variant == "mixed"
    return Rocket(
        envs, team_size=SLOTS if mixed else int(variant[0]), mixed=mixed, seed=seed, first=first,
        match_seconds=choice.env.match_seconds, action_repeat=choice.env.action_repeat or 8,
        actions=choice.env.actions, random_starts=choice.env.random_starts, target=choice.env.target,
        rewards=choice.rewards, gamma=choice.gamma, options=choice.env.options,
    )  # fmt: skip
