"""Mixed: three fields, three answers, and the rewards of each kind of action."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array, ObsField, empty_rows
from slipstream.envs.registry import games
from slipstream.envs.tiny.mixed import OBS, make, oracle

ORACLE = games()["mixed"].scripted["oracle"]


def answers(obs: Array) -> Array:
    """The right options [rows, 3], computed from the fields in plain Python."""
    found = []
    for row in obs:
        seen = OBS.split(row)
        y, x = np.argwhere(seen["image"][..., 0] == 255)[0]
        there = [token for token in seen["tokens"].tolist() if token[0] != 255]
        best = max(there, key=lambda token: token[2])
        assert sum(token[2] == best[2] for token in there) == 1
        found.append([2 * (y >= 6) + (x >= 6), int(seen["vector"].argmax()), best[1]])
    return np.array(found)


def test_an_observation_has_an_image_a_vector_and_tokens() -> None:
    """12 x 12 pixels, four numbers in [-1, 1), and two to six present tokens before the absent ones."""
    game = make("multi", 200)
    assert game.spec.obs.fields == (
        ObsField("vector", "vector", (4,)),
        ObsField("image", "image", (12, 12, 1)),
        ObsField("tokens", "tokens", (6, 3)),
    )
    assert game.spec.obs.width == 192
    out = empty_rows(game.spec, 200)
    game.reset(out)
    seen = OBS.split(out.obs)
    assert seen["vector"].min() >= -1 and seen["vector"].max() < 1
    there = seen["tokens"][..., 0] != 255
    assert set(there.sum(axis=1)) == {2, 3, 4, 5, 6}
    assert (np.diff(there.astype(int), axis=1) <= 0).all()
    assert (seen["tokens"][~there] == 255).all()
    assert seen["tokens"][there][:, 0].max() < 144 and seen["tokens"][there][:, 1].max() == 3
    assert not out.obs[:, 178:].any()


def test_answers_are_uniform_and_independent() -> None:
    """Each of the 64 combinations of answers occurs about equally often."""
    game = make("multi", 6400)
    out = empty_rows(game.spec, 6400)
    game.reset(out)
    action = np.zeros((6400, 3), np.int32)
    oracle(out.obs, game.spec.action, action)
    counts = np.bincount(action @ [16, 4, 1], minlength=64)
    assert counts.min() > 50 and counts.max() < 150
    assert np.array_equal(action[:200], answers(out.obs[:200]))


def test_each_right_answer_is_a_third() -> None:
    """None, one, two and three right answers earn 0, 1/3, 2/3 and 1."""
    game = make("multi", 4)
    assert game.spec.action == ActionSpec("multi_discrete", (4, 4, 4))
    out = empty_rows(game.spec, 4)
    game.reset(out)
    action = answers(out.obs)
    for row in range(4):
        action[row, row:] = (action[row, row:] + 1) % 4
    game.step(action.astype(np.int32), out)
    assert out.reward.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_continuous_answers_are_rewarded_by_distance() -> None:
    """The answers are -3/4, -1/4, 1/4 and 3/4; distance is subtracted, and actions are clipped to their bounds."""
    game = make("continuous", 3)
    assert game.spec.action == ActionSpec("continuous", (), (-1, -1, -1), (1, 1, 1))
    out = empty_rows(game.spec, 3)
    game.reset(out)
    right = np.array([-0.75, -0.25, 0.25, 0.75])[answers(out.obs)]
    action = right.astype(np.float32)
    action[1, 0] -= 0.3 * np.sign(right[1, 0])
    action[2, 2] = 50.0
    game.step(action, out)
    assert out.reward.tolist() == pytest.approx([1, 1 - 0.1, 1 - (1 - right[2, 2]) / 3])


def test_the_team_variant_masks_one_wrong_answer() -> None:
    """Both agents observe and earn on their own; in each part one wrong option is masked, never the right one."""
    game = make("team", 50)
    assert game.spec.teams == (0, 0)
    assert game.spec.action == ActionSpec("multi_discrete", (4, 4, 4), masked=True)
    out = empty_rows(game.spec, 50)
    game.reset(out)
    barred: set[int] = set()
    for _ in range(10):
        action = answers(out.obs)
        mask = out.mask.reshape(100, 3, 4)
        assert (mask.sum(axis=2) == 3).all()
        assert np.take_along_axis(mask, action[..., None], axis=2).all()
        barred |= set(((mask.argmin(axis=2) - action) % 4).ravel().tolist())
        assert not (out.obs[::2] == out.obs[1::2]).all(axis=1).any()
        action[1::2] = mask[1::2].argmin(axis=2)
        game.step(action.astype(np.int32), out)
        assert out.reward.tolist() == [1, 0] * 50
    assert barred == {1, 2, 3}


@pytest.mark.parametrize("variant", ["multi", "continuous", "team"])
def test_the_oracle_earns_eight(variant: str) -> None:
    """The oracle earns 8 in every episode."""
    game = make(variant, 20)
    rows = 20 * game.spec.agents
    out, action = empty_rows(game.spec, 20), np.zeros((rows, 3), game.spec.action.dtype)
    game.reset(out)
    for _ in range(2):
        earned = np.zeros(rows)
        for step in range(8):
            ORACLE(out.obs, game.spec.action, action)
            game.step(action, out)
            earned += out.reward
            assert out.terminated.all() == out.terminated.any() == (step == 7)
        assert np.allclose(earned, 8)
