"""MettaGrid's worlds: options that are refused, maps by their seed, room for every token, what tokens mean."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from slipstream.envs.metta import worlds
from slipstream.envs.metta.worlds import WORLDS, Stage, choose, stage
from slipstream.errors import ConfigError, EnvError

pytest.importorskip("mettagrid", reason='needs mettagrid (pip install "slipstream[mettagrid]")')


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"altar": 3}, "Unknown setting `env.options.altar`. Did you mean `env.options.altars`?"),
        ({"agents": 0}, "`env.options.agents` = 0 is out of range."),
        ({"agents": 2.5}, "`env.options.agents` = 2.5 is out of range."),
        ({"window": 10}, "`env.options.window` = 10 is even."),
        ({"tokens": 60}, "`env.options.tokens` = 60 is not a multiple of 16."),
        ({"stock": 0}, "No object in this world gives hearts."),
        ({"size": 8}, "60 objects do not fit into a map of 8 x 8 cells with a wall around it."),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    """Each with the key and what to do instead."""
    with pytest.raises(ConfigError) as caught:
        choose("arena", options)
    assert caught.value.message == said and caught.value.hint


def test_a_missing_package_gives_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear error."""
    monkeypatch.setitem(sys.modules, "mettagrid.mettagrid_c", None)
    with pytest.raises(EnvError, match="`mettagrid` needs MettaGrid") as caught:
        worlds.require()
    assert caught.value.hint == 'pip install "slipstream[mettagrid]"'


@pytest.mark.parametrize("variant", WORLDS)
def test_a_map_holds_the_objects_of_the_world(variant: str) -> None:
    """Everything once, within a wall; another seed puts it elsewhere, the same seed in the same places."""
    world = choose(variant, {})
    made = stage(world)
    grid = np.array(made.grid(5))
    counts = Counter(grid.reshape(-1).tolist())
    assert grid.shape == (world.size, world.size)
    assert all((edge == "wall").all() for edge in (grid[0], grid[-1], grid[:, 0], grid[:, -1]))
    assert counts["altar"] == world.altars and counts["mine"] == world.mines
    assert counts["wall"] == world.walls + 4 * (world.size - 1)
    assert all(counts[name] == 1 for name in made.agents) and len(made.agents) == world.agents
    assert made.grid(5) == grid.tolist() != made.grid(6)


def test_all_worlds_mean_the_same() -> None:
    """Features, tags and actions have the same numbers everywhere, so that a policy can go from one to another."""
    found = {stage(choose(name, {})).meanings for name in WORLDS}
    assert len(found) == 1
    named = dict(found.pop())
    assert named["actions"] == "noop, move_north, move_south, move_west, move_east"
    assert "inv:heart" in named["features"] and "type:altar" in named["tags"]


def test_the_simulator_never_runs_out_of_tokens() -> None:
    """With agents and altars as dense as possible, each with hearts and ore, all tokens fit into the buffer."""
    made = Stage(choose("arena", {"agents": 30, "size": 9, "altars": 15, "walls": 0, "steps": 50, "mines": 4}))
    game, world = made.make_game(3), made.world
    shape = (world.agents, world.max_tokens, 3)
    buffers = np.zeros(shape, np.uint8), *np.zeros((2, world.agents), np.bool_)
    reward, action = np.zeros(world.agents, np.float32), np.zeros(world.agents, np.int32)
    game.set_buffers(*buffers, reward, action)
    rng = np.random.default_rng(0)
    for agent in range(world.agents):
        game.set_inventory(agent, {0: 200, 1: 1})
    for _ in range(world.steps):
        action[:] = rng.integers(0, len(made.actions), world.agents)
        game.step()
        used = (buffers[0][:, :, 0] != 255).sum(axis=1)
        assert used.max() < world.max_tokens
    assert used.min() > 100 and game.get_episode_stats()["game"]["tokens_dropped"] == 0
