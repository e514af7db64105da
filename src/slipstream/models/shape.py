"""The layout of a policy's weights in one flat vector, and their first values.

The kernels want rows of weights that fill whole vector registers, so each matrix stands padded: inputs to a
multiple of 4, outputs to a multiple of 16. Padding is zero, has zero gradient and never leaves this file's hands:
checkpoints and torch see the named, unpadded arrays in torch's own orientation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from slipstream.core.contracts import ActionSpec, Array
from slipstream.core.errors import CheckpointError

ACTIVATIONS = {"none": 0, "tanh": 1, "relu": 2}
HEAD_KINDS = {"discrete": 0, "multi_discrete": 0, "continuous": 1}


def pad(size: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Layer:
    """One affine map followed by an activation."""

    name: str
    inputs: int
    outputs: int
    activation: str
    offset: int
    """Where the padded weights [pad4(inputs), pad16(outputs)] stand; the bias [pad16(outputs)] follows."""

    @property
    def rows(self) -> int:
        """Padded inputs."""
        return pad(self.inputs, 4)

    @property
    def columns(self) -> int:
        """Padded outputs."""
        return pad(self.outputs, 16)

    @property
    def bias(self) -> int:
        """Where the bias starts."""
        return self.offset + self.rows * self.columns

    @property
    def end(self) -> int:
        """Where the next layer starts."""
        return self.bias + self.columns


@dataclass(frozen=True)
class Shape:
    """A multi-layer perceptron with a policy head and a value: all that sizes its kernels."""

    obs: int
    action: ActionSpec
    hidden: tuple[int, ...]
    activation: str
    shared: bool

    @cached_property
    def nets(self) -> tuple[tuple[Layer, ...], ...]:
        """One network that ends in policy outputs and value, or two."""
        heads = [("trunk", self.action.outputs + 1)] if self.shared else [("policy", self.action.outputs), ("value", 1)]
        nets, offset = [], 0
        for name, outputs in heads:
            sizes = (self.obs, *self.hidden, outputs)
            layers = []
            for index, (n, m) in enumerate(pairwise(sizes)):
                last = index == len(sizes) - 2
                layer = Layer(f"{name}.{index}", n, m, "none" if last else self.activation, offset)
                layers.append(layer)
                offset = layer.end
            nets.append(tuple(layers))
        return tuple(nets)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all networks in order."""
        return tuple(layer for net in self.nets for layer in net)

    @property
    def log_std(self) -> int:
        """Where the log standard deviations of continuous actions start."""
        return self.layers[-1].end

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.log_std + (pad(self.action.outputs, 16) if self.action.kind == "continuous" else 0)

    @cached_property
    def table(self) -> Array:
        """What the kernels need of each layer: weights, bias, rows, columns, activation, scratch column, net."""
        rows, column = [], pad(self.obs, 16)
        for number, net in enumerate(self.nets):
            for layer in net:
                kind = ACTIVATIONS[layer.activation]
                rows.append([layer.offset, layer.bias, layer.rows, layer.columns, kind, column, number])
                column += layer.columns
        return np.array(rows, np.int64)

    @cached_property
    def head(self) -> Array:
        """What the kernels need of the heads: kind, outputs, value column, log-std offset, then the part sizes."""
        value_column = self.action.outputs if self.shared else 0
        first = [HEAD_KINDS[self.action.kind], self.action.outputs, value_column, self.log_std]
        return np.array([*first, *self.action.sizes], np.int64)

    @property
    def scratch_columns(self) -> int:
        """Floats per row that a forward pass writes: the input and every layer's output."""
        return pad(self.obs, 16) + sum(layer.columns for layer in self.layers)

    def initial(self, seed: int, log_std: float) -> Array:
        """Orthogonal weights: gain sqrt(2) inside, 0.01 for the policy's last layer, 1 for the value's."""
        random = np.random.default_rng([seed, 0x1817])
        named: dict[str, Array] = {}
        for net in self.nets:
            for layer in net:
                if layer is not net[-1]:
                    weight = _orthogonal(random, layer.outputs, layer.inputs) * np.sqrt(2.0)
                elif self.shared:
                    policy = _orthogonal(random, layer.outputs - 1, layer.inputs) * 0.01
                    weight = np.concatenate([policy, _orthogonal(random, 1, layer.inputs)])
                else:
                    weight = _orthogonal(random, layer.outputs, layer.inputs)
                    weight *= 0.01 if layer.name.startswith("policy") else 1.0
                named[f"{layer.name}.weight"] = weight.astype(np.float32)
                named[f"{layer.name}.bias"] = np.zeros(layer.outputs, np.float32)
        if self.action.kind == "continuous":
            named["log_std"] = np.full(self.action.outputs, log_std, np.float32)
        return self.flatten(named)

    def named(self, flat: Array) -> dict[str, Array]:
        """Copy the flat vector out into unpadded arrays by name, weights as [outputs, inputs]."""
        arrays: dict[str, Array] = {}
        for layer in self.layers:
            matrix = flat[layer.offset : layer.bias].reshape(layer.rows, layer.columns)
            arrays[f"{layer.name}.weight"] = np.ascontiguousarray(matrix[: layer.inputs, : layer.outputs].T)
            arrays[f"{layer.name}.bias"] = flat[layer.bias : layer.bias + layer.outputs].copy()
        if self.action.kind == "continuous":
            arrays["log_std"] = flat[self.log_std : self.log_std + self.action.outputs].copy()
        return arrays

    def flatten(self, named: Mapping[str, Array], out: Array | None = None) -> Array:
        """The inverse of `named`; refuses arrays of another shape."""
        flat = np.zeros(self.size, np.float32) if out is None else out
        for layer in self.layers:
            weight = _expect(named, f"{layer.name}.weight", (layer.outputs, layer.inputs))
            matrix = flat[layer.offset : layer.bias].reshape(layer.rows, layer.columns)
            matrix[: layer.inputs, : layer.outputs] = weight.T
            flat[layer.bias : layer.bias + layer.outputs] = _expect(named, f"{layer.name}.bias", (layer.outputs,))
        if self.action.kind == "continuous":
            log_std = _expect(named, "log_std", (self.action.outputs,))
            flat[self.log_std : self.log_std + self.action.outputs] = log_std
        return flat


def _expect(named: Mapping[str, Array], key: str, shape: tuple[int, ...]) -> Array:
    if key not in named or named[key].shape != shape:
        found = named[key].shape if key in named else "missing"
        raise CheckpointError(
            f"The policy's `{key}` should be {shape} but is {found}.",
            "the checkpoint was made for another env or another policy.hidden; evaluate it on its own env",
        )
    return named[key]


def _orthogonal(random: np.random.Generator, rows: int, columns: int) -> Array:
    matrix = random.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(matrix)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
