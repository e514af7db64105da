"""PPO's gradient steps in torch: the reference for the fused kernel, and the way for what it cannot do."""

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
from slipstream.algorithms.engine import CONTRAST, NORMS, SAMPLES, SUMS, UPDATES, Batch, BatchEvaluation, Coefficients
from slipstream.contracts import Array
from slipstream.engines.cuda_graphs import StepGraphs, StepStats
from slipstream.engines.tensor_batch import MicroBatch, TensorBatch
from slipstream.engines.torch_backends import HALVES, LossScale, ran_out_of_memory
from slipstream.engines.torch_optimisers import Optimiser, clip_grad_norm
from slipstream.engines.weights_io import strip_prefix
from slipstream.errors import MachineError
from slipstream.plan import changed
from slipstream.policies.design import Design
from slipstream.policies.torch_policy import ActorCritic, PolicyOutput

SURVEYED = 4096
"""Samples that `survey` looks at together."""
WARMED = 256
"""Samples, at most, that a compiled policy is tried with."""


def ppo_loss(
    policy: ActorCritic, told: tuple[Tensor, Tensor], sample: dict[str, Tensor], coefficients: Coefficients
) -> list[Tensor]:
    """Return, each summed over samples: the loss, then what `batch.POLICY` to `batch.REFERENCE` stand for.

    `told` are outputs and values, `sample` the columns of the batch with standardised advantages. Samples of weight 0
    add nothing, whatever stands there: shapes stay the same however many there are.
    """
    (outputs, value), counts = told, sample["weight"] > 0
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
    held = torch.zeros_like(value)
    if sample["reference"].shape[1]:
        held = policy.kl_divergence(outputs, sample["reference"], mask).masked_fill(~counts, 0.0)
    loss = (
        -coefficients.policy * surrogate
        + coefficients.value * error
        - coefficients.entropy * entropy
        + coefficients.reference_kl * held
    )
    clipped = (ratio - 1).abs() > coefficients.clip
    parts = (-surrogate, error, entropy, ratio - 1 - difference, clipped.float(), held)
    return [loss.sum(), *(part.detach().double().sum() for part in parts)]


def compiled_twin(policy: ActorCritic, mode: str = "default") -> ActorCritic:
    """A policy of the same weights whose networks are compiled, so that the first stays open to hooks.

    Sizes stay symbols: another number of samples is no reason to compile again. Memories are left to torch's own.
    """
    kept = [*policy.parameters(), *policy.buffers(), policy.design, policy.trunk_encoder]
    twin = copy.deepcopy(policy, {id(part): part for part in kept})
    for chain in twin.networks():
        chain.recurrent = torch.compiler.disable(chain.recurrent)  # type: ignore[method-assign, no-untyped-call]
        chain.compile(dynamic=True, mode=mode)
    return twin


Mend = Callable[[str, Any, str], None]
"""Is told what is done instead where a switch of the plan cannot be carried out: its name, that, and why."""


def warn_of(name: str, applied: Any, why: str) -> None:
    """Warn, for engines that nobody listens to."""
    warnings.warn(changed(name, applied, why), stacklevel=2)


