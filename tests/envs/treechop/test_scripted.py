"""The lumberjack gathers logs in every world, from the image alone and without memory."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import empty_rows
from slipstream.envs.treechop import scripted
from slipstream.envs.treechop.game import Treechop
from slipstream.errors import ConfigError


@pytest.mark.parametrize(("task", "least"), [("dense", 5.0), ("medium", 5.0), ("sparse", 3.0)])
def test_the_lumberjack_gathers_logs(task: str, least: float) -> None:
    """In 25 seconds it gathers more than so many logs in the mean of 16 games."""
    game = Treechop(16, variant=task, match_seconds=25.0)
    out, action, total = empty_rows(game.spec, 16), np.zeros((16, 1), np.int32), np.zeros(16)
    game.reset(out)
    for _ in range(500):
        scripted.act("lumberjack", out.obs, "discrete", action)
        game.step(action, out)
        total += out.reward
    assert total.mean() > least and out.behaviour[:, 0].tolist() == total.tolist()


def test_it_acts_alike_with_numbers_beside_the_picture_and_in_both_kinds() -> None:
    """Numbers change nothing, and `multi_discrete` presses the same buttons."""
    bare, told = Treechop(4, seed=3), Treechop(4, seed=3, options={"scalars": True})
    full = Treechop(4, seed=3, actions="multi_discrete")
    rows = [empty_rows(game.spec, 4) for game in (bare, told, full)]
    for game, out in zip((bare, told, full), rows, strict=True):
        game.reset(out)
    one, two, three = np.zeros((4, 1), np.int32), np.zeros((4, 1), np.int32), np.zeros((4, 10), np.int32)
    scripted.act("lumberjack", rows[0].obs, "discrete", one)
    scripted.act("lumberjack", rows[1].obs, "discrete", two)
    scripted.act("lumberjack", rows[2].obs, "multi_discrete", three)
    assert np.array_equal(one, two)
    chosen, pressed = bare.actions.decode(one), full.actions.decode(three)
    for button in ("attack", "forward"):
        assert np.array_equal(chosen[button], pressed[button])
    assert np.array_equal(np.sign(chosen["camera"]), np.sign(pressed["camera"]))


def test_an_unknown_player_is_named() -> None:
    """The error suggests the nearest name."""
    with pytest.raises(ConfigError, match=r"Unknown scripted player `lumberjak`\. Did you mean `lumberjack`"):
        scripted.act("lumberjak", np.zeros((1, 12288), np.uint8), "discrete", np.zeros((1, 1), np.int32))
