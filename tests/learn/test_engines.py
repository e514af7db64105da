"""The fused kernel against torch: the same gradient, the same weights, the same caution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slipstream.core.contracts import Array
from slipstream.learn.batch import Batch, Engine, Knobs
from slipstream.learn.fused import FusedEngine
from slipstream.learn.reference import TorchEngine
from slipstream.models.acting import split_pack
from slipstream.models.shape import Shape

KINDS = ["discrete", "multi_discrete", "continuous", "masked", "masked_multi"]
ENGINES = {"fused": FusedEngine, "torch": TorchEngine}
KNOBS = Knobs(
    minibatch=40, clip=0.2, clip_value=0.0, value=0.5, entropy=0.02, max_grad_norm=0.5, learning_rate=1e-3,
    adam_eps=1e-5, normalise_advantage=True, target_kl=0.0,
)  # fmt: skip
Case = tuple[Shape, Array, Batch]


@pytest.fixture
def make_case(
    make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> Callable[..., Case]:
    """Make a policy and a batch that an older policy near it might have collected."""

    def make(kind: str = "discrete", count: int = 200, **more: Any) -> Case:
        shape, pack = make_policy(kind, **more)
        obs, mask, action = make_samples(shape, count)
        params, mean, scale = split_pack(shape, pack)
        _, value, logp, _ = kernel_measure(shape, pack, obs, mask, action)
        random = np.random.default_rng(5)

        def near(column: Array, spread: float) -> Array:
            return (column + random.normal(0, spread, len(column))).astype(np.float32)

        batch = Batch(
            obs, mean, scale, mask, action, near(logp, 0.2), near(value, 0.3),
            near(np.zeros(count), 1.0), near(value, 1.0),
        )  # fmt: skip
        return shape, params.copy(), batch

    return make


def orders(count: int, epochs: int, seed: int = 0) -> Array:
    """A fresh order of all samples for each epoch."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(count) for _ in range(epochs)])


def both(case: Case, order: Array, knobs: Knobs, threads: int = 1) -> list[Any]:
    """Run each engine from the same start: (engine, outcome)."""
    shape, params, batch = case
    made = []
    for kind in (FusedEngine, TorchEngine):
        engine: Engine = kind(shape, params.copy(), threads)
        made.append((engine, engine.run(batch, order, knobs)))
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clip_value", [0.0, 0.25])
def test_gradients_and_weights_equal_those_of_torch(
    kind: str, threads: int, clip_value: float, make_case: Callable[..., Case]
) -> None:
    """One gradient equals autograd's, and so do the weights and the log after 15 updates, to 1e-5."""
    for shared, activation, hidden in ((True, "tanh", (16, 16)), (False, "relu", (50, 3))):
        case = make_case(kind, shared=shared, activation=activation, hidden=hidden)
        free = replace(KNOBS, clip_value=clip_value, max_grad_norm=1e9, minibatch=200)
        (fused, one), (torch, other) = both(case, orders(200, 1), free, threads)
        assert np.allclose(fused.gradient(), torch.gradient(), atol=1e-5, rtol=1e-4)
        assert np.abs(torch.gradient()).max() > 1e-3
        (fused, one), (torch, other) = both(case, orders(200, 3), replace(KNOBS, clip_value=clip_value), threads)
        assert one.updates == other.updates == 15
        assert np.abs(fused.params - torch.params).max() < 1e-5
        assert np.abs(fused.params - case[1]).max() > 1e-3
        assert np.allclose(fused.gradient(), torch.gradient(), atol=2e-5, rtol=1e-3)
        for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=2e-5, rel=1e-4), name
        for name, array in torch.snapshot().items():
            assert np.allclose(fused.snapshot()[name], array, atol=1e-5), name


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_start_gives_the_same_bits(threads: int, make_case: Callable[..., Case]) -> None:
    """Threads add their gradients in a fixed order, so two runs are equal bit for bit."""
    shape, params, batch = make_case()
    ends = []
    for _ in range(2):
        engine = FusedEngine(shape, params.copy(), threads)
        engine.run(batch, orders(200, 3), KNOBS)
        ends.append(engine.params)
    assert np.array_equal(*ends)


@pytest.mark.parametrize("kind", ENGINES)
def test_samples_not_named_in_the_order_are_not_used(kind: str, make_case: Callable[..., Case]) -> None:
    """Inactive rows stand in the batch with whatever was there, NaN included, and change nothing."""
    shape, params, batch = make_case()
    order = orders(200, 2)[:, :120]
    order = np.where(order == 7, order[0, 0] if order[0, 0] != 7 else order[0, 1], order)
    engines = []
    for poison in (False, True):
        data = replace(batch, obs=batch.obs.copy(), advantage=batch.advantage.copy())
        if poison:
            data.obs[7], data.advantage[7] = np.nan, np.nan
        engine = ENGINES[kind](shape, params.copy(), 1)
        outcome = engine.run(data, order, KNOBS)
        assert outcome.failed == 0
        engines.append(engine)
    assert np.array_equal(engines[0].params, engines[1].params)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("column", ["advantage", "goal"])
