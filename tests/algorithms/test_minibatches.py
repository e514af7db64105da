"""Episode starts, orders, priorities and contrastive positives: by hand, and by counting draws."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.algorithms.minibatches import choose_partners, episode_starts, members, orders, priorities


def test_episodes_begin_after_an_end() -> None:
    """The step after a termination or truncation begins an episode; the first step is not marked."""
    terminated = np.array([[1, 0], [0, 0], [0, 0]], np.uint8)
    truncated = np.array([[0, 0], [0, 1], [0, 1]], np.uint8)
    assert episode_starts(terminated, truncated).tolist() == [[0, 0], [1, 0], [0, 1]]


def test_members_of_segments_by_hand() -> None:
    """Segment k * rows + row holds consecutive steps of one row."""
    assert members(np.array([0, 1, 4]), 3, 2).tolist() == [[0, 3], [1, 4], [7, 10]]


def test_samples_are_shuffled_and_each_comes_once() -> None:
    """Every active sample once, in a random order, whole minibatches only."""
    active = np.ones((8, 4), np.uint8)
    active[3, 2] = 0
    random = np.random.default_rng(0)
    order = orders(random, active, sequence=1, segment=4, order="samples", minibatch=5)
    assert len(order) == 30 and len(set(order)) == 30 and 3 * 4 + 2 not in order
    assert order.tolist() != sorted(order)


def test_sequences_move_as_a_whole() -> None:
    """With memory sequences are ordered; one without any active step is dropped."""
    active = np.ones((8, 4), np.uint8)
    active[4:, 1] = 0
    active[0, 0] = 0
    order = orders(np.random.default_rng(0), active, sequence=4, segment=4, order="samples", minibatch=4)
    assert sorted(order) == [0, 1, 2, 3, 4, 6, 7]


def test_time_is_not_shuffled_and_segments_stay_together() -> None:
    """`time` keeps the order of the rollout; `segments` keeps the steps of each segment beside each other."""
    active, random = np.ones((8, 4), np.uint8), np.random.default_rng(0)
    time = orders(random, active, sequence=1, segment=4, order="time", minibatch=8)
    assert time.tolist() == list(range(32))
    order = orders(random, active, sequence=1, segment=4, order="segments", minibatch=8)
    pieces = order.reshape(-1, 4)
    assert (np.diff(pieces, axis=1) == 4).all() and sorted(order) == list(range(32))
    assert pieces[:, 0].tolist() != sorted(pieces[:, 0])


def test_priorities_by_hand() -> None:
    """Probabilities are |advantage|^alpha; weights are (segments * probability)^-beta."""
    advantage = np.array([[1.0, -2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 4.0]], np.float32)
    active = np.ones((4, 2), np.uint8)
    probabilities, weights = priorities(advantage, active, 2, alpha=1.0, beta=1.0)
    assert probabilities == pytest.approx([0.2, 0.4, 0.0, 0.4])
    assert weights[0].tolist() == pytest.approx([1 / 0.8, 1 / 1.6]) and weights[2, 0] == 0
    root, _ = priorities(advantage, active, 2, alpha=0.5, beta=1.0)
    assert root[1] / root[0] == pytest.approx(2**0.5)
    _, plain = priorities(advantage, active, 2, alpha=1.0, beta=0.0)
    assert plain[0].tolist() == [1, 1]
    flat, _ = priorities(np.zeros_like(advantage), active, 2, alpha=1.0, beta=1.0)
    assert flat.tolist() == [0.25] * 4


def test_draws_follow_the_probabilities_and_weights_correct_for_them() -> None:
    """Segments are drawn as often as their probability, and the weighted mean is that of uniform sampling."""
    advantage = np.random.default_rng(1).normal(0, 1, (16, 8)).astype(np.float32)
    active = np.ones((16, 8), np.uint8)
    probabilities, weights = priorities(advantage, active, 4, alpha=0.8, beta=1.0)
    random, flat, total, count = np.random.default_rng(0), weights.reshape(-1), 0.0, np.zeros(32)
    for _ in range(400):
        order = orders(random, active, sequence=1, segment=4, order="samples", minibatch=4, probabilities=probabilities)
        count += np.bincount(order.reshape(-1, 4)[:, 0] // 32 * 8 + order.reshape(-1, 4)[:, 0] % 8, minlength=32)
        total += float((flat[order] * advantage.reshape(-1)[order]).mean())
    assert count / count.sum() == pytest.approx(probabilities, abs=0.01)
    assert total / 400 == pytest.approx(float(advantage.mean()), abs=0.02)


def test_partners_stay_in_the_episode_and_the_segment() -> None:
    """A partner is as far ahead as drawn, but in the same episode and segment, and active."""
    episode_start = np.array([[0], [0], [1], [0], [0], [0]], np.uint8)
    active = np.array([[1], [1], [1], [1], [1], [0]], np.uint8)
    partner = np.zeros(6, np.int64)
    choose_partners(np.full((6, 1), 9), episode_start, active, 6, partner)
    assert partner.tolist() == [1, -1, -1, -1, -1, -1], "the last step did not act"
    active[5] = 1
    choose_partners(np.full((6, 1), 9), episode_start, active, 6, partner)
    assert partner.tolist() == [1, -1, 5, 5, 5, -1]
    choose_partners(np.full((6, 1), 1), episode_start, active, 3, partner)
    assert partner.tolist() == [1, -1, -1, 4, 5, -1]
