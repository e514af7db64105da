"""Acting on a device for rows on the host: the same chance, the same choices, the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.core.contracts import Array
from slipstream.core.streams import make_streams
from slipstream.models.acting import FusedActing
from slipstream.models.design import Acting, Design
from slipstream.models.staged import StagedActing

ROWS = 40
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PLACES = [("cpu", False), pytest.param("cuda", False, marks=[pytest.mark.gpu, GPU]),
          pytest.param("cuda", True, marks=[pytest.mark.gpu, GPU])]  # fmt: skip
Make = Callable[..., tuple[Design, Array]]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memories compute in fp32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def play(acting: Acting, steps: int, rows: Array, sampled: bool = True) -> dict[str, Array]:
    """Act some steps on fixed observations; return what the host holds at the end."""
    design = acting.design
    random = np.random.default_rng(5)
    streams = make_streams(3, "act", 0, ROWS)
    states = np.zeros((ROWS, design.state_size), np.float32)
    action = np.zeros((steps, ROWS, design.action.parts), design.action.dtype)
    logp, value, last = (np.zeros((steps, ROWS), np.float32) for _ in range(3))
    for t in range(steps):
        obs = random.normal(size=(ROWS, design.obs.width)).astype(np.float32)
        mask = (random.random((ROWS, design.action.options)) < 0.7).astype(np.uint8)
        mask[:, :: max(1, design.action.options // 2)] = 1
        acting.act(rows, obs, mask, streams, sampled, action[t], logp[t], value[t], states)
        acting.value(rows[::3], obs, last[t], states)
    if isinstance(acting, StagedActing):
        acting.flush()
    return {"streams": streams, "states": states, "action": action, "logp": logp, "value": value, "last": last}


@pytest.mark.parametrize(("device", "graphs"), PLACES)
@pytest.mark.parametrize("kind", ["discrete", "masked_multi", "masked_binary", "continuous", "squashed"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_staged_equals_fused(make_policy: Make, kind: str, memory: str, device: str, graphs: bool) -> None:
    """Streams to the bit, choices the same, numbers to what two ways of adding up differ by, for some rows or all."""
    design, pack = make_policy(kind, memory=memory)
    for rows in (np.arange(ROWS), np.arange(1, ROWS, 2)):
        one, other = FusedActing(design), StagedActing(design, ROWS, device, graphs=graphs, pinned=True)
        for acting in (one, other):
            acting.load(pack)
        a, b = play(one, 6, rows), play(other, 6, rows)
        assert np.array_equal(a["streams"], b["streams"])
        for name in a:
            assert np.allclose(a[name], b[name], atol=2e-4 if device == "cuda" else 2e-5), name


def test_greedy_choices_are_the_same(make_policy: Make) -> None:
    """Without chance no stream moves."""
    design, pack = make_policy("discrete")
    one, other = FusedActing(design), StagedActing(design, ROWS, "cpu")
    for acting in (one, other):
        acting.load(pack)
    a, b = (play(acting, 3, np.arange(ROWS), sampled=False) for acting in (one, other))
    assert np.array_equal(a["action"], b["action"])
    assert np.array_equal(b["streams"], make_streams(3, "act", 0, ROWS))


def test_observations_stay_on_the_device(make_policy: Make) -> None:
    """A mirror holds what each act saw, in order."""
    design, pack = make_policy("discrete")
    acting = StagedActing(design, ROWS, "cpu")
    acting.load(pack)
    mirror = torch.zeros(4, ROWS, design.obs.width)
    acting.keep_in(mirror)
    play(acting, 4, np.arange(ROWS))
    random = np.random.default_rng(5)
    seen = []
    for _ in range(4):
        seen.append(random.normal(size=(ROWS, design.obs.width)).astype(np.float32))
        random.random((ROWS, 0))
    assert np.array_equal(mirror.numpy(), np.stack(seen))


def test_weights_are_those_of_the_last_pack(make_policy: Make) -> None:
    """A pack is copied: what happens to the array later does not matter until it is loaded again."""
    design, pack = make_policy("discrete")
    acting = StagedActing(design, ROWS, "cpu")
    acting.load(pack)
    before = play(acting, 1, np.arange(ROWS))["value"]
    pack[:] = 0
    assert np.array_equal(play(acting, 1, np.arange(ROWS))["value"], before)
    acting.load(pack)
    after: Any = play(acting, 1, np.arange(ROWS))["value"]
    assert not np.array_equal(after, before)
