"""The device collector: environments, policy and rollout on one device, a whole rollout captured as one CUDA graph.

On a GPU the host starts one graph per rollout, and starts the next one before it writes metrics. The same code runs on
the CPU without graphs, for tests: it uses the same random streams as the local collector, so both make the same
rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from slipstream.collect.rollout import rollout_fields, sequence_starts
from slipstream.contracts import Array, empty_rows, sides_of
from slipstream.play.assignments import SELF, FinishedGame, TrainingGames
from slipstream.policies.design import ActOutputs
from slipstream.policies.device_net import DeviceNet
from slipstream.policies.distributions import bound_row, sample
from slipstream.policies.parameter_layout import HEAD_LOG_STD, HEAD_VALUE
from slipstream.system.gpu_kernels import capture, launch
from slipstream.system.numba_compile import compiled, compiled_fused
from slipstream.system.rng import make_streams
from slipstream.vector.device import DeviceVector, side_by_side

LISTED_GAMES = 8
"""Games that ended in a rollout and are reported one by one; there may be thousands."""
LISTED_EPISODES = 16
"""Episodes that ended in a rollout whose return and length are reported."""
RETURN, LENGTH, OUTCOME, ENDED = range(4)
"""Columns of the statistics of the last episode of each row that ended in a rollout."""


class DeviceOutputs(NamedTuple):
    """The outputs of the policy for all rows."""

    policy: Any  # [rows, columns]
    value: Any  # [rows, columns]
    value_column: int
    log_std: Any
    head: Any
    probs: Any  # [rows, outputs]: workspace


@compiled_fused
def sample_row(row: int, active: Array, outputs: DeviceOutputs, streams: Array, result: ActOutputs) -> None:
    """Sample the action of one row, if it is active."""
    if active[row] == 0:
        return
    result.log_prob[row] = sample(
        outputs.policy[row], outputs.log_std, outputs.head, streams, row, outputs.probs[row], result.action[row]
    )
    result.value[row] = outputs.value[row, outputs.value_column]


@compiled
def reset_row(row: int, terminated: Array, truncated: Array, memory: Array, last: Array) -> None:
    """Reset the recurrent state of a row whose episode ended, after copying it to `last`."""
    if terminated[row] or truncated[row]:
        for k in range(memory.shape[1]):
            last[row, k] = memory[row, k]
            memory[row, k] = np.float32(0)


@compiled
def track_row(
    row: int,
    reward: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    active: Array,
    returns: Array,
    lengths: Array,
    ended: Array,
) -> None:
    """Carry the episode of one row through a rollout; write the last episode that ended into `ended` [rows, 4]."""
    ended[row, ENDED] = 0.0
    for t in range(reward.shape[0]):
        returns[row] += reward[t, row]
        lengths[row] += active[t, row]
        if terminated[t, row] or truncated[t, row]:
            if lengths[row]:
                ended[row, RETURN], ended[row, LENGTH] = returns[row], lengths[row]
                ended[row, OUTCOME] = outcome[t, row]
                ended[row, ENDED] += 1.0
            returns[row] = 0.0
            lengths[row] = 0


@dataclass
class DeviceRollout:
    """The fields of `Rollout` as tensors on the device, and `inputs`: the normalised observations."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    outcome: Tensor
    final_value: Tensor
    active: Tensor
    mask: Tensor
    state: Tensor
    final_obs: Tensor
    terms: Tensor
    inputs: Tensor  # [T, rows, width]
    episodes: Tensor  # [rows, 4]
    summed: Tensor  # [terms]
    ended: Tensor  # [shown, 5]: some of the episodes that ended, and in the last column the number of all of them

    fault = ""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.reward)

    def term_sums(self) -> Array:
        """Each reward term's sum over the rollout."""
        sums: Array = self.summed.cpu().numpy()
        return sums


class LazyArrays(Mapping[str, Array]):
    """Arrays that are copied from the device when one of them is read."""

    def __init__(self, load: Callable[[], dict[str, Array]]) -> None:
        self._load = load
        self._held: dict[str, Array] | None = None

    def _arrays(self) -> dict[str, Array]:
        if self._held is None:
            self._held = self._load()
        return self._held

    def __getitem__(self, name: str) -> Array:
        return self._arrays()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays())

    def __len__(self) -> int:
        return len(self._arrays())


