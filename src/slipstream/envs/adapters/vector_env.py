"""Vector environments of other libraries with Gymnasium's vector API, as rows, for every autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.adapters.action_spaces import batch_decoder
from slipstream.envs.adapters.adapter_vector import AdapterVector
from slipstream.envs.adapters.observation_spaces import batch_encoder, obs_encoder
from slipstream.errors import EnvError

PartialReset = Callable[[Array, Any], Any]
"""(mask [envs] bool, seeds) -> a batch of observations, of all envs or of the masked ones."""


class Native(AdapterVector):
    """`envs` environments in one vector env with Gymnasium's API, in any autoreset mode.

    If the vector env resets in the step that ends an episode, or supports partial resets, rows are as usual. If it
    resets in the step after (`spec.late_resets`), that step is not a transition: the row is inactive, and its action
    and reward are ignored. A vector env takes one seed for all environments, unless `separate_seeds` is set.
    """

    def __init__(
        self,
        env: Any,
        spec: EnvSpec,
        seeds: Sequence[int],
        *,
        mode: AutoresetMode,
        first: int = 0,
        partial_reset: PartialReset | None = None,
        separate_seeds: bool = False,
    ) -> None:
        """`partial_reset` resets some of the environments, each from its own seed if `separate_seeds` is set."""
        super().__init__(len(seeds), first, seeds)
        self.spec = replace(spec, late_resets=mode is AutoresetMode.NEXT_STEP)
        self._env, self._mode = env, mode
        self._partial_reset, self._separate_seeds = partial_reset, separate_seeds
        self.spaces = env.single_observation_space, env.single_action_space
        self._encode = batch_encoder(env.single_observation_space)
        self._encode_one = obs_encoder(env.single_observation_space)
        self._decode = batch_decoder(env.single_action_space)
        self._resetting = np.zeros(self.envs, bool)
        """The envs that are reset by the next step."""

    def close(self) -> None:
        """Close the vector env; may be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        mask = np.zeros(self.envs, bool)
        mask[list(indices)] = True
        if mask.all() and not self._separate_seeds:
            self._reset_all(out)
        else:
            self._reset_some(mask, out)

    def _reset_all(self, out: Rows) -> None:
        obs, _ = self._env.reset(seed=self._seeds.next[0])
        self._seeds.next, self._seeds.begun[:] = [None] * self.envs, -1
        self._resetting[:] = False
        self._encode(obs, out.obs)
        out.active.fill(1)

    def _reset_some(self, mask: Array, out: Rows) -> None:
        if self._partial_reset is None:
            raise EnvError(
                f"The vector env of `{self.spec.name}` cannot reset single environments.",
                "plan.native=false steps them one by one",
            )
        indices = np.flatnonzero(mask).tolist()
        seeded = any(self._seeds.next[index] is not None for index in indices)
        obs = self._partial_reset(mask, self._seeds.next if seeded else None)
        for index in indices:
            self._seeds.begin(index)
        if _length(obs) == len(indices) < self.envs:
            part = out.obs[mask]
            self._encode(obs, part)
            out.obs[mask] = part
        else:
            batch = np.empty_like(out.obs)
            self._encode(obs, batch)
            out.obs[mask] = batch[mask]
        out.active[mask] = 1
        self._resetting[mask] = False

    def _step(self, action: Array, out: Rows) -> None:
        obs, reward, terminated, truncated, infos = self._env.step(self._decode(action))
        out.reward[:], out.terminated[:] = reward, terminated
        np.greater(truncated, terminated, out=out.truncated.view(bool))
        out.outcome.fill(0)
        out.active.fill(1)
        self._encode(obs, out.obs)
        late = self.spec.late_resets
        if late and self._resetting.any():
            out.reward[self._resetting], out.terminated[self._resetting], out.truncated[self._resetting] = 0, 0, 0
        ended = (out.terminated | out.truncated).view(bool)
        if late:
            self._resetting = ended
        if not ended.any():
            return
        if self._mode is AutoresetMode.SAME_STEP:
            self._write_final_obs(infos, ended, out)
            return
        out.final_obs[ended] = out.obs[ended]
        if late:
            out.active[ended] = 0
        else:
            self._reset_some(ended, out)

    def _write_final_obs(self, infos: Mapping[str, Any], ended: Array, out: Rows) -> None:
        """Write the final observations of ended episodes, given as a batch or as an array of objects."""
        if "final_obs" not in infos:
            raise EnvError(
                f"The vector env of `{self.spec.name}` resets in the step that ends an episode, but its infos have no "
                "`final_obs`.",
                "plan.native=false steps them one by one",
            )
        final_obs = infos["final_obs"]
        if isinstance(final_obs, np.ndarray) and final_obs.dtype == object:
            for index in np.flatnonzero(ended).tolist():
                if self._encode_one is None:
                    out.final_obs[index] = final_obs[index]
                else:
                    self._encode_one(final_obs[index], out.final_obs[index])
            return
        batch = np.empty_like(out.final_obs)
        self._encode(final_obs, batch)
        out.final_obs[ended] = batch[ended]


