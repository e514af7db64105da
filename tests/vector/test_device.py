"""Games on a device: the kernel of one env equals the vector's step, on a GPU bit for bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.kart.game import game as kart
from slipstream.envs.soccer.game import game as soccer
from slipstream.settings import RewardSettings
from slipstream.system.gpu_kernels import EmptyArray, KernelCall
from slipstream.vector.device import OUTPUTS, DeviceVector, side_by_side

GAMES: dict[str, Any] = {
    "soccer": lambda envs: soccer.vector(envs, match_seconds=3.0, random_starts=0.5),
    "soccer terms": lambda envs: soccer.vector(
        envs,
        match_seconds=3.0,
        random_starts=0.5,
        actions="multi_discrete",
        rewards=RewardSettings(
            weights={"save": 1.0, "aim": 0.1}, potential=True, normalise=True, clip=2.0, zero_sum=1.0
        ),
    ),
    "soccer:mixed": lambda envs: soccer.vector(envs, "mixed", match_seconds=3.0, random_starts=0.5),
    "kart": lambda envs: kart.vector(envs, actions="continuous", match_seconds=0.5, random_starts=0.5),
}


def host(arg: Any, rooms: dict[Any, Array]) -> Any:
    """Return the argument of a kernel for the CPU."""
    if isinstance(arg, tuple):
        return tuple(host(one, rooms) for one in arg)
    return rooms.setdefault(arg, np.zeros(arg.shape, arg.dtype)) if isinstance(arg, EmptyArray) else arg


def begin(name: str, envs: int) -> tuple[Any, Rows]:
    """Return a vector of a game and its first rows."""
    vector = GAMES[name](envs)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def actions(vector: Any, random: np.random.Generator) -> Array:
    """Return random actions for all rows."""
    rows, action = vector.envs * vector.spec.agents, vector.spec.action
    if action.kind == "continuous":
        return random.uniform(-1, 1, (rows, action.parts)).astype(np.float32)
    return np.stack([random.integers(0, size, rows) for size in action.sizes], 1).astype(np.int32)


@pytest.mark.parametrize("name", list(GAMES))
def test_the_kernel_equals_the_vector(name: str) -> None:
    """The function that a GPU runs for each env gives the same bits as the vector's step."""
    (one, mine), (other, theirs) = begin(name, 3), begin(name, 3)
    play = other.on_device()
    rooms: dict[Any, Array] = {}

    def do(work: KernelCall | None, *more: Any) -> None:
        if work is not None:
            args = [host(arg, rooms) for arg in work.args]
            for index in range(work.count):
                work.one(index, *args, *more)

    random = np.random.default_rng(0)
    for step in range(60):
        action = actions(one, random)
        one.step(action, mine)
        if step % 20 == 0:
            do(play.before)
        do(play.step, action, *(getattr(theirs, field) for field in OUTPUTS))
        do(play.after)
        for field in OUTPUTS:
            assert np.array_equal(getattr(mine, field), getattr(theirs, field)), field
    for field, array in one.snapshot().items():
        assert np.array_equal(array, other.snapshot()[field]), field


def test_on_the_cpu_the_vector_steps_itself() -> None:
    """Tensors on the CPU share the vector's memory: nothing is copied or compiled."""
    vector, plain = GAMES["soccer"](2), GAMES["soccer"](2)
    rows, game = empty_rows(plain.spec, 2), DeviceVector(vector, "cpu")
    told = SimpleNamespace(**{field: torch.from_numpy(getattr(empty_rows(plain.spec, 2), field)) for field in OUTPUTS})
    action = np.array([[3], [4], [5], [6]], np.int32)
    plain.step(action, rows)
    game.step(torch.from_numpy(action), told)
    assert np.array_equal(rows.obs, told.obs.numpy())
    assert game.tensors() == []
    assert np.array_equal(game.pull()["state"], plain.state)


def test_envs_are_contiguous() -> None:
    """The first axis is contiguous for arrays with few numbers per env; the values are the same."""
    few, many, other = torch.arange(24.0).view(4, 6), torch.zeros(4, 300), torch.arange(6.0).view(2, 3)
    assert side_by_side(few, (4,)).stride() == (1, 4)
    assert torch.equal(side_by_side(few, (4,)), few)
    assert side_by_side(many, (4,)).stride() == (300, 1)
    assert side_by_side(other, (4,)).stride() == (3, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("name", list(GAMES))
def test_a_gpu_game_equals_the_cpu_game(name: str) -> None:
    """RNG, physics, rewards and observations equal the CPU's bit for bit, over hundreds of steps and many episodes."""
    (one, mine), (other, first) = begin(name, 256), begin(name, 256)
    game = DeviceVector(other, "cuda")
    told = SimpleNamespace(**{field: torch.from_numpy(getattr(first, field)).cuda() for field in OUTPUTS})
    random = np.random.default_rng(0)
    for step in range(300):
        if step % 20 == 0:
            game.begin()
        action = actions(one, random)
        one.step(action, mine)
        game.step(torch.from_numpy(action).cuda(), told)
        for field in ("obs", "reward", "terminated", "truncated", "active"):
            assert np.array_equal(getattr(mine, field), getattr(told, field).cpu().numpy()), (step, field)
    here = one.snapshot()
    there = game.pull()
    for field, array in here.items():
        assert np.array_equal(array, there[field]), field
