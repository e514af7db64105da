"""What several tests need: small runs made in this process, and policies of any shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.api import Run, train
from slipstream.core import compile
from slipstream.core.contracts import ActionSpec, Array
from slipstream.models.acting import pack_size, split_pack
from slipstream.models.heads import apply_mask, measure
from slipstream.models.kernels import CHUNK, forward, load_obs, outputs
from slipstream.models.shape import Shape

SMALL: dict[str, Any] = {
    "preset": "smoke",
    "every__profile": 0,
    "every__evaluate": 0,
    "every__system": 0,
}
ACTIONS = {
    "discrete": ActionSpec("discrete", (5,)),
    "multi_discrete": ActionSpec("multi_discrete", (3, 2, 4)),
    "continuous": ActionSpec("continuous", (), (-1.0, -2.0, -np.inf), (1.0, 2.0, np.inf)),
    "masked": ActionSpec("discrete", (5,), masked=True),
    "masked_multi": ActionSpec("multi_discrete", (3, 4), masked=True),
}


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tests of a fresh clone compile; what they print must not depend on that."""
    monkeypatch.setattr(compile, "COLD", False)


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., Run]:
    """Train a small policy for a few iterations into a fresh folder."""

    def make(env: Any = "soccer", name: str = "run", **settings: Any) -> Run:
        return train(env, run=tmp_path / name, **(SMALL | settings))

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One whole smoke run on soccer, shared by tests that only read it."""
    return train("soccer", preset="smoke", run=tmp_path_factory.mktemp("shared") / "run")


@pytest.fixture(scope="session")
def make_policy() -> Callable[..., tuple[Shape, Array]]:
    """Make a shape and a pack of lively random weights and normaliser."""

    def make(
        kind: str = "discrete", obs: int = 7, hidden: tuple[int, ...] = (16, 16), activation: str = "tanh",
        shared: bool = True, seed: int = 0,
    ) -> tuple[Shape, Array]:  # fmt: skip
        shape = Shape(obs, ACTIONS[kind], hidden, activation, shared)
        random = np.random.default_rng(seed)
        pack = np.zeros(pack_size(shape), np.float32)
        params, mean, scale = split_pack(shape, pack)
        named = shape.named(shape.initial(seed, -0.3))
        drawn = {name: array + random.normal(0, 0.3, array.shape).astype(np.float32) for name, array in named.items()}
        shape.flatten(drawn, params)
        mean[:], scale[:] = random.normal(0, 0.5, obs), random.uniform(0.5, 1.5, obs)
        return shape, pack

    return make


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., tuple[Array, Array, Array]]:
    """Draw observations, masks with at least one option in each part, and actions that the masks allow."""

    def make(shape: Shape, count: int, seed: int = 0) -> tuple[Array, Array, Array]:
        random = np.random.default_rng([seed, 99])
        spec = shape.action
        obs = random.normal(0, 1, (count, shape.obs)).astype(np.float32)
        if spec.kind == "continuous":
            return obs, np.zeros((count, 0), np.uint8), random.normal(0, 1, (count, spec.parts)).astype(np.float32)
        action = np.stack([random.integers(0, size, count) for size in spec.sizes], axis=1).astype(np.int32)
        if not spec.masked:
            return obs, np.zeros((count, 0), np.uint8), action
        mask = random.integers(0, 2, (count, spec.outputs)).astype(np.uint8)
        starts = np.cumsum([0, *spec.sizes[:-1]])
        mask[np.arange(count)[:, None], starts[None, :] + action] = 1
        return obs, mask, action

    return make


@pytest.fixture(scope="session")
def kernel_measure() -> Callable[..., tuple[Array, Array, Array, Array]]:
    """Run the compiled network over samples: outputs, values, log-probabilities, entropies."""

    def run(shape: Shape, pack: Array, obs: Array, mask: Array, action: Array) -> tuple[Array, Array, Array, Array]:
        params, mean, scale = split_pack(shape, pack)
        scratch = np.zeros(CHUNK * shape.scratch_columns, np.float32)
        inputs = outputs(scratch, shape.table, -1)
        last = len(shape.table) - 1
        last_policy = last if shape.shared else len(shape.table) // 2 - 1
        probs, measured = np.zeros(max(1, shape.action.outputs), np.float32), np.zeros(2, np.float32)
        rows = []
        for i in range(len(obs)):
            load_obs(obs, i, mean, scale, inputs[0])
            forward(params, shape.table, scratch, 4)
            policy = outputs(scratch, shape.table, last_policy)[0]
            value = outputs(scratch, shape.table, last)[0, shape.head[2]]
            raw = policy[: shape.action.outputs].copy()
            if mask.shape[1]:
                apply_mask(policy, mask[i])
            measure(policy, params[shape.head[3] :], shape.head, action[i], probs, measured)
            rows.append((raw, value, measured[0], measured[1]))
        raws, values, logps, entropies = zip(*rows, strict=True)
        return np.array(raws), np.array(values), np.array(logps), np.array(entropies)

    return run
