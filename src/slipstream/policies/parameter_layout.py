"""The layout of a policy's weights in one flat vector, and their first values.

The kernels want rows of weights that fill whole vector registers, so each matrix stands padded: inputs to a
multiple of 4, outputs to a multiple of 16. Padding is zero, has zero gradient and never leaves this file's hands:
checkpoints and torch see the named, unpadded arrays in torch's own orientation. Networks that only torch can run stand
in a flat vector too, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""The layer that reads pooled tokens, by its name within a chain."""
SWITCH = -1
"""How a part that is a switch (one logit, two options) stands in the head's table."""

(KIND, WEIGHT, BIAS, INPUTS, COLUMNS, ACTIVATION, OUT, IN, IN_COLUMNS, NORM, UNITS, RECURRENT, RECURRENT_BIAS, STATE,
 FLIPPED, FLIPPED_RECURRENT, EXTRA, NET) = range(18)  # fmt: skip
"""The columns of a table of layers: where everything of a layer stands.

Weights, bias, norm (gain, then shift) and recurrent parts are offsets into the flat weights; OUT, IN and EXTRA are
columns of the scratch memory; STATE is a column of a row's state; FLIPPED is an offset into the transposed weights.
What a layer does not have is -1.
"""


def pad(size: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Slot:
    """A named array of weights [blocks * outputs, inputs], or [blocks * outputs] where `inputs` is 0."""

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
        """Where the next one starts."""
        return self.offset + self.rows * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch sees it."""
        outputs = self.blocks * self.outputs
        return (outputs, self.inputs) if self.inputs else (outputs,)

    def view(self, flat: Array) -> Array:
        """The unpadded part [inputs, blocks, outputs] of the flat weights."""
        whole = flat[self.offset : self.end].reshape(self.rows, self.blocks, pad(self.outputs, 16))
        return whole[: max(1, self.inputs), :, : self.outputs]

    def read(self, flat: Array) -> Array:
        """Copy the array out."""
        part = self.view(flat).reshape(max(1, self.inputs), -1).T
        return np.array(part.reshape(self.shape), order="C")

    def write(self, flat: Array, value: Array) -> None:
        """Put the array in."""
        self.view(flat)[...] = value.reshape(self.blocks, self.outputs, -1).transpose(2, 0, 1)


@dataclass(frozen=True)
class PlainSlot:
    """A named array that stands as it is."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """Where the next one starts."""
        return self.offset + prod(self.shape)

    def read(self, flat: Array) -> Array:
        """Copy the array out."""
        return np.array(flat[self.offset : self.end].reshape(self.shape))

    def write(self, flat: Array, value: Array) -> None:
        """Put the array in."""
        flat[self.offset : self.end] = value.reshape(-1)


@dataclass(frozen=True)
class Layer:
    """An affine map with its norm and activation, or a memory."""

    name: str
    kind: int
    inputs: int
    outputs: int
    activation: str
    norm: bool
    source: int
    """The layer it reads; -1: the input."""

    @property
    def columns(self) -> int:
        """Padded outputs."""
        return pad(self.outputs, 16)

    @property
    def extra(self) -> int:
        """Scratch columns besides its outputs: for norms the normalised values, for memories gates and states."""
        if self.kind == LSTM:
            return 6 * self.columns
        if self.kind == GRU:
            return 7 * self.columns
        return self.columns + 16 if self.norm else 0

    def slots(self, offset: int) -> list[Slot]:
        """Its weights, standing one after another from `offset`."""
        if self.kind == DENSE:
            listed = self.name[-1].isdigit() and not self.name.endswith(JOIN)
            stem, part = self.name.rsplit(".", 1) if listed else (self.name, "")
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
        slots: list[Slot] = []
        for name, blocks, inputs, rows in sizes:
            slots.append(Slot(name, blocks, self.outputs, inputs, offset, rows))
            offset = slots[-1].end
        return slots


@dataclass(frozen=True)
class Chain:
    """Hidden layers, memories and a head, one after another."""

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
    joined: int = 0
    """Width of the layer that reads pooled tokens, before all others; 0: there is none."""

    def layers(self, first: int) -> list[Layer]:
        """The layers, where the table already holds `first`."""
        made: list[Layer] = []

        def add(name: str, kind: int, outputs: int, activation: str, norm: bool) -> None:
            inputs = made[-1].outputs if made else self.inputs
            source = first + len(made) - 1 if made else -1
            made.append(Layer(f"{self.name}.{name}", kind, inputs, outputs, activation, norm, source))

        if self.joined:
            add(JOIN, DENSE, self.joined, "relu", False)
        for index, width in enumerate(self.hidden):
            add(str(index), DENSE, width, self.activation, self.norm)
        if self.memory:
            for index in range(self.memory_layers):
                add(str(index), self.memory, self.memory_size, "none", False)
        add("head", DENSE, self.outputs, "none", False)
        return made


class Weights:
    """Named arrays in a flat vector."""

    slots: tuple[Slot | PlainSlot, ...]

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.slots[-1].end if self.slots else 0

    def named(self, flat: Array) -> dict[str, Array]:
        """Copy the flat vector out into unpadded arrays by name, weights as [outputs, inputs]."""
        return {slot.name: slot.read(flat) for slot in self.slots}

    def flatten(self, named: Mapping[str, Array], out: Array | None = None) -> Array:
        """The inverse of `named`; refuses arrays of another shape."""
        flat = np.zeros(self.size, np.float32) if out is None else out
        for slot in self.slots:
            slot.write(flat, _expect(named, slot.name, slot.shape))
        return flat


class PlainWeights(Weights):
    """The weights of a network that torch runs."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        ends = [0, *accumulate(prod(shape) for shape in shapes.values())]
        self.slots = tuple(
            PlainSlot(name, shape, start) for (name, shape), start in zip(shapes.items(), ends, strict=False)
        )


class Stack(Weights):
    """Chains that read the same input, as tables for the kernels."""

    def __init__(
        self, chains: tuple[Chain, ...], extra: tuple[tuple[str, int], ...] = (), to_input: bool = False
    ) -> None:
        self.chains = chains
        self.layers: tuple[Layer, ...] = ()
        slots: list[Slot] = []
        nets: list[int] = []
        heads: list[int] = []
        for number, chain in enumerate(chains):
            self.layers += tuple(chain.layers(len(self.layers)))
            nets += [number] * (len(self.layers) - len(nets))
            heads.append(len(self.layers) - 1)
        starts: list[list[int]] = []
        for layer in self.layers:
            own = layer.slots(slots[-1].end if slots else 0)
            starts.append([slot.offset for slot in own])
            slots += own
        for name, size in extra:
            slots.append(Slot(name, 1, size, 0, slots[-1].end, 1))
        self.slots = tuple(slots)
        self.heads = tuple(heads)
        """The last layer of each chain."""
        self._tabulate(starts, nets, to_input)

    def _tabulate(self, starts: list[list[int]], nets: list[int], to_input: bool) -> None:
        inputs = self.chains[0].inputs
        column, state, flipped = pad(inputs, 16), 0, 0
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
                row[FLIPPED] = flipped
                flipped += outputs * row[IN_COLUMNS]
            if layer.kind != DENSE:
                row[RECURRENT], row[RECURRENT_BIAS], row[STATE] = offsets[2], offsets[3], state
                row[FLIPPED_RECURRENT] = flipped
                flipped += outputs * layer.columns
                state += STATES[layer.kind] * layer.columns
            rows.append(row)
        self.table = np.array(rows, np.int64)
        self.scratch_columns = column
        """Floats per row that a forward pass writes."""
        self.state_size = state
        """Floats of a row's memory."""
        self.flipped_size = flipped
        """Floats of the transposed weights."""

    def initial(
        self, random: np.random.Generator, gains: Mapping[str, tuple[tuple[int, float], ...]]
    ) -> dict[str, Array]:
        """Orthogonal weights with gain sqrt(2) inside; `gains` says, by chain, how many rows of the head have which.

        Recurrent weights are orthogonal gate by gate, biases 0, but an LSTM starts out remembering (forget bias 1).
        """
        named: dict[str, Array] = {}
        for slot in self.slots:
            assert isinstance(slot, Slot)
            chain, part = slot.name.rsplit(".", 1)[0].partition(".")[0], slot.name
            if ".head.weight" in part:
                rows = [_orthogonal(random, count, slot.inputs) * gain for count, gain in gains[chain]]
                value = np.concatenate(rows)
            elif slot.inputs:
                gain = 1.0 if ".memory." in part else np.sqrt(2.0)
                blocks = [_orthogonal(random, slot.outputs, slot.inputs) * gain for _ in range(slot.blocks)]
                value = np.concatenate(blocks)
            elif ".norms." in part and part.endswith("weight"):
                value = np.ones(slot.shape)
            else:
                value = np.zeros(slot.shape)
                if ".memory.bias_ih" in part and slot.blocks == GATES[LSTM]:
                    value[slot.outputs : 2 * slot.outputs] = 1.0
            named[slot.name] = value.astype(np.float32)
        return named

    def uniform(self, random: np.random.Generator) -> dict[str, Array]:
        """Weights and biases uniform within 1 / sqrt(inputs) of their layer, or 1 / sqrt(units) of a memory."""
        named: dict[str, Array] = {}
        inputs = 1
        for slot in self.slots:
            assert isinstance(slot, Slot)
            inputs = slot.outputs if ".memory." in slot.name else slot.inputs or inputs
            if ".norms." in slot.name:
                value = np.full(slot.shape, float(slot.name.endswith("weight")))
            else:
                value = random.uniform(-1, 1, slot.shape) / np.sqrt(inputs)
            named[slot.name] = value.astype(np.float32)
        return named


HEAD_KIND, HEAD_OUTPUTS, HEAD_VALUE, HEAD_LOG_STD, HEAD_PARTS = 0, 1, 2, 3, 4
CHOICES, GAUSSIAN, SQUASHED, SQUASHED_OWN = 0, 1, 2, 3
"""Kinds of head: logits; means with one deviation for all states; the same bent by tanh; with a deviation per state."""


def head_table(action: ActionSpec, squash: bool, own_deviation: bool, value_column: int, log_std: int) -> Array:
    """What the kernels need of a head: kind, outputs, value column, log-std offset, then the options of each part."""
    kind = CHOICES
    if action.kind == "continuous":
        kind = SQUASHED_OWN if own_deviation else SQUASHED if squash else GAUSSIAN
    flags = action.binary or (False,) * len(action.sizes)
    parts = [SWITCH if switch else size for size, switch in zip(action.sizes, flags, strict=True)]
    return np.array([kind, action.outputs, value_column, log_std, *parts], np.int64)


class PolicyStack(Stack):
    """The networks of an actor-critic, or of an actor alone, with the table of its head."""

    def __init__(
        self, chain: Chain, action: ActionSpec, shared: bool, squash: bool, value: bool,
        behind: Callable[[str, int], tuple[PlainSlot, ...]] | None = None,
    ) -> None:  # fmt: skip
        """`behind` gives more weights of the only chain, which the tables do not know, by its name and an offset."""
        outputs = action.outputs * (2 if action.kind == "continuous" and not value else 1)
        width = {"policy": outputs, "value": 1, "trunk": outputs + 1}
        names = ("trunk",) if value and shared else ("policy", "value") if value else ("policy",)
        chains = tuple(_renamed(chain, name, width[name]) for name in names)
        deviation = action.kind == "continuous" and value
        super().__init__(chains, (("log_std", action.outputs),) if deviation else (), to_input=behind is not None)
        self.action = action
        self._gains = {"policy": ((outputs, 0.01),), "value": ((1, 1.0),), "trunk": ((outputs, 0.01), (1, 1.0))}
        log_std = self.slots[-1].offset if deviation else self.size
        value_column = outputs if names == ("trunk",) else 0
        self.head = head_table(action, squash, not value, value_column, log_std)
        self.policy_layer, self.value_layer = self.heads[0], self.heads[-1]
        self.behind = self.size
        """Where the weights that the tables do not know begin."""
        if behind is not None:
            self.slots += behind(names[0], self.behind)

    def first(self, seed: int, init: str, log_std: float) -> Array:
        """The flat weights that a run starts from."""
        random = np.random.default_rng([seed, 0x1817])
        named = self.initial(random, self._gains) if init == "orthogonal" else self.uniform(random)
        if "log_std" in named:
            named["log_std"][:] = log_std
        return self.flatten(named)


def _renamed(chain: Chain, name: str, outputs: int) -> Chain:
    return Chain(
        name, chain.inputs, chain.hidden, outputs, chain.activation, chain.norm, chain.memory, chain.memory_size,
        chain.memory_layers, chain.joined,
    )  # fmt: skip


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
