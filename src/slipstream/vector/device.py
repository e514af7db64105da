"""A native game on the learner's device: its arrays as tensors, and one kernel that plays a decision of every env."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from slipstream.contracts import Array, EnvSpec, Rows, Vector
from slipstream.system.gpu_kernels import EmptyArray, KernelCall, OnDevice, launch

WRITTEN = (
    "obs", "reward", "terminated", "truncated", "outcome", "final_obs", "active", "terms", "behaviour",
)  # fmt: skip
"""What a game's function takes behind the action, as `Rows` names it."""
FEW = 256
"""Numbers of an env beyond which they stay together."""
BLOCK = 64
"""Envs of a block: a game of many envs still reaches every part of the GPU."""


def side_by_side(tensor: Tensor, rows: tuple[int, ...]) -> Tensor:
    """The same numbers with the first axis running fastest, where that is envs or rows of a few numbers each.

    Threads that each have an env then read and write next to each other, which is what a GPU's memory is fast at.
    """
    if tensor.ndim < 2 or tensor.shape[0] not in rows or tensor[0].numel() > FEW:
        return tensor
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


@runtime_checkable
class DeviceGame(Vector, Protocol):
    """A vector whose step is one scalar function of one env."""

    limit_steps: int
    """Steps after which an episode is cut off; 0: never."""

    def on_device(self) -> OnDevice:
        """Its step and the rest, with its arrays and numbers as they stand."""


class DeviceVector:
    """The game of a vector, played where its tensors are.

    On the CPU they share the vector's own memory, and its own step plays; on a GPU they are copies, which `pull` brings
    back and `push` replaces.
    """

    def __init__(self, vector: DeviceGame, device: str) -> None:
        self.vector, self.device = vector, device
        self.spec: EnvSpec = vector.spec
        self.envs = vector.envs
        self._shared: list[tuple[Array, Tensor]] = []
        self._works: dict[str, KernelCall] = {}
        if device != "cpu":
            self._place(vector.on_device())

    def _place(self, play: OnDevice) -> None:
        """Give every array and room of the game's work a tensor."""
        rows = (self.envs, self.envs * self.spec.agents)
        made: dict[int, Any] = {}

        def placed(arg: Any) -> Any:
            if id(arg) not in made and isinstance(arg, np.ndarray):
                made[id(arg)] = side_by_side(torch.from_numpy(arg).to(self.device), rows)
                self._shared.append((arg, made[id(arg)]))
            elif id(arg) not in made and isinstance(arg, EmptyArray):
                empty = torch.zeros(arg.shape, dtype=getattr(torch, arg.dtype), device=self.device)
                made[id(arg)] = side_by_side(empty, rows)
            return made.get(id(arg), arg)

        for name, work in vars(play).items():
            if work is not None:
                self._works[name] = KernelCall(work.one, work.count, tuple(placed(arg) for arg in work.args))

    def begin(self) -> None:
        """Do what the game does before a rollout."""
        self._launch("before")

    def step(self, action: Tensor, rows: Any) -> None:
        """Play one decision of every env, written into tensors named as the fields of `Rows`."""
        if self.device == "cpu":
            self.vector.step(action.numpy(), _host(rows, self.spec))
            return
        self._launch("step", action, *(getattr(rows, name) for name in WRITTEN))
        self._launch("after")

    def _launch(self, name: str, *more: Any) -> None:
        """Start one part of the game's work, if it has it."""
        if name in self._works:
            work = self._works[name]
            launch(_no_loop, work.one, work.count, (*work.args, *more), exact=True, block=BLOCK)

    def tensors(self) -> list[Tensor]:
        """All that the game keeps, on its device."""
        return [tensor for _, tensor in self._shared]

    def pull(self, tensors: list[Tensor] | None = None) -> dict[str, Array]:
        """A snapshot of the game as it stands, or as it stood when these tensors were copied."""
        for (array, _), tensor in zip(self._shared, tensors or self.tensors(), strict=True):
            array[...] = tensor.cpu().numpy()
        return self.vector.snapshot()

    def push(self) -> None:
        """Go on from what the vector holds."""
        for array, tensor in self._shared:
            tensor.copy_(torch.from_numpy(array))


def _host(rows: Any, spec: EnvSpec) -> Rows:
    """The same memory as arrays; games that live here have no masks."""
    named = {name: getattr(rows, name).numpy() for name in WRITTEN}
    return Rows(mask=np.ones((len(named["reward"]), spec.action.options), np.uint8), **named)


def _no_loop(*args: Any) -> None:
    raise AssertionError("on the CPU a vector steps itself")
