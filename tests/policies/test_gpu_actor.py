"""Acting on a device for rows on the host: equal RNG streams, actions and values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.policies import gpu_actor
from slipstream.policies.design import ActInputs, ActOutputs, Design, PolicyActor
from slipstream.policies.fused_actor import FusedActor
from slipstream.policies.gpu_actor import GPUActor
from slipstream.system.rng import make_streams

ROWS = 40
SEEN = ObsSpec(
    (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (2, 40, 40, 1)), ObsField("near", "tokens", (6, 3)))
)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PLACES = [
    ("cpu", False),
    pytest.param("cuda", False, marks=[pytest.mark.gpu, GPU]),
    pytest.param("cuda", True, marks=[pytest.mark.gpu, GPU]),
]
Make = Callable[..., tuple[Design, Array]]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers compute in fp32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def play(acting: PolicyActor, steps: int, rows: Array, sampled: bool = True) -> dict[str, Array]:
    """Act some steps on fixed observations; return the host arrays."""
    design = acting.design
    random = np.random.default_rng(5)
    streams = make_streams(3, "act", 0, ROWS)
    states = np.zeros((ROWS, design.state_size), np.float32)
    action = np.zeros((steps, ROWS, design.action.parts), design.action.dtype)
    log_prob, value, last = (np.zeros((steps, ROWS), np.float32) for _ in range(3))
    for t in range(steps):
        obs = random.normal(size=(ROWS, design.obs.width)).astype(np.float32)
        mask = (random.random((ROWS, design.action.options)) < 0.7).astype(np.uint8)
        mask[:, :: max(1, design.action.options // 2)] = 1
        acting.act(ActInputs(rows, obs, mask, states, streams), ActOutputs(action[t], log_prob[t], value[t]), sampled)
        acting.value(rows[::3], obs, last[t], states)
    if isinstance(acting, GPUActor):
        acting.flush()
    return {"streams": streams, "states": states, "action": action, "log_prob": log_prob, "value": value, "last": last}


def agree(one: dict[str, Array], other: dict[str, Array], within: float) -> None:
    """Equal RNG streams; numbers within a tolerance, except for actions with almost equal logits."""
    assert np.array_equal(one["streams"], other["streams"]), (
        f"streams of {(one['streams'] != other['streams']).any(1).sum()} of {ROWS} rows stand elsewhere: "
        f"{one['streams'][:3, 1]} and {other['streams'][:3, 1]} draws"
    )
    chosen = np.isclose(one["action"], other["action"], atol=within).all(-1)
    assert chosen.mean() >= 0.99, f"{(~chosen).sum()} of {chosen.size} choices differ"
    for name in ("states", "log_prob", "value", "last"):
        a, b = (np.where(chosen, found[name], 0) if name == "log_prob" else found[name] for found in (one, other))
        gap = np.abs(a - b).max(initial=0)
        assert gap <= within, f"{name} differs by up to {gap:.2e}, {within:.0e} allowed; the largest is {abs(a).max()}"


@pytest.mark.parametrize(("device", "graphs"), PLACES)
@pytest.mark.parametrize(
    "kind", ["discrete", "masked_multi", "masked_binary", "continuous", "squashed", "masked_mixed"]
)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_gpu_actor_equals_fused_actor(make_policy: Make, kind: str, memory: str, device: str, graphs: bool) -> None:
    """Equal streams and actions, and numbers up to the order of summation, for some rows or all."""
    design, params_and_stats = make_policy(kind, memory=memory)
    for rows in (np.arange(ROWS), np.arange(1, ROWS, 2)):
        one, other = FusedActor(design), GPUActor(design, ROWS, device, graphs=graphs, pinned=True)
        for acting in (one, other):
            acting.load(params_and_stats)
        a, b = play(one, 6, rows), play(other, 6, rows)
        assert (other.graphs, other.graph_error) == (graphs, "")
        agree(a, b, 2e-4 if device == "cuda" else 2e-5)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_graph_warm_up_has_no_side_effects(
    make_policy: Make, pinned: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm-up runs change neither streams nor states; if capturing fails, graph_error is set and acting continues."""

    def pretend(work: Callable[[], None], tries: int) -> Any:
        for _ in range(tries):
            work()
        if fails:
            raise RuntimeError("no graph can hold this\nbecause of that")
        return SimpleNamespace(replay=work)

    monkeypatch.setattr(gpu_actor, "capture", pretend)
    design, params_and_stats = make_policy("masked_multi", memory="lstm")
    plain, graphed = (GPUActor(design, ROWS, "cpu") for _ in range(2))
    graphed.graphs, graphed._pinned = True, pinned
    for acting in (plain, graphed):
        acting.load(params_and_stats)
    a, b = (play(acting, 3, np.arange(1, ROWS, 2)) for acting in (plain, graphed))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    error = "the policy cannot be captured: no graph can hold this" if fails else ""
    assert (graphed.graphs, graphed.graph_error) == (not fails, error)


