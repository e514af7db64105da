"""PPO's gradient steps in torch: the definition that the fused kernel is tested against, and all that it lacks."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.algorithms.contrastive_loss import contrastive_loss
from slipstream.algorithms.engine import (
    CONTRASTIVE_LOSS,
    FAILED_IN_A_ROW,
    GRADIENT_NORMS,
    SAMPLES,
    STEPS,
    SUMS,
    UPDATES,
    Batch,
    BatchEvaluation,
    Coefficients,
)
from slipstream.contracts import Array
from slipstream.engines.cuda_graphs import StepGraphs, StepStats
from slipstream.engines.host_engine import HostEngine
from slipstream.engines.tensor_batch import MicroBatch, TensorBatch
from slipstream.engines.torch_backends import HALVES, LossScale, ran_out_of_memory
from slipstream.engines.torch_optimisers import Optimiser, clip_grad_norm
from slipstream.errors import MachineError
from slipstream.plan import describe_change
from slipstream.policies.design import Design
from slipstream.policies.parameter_layout import strip_prefix
from slipstream.policies.torch_policy import ActorCritic, PolicyOutput

EVALUATED = 4096
"""Samples that `evaluate` runs together."""
WARMED = 256
"""Samples, at most, that a compiled policy is tried with."""


def ppo_loss(
    policy: ActorCritic, heads: tuple[Tensor, Tensor], sample: dict[str, Tensor], coefficients: Coefficients
) -> list[Tensor]:
    """Return, each summed over samples: the loss, then the sums `POLICY_LOSS` to `REFERENCE_KL` of `algorithms.engine`.

    `heads` are outputs and values, `sample` the columns of the batch with standardised advantages. Samples of weight 0
    add nothing, whatever they hold, so that shapes do not depend on their number.
    """
    (outputs, value), counts = heads, sample["weight"] > 0
    mask = sample["mask"] if sample["mask"].shape[1] else None
    log_prob, entropy = policy.log_prob_and_entropy(outputs, sample["action"], mask)

    def given(name: str, instead: Tensor) -> Tensor:
        return torch.where(counts, sample[name], instead.detach())

    gain = given("advantage", torch.zeros_like(log_prob)) * sample["weight"]
    value_target, before = given("value_target", value), given("value", value)
    difference = torch.zeros_like(log_prob) if coefficients.imitate else log_prob - given("log_prob", log_prob)
    ratio = difference.exp()
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - coefficients.clip, 1 + coefficients.clip) * gain)
    if coefficients.imitate:
        surrogate = log_prob * gain
    error, entropy = (value - value_target).square(), entropy.masked_fill(~counts, 0.0)
    if coefficients.clip_value > 0:
        near = before + (value - before).clamp(-coefficients.clip_value, coefficients.clip_value)
        error = torch.maximum(error, (near - value_target).square())
    reference_kl = torch.zeros_like(value)
    if sample["reference"].shape[1]:
        reference_kl = policy.kl_divergence(outputs, sample["reference"], mask).masked_fill(~counts, 0.0)
    loss = (
        -coefficients.policy * surrogate
        + coefficients.value * error
        - coefficients.entropy * entropy
        + coefficients.reference_kl * reference_kl
    )
    clipped = (ratio - 1).abs() > coefficients.clip
    parts = (-surrogate, error, entropy, ratio - 1 - difference, clipped.float(), reference_kl)
    return [loss.sum(), *(part.detach().double().sum() for part in parts)]


def compiled_copy(policy: ActorCritic, mode: str = "default") -> ActorCritic:
    """A policy with the same weights whose networks are compiled; hooks work on the original only.

    Sizes are dynamic, so that another number of samples does not compile again. Recurrent layers are not compiled.
    """
    kept = [*policy.parameters(), *policy.buffers(), policy.design, policy.trunk_encoder]
    twin = copy.deepcopy(policy, {id(part): part for part in kept})
    for chain in twin.networks():
        chain.recurrent = torch.compiler.disable(chain.recurrent)  # type: ignore[method-assign, no-untyped-call]
        chain.compile(dynamic=True, mode=mode)
    return twin


ReportFallback = Callable[[str, Any, str], None]
"""Called with a plan switch that cannot be applied, what is applied instead, and why."""


def warn_of_fallback(name: str, applied: Any, why: str) -> None:
    """Warn about a fallback, for engines without a run."""
    warnings.warn(describe_change(name, applied, why), stacklevel=2)


class TorchEngine(HostEngine):
    """A torch module and its optimiser, with the interface of the fused engine."""

    def __init__(
        self,
        design: Design,
        params: Array,
        threads: int,
        micro_batch: int | None = None,
        checkpointing: bool = False,
        optimiser: str = "adam",
        device: str = "cpu",
        precision: str = "fp32",
        compiled: bool = False,
        compile_mode: str = "default",
        report_fallback: ReportFallback = warn_of_fallback,
        graphs: bool = False,
        offload: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        cuda = torch.device(device).type == "cuda"
        super().__init__(design, params)
        self.micro_batch = micro_batch
        self.device = device
        self.policy = ActorCritic(design).to(device)
        if cuda and design.policy.network is None:
            # The memory format of half-precision convolutions; tensors that are not images are not affected.
            self.policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.policy.checkpointing = checkpointing
        self.optimiser = Optimiser(self.policy, optimiser)
        self._clip_factor = torch.ones((), device=device)
        self._stats = StepStats(device)
        self._data: TensorBatch | None = None
        self._offload = offload
        self._stream: Any = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._value_masks: dict[str, Tensor] = {}
        self._write(self.optimiser.named, design.weights.named(params))
        self.precision = precision
        self._scale = LossScale(device) if precision == "fp16" else None
        self._report_fallback, self._mode = report_fallback, compile_mode
        self._learning = self.policy
        """The policy that gradients are computed with: `policy`, or its compiled copy."""
        if compiled:
            self._compile()
        self._graphs = (
            StepGraphs(self.step, self.optimiser, self._why_not_capture, report_fallback) if graphs and cuda else None
        )
        self._synchronise()

    @property
    def compiled(self) -> bool:
        """Whether gradients are computed with compiled networks."""
        return self._learning is not self.policy

    def run_epoch(self, batch: Batch, order: Array, coefficients: Coefficients) -> Array:
        """Take the gradient steps of one epoch on the sequences in `order`; the host waits only at its end."""
        with self._own_stream():
            data, stats = self._to_device(batch), self._stats
            stats.begin(int(self.counters[FAILED_IN_A_ROW]))
            for index in torch.split(
                torch.from_numpy(order).to(self.device), self._sequences(coefficients.minibatch, batch)
            ):
                if self._graphs is None or not self._graphs.replay(data, index, coefficients):
                    self.step(data, index, coefficients)
            if self._graphs is not None:
                self._graphs.settle()
            sums, failed, streak = stats.read()
        self.counters += np.array([int(sums[UPDATES]), 0, failed])
        self.counters[FAILED_IN_A_ROW] = streak
        self._copy_weights_to_host()
        return sums

    def step(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> None:
        """Take one gradient step, without waiting for its result."""
        stats = self._stats
        loss, added = self._compute_gradient(data, index, coefficients)
        if self._scale is not None:
            self._scale.divide(self.optimiser.both())
        if coefficients.policy == 0:
            self._mask_policy_gradient()
        norm = clip_grad_norm(list(self.optimiser.named.values()), coefficients.max_grad_norm)
        self._clip_factor.copy_(torch.clamp((norm + 1e-6) / coefficients.max_grad_norm, min=1.0))
        bad, skipped = (~torch.isfinite(norm + loss)).float(), torch.zeros_like(loss)
        if self._scale is not None:
            skipped = self._scale.overflowed(loss, norm)
            bad = bad * (1 - skipped)
            self._scale.settle()
        self.optimiser.step(coefficients, stats.left_out(bad, skipped))
        added[GRADIENT_NORMS] += norm
        added[UPDATES] += 1
        stats.add(added, bad, skipped)

    def evaluate(self, batch: Batch) -> BatchEvaluation:
        """Run the network on all samples without learning, in the precision in which the policy acts."""
        data, samples = self._to_device(batch), len(batch.log_prob)
        log_prob, value = (torch.zeros(samples, device=self.device) for _ in range(2))
        sizes: dict[str, Tensor] = {}

        def watch(name: str) -> Any:
            def add(module: nn.Module, inputs: Any, output: Tensor) -> None:
                units = output.ndim - 1 if output.ndim < 4 else 1
                others = [axis for axis in range(output.ndim) if axis != units]
                sizes[name] = sizes.get(name, 0) + output.abs().mean(others).double() * (len(output) / samples)

            return add

        every = torch.arange(samples // batch.sequence, device=self.device)
        for index in torch.split(every, self._sequences(self.micro_batch or EVALUATED, batch)):
            with torch.no_grad():
                part = self._load(data, index)
                hooks = [
                    module.register_forward_hook(watch(name)) for name, module in self.policy.hidden_modules().items()
                ]
                out = self.policy(part.obs, data.mean, data.scale, part.state, part.episode_start)
                for hook in hooks:
                    hook.remove()
                n = data.samples(index).reshape(-1)
                mask = data.columns["mask"][n] if batch.mask.shape[1] else None
                log_prob[n] = self.policy.log_prob_and_entropy(out.outputs, data.columns["action"][n], mask)[0]
                value[n] = out.value
        return BatchEvaluation(
            log_prob.cpu().numpy(), value.cpu().numpy(), {name: s.cpu().numpy() for name, s in sizes.items()}
        )

    def gradient(self) -> Array:
        """The flat gradient of the last minibatch, before clipping."""
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.optimiser.named.items()}
        return self.design.weights.flatten({name: (g * self._clip_factor).cpu().numpy() for name, g in grads.items()})

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        arrays = {f"weight/{name}": array.copy() for name, array in self._weights().items()}
        for name, pair in self.optimiser.moments().items():
            for kind, moment in zip(("first", "second"), pair, strict=True):
                arrays[f"{kind}/{name}"] = moment.cpu().numpy().copy()
        scale = {"loss_scale": self._scale.state()} if self._scale is not None else {}
        return arrays | scale | {"counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `snapshot` returned."""
        weights, moments = self.design.weights, self.optimiser.moments()
        first, second = ({name: pair[number] for name, pair in moments.items()} for number in range(2))
        for kind, into in (("weight/", self.optimiser.named), ("first/", first), ("second/", second)):
            self._write(into, weights.named(weights.flatten(strip_prefix(arrays, kind))))
        if self._scale is not None and "loss_scale" in arrays:
            self._scale.restore(arrays["loss_scale"])
        self.counters[:] = arrays["counters"]
        self.optimiser.count(int(self.counters[STEPS]))
        self._copy_weights_to_host()

    def _to_device(self, batch: Batch) -> TensorBatch:
        """A batch as tensors on the device; a batch that is there already is copied only where it has changed."""
        if self._data is not None and (batch is self._data.batch or self._data.fits(batch)):
            self._data.take(batch)
        else:
            self._data = TensorBatch(batch, self.device, self._offload)
        return self._data

    def _own_stream(self) -> Any:
        """On a GPU the learner has its own stream, so that it does not wait for the work of others."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _why_not_capture(self, data: TensorBatch, coefficients: Coefficients) -> str:
        """Why the steps of a batch cannot be captured as a CUDA graph; empty: they can."""
        reasons = {
            "`policy.memory`: sequences are cut where episodes begin": bool(self.design.state_size),
            "`policy.network`: your own network may synchronise with the host": self.design.policy.network is not None,
            "`ppo.contrastive_coef`: the contrastive loss selects its samples": coefficients.contrast > 0,
            "`ppo.optimiser` = muon synchronises with the host": self.optimiser.muon is not None,
            "`policy.image` = frozen: a pretrained trunk reads the images": self.policy.trunk_encoder is not None,
            "`plan.storage` = host: observations stay on the host": data.offloaded,
            "`plan.precision` = fp16 scales its loss": self._scale is not None,
            "`plan.compile`: torch.compile has graphs of its own": self.compiled,
        }
        return next((why for why, true in reasons.items() if true), "")

    def _mask_policy_gradient(self) -> None:
        """Zero the gradient of all weights except the value function's own."""
        if not self._value_masks:
            marks = self.design.weights.named(self.design.of_value())
            self._value_masks = {name: torch.from_numpy(mark.copy()).to(self.device) for name, mark in marks.items()}
        for name, parameter in self.optimiser.named.items():
            if parameter.grad is not None:
                parameter.grad *= self._value_masks[name]

    def _compute_gradient(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Compute a minibatch's gradient; fall back to eager if compiling fails, to smaller parts if out of memory."""
        while True:
            try:
                return self._add_gradient(data, index, coefficients)
            except Exception as error:  # compiling for a new shape can raise any error
                short = ran_out_of_memory(error)
                if not (short or self.compiled) or self._capturing():
                    raise
                if not short:
                    self._fall_back_to_eager(error)
            if short:  # outside of the except block the failed attempt has freed its memory
                self._halve_micro_batch(
                    data.batch, min(len(index), self._sequences(self.micro_batch or coefficients.minibatch, data.batch))
                )

    def _capturing(self) -> bool:
        """Whether steps are being captured as a graph: then no fallback is possible."""
        return self._stream is not None and torch.cuda.is_current_stream_capturing()

    def _halve_micro_batch(self, batch: Batch, sequences: int) -> None:
        """Halve the micro batch from now on; gradients add up to the same."""
        self.optimiser.clear()
        if sequences == 1:
            raise MachineError(
                f"Out of memory with a micro batch of one sequence of {batch.sequence} samples.",
                "set plan.activation_checkpointing=true, or lower plan.envs, policy.sequence or policy.hidden",
            )
        if torch.device(self.device).type == "cuda":
            torch.cuda.empty_cache()
        self.micro_batch = sequences // 2 * batch.sequence
        self._report_fallback(
            "micro_batch", self.micro_batch, f"memory ran out with {sequences * batch.sequence} samples at once"
        )

    def _add_gradient(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Compute the gradient of a minibatch, part by part; return its loss and its sums."""
        self.optimiser.clear()
        shift, factor, share = data.standardise(index, coefficients.normalise_advantage)
        splits = torch.split(index, self._sequences(self.micro_batch or coefficients.minibatch, data.batch))
        contrasts = None
        if coefficients.contrast > 0 and len(splits) > 1:
            contrasts = self._contrast_all(data, splits, coefficients)
        whole, added = torch.zeros((), device=self.device), torch.zeros(SUMS, dtype=torch.float64, device=self.device)
        for number, split in enumerate(splits):
            part = self._load(data, split, coefficients.contrast > 0)
            out = self._forward_part(data, part)
            sample = part.sample | {"advantage": (part.sample["advantage"] - shift) * factor}
            seen = out.outputs[: len(sample["log_prob"])], out.value[: len(sample["log_prob"])]
            loss, *sums = ppo_loss(self.policy, seen, sample, coefficients)
            loss = loss * share
            added[: len(sums)] += torch.stack(sums)
            added[SAMPLES] += (sample["weight"] > 0).sum()
            whole = whole + loss.detach()
            if coefficients.contrast > 0:
                ours, theirs = out.features[part.anchors], out.features[part.positives]
                contrasts = contrasts or [contrastive_loss(ours, theirs, coefficients.contrast_temperature)]
                mean, by_ours, by_theirs = contrasts[number]
                # The gradients stand in for the loss, which couples the samples of all parts.
                loss = loss + coefficients.contrast * ((ours * by_ours).sum() + (theirs * by_theirs).sum())
                whole = whole + coefficients.contrast * mean
                added[CONTRASTIVE_LOSS] += mean / share
            loss = loss if self._scale is None else self._scale.multiply(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        return whole, added

    def _contrast_all(
        self, data: TensorBatch, splits: tuple[Tensor, ...], coefficients: Coefficients
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The contrastive loss of all parts together, as each part's share of the loss and its gradients."""
        ours, theirs = [], []
        with torch.no_grad():
            for split in splits:
                part = self._load(data, split, True)
                features = self._forward_part(data, part).features
                ours.append(features[part.anchors])
                theirs.append(features[part.positives])
        mean, *grads = contrastive_loss(torch.cat(ours), torch.cat(theirs), coefficients.contrast_temperature)
        sizes = [len(some) for some in ours]
        by_ours, by_theirs = (torch.split(grad, sizes) for grad in grads)
        return [(mean / len(splits), one, two) for one, two in zip(by_ours, by_theirs, strict=True)]

    def _load(self, data: TensorBatch, index: Tensor, paired: bool = False) -> MicroBatch:
        """Gather some sequences: observations, states, and the columns of their samples."""
        samples = data.samples(index)
        n = samples.reshape(-1)
        sample = {name: column[n] for name, column in data.columns.items()}
        anchors = positives = n[:0]
        if paired:
            anchors = torch.nonzero((sample["weight"] > 0) & (data.partner[n] >= 0))[:, 0]
            partners = data.partner[n[anchors]]
            if self.design.state_size:
                steps, lanes = partners // data.batch.rows % data.batch.sequence, anchors % len(index)
                positives = steps * len(index) + lanes
            else:
                positives = torch.arange(len(n), len(n) + len(partners), device=n.device)
                n = torch.cat([n, partners])
        episode_start = data.episode_start[samples] if self.design.state_size else None
        return MicroBatch(data.look_up(n), episode_start, self._burn_in(data, index), sample, anchors, positives)

    def _forward_part(self, data: TensorBatch, part: MicroBatch) -> PolicyOutput:
        """Run the learning policy on the sequences of a part."""
        return self._forward(part.obs, data.mean, data.scale, part.state, part.episode_start)

    def _forward(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> PolicyOutput:
        """Run the learning policy in its precision; its outputs are converted to fp32."""
        if self.compiled and self._mode != "default":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        half = HALVES.get(self.precision)
        with torch.autocast(torch.device(self.device).type, half or torch.bfloat16, enabled=half is not None):
            out = self._learning(obs, mean, scale, state, episode_start)
        return PolicyOutput(*(tensor.float() for tensor in out))

    def _compile(self) -> None:
        """Compile the policy, and keep it if a forward and backward pass on samples of the right shape succeeds."""
        design, steps = self.design, self.design.sequence
        lanes = max(2, min(self.micro_batch or WARMED, WARMED) // steps)
        # Without memory the contrastive positives are appended to the lanes: two different dynamic sizes.
        rows = steps * lanes if design.state_size else lanes + 1
        obs = torch.from_numpy(np.zeros((rows, design.obs.width), design.obs.dtype)).to(self.device)
        _, *normaliser = design.split_params_and_stats(np.zeros(design.params_and_stats_size, np.float32))
        mean, scale = (torch.from_numpy(part.copy()).to(self.device) for part in normaliser)
        state = torch.zeros(lanes, design.state_size, device=self.device)
        episode_start = torch.zeros(steps, lanes, dtype=torch.uint8, device=self.device) if design.state_size else None
        with torch.no_grad():
            self.policy(obs, mean, scale, state, episode_start)  # fills caches, which torch.compile cannot trace
        try:
            torch.compiler.reset()  # torch limits the compiled variants of a function: drop those of other designs
            self._learning = compiled_copy(self.policy, self._mode)
            out = self._forward(obs, mean, scale, state, episode_start)
            (out.outputs.sum() + out.value.sum()).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a missing or failing compiler can raise any error
            self._fall_back_to_eager(error)
        self.optimiser.clear()

    def _fall_back_to_eager(self, error: Exception) -> None:
        """Use the uncompiled policy from now on, and report why."""
        self._learning = self.policy
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
        self._report_fallback("compile", False, f"compiling failed: {(lines or [type(error).__name__])[0]:.200}")

    def _burn_in(self, data: TensorBatch, index: Tensor) -> Tensor:
        """The states before some sequences, refreshed by running the current network over their burn-in."""
        state, batch = data.state[index], data.batch
        with torch.no_grad():
            for ahead in range(batch.burn_in, 0, -1):
                n = data.samples(index)[0] - ahead * batch.rows
                there, n = (n >= 0)[:, None], n.clamp(min=0)
                out = self.policy(data.look_up(n), data.mean, data.scale, state, data.episode_start[n][None])
                state = torch.where(there, out.state, state)
        return state

    def _sequences(self, samples: int, batch: Batch) -> int:
        """The number of sequences in so many samples, at least one."""
        return max(1, samples // batch.sequence)

    def _weights(self) -> dict[str, Array]:
        """The weights on the host; from a GPU they are copied at once."""
        named = self.optimiser.named
        if self._stream is None:
            return {name: parameter.detach().numpy() for name, parameter in named.items()}
        with self._own_stream():
            flat = torch.cat([parameter.detach().reshape(-1) for parameter in named.values()])
            host = torch.empty_like(flat, device="cpu", pin_memory=True).copy_(flat)
        parts = torch.split(host, [parameter.numel() for parameter in named.values()])
        return {name: part.view(p.shape).numpy() for (name, p), part in zip(named.items(), parts, strict=True)}

    def _write(self, into: Mapping[str, Tensor], named: Mapping[str, Array]) -> None:
        with torch.no_grad():
            for name, tensor in into.items():
                tensor.copy_(torch.from_numpy(named[name]))
        self._synchronise()

    def _synchronise(self) -> None:
        """Wait for the work of other streams."""
        if self._stream is not None:
            torch.cuda.synchronize()

    def _copy_weights_to_host(self) -> None:
        self.design.weights.flatten(self._weights(), self.params)
