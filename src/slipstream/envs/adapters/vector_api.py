"""Slipstream vectors for other trainers: as a Gymnasium vector environment or as a Stable-Baselines3 VecEnv.

A sub-environment of these APIs is a row: a game with several agents has one sub-environment per agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as Base
from gymnasium.vector.utils import batch_space

from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.adapters.action_spaces import action_encoder
from slipstream.envs.adapters.observation_spaces import obs_decoder
from slipstream.errors import ConfigError, did_you_mean

Step = tuple[Any, Array, Array, Array, dict[str, Any]]


class VectorEnv(Base[Any, Any, Any]):
    """A Gymnasium vector environment that resets in the step that ends an episode.

    `infos` holds `final_obs` of ended episodes (mask `_final_obs`), `outcome` (won 1, drawn 0, lost -1) in competitive
    games, `action_mask` if actions are masked, and `active` if rows can be inactive. The infos of the wrapped envs are
    not passed on.
    """

    def __init__(self, vector: Vector, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.vector = vector
        """The wrapped vector."""
        self.num_envs = vector.envs * vector.spec.agents
        late = vector.spec.late_resets
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP if late else AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._decode, self._encode = obs_decoder(observation_space), action_encoder(action_space)
        self._rows = empty_rows(vector.spec, vector.envs)
        self._started = False

    def __repr__(self) -> str:
        return f"VectorEnv({self.vector.spec.name}, num_envs={self.num_envs})"

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those in `options["reset_mask"]`.

        An integer seeds the environments with consecutive values; a list holds one seed for each. `options["task"]` is
        the task of the following episodes: one name, or a list with one name per environment.
        """
        vector, given = self.vector, dict(options or {})
        mask, tasks = given.pop("reset_mask", None), given.pop("task", None)
        if given:
            raise ConfigError(f"reset: unknown options {', '.join(given)}.", "use task and reset_mask")
        if tasks is not None:
            vector.assign(self._tasks(tasks))
        rows = np.ones(self.num_envs, bool) if mask is None or not self._started else np.asarray(mask, bool)
        envs = np.flatnonzero(rows.reshape(vector.envs, -1).any(axis=1)).tolist()
        if seed is None and len(envs) == vector.envs:
            vector.reset(self._rows)
        else:
            vector.reset_envs(envs, self._rows, None if seed is None else self._seeds(seed, envs))
        self._started = True
        return self._decode(self._rows.obs), self._infos()

    def step(self, actions: Any) -> Step:
        """Step all environments with a batch of actions."""
        rows = self._rows
        self.vector.step(self._encode(actions), rows)
        terminated, truncated = rows.terminated.astype(bool), rows.truncated.astype(bool)
        infos, ended = self._infos(), terminated | truncated
        if ended.any():
            infos |= {"final_obs": self._decode(rows.final_obs), "_final_obs": ended}
            if self.vector.spec.competitive:
                infos |= {"outcome": rows.outcome.copy(), "_outcome": ended}
        return self._decode(rows.obs), rows.reward.astype(np.float64), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments and their worker processes."""
        self.vector.close()

    def action_masks(self) -> Array:
        """The action masks [num_envs, options] of the current step."""
        return self._rows.mask.astype(bool)

    def _infos(self) -> dict[str, Any]:
        spec = self.vector.spec
        infos: dict[str, Any] = {"action_mask": self._rows.mask.copy()} if spec.action.masked else {}
        return infos | ({"active": self._rows.active.astype(bool)} if spec.absences or spec.late_resets else {})

    def _seeds(self, seed: int | Sequence[int | None], envs: Sequence[int]) -> list[int]:
        """The seed of each of the given environments; with several agents, that of the first agent."""
        if not isinstance(seed, Sequence | np.ndarray):
            return [int(seed) + env for env in envs]
        if len(seed) != self.num_envs:
            raise ConfigError(
                f"reset: {len(seed)} seeds for {self.num_envs} environments.", "give one seed, or one for each"
            )
        return [-1 if (one := seed[env * self.vector.spec.agents]) is None else int(one) for env in envs]

    def _tasks(self, tasks: str | Sequence[str]) -> Array:
        names, known = [tasks] * self.vector.envs if isinstance(tasks, str) else list(tasks), self.vector.spec.tasks
        for name in names:
            if name not in known:
                hint = f"tasks: {', '.join(known)}" if known else "this game has no tasks: leave `task` out"
                raise ConfigError(f"reset: there is no task `{name}`.{did_you_mean(name, known)}", hint)
        return np.array([known.index(name) for name in names], np.int64)


def as_sb3(env: VectorEnv) -> Any:
    """The environments as a Stable-Baselines3 VecEnv, with the episode infos of its Monitor wrapper."""
    try:
        from stable_baselines3.common.vec_env import VecEnv
    except ImportError as error:
        raise ConfigError(f'api="sb3" needs Stable-Baselines3: {error}.', "pip install stable-baselines3") from error

    class SlipstreamVecEnv(VecEnv):
        """A VecEnv around the vector environment `env`."""

        def __init__(self) -> None:
            self.env = env
            super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
            self._actions: Any = None
            self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
            self._started_at = perf_counter()

        def reset(self) -> Any:
            """Reset all environments, seeded if `seed` was called before."""
            seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
            tasks = [given["task"] for given in self._options if "task" in given]
            obs, _ = env.reset(seed=seeds, options={"task": tasks[:: env.vector.spec.agents]} if tasks else None)
            self._reset_seeds()
            self._reset_options()
            self._returns[:], self._lengths[:] = 0, 0
            return obs

        def step_async(self, actions: Any) -> None:
            """Keep the actions for `step_wait`."""
            self._actions = actions

        def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
            """Step all environments."""
            obs, reward, terminated, truncated, step_infos = env.step(self._actions)
            self._returns += reward
            self._lengths += 1
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for row in np.flatnonzero(terminated | truncated).tolist():
                infos[row] = {
                    "terminal_observation": _pick(step_infos["final_obs"], row),
                    "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                    "episode": self._finish_episode(row),
                }
            return obs, reward.astype(np.float32), terminated | truncated, infos

        def close(self) -> None:
            """Close all environments."""
            env.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """An attribute of every environment; only those known here, since envs may be in other processes."""
            known: dict[str, Any] = {"render_mode": None, "spec": env.spec}
            known |= {"action_masks": env.action_masks} if env.vector.spec.action.masked else {}
            if attr_name in known:
                return [known[attr_name] for _ in self._get_indices(indices)]
            raise AttributeError(f"environments in a slipstream vector have no attribute `{attr_name}`")

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Not supported: environments may be in other processes."""
            raise AttributeError(f"`{attr_name}` cannot be set here: set it where the environment is made")

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            """Only `action_masks`, which sb3-contrib calls."""
            if method_name == "action_masks" and env.vector.spec.action.masked:
                masks = env.action_masks()
                return [masks[row] for row in self._get_indices(indices)]
            raise AttributeError(f"environments in a slipstream vector have no method `{method_name}`")

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """True for Monitor, whose episode infos are provided; False for other wrappers."""
            return [wrapper_class.__name__ == "Monitor" for _ in self._get_indices(indices)]

        def _finish_episode(self, row: int) -> dict[str, Any]:
            """The episode info of Monitor: return, length and time."""
            info = {"r": float(self._returns[row]), "l": int(self._lengths[row])}
            self._returns[row], self._lengths[row] = 0, 0
            return info | {"t": round(perf_counter() - self._started_at, 6)}

    return SlipstreamVecEnv()


def _pick(batch: Any, row: int) -> Any:
    """One observation of a batch."""
    if isinstance(batch, Mapping):
        return {key: _pick(part, row) for key, part in batch.items()}
    return tuple(_pick(part, row) for part in batch) if isinstance(batch, tuple) else batch[row]
