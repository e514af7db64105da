"""A game of the user's own: one declaration, and decorators for its functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, choose_target
from slipstream.envs.adapters.env_checker import EnvReport
from slipstream.envs.game import EnvChoice, Labels, Scene
from slipstream.envs.game import Game as Declaration
from slipstream.envs.native import kernels
from slipstream.envs.native.build import Classes, Functions, Kernels, Plan, build, find_classes
from slipstream.envs.native.drawing import NativeScene
from slipstream.envs.native.layout import Box, Choice, Columns, Task
from slipstream.envs.native.sources import GameError, Source
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.options import check_options
from slipstream.envs.rewards import CombinedReward, RewardScheme
from slipstream.errors import did_you_mean
from slipstream.settings import EnvSettings, RewardSettings

F = TypeVar("F", bound=Callable[..., Any])
HOW = {"sum": kernels.SUM, "mean": kernels.MEAN, "max": kernels.MAXIMUM, "last": kernels.LAST}
PRECISIONS: dict[str, type[np.generic]] = {"single": np.float32, "double": np.float64}


@dataclass(frozen=True)
class Reward:
    """How a reward term counts."""

    weight: float
    group: str
    decides: bool
    """Whether it decides the game, so that `rewards.mode=sparse` keeps it."""


@dataclass
class _Registered:
    """What the decorators collect."""

    functions: Functions = field(default_factory=Functions)
    rewards: dict[str, Reward] = field(default_factory=dict)
    how: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    target: tuple[str, ...] = ()


class Game:
    """A game that is compiled for the CPU and the GPU from plain Python functions; see docs/guides/your-own-game.md."""

    def __init__(
        self,
        name: str,
        summary: str = "",
        *,
        agents: int = 1,
        teams: tuple[int, ...] | None = None,
        decisions_per_second: float = 0.0,
        ticks_per_decision: int = 1,
        max_decisions: int = 0,
        timeout: str = "truncated",
        precision: str = "single",
        reference: str = "",
        expert: str = "",
    ) -> None:
        """Declare a game.

        `teams` is the team of each agent, by default its own. A game of `max_decisions` ends as `timeout` says:
        "truncated" (the game would go on, and its value is bootstrapped) or "terminated". `reference` is the scripted
        player that training is evaluated against, `expert` the one that `slipstream run` clones.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise GameError(f"A game cannot be called `{name}`.", "use lower-case letters, digits and _")
        teams = tuple(range(agents)) if teams is None else tuple(teams)
        if agents < 1 or len(teams) != agents:
            raise GameError(f"`{name}` has {agents} agents and {len(teams)} teams.", "give the team of each agent")
        ends = {"truncated": kernels.TRUNCATED, "terminated": kernels.TERMINATED}
        for key, value, known in (("timeout", timeout, ends), ("precision", precision, PRECISIONS)):
            if value not in known:
                near = did_you_mean(value, known)
                raise GameError(f"`{name}`: {key}={value!r} is unknown.{near}", f"one of {', '.join(known)}")
        self.name, self.summary = name, summary or f"the game {name}"
        self.agents, self.teams = agents, teams
        self.decisions_per_second, self.ticks_per_decision = decisions_per_second, ticks_per_decision
        self.max_decisions, self._at_limit = max_decisions, ends[timeout]
        self.floats: type[np.generic] = PRECISIONS[precision]
        self.reference, self.expert = reference, expert
        self._own = _Registered()
        self._draw: Callable[..., None] | None = None
        self._built: dict[Any, Kernels] = {}

    # Decorators

    def reset(self, function: F) -> F:
        """Begin a game: `reset(s: State, rng: native.Random)`. All columns are 0 before."""
        return self._only("reset", function)

    def step(self, function: F) -> F:
        """Play one tick: `step(s: State, action: Action, rng: native.Random)`; `actions: list[Action]` with several."""
        return self._only("step", function)

    def observe(self, function: F) -> F:
        """Write what an agent sees: `observe(s: State, me: int, seen: Seen)`. All columns are 0 before."""
        return self._only("observe", function)

    def done(self, function: F) -> F:
        """Say whether a game is over: `done(s: State)` returns a bool, or native.RUNNING, TERMINATED or TRUNCATED."""
        return self._only("done", function)

    def outcome(self, function: F) -> F:
        """Say who won: `outcome(s: State, me: int)` returns 1, 0 for a draw, or -1."""
        return self._only("outcome", function)

    def turn(self, function: F) -> F:
        """Say who acts next: `turn(s: State, me: int)` returns a bool. Without it, all act at once."""
        return self._only("turn", function)

    def mask(self, part: str) -> Callable[[F], F]:
        """Say which options of a part of the action are allowed: `mask(s: State, me: int, option: int)`."""
        return lambda function: self._add(self._own.functions.masks, part, function)

    @overload
    def reward(self, function: F) -> F: ...

    @overload
    def reward(self, *, weight: float = 1.0, group: str = "main", decides: bool = False) -> Callable[[F], F]: ...

    def reward(
        self, function: F | None = None, *, weight: float = 1.0, group: str = "main", decides: bool = False
    ) -> Any:
        """Add a reward term, named as its function: `goal(before: State, after: State, me: int) -> float`."""

        def add(one: F) -> F:
            self._own.rewards[one.__name__] = Reward(weight, group, decides)
            return self._add(self._own.functions.rewards, one.__name__, one)

        return add if function is None else add(function)

    @overload
    def statistic(self, function: F) -> F: ...

    @overload
    def statistic(self, *, how: str = "sum") -> Callable[[F], F]: ...

    def statistic(self, function: F | None = None, *, how: str = "sum") -> Any:
        """Count something that is reported and never rewarded; `how` is sum, mean, max or last."""
        if how not in HOW:
            raise GameError(
                f"`{self.name}`: how={how!r} is unknown.{did_you_mean(how, HOW)}", f"one of {', '.join(HOW)}"
            )

        def add(one: F) -> F:
            self._own.how[one.__name__] = HOW[how]
            return self._add(self._own.functions.statistics, one.__name__, one)

        return add if function is None else add(function)

    def player(self, function: F) -> F:
        """Add a scripted player, named as its function: `chaser(seen: Seen, action: Action)` writes the action."""
        return self._add(self._own.functions.players, function.__name__, function)

    def draw(self, function: F) -> F:
        """Draw a state: `draw(s: State, canvas: native.Canvas)`, in ordinary Python."""
        self._draw = function
        return function

    def tasks(self, *, target: tuple[str, ...] = (), **tasks: Task) -> None:
        """Name the tasks, easiest first; `target` are those that are played and evaluated, by default the last."""
        self._own.tasks = dict(tasks)
        self._own.target = tuple(target) or tuple(tasks)[-1:]

    def _only(self, kind: str, function: F) -> F:
        return self._add(self._own.functions.single, kind, function)

    def _add(self, held: dict[str, Source], key: str, function: F) -> F:
        if key in held:
            raise GameError(f"`{self.name}` has two functions `{key}`.", "rename or remove one of them")
        held[key] = Source.of(function)
        self._built.clear()
        return function

    # What the product reads

    def classes(self) -> Classes:
        """The columns of state, action, observation and task."""
        for kind in ("step", "observe"):
            if kind not in self._own.functions.single:
                raise GameError(f"`{self.name}` has no function `{kind}`.", f"decorate one with @game.{kind}")
        return find_classes(self.name, self._own.functions)

    def kernels(self, compiled: bool = True, terms: Mapping[str, Callable[..., Any]] | None = None) -> Kernels:
        """The loops of the game: compiled, or as plain Python; `terms` are reward terms of somebody else."""
        key = compiled, tuple((text, id(one)) for text, one in (terms or {}).items())
        if key not in self._built:
            sources = {text: Source.of(one) for text, one in (terms or {}).items()}
            how = tuple(self._own.how.values())
            plan = Plan(self.name, self._own.functions, self.classes(), self.agents, self.floats, how, sources)
            self._built[key] = build(plan, compiled)
        return self._built[key]

    @property
    def scheme(self) -> RewardScheme:
        """The reward terms with their weights and groups."""
        rewards = self._own.rewards
        groups: dict[str, tuple[str, ...]] = {}
        for term, one in rewards.items():
            groups[one.group] = (*groups.get(one.group, ()), term)
        sparse = {term: one.weight for term, one in rewards.items() if one.decides}
        dense = {term: one.weight for term, one in rewards.items()}
        return RewardScheme(tuple(rewards), {"sparse": sparse or dense, "dense": dense}, groups)

    def spec(self, repeat: int, target: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> EnvSpec:
        """The facts of an env."""
        classes, own = self.classes(), self._own
        tasks = tuple(own.tasks)
        return EnvSpec(
            name=self.name,
            obs=obs_spec(classes.observation),
            action=action_spec(classes.action, bool(own.functions.masks)),
            teams=self.teams,
            terms=(*own.rewards, *extra),
            exact=True,
            step_seconds=repeat / self.ticks_per_decision / self.decisions_per_second
            if self.decisions_per_second
            else 0,
            action_repeat=repeat,
            behaviours=tuple(own.how),
            tasks=tasks,
            target=choose_target(self.name, tasks, own.target, target),
        )

    def vector(
        self,
        envs: int,
        *,
        seed: int = 0,
        first: int = 0,
        env: EnvSettings | None = None,
        rewards: RewardSettings | None = None,
        gamma: float = 0.99,
        terms: Mapping[str, Callable[..., Any]] | None = None,
        compiled: bool = True,
    ) -> NativeVector:
        """Make envs of the game."""
        given, classes = env or EnvSettings(), self.classes()
        check_options(self.name, given.options, ())
        repeat = given.action_repeat or self.ticks_per_decision
        spec = self.spec(repeat, tuple(given.target), tuple(terms or ()))
        table = [value for one in self._own.tasks.values() for value in one.values]
        return NativeVector(
            self.kernels(compiled, terms),
            spec,
            envs,
            floats=self.floats,
            columns=classes.state.size,
            table=np.array(table or [0.0], self.floats),
            payout=CombinedReward(self.scheme, rewards, spec, envs, gamma, tuple(terms or ())),
            repeat=repeat,
            limit=self.max_decisions,
            at_limit=self._at_limit,
            first=first,
            seed=seed,
        )

    def _scene(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> Scene:
        assert self._draw is not None
        return NativeScene(self.classes().state, self._draw, size, arrays, step_seconds)

    def _check(self, decisions: int, seed: int) -> EnvReport:
        from slipstream.envs.native.check import check_game  # which imports this module

        return check_game(self, decisions, seed)

    def declare(self) -> Declaration:
        """The game as the registry lists it."""

        def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> NativeVector:
            return self.vector(
                envs,
                seed=seed,
                first=first,
                env=choice.env,
                rewards=choice.rewards,
                gamma=choice.gamma,
                terms=choice.terms,
            )

        return Declaration(
            summary=self.summary,
            variants=("",),
            make=make,
            scene=self._scene if self._draw is not None else None,
            labels=lambda spec: labels(self.classes()),
            state_labels=lambda widths: {"state": self.classes().state.names()},
            scripted={key: _Player(self, key) for key in self._own.functions.players},
            reference=f"scripted:{self.reference}" if self.reference else "",
            expert=f"scripted:{self.expert}" if self.expert else "",
            stages=tuple(self._own.tasks),
            scheme=lambda: self.scheme,
            check=self._check,
        )


class _Player:
    """A scripted player of a game."""

    def __init__(self, game: Game, key: str) -> None:
        self._game, self._key = game, key

    def __call__(self, obs: Array, kind: str, actions: Array) -> None:
        """Write the actions for observations [rows, obs]."""
        vectors = obs_spec(self._game.classes().observation).vectors(obs)
        self._game.kernels().players[self._key](vectors, obs, actions)


def obs_spec(columns: Columns) -> ObsSpec:
    """The observation: a vector of all numbers, then images and tokens."""
    images = [one for one in columns.fields.values() if one.image]
    fields = [ObsField(one.name, one.image, one.shape) for one in images]  # type: ignore[arg-type]
    if columns.size:
        fields = [ObsField("numbers" if images else "", "vector", (columns.size,)), *fields]
    return ObsSpec(tuple(fields))


def action_spec(columns: Columns, masked: bool) -> ActionSpec:
    """The action: discrete parts, then continuous ones."""
    parts = [one.part for one in columns.fields.values()]
    sizes = tuple(len(part.values) for part in parts if isinstance(part, Choice))
    boxes = [part for part in parts if isinstance(part, Box)]
    kind = (
        "mixed" if sizes and boxes else "continuous" if boxes else "discrete" if len(sizes) == 1 else "multi_discrete"
    )
    low, high = tuple(one.low for one in boxes), tuple(one.high for one in boxes)
    return ActionSpec(kind, sizes, low, high, masked)  # type: ignore[arg-type]


def labels(classes: Classes) -> Labels:
    """The names of actions and observations."""
    parts = classes.action.fields.values()
    options = tuple(one.part.names for one in parts if isinstance(one.part, Choice))
    return Labels(tuple(one.name for one in parts), options, classes.observation.names())
