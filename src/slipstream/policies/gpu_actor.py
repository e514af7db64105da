"""A policy that acts on another device for rows that stand on the host: copied in, chosen for and copied out.

All that a step needs besides observations stands in one block, which goes there and back in one copy each way: which
rows act, masks, streams of chance and memories go in; streams, memories, actions, log-probabilities and values out.
The device holds no truth of its own, so that a snapshot is what the host has. On a GPU the way in, network, sampling
and the way out are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.distributions import apply_mask, greedy, sample
from slipstream.policies.torch_policy import ActorCritic, torch_threads
from slipstream.system.gpu_kernels import capture, launch
from slipstream.system.numba_compile import compiled_fused
from slipstream.system.slab import Field

TRIED = 3
"""Runs before a graph is captured."""
GATHERED = 2048
"""Rows whose values are wanted at some time that are asked for together."""
ALIGNMENT = 64
SPREAD = 32
"""Rows chosen for by one block of a GPU: few, so that a step's rows are on many of its processors."""
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@compiled_fused
def choose_row(
    row: int, outputs: Array, values: Array, log_std: Array, head: Array, chosen: Array, mask: Array, streams: Array,
    probs: Array, masked: bool, sampled: bool, action: Array, log_prob: Array, value: Array,
) -> None:  # fmt: skip
    """Choose the action of one row by its outputs, if it acts."""
    if chosen[row] == 0:
        return
    if masked:
        apply_mask(outputs[row], mask[row], head)
    if sampled:
        log_prob[row] = sample(outputs[row], log_std, head, streams, row, probs[row], action[row])
    else:
        greedy(outputs[row], head, action[row])
    value[row] = values[row]


@compiled_fused
def choose_all(
    outputs: Array, values: Array, log_std: Array, head: Array, chosen: Array, mask: Array, streams: Array,
    probs: Array, masked: bool, sampled: bool, action: Array, log_prob: Array, value: Array,
) -> None:  # fmt: skip
    """Choose the actions of all rows that act."""
    for row in range(outputs.shape[0]):
        choose_row(
            row, outputs, values, log_std, head, chosen, mask, streams, probs, masked, sampled, action, log_prob, value
        )  # fmt: skip


