"""The fused kernel against torch: equal gradients, weights and failure handling; and the features of torch alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ppo_cases import COEFFICIENTS, blank_batch
from slipstream.algorithms.contrastive_loss import contrastive_loss, info_nce
from slipstream.algorithms.engine import SUMS, Batch, Coefficients, Engine, UpdateStats
from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.engines.fused_engine import FusedEngine
from slipstream.engines.torch_engine import TorchEngine
from slipstream.errors import CheckpointError
from slipstream.policies import token_encoder
from slipstream.policies.design import Design
from slipstream.policies.distributions import apply_mask
from slipstream.policies.encoders import Pool
from slipstream.policies.parameter_layout import DENSE
from slipstream.policies.torch_policy import ActorCritic, state_columns

KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "masked_multi", "binary", "masked_binary"]
KINDS += ["mixed", "masked_mixed"]
MEMORIES = ["none", "gru", "lstm"]
ENGINES: dict[str, Callable[..., Any]] = {"fused": FusedEngine, "torch": TorchEngine}
SEEN = ObsSpec(
    (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (12, 12, 1)), ObsField("map", "tokens", (6, 3)))
)
TOKENS = ObsSpec((ObsField("", "tokens", (16, 3)),))
Case = tuple[Design, Array, Batch]


def cover() -> list[dict[str, Any]]:
    """Designs that cover every pair of options."""
    cases = []
    for (a, kind), (b, memory) in product(enumerate(KINDS), enumerate(MEMORIES)):
        activation = ("tanh", "relu", "elu")[(a + 2 * b) % 3]
        cases.append(
            {
                "kind": kind,
                "memory": memory,
                "shared": (a + b) % 2 == 0,
                "layer_norm": (a // 2 + b) % 2 == 0,
                "activation": activation,
                "memory_layers": 1 + (a // 4 + b) % 2,
            }
        )
    return cases


def name_of(case: dict[str, Any]) -> str:
    """The test id of a case."""
    return "-".join(str(value) for value in case.values())


@pytest.fixture
def make_case(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> Callable[..., Case]:
    """Make a policy and a batch as collected by a slightly older policy."""

    def make(kind: str = "discrete", length: int = 20, rows: int = 10, **more: Any) -> Case:
        memory = more.get("memory", "none") != "none"
        sequence = more.setdefault("sequence", 5) if memory else 1
        design, params_and_stats = make_policy(kind, **more)
        count, random = length * rows, np.random.default_rng(5)
        obs, mask, action = make_samples(design, count)
        params, mean, scale = design.split_params_and_stats(params_and_stats)

        def drawn(spread: float, about: Array | float = 0.0) -> Array:
            return (about + random.normal(0, spread, count)).astype(np.float32)

        state = np.zeros((count // sequence, design.state_size), np.float32)
        if memory:
            columns = state_columns(design, 1 if design.policy.shared else 2).reshape(-1)
            state[:, columns] = random.normal(0, 0.5, (len(state), len(columns)))
        weight = (random.random(count) > 0.1).astype(np.float32) if memory else np.ones(count, np.float32)
        episode_start = (random.random(count) < 0.1).astype(np.uint8) if memory else np.zeros(count, np.uint8)
        spreads = {"log_prob": 0, "value": 0, "advantage": 1, "value_target": 1}
        parts = {"weight": weight, "episode_start": episode_start, "state": state}
        parts |= {name: drawn(spread) for name, spread in spreads.items()}
        sizes = {"rows": rows, "sequence": sequence, "burn_in": design.policy.burn_in if memory else 0}
        batch = blank_batch(obs, (mean, scale), mask, action, **parts, **sizes)
        seen = TorchEngine(design, params.copy(), 1).evaluate(batch)
        near = {
            "log_prob": drawn(0.2, seen.log_prob),
            "value": drawn(0.3, seen.value),
            "value_target": drawn(1.0, seen.value),
        }
        return design, params.copy(), batch._replace(**near)

    return make


def outcome_of(engine: Engine, batch: Batch, coefficients: Coefficients, orders: Array) -> UpdateStats:
    """Run one epoch for each row of `orders`."""
    totals, before = np.zeros(SUMS), engine.counters[2]
    for order in orders:
        totals += engine.run_epoch(batch, order, coefficients)
    return UpdateStats.of(totals, int(engine.counters[2] - before), bool(engine.counters[1] >= 3))


def orders_of(batch: Batch, epochs: int, seed: int = 0) -> Array:
    """A new permutation of all sequences for each epoch."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(len(batch.log_prob) // batch.sequence) for _ in range(epochs)])


def both(case: Case, orders: Array, coefficients: Coefficients, threads: int = 1) -> list[Any]:
    """Run each engine from the same start: (engine, outcome)."""
    design, params, batch = case
    made = []
    for kind in (FusedEngine, TorchEngine):
        engine: Engine = kind(design, params.copy(), threads)
        made.append((engine, outcome_of(engine, batch, coefficients, orders)))
    return made


def compare(case: Case, coefficients: Coefficients, threads: int = 1) -> None:
    """One gradient, and the weights, moments and statistics after some updates, are equal in both engines."""
    batch = case[2]
    free = coefficients._replace(max_grad_norm=1e9, minibatch=len(batch.log_prob))
    (fused, one), (other, two) = both(case, orders_of(batch, 1), free, threads)
    assert np.allclose(fused.gradient(), other.gradient(), atol=1e-5, rtol=1e-4)
    assert np.abs(other.gradient()).max() > 1e-3
    (fused, one), (other, two) = both(case, orders_of(batch, 3), coefficients, threads)
    assert one.updates == two.updates >= 15
    assert np.abs(fused.params - other.params).max() < 1e-5
    assert np.abs(fused.params - case[1]).max() > 1e-3
    assert np.allclose(fused.gradient(), other.gradient(), atol=2e-5, rtol=1e-3)
    for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "reference_kl", "gradient_norm"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), abs=2e-5, rel=1e-4), name
    for name, array in other.snapshot().items():
        assert np.allclose(fused.snapshot()[name], array, atol=1e-5), name


