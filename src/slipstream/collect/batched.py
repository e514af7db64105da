"""The batched collector: workers step environments in groups, and one policy chooses actions for all of them.

While the policy chooses for one group, the other groups step. A group is an actor whose vector has `send` and
`receive`. Rows are independent, so the number of groups does not change what is collected. At lag 1 a thread makes the
next rollout, with the weights of the previous version, during the update.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from slipstream.agents.guarded import stuck_fault
from slipstream.collect.actor import Actor
from slipstream.collect.rollout import (
    Rollout,
    now_fields,
    output_rows,
    rollout_fields,
    view_now,
    view_rollout,
)
from slipstream.contracts import Array, EnvSpec, Stepper, Vector
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import FinishedGame, Players
from slipstream.policies.design import Design, PolicyActor
from slipstream.policies.fused_actor import make_actor
from slipstream.policies.linear_algebra import CHUNK
from slipstream.system.pinned_memory import pin, unpin
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Field, Slab
from slipstream.vector.make import make_vector
from slipstream.vector.processes import StepWorkers, VectorShare, copied_rows, spread, step_fields
from slipstream.vector.threads import ThreadVector

if TYPE_CHECKING:
    from slipstream.policies.gpu_actor import GPUActor

FallBack = Callable[[str, Any, str], None]
"""Called with a switch of the plan, the value that is applied instead, and why."""
JOIN_S = 2.0
"""How long `close` waits for a rollout that is no longer needed to be abandoned."""


POLL_S = 1.0
"""How often `collect` checks whether an agent blocks the thread that makes rollouts."""


class Stopped(Exception):
    """The collector is being closed."""


class BatchedCollector:
    """Groups of environments and the policy that chooses actions for all of them."""

    def __init__(
        self,
        groups: Sequence[Actor],
        roster: Players,
        rollouts: Sequence[Rollout],
        lag: int,
        close: Callable[[], None],
        gpu_actors: Sequence[GPUActor] = (),
    ) -> None:
        self.lag = lag
        self.groups = list(groups)
        self._roster, self._close = roster, close
        self._policies = list({id(group.policy): group.policy for group in groups}.values())
        self._gpu_actors = list(gpu_actors)
        """The policies of the groups, where they run on a GPU."""
        self._rollouts = list(rollouts)
        spec = groups[0].vector.spec
        ends = np.cumsum([group.vector.envs for group in groups]).tolist()
        self._envs = list(zip([0, *ends], ends, strict=False))
        self._parts = [[r.part(low * spec.agents, high * spec.agents) for low, high in self._envs] for r in rollouts]
        self._agents = spec.agents
        self._published: dict[int, tuple[Array, Array]] = {}
        """Weights and assignments by version."""
        self._finished: dict[int, list[FinishedGame]] = {}
        self._starts: dict[int, dict[str, Array]] = {}
        """At lag 1, the states from which rollouts start."""
        self._next_request = 0
        self._stopping = False
        self._requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="collect", daemon=True) if lag else None

    @property
    def failed(self) -> dict[int, str]:
        """Opponents that failed, by player number, with the reason."""
        return self._roster.faults

    def publish(self, version: int, params_and_stats: Array, assignments: Array, players: Sequence[str] = ()) -> None:
        """Set the weights of a version and the assignments of games that begin with it; add new opponents."""
        self._published[version] = params_and_stats.copy(), assignments.copy()
        self._published.pop(version - 2, None)
        self._roster.add(players)

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Start with rollout number `version`, from a snapshot if there is one."""
        _, assignments = self._published[max(version - self.lag, 0)]
        for group, (low, high) in zip(self.groups, self._envs, strict=True):
            if state is None:
                group.reset(assignments[low:high])
            else:
                own = {name: self._part_of(name, array, low, high) for name, array in state.items()}
                group.restore(own, assignments[low:high])
        if self._thread is not None:
            self._starts[version] = self._snapshot()
            self._thread.start()
            for rollout in range(version, version + 2):
                self._request(rollout)

    def prefetch(self, version: int) -> None:
        """Do nothing: at lag 0 a rollout is made when `collect` is called, at lag 1 the thread makes it."""

    def collect(self, version: int) -> Rollout:
        """Return rollout number `version`; at lag 1 the next one is already being made."""
        if self._thread is None:
            self._make(version)
        else:
            if self._next_request == version + 1:
                self._request(version + 1)
            error = self._wait()
            if error is not None:
                raise error
        rollout = self._rollouts[version % len(self._rollouts)]
        rollout.fault = next((fault for group in self.groups if (fault := group.guard.first_fault)), "")
        return rollout

    def _wait(self) -> BaseException | None:
        """Wait for the thread's next rollout; return what it raised, or the fault of an agent that blocks it."""
        assert self._thread is not None
        while True:
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=POLL_S)[1]
            if (fault := stuck_fault(self._thread.ident)) is not None:
                return fault

    def finished_games(self, version: int) -> list[FinishedGame]:
        """Return the games that ended in rollout number `version`, ordered by time."""
        return self._finished.pop(version, [])

    def snapshot(self, version: int) -> dict[str, Array]:
        """Return the state from which rollout number `version`, the next one to be trained on, starts."""
        if self._thread is None:
            return self._snapshot()
        self._starts = {number: start for number, start in self._starts.items() if number >= version}
        return self._starts[version]

    def drain_faults(self) -> list[str]:
        """Return reports of what was kept out of the batch since the last call, and of failed graph captures."""
        reports = [
            f"plan.graphs is off for acting: {actor.graph_error}." for actor in self._gpu_actors if actor.graph_error
        ]
        for actor in self._gpu_actors:
            actor.graph_error = ""
        return reports + [fault for group in self.groups for fault in group.guard.drain()]

    def seconds(self) -> tuple[float, float]:
        """Return the seconds spent waiting for environments and choosing actions so far."""
        waited, chose = np.sum([group.seconds for group in self.groups], axis=0).tolist()
        return float(waited), float(chose)

    def close(self) -> None:
        """Abandon the rollout that is being made and end the workers."""
        self._stopping = True
        if self._thread is not None and self._thread.is_alive():
            self._requests.put(None)
            self._thread.join(JOIN_S)
        self._parts, self._rollouts = [], []
        for group in self.groups:
            group.vector.close()
        self._close()

    def _request(self, rollout: int) -> None:
        self._next_request = rollout + 1
        self._requests.put(rollout)

    def _serve(self) -> None:
        """The thread of lag 1: make rollouts on request."""
        while (version := self._requests.get()) is not None:
            error: BaseException | None = None
            try:
                self._make(version)
                self._starts[version + 1] = self._snapshot()
            except BaseException as caught:  # raised again by `collect`
                error = caught
            self._done.put((version, error))

    def _make(self, version: int) -> None:
        """Fill a rollout: for each group in turn wait for its step, choose actions and send the next step."""
        params_and_stats, assignments = self._published[max(version - self.lag, 0)]
        for policy in self._policies:
            policy.load(params_and_stats)
        parts = self._parts[version % len(self._parts)]
        self._keep_obs_on_device(self._rollouts[version % len(self._parts)])
        for group, part, (low, high) in zip(self.groups, parts, self._envs, strict=True):
            group.begin_rollout(part, assignments[low:high])
            self._send_step(group, 0)
        for t in range(1, parts[0].steps + 1):
            for group in self.groups:
                self._receive_step(group, t - 1)
                if t < parts[0].steps:
                    self._send_step(group, t)
                else:
                    group.finish_rollout()
        for actor in self._gpu_actors:
            actor.flush()
        finished = [(t, game) for group in self.groups for t, game in group.drain_finished()]
        self._finished[version] = [game for _, game in sorted(finished, key=lambda item: (item[0], item[1].env))]

    def _keep_obs_on_device(self, rollout: Rollout) -> None:
        """Keep the observations that are sent to the GPU in the rollout's mirror, if it has one."""
        for actor, (low, high) in zip(self._gpu_actors, self._envs if self._gpu_actors else (), strict=True):
            rows = slice(low * self._agents, high * self._agents)
            actor.mirror_obs(None if rollout.mirror is None else rollout.mirror[:, rows])

    def _send_step(self, group: Actor, t: int) -> None:
        if self._stopping:
            raise Stopped
        group.choose_actions(t)
        cast(Stepper, group.vector).send(group.action, group.rows)

    def _receive_step(self, group: Actor, t: int) -> None:
        began = perf_counter()
        cast(Stepper, group.vector).receive()
        group.seconds[0] += perf_counter() - began
        group.process_step(t)

    def _snapshot(self) -> dict[str, Array]:
        states = [group.snapshot() for group in self.groups]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def _part_of(self, name: str, array: Array, low: int, high: int) -> Any:
        each = self._agents if name.startswith("row/") else 1
        return array[low * each : high * each]


