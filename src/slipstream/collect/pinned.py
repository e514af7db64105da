"""Page-locked memory: the pages of a slab made known to the GPU's driver, so that copies need no stop on the way."""

from __future__ import annotations

from typing import Any

from slipstream.core.slab import Slab

PORTABLE = 1
"""cudaHostRegisterPortable: locked for every context of this process."""


def pin(slab: Slab) -> str:
    """Lock the pages of a slab for the GPU; return why that was not possible, or nothing."""
    failed = int(_runtime().cudaHostRegister(slab.address, slab.nbytes, PORTABLE))
    return f"{slab.nbytes >> 20} MiB could not be page-locked (CUDA error {failed})" if failed else ""


def unpin(slab: Slab) -> None:
    """Let the pages go, before the mapping does."""
    _runtime().cudaHostUnregister(slab.address)


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
