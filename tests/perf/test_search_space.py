"""The search space: which changes are tried, and that they keep the batch."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.perf.search_space import DOUBLING, SearchSpace, apply_changes, compiles_s, rollout_for
from slipstream.plan import Facts, check_batch, make_plan
from slipstream.settings import Settings

BASE = apply_changes(Settings(), {"ppo.rollout": 64, "ppo.minibatch": 4096, "plan.envs": 512})


def applied(settings: Settings = BASE, gpu: str = "", **facts: Any) -> dict[str, Any]:
    """The plan of some settings on four cores."""
    return make_plan(settings.plan, Facts(4, True, settings.ppo.minibatch, gpu=gpu, **facts)).applied()


@pytest.mark.parametrize(
    ("changes", "wanted", "rollout"),
    [
        ({}, 1024, 32),
        ({}, 2048, 16),
        ({}, 4096, None),
        ({}, 384, None),
        ({}, 32, 1024),
        ({"policy.sequence": 32}, 2048, None),
        ({"policy.memory": "gru", "policy.sequence": 32}, 1024, 32),
        ({"policy.memory": "gru", "policy.burn_in": 40}, 1024, None),
        ({"ppo.rollout": 8}, 256, 16),
        ({"ppo.rollout": 8}, 1024, None),
        ({"algorithm": "sac"}, 1024, None),
        ({"algorithm": "sac"}, 256, 2),
    ],
)
def test_rollouts_keep_the_batch(changes: dict[str, Any], wanted: int, rollout: int | None) -> None:
    """The rollout changes with the number of envs so that the batch stays; its minimum is 16 steps or a sequence."""
    settings = BASE.model_copy(update={"algorithm": changes.pop("algorithm", "ppo")})
    assert rollout_for(apply_changes(settings, changes), 512, wanted) == rollout


@pytest.mark.parametrize("gpu", ["", "Some GPU"])
def test_whatever_is_tried_keeps_the_batch(gpu: str) -> None:
    """No change affects batch, minibatch and epochs."""
    space, plan = SearchSpace(2, 4, bool(gpu)), applied(gpu=gpu)
    moves = [one for name in space.coordinates(plan) if name not in DOUBLING for one in space.options(name, plan)]
    moves += [one for name in space.coordinates(plan) for up in (True, False) if (one := _step(space, name, plan, up))]
    assert len(moves) >= 8
    for changes in moves:
        after = apply_changes(BASE, changes)
        assert check_batch(after, after.plan.envs or 0, 2) == 512 * 2 * 64
        assert (after.ppo.minibatch, after.ppo.epochs) == (4096, BASE.ppo.epochs)


def _step(space: SearchSpace, name: str, plan: dict[str, Any], up: bool) -> dict[str, Any] | None:
    return space.step(name, plan, BASE, up) if name in DOUBLING else None


def test_ladders() -> None:
    """Workers are doubled or halved, up to the number of cores; one less than all cores is tried too."""
    space, plan = SearchSpace(1, 4, False), applied() | {"workers": 4, "threads": 1}
    assert space.step("threads", plan, BASE, True) == {"plan.threads": 2}
    assert space.step("threads", plan, BASE, False) is None
    assert space.step("workers", plan, BASE, True) is None
    assert space.step("workers", plan, BASE, False) == {"plan.workers": 3}
    assert space.step("workers", plan | {"workers": 3}, BASE, False) == {"plan.workers": 1}
    assert space.step("workers", plan | {"collector": "local"}, BASE, False) is None
    assert space.step("groups", plan, BASE, True) is None
    assert space.step("groups", plan | {"collector": "batched", "groups": 2}, BASE, True) == {"plan.groups": 4}
    assert space.step("envs", plan, BASE, False) == {"plan.envs": 256, "ppo.rollout": 128}


def test_larger_batches_only_if_free() -> None:
    """Larger batches and minibatches are tried only if learning may change, minibatches up to the whole batch."""
    assert "minibatch" not in SearchSpace(1, 4, False).coordinates(applied())
    space = SearchSpace(1, 4, False, free=True)
    assert space.coordinates(applied())[-2:] == ["batch", "minibatch"]
    assert space.step("batch", applied(), BASE, True) == {"plan.envs": 1024}
    assert space.step("batch", applied(), BASE, False) is None
    assert space.step("minibatch", applied(), BASE, True) == {"ppo.minibatch": 8192}
    whole = apply_changes(BASE, {"ppo.minibatch": 32768})
    assert space.step("minibatch", applied(), whole, True) is None


def test_exact_moves_change_how_and_never_what() -> None:
    """With `exact`, only changes that keep the result bit for bit are tried."""
    space = SearchSpace(1, 4, True, exact=True)
    assert space.coordinates(applied()) == ["collector", "workers", "groups", "vector", "pinned"]
    keys = {key for one in space.options("collector", applied()) for key in one}
    assert keys == {"plan.collector", "plan.workers", "plan.groups"}
    assert space.options("collector", applied(gpu="X", images=True)) == []


def test_a_game_that_lives_on_the_gpu_is_taken_off_it_last() -> None:
    """For a game on the GPU, other collectors and the CPU are tried last; for other games, collectors first."""
    space, plan = SearchSpace(2, 4, True), applied(gpu="Some GPU", images=True)
    assert space.coordinates(plan)[0] == "collector"
    there = space.coordinates(plan | {"collector": "device"})
    assert there[-2:] == ["collector", "device"] and there[1] == "envs"
    assert sorted(there) == sorted(space.coordinates(plan))


def test_what_is_asked_for_stands() -> None:
    """A setting given by the user is not changed, and a given rollout fixes the number of envs."""
    space = SearchSpace(1, 4, False, fixed={"plan.threads", "ppo.rollout", "plan.collector"})
    plan = applied()
    assert space.options("collector", plan) == []
    assert space.step("threads", plan | {"threads": 1}, BASE, True) is None
    assert space.step("envs", plan, BASE, True) is None


def test_what_only_a_gpu_or_torch_has() -> None:
    """Precision and compile are tried for torch; graphs and storage on a GPU, storage not if the game runs there."""
    space, plain = SearchSpace(1, 4, True), applied()
    assert all(not space.options(name, plain) for name in ("precision", "compile", "graphs", "storage"))
    torch = plain | {"learner": "torch"}
    assert space.options("precision", torch) == [{"plan.precision": "bf16"}]
    assert space.options("compile", torch) == [{"plan.compile": True}]
    cuda = applied(gpu="Some GPU", images=True)
    assert space.options("graphs", cuda) == [{"plan.graphs": False}]
    assert space.options("storage", cuda) == [{"plan.storage": "host"}]
    lives = cuda | {"collector": "device", "cudnn_benchmark": False}
    assert [space.options(name, lives) for name in ("storage", "pinned", "cudnn_benchmark")] == [[], [], []]
    assert space.options("cudnn_benchmark", cuda) == [{"plan.cudnn_benchmark": False}]
    assert space.options("device", cuda) == [{"plan.device": "cpu"}]
    assert {"plan.precision": "tf32"} in space.options("precision", cuda)
    assert space.options("vector", cuda) == [{"plan.vector": "processes"}]
    assert {"plan.collector": "device"} in space.options("collector", cuda)


def test_what_has_to_be_compiled_first_is_known() -> None:
    """torch.compile and moving a game to or from the GPU need compiling; another number of envs does not."""
    cuda = applied(gpu="Some GPU", images=True)
    there = cuda | {"collector": "device"}
    assert compiles_s(cuda, {"plan.compile": True}) == 90
    assert compiles_s(cuda | {"compile": True}, {"plan.compile": False}) == 0
    assert compiles_s(there, {"plan.collector": "local"}) == compiles_s(there, {"plan.device": "cpu"}) == 90
    assert compiles_s(cuda, {"plan.collector": "device"}) == 90
    assert compiles_s(cuda, {"plan.collector": "local"}) == compiles_s(there, {"plan.envs": 4}) == 0
