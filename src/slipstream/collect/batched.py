"""The batched collector: workers step environments in groups, and one policy chooses for all of them.

While the policy chooses for one group, the others step. A group is an actor whose vector can be told to step and waited
for; rows are independent, so groups change nothing about what is collected. At lag 1 a thread makes the next rollout,
with the weights of one version before, while the learner works.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from slipstream.collect.actor import Actor
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, Stepper
from slipstream.play.assignments import FinishedGame, OpponentRoster

if TYPE_CHECKING:
    from slipstream.policies.gpu_actor import GPUActor

ENDING_S = 2.0
"""How long a rollout that nobody wants any more may take to be given up."""


class Stopped(Exception):
    """The collector is being closed."""


class BatchedCollector:
    """Groups of environments and the policy that chooses for all of them."""

    def __init__(
        self, groups: Sequence[Actor], roster: OpponentRoster, rollouts: Sequence[Rollout], lag: int, close: Callable[[], None],
        staged: Sequence[GPUActor] = (),
    ) -> None:  # fmt: skip
        self.lag = lag
        self.groups = list(groups)
        self._roster, self._close = roster, close
        self._acting = list({id(group.acting): group.acting for group in groups}.values())
        self._staged = list(staged)
        """The acting policies of the groups, where they are on another device."""
        self._rollouts = list(rollouts)
        spec = groups[0].vector.spec
        ends = np.cumsum([group.vector.envs for group in groups]).tolist()
        self._envs = list(zip([0, *ends], ends, strict=False))
        self._parts = [[r.part(low * spec.agents, high * spec.agents) for low, high in self._envs] for r in rollouts]
        self._agents = spec.agents
        self._packs: dict[int, tuple[Array, Array]] = {}
        self._found: dict[int, list[FinishedGame]] = {}
        self._starts: dict[int, dict[str, Array]] = {}
        """What rollouts start from, where they are made ahead of time."""
        self._asked = 0
        self._stopping = False
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="collect", daemon=True) if lag else None

    @property
    def failed(self) -> dict[int, str]:
        """Frozen players that failed, and how."""
        return self._roster.faults

    def publish(self, version: int, params_and_stats: Array, seats: Array, players: Sequence[str] = ()) -> None:
        """Give the weights and normaliser of a version and the seats of games begun with them; let more players in."""
        self._packs[version] = params_and_stats.copy(), seats.copy()
        self._packs.pop(version - 2, None)
        self._roster.add(players)

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""
        _, seats = self._packs[max(version - self.lag, 0)]
        for group, (low, high) in zip(self.groups, self._envs, strict=True):
            if state is None:
                group.reset(seats[low:high])
            else:
                group.restore({name: self._share(name, array, low, high) for name, array in state.items()},
                              seats[low:high])  # fmt: skip
        if self._thread is not None:
            self._starts[version] = self._snapshot()
            self._thread.start()
            for rollout in range(version, version + 2):
                self._ask(rollout)

    def ahead(self, version: int) -> None:
        """Nothing: whoever asks for a rollout makes it."""

    def collect(self, version: int) -> Rollout:
        """Return rollout number `version`; at lag 1 the next one is already being made."""
        if self._thread is None:
            self._make(version)
        else:
            if self._asked == version + 1:
                self._ask(version + 1)
            _, error = self._made.get()
            if error is not None:
                raise error
        return self._rollouts[version % len(self._rollouts)]

    def matches(self, version: int) -> list[FinishedGame]:
        """The games that ended in rollout number `version`, in the order of time."""
        return self._found.pop(version, [])

    def snapshot(self, version: int) -> dict[str, Array]:
        """What rollout number `version`, the next one to be trained on, starts from."""
        if self._thread is None:
            return self._snapshot()
        self._starts = {number: start for number, start in self._starts.items() if number >= version}
        return self._starts[version]

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call, and graphs that could not be captured."""
        told = [
            f"plan.graphs is off for acting: {staged.graph_error}." for staged in self._staged if staged.graph_error
        ]
        for staged in self._staged:
            staged.graph_error = ""
        return told + [fault for group in self.groups for fault in group.guard.drain()]

    def seconds(self) -> tuple[float, float]:
        """Time that was waited for environments, and time spent choosing, so far."""
        waited, chose = np.sum([group.seconds for group in self.groups], axis=0).tolist()
        return float(waited), float(chose)

    def close(self) -> None:
        """Give up what is being made and end the workers."""
        self._stopping = True
        if self._thread is not None and self._thread.is_alive():
            self._wanted.put(None)
            self._thread.join(ENDING_S)
        self._parts, self._rollouts = [], []
        for group in self.groups:
            group.vector.close()
        self._close()

    def _ask(self, rollout: int) -> None:
        self._asked = rollout + 1
        self._wanted.put(rollout)

    def _serve(self) -> None:
        """The thread of lag 1: make rollouts as they are asked for."""
        while (version := self._wanted.get()) is not None:
            error: BaseException | None = None
            try:
                self._make(version)
                self._starts[version + 1] = self._snapshot()
            except BaseException as caught:  # the one who waits for the rollout must hear of it, whatever it is
                error = caught
            self._made.put((version, error))

    def _make(self, version: int) -> None:
        """Fill a rollout: each group in turn is waited for, chosen for, and set off again."""
        params_and_stats, seats = self._packs[max(version - self.lag, 0)]
        for acting in self._acting:
            acting.load(params_and_stats)
        parts = self._parts[version % len(self._parts)]
        self._keep_mirror(self._rollouts[version % len(self._parts)])
        for group, part, (low, high) in zip(self.groups, parts, self._envs, strict=True):
            group.begin(part, seats[low:high])
            self._set_off(group, 0)
        for t in range(1, parts[0].steps + 1):
            for group in self.groups:
                self._await(group, t - 1)
                if t < parts[0].steps:
                    self._set_off(group, t)
                else:
                    group.finish()
        for staged in self._staged:
            staged.flush()
        found = [(t, match) for group in self.groups for t, match in group.drain()]
        self._found[version] = [match for _, match in sorted(found, key=lambda one: (one[0], one[1].env))]

    def _keep_mirror(self, rollout: Rollout) -> None:
        """Let every group's observations stay where they are sent, if the learner wants them there."""
        for staged, (low, high) in zip(self._staged, self._envs if self._staged else (), strict=True):
            rows = slice(low * self._agents, high * self._agents)
            staged.mirror_obs(None if rollout.mirror is None else rollout.mirror[:, rows])

    def _set_off(self, group: Actor, t: int) -> None:
        if self._stopping:
            raise Stopped
        group.choose(t)
        cast(Stepper, group.vector).send(group.action, group.rows)

    def _await(self, group: Actor, t: int) -> None:
        began = perf_counter()
        cast(Stepper, group.vector).receive()
        group.seconds[0] += perf_counter() - began
        group.settle(t)

    def _snapshot(self) -> dict[str, Array]:
        states = [group.snapshot() for group in self.groups]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def _share(self, name: str, array: Array, low: int, high: int) -> Any:
        each = self._agents if name.startswith("row/") else 1
        return array[low * each : high * each]
