"""The seams between the parts: what an environment is, what rows are, what acts.

An environment has A >= 1 agents. A vector of N environments has N * A *rows*, row = env * A + agent.
Everything downstream sees rows and nothing else; a single-agent environment is the case A = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from slipstream.errors import ConfigError, did_you_mean

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ActionSpec:
    """What an agent can do.

    Actions of a batch are always a two-dimensional array `[rows, parts]`: int32 option indices for
    `discrete` (one part) and `multi_discrete`, float32 in [low, high] for `continuous`.
    An action mask is uint8 `[rows, sum(sizes)]`, 1 = allowed, the parts side by side.
    """

    kind: Literal["discrete", "multi_discrete", "continuous"]
    sizes: tuple[int, ...] = ()
    """Options of each part; empty for continuous actions."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    masked: bool = False
    binary: tuple[bool, ...] = ()
    """Which parts are switches (two options, off and on), told by one number instead of two; empty: none."""

    @property
    def parts(self) -> int:
        """Columns of an action array."""
        return len(self.low) if self.kind == "continuous" else len(self.sizes)

    @property
    def outputs(self) -> int:
        """Numbers that tell a distribution over actions: logits (one for a switch), or means."""
        if self.kind == "continuous":
            return len(self.low)
        return sum(self.sizes) - sum(self.binary)

    @property
    def options(self) -> int:
        """Columns of an action mask."""
        return sum(self.sizes) if self.masked else 0

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an action array."""
        return np.float32 if self.kind == "continuous" else np.int32

    def to_unit(self, given: Array) -> Array:
        """Continuous actions as a policy gives them: [low, high] onto [-1, 1] where both are finite."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, np.float32(-1)), np.where(bounded, high, np.float32(1))
        unit: Array = 2 * (given - low) / (high - low) - 1
        return unit

    def describe(self) -> dict[str, Any]:
        """As JSON holds it; bounds as text, since they may be infinite."""
        return {
            "kind": self.kind,
            "sizes": list(self.sizes),
            "binary": list(self.binary),
            "low": [repr(x) for x in self.low],
            "high": [repr(x) for x in self.high],
            "masked": self.masked,
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> ActionSpec:
        """The inverse of `describe`."""
        low, high = (tuple(float(x) for x in told[side]) for side in ("low", "high"))
        return cls(told["kind"], tuple(told["sizes"]), low, high, told["masked"], tuple(told["binary"]))


@dataclass(frozen=True)
class ObsField:
    """One part of an observation."""

    name: str
    """Its key in a dict, its place in a tuple, joined by `/` where they are nested; empty for a bare observation."""
    kind: Literal["vector", "image", "tokens"]
    shape: tuple[int, ...]
    """Vector (numbers,), image (height, width, channels) or (frames, height, width, channels), oldest frame first,
    tokens (tokens, 3): place, feature and value of each, where the place 255 marks a token that is not there."""

    @property
    def dtype(self) -> type[np.generic]:
        """float32 for vectors, uint8 for images and tokens."""
        return np.float32 if self.kind == "vector" else np.uint8

    @property
    def planes(self) -> tuple[int, int, int]:
        """Channels, those of all frames of an image, height and width, as convolutions count them."""
        height, width, channels = self.shape[-3:]
        return prod(self.shape[:-3]) * channels, height, width

    @property
    def bytes(self) -> int:
        """What it takes in a row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ObsSpec:
    """What an agent sees: fields side by side in one row of one array, vectors first.

    Observations of vectors alone (most games) are float32 rows. With images or tokens among them a row is uint8, the
    bytes of its vectors first, so that pixels stay what they are until a network reads them.
    """

    fields: tuple[ObsField, ...]

    @property
    def plain(self) -> bool:
        """Whether there are only vectors, so that rows are float32."""
        return all(field.kind == "vector" for field in self.fields)

    @property
    def floats(self) -> int:
        """Numbers in all vectors together."""
        return sum(prod(field.shape) for field in self.fields if field.kind == "vector")

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an observation array."""
        return np.float32 if self.plain else np.uint8

    @property
    def width(self) -> int:
        """Columns of an observation array: numbers, or bytes in whole 16s."""
        return self.floats if self.plain else -(-sum(field.bytes for field in self.fields) // 16) * 16

    @cached_property
    def places(self) -> dict[str, tuple[ObsField, int]]:
        """Each field by name and the byte at which it starts."""
        start, places = 0, {}
        for field in self.fields:
            places[field.name] = field, start
            start += field.bytes
        return places

    def describe(self) -> list[dict[str, Any]]:
        """As JSON holds it."""
        return [{"name": f.name, "kind": f.kind, "shape": list(f.shape)} for f in self.fields]

    @classmethod
    def read(cls, told: Sequence[Mapping[str, Any]]) -> ObsSpec:
        """The inverse of `describe`."""
        return cls(tuple(ObsField(f["name"], f["kind"], tuple(f["shape"])) for f in told))

    def vectors(self, rows: Array) -> Array:
        """The numbers [..., floats] of observations [..., width], as a view."""
        return rows if self.plain else rows[..., : 4 * self.floats].view(np.float32)

    def split(self, rows: Array) -> dict[str, Array]:
        """The fields of observations [..., width] by name, as views of their own shape and type."""
        data, found = rows.view(np.uint8), {}
        for name, (field, start) in self.places.items():
            part = data[..., start : start + field.bytes].view(field.dtype)
            found[name] = part.reshape(*rows.shape[:-1], *field.shape)
        return found

    def encode(self, obs: Any) -> Array:
        """Rows [..., width] of one observation or a batch, given as a dict or tuple of fields, one field, or rows."""
        if isinstance(obs, Mapping):
            return self.join(_leaves(obs))
        if isinstance(obs, tuple):
            return self.join(_leaves(dict(enumerate(obs))))
        array = np.asarray(obs)
        first = self.fields[0]
        if len(self.fields) == 1 and not self.plain and array.shape[-len(first.shape) :] == first.shape:
            return self.join({first.name: array})
        return array.astype(self.dtype, copy=False)

    def join(self, named: Mapping[str, Any]) -> Array:
        """The inverse of `split`, for one observation or a batch."""
        first = self.fields[0]
        lead = np.shape(named[first.name])[: -len(first.shape)]
        rows = np.zeros((*lead, self.width), self.dtype)
        for name, view in self.split(rows).items():
            view[...] = named[name]
        return rows


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of nested dicts and tuples by their joined names."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, tuple):
            value = dict(enumerate(value))
        found |= _leaves(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def vector_obs(size: int) -> ObsSpec:
    """One bare vector of so many numbers."""
    return ObsSpec((ObsField("", "vector", (size,)),))


def sides_of(teams: Sequence[int]) -> tuple[int, ...]:
    """The side of each agent: the place of its team among the teams, from 0."""
    sides = sorted(set(teams))
    return tuple(sides.index(team) for team in teams)


def read_meanings(world: Mapping[str, str]) -> dict[str, str]:
    """Those facts of a world that an agent must have been trained with, or it misreads what it sees."""
    return {what: which for what, which in world.items() if what in ("features", "tags", "actions")}


@dataclass(frozen=True)
class EnvSpec:
    """The facts about an environment that everything else is sized by."""

    name: str
    obs: ObsSpec
    action: ActionSpec
    teams: tuple[int, ...] = (0,)
    """The team of each agent of one environment; its length is the number of agents."""
    terms: tuple[str, ...] = ()
    """Names of the reward terms that the environment reports one by one."""
    exact: bool = False
    """Whether `snapshot` holds all there is, so that a resumed run goes on bit for bit."""
    step_seconds: float = 0.0
    """Game time that one step takes, 0 if unknown."""
    action_repeat: int = 1
    """Times that the game takes every action."""
    behaviours: tuple[str, ...] = ()
    """Names of what is counted about each row in a game, such as goals or touches; never rewarded."""
    tasks: tuple[str, ...] = ()
    """Kinds of game that every env can be told to play, one per episode; empty: only one."""
    target: tuple[str, ...] = ()
    """Those of the tasks that are played unless told otherwise, and measured on."""
    absences: bool = False
    """Whether some rows may be nobody's in an episode, as places that are not taken."""
    late_resets: bool = False
    """Whether the step after an end only resets: its row is inactive, and `obs` of the end is its last one."""
    world: tuple[tuple[str, str], ...] = ()
    """What of other people's making it is played on, such as an arena's meshes: a resumed run must have the same."""
    own_threads: bool = False
    """Whether a vector of it is a `Stepper` with threads of its own, so that nobody else need share it out."""

    @property
    def agents(self) -> int:
        """Rows of one environment."""
        return len(self.teams)

    @property
    def meanings(self) -> dict[str, str]:
        """What of its world says how observations and actions are to be read."""
        return read_meanings(dict(self.world))

    @property
    def competitive(self) -> bool:
        """Whether there are two sides, so that games are won and lost."""
        return len(set(self.teams)) > 1


def check_tasks(spec: EnvSpec, tasks: Array) -> Array:
    """The tasks [envs] of an assignment as numbers, each one that the environment has, or -1."""
    given = np.asarray(tasks, np.int64).reshape(-1)
    wrong = given[(given < -1) | (given >= len(spec.tasks))]
    if len(wrong):
        named = f"It has {', '.join(spec.tasks)}." if spec.tasks else "It has one kind of game only."
        raise ConfigError(f"`{spec.name}` has no task number {wrong[0]}. {named}", "assign -1 for its target")
    return given


def choose_target(name: str, tasks: Sequence[str], own: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The tasks that an environment of this name is measured on: those of `env.target`, else its own."""
    for task in given:
        if task not in tasks:
            near = did_you_mean(task, tasks)
            hint = f"tasks: {', '.join(tasks)}" if tasks else "it has one kind of game: leave env.target out"
            raise ConfigError(f"`env.target`: `{name}` has no task `{task}`.{near}", hint)
    return tuple(given) or tuple(own)


def target_tasks(spec: EnvSpec, first: int, envs: int) -> Array:
    """The number of the task [envs] that each env plays if it is given none: its target's in turn, by global index."""
    numbers = [spec.tasks.index(task) for task in spec.target] or [-1]
    return np.array([numbers[index % len(numbers)] for index in range(first, first + envs)], np.int64)


@dataclass
class Rows:
    """Where one step of a vector writes its results: views into buffers that the collector owns.

    Autoreset is same-step: where an episode ended (`terminated` or `truncated`), `obs` holds the first
    observation of the next episode and `final_obs` the last one of the old. `final_obs`, `outcome` and
    `behaviour` mean something only there. `active` is 1 where the row acts on `obs` next; an inactive row is not a
    transition. `terms` accumulates (`+=`): the collector zeroes it when a rollout starts.
    """

    obs: Array  # [rows, obs.width] of obs.dtype
    reward: Array  # [rows] float32
    terminated: Array  # [rows] uint8
    truncated: Array  # [rows] uint8
    outcome: Array  # [rows] int8: 1 won, 0 draw, -1 lost
    final_obs: Array  # as obs
    active: Array  # [rows] uint8
    mask: Array  # [rows, sum(sizes)] uint8, or [rows, 0] where actions are not masked
    terms: Array  # [rows, len(terms)] float32, accumulated
    behaviour: Array  # [rows, len(behaviours)] float32: what was counted in the episode that ended


def empty_rows(spec: EnvSpec, envs: int) -> Rows:
    """Allocate the buffers for one step of `envs` environments."""
    rows = envs * spec.agents
    return Rows(
        obs=np.zeros((rows, spec.obs.width), spec.obs.dtype),
        reward=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, np.uint8),
        truncated=np.zeros(rows, np.uint8),
        outcome=np.zeros(rows, np.int8),
        final_obs=np.zeros((rows, spec.obs.width), spec.obs.dtype),
        active=np.ones(rows, np.uint8),
        mask=np.ones((rows, spec.action.options), np.uint8),
        terms=np.zeros((rows, len(spec.terms)), np.float32),
        behaviour=np.zeros((rows, len(spec.behaviours)), np.float32),
    )


@runtime_checkable
class Vector(Protocol):
    """N environments that step together.

    `seed` of environment i depends on the run's seed and on i's global index only, so that how
    environments are split over processes changes nothing.
    """

    spec: EnvSpec
    envs: int

    def reset(self, out: Rows) -> None:
        """Start every environment anew: writes `obs`, `active` and `mask`."""

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew, within this vector: writes their rows of `obs`, `active`, `mask`.

        With `seeds`, all chance of the episode that begins follows from its seed; -1: from the env's own next one.
        """

    def seeds(self) -> Array:
        """The seed [envs] int64 from which `reset_envs` would begin each present episode again; -1: none would."""

    def assign(self, tasks: Array) -> None:
        """Say which task [envs] each env plays in the episodes that begin from now on; -1: one of the target's."""

    def step(self, action: Array, out: Rows) -> None:
        """Apply `action` [rows, parts] and write everything of `out`."""

    def snapshot(self) -> dict[str, Array]:
        """Copy the state of all environments into arrays with the environment as first axis.

        Where `spec.exact` is false these may be empty; `restore` then starts new episodes.
        """

    def restore(self, state: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""

    def close(self) -> None:
        """Free what the environments hold; may be called twice."""


@runtime_checkable
class Viewed(Vector, Protocol):
    """A vector whose games are drawn and told from other arrays than those of a snapshot."""

    def view(self) -> dict[str, Array]:
        """What a picture shows of each env as it stands, with the environment as first axis."""


@runtime_checkable
class Stepper(Vector, Protocol):
    """A vector whose step can be begun and waited for, so that something else is done meanwhile."""

    def send(self, action: Array, out: Rows) -> None:
        """Begin a step; neither array may be touched until `receive`."""

    def receive(self) -> None:
        """Wait until the step that was begun is done."""


@runtime_checkable
class Agent(Protocol):
    """Anything that acts on rows: scripted, trained, exported.

    An agent with memory keeps one state per row, in the order of the rows it is given; whoever steps the games says
    when an episode begins.
    """

    name: str

    def act(self, obs: Any, mask: Array | None = None) -> Array:
        """Return actions for one observation or a batch of them; a dict of fields will do."""

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch; draw chance from `streams`, one per row."""

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows of a batch, all arrays indexed by row; `states` [all rows, size] is what it remembers."""

    def memory(self, rows: int) -> Array:
        """The states [rows, size] in use, which may be read and written; [rows, 0] without memory."""

    def begin(self, rows: Array | None = None) -> None:
        """Forget: the episodes of these rows (all, if not said) begin."""
