"""Vector environments that others have written, as rows: one call steps all, however they reset what has ended."""

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
from slipstream.envs.adapters.observation_spaces import batch_encoder, obs_encoder
from slipstream.envs.snapshot import NoSnapshot
from slipstream.errors import EnvError, guarded
from slipstream.system.rng import Seeds

Some = Callable[[Array, Any], Any]
"""(which [envs] bool, seeds) -> observations of a batch, those of all or of these envs alone."""


class Native(NoSnapshot):
    """`envs` environments behind one vector env of Gymnasium's API, whatever its mode of autoreset.

    Where it resets in the step that ends an episode, or can be told to, rows are as everywhere. Where it resets in the
    step after (`spec.late_resets`), that step is no transition: the row is inactive, its action goes nowhere and its
    reward is nobody's. One seed begins them all, since that is all that such an env takes, unless `each` says that
    every env can be given one of its own.
    """

    def __init__(
        self, env: Any, spec: EnvSpec, seeds: Sequence[int], *, mode: AutoresetMode, first: int = 0,
        some: Some | None = None, each: bool = False,
    ) -> None:  # fmt: skip
        """`some` starts some of them anew, where that can be done; `each`, from a seed for each."""
        self.spec = replace(spec, late_resets=mode is AutoresetMode.NEXT_STEP)
        self.envs, self.first = len(seeds), first
        self._env, self._mode, self._some, self._each = env, mode, some, each
        self.spaces = env.single_observation_space, env.single_action_space
        self._seeds = Seeds(seeds)
        self._encode = batch_encoder(env.single_observation_space)
        self._encode_one = obs_encoder(env.single_observation_space)
        self._decode = batch_decoder(env.single_action_space)
        self._over = np.zeros(self.envs, bool)
        """Whose reset the next step is."""
        self._steps = 0

    def reset(self, out: Rows) -> None:
        """Start every environment anew, seeded the first time."""
        self.reset_envs(range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew: all of them from the first seed, or some where that can be done."""
        self._seeds.give(indices, seeds)
        chosen = np.zeros(self.envs, bool)
        chosen[list(indices)] = True
        whole = bool(chosen.all()) and not self._each
        self._guard(*((self._reset_all,) if whole else (self._reset_some, chosen)), out)

    def seeds(self) -> Array:
        """The seed of each episode that was begun by one of its own, else -1."""
        return self._seeds.begun.copy()

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment by one call."""
        self._steps += 1
        self._guard(self._step_all, action, out)

    def close(self) -> None:
        """Close the vector env; may be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _reset_all(self, out: Rows) -> None:
        obs, _ = self._env.reset(seed=self._seeds.next[0])
        self._seeds.next, self._seeds.begun[:] = [None] * self.envs, -1
        self._over[:] = False
        self._encode(obs, out.obs)
        out.active.fill(1)

    def _reset_some(self, chosen: Array, out: Rows) -> None:
        if self._some is None:
            raise EnvError(
                f"The vector env of `{self.spec.name}` cannot start one of its envs anew by itself.",
                "plan.native=false steps them one by one",
            )
        named = np.flatnonzero(chosen).tolist()
        seeded = any(self._seeds.next[index] is not None for index in named)
        obs = self._some(chosen, self._seeds.next if seeded else None)
        for index in named:
            self._seeds.begin(index)
        count = int(chosen.sum())
        if _length(obs) == count < self.envs:
            part = out.obs[chosen]
            self._encode(obs, part)
            out.obs[chosen] = part
        else:
            whole = np.empty_like(out.obs)
            self._encode(obs, whole)
            out.obs[chosen] = whole[chosen]
        out.active[chosen] = 1
        self._over[chosen] = False

    def _step_all(self, action: Array, out: Rows) -> None:
        obs, reward, terminated, truncated, infos = self._env.step(self._decode(action))
        out.reward[:], out.terminated[:] = reward, terminated
        np.greater(truncated, terminated, out=out.truncated.view(bool))
        out.outcome.fill(0)
        out.active.fill(1)
        self._encode(obs, out.obs)
        late = self.spec.late_resets
        if late and self._over.any():
            out.reward[self._over], out.terminated[self._over], out.truncated[self._over] = 0, 0, 0
        ended = (out.terminated | out.truncated).view(bool)
        if late:
            self._over = ended
        if not ended.any():
            return
        if self._mode is AutoresetMode.SAME_STEP:
            self._write_last(infos, ended, out)
            return
        out.final_obs[ended] = out.obs[ended]
        if late:
            out.active[ended] = 0
        else:
            self._reset_some(ended, out)

    def _write_last(self, infos: Mapping[str, Any], ended: Array, out: Rows) -> None:
        """The last observations of episodes whose next one has begun: a batch of them, or an object for each."""
        if "final_obs" not in infos:
            raise EnvError(
                f"The vector env of `{self.spec.name}` resets in the step that ends an episode, and its infos hold no "
                "`final_obs`.",
                "plan.native=false steps them one by one",
            )
        told = infos["final_obs"]
        if isinstance(told, np.ndarray) and told.dtype == object:
            for index in np.flatnonzero(ended).tolist():
                if self._encode_one is None:
                    out.final_obs[index] = told[index]
                else:
                    self._encode_one(told[index], out.final_obs[index])
            return
        whole = np.empty_like(out.final_obs)
        self._encode(told, whole)
        out.final_obs[ended] = whole[ended]

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self.first, self._seeds.named[0], self._steps))


def _length(obs: Any) -> int:
    """Observations in a batch."""
    while isinstance(obs, Mapping | tuple):
        obs = next(iter(obs.values())) if isinstance(obs, Mapping) else obs[0]
    return len(obs)


def lacking(name: str) -> str:
    """Why a registered environment cannot be stepped by a vector env of its own; empty: it can, for all we know."""
    spec = gymnasium.registry.get(name)
    if spec is None or spec.vector_entry_point is None:
        return "no vector env is registered for it"
    return "it is registered with wrappers, which its vector env would not have" if spec.additional_wrappers else ""


def open_native(
    name: str, options: Mapping[str, Any], spec: EnvSpec, one: Any, seeds: Sequence[int], first: int
) -> Native:
    """The registered vector env of an environment; `one` is the environment by itself, which it must be like."""
    try:
        env = gymnasium.make_vec(name, len(seeds), "vector_entry_point", **options)
    except Exception as error:
        raise EnvError(f"The vector env of `{name}` could not be made: {error}", "plan.native=false") from error
    try:
        return _check(env, name, spec, one, seeds, first)
    except BaseException:
        env.close()
        raise


def _check(
    env: VectorEnv[Any, Any, Any], name: str, spec: EnvSpec, one: Any, seeds: Sequence[int], first: int
) -> Native:
    for what in ("observation", "action"):
        own, other = getattr(one, f"{what}_space"), getattr(env, f"single_{what}_space")
        if own != other:
            raise EnvError(
                f"The vector env of `{name}` has other {what}s ({other}) than the env itself ({own}).",
                "plan.native=false, or train on it by its own name, as atari:Pong",
            )
    try:
        mode = AutoresetMode(env.metadata.get("autoreset_mode"))
    except ValueError as error:
        raise EnvError(
            f"The vector env of `{name}` does not say how it resets: {error}.",
            'its metadata["autoreset_mode"] should be one of gymnasium.vector.AutoresetMode; or plan.native=false',
        ) from error
    if type(env.unwrapped) is CartPoleVectorEnv:
        return Native(env, spec, seeds, mode=AutoresetMode.DISABLED, first=first, some=Carts(env.unwrapped), each=True)
    some = _by_mask(env) if mode is AutoresetMode.DISABLED else None
    return Native(env, spec, seeds, mode=mode, first=first, some=some)


class Carts:
    """Starts some of Gymnasium's CartPoles anew in the step that ended them, each by chance of its own.

    What resets a cart in the step after its end is a mark of its own that is taken off again, so that no step is lost;
    and a cart that has its own chance begins as one CartPole by itself would from the same seed.
    """

    def __init__(self, env: CartPoleVectorEnv) -> None:
        self._env = env
        env.reset(seed=0)
        self._chances = [env.np_random] * env.num_envs

    def __call__(self, chosen: Array, seeds: Any) -> Array:
        """Draw the states of these anew; the observations of all."""
        env, state = self._env, self._env.state
        assert state is not None
        for index in np.flatnonzero(chosen).tolist():
            if seeds is not None and seeds[index] is not None:
                self._chances[index] = seeding.np_random(seeds[index])[0]
            state[:, index] = self._chances[index].uniform(low=env.low, high=env.high, size=4)
        env.steps[chosen], env.prev_done[chosen] = 0, False
        obs: Array = state.T.astype(np.float32)
        return obs


def _by_mask(env: VectorEnv[Any, Any, Any]) -> Some:
    """Some of them anew, as Gymnasium's vector envs without autoreset are told."""

    def some(chosen: Array, seeds: Any) -> Any:
        return env.reset(seed=seeds, options={"reset_mask": chosen})[0]

    return some
