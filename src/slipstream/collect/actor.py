"""One actor: environments and a copy of the policy, stepped together for a whole rollout.

The local collector is one actor with all environments; each worker process is one with a share of them.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from slipstream.collect.guard import Guard
from slipstream.collect.rollout import Rollout, learning_rows, sequence_starts
from slipstream.core.contracts import Agent, Array, Rows, Vector, empty_rows
from slipstream.core.streams import make_streams
from slipstream.models.acting import bound, make_acting
from slipstream.models.design import Design


class Actor:
    """Fills rollouts: act, step, guard, again."""

    def __init__(
        self, vector: Vector, design: Design, *, seed: int, first: int = 0, opponent: Agent | None = None,
        progress: Array | None = None,
    ) -> None:  # fmt: skip
        spec = vector.spec
        rows = vector.envs * spec.agents
        self.vector = vector
        self.design = design
        self.acting = make_acting(design)
        self.first = first
        self.opponent = opponent
        self.guard = Guard(vector, first)
        self.seconds = np.zeros(2, np.float64)
        """Time in the environments and in inference."""
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        learning = learning_rows(spec.teams, vector.envs, opponent is not None, first)
        self._all = np.arange(rows)
        self._own = np.flatnonzero(learning)
        self._others = np.flatnonzero(~learning)
        self._streams = make_streams(seed, "act", first * spec.agents, rows)
        self._other_streams = make_streams(seed, "opponent", first * spec.agents, rows)[self._others]
        self._memory = np.zeros((rows, design.state_size), np.float32)
        self._now = empty_rows(spec, vector.envs)
        self._final_obs, self._behaviour = self._now.final_obs, self._now.behaviour
        action = spec.action
        self._continuous = action.kind == "continuous"
        self._low, self._high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._env_action = np.zeros((rows, action.parts), action.dtype)
        self._other_action = np.zeros((len(self._others), action.parts), action.dtype)
        self._steps = 0

    def reset(self) -> None:
        """Start all environments."""
        self._memory[:] = 0
        if self.opponent is not None:
            self.opponent.begin()
        self.vector.reset(self._now)

    def fill(self, rollout: Rollout) -> None:
        """Act and step until the rollout is full, with the weights that `self.acting` holds."""
        acting, vector, now, memory = self.acting, self.vector, self._now, self._memory
        starts, remembering = sequence_starts(self.design, rollout.steps), self._remembering
        rollout.obs[0], rollout.mask[0], rollout.active[0] = now.obs, now.mask, now.active
        rollout.active[0][self._others] = 0
        rollout.terms[:] = 0
        in_envs = in_policy = 0.0
        for t in range(rollout.steps):
            began = perf_counter()
            obs, mask, action = rollout.obs[t], rollout.mask[t], rollout.action[t]
            for sequence in starts.get(t, ()):
                rollout.state[sequence] = memory
            acting.act(self._own, obs, mask, self._streams, True, action, rollout.logp[t], rollout.value[t], memory)
            env_action = action
            if self._continuous:
                env_action = self._env_action
                bound(action, self._low, self._high, self.design.squashed, env_action)
            if self._others.size:
                self._act_others(obs, mask, env_action)
            acted = perf_counter()
            rows = rollout.at(t, self._final_obs if self.design.value else rollout.final_obs[t], self._behaviour)
            self.progress[0] += 1
            self._steps += 1
            vector.step(env_action, rows)
            stepped = perf_counter()
            in_policy += acted - began
            in_envs += stepped - acted
            if self.design.value and rows.truncated.any():
                acting.value(np.flatnonzero(rows.truncated), rows.final_obs, rollout.final_value[t], memory)
            self.guard.check(t, self._steps, rollout, rows)
            if remembering:
                self._forget(rows)
            if self._others.size:
                rows.active[self._others] = 0
        now.obs[:], now.mask[:], now.active[:] = rollout.obs[-1], rollout.mask[-1], rollout.active[-1]
        if self.design.value:
            acting.value(self._all, now.obs, rollout.value[-1], memory)
        self.seconds[0] += in_envs
        self.seconds[1] += in_policy

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that the next rollout starts from, rows or envs first."""
        state = {f"env/{name}": array for name, array in self.vector.snapshot().items()}
        now = self._now
        others = np.zeros((len(self._all), 2), np.int64)
        others[self._others] = self._other_streams
        recalled = np.zeros((len(self._all), self._other_memory.shape[1]), np.float32)
        recalled[self._others] = self._other_memory
        own = {
            "obs": now.obs, "mask": now.mask, "active": now.active, "streams": self._streams, "others": others,
            "memory": self._memory, "others_memory": recalled,
        }  # fmt: skip
        return state | {f"row/{name}": array.copy() for name, array in own.items()}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot; environments that cannot be put back start new episodes."""
        self._streams[:] = state["row/streams"]
        self._other_streams[:] = state["row/others"][self._others]
        if not self.vector.spec.exact:
            self.reset()
            return
        self.vector.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
        for name in ("obs", "mask", "active"):
            getattr(self._now, name)[:] = state[f"row/{name}"]
        self._memory[:] = state["row/memory"]
        self._other_memory[:] = state["row/others_memory"][self._others]

    @property
    def _other_memory(self) -> Array:
        return np.zeros((0, 0), np.float32) if self.opponent is None else self.opponent.memory(len(self._others))

    @property
    def _remembering(self) -> bool:
        return bool(self._memory.size or self._other_memory.size)

    def _forget(self, rows: Rows) -> None:
        """What ended is forgotten: the row's next observation belongs to another episode."""
        ended = (rows.terminated | rows.truncated) > 0
        if ended.any():
            self._memory[ended] = 0
            if self.opponent is not None:
                self.opponent.begin(np.flatnonzero(ended[self._others]))

    def _act_others(self, obs: Array, mask: Array, action: Array) -> None:
        """Let the opponent choose for its rows, in the env's own actions."""
        assert self.opponent is not None
        self.opponent.act_into(obs[self._others], mask[self._others], self._other_streams, self._other_action)
        action[self._others] = self._other_action
