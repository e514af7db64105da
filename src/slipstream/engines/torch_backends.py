"""Torch's process-wide flags, set in one place: TF32, cuDNN autotune, deterministic kernels; and fp16 loss scaling."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from slipstream.contracts import Array
from slipstream.plan import Plan

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that use autocast."""


def set_backend_flags(plan: Plan) -> None:
    """Set torch's flags to those of the plan, whatever an earlier run in this process has set."""
    reproducible, tf32 = bool(plan.reproducible.applied), plan.precision.applied == "tf32"
    if reproducible:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    if torch.are_deterministic_algorithms_enabled() != reproducible:  # a needless call would load torch's compiler
        torch.use_deterministic_algorithms(reproducible)
    torch.backends.cudnn.deterministic = reproducible
    torch.backends.cudnn.benchmark = bool(plan.cudnn_benchmark.applied)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


class LossScale:
    """Loss scaling for fp16: the loss is multiplied and the gradient divided, so that small gradients do not vanish.

    On overflow the step is skipped and the factor halved; after many good steps it is doubled.
    """

    def __init__(self, device: str) -> None:
        self._scaler = torch.amp.GradScaler(torch.device(device).type)
        self._one = torch.ones((), device=device)

    def multiply(self, loss: Tensor) -> Tensor:
        """The scaled loss to call backward on."""
        return self._scaler.scale(loss)

    def divide(self, optimisers: list[Any]) -> None:
        """Unscale the gradients, before they are measured and clipped."""
        for optimiser in optimisers:
            self._scaler.unscale_(optimiser)

    def overflowed(self, loss: Tensor, norm: Tensor) -> Tensor:
        """1 where the scaling made a gradient infinite: the loss is finite, and the factor can still be lowered."""
        factor = self._scaler.scale(self._one)
        return (torch.isfinite(loss) & ~torch.isfinite(norm) & (factor > 1)).float()

    def settle(self) -> None:
        """Update the factor for the next step."""
        self._scaler.update()

    def state(self) -> Array:
        """The factor and the good steps since it changed."""
        state_dict = self._scaler.state_dict()
        return torch.tensor([state_dict["scale"], state_dict["_growth_tracker"]], dtype=torch.float64).numpy()

    def restore(self, state: Array) -> None:
        """Restore what `state` returned."""
        state_dict = self._scaler.state_dict() | {"scale": float(state[0]), "_growth_tracker": int(state[1])}
        self._scaler = torch.amp.GradScaler(self._scaler._device)
        self._scaler.load_state_dict(state_dict)
