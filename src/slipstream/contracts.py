"""The interfaces between the parts: specs of environments, rows, vectors and agents.

An environment has A >= 1 agents. A vector of N environments has N * A *rows*, row = env * A + agent. Everything that
uses a vector works with rows; a single-agent environment is the case A = 1.

    EnvSpec   static facts of an environment: observation, action, teams, reward terms, tasks
    Rows      the arrays into which one step of a vector writes its results
    Vector    N environments with `reset` and `step`, same-step autoreset
    Stepper   a vector whose step is split into `send` and `receive`
    Agent     chooses actions for rows: scripted, trained or exported
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from math import prod
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from slipstream.errors import ConfigError, did_you_mean

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ActionSpec:
    """The action space of one agent.

    Actions of a batch are always a two-dimensional array `[rows, parts]`: int32 option indices for `discrete` (one
    part) and `multi_discrete`, float32 in [low, high] for `continuous`. `mixed` actions have both: float32, first the
    option indices of the discrete parts (exact up to 2**24), then the continuous parts. An action mask is uint8
    `[rows, sum(sizes)]`, 1 = allowed, with the discrete parts side by side.
    """

    kind: Literal["discrete", "multi_discrete", "continuous", "mixed"]
    sizes: tuple[int, ...] = ()
    """Number of options of each discrete part."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of each continuous part; may be infinite."""
    masked: bool = False
    """Whether the environment provides action masks."""
    binary: tuple[bool, ...] = ()
    """Which discrete parts are on/off switches, for which the policy has one logit instead of two; empty: none."""

    @property
    def parts(self) -> int:
        """Number of columns of an action array."""
        return self.discrete_parts + self.continuous_parts

    @property
    def discrete_parts(self) -> int:
        """Number of discrete parts, the first columns of an action array."""
        return len(self.sizes)

    @property
    def continuous_parts(self) -> int:
        """Number of continuous parts, the last columns of an action array."""
        return len(self.low)

    @property
    def outputs(self) -> int:
        """Number of policy outputs: logits (one for a binary part), then means of continuous parts."""
        return sum(self.sizes) - sum(self.binary) + self.continuous_parts

    @property
    def options(self) -> int:
        """Number of columns of an action mask; 0 without masks."""
        return sum(self.sizes) if self.masked else 0

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an action array."""
        return np.float32 if self.continuous_parts else np.int32

    @property
    def text(self) -> str:
        """The actions in messages."""
        switches = self.binary or (False,) * len(self.sizes)
        parts = ["switch" if one else str(size) for size, one in zip(self.sizes, switches, strict=True)]
        found = [f"discrete actions of {' x '.join(parts)}"] if parts else []
        found += [f"{len(self.low)} continuous actions from {list(self.low)} to {list(self.high)}"] if self.low else []
        return " and ".join(found)

    def to_unit(self, given: Array) -> Array:
        """Scale continuous parts from [low, high] to [-1, 1], a policy's range, where both bounds are finite."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, np.float32(-1)), np.where(bounded, high, np.float32(1))
        options, numbers = np.split(given, [self.discrete_parts], axis=-1)
        unit: Array = 2 * (numbers - low) / (high - low) - 1
        return np.concatenate([options, unit], axis=-1) if self.discrete_parts else unit

    def describe(self) -> dict[str, Any]:
        """Return a JSON object; bounds are strings, since they may be infinite."""
        return {
            "kind": self.kind,
            "sizes": list(self.sizes),
            "binary": list(self.binary),
            "low": [repr(x) for x in self.low],
            "high": [repr(x) for x in self.high],
            "masked": self.masked,
        }

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> ActionSpec:
        """The inverse of `describe`."""
        low, high = (tuple(float(x) for x in described[side]) for side in ("low", "high"))
        return cls(
            described["kind"], tuple(described["sizes"]), low, high, described["masked"], tuple(described["binary"])
        )


