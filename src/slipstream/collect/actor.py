"""An actor: a vector of environments and a copy of the policy, which together fill rollouts.

The local collector is one actor with all environments. Each worker process of the actors collector has one actor with
its share of the environments. The batched collector has one actor per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from slipstream.collect.nan_guard import (
    ENDED,
    INACTIVE,
    NONFINITE,
    TRUNCATED,
    CheckArgs,
    NanGuard,
    check_args,
    check_rows,
)
from slipstream.collect.rollout import Rollout, sequence_starts
from slipstream.contracts import Array, EnvSpec, Rows, Vector, empty_rows
from slipstream.play.assignments import TASK, FinishedGame, Players, TrainingGames, act_players
from slipstream.policies.design import ActInputs, ActOutputs, Design, PolicyActor
from slipstream.policies.distributions import bound
from slipstream.policies.fused_actor import make_actor
from slipstream.system.rng import make_streams

CACHED_ROLLOUTS = 2
"""Rollout buffers whose step views are cached: as many as are filled in turn."""


@dataclass(frozen=True, slots=True)
class StepView:
    """Views of one step of a rollout: what the policy reads and writes, and where the vector writes its results."""

    obs: Array
    mask: Array
    active: Array
    out: ActOutputs
    rows: Rows
    check_args: CheckArgs
    """The arguments of `check_rows` after the step."""


class StepViews:
    """Caches the step views of the rollout buffers that were filled last.

    With few environments in a process, making the views of a step takes longer than a fast env's step. `now` provides
    `final_obs` and `behaviour`, which all steps share; for off-policy learning each step has its own `final_obs`.
    """

    def __init__(self, spec: EnvSpec, now: Rows) -> None:
        self._spec, self._now = spec, now
        self._cache: list[tuple[Rollout, list[StepView]]] = []

    def of(self, rollout: Rollout) -> list[StepView]:
        """Return the views of all steps of a rollout."""
        for cached, views in self._cache:
            if cached is rollout:
                return views
        views = [self._make(rollout, t) for t in range(rollout.steps)]
        self._cache = [*self._cache, (rollout, views)][-CACHED_ROLLOUTS:]
        return views

    def _make(self, rollout: Rollout, t: int) -> StepView:
        final_obs = rollout.final_obs[t] if len(rollout.final_obs) else self._now.final_obs
        rows = rollout.at(t, final_obs, self._now.behaviour)
        return StepView(
            obs=rollout.obs[t],
            mask=rollout.mask[t],
            active=rollout.active[t],
            out=ActOutputs(rollout.action[t], rollout.log_prob[t], rollout.value[t]),
            rows=rows,
            check_args=check_args(self._spec, rows),
        )


class Actor:
    """Fills rollouts: choose actions, step the environments, process the results, for every step.

    Each env plays a game with an assignment [task, opponent, learning side]. Where a game ends, the next game takes the
    assignment that was passed for the current rollout.
    """

    def __init__(
        self,
        vector: Vector,
        design: Design,
        *,
        seed: int,
        roster: Players,
        memory: int = 0,
        first: int = 0,
        progress: Array | None = None,
        policy: PolicyActor | None = None,
        now: Rows | None = None,
    ) -> None:
        """Use `policy` to act, or a new copy of `design`.

        `memory` is the size of the largest opponent's recurrent state, `first` the global index of the first env,
        `progress` a shared array that a watcher reads, `now` the buffers that hold the rows between two rollouts.
        """
        spec = vector.spec
        rows = vector.envs * spec.agents
        self.vector = vector
        self.design = design
        self.policy = policy or make_actor(design)
        self.guard = NanGuard(vector, first)
        self.roster = roster
        self.assignments = TrainingGames(spec, vector.envs, first)
        self.seconds = np.zeros(2, np.float64)
        """Seconds spent in the environments and in inference."""
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        self._finished: list[tuple[int, FinishedGame]] = []
        """Games that ended, each with the step of the rollout."""
        self._all_rows = np.arange(rows)
        self._streams = make_streams(seed, "act", first * spec.agents, rows)
        self._opponent_streams = make_streams(seed, "opponent", first * spec.agents, rows)
        self._memory = np.zeros((rows, design.state_size), np.float32)
        self._opponent_memory = np.zeros((rows, memory), np.float32)
        """Recurrent states of the opponents; a smaller state uses the first columns."""
        self._now = now or empty_rows(spec, vector.envs)
        self._views = StepViews(spec, self._now)
        action = spec.action
        self._continuous = action.continuous_parts > 0
        self._low, self._high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._env_action = np.zeros((rows, action.parts), action.dtype)
        self._step_counter = memoryview(self.progress)  # type: ignore[arg-type]
        self._steps = 0

    def reset(self, assignments: Array) -> None:
        """Reset all environments; their first games have these assignments [envs, 3]."""
        self._memory[:], self._opponent_memory[:] = 0, 0
        self._assign_tasks(assignments)
        self.vector.reset(self._now)
        self.assignments.begin(np.arange(self.vector.envs), assignments, self.vector.seeds())

    def fill(self, rollout: Rollout, assignments: Array) -> None:
        """Act and step until the rollout is full, with the weights that `self.policy` holds."""
        self.begin_rollout(rollout, assignments)
        for t in range(rollout.steps):
            self.choose_actions(t)
            began = perf_counter()
            self.vector.step(self.action, self.rows)
            self._env_seconds += perf_counter() - began
            self.process_step(t)
        self.finish_rollout()

    def begin_rollout(self, rollout: Rollout, assignments: Array) -> None:
        """Begin to fill a rollout; games that begin in it have these assignments."""
        now = self._now
        self._rollout, self._next_assignments = rollout, assignments
        self._sequence_starts, self._flags = sequence_starts(self.design, rollout.steps), INACTIVE
        self._step_views = self._views.of(rollout)
        self._env_seconds = self._policy_seconds = 0.0
        self._assign_tasks(assignments)
        rollout.obs[0], rollout.mask[0], rollout.active[0] = now.obs, now.mask, now.active
        rollout.active[0][self.assignments.frozen] = 0
        rollout.terms[:] = 0

    def choose_actions(self, t: int) -> None:
        """Choose actions at step t. Afterwards the vector must be stepped with `action` and write into `rows`."""
        began, step, memory, assignments = perf_counter(), self._step_views[t], self._memory, self.assignments
        obs, mask, action = step.obs, step.mask, step.out.action
        for sequence in self._sequence_starts.get(t, ()):
            self._rollout.state[sequence] = memory
        own = assignments.own
        if self._flags & INACTIVE and not memory.size:
            own = self._active_rows(own, step.active)
        self.policy.act(ActInputs(own, obs, mask, memory, self._streams), step.out, True)
        if self._continuous:
            bound(action, self._low, self._high, self.design.squashed, self._env_action)
            action = self._env_action
        if assignments.rows:
            streams, states = self._opponent_streams, self._opponent_memory
            spec, rows = assignments.spec, assignments.rows
            failed = act_players(
                self.roster, rows, spec, obs, mask, streams, action, states, check=t == 0, first=assignments.first
            )
            assignments.cancel(failed)
        if assignments.follows:
            assignments.expect(step.out.value, step.active)
        self.action, self.rows = action, step.rows
        self._steps += 1
        self._step_counter[0] = self._steps
        self._policy_seconds += perf_counter() - began

    def process_step(self, t: int) -> None:
        """Process the results of step t: mask NaN, compute final values, end games."""
        rollout, rows, assignments, step = self._rollout, self.rows, self.assignments, self._step_views[t]
        flags = self._flags = check_rows(*step.check_args)
        truncated = np.flatnonzero(rows.truncated) if self.design.value and flags & TRUNCATED else self._all_rows[:0]
        masked = self.guard.mask(t, self._steps, rollout, rows) if flags & NONFINITE else []
        if truncated.size:  # for masked envs the guard has set the final value
            truncated = truncated[~np.isin(truncated // assignments.spec.agents, masked)] if masked else truncated
            self.policy.value(truncated, rows.final_obs, rollout.final_value[t], self._memory)
        if assignments.follows:
            assignments.follow(rows.reward, step.active)
        if flags & (ENDED | NONFINITE):
            self._end_games(t, rows, (rows.terminated | rows.truncated) > 0, step.active, masked)
        if len(assignments.frozen):
            rows.active[assignments.frozen] = 0

    def finish_rollout(self) -> None:
        """Keep the rows that the next rollout starts from and compute the value of the last observations."""
        rollout, now = self._rollout, self._now
        now.obs[:], now.mask[:], now.active[:] = rollout.obs[-1], rollout.mask[-1], rollout.active[-1]
        if self.design.value:
            self.policy.value(self._all_rows, now.obs, rollout.value[-1], self._memory)
        self.seconds[0] += self._env_seconds
        self.seconds[1] += self._policy_seconds

    def drain_finished(self) -> list[tuple[int, FinishedGame]]:
        """Return the games that ended since the last call, each with the step of the rollout."""
        finished, self._finished = self._finished, []
        return finished

    def snapshot(self) -> dict[str, Array]:
        """Return copies of everything that the next rollout starts from; the first axis is rows or envs."""
        state = {f"env/{name}": array for name, array in self.vector.snapshot().items()}
        state |= {f"seat/{name}": array.copy() for name, array in self.assignments.arrays().items()}
        rows = {
            "obs": self._now.obs,
            "mask": self._now.mask,
            "active": self._now.active,
            "streams": self._streams,
            "others": self._opponent_streams,
            "memory": self._memory,
            "others_memory": self._opponent_memory,
        }
        return state | {f"row/{name}": array.copy() for name, array in rows.items()}

    def restore(self, state: dict[str, Array], assignments: Array) -> None:
        """Restore a snapshot; environments whose state cannot be restored start new episodes."""
        self._streams[:] = state["row/streams"]
        self._opponent_streams[:] = state["row/others"]
        if not self.vector.spec.exact:
            self.reset(assignments)
            return
        self.vector.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name, array in self.assignments.arrays().items():
            array[:] = state[f"seat/{name}"]
        self.assignments.update()
        for name in ("obs", "mask", "active"):
            getattr(self._now, name)[:] = state[f"row/{name}"]
        self._memory[:], self._opponent_memory[:] = state["row/memory"], state["row/others_memory"]

    def _active_rows(self, rows: Array, active: Array) -> Array:
        """Return those of `rows` that act; in most games all of them."""
        acts = active[rows] > 0
        return rows if acts.all() else rows[acts]

    def _assign_tasks(self, assignments: Array) -> None:
        if self.vector.spec.tasks:
            self.vector.assign(assignments[:, TASK])

    def _end_games(self, t: int, rows: Rows, ended: Array, active: Array, masked: list[int]) -> None:
        """Record the games that ended, clear their recurrent states and begin the next games."""
        assignments = self.assignments
        if self._memory.size or self._opponent_memory.size:
            self._memory[ended], self._opponent_memory[ended] = 0, 0
        if assignments.follows:
            envs = np.flatnonzero(ended.reshape(assignments.learning.shape).any(axis=1))
            counted = [env for env in envs.tolist() if env not in masked and not assignments.void[env]]
            self._finished += [(t, assignments.result(env, rows, active)) for env in counted]
            assignments.begin(envs, self._next_assignments, self.vector.seeds())
