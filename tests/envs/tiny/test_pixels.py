"""Pixels: the image decides the reward, and the oracle plays the optimum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, ObsField, empty_rows
from slipstream.envs.registry import games
from slipstream.envs.tiny.pixels import brightest_quarter, make


def test_the_quarter_of_the_brightest_pixel() -> None:
    """0 and 1 are above, 2 and 3 below, left first; the middle lines belong to the later quarters."""
    images = np.zeros((5, 12, 12), np.uint8)
    for row, (y, x) in enumerate([(5, 5), (0, 6), (6, 5), (11, 11), (6, 6)]):
        images[row, y, x] = 9
    assert brightest_quarter(images.reshape(5, 144)).tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(("side", "size"), [(12, 2), (84, 14)])
def test_an_image_is_noise_and_one_bright_square(side: int, size: int) -> None:
    """The square stays within its quarter, the noise is dim, and no two images are alike."""
    game = make(str(side), 64)
    assert game.spec.obs.fields == (ObsField("", "image", (side, side, 1)),)
    assert game.spec.action == ActionSpec("discrete", (4,))
    out = empty_rows(game.spec, 64)
    game.reset(out)
    images = game.spec.obs.split(out.obs)[""][..., 0]
    bright = images == 255
    assert (bright.sum(axis=(1, 2)) == size * size).all()
    assert images[~bright].max() == 63 and images[~bright].min() == 0
    assert 30 < images[~bright].mean() < 33
    quarters = bright.reshape(64, 2, side // 2, 2, side // 2).any(axis=(2, 4)).reshape(64, 4)
    assert (quarters.sum(axis=1) == 1).all() and quarters.any(axis=0).all()
    assert len(np.unique(out.obs, axis=0)) == 64


@pytest.mark.parametrize("variant", ["12", "84"])
def test_the_oracle_earns_eight(variant: str) -> None:
    """The oracle earns 8 in every episode, and wrong answers earn 0."""
    game, oracle = make(variant, 32), games()["pixels"].scripted["oracle"]
    out, action = empty_rows(game.spec, 32), np.zeros((32, 1), np.int32)
    game.reset(out)
    for _ in range(3):
        earned = np.zeros(32)
        for step in range(8):
            oracle(out.obs, game.spec.action, action)
            action[:8] = (action[:8] + 1) % 4
            game.step(action, out)
            earned += out.reward
            assert out.terminated.all() == out.terminated.any() == (step == 7)
        assert earned.tolist() == [0] * 8 + [8] * 24


def test_a_constant_answer_is_right_in_a_quarter_of_steps() -> None:
    """Quarters are equally frequent and independent from step to step."""
    game = make("12", 500)
    out = empty_rows(game.spec, 500)
    game.reset(out)
    quarters = []
    for _ in range(8):
        quarters.append(brightest_quarter(out.obs))
        game.step(np.zeros((500, 1), np.int32), out)
        assert out.reward.tolist() == (quarters[-1] == 0).astype(float).tolist()
    counts = np.bincount(np.ravel(quarters), minlength=4)
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 3 / 16)
    repeats = np.mean([a == b for a, b in pairwise(quarters)])
    assert abs(repeats - 0.25) < 4 * np.sqrt(3 / 16 / 3500)
