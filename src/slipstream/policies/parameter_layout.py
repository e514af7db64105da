"""The layout of a policy's weights in one flat vector, and their initial values.

The kernels need rows of weights that fill whole vector registers, so each matrix is padded: inputs to a multiple of 4,
outputs to a multiple of 16. Padding is zero and has a zero gradient. Only this module handles it: checkpoints and torch
use the named, unpadded arrays in torch's orientation. Networks that only torch can run have a flat vector without
padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.errors import CheckpointError

ACTIVATIONS = {"none": 0, "tanh": 1, "relu": 2, "elu": 3}
DENSE, GRU, LSTM = 0, 1, 2
GATES = {GRU: 3, LSTM: 4}
STATES = {GRU: 1, LSTM: 2}
JOIN = "encoder.readers.0.stages.1.0"
"""The layer that reads pooled tokens, by its name within a network."""
BINARY = -1
"""The entry of a binary part (one logit, two options) in the head table."""

(
    KIND,
    WEIGHT,
    BIAS,
    INPUTS,
    COLUMNS,
    ACTIVATION,
    OUT,
    IN,
    IN_COLUMNS,
    NORM,
    UNITS,
    RECURRENT,
    RECURRENT_BIAS,
    STATE,
    TRANSPOSED,
    TRANSPOSED_RECURRENT,
    EXTRA,
    NET,
) = range(18)
"""The columns of a layer table [layers, 18], which describes the layers of one or more networks to the kernels.

KIND is DENSE, GRU or LSTM and ACTIVATION a value of ACTIVATIONS. INPUTS, COLUMNS and IN_COLUMNS are the padded sizes of
the layer's inputs, of its outputs and of the array that it reads; UNITS is the number of its outputs and NET the number
of its network. WEIGHT, BIAS, NORM (gain, then shift), RECURRENT and RECURRENT_BIAS are offsets into the flat weights;
OUT, IN and EXTRA are columns of the scratch memory; STATE is a column of a row's recurrent state; FLIPPED and
FLIPPED_RECURRENT are offsets into the transposed weights. An entry that a layer does not have is -1.
"""


def pad(size: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class ParameterSlot:
    """Where a named array of weights [blocks * outputs, inputs] is in the flat vector.

    Blocks are the gates of a recurrent layer. A vector [blocks * outputs] has `inputs` = 0.
    """

    name: str
    blocks: int
    outputs: int
    inputs: int
    offset: int
    rows: int
    """Padded inputs."""

    @property
    def columns(self) -> int:
        """Padded outputs of all blocks."""
        return self.blocks * pad(self.outputs, 16)

    @property
    def end(self) -> int:
        """The offset after the array."""
        return self.offset + self.rows * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in torch."""
        outputs = self.blocks * self.outputs
        return (outputs, self.inputs) if self.inputs else (outputs,)

    def view(self, flat: Array) -> Array:
        """A view of the flat weights without padding [inputs, blocks, outputs]."""
        padded = flat[self.offset : self.end].reshape(self.rows, self.blocks, pad(self.outputs, 16))
        return padded[: max(1, self.inputs), :, : self.outputs]

    def read(self, flat: Array) -> Array:
        """Copy the array out of the flat weights."""
        array = self.view(flat).reshape(max(1, self.inputs), -1).T
        return np.array(array.reshape(self.shape), order="C")

    def write(self, flat: Array, value: Array) -> None:
        """Write the array into the flat weights."""
        self.view(flat)[...] = value.reshape(self.blocks, self.outputs, -1).transpose(2, 0, 1)


