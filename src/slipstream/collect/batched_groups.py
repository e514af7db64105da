"""From a plan to the groups of a batched collector: memory, environments with their workers, and the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from slipstream.collect.actor import Actor
from slipstream.collect.batched import BatchedCollector
from slipstream.collect.rollout import Rollout, now_fields, places, rollout_fields, view_now, view_rollout
from slipstream.contracts import EnvSpec, Vector
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import OpponentRoster
from slipstream.policies.design import Design, PolicyActor
from slipstream.policies.fused_actor import make_actor
from slipstream.policies.linear_algebra import CHUNK
from slipstream.system.pinned_memory import pin, unpin
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Field, Slab
from slipstream.vector.make import make_vector
from slipstream.vector.processes import StepWorkers, VectorShare, one_place, spread, step_fields
from slipstream.vector.threads import ThreadVector

if TYPE_CHECKING:
    from slipstream.policies.gpu_actor import GPUActor

Mend = Callable[[str, Any, str], None]
"""Is told what is done instead of what the plan wants: a switch, its new value, and why."""


@dataclass(frozen=True)
class BatchedPlan:
    """How the environments of a run are stepped and asked for."""

    envs: int
    workers: int
    groups: int
    vector: str
    """serial, threads or processes."""
    steps: int
    lag: int
    zero_copy: bool = True
    deadline_s: float = 60.0
    inference: str = "cpu"
    """cpu or cuda; where there is no GPU, the CPU plays its part."""
    precision: str = "fp32"
    graphs: bool = False
    pinned: bool = False
    mirror: str = ""
    """The device of the learner for which observations stay there, if they do."""


def split_envs(design: Design, agents: int, envs: int, groups: int) -> list[tuple[int, int]]:
    """The environments [low, high) of each group.

    Torch works in blocks of rows, whose last bits depend on their size: where they fit, groups are whole blocks.
    """
    grain = 1 if design.fused else CHUNK // gcd(CHUNK, agents)
    if envs // groups < grain:
        grain = 1
    bounds = [min(envs, round(low / grain) * grain) for low, _ in spread(envs, groups)]
    found = list(zip(bounds, [*bounds[1:], envs], strict=True))
    return [(low, high) for low, high in found if low < high]


def make_batched(
    choice: EnvChoice, spec: EnvSpec, design: Design, roster: OpponentRoster, state: Mapping[str, Field], how: BatchedPlan, *,
    seed: int, memory: int, mend: Mend,
) -> BatchedCollector:  # fmt: skip
    """Make the collector; `state` is what a snapshot of all environments holds, by name."""
    bounds, buffers = split_envs(design, spec.agents, how.envs, min(how.groups, how.envs)), how.lag + 1
    fields = step_fields(spec, how.envs, len(bounds), how.workers) | now_fields(spec, how.envs)
    for b in range(buffers):
        fields |= {f"{b}/{name}": field for name, field in rollout_fields(spec, design, how.steps, how.envs).items()}
    fields |= {f"state/{name[4:]}": field for name, field in state.items() if name.startswith("env/")}
    slab = Slab(fields)

    def where(env: int, steps: int) -> str:
        return f"Env {env} (seed {env_seeds(seed, env, 1)[0]}, step {steps})"

    make = partial(make_vector, choice, seed=seed)
    vectors, close = _step_by(how, make, spec, bounds, slab, buffers, where)
    rollouts, release = [view_rollout(slab, f"{b}/") for b in range(buffers)], None
    sizes = [(high - low) * spec.agents for low, high in bounds]
    acting: list[PolicyActor] = [make_actor(design)] * len(bounds)
    try:
        staged = _stage(how, design, sizes, rollouts) if how.inference == "cuda" else []
        if staged and how.pinned and staged[0].device != "cpu":
            release = _pin(slab, mend)
    except BaseException:
        close()
        raise
    groups = []
    for vector, (low, high), own in zip(vectors, bounds, staged or acting, strict=True):
        now = view_now(slab, low * spec.agents, high * spec.agents)
        now.active[:], now.mask[:] = 1, 1
        groups.append(Actor(vector, design, seed=seed, roster=roster, memory=memory, first=low, acting=own, now=now))

    def end() -> None:
        if release is not None:
            release()
        close()

    return BatchedCollector(groups, roster, rollouts, how.lag, end, staged)


def _stage(how: BatchedPlan, design: Design, sizes: list[int], rollouts: list[Rollout]) -> list[GPUActor]:
    """The acting policy of each group on the GPU, and mirrors of the rollouts' observations there."""
    import torch

    from slipstream.policies.gpu_actor import GPUActor

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for rollout in rollouts if how.mirror == device else ():
        empty = torch.from_numpy(rollout.obs[:0])
        rollout.mirror = torch.zeros(how.steps, *rollout.obs.shape[1:], dtype=empty.dtype, device=device)
    return [
        GPUActor(design, rows, device, graphs=how.graphs, pinned=how.pinned, precision=how.precision) for rows in sizes
    ]


def _pin(slab: Slab, mend: Mend) -> Callable[[], None] | None:
    """Page-lock the slab; return what lets it go again."""
    if failed := pin(slab):
        mend("pinned", False, failed)
        return None
    return partial(unpin, slab)


def _step_by(
    how: BatchedPlan, make: Callable[..., Vector], spec: EnvSpec, bounds: list[tuple[int, int]], slab: Slab, buffers: int,
    where: Callable[[int, int], str],
) -> tuple[list[Vector], Callable[[], None]]:  # fmt: skip
    """The vector of each group, and what ends them all."""
    if how.vector == "processes":
        seen = partial(places, buffers=buffers) if how.zero_copy else one_place
        hands = StepWorkers(make, spec, bounds, how.workers, how.deadline_s, slab, seen, where)
        return [VectorShare(hands, group) for group in range(len(bounds))], hands.close
    if spec.own_threads:
        return [make(high - low, first=low) for low, high in bounds], slab.close
    workers = how.workers if how.vector == "threads" else 1
    made = [ThreadVector(make, spec, high - low, workers, how.deadline_s, low, where) for low, high in bounds]
    return list(made), slab.close
