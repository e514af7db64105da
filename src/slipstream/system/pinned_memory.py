"""Pinned (page-locked) memory: registers a slab with the CUDA driver, so that transfers need no staging copy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from slipstream.system.slab import Slab

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of this process."""


def pin(slab: Slab) -> str:
    """Pin a slab; return why that was not possible, or an empty string."""
    failed = int(_runtime().cudaHostRegister(slab.address, slab.nbytes, PORTABLE))
    if not failed:
        return ""
    _clear_error()
    return f"{slab.nbytes >> 20} MiB could not be page-locked (CUDA error {failed})"


def unpin(slab: Slab) -> None:
    """Unpin a slab, before it is closed."""
    _runtime().cudaHostUnregister(slab.address)


def _clear_error() -> None:
    """Clear the error, which the driver reports at the next kernel launch, by launching a small one."""
    import torch

    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
