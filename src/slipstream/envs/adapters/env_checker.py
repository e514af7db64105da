"""Check a Gymnasium environment before training: list all problems at once, each with a hint."""

from __future__ import annotations

import traceback
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, ObsSpec
from slipstream.envs.adapters.action_spaces import action_decoder, action_spec
from slipstream.envs.adapters.gymnasium import action_mask_method, env_tasks
from slipstream.envs.adapters.observation_spaces import Leaf, leaves, obs_spec
from slipstream.errors import SlipstreamError

MAX_PROBLEMS = 10
"""The check stops after this many problems."""
LARGE = 1e3
"""Observations with larger absolute values are hard to learn from without scaling."""
SIGNATURE = "write def reset(self, *, seed=None, options=None), and call super().reset(seed=seed) first"


@dataclass(frozen=True)
class Problem:
    """A problem and a hint how to fix it."""

    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}\nhint: {self.hint}"


@dataclass
class EnvReport:
    """The result of a check."""

    problems: list[Problem] = field(default_factory=list)
    """Errors that break training or change what is learned."""
    remarks: list[Problem] = field(default_factory=list)
    """Things that are allowed but often unintended."""
    steps: int = 0
    episodes: int = 0
    steps_per_second: float = 0.0

    def add(self, what: str, hint: str) -> None:
        """Add a problem, unless it is already listed."""
        if all(problem.what != what for problem in self.problems):
            self.problems.append(Problem(what, hint))


def inspect_env(env: Any, steps: int = 200, seed: int = 0) -> EnvReport:
    """Play random steps and list all problems for training."""
    report = EnvReport()
    obs, action = _spaces(env, report)
    if obs is not None and action is not None:
        _RandomPlay(env, obs, action, report, seed).play(steps)
    return report


def _spaces(env: Any, report: EnvReport) -> tuple[ObsSpec | None, ActionSpec | None]:
    """The specs of both spaces; None for a space with a problem."""
    name, found = type(env).__name__, list[Any]()
    for word, read in (("observation", obs_spec), ("action", action_spec)):
        space = getattr(env, f"{word}_space", None)
        if not isinstance(space, spaces.Space):
            report.add(
                f"The {word}_space of `{name}` is not a Gymnasium space.",
                f"set self.{word}_space in __init__, for instance to a gymnasium.spaces.Box",
            )
            found.append(None)
            continue
        try:
            more = {"masked": action_mask_method(env) is not None} if word == "action" else {}
            found.append(read(space, name, **more))
        except SlipstreamError as error:
            report.add(error.message, error.hint)
            found.append(None)
    try:
        env_tasks(env, name)
    except SlipstreamError as error:
        report.add(error.message, error.hint)
    return found[0], found[1]


