"""ONNX models as agents: names of inputs and outputs, recurrent states, and clear refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.agents.onnx_agent import OnnxAgent, load_onnx
from slipstream.agents.specs import load_agent
from slipstream.contracts import ActionSpec, EnvSpec, ObsField, ObsSpec, vector_obs
from slipstream.envs.registry import EnvChoice
from slipstream.errors import AgentFault, CheckpointError, ConfigError
from slipstream.system.rng import make_streams

FLOAT, INT = 1, 7
"""Types of tensors in ONNX: float32 and int64."""
DISCRETE = EnvSpec("game", vector_obs(3), ActionSpec("discrete", (4,)))
CONTINUOUS = EnvSpec("game", vector_obs(3), ActionSpec("continuous", low=(-1.0, 0.0), high=(1.0, 2.0)))
WEIGHT = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
OBS = np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32)
Nodes = Sequence[tuple[str, Sequence[str], Sequence[str]]]


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Write an ONNX model and return its path."""

    def make(
        nodes: Nodes,
        inputs: dict[str, tuple[int, Sequence[Any]]],
        outputs: dict[str, tuple[int, Sequence[Any]]],
        **held: Any,
    ) -> str:
        import onnx
        from onnx import helper

        def values(named: dict[str, tuple[int, Sequence[Any]]]) -> list[Any]:
            return [helper.make_tensor_value_info(name, *one) for name, one in named.items()]

        constants = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
        graph = helper.make_graph(
            [helper.make_node(kind, source, result) for kind, source, result in nodes],
            "model",
            values(inputs),
            values(outputs),
            constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        onnx.checker.check_model(made)
        onnx.save(made, tmp_path / "model.onnx")
        return str(tmp_path / "model.onnx")

    return make


def linear(model: Callable[..., str], output: str = "logits", batch: Any = "rows", weight: Any = WEIGHT) -> str:
    """A model of one matrix."""
    inputs, outputs = {"x": (FLOAT, [batch, 3])}, {output: (FLOAT, [batch, weight.shape[1]])}
    return model([("MatMul", ["x", "w"], [output])], inputs, outputs, w=weight)


@pytest.mark.parametrize("batch", ["rows", 1])
def test_logits_are_decided_by_the_largest(batch: Any, model: Callable[..., str]) -> None:
    """The option with the largest logit is chosen; a model that takes one row at a time is called for each."""
    agent = load_agent(f"onnx:{linear(model, batch=batch)}", DISCRETE, EnvChoice("game"))
    assert np.array_equal(agent.act(OBS), (OBS @ WEIGHT).argmax(axis=1))
    assert agent.act(OBS[0]) == (OBS[0] @ WEIGHT).argmax()


def test_an_output_of_another_name(model: Callable[..., str]) -> None:
    """A single output of any name is logits if it is as wide as the options, and actions in a continuous env."""
    assert np.array_equal(load_onnx(linear(model, "y"), DISCRETE).act(OBS), (OBS @ WEIGHT).argmax(axis=1))
    file = linear(model, "y", weight=WEIGHT[:, :2])
    assert np.allclose(load_onnx(file, CONTINUOUS).act(OBS), (OBS @ WEIGHT[:, :2]).clip([-1, 0], [1, 2]), atol=1e-6)


def test_logits_are_sampled_and_masked(model: Callable[..., str]) -> None:
    """Sampled actions follow the softmax of the logits, never choose a masked option, and repeat with the streams."""
    spec = EnvSpec("game", vector_obs(3), ActionSpec("discrete", (4,), masked=True))
    agent = load_onnx(linear(model), spec, sampled=True)
    obs, mask = np.tile(OBS[:1], (4000, 1)), np.tile(np.uint8([[1, 0, 1, 1]]), (4000, 1))
    out = [np.zeros((4000, 1), np.int32) for _ in range(2)]
    for actions in out:
        agent.act_into(obs, mask, make_streams(0, "test", 0, 4000), actions)
    assert np.array_equal(*out)
    weights = np.exp(OBS[0] @ WEIGHT) * mask[0]
    assert np.allclose(np.bincount(out[0][:, 0], minlength=4) / 4000, weights / weights.sum(), atol=0.04)


def test_means_and_deviations(model: Callable[..., str]) -> None:
    """`mean` alone is the greedy action, clipped to the bounds; with `log_std`, sampled actions spread around it."""
    nodes = [("MatMul", ["x", "w"], ["mean"]), ("Mul", ["mean", "zero"], ["none"]), ("Add", ["none", "s"], ["log_std"])]
    outputs = {"mean": (FLOAT, ["rows", 2]), "log_std": (FLOAT, ["rows", 2])}
    held = {"w": WEIGHT[:, :2] * 0, "zero": np.float32(0), "s": np.float32([-2, -3])}
    file = model(nodes, {"x": (FLOAT, ["rows", 3])}, outputs, **held)
    assert np.array_equal(load_onnx(file, CONTINUOUS).act(OBS), np.zeros((20, 2)))
    actions = load_onnx(file, CONTINUOUS, sampled=True).act(np.tile(OBS, (100, 1)))
    assert np.isclose(actions[:, 0].std(), np.exp(-2), rtol=0.1) and actions[:, 1].min() == 0


def test_actions_are_taken_as_they_are(model: Callable[..., str]) -> None:
    """Integers named `action` are the actions, also beside other outputs such as `value`."""
    made = {"action": (INT, ["rows", 1]), "outputs": (FLOAT, ["rows", 4]), "value": (FLOAT, ["rows", 4])}
    graph = [("MatMul", ["x", "w"], ["outputs"]), ("Transpose", ["outputs"], ["t"]), ("ArgMax", ["t"], ["a"])]
    graph += [("Transpose", ["a"], ["action"]), ("Identity", ["outputs"], ["value"])]
    file = model(graph, {"x": (FLOAT, ["rows", 3])}, made, w=WEIGHT)
    assert np.array_equal(load_onnx(file, DISCRETE).act(OBS), (OBS @ WEIGHT).argmax(axis=1))


def test_uniforms_come_from_the_streams_of_the_rows(model: Callable[..., str]) -> None:
    """An input `uniforms` gets numbers in (0, 1] that depend on nothing but the row's RNG stream."""
    spec = EnvSpec("game", vector_obs(3), ActionSpec("continuous", low=(0.0,), high=(1.0,)))
    inputs = {"obs": (FLOAT, ["rows", 3]), "uniforms": (FLOAT, ["rows", 1])}
    file = model([("Identity", ["uniforms"], ["action"])], inputs, {"action": (FLOAT, ["rows", 1])})
    agent = load_onnx(file, spec)
    out = np.zeros((200, 1), np.float32)
    mask, obs = np.zeros((200, 0), np.uint8), np.zeros((200, 3), np.float32)
    agent.act_into(obs, mask, make_streams(0, "test", 0, 200), out)
    assert out.min() > 0 and out.max() <= 1 and 0.4 < out.mean() < 0.6
    some = np.zeros_like(out)
    agent.act_rows(np.arange(50, 60), obs, mask, make_streams(0, "test", 0, 200), some, np.zeros((200, 1), np.float32))
    assert np.array_equal(some[50:60], out[50:60])


@pytest.mark.parametrize(("source", "result"), [("state", "next_state"), ("state_in", "state_out"), ("h", "next_h")])
def test_recurrent_states(source: str, result: str, model: Callable[..., str]) -> None:
    """The state of each row is fed back, and starts at 0 in a new episode."""
    spec = EnvSpec("game", vector_obs(2), ActionSpec("continuous", low=(-99.0,) * 2, high=(99.0,) * 2))
    shapes = {"x": (FLOAT, ["rows", 2]), source: (FLOAT, ["rows", 1, 2])}
    nodes = [
        ("Unsqueeze", ["x", "one"], ["u"]),
        ("Add", ["u", source], [result]),
        ("Squeeze", [result, "one"], ["action"]),
    ]
    outputs = {"action": (FLOAT, ["rows", 2]), result: (FLOAT, ["rows", 1, 2])}
    agent = load_onnx(model(nodes, shapes, outputs, one=np.int64([1])), spec)
    assert agent.memory(0).shape == (0, 3)
    step = np.float32([[1, 2], [3, 4]])
    agent.act(step)
    assert np.array_equal(agent.act(step), 2 * step)
    agent.begin(np.array([1]))
    assert np.array_equal(agent.act(step), np.float32([[3, 6], [3, 4]]))


def test_one_input_for_each_field(model: Callable[..., str]) -> None:
    """The fields of an observation are inputs by name; an image may be taken with its channels first."""
    fields = (ObsField("own/speed", "vector", (3,)), ObsField("seen", "image", (8, 9, 3)))
    spec = EnvSpec("game", ObsSpec(fields), ActionSpec("discrete", (4,)))
    rng = np.random.default_rng(2)
    image, pixels = rng.integers(0, 256, (20, 8, 9, 3), np.uint8), rng.standard_normal((216, 4)).astype(np.float32) / 99
    nodes = [("Flatten", ["seen"], ["f"]), ("MatMul", ["f", "pixels"], ["a"]), ("MatMul", ["own_speed", "w"], ["b"])]
    inputs = {"own_speed": (FLOAT, ["rows", 3]), "seen": (FLOAT, ["rows", 3, 8, 9])}
    held = {"w": WEIGHT, "pixels": pixels}
    file = model([*nodes, ("Add", ["a", "b"], ["logits"])], inputs, {"logits": (FLOAT, ["rows", 4])}, **held)
    actions = load_onnx(file, spec).act({"own": {"speed": OBS}, "seen": image})
    expected = OBS @ WEIGHT + image.transpose(0, 3, 1, 2).reshape(20, -1).astype(np.float32) @ pixels
    assert np.array_equal(actions, expected.argmax(axis=1))


def test_refusals(tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or damaged file, unknown inputs and wrong shapes are errors that name them."""

    def refusal(file: Any, spec: EnvSpec = DISCRETE) -> str:
        with pytest.raises(CheckpointError) as caught:
            load_onnx(str(file), spec)
        assert caught.value.hint
        return caught.value.message

    assert "no such file" in refusal(tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    assert "is not an ONNX model" in refusal(tmp_path / "text.onnx")
    file = linear(model)
    assert "its input `x` takes 3 numbers per row, but here it has 5" in refusal(
        file, EnvSpec("game", vector_obs(5), DISCRETE.action)
    )
    assert "output `logits` has 4 numbers per row, but the env has discrete actions of 6" in refusal(
        file, EnvSpec("game", vector_obs(3), ActionSpec("discrete", (6,)))
    )
    assert "`logits`" in refusal(file, CONTINUOUS)
    assert "takes batches of 8 only" in refusal(linear(model, batch=8))
    fields = (ObsField("a", "vector", (3,)), ObsField("b", "vector", (3,)))
    assert "no observation for its input `x`; the env has `a`, `b`" in refusal(
        file, EnvSpec("game", ObsSpec(fields), DISCRETE.action)
    )
    nodes = [("Identity", ["x"], ["y"]), ("Identity", ["x"], ["z"])]
    both = {"y": (FLOAT, ["rows", 3]), "z": (FLOAT, ["rows", 3])}
    assert "none is named action, logits or mean" in refusal(model(nodes, {"x": (FLOAT, ["rows", 3])}, both))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError) as caught:
        load_onnx(file, DISCRETE)
    assert caught.value.hint == 'pip install "slipstream[onnx]"'


def test_outputs_that_are_not_finite(model: Callable[..., str]) -> None:
    """NaN in the outputs is a fault that names the agent, the row's step and its observation."""
    agent = load_onnx(linear(model), DISCRETE)
    assert isinstance(agent, OnnxAgent)
    agent.act(np.zeros((2, 3), np.float32))
    with pytest.raises(AgentFault, match=r"onnx:.*not all are finite numbers \(step 1; observation: .*\[nan") as caught:
        agent.act(np.float32([[0, 0, 0], [np.nan, 0, 0]]))
    assert caught.value.row == 1 and caught.value.code == 2


@pytest.mark.parametrize(("number", "said"), [(7, r"action \[7.0\]"), (0.6, r"action \[0.6"), (-1, "-1")])
def test_actions_that_do_not_exist(number: float, said: str, model: Callable[..., str]) -> None:
    """An option that the env does not have, or a fraction, is a fault and never rounded."""
    inputs, outputs = {"x": (FLOAT, ["rows", 1])}, {"action": (FLOAT, ["rows", 1])}
    spec = EnvSpec("game", vector_obs(1), ActionSpec("discrete", (2,)))
    agent = load_onnx(model([("Identity", ["x"], ["action"])], inputs, outputs), spec)
    assert agent.act(np.float32([[1]])) == 1
    with pytest.raises(AgentFault, match=said):
        agent.act(np.float32([[number]]))
