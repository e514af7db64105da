"""SAC's fused kernel against torch: equal batches, gradients, weights and failure handling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.replay_buffer import TERMINATED, TRUNCATED, ReplayBuffer, ReplaySampler
from slipstream.algorithms.sac_critics import GRADIENT_NORM, SUMS, UPDATES, CriticEnsemble, SACCoefficients, SACEngine
from slipstream.contracts import ActionSpec, Array, vector_obs
from slipstream.engines.sac_fused import FusedSAC
from slipstream.engines.sac_torch import TorchSAC
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings, SACSettings

OBS, STEPS, BATCH = 5, 300, 50
ACTIONS = {
    "continuous": ActionSpec("continuous", (), (-1.0, -2.0, -np.inf), (1.0, 2.0, np.inf)),
    "discrete": ActionSpec("discrete", (5,)),
    "masked": ActionSpec("discrete", (5,), masked=True),
}
COEFFICIENTS = SACCoefficients(
    learning_rate=1e-3, gamma=0.97, tau=0.05, temperature=0.0, target_entropy=0.3, freeze_actor=False, n_step=1
)
PAIR = {"critics": 2, "target_critics": 2}
MANY = {"critics": 5, "target_critics": 2, "critic_layer_norm": True}


def make_replay(action: ActionSpec, steps: int = STEPS, seed: int = 0) -> ReplayBuffer:
    """A buffer of random steps in episodes of about seven, some terminated; masks allow the recorded actions."""
    random = np.random.default_rng([seed, 7])
    replay = ReplayBuffer(OBS, action, steps, 1)
    data = replay.data
    data.obs[:], data.next_obs[:] = random.normal(0, 1, (2, steps, OBS))
    data.reward[:] = random.normal(0, 1, steps)
    data.ended[:] = random.choice([0, TERMINATED, TRUNCATED], steps, p=[0.85, 0.05, 0.1])
    data.link[:-1] = np.where(data.ended[:-1] == 0, np.arange(1, steps), -1)
    if action.kind == "continuous":
        data.action[:] = random.uniform(-1, 1, data.action.shape)
    else:
        data.action[:] = random.integers(0, action.sizes[0], data.action.shape)
    for mask in (data.mask, data.next_mask):
        if mask.size:
            mask[:] = random.integers(0, 2, mask.shape)
            mask[np.arange(steps), data.action[:, 0].astype(int)] = 1
    replay.total = steps
    return replay


def make_params(design: Design) -> Array:
    """Random weights and a normaliser; some log standard deviations are outside their limits."""
    random = np.random.default_rng(3)
    params_and_stats = design.initial_params_and_stats(0)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    named = design.weights.named(params)
    for array in named.values():
        array += random.normal(0, 0.3, array.shape)
    if design.action.kind == "continuous":
        named["policy.head.bias"][design.action.parts :] = [0.0, 2.2, -0.5]
    design.weights.flatten(named, params)
    mean[:], scale[:] = random.normal(0, 0.5, OBS), random.uniform(0.5, 1.5, OBS)
    return params_and_stats


def make(
    engine: type[FusedSAC] | type[TorchSAC],
    kind: str = "continuous",
    threads: int = 1,
    policy: dict[str, Any] | None = None,
    batch: int = BATCH,
    **sac: Any,
) -> tuple[Any, ReplaySampler]:
    """An engine and its sampler."""
    settings = SACSettings(batch_size=batch, **sac)
    design = Design(
        vector_obs(OBS), ACTIONS[kind], PolicySettings(**({"hidden": (20, 12)} | (policy or {}))), value=False
    )
    critics = CriticEnsemble(design, settings)
    replay = make_replay(design.action)
    sampler = ReplaySampler(replay, None, batch, 0, settings.target_critics, seed=4)
    if engine is FusedSAC:
        return FusedSAC(design, critics, make_params(design), batch, threads, seed=1), sampler
    return TorchSAC(design, critics, make_params(design), threads, seed=1), sampler


def run(pair: tuple[SACEngine, ReplaySampler], updates: int, coefficients: SACCoefficients = COEFFICIENTS) -> Array:
    """Take gradient steps and return their summed statistics."""
    totals = np.zeros(SUMS)
    pair[0].run(pair[1], coefficients, updates, totals)
    return totals


def largest_gap(one: SACEngine, other: SACEngine) -> dict[str, float]:
    """The largest difference between two engines' arrays, by kind."""
    gaps: dict[str, float] = {}
    theirs = other.snapshot()
    for name, array in one.snapshot().items():
        kind = name.partition("/")[0]
        gaps[kind] = max(gaps.get(kind, 0.0), float(np.abs(array - theirs[name]).max()))
    return gaps


