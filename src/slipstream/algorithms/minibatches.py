"""Episode starts, the order of samples in an epoch, priorities of segments, and positives of the contrastive loss."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled


def episode_starts(terminated: Array, truncated: Array) -> Array:
    """1 where an episode begins [T, rows]: at the step after an end. The recurrent state covers the first step."""
    episode_start = np.zeros(terminated.shape, np.uint8)
    episode_start[1:] = terminated[:-1] | truncated[:-1]
    return episode_start


def members(segments: Array, rows: int, length: int) -> Array:
    """The samples [segments, length] of segments; segment k * rows + row holds `length` steps of a row."""
    first = segments // rows * length * rows + segments % rows
    return np.asarray(first[:, None] + np.arange(length) * rows)


def orders(
    random: np.random.Generator,
    active: Array,
    *,
    sequence: int,
    segment: int,
    order: str,
    minibatch: int,
    probabilities: Array | None = None,
) -> Array:
    """The sequences of one epoch, in the order they are visited; the partial minibatch is dropped.

    `active` [T, rows] marks the samples that count: a sequence without any is dropped. With memory whole sequences are
    shuffled; without, `order` shuffles samples, segments of `segment` steps, or nothing. `probabilities` draws segments
    with replacement.
    """
    steps, rows = active.shape
    count = max(1, minibatch // sequence)
    flat = active.reshape(-1)
    if probabilities is not None or (order == "segments" and sequence == 1):
        ids = np.arange(steps // segment * rows)
        picked = random.permutation(ids) if probabilities is None else random.choice(ids, len(ids), p=probabilities)
        chosen = picked if sequence > 1 else members(picked, rows, segment).reshape(-1)
        chosen = chosen if sequence > 1 else chosen[flat[chosen] > 0]
    else:
        chosen = flat.reshape(steps // sequence, sequence, rows).any(axis=1).reshape(-1).nonzero()[0]
        chosen = chosen if order == "time" else random.permutation(chosen)
    whole = len(chosen) - len(chosen) % count or len(chosen)
    return np.asarray(chosen[:whole])


def priorities(advantage: Array, active: Array, segment: int, alpha: float, beta: float) -> tuple[Array, Array]:
    """The probability of each segment, |advantage|^alpha, and the importance weight of every sample.

    The weight is (segments * probability)^-beta: at beta 1 the mean gradient is that of uniform sampling.
    """
    steps, rows = advantage.shape
    size = np.abs(advantage * active, dtype=np.float64).reshape(steps // segment, segment, rows).sum(axis=1)
    probabilities = np.power(size + 1e-12, alpha).reshape(-1)
    probabilities *= size.reshape(-1) > 0
    if not probabilities.any():
        probabilities[:] = 1.0
    probabilities /= probabilities.sum()
    weights = np.power(np.maximum(len(probabilities) * probabilities, 1e-12), -beta).astype(np.float32)
    weights[probabilities == 0] = 0
    spread = np.repeat(weights.reshape(steps // segment, 1, rows), segment, axis=1)
    return probabilities, spread.reshape(steps, rows) * active


@compiled
def choose_partners(draws: Array, episode_start: Array, active: Array, length: int, partner: Array) -> None:
    """For each sample a later one of the same episode and segment, up to `draws` [T, rows] steps ahead.

    -1 where there is none, or the later sample is inactive.
    """
    steps, rows = episode_start.shape
    for row in range(rows):
        for t in range(steps):
            last = min(steps, (t // length + 1) * length) - 1
            at = t
            while at < last and at - t < draws[t, row] and episode_start[at + 1, row] == 0:
                at += 1
            found = at > t and active[t, row] and active[at, row]
            partner[t * rows + row] = at * rows + row if found else -1
