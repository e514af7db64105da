"""Recall: observations, rewards, and that only a memory helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, empty_rows
from slipstream.envs.tiny.recall import make


@pytest.mark.parametrize("delay", [2, 8, 32])
def test_a_cue_a_wait_and_a_question(delay: int) -> None:
    """The cue is shown once, then nothing for `delay` steps, then the question; the answer ends the episode."""
    game = make(str(delay), 4)
    out = empty_rows(game.spec, 4)
    game.reset(out)
    for _ in range(3):
        assert (out.obs[:, :2].sum(axis=1) == 1).all() and not out.obs[:, 2].any()
        cues = out.obs[:, :2].argmax(axis=1)
        for _ in range(delay):
            game.step(np.ones((4, 1), np.int32), out)
            assert not out.obs.any() and not out.reward.any() and not out.terminated.any()
        game.step(np.zeros((4, 1), np.int32), out)
        assert out.obs.tolist() == [[0, 0, 1]] * 4 and not out.reward.any() and not out.terminated.any()
        answers = np.array([cues[0], 1 - cues[1], cues[2], 1 - cues[3]])
        game.step(answers[:, None].astype(np.int32), out)
        assert out.reward.tolist() == [1, -1, 1, -1] and out.terminated.all()
        assert not out.final_obs.any()


def returns(answer: Any, variant: str = "2", episodes: int = 3000) -> Any:
    """The return of each episode for an answer computed from first observation, last observation and env index."""
    game = make(variant, 100)
    out = empty_rows(game.spec, 100)
    game.reset(out)
    earned: list[Any] = []
    while len(earned) * 100 < episodes:
        first = out.obs.copy()
        while not out.obs[:, 2].all():
            game.step(np.zeros((100, 1), np.int32), out)
        game.step(np.asarray(answer(first, out.obs, np.arange(100)), np.int32)[:, None], out)
        earned.append(out.reward.copy())
    return np.concatenate(earned)


def test_the_cue_earns_the_optimum() -> None:
    """Answering with the cue earns 1 in every episode."""
    assert (returns(lambda first, last, env: first[:, :2].argmax(axis=1)) == 1).all()


@pytest.mark.parametrize(
    "answer",
    [
        lambda first, last, env: last[:, 0],
        lambda first, last, env: last[:, 2],
        lambda first, last, env: env % 2,
    ],
    ids=["zero", "one", "by env"],
)
def test_answers_without_the_cue_earn_nothing_on_average(answer: Any) -> None:
    """An answer without the cue is right half of the time: 0 on average, here within four standard errors."""
    assert abs(returns(answer).mean()) < 4 / np.sqrt(3000)


def test_the_mask_of_the_masked_variant() -> None:
    """Only waiting is allowed before the question, and only answers at it, also in later episodes."""
    game = make("masked", 3)
    assert game.spec.action == ActionSpec("discrete", (3,), masked=True)
    out = empty_rows(game.spec, 3)
    out.mask[:] = 7
    game.reset(out)
    for _ in range(2):
        cues = out.obs[:, :2].argmax(axis=1)
        for _ in range(9):
            assert out.mask.tolist() == [[0, 0, 1]] * 3
            game.step(np.full((3, 1), 2, np.int32), out)
            assert not out.reward.any() and not out.terminated.any()
        assert out.mask.tolist() == [[1, 1, 0]] * 3 and out.obs[:, 2].all()
        game.step(cues[:, None].astype(np.int32), out)
        assert (out.reward == 1).all() and out.terminated.all()
