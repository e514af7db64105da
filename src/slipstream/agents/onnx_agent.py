"""Agents of ONNX models: `onnx:FILE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.agents.foreign import ForeignAgent, draw_uniforms
from slipstream.agents.guarded import WrongAction
from slipstream.contracts import Array, EnvSpec, ObsField
from slipstream.errors import CheckpointError, ConfigError, first_line
from slipstream.policies.design import ActInputs
from slipstream.policies.parameter_layout import head_table

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
ONNX_RULES = "docs/guides/from-sb3.md lists the names of inputs and outputs"

NAMED_OUTPUTS = ("action", "actions", "logits", "mean")
"""Outputs that actions are taken from, in order of preference."""


class OnnxState(NamedTuple):
    """A recurrent state of an ONNX model: its input and output, and its columns in a row's state."""

    source: str
    result: str
    shape: tuple[int, ...]
    columns: slice


class OnnxAgent(ForeignAgent):
    """Acts with an ONNX model. The batch axis of every input and output is the first.

    Inputs: one per observation field, by its name (a single field: by any name), and optionally `mask`, `uniforms` and
    recurrent states. Outputs: `action`, `logits`, or `mean` with `std` or `log_std`, and the states after the step: the
    output of input `NAME` is `next_NAME`, that of `NAME_in` is `NAME_out`.
    """

    def __init__(self, name: str, session: Any, spec: EnvSpec, sampled: bool) -> None:
        self._session = session
        self._inputs = {one.name: one for one in session.get_inputs()}
        self._outputs = [one.name for one in session.get_outputs()]
        self._recurrent = self._find_states(name)
        super().__init__(name, spec, sampled, sum(prod(one.shape) for one in self._recurrent))
        self._fields = self._match_fields(spec)
        self._head = head_table(replace(spec.action, binary=(), masked=False), False, False, 0, 0)
        batches = {one.shape[0] for one in self._inputs.values() if one.shape}
        self._one_by_one = 1 in batches
        fixed = [size for size in batches if isinstance(size, int) and size != 1]
        if fixed:
            raise CheckpointError(f"{name} takes batches of {fixed[0]} only.", "export it with a dynamic batch axis")
        self._kind = ""
        probe = np.zeros((2, spec.obs.width), spec.obs.dtype), np.ones((2, spec.action.options), np.uint8)
        self._kind = self._find_actions(
            self._run(np.arange(2), *probe, np.zeros((2, 2), np.int64), self.memory(2)[:, 1:])
        )
        self._states = self._states[:0]

    def choose(self, inputs: ActInputs, out: Array, restart: Callable[[], None]) -> None:
        """Run the network once for all rows, and write their actions."""
        rows, obs, mask, states, streams = inputs
        found = self._run(rows, obs, mask, streams, states[:, 1:])
        outputs = found[self._kind].reshape(len(rows), -1)
        if self._kind in ("action", "actions") or (self._kind not in NAMED_OUTPUTS and self._is_action(outputs)):
            out[rows] = self._valid(self.check_finite(outputs))
            return
        std = np.zeros(1, np.float32)
        if self.action.kind == "continuous":
            std = found["std"] if "std" in found else np.exp(found["log_std"]) if "log_std" in found else std
        elif self.action.masked and "mask" in self._inputs:
            mask = mask[:, :0]  # the model has applied it
        self.select(rows, self._head, outputs, std, mask, streams, out)
        if self.action.kind == "continuous":
            out[rows] = np.clip(out[rows], self._low, self._high)

    def _run(self, rows: Array, obs: Array, mask: Array, streams: Array, states: Array) -> dict[str, Array]:
        """All outputs for some rows by name; advances `states`."""
        named, feeds = self.obs.split(np.ascontiguousarray(obs[rows])), dict[str, Array]()
        for source, (field, order) in self._fields.items():
            value = named[field.name]
            feeds[source] = value.transpose(order) if order else value
        for one in self._recurrent:
            feeds[one.source] = states[rows, one.columns].reshape(len(rows), *one.shape)
        if "mask" in self._inputs:
            feeds["mask"] = mask[rows] if mask.shape[1] else np.ones((len(rows), sum(self.action.sizes)), np.uint8)
        if "uniforms" in self._inputs:
            width = self._inputs["uniforms"].shape[1]
            feeds["uniforms"] = np.zeros(
                (len(rows), width if isinstance(width, int) else self.action.parts), np.float32
            )
            draw_uniforms(rows, streams, feeds["uniforms"])
        feeds = {name: self._as_input(name, value) for name, value in feeds.items()}
        found = self._run_batches(feeds, len(rows))
        for one in self._recurrent:
            states[rows, one.columns] = found[one.result].reshape(len(rows), -1)
        return found

    def _run_batches(self, feeds: dict[str, Array], count: int) -> dict[str, Array]:
        parts = [slice(i, i + 1) for i in range(count)] if self._one_by_one else [slice(None)]
        try:
            results = [self._session.run(None, {name: value[at] for name, value in feeds.items()}) for at in parts]
        except Exception as error:  # the runtime raises its own exceptions
            shapes = ", ".join(f"{name} {'x'.join(map(str, value.shape))}" for name, value in feeds.items())
            line = first_line(error)
            raise CheckpointError(f"{self.name} failed with the inputs {shapes}: {line}", ONNX_RULES) from error
        return {
            name: np.concatenate(values) for name, values in zip(self._outputs, zip(*results, strict=True), strict=True)
        }

    def _as_input(self, name: str, value: Array) -> Array:
        """A value with the dtype and shape of an input; dimensions of other sizes are an error."""
        one = self._inputs[name]
        wanted: list[Any] = [size if isinstance(size, int) else None for size in one.shape[1:]]
        if None not in wanted and prod(wanted) == prod(value.shape[1:]):
            value = value.reshape(len(value), *wanted)
        fits = len(wanted) == value.ndim - 1 and all(
            size in (None, have) for size, have in zip(wanted, value.shape[1:], strict=False)
        )
        if not fits:
            shape, have = "x".join(str(x) for x in one.shape[1:]), "x".join(map(str, value.shape[1:]))
            raise CheckpointError(
                f"{self.name}: its input `{name}` takes {shape} numbers per row, but here it has {have}.",
                "use it in the environment it was made for",
            )
        return np.ascontiguousarray(value, NUMPY_TYPES[one.type])

    def _match_fields(self, spec: EnvSpec) -> dict[str, tuple[ObsField, tuple[int, ...] | None]]:
        """The observation field of each input, and the axis order in which the input takes images."""
        special = {"mask", "uniforms", *(one.source for one in self._recurrent)}
        inputs = [name for name in self._inputs if name not in special]
        strange = [name for name in inputs if self._inputs[name].type not in NUMPY_TYPES]
        if strange:
            kind = self._inputs[strange[0]].type
            raise CheckpointError(f"{self.name}: its input `{strange[0]}` is a {kind}.", ONNX_RULES)
        fields = {field.name.replace("/", "_"): field for field in spec.obs.fields}
        fields |= {field.name: field for field in spec.obs.fields}
        if len(inputs) == 1 and len(spec.obs.fields) == 1:
            fields = {inputs[0]: spec.obs.fields[0]}
        unknown = [name for name in inputs if name not in fields]
        if unknown or not inputs:
            names = ", ".join(f"`{field.name}`" for field in spec.obs.fields)
            have = f"one observation, {spec.obs.fields[0].text}" if len(spec.obs.fields) == 1 else names
            what = f"`{spec.name}` has no observation for its input `{unknown[0]}`" if unknown else "it has no input"
            raise CheckpointError(f"{self.name}: {what}; the env has {have}.", ONNX_RULES)
        return {name: (fields[name], self._image_order(name, fields[name])) for name in inputs}

    def _image_order(self, name: str, field: ObsField) -> tuple[int, ...] | None:
        """The axis order of an image for an input that takes channels first."""
        wanted = tuple(self._inputs[name].shape[1:])
        if field.kind != "image" or len(field.shape) != 3 or wanted == field.shape:
            return None
        height, width, channels = field.shape
        return (0, 3, 1, 2) if wanted == (channels, height, width) else None

    def _find_states(self, name: str) -> list[OnnxState]:
        """The recurrent states: inputs that have an output for their next value."""
        found, at = list[OnnxState](), 0
        for source, one in self._inputs.items():
            stem = source.removesuffix("_in")
            results = [f"next_{source}", f"next_{stem}"] + ([f"{stem}_out"] if stem != source else [])
            result = next((result for result in results if result in self._outputs), None)
            if result is None:
                continue
            shape = tuple(one.shape[1:])
            if not all(isinstance(size, int) for size in shape):
                raise CheckpointError(
                    f"{name}: its recurrent state `{source}` has the shape {one.shape}; only the first axis, "
                    "the batch, may be dynamic.",
                    "export it with the batch axis first and a fixed size of the state",
                )
            size = prod(shape)
            found.append(OnnxState(source, result, shape, slice(at, at + size)))
            at += size
        return found

    def _find_actions(self, found: dict[str, Array]) -> str:
        """The output that actions are taken from, checked by a batch of 2; raise if there is none."""
        states = {one.result for one in self._recurrent}
        names = [name for name in NAMED_OUTPUTS if name in found]
        rest = [name for name in self._outputs if name not in states]
        if not names and len(rest) > 1:
            raise CheckpointError(
                f"{self.name} has the outputs {', '.join(rest)}; none is named action, logits or mean.", ONNX_RULES
            )
        kind = names[0] if names else rest[0]
        outputs = found[kind].reshape(2, -1) if len(found[kind]) == 2 else found[kind]
        parts, width = self.action.parts, outputs.shape[-1]
        logits = sum(self.action.sizes)
        means = parts if self.action.kind == "continuous" else 0
        columns = {"action": parts, "actions": parts, "logits": logits, "mean": means}
        wanted = columns.get(kind, parts if self._is_action(outputs) else logits)
        if len(outputs) != 2 or width != wanted:
            raise CheckpointError(
                f"{self.name}: its output `{kind}` has {width} numbers per row, but the env has {self.action.text}.",
                ONNX_RULES,
            )
        return kind

    def _is_action(self, outputs: Array) -> bool:
        """Whether an output without a known name holds actions: any of a continuous env, or integers."""
        return self.action.kind == "continuous" or outputs.dtype.kind in "iub"

    def _valid(self, actions: Array) -> Array:
        """Actions as the env takes them; continuous ones are clipped to the bounds."""
        if self.action.kind == "continuous":
            return np.clip(actions, self._low, self._high)
        sizes = np.array(self.action.sizes)
        wrong = ((actions != np.floor(actions)) | (actions < 0) | (actions >= sizes)).any(axis=1)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise WrongAction(f"gave the action {actions[place].tolist()}; it must be {self.action.text}", place)
        return actions.astype(np.int32)


def load_onnx(file: str, spec: EnvSpec, sampled: bool = False) -> OnnxAgent:
    """Load `onnx:FILE`. ONNX files hold data only, so they need no trust."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"onnx:{file} needs the package onnxruntime: {error}.", 'pip install "slipstream[onnx]"'
        ) from error
    path = Path(file)
    if not path.is_file():
        problem = "it is a folder" if path.is_dir() else "no such file"
        raise CheckpointError(f"onnx:{file} cannot be read: {problem}.", "give an .onnx file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises its own exceptions
        line = first_line(error)
        raise CheckpointError(f"onnx:{file} is not an ONNX model: {line}", "export it again") from error
    return OnnxAgent(f"onnx:{file}", session, spec, sampled)
