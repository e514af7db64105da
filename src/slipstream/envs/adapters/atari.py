"""Atari games: ALE's own vector of them, with threads of its own; frames stay bytes and rewards what the game pays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows
from slipstream.envs.snapshot import NoSnapshot
from slipstream.errors import ConfigError, EnvError
from slipstream.system import machine

SIDE, STACK, FRAMES = 84, 4, 4
TICK_S = 1 / 60


class Atari(NoSnapshot):
    """`envs` games of one kind, 84 x 84 grey, the last 4 frames stacked; a step can be begun and waited for.

    ALE resets a game in the step that ends it and tells its last observation, as rows want it.
    """

    def __init__(
        self, game: str, envs: int, *, first: int = 0, seed: int = 0, repeat: int = FRAMES,
        options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        given = dict(options or {})
        threads = int(given.pop("threads", min(envs, machine.threads())))
        wanted = {"reward_clipping": False, "frameskip": repeat, "num_threads": threads} | given
        self._env = _open(game, envs, wanted)
        self.envs = envs
        field = ObsField("", "image", (STACK, SIDE, SIDE, 1))
        actions = int(self._env.single_action_space.n)
        self.spec = EnvSpec(
            name=f"atari:{game}", obs=ObsSpec((field,)), action=ActionSpec("discrete", (actions,)),
            step_seconds=repeat * TICK_S, own_threads=True,
        )  # fmt: skip
        keys = [np.random.SeedSequence([seed, 0xA7A, index]) for index in range(first, first + envs)]
        self._seeds = np.array([key.generate_state(1)[0] >> 1 for key in keys], np.int64)
        self._begun = np.full(envs, -1)
        self._out: Rows | None = None

    def reset(self, out: Rows) -> None:
        """Start every game anew, from its own seed."""
        obs, _ = self._env.reset(seed=self._seeds.astype(np.int32))
        self._begun[:] = self._seeds
        self._show(obs, out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named games anew, each from its seed where there is one."""
        chosen = np.zeros(self.envs, bool)
        chosen[list(indices)] = True
        given = np.full(self.envs, -1)
        if seeds is not None:
            given[list(indices)] = seeds
        obs, _ = self._env.reset(seed=given[chosen].astype(np.int32), options={"reset_mask": chosen})
        self._begun[chosen] = given[chosen]
        out.obs[chosen] = obs.reshape(self.envs, -1)[chosen]
        out.active[chosen] = 1

    def seeds(self) -> Array:
        """The seed of each game that was begun by one, else -1."""
        return self._begun.copy()

    def step(self, action: Array, out: Rows) -> None:
        """Step every game."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Give ALE's threads the actions."""
        self._out = out
        self._env.send(np.ascontiguousarray(action[:, 0]))

    def receive(self) -> None:
        """Wait for ALE's threads and write the rows."""
        out, self._out = self._out, None
        assert out is not None
        obs, reward, terminated, truncated, info = self._env.recv()
        out.reward[:], out.terminated[:], out.truncated[:] = reward, terminated, truncated & ~terminated
        out.outcome[:] = 0
        ended = terminated | truncated
        if ended.any():
            out.final_obs[ended] = info["final_obs"].reshape(self.envs, -1)[ended]
            self._begun[ended] = -1
        self._show(obs, out)

    def close(self) -> None:
        """End ALE's threads; may be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _show(self, obs: Array, out: Rows) -> None:
        out.obs[:] = obs.reshape(self.envs, -1)
        out.active[:] = 1


def _open(game: str, envs: int, wanted: dict[str, Any]) -> Any:
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise EnvError(f"`atari:{game}` needs ale-py: {error}.", 'pip install "slipstream[atari]"') from error
    rom = re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower()
    try:
        return AtariVectorEnv(rom, envs, autoreset_mode="SameStep", **wanted)
    except TypeError as error:
        raise ConfigError(f"`env.options` of atari:{game}: {error}.", "see ALE's AtariVectorEnv, or threads") from error


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Atari:
    """Make games of one kind as the settings say."""
    repeat = choice.env.action_repeat or FRAMES
    return Atari(variant, envs, first=first, seed=seed, repeat=repeat, options=choice.env.options)