CASES = [
    ("continuous", PAIR, {}, 1),
    ("continuous", PAIR, {"activation": "relu", "layer_norm": True}, 3),
    ("continuous", MANY, {"activation": "elu"}, 2),
    ("continuous", {"critics": 1, "target_critics": 1}, {"hidden": ()}, 1),
    ("discrete", PAIR, {"activation": "relu"}, 1),
    ("discrete", MANY, {}, 3),
    ("masked", PAIR, {"layer_norm": True}, 2),
    ("masked", MANY, {"activation": "relu"}, 1),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kind", "sac", "policy", "n_step"), CASES)
def test_gradients_and_weights_equal_those_of_torch(
    kind: str, sac: dict[str, Any], policy: dict[str, Any], n_step: int, threads: int
) -> None:
    """One step's gradient and eight steps' weights, targets, temperature and statistics equal torch's to 1e-5."""
    coefficients = COEFFICIENTS._replace(n_step=n_step)
    fused, torch = make(FusedSAC, kind, threads, policy, **sac), make(TorchSAC, kind, 1, policy, **sac)
    one, other = run(fused, 1, coefficients), run(torch, 1, coefficients)
    assert np.array_equal(fused[1].batch.indices, torch[1].batch.indices)
    assert np.allclose(fused[0].gradient(), torch[0].gradient(), atol=1e-6, rtol=1e-4)
    assert np.allclose(one, other, atol=1e-5, rtol=1e-4)
    one, other = run(fused, 7, coefficients), run(torch, 7, coefficients)
    gaps = largest_gap(fused[0], torch[0])
    assert max(gaps.values()) < 1e-5, gaps
    assert np.allclose(one, other, atol=1e-4, rtol=1e-4)
    assert fused[0].temperature() == pytest.approx(torch[0].temperature(), abs=1e-6)
    assert fused[0].temperature() != 1.0


def test_batches_and_steps_are_deterministic() -> None:
    """Batches do not depend on the number of threads, and steps are equal for the same number."""
    alone, pair, again = (make(FusedSAC, threads=threads, **MANY) for threads in (1, 3, 3))
    for case in (alone, pair, again):
        run(case, 20)
    assert np.array_equal(alone[1].batch.indices, pair[1].batch.indices)
    assert np.array_equal(alone[1].batch.noise, pair[1].batch.noise)
    assert set(largest_gap(pair[0], again[0]).values()) == {0.0}
    assert 0.0 < max(largest_gap(alone[0], pair[0]).values()) < 1e-4


@pytest.mark.parametrize("batch", [1, 3, 64, 130])
def test_any_batch_size(batch: int) -> None:
    """Batch sizes that no thread count or lane count divides give torch's steps too."""
    for kind in ("continuous", "masked"):
        fused, torch = make(FusedSAC, kind, 2, batch=batch, **PAIR), make(TorchSAC, kind, batch=batch, **PAIR)
        run(fused, 3)
        run(torch, 3)
        assert max(largest_gap(fused[0], torch[0]).values()) < 1e-5


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_frozen_actor_does_not_change(kind: str) -> None:
    """Critics and targets are updated equally in both engines; actor, its moments and temperature are not."""
    coefficients = COEFFICIENTS._replace(freeze_actor=True)
    fused, torch = make(FusedSAC, kind, **PAIR), make(TorchSAC, kind, **PAIR)
    before = fused[0].snapshot()
    assert run(fused, 5, coefficients)[UPDATES] == run(torch, 5, coefficients)[UPDATES] == 5
    assert max(largest_gap(fused[0], torch[0]).values()) < 1e-5
    for name, array in fused[0].snapshot().items():
        still = "/policy." in name or name == "temperature"
        assert np.array_equal(array, before[name]) == still or name == "counters", name


@pytest.mark.parametrize("engine", [FusedSAC, TorchSAC])
def test_padding_and_fixed_temperature_do_not_change(engine: Any) -> None:
    """A fixed temperature is used and not updated, and padding of the flat weights stays zero."""
    (fixed, sampler), learned = make(engine, **MANY), make(engine, **MANY)
    run((fixed, sampler), 5, COEFFICIENTS._replace(temperature=0.7))
    run(learned, 5)
    assert fixed.temperature() == 1.0
    assert np.array_equal(fixed.snapshot()["temperature"], np.zeros(3))
    assert max(largest_gap(fixed, learned[0]).values()) > 1e-4
    weights = fixed.design.weights
    assert np.array_equal(weights.flatten(weights.named(fixed.params)), fixed.params)


@pytest.mark.parametrize("engine", [FusedSAC, TorchSAC])
def test_target_critics_are_resampled_every_step(engine: Any) -> None:
    """Every pair of two distinct critics out of five occurs."""
    case = make(engine, **MANY)
    seen = set()
    for _ in range(80):
        run(case, 1)
        seen.add(tuple(sorted(case[1].batch.target_critics.tolist())))
    assert len(seen) == 10
    assert all(one != other for one, other in seen)


@pytest.mark.parametrize("engine", [FusedSAC, TorchSAC])
def test_steps_that_are_not_finite_are_skipped(engine: Any) -> None:
    """NaN rewards change nothing, three failures end the run, and a good step resets the count."""
    soft, sampler = make(engine, **PAIR)
    run((soft, sampler), 2)
    before, rewards = soft.snapshot(), sampler.buffer.data.reward.copy()
    sampler.buffer.data.reward[:] = np.nan
    assert run((soft, sampler), 10)[UPDATES] == 0
    assert soft.counters.tolist() == [2, 3, 3, 2]
    after = soft.snapshot()
    assert all(np.array_equal(after[name], before[name]) for name in before if name != "counters")
    sampler.buffer.data.reward[:] = rewards
    assert run((soft, sampler), 1)[UPDATES] == 1
    assert soft.counters.tolist() == [3, 0, 3, 3]


@pytest.mark.parametrize(("engine", "threads"), [(FusedSAC, 1), (FusedSAC, 2), (TorchSAC, 1)])
def test_an_actor_step_that_is_not_finite_is_skipped(engine: Any, threads: int) -> None:
    """If only the actor's step fails, the critics are updated and the failure is counted."""
    soft, sampler = make(engine, threads=threads, **PAIR)
    sampler.buffer.data.ended[:] = TERMINATED
    before = soft.snapshot()
    assert run((soft, sampler), 3, COEFFICIENTS._replace(temperature=1e36))[UPDATES] == 0
    assert soft.counters.tolist() == [3, 3, 3, 0]
    after = soft.snapshot()
    assert np.array_equal(after["weight/policy.head.weight"], before["weight/policy.head.weight"])
    assert not np.array_equal(after["weight/critic0.head.weight"], before["weight/critic0.head.weight"])


@pytest.mark.parametrize("engine", [FusedSAC, TorchSAC])
def test_restored_engines_continue_equally(engine: Any) -> None:
    """A restored engine continues bit for bit, and each engine can restore the other's snapshot."""
    one, other = make(engine, **MANY), make(engine, **MANY)
    run(one, 4)
    other[0].restore(one[0].snapshot())
    other[1].streams[:] = one[1].streams
    assert np.array_equal(run(one, 5), run(other, 5))
    assert set(largest_gap(one[0], other[0]).values()) == {0.0}
    stranger, sampler = make(TorchSAC if engine is FusedSAC else FusedSAC, **MANY)
    stranger.restore(one[0].snapshot())
    sampler.streams[:] = one[1].streams
    run((stranger, sampler), 3)
    run(one, 3)
    assert max(largest_gap(one[0], stranger).values()) < 1e-5


def test_both_engines_report_the_same_activity() -> None:
    """Unit activity by hidden layer, gradient norm, and the time of the matrix products."""
    (fused, sampler), torch = make(FusedSAC, threads=2, **PAIR), make(TorchSAC, **PAIR)
    length = run((fused, sampler), 1)[GRADIENT_NORM]
    run(torch, 1)
    sizes = torch[0].activity()
    assert list(fused.activity()) == list(sizes) == ["policy.0", "policy.1"]
    assert all(np.allclose(array, sizes[name], atol=1e-5) for name, array in fused.activity().items())
    assert length == pytest.approx(np.linalg.norm(fused.gradient()), rel=1e-5)
    assert 0 < fused.products() < 1e-2 and torch[0].products() == 0
