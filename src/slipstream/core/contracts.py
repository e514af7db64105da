"""The seams between the parts: what an environment is, what rows are, what acts.

An environment has A >= 1 agents. A vector of N environments has N * A *rows*, row = env * A + agent.
Everything downstream sees rows and nothing else; a single-agent environment is the case A = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

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

    @property
    def parts(self) -> int:
        """Columns of an action array."""
        return len(self.low) if self.kind == "continuous" else len(self.sizes)

    @property
    def outputs(self) -> int:
        """Numbers the policy head gives: logits, or means."""
        return len(self.low) if self.kind == "continuous" else sum(self.sizes)

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an action array."""
        return np.float32 if self.kind == "continuous" else np.int32


@dataclass(frozen=True)
class EnvSpec:
    """The facts about an environment that everything else is sized by."""

    name: str
    obs_size: int
    """Observations are float32 vectors of this length."""
    action: ActionSpec
    teams: tuple[int, ...] = (0,)
    """The team of each agent of one environment; its length is the number of agents."""
    terms: tuple[str, ...] = ()
    """Names of the reward terms that the environment reports one by one."""
    exact: bool = False
    """Whether `snapshot` holds all there is, so that a resumed run goes on bit for bit."""
    step_seconds: float = 0.0
    """Game time that one step takes, 0 if unknown."""

    @property
    def agents(self) -> int:
        """Rows of one environment."""
        return len(self.teams)

    @property
    def competitive(self) -> bool:
        """Whether there are two sides, so that games are won and lost."""
        return len(set(self.teams)) > 1


@dataclass
class Rows:
    """Where one step of a vector writes its results: views into buffers that the collector owns.

    Autoreset is same-step: where an episode ended (`terminated` or `truncated`), `obs` holds the first
    observation of the next episode and `final_obs` the last one of the old. `final_obs` and `outcome`
    mean something only there. `active` is 1 where the row acts on `obs` next; an inactive row is not a
    transition. `terms` accumulates (`+=`): the collector zeroes it when a rollout starts.
    """

    obs: Array  # [rows, obs_size] float32
    reward: Array  # [rows] float32
    terminated: Array  # [rows] uint8
    truncated: Array  # [rows] uint8
    outcome: Array  # [rows] int8: 1 won, 0 draw, -1 lost
    final_obs: Array  # [rows, obs_size] float32
    active: Array  # [rows] uint8
    mask: Array  # [rows, sum(sizes)] uint8, or [rows, 0] where actions are not masked
    terms: Array  # [rows, len(terms)] float32, accumulated


def empty_rows(spec: EnvSpec, envs: int) -> Rows:
    """Allocate the buffers for one step of `envs` environments."""
    rows = envs * spec.agents
    return Rows(
        obs=np.zeros((rows, spec.obs_size), np.float32),
        reward=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, np.uint8),
        truncated=np.zeros(rows, np.uint8),
        outcome=np.zeros(rows, np.int8),
        final_obs=np.zeros((rows, spec.obs_size), np.float32),
        active=np.ones(rows, np.uint8),
        mask=np.ones((rows, spec.action.outputs if spec.action.masked else 0), np.uint8),
        terms=np.zeros((rows, len(spec.terms)), np.float32),
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

    def reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        """Start the named environments anew, within this vector: writes their rows of `obs`, `active`, `mask`."""

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
class Agent(Protocol):
    """Anything that acts on rows: scripted, trained, exported."""

    name: str

    def act(self, obs: Array, mask: Array | None = None) -> Array:
        """Return actions for one observation [obs] or a batch [rows, obs]."""

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch; draw chance from `streams`, one per row."""
