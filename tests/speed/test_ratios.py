"""Speed as ratios within one run, interleaved; run with `scripts/test -m speed` on a quiet machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest

import slipstream as ss
from slipstream.algorithms.engine import Batch, Coefficients
from slipstream.contracts import ActionSpec, empty_rows, vector_obs
from slipstream.engines.fused_engine import FusedEngine
from slipstream.engines.torch_engine import TorchEngine
from slipstream.envs.soccer.game import game as soccer
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings
from slipstream.system.machine import cores

pytestmark = pytest.mark.speed


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratio(slow: Callable[[], object], fast: Callable[[], object], rounds: int = 7) -> float:
    """The median over rounds of how many times faster the second is; both are called once before."""
    slow(), fast()
    return statistics.median(seconds(slow) / seconds(fast) for _ in range(rounds))


def test_the_fused_engine_beats_torch() -> None:
    """An iteration of 4,096 samples in minibatches of 64 is at least three times as fast as torch's."""
    random = np.random.default_rng(0)
    action_spec = ActionSpec("continuous", (), (-1.0,) * 6, (1.0,) * 6)
    design = Design(vector_obs(17), action_spec, PolicySettings(shared=False))
    numbers = [random.standard_normal(4096).astype(np.float32) for _ in range(4)]
    obs = random.standard_normal((4096, 17)).astype(np.float32)
    action = random.standard_normal((4096, 6)).astype(np.float32)
    none = np.zeros((4096, 0), np.float32)
    batch = Batch(
        obs, np.zeros(17, np.float32), np.full(17, 0.9, np.float32), none.astype(np.uint8), action, numbers[0] - 8,
        *numbers[1:], weight=np.ones(4096, np.float32), fresh=np.zeros(4096, np.uint8), state=none, reference=none,
        partner=np.zeros(0, np.int64), rows=32,
    )  # fmt: skip
    coefficients = Coefficients(64, 0.2, 0.0, 0.5, 0.01, 0.5, 1e-4, 1e-5, 0.0, True)
    order = random.permutation(4096)
    torch, fused = (kind(design, design.initial_weights(0), 1) for kind in (TorchEngine, FusedEngine))
    assert (
        ratio(lambda: torch.run_epoch(batch, order, coefficients), lambda: fused.run_epoch(batch, order, coefficients))
        > 3
    )


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_a_second_process_pays() -> None:
    """Two processes step CartPole faster than one, which no other Python vectoriser did on this kind of machine."""
    vectors = [ss.make_vector("gymnasium:CartPole-v1", envs=64, workers=workers).vector for workers in (1, 2)]
    works = []
    for vector in vectors:
        rows, action = empty_rows(vector.spec, 64), np.arange(64, dtype=np.int32)[:, None] % 2
        vector.reset(rows)
        works.append(lambda vector=vector, rows=rows, action=action: [vector.step(action, rows) for _ in range(300)])
    try:
        assert ratio(*works) > 1.2
    finally:
        for vector in vectors:
            vector.close()


def test_soccer_steps_three_million_rows_a_second() -> None:
    """One core steps 1v1 with 1,024 envs, observations and rewards included, at 3M rows per second or more."""
    game = soccer.vector(1024)
    rows = empty_rows(game.spec, 1024)
    game.reset(rows)
    actions = np.random.default_rng(0).integers(0, 18, (50, 2048, 1)).astype(np.int32)
    for action in actions:
        game.step(action, rows)
    best = min(seconds(lambda: [game.step(action, rows) for action in actions]) for _ in range(5))
    assert 50 * 2048 / best > 3e6