@dataclass(frozen=True)
class UnpaddedSlot:
    """Where a named array is in a flat vector without padding."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """The offset after the array."""
        return self.offset + prod(self.shape)

    def read(self, flat: Array) -> Array:
        """Copy the array out of the flat weights."""
        return np.array(flat[self.offset : self.end].reshape(self.shape))

    def write(self, flat: Array, value: Array) -> None:
        """Write the array into the flat weights."""
        flat[self.offset : self.end] = value.reshape(-1)


@dataclass(frozen=True)
class LayerSpec:
    """A dense layer with its norm and activation, or a recurrent layer."""

    name: str
    kind: int
    inputs: int
    outputs: int
    activation: str
    norm: bool
    source: int
    """The number of the layer that it reads; -1: the input."""

    @property
    def columns(self) -> int:
        """Padded outputs."""
        return pad(self.outputs, 16)

    @property
    def extra(self) -> int:
        """Scratch columns besides the outputs: normalised values of a norm, gates and states of a recurrent layer."""
        if self.kind == LSTM:
            return 6 * self.columns
        if self.kind == GRU:
            return 7 * self.columns
        return self.columns + 16 if self.norm else 0

    def slots(self, offset: int) -> list[ParameterSlot]:
        """Its arrays, one after another from `offset`."""
        if self.kind == DENSE:
            numbered = self.name[-1].isdigit() and not self.name.endswith(JOIN)
            stem, part = self.name.rsplit(".", 1) if numbered else (self.name, "")
            dense = f"{stem}.layers.{part}" if part else self.name
            sizes = [(f"{dense}.weight", 1, self.inputs, pad(self.inputs, 4)), (f"{dense}.bias", 1, 0, 1)]
            if self.norm:
                sizes += [(f"{stem}.norms.{part}.{end}", 1, 0, 1) for end in ("weight", "bias")]
        else:
            stem, part = self.name.rsplit(".", 1)
            gates = GATES[self.kind]
            sizes = [
                (f"{stem}.memory.weight_ih_l{part}", gates, self.inputs, pad(self.inputs, 4)),
                (f"{stem}.memory.bias_ih_l{part}", gates, 0, 1),
                (f"{stem}.memory.weight_hh_l{part}", gates, self.outputs, self.columns),
                (f"{stem}.memory.bias_hh_l{part}", gates, 0, 1),
            ]
        slots: list[ParameterSlot] = []
        for name, blocks, inputs, rows in sizes:
            slots.append(ParameterSlot(name, blocks, self.outputs, inputs, offset, rows))
            offset = slots[-1].end
        return slots


@dataclass(frozen=True)
class NetworkSpec:
    """A network: hidden and recurrent layers and a head, one after another."""

    name: str
    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str
    norm: bool = False
    memory: int = DENSE
    """GRU, LSTM, or DENSE for none."""
    memory_size: int = 0
    memory_layers: int = 1
    memory_first: bool = False
    """Whether the recurrent layers come before the hidden layers."""
    joined: int = 0
    """Width of the layer that reads pooled tokens, before all others; 0: there is none."""

    def layers(self, first: int) -> list[LayerSpec]:
        """Its layers, for a table that already holds `first` layers."""
        layers: list[LayerSpec] = []

        def add(name: str, kind: int, outputs: int, activation: str, norm: bool) -> None:
            inputs = layers[-1].outputs if layers else self.inputs
            source = first + len(layers) - 1 if layers else -1
            layers.append(LayerSpec(f"{self.name}.{name}", kind, inputs, outputs, activation, norm, source))

        if self.joined:
            add(JOIN, DENSE, self.joined, "relu", False)
        hidden = [(str(n), DENSE, width, self.activation, self.norm) for n, width in enumerate(self.hidden)]
        layers_of_memory = self.memory_layers if self.memory else 0
        memory = [(str(n), self.memory, self.memory_size, "none", False) for n in range(layers_of_memory)]
        for layer in [*memory, *hidden] if self.memory_first else [*hidden, *memory]:
            add(*layer)
        add("head", DENSE, self.outputs, "none", False)
        return layers


class ParameterLayout:
    """Named arrays in one flat vector."""

    slots: tuple[ParameterSlot | UnpaddedSlot, ...]

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.slots[-1].end if self.slots else 0

    def named(self, flat: Array) -> dict[str, Array]:
        """Copy the flat vector out into named arrays without padding, weights as [outputs, inputs]."""
        return {slot.name: slot.read(flat) for slot in self.slots}

    def flatten(self, named: Mapping[str, Array], out: Array | None = None) -> Array:
        """The inverse of `named`; raises if an array is missing or has another shape."""
        flat = np.zeros(self.size, np.float32) if out is None else out
        for slot in self.slots:
            slot.write(flat, _checked(named, slot.name, slot.shape))
        return flat


class UnpaddedLayout(ParameterLayout):
    """The layout of a network that only torch can run."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        ends = [0, *accumulate(prod(shape) for shape in shapes.values())]
        self.slots = tuple(
            UnpaddedSlot(name, shape, start) for (name, shape), start in zip(shapes.items(), ends, strict=False)
        )


