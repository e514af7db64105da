"""A look at somebody's environment before it is trained on: all that is wrong with it at once, each with a way out."""

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
from slipstream.envs.adapters.gymnasium import mask_of, tasks_of
from slipstream.envs.adapters.observation_spaces import Leaf, leaves, obs_spec
from slipstream.errors import SlipstreamError

ENOUGH = 10
"""Problems after which nobody looks for more."""
LARGE = 1e3
"""Observations beyond this are hard to learn from as they are."""
SIGNATURE = "write def reset(self, *, seed=None, options=None), and call super().reset(seed=seed) first"


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}\nhint: {self.hint}"


@dataclass
class Report:
    """What some random steps of an environment showed."""

    problems: list[Problem] = field(default_factory=list)
    """What would break training, or make it learn something else."""
    remarks: list[Problem] = field(default_factory=list)
    """What is allowed, but often not meant."""
    steps: int = 0
    episodes: int = 0
    steps_per_second: float = 0.0

    def add(self, what: str, hint: str) -> None:
        """Keep a problem, each only once."""
        if all(problem.what != what for problem in self.problems):
            self.problems.append(Problem(what, hint))


def check(env: Any, steps: int = 200, seed: int = 0) -> Report:
    """Play random steps and list everything that would hurt training."""
    report = Report()
    obs, action = _spaces(env, report)
    if obs is not None and action is not None:
        _Play(env, obs, action, report, seed).play(steps)
    return report


def _spaces(env: Any, report: Report) -> tuple[ObsSpec | None, ActionSpec | None]:
    """Both spaces as rows have them; what is wrong with either is told."""
    name, found = type(env).__name__, list[Any]()
    for word, read in (("observation", obs_spec), ("action", action_spec)):
        space = getattr(env, f"{word}_space", None)
        if not isinstance(space, spaces.Space):
            report.add(
                f"`{name}` has no {word}_space of Gymnasium's.",
                f"set self.{word}_space in __init__, for instance to a gymnasium.spaces.Box",
            )
            found.append(None)
            continue
        try:
            more = {"masked": mask_of(env) is not None} if word == "action" else {}
            found.append(read(space, name, **more))
        except SlipstreamError as error:
            report.add(error.message, error.hint)
            found.append(None)
    try:
        tasks_of(env, name)
    except SlipstreamError as error:
        report.add(error.message, error.hint)
    return found[0], found[1]


