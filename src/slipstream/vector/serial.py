"""Python environments stepped one after another by one process, in a loop as tight as Python allows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.contracts import Array, EnvSpec, Rows
from slipstream.core.errors import EnvFault


@dataclass(frozen=True)
class Bridge:
    """How rows meet one kind of Python environment: encoders made once, not looked up per step."""

    make: Callable[[], Any]
    time_limit: int
    """Steps after which an episode is truncated; 0: the env says itself."""
    encode_obs: Callable[[Any, Array], None] | None
    decode_actions: Callable[[Array], list[Any]]
    mask_of: Callable[[Any], Callable[[], Any] | None]


class Serial:
    """Environments with Gymnasium's `reset` and `step`, same-step autoreset, one agent each."""

    def __init__(
        self, spec: EnvSpec, bridge: Bridge, seeds: Sequence[int], *, first: int = 0, repeat: int = 1,
        progress: Array | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.envs = len(seeds)
        self.first = first
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        """What a watcher may read: steps (counted by the caller) and the env that is being stepped."""
        self._bridge = bridge
        self._repeat = repeat
        self._seeds: list[int | None] = list(seeds)
        self._first_seeds = list(seeds)
        self._elapsed = [0] * self.envs
        self._steps = 0
        self._index = 0
        self._envs: list[Any] = []
        self._masks: list[Callable[[], Any] | None] = []
        self._guard(self._make_envs)

    def reset(self, out: Rows) -> None:
        """Start every environment anew, seeded the first time."""
        self._guard(self._reset_envs, range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        """Start the named environments anew."""
        self._guard(self._reset_envs, indices, out)

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
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    def _make_envs(self) -> None:
        for index in range(self.envs):
            self._index = index
            env = self._bridge.make()
            self._envs.append(env)
            self._masks.append(self._bridge.mask_of(env) if self.spec.action.masked else None)

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        for index in indices:
            self._begin(index, out)
            out.active[index] = 1

    def _begin(self, index: int, out: Rows) -> None:
        self._index = self.progress[1] = index
        self._elapsed[index] = 0
        obs, _ = self._envs[index].reset(seed=self._seeds[index])
        self._seeds[index] = None
        self._write(obs, out.obs, index)
        mask = self._masks[index]
        if mask is not None:
            out.mask[index] = mask()

    def _write(self, obs: Any, rows: Array, index: int) -> None:
        if self._bridge.encode_obs is None:
            rows[index] = obs
        else:
            self._bridge.encode_obs(obs, rows[index])

    def _step_envs(self, action: Array, out: Rows) -> None:
        obs_rows, rewards, terminations, truncations = out.obs, out.reward, out.terminated, out.truncated
        elapsed, limit, repeat, progress = self._elapsed, self._bridge.time_limit, self._repeat, self.progress
        encode, masks = self._bridge.encode_obs, self._masks
        terminations[:] = 0
        truncations[:] = 0
        out.active[:] = 1
        for index, (env, choice) in enumerate(zip(self._envs, self._bridge.decode_actions(action), strict=True)):
            self._index = index
            progress[1] = index
            obs, reward, terminated, truncated, _ = env.step(choice)
            for _ in range(1, repeat):
                elapsed[index] += 1
                if terminated or truncated or elapsed[index] == limit:
                    break
                obs, more, terminated, truncated, _ = env.step(choice)
                reward += more
            else:
                elapsed[index] += 1
            rewards[index] = reward
            if limit and elapsed[index] >= limit:
                truncated = True
            if terminated or truncated:
                terminations[index] = terminated
                truncations[index] = truncated and not terminated
                self._write(obs, out.final_obs, index)
                self._begin(index, out)
            else:
                if encode is None:
                    obs_rows[index] = obs
                else:
                    encode(obs, obs_rows[index])
                mask = masks[index]
                if mask is not None:
                    out.mask[index] = mask()

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except Exception as error:
            index = self._index
            raise EnvFault(self.first + index, self._first_seeds[index], self._steps, traceback.format_exc()) from error
