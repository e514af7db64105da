"""Page-locked memory: the pages of a slab made known to the GPU's driver, so that copies need no stop on the way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from slipstream.system.slab import Slab

PORTABLE = 1
"""cudaHostRegisterPortable: locked for every context of this process."""


def pin(slab: Slab) -> str:
    """Lock the pages of a slab for the GPU; return why that was not possible, or nothing."""
    failed = int(_runtime().cudaHostRegister(slab.address, slab.nbytes, PORTABLE))
    if not failed:
        return ""
    _forget()
    return f"{slab.nbytes >> 20} MiB could not be page-locked (CUDA error {failed})"


def unpin(slab: Slab) -> None:
    """Let the pages go, before the mapping does."""
    _runtime().cudaHostUnregister(slab.address)


def _forget() -> None:
    """Clear the error, which the driver keeps until a kernel is launched: a small one takes the blame."""
    import torch

    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