@pytest.mark.parametrize(
    "how",
    [{"kind": "continuous"}, {"memory": "lstm"}, {"memory": "gru"}, {"obs": SEEN}, {"obs": SEEN, "shared": False}],
)
def test_a_step_can_be_captured(
    how: dict[str, Any], make_policy: Make, refused: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the copies nothing comes from the host, and there is no synchronisation."""
    design, params_and_stats = make_policy(**how)
    acting, launched = GPUActor(design, ROWS, "cpu:0"), list[int]()
    acting.load(params_and_stats)
    monkeypatch.setattr(gpu_actor, "launch", lambda one, count, args, block=0: launched.append(count))

    def work() -> None:
        with torch.no_grad():
            acting._select(True)

    assert refused(work) == [] and launched == [ROWS]


def test_greedy_actions_are_equal(make_policy: Make) -> None:
    """Greedy actions are equal and advance no stream."""
    design, params_and_stats = make_policy("discrete")
    one, other = FusedActor(design), GPUActor(design, ROWS, "cpu")
    for acting in (one, other):
        acting.load(params_and_stats)
    a, b = (play(acting, 3, np.arange(ROWS), sampled=False) for acting in (one, other))
    assert np.array_equal(a["action"], b["action"])
    assert np.array_equal(b["streams"], make_streams(3, "act", 0, ROWS))


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_half_precision_is_close(memory: str, make_policy: Make) -> None:
    """In bf16 values and states are close to fp32, and streams are equal."""
    design, params_and_stats = make_policy("discrete", memory=memory)
    exact, half = (GPUActor(design, ROWS, "cpu", precision=kind) for kind in ("fp32", "bf16"))
    for acting in (exact, half):
        acting.load(params_and_stats)
    a, b = (play(acting, 4, np.arange(ROWS)) for acting in (exact, half))
    assert np.array_equal(a["streams"], b["streams"])
    assert 0 < np.abs(a["value"] - b["value"]).max() < 0.1
    assert np.abs(a["states"] - b["states"]).max(initial=0) < 0.05


def test_observations_are_mirrored_on_the_device(make_policy: Make) -> None:
    """A mirror holds the observations of each step in order."""
    design, params_and_stats = make_policy("discrete")
    acting = GPUActor(design, ROWS, "cpu")
    acting.load(params_and_stats)
    mirror = torch.zeros(4, ROWS, design.obs.width)
    acting.mirror_obs(mirror)
    play(acting, 4, np.arange(ROWS))
    random = np.random.default_rng(5)
    seen = []
    for _ in range(4):
        seen.append(random.normal(size=(ROWS, design.obs.width)).astype(np.float32))
        random.random((ROWS, 0))
    assert np.array_equal(mirror.numpy(), np.stack(seen))


def test_load_copies_the_weights(make_policy: Make) -> None:
    """Later changes of the loaded array have no effect until it is loaded again."""
    design, params_and_stats = make_policy("discrete")
    acting = GPUActor(design, ROWS, "cpu")
    acting.load(params_and_stats)
    before = play(acting, 1, np.arange(ROWS))["value"]
    params_and_stats[:] = 0
    assert np.array_equal(play(acting, 1, np.arange(ROWS))["value"], before)
    acting.load(params_and_stats)
    after: Any = play(acting, 1, np.arange(ROWS))["value"]
    assert not np.array_equal(after, before)