def _length(obs: Any) -> int:
    """The number of observations in a batch."""
    while isinstance(obs, Mapping | tuple):
        obs = next(iter(obs.values())) if isinstance(obs, Mapping) else obs[0]
    return len(obs)


def why_not_native(name: str) -> str:
    """Why a registered environment cannot be stepped by its own vector env; empty if it can."""
    spec = gymnasium.registry.get(name)
    if spec is None or spec.vector_entry_point is None:
        return "no vector env is registered for it"
    return "it is registered with wrappers, which its vector env does not apply" if spec.additional_wrappers else ""


def make_vector_env(
    name: str, options: Mapping[str, Any], spec: EnvSpec, one: Any, seeds: Sequence[int], first: int
) -> Native:
    """Make the registered vector env of an environment; its spaces must equal those of the single env `one`."""
    try:
        env = gymnasium.make_vec(name, len(seeds), "vector_entry_point", **options)
    except Exception as error:
        raise EnvError(f"The vector env of `{name}` could not be made: {error}", "plan.native=false") from error
    try:
        return _adapt(env, name, spec, one, seeds, first)
    except BaseException:
        env.close()
        raise


def _adapt(
    env: VectorEnv[Any, Any, Any], name: str, spec: EnvSpec, one: Any, seeds: Sequence[int], first: int
) -> Native:
    for what in ("observation", "action"):
        own, other = getattr(one, f"{what}_space"), getattr(env, f"single_{what}_space")
        if own != other:
            raise EnvError(
                f"The vector env of `{name}` has another {what} space ({other}) than the env itself ({own}).",
                "set plan.native=false, or use its built-in adapter, such as atari:Pong",
            )
    try:
        mode = AutoresetMode(env.metadata.get("autoreset_mode"))
    except ValueError as error:
        raise EnvError(
            f"The vector env of `{name}` does not declare its autoreset mode: {error}.",
            'its metadata["autoreset_mode"] must be one of gymnasium.vector.AutoresetMode; or set plan.native=false',
        ) from error
    if type(env.unwrapped) is CartPoleVectorEnv:
        resets = CartPoleResets(env.unwrapped)
        return Native(
            env, spec, seeds, mode=AutoresetMode.DISABLED, first=first, partial_reset=resets, separate_seeds=True
        )
    partial_reset = _masked_reset(env) if mode is AutoresetMode.DISABLED else None
    return Native(env, spec, seeds, mode=mode, first=first, partial_reset=partial_reset)


class CartPoleResets:
    """Resets some of Gymnasium's vectorised CartPoles in the step that ended them, each from its own RNG.

    CartPoleVectorEnv marks ended carts and resets them in the next step; clearing the mark avoids losing that step.
    With its own RNG, a cart starts exactly like a single CartPole with the same seed.
    """

    def __init__(self, env: CartPoleVectorEnv) -> None:
        self._env = env
        env.reset(seed=0)
        self._rngs = [env.np_random] * env.num_envs

    def __call__(self, mask: Array, seeds: Any) -> Array:
        """Draw new initial states for the masked carts; returns the observations of all carts."""
        env, state = self._env, self._env.state
        assert state is not None
        for index in np.flatnonzero(mask).tolist():
            if seeds is not None and seeds[index] is not None:
                self._rngs[index] = seeding.np_random(seeds[index])[0]
            state[:, index] = self._rngs[index].uniform(low=env.low, high=env.high, size=4)
        env.steps[mask], env.prev_done[mask] = 0, False
        obs: Array = state.T.astype(np.float32)
        return obs


def _masked_reset(env: VectorEnv[Any, Any, Any]) -> PartialReset:
    """A partial reset by the option `reset_mask` of Gymnasium's vector envs without autoreset."""

    def reset(mask: Array, seeds: Any) -> Any:
        return env.reset(seed=seeds, options={"reset_mask": mask})[0]

    return reset
