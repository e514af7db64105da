"""Atari games: ALE's own vector environment with its own threads; frames are uint8 and rewards are not clipped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows
from slipstream.envs.adapters.adapter_vector import ThreadedAdapter, import_package
from slipstream.errors import ConfigError
from slipstream.system import machine

SIDE, STACK, FRAMES = 84, 4, 4
TICK_S = 1 / 60


class Atari(ThreadedAdapter):
    """`envs` games of one kind: 84 x 84 greyscale, the last 4 frames stacked.

    ALE resets a game in the step that ends it and returns its final observation.
    """

    def __init__(
        self,
        game: str,
        envs: int,
        *,
        first: int = 0,
        seed: int = 0,
        repeat: int = FRAMES,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        keys = [np.random.SeedSequence([seed, 0xA7A, index]) for index in range(first, first + envs)]
        self._initial_seeds = np.array([key.generate_state(1)[0] >> 1 for key in keys], np.int64)
        super().__init__(envs, first, self._initial_seeds.tolist())
        given = dict(options or {})
        threads = int(given.pop("threads", min(envs, machine.threads())))
        arguments = {"reward_clipping": False, "frameskip": repeat, "num_threads": threads} | given
        self._env = _make_vector_env(game, envs, arguments)
        field = ObsField("", "image", (STACK, SIDE, SIDE, 1))
        actions = int(self._env.single_action_space.n)
        self.spec = EnvSpec(
            name=f"atari:{game}",
            obs=ObsSpec((field,)),
            action=ActionSpec("discrete", (actions,)),
            step_seconds=repeat * TICK_S,
            own_threads=True,
        )

    def reset(self, out: Rows) -> None:
        """Reset every game from its initial seed."""
        self.reset_envs(range(self.envs), out, self._initial_seeds.tolist())

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        mask = np.zeros(self.envs, bool)
        mask[list(indices)] = True
        seeds = [-1 if (seed := self._seeds.next[index]) is None else seed for index in np.flatnonzero(mask).tolist()]
        options = None if mask.all() else {"reset_mask": mask}
        obs, _ = self._env.reset(seed=np.array(seeds).astype(np.int32), options=options)
        for index in indices:
            self._seeds.begin(index)
        out.obs[mask] = obs.reshape(self.envs, -1)[mask]
        out.active[mask] = 1

    def _send(self, action: Array) -> None:
        self._env.send(np.ascontiguousarray(action[:, 0]))

    def _receive(self, out: Rows) -> None:
        obs, reward, terminated, truncated, info = self._env.recv()
        out.reward[:], out.terminated[:], out.truncated[:] = reward, terminated, truncated & ~terminated
        out.outcome[:] = 0
        ended = terminated | truncated
        if ended.any():
            out.final_obs[ended] = info["final_obs"].reshape(self.envs, -1)[ended]
            self._seeds.begun[ended] = -1
        out.obs[:] = obs.reshape(self.envs, -1)
        out.active[:] = 1

    def close(self) -> None:
        """Stop ALE's threads; may be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _make_vector_env(game: str, envs: int, arguments: dict[str, Any]) -> Any:
    name, install = f"atari:{game}", 'pip install "slipstream[atari]"'
    vector_env = import_package("ale_py.vector_env", name, "ale-py", install).AtariVectorEnv
    rom = re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower()
    try:
        return vector_env(rom, envs, autoreset_mode="SameStep", **arguments)
    except TypeError as error:
        raise ConfigError(f"`env.options` of {name}: {error}.", "see ALE's AtariVectorEnv, or threads") from error


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Atari:
    """Make games of one kind from the settings."""
    repeat = choice.env.action_repeat or FRAMES
    return Atari(variant, envs, first=first, seed=seed, repeat=repeat, options=choice.env.options)
