"""Agents without weights: uniformly random, and the scripted players of a game."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsSpec
from slipstream.envs.registry import Chooser, ScriptedPlayer
from slipstream.system.numba_compile import compiled
from slipstream.system.rng import make_streams, uniform


@compiled
def draw_uniform(streams: Array, sizes: Array, low: Array, high: Array, mask: Array, out: Array) -> None:
    """Write uniformly random actions; masked options are never chosen."""
    for row in range(out.shape[0]):
        start = 0
        for part in range(sizes.size):
            allowed = sizes[part]
            if mask.shape[1]:
                allowed = 0
                for j in range(sizes[part]):
                    allowed += mask[row, start + j]
            remaining = min(int(uniform(streams, row) * np.float32(allowed)), allowed - 1)
            for j in range(sizes[part]):
                if mask.shape[1] == 0 or mask[row, start + j]:
                    if remaining == 0:
                        out[row, part] = j
                        break
                    remaining -= 1
            start += sizes[part]
        for k in range(low.size):
            out[row, sizes.size + k] = low[k] + np.float32(uniform(streams, row)) * (high[k] - low[k])


class BatchAgent:
    """The base class of agents: takes one observation or a batch and returns actions."""

    name: str
    obs: ObsSpec
    action: ActionSpec
    _streams: Array | None = None

    def act(self, obs: Any, mask: Array | None = None) -> Array:
        """Return actions for one observation or a batch of them; an observation with fields may be a dict.

        A recurrent agent continues from its last call; `begin` resets its state for a new episode.
        """
        rows = self.obs.encode(obs)
        batch = np.atleast_2d(rows)
        masks = np.ones((len(batch), self.action.options), np.uint8)
        if mask is not None and self.action.masked:
            masks[:] = mask
        if self._streams is None or len(self._streams) < len(batch):
            self._streams = make_streams(0, self.name[:8], 0, len(batch))
        out = np.zeros((len(batch), self.action.parts), self.action.dtype)
        self.act_into(batch, masks, self._streams, out)
        result: Array = out[:, 0] if self.action.kind == "discrete" else out
        return result if rows.ndim > 1 else result[0]

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch; `streams` holds one RNG stream per row."""
        raise NotImplementedError

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows of a batch, all arrays indexed by row; `states` [all rows, size] are recurrent states."""
        own_streams, actions = streams[rows], out[rows]
        if states.shape[1]:
            self.memory(len(rows))[:] = states[rows]
        self.act_into(obs[rows], mask[rows], own_streams, actions)
        if states.shape[1]:
            states[rows] = self.memory(len(rows))
        out[rows], streams[rows] = actions, own_streams

    @property
    def values(self) -> Array | None:
        """The value estimates of the last act, indexed by row; None if the agent has no value function."""
        return None

    def memory(self, rows: int) -> Array:
        """The recurrent states [rows, size]; empty here."""
        return np.zeros((rows, 0), np.float32)

    def begin(self, rows: Array | None = None) -> None:
        """Reset the recurrent states of some rows, or of all; there are none here."""


class RandomAgent(BatchAgent):
    """Samples actions uniformly; unbounded continuous actions are drawn from [-1, 1]."""

    def __init__(self, spec: EnvSpec) -> None:
        self.name = "random"
        self.obs = spec.obs
        self.action = action = spec.action
        self._sizes = np.array(action.sizes, np.int64)
        self._low = np.array([x if np.isfinite(x) else -1.0 for x in action.low], np.float32)
        self._high = np.array([x if np.isfinite(x) else 1.0 for x in action.high], np.float32)

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write uniformly random actions."""
        draw_uniform(streams, self._sizes, self._low, self._high, mask, out)


class ChoosingAgent(BatchAgent):
    """A scripted player that samples uniformly from the options that its script marks."""

    def __init__(self, name: str, spec: EnvSpec, choose: Chooser) -> None:
        self.name = name
        self.obs, self.action = spec.obs, spec.action
        self._choose, self._sizes = choose, np.array(spec.action.sizes, np.int64)

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Sample from the marked options, or from all allowed ones if none is marked."""
        marked = self._choose(np.ascontiguousarray(obs))
        empty = np.zeros(0, np.float32)
        unmarked = ~marked.any(axis=1)
        marked[unmarked] = mask[unmarked] if mask.shape[1] else 1
        draw_uniform(streams, self._sizes, empty, empty, marked, out)


class ScriptedAgent(BatchAgent):
    """A scripted player of a game; its actions are a function of the observation."""

    def __init__(self, name: str, spec: EnvSpec, script: ScriptedPlayer) -> None:
        self.name = name
        self.obs, self.action = spec.obs, spec.action
        self._script = script

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write the script's actions."""
        self._script(np.ascontiguousarray(obs), self.action, out)