@dataclass(frozen=True)
class BatchedPlan:
    """The switches of the plan that the batched collector follows."""

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
    """cpu or cuda; without a GPU, the CPU runs the code of the GPU."""
    precision: str = "fp32"
    graphs: bool = False
    pinned: bool = False
    mirror: str = ""
    """The learner's device, if observations are kept there; else empty."""


def make_batched(
    choice: EnvChoice,
    spec: EnvSpec,
    design: Design,
    roster: Players,
    state_fields: Mapping[str, Field],
    plan: BatchedPlan,
    *,
    seed: int,
    memory: int,
    fall_back: FallBack,
) -> BatchedCollector:
    """Make the collector: shared memory, vectors with their workers, policies and groups.

    `state_fields` are the fields of a snapshot of all environments, by name.
    """
    bounds, buffers = split_envs(design, spec.agents, plan.envs, min(plan.groups, plan.envs)), plan.lag + 1
    fields = step_fields(spec, plan.envs, len(bounds), plan.workers) | now_fields(spec, plan.envs)
    for b in range(buffers):
        fields |= {f"{b}/{name}": field for name, field in rollout_fields(spec, design, plan.steps, plan.envs).items()}
    fields |= {f"state/{name[4:]}": field for name, field in state_fields.items() if name.startswith("env/")}
    slab = Slab(fields)

    def where(env: int, steps: int) -> str:
        return f"Env {env} (seed {env_seeds(seed, env, 1)[0]}, step {steps})"

    make = partial(make_vector, choice, seed=seed)
    vectors, close = _make_vectors(plan, make, spec, bounds, slab, buffers, where)
    rollouts, release = [view_rollout(slab, f"{b}/") for b in range(buffers)], None
    sizes = [(high - low) * spec.agents for low, high in bounds]
    cpu_policies: list[PolicyActor] = [make_actor(design)] * len(bounds)
    try:
        gpu_actors = _make_gpu_actors(plan, design, sizes, rollouts) if plan.inference == "cuda" else []
        if gpu_actors and plan.pinned and gpu_actors[0].device != "cpu":
            release = _pin(slab, fall_back)
    except BaseException:
        close()
        raise
    groups = []
    for vector, (low, high), policy in zip(vectors, bounds, gpu_actors or cpu_policies, strict=True):
        now = view_now(slab, low * spec.agents, high * spec.agents)
        now.active[:], now.mask[:] = 1, 1
        groups.append(Actor(vector, design, seed=seed, roster=roster, memory=memory, first=low, policy=policy, now=now))

    def end() -> None:
        if release is not None:
            release()
        close()

    return BatchedCollector(groups, roster, rollouts, plan.lag, end, gpu_actors)


