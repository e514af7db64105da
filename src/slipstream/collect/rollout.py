"""The rollout buffer: the transitions of T steps as arrays [T, rows], in private or shared memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, empty_rows
from slipstream.policies.design import Design
from slipstream.system.slab import Field


@dataclass
class Rollout:
    """The transitions of all rows over T steps; `obs`, `value`, `active` and `mask` have T + 1 steps.

    `active` is 1 where the learning policy acted; other entries are not transitions. Where an episode was truncated,
    `final_value` is the value of its last observation, from which returns are bootstrapped. `state` is the recurrent
    state at the start of each sequence, before its burn-in. `final_obs`, the last observations of ended episodes, is
    kept for off-policy learning only.
    """

    obs: Array  # [T + 1, rows, obs]
    action: Array  # [T, rows, parts] int32 or float32
    log_prob: Array  # [T, rows] float32
    value: Array  # [T + 1, rows] float32
    reward: Array  # [T, rows] float32
    terminated: Array  # [T, rows] uint8
    truncated: Array  # [T, rows] uint8
    outcome: Array  # [T, rows] int8
    final_value: Array  # [T, rows] float32
    active: Array  # [T + 1, rows] uint8
    mask: Array  # [T + 1, rows, options] uint8
    state: Array  # [sequences, rows, size] float32
    final_obs: Array  # [T, rows, obs] or [0, rows, obs]
    terms: Array  # [rows, terms] float32, sums over the rollout

    fault = ""
    """The first report of a transition that was masked because it was not finite, if any."""
    mirror = cast(Any, None)
    """A tensor with the observations [T, rows, obs] on the learner's device, if the collector keeps them there."""

    @property
    def steps(self) -> int:
        """The number of steps, T."""
        return int(self.reward.shape[0])

    def term_sums(self) -> Array:
        """Return the sum of each reward term over the rollout, for rows in which the learning policy acted."""
        acted = self.active[: self.steps].any(axis=0)
        sums: Array = self.terms[acted].sum(axis=0, dtype=np.float64)
        return sums

    def part(self, low: int, high: int) -> Rollout:
        """Return the rows [low, high) of this rollout, as views."""
        views: dict[str, Any] = {f.name: getattr(self, f.name)[:, low:high] for f in fields(self) if f.name != "terms"}
        return Rollout(**views, terms=self.terms[low:high])

    def at(self, t: int, final_obs: Array, behaviour: Array) -> Rows:
        """Return the views into which the vector writes the results of step t."""
        return Rows(
            obs=self.obs[t + 1],
            reward=self.reward[t],
            terminated=self.terminated[t],
            truncated=self.truncated[t],
            outcome=self.outcome[t],
            final_obs=final_obs,
            active=self.active[t + 1],
            mask=self.mask[t + 1],
            terms=self.terms,
            behaviour=behaviour,
        )


def sequence_starts(design: Design, steps: int) -> dict[int, list[int]]:
    """Return the sequences of a rollout by the step at which their recurrent state is stored."""
    starts: dict[int, list[int]] = {}
    if design.state_size:
        for k in range(steps // design.sequence):
            starts.setdefault(max(0, k * design.sequence - design.policy.burn_in), []).append(k)
    return starts


def rollout_fields(spec: EnvSpec, design: Design, steps: int, envs: int) -> dict[str, Field]:
    """Return the fields of one rollout."""
    rows, action, obs = envs * spec.agents, spec.action, spec.obs
    width, kind = obs.width, np.dtype(obs.dtype).name
    return {
        "obs": Field((steps + 1, rows, width), kind),
        "action": Field((steps, rows, action.parts), np.dtype(action.dtype).name),
        "log_prob": Field((steps, rows), "float32"),
        "value": Field((steps + 1, rows), "float32"),
        "reward": Field((steps, rows), "float32"),
        "terminated": Field((steps, rows), "uint8"),
        "truncated": Field((steps, rows), "uint8"),
        "outcome": Field((steps, rows), "int8"),
        "final_value": Field((steps, rows), "float32"),
        "active": Field((steps + 1, rows), "uint8"),
        "mask": Field((steps + 1, rows, action.options), "uint8"),
        "state": Field((steps // design.sequence, rows, design.state_size), "float32"),
        "final_obs": Field((0 if design.value else steps, rows, width), kind),
        "terms": Field((rows, len(spec.terms)), "float32"),
    }


def empty_rollout(spec: EnvSpec, design: Design, steps: int, envs: int) -> Rollout:
    """Allocate a rollout in private memory."""
    fields = rollout_fields(spec, design, steps, envs)
    return Rollout(**{name: np.zeros(field.shape, field.dtype) for name, field in fields.items()})


def copy_rollout(source: Rollout, target: Rollout) -> Rollout:
    """Copy `source` into `target`, which has the same shape; return `target`."""
    for field in fields(Rollout):
        np.copyto(getattr(target, field.name), getattr(source, field.name))
    return target


def view_rollout(slab: Any, prefix: str) -> Rollout:
    """Return the rollout whose fields are in a slab under `prefix`."""
    return Rollout(**{f.name: slab[prefix + f.name] for f in fields(Rollout)})


def now_fields(spec: EnvSpec, envs: int) -> dict[str, Field]:
    """Return the fields, under `now/`, that hold the rows between two rollouts."""
    like = empty_rows(spec, envs)
    return {f"now/{name}": Field(array.shape, array.dtype.name) for name, array in vars(like).items()}


def view_now(slab: Any, low: int, high: int) -> Rows:
    """Return the rows [low, high) between two rollouts, as views."""
    return Rows(**{f.name: slab[f"now/{f.name}"][low:high] for f in fields(Rows)})


def output_rows(slab: Any, low: int, high: int, *, buffers: int) -> list[Rows]:
    """Return all views into which a vector may write the rows [low, high).

    These are the rows to copy from, the rows between two rollouts, and every step of every rollout buffer. What a
    rollout does not hold (`behaviour`, and `final_obs` for on-policy learning) is shared by all steps.
    """
    copied = Rows(**{f.name: slab[f.name][low:high] for f in fields(Rows)})
    now = view_now(slab, low, high)
    outputs = [copied, now]
    for b in range(buffers):
        rollout = view_rollout(slab, f"{b}/").part(low, high)
        finals = [now.final_obs] * rollout.steps if not len(rollout.final_obs) else list(rollout.final_obs)
        outputs += [rollout.at(t, finals[t], now.behaviour) for t in range(rollout.steps)]
    return outputs
