"""Python environments stepped one after another in this process, in a tight loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, target_tasks
from slipstream.envs.python_terms import PythonTerms
from slipstream.errors import guarded
from slipstream.system.rng import Seeds


@dataclass(frozen=True)
class EnvAdapter:
    """Converts between rows and one kind of Python environment; encoders are chosen once, not per step."""

    make: Callable[[], Any]
    time_limit: int
    """Steps after which an episode is truncated; 0 if the env truncates by itself."""
    encode_obs: Callable[[Any, Array], None] | None
    """Writes an observation into a row; None if plain assignment is enough."""
    encode_all: Callable[[list[Any], Array], None]
    """Writes the observations of all envs into rows."""
    decode_actions: Callable[[Array], list[Any]]
    mask_of: Callable[[Any], Callable[[], Any] | None]
    spaces: tuple[Any, Any] = (None, None)
    """The env's own observation and action spaces."""


class ActionRepeat:
    """Steps one environment several times with each action and sums the rewards."""

    def __init__(self, env: Any, times: int, limit: int) -> None:
        self._step, self._times, self._limit = env.step, times, limit or sys.maxsize
        self._elapsed = 0

    def begin(self) -> None:
        """Begin an episode."""
        self._elapsed = 0

    def __call__(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step `times` times, or until the episode ends."""
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
        self,
        spec: EnvSpec,
        adapter: EnvAdapter,
        seeds: Sequence[int],
        *,
        first: int = 0,
        repeat: int = 1,
        progress: Array | None = None,
        terms: PythonTerms | None = None,
    ) -> None:
        """`terms` composes the rewards of terms; without it, they are the environment's own."""
        self.spec, self._terms = spec, terms
        self.envs = len(seeds)
        self.first = first
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        """Shared with the watcher: steps (counted by the caller) and the index of the env that is being stepped."""
        self._current = memoryview(self.progress)  # type: ignore[arg-type]
        self._adapter, self.spaces = adapter, adapter.spaces
        self._repeat = repeat
        self._limit = adapter.time_limit if repeat == 1 and adapter.time_limit else sys.maxsize
        self._seeds = Seeds(seeds)
        self._assigned, self._targets = np.full(self.envs, -1), target_tasks(spec, first, self.envs)
        """The assigned task of each env (-1: none), and the task that it plays without one."""
        self._steps = 0
        self._ends = [0] * self.envs
        """The step at which each env's episode is truncated."""
        self._envs: list[Any] = []
        self._step_functions: list[Callable[[Any], Any]] = []
        """The function that steps each env."""
        self._masks: list[Callable[[], Any] | None] = []
        self._guarded(self._make_envs)

    def reset(self, out: Rows) -> None:
        """Reset every environment, with its seed the first time."""
        if self._terms is not None:
            self._terms.reset()
        self.reset_envs(range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the given environments, from `seeds` where they are given."""
        self._seeds.give(indices, seeds)
        self._guarded(self._reset_envs, indices, out)

    def seeds(self) -> Array:
        """Return the seed of each current episode; -1 if the env was reset without one."""
        return self._seeds.begun.copy()

    def assign(self, tasks: Array) -> None:
        """Set the task that each env receives in `reset(options={"task": name})` from its next episode on."""
        self._assigned[:] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment once (or `repeat` times) and write the rows."""
        self._steps += 1
        self._guarded(self._step_envs, action, out)

    @property
    def render_fps(self) -> float | None:
        """The images per second that the environments declare."""
        found = (getattr(self._envs[0], "metadata", None) or {}).get("render_fps")
        return float(found) if found else None

    def render(self) -> Any:
        """Return what the first environment's `render` returns; None if it has none."""
        env = self._envs[0]
        if getattr(type(getattr(env, "unwrapped", env)), "render", None) in (None, gymnasium.Env.render):
            return None
        found: list[Any] = []
        self._guarded(lambda: found.append(env.render()))
        return found[0]

    def snapshot(self) -> dict[str, Array]:
        """Return an empty snapshot: Python objects cannot be saved exactly."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Do nothing: the snapshot is empty."""

    def close(self) -> None:
        """Close every environment."""
        envs, self._envs, self._step_functions = self._envs, [], []
        for env in envs:
            env.close()

    def _make_envs(self) -> None:
        for index in range(self.envs):
            self._current[1] = index
            env = self._adapter.make()
            self._envs.append(env)
            repeated = self._repeat > 1
            self._step_functions.append(
                ActionRepeat(env, self._repeat, self._adapter.time_limit) if repeated else env.step
            )
            self._masks.append(self._adapter.mask_of(env) if self.spec.action.masked else None)

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        for index in indices:
            self._write(self._begin(index), out.obs, index)
            self._mask(index, out)
            out.active[index] = 1

    def _begin(self, index: int) -> Any:
        """Start an episode and return its first observation."""
        self._current[1] = index
        self._ends[index] = self._steps + self._limit
        step = self._step_functions[index]
        if isinstance(step, ActionRepeat):
            step.begin()
        obs, _ = self._envs[index].reset(seed=self._seeds.next[index], **self._options(index))
        self._seeds.begin(index)
        if self._terms is not None:
            self._terms.observe(index, obs)
        return obs

    def _options(self, index: int) -> dict[str, Any]:
        """Return the arguments of `reset` that name the task of the next episode."""
        if not self.spec.tasks:
            return {}
        task = self._assigned[index] if self._assigned[index] >= 0 else self._targets[index]
        return {"options": {"task": self.spec.tasks[task]}}

    def _mask(self, index: int, out: Rows) -> None:
        mask = self._masks[index]
        if mask is not None:
            out.mask[index] = mask()

    def _write(self, obs: Any, rows: Array, index: int) -> None:
        if self._adapter.encode_obs is None:
            rows[index] = obs
        else:
            self._adapter.encode_obs(obs, rows[index])

    def _step_envs(self, action: Array, out: Rows) -> None:
        """Step all envs. The loop writes single items through memoryviews, which are faster than arrays."""
        out.terminated.fill(0)
        out.truncated.fill(0)
        out.active.fill(1)
        current, rewards, now, ends = self._current, memoryview(out.reward), self._steps, self._ends  # type: ignore[arg-type]
        actions, terms = self._adapter.decode_actions(action), self._terms
        observations: list[Any] = []
        index = 0
        for step, one_action in zip(self._step_functions, actions, strict=True):
            current[1] = index
            obs, reward, terminated, truncated, info = step(one_action)
            rewards[index] = reward
            if terms is not None:
                terms.act(index, one_action)
                terms.reward(index, reward)
                terms.value(index, obs, info)
            if terminated or truncated or now >= ends[index]:
                out.terminated[index] = terminated
                out.truncated[index] = not terminated
                self._write(obs, out.final_obs, index)
                obs = self._begin(index)
            observations.append(obs)
            index += 1  # noqa: SIM113 (enumerate makes a tuple per env)
        if terms is not None:
            terms.pay(out)
        if self._adapter.encode_obs is None and out.obs.flags.c_contiguous:
            np.concatenate(observations, out=out.obs.reshape(-1), casting="unsafe")
        else:
            self._adapter.encode_all(observations, out.obs)
        if self.spec.action.masked:
            for index in range(self.envs):
                self._mask(index, out)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self.first + self._current[1], self._seeds.named[self._current[1]], self._steps))
