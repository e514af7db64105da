"""What a game declares about itself: how it is made, drawn and played by hand, its events, labels and scripted players.

Native games declare themselves in their module `game`, the other built-in games in a module `declaration`, and
`registry` lists them. A game of another package declares the same parts. Only `make` is required. Parts are plain
callables; `lazy` gives one that imports its module on the first call, so that listing the games does not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows, Vector
from slipstream.settings import EnvSettings, RewardSettings
from slipstream.system.user_modules import names

if TYPE_CHECKING:
    from PIL import Image

    from slipstream.envs.rewards import RewardScheme


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """The user's own code, and the permission to run that of others. No file holds it: every call gives it again."""

    modules: tuple[str, ...] = ()
    """Modules given by the flag `--import`, imported before the environment is made."""
    factory: Callable[[], Any] | None = None
    """Makes a Python environment that has no name."""
    terms: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    """The user's own reward terms by name."""
    observation: Callable[..., Any] | None = None
    """The user's own observation builder, for `rocket`."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """The user's own agents, given as Python objects, by name; their agent spec is `python:NAME`."""
    games: Mapping[str, DeclaredGame] = field(default_factory=dict)
    """The user's own native games, given as Python objects, by name."""
    networks: Mapping[str, type] = field(default_factory=dict)
    """The user's own networks, given as Python classes, by the name that `policy.network` has for them."""
    trust: bool = False
    """Whether files that can execute code when they are read, such as pickles, may be opened (`--trust`)."""
    python: str = ""
    """The interpreter in which an environment runs that cannot run in this one (`--python PATH`)."""
    flags: str = ""
    """The command-line flags that give all this again, each after a space; `--trust` is never repeated."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", names(self.modules))


@dataclass(frozen=True)
class EnvChoice(UserCode):
    """An environment, its settings and the user's code: all that a process needs to make it."""

    name: str
    env: EnvSettings = field(default_factory=EnvSettings)
    rewards: RewardSettings = field(default_factory=RewardSettings)
    native: bool = False
    """Whether the environment is stepped by the vector environment that is registered for it."""
    gamma: float = 0.99
    """The learner's discount per step, used by potential-based terms; `rewards.half_life_s` takes precedence."""
    deadline_s: float = 60.0
    """The longest time of a step in another interpreter (`plan.deadline_s`)."""

    @property
    def code(self) -> UserCode:
        """The user's code alone."""
        return UserCode(**{one.name: getattr(self, one.name) for one in fields(UserCode)})

    def game_options(self, first: int, seed: int, action_repeat: int) -> dict[str, Any]:
        """The keyword arguments `options.GameOptions`; `action_repeat` is the game's default."""
        env = self.env
        return {
            "first": first,
            "seed": seed,
            "match_seconds": env.match_seconds,
            "action_repeat": env.action_repeat or action_repeat,
            "actions": env.actions,
            "random_starts": env.random_starts,
            "target": env.target,
            "options": env.options,
            "rewards": self.rewards,
            "gamma": self.gamma,
            "extra_terms": self.terms,
        }


class Scene(Protocol):
    """Draws one episode from its stacked states, at any time between two steps."""

    def score(self, step: float) -> tuple[int, ...] | None:
        """Goals of each side; None for games without goals."""

    def clock(self, step: float) -> str:
        """The text of the game clock."""

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """The image at `step`.

        `beyond` extrapolates by so many steps where the next state is not known: at kick-offs and at the end.
        """


class StepEvent(NamedTuple):
    """Something that happened in a step, such as a touch or a goal, and the agent it belongs to."""

    kind: str
    agent: int


@dataclass(frozen=True)
class Labels:
    """Names of an environment's actions and observation columns, for reports, plots and logs."""

    parts: tuple[str, ...]
    """One name for each part of an action, that is for each column of an action array."""
    options: tuple[tuple[str, ...], ...]
    """The names of each part's options; empty for continuous actions."""
    obs: tuple[str, ...]
    """One name for each number of the observation's vector fields, `spec.obs.floats` in all."""


ScriptedPlayer = Callable[[Array, ActionSpec, Array], None]
"""(observations [rows, obs], action space, actions [rows, parts]): writes the actions."""
Chooser = Callable[[Array], Array]
"""Observations [rows, obs] -> mask [rows, options] of the options to choose from at random."""
MakeVector = Callable[[EnvChoice, str, int, int, int], Vector]
"""(choice, variant, number of envs, global index of the first env, seed) -> vector."""
SceneFactory = Callable[[tuple[int, int], Mapping[str, Array], float], Scene]
"""(size in pixels, states by name stacked over steps, seconds per step) -> scene."""
EventFinder = Callable[[EnvSpec, Mapping[str, Array], Mapping[str, Array], Rows, int], list[StepEvent]]
"""(spec, state before, state after, rows of the step, agent that touched the ball last or -1) -> events of one env.

Where the episode ended, the state after is that of the next episode; `rows.behaviour` has the totals of the one that
ended.
"""
KeyboardControls = Callable[[Iterable[str], Array, ActionSpec], Array]
"""(keys that are held, oldest first, previous action [parts], action spec) -> action [parts].

Keys are `up`, `down`, `left`, `right`, `space` or one character; W, A, S and D arrive as arrow keys.
"""
StateLabels = Callable[[Mapping[str, int]], dict[str, tuple[str, ...]]]
"""Width of each state array by name -> names of its columns, empty for columns without a name."""


