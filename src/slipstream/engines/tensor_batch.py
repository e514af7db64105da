"""A batch as tensors on the device that learns: brought there once per iteration, into memory that stays."""

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
"""What may change between the epochs of an iteration."""


def standardise(advantage: Tensor, weight: Tensor, enabled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """How to standardise the advantages [..., samples] of minibatches, and the share of one sample in the mean loss.

    Mean and one over the deviation of the samples of weight above 0 (0 and 1 if not enabled), and one over their number.
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
    """Some sequences of a minibatch, brought in."""

    obs: Tensor  # [steps * lanes (+ pairs), width]
    episode_start: Tensor | None  # [steps, lanes]
    state: Tensor  # [lanes, size], freshened by the burn-in
    sample: dict[str, Tensor]  # the columns of all its samples; those of weight 0 do not count
    anchors: Tensor  # where the samples that have a partner stand
    positives: Tensor  # and their partners


class TensorBatch:
    """A batch as tensors.

    On the CPU they are the arrays themselves. Elsewhere they are copies, and the next batch of the same shape is
    written over them, so that what was captured stays true. Observations that are there already are used where they
    stand, and with `offload` they stay on the host and come minibatch by minibatch.
    """

    def __init__(self, batch: Batch, device: str, offload: bool = False) -> None:
        self.device, self._local = device, device == "cpu"
        self._offload = offload and not self._local
        self.batch = batch
        self._room: Tensor | None = None
        """Where observations are brought to."""
        self.obs = self._bring_obs()
        self.mean, self.scale, self.episode_start, self.state, self.partner = (
            self._there(getattr(batch, name)) for name in ("mean", "scale", "episode_start", "state", "partner")
        )
        self.columns = {name: self._there(getattr(batch, name)) for name in COLUMNS}
        self._seen = {} if self._local else {name: getattr(batch, name).copy() for name in MOVING}

    def fits(self, batch: Batch) -> bool:
        """Whether a batch has the shapes of this one."""
        names = ("obs", "mean", "episode_start", "state", "partner", *COLUMNS)
        same = all(getattr(batch, name).shape == getattr(self.batch, name).shape for name in names)
        return not self._local and same and batch.rows == self.batch.rows and batch.sequence == self.batch.sequence

    def take(self, batch: Batch) -> None:
        """Go over to another batch, or look again at this one: what has changed is brought in."""
        if self._local:
            return
        if batch is not self.batch:
            self.batch = batch
            self.obs = self._bring_obs()
            for name in ("mean", "scale", "episode_start", "state", "partner"):
                getattr(self, name).copy_(torch.from_numpy(getattr(batch, name)))
            for name, column in self.columns.items():
                if name not in MOVING:
                    column.copy_(torch.from_numpy(getattr(batch, name)))
        for name, seen in self._seen.items():
            now: Array = getattr(batch, name)
            if not np.array_equal(now, seen):
                np.copyto(seen, now)
                self.columns[name].copy_(torch.from_numpy(seen))

    @property
    def key(self) -> tuple[int, int]:
        """What tells apart memory that is captured."""
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

    def _there(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._local else tensor.to(self.device, copy=True)

    def _bring_obs(self) -> Tensor:
        """The observations on the device, unless they are to stay on the host."""
        given: Any = self.batch.obs
        if isinstance(given, Tensor):
            return given
        if self._local or self._offload:
            return torch.from_numpy(given)
        if self._room is None:
            self._room = self._there(given)
        else:
            self._room.copy_(torch.from_numpy(given), non_blocking=True)
        return self._room