class NetworkLayout(ParameterLayout):
    """The layout of networks that read the same input, with the layer table of the kernels.

    `to_input` keeps transposed weights of the first layers too, for the gradient of the input.
    """

    def __init__(
        self, networks: tuple[NetworkSpec, ...], extra: tuple[tuple[str, int], ...] = (), to_input: bool = False
    ) -> None:
        self.networks = networks
        self.layers: tuple[LayerSpec, ...] = ()
        slots: list[ParameterSlot] = []
        nets: list[int] = []
        heads: list[int] = []
        for number, network in enumerate(networks):
            self.layers += tuple(network.layers(len(self.layers)))
            nets += [number] * (len(self.layers) - len(nets))
            heads.append(len(self.layers) - 1)
        starts: list[list[int]] = []
        for layer in self.layers:
            own = layer.slots(slots[-1].end if slots else 0)
            starts.append([slot.offset for slot in own])
            slots += own
        for name, size in extra:
            slots.append(ParameterSlot(name, 1, size, 0, slots[-1].end, 1))
        self.slots = tuple(slots)
        self.heads = tuple(heads)
        """The last layer of each network."""
        self._tabulate(starts, nets, to_input)

    def _tabulate(self, starts: list[list[int]], nets: list[int], to_input: bool) -> None:
        inputs = self.networks[0].inputs
        column, state, transposed = pad(inputs, 16), 0, 0
        rows: list[list[int]] = []
        for layer, offsets, net in zip(self.layers, starts, nets, strict=True):
            source = rows[layer.source] if layer.source >= 0 else None
            row = [-1] * 18
            row[KIND], row[UNITS], row[NET] = layer.kind, layer.outputs, net
            row[WEIGHT], row[BIAS] = offsets[:2]
            row[INPUTS], row[COLUMNS] = pad(layer.inputs, 4), layer.columns
            row[ACTIVATION] = ACTIVATIONS[layer.activation]
            row[IN], row[IN_COLUMNS] = (source[OUT], source[COLUMNS]) if source else (0, pad(inputs, 16))
            row[OUT], row[EXTRA] = column, column + layer.columns
            column += layer.columns + layer.extra
            if layer.norm:
                row[NORM] = offsets[2]
            outputs = layer.columns * GATES.get(layer.kind, 1)
            if source or to_input:
                row[TRANSPOSED] = transposed
                transposed += outputs * row[IN_COLUMNS]
            if layer.kind != DENSE:
                row[RECURRENT], row[RECURRENT_BIAS], row[STATE] = offsets[2], offsets[3], state
                row[TRANSPOSED_RECURRENT] = transposed
                transposed += outputs * layer.columns
                state += STATES[layer.kind] * layer.columns
            rows.append(row)
        self.table = np.array(rows, np.int64)
        self.scratch_columns = column
        """Floats per row of the scratch memory of a forward pass."""
        self.state_size = state
        """Floats of a row's recurrent state."""
        self.transposed_size = transposed
        """Floats of the transposed weights."""

    def initial(self, rng: np.random.Generator, gains: Mapping[str, tuple[tuple[int, float], ...]]) -> dict[str, Array]:
        """Orthogonal weights with gain sqrt(2) in hidden layers; `gains` lists (rows, gain) of each network's head.

        Recurrent weights are orthogonal gate by gate. Biases are 0, except for a forget bias of 1 in an LSTM.
        """
        named: dict[str, Array] = {}
        for slot in self.slots:
            assert isinstance(slot, ParameterSlot)
            network, part = slot.name.rsplit(".", 1)[0].partition(".")[0], slot.name
            if ".head.weight" in part:
                rows = [_orthogonal(rng, count, slot.inputs) * gain for count, gain in gains[network]]
                value = np.concatenate(rows)
            elif slot.inputs:
                gain = 1.0 if ".memory." in part else np.sqrt(2.0)
                blocks = [_orthogonal(rng, slot.outputs, slot.inputs) * gain for _ in range(slot.blocks)]
                value = np.concatenate(blocks)
            elif ".norms." in part and part.endswith("weight"):
                value = np.ones(slot.shape)
            else:
                value = np.zeros(slot.shape)
                if ".memory.bias_ih" in part and slot.blocks == GATES[LSTM]:
                    value[slot.outputs : 2 * slot.outputs] = 1.0
            named[slot.name] = value.astype(np.float32)
        return named

    def uniform(self, rng: np.random.Generator) -> dict[str, Array]:
        """Weights and biases uniform within 1 / sqrt(inputs) of the layer, or 1 / sqrt(units) of a recurrent layer."""
        named: dict[str, Array] = {}
        inputs = 1
        for slot in self.slots:
            assert isinstance(slot, ParameterSlot)
            inputs = slot.outputs if ".memory." in slot.name else slot.inputs or inputs
            if ".norms." in slot.name:
                value = np.full(slot.shape, float(slot.name.endswith("weight")))
            else:
                value = rng.uniform(-1, 1, slot.shape) / np.sqrt(inputs)
            named[slot.name] = value.astype(np.float32)
        return named


