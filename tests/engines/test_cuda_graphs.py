"""Gradient steps without synchronisation: statistics summed on the device, copies to it, and CUDA graph replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ppo_cases import COEFFICIENTS, blank_batch
from slipstream.algorithms.engine import KL, SAMPLES, SKIPPED, SUMS, UPDATES, Batch, Coefficients
from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.engines import cuda_graphs as graphs_module
from slipstream.engines.cuda_graphs import EAGER_STEPS, StepGraphs, StepStats
from slipstream.engines.tensor_batch import TensorBatch
from slipstream.engines.torch_engine import TorchEngine, warn_of_fallback
from slipstream.policies.design import Design

SEEN = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("eye", "image", (2, 40, 40, 1))))
READ = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("seen", "tokens", (6, 3))))
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
near = partial(np.testing.assert_allclose, rtol=0)
on_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])
Make = Callable[..., tuple[Design, Array, Batch]]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions compute in fp32 unless a test changes that."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def make_case(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> Make:
    """Make a policy and a batch of 200 samples in 10 rows; some samples have weight 0."""

    def make(kind: str = "discrete", count: int = 200, **more: Any) -> tuple[Design, Array, Batch]:
        design, params_and_stats = make_policy(kind, **more)
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        obs, mask, action = make_samples(design, count)
        random = np.random.default_rng(7)
        columns = [random.normal(0, spread, count).astype(np.float32) for spread in (0.1, 1, 1, 1)]
        columns[0] -= 1.5
        weight = (random.random(count) > 0.1).astype(np.float32)
        state = np.zeros((count // design.sequence, design.state_size), np.float32)
        named = dict(zip(("log_prob", "value", "advantage", "value_target"), columns, strict=True))
        more = {"weight": weight, "state": state, "rows": 10, "sequence": design.sequence}
        batch = blank_batch(obs, (mean, scale), mask, action, **named, **more)
        return design, params.copy(), batch

    return make


def learn(
    engine: TorchEngine, batch: Batch, coefficients: Coefficients = COEFFICIENTS, epochs: int = 3
) -> tuple[Array, Array]:
    """Run some epochs; return the weights and the totals."""
    random, totals = np.random.default_rng(1), np.zeros(SUMS)
    for _ in range(epochs):
        totals += engine.run_epoch(batch, random.permutation(len(batch.log_prob) // batch.sequence), coefficients)
    return engine.params.copy(), totals


def test_a_tally_counts_what_was_taken_and_ends_after_three_failures() -> None:
    """Failed and skipped steps add nothing, a skipped step does not reset the streak, and three failures end it."""
    tally = StepStats("cpu")
    tally.begin(1)
    added = torch.zeros(SUMS, dtype=torch.float64)
    added[SAMPLES], added[UPDATES] = 10, 1
    taken = []
    for bad, skipped in ((1, 0), (0, 1), (0, 0), (1, 0), (1, 0), (1, 0), (0, 0)):
        one = torch.tensor(float(bad)), torch.tensor(float(skipped))
        taken.append(1 - int(tally.left_out(*one)))
        tally.add(added, *one)
    sums, failed, streak = tally.read()
    assert taken == [0, 0, 1, 0, 0, 0, 0]
    assert (sums[SAMPLES], sums[UPDATES], sums[SKIPPED]) == (10, 1, 1)
    assert (failed, streak) == (4, 3)


def test_what_does_not_count_is_left_out_of_the_standard() -> None:
    """Mean and standard deviation computed by hand: advantages 1, 3 and 5 count, 100 does not."""
    zeros, none = np.zeros(4, np.float32), np.zeros((4, 0), np.float32)
    columns = {"advantage": np.array([1, 100, 3, 5], np.float32), "weight": np.array([1, 0, 0.5, 2], np.float32)}
    batch = Batch(
        none,
        zeros[:0],
        zeros[:0],
        none,
        none,
        zeros,
        zeros,
        columns["advantage"],
        zeros,
        columns["weight"],
        np.zeros(4, np.uint8),
        none,
        none,
        np.zeros(0, np.int64),
        4,
    )
    data = TensorBatch(batch, "cpu")
    mean, factor, share = data.standardise(torch.arange(4), True)
    assert (float(mean), float(factor)) == (3.0, pytest.approx(0.5)) and float(share) == pytest.approx(1 / 3)
    assert [float(x) for x in data.standardise(torch.arange(4), False)[:2]] == [0.0, 1.0]


def test_observations_may_be_there_already(make_case: Make) -> None:
    """A batch whose observations are a tensor gives the same weights bit for bit."""
    design, params, batch = make_case()
    plain = learn(TorchEngine(design, params.copy(), 1), batch)
    there = learn(TorchEngine(design, params.copy(), 1), batch._replace(obs=torch.from_numpy(batch.obs.copy())))
    assert np.array_equal(plain[0], there[0]) and np.array_equal(plain[1], there[1])


def test_what_cannot_be_captured_is_said_once(make_case: Make) -> None:
    """Recurrent policies train without graphs, and the plan reports the reason once."""
    design, params, batch = make_case(memory="lstm", sequence=5)
    engine, heard = TorchEngine(design, params, 1), list[Any]()
    graphs = StepGraphs(engine.step, engine.optimiser, engine._why_not_capture, lambda *told: heard.append(told))
    data = TensorBatch(batch, "cpu")
    assert not any(graphs.replay(data, torch.arange(8), COEFFICIENTS) for _ in range(EAGER_STEPS + 2))
    why = "the learner runs without CUDA graphs: `policy.memory`: sequences are cut where episodes begin"
    assert heard == [("graphs", "acting", why)]


def test_numbers_that_schedules_move_ask_for_no_other_graph(make_case: Make) -> None:
    """The learning rate and the clip are read from device memory; coefficients that change the graph recapture it."""
    design, params, batch = make_case()
    engine = TorchEngine(design, params, 1)
    graphs = StepGraphs(engine.step, engine.optimiser, lambda *_: "", print)
    data, index = TensorBatch(batch, "cpu"), torch.arange(8)
    key = graphs._key(data, index, COEFFICIENTS)
    assert key == graphs._key(
        data, index, COEFFICIENTS._replace(learning_rate=1e-5, clip=0.1, entropy=0.0, max_grad_norm=9.0)
    )
    for other in ({"clip_value": 0.1}, {"policy": 0.0}, {"normalise_advantage": False}):
        assert key != graphs._key(data, index, COEFFICIENTS._replace(**other))
    assert key != graphs._key(data, index[:4], COEFFICIENTS)


@pytest.mark.parametrize(
    ("case", "how", "coefficients"),
    [
        ({}, {}, {}),
        ({"kind": "continuous"}, {}, {"clip_value": 0.2}),
        ({"kind": "squashed"}, {}, {"normalise_advantage": False}),
        ({"kind": "masked_multi"}, {"micro_batch": 16}, {}),
        ({"kind": "masked_binary"}, {}, {"policy": 0.0}),
        ({"obs": SEEN}, {"checkpointing": True}, {}),
        ({"obs": SEEN, "kind": "masked"}, {"precision": "bf16"}, {"imitate": True}),
        ({"obs": READ, "shared": False}, {}, {}),
        ({"reference": True}, {}, {"reference_kl": 0.1}),
    ],
)
def test_a_graph_can_hold_a_step(
    case: dict[str, Any],
    how: dict[str, Any],
    coefficients: dict[str, Any],
    make_case: Make,
    refused: Callable[..., list[str]],
) -> None:
    """A gradient step neither copies from the host nor synchronises, so a CUDA graph can capture it."""
    compared = case.pop("reference", False)
    design, params, batch = make_case(**case)
    if compared:
        batch = batch._replace(reference=np.zeros((len(batch.log_prob), design.outputs), np.float32))
    engine = TorchEngine(design, params, 1, device="cpu:0", **how)
    graphs = StepGraphs(engine.step, engine.optimiser, engine._why_not_capture, print)
    data, index, chosen = TensorBatch(batch, "cpu:0"), torch.arange(40), COEFFICIENTS._replace(**coefficients)
    assert engine._why_not_capture(data, chosen) == ""
    engine.step(data, index, chosen)
    dialled, before = graphs._with_memory(chosen), engine.gradient()
    assert refused(lambda: engine.step(data, index, dialled)) == []
    assert not np.array_equal(engine.gradient(), before)


def test_what_a_graph_cannot_hold_is_noticed(refused: Callable[..., list[str]]) -> None:
    """`refused` finds numbers turned into tensors, host tensors, results read by the host, and data-dependent sizes."""
    x = torch.arange(6.0, device="cpu:0").reshape(2, 3)
    fine = [
        lambda: 2 * x - 1,
        lambda: x.clamp(min=1.0),
        lambda: x.masked_fill(x > 1, 0.0),
        lambda: x[0].fill_(1.0),
        lambda: torch.zeros(3, device="cpu:0") + x,
        lambda: torch.zeros_like(x).copy_(x),
    ]
    assert [refused(work) for work in fine] == [[]] * len(fine)
    wrong = [
        lambda: torch.where(x > 1, x, 0.0),
        lambda: x[0].__setitem__(1, 1.0),
        lambda: x[torch.arange(2)],
        lambda: x.copy_(torch.zeros(3)),
        lambda: torch.tensor([1.0]).to("cpu:0", copy=True),
        lambda: x[x > 1],
        lambda: float(x.sum()),
        lambda: torch.nonzero(x),
    ]
    assert [len(refused(work)) for work in wrong] == [1] * len(wrong)
    with pytest.raises(pytest.fail.Exception, match=r"Tensor\.numpy\(\) within a capture"):
        refused(lambda: x.numpy())


def test_replays_see_what_has_changed(make_case: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed step uses new minibatches, batches and coefficients, and is captured only once."""
    monkeypatch.setattr(graphs_module, "capture", lambda work: SimpleNamespace(replay=work))
    design, params, batch = make_case()
    second, made = batch._replace(advantage=-batch.advantage), []
    for graphed in (False, True):
        engine = TorchEngine(design, params.copy(), 1, device="cpu:0")  # a device that needs copies
        if graphed:
            engine._graphs = StepGraphs(engine.step, engine.optimiser, engine._why_not_capture, warn_of_fallback)
        learn(engine, batch)
        made.append(learn(engine, second, COEFFICIENTS._replace(learning_rate=5e-4, clip=0.1, entropy=0.0)))
        assert not graphed or len(engine._graphs._captured) == 1
    for one, other in zip(*made, strict=True):
        near(one, other, atol=1e-6, rtol=1e-5)