class _Play:
    """Random play that reports what was wrong, each part of an observation looked at by itself."""

    def __init__(self, env: Any, obs: ObsSpec, action: ActionSpec, report: Report, seed: int) -> None:
        self._env, self._obs, self._action, self._report, self._seed = env, obs, action, report, seed
        self._parts = leaves(env.observation_space)
        self._largest = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._mask, self._decode = mask_of(env), action_decoder(env.action_space)
        self._random = np.random.default_rng(seed)
        self._rewards: list[float] = []
        self._moved = False

    def play(self, steps: int) -> None:
        """Reset twice from one seed, then step; stop early where problems pile up."""
        first = self._reset("reset", self._seed)
        again = None if first is None else self._reset("reset", self._seed)
        if first is None or again is None:
            return
        self._compare(first[0], again[0], "reset(seed=...)")
        self._env.action_space.seed(self._seed)
        began, script = perf_counter(), list[Any]()
        seen = self._episode(again[0], steps, script)
        if seen is not None:
            self._report.steps_per_second = self._report.steps / max(perf_counter() - began, 1e-9)
            self._repeat(script, seen)
            self._judge(steps)

    def _episode(self, obs: Any, steps: int, script: list[Any]) -> list[Any] | None:
        """Step on through as many episodes as there are; what the first showed, None if the env broke."""
        seen, report, last = list[Any](), self._report, obs
        for step in range(steps):
            action = self._choose(step)
            told = self._step(action, step)
            if told is None:
                return None
            obs, ended = told
            self._moved = self._moved or not self._same(last, obs)
            last, report.steps = obs, report.steps + 1
            for part in self._parts:
                self._look(part, obs, f"The observation{_called(part)} at step {step}")
            if not report.episodes:
                script.append(action)
                seen.append(obs)
            if ended:
                report.episodes += 1
                if self._reset("reset after an episode") is None:
                    return None
            if len(report.problems) >= ENOUGH:
                break
        return seen

    def _reset(self, where: str, seed: int | None = None) -> tuple[Any, Any] | None:
        """(obs, info), or None where there is no such thing."""
        try:
            told = self._env.reset(seed=seed)
        except TypeError as error:
            if "seed" not in str(error):
                self._broke(where)
                return None
            self._report.add(f"reset takes no seed: {error}.", SIGNATURE)
            return None
        except Exception:
            self._broke(where)
            return None
        if not isinstance(told, tuple) or len(told) != 2 or not isinstance(told[1], dict):
            self._report.add(f"reset returns {_shape(told)}, not an observation and a dict.", "return obs, {}")
            return None
        return deepcopy(told[0]), told[1]

    def _step(self, action: Any, step: int) -> tuple[Any, bool] | None:
        """A copy of the observation and whether the episode is over, or None where there is no such thing."""
        try:
            told = self._env.step(action)
        except Exception:
            self._broke(f"step {step}, action {action!r}")
            return None
        if not isinstance(told, tuple) or len(told) != 5:
            self._report.add(
                f"step returns {_shape(told)}, not (obs, reward, terminated, truncated, info).",
                "return terminated (the game is over) and truncated (time is up) in the place of done",
            )
            return None
        obs, reward, terminated, truncated, info = told
        try:
            paid = float(reward)
        except (TypeError, ValueError):
            self._report.add(f"The reward at step {step} is no number: {reward!r}.", "return one float")
            return None
        if not np.isfinite(paid):
            self._report.add(f"The reward at step {step} is not finite: {paid}.", "look for a division by zero in step")
        self._rewards.append(paid)
        for word, ended in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(ended, bool | np.bool_):
                self._report.add(f"`{word}` at step {step} is {_shape(ended)}, not True or False.", "return a bool")
        if not isinstance(info, dict):
            self._report.add(f"The info at step {step} is {_shape(info)}, not a dict.", "return {} where there is none")
        return deepcopy(obs), bool(terminated) or bool(truncated)

    def _broke(self, where: str) -> None:
        """Whatever the env raised, with where in its own code it did."""
        lines = traceback.format_exc().rstrip().splitlines()
        places = [line.strip() for line in lines if line.strip().startswith("File ")]
        at = f" ({places[-1]})" if places else ""
        self._report.add(f"{where[0].upper()}{where[1:]} raised {lines[-1]}{at}.", "mend this first; the rest waits")

    def _repeat(self, script: list[Any], seen: list[Any]) -> None:
        """The same seed and the same actions must bring the same episode."""
        if len(self._report.problems) >= ENOUGH or self._reset("reset", self._seed) is None:
            return
        for step, (action, before) in enumerate(zip(script, seen, strict=True)):
            told = self._step(action, step)
            if told is None or not self._compare(before, told[0], f"step {step} of an episode from one seed"):
                return

    def _judge(self, steps: int) -> None:
        report = self._report
        if not report.episodes:
            report.add(
                f"No episode ended within {steps} random steps: is there a time limit?",
                "register it with max_episode_steps=, or wrap it in gymnasium.wrappers.TimeLimit",
            )
        for part in self._parts:
            if self._largest[part.name] > LARGE:
                what = f"Observations{_called(part)} pass 1,000 in size"
                report.add(f"{what}: {self._largest[part.name]:.4g}.", "scale them, or keep ppo.normalise_obs on")
        remarks = report.remarks
        if self._rewards and not any(self._rewards):
            remarks.append(
                Problem(
                    f"No reward was paid within {report.steps} random steps.",
                    "random play may never find it: record demonstrations, or pay for steps on the way",
                )
            )
        if not self._moved and report.steps > 1:
            remarks.append(Problem("The observation never changed.", "see that step returns what it has just made"))
        if self._action.kind == "continuous" and not np.isfinite([*self._action.low, *self._action.high]).all():
            remarks.append(
                Problem("Some actions have no bounds.", "give the Box finite low and high, and scale inside step")
            )

    def _compare(self, first: Any, again: Any, what: str) -> bool:
        same = True
        for part in self._parts:
            if what.startswith("reset"):
                self._look(part, again, f"The observation{_called(part)} at reset")
            try:
                equal = np.array_equal(np.asarray(part.find(first)), np.asarray(part.find(again)))
            except (LookupError, TypeError):
                continue
            if not equal:
                same = False
                self._report.add(
                    f"{what} gives different observations{_called(part)} for the same seed: runs cannot be repeated.",
                    "draw all chance from self.np_random, which super().reset(seed=seed) seeds",
                )
        return same

    def _same(self, first: Any, again: Any) -> bool:
        try:
            return all(np.array_equal(np.asarray(p.find(first)), np.asarray(p.find(again))) for p in self._parts)
        except (LookupError, TypeError):
            return False

    def _look(self, part: Leaf, obs: Any, what: str) -> None:
        try:
            value = part.find(obs)
        except (LookupError, TypeError):
            self._report.add(f"{what} is missing.", f"return it under the key {part.path[-1]!r}, as the space says")
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

    def _choose(self, step: int) -> Any:
        """A random action, one that the mask allows where there is one."""
        if not self._action.masked or self._mask is None:
            return self._env.action_space.sample()
        mask, sizes = np.asarray(self._mask()).reshape(-1), self._action.sizes
        hint = "let action_masks return 1 for each allowed option, all parts side by side"
        if mask.size != sum(sizes):
            self._report.add(f"The action mask at step {step} has {mask.size} columns, not {sum(sizes)}.", hint)
            return self._env.action_space.sample()
        action = np.zeros((1, len(sizes)), np.int32)
        for number, options in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
            if options.any():
                action[0, number] = self._random.choice(np.flatnonzero(options))
            else:
                self._report.add(f"The action mask at step {step} allows nothing in part {number}.", hint)
        return self._decode(action)[0]


def _misfit(space: spaces.Space[Any], value: Any) -> str:
    """How a value differs from what its space says."""
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        if array.shape != space.shape:
            return f"its shape is {array.shape}"
        if not np.can_cast(array.dtype, space.dtype):
            return f"its dtype is {array.dtype}: return np.asarray(obs, np.{space.dtype})"
        if array.dtype.kind in "fiu":
            return f"it reaches from {array.min():.4g} to {array.max():.4g}: widen the Box, or clip"
    return f"it is {_shape(value)}"


def _shape(value: Any) -> str:
    """What a value is, in words."""
    named = type(value).__name__
    if isinstance(value, tuple | list):
        return f"a {named} of {len(value)}"
    return f"the {named} {value!r:.60}" if np.isscalar(value) or value is None else f"a {named}"


def _called(part: Leaf) -> str:
    return f" `{part.name}`" if part.path else ""
