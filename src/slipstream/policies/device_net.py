"""The policy as matrix products on any device, forward and backward, with the flat weights of the fused kernels.

Every layer's weights are a view [inputs, outputs] of one flat tensor, padded as in `parameter_layout`, and so are their
gradients: checkpoints and optimiser copy nothing. Shapes do not change between calls, so that a CUDA graph can capture
them. With bf16 only the products of dense layers are bf16; recurrent layers, heads, losses and weights stay fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.linear_algebra import ONE, hyperbolic_tangent, logistic, normalise
from slipstream.policies.parameter_layout import COLUMNS, DENSE, IN_COLUMNS, STATE, LayerSpec
from slipstream.system.gpu_kernels import launch
from slipstream.system.numba_compile import compiled_fused

ACTIVATION_BACKWARD: dict[str, Any] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0),
    "elu": lambda grad, out: torch.ops.aten.elu_backward(grad, 1.0, 1.0, 1.0, True, out),
}
ACTIVATION: dict[str, Any] = {"tanh": torch.tanh_, "relu": torch.relu_, "elu": functional.elu_}


@compiled_fused
def normalise_at(i: int, obs: Array, mean: Array, scale: Array, into: Array) -> None:
    """Write one normalised number of one observation."""
    row, k = i // mean.size, i % mean.size
    into[row, k] = normalise(obs[row, k], mean[k], scale[k])


@compiled_fused
def normalise_half_at(i: int, obs: Array, mean: Array, scale: Array, into: Array) -> None:
    """Write the bits of one normalised number as bf16, rounded to nearest even."""
    row, k = i // mean.size, i % mean.size
    bits = np.int64(np.float32(normalise(obs[row, k], mean[k], scale[k])).view(np.int32))
    into[row, k] = np.int16((bits + 32767 + ((bits >> 16) & 1)) >> 16)


@compiled_fused
def gather_at(i: int, source: Array, index: Array, into: Array) -> None:
    """Copy one number of the rows that `index` chooses."""
    row, k = i // into.shape[1], i % into.shape[1]
    into[row, k] = source[index[row], k]


@compiled_fused
def lstm_at(i: int, gates: Array, before: Array, after: Array, hidden: Array) -> None:
    """One unit of an LSTM step; the activations replace the gates, in the order input, forget, candidate, output."""
    units = before.shape[1]
    lane, u = i // units, i % units
    input_gate, forget = logistic(gates[lane, u]), logistic(gates[lane, units + u])
    candidate, output = hyperbolic_tangent(gates[lane, 2 * units + u]), logistic(gates[lane, 3 * units + u])
    gates[lane, u], gates[lane, units + u] = input_gate, forget
    gates[lane, 2 * units + u], gates[lane, 3 * units + u] = candidate, output
    after[lane, u] = forget * before[lane, u] + input_gate * candidate
    hidden[lane, u] = output * hyperbolic_tangent(after[lane, u])


@compiled_fused
def lstm_backward_at(
    i: int,
    gates: Array,
    before: Array,
    after: Array,
    grad: Array,
    carried: Array,
    kept: Array,
    by_cell: Array,
    keep: Array,
    by_gates: Array,
) -> None:
    """The backward pass of one unit of an LSTM step: from the gradient of its output to those of its gates.

    `carried` is the gradient from the next step, cut where `kept` is 0 because an episode began there; `by_cell` is the
    gradient of the cell, which becomes that of the step before, cut by `keep`.
    """
    units = before.shape[1]
    lane, u = i // units, i % units
    input_gate, forget = gates[lane, u], gates[lane, units + u]
    candidate, output = gates[lane, 2 * units + u], gates[lane, 3 * units + u]
    by_hidden = grad[lane, u] + carried[lane, u] * kept[lane]
    tanh_cell = hyperbolic_tangent(after[lane, u])
    cell = by_cell[lane, u] + by_hidden * output * (ONE - tanh_cell * tanh_cell)
    by_gates[lane, u] = cell * candidate * input_gate * (ONE - input_gate)
    by_gates[lane, units + u] = cell * before[lane, u] * forget * (ONE - forget)
    by_gates[lane, 2 * units + u] = cell * input_gate * (ONE - candidate * candidate)
    by_gates[lane, 3 * units + u] = by_hidden * tanh_cell * output * (ONE - output)
    by_cell[lane, u] = cell * forget * keep[lane]


@dataclass
class LSTMTrace:
    """What the forward pass of an LSTM keeps for the backward pass, step by step."""

    hidden: list[Tensor]  # [lanes, units] each: the hidden state before the step, 0 where an episode began
    before: list[Tensor]  # the cell state before the step, likewise
    after: list[Tensor]
    gates: list[Tensor]  # [lanes, 4 * units]
    keep: list[Tensor]  # [lanes]: 0 where an episode begins


@dataclass
class LayerWeights:
    """The weights of one layer, or their gradients."""

    weight: Tensor  # [inputs, outputs]
    bias: Tensor  # [outputs]
    recurrent: Any = None
    recurrent_bias: Any = None
    """Only of recurrent layers."""


class DeviceNet:
    """Networks of one design on one device."""

    def __init__(self, design: Design, device: str, precision: str = "fp32") -> None:
        stack = design.stack
        self.design, self.device, self.precision = design, device, precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.flat = torch.zeros(stack.size, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self._cast = self.flat if self.dtype is torch.float32 else self.flat.to(self.dtype)
        self._exact, self._low, self._grads = (
            [_split(flat, layer, at) for layer, at in _offsets(stack.layers)]
            for flat in (self.flat, self._cast, self.gradient)
        )
        self.width = int(stack.table[0, IN_COLUMNS])
        """Columns of an input: the observation's, padded."""
        self._ones_by_size: dict[int, Tensor] = {}
        self._chains = _find_chains(design, device, precision)
        """The networks, if `triton_mlp` can run them."""
        self.mean, self.scale = torch.zeros(design.numbers, device=device), torch.ones(design.numbers, device=device)

    def load(self, params_and_stats: Array) -> None:
        """Load weights and normaliser."""
        self.flat.copy_(torch.from_numpy(self.design.split_params_and_stats(params_and_stats)[0].copy()))
        self.load_normaliser(params_and_stats)
        self.refresh()

    def load_normaliser(self, params_and_stats: Array) -> None:
        """Load the normaliser."""
        _, mean, scale = self.design.split_params_and_stats(params_and_stats)
        self.mean.copy_(torch.from_numpy(mean.copy()))
        self.scale.copy_(torch.from_numpy(scale.copy()))

    def refresh(self) -> None:
        """Update the low-precision copy after the weights have changed."""
        if self._cast is not self.flat:
            self._cast.copy_(self.flat)

    def read(self, obs: Tensor, into: Tensor) -> None:
        """Write observations [rows, numbers] as normalised inputs [rows, width]."""
        count = len(obs) * self.mean.numel()
        if into.dtype is torch.float32:
            launch(normalise_at, count, (obs, self.mean, self.scale, into))
        else:
            bits = into.view(torch.int16)
            launch(normalise_half_at, count, (obs, self.mean, self.scale, bits))

    def forward(
        self, x: Tensor, state: Tensor, episode_start: Tensor | None = None, *, heads_only: bool = False
    ) -> tuple[list[Any], list[Any], Tensor]:
        """Run all layers on inputs [steps * lanes, width]; return their outputs, the LSTM traces, and the new state.

        `state` [lanes, size] is the recurrent state; `episode_start` [steps, lanes] is 1 where an episode begins. With
        `heads_only` the outputs of hidden layers may be missing.
        """
        if self._chains is not None:
            return *self._forward_chains(x, not heads_only), state
        stack, lanes = self.design.stack, len(state) if state.shape[1] else len(x)
        outputs: list[Any] = []
        memories: list[Any] = []
        left = state
        for number, layer in enumerate(stack.layers):
            before = x if layer.source < 0 else outputs[layer.source]
            memory = None
            if layer.kind == DENSE and number in stack.heads:
                own = self._low[number]
                # Column-major, so that kernels with one thread per row read contiguous memory.
                out = _product(own.weight.T, self._narrow(number, before).T).T + self._exact[number].bias
            elif layer.kind == DENSE:
                own = self._low[number]
                out = ACTIVATION[layer.activation](torch.addmm(own.bias, self._narrow(number, before), own.weight))
            else:
                left = left.clone() if left is state else left
                out, memory = self._lstm_forward(number, before, state, episode_start, lanes, left)
            outputs.append(out)
            memories.append(memory)
        return outputs, memories, left

    def _forward_chains(self, x: Tensor, keep: bool) -> tuple[list[Any], list[Any]]:
        """The outputs of all layers, and of the hidden ones as `triton_mlp` keeps them for the backward pass."""
        from slipstream.policies.triton_mlp import run_forward

        outputs: list[Any] = [None] * len(self.design.stack.layers)
        kept = []
        for chain in self._chains or ():
            hidden, heads = run_forward(chain, x, self.flat, self.precision, keep=keep)
            first, second = chain.split(hidden, len(x)) if hidden is not None else (heads, heads)
            for net, numbers in enumerate(chain.layers):
                outputs[numbers[-1]] = heads[net].T
                if keep:
                    outputs[numbers[0]], outputs[numbers[1]] = first[net], second[net]
            kept.append(hidden)
        return outputs, kept

    def _backward_chains(self, x: Tensor, kept: list[Any], by_heads: dict[int, Tensor]) -> None:
        """The backward pass after `_forward_chains`."""
        from slipstream.policies.triton_mlp import run_backward

        for chain, hidden in zip(self._chains or (), kept, strict=True):
            by_head = torch.stack([by_heads[numbers[-1]].T for numbers in chain.layers])
            by_hidden, sums = run_backward(chain, self.flat, hidden, by_head, self.precision)
            inputs = (x.expand(len(chain.layers), *x.shape), *chain.split(hidden, len(x)))
            grads = (*chain.split(by_hidden, len(x)), by_head.transpose(1, 2))
            biases = (*chain.split_sums(sums), by_head.sum(2))
            for layer, (before, grad, bias) in enumerate(zip(inputs, grads, biases, strict=True)):
                for net, numbers in enumerate(chain.layers):
                    grown = self._grads[numbers[layer]]
                    torch.mm(self._narrow(numbers[layer], before[net]).T, grad[net], out=grown.weight)
                    grown.bias.copy_(bias[net])

    def backward(self, x: Tensor, outputs: list[Any], memories: list[Any], by_heads: dict[int, Tensor]) -> None:
        """Write the gradient of all weights, given the gradients [samples, columns] of the heads' outputs."""
        if self._chains is not None:
            self._backward_chains(x, memories, by_heads)
            return
        layers = self.design.stack.layers
        grads: dict[int, Tensor] = {number: grad.to(self.dtype) for number, grad in by_heads.items()}
        for number in reversed(range(len(layers))):
            layer, own, grown = layers[number], self._low[number], self._grads[number]
            before = x if layer.source < 0 else outputs[layer.source]
            grad = grads.pop(number)
            if layer.kind == DENSE:
                if number not in by_heads:
                    grad = ACTIVATION_BACKWARD[layer.activation](grad, outputs[number])
                _product_into(self._narrow(number, before).T, grad, grown.weight)
                _product_into(self._ones(len(grad)), grad, grown.bias[None])
                inner = grad
            else:
                inner = self._lstm_backward(number, before, memories[number], grad.float()).to(self.dtype)
            if layer.source >= 0:
                back = inner @ own.weight.T
                missing = outputs[layer.source].shape[1] - back.shape[1]
                grads[layer.source] = functional.pad(back, (0, missing)) if missing else back

    def _ones(self, samples: int) -> Tensor:
        """A row of ones: a product with it is a much faster sum over rows than `torch.sum`."""
        if samples not in self._ones_by_size:
            self._ones_by_size[samples] = torch.ones(1, samples, dtype=self.dtype, device=self.device)
        return self._ones_by_size[samples]

    def _narrow(self, number: int, before: Tensor) -> Tensor:
        """The columns of the outputs before it that a layer reads."""
        return before[:, : self._exact[number].weight.shape[0]]

    def _lstm_forward(
        self, number: int, before: Tensor, state: Tensor, episode_start: Tensor | None, lanes: int, left: Tensor
    ) -> tuple[Tensor, LSTMTrace]:
        """Run an LSTM over all steps."""
        own = self._exact[number]
        row = self.design.stack.table[number]
        at, units = int(row[STATE]), int(row[COLUMNS])
        given = _product(self._narrow(number, before).float(), own.weight) + (own.bias + own.recurrent_bias)
        hidden, cell = state[:, at : at + units], state[:, at + units : at + 2 * units]
        kept, outs = LSTMTrace([], [], [], [], []), []
        for step, gates in enumerate(given.view(-1, lanes, given.shape[1])):
            if episode_start is not None:
                keep = (episode_start[step] == 0).float()
                hidden, cell = hidden * keep[:, None], cell * keep[:, None]
                kept.keep.append(keep)
            gates = torch.addmm(gates, hidden, own.recurrent)
            after, out = torch.empty_like(gates[:, :units]), torch.empty_like(gates[:, :units])
            cell = cell.contiguous()
            launch(lstm_at, lanes * units, (gates, cell, after, out))
            kept.hidden.append(hidden)
            kept.before.append(cell)
            kept.after.append(after)
            kept.gates.append(gates)
            hidden, cell = out, after
            outs.append(out)
        left[:, at : at + units], left[:, at + units : at + 2 * units] = hidden, cell
        return torch.cat(outs).to(self.dtype), kept

    def _lstm_backward(self, number: int, before: Tensor, kept: LSTMTrace, grad: Tensor) -> Tensor:
        """Write the gradients of an LSTM's weights; return those [samples, gates] of its pre-activations."""
        own, grown = self._exact[number], self._grads[number]
        lanes, units = kept.before[0].shape
        carried, by_cell = torch.zeros_like(kept.before[0]), torch.zeros_like(kept.before[0])
        by_gates = torch.empty(len(kept.gates), lanes, 4 * units, device=self.device)
        grads = grad.reshape(-1, lanes, grad.shape[1])
        ones = torch.ones(lanes, device=self.device)
        for step in reversed(range(len(kept.gates))):
            later = kept.keep[step + 1] if step + 1 < len(kept.gates) else ones
            launch(
                lstm_backward_at,
                lanes * units,
                (
                    kept.gates[step],
                    kept.before[step],
                    kept.after[step],
                    grads[step],
                    carried,
                    later,
                    by_cell,
                    kept.keep[step],
                    by_gates[step],
                ),
            )
            carried = by_gates[step] @ own.recurrent.T
        flat = by_gates.view(-1, 4 * units)
        torch.mm(self._narrow(number, before).float().T, flat, out=grown.weight)
        torch.mm(torch.cat(kept.hidden).T, flat, out=grown.recurrent)
        torch.sum(flat, 0, out=grown.bias)
        grown.recurrent_bias.copy_(grown.bias)
        return flat


