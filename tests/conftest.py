"""Shared fixtures: small runs made in this process, and policies of any shape.

Tests that need a GPU are skipped without one. This runs only the GPU tests and prints one line per failure:

    python -m pytest -m gpu -q --tb=line -p no:cacheprovider tests

The first ones compile GPU kernels, which takes a minute or two. `refused` tests without a GPU whether CUDA graphs can
capture the work, with a CPU device in place of the GPU.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array, ObsSpec, vector_obs
from slipstream.policies.design import Design
from slipstream.policies.distributions import apply_mask, log_prob_and_entropy
from slipstream.policies.fused_network import forward, load_obs, outputs
from slipstream.policies.linear_algebra import CHUNK, Activations
from slipstream.settings import PolicySettings
from slipstream.system import numba_compile

if TYPE_CHECKING:
    from slipstream.api import Run

SMALL: dict[str, Any] = {
    "preset": "smoke",
    "every__evaluate": 0,
    "every__system": 0,
}
OTHER_PACKAGES = Path(__file__).parent / "other_interpreter"
"""Stand-ins for old packages that the second virtual environment has."""
CONTINUOUS = ActionSpec("continuous", (), (-1.0, -2.0, -np.inf), (1.0, 2.0, np.inf))
SWITCHES = (True, False, True)
MIXED = ActionSpec("mixed", (3, 2), (-1.0, -1.0), (1.0, 1.0), binary=(False, True))
ACTIONS = {
    "discrete": ActionSpec("discrete", (5,)),
    "multi_discrete": ActionSpec("multi_discrete", (3, 2, 4)),
    "continuous": CONTINUOUS,
    "squashed": CONTINUOUS,
    "masked": ActionSpec("discrete", (5,), masked=True),
    "masked_multi": ActionSpec("multi_discrete", (3, 4), masked=True),
    "binary": ActionSpec("multi_discrete", (2, 3, 2), binary=SWITCHES),
    "masked_binary": ActionSpec("multi_discrete", (2, 3, 2), masked=True, binary=SWITCHES),
    "mixed": MIXED,
    "masked_mixed": replace(MIXED, masked=True),
}


SLOW_FIXTURES = {"quick", "trained", "cli", "finished"}
SLOW_FOLDERS = ("stages", "cli", "league")
SLOW_FILES = (
    "test_cli.py",
    "test_every_setting.py",
    "test_sac.py",
    "test_sac_fused.py",
    "test_cloning.py",
    "test_precision.py",
    "test_warm_start.py",
    "test_plan_switches.py",
    "test_vector_api.py",
    "test_processes.py",
    "rocket/test_game.py",
    "treechop/test_scripted.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that train, start processes or compile a lot as slow; `scripts/test quick` skips them."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & SLOW_FIXTURES or item.path.parent.name in SLOW_FOLDERS or str(item.path).endswith(SLOW_FILES):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output must not depend on whether kernels were compiled before; the first tests of a fresh clone compile them."""
    monkeypatch.setattr(numba_compile, "COLD", False)
    monkeypatch.setattr(numba_compile, "NOTICE_AFTER_S", math.inf)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ignore plans that were tuned on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a second virtual environment, with NumPy and stand-ins for gym 0.19 and minerl 0.4.4 only.

    It is of the Python that `SLIPSTREAM_OTHER_PYTHON` names, which needs NumPy, or else of the one that runs the tests.
    """
    base = os.environ.get("SLIPSTREAM_OTHER_PYTHON", sys.executable)
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = Path(subprocess.check_output([base, "-c", "import numpy; print(numpy.__path__[0])"], text=True)).parent
    for source in (*installed.glob("numpy"), *installed.glob("numpy.libs"), *OTHER_PACKAGES.iterdir()):
        (packages / source.name).symlink_to(source)
    return str(folder / "bin" / "python")


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., Run]:
    """Train a small policy for a few iterations into a fresh folder."""
    from slipstream.api import train

    def make(env: Any = "soccer", name: str = "run", **settings: Any) -> Run:
        return train(env, run=tmp_path / name, **(SMALL | settings))

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete smoke run on soccer with a trace, shared by tests that only read it."""
    from slipstream.api import train

    return train("soccer", preset="smoke", every__profile=512, run=tmp_path_factory.mktemp("shared") / "run")


