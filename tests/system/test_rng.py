"""The counter-based RNG: reproducible, uniform, independent, without repetition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.system import rng as module
from slipstream.system.rng import make_streams, mix, uniform

plain_mix: Any = mix.py_func  # type: ignore[attr-defined]
plain_uniform: Any = uniform.py_func  # type: ignore[attr-defined]


def draws(keys: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the first `count` draws of each stream."""
    out = np.zeros((len(keys), count), np.float32)
    for row in range(len(keys)):
        for n in range(count):
            out[row, n] = uniform(keys, row)
    return out


def test_compiled_equals_plain_python(monkeypatch: Any) -> None:
    """Compiled and plain Python give the same bits for many keys and counters, large ones included."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 2**32, 500)
    assert [int(mix(x)) for x in numbers] == [int(plain_mix(x)) for x in numbers]
    counters = np.concatenate([np.arange(100), [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 5]])
    streams = np.stack([random.integers(0, 2**32, len(counters)), counters], axis=1).astype(np.int64)
    compiled, again = streams.copy(), streams.copy()
    fast = [np.float32(uniform(compiled, row)) for row in range(len(streams))]
    monkeypatch.setattr(module, "mix", plain_mix)
    slow = [np.float32(plain_uniform(again, row)) for row in range(len(streams))]
    assert fast == slow
    assert np.array_equal(compiled, again)
    assert np.array_equal(compiled[:, 1], counters + 1)


def test_mix_is_one_to_one() -> None:
    """200,000 numbers have 200,000 different hashes."""
    seen = {int(mix(np.int64(x))) for x in range(200_000)}
    assert len(seen) == 200_000
    assert max(seen) < 2**32


def test_draws_are_uniform() -> None:
    """The mean is 1/2, the variance 1/12, and 20 bins of 20,000 draws pass a chi-square test (< 60)."""
    values = draws(make_streams(0, "even", 0, 20), 1000).reshape(-1)
    assert values.min() > 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.003
    counts = np.histogram(values, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


def test_streams_are_independent() -> None:
    """Adjacent rows, adjacent draws and different purposes are not correlated."""
    values = draws(make_streams(3, "act", 0, 20), 500)
    other = draws(make_streams(3, "opponent", 0, 20), 500)
    for one, two in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1]), (values, other)):
        assert abs(np.corrcoef(one.reshape(-1), two.reshape(-1))[0, 1]) < 0.04


def test_streams_do_not_repeat() -> None:
    """10,000 draws of a stream have about as many different values as 24 bits allow."""
    values = draws(make_streams(1, "long", 0, 1), 10_000)
    assert len(np.unique(values)) > 9_980


def test_streams_do_not_depend_on_the_split() -> None:
    """Rows made together or in two parts have the same streams; another seed or purpose has others."""
    whole = make_streams(5, "act", 0, 6)
    parts = np.concatenate([make_streams(5, "act", 0, 2), make_streams(5, "act", 2, 4)])
    assert np.array_equal(whole, parts)
    assert len(set(whole[:, 0])) == 6
    assert not set(whole[:, 0]) & set(make_streams(6, "act", 0, 6)[:, 0])
    assert not set(whole[:, 0]) & set(make_streams(5, "other", 0, 6)[:, 0])


def test_a_copied_stream_replays() -> None:
    """A copy of a stream draws the same numbers."""
    stream = make_streams(0, "act", 0, 1)
    draws(stream, 5)
    saved = stream.copy()
    assert np.array_equal(draws(stream, 5), draws(saved, 5))


def test_the_smallest_and_the_largest_draw() -> None:
    """0 is never drawn (its logarithm is taken), and the largest draw is 1."""
    ends = np.array([[1292716, 0], [8230406, 0]], np.int64)
    assert uniform(ends, 0) == np.float32(2.0**-25)
    assert uniform(ends, 1) == 1.0


def test_a_seed_is_for_one_episode() -> None:
    """The first episode has the env's own seed, later ones only a seed that was given; the last given one is kept."""
    seeds = module.Seeds([5, 6, 7])
    for index in range(3):
        seeds.begin(index)
    assert seeds.begun.tolist() == [5, 6, 7] and seeds.next == [None] * 3
    seeds.give([2, 0], [9, -1])
    assert seeds.next == [None, None, 9] and seeds.named == [5, 6, 9]
    for index in (0, 2):
        seeds.begin(index)
    assert seeds.begun.tolist() == [-1, 6, 9]
    seeds.begin(2)
    assert seeds.begun.tolist() == [-1, 6, -1] and seeds.named == [5, 6, 9]
    with pytest.raises(ValueError, match="zip"):
        seeds.give([0, 1], [3])
