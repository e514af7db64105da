"""Python environments stepped one after another by one process, in a loop as tight as Python allows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, target_tasks
from slipstream.errors import guarded
from slipstream.system.rng import Seeds


@dataclass(frozen=True)
class EnvAdapter:
    """How rows meet one kind of Python environment: encoders made once, not looked up per step."""

    make: Callable[[], Any]
    time_limit: int
    """Steps after which an episode is truncated; 0: the env says itself."""
    encode_obs: Callable[[Any, Array], None] | None
    """Writes an observation into a row; None: assignment does."""
    encode_all: Callable[[list[Any], Array], None]
    """Writes the observations of all into rows."""
    decode_actions: Callable[[Array], list[Any]]
    mask_of: Callable[[Any], Callable[[], Any] | None]
    spaces: tuple[Any, Any] = (None, None)
    """What the env sees and does, as it says it itself."""


class Repeated:
    """One environment that takes every action several times and adds up the rewards."""

    def __init__(self, env: Any, times: int, limit: int) -> None:
        self._step, self._times, self._limit = env.step, times, limit or sys.maxsize
        self._elapsed = 0

    def begin(self) -> None:
        """An episode starts."""
        self._elapsed = 0

    def __call__(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step until the action has lasted or the episode is over."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self._step(action)
            total += reward
            self._elapsed += 1
            truncated = truncated or self._elapsed >= self._limit
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class SerialVector:
    """Environments with Gymnasium's `reset` and `step`, same-step autoreset, one agent each."""

    def __init__(
        self, spec: EnvSpec, bridge: EnvAdapter, seeds: Sequence[int], *, first: int = 0, repeat: int = 1,
        progress: Array | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.envs = len(seeds)
        self.first = first
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        """What a watcher may read: steps (counted by the caller) and the env that is being stepped."""
        self._watch = memoryview(self.progress)  # type: ignore[arg-type]
        self._bridge, self.spaces = bridge, bridge.spaces
        self._repeat = repeat
        self._limit = bridge.time_limit if repeat == 1 and bridge.time_limit else sys.maxsize
        self._seeds = Seeds(seeds)
        self._given, self._targets = np.full(self.envs, -1), target_tasks(spec, first, self.envs)
        """The task that each env was given, and the one that it has if it was given none."""
        self._steps = 0
        self._ends = [0] * self.envs
        """The step at which each env's time is over."""
        self._envs: list[Any] = []
        self._movers: list[Callable[[Any], Any]] = []
        """What steps each env."""
        self._masks: list[Callable[[], Any] | None] = []
        self._guard(self._make_envs)

    def reset(self, out: Rows) -> None:
        """Start every environment anew, seeded the first time."""
        self.reset_envs(range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew, each from its seed where there is one."""
        self._seeds.give(indices, seeds)
        self._guard(self._reset_envs, indices, out)

    def seeds(self) -> Array:
        """The seed of each episode that was begun by one, else -1."""
        return self._seeds.begun.copy()

    def assign(self, tasks: Array) -> None:
        """Say which task each env is told by `reset(options={"task": name})` from its next episode on."""
        self._given[:] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment once (or `repeat` times) and write the rows."""
        self._steps += 1
        self._guard(self._step_envs, action, out)

    def snapshot(self) -> dict[str, Array]:
        """Nothing: Python objects cannot be saved exactly."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing to put back."""

    def close(self) -> None:
        """Close every environment."""
        envs, self._envs, self._movers = self._envs, [], []
        for env in envs:
            env.close()

    def _make_envs(self) -> None:
        for index in range(self.envs):
            self._watch[1] = index
            env = self._bridge.make()
            self._envs.append(env)
            repeated = self._repeat > 1
            self._movers.append(Repeated(env, self._repeat, self._bridge.time_limit) if repeated else env.step)
            self._masks.append(self._bridge.mask_of(env) if self.spec.action.masked else None)

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        for index in indices:
            self._write(self._begin(index), out.obs, index)
            self._mask(index, out)
            out.active[index] = 1

    def _begin(self, index: int) -> Any:
        """Start an episode and return its first observation."""
        self._watch[1] = index
        self._ends[index] = self._steps + self._limit
        mover = self._movers[index]
        if isinstance(mover, Repeated):
            mover.begin()
        obs, _ = self._envs[index].reset(seed=self._seeds.next[index], **self._options(index))
        self._seeds.begin(index)
        return obs

    def _options(self, index: int) -> dict[str, Any]:
        """What an env that has tasks is told about its next episode."""
        if not self.spec.tasks:
            return {}
        task = self._given[index] if self._given[index] >= 0 else self._targets[index]
        return {"options": {"task": self.spec.tasks[task]}}

    def _mask(self, index: int, out: Rows) -> None:
        mask = self._masks[index]
        if mask is not None:
            out.mask[index] = mask()

    def _write(self, obs: Any, rows: Array, index: int) -> None:
        if self._bridge.encode_obs is None:
            rows[index] = obs
        else:
            self._bridge.encode_obs(obs, rows[index])

    def _step_envs(self, action: Array, out: Rows) -> None:
        """The loop itself: what can be done for all envs at once is, and memory views are cheaper than arrays."""
        out.terminated.fill(0)
        out.truncated.fill(0)
        out.active.fill(1)
        watch, rewards, now, ends = self._watch, memoryview(out.reward), self._steps, self._ends  # type: ignore[arg-type]
        choices = self._bridge.decode_actions(action)
        seen: list[Any] = []
        index = 0
        for move, choice in zip(self._movers, choices, strict=True):
            watch[1] = index
            obs, reward, terminated, truncated, _ = move(choice)
            rewards[index] = reward
            if terminated or truncated or now >= ends[index]:
                out.terminated[index] = terminated
                out.truncated[index] = not terminated
                self._write(obs, out.final_obs, index)
                obs = self._begin(index)
            seen.append(obs)
            index += 1  # noqa: SIM113 (an enumerate costs a tuple per env)
        if self._bridge.encode_obs is None and out.obs.flags.c_contiguous:
            np.concatenate(seen, out=out.obs.reshape(-1), casting="unsafe")
        else:
            self._bridge.encode_all(seen, out.obs)
        if self.spec.action.masked:
            for index in range(self.envs):
                self._mask(index, out)

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self.first + self._watch[1], self._seeds.named[self._watch[1]], self._steps))
