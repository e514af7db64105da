"""The lumberjack gathers logs in every world, from the image alone and without memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.treechop.columns import TASKS
from slipstream.envs.treechop.minerl_spaces import Treechop, act
from slipstream.errors import ConfigError
from slipstream.minecraft.action_maps import TABLE_8, TABLE_14
from treechop_games import begun


def decide(game: Treechop, obs: Array) -> Array:
    """The lumberjack's actions."""
    action = np.zeros((game.envs, game.spec.action.parts), np.int32)
    act("lumberjack", obs, game.spec.action, action)
    return action


def gathered(task: str, seconds: float, player: str = "lumberjack", **settings: Any) -> Array:
    """The logs of a player in the first games of 16 envs."""
    game, out = begun(16, task, match_seconds=seconds, **settings)
    total, rng = np.zeros(16), np.random.default_rng(0)
    for _ in range(round(20 * seconds)):
        random = rng.integers(0, game.spec.action.sizes, (16, game.spec.action.parts)).astype(np.int32)
        game.step(decide(game, out.obs) if player == "lumberjack" else random, out)
        total += out.reward
    assert out.truncated.all() and out.behaviour[:, 0].tolist() == total.tolist()
    return total


@pytest.mark.parametrize(("task", "least"), [("dense", 5.0), ("medium", 5.0), ("sparse", 3.0)])
def test_the_lumberjack_gathers_logs(task: str, least: float) -> None:
    """In 25 seconds it gathers more than so many logs in the mean of 16 games."""
    assert gathered(task, 25.0).mean() > least


@pytest.mark.parametrize("task", TASKS)
def test_it_gathers_more_in_a_minute_than_a_random_player(task: str) -> None:
    """In every task, in the mean of 16 games of a minute: at least 1.5 logs more, also among hills and rocks."""
    assert gathered(task, 60.0).mean() > gathered(task, 60.0, "random").mean() + 1.5


@pytest.mark.parametrize("options", [{"actions": "8"}, {"actions": "full"}, {"size": 128}, {"scalars": True}])
def test_it_gathers_logs_with_every_option(options: dict[str, Any]) -> None:
    """Eight actions, all buttons, a larger image and numbers beside it: more than 4 logs in 25 seconds."""
    assert gathered("medium", 25.0, options=options).mean() > 4.0


def test_it_acts_alike_with_numbers_beside_the_picture_and_in_both_kinds() -> None:
    """Numbers change nothing, and `multi_discrete` presses the same buttons."""
    (bare, one), (told, two) = begun(4, seed=3), begun(4, seed=3, options={"scalars": True})
    full, three = begun(4, seed=3, actions="multi_discrete")
    assert np.array_equal(decide(bare, one.obs), decide(told, two.obs))
    chosen = bare.actions.decode(decide(bare, one.obs))
    pressed = full.actions.decode(decide(full, three.obs))
    for button in ("attack", "forward"):
        assert np.array_equal(chosen[button], pressed[button])
    assert np.array_equal(np.sign(chosen["camera"]), np.sign(pressed["camera"]))


def test_it_acts_alike_in_both_tables() -> None:
    """In games that begin anywhere, it presses that one of the 8 actions which is nearest to its one of the 14."""
    few, out = begun(64, seed=3, random_starts=1.0, options={"actions": "8"})
    many, other = begun(64, seed=3, random_starts=1.0)
    for _ in range(40):
        eight, fourteen = decide(few, out.obs), decide(many, other.obs)
        assert np.array_equal(eight, TABLE_8.encode(TABLE_14.decode(fourteen)))
        few.step(eight, out)
        other.obs[:] = out.obs
    assert len(np.unique(eight)) > 2


def test_an_unknown_player_is_named() -> None:
    """The error suggests the nearest name."""
    with pytest.raises(ConfigError, match=r"Unknown scripted player `lumberjak`\. Did you mean `lumberjack`"):
        act("lumberjak", np.zeros((1, 12288), np.uint8), ActionSpec("discrete", (14,)), np.zeros((1, 1), np.int32))