HEAD_KIND, HEAD_OUTPUTS, HEAD_VALUE, HEAD_LOG_STD, HEAD_MEANS, HEAD_PARTS = 0, 1, 2, 3, 4, 5
"""The entries of a head table; from HEAD_PARTS on, the options of each discrete part.

The first outputs are the logits of the discrete parts, the last HEAD_MEANS of the HEAD_OUTPUTS outputs are means.
"""
DISCRETE, GAUSSIAN, SQUASHED, SQUASHED_OWN = 0, 1, 2, 3
"""Kinds of head: logits only; means with a state-independent std; the same squashed by tanh; squashed, std per state.

A head with means has logits too if actions are mixed.
"""


def head_table(action: ActionSpec, squash: bool, state_std: bool, value_column: int, log_std: int) -> Array:
    """The head table, which describes the action distribution to the kernels; see HEAD_KIND and the names beside it."""
    kind = DISCRETE
    if action.continuous_parts:
        kind = SQUASHED_OWN if state_std else SQUASHED if squash else GAUSSIAN
    binary_parts = action.binary or (False,) * len(action.sizes)
    parts = [BINARY if binary else size for size, binary in zip(action.sizes, binary_parts, strict=True)]
    return np.array([kind, action.outputs, value_column, log_std, action.continuous_parts, *parts], np.int64)


class PolicyLayout(NetworkLayout):
    """The layout of an actor-critic, or of an actor alone, with its head table."""

    def __init__(
        self,
        network: NetworkSpec,
        action: ActionSpec,
        shared: bool,
        squash: bool,
        value: bool,
        encoder_slots: Callable[[str, int], tuple[UnpaddedSlot, ...]] | None = None,
    ) -> None:
        """`encoder_slots` gives the encoder's arrays, which are not in the table, by network name and offset."""
        outputs = action.outputs + (0 if value else action.continuous_parts)
        width = {"policy": outputs, "value": 1, "trunk": outputs + 1}
        names = ("trunk",) if value and shared else ("policy", "value") if value else ("policy",)
        networks = tuple(replace(network, name=name, outputs=width[name]) for name in names)
        log_std_slot = action.continuous_parts > 0 and value
        extra = (("log_std", action.continuous_parts),) if log_std_slot else ()
        super().__init__(networks, extra, to_input=encoder_slots is not None)
        self.action = action
        self._gains = {"policy": ((outputs, 0.01),), "value": ((1, 1.0),), "trunk": ((outputs, 0.01), (1, 1.0))}
        log_std = self.slots[-1].offset if log_std_slot else self.size
        value_column = outputs if names == ("trunk",) else 0
        self.head = head_table(action, squash, not value, value_column, log_std)
        self.policy_layer, self.value_layer = self.heads[0], self.heads[-1]
        self.encoder_offset = self.size
        """The offset of the encoder's weights, which are not in the table."""
        if encoder_slots is not None:
            self.slots += encoder_slots(names[0], self.encoder_offset)

    def first(self, seed: int, init: str, log_std: float) -> Array:
        """The flat weights that a run starts from."""
        rng = np.random.default_rng([seed, 0x1817])
        named = self.initial(rng, self._gains) if init == "orthogonal" else self.uniform(rng)
        if "log_std" in named:
            named["log_std"][:] = log_std
        return self.flatten(named)


def _checked(named: Mapping[str, Array], key: str, shape: tuple[int, ...]) -> Array:
    if key not in named or named[key].shape != shape:
        found = named[key].shape if key in named else "missing"
        raise CheckpointError(
            f"The policy's `{key}` should be {shape} but is {found}.",
            "the checkpoint belongs to another env, policy.hidden or policy.network, or the class of `policy.network` "
            "has changed since; evaluate it on its own env, with the class that it was trained with",
        )
    return named[key]


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    matrix = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(matrix)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T


def arrays_by_name(weights: ParameterLayout, params: Array, moments: Array, counters: Array) -> dict[str, Array]:
    """Copies of flat weights, Adam's moments [2, size] and counters, by the names of a checkpoint."""
    arrays = {f"weight/{name}": array for name, array in weights.named(params).items()}
    for row, kind in enumerate(("first", "second")):
        arrays |= {f"{kind}/{name}": array for name, array in weights.named(moments[row]).items()}
    return arrays | {"counters": counters.copy()}


def read_arrays(
    weights: ParameterLayout, arrays: dict[str, Array], params: Array, moments: Array, counters: Array
) -> None:
    """The inverse of `arrays_by_name`, into existing arrays."""
    weights.flatten(strip_prefix(arrays, "weight/"), params)
    for row, kind in enumerate(("first/", "second/")):
        weights.flatten(strip_prefix(arrays, kind), moments[row])
    counters[:] = arrays["counters"]


def strip_prefix(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names start with a prefix, without the prefix."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
