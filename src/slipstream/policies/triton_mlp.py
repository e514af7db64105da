"""Dense networks in one GPU kernel, forward and backward: the activations of a tile of samples stay on the chip.

With one kernel for each product and each activation, a network of small layers spends its time on reading and writing
activations. `DeviceNet` is the definition; the numbers are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from slipstream.policies.parameter_layout import BIAS, COLUMNS, DENSE, INPUTS, NET, WEIGHT, NetworkLayout

WIDEST = 128
"""Most units of a layer: the weights of one have to fit beside the activations."""
MOST_INPUTS = 256
PRECISIONS = {"fp32": "tf32x3", "tf32": "tf32"}
"""How products are computed: in three parts on the tensor cores, with errors of the order of fp32's, or in one."""
FORWARD, BACKWARD = ((128, 8), (64, 8), (32, 4)), ((32, 4), (16, 4))
"""Samples of a tile and warps that compute it, the fastest first of some on an H200, which need the most memory."""


@dataclass(frozen=True)
class Chain:
    """Networks of two hidden layers and a head that differ in their weights only."""

    layers: tuple[tuple[int, ...], ...]
    """The numbers of each network's layers."""
    start: int
    """The offset of the first network's weights."""
    shift: int
    """The distance between the weights of two networks."""
    weights: tuple[int, ...]
    """Offsets of each layer's weights from the start."""
    biases: tuple[int, ...]
    inputs: tuple[int, ...]
    """Rows of each layer's weights."""
    columns: tuple[int, ...]
    """Padded outputs."""
    activation: str

    @property
    def hidden(self) -> int:
        """The columns of both hidden layers."""
        return self.columns[0] + self.columns[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The inputs and the columns of each layer, rounded up to powers of two."""
        found: tuple[int, ...] = tuple(
            max(16, triton.next_power_of_2(size)) for size in (self.inputs[0], *self.columns)
        )
        return found

    def split(self, hidden: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """What the hidden layers have [networks, rows, columns], from the numbers of both."""
        end = rows * self.columns[0]
        return hidden[:, :end].unflatten(1, (rows, -1)), hidden[:, end:].unflatten(1, (rows, -1))

    def split_sums(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of the hidden layers [networks, columns], from those that `run_backward` returns."""
        size = self.sizes[1]
        return sums[:, : self.columns[0]], sums[:, size : size + self.columns[1]]

    def is_like(self, other: Chain) -> bool:
        """Whether two networks differ in their weights only."""
        return replace(self, layers=(), start=0) == replace(other, layers=(), start=0)


def find_chains(stack: NetworkLayout) -> list[Chain] | None:
    """The networks; None if they do not all have two dense hidden layers of at most `WIDEST` units."""
    chains: list[Chain] = []
    for net in range(len(stack.networks)):
        numbers = [number for number, row in enumerate(stack.table) if row[NET] == net]
        layers = [stack.layers[number] for number in numbers]
        dense = all(layer.kind == DENSE and not layer.norm for layer in layers)
        weights, biases, inputs, columns = (
            stack.table[numbers, column].tolist() for column in (WEIGHT, BIAS, INPUTS, COLUMNS)
        )
        if len(layers) != 3 or not dense or max(columns) > WIDEST or inputs[0] > MOST_INPUTS:
            return None
        start = weights[0]
        one = Chain(
            layers=(tuple(numbers),),
            start=start,
            shift=0,
            weights=tuple(offset - start for offset in weights),
            biases=tuple(offset - start for offset in biases),
            inputs=tuple(inputs),
            columns=tuple(columns),
            activation=layers[0].activation,
        )
        if chains and one.is_like(chains[0]):
            chains[0] = replace(chains[0], layers=(*chains[0].layers, tuple(numbers)), shift=start - chains[0].start)
        else:
            chains.append(one)
    return chains


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of a hidden layer."""
    if ACTIVATION == "tanh":
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    if ACTIVATION == "relu":
        return tl.maximum(x, 0.0)
    return tl.where(x > 0.0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)


@triton.jit
def derivative(out, ACTIVATION: tl.constexpr):
    """The derivative of the activation, by its output."""
    if ACTIVATION == "tanh":
        return 1.0 - out * out
    if ACTIVATION == "relu":
        return tl.where(out > 0.0, 1.0, 0.0)
    return tl.where(out > 0.0, 1.0, out + 1.0)


@triton.jit
def load_weights(
    flat, base, WEIGHT: tl.constexpr, INPUTS: tl.constexpr, COLUMNS: tl.constexpr, K: tl.constexpr, N: tl.constexpr
):
    """The weights of a layer [K, N], padded with zeros."""
    k, n = tl.arange(0, K), tl.arange(0, N)
    places = base + WEIGHT + k[:, None] * COLUMNS + n[None, :]
    return tl.load(flat + places, (k < INPUTS)[:, None] & (n < COLUMNS)[None, :], 0.0)


@triton.jit
def load_tile(x, row, rows, width, COLUMNS: tl.constexpr, N: tl.constexpr):
    """Rows of a matrix, padded with zeros."""
    n = tl.arange(0, N)
    return tl.load(x + row[:, None] * width + n[None, :], (row < rows)[:, None] & (n < COLUMNS)[None, :], 0.0)


@triton.jit
def store_tile(x, values, row, rows, COLUMNS: tl.constexpr, N: tl.constexpr):
    """Write rows of a matrix."""
    n = tl.arange(0, N)
    tl.store(x + row[:, None] * COLUMNS + n[None, :], values, (row < rows)[:, None] & (n < COLUMNS)[None, :])


@triton.jit
def forward(
    x,
    flat,
    hidden,
    head,
    rows,
    width,
    SHIFT: tl.constexpr,
    WEIGHTS: tl.constexpr,
    BIASES: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the heads of all samples and, with KEEP, write the outputs of the two hidden layers.

    A program computes one network for every so many tiles. SIZES are the inputs and the columns of the layers, rounded
    up to powers of two.
    """
    base = tl.program_id(1) * SHIFT
    first = load_weights(flat, base, WEIGHTS[0], INPUTS[0], COLUMNS[0], SIZES[0], SIZES[1])
    second = load_weights(flat, base, WEIGHTS[1], INPUTS[1], COLUMNS[1], SIZES[1], SIZES[2])
    third = load_weights(flat, base, WEIGHTS[2], INPUTS[2], COLUMNS[2], SIZES[2], SIZES[3])
    first_bias = load_weights(flat, base, BIASES[0], 1, COLUMNS[0], 1, SIZES[1])
    second_bias = load_weights(flat, base, BIASES[1], 1, COLUMNS[1], 1, SIZES[2])
    third_bias = load_weights(flat, base, BIASES[2], 1, COLUMNS[2], 1, SIZES[3])
    hidden += tl.program_id(1) * rows * (COLUMNS[0] + COLUMNS[1])
    head += tl.program_id(1) * rows * COLUMNS[2]
    n = tl.arange(0, SIZES[3])
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tile * BLOCK + tl.arange(0, BLOCK)
        given = load_tile(x, row, rows, width, INPUTS[0], SIZES[0])
        one = activate(tl.dot(given, first, input_precision=PRECISION) + first_bias, ACTIVATION)
        two = activate(tl.dot(one, second, input_precision=PRECISION) + second_bias, ACTIVATION)
        out = tl.dot(two, third, input_precision=PRECISION) + third_bias
        if KEEP:
            store_tile(hidden, one, row, rows, COLUMNS[0], SIZES[1])
            store_tile(hidden + rows * COLUMNS[0], two, row, rows, COLUMNS[1], SIZES[2])
        tl.store(head + n[None, :] * rows + row[:, None], out, (row < rows)[:, None] & (n < COLUMNS[2])[None, :])


@triton.jit
def backward(
    flat,
    hidden,
    by_head,
    by_hidden,
    sums,
    rows,
    SHIFT: tl.constexpr,
    WEIGHTS: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradients of the pre-activations of both hidden layers, and their sums over a program's samples."""
    net = tl.program_id(1)
    second = tl.trans(load_weights(flat, net * SHIFT, WEIGHTS[1], INPUTS[1], COLUMNS[1], SIZES[1], SIZES[2]))
    third = tl.trans(load_weights(flat, net * SHIFT, WEIGHTS[2], INPUTS[2], COLUMNS[2], SIZES[2], SIZES[3]))
    hidden += net * rows * (COLUMNS[0] + COLUMNS[1])
    by_hidden += net * rows * (COLUMNS[0] + COLUMNS[1])
    by_head += net * rows * COLUMNS[2]
    n = tl.arange(0, SIZES[3])
    one_sum, two_sum = tl.arange(0, SIZES[1]) * 0.0, tl.arange(0, SIZES[2]) * 0.0
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tile * BLOCK + tl.arange(0, BLOCK)
        real = (row < rows)[:, None] & (n < COLUMNS[2])[None, :]
        grad = tl.load(by_head + n[None, :] * rows + row[:, None], real, 0.0)
        two = load_tile(hidden + rows * COLUMNS[0], row, rows, COLUMNS[1], COLUMNS[1], SIZES[2])
        two_grad = tl.dot(grad, third, input_precision=PRECISION) * derivative(two, ACTIVATION)
        one = load_tile(hidden, row, rows, COLUMNS[0], COLUMNS[0], SIZES[1])
        one_grad = tl.dot(two_grad, second, input_precision=PRECISION) * derivative(one, ACTIVATION)
        store_tile(by_hidden + rows * COLUMNS[0], two_grad, row, rows, COLUMNS[1], SIZES[2])
        store_tile(by_hidden, one_grad, row, rows, COLUMNS[0], SIZES[1])
        two_sum += tl.sum(two_grad, 0)
        one_sum += tl.sum(one_grad, 0)
    sums += (net * tl.num_programs(0) + tl.program_id(0)) * (SIZES[1] + SIZES[2])
    tl.store(sums + tl.arange(0, SIZES[1]), one_sum)
    tl.store(sums + SIZES[1] + tl.arange(0, SIZES[2]), two_sum)


def fits(chain: Chain, precision: str, device: str) -> bool:
    """Whether both passes fit into the shared memory of the GPU; tries them."""
    x = torch.zeros(1, chain.sizes[0], device=device)
    flat = torch.zeros(
        chain.start + len(chain.layers) * (chain.shift + chain.biases[-1] + chain.columns[-1]), device=device
    )
    try:
        hidden, head = run_forward(chain, x, flat, precision, keep=True)
        assert hidden is not None
        run_backward(chain, flat, hidden, head, precision)
    except OutOfResources:
        return False
    return True


def run_forward(chain: Chain, x: Tensor, flat: Tensor, precision: str, *, keep: bool) -> tuple[Tensor | None, Tensor]:
    """The outputs of the hidden layers with `keep` [networks, columns * rows], and those of heads, column by column."""
    rows, nets = len(x), len(chain.layers)
    hidden = x.new_empty(nets, chain.hidden * rows) if keep else None
    head = x.new_empty(nets, chain.columns[-1], rows)

    def launch(block: int, warps: int) -> None:
        forward[_grid(rows, nets, block, x.device)](
            x,
            flat[chain.start :],
            head if hidden is None else hidden,
            head,
            rows,
            x.stride(0),
            SHIFT=chain.shift,
            WEIGHTS=chain.weights,
            BIASES=chain.biases,
            INPUTS=chain.inputs,
            COLUMNS=chain.columns,
            SIZES=chain.sizes,
            ACTIVATION=chain.activation,
            PRECISION=PRECISIONS[precision],
            KEEP=keep,
            BLOCK=block,
            num_warps=warps,
            num_stages=1,
        )

    _launch_largest(launch, FORWARD)
    return hidden, head


def run_backward(chain: Chain, flat: Tensor, hidden: Tensor, by_head: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The gradients of the pre-activations of hidden layers, as `hidden`, and their sums over all samples."""
    nets, _, rows = by_head.shape
    by_hidden, found = torch.empty_like(hidden), list[Tensor]()

    def launch(block: int, warps: int) -> None:
        grid = _grid(rows, nets, block, hidden.device)
        sums = hidden.new_empty(nets, grid[0], sum(chain.sizes[1:3]))
        backward[grid](
            flat[chain.start :],
            hidden,
            by_head,
            by_hidden,
            sums,
            rows,
            SHIFT=chain.shift,
            WEIGHTS=chain.weights,
            INPUTS=chain.inputs,
            COLUMNS=chain.columns,
            SIZES=chain.sizes,
            ACTIVATION=chain.activation,
            PRECISION=PRECISIONS[precision],
            BLOCK=block,
            num_warps=warps,
            num_stages=1,
        )
        found.append(sums)

    _launch_largest(launch, BACKWARD)
    return by_hidden, found[0].sum(1)


def _launch_largest(launch: Callable[[int, int], None], tiles: tuple[tuple[int, int], ...]) -> None:
    """Launch with the first of some tiles that fits into the shared memory of the GPU."""
    for block, warps in tiles[:-1]:
        try:
            launch(block, warps)
            return
        except OutOfResources:
            pass
    launch(*tiles[-1])


def _grid(rows: int, nets: int, block: int, device: torch.device) -> tuple[int, int]:
    """Programs of each network, which together fill the GPU once, and the number of networks."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return min(triton.cdiv(rows, block), max(1, processors // nets)), nets
