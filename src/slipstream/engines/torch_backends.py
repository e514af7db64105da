"""How torch computes in this process, set in one place: products in TF32, cuDNN's choices, deterministic kernels."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from slipstream.contracts import Array
from slipstream.plan import Plan

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that autocast gives to networks."""


def set_backend_flags(plan: Plan) -> None:
    """Let torch compute as the plan says, whatever a run before this one in the same process had asked for."""
    reproducible, tf32 = bool(plan.reproducible.applied), plan.precision.applied == "tf32"
    if reproducible:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts, which is later
    if torch.are_deterministic_algorithms_enabled() != reproducible:  # asking for what is so loads torch's compiler
        torch.use_deterministic_algorithms(reproducible)
    torch.backends.cudnn.deterministic = reproducible
    torch.backends.cudnn.benchmark = bool(plan.cudnn_benchmark.applied)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory left, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


class LossScale:
    """What fp16 gradients need so that small ones do not vanish: the loss is multiplied, and the gradient divided.

    Where the product is too large, the step is left out and the factor halved; after many good steps it is doubled.
    """

    def __init__(self, device: str) -> None:
        self._scaler = torch.amp.GradScaler(torch.device(device).type)
        self._one = torch.ones((), device=device)

    def multiply(self, loss: Tensor) -> Tensor:
        """The loss to run back from."""
        return self._scaler.scale(loss)

    def divide(self, optimisers: list[Any]) -> None:
        """Bring gradients back to their true size, before anything measures or clips them."""
        for optimiser in optimisers:
            self._scaler.unscale_(optimiser)

    def overflowed(self, loss: Tensor, norm: Tensor) -> Tensor:
        """1 where the factor alone made a gradient infinite: the loss is fine, and the factor can still fall."""
        factor = self._scaler.scale(self._one)
        return (torch.isfinite(loss) & ~torch.isfinite(norm) & (factor > 1)).float()

    def settle(self) -> None:
        """Choose the factor of the next step."""
        self._scaler.update()

    def state(self) -> Array:
        """The factor and the good steps since it changed."""
        told = self._scaler.state_dict()
        return torch.tensor([told["scale"], told["_growth_tracker"]], dtype=torch.float64).numpy()

    def restore(self, state: Array) -> None:
        """Put back what `state` gave."""
        told = self._scaler.state_dict() | {"scale": float(state[0]), "_growth_tracker": int(state[1])}
        self._scaler = torch.amp.GradScaler(self._scaler._device)
        self._scaler.load_state_dict(told)