def _find_chains(design: Design, device: str, precision: str) -> Any:
    """The networks of a design as `triton_mlp` runs them; None if it cannot, or is not installed."""
    if device == "cpu" or precision not in ("fp32", "tf32") or find_spec("triton") is None:
        return None
    from slipstream.policies.triton_mlp import find_chains, fits

    chains = find_chains(design.stack)
    return chains if chains and all(fits(chain, precision, device) for chain in chains) else None


def _offsets(layers: tuple[LayerSpec, ...]) -> list[tuple[LayerSpec, int]]:
    """Each layer with the offset of its weights."""
    at, found = 0, []
    for layer in layers:
        found.append((layer, at))
        at = layer.slots(at)[-1].end
    return found


def _split(flat: Tensor, layer: LayerSpec, at: int) -> LayerWeights:
    """The weights of a layer as views of the flat ones."""
    slots = layer.slots(at)
    views = [flat[slot.offset : slot.end].view(slot.rows, slot.columns) for slot in slots]
    if layer.kind == DENSE:
        return LayerWeights(views[0], views[1][0])
    return LayerWeights(views[0], views[1][0], views[2], views[3][0])


def gather(source: Tensor, index: Tensor) -> Tensor:
    """The rows that `index` chooses, by a thread for each number: `index_select` is slow for short rows."""
    found = source.new_empty(len(index), source.shape[1])
    halves = source.dtype is torch.bfloat16
    parts = (source.view(torch.int16), index, found.view(torch.int16)) if halves else (source, index, found)
    launch(gather_at, found.numel(), parts)
    return found


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product in fp32, for factors of any precision."""
    if a.dtype is torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product in fp32."""
    if a.dtype is torch.float32:
        torch.mm(a, b, out=out)
    else:
        out.copy_(_product(a, b))
