"""Gradient steps as CUDA graphs: forward, loss, backward, clipping and optimiser of a minibatch as one launch.

The first steps of every kind are taken one by one, in which libraries settle on their ways; then the next is captured,
and from there on it is replayed. Numbers that schedules move are tensors, so that they do not ask for another graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.engine import SKIPPED, SUMS, Coefficients
from slipstream.contracts import Array
from slipstream.engines.tensor_batch import TensorBatch
from slipstream.engines.torch_optimisers import Optimiser
from slipstream.system.gpu_kernels import capture

DIALS = ("clip", "value", "entropy", "max_grad_norm", "learning_rate", "reference_kl")
"""Knobs that a graph reads from memory; the others are part of what it is."""
WARMED = 3
"""Steps of one kind that are taken before they are captured."""
HELD = 8
"""Graphs that are kept: more kinds than these mean that something changes all the time."""


class StepStats:
    """What the steps of an epoch add up to, on the device; the host reads it once."""

    def __init__(self, device: str) -> None:
        self._sums = torch.zeros(SUMS, dtype=torch.float64, device=device)
        self._ended, self._failed, self._streak = (torch.zeros((), device=device) for _ in range(3))

    def begin(self, streak: int) -> None:
        """An epoch starts after so many failed steps in a row."""
        for tensor in (self._sums, self._ended, self._failed):
            tensor.zero_()
        self._streak.fill_(float(streak))

    def left_out(self, bad: Tensor, skipped: Tensor) -> Tensor:
        """1 if a step is not to be taken: it failed, was skipped, or three in a row have ended the epoch."""
        return torch.maximum(torch.maximum(bad, skipped), self._ended)

    def add(self, added: Tensor, bad: Tensor, skipped: Tensor) -> None:
        """Count a step."""
        going = 1 - self._ended
        self._sums += torch.where(self.left_out(bad, skipped) > 0, torch.zeros_like(added), added)
        self._sums[SKIPPED] += skipped * going
        self._failed += bad * going
        held = torch.maximum(self._ended, skipped) > 0
        self._streak.copy_(torch.where(held, self._streak, (self._streak + 1) * bad))
        self._ended.copy_(torch.maximum(self._ended, (bad * self._streak >= 3).float()))

    def read(self) -> tuple[Array, int, int]:
        """The sums, the failed steps, and those in a row up to now."""
        told = torch.cat([self._sums, torch.stack([self._failed, self._streak]).double()]).cpu().numpy()
        return told[:SUMS], int(told[SUMS]), int(told[SUMS + 1])


@dataclass
class Captured:
    """A step that can be replayed."""

    graph: Any
    index: Tensor
    """Where it reads which sequences it learns from."""
    grads: list[Tensor | None]
    """Where it leaves the gradient."""


class StepGraphs:
    """The captured steps of a learner."""

    def __init__(
        self,
        step: Callable[[TensorBatch, Tensor, Coefficients], None],
        optimiser: Optimiser,
        unfit: Callable[[TensorBatch, Coefficients], str],
        mend: Callable[[str, Any, str], None],
    ) -> None:
        self._step, self._optimiser, self._unfit, self._mend = step, optimiser, unfit, mend
        device = next(iter(optimiser.named.values())).device
        self._dials = torch.zeros(len(DIALS), device=device)
        self._numbers: list[float] = []
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, Captured] = {}
        self._last: Captured | None = None
        self._off = ""

    def replay(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> bool:
        """Take a step by a graph, if there is one for its kind by now; else whoever asks takes it."""
        if self._off:
            return False
        if why := self._unfit(data, coefficients):
            self._give_up(why)
            return False
        key = self._key(data, index, coefficients)
        found = self._captured.get(key)
        if found is None:
            self._seen[key] += 1
            if self._seen[key] <= WARMED:
                return False
            found = self._capture(data, index, coefficients, key)
            if found is None:
                return False
        self._set_dials(coefficients)
        found.index.copy_(index)
        found.graph.replay()
        self._last = found
        return True

    def settle(self) -> None:
        """Show the gradient of the last step that was replayed where gradients are looked for."""
        if self._last is not None:
            for parameter, grad in zip(self._optimiser.named.values(), self._last.grads, strict=True):
                parameter.grad = grad
            self._last = None

    def _key(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> Hashable:
        fixed = [value for name, value in coefficients._asdict().items() if name not in DIALS]
        return (*data.key, len(index), *fixed)

    def _set_dials(self, coefficients: Coefficients) -> None:
        numbers = [float(getattr(coefficients, name)) for name in DIALS]
        if numbers != self._numbers:
            self._numbers = numbers
            self._dials.copy_(torch.tensor(numbers))

    def _dialled(self, coefficients: Coefficients) -> Coefficients:
        """The same knobs, of which those that move are read from memory."""
        self._set_dials(coefficients)
        dials: dict[str, Any] = dict(zip(DIALS, self._dials.unbind(0), strict=True))
        return coefficients._replace(**dials)

    def _capture(self, data: TensorBatch, index: Tensor, coefficients: Coefficients, key: Hashable) -> Captured | None:
        """Capture the step of a minibatch; the weights stay as they are."""
        index, dialled = index.clone(), self._dialled(coefficients)
        try:
            graph = capture(lambda: self._step(data, index, dialled))
        except RuntimeError as error:
            self._give_up(f"a step cannot be captured: {str(error).splitlines()[0]:.200}")
            return None
        if len(self._captured) >= HELD:
            self._captured.clear()
        grads = [parameter.grad for parameter in self._optimiser.named.values()]
        self._captured[key] = Captured(graph, index, grads)
        return self._captured[key]

    def _give_up(self, why: str) -> None:
        """Go on without graphs, and say why."""
        self._off = why
        self._captured.clear()
        self._mend("graphs", "acting", f"the learner takes its steps one by one: {why}")