class _RandomPlay:
    """Random play that checks every part of every observation and reports problems."""

    def __init__(self, env: Any, obs: ObsSpec, action: ActionSpec, report: EnvReport, seed: int) -> None:
        self._env, self._obs, self._action, self._report, self._seed = env, obs, action, report, seed
        self._parts = leaves(env.observation_space)
        self._largest = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._mask, self._decode = action_mask_method(env), action_decoder(env.action_space)
        self._random = np.random.default_rng(seed)
        self._rewards: list[float] = []
        self._changed = False

    def play(self, steps: int) -> None:
        """Reset twice from one seed, then step; stop early if there are many problems."""
        first = self._reset("reset", self._seed)
        again = None if first is None else self._reset("reset", self._seed)
        if first is None or again is None:
            return
        self._compare(first[0], again[0], "reset(seed=...)")
        self._env.action_space.seed(self._seed)
        started, actions = perf_counter(), list[Any]()
        observations = self._play_episodes(again[0], steps, actions)
        if observations is not None:
            self._report.steps_per_second = self._report.steps / max(perf_counter() - started, 1e-9)
            self._check_determinism(actions, observations)
            self._check_whole_run(steps)

    def _play_episodes(self, obs: Any, steps: int, actions: list[Any]) -> list[Any] | None:
        """Step through several episodes; returns the observations of the first episode, None if the env failed.

        The actions of the first episode are appended to `actions`.
        """
        observations, report, last = list[Any](), self._report, obs
        for step in range(steps):
            action = self._random_action(step)
            result = self._step(action, step)
            if result is None:
                return None
            obs, ended = result
            self._changed = self._changed or not self._same(last, obs)
            last, report.steps = obs, report.steps + 1
            for part in self._parts:
                self._check_obs(part, obs, f"The observation{_label(part)} at step {step}")
            if not report.episodes:
                actions.append(action)
                observations.append(obs)
            if ended:
                report.episodes += 1
                if self._reset("reset after an episode") is None:
                    return None
            if len(report.problems) >= MAX_PROBLEMS:
                break
        return observations

    def _reset(self, where: str, seed: int | None = None) -> tuple[Any, Any] | None:
        """(obs, info), or None if the reset failed."""
        try:
            result = self._env.reset(seed=seed)
        except TypeError as error:
            if "seed" not in str(error):
                self._add_exception(where)
                return None
            self._report.add(f"reset does not accept a seed: {error}.", SIGNATURE)
            return None
        except Exception:
            self._add_exception(where)
            return None
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            self._report.add(f"reset returns {_describe(result)}, not an observation and a dict.", "return obs, {}")
            return None
        return deepcopy(result[0]), result[1]

    def _step(self, action: Any, step: int) -> tuple[Any, bool] | None:
        """A copy of the observation and whether the episode is over, or None if the step failed."""
        try:
            result = self._env.step(action)
        except Exception:
            self._add_exception(f"step {step}, action {action!r}")
            return None
        if not isinstance(result, tuple) or len(result) != 5:
            self._report.add(
                f"step returns {_describe(result)}, not (obs, reward, terminated, truncated, info).",
                "return terminated (the game is over) and truncated (the time limit is reached) instead of done",
            )
            return None
        obs, reward, terminated, truncated, info = result
        try:
            value = float(reward)
        except (TypeError, ValueError):
            self._report.add(f"The reward at step {step} is not a number: {reward!r}.", "return one float")
            return None
        if not np.isfinite(value):
            self._report.add(
                f"The reward at step {step} is not finite: {value}.", "look for a division by zero in step"
            )
        self._rewards.append(value)
        for word, ended in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(ended, bool | np.bool_):
                self._report.add(f"`{word}` at step {step} is {_describe(ended)}, not True or False.", "return a bool")
        if not isinstance(info, dict):
            self._report.add(f"The info at step {step} is {_describe(info)}, not a dict.", "return {} if it is empty")
        return deepcopy(obs), bool(terminated) or bool(truncated)

    def _add_exception(self, where: str) -> None:
        """Add the current exception with its location in the env's code."""
        lines = traceback.format_exc().rstrip().splitlines()
        frames = [line.strip() for line in lines if line.strip().startswith("File ")]
        at = f" ({frames[-1]})" if frames else ""
        self._report.add(f"{where[0].upper()}{where[1:]} raised {lines[-1]}{at}.", "fix this first, then check again")

    def _check_determinism(self, actions: list[Any], observations: list[Any]) -> None:
        """Play the first episode again: the same seed and actions must give the same observations."""
        if len(self._report.problems) >= MAX_PROBLEMS or self._reset("reset", self._seed) is None:
            return
        for step, (action, before) in enumerate(zip(actions, observations, strict=True)):
            result = self._step(action, step)
            if result is None or not self._compare(before, result[0], f"step {step} of an episode from one seed"):
                return

    def _check_whole_run(self, steps: int) -> None:
        """Add the problems and remarks that concern the run as a whole."""
        report = self._report
        if not report.episodes:
            report.add(
                f"No episode ended within {steps} random steps: the env may have no time limit.",
                "register it with max_episode_steps=, or wrap it in gymnasium.wrappers.TimeLimit",
            )
        for part in self._parts:
            if self._largest[part.name] > LARGE:
                what = f"Observations{_label(part)} have absolute values above 1,000"
                report.add(f"{what}: {self._largest[part.name]:.4g}.", "scale them, or keep ppo.normalise_obs on")
        remarks = report.remarks
        if self._rewards and not any(self._rewards):
            remarks.append(
                Problem(
                    f"All rewards were zero within {report.steps} random steps.",
                    "random play may never find a reward: record demonstrations, or add shaping rewards",
                )
            )
        if not self._changed and report.steps > 1:
            remarks.append(Problem("The observation never changed.", "check that step returns the new observation"))
        if not np.isfinite([*self._action.low, *self._action.high]).all():
            remarks.append(
                Problem("Some actions are unbounded.", "give the Box finite low and high, and scale inside step")
            )

    def _compare(self, first: Any, again: Any, what: str) -> bool:
        same = True
        for part in self._parts:
            if what.startswith("reset"):
                self._check_obs(part, again, f"The observation{_label(part)} at reset")
            try:
                equal = np.array_equal(np.asarray(part.find(first)), np.asarray(part.find(again)))
            except (LookupError, TypeError):
                continue
            if not equal:
                same = False
                self._report.add(
                    f"{what} gives different observations{_label(part)} for the same seed: runs cannot be reproduced.",
                    "draw all random numbers from self.np_random, which super().reset(seed=seed) seeds",
                )
        return same

    def _same(self, first: Any, again: Any) -> bool:
        try:
            return all(np.array_equal(np.asarray(p.find(first)), np.asarray(p.find(again))) for p in self._parts)
        except (LookupError, TypeError):
            return False

    def _check_obs(self, part: Leaf, obs: Any, what: str) -> None:
        try:
            value = part.find(obs)
        except (LookupError, TypeError):
            self._report.add(f"{what} is missing.", f"return it under the key {part.path[-1]!r}, as in the space")
            return
        if not part.space.contains(value):
            self._report.add(f"{what} is not in observation_space ({part.space}).", _misfit(part.space, value))
        try:
            numbers = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return
        if not np.isfinite(numbers).all():
            self._report.add(f"{what} is not finite.", "look for a division by zero where it is made")
        elif numbers.size and isinstance(part.space, spaces.Box) and self._obs.places[part.name][0].kind == "vector":
            self._largest[part.name] = max(self._largest[part.name], float(np.abs(numbers).max()))

    def _random_action(self, step: int) -> Any:
        """A random action that the action mask allows, if there is one."""
        if not self._action.masked or self._mask is None:
            return self._env.action_space.sample()
        mask, sizes = np.asarray(self._mask()).reshape(-1), self._action.sizes
        hint = "action_masks must return 1 for each allowed option, with all parts concatenated"
        if mask.size != sum(sizes):
            self._report.add(f"The action mask at step {step} has {mask.size} columns, not {sum(sizes)}.", hint)
            return self._env.action_space.sample()
        action = np.zeros((1, self._action.parts), self._action.dtype)
        for number, options in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
            if options.any():
                action[0, number] = self._random.choice(np.flatnonzero(options))
            else:
                self._report.add(f"The action mask at step {step} allows no option in part {number}.", hint)
        if self._action.continuous_parts:
            low, high = np.nan_to_num([self._action.low, self._action.high], posinf=1.0, neginf=-1.0)
            action[0, len(sizes) :] = self._random.uniform(low, high)
        return self._decode(action)[0]


def _misfit(space: spaces.Space[Any], value: Any) -> str:
    """How a value differs from its space."""
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        if array.shape != space.shape:
            return f"its shape is {array.shape}"
        if not np.can_cast(array.dtype, space.dtype):
            return f"its dtype is {array.dtype}: return np.asarray(obs, np.{space.dtype})"
        if array.dtype.kind in "fiu":
            return f"its range is {array.min():.4g} to {array.max():.4g}: widen the Box, or clip"
    return f"it is {_describe(value)}"


def _describe(value: Any) -> str:
    """A short description of a value."""
    named = type(value).__name__
    if isinstance(value, tuple | list):
        return f"a {named} of {len(value)}"
    return f"the {named} {value!r:.60}" if np.isscalar(value) or value is None else f"a {named}"


def _label(part: Leaf) -> str:
    return f" `{part.name}`" if part.path else ""