def reference_of(design: Design, batch: Batch) -> Array:
    """Masked outputs of another policy, with log standard deviations after the means."""
    random = np.random.default_rng(8)
    count = design.outputs + design.action.continuous_parts
    told = random.normal(0, 0.5, (len(batch.log_prob), count)).astype(np.float32)
    if batch.mask.shape[1]:
        for row, mask in zip(told, batch.mask, strict=True):
            apply_mask(row, mask, design.head)
    return told


def test_the_designs_cover_every_pair() -> None:
    """The cases cover every pair of action space, memory, sharing, norm, activation and depth."""
    cases = cover()
    choices = {key: {case[key] for case in cases} for key in cases[0]}
    for one, two in combinations(choices, 2):
        missing = set(product(choices[one], choices[two])) - {(case[one], case[two]) for case in cases}
        assert not missing, (one, two)


@pytest.mark.parametrize("more", cover(), ids=name_of)
def test_gradients_and_weights_equal_those_of_torch(more: dict[str, Any], make_case: Callable[..., Case]) -> None:
    """The engines agree to 1e-5 for every kind of policy, with resets, absent samples, burn-in, reference and decay."""
    design, params, batch = make_case(**more, burn_in=2, hidden=(24, 9))
    batch = batch._replace(reference=reference_of(design, batch), weight=batch.weight * np.float32(0.7))
    compare((design, params, batch), COEFFICIENTS._replace(clip_value=0.25, reference_kl=0.3, weight_decay=0.1))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_recurrent_layers_before_the_hidden_ones(memory: str, shared: bool, make_case: Callable[..., Case]) -> None:
    """With `policy.memory_first` gradients and weights equal those of torch."""
    more = {"memory": memory, "memory_first": True, "memory_layers": 2, "shared": shared, "hidden": (12, 8)}
    design, params, batch = make_case("continuous", **more, burn_in=2)
    layers = [(layer.kind != DENSE, layer.outputs) for layer in design.stack.layers[:4]]
    size = design.policy.memory_size
    assert layers == [(True, size), (True, size), (False, 12), (False, 8)]
    compare((design, params, batch), COEFFICIENTS)


