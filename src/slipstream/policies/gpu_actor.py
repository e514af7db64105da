"""A policy that acts on a GPU for rows in host memory: inputs are copied in, actions are copied out.

Everything besides observations is in one staging buffer, copied once in each direction: flags of acting rows, masks,
RNG streams and recurrent states go in; RNG streams, states, actions, log-probabilities and values come out. The device
keeps no state of its own between steps, so a snapshot of the host arrays is complete. On a GPU the copies, the network
and the sampling are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipstream.contracts import Array
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import select_action
from slipstream.policies.torch_policy import ActorCritic, torch_threads
from slipstream.policies.user_network import check_finite
from slipstream.system.gpu_kernels import capture, launch
from slipstream.system.numba_compile import compiled_fused
from slipstream.system.slab import Field

WARMUP_RUNS = 3
"""Runs before a graph is captured."""
VALUE_BATCH = 2048
"""Rows whose values are computed in one forward pass."""
ALIGNMENT = 64
ROWS_PER_BLOCK = 32
"""Rows per thread block: few, so that the rows are spread over many multiprocessors."""
HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DeviceInputs(NamedTuple):
    """What `select_row` reads besides the network's outputs, in device memory."""

    acting: Any  # [rows]: 1 for rows that act
    mask: Any  # [rows, options]
    streams: Any  # RNG streams, which advance


@compiled_fused
def select_row(
    row: int,
    outputs: Array,
    values: Array,
    log_std: Array,
    head: Array,
    inputs: DeviceInputs,
    probs: Array,
    masked: bool,
    sampled: bool,
    out: ActOutputs,
) -> None:
    """Select the action of one row, if it acts."""
    if inputs.acting[row] == 0:
        return
    mask, action = inputs.mask[row], out.action[row]
    select_action(
        outputs[row], log_std, head, mask, masked, inputs.streams, row, probs[row], sampled, action, out.log_prob
    )
    out.value[row] = values[row]


