"""The contrastive loss: telling what comes later in an episode from what comes in others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CONTRASTED = 1024
"""Samples that are told from all others together."""


def info_nce(anchors: Tensor, positives: Tensor, temperature: float, first: int = 0) -> Tensor:
    """Sum over anchors i of -log of the share that positive `first + i` has among exp(cosine / temperature) of all."""
    ours, theirs = functional.normalize(anchors, dim=-1), functional.normalize(positives, dim=-1)
    right = torch.arange(first, first + len(anchors), device=anchors.device)
    return functional.cross_entropy(ours @ theirs.T / temperature, right, reduction="sum")


def contrastive_loss(anchors: Tensor, positives: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean contrastive loss and its slopes, some anchors at a time so that no matrix of all pairs is held."""
    anchors, positives = anchors.detach().requires_grad_(), positives.detach().requires_grad_()
    total, share = torch.zeros((), device=anchors.device), 1.0 / max(1, len(anchors))
    by_anchors, by_positives = torch.zeros_like(anchors), torch.zeros_like(positives)
    for first in range(0, len(anchors), CONTRASTED):
        some = slice(first, first + CONTRASTED)
        with torch.enable_grad():
            loss = share * info_nce(anchors[some], positives, temperature, first)
        grads = torch.autograd.grad(loss, (anchors, positives))
        total, by_anchors, by_positives = total + loss.detach(), by_anchors + grads[0], by_positives + grads[1]
    return total, by_anchors, by_positives