@pytest.fixture(scope="session")
def make_policy() -> Callable[..., tuple[Design, Array]]:
    """Make a design with random parameters and normaliser statistics.

    `kind` selects the action space; other policy settings (memory, layer_norm, squash, ...) are keyword arguments.
    """

    def make(
        kind: str = "discrete", obs: int | ObsSpec = 7, hidden: tuple[int, ...] = (16, 16), activation: str = "tanh",
        shared: bool = True, seed: int = 0, value: bool = True, **more: Any,
    ) -> tuple[Design, Array]:  # fmt: skip
        wanted = {
            "memory_size": 20,
            "log_std": -0.3,
            "squash": kind in ("squashed", "masked_mixed"),
            "features": 24,
        } | more
        policy = PolicySettings(hidden=hidden, activation=activation, shared=shared, **wanted)
        seen = vector_obs(obs) if isinstance(obs, int) else obs
        design = Design(seen, ACTIONS[kind], policy, value)
        random = np.random.default_rng(seed)
        params_and_stats = design.initial_params_and_stats(seed)
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        named = design.weights.named(params)
        spread = 0.3 if seen.plain else 0.03
        drawn = {
            name: array + random.normal(0, spread, array.shape).astype(np.float32) for name, array in named.items()
        }
        design.weights.flatten(drawn, params)
        mean[:], scale[:] = random.normal(0, 0.5, seen.floats), random.uniform(0.5, 1.5, seen.floats)
        return design, params_and_stats

    return make


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., tuple[Array, Array, Array]]:
    """Draw observations, masks with at least one allowed option per component, and allowed actions."""

    def draw(design: Design, count: int, random: np.random.Generator) -> Array:
        if design.obs.plain:
            return random.normal(0, 1, (count, design.obs.floats)).astype(np.float32)
        named = {}
        for field in design.obs.fields:
            if field.kind == "vector":
                named[field.name] = random.normal(0, 1, (count, *field.shape))
            else:
                named[field.name] = random.integers(0, 256, (count, *field.shape))
        return design.obs.join(named)

    def make(design: Design, count: int, seed: int = 0) -> tuple[Array, Array, Array]:
        random = np.random.default_rng([seed, 99])
        spec = design.action
        obs = draw(design, count, random)
        if spec.kind == "continuous":
            return obs, np.zeros((count, 0), np.uint8), random.normal(0, 1, (count, spec.parts)).astype(np.float32)
        options = np.stack([random.integers(0, size, count) for size in spec.sizes], axis=1)
        numbers = random.normal(0, 1, (count, spec.continuous_parts))
        action = np.concatenate([options, numbers], axis=1).astype(spec.dtype)
        if not spec.masked:
            return obs, np.zeros((count, 0), np.uint8), action
        mask = random.integers(0, 2, (count, spec.options)).astype(np.uint8)
        starts = np.cumsum([0, *spec.sizes[:-1]])
        mask[np.arange(count)[:, None], starts[None, :] + options] = 1
        return obs, mask, action

    return make


@pytest.fixture(scope="session")
def kernel_measure() -> Callable[..., tuple[Array, Array, Array, Array]]:
    """Run the compiled network on samples from the initial state: outputs, values, log-probabilities, entropies."""

    def run(
        design: Design, params_and_stats: Array, obs: Array, mask: Array, action: Array
    ) -> tuple[Array, Array, Array, Array]:
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        stack = design.stack
        scratch = np.zeros(CHUNK * stack.scratch_columns, np.float32)
        inputs = outputs(scratch, CHUNK, stack.table, -1)
        state, episode_start = np.zeros((4, stack.state_size), np.float32), np.zeros((1, 4), np.uint8)
        probs, measured = np.zeros(max(1, design.outputs), np.float32), np.zeros(2, np.float32)
        rows = []
        for i in range(len(obs)):
            load_obs(obs, i, mean, scale, inputs[0])
            forward(params, stack.table, Activations(scratch, CHUNK, episode_start), state, 4, 1)
            policy = outputs(scratch, CHUNK, stack.table, stack.policy_layer)[0]
            value = outputs(scratch, CHUNK, stack.table, stack.value_layer)[0, stack.head[2]]
            raw = policy[: design.outputs].copy()
            if mask.shape[1]:
                apply_mask(policy, mask[i], stack.head)
            log_prob_and_entropy(policy, params[stack.head[3] :], stack.head, action[i], probs, measured)
            rows.append((raw, value, measured[0], measured[1]))
        raws, values, logps, entropies = zip(*rows, strict=True)
        return np.array(raws), np.array(values), np.array(logps), np.array(entropies)

    return run


