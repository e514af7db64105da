"""PPO on the device where the rollout is: advantages, gradient steps and optimiser, an epoch captured as one graph.

It takes the same steps as the fused kernel on the same weights, in the same layout, and keeps the same things in
checkpoints, so that a run can go on with either; a parity test binds the two. What only the host can do (settings,
running moments) needs a few numbers twice per iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slipstream.algorithms import diagnostics
from slipstream.algorithms.engine import SAMPLES, SUMS, UpdateStats
from slipstream.algorithms.episode_stats import WINDOW, EpisodeStats
from slipstream.algorithms.gae import compute_gae, compute_gae_row
from slipstream.algorithms.ppo import GOOD_EVERY, PPO
from slipstream.algorithms.ppo_loss import (
    ADVANTAGE,
    GOAL,
    OLD_VALUE,
    WEIGHT,
    adam_all,
    adam_at,
    judge,
    judge_all,
    loss_at,
    losses,
)
from slipstream.algorithms.running_stats import sum_returns, sum_row
from slipstream.collect.device import ENDED, LENGTH, OUTCOME, RETURN, DeviceRollout
from slipstream.contracts import Array
from slipstream.engines.weights_io import arrays_by_name, read_arrays
from slipstream.policies.device_net import DeviceNet
from slipstream.policies.parameter_layout import DENSE, HEAD_LOG_STD, HEAD_VALUE
from slipstream.settings import Settings
from slipstream.system.gpu_kernels import capture, launch

KNOBS = (
    "clip", "clip_value", "value", "entropy", "policy", "max_grad_norm", "learning_rate", "adam_eps", "weight_decay",
)  # fmt: skip
"""The numbers of `Knobs` as the device reads them, in this order."""


@dataclass(frozen=True)
class Part:
    """The samples of one minibatch."""

    inputs: Tensor  # [steps * lanes, width]
    state: Tensor  # [lanes, size], or [0, 0] without memory
    episode_start: Tensor | None  # [steps, lanes]
    index: Tensor  # [steps * lanes]: which samples of the rollout they are


class DeviceEngine:
    """Weights and optimiser on the device, and how gradient steps are taken there.

    It is an `Engine` but for the batches of the host, which it never sees.
    """

    def __init__(self, net: DeviceNet, params: Array) -> None:
        self.net, self.design, self.params = net, net.design, params
        device = net.device
        self.moments = torch.zeros(2, net.flat.numel(), device=device)
        self.taken = torch.zeros(3, dtype=torch.int64, device=device)
        """What `counters` are on the host."""
        self.totals = torch.zeros(SUMS, dtype=torch.float64, device=device)
        self.coefficients = torch.zeros(len(KNOBS), device=device)
        self.counters = np.zeros(3, np.int64)
        self._go = torch.zeros(1, dtype=torch.int64, device=device)
        self._of_value = torch.from_numpy(self.design.of_value()).to(device)
        self._head = torch.from_numpy(self.design.stack.head).to(device)

    def step(self, part: Part, known: Tensor, action: Tensor, stats: Tensor, value_only: bool) -> None:
        """Take one gradient step on a part of a rollout; `stats` are its `_standardise`."""
        net, stack, design = self.net, self.design.stack, self.design
        outputs, memories, _ = net.forward(part.inputs, part.state, part.episode_start)
        policy, values = outputs[stack.policy_layer], outputs[stack.value_layer]
        count, at = len(part.index), int(stack.head[HEAD_LOG_STD])
        by_policy = by_value = self._columns(count, policy.shape[1])
        if stack.policy_layer != stack.value_layer:
            by_value = self._columns(count, values.shape[1])
        spread = net.gradient[at : at + design.action.outputs] if at < net.flat.numel() else net.gradient[:0]
        by_log_std, sums = self._columns(count, len(spread)), self._columns(count, SAMPLES + 1)
        launch(
            losses, loss_at, count,
            (policy, values, int(stack.head[HEAD_VALUE]), net.flat[at:], self._head, part.index, action, known, stats,
             self.coefficients, self._columns(count, max(1, design.outputs)), self._columns(count, 2), by_policy, by_value,
             by_log_std, sums),
        )  # fmt: skip
        net.backward(part.inputs, outputs, memories, {stack.policy_layer: by_policy, stack.value_layer: by_value})
        if len(spread):
            torch.sum(by_log_std, 0, out=spread)
        if value_only:
            net.gradient.mul_(self._of_value)
        norm, added = torch.linalg.vector_norm(net.gradient).reshape(1), sums.sum(0, dtype=torch.float64)
        launch(judge_all, judge, 1, (norm, added, self.taken, self.totals, self._go))
        launch(
            adam_all, adam_at, net.flat.numel(),
            (net.flat, net.gradient, self.moments[0], self.moments[1], self.taken, norm, self._go, self.coefficients),
        )  # fmt: skip
        net.refresh()

    def _columns(self, rows: int, columns: int) -> Tensor:
        """Room for some numbers of every row, those of one kind side by side."""
        return torch.empty(columns, rows, device=self.net.device).T

    def activity(self, rollout: DeviceRollout) -> dict[str, Array]:
        """The mean size of each hidden unit's output on the first step of a rollout."""
        state = rollout.state[0] if self.design.state_size else rollout.value.new_zeros(0, 0)
        outputs, _, _ = self.net.forward(rollout.inputs[0], state)
        sizes = {}
        for number, layer in enumerate(self.design.stack.layers):
            if number not in self.design.stack.heads:
                name = layer.name + (".memory" if layer.kind != DENSE else "")
                sizes[name] = outputs[number][:, : layer.outputs].float().abs().mean(0).cpu().numpy()
        return sizes

    def gradient(self) -> Array:
        """The flat gradient of the last step."""
        flat: Array = self.net.gradient.cpu().numpy()
        return flat

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name, as the fused engine has them."""
        flat, moments, counters = (part.cpu().numpy() for part in (self.net.flat, self.moments, self.taken))
        return arrays_by_name(self.design.weights, flat, moments, counters)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        moments = np.zeros(self.moments.shape, np.float32)
        read_arrays(self.design.weights, arrays, self.params, moments, self.counters)
        for tensor, array in ((self.net.flat, self.params), (self.moments, moments), (self.taken, self.counters)):
            tensor.copy_(torch.from_numpy(array))
        self.net.refresh()


class DevicePPO(PPO):
    """PPO whose rollouts never leave the device: all of an iteration's learning is one piece of work there.

    `absences` says that there may be rows which do not act.
    """

    def __init__(
        self, settings: Settings, net: DeviceNet, params_and_stats: Array, rows: int, *, graphs: bool, absences: bool,
        start: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self._net, self._on_device = net, DeviceEngine(net, net.design.split_params_and_stats(params_and_stats)[0])
        self._carried = torch.zeros(rows, dtype=torch.float64, device=net.device)
        """The discounted return of each row."""
        net.load(params_and_stats)
        super().__init__(settings, net.design, params_and_stats, cast(Any, self._on_device), rows, start=start)
        net.load(params_and_stats)
        self._graphs = graphs and net.device != "cpu"
        self._work: dict[Any, Any] = {}
        """What an iteration does, by the shapes it has."""
        self._gae = torch.zeros(6, device=net.device)
        self._report = torch.zeros(SUMS + 6 + 2 * self._obs.mean.size, dtype=torch.float64, device=net.device)
        self._rollout: DeviceRollout | None = None
        self._absences = absences

    def update(self, rollout: Any, steps: int) -> tuple[int, dict[str, Any]]:
        """Learn from a rollout that began at `steps`; return its number of samples and what is to be logged."""
        s, engine = self.now, self._on_device
        self._rollout = rollout
        coefficients, scale = self._knobs(), self._learn_rewards(rollout)
        if self._iterations[0] % GOOD_EVERY == 0 and not self._failing:
            self._good = engine.snapshot()
        engine.coefficients.copy_(torch.tensor([float(getattr(coefficients, name)) for name in KNOBS]))
        self._gae.copy_(torch.from_numpy(self._gae_knobs(scale)))
        failed = int(engine.counters[2])
        report = self._learn(rollout, coefficients.policy == 0.0)
        engine.params[:] = self._net.flat.cpu().numpy()
        engine.counters[:] = report[SUMS : SUMS + 3]
        outcome = UpdateStats.of(report[:SUMS], int(engine.counters[2]) - failed, bool(engine.counters[1] >= 3))
        spread, missed, seen = report[SUMS + 3 : SUMS + 6]
        metrics = outcome.metrics() | {
            "ppo/explained_variance": 1.0 - missed / spread if spread > 1e-12 else float("nan"),
            "ppo/learning_rate": coefficients.learning_rate, "ppo/reward_scale": scale, "ppo/epochs": s.epochs,
        }  # fmt: skip
        self._settle(outcome, metrics)
        if s.normalise_obs and steps >= s.freeze_obs_stats_steps:
            mean, variance = report[SUMS + 6 :].reshape(2, -1)
            self._obs.merge(float(seen), mean, variance)
            self._write_normaliser()
            self._net.load_normaliser(self.params_and_stats)
        self._iterations += 1
        return int(seen), metrics

    def dormant(self) -> dict[str, float]:
        """The share of units of each hidden layer, and of all, that hardly move on the last batch."""
        assert self._rollout is not None
        return diagnostics.dormant(self._on_device.activity(self._rollout))

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""
        super().restore(arrays, state)
        self._carried.copy_(torch.from_numpy(self._running))
        self._net.load(self.params_and_stats)

    def _own_arrays(self) -> dict[str, Array]:
        self._running[:] = self._carried.cpu().numpy()
        return super()._own_arrays()

    def _learn_rewards(self, rollout: Any) -> float:
        """Move the statistics of rewards on; return the factor that rewards are multiplied by."""
        s = self.now
        if s.centre_rewards:
            self._move_centre(float(rollout.reward.double().mean()))
        if not s.normalise_return:
            return 1.0
        sums = torch.empty(3, len(self._carried), dtype=torch.float64, device=self._net.device).T
        launch(
            sum_returns, sum_row, len(self._carried),
            (rollout.reward, rollout.terminated, rollout.truncated, rollout.active, s.gamma, self._carried, sums),
        )  # fmt: skip
        return self._merge_returns(sums.sum(0).cpu().numpy())

    def _learn(self, rollout: DeviceRollout, value_only: bool) -> Array:
        """All of an iteration's learning; return its report."""
        run, order = self._prepare_work(rollout, value_only)
        if order is not None and (drawn := self._draw(rollout)) is not None:
            order.copy_(drawn)
        run()
        report: Array = self._report.cpu().numpy()
        return report

    def prepare(self, rollout: DeviceRollout) -> None:
        """Compile and capture what an iteration's learning takes; `rollout` is where all of them will be."""
        self._prepare_work(rollout, self._knobs().policy == 0.0)

    def _prepare_work(self, rollout: DeviceRollout, value_only: bool) -> tuple[Any, Tensor | None]:
        """What to run for these settings, captured once, and where it reads the order of samples from."""
        s, engine = self.now, self._on_device
        key = (s.minibatch, s.epochs, s.shuffle, s.normalise_advantage, value_only)
        if key not in self._work:
            random = self._random.bit_generator.state
            order = self._draw(rollout)
            self._random.bit_generator.state = random
            known = torch.zeros(5, rollout.reward.numel(), device=self._net.device).T

            def work() -> None:
                self._teach(rollout, known, order, value_only)

            changed = [self._net.flat, engine.moments, engine.taken]
            run = capture(work, 1, changed).replay if self._graphs else work
            self._net.refresh()
            self._work[key] = run, order
        run, order = self._work[key]
        return run, order

    def _teach(self, rollout: DeviceRollout, known: Tensor, order: Tensor | None, value_only: bool) -> None:
        """What the device does: advantages, gradient steps of all epochs, and the report."""
        s, engine, design, steps = self.now, self._on_device, self.design, rollout.steps
        rows, samples = rollout.reward.shape[1], rollout.reward.numel()
        engine.totals.zero_()
        advantage = torch.empty_like(rollout.reward)
        launch(
            compute_gae, compute_gae_row, rows,
            (rollout.reward, rollout.value, rollout.final_value, rollout.terminated, rollout.truncated, rollout.active,
             self._gae, torch.zeros(0, 0, device=self._net.device), advantage),
        )  # fmt: skip
        value = rollout.value[:steps]
        for number, column in enumerate(
            (rollout.log_prob, value, advantage, advantage + value, rollout.active[:steps])
        ):
            known[:, number].copy_(column.reshape(-1))
        action = rollout.action.view(samples, design.action.parts)
        for epoch in range(s.epochs):
            lanes = torch.arange(samples, device=known.device).view(-1, s.minibatch) if order is None else order[epoch]
            index = _samples(lanes, design.sequence, rows)
            stats = _standardise(known, index, s.normalise_advantage)
            for k in range(len(index)):
                part = _part(
                    rollout, design.state_size, self._net.width, index[k], lanes[k], k if order is None else -1
                )
                engine.step(part, known, action, stats[k], value_only)
        counts, tell = known[:, WEIGHT].double(), self._report
        acted = counts.sum()
        tell[:SUMS], tell[SUMS : SUMS + 3] = engine.totals, engine.taken
        tell[SUMS + 3] = _variance(known[:, GOAL], counts, acted)
        tell[SUMS + 4] = _variance(known[:, GOAL] - known[:, OLD_VALUE], counts, acted)
        tell[SUMS + 5] = acted
        obs = rollout.obs[:steps]
        if self._absences:
            weight = rollout.active[:steps, :, None].float()
            mean = (obs * weight).sum((0, 1)) / acted
            variance = ((obs - mean).square() * weight).sum((0, 1)) / acted
        else:
            variance, mean = torch.var_mean(obs, (0, 1), correction=0)
        tell[SUMS + 6 :] = torch.cat([mean, variance])

    def _draw(self, rollout: DeviceRollout) -> Tensor | None:
        """The sequences of every epoch [epochs, minibatches, sequences], as `ppo.shuffle` asks; None: as they stand."""
        s, device = self.now, self._net.device
        length, steps, rows = self.design.sequence, rollout.steps, rollout.reward.shape[1]
        if s.shuffle == "time" and length == 1:
            return None
        segment = self.design.policy.sequence if s.shuffle == "segments" else length
        rng = torch.Generator(device).manual_seed(int(self._random.integers(2**62)))
        drawn = [
            torch.randperm(steps // segment * rows, generator=rng, device=device)
            if s.shuffle != "time" else torch.arange(steps // segment * rows, device=device)
            for _ in range(s.epochs)
        ]  # fmt: skip
        if segment != length:
            drawn = [_samples(order, segment, rows) for order in drawn]
        return torch.stack(drawn).view(s.epochs, -1, s.minibatch // length)


class DeviceEpisodes(EpisodeStats):
    """The last finished episodes, as the device tells them."""

    def __init__(self, rows: int, device: Any) -> None:
        super().__init__(rows, versus=False)
        self._device = device
        """The collector, which carries unfinished episodes."""
        self.shown = np.zeros(1, np.int64)

    def add(self, rollout: Any) -> None:
        """Take in a rollout: how many episodes ended, and some of them."""
        told = rollout.ended.cpu().numpy()
        for row in told[told[:, ENDED] > 0]:
            self._window[int(self.shown[0]) % WINDOW] = row[[RETURN, LENGTH, OUTCOME]]
            self.shown += 1
        self.count += int(told[0, -1])

    def arrays(self) -> dict[str, Array]:
        """The state by name."""
        self._returns[:] = self._device.returns.cpu().numpy()
        self._lengths[:] = self._device.lengths.cpu().numpy()
        return super().arrays()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Put back what `arrays` told."""
        super().restore(arrays)
        self.shown[:] = np.minimum(self.count, WINDOW)
        self._device.returns.copy_(torch.from_numpy(self._returns))
        self._device.lengths.copy_(torch.from_numpy(self._lengths))


def _samples(lanes: Tensor, length: int, rows: int) -> Tensor:
    """The samples [..., steps * sequences] of some sequences [..., sequences], step by step."""
    if length == 1:
        return lanes
    step = torch.arange(length, device=lanes.device)[:, None]
    lanes = lanes[..., None, :]
    return ((lanes // rows * length + step) * rows + lanes % rows).flatten(-2)


def _standardise(known: Tensor, index: Tensor, wanted: bool) -> Tensor:
    """Mean, one over the deviation, and one over the number of what counts in each minibatch [K, 3]."""
    values = known[:, ADVANTAGE][index].double()
    counts = (known[:, WEIGHT][index] > 0).double()
    number = counts.sum(1).clamp(min=1)
    mean = (values * counts).sum(1) / number
    spread = (((values - mean[:, None]).square() * counts).sum(1) / (number - 1).clamp(min=1)).sqrt()
    if not wanted:
        mean, spread = torch.zeros_like(mean), torch.ones_like(spread) - 1e-8
    return torch.stack([mean, 1 / (spread + 1e-8), 1 / number], 1).float()


def _variance(values: Tensor, counts: Tensor, number: Tensor) -> Tensor:
    """The variance of what counts."""
    mean = (values * counts).sum() / number
    return ((values - mean).square() * counts).sum() / number


def _part(rollout: DeviceRollout, state_size: int, width: int, index: Tensor, lanes: Tensor, place: int) -> Part:
    """The samples of a minibatch; where they stand side by side, as the one at this place, nothing is copied."""
    inputs, rows = rollout.inputs.view(-1, width), rollout.reward.shape[1]
    if place >= 0:
        return Part(inputs[place * len(index) : (place + 1) * len(index)], inputs.new_zeros(0, 0), None, index)
    inputs = inputs.index_select(0, index)
    if not state_size:
        return Part(inputs, inputs.new_zeros(0, 0), None, index)
    state = rollout.state.view(-1, state_size).index_select(0, lanes)
    ended = (rollout.terminated | rollout.truncated).view(-1)
    episode_start = ended.index_select(0, (index - rows).clamp(min=0)) * (index >= rows)
    return Part(inputs, state, episode_start.view(-1, len(lanes)), index)