def test_a_capture_that_fails_is_done_without(make_case: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed capture loses no step, is not retried, and the first line of its error is reported."""
    design, params, batch = make_case()
    tried, heard = list[int](), list[Any]()

    def fail(work: Callable[[], None]) -> Any:
        tried.append(1)
        raise RuntimeError("this copy is not permitted\nin a capture")

    monkeypatch.setattr(graphs_module, "capture", fail)
    plain, engine = (TorchEngine(design, params.copy(), 1) for _ in range(2))
    told = "the learner runs without CUDA graphs: a step cannot be captured: this copy is not permitted"
    engine._graphs = StepGraphs(
        engine.step, engine.optimiser, engine._why_not_capture, lambda *told: heard.append(told)
    )
    for one, other in zip(learn(plain, batch), learn(engine, batch), strict=True):
        assert np.array_equal(one, other)
    assert (tried, heard) == ([1], [("graphs", "acting", told)])


@on_gpu
@pytest.mark.parametrize("case", [{}, {"kind": "continuous"}, {"kind": "masked_multi"}, {"obs": SEEN}])
def test_graphs_learn_as_single_steps_do(case: dict[str, Any], device: str, make_case: Make) -> None:
    """On a GPU in fp32, replayed steps give the weights of eager steps and of the CPU, also on a second batch."""
    design, params, batch = make_case(**case)
    second = batch._replace(advantage=-batch.advantage)
    made = []
    for where, graphs in (("cpu", False), (device, False), (device, True)):
        heard: list[Any] = []
        mend = partial(lambda into, *told: into.append(told), heard)
        engine = TorchEngine(design, params.copy(), 1, device=where, graphs=graphs, report_fallback=mend)
        learn(engine, batch)
        assert heard == [] and (not graphs or len(engine._graphs._captured) == 1)
        weights, totals = learn(engine, second, COEFFICIENTS._replace(learning_rate=5e-4))
        made.append((weights, totals, engine.gradient()))
        assert engine.counters[0] == 30
    for who, ((one, sums, grad), (other, more, steep)) in zip(
        ("cpu, eager", "eager, graphs"), pairwise(made), strict=True
    ):
        near(one, other, atol=5e-4, err_msg=f"weights of {who}")
        near(sums[: KL + 1], more[: KL + 1], rtol=1e-2, atol=1e-2, err_msg=f"totals of {who}")
        near(grad, steep, atol=1e-2, err_msg=f"gradients of {who}")
    assert not np.allclose(made[0][0], params, atol=1e-4)


@on_gpu
def test_halves_learn_nearly_the_same(device: str, make_case: Make) -> None:
    """bf16 with graphs stays near fp32; losses and weights are fp32."""
    design, params, batch = make_case(obs=SEEN)
    exact = learn(TorchEngine(design, params.copy(), 1), batch)
    half = learn(TorchEngine(design, params.copy(), 1, device=device, precision="bf16", graphs=True), batch)
    assert np.corrcoef(exact[0] - params, half[0] - params)[0, 1] > 0.9
    near(exact[1][: KL + 1], half[1][: KL + 1], rtol=0.05, atol=0.5)


@on_gpu
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memories_learn_as_on_the_cpu(memory: str, device: str, make_case: Make) -> None:
    """Sequences with resets and two recurrent layers give the same weights as on the CPU."""
    design, params, batch = make_case(memory=memory, sequence=5, memory_layers=2)
    batch.episode_start[::7] = 1
    one, other = (learn(TorchEngine(design, params.copy(), 1, device=where), batch) for where in ("cpu", device))
    near(one[0], other[0], atol=5e-4)
    near(one[1][: KL + 1], other[1][: KL + 1], rtol=1e-2, atol=1e-2)


@on_gpu
def test_steps_do_not_wait(device: str, make_case: Make) -> None:
    """An epoch does not synchronise with the GPU, with or without graphs."""
    design, params, batch = make_case(obs=SEEN)
    for graphs in (False, True):
        engine = TorchEngine(design, params.copy(), 1, device=device, graphs=graphs)
        learn(engine, batch)
        data, index = engine._to_device(batch), torch.arange(40, device=device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                if engine._graphs is None:
                    engine.step(data, index, COEFFICIENTS)
                else:
                    assert engine._graphs.replay(data, index, COEFFICIENTS), engine._graphs._off
        finally:
            torch.cuda.set_sync_debug_mode("default")


@on_gpu
def test_observations_may_stay_on_the_host(device: str, make_case: Make) -> None:
    """Offloaded observations give the same weights; the plan reports that such steps are not captured."""
    design, params, batch = make_case()
    heard: list[Any] = []
    kept = learn(TorchEngine(design, params.copy(), 1, device=device), batch)
    engine = TorchEngine(
        design,
        params.copy(),
        1,
        device=device,
        offload=True,
        graphs=True,
        report_fallback=lambda *told: heard.append(told),
    )
    away = learn(engine, batch)
    near(kept[0], away[0], atol=1e-5)
    assert [told[:2] for told in heard] == [("graphs", "acting")]
