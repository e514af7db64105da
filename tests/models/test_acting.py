"""Acting: samples that follow the probabilities, greedy ones that follow the top, rows that ignore each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.core.contracts import ActionSpec, Array
from slipstream.core.streams import make_streams, uniform
from slipstream.models.acting import Acting, bound, split_pack
from slipstream.models.heads import MASKED, sample
from slipstream.models.shape import Shape

TOPMOST = 8230406
"""The key of a stream whose first draw is the largest there is."""
KINDS = ["discrete", "multi_discrete", "continuous", "masked", "masked_multi"]


def act(shape: Any, pack: Array, obs: Array, mask: Array, streams: Array, sampled: bool, *parts: Array) -> Any:
    """Act for all rows, in one call or in the given parts; return action, log-probability and value."""
    acting = Acting(shape)
    acting.load(pack)
    count = len(obs)
    action = np.zeros((count, shape.action.parts), shape.action.dtype)
    logp, value = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for rows in parts or (np.arange(count),):
        acting.act(rows, obs, mask, streams, sampled, action, logp, value)
    return action, logp, value


@pytest.mark.parametrize("kind", KINDS)
def test_how_rows_are_split_changes_nothing(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """Actions, log-probabilities, values and streams are the same bit for bit, however rows share out."""
    shape, pack = make_policy(kind, 17, (50, 3))
    obs, mask, _ = make_samples(shape, 150)
    results = []
    for cuts in ([], [1], [7, 8, 71], [64, 128], [3, 149]):
        streams = make_streams(1, "act", 0, len(obs))
        results.append((*act(shape, pack, obs, mask, streams, True, *np.split(np.arange(150), cuts)), streams))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert np.array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probability_is_that_of_the_action_drawn(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """What acting says of its own draw is what measuring that action says, and so is the value."""
    shape, pack = make_policy(kind)
    obs, mask, _ = make_samples(shape, 80)
    action, logp, value = act(shape, pack, obs, mask, make_streams(0, "act", 0, 80), True)
    _, values, logps, _ = kernel_measure(shape, pack, obs, mask, action)
    assert np.allclose(logp, logps, atol=1e-5)
    assert np.allclose(value, values, atol=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "masked", "masked_multi"])
def test_frequencies_follow_the_probabilities(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """Over 20,000 draws each part's counts fit its softmax (chi-square), and masked options never come."""
    shape, pack = make_policy(kind)
    obs, mask, some = make_samples(shape, 1)
    logits = kernel_measure(shape, pack, obs, mask, some)[0][0]
    rows, rounds = 500, 40
    many_obs, many_mask = np.repeat(obs, rows, axis=0), np.repeat(mask, rows, axis=0)
    streams = make_streams(4, "act", 0, rows)
    drawn = np.concatenate([act(shape, pack, many_obs, many_mask, streams, True)[0] for _ in range(rounds)])
    start = 0
    for part, size in enumerate(shape.action.sizes):
        weights = np.exp(logits[start : start + size].astype(np.float64))
        if mask.shape[1]:
            weights *= mask[0, start : start + size]
        expected = weights / weights.sum() * rows * rounds
        counts = np.bincount(drawn[:, part], minlength=size)
        assert not counts[expected == 0].any()
        chance = expected > 0
        freedom = max(1, int(chance.sum()) - 1)
        statistic = ((counts - expected)[chance] ** 2 / expected[chance]).sum()
        assert statistic < freedom + 6 * np.sqrt(2 * freedom)
        start += size


def test_a_masked_option_is_not_drawn_even_by_the_topmost_draw() -> None:
    """A draw of 1 passes the sum of all probabilities; it gives the last allowed option, not a masked one behind it."""
    shape = Shape(1, ActionSpec("discrete", (4,), masked=True), (), "tanh", True)
    streams = np.array([[TOPMOST, 0]], np.int64)
    assert uniform(streams.copy(), 0) == 1.0
    logits, probs, action = np.array([0, 0, MASKED, MASKED], np.float32), np.zeros(4, np.float32), np.zeros(1, np.int32)
    logp = sample(logits, np.zeros(0, np.float32), shape.head, streams, 0, probs, action)
    assert action[0] == 1
    assert logp == pytest.approx(np.log(0.5), abs=1e-6)


