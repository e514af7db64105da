"""Gradient steps as CUDA graphs: forward, loss, backward, clipping and optimiser of a minibatch as one launch.

The first steps of every kind run eagerly, so that libraries choose their algorithms; the next step is captured, and
replayed from then on. Coefficients that schedules change are tensors, so that a change does not need another graph.
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

IN_MEMORY = ("clip", "value", "entropy", "max_grad_norm", "learning_rate", "reference_kl")
"""Coefficients that a graph reads from memory; a change of any other one needs another graph."""
EAGER_STEPS = 3
"""Eager steps of one kind before the capture."""
MAX_GRAPHS = 8
"""Graphs that are kept; more kinds than these mean that some coefficient changes all the time."""


class StepStats:
    """The sums over the steps of an epoch, on the device; the host reads them once."""

    def __init__(self, device: str) -> None:
        self._sums = torch.zeros(SUMS, dtype=torch.float64, device=device)
        self._ended, self._failed, self._streak = (torch.zeros((), device=device) for _ in range(3))

    def begin(self, streak: int) -> None:
        """Start an epoch after `streak` failed steps in a row."""
        for tensor in (self._sums, self._ended, self._failed):
            tensor.zero_()
        self._streak.fill_(float(streak))

    def left_out(self, bad: Tensor, skipped: Tensor) -> Tensor:
        """1 if a step is not taken: it failed, was skipped, or three failures in a row have ended the epoch."""
        return torch.maximum(torch.maximum(bad, skipped), self._ended)

    def add(self, added: Tensor, bad: Tensor, skipped: Tensor) -> None:
        """Count a step."""
        running = 1 - self._ended
        self._sums += torch.where(self.left_out(bad, skipped) > 0, torch.zeros_like(added), added)
        self._sums[SKIPPED] += skipped * running
        self._failed += bad * running
        unchanged = torch.maximum(self._ended, skipped) > 0
        self._streak.copy_(torch.where(unchanged, self._streak, (self._streak + 1) * bad))
        self._ended.copy_(torch.maximum(self._ended, (bad * self._streak >= 3).float()))

    def read(self) -> tuple[Array, int, int]:
        """The sums, the failed steps, and the current streak of failed steps."""
        numbers = torch.cat([self._sums, torch.stack([self._failed, self._streak]).double()]).cpu().numpy()
        return numbers[:SUMS], int(numbers[SUMS]), int(numbers[SUMS + 1])


@dataclass
class Captured:
    """A step that can be replayed."""

    graph: Any
    index: Tensor
    """The sequences that it reads."""
    grads: list[Tensor | None]
    """The gradients that it writes."""


class StepGraphs:
    """The captured steps of a learner."""

    def __init__(
        self,
        step: Callable[[TensorBatch, Tensor, Coefficients], None],
        optimiser: Optimiser,
        why_not: Callable[[TensorBatch, Coefficients], str],
        report_fallback: Callable[[str, Any, str], None],
    ) -> None:
        self._step, self._optimiser, self._why_not, self._report_fallback = step, optimiser, why_not, report_fallback
        device = next(iter(optimiser.named.values())).device
        self._memory = torch.zeros(len(IN_MEMORY), device=device)
        self._numbers: list[float] = []
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, Captured] = {}
        self._last: Captured | None = None
        self._off = ""

    def replay(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> bool:
        """Take a step by replaying a graph; return whether there is one, otherwise the caller takes the step."""
        if self._off:
            return False
        if why := self._why_not(data, coefficients):
            self._give_up(why)
            return False
        key = self._key(data, index, coefficients)
        found = self._captured.get(key)
        if found is None:
            self._seen[key] += 1
            if self._seen[key] <= EAGER_STEPS:
                return False
            found = self._capture(data, index, coefficients, key)
            if found is None:
                return False
        self._write_memory(coefficients)
        found.index.copy_(index)
        found.graph.replay()
        self._last = found
        return True

    def settle(self) -> None:
        """Assign the gradients of the last replayed step to the parameters."""
        if self._last is not None:
            for parameter, grad in zip(self._optimiser.named.values(), self._last.grads, strict=True):
                parameter.grad = grad
            self._last = None

    def _key(self, data: TensorBatch, index: Tensor, coefficients: Coefficients) -> Hashable:
        fixed = [value for name, value in coefficients._asdict().items() if name not in IN_MEMORY]
        return (*data.key, len(index), *fixed)

    def _write_memory(self, coefficients: Coefficients) -> None:
        numbers = [float(getattr(coefficients, name)) for name in IN_MEMORY]
        if numbers != self._numbers:
            self._numbers = numbers
            self._memory.copy_(torch.tensor(numbers))

    def _with_memory(self, coefficients: Coefficients) -> Coefficients:
        """The same coefficients, with those in `IN_MEMORY` as tensors."""
        self._write_memory(coefficients)
        in_memory: dict[str, Any] = dict(zip(IN_MEMORY, self._memory.unbind(0), strict=True))
        return coefficients._replace(**in_memory)

    def _capture(self, data: TensorBatch, index: Tensor, coefficients: Coefficients, key: Hashable) -> Captured | None:
        """Capture the step of a minibatch; the weights are not changed."""
        index, with_memory = index.clone(), self._with_memory(coefficients)
        try:
            graph = capture(lambda: self._step(data, index, with_memory))
        except RuntimeError as error:
            self._give_up(f"a step cannot be captured: {str(error).splitlines()[0]:.200}")
            return None
        if len(self._captured) >= MAX_GRAPHS:
            self._captured.clear()
        grads = [parameter.grad for parameter in self._optimiser.named.values()]
        self._captured[key] = Captured(graph, index, grads)
        return self._captured[key]

    def _give_up(self, why: str) -> None:
        """Continue without graphs, and report why."""
        self._off = why
        self._captured.clear()
        self._report_fallback("graphs", "acting", f"the learner runs without CUDA graphs: {why}")