class DeviceCollector:
    """Makes rollouts on the device of `net`, whose weights are shared with the learner."""

    lag = 0

    def __init__(self, game: DeviceVector, net: DeviceNet, *, steps: int, seed: int, graphs: bool) -> None:
        spec, design, device = game.spec, net.design, net.device
        rows = game.envs * spec.agents
        self.game, self.net, self.failed = game, net, dict[int, str]()
        self.rollout = _empty(game, net, steps)
        self._graphs, self._graph = graphs and device != "cpu", cast(Any, None)
        self._streams = side_by_side(torch.from_numpy(make_streams(seed, "act", 0, rows)).to(device), (rows,))
        self._others = make_streams(seed, "opponent", 0, rows)
        self._memory = torch.zeros(rows, design.state_size, device=device)
        self._last = torch.zeros_like(self._memory)
        self.returns = torch.zeros(rows, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        now = empty_rows(spec, game.envs)
        self._obs, self._active = (torch.from_numpy(part).to(device) for part in (now.obs, now.active))
        self._final_obs, self._behaviour = (
            torch.from_numpy(part).to(device) for part in (now.final_obs, now.behaviour)
        )
        self._final = torch.zeros(rows, device=device)
        self._all = torch.ones(rows, dtype=torch.uint8, device=device)
        self._probs = torch.zeros(max(1, design.outputs), rows, device=device).T
        self._env_action = torch.zeros(rows, spec.action.parts, device=device)
        self._head = torch.from_numpy(design.stack.head).to(device)
        self._bounds = [
            torch.tensor(side, dtype=torch.float32, device=device) for side in (spec.action.low, spec.action.high)
        ]
        self._sides = torch.tensor(sides_of(spec.teams), device=device)
        self._games = torch.zeros(
            math.gcd(game.envs, LISTED_GAMES), 4 + 2 * len(spec.behaviours), dtype=torch.float64, device=device
        )
        self._start_tensors: list[Tensor] = [tensor.clone() for tensor in self._state_tensors()]
        self._made = 0
        """The number of the next rollout to make."""
        self._prefetched = False
        """Whether the last rollout was started and not collected yet."""
        self._normaliser = np.zeros(0, np.float32)
        """The normaliser that was loaded last."""

    def publish(self, version: int, params_and_stats: Array, assignments: Array, players: Sequence[str] = ()) -> None:
        """Load the normaliser; the weights are shared with the learner. Every game is self-play."""
        assert (assignments[:, 1] == SELF).all()
        assert not players
        normaliser = params_and_stats[len(params_and_stats) - 2 * self.net.design.numbers :]
        if not np.array_equal(normaliser, self._normaliser):
            self._normaliser = normaliser.copy()
            self.net.load_normaliser(params_and_stats)

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Start with rollout number `version`, from a snapshot if there is one."""
        vector, self._made = self.game.vector, version
        now = empty_rows(self.game.spec, self.game.envs)
        if state is None:
            vector.reset(now)
            self._memory.zero_()
        else:
            vector.restore({name[4:]: array for name, array in state.items() if name.startswith("env/")})
            now.obs[:], now.active[:] = state["row/obs"], state["row/active"]
            self._streams.copy_(torch.from_numpy(state["row/streams"]))
            self._memory.copy_(torch.from_numpy(state["row/memory"]))
        self.game.push()
        self._obs.copy_(torch.from_numpy(now.obs))
        self._active.copy_(torch.from_numpy(now.active))

    def prepare(self) -> None:
        """Compile and capture a rollout, so that the first one is as fast as the others."""
        if self._graphs:
            changed = [*self._state_tensors(), self.rollout.action, self.rollout.log_prob]
            self._graph = capture(self._roll, 1, changed)

    def prefetch(self, version: int) -> None:
        """Start rollout number `version`, which a GPU makes while the host writes metrics.

        Nothing on the CPU, where the host would wait, and the game's state is not among the tensors that are kept.
        """
        if self.net.device != "cpu":
            self._start_rollout(version)

    def _start_rollout(self, version: int) -> None:
        self._made, self._prefetched = version + 1, True
        if self._graph is None:
            self._roll()
        else:
            self._graph.replay()

    def collect(self, version: int) -> DeviceRollout:
        """Make rollout number `version`, or wait for it if it was started before."""
        if not self._prefetched:
            self._start_rollout(version)
        self._prefetched = False
        if self._graph is not None:
            # The learner would wait here anyway; this way the time counts as collecting. Without the index torch asks
            # the driver for the number of GPUs, which takes 0.1 ms.
            torch.cuda.synchronize(self.rollout.reward.get_device())
        return self.rollout

    def finished_games(self, version: int) -> list[FinishedGame]:
        """Some of the games that ended in the last rollout."""
        names = len(self.game.spec.behaviours)
        found = []
        for row in self._games.cpu().numpy():
            if row[ENDED]:
                own, theirs = tuple(row[4 : 4 + names].tolist()), tuple(row[4 + names :].tolist())
                found.append(
                    FinishedGame(
                        0, -1, SELF, 0, int(row[OUTCOME]), int(row[LENGTH]), float(row[RETURN]), 0.0, -1, own, theirs
                    )
                )
        return found

    def snapshot(self, version: int) -> Mapping[str, Array]:
        """The state that rollout number `version` starts from, copied to the host only if it is read."""
        return LazyArrays(lambda: self._snapshot(None if self._made == version else self._start_tensors))

    def finished_episodes(self) -> tuple[Array, int]:
        """Return, length and outcome of some episodes that ended in the last rollout, and the number of all of them."""
        listed = self.rollout.ended.cpu().numpy()
        return listed[listed[:, ENDED] > 0][:, [RETURN, LENGTH, OUTCOME]], int(listed[0, -1])

    def unfinished_episodes(self) -> tuple[Array, Array]:
        """Return and length so far of the episode of every row, before a rollout that was only started."""
        returns, lengths = (self._start_tensors if self._prefetched else self._state_tensors())[-2:]
        return returns.cpu().numpy(), lengths.cpu().numpy()

    def restore_episodes(self, returns: Array, lengths: Array) -> None:
        """Restore what `unfinished_episodes` returned."""
        self.returns.copy_(torch.from_numpy(returns))
        self.lengths.copy_(torch.from_numpy(lengths))

    def drain_faults(self) -> list[str]:
        """Native games have no faults."""
        return []

    def seconds(self) -> tuple[float, float]:
        """The time of a graph cannot be split."""
        return 0.0, 0.0

    def close(self) -> None:
        """Free the graph and its memory."""
        self._graph = None
        self.game.vector.close()

    def _state_tensors(self) -> list[Tensor]:
        """The tensors that the next rollout starts from."""
        own = (self._obs, self._active, self._streams, self._memory, self.returns, self.lengths)
        return [*self.game.tensors(), *own]

    def _snapshot(self, start: list[Tensor] | None) -> dict[str, Array]:
        """The names of an actor's snapshot, so that a run can resume with any collector."""
        kept, own = start or self._state_tensors(), len(self.game.tensors())
        state = {f"env/{name}": array for name, array in self.game.pull(kept[:own]).items()}
        table = TrainingGames(self.game.spec, self.game.envs, 0)
        table.seed[:] = self.game.vector.seeds()
        state |= {f"seat/{name}": array.copy() for name, array in table.arrays().items()}
        obs, active, streams, memory = (np.ascontiguousarray(tensor.cpu().numpy()) for tensor in kept[own : own + 4])
        rows, width = memory.shape
        rows_now = {
            "obs": obs,
            "active": active,
            "streams": streams,
            "memory": memory,
            "others": self._others.copy(),
            "mask": np.ones((rows, 0), np.uint8),
            "others_memory": np.zeros((rows, width if self.game.spec.competitive else 0), np.float32),
        }
        return state | {f"row/{name}": array for name, array in rows_now.items()}

    def _roll(self) -> None:
        """Act and step until the rollout is full.

        Where an episode can be truncated only once in a rollout, the values of final observations are computed last.
        """
        limit = self.game.vector.limit_steps
        r, net, memory, continuous = self.rollout, self.net, self._memory, self.net.design.action.continuous_parts > 0
        for tensor, now in zip(self._start_tensors, self._state_tensors(), strict=True):
            tensor.copy_(now)
        self.game.begin()
        starts = sequence_starts(net.design, r.steps)
        r.obs[0].copy_(self._obs)
        r.active[0].copy_(self._active)
        r.terms.zero_()
        for t in range(r.steps):
            for sequence in starts.get(t, ()):
                r.state[sequence].copy_(memory)
            acts = self._all if memory.numel() else r.active[t]
            self._act(acts, r.inputs[t], r.obs[t], r.action[t], r.log_prob[t], r.value[t])
            action = r.action[t]
            if continuous:
                action = self._env_action
                given = (r.action[t], *self._bounds, net.design.squashed, action)
                launch(bound_row, len(action), given)
            rows = SimpleNamespace(
                obs=r.obs[t + 1],
                reward=r.reward[t],
                terminated=r.terminated[t],
                truncated=r.truncated[t],
                outcome=r.outcome[t],
                final_obs=self._final_obs,
                active=r.active[t + 1],
                terms=r.terms,
                behaviour=self._behaviour,
            )
            self.game.step(action, rows)
            if 0 < limit < r.steps:
                self._values(self._final_obs, memory, self._final)
                torch.mul(r.truncated[t], self._final, out=r.final_value[t])
            if memory.numel():
                launch(reset_row, len(memory), (r.terminated[t], r.truncated[t], memory, self._last))
        self._obs.copy_(r.obs[-1])
        self._active.copy_(r.active[-1])
        self._values(self._obs, memory, r.value[-1])
        if limit >= r.steps:
            self._values(self._final_obs, self._last, self._final)
            torch.mul(r.truncated, self._final, out=r.final_value)
        launch(
            track_row,
            len(self.returns),
            (r.reward, r.terminated, r.truncated, r.outcome, r.active, self.returns, self.lengths, r.episodes),
        )
        self._summarise()

    def _act(
        self, active: Tensor, inputs: Tensor, obs: Tensor, action: Tensor, log_prob: Tensor, value: Tensor
    ) -> None:
        """Act for the active rows; with memory for all, as in the other collectors."""
        net, stack = self.net, self.net.design.stack
        net.read(obs, inputs)
        outputs, _, left = net.forward(inputs, self._memory, heads_only=True)
        if self._memory.numel():
            self._memory.copy_(left)
        heads = DeviceOutputs(
            outputs[stack.policy_layer],
            outputs[stack.value_layer],
            int(stack.head[HEAD_VALUE]),
            net.flat[int(stack.head[HEAD_LOG_STD]) :],
            self._head,
            self._probs,
        )
        launch(sample_row, len(obs), (active, heads, self._streams, ActOutputs(action, log_prob, value)))

    def _values(self, obs: Tensor, memory: Tensor, value: Tensor) -> None:
        """Write the values of observations."""
        net, stack = self.net, self.net.design.stack
        inputs = torch.zeros(len(obs), net.width, dtype=net.dtype, device=net.device)
        net.read(obs, inputs)
        outputs, _, _ = net.forward(inputs, memory, heads_only=True)
        value.copy_(outputs[stack.value_layer][:, int(stack.head[HEAD_VALUE])])

    def _summarise(self) -> None:
        """Sum up the reward terms, and gather some of the finished episodes and games, as seen by the first side."""
        r = self.rollout
        torch.sum(r.terms, 0, dtype=torch.float64, out=r.summed)
        r.ended[:, :4] = r.episodes[_some(r.episodes[:, ENDED], len(r.ended))]
        r.ended[:, 4] = r.episodes[:, ENDED].sum()
        spec, agents = self.game.spec, self.game.spec.agents
        episodes = self.rollout.episodes.view(-1, agents, 4)[:, 0]  # [envs, 4]
        shown = len(self._games)
        envs = _some(episodes[:, ENDED], shown)
        self._games[:shown, :4] = episodes[envs]
        counted = self._behaviour.view(self.game.envs, agents, len(spec.behaviours))[envs]
        for side in range(2):
            chosen = (self._sides == side).to(counted.dtype)[None, :, None]
            mean = (counted * chosen).sum(1) / chosen.sum().clamp(min=1)
            width = len(spec.behaviours)
            self._games[:shown, 4 + side * width : 4 + (side + 1) * width] = mean


def _empty(game: DeviceVector, net: DeviceNet, steps: int) -> DeviceRollout:
    """A rollout on the device; the padding of its inputs stays zero."""
    fields = rollout_fields(game.spec, net.design, steps, game.envs)
    rows = game.envs * game.spec.agents
    made = {
        name: torch.zeros(field.shape, dtype=getattr(torch, field.dtype), device=net.device)
        for name, field in fields.items()
    }
    for name in ("obs", "terms"):
        made[name] = made[name].transpose(-1, -2).contiguous().transpose(-1, -2)
    inputs = torch.zeros(steps, rows, net.width, dtype=net.dtype, device=net.device)
    wide: Any = {"dtype": torch.float64, "device": net.device}
    return DeviceRollout(
        **made,
        inputs=inputs,
        episodes=torch.zeros(4, rows, **wide).T,
        summed=torch.zeros(len(game.spec.terms), **wide),
        ended=torch.zeros(math.gcd(rows, LISTED_EPISODES), 5, **wide),
    )


def _some(ended: Tensor, count: int) -> Tensor:
    """The index of one entry in each of `count` equal parts, above zero where the part has such an entry."""
    share = len(ended) // count
    return ended.reshape(count, share).argmax(1) + torch.arange(count, device=ended.device) * share