class TorchEngine:
    """A torch module and its optimiser behind the same door as the fused kernel."""

    def __init__(
        self, design: Design, params: Array, threads: int, micro_batch: int | None = None, checkpointing: bool = False,
        optimiser: str = "adam", device: str = "cpu", precision: str = "fp32", compiled: bool = False,
        compile_mode: str = "default", mend: Mend = warn_of, graphs: bool = False, offload: bool = False,
    ) -> None:  # fmt: skip
        torch.set_num_threads(threads)
        cuda = torch.device(device).type == "cuda"
        self.design = design
        self.params = params
        self.micro_batch = micro_batch
        self.device = device
        self.policy = ActorCritic(design).to(device)
        if cuda:  # convolutions in halves read pixels in this order; what is no image stays as it is
            self.policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.policy.checkpointing = checkpointing
        self.optimiser = Optimiser(self.policy, optimiser)
        self.counters = np.zeros(3, np.int64)
        self._stretch = torch.ones((), device=device)
        self._tally = StepStats(device)
        self._data: TensorBatch | None = None
        self._offload = offload
        self._stream: Any = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._marks: dict[str, Tensor] = {}
        self._write(self.optimiser.named, design.weights.named(params))
        self.precision = precision
        self._scale = LossScale(device) if precision == "fp16" else None
        self._mend, self._mode = mend, compile_mode
        self._learning = self.policy
        """What gradients are taken of: the policy, or its compiled twin."""
        if compiled:
            self._compile()
        self._graphs = StepGraphs(self.step, self.optimiser, self._unfit_for_graphs, mend) if graphs and cuda else None
        self._wait()

    @property
    def compiled(self) -> bool:
        """Whether gradients are taken of compiled networks."""
        return self._learning is not self.policy

    def run(self, batch: Batch, order: Array, coefficients: Coefficients, totals: Array) -> None:
        """Take the gradient steps of one epoch on the sequences in `order`; only at its end the host waits."""
        with self._own_stream():
            data, tally = self._bring(batch), self._tally
            tally.begin(int(self.counters[1]))
            for index in torch.split(
                torch.from_numpy(order).to(self.device), self._sequences(coefficients.minibatch, batch)
            ):
                if self._graphs is None or not self._graphs.replay(data, index, coefficients):
                    self.step(data, index, coefficients)
            if self._graphs is not None:
                self._graphs.settle()
            sums, failed, streak = tally.read()
        self.counters += np.array([int(sums[UPDATES]), 0, failed])
        self.counters[1] = streak
        totals += sums
        self._publish()

    def step(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> None:
        """Take one gradient step, without waiting for its result."""
        tally = self._tally
        loss, added = self._find_gradient(data, index, coefficients)
        if self._scale is not None:
            self._scale.divide(self.optimiser.both())
        if coefficients.policy == 0:
            self._hold_policy()
        norm = clip_grad_norm(list(self.optimiser.named.values()), coefficients.max_grad_norm)
        self._stretch.copy_(torch.clamp((norm + 1e-6) / coefficients.max_grad_norm, min=1.0))
        bad, skipped = (~torch.isfinite(norm + loss)).float(), torch.zeros_like(loss)
        if self._scale is not None:
            skipped = self._scale.overflowed(loss, norm)
            bad = bad * (1 - skipped)
            self._scale.settle()
        self.optimiser.step(coefficients, tally.left_out(bad, skipped))
        added[NORMS] += norm
        added[UPDATES] += 1
        tally.add(added, bad, skipped)

    def survey(self, batch: Batch) -> BatchEvaluation:
        """Look at all samples without learning, in the precision in which the policy acts."""
        data, samples = self._bring(batch), len(batch.log_prob)
        log_prob, value = (torch.zeros(samples, device=self.device) for _ in range(2))
        sizes: dict[str, Tensor] = {}

        def watch(name: str) -> Any:
            def add(module: nn.Module, inputs: Any, output: Tensor) -> None:
                units = output.ndim - 1 if output.ndim < 4 else 1
                others = [axis for axis in range(output.ndim) if axis != units]
                sizes[name] = sizes.get(name, 0) + output.abs().mean(others).double() * (len(output) / samples)

            return add

        every = torch.arange(samples // batch.sequence, device=self.device)
        for index in torch.split(every, self._sequences(self.micro_batch or SURVEYED, batch)):
            with torch.no_grad():
                part = self._load(data, index)
                hooks = [
                    module.register_forward_hook(watch(name)) for name, module in self.policy.hidden_modules().items()
                ]
                told = self.policy(part.obs, data.mean, data.scale, part.state, part.episode_start)
                for hook in hooks:
                    hook.remove()
                n = data.samples(index).reshape(-1)
                mask = data.columns["mask"][n] if batch.mask.shape[1] else None
                log_prob[n] = self.policy.log_prob_and_entropy(told.outputs, data.columns["action"][n], mask)[0]
                value[n] = told.value
        return BatchEvaluation(
            log_prob.cpu().numpy(), value.cpu().numpy(), {name: s.cpu().numpy() for name, s in sizes.items()}
        )

    def gradient(self) -> Array:
        """The flat gradient of the last step taken, as it was before it was shortened."""
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.optimiser.named.items()}
        return self.design.weights.flatten({name: (g * self._stretch).cpu().numpy() for name, g in grads.items()})

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        arrays = {f"weight/{name}": array.copy() for name, array in self._weights().items()}
        for name, pair in self.optimiser.moments().items():
            for kind, moment in zip(("first", "second"), pair, strict=True):
                arrays[f"{kind}/{name}"] = moment.cpu().numpy().copy()
        scale = {"loss_scale": self._scale.state()} if self._scale is not None else {}
        return arrays | scale | {"counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        weights, moments = self.design.weights, self.optimiser.moments()
        first, second = ({name: pair[number] for name, pair in moments.items()} for number in range(2))
        for kind, into in (("weight/", self.optimiser.named), ("first/", first), ("second/", second)):
            self._write(into, weights.named(weights.flatten(strip_prefix(arrays, kind))))
        if self._scale is not None and "loss_scale" in arrays:
            self._scale.restore(arrays["loss_scale"])
        self.counters[:] = arrays["counters"]
        self.optimiser.count(int(self.counters[0]))
        self._publish()

    def _bring(self, batch: Batch) -> TensorBatch:
        """A batch as tensors; the same one is brought once, but for what has changed since."""
        if self._data is not None and (batch is self._data.batch or self._data.fits(batch)):
            self._data.take(batch)
        else:
            self._data = TensorBatch(batch, self.device, self._offload)
        return self._data

    def _own_stream(self) -> Any:
        """On a GPU the learner works on its own stream, so that nobody else's work holds it up."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _unfit_for_graphs(self, data: TensorBatch, coefficients: Coefficients) -> str:
        """Why the steps of a batch cannot be captured; empty: they can."""
        reasons = {
            "sequences are cut where episodes begin": bool(self.design.state_size),
            "the contrastive loss picks its samples": coefficients.contrast > 0,
            "Muon asks the host": self.optimiser.muon is not None,
            "a frozen trunk reads the images": self.policy.trunk_encoder is not None,
            "observations stay on the host": data.offloaded,
            "fp16 scales its loss": self._scale is not None,
            "torch.compile has graphs of its own": self.compiled,
        }
        return next((why for why, true in reasons.items() if true), "")

    def _hold_policy(self) -> None:
        """Leave a gradient to the value's own weights alone."""
        if not self._marks:
            marks = self.design.weights.named(self.design.of_value())
            self._marks = {name: torch.from_numpy(mark.copy()).to(self.device) for name, mark in marks.items()}
        for name, parameter in self.optimiser.named.items():
            if parameter.grad is not None:
                parameter.grad *= self._marks[name]

    def _find_gradient(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Write a minibatch's gradient; without a compiler that fails, and in smaller parts where memory runs out."""
        while True:
            try:
                return self._add_gradient(data, index, coefficients)
            except Exception as error:  # a new shape may have to be compiled at any time, and that may fail in any way
                short = ran_out_of_memory(error)
                if not (short or self.compiled) or self._capturing():
                    raise
                if not short:
                    self._stay_eager(error)
            if short:  # only out here the failed attempt has let go of its memory
                self._halve(
                    data.batch, min(len(index), self._sequences(self.micro_batch or coefficients.minibatch, data.batch))
                )

    def _capturing(self) -> bool:
        """Whether steps are being captured: then nothing can be mended on the way."""
        return self._stream is not None and torch.cuda.is_current_stream_capturing()

    def _halve(self, batch: Batch, held: int) -> None:
        """Hold half as many sequences at once from now on: gradients add up to the same."""
        self.optimiser.clear()
        if held == 1:
            raise MachineError(
                f"Memory ran out in the midst of learning, with {batch.sequence} samples at once: no less can be held.",
                "try plan.activation_checkpointing=true, fewer plan.envs, a shorter policy.sequence or a smaller policy",
            )
        if torch.device(self.device).type == "cuda":
            torch.cuda.empty_cache()
        self.micro_batch = held // 2 * batch.sequence
        self._mend("micro_batch", self.micro_batch, f"memory ran out with {held * batch.sequence} samples at once")

    def _add_gradient(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Write the gradient of a minibatch, part by part; return its loss and what it adds to the totals."""
        self.optimiser.clear()
        shift, factor, share = data.standardise(index, coefficients.normalise_advantage)
        splits = torch.split(index, self._sequences(self.micro_batch or coefficients.minibatch, data.batch))
        pulls = None
        if coefficients.contrast > 0 and len(splits) > 1:
            pulls = self._pull_all(data, splits, coefficients)
        whole, added = torch.zeros((), device=self.device), torch.zeros(SUMS, dtype=torch.float64, device=self.device)
        for number, split in enumerate(splits):
            part = self._load(data, split, coefficients.contrast > 0)
            told = self._look(data, part)
            sample = part.sample | {"advantage": (part.sample["advantage"] - shift) * factor}
            seen = told.outputs[: len(sample["log_prob"])], told.value[: len(sample["log_prob"])]
            loss, *sums = ppo_loss(self.policy, seen, sample, coefficients)
            loss = loss * share
            added[: len(sums)] += torch.stack(sums)
            added[SAMPLES] += (sample["weight"] > 0).sum()
            whole = whole + loss.detach()
            if coefficients.contrast > 0:
                ours, theirs = told.features[part.anchors], told.features[part.positives]
                pulls = pulls or [contrastive_loss(ours, theirs, coefficients.contrast_temperature)]
                mean, by_ours, by_theirs = pulls[number]
                # The slopes stand for the loss, which ties the samples of all parts together.
                loss = loss + coefficients.contrast * ((ours * by_ours).sum() + (theirs * by_theirs).sum())
                whole = whole + coefficients.contrast * mean
                added[CONTRAST] += mean / share
            loss = loss if self._scale is None else self._scale.multiply(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        return whole, added

    def _pull_all(
        self, data: TensorBatch, splits: tuple[Tensor, ...], coefficients: Coefficients
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The contrastive loss of all parts together, as each part's share of it and its slopes."""
        ours, theirs = [], []
        with torch.no_grad():
            for split in splits:
                part = self._load(data, split, True)
                features = self._look(data, part).features
                ours.append(features[part.anchors])
                theirs.append(features[part.positives])
        mean, *grads = contrastive_loss(torch.cat(ours), torch.cat(theirs), coefficients.contrast_temperature)
        sizes = [len(some) for some in ours]
        by_ours, by_theirs = (torch.split(grad, sizes) for grad in grads)
        return [(mean / len(splits), one, two) for one, two in zip(by_ours, by_theirs, strict=True)]

    def _load(self, data: TensorBatch, index: Tensor, paired: bool = False) -> MicroBatch:
        """Bring in some sequences: observations, states, and the columns of the samples that count."""
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
        return MicroBatch(data.look_up(n), episode_start, self._freshen(data, index), sample, anchors, positives)

    def _look(self, data: TensorBatch, part: MicroBatch) -> PolicyOutput:
        """Run the policy on the sequences of a part, as it learns."""
        return self._ask(part.obs, data.mean, data.scale, part.state, part.episode_start)

    def _ask(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> PolicyOutput:
        """Run the policy in its precision; all that is made of what it tells is fp32."""
        if self.compiled and self._mode != "default":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        half = HALVES.get(self.precision)
        with torch.autocast(torch.device(self.device).type, half or torch.bfloat16, enabled=half is not None):
            told = self._learning(obs, mean, scale, state, episode_start)
        return PolicyOutput(*(tensor.float() for tensor in told))

    def _compile(self) -> None:
        """Go over to a compiled policy if it stands a trial on samples of the right shape, forward and backward."""
        design, steps = self.design, self.design.sequence
        lanes = max(2, min(self.micro_batch or WARMED, WARMED) // steps)
        # Without memory the partners of a contrastive loss come behind the lanes: two sizes, not to be taken for one.
        rows = steps * lanes if design.state_size else lanes + 1
        obs = torch.from_numpy(np.zeros((rows, design.obs.width), design.obs.dtype)).to(self.device)
        _, *normaliser = design.split_params_and_stats(np.zeros(design.params_and_stats_size, np.float32))
        mean, scale = (torch.from_numpy(part.copy()).to(self.device) for part in normaliser)
        state = torch.zeros(lanes, design.state_size, device=self.device)
        episode_start = torch.zeros(steps, lanes, dtype=torch.uint8, device=self.device) if design.state_size else None
        with torch.no_grad():
            self.policy(
                obs, mean, scale, state, episode_start
            )  # works out what is kept, which compilers cannot look into
        try:
            torch.compiler.reset()  # torch allows few ways to compile one function: those of other designs are dropped
            self._learning = compiled_twin(self.policy, self._mode)
            told = self._ask(obs, mean, scale, state, episode_start)
            (told.outputs.sum() + told.value.sum()).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a compiler that is missing or fails may say so by any error
            self._stay_eager(error)
        self.optimiser.clear()

    def _stay_eager(self, error: Exception) -> None:
        """Learn by the policy as it is from now on, and say why."""
        self._learning = self.policy
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
        self._mend("compile", False, f"compiling failed: {(lines or [type(error).__name__])[0]:.200}")

    def _freshen(self, data: TensorBatch, index: Tensor) -> Tensor:
        """The states before some sequences, run through their burn-in by the network of this moment, as it acts."""
        state, batch = data.state[index], data.batch
        with torch.no_grad():
            for ahead in range(batch.burn_in, 0, -1):
                n = data.samples(index)[0] - ahead * batch.rows
                there, n = (n >= 0)[:, None], n.clamp(min=0)
                told = self.policy(data.look_up(n), data.mean, data.scale, state, data.episode_start[n][None])
                state = torch.where(there, told.state, state)
        return state

    def _sequences(self, samples: int, batch: Batch) -> int:
        """How many sequences are so many samples, at least one."""
        return max(1, samples // batch.sequence)

    def _weights(self) -> dict[str, Array]:
        """The weights on the host; from a GPU all of them come in one copy."""
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
        self._wait()

    def _wait(self) -> None:
        """Let what was begun elsewhere be done before the learner's own stream goes on."""
        if self._stream is not None:
            torch.cuda.synchronize()

    def _publish(self) -> None:
        self.design.weights.flatten(self._weights(), self.params)
