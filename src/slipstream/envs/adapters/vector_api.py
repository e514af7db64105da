"""Our vectors for people who keep their trainer: as Gymnasium's vector environments, and as Stable-Baselines3's.

A place of theirs is a row of ours: a game with several agents has as many places per environment.
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
    """Environments that step together, as Gymnasium has them, reset in the step that ends their episode.

    `infos` holds `final_obs` where an episode ended (`_final_obs` says where), `outcome` (won 1, drawn 0, lost -1)
    with it in games of two sides, `action_mask` where actions are masked, and `active` where a place may be empty.
    What an env puts into its own infos stays where the env is.
    """

    def __init__(self, vector: Vector, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.vector = vector
        """The same environments as rows."""
        self.num_envs = vector.envs * vector.spec.agents
        late = vector.spec.late_resets
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP if late else AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._decode, self._encode = obs_decoder(observation_space), action_encoder(action_space)
        self._rows = empty_rows(vector.spec, vector.envs)
        self._begun = False

    def __repr__(self) -> str:
        return f"VectorEnv({self.vector.spec.name}, num_envs={self.num_envs})"

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all environments anew, or those of `options["reset_mask"]`.

        A number seeds them by itself, the next one and so on; a list holds a seed for each. `options["task"]` is the
        task that is played from now on, one for all or a list of one for each.
        """
        vector, given = self.vector, dict(options or {})
        chosen, tasks = given.pop("reset_mask", None), given.pop("task", None)
        if given:
            raise ConfigError(f"reset: unknown options {', '.join(given)}.", "use task and reset_mask")
        if tasks is not None:
            vector.assign(self._tasks(tasks))
        places = np.ones(self.num_envs, bool) if chosen is None or not self._begun else np.asarray(chosen, bool)
        envs = np.flatnonzero(places.reshape(vector.envs, -1).any(axis=1)).tolist()
        if seed is None and len(envs) == vector.envs:
            vector.reset(self._rows)
        else:
            vector.reset_envs(envs, self._rows, None if seed is None else self._seeds(seed, envs))
        self._begun = True
        return self._decode(self._rows.obs), self._facts()

    def step(self, actions: Any) -> Step:
        """Step all environments with a batch of actions."""
        rows = self._rows
        self.vector.step(self._encode(actions), rows)
        terminated, truncated = rows.terminated.astype(bool), rows.truncated.astype(bool)
        infos, ended = self._facts(), terminated | truncated
        if ended.any():
            infos |= {"final_obs": self._decode(rows.final_obs), "_final_obs": ended}
            if self.vector.spec.competitive:
                infos |= {"outcome": rows.outcome.copy(), "_outcome": ended}
        return self._decode(rows.obs), rows.reward.astype(np.float64), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """End all environments, and the processes that step them."""
        self.vector.close()

    def action_masks(self) -> Array:
        """Which options [places, all options] are allowed now."""
        return self._rows.mask.astype(bool)

    def _facts(self) -> dict[str, Any]:
        spec = self.vector.spec
        facts: dict[str, Any] = {"action_mask": self._rows.mask.copy()} if spec.action.masked else {}
        return facts | ({"active": self._rows.active.astype(bool)} if spec.absences or spec.late_resets else {})

    def _seeds(self, seed: int | Sequence[int | None], envs: Sequence[int]) -> list[int]:
        """A seed for each of the chosen environments; those of several agents have that of the first."""
        if not isinstance(seed, Sequence | np.ndarray):
            return [int(seed) + env for env in envs]
        if len(seed) != self.num_envs:
            raise ConfigError(f"reset: {len(seed)} seeds for {self.num_envs} places.", "give a number, or one for each")
        return [-1 if (one := seed[env * self.vector.spec.agents]) is None else int(one) for env in envs]

    def _tasks(self, tasks: str | Sequence[str]) -> Array:
        names, known = [tasks] * self.vector.envs if isinstance(tasks, str) else list(tasks), self.vector.spec.tasks
        for name in names:
            if name not in known:
                hint = f"tasks: {', '.join(known)}" if known else "it has one kind of game: leave `task` out"
                raise ConfigError(f"reset: there is no task `{name}`.{did_you_mean(name, known)}", hint)
        return np.array([known.index(name) for name in names], np.int64)


def as_sb3(env: VectorEnv) -> Any:
    """The same environments as a VecEnv of Stable-Baselines3, with what its Monitor would tell of episodes."""
    try:
        from stable_baselines3.common.vec_env import VecEnv
    except ImportError as error:
        raise ConfigError(f'api="sb3" needs Stable-Baselines3: {error}.', "pip install stable-baselines3") from error

    class SlipstreamVecEnv(VecEnv):
        """Environments of ours; `env` is the vector environment that they are."""

        def __init__(self) -> None:
            self.env = env
            super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
            self._actions: Any = None
            self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
            self._began = perf_counter()

        def reset(self) -> Any:
            """Start all environments anew, seeded if `seed` was called before."""
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
            obs, reward, terminated, truncated, told = env.step(self._actions)
            self._returns += reward
            self._lengths += 1
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for place in np.flatnonzero(terminated | truncated).tolist():
                infos[place] = {
                    "terminal_observation": _pick(told["final_obs"], place),
                    "TimeLimit.truncated": bool(truncated[place] and not terminated[place]),
                    "episode": self._finish(place),
                }
            return obs, reward.astype(np.float32), terminated | truncated, infos

        def close(self) -> None:
            """End all environments."""
            env.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """An attribute of every environment: what they were made with, nothing that lives in another process."""
            known: dict[str, Any] = {"render_mode": None, "spec": env.spec}
            known |= {"action_masks": env.action_masks} if env.vector.spec.action.masked else {}
            if attr_name in known:
                return [known[attr_name] for _ in self._get_indices(indices)]
            raise AttributeError(f"environments in a slipstream vector show no `{attr_name}`")

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Refused: environments may be in other processes."""
            raise AttributeError(f"`{attr_name}` cannot be set: set it where the environment is made")

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            """`action_masks` of every environment, as sb3-contrib asks for it; nothing else."""
            if method_name == "action_masks" and env.vector.spec.action.masked:
                masks = env.action_masks()
                return [masks[place] for place in self._get_indices(indices)]
            raise AttributeError(f"environments in a slipstream vector show no `{method_name}`")

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """Whether episodes are told as by Monitor, which is so; nothing else is wrapped."""
            return [wrapper_class.__name__ == "Monitor" for _ in self._get_indices(indices)]

        def _finish(self, place: int) -> dict[str, Any]:
            """What Monitor tells of an episode."""
            told = {"r": float(self._returns[place]), "l": int(self._lengths[place])}
            self._returns[place], self._lengths[place] = 0, 0
            return told | {"t": round(perf_counter() - self._began, 6)}

    return SlipstreamVecEnv()


def _pick(batch: Any, place: int) -> Any:
    """One observation of a batch."""
    if isinstance(batch, Mapping):
        return {key: _pick(part, place) for key, part in batch.items()}
    return tuple(_pick(part, place) for part in batch) if isinstance(batch, tuple) else batch[place]
