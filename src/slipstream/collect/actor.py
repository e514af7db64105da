"""One actor: environments and a copy of the policy, stepped together for a whole rollout.

The local collector is one actor with all environments; each worker process is one with a share of them.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from slipstream.collect.nan_guard import ABSENT, BROKEN, CUT, ENDED, NanGuard, check_rows
from slipstream.collect.rollout import Rollout, sequence_starts
from slipstream.collect.step_views import StepViews
from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.play.assignments import TASK, FinishedGame, OpponentRoster, TrainingGames, act_opponents
from slipstream.policies.action_bounds import bound
from slipstream.policies.design import Design, PolicyActor
from slipstream.policies.fused_actor import make_actor
from slipstream.system.rng import make_streams


class Actor:
    """Fills rollouts: act, step, guard, again; where a game ends, the next one seats whoever is wanted then."""

    def __init__(
        self, vector: Vector, design: Design, *, seed: int, roster: OpponentRoster, memory: int = 0, first: int = 0,
        progress: Array | None = None, acting: PolicyActor | None = None, now: Rows | None = None,
    ) -> None:  # fmt: skip
        spec = vector.spec
        rows = vector.envs * spec.agents
        self.vector = vector
        self.design = design
        self.acting = acting or make_actor(design)
        self.guard = NanGuard(vector, first)
        self.roster = roster
        self.table = TrainingGames(spec, vector.envs, first)
        self.matches: list[tuple[int, FinishedGame]] = []
        """Games that ended, with the step of the rollout."""
        self.seconds = np.zeros(2, np.float64)
        """Time in the environments and in inference."""
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        self._all = np.arange(rows)
        self._streams = make_streams(seed, "act", first * spec.agents, rows)
        self._other_streams = make_streams(seed, "opponent", first * spec.agents, rows)
        self._memory = np.zeros((rows, design.state_size), np.float32)
        self._other_memory = np.zeros((rows, memory), np.float32)
        """What the frozen players remember, the widest of them filling a row."""
        self._now = now or empty_rows(spec, vector.envs)
        self._moments = StepViews(spec, self._now)
        action = spec.action
        self._continuous = action.kind == "continuous"
        self._low, self._high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._env_action = np.zeros((rows, action.parts), action.dtype)
        self._watch = memoryview(self.progress)  # type: ignore[arg-type]
        self._steps = 0

    def reset(self, wanted: Array) -> None:
        """Start all environments, with the seats [envs, 3] that are wanted."""
        self._memory[:], self._other_memory[:] = 0, 0
        self._assign(wanted)
        self.vector.reset(self._now)
        self.table.begin(np.arange(self.vector.envs), wanted, self.vector.seeds())

    def fill(self, rollout: Rollout, wanted: Array) -> None:
        """Act and step until the rollout is full, with the weights that `self.acting` holds."""
        self.begin(rollout, wanted)
        for t in range(rollout.steps):
            self.choose(t)
            began = perf_counter()
            self.vector.step(self.action, self.rows)
            self._in_envs += perf_counter() - began
            self.settle(t)
        self.finish()

    def begin(self, rollout: Rollout, wanted: Array) -> None:
        """Turn to a rollout that is to be filled."""
        now = self._now
        self._rollout, self._wanted = rollout, wanted
        self._starts, self._found = sequence_starts(self.design, rollout.steps), ABSENT
        self._turns = self._moments.of(rollout)
        self._in_envs = self._in_policy = 0.0
        self._assign(wanted)
        rollout.obs[0], rollout.mask[0], rollout.active[0] = now.obs, now.mask, now.active
        rollout.active[0][self.table.frozen] = 0
        rollout.terms[:] = 0

    def choose(self, t: int) -> None:
        """Choose for all rows at step t: `action` is what the vector is to be stepped with, `rows` where it writes."""
        began, step, memory, table = perf_counter(), self._turns[t], self._memory, self.table
        obs, mask, action = step.obs, step.mask, step.action
        for sequence in self._starts.get(t, ()):
            self._rollout.state[sequence] = memory
        own = self._present(table.own, step.active) if self._found & ABSENT and not memory.size else table.own
        self.acting.act(own, obs, mask, self._streams, True, action, step.log_prob, step.value, memory)
        if self._continuous:
            bound(action, self._low, self._high, self.design.squashed, self._env_action)
            action = self._env_action
        if table.rows:
            act_opponents(table, self.roster, obs, mask, self._other_streams, action, self._other_memory, check=t == 0)
        if table.follows:
            table.expect(step.value, step.active)
        self.action, self.rows = action, step.rows
        self._steps += 1
        self._watch[0] = self._steps
        self._in_policy += perf_counter() - began

    def settle(self, t: int) -> None:
        """Look at what step t has brought: ends, faults, games."""
        rollout, rows, table, step = self._rollout, self.rows, self.table, self._turns[t]
        found = self._found = check_rows(*step.looked)
        truncated = np.flatnonzero(rows.truncated) if self.design.value and found & CUT else self._all[:0]
        broken = self.guard.mend(t, self._steps, rollout, rows) if found & BROKEN else []
        if truncated.size:  # where the guard has cut, it has said the value too
            truncated = truncated[~np.isin(truncated // table.spec.agents, broken)] if broken else truncated
            self.acting.value(truncated, rows.final_obs, rollout.final_value[t], self._memory)
        if table.follows:
            table.follow(rows.reward, step.active)
        if found & (ENDED | BROKEN):
            self._end(t, rows, (rows.terminated | rows.truncated) > 0, step.active, broken, self._wanted)
        if len(table.frozen):
            rows.active[table.frozen] = 0

    def finish(self) -> None:
        """Keep what the next rollout starts from, and what this one is worth at its end."""
        rollout, now = self._rollout, self._now
        now.obs[:], now.mask[:], now.active[:] = rollout.obs[-1], rollout.mask[-1], rollout.active[-1]
        if self.design.value:
            self.acting.value(self._all, now.obs, rollout.value[-1], self._memory)
        self.seconds[0] += self._in_envs
        self.seconds[1] += self._in_policy

    def drain(self) -> list[tuple[int, FinishedGame]]:
        """The games that ended since the last call, each with the step of the rollout."""
        matches, self.matches = self.matches, []
        return matches

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that the next rollout starts from, rows or envs first."""
        state = {f"env/{name}": array for name, array in self.vector.snapshot().items()}
        state |= {f"seat/{name}": array.copy() for name, array in self.table.arrays().items()}
        now = self._now
        own = {
            "obs": now.obs, "mask": now.mask, "active": now.active, "streams": self._streams,
            "others": self._other_streams, "memory": self._memory, "others_memory": self._other_memory,
        }  # fmt: skip
        return state | {f"row/{name}": array.copy() for name, array in own.items()}

    def restore(self, state: dict[str, Array], wanted: Array) -> None:
        """Go on from a snapshot; environments that cannot be put back start new episodes."""
        self._streams[:] = state["row/streams"]
        self._other_streams[:] = state["row/others"]
        if not self.vector.spec.exact:
            self.reset(wanted)
            return
        self.vector.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name, array in self.table.arrays().items():
            array[:] = state[f"seat/{name}"]
        self.table.update()
        for name in ("obs", "mask", "active"):
            getattr(self._now, name)[:] = state[f"row/{name}"]
        self._memory[:], self._other_memory[:] = state["row/memory"], state["row/others_memory"]

    def _present(self, rows: Array, active: Array) -> Array:
        """Those of the rows that act; all of them, in most games."""
        there = active[rows] > 0
        return rows if there.all() else rows[there]

    def _assign(self, wanted: Array) -> None:
        if self.vector.spec.tasks:
            self.vector.assign(wanted[:, TASK])

    def _end(self, t: int, rows: Rows, ended: Array, active: Array, broken: list[int], wanted: Array) -> None:
        """What ended is told and forgotten; the row's next observation belongs to another game."""
        table = self.table
        if self._memory.size or self._other_memory.size:
            self._memory[ended], self._other_memory[ended] = 0, 0
        if table.follows:
            envs = np.flatnonzero(ended.reshape(table.learning.shape).any(axis=1))
            counted = [env for env in envs.tolist() if env not in broken and not table.void[env]]
            self.matches += [(t, table.result(env, rows, active)) for env in counted]
            table.begin(envs, wanted, self.vector.seeds())