@pytest.mark.parametrize(
    ("kind", "memory", "threads"),
    [
        ("discrete", "none", 1),
        ("discrete", "gru", 2),
        ("discrete", "lstm", 2),
        ("masked_binary", "none", 1),
        ("masked_binary", "gru", 2),
        ("masked_binary", "lstm", 2),
        ("continuous", "none", 2),
        ("continuous", "gru", 1),
        ("continuous", "lstm", 1),
    ],
)  # every pair of values, in four of the eight kernels that numba would have to compile for all combinations
def test_tokens_are_learned_from_as_by_torch(
    kind: str, memory: str, threads: int, make_case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token type is encoded once for all samples; embeddings and both layers get torch's gradient."""
    design, params, batch = make_case(kind, obs=TOKENS, memory=memory, hidden=(24,), features=20)
    few = TOKENS.split(batch.obs)[""]
    few[..., 0] %= 32
    few[np.random.default_rng(3).random(few.shape[:2]) < 0.3, 0] = 255
    few[:4, :, 0] = 255
    batch = batch._replace(reference=reference_of(design, batch))
    compare((design, params, batch), COEFFICIENTS._replace(reference_kl=0.3), threads)
    whole, parts = (FusedEngine(design, params.copy(), threads) for _ in range(2))
    outcome_of(whole, batch, COEFFICIENTS, orders_of(batch, 2))
    monkeypatch.setattr(token_encoder, "KNOWN", 10)  # one minibatch at a time
    outcome_of(parts, batch, COEFFICIENTS, orders_of(batch, 2))
    assert np.abs(whole.params - parts.params).max() < 1e-6 and np.array_equal(whole.counters, parts.counters)
    again = batch._replace(obs=batch.obs[::-1].copy())  # another batch in the same buffers
    engine, episode_start = FusedEngine(design, params.copy(), threads), FusedEngine(design, params.copy(), threads)
    engine.evaluate(batch)
    assert np.array_equal(engine.evaluate(again).log_prob, episode_start.evaluate(again).log_prob)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_imitation_is_that_of_torch(kind: str, memory: str, make_case: Callable[..., Case]) -> None:
    """Maximising the log-probability of given actions takes equal steps in both engines for any old log-probability."""
    design, params, batch = make_case(kind, memory=memory)
    coefficients = COEFFICIENTS._replace(imitate=True, normalise_advantage=False)
    weights = np.random.default_rng(2).uniform(0.5, 1.5, len(batch.log_prob)).astype(np.float32)
    case = design, params, batch._replace(advantage=weights)
    compare(case, coefficients)
    engine = FusedEngine(design, params.copy(), 1)
    before = engine.evaluate(case[2]).log_prob[batch.weight > 0].mean()
    still = coefficients._replace(learning_rate=1e-9, minibatch=len(batch.log_prob))
    told = outcome_of(engine, case[2], still, orders_of(batch, 1))
    counted = batch.weight > 0
    mean = float((engine.evaluate(case[2]).log_prob * weights)[counted].mean())
    assert told.policy_loss == pytest.approx(-mean, abs=1e-4)
    assert told.kl == told.clip_fraction == 0
    outcome_of(engine, case[2], coefficients, orders_of(batch, 10))
    assert engine.evaluate(case[2]).log_prob[counted].mean() > before + 0.01


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clip_value", [0.0, 0.25])
@pytest.mark.parametrize("memory", MEMORIES)
def test_threads_and_clipping_change_nothing(
    threads: int, clip_value: float, memory: str, make_case: Callable[..., Case]
) -> None:
    """Gradients summed over threads, and value clipping, equal torch's."""
    for hidden, shared in (((16, 16), True), ((50, 3), False), ((), True)):
        case = make_case(memory=memory, hidden=hidden, shared=shared, seed=len(hidden))
        compare(case, COEFFICIENTS._replace(clip_value=clip_value), threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_sequences_that_fill_no_whole_block_count_too(
    threads: int, memory: str, make_case: Callable[..., Case]
) -> None:
    """More sequences than a block, and a number that blocks do not divide, give torch's gradients."""
    case = make_case("masked", memory=memory, rows=13, length=40, burn_in=1)
    compare(case, COEFFICIENTS._replace(minibatch=35), threads)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_sequences_may_be_drawn_more_than_once(memory: str, make_case: Callable[..., Case]) -> None:
    """Orders that repeat sequences within and across minibatches, with their own weights, train as torch does."""
    design, params, batch = make_case(memory=memory)
    random = np.random.default_rng(2)
    weight = batch.weight * random.uniform(0.2, 3, len(batch.weight)).astype(np.float32)
    count = len(batch.log_prob) // batch.sequence
    drawn = random.integers(0, count // 3, (3, count))
    (fused, one), (other, two) = both((design, params, batch._replace(weight=weight)), drawn, COEFFICIENTS)
    assert one.updates == two.updates == 15
    assert np.abs(fused.params - other.params).max() < 1e-5
    assert one.policy_loss == pytest.approx(two.policy_loss, abs=2e-5)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["discrete", "squashed", "masked_binary"])
def test_surveys_are_the_same(kind: str, memory: str, make_case: Callable[..., Case]) -> None:
    """Log-probabilities, values and the activity of every hidden layer equal torch's, under the same names."""
    design, params, batch = make_case(kind, memory=memory, memory_layers=2, shared=False, burn_in=3, layer_norm=True)
    one, two = (make(design, params.copy(), 1).evaluate(batch) for make in ENGINES.values())
    assert np.allclose(one.log_prob, two.log_prob, atol=2e-5)
    assert np.allclose(one.value, two.value, atol=2e-5)
    assert one.activity.keys() == two.activity.keys()
    layers = ["0", "1", *(["0.memory", "1.memory"] if memory != "none" else [])]
    assert list(one.activity) == [f"{net}.{layer}" for net in ("policy", "value") for layer in layers]
    for name, sizes in one.activity.items():
        assert np.allclose(sizes, two.activity[name], atol=1e-5), name
        assert sizes.min() > 0


@pytest.mark.parametrize("kind", ENGINES)
def test_the_log_probability_of_a_sequence_is_that_of_its_steps(kind: str, make_case: Callable[..., Case]) -> None:
    """Burn-in and resets inside sequences give exactly the states of stepping from the start of the rollout."""
    for memory in ("gru", "lstm"):
        design, params, batch = make_case(memory=memory, memory_layers=2, sequence=5, burn_in=20)
        first = batch.state[: batch.rows]
        batch = batch._replace(state=np.tile(first, (len(batch.state) // batch.rows, 1)))
        policy = ActorCritic(design)
        policy.load_state_dict({name: torch.from_numpy(array) for name, array in design.weights.named(params).items()})
        mean, scale, state = (torch.from_numpy(array) for array in (batch.mean, batch.scale, first))
        steps = []
        with torch.no_grad():
            for t in range(len(batch.log_prob) // batch.rows):
                now = slice(t * batch.rows, (t + 1) * batch.rows)
                state = state * torch.from_numpy(1.0 - batch.episode_start[now])[:, None].float()
                told = policy(torch.from_numpy(batch.obs[now]), mean, scale, state)
                state = told.state
                steps.append(policy.log_prob_and_entropy(told.outputs, torch.from_numpy(batch.action[now]), None)[0])
        survey = ENGINES[kind](design, params.copy(), 1).evaluate(batch)
        assert np.allclose(survey.log_prob, torch.cat(steps).numpy(), atol=2e-5)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_the_fused_gradient_is_that_of_finite_differences(memory: str, make_case: Callable[..., Case]) -> None:
    """Finite differences of the loss match the gradient."""
    design, params, batch = make_case("continuous", memory=memory, hidden=(8,), memory_size=6, memory_layers=2)
    coefficients = COEFFICIENTS._replace(max_grad_norm=1e9, minibatch=200, learning_rate=1e-12)
    order = orders_of(batch, 1)

    def loss(flat: Array) -> tuple[float, Array]:
        engine = FusedEngine(design, flat.copy(), 1)
        said = outcome_of(engine, batch, coefficients, order)
        return (
            said.policy_loss + coefficients.value * said.value_loss - coefficients.entropy * said.entropy,
            engine.gradient(),
        )

    gradient = loss(params)[1].copy()
    names = design.weights.named(gradient)
    random = np.random.default_rng(0)
    for name, grads in names.items():
        # Along a direction within one array, so that the change is larger than float32's noise.
        toward = random.normal(0, 1, grads.shape).astype(np.float32) + 3 * np.sign(grads)
        step = design.weights.flatten({other: np.zeros_like(s) for other, s in names.items()} | {name: toward})
        size = 2e-3 / np.linalg.norm(step)
        measured = (loss(params + size * step)[0] - loss(params - size * step)[0]) / (2 * size)
        assert measured == pytest.approx(float((toward * grads).sum()), rel=0.03, abs=2e-3), name


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_start_gives_the_same_bits(threads: int, memory: str, make_case: Callable[..., Case]) -> None:
    """Threads add their gradients in a fixed order, so two runs are equal bit for bit."""
    design, params, batch = make_case(memory=memory)
    ends = []
    for _ in range(2):
        engine = FusedEngine(design, params.copy(), threads)
        outcome_of(engine, batch, COEFFICIENTS, orders_of(batch, 3))
        ends.append(engine.params)
    assert np.array_equal(*ends)


@pytest.mark.parametrize("kind", ENGINES)
def test_samples_not_named_in_the_order_are_not_used(kind: str, make_case: Callable[..., Case]) -> None:
    """Samples that the order leaves out have no effect, even if they are NaN."""
    design, params, batch = make_case()
    orders = np.stack([np.flatnonzero(np.arange(200) != 7)[:120]] * 2)
    engines = []
    for poison in (False, True):
        data = batch._replace(obs=batch.obs.copy(), advantage=batch.advantage.copy())
        if poison:
            data.obs[7], data.advantage[7] = np.nan, np.nan
        engine = ENGINES[kind](design, params.copy(), 1)
        assert outcome_of(engine, data, COEFFICIENTS, orders).failed == 0
        engines.append(engine)
    assert np.array_equal(engines[0].params, engines[1].params)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("memory", MEMORIES)
def test_samples_that_do_not_count_carry_no_loss(kind: str, memory: str, make_case: Callable[..., Case]) -> None:
    """Actions, advantages and value targets of samples with weight 0 have no effect, even if they are NaN."""
    design, params, batch = make_case(memory=memory)
    batch.weight[::3] = 0
    ends = []
    for poison in (False, True):
        columns = {name: getattr(batch, name).copy() for name in ("advantage", "value_target", "log_prob", "value")}
        if poison:
            for column in columns.values():
                column[::3] = np.nan
        engine = ENGINES[kind](design, params.copy(), 1)
        said = outcome_of(engine, batch._replace(**columns), COEFFICIENTS._replace(clip_value=0.2), orders_of(batch, 2))
        assert said.failed == 0
        ends.append(engine.params)
    assert np.array_equal(*ends)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("column", ["advantage", "value_target"])
@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_a_step_that_is_not_finite_is_left_out(
    kind: str, column: str, optimiser: str, make_case: Callable[..., Case]
) -> None:
    """A minibatch with a NaN changes neither weights nor optimiser; the others do; the statistics stay finite."""
    if (kind, optimiser) == ("fused", "muon"):
        return
    more = {"optimiser": optimiser} if kind == "torch" else {}
    design, params, batch = make_case()
    poisoned = batch._replace(**{column: getattr(batch, column).copy()})
    getattr(poisoned, column)[50] = np.nan
    engine = ENGINES[kind](design, params.copy(), 1, **more)
    outcome = outcome_of(engine, poisoned, COEFFICIENTS, np.arange(200)[None])
    assert (outcome.failed, outcome.updates, outcome.diverged) == (1, 4, False)
    assert np.isfinite([outcome.policy_loss, outcome.value_loss, outcome.kl, outcome.gradient_norm]).all()
    without = ENGINES[kind](design, params.copy(), 1, **more)
    outcome_of(without, batch, COEFFICIENTS, np.concatenate([np.arange(40), np.arange(80, 200)])[None])
    assert np.array_equal(engine.params, without.params)


@pytest.mark.parametrize("kind", ENGINES)
def test_three_in_a_row_are_a_divergence_across_iterations_too(kind: str, make_case: Callable[..., Case]) -> None:
    """Failures are counted across epochs, a good step resets the count, and three in a row end an epoch."""
    design, params, batch = make_case()
    poisoned = batch._replace(advantage=np.full_like(batch.advantage, np.nan))
    one, order = COEFFICIENTS._replace(minibatch=200), orders_of(batch, 1)
    engine = ENGINES[kind](design, params.copy(), 1)
    said = [outcome_of(engine, data, one, order).diverged for data in (poisoned, poisoned, batch, poisoned, poisoned)]
    assert said == [False] * 5
    assert outcome_of(engine, poisoned, one, order).diverged
    partly = batch._replace(advantage=batch.advantage.copy())
    partly.advantage[:120] = np.nan
    whole = ENGINES[kind](design, params.copy(), 1)
    outcome = outcome_of(whole, partly, COEFFICIENTS, np.arange(200)[None])
    assert (outcome.diverged, outcome.failed, outcome.updates) == (True, 3, 0)
    assert whole.counters.tolist() == [0, 3, 3]
    assert np.array_equal(whole.params, params)


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_snapshot_goes_on_exactly(kind: str, optimiser: str, make_case: Callable[..., Case]) -> None:
    """Weights, moments and the step count are restored, so the next updates are equal bit for bit."""
    if (kind, optimiser) == ("fused", "muon"):
        return
    more = {"optimiser": optimiser} if kind == "torch" else {}
    design, params, batch = make_case("continuous", memory="gru")
    engine = ENGINES[kind](design, params.copy(), 1, **more)
    outcome_of(engine, batch, COEFFICIENTS, orders_of(batch, 2))
    saved = engine.snapshot()
    outcome_of(engine, batch, COEFFICIENTS, orders_of(batch, 2, seed=1))
    other = ENGINES[kind](design, np.zeros_like(params), 1, **more)
    other.restore(saved)
    assert np.array_equal(
        other.params, design.weights.flatten({n[7:]: a for n, a in saved.items() if n[:7] == "weight/"})
    )
    outcome_of(other, batch, COEFFICIENTS, orders_of(batch, 2, seed=1))
    assert np.array_equal(engine.params, other.params)
    names = design.weights.named(params)
    assert saved.keys() == {*(f"{k}/{name}" for k in ("weight", "first", "second") for name in names), "counters"}
    with pytest.raises(CheckpointError, match=r"should be .* but is missing"):
        other.restore({name: array for name, array in saved.items() if name != "first/log_std"})


def test_engines_take_over_from_each_other(make_case: Callable[..., Case]) -> None:
    """Each engine continues from the other's snapshot to the same weights."""
    design, params, batch = make_case(memory="lstm")
    (fused, _), (other, _) = both((design, params, batch), orders_of(batch, 2), COEFFICIENTS)
    swapped = TorchEngine(design, params.copy(), 1), FusedEngine(design, params.copy(), 1)
    for engine, saved in zip(swapped, (fused.snapshot(), other.snapshot()), strict=True):
        engine.restore(saved)
        outcome_of(engine, batch, COEFFICIENTS, orders_of(batch, 1, seed=1))
    outcome_of(fused, batch, COEFFICIENTS, orders_of(batch, 1, seed=1))
    for engine in swapped:
        assert np.abs(engine.params - fused.params).max() < 1e-5


@pytest.mark.parametrize("kind", ENGINES)
def test_entropy_value_clip_and_norm_each_act(kind: str, make_case: Callable[..., Case]) -> None:
    """Every coefficient changes the result in the direction that its description states."""
    design, params, batch = make_case(shared=False)
    batch = batch._replace(reference=reference_of(design, batch))

    def run(**coefficients: Any) -> tuple[dict[str, Array], Any]:
        engine = ENGINES[kind](design, params.copy(), 1)
        outcome = outcome_of(engine, batch, COEFFICIENTS._replace(**coefficients), orders_of(batch, 8))
        return design.weights.named(engine.params), outcome

    start = design.weights.named(params)
    plain, _ = run()
    frozen, _ = run(value=0.0)
    assert all(np.array_equal(frozen[name], start[name]) for name in start if name.startswith("value."))
    warming, _ = run(policy=0.0, entropy=0.0)
    assert all(np.array_equal(warming[name], start[name]) for name in start if name.startswith("policy."))
    assert not np.array_equal(plain["value.layers.0.weight"], start["value.layers.0.weight"])
    assert run(entropy=1.0)[1].entropy > run(entropy=0.0)[1].entropy
    assert run(reference_kl=1.0)[1].reference_kl < run(reference_kl=0.0)[1].reference_kl
    assert run(clip=0.01)[1].clip_fraction > run(clip=0.4)[1].clip_fraction
    assert run(clip=0.01)[1].kl < run(clip=0.4)[1].kl
    assert run(clip_value=0.01)[1].value_loss > run(clip_value=0.0)[1].value_loss
    other = run(normalise_advantage=False)[0]
    assert not np.array_equal(other["policy.layers.0.weight"], plain["policy.layers.0.weight"])
    slow, _ = run(learning_rate=1e-6)
    assert max(np.abs(slow[name] - start[name]).max() for name in start) < 1e-4
    decayed, _ = run(learning_rate=1e-6, weight_decay=1e4)
    assert np.allclose(decayed["value.layers.0.weight"], start["value.layers.0.weight"] * 0.99**40, atol=1e-3)


@pytest.mark.parametrize("kind", ENGINES)
def test_gradients_are_shortened_to_the_limit(kind: str, make_case: Callable[..., Case]) -> None:
    """The first moment after one step is a tenth of the clipped gradient."""
    design, params, batch = make_case()
    engine = ENGINES[kind](design, params.copy(), 1)
    coefficients = COEFFICIENTS._replace(minibatch=200, max_grad_norm=0.05)
    outcome = outcome_of(engine, batch, coefficients, orders_of(batch, 1))
    assert outcome.gradient_norm > 0.05
    assert np.linalg.norm(engine.gradient()) == pytest.approx(outcome.gradient_norm, rel=1e-4)
    moments = np.concatenate([a.reshape(-1) for n, a in engine.snapshot().items() if n.startswith("first/")])
    assert np.linalg.norm(moments) == pytest.approx(0.1 * 0.05, rel=1e-3)


PARTED: list[dict[str, Any]] = [
    {"kind": "masked"},
    {"kind": "squashed", "memory": "lstm", "memory_layers": 2, "burn_in": 2},
    {"kind": "binary", "obs": SEEN, "memory": "gru", "shared": False},
]


def paired(design: Design, batch: Batch) -> Batch:
    """The batch with a positive one or two steps later for most samples."""
    count = len(batch.log_prob)
    later = np.arange(count) + np.random.default_rng(3).integers(1, 3, count) * batch.rows
    span = batch.sequence * batch.rows if batch.sequence > 1 else count
    together = (later < count) & (later // span == np.arange(count) // span)
    return batch._replace(partner=np.where(together, later, -1))


@pytest.mark.slow
@pytest.mark.parametrize("more", PARTED, ids=lambda more: more["kind"])
@pytest.mark.parametrize("contrasted", [0.0, 0.5])
def test_parts_of_a_minibatch_add_up_to_the_whole(
    more: dict[str, Any], contrasted: float, make_case: Callable[..., Case]
) -> None:
    """Gradients summed over micro-batches of any size equal those of the whole, including the contrastive loss."""
    design, params, batch = make_case(**more)
    batch = paired(design, batch)
    coefficients = COEFFICIENTS._replace(minibatch=100, contrast=contrasted, max_grad_norm=1e9)
    found = []
    for micro_batch in (None, 25, 7):
        engine = TorchEngine(design, params.copy(), 1, micro_batch=micro_batch)
        said = outcome_of(engine, batch, coefficients._replace(minibatch=200), orders_of(batch, 1))
        gradient = engine.gradient()
        many = outcome_of(engine, batch, coefficients, orders_of(batch, 2))
        found.append((gradient, engine.params, said, many))
    for gradient, weights, said, many in found[1:]:
        assert np.abs(gradient - found[0][0]).max() < 1e-6 * max(1, np.abs(gradient).max())
        assert np.abs(weights - found[0][1]).max() < 1e-5
        assert said.contrast == pytest.approx(found[0][2].contrast, rel=1e-5)
        assert many.policy_loss == pytest.approx(found[0][3].policy_loss, abs=1e-5)


@pytest.mark.parametrize("more", PARTED, ids=lambda more: more["kind"])
def test_checkpointing_computes_again_and_learns_the_same(more: dict[str, Any], make_case: Callable[..., Case]) -> None:
    """With activation checkpointing every network runs twice per gradient, and the gradient is the same."""
    design, params, batch = make_case(**more | {"burn_in": 0})
    calls, gradients = [], []
    for checkpointing in (False, True):
        engine = TorchEngine(design, params.copy(), 1, checkpointing=checkpointing)
        count = [0]

        def add(module: Any, inputs: Any, count: list[int] = count) -> None:
            count[0] += 1

        for chain in engine.policy.networks():
            chain.encoder.register_forward_pre_hook(add)
        outcome_of(engine, batch, COEFFICIENTS._replace(minibatch=200), orders_of(batch, 1))
        calls.append(count[0] // len(engine.policy.networks()))
        gradients.append(engine.gradient())
    assert calls == [1, 2]
    assert np.allclose(*gradients, atol=1e-7)


def test_muon_takes_orthogonal_steps(make_case: Callable[..., Case]) -> None:
    """Muon's update of a hidden matrix has similar singular values and the size of Adam's; heads use Adam."""
    design, params, batch = make_case(hidden=(32, 32))
    moves = {}
    for optimiser in ("adam", "muon"):
        engine = TorchEngine(design, params.copy(), 1, optimiser=optimiser)
        outcome_of(engine, batch, COEFFICIENTS._replace(minibatch=200, max_grad_norm=1e9), orders_of(batch, 1))
        before, after = design.weights.named(params), design.weights.named(engine.params)
        moves[optimiser] = {name: after[name] - before[name] for name in before}
    singular = np.linalg.svd(moves["muon"]["trunk.layers.1.weight"] / (1e-3 * 0.2 * 32**0.5), compute_uv=False)
    assert 0.5 < np.median(singular) < 1.3
    assert singular.max() < 1.35
    adams = np.linalg.svd(moves["adam"]["trunk.layers.1.weight"] / (1e-3 * 0.2 * 32**0.5), compute_uv=False)
    assert adams.max() > 3
    spread = {name: np.sqrt((move["trunk.layers.1.weight"] ** 2).mean()) for name, move in moves.items()}
    assert 0.1 * spread["adam"] < spread["muon"] < spread["adam"]
    for name in ("trunk.head.weight", "trunk.layers.1.bias"):
        assert np.array_equal(moves["muon"][name], moves["adam"][name])


def test_muon_learns_and_decays(make_case: Callable[..., Case]) -> None:
    """The value loss falls, and weight decay shrinks matrices."""
    design, params, batch = make_case(shared=False)
    coefficients = COEFFICIENTS._replace(learning_rate=1e-2, policy=0.0)
    engine = TorchEngine(design, params.copy(), 1, optimiser="muon")
    losses = [outcome_of(engine, batch, coefficients, orders_of(batch, 1, seed)).value_loss for seed in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    still = TorchEngine(design, params.copy(), 1, optimiser="muon")
    outcome_of(still, batch, COEFFICIENTS._replace(learning_rate=1e-6, weight_decay=1e4), orders_of(batch, 1))
    name = "value.layers.1.weight"
    left = design.weights.named(still.params)[name]
    assert np.allclose(left, design.weights.named(params)[name] * 0.99**5, atol=1e-3)


def test_contrast_of_two_by_hand() -> None:
    """Two orthogonal anchors, one positive each: -log of the softmax of the cosines over the temperature."""
    anchors = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    positives = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    # Cosines: [[1, 0.6], [0, 0.8]]; temperature 0.5 doubles them.
    expected = np.log(1 + np.exp(1.2 - 2.0)) + np.log(1 + np.exp(0.0 - 1.6))
    assert float(info_nce(anchors, positives, 0.5)) == pytest.approx(expected, rel=1e-6)
    mean, by_anchors, by_positives = contrastive_loss(anchors, positives, 0.5)
    assert float(mean) == pytest.approx(expected / 2, rel=1e-6)
    # Anchor 0 can only turn: its gradient on [0, 1] is (p1 * 0.8 - (1 - p0) * 0 ...) = p1 * (0.8 - 0) / 0.5 / 2 / |a|.
    share = np.exp(1.2) / (np.exp(1.2) + np.exp(2.0))
    assert by_anchors[0].numpy() == pytest.approx([0.0, share * 0.8 / 0.5 / 2 / 2.0], abs=1e-6)
    assert float((by_positives * positives).sum(-1).abs().max()) < 1e-6


def test_contrast_in_blocks_is_the_contrast_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors in chunks give the loss and the gradients of all anchors at once."""
    from slipstream.algorithms import contrastive_loss as contrasting

    generator = torch.Generator().manual_seed(0)
    anchors, positives = torch.randn(2, 50, 8, generator=generator)
    whole = contrastive_loss(anchors, positives, 0.2)
    monkeypatch.setattr(contrasting, "CHUNK", 7)
    for one, two in zip(whole, contrastive_loss(anchors, positives, 0.2), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"memory": "gru"}, {"obs": SEEN}], ids=["plain", "memory", "images"])
def test_contrast_falls_when_trained(more: dict[str, Any], make_case: Callable[..., Case]) -> None:
    """The contrastive loss falls from about that of random guessing; without a coefficient it is not computed."""
    design, params, batch = make_case(**more)
    batch = paired(design, batch)
    coefficients = COEFFICIENTS._replace(contrast=1.0, contrast_temperature=0.2, learning_rate=5e-3, max_grad_norm=10.0)
    engine = TorchEngine(design, params.copy(), 1)
    losses = [outcome_of(engine, batch, coefficients, orders_of(batch, 1, seed)).contrast for seed in range(25)]
    assert losses[-1] < 0.8 * losses[0]
    plain = TorchEngine(design, params.copy(), 1)
    assert outcome_of(plain, batch, COEFFICIENTS, orders_of(batch, 1)).contrast == 0
    none = batch._replace(partner=np.full_like(batch.partner, -1))
    lone = TorchEngine(design, params.copy(), 1)
    assert outcome_of(lone, none, coefficients, orders_of(batch, 1)).contrast == 0
    outcome_of(plain, batch, coefficients, np.zeros((0, 5), np.int64))
    other = TorchEngine(design, params.copy(), 1)
    outcome_of(other, batch, coefficients._replace(contrast=0.0), orders_of(batch, 1))
    assert np.abs(lone.params - other.params).max() < 1e-6


@pytest.mark.parametrize("image", ["nature", "impala"])
def test_images_and_tokens_are_learned_from(image: str, make_case: Callable[..., Case]) -> None:
    """Every weight of every encoder changes, the value loss falls, and the activity includes the encoders' layers."""
    design, params, batch = make_case(obs=SEEN, image=image, memory="lstm", shared=False)
    engine = TorchEngine(design, params.copy(), 1)
    assert batch.obs.dtype == np.uint8
    losses = [outcome_of(engine, batch, COEFFICIENTS, orders_of(batch, 1, seed)).value_loss for seed in range(8)]
    assert losses[-1] < losses[0]
    before, after = design.weights.named(params), design.weights.named(engine.params)
    assert not [name for name in before if np.array_equal(before[name], after[name])]
    activity = engine.evaluate(batch).activity
    assert {"policy.encoder.eye.0", "value.encoder.eye.3", "policy.encoder.map.1", "value.0.memory"} <= activity.keys()
    assert activity["policy.encoder.eye.1"].shape == ((64,) if image == "nature" else (32,))
    assert all(np.isfinite(sizes).all() for sizes in activity.values())


HALVED: list[dict[str, Any]] = [
    {"kind": "masked", "layer_norm": True},
    {"kind": "squashed", "memory": "lstm", "memory_layers": 2, "burn_in": 2},
    {"kind": "binary", "obs": SEEN, "memory": "gru", "shared": False},
    {"kind": "continuous", "obs": SEEN, "image": "impala"},
]


def cosine(one: Array, two: Array) -> float:
    """The cosine similarity of two gradients."""
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


@pytest.mark.parametrize("more", HALVED, ids=lambda more: more["kind"])
def test_half_precision_is_what_runs(more: dict[str, Any], make_case: Callable[..., Case]) -> None:
    """Layers compute in bf16 in training; memories, token means, activity and everything stored are fp32."""
    design, params, batch = make_case(**more)
    engine = TorchEngine(design, params.copy(), 1, precision="bf16")
    seen: dict[str, set[torch.dtype]] = {}
    for name, module in engine.policy.hidden_modules().items():
        module.register_forward_hook(
            lambda module, inputs, output, name=name: seen.setdefault(name, set()).add(output.dtype)
        )
    plain, told = TorchEngine(design, params.copy(), 1).evaluate(batch), engine.evaluate(batch)
    assert all(found == {torch.float32} for found in seen.values())
    assert np.array_equal(told.log_prob, plain.log_prob) and np.array_equal(told.value, plain.value)
    seen.clear()
    outcome_of(engine, batch._replace(burn_in=0), COEFFICIENTS, orders_of(batch, 1))
    assert seen.keys() == engine.policy.hidden_modules().keys()
    for name, found in seen.items():
        exact = name.endswith("memory") or isinstance(engine.policy.hidden_modules()[name], Pool)
        assert found == {torch.float32 if exact else torch.bfloat16}, name
    assert {parameter.dtype for parameter in engine.policy.parameters()} == {torch.float32}
    assert {array.dtype for name, array in engine.snapshot().items() if name != "counters"} == {np.dtype(np.float32)}


@pytest.mark.parametrize("more", HALVED, ids=lambda more: more["kind"])
@pytest.mark.parametrize("ends", [True, False])
def test_half_precision_takes_nearly_the_same_steps(
    more: dict[str, Any], ends: bool, make_case: Callable[..., Case]
) -> None:
    """bf16 gradients are similar to fp32 ones but not equal, also with micro-batches, checkpointing and resets."""
    design, params, batch = make_case(**more)
    if not ends:
        batch = batch._replace(episode_start=np.zeros_like(batch.episode_start))
    batch = paired(design, batch)._replace(reference=reference_of(design, batch))
    coefficients = COEFFICIENTS._replace(minibatch=200, contrast=0.3, reference_kl=0.2)
    found = []
    for wanted in ({}, {"precision": "bf16"}, {"precision": "bf16", "micro_batch": 25, "checkpointing": True}):
        engine = TorchEngine(design, params.copy(), 1, **wanted)
        outcome = outcome_of(engine, batch, coefficients, orders_of(batch, 1))
        assert outcome.failed == 0
        found.append((engine.gradient(), outcome))
    for gradient, outcome in found[1:]:
        assert gradient.dtype == np.float32
        assert 1e-6 < 1 - cosine(gradient, found[0][0]) < 0.01
        assert outcome.policy_loss == pytest.approx(found[0][1].policy_loss, abs=0.02)
        assert outcome.value_loss == pytest.approx(found[0][1].value_loss, rel=0.02)


COMPILER = os.environ.get("CXX", "g++")
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"torch.compile needs a C++ compiler, and there is no {COMPILER} here"
)


@needs_compiler
@pytest.mark.slow
def test_compiled_networks_learn_the_same(make_case: Callable[..., Case]) -> None:
    """Weights after some updates, with a smaller last minibatch, equal those of uncompiled networks."""
    design, params, batch = make_case(hidden=(12,), activation="relu")
    coefficients, said = COEFFICIENTS._replace(minibatch=60), list[tuple[Any, ...]]()
    plain = TorchEngine(design, params.copy(), 1)
    engine = TorchEngine(design, params.copy(), 1, compiled=True, report_fallback=lambda *told: said.append(told))
    assert engine.compiled and not plain.compiled
    assert np.array_equal(engine.params, params), "the trial must not change the state"
    orders = orders_of(batch, 3)
    outcome_of(plain, batch, coefficients, orders)
    outcome_of(engine, batch, coefficients, orders)
    assert engine.compiled and said == []
    assert np.abs(engine.params - plain.params).max() < 1e-5
    assert np.abs(engine.params - params).max() > 1e-3
    assert np.allclose(engine.gradient(), plain.gradient(), atol=1e-5)
    assert engine.snapshot().keys() == plain.snapshot().keys()
    assert engine.evaluate(batch).activity.keys() == plain.evaluate(batch).activity.keys() != set()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Let torch.compile trace, but run the traced graphs uncompiled; the list of traced graphs."""
    found: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    yield found
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "precision"),
    [(HALVED[0], "fp32"), (HALVED[1], "bf16"), (HALVED[2], "bf16"), (HALVED[3], "fp32")],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_other_sizes_are_not_compiled_for_ever(
    more: dict[str, Any], precision: str, captured: list[Any], make_case: Callable[..., Case]
) -> None:
    """After batches of one, a few and many samples, no other batch size recompiles, and the weights are equal."""
    design, params, batch = make_case(**more)
    batch, coefficients, said = paired(design, batch), COEFFICIENTS._replace(contrast=0.2), list[tuple[Any, ...]]()
    wanted: dict[str, Any] = {"micro_batch": 25, "precision": precision}
    plain = TorchEngine(design, params.copy(), 1, **wanted)
    engine = TorchEngine(
        design, params.copy(), 1, **wanted, compiled=True, report_fallback=lambda *told: said.append(told)
    )
    first, counts = len(captured), []
    assert first == 1, "a network is one graph, and a second network of the same kind adds none"
    for sizes in ((199, 30, 5), (45, 30, 190, 70), (115, 95, 10, 165)):
        for size in sizes:
            for one in (plain, engine):
                outcome_of(one, batch, coefficients._replace(minibatch=size), orders_of(batch, 1, size))
        counts.append(len(captured))
    assert counts == [counts[0]] * 3 and counts[0] <= 6
    assert engine.compiled and said == []
    assert np.abs(engine.params - plain.params).max() < (1e-5 if precision == "fp32" else 1e-3)


def refuse(*_: Any, **__: Any) -> Any:
    """A compiler that always fails."""
    raise RuntimeError("no compiler here\nand more lines")


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, make_case: Callable[..., Case]) -> None:
    """A failing compiler is reported once, in one line, and the steps equal those of uncompiled networks."""
    design, params, batch = make_case(memory="gru")
    plain, said = TorchEngine(design, params.copy(), 1), list[tuple[Any, ...]]()
    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    engine = TorchEngine(design, params.copy(), 1, compiled=True, report_fallback=lambda *told: said.append(told))
    for one in (plain, engine):
        outcome_of(one, batch, COEFFICIENTS, orders_of(batch, 2))
    assert said == [("compile", False, "compiling failed: no compiler here")]
    assert not engine.compiled
    assert np.array_equal(engine.params, plain.params)
    with pytest.warns(UserWarning, match=r"^plan\.compile is off: compiling failed: no compiler here$"):
        TorchEngine(design, params.copy(), 1, compiled=True)


def test_a_machine_without_a_compiler_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_case: Callable[..., Case]
) -> None:
    """Torch's own error about the missing compiler is the reason."""
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config.cpp, "cxx", (str(tmp_path / "g++"),))
    design, params, _ = make_case()
    said: list[tuple[Any, ...]] = []
    assert not TorchEngine(
        design, params.copy(), 1, compiled=True, report_fallback=lambda *told: said.append(told)
    ).compiled
    ((name, applied, why),) = said
    assert (name, applied) == ("compile", False) and "No working C++ compiler found" in why and "\n" not in why


def test_compiling_that_fails_later_is_no_end(monkeypatch: pytest.MonkeyPatch, make_case: Callable[..., Case]) -> None:
    """A shape that fails to compile during an epoch runs uncompiled and is reported once; other errors still raise."""
    design, params, batch = make_case()
    plain, said, calls = TorchEngine(design, params.copy(), 1), list[tuple[Any, ...]](), [0]

    def once(graph: Any, inputs: Any) -> Any:
        calls[0] += 1
        return graph.forward if calls[0] <= tried[0] else refuse()

    tried = [1_000]
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=once))
    engine = TorchEngine(design, params.copy(), 1, compiled=True, report_fallback=lambda *told: said.append(told))
    assert engine.compiled and calls[0] > 0
    tried[0] = calls[0]
    coefficients = COEFFICIENTS._replace(minibatch=199)  # the last minibatch has 1 sample, which torch specialises on
    outcomes = [outcome_of(one, batch, coefficients, orders_of(batch, 1)) for one in (plain, engine)]
    torch.compiler.reset()
    assert said == [("compile", False, "compiling failed: RuntimeError: no compiler here")]
    assert not engine.compiled
    assert outcomes[0].updates == outcomes[1].updates == 2
    assert outcomes[0].policy_loss == pytest.approx(outcomes[1].policy_loss, abs=1e-6)
    assert np.abs(engine.params - plain.params).max() < 1e-6
    with pytest.raises(RuntimeError, match="must match the size"):
        engine.run_epoch(batch._replace(obs=batch.obs[:, :3]), np.arange(40), COEFFICIENTS)
    assert len(said) == 1
