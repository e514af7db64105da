"""Pinned slabs: they are registered with the CUDA driver, and a failure is reported and cleared."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slipstream.system import pinned_memory
from slipstream.system.slab import Field, Slab


def test_a_failure_is_reported_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has the CUDA error and the size, and the error is cleared before a later kernel."""
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
def test_a_slab_is_pinned_and_unpinned() -> None:
    """Torch sees that a slab is pinned, copies from it are correct, and after `unpin` it is pageable again."""
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
