"""The contrastive (InfoNCE) loss between a sample and a later one of the same episode."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 1024
"""Anchors per chunk of the similarity matrix."""


def info_nce(anchors: Tensor, positives: Tensor, temperature: float, first: int = 0) -> Tensor:
    """Sum over anchors i of the cross entropy of positive `first + i` among cosine / temperature to all positives."""
    queries, keys = functional.normalize(anchors, dim=-1), functional.normalize(positives, dim=-1)
    labels = torch.arange(first, first + len(anchors), device=anchors.device)
    return functional.cross_entropy(queries @ keys.T / temperature, labels, reduction="sum")


def contrastive_loss(anchors: Tensor, positives: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean contrastive loss and its gradients, a chunk of anchors at a time to bound the memory."""
    anchors, positives = anchors.detach().requires_grad_(), positives.detach().requires_grad_()
    total, share = torch.zeros((), device=anchors.device), 1.0 / max(1, len(anchors))
    by_anchors, by_positives = torch.zeros_like(anchors), torch.zeros_like(positives)
    for first in range(0, len(anchors), CHUNK):
        some = slice(first, first + CHUNK)
        with torch.enable_grad():
            loss = share * info_nce(anchors[some], positives, temperature, first)
        grads = torch.autograd.grad(loss, (anchors, positives))
        total, by_anchors, by_positives = total + loss.detach(), by_anchors + grads[0], by_positives + grads[1]
    return total, by_anchors, by_positives
