"""A game of the user's own: one declaration, and decorators for its functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, TypeVar, overload

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, choose_target
from slipstream.envs.game import EnvChoice, Labels, Scene
from slipstream.envs.game import Game as Declaration
from slipstream.envs.native import kernels
from slipstream.envs.native.build import Classes, Functions, Kernels, Plan, build, find_classes, read_terms
from slipstream.envs.native.controls import KINDS, combine, control_labels, control_spec, controls_of
from slipstream.envs.native.drawing import NativeScene
from slipstream.envs.native.layout import Box, Choice, Columns, Settings, Task, columns_of
from slipstream.envs.native.sources import GameError, Source
from slipstream.envs.native.vector import NativeVector, Rules
from slipstream.envs.options import GameOptions, check_options
from slipstream.envs.rewards import CombinedReward, RewardScheme
from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import RewardSettings

F = TypeVar("F", bound=Callable[..., Any])
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
HOW = {"sum": kernels.SUM, "mean": kernels.MEAN, "max": kernels.MAXIMUM, "last": kernels.LAST}
PRECISIONS: dict[str, type[np.generic]] = {"single": np.float32, "double": np.float64}


@dataclass(frozen=True)
class Reward:
    """How a reward term counts."""

    weight: float
    sparse: float | None
    """Its weight with `rewards.mode=sparse`; None if it has none there."""
    group: str


@dataclass(frozen=True)
class Variant:
    """One of several forms of a game, such as soccer with two cars a team."""

    teams: tuple[int, ...]
    sizes: Mapping[str, int]
    """The number that stands for each `native.size`."""
    tasks: Mapping[str, Task]
    target: tuple[str, ...]
    options: Mapping[str, float]
    """Its own values of `env.options`."""


@dataclass
class _Registered:
    """What the decorators collect."""

    functions: Functions = field(default_factory=Functions)
    rewards: dict[str, Reward] = field(default_factory=dict)
    how: dict[str, tuple[int, str]] = field(default_factory=dict)
    """How each statistic is combined, and the statistic that it is divided by."""
    events: dict[str, str] = field(default_factory=dict)
    """The kind of event that a statistic counts."""
    combinations: tuple[tuple[float, ...], ...] = ()
    variants: dict[str, Variant] = field(default_factory=dict)
    options: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The numbers that `env.options` may give to each `native.size`, the default first."""
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
        time_limit: bool = False,
        timeout: str = "truncated",
        precision: str = "single",
        reference: str = "",
        expert: str = "",
    ) -> None:
        """Declare a game.

        `teams` is the team of each agent, by default its own. A game ends after `max_decisions`, or with `time_limit`
        after `env.match_seconds`, as `timeout` says: "truncated" (the game would go on, and its value is bootstrapped)
        or "terminated". `reference` is the scripted player that training is evaluated against, `expert` the one that
        `slipstream run` clones.
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
        self.max_decisions, self.time_limit, self._at_limit = max_decisions, time_limit, ends[timeout]
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
        """Play one tick: `step(s: State, action: Action, rng: native.Random)`; `actions: list[Action]` with several.

        With a parameter `ticks: int` it is called once for a decision, and plays so many ticks itself.
        """
        return self._only("step", function)

    def world(self, function: F) -> F:
        """Generate the world of a game, before `reset`: `world(w: World, rng: native.Random)`.

        It must follow from the random numbers, the task and the settings alone, and set all columns that are read. On a
        GPU, the worlds of all next games are generated together, before they are needed.
        """
        return self._only("world", function)

    def prepare(self, function: F) -> F:
        """Prepare the next decision, such as a kick-off after a goal: `prepare(s: State, rng: native.Random)`.

        It is called after the reward terms of a decision that did not end the game, and before the next observation.
        """
        return self._only("prepare", function)

    def present(self, function: F) -> F:
        """Say whether an agent takes part in this game: `present(s: State, me: int)` returns a bool."""
        return self._only("present", function)

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
    def reward(
        self,
        *,
        weight: float = 1.0,
        group: str = "main",
        decides: bool = False,
        sparse: float | None = None,
    ) -> Callable[[F], F]: ...

    def reward(
        self,
        function: F | None = None,
        *,
        weight: float = 1.0,
        group: str = "main",
        decides: bool = False,
        sparse: float | None = None,
    ) -> Any:
        """Add a reward term, named as its function: `goal(before: State, after: State, me: int) -> float`.

        A term that `decides` the game keeps its weight with `rewards.mode=sparse`, or gets the weight `sparse` there.
        """

        def add(one: F) -> F:
            own = sparse if sparse is not None else weight if decides else None
            self._own.rewards[one.__name__] = Reward(weight, own, group)
            return self._add(self._own.functions.rewards, one.__name__, one)

        return add if function is None else add(function)

    def potential(self, term: str) -> Callable[[F], F]:
        """Give a reward term a potential, `potential(s: State, me: int) -> float`, for `rewards.potential=true`."""
        if term not in self._own.rewards:
            near = did_you_mean(term, self._own.rewards)
            raise GameError(f"`{self.name}` has no reward term `{term}`.{near}", "define the term first")
        return lambda function: self._add(self._own.functions.potentials, term, function)

    @overload
    def statistic(self, function: F) -> F: ...

    @overload
    def statistic(self, *, how: str = "sum", by: str = "", event: str = "") -> Callable[[F], F]: ...

    def statistic(self, function: F | None = None, *, how: str = "sum", by: str = "", event: str = "") -> Any:
        """Count something that is reported and never rewarded; `how` is sum, mean, max or last (at the end of a game).

        `by` divides the sum by that of another statistic. Where a statistic with an `event` grows, replays show an
        event of this kind.
        """
        if how not in HOW:
            raise GameError(
                f"`{self.name}`: how={how!r} is unknown.{did_you_mean(how, HOW)}", f"one of {', '.join(HOW)}"
            )

        def add(one: F) -> F:
            self._own.how[one.__name__] = HOW[how], by
            if event:
                self._own.events[one.__name__] = event
            return self._add(self._own.functions.statistics, one.__name__, one)

        return add if function is None else add(function)

    def player(self, function: F) -> F:
        """Add a scripted player, named as its function: `chaser(seen: Seen, action: Action)` writes the action."""
        return self._add(self._own.functions.players, function.__name__, function)

    def draw(self, function: F) -> F:
        """Draw a state: `draw(s: State, canvas: native.Canvas)`, in ordinary Python."""
        self._draw = function
        return function

    def tasks(self, *, target: tuple[str, ...] | None = (), **tasks: Task) -> None:
        """Name the tasks, easiest first; `target` are those that are played and evaluated, by default the last.

        With `target=None` no task is: functions read the defaults of the task's class then.
        """
        self._own.tasks = dict(tasks)
        self._own.target = () if target is None else tuple(target) or tuple(tasks)[-1:]

    def combinations(self, *values: tuple[float, ...]) -> None:
        """List the combinations of controls that `env.actions=discrete` has as its options; without it, all of them."""
        self._own.combinations = values

    def variant(
        self,
        name: str,
        *,
        teams: tuple[int, ...] | None = None,
        tasks: Mapping[str, Task] | None = None,
        target: tuple[str, ...] = (),
        options: Mapping[str, float] | None = None,
        **sizes: int,
    ) -> None:
        """Add a variant, the first of which is the default: `variant("2v2", teams=(0, 0, 1, 1), cars=4)`.

        `sizes` are the numbers of each `native.size`, `options` its own defaults of `env.options`.
        """
        if name in self._own.variants:
            raise GameError(f"`{self.name}` has two variants `{name}`.", "give each its own name")
        own = dict(tasks or {})
        teams = self.teams if teams is None else tuple(teams)
        target = tuple(target) or (tuple(own)[-1:])
        self._own.variants[name] = Variant(teams, sizes, own, target, dict(options or {}))
        self._built.clear()

    def option(self, size: str, *numbers: int) -> None:
        """Let `env.options` choose the number of a `native.size`, by default the first: `option("size", 64, 128)`."""
        if not numbers:
            raise GameError(f"`{self.name}`: the option `{size}` has no numbers.", f'write option("{size}", 64, 128)')
        self._own.options[size] = numbers
        self._built.clear()

    def _only(self, kind: str, function: F) -> F:
        return self._add(self._own.functions.single, kind, function)

    def _add(self, held: dict[str, Source], key: str, function: F) -> F:
        if key in held:
            raise GameError(f"`{self.name}` has two functions `{key}`.", "rename or remove one of them")
        held[key] = Source.of(function)
        self._built.clear()
        return function

    # What the product reads

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the variants, the default first; one without a name if none was declared."""
        return tuple(self._own.variants) or ("",)

    @property
    def players(self) -> tuple[str, ...]:
        """The names of the scripted players."""
        return tuple(self._own.functions.players)

    @property
    def events(self) -> Mapping[str, str]:
        """The kind of event that a statistic counts."""
        return self._own.events

    def _variant(self, name: str, options: Mapping[str, Any] = NO_OPTIONS) -> Variant:
        """A variant, with the sizes that options choose; without a name the default."""
        own = self._own
        if not own.variants:
            if name:
                raise GameError(f"`{self.name}` has no variant `{name}`.", "it has none")
            found = Variant(self.teams, {}, own.tasks, own.target, {})
        else:
            name = name or next(iter(own.variants))
            if name not in own.variants:
                known = ", ".join(own.variants)
                raise GameError(f"`{self.name}` has no variant `{name}`.{did_you_mean(name, own.variants)}", known)
            found = own.variants[name]
            found = found if found.tasks else replace(found, tasks=own.tasks, target=found.target or own.target)
        return replace(found, sizes={**found.sizes, **self._chosen_sizes(options)})

    def _chosen_sizes(self, options: Mapping[str, Any]) -> dict[str, int]:
        """The sizes that `env.options` may choose."""
        chosen: dict[str, int] = {}
        for size, numbers in self._own.options.items():
            given = options.get(size, numbers[0])
            if given not in numbers:
                raise ConfigError(
                    f"`env.options.{size}` = {given!r} is not possible.", f"one of {', '.join(map(str, numbers))}"
                )
            chosen[size] = int(given)
        return chosen

    def _forms(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Each variant with each choice of sizes, the defaults first."""
        own = self._own.options
        for numbers in product(*own.values()):
            for variant in self.variants:
                yield variant, dict(zip(own, numbers, strict=True))

    def classes(self, variant: str = "", options: Mapping[str, Any] = NO_OPTIONS) -> Classes:
        """The columns of state, action, observation and so on."""
        for kind in ("step", "observe"):
            if kind not in self._own.functions.single:
                raise GameError(f"`{self.name}` has no function `{kind}`.", f"decorate one with @game.{kind}")
        return find_classes(self.name, self._own.functions, self._variant(variant, options).sizes)

    def kernels(
        self,
        compiled: bool = True,
        terms: Mapping[str, Callable[..., Any]] | None = None,
        variant: str = "",
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> Kernels:
        """The loops of the game: compiled, or as plain Python; `terms` are reward terms of somebody else."""
        sources = read_terms(terms or {})
        sizes = tuple(sorted(self._variant(variant, options).sizes.items()))
        agents = len(self._variant(variant, options).teams)
        key = compiled, sizes, agents, tuple((text, one.function) for text, one in sources.items())
        if key not in self._built:
            self._built[key] = build(self.plan(sources, variant, options), compiled)
        return self._built[key]

    def plan(
        self,
        terms: Mapping[str, Source] = MappingProxyType({}),
        variant: str = "",
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> Plan:
        """What the loops are built from."""
        own, chosen, classes = self._own, self._variant(variant, options), self.classes(variant, options)
        how = tuple((one, list(own.how).index(by) if by else -1) for one, by in own.how.values())
        return Plan(
            name=self.name,
            functions=own.functions,
            classes=classes,
            sizes=chosen.sizes,
            agents=len(chosen.teams),
            floats=self.floats,
            how=how,
            combinations=self._combinations(classes),
            terms=terms,
        )

    def _combinations(self, classes: Classes) -> Array:
        if not controls_of(classes.action):
            return np.zeros((0, 0), np.int64)
        return combine(self.name, classes.action, self._own.combinations)

    @property
    def scheme(self) -> RewardScheme:
        """The reward terms with their weights and groups."""
        rewards = self._own.rewards
        groups: dict[str, tuple[str, ...]] = {}
        for term, one in rewards.items():
            groups[one.group] = (*groups.get(one.group, ()), term)
        sparse = {term: one.sparse for term, one in rewards.items() if one.sparse is not None}
        dense = {term: one.weight for term, one in rewards.items() if one.weight}
        potentials = tuple(self._own.functions.potentials)
        return RewardScheme(tuple(rewards), {"sparse": sparse or dense, "dense": dense}, groups, potentials)

    def spec(
        self,
        variant: str = "",
        *,
        repeat: int = 0,
        actions: str = "discrete",
        target: Sequence[str] = (),
        extra: Sequence[str] = (),
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> EnvSpec:
        """The facts of an env; `extra` are reward terms of somebody else."""
        classes, own, chosen = self.classes(variant, options), self._own, self._variant(variant, options)
        tasks, repeat = tuple(chosen.tasks), repeat or self.ticks_per_decision
        name = f"{self.name}:{variant}" if variant and variant != self.variants[0] else self.name
        action = (
            control_spec(classes.action, self._combinations(classes), actions)
            if controls_of(classes.action)
            else action_spec(classes.action, bool(own.functions.masks))
        )
        return EnvSpec(
            name=name,
            obs=obs_spec(classes.observation),
            action=action,
            teams=chosen.teams,
            terms=(*own.rewards, *extra),
            exact=True,
            step_seconds=repeat / self.ticks_per_second if self.ticks_per_second else 0,
            action_repeat=repeat,
            behaviours=tuple(own.how),
            tasks=tasks,
            target=choose_target(name, tasks, chosen.target, target),
            absences="present" in own.functions.single,
        )

    @property
    def ticks_per_second(self) -> float:
        """Ticks in a second of game time; 0 if the game does not say."""
        return self.decisions_per_second * self.ticks_per_decision

    def vector(self, envs: int, variant: str = "", *, compiled: bool = True, **options: Any) -> NativeVector:
        """Make envs of the game; the other keyword arguments are those of `GameOptions`."""
        given = GameOptions(**({"action_repeat": self.ticks_per_decision} | options))
        given.check(envs, KINDS)
        self._check_rewards(given.rewards)
        own, terms = given.options, tuple(given.extra_terms)
        classes, chosen = self.classes(variant, own), self._variant(variant, own)
        spec = self.spec(
            variant,
            repeat=given.action_repeat,
            actions=given.actions,
            target=given.target,
            extra=terms,
            options=own,
        )
        match_ticks = max(round(given.match_seconds * self.ticks_per_second), 1) if self.ticks_per_second else 0
        settings = self._settings(classes, given, chosen, match_ticks)
        values = [value for task in chosen.tasks.values() for value in task.values]
        values = [*self._without_task(classes, spec), *values]
        limit = -(-match_ticks // given.action_repeat) if self.time_limit else self.max_decisions
        return NativeVector(
            self.kernels(compiled, given.extra_terms, variant, own),
            spec,
            envs,
            classes,
            floats=self.floats,
            table=np.array([*settings, *values] or [0.0], self.floats),
            payout=CombinedReward(self.scheme, given.rewards, spec, envs, given.gamma, terms),
            rules=Rules(given.action_repeat, limit, self._at_limit, KINDS.index(given.actions)),
            first=given.first,
            seed=given.seed,
        )

    def _check_rewards(self, rewards: RewardSettings | None) -> None:
        """Refuse what this game cannot do."""
        if rewards is not None and rewards.potential and not self._own.functions.potentials:
            raise ConfigError(
                f"`rewards.potential` = true, but no term of `{self.name}` has a potential.", "leave it out"
            )

    def _settings(self, classes: Classes, given: GameOptions, chosen: Variant, match_ticks: int) -> tuple[float, ...]:
        """The numbers of the settings, with `env.options`."""
        columns = classes.settings
        fields = columns.fields if columns is not None else {}
        own = [key for key in fields if key not in columns_of(Settings).fields]
        check_options(self.name, given.options, [*own, *self._own.options])
        options = {key: value for key, value in given.options.items() if key not in self._own.options}
        for key, value in options.items():
            if not isinstance(value, int | float) or (isinstance(value, bool) and fields[key].number != "bool"):
                raise ConfigError(f"`env.options.{key}` = {value!r} is not a number.", "give a number")
        if self._uses_random_starts is False and given.random_starts:
            raise ConfigError(
                f"`env.random_starts` = {given.random_starts:g}, but `{self.name}` has no random starts.",
                "leave it out",
            )
        if columns is None:
            return ()
        kind = self._class_of(columns)
        numbers = {"ticks": given.action_repeat, "match_ticks": match_ticks, "random_starts": given.random_starts}
        made: Settings = kind(**{**numbers, **chosen.options, **options})
        made.check(options)
        return made.values

    def _class_of(self, columns: Columns) -> type[Any]:
        """The user's class of settings or tasks."""
        hints = (hint for _, source in self._own.functions.all() for hint in source.hints().values())
        return next(
            hint.fields
            for hint in hints
            if hint is not None and hint.fields and hint.kind == columns.role and columns_of(hint.fields) == columns
        )

    def _without_task(self, classes: Classes, spec: EnvSpec) -> tuple[float, ...]:
        """The numbers that functions read without a task, where there is no target."""
        if classes.task is None:
            return ()
        if spec.target:
            return (0.0,) * classes.task.size
        made: Task = self._class_of(classes.task)()
        return made.values

    @property
    def _uses_random_starts(self) -> bool:
        """Whether a function reads the setting."""
        return any("random_starts" in source.text for _, source in self._own.functions.all())

    def _scene(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> Scene:
        assert self._draw is not None
        columns = {self.classes(one).state.size: self.classes(one).state for one in self.variants}
        return NativeScene(columns[arrays["state"].shape[-1]], self._draw, size, arrays, step_seconds)

    def make(self, choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> NativeVector:
        """Make the envs that settings describe."""
        return self.vector(envs, variant, **choice.game_options(first, seed, self.ticks_per_decision))

    def labels(self, spec: EnvSpec) -> Labels:
        """The names of actions and observations of the variant with this spec."""
        classes = self._form_of(spec.obs.width)[0]
        if not controls_of(classes.action):
            return labels(classes)
        parts, options = control_labels(classes.action, self._combinations(classes), spec.action.kind)
        return Labels(parts, options, classes.observation.names())

    def state_labels(self, widths: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        """The names of the columns of states of these widths."""
        columns = {self.classes(one).state.size: self.classes(one).state for one in self.variants}
        found = columns.get(widths["state"])
        return {"state": found.names()} if found is not None else {}

    def _form_of(self, width: int) -> tuple[Classes, str, dict[str, int]]:
        """The classes, the variant and the options of the first form with observations of this width."""
        for variant, options in self._forms():
            classes = self.classes(variant, options)
            if obs_spec(classes.observation).width == width:
                return classes, variant, options
        raise GameError(f"`{self.name}` has no variant with {width} observations.", "")

    def act(self, player: str, obs: Array, kind: str, actions: Array) -> None:
        """Write the actions [rows, parts] of a scripted player for observations [rows, obs] of any variant."""
        players = self._own.functions.players
        if player not in players:
            near = did_you_mean(player, players)
            raise ConfigError(f"Unknown scripted player `{player}`.{near}", hint=f"one of {', '.join(players)}.")
        classes, variant, options = self._form_of(obs.shape[1])
        spec = obs_spec(classes.observation)
        chosen = actions
        if controls_of(classes.action):
            chosen = np.empty((len(obs), classes.action.size), self.floats)
        number = KINDS.index(kind) if kind in KINDS else 0
        self.kernels(variant=variant, options=options).players[player](spec.vectors(obs), obs, chosen, number, actions)

    def _script(self, player: str, obs: Array, action: ActionSpec, actions: Array) -> None:
        self.act(player, obs, action.kind, actions)

    def declare(self, **more: Any) -> Declaration:
        """The game as the registry lists it; `more` are fields of `slipstream.envs.game.Game` that it has besides."""
        players = self._own.functions.players
        for key in ("reference", "expert"):
            one = getattr(self, key)
            if one and one not in players:
                near = did_you_mean(one, players)
                raise GameError(f"`{self.name}`: {key}={one!r} is no scripted player.{near}", "define it: @game.player")
        declared = Declaration(
            summary=self.summary,
            variants=self.variants,
            make=self.make,
            scene=self._scene if self._draw is not None else None,
            labels=self.labels,
            state_labels=self.state_labels,
            scripted={key: partial(self._script, key) for key in players},
            reference=f"scripted:{self.reference}" if self.reference else "",
            expert=f"scripted:{self.expert}" if self.expert else "",
            stages=tuple(self._variant("").tasks),
            scheme=lambda: self.scheme,
            tick_hz=self.ticks_per_second,
            counted=dict(self._own.events),
            definition=self,
        )
        return replace(declared, **more)


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