class StagingBuffer:
    """Named fields in one contiguous buffer, on the host and on a device.

    The first `inputs` fields are copied in; all fields from number `outputs` on are copied out.
    """

    def __init__(self, fields: dict[str, Field], inputs: int, outputs: int, device: str, pinned: bool) -> None:
        starts = np.cumsum([0, *(-(-field.nbytes // ALIGNMENT) * ALIGNMENT for field in fields.values())]).tolist()
        host = self.host_bytes = torch.zeros(max(starts[-1], ALIGNMENT), dtype=torch.uint8, pin_memory=pinned)
        device_bytes = torch.zeros_like(host, device=device)

        def views(buffer: Tensor) -> dict[str, Tensor]:
            parts = zip(fields.items(), starts, strict=False)
            return {
                name: buffer[at : at + field.nbytes].view(getattr(torch, field.dtype)).view(field.shape)
                for (name, field), at in parts
            }

        self.host: dict[str, Array] = {name: view.numpy() for name, view in views(host).items()}
        self.device = views(device_bytes)
        self._inputs = device_bytes[: starts[inputs]], host[: starts[inputs]]
        self._outputs = host[starts[outputs] :], device_bytes[starts[outputs] :]

    def copy_in(self) -> None:
        """Copy the inputs to the device."""
        self._inputs[0].copy_(self._inputs[1], non_blocking=True)

    def copy_out(self) -> None:
        """Copy the outputs to the host."""
        self._outputs[0].copy_(self._outputs[1], non_blocking=True)


class GPUActor:
    """Acts for a fixed number of rows on a device."""

    def __init__(
        self,
        design: Design,
        rows: int,
        device: str,
        *,
        graphs: bool = False,
        pinned: bool = False,
        precision: str = "fp32",
    ) -> None:
        self.design, self.device, self.precision = design, device, precision
        cuda = torch.device(device).type == "cuda"
        own = design.policy.network is not None
        self.graphs = graphs and cuda and not own
        self.graph_error = "your own network may synchronise with the host" if graphs and cuda and own else ""
        """Why CUDA graphs were requested but are not used."""
        self.policy = ActorCritic(design).to(device).requires_grad_(False)
        numbers = torch.zeros(2, design.numbers)
        self._mean, self._scale = numbers.to(device).unbind(0)
        self._head = torch.from_numpy(design.head).to(device)
        self._log_std = getattr(self.policy, "log_std", torch.zeros(1, device=device))
        size, action = design.state_size, design.action
        fields = {
            "acting": Field((rows,), "uint8"),
            "mask": Field((rows, max(1, action.options)), "uint8"),
            "streams": Field((rows, 2), "int64"),
            "states": Field((rows, size), "float32"),
            "action": Field((rows, action.parts), np.dtype(action.dtype).name),
            "log_prob": Field((rows,), "float32"),
            "value": Field((rows,), "float32"),
        }
        self._pinned = pinned and cuda
        self._staging = StagingBuffer(fields, inputs=4, outputs=2, device=device, pinned=self._pinned)
        obs = np.zeros((rows, design.obs.width), design.obs.dtype)
        self._obs = torch.from_numpy(obs).to(device)
        self._probs = torch.zeros(rows, max(1, design.outputs), device=device)
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self._on_stream: Any = torch.cuda.stream(self._stream) if cuda else nullcontext()
        self._captured: dict[bool, Any] = {}
        self._mirror: Tensor | None = None
        self._step = 0
        self._queued: list[tuple[Array, Array, Array, Array]] = []
        if cuda:
            torch.cuda.synchronize()  # the tensors above were made on another stream

    def load(self, params_and_stats: Array) -> None:
        """Act with a copy of the weights and normaliser of `params_and_stats`."""
        params, mean, scale = self.design.split_params_and_stats(params_and_stats)
        named = dict(self.policy.named_parameters())
        with self._device_context():
            for name, array in self.design.weights.named(params).items():
                named[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
            self._mean.copy_(torch.from_numpy(mean))
            self._scale.copy_(torch.from_numpy(scale))

    def mirror_obs(self, mirror: Tensor | None) -> None:
        """Store the observations of the next steps in `mirror` [steps, rows, obs], on the same device."""
        self._mirror, self._step = mirror, 0

    def act(self, inputs: ActInputs, out: ActOutputs, sampled: bool) -> None:
        """Write action, log-probability and value of the rows and advance their recurrent states."""
        rows, obs, mask, states, streams = inputs
        host, all_rows = self._staging.host, len(rows) == len(obs)
        host["acting"][:] = all_rows
        if not all_rows:
            host["acting"][rows] = 1
        for name, array in (("mask", mask), ("streams", streams), ("states", states)):
            if array.size:
                host[name][:] = array
        with self._on_stream:
            self._obs.copy_(torch.from_numpy(obs), non_blocking=True)
            self._run(sampled)
            if self._done is not None:
                self._done.record()
            if self._mirror is not None:
                self._mirror[self._step].copy_(self._obs, non_blocking=True)
                self._step += 1
        if self._done is not None:
            self._done.synchronize()
        check_finite(self.design.policy.network, host["value"][rows])
        for name, array in (("streams", streams), ("states", states), *out._asdict().items()):
            if array.size:
                np.copyto(array, host[name]) if all_rows else array.__setitem__(rows, host[name][rows])

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Queue the value of `rows`; it is written by `flush` at the latest."""
        self._queued.append((rows, obs[rows], states[rows], value))
        if sum(len(queued[0]) for queued in self._queued) >= VALUE_BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the queued values."""
        queued, self._queued = self._queued, []
        if queued:
            _, obs, states, _ = zip(*queued, strict=True)
            values = self._forward_batches(np.concatenate(obs), np.concatenate(states))[1]
            low = 0
            for rows, _, _, value in queued:
                value[rows] = values[low : low + len(rows)]
                low += len(rows)
        if self._stream is not None:
            self._stream.synchronize()

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows` (and log standard deviations) and advance their recurrent states."""
        outputs, _, after = self._forward_batches(obs[rows], states[rows])
        out[rows, : outputs.shape[1]] = outputs
        out[rows, outputs.shape[1] :] = self._log_std.cpu().numpy()[: out.shape[1] - outputs.shape[1]]
        states[rows] = after

    def _forward_batches(self, obs: Array, states: Array) -> tuple[Array, Array, Array]:
        """Outputs, values and new states of any number of rows."""
        found: list[list[Array]] = []
        with self._device_context():
            for low in range(0, len(obs), VALUE_BATCH):
                batch = slice(low, low + VALUE_BATCH)
                batch_obs, before = (torch.from_numpy(part[batch]).to(self.device) for part in (obs, states))
                found.append([tensor.cpu().numpy() for tensor in self._forward(batch_obs, before)])
        outputs, values, after = (np.concatenate(parts) for parts in zip(*found, strict=True))
        check_finite(self.design.policy.network, outputs, values)
        return outputs, values, after

    def _forward(self, obs: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the policy in its precision; the results are fp32."""
        kind = HALF_DTYPES.get(self.precision, torch.bfloat16)
        with torch.autocast(torch.device(self.device).type, kind, enabled=self.precision in HALF_DTYPES):
            result = self.policy(obs, self._mean, self._scale, states)
        return result.outputs.float(), result.value.float(), result.state.float()

    def _select(self, sampled: bool) -> None:
        """Run the network and select actions, on the device."""
        device = self._staging.device
        outputs, values, after = self._forward(self._obs, device["states"])
        if self.design.policy.network is not None:  # `act` checks the values on the host, and so the outputs too
            values = torch.where(torch.isfinite(outputs).all(1), values, torch.nan)
        args = (
            outputs.contiguous(),
            values.contiguous(),
            self._log_std.detach(),
            self._head,
            DeviceInputs(device["acting"], device["mask"], device["streams"]),
            self._probs,
            self.design.action.masked,
            sampled,
            ActOutputs(*(device[name] for name in ActOutputs._fields)),
        )
        launch(select_row, len(self._obs), args, block=ROWS_PER_BLOCK)
        if self.design.state_size:
            device["states"].copy_(after)

    def _run(self, sampled: bool) -> None:
        """Copy in, select actions and copy out; the observations are on the device already."""
        if self.graphs and sampled not in self._captured:
            self._capture(sampled)
        separate_copies = not (self.graphs and self._pinned)
        if separate_copies:
            self._staging.copy_in()
        if self.graphs:
            self._captured[sampled].replay()
        else:
            with self._device_context():
                self._select(sampled)
        if separate_copies:
            self._staging.copy_out()

    def _capture(self, sampled: bool) -> None:
        """Capture the CUDA graph of a step, or disable graphs; inputs, which warm-up runs change, are restored."""
        before = self._staging.host_bytes.clone()
        try:
            with self._device_context():
                self._captured[sampled] = capture(lambda: self._captured_step(sampled), WARMUP_RUNS)
        except RuntimeError as error:  # the network has a kernel that cannot be captured
            self.graphs, self.graph_error = False, f"the policy cannot be captured: {str(error).splitlines()[0]:.200}"
        if self._stream is not None:
            self._stream.synchronize()
        self._staging.host_bytes.copy_(before)

    def _captured_step(self, sampled: bool) -> None:
        """The captured work; it includes the copies if host memory is pinned."""
        if self._pinned:
            self._staging.copy_in()
        self._select(sampled)
        if self._pinned:
            self._staging.copy_out()

    @contextmanager
    def _device_context(self) -> Iterator[None]:
        """Use the policy's own CUDA stream, without gradients; on a CPU, one thread."""
        if self._stream is not None:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                yield
        else:
            with torch.no_grad(), torch_threads(1):
                yield
