"""PPO's arithmetic on the device where the rollout is: advantages, gradient steps and optimiser, as CUDA graphs.

It takes the same steps as the fused kernel on the same weights, in the same layout, and keeps the same arrays in
checkpoints, so that a run can resume with either engine; a parity test compares the two. The host reads one report
per epoch. The first epoch of an update also computes advantages and statistics: an update of one epoch is one graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipstream.algorithms.engine import (
    SAMPLES,
    SUMS,
    BatchEvaluation,
    BatchStatistics,
    Coefficients,
    LossInputs,
    RewardStatistics,
)
from slipstream.algorithms.gae import (
    GAECoefficients,
    Transitions,
    compute_gae_row_on_device,
)
from slipstream.algorithms.ppo_loss import (
    AdamState,
    DeviceCoefficients,
    DeviceSamples,
    HeadGradients,
    HeadOutputs,
    adam_at,
    count_step,
    device_vector,
    loss_at,
)
from slipstream.algorithms.running_stats import sum_row
from slipstream.collect.device import DeviceRollout
from slipstream.contracts import Array
from slipstream.engines.tensor_batch import standardise
from slipstream.policies.device_net import DeviceNet, gather
from slipstream.policies.parameter_layout import DENSE, HEAD_LOG_STD, HEAD_VALUE, arrays_by_name, read_arrays
from slipstream.settings import PPOSettings
from slipstream.system.gpu_kernels import capture, launch


class DeviceBatch(NamedTuple):
    """A rollout on the device and its samples, flat."""

    rollout: DeviceRollout
    samples: DeviceSamples


class Minibatch(NamedTuple):
    """The inputs of one gradient step."""

    inputs: Tensor  # [steps * lanes, width]
    state: Tensor  # [lanes, size], or [0, 0] without memory
    episode_start: Tensor | None  # [steps, lanes]
    samples: Tensor  # [steps * lanes]: their samples in the rollout


class CapturedEpoch(NamedTuple):
    """An epoch as a CUDA graph, and where it reads the order of sequences; None: in the order of time."""

    graph: Any
    order: Tensor | None


class DeviceEngine:
    """Weights, optimiser and gradient steps on the device of `net`.

    With `absences` there may be rows that do not act.
    """

    def __init__(self, net: DeviceNet, params: Array, *, graphs: bool, absences: bool) -> None:
        self.net, self.design, self.params = net, net.design, params
        device = net.device
        self.moments = torch.zeros(2, net.flat.numel(), device=device)
        self.counters = np.zeros(3, np.int64)
        self._counters = torch.zeros(3, dtype=torch.int64, device=device)
        """`counters` on the device."""
        self._totals = torch.zeros(SUMS, dtype=torch.float64, device=device)
        self._coefficients = torch.zeros(len(DeviceCoefficients._fields), device=device)
        self._loaded_coefficients: list[float] = []
        self._gae = torch.zeros(len(GAECoefficients._fields), device=device)
        self._running_return = torch.zeros(0, dtype=torch.float64, device=device)
        self._accepted = torch.zeros(1, dtype=torch.int64, device=device)
        self._value_only_mask = torch.from_numpy(self.design.of_value()).to(device)
        self._head = torch.from_numpy(self.design.stack.head).to(device)
        width = self.design.obs.floats
        self._report = torch.zeros(SUMS + 6 + 2 * width, dtype=torch.float64, device=device)
        self._statistics = np.zeros(3 + 2 * width)
        """The variances of value targets and errors, the number of samples, and the observations' mean and variance."""
        self._columns: Tensor | None = None
        self._first_epoch = True
        """Whether the next epoch is the first on its batch."""
        self._use_graphs, self._absences = graphs and device != "cpu", absences
        self._graphs: dict[Any, CapturedEpoch] = {}
        net.flat.copy_(torch.from_numpy(params))
        net.refresh()

    @property
    def running_return(self) -> Array:
        """The discounted return of every row so far."""
        host: Array = self._running_return.cpu().numpy()
        return host

    @running_return.setter
    def running_return(self, value: Array) -> None:
        self._running_return = torch.from_numpy(value).to(self.net.device)

    def reward_statistics(self, rollout: DeviceRollout, gamma: float, *, mean: bool, returns: bool) -> RewardStatistics:
        """Sum up the rewards of a rollout in one transfer; `returns` also moves `running_return` to its end."""
        active, found = rollout.active[: rollout.steps], []
        if returns:
            rows = len(self._running_return)
            sums = torch.empty(3, rows, dtype=torch.float64, device=self.net.device).T
            launch(
                sum_row,
                rows,
                (
                    rollout.reward,
                    rollout.terminated,
                    rollout.truncated,
                    rollout.active,
                    gamma,
                    self._running_return,
                    sums,
                ),
            )
            found.append(sums.sum(0))
        if mean:
            found.append((rollout.reward.double() * active).sum()[None])
        if self._absences and not returns:
            found.append(active.sum(dtype=torch.float64)[None])
        numbers: Array = torch.cat(found).cpu().numpy() if found else np.zeros(0)
        samples = rollout.reward.numel()
        if self._absences:
            samples = int(numbers[0 if returns else -1])
        total = float(numbers[3 if returns else 0]) if mean else 0.0
        return RewardStatistics(samples, total / max(1, samples), numbers[:3] if returns else np.zeros(3))

    def load(self, rollout: DeviceRollout, gae: GAECoefficients, inputs: LossInputs) -> DeviceBatch:
        """Note the coefficients of the advantages; the first epoch computes them."""
        assert inputs.reference is None  # `training.build.off_device` refuses it
        assert inputs.partner is None
        self._gae.copy_(torch.from_numpy(np.array(gae, np.float32)))
        self._first_epoch = True
        return self._batch(rollout)

    def _batch(self, rollout: DeviceRollout) -> DeviceBatch:
        """A rollout with memory for its samples, which is the same for every rollout of the same shape."""
        samples = rollout.reward.numel()
        if self._columns is None or self._columns.shape[1] != samples:
            self._columns = torch.zeros(5, samples, device=self.net.device)
        action = rollout.action.view(samples, self.design.action.parts)
        return DeviceBatch(rollout, DeviceSamples(action, *self._columns.unbind(0)))

    def recompute_advantages(self, rollout: DeviceRollout, batch: DeviceBatch, gae: GAECoefficients) -> bool:
        """V-trace is refused by `training.build.off_device`."""
        raise NotImplementedError

    def draw_order(
        self, rollout: DeviceRollout, batch: DeviceBatch, settings: PPOSettings, random: np.random.Generator
    ) -> Tensor | None:
        """The sequences of an epoch [minibatches, sequences]; None: single steps in the order of time."""
        device, length, rows = self.net.device, self.design.sequence, rollout.reward.shape[1]
        if settings.shuffle == "time" and length == 1:
            return None
        segment = self.design.policy.sequence if settings.shuffle == "segments" else length
        count = rollout.steps // segment * rows
        rng = torch.Generator(device).manual_seed(int(random.integers(2**62)))
        if settings.shuffle == "time":
            drawn = torch.arange(count, device=device)
        else:
            drawn = torch.randperm(count, generator=rng, device=device)
        if segment != length:
            drawn = _samples(drawn, segment, rows)
        return drawn.view(-1, settings.minibatch // length)

    def run_epoch(self, batch: DeviceBatch, order: Tensor | None, coefficients: Coefficients) -> Array:
        """Take the gradient steps of one epoch, by a CUDA graph if they are used; the host waits once, at its end."""
        self._load_coefficients(coefficients)
        if self._use_graphs:
            captured = self._capture(batch, order, coefficients, self._first_epoch)
            if captured.order is not None and order is not None:
                captured.order.copy_(order)
            captured.graph.replay()
        else:
            self._epoch(batch, order, coefficients, self._first_epoch)
        report: Array = self._report.cpu().numpy()
        self.counters[:] = report[SUMS : SUMS + 3]
        if self._first_epoch:
            self._statistics[:] = report[SUMS + 3 :]
        self._first_epoch = False
        return report[:SUMS].copy()

    def prepare(self, rollout: DeviceRollout, settings: PPOSettings, coefficients: Coefficients) -> None:
        """Compile and capture the epochs of an update; `rollout` is where all rollouts will be."""
        batch = self._batch(rollout)
        order = self.draw_order(rollout, batch, settings, np.random.default_rng(0))
        self._load_coefficients(coefficients)
        for first in (True, False) if max(settings.epochs, settings.epochs_max) > 1 else (True,):
            self._capture(batch, order, coefficients, first)

    def _load_coefficients(self, coefficients: Coefficients) -> None:
        vector = device_vector(coefficients)
        if self._loaded_coefficients != vector.tolist():
            self._loaded_coefficients = vector.tolist()
            self._coefficients.copy_(torch.from_numpy(vector))

    def _capture(
        self, batch: DeviceBatch, order: Tensor | None, coefficients: Coefficients, first: bool
    ) -> CapturedEpoch:
        """The graph of an epoch of these settings, captured once."""
        c = coefficients
        key = (c.minibatch, c.normalise_advantage, c.policy == 0.0, None if order is None else order.shape, first)
        if key not in self._graphs:
            order = None if order is None else order.clone()
            changed = [self.net.flat, self.moments, self._counters]
            graph = capture(lambda: self._epoch(batch, order, coefficients, first), 1, changed)
            self.net.refresh()
            self._graphs[key] = CapturedEpoch(graph, order)
        return self._graphs[key]

    def _epoch(self, batch: DeviceBatch, order: Tensor | None, coefficients: Coefficients, first: bool) -> None:
        """What the device does in an epoch; before the first one it computes advantages and statistics."""
        rollout, samples = batch
        if first:
            self._compute_advantages(rollout, samples)
        self._totals.zero_()
        count, length, rows = rollout.reward.numel(), self.design.sequence, rollout.reward.shape[1]
        lanes = order
        if lanes is None:
            lanes = torch.arange(count, device=self.net.device).view(-1, coefficients.minibatch)
        index = _samples(lanes, length, rows)
        stats = torch.stack(
            standardise(samples.advantage[index], samples.weight[index], coefficients.normalise_advantage), 1
        )
        for k in range(len(index)):
            part = self._minibatch(rollout, index[k], lanes[k], k if order is None else -1)
            self._step(part, samples, stats[k], value_only=coefficients.policy == 0.0)
        self._report[:SUMS], self._report[SUMS : SUMS + 3] = self._totals, self._counters
        if first:
            self._compute_statistics(rollout, samples)

    def _compute_advantages(self, rollout: DeviceRollout, samples: DeviceSamples) -> None:
        """Write the advantages of a rollout and the columns of its samples."""
        advantage, value = torch.empty_like(rollout.reward), rollout.value[: rollout.steps]
        transitions = Transitions(
            *(getattr(rollout, name) for name in Transitions._fields),
        )
        launch(
            compute_gae_row_on_device,
            rollout.reward.shape[1],
            (transitions, self._gae, advantage),
        )
        columns = (rollout.log_prob, value, advantage, advantage + value, rollout.active[: rollout.steps])
        for into, column in zip(samples[1:], columns, strict=True):
            into.copy_(column.reshape(-1))

    def _compute_statistics(self, rollout: DeviceRollout, samples: DeviceSamples) -> None:
        """Write what `finish` returns into the report."""
        weight, report = samples.weight.double(), self._report[SUMS + 3 :]
        count = weight.sum()
        report[0] = _variance(samples.value_target, weight, count)
        report[1] = _variance(samples.value_target - samples.value, weight, count)
        report[2] = count
        obs = rollout.obs[: rollout.steps]
        if self._absences:
            active = rollout.active[: rollout.steps, :, None].float()
            mean = (obs * active).sum((0, 1)) / count
            variance = ((obs - mean).square() * active).sum((0, 1)) / count
        else:
            variance, mean = torch.var_mean(obs, (0, 1), correction=0)
        report[3:] = torch.cat([mean, variance])

    def _minibatch(self, rollout: DeviceRollout, index: Tensor, lanes: Tensor, place: int) -> Minibatch:
        """The inputs of some samples; a minibatch at `place` in the order of time is a view, nothing is copied."""
        inputs, rows, size = rollout.inputs.view(-1, self.net.width), rollout.reward.shape[1], self.design.state_size
        if place >= 0:
            inputs = inputs[place * len(index) : (place + 1) * len(index)]
            return Minibatch(inputs, inputs.new_zeros(0, 0), None, index)
        inputs = gather(inputs, index)
        if not size:
            return Minibatch(inputs, inputs.new_zeros(0, 0), None, index)
        state = rollout.state.view(-1, size).index_select(0, lanes)
        ended = (rollout.terminated | rollout.truncated).view(-1)
        episode_start = ended.index_select(0, (index - rows).clamp(min=0)) * (index >= rows)
        return Minibatch(inputs, state, episode_start.view(-1, len(lanes)), index)

    def _step(self, part: Minibatch, samples: DeviceSamples, standardisation: Tensor, value_only: bool) -> None:
        """Take one gradient step; with `value_only` only the weights of the value function move."""
        net, stack, design = self.net, self.design.stack, self.design
        outputs, memories, _ = net.forward(part.inputs, part.state, part.episode_start)
        policy, values = outputs[stack.policy_layer], outputs[stack.value_layer]
        count, at = len(part.samples), int(stack.head[HEAD_LOG_STD])
        log_std = net.gradient[at : at + design.action.continuous_parts] if at < net.flat.numel() else net.gradient[:0]
        by_policy = by_value = self._empty(count, policy.shape[1])
        if stack.policy_layer != stack.value_layer:
            by_value = self._empty(count, values.shape[1])
        gradients = HeadGradients(
            policy=by_policy,
            value=by_value,
            log_std=self._empty(count, len(log_std)),
            sums=self._empty(count, SAMPLES + 1),
            probs=self._empty(count, max(1, design.outputs)),
            measured=self._empty(count, 2),
        )
        heads = HeadOutputs(policy, values, int(stack.head[HEAD_VALUE]), net.flat[at:], self._head)
        launch(loss_at, count, (heads, samples, part.samples, standardisation, self._coefficients, gradients))
        net.backward(part.inputs, outputs, memories, {stack.policy_layer: by_policy, stack.value_layer: by_value})
        if len(log_std):
            torch.sum(gradients.log_std, 0, out=log_std)
        if value_only:
            net.gradient.mul_(self._value_only_mask)
        norm, added = torch.linalg.vector_norm(net.gradient).reshape(1), gradients.sums.sum(0, dtype=torch.float64)
        launch(count_step, 1, (norm, added, self._counters, self._totals, self._accepted))
        adam = AdamState(net.flat, net.gradient, self.moments[0], self.moments[1])
        launch(adam_at, net.flat.numel(), (adam, self._counters, norm, self._accepted, self._coefficients))
        net.refresh()

    def _empty(self, rows: int, columns: int) -> Tensor:
        """An uninitialised array [rows, columns] whose columns are contiguous."""
        return torch.empty(columns, rows, device=self.net.device).T

    def finish(self, rollout: DeviceRollout, batch: DeviceBatch, shift: Array | None) -> BatchStatistics:
        """Copy the weights to the host and return the statistics that the first epoch computed."""
        self.params[:] = self.net.flat.cpu().numpy()
        total, residual, count = self._statistics[:3]
        mean, variance = self._statistics[3:].reshape(2, -1)
        explained = 1.0 - residual / total if total > 1e-12 else float("nan")
        return BatchStatistics(explained, (float(count), mean, variance))

    def evaluate(self, batch: DeviceBatch) -> BatchEvaluation:
        """Only V-trace evaluates whole batches, and `training.build.off_device` refuses it."""
        raise NotImplementedError

    def activity(self, batch: DeviceBatch) -> dict[str, Array]:
        """The mean absolute output of each hidden unit on the first step of a rollout, by layer."""
        rollout = batch.rollout
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
        """Copies of all that training changes, with the names of the fused engine."""
        flat, moments, counters = (part.cpu().numpy() for part in (self.net.flat, self.moments, self._counters))
        return arrays_by_name(self.design.weights, flat, moments, counters)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `snapshot` returned."""
        moments = np.zeros(self.moments.shape, np.float32)
        read_arrays(self.design.weights, arrays, self.params, moments, self.counters)
        for tensor, array in ((self.net.flat, self.params), (self.moments, moments), (self._counters, self.counters)):
            tensor.copy_(torch.from_numpy(array))
        self.net.refresh()


def _samples(lanes: Tensor, length: int, rows: int) -> Tensor:
    """The samples [..., steps * sequences] of some sequences [..., sequences], step by step."""
    if length == 1:
        return lanes
    step = torch.arange(length, device=lanes.device)[:, None]
    lanes = lanes[..., None, :]
    return ((lanes // rows * length + step) * rows + lanes % rows).flatten(-2)


def _variance(values: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """The weighted variance."""
    mean = (values * weight).sum() / count
    return ((values - mean).square() * weight).sum() / count
