"""A batch as tensors on the learner's device: copied there once per iteration, into memory that is reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.algorithms.engine import Batch
from slipstream.contracts import Array

COLUMNS = ("mask", "action", "log_prob", "value", "advantage", "value_target", "weight", "reference")
MOVING = ("advantage", "value_target", "weight")
"""Columns that may change between the epochs of an iteration."""


def standardise(advantage: Tensor, weight: Tensor, enabled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """How to standardise the advantages [..., samples] of minibatches, and the share of one sample in the mean loss.

    Mean and one over the deviation of the samples of weight above 0 (0 and 1 if not enabled), one over their number.
    """
    ignored = weight <= 0
    number = (~ignored).sum(-1).double()
    share = 1.0 / number.clamp(min=1)
    if not enabled:
        return torch.zeros_like(share).float(), torch.ones_like(share).float(), share.float()
    values = advantage.double()
    mean = values.masked_fill(ignored, 0.0).sum(-1) * share
    squares = (values - mean[..., None]).square().masked_fill(ignored, 0.0).sum(-1)
    deviation = (squares / (number - 1).clamp(min=1)).sqrt()
    return mean.float(), (1 / (deviation + 1e-8)).float(), share.float()


@dataclass(frozen=True)
class MicroBatch:
    """Some sequences of a minibatch."""

    obs: Tensor  # [steps * lanes (+ pairs), width]
    episode_start: Tensor | None  # [steps, lanes]
    state: Tensor  # [lanes, size], refreshed by the burn-in
    sample: dict[str, Tensor]  # the columns of its samples; those of weight 0 do not count
    anchors: Tensor  # the samples that have a contrastive positive
    positives: Tensor  # their positives


class TensorBatch:
    """A batch as tensors.

    On the CPU they share memory with the arrays. On other devices they are copies, and the next batch of the same shape
    is written over them, so that captured graphs stay valid. Observations that are on the device are not copied; with
     `offload` they stay on the host and are copied minibatch by minibatch.
    """

    def __init__(self, batch: Batch, device: str, offload: bool = False) -> None:
        self.device, self._local = device, device == "cpu"
        self._offload = offload and not self._local
        self.batch = batch
        self._obs_memory: Tensor | None = None
        """The memory of observations on the device."""
        self.obs = self._obs_to_device()
        self.mean, self.scale, self.episode_start, self.state, self.partner = (
            self._to_device(getattr(batch, name)) for name in ("mean", "scale", "episode_start", "state", "partner")
        )
        self.columns = {name: self._to_device(getattr(batch, name)) for name in COLUMNS}
        self._copied = {} if self._local else {name: getattr(batch, name).copy() for name in MOVING}

    def fits(self, batch: Batch) -> bool:
        """Whether a batch has the shapes of this one."""
        names = ("obs", "mean", "episode_start", "state", "partner", *COLUMNS)
        same = all(getattr(batch, name).shape == getattr(self.batch, name).shape for name in names)
        return not self._local and same and batch.rows == self.batch.rows and batch.sequence == self.batch.sequence

    def take(self, batch: Batch) -> None:
        """Load another batch, or the same one again: copy what has changed."""
        if self._local:
            return
        if batch is not self.batch:
            self.batch = batch
            self.obs = self._obs_to_device()
            for name in ("mean", "scale", "episode_start", "state", "partner"):
                getattr(self, name).copy_(torch.from_numpy(getattr(batch, name)))
            for name, column in self.columns.items():
                if name not in MOVING:
                    column.copy_(torch.from_numpy(getattr(batch, name)))
        for name, copied in self._copied.items():
            now: Array = getattr(batch, name)
            if not np.array_equal(now, copied):
                np.copyto(copied, now)
                self.columns[name].copy_(torch.from_numpy(copied))

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the memory that a graph captured."""
        return id(self), self.obs.data_ptr()

    @property
    def offloaded(self) -> bool:
        """Whether observations stay on the host."""
        return self._offload and self.obs.device.type == "cpu"

    def look_up(self, n: Tensor) -> Tensor:
        """The observations of some samples."""
        if not self.offloaded:
            return self.obs[n]
        return self.obs[n.cpu()].pin_memory().to(self.device, non_blocking=True)

    def samples(self, index: Tensor) -> Tensor:
        """The samples [steps, sequences] of some sequences."""
        steps, rows = self.batch.sequence, self.batch.rows
        step = torch.arange(steps, device=self.device)[:, None]
        return (index // rows * steps + step) * rows + index % rows

    def standardise(self, index: Tensor, enabled: bool) -> tuple[Tensor, Tensor, Tensor]:
        """`standardise` for the samples of some sequences."""
        n = self.samples(index).reshape(-1)
        return standardise(self.columns["advantage"][n], self.columns["weight"][n], enabled)

    def _to_device(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._local else tensor.to(self.device, copy=True)

    def _obs_to_device(self) -> Tensor:
        """The observations on the device, or on the host with `offload`."""
        given: Any = self.batch.obs
        if isinstance(given, Tensor):
            return given
        if self._local or self._offload:
            return torch.from_numpy(given)
        if self._obs_memory is None:
            self._obs_memory = self._to_device(given)
        else:
            self._obs_memory.copy_(torch.from_numpy(given), non_blocking=True)
        return self._obs_memory