class Block:
    """Named fields side by side in one piece of memory, on the host and on a device.

    The first `inputs` of them go in; all from number `outputs` on come out.
    """

    def __init__(self, fields: dict[str, Field], inputs: int, outputs: int, device: str, pinned: bool) -> None:
        starts = np.cumsum([0, *(-(-field.nbytes // ALIGNMENT) * ALIGNMENT for field in fields.values())]).tolist()
        near = self.near = torch.zeros(max(starts[-1], ALIGNMENT), dtype=torch.uint8, pin_memory=pinned)
        far = torch.zeros_like(near, device=device)

        def views(whole: Tensor) -> dict[str, Tensor]:
            parts = zip(fields.items(), starts, strict=False)
            return {name: whole[at : at + field.nbytes].view(getattr(torch, field.dtype)).view(field.shape)
                    for (name, field), at in parts}  # fmt: skip

        self.host: dict[str, Array] = {name: view.numpy() for name, view in views(near).items()}
        self.there = views(far)
        self._inward = far[: starts[inputs]], near[: starts[inputs]]
        self._outward = near[starts[outputs] :], far[starts[outputs] :]

    def go(self) -> None:
        """Copy what goes in."""
        self._inward[0].copy_(self._inward[1], non_blocking=True)

    def come(self) -> None:
        """Copy what comes out."""
        self._outward[0].copy_(self._outward[1], non_blocking=True)


class GPUActor:
    """Acts for a fixed number of rows, on a device."""

    def __init__(
        self, design: Design, rows: int, device: str, *, graphs: bool = False, pinned: bool = False,
        precision: str = "fp32",
    ) -> None:  # fmt: skip
        self.design, self.device, self.precision = design, device, precision
        cuda = torch.device(device).type == "cuda"
        self.graphs = graphs and cuda
        self.trouble = ""
        """Why there are no graphs although they were wanted."""
        self.policy = ActorCritic(design).to(device).requires_grad_(False)
        numbers = torch.zeros(2, design.numbers)
        self._mean, self._scale = numbers.to(device).unbind(0)
        self._head = torch.from_numpy(design.head).to(device)
        self._log_std = getattr(self.policy, "log_std", torch.zeros(1, device=device))
        size, action = design.state_size, design.action
        fields = {
            "chosen": Field((rows,), "uint8"), "mask": Field((rows, max(1, action.options)), "uint8"),
            "streams": Field((rows, 2), "int64"), "states": Field((rows, size), "float32"),
            "action": Field((rows, action.parts), np.dtype(action.dtype).name),
            "log_prob": Field((rows,), "float32"), "value": Field((rows,), "float32"),
        }  # fmt: skip
        self._pinned = pinned and cuda
        self._block = Block(fields, inputs=4, outputs=2, device=device, pinned=self._pinned)
        obs = np.zeros((rows, design.obs.width), design.obs.dtype)
        self._obs = torch.from_numpy(obs).to(device)
        self._probs = torch.zeros(rows, max(1, design.outputs), device=device)
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self._on_stream: Any = torch.cuda.stream(self._stream) if cuda else nullcontext()
        self._captured: dict[bool, Any] = {}
        self._mirror: Tensor | None = None
        self._step = 0
        self._waiting: list[tuple[Array, Array, Array, Array]] = []
        if cuda:
            torch.cuda.synchronize()  # all of this was made on another stream than that of acting

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, a copy of it."""
        params, mean, scale = self.design.split_params_and_stats(params_and_stats)
        named = dict(self.policy.named_parameters())
        with self._there():
            for name, array in self.design.weights.named(params).items():
                named[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
            self._mean.copy_(torch.from_numpy(mean))
            self._scale.copy_(torch.from_numpy(scale))

    def keep_in(self, mirror: Tensor | None) -> None:
        """Keep the observations of the coming acts in `mirror` [steps, rows, obs], on the same device."""
        self._mirror, self._step = mirror, 0

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, log_prob: Array,
        value: Array, states: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows` and move their states on."""
        host, everybody = self._block.host, len(rows) == len(obs)
        host["chosen"][:] = everybody
        if not everybody:
            host["chosen"][rows] = 1
        for name, array in (("mask", mask), ("streams", streams), ("states", states)):
            if array.size:
                host[name][:] = array
        with self._on_stream:
            self._obs.copy_(torch.from_numpy(obs), non_blocking=True)
            self._go_through(sampled)
            if self._done is not None:
                self._done.record()
            if self._mirror is not None:
                self._mirror[self._step].copy_(self._obs, non_blocking=True)
                self._step += 1
        if self._done is not None:
            self._done.synchronize()
        for name, array in (
            ("streams", streams), ("states", states), ("action", action), ("log_prob", log_prob), ("value", value),
        ):  # fmt: skip
            if array.size:
                np.copyto(array, host[name]) if everybody else array.__setitem__(rows, host[name][rows])

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`, by `flush` at the latest."""
        self._waiting.append((rows, obs[rows], states[rows], value))
        if sum(len(waiting[0]) for waiting in self._waiting) >= GATHERED:
            self.flush()

    def flush(self) -> None:
        """Write the values that are still owed."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            _, obs, states, _ = zip(*waiting, strict=True)
            told = self._ask(np.concatenate(obs), np.concatenate(states))[1]
            low = 0
            for rows, _, _, value in waiting:
                value[rows] = told[low : low + len(rows)]
                low += len(rows)
        if self._stream is not None:
            self._stream.synchronize()

    def tell(self, rows: Array, obs: Array, states: Array, told: Array) -> None:
        """Write the policy's outputs of `rows` and move their states on."""
        outputs, _, after = self._ask(obs[rows], states[rows])
        told[rows, : outputs.shape[1]] = outputs
        told[rows, outputs.shape[1] :] = self._log_std.cpu().numpy()[: told.shape[1] - outputs.shape[1]]
        states[rows] = after

    def _ask(self, obs: Array, states: Array) -> tuple[Array, Array, Array]:
        """Outputs, values and states behind any number of rows."""
        found: list[list[Array]] = []
        with self._there():
            for low in range(0, len(obs), GATHERED):
                some = slice(low, low + GATHERED)
                seen, before = (torch.from_numpy(part[some]).to(self.device) for part in (obs, states))
                told = self._look(seen, before)
                found.append([tensor.cpu().numpy() for tensor in (told[0], told[1], told[2])])
        outputs, values, after = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return outputs, values, after

    def _look(self, obs: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the policy in its precision; what it tells is fp32."""
        kind = HALVES.get(self.precision, torch.bfloat16)
        with torch.autocast(torch.device(self.device).type, kind, enabled=self.precision in HALVES):
            told = self.policy(obs, self._mean, self._scale, states)
        return told.outputs.float(), told.value.float(), told.state.float()

    def _choose(self, sampled: bool) -> None:
        there = self._block.there
        outputs, values, after = self._look(self._obs, there["states"])
        args = (
            outputs.contiguous(), values.contiguous(), self._log_std.detach(), self._head, there["chosen"],
            there["mask"], there["streams"], self._probs, self.design.action.masked, sampled, there["action"],
            there["log_prob"], there["value"],
        )  # fmt: skip
        launch(choose_all, choose_row, len(self._obs), args, block=SPREAD)
        if self.design.state_size:
            there["states"].copy_(after)

    def _go_through(self, sampled: bool) -> None:
        """From the block's inputs to its outputs; the observations are there."""
        if self.graphs and sampled not in self._captured:
            self._capture(sampled)
        apart = not (self.graphs and self._pinned)
        if apart:
            self._block.go()
        if self.graphs:
            self._captured[sampled].replay()
        else:
            with self._there():
                self._choose(sampled)
        if apart:
            self._block.come()

    def _capture(self, sampled: bool) -> None:
        """Capture what an act takes, or go on without; tries draw and remember, so what was to go in is put back."""
        before = self._block.near.clone()
        try:
            with self._there():
                self._captured[sampled] = capture(lambda: self._whole(sampled), TRIED)
        except RuntimeError as error:  # a kernel of this network that no graph can hold
            self.graphs, self.trouble = False, f"the policy cannot be captured: {str(error).splitlines()[0]:.200}"
        if self._stream is not None:
            self._stream.synchronize()
        self._block.near.copy_(before)

    def _whole(self, sampled: bool) -> None:
        """What is captured: copies of pinned memory too."""
        if self._pinned:
            self._block.go()
        self._choose(sampled)
        if self._pinned:
            self._block.come()

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Work on this policy's own stream, without gradients; on a CPU with one thread."""
        if self._stream is not None:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                yield
        else:
            with torch.no_grad(), torch_threads(1):
                yield