@dataclass(frozen=True)
class ObsField:
    """One field of an observation."""

    name: str
    """The key in a dict or index in a tuple, joined by `/` if nested; empty if the observation is a single array."""
    kind: Literal["vector", "image", "tokens"]
    shape: tuple[int, ...]
    """vector: (numbers,). image: (height, width, channels) or (frames, height, width, channels), oldest frame first.
    tokens: (tokens, 3) with place, feature and value of each; place 255 marks an absent token."""

    @property
    def dtype(self) -> type[np.generic]:
        """float32 for vectors, uint8 for images and tokens."""
        return np.float32 if self.kind == "vector" else np.uint8

    @property
    def planes(self) -> tuple[int, int, int]:
        """Channels (of all frames together), height and width of an image, as convolutions count them."""
        height, width, channels = self.shape[-3:]
        return prod(self.shape[:-3]) * channels, height, width

    @property
    def text(self) -> str:
        """The field in messages."""
        title, size = f"`{self.name}`: " if self.name else "", "x".join(map(str, self.shape))
        return f"{title}{size} numbers" if self.kind == "vector" else f"{title}{self.kind} of {size}"

    @property
    def bytes(self) -> int:
        """Size in a row, in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ObsSpec:
    """The observation space of one agent: fields side by side in one row of one array, vectors first.

    If all fields are vectors (most games), rows are float32. With images or tokens, rows are uint8 and start with the
    bytes of the vectors, so that pixels stay uint8 until a network reads them.
    """

    fields: tuple[ObsField, ...]

    @property
    def plain(self) -> bool:
        """Whether all fields are vectors, so that rows are float32."""
        return all(field.kind == "vector" for field in self.fields)

    @property
    def floats(self) -> int:
        """Number of floats in all vectors together."""
        return sum(prod(field.shape) for field in self.fields if field.kind == "vector")

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an observation array."""
        return np.float32 if self.plain else np.uint8

    @property
    def width(self) -> int:
        """Number of columns of an observation array: floats, or bytes rounded up to a multiple of 16."""
        return self.floats if self.plain else -(-sum(field.bytes for field in self.fields) // 16) * 16

    @property
    def text(self) -> str:
        """The observations in messages."""
        return ", ".join(field.text for field in self.fields)

    @cached_property
    def places(self) -> dict[str, tuple[ObsField, int]]:
        """Each field with the byte at which it starts, by name."""
        start, places = 0, {}
        for field in self.fields:
            places[field.name] = field, start
            start += field.bytes
        return places

    def describe(self) -> list[dict[str, Any]]:
        """Return a JSON array."""
        return [{"name": f.name, "kind": f.kind, "shape": list(f.shape)} for f in self.fields]

    @classmethod
    def read(cls, described: Sequence[Mapping[str, Any]]) -> ObsSpec:
        """The inverse of `describe`."""
        return cls(tuple(ObsField(f["name"], f["kind"], tuple(f["shape"])) for f in described))

    def vectors(self, rows: Array) -> Array:
        """Return the floats [..., floats] of observations [..., width], as a view."""
        return rows if self.plain else rows[..., : 4 * self.floats].view(np.float32)

    def split(self, rows: Array) -> dict[str, Array]:
        """Return the fields of observations [..., width] by name, as views with their own shape and dtype."""
        data, found = rows.view(np.uint8), {}
        for name, (field, start) in self.places.items():
            part = data[..., start : start + field.bytes].view(field.dtype)
            found[name] = part.reshape(*rows.shape[:-1], *field.shape)
        return found

    def encode(self, obs: Any) -> Array:
        """Return rows [..., width] for one observation or a batch: a dict or tuple of fields, one field, or rows."""
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
    """Return the fields of nested dicts and tuples by their joined names."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, tuple):
            value = dict(enumerate(value))
        found |= _leaves(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def vector_obs(size: int) -> ObsSpec:
    """Return the spec of an observation that is a single vector of `size` floats."""
    return ObsSpec((ObsField("", "vector", (size,)),))


def sides_of(teams: Sequence[int]) -> tuple[int, ...]:
    """Return the side of each agent: the index of its team among the sorted teams."""
    sides = sorted(set(teams))
    return tuple(sides.index(team) for team in teams)


def nest(named: Mapping[str, Any]) -> Any:
    """Turn values named `a/b` into nested dicts; a single unnamed value is returned alone."""
    if "" in named:
        return named[""]
    found: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split("/")
        inner = found
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


GAME_OWN = "the game's own"
"""The observation of a game without an observation builder of the user."""


def read_meanings(world: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of a world that define the meaning of observations and actions.

    An agent that was trained with others would misinterpret its observations.
    """
    found = {what: which for what, which in world.items() if what in ("features", "tags", "actions", "observation")}
    return {"observation": GAME_OWN} | found if world else found


@dataclass(frozen=True)
class EnvSpec:
    """Static facts of an environment."""

    name: str
    obs: ObsSpec
    action: ActionSpec
    teams: tuple[int, ...] = (0,)
    """The team of each agent of one environment; its length is the number of agents."""
    terms: tuple[str, ...] = ()
    """Names of the reward terms that the environment reports separately in `Rows.terms`."""
    exact: bool = False
    """Whether `snapshot` holds the whole state, so that a resumed run continues bit for bit."""
    step_seconds: float = 0.0
    """Game time of one step in seconds; 0 if unknown."""
    action_repeat: int = 1
    """Number of times that the game applies each action."""
    behaviours: tuple[str, ...] = ()
    """Names of statistics that are counted per row and episode, such as goals or touches; never rewarded."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks that can be assigned to an env, one per episode; empty if there is only one."""
    target: tuple[str, ...] = ()
    """The tasks that are played unless others are assigned, and on which the policy is evaluated."""
    absences: bool = False
    """Whether rows may be inactive for a whole episode, as in games with a varying number of players."""
    late_resets: bool = False
    """Whether the step after an episode's end only resets (next-step autoreset); its row is inactive."""
    world: tuple[tuple[str, str], ...] = ()
    """External assets and their versions, such as an arena's meshes; a resumed run needs the same."""
    spaces: tuple[Any, Any] | None = dataclass_field(default=None, compare=False, repr=False)
    """The Gymnasium spaces of the env's own observations and actions; None if its rows are all there is."""
    own_threads: bool = False
    """Whether a vector of it is a `Stepper` with its own threads, so that it is not split over others."""

    @property
    def agents(self) -> int:
        """Number of agents, which is the number of rows of one environment."""
        return len(self.teams)

    @property
    def meanings(self) -> dict[str, str]:
        """The facts of its world that define the meaning of observations and actions."""
        return read_meanings(dict(self.world))

    @property
    def competitive(self) -> bool:
        """Whether there is more than one team, so that games are won and lost."""
        return len(set(self.teams)) > 1


def check_tasks(spec: EnvSpec, tasks: Array) -> Array:
    """Return `tasks` [envs] as int64; raise if one is neither -1 nor the index of a task."""
    given = np.asarray(tasks, np.int64).reshape(-1)
    wrong = given[(given < -1) | (given >= len(spec.tasks))]
    if len(wrong):
        known = f"Its tasks are {', '.join(spec.tasks)}." if spec.tasks else "It has no tasks."
        raise ConfigError(f"`{spec.name}` has no task number {wrong[0]}. {known}", "assign -1 for its target tasks")
    return given


def choose_target(name: str, tasks: Sequence[str], own: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return the target tasks of an environment: `given` by `env.target`, or its `own`."""
    for task in given:
        if task not in tasks:
            near = did_you_mean(task, tasks)
            hint = f"tasks: {', '.join(tasks)}" if tasks else "it has no tasks: remove env.target"
            raise ConfigError(f"`env.target`: `{name}` has no task `{task}`.{near}", hint)
    return tuple(given) or tuple(own)


def target_tasks(spec: EnvSpec, first: int, envs: int) -> Array:
    """Return the index [envs] of the task of each env without an assignment: the targets in turn, by global index."""
    numbers = [spec.tasks.index(task) for task in spec.target] or [-1]
    return np.array([numbers[index % len(numbers)] for index in range(first, first + envs)], np.int64)


@dataclass
class Rows:
    """The arrays into which one step of a vector writes its results: views into buffers of the caller.

    Autoreset is same-step: where an episode ended (`terminated` or `truncated`), `obs` is the first observation of the
    next episode and `final_obs` the last one of the episode that ended. `final_obs`, `outcome` and `behaviour` are
    valid only there. `active` is 1 where the row acts on `obs` next; an inactive row is not a transition. `terms` is
    accumulated (`+=`); the caller sets it to zero when a rollout starts.
    """

    obs: Array  # [rows, obs.width] of obs.dtype
    reward: Array  # [rows] float32
    terminated: Array  # [rows] uint8
    truncated: Array  # [rows] uint8
    outcome: Array  # [rows] int8: 1 win, 0 draw, -1 loss
    final_obs: Array  # as obs
    active: Array  # [rows] uint8
    mask: Array  # [rows, sum(sizes)] uint8, or [rows, 0] without masks
    terms: Array  # [rows, len(terms)] float32, accumulated
    behaviour: Array  # [rows, len(behaviours)] float32: the counts of the episode that ended


def empty_rows(spec: EnvSpec, envs: int) -> Rows:
    """Allocate the arrays for one step of `envs` environments."""
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

    The seed of an environment depends only on the run's seed and the environment's global index, so results do not
    depend on how environments are split over processes. A vector is used like this:

        rows = empty_rows(vector.spec, vector.envs)
        vector.reset(rows)
        while True:
            action = agent.act(rows.obs, rows.mask)  # [rows, parts]
            vector.step(action, rows)                # finished environments are reset in the same step
    """

    spec: EnvSpec
    envs: int

    def reset(self, out: Rows) -> None:
        """Reset every environment. Writes `obs`, `active` and `mask` of all rows. Called once before the first step."""

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the environments with these indices within the vector, at any time between two steps.

        Writes their rows of `obs`, `active` and `mask`. With `seeds`, an episode is determined by its seed and the
        actions; a seed of -1 stands for the next one of the environment's own RNG.
        """

    def seeds(self) -> Array:
        """Return the seed [envs] int64 of each current episode, with which `reset_envs` repeats it; -1 if none does."""

    def assign(self, tasks: Array) -> None:
        """Set the index of the task [envs] of each environment for episodes that begin later; -1: a target task."""

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment with `action` [rows, parts] and reset those whose episode ends.

        Writes every array of `out`, which belongs to the caller. Actions of inactive rows are ignored.
        """

    def snapshot(self) -> dict[str, Array]:
        """Return copies of the state of all environments; the first axis of each array is the environment.

        If `spec.exact` is false, the state may be incomplete or empty; the caller then resets instead of restoring.
        """

    def restore(self, state: dict[str, Array]) -> None:
        """Restore the state that `snapshot` returned, of a vector with the same number of environments."""

    def close(self) -> None:
        """Free all resources; may be called twice."""


@runtime_checkable
class Viewed(Vector, Protocol):
    """A vector whose games are rendered from other arrays than those of a snapshot."""

    def view(self) -> dict[str, Array]:
        """Return the arrays from which the current state is rendered; the first axis is the environment."""


@runtime_checkable
class Rendered(Protocol):
    """A vector of environments that draw themselves."""

    render_fps: float | None
    """Images per second at the game's own speed, if the environments declare it."""

    def render(self) -> Any:
        """Return what the first environment's `render` returns: an image [height, width, 3] if it has `rgb_array`."""


@runtime_checkable
class Stepper(Vector, Protocol):
    """A vector whose step is split in two, so that the caller can work while the environments step."""

    def send(self, action: Array, out: Rows) -> None:
        """Begin a step; neither array may be read or written until `receive` returns."""

    def receive(self) -> None:
        """Wait for the step that `send` began."""


@runtime_checkable
class Agent(Protocol):
    """Anything that chooses actions for rows: scripted, trained or exported.

    An agent with memory keeps one recurrent state per row, in the order of the rows that it is given. The caller
    reports the start of episodes with `begin`.
    """

    name: str

    def act(self, obs: Any, mask: Array | None = None) -> Array:
        """Return actions for one observation or a batch of them; observations may be rows or dicts of fields."""

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch into `out`; `streams` [rows, 2] are the RNG streams of the rows."""

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for the rows with indices `rows`; all arrays are indexed by row, `states` [all rows, size] included."""

    def memory(self, rows: int) -> Array:
        """Return the current recurrent states [rows, size], which may be read and written; [rows, 0] without memory."""

    def begin(self, rows: Array | None = None) -> None:
        """Clear the recurrent states of these rows (default: all), because their episodes begin."""