def split_envs(design: Design, agents: int, envs: int, groups: int) -> list[tuple[int, int]]:
    """Return the environments [low, high) of each group.

    Torch computes in blocks of rows, and the last bits of its results depend on their size. Groups consist of whole
    blocks where there are enough environments.
    """
    grain = 1 if design.fused else CHUNK // gcd(CHUNK, agents)
    if envs // groups < grain:
        grain = 1
    bounds = [min(envs, round(low / grain) * grain) for low, _ in spread(envs, groups)]
    found = list(zip(bounds, [*bounds[1:], envs], strict=True))
    return [(low, high) for low, high in found if low < high]


def _make_vectors(
    plan: BatchedPlan,
    make: Callable[..., Vector],
    spec: EnvSpec,
    bounds: list[tuple[int, int]],
    slab: Slab,
    buffers: int,
    where: Callable[[int, int], str],
) -> tuple[list[Vector], Callable[[], None]]:
    """Return the vector of each group, and a function that ends them all."""
    if plan.vector == "processes":
        outputs = partial(output_rows, buffers=buffers) if plan.zero_copy else copied_rows
        workers = StepWorkers(make, spec, bounds, plan.workers, plan.deadline_s, slab, outputs, where)
        return [VectorShare(workers, group) for group in range(len(bounds))], workers.close
    if spec.own_threads:
        return [make(high - low, first=low) for low, high in bounds], slab.close
    threads = plan.workers if plan.vector == "threads" else 1
    made = [ThreadVector(make, spec, high - low, threads, plan.deadline_s, low, where) for low, high in bounds]
    return list(made), slab.close


def _make_gpu_actors(plan: BatchedPlan, design: Design, sizes: list[int], rollouts: list[Rollout]) -> list[GPUActor]:
    """Return a policy on the GPU for each group; add mirrors of the observations there to the rollouts."""
    import torch

    from slipstream.policies.gpu_actor import GPUActor

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for rollout in rollouts if plan.mirror == device else ():
        empty = torch.from_numpy(rollout.obs[:0])
        rollout.mirror = torch.zeros(plan.steps, *rollout.obs.shape[1:], dtype=empty.dtype, device=device)
    return [
        GPUActor(design, rows, device, graphs=plan.graphs, pinned=plan.pinned, precision=plan.precision)
        for rows in sizes
    ]


def _pin(slab: Slab, fall_back: FallBack) -> Callable[[], None] | None:
    """Page-lock the slab; return a function that unlocks it, or None if that was not possible."""
    if failed := pin(slab):
        fall_back("pinned", False, failed)
        return None
    return partial(unpin, slab)