COUNTED = {"touches": "touch", "saves": "save", "shots": "shot"}
"""Behaviour statistics of games of balls that count events, and the kind of event that each counts."""
OWN = "*"
"""The key of `Game.variant_fields` for worlds of the user: files, and envs made by Python functions."""


@dataclass(frozen=True)
class Game:
    """A game that steps many environments in one call, with everything that is specific to it."""

    summary: str
    """One line for `slipstream envs`."""
    variants: tuple[str, ...]
    """Names that may follow the colon, as in `soccer:2v2`; the first is the default."""
    make: MakeVector
    open_variants: bool = False
    """Whether `make` accepts further variants that are not listed."""
    files: tuple[str, ...] = ()
    """Endings of files that may follow the colon, such as `.yaml`: worlds of one's own."""
    recognise: Callable[[Any], str] | None = None
    """(env or class of envs that a Python function makes) -> its name if this game takes it, else an empty string."""
    scene: SceneFactory | None = None
    """Draws the game; without it, replays, `watch` and `record human` show numbers only."""
    events: EventFinder | None = None
    """Finds the events of a step; by default those of `events.counted_events`."""
    controls: KeyboardControls | None = None
    """Maps keys to actions; by default digits choose options and arrow keys push continuous actions."""
    labels: Callable[[EnvSpec], Labels] | None = None
    """Names of actions and observations; by default numbers."""
    state_labels: StateLabels | None = None
    """Names of the columns of the state arrays that replays hold."""
    tick_hz: float = 0.0
    """Physics ticks per second, for games whose state has a column `ticks_left`, from which replays have the time."""
    scripted: Mapping[str, ScriptedPlayer] = field(default_factory=dict)
    """Deterministic scripted players by name."""
    choosers: Mapping[str, Chooser] = field(default_factory=dict)
    """Scripted players that choose at random among the options they mark."""
    reference: str = ""
    """The scripted player that training is evaluated against."""
    opponents: tuple[str, ...] = ()
    """The scripted players that `run` evaluates the result against."""
    expert: str = ""
    """The scripted player that `run` records and clones first."""
    preset: str = ""
    """The preset with the game's own defaults."""
    stages: tuple[str, ...] = ()
    """Curriculum stages, easiest first, as `TASK` or `TASK vs AGENT`; a variant uses those of its own tasks."""
    scheme: Callable[[], RewardScheme] | None = None
    """Returns the reward terms with their weights and groups."""
    counted: Mapping[str, str] = field(default_factory=lambda: dict(COUNTED))
    """Behaviour statistics that count events, and the kind of event that each counts."""
    definition: Any = None
    """The `native.Game` that declares it, which `check-env` plays in every way; None for other games."""
    variant_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that differ for a variant, by variant and field name; `OWN` is for files and Python functions."""

    @property
    def players(self) -> list[str]:
        """Names of all scripted players."""
        return [*self.scripted, *self.choosers]


class DeclaredGame(Protocol):
    """A game object that is given instead of the name of an environment, such as a `native.Game`."""

    name: str

    def declare(self) -> Game:
        """The game as the registry lists it."""


def is_declared_game(value: object) -> TypeGuard[DeclaredGame]:
    """Whether an object is a game that can declare itself."""
    return callable(getattr(type(value), "declare", None)) and isinstance(getattr(value, "name", None), str)


@dataclass(frozen=True)
class LazyCall:
    """A callable that imports `module:attribute` when it is called; `bound` are its first arguments."""

    path: str
    bound: tuple[Any, ...] = ()

    def load(self) -> Any:
        """The attribute itself."""
        module, _, attribute = self.path.partition(":")
        return getattr(import_module(module), attribute)

    def __call__(self, *args: Any) -> Any:
        """Import the attribute and call it."""
        return self.load()(*self.bound, *args)


def lazy(path: str, *bound: Any) -> LazyCall:
    """A part of a game that is imported on its first call, such as `my_game.drawing:Scene`."""
    return LazyCall(path, bound)


def lazy_value(path: str) -> Callable[[], Any]:
    """A function without arguments that imports and returns `module:attribute`."""
    return LazyCall(path).load