def test_a_step_that_is_not_finite_is_left_out(kind: str, column: str, make_case: Callable[..., Case]) -> None:
    """The minibatch with a NaN changes neither weights nor optimiser; the others are taken; the log stays finite."""
    shape, params, batch = make_case()
    poisoned = replace(batch, **{column: getattr(batch, column).copy()})
    getattr(poisoned, column)[50] = np.nan
    order = np.arange(200)[None]
    engine = ENGINES[kind](shape, params.copy(), 1)
    outcome = engine.run(poisoned, order, KNOBS)
    assert (outcome.failed, outcome.updates, outcome.diverged) == (1, 4, False)
    assert np.isfinite([outcome.policy_loss, outcome.value_loss, outcome.kl, outcome.gradient_norm]).all()
    without = ENGINES[kind](shape, params.copy(), 1)
    without.run(batch, np.concatenate([np.arange(40), np.arange(80, 200)])[None], KNOBS)
    assert np.array_equal(engine.params, without.params)


@pytest.mark.parametrize("kind", ENGINES)
def test_three_in_a_row_are_a_divergence_across_iterations_too(kind: str, make_case: Callable[..., Case]) -> None:
    """Failures are counted from one iteration to the next, and a good step starts the count anew."""
    shape, params, batch = make_case()
    poisoned = replace(batch, advantage=np.full_like(batch.advantage, np.nan))
    one = replace(KNOBS, minibatch=200)
    engine = ENGINES[kind](shape, params.copy(), 1)
    said = [engine.run(data, orders(200, 1), one).diverged for data in (poisoned, poisoned, batch, poisoned, poisoned)]
    assert said == [False] * 5
    assert engine.run(poisoned, orders(200, 1), one).diverged
    whole = ENGINES[kind](shape, params.copy(), 1)
    assert whole.run(poisoned, orders(200, 1), KNOBS).diverged
    assert np.array_equal(whole.params, params)


@pytest.mark.parametrize("kind", ENGINES)
def test_target_kl_stops_the_epochs(kind: str, make_case: Callable[..., Case]) -> None:
    """An iteration whose KL divergence passes the target stops after that epoch; 0 never stops."""
    shape, params, batch = make_case()
    for target, updates in ((0.0, 30), (1e-6, 5), (1e6, 30)):
        engine = ENGINES[kind](shape, params.copy(), 1)
        outcome = engine.run(batch, orders(200, 6), replace(KNOBS, target_kl=target))
        assert outcome.updates == updates


@pytest.mark.parametrize("kind", ENGINES)
def test_a_snapshot_goes_on_exactly(kind: str, make_case: Callable[..., Case]) -> None:
    """Weights, Adam's moments and its step count come back, so the next updates are the same bits."""
    shape, params, batch = make_case("continuous")
    engine = ENGINES[kind](shape, params.copy(), 1)
    engine.run(batch, orders(200, 2), KNOBS)
    saved = engine.snapshot()
    engine.run(batch, orders(200, 2, seed=1), KNOBS)
    other = ENGINES[kind](shape, np.zeros_like(params), 1)
    other.restore(saved)
    other.run(batch, orders(200, 2, seed=1), KNOBS)
    assert np.array_equal(engine.params, other.params)
    assert saved.keys() == {
        *(f"{kind}/{name}" for kind in ("weight", "first", "second") for name in shape.named(params)), "counters"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ENGINES)
def test_entropy_value_clip_and_norm_each_act(kind: str, make_case: Callable[..., Case]) -> None:
    """Every knob changes what is learned, in the direction that its description says."""
    case = make_case(shared=False)
    shape, params, batch = case

    def run(**knobs: Any) -> tuple[dict[str, Array], Any]:
        engine = ENGINES[kind](shape, params.copy(), 1)
        outcome = engine.run(batch, orders(200, 8), replace(KNOBS, **knobs))
        return shape.named(engine.params), outcome

    start = shape.named(params)
    plain, _ = run()
    frozen, _ = run(value=0.0)
    assert all(np.array_equal(frozen[name], start[name]) for name in start if name.startswith("value."))
    assert not np.array_equal(plain["value.0.weight"], start["value.0.weight"])
    assert run(entropy=1.0)[1].entropy > run(entropy=0.0)[1].entropy
    assert run(clip=0.01)[1].clip_fraction > run(clip=0.4)[1].clip_fraction
    assert run(clip=0.01)[1].kl < run(clip=0.4)[1].kl
    assert run(clip_value=0.01)[1].value_loss > run(clip_value=0.0)[1].value_loss
    assert not np.array_equal(run(normalise_advantage=False)[0]["policy.0.weight"], plain["policy.0.weight"])
    slow, _ = run(learning_rate=1e-6)
    assert max(np.abs(slow[name] - start[name]).max() for name in start) < 1e-4


@pytest.mark.parametrize("kind", ENGINES)
def test_gradients_are_shortened_to_the_limit(kind: str, make_case: Callable[..., Case]) -> None:
    """The first Adam moment after one step is a tenth of a gradient of the allowed length."""
    shape, params, batch = make_case()
    engine = ENGINES[kind](shape, params.copy(), 1)
    outcome = engine.run(batch, orders(200, 1), replace(KNOBS, minibatch=200, max_grad_norm=0.05))
    assert outcome.gradient_norm > 0.05
    moments = np.concatenate([a.reshape(-1) for n, a in engine.snapshot().items() if n.startswith("first/")])
    assert np.linalg.norm(moments) == pytest.approx(0.1 * 0.05, rel=1e-3)