@pytest.fixture
def make_demos(tmp_path: Path) -> Callable[..., Path]:
    """Record demos of an expert whose actions depend on the current (or the first) observation; return the folder."""
    from slipstream.demos.format import TERMINATED, Schema
    from slipstream.demos.writer import Shard, prepare, recording_name

    def make(
        kind: str = "discrete", episodes: int = 40, size: int = 6, name: str = "demos", recall: bool = False,
        env: str = "made-up", seed: int = 0,
    ) -> Path:  # fmt: skip
        action, folder = ACTIONS[kind], tmp_path / name
        schema = Schema(env, vector_obs(size), action)
        prepare(folder, schema)
        shard = Shard(folder, f"{recording_name()}-w00", schema, {"agent": "scripted:made-up"})
        random, rule = np.random.default_rng(seed), np.random.default_rng(77).normal(0, 1, (size, 16))
        for number in range(episodes):
            steps = int(random.integers(5, 40))
            obs = random.normal(0, 1, (steps + 1, size)).astype(np.float32)
            seen = np.repeat(obs[:1], steps, axis=0) if recall else obs[:-1]
            values = {"obs": obs, "reward": np.ones(steps, np.float32), "action": _expert(action, seen @ rule)}
            if action.masked:
                mask = random.integers(0, 2, (steps, action.options)).astype(np.uint8)
                starts = np.cumsum([0, *action.sizes[:-1]])
                options = values["action"][:, : action.discrete_parts].astype(np.int64)
                mask[np.arange(steps)[:, None], starts[None, :] + options] = 1
                values["mask"] = mask
            shard.add(values, game=number, ended=TERMINATED, seed=number)
        shard.close()
        return folder

    return make


def _expert(action: ActionSpec, numbers: Array) -> Array:
    """The argmax of some numbers for discrete actions, or bounded actions that are close to linear in them."""
    starts = np.cumsum([0, *action.sizes])
    options = [numbers[:, a:b].argmax(1) for a, b in pairwise(starts)]
    bounded = np.tanh(0.3 * numbers[:, starts[-1] : starts[-1] + action.continuous_parts])
    return np.stack([*options, *bounded.T], 1).astype(action.dtype)


WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal.default")
"""Operations that synchronise: the host waits for their result or for its size."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[str]]:
    """Run some work with `cpu:0` in place of the GPU; list the operations that a CUDA graph cannot capture.

    Tensors without `cpu:0` are host tensors. Nothing may be copied from the host (Python numbers are kernel arguments,
    but some torch functions turn them into tensors), and the host may not read a result.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []
            self.host: dict[int, Any] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
            told = function(*args, **(kwargs or {}))
            name = str(function).removeprefix("aten.")
            near = [x for x in given if id(x) in self.host]
            picked = name.startswith("index") and any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
            if name.startswith(WAITING) or picked:
                self.found.append(f"{name} makes the host wait")
            if near and len(near) < len(given):
                self.found.append(f"{name} mixes the host's {[x.tolist() for x in near]} with the device's")
            moved = name.startswith("_to_copy") and str((kwargs or {}).get("device")) == "cpu:0"
            if near and moved:
                self.found.append(f"{name} brings {[list(x.shape) for x in near]} from the host")
            behind = torch._C._current_autograd_node() is not None  # torch creates a zero on the gradient's device
            there = moved or str((kwargs or {}).get("device")) == "cpu:0" or len(near) < len(given) or behind
            if name.startswith("lift_fresh") or not there:
                self.host |= {id(x): x for x in tree_leaves(told) if isinstance(x, torch.Tensor)}
            return told

    def watch(work: Callable[[], None]) -> list[str]:
        mode = Watch()
        with monkeypatch.context() as patch:
            for name in ("cpu", "numpy", "pin_memory"):
                patch.setattr(
                    torch.Tensor, name, lambda *_, name=name: pytest.fail(f"Tensor.{name}() within a capture")
                )  # fmt: skip
            with mode:
                work()
        return mode.found

    return watch