def test_continuous_draws_have_the_mean_and_deviation(
    make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """20,000 draws have the network's mean, the learned deviation, no skew and the kurtosis of a Gaussian."""
    shape, pack = make_policy("continuous")
    obs, mask, some = make_samples(shape, 1)
    mean = kernel_measure(shape, pack, obs, mask, some)[0][0]
    deviation = np.exp(shape.named(pack[: shape.size])["log_std"])
    streams = make_streams(4, "act", 0, 500)
    many, none = np.repeat(obs, 500, axis=0), np.zeros((500, 0), np.uint8)
    drawn = np.concatenate([act(shape, pack, many, none, streams, True)[0] for _ in range(40)])
    noise = (drawn - mean) / deviation
    assert np.abs(noise.mean(axis=0)).max() < 0.03
    assert np.abs(noise.std(axis=0) - 1).max() < 0.03
    assert np.abs((noise**3).mean(axis=0)).max() < 0.1
    assert np.abs((noise**4).mean(axis=0) - 3).max() < 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_likeliest(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """The top allowed logit of each part, or the mean; no stream moves."""
    shape, pack = make_policy(kind)
    obs, mask, some = make_samples(shape, 60)
    streams = make_streams(0, "act", 0, 60)
    action, _, _ = act(shape, pack, obs, mask, streams, False)
    assert not streams[:, 1].any()
    outputs = kernel_measure(shape, pack, obs, mask, some)[0]
    if kind == "continuous":
        assert np.allclose(action, outputs, atol=1e-6)
        return
    allowed = np.where(mask > 0, outputs, -np.inf) if mask.shape[1] else outputs
    starts = np.cumsum([0, *shape.action.sizes])
    for part in range(shape.action.parts):
        assert np.array_equal(action[:, part], allowed[:, starts[part] : starts[part + 1]].argmax(axis=1))


def test_values_alone_equal_those_of_acting(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> None:
    """`value` gives the very bits that `act` gives, at the rows asked for only."""
    shape, pack = make_policy("discrete", shared=False)
    obs, mask, _ = make_samples(shape, 70)
    value = act(shape, pack, obs, mask, make_streams(0, "act", 0, 70), True)[2]
    acting = Acting(shape)
    acting.load(pack)
    alone = np.full(70, 9.0, np.float32)
    acting.value(np.array([3, 5, 69]), obs, alone)
    assert np.array_equal(alone[[3, 5, 69]], value[[3, 5, 69]])
    assert (np.delete(alone, [3, 5, 69]) == 9).all()


def test_the_pack_is_used_where_it_stands(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> None:
    """New weights written into the pack act at once: nothing is copied."""
    shape, pack = make_policy("discrete")
    obs, _, _ = make_samples(shape, 4)
    acting = Acting(shape)
    acting.load(pack)
    before, after = np.zeros(4, np.float32), np.zeros(4, np.float32)
    acting.value(np.arange(4), obs, before)
    split_pack(shape, pack)[0][:] *= 2
    acting.value(np.arange(4), obs, after)
    assert not np.array_equal(before, after)


def test_bound_maps_onto_the_range_of_the_env() -> None:
    """[-1, 1] onto [low, high], further out is held at the edge, and unbounded actions pass unchanged."""
    raw = np.array([[-1.0, -1.0, -5.0], [0.0, 0.0, 0.5], [3.0, 1.0, 7.0]], np.float32)
    low, high = np.array([0.0, -2.0, -np.inf], np.float32), np.array([4.0, 6.0, np.inf], np.float32)
    out = np.zeros_like(raw)
    bound(raw, low, high, out)
    assert out.tolist() == [[0.0, -2.0, -5.0], [2.0, 2.0, 0.5], [4.0, 6.0, 7.0]]
