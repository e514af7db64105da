"""Page-locked slabs: the GPU's driver knows their pages, and a refusal is told and forgotten."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slipstream.system import pinned_memory
from slipstream.system.slab import Field, Slab


def test_a_refusal_is_told_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's number and the size are in the answer, and its error is not left for a later kernel."""
    asked, cleared = list[tuple[int, ...]](), list[bool]()
    runtime = SimpleNamespace(cudaHostRegister=lambda *given: (asked.append(given), 2)[1])
    monkeypatch.setattr(pinned_memory, "_runtime", lambda: runtime)
    monkeypatch.setattr(pinned_memory, "_clear_error", lambda: cleared.append(True))
    slab = Slab({"obs": Field((3 << 20,), "uint8")})
    assert pinned_memory.pin(slab) == "3 MiB could not be page-locked (CUDA error 2)" and cleared == [True]
    assert asked == [(slab.address, slab.nbytes, 1)]
    slab.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pages_are_locked_and_let_go() -> None:
    """Torch sees that a slab is pinned, copies come from it in order, and afterwards it is plain memory again."""
    slab = Slab({"obs": Field((1 << 16,), "float32")})
    slab["obs"][:] = np.arange(1 << 16)
    seen = torch.from_numpy(slab["obs"])
    assert not seen.is_pinned() and pinned_memory.pin(slab) == "" and seen.is_pinned()
    there = torch.zeros(1 << 16, device="cuda").copy_(seen, non_blocking=True)
    assert torch.equal(there.cpu(), seen)
    assert "CUDA error" in pinned_memory.pin(slab), "a second time is refused"
    assert float(torch.ones(2, device="cuda").sum()) == 2.0
    pinned_memory.unpin(slab)
    assert not seen.is_pinned()
    slab.close()
