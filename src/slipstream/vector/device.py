"""Native games on the learner's device: their arrays as tensors, and one kernel that steps every env."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from slipstream.contracts import Array, EnvSpec, Rows, Vector
from slipstream.system.gpu_kernels import EmptyArray, KernelCall, OnDevice, launch

OUTPUTS = ("obs", "reward", "terminated", "truncated", "outcome", "final_obs", "active", "terms", "behaviour")
"""The arguments of a game's step function after the action, named as in `Rows`."""
MAX_TRANSPOSED = 256
"""Arrays with more numbers per env than this keep their layout."""
BLOCK = 64
"""Threads per block; each steps one env. Small blocks use all multiprocessors of the GPU."""


def side_by_side(tensor: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the tensor with its first axis (envs or rows) contiguous in memory, if it has few numbers per env.

    Threads that each step one env then access adjacent addresses (coalesced access).
    """
    if tensor.ndim < 2 or tensor.shape[0] not in rows or tensor[0].numel() > MAX_TRANSPOSED:
        return tensor
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


@runtime_checkable
class DeviceGame(Vector, Protocol):
    """A vector whose step is a scalar function of one env."""

    limit_steps: int
    """Steps after which an episode is truncated; 0: never."""

    def on_device(self) -> OnDevice:
        """Return the kernels of the game with its current arrays and numbers."""


class DeviceVector:
    """The game of a vector on a device.

    On the CPU it uses the vector's own memory and step. On a GPU it has copies of the vector's arrays; `pull` copies
    them to the vector, `push` from the vector.
    """

    def __init__(self, vector: DeviceGame, device: str) -> None:
        self.vector, self.device = vector, device
        self.spec: EnvSpec = vector.spec
        self.envs = vector.envs
        self._shared: list[tuple[Array, Tensor]] = []
        self._calls: dict[str, KernelCall] = {}
        if device != "cpu":
            self._place(vector.on_device())

    def _place(self, play: OnDevice) -> None:
        """Make a tensor for every array of the game's kernels."""
        rows = (self.envs, self.envs * self.spec.agents)
        made: dict[int, Any] = {}

        def placed(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return tuple(placed(one) for one in arg)
            if id(arg) not in made and isinstance(arg, np.ndarray):
                made[id(arg)] = side_by_side(torch.from_numpy(arg).to(self.device), rows)
                self._shared.append((arg, made[id(arg)]))
            elif id(arg) not in made and isinstance(arg, EmptyArray):
                empty = torch.zeros(arg.shape, dtype=getattr(torch, arg.dtype), device=self.device)
                made[id(arg)] = side_by_side(empty, rows)
            return made.get(id(arg), arg)

        for name, work in vars(play).items():
            if work is not None:
                self._calls[name] = KernelCall(work.one, work.count, tuple(placed(arg) for arg in work.args))

    def begin(self) -> None:
        """Run the game's kernel before a rollout, if it has one."""
        self._launch("before")

    def step(self, action: Tensor, rows: Any) -> None:
        """Step every env and write the results into tensors named as the fields of `Rows`."""
        if self.device == "cpu":
            self.vector.step(action.numpy(), _host(rows, self.spec))
            return
        self._launch("step", action, *(getattr(rows, name) for name in OUTPUTS))
        self._launch("after")

    def _launch(self, name: str, *more: Any) -> None:
        """Launch one of the game's kernels, if it has it."""
        if name in self._calls:
            work = self._calls[name]
            launch(work.one, work.count, (*work.args, *more), exact=True, block=BLOCK)

    def tensors(self) -> list[Tensor]:
        """Return the game's state on its device."""
        return [tensor for _, tensor in self._shared]

    def pull(self, tensors: list[Tensor] | None = None) -> dict[str, Array]:
        """Return a snapshot of the current state, or of the state in `tensors`, which are copies of an earlier one."""
        for (array, _), tensor in zip(self._shared, tensors or self.tensors(), strict=True):
            array[...] = tensor.cpu().numpy()
        return self.vector.snapshot()

    def push(self) -> None:
        """Copy the vector's state to the device."""
        for array, tensor in self._shared:
            tensor.copy_(torch.from_numpy(array))


def _host(rows: Any, spec: EnvSpec) -> Rows:
    """Return the same memory as arrays; games on the device have no masks."""
    named = {name: getattr(rows, name).numpy() for name in OUTPUTS}
    return Rows(mask=np.ones((len(named["reward"]), spec.action.options), np.uint8), **named)
