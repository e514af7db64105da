"""The MettaGrid worlds: their objects, their maps by seed, and the meaning of their tokens.

All worlds declare the same resources, objects and actions, so a token has the same meaning in all of them. The hearts
of an altar are refilled over time; mines give ore, which an altar exchanges for a heart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from slipstream.envs.adapters.adapter_vector import import_package
from slipstream.envs.options import check_options
from slipstream.errors import ConfigError

INSTALL = 'pip install "slipstream[mettagrid]"'
RESOURCES = ("heart", "ore")
OWN_TOKENS, AGENT_TOKENS, OBJECT_TOKENS, WALL_TOKENS = 3, 6, 3, 1
"""The largest number of tokens of an agent's own last step, a visible agent, an altar or mine, and a wall."""
WALL, EMPTY = "wall", "empty"


@dataclass(frozen=True)
class World:
    """The parameters of a world; lengths are in cells."""

    agents: int
    size: int
    """The side of the square map, including the surrounding wall."""
    altars: int
    mines: int = 0
    walls: int = 20
    """The number of single wall cells."""
    window: int = 11
    """The side of the square view, centred on the agent."""
    tokens: int = 64
    """Tokens of an observation, nearest objects first; a multiple of 16."""
    steps: int = 500
    """The length of an episode."""
    refill: int = 5
    """Steps between refills of an altar's hearts."""
    stock: int = 1
    """Hearts that an altar can hold; 0: altars only exchange ore for hearts."""

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens that an agent can ever need, for the size of the simulator's buffer."""
        things = AGENT_TOKENS * self.agents + OBJECT_TOKENS * (self.altars + self.mines)
        cells = self.window**2
        return max(self.tokens, OWN_TOKENS + min(things + WALL_TOKENS * cells, AGENT_TOKENS * cells))


WORLDS = {
    "arena": World(agents=24, size=25, altars=16),
    "chain": World(agents=24, size=25, altars=8, mines=8, stock=0),
    "crowd": World(agents=64, size=40, altars=42, walls=50),
}
LIMITS = {
    "agents": (1, 255),
    "size": (5, 200),
    "altars": (1, 4096),
    "mines": (0, 4096),
    "walls": (0, 16384),
    "window": (3, 15),
    "tokens": (16, 512),
    "steps": (1, 65535),
    "refill": (1, 65535),
    "stock": (0, 255),
}


def choose(variant: str, options: Mapping[str, Any]) -> World:
    """The world of a variant, with the changes in `env.options`."""
    check_options("mettagrid", options, tuple(LIMITS))
    for name, value in options.items():
        low, high = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(
                f"`env.options.{name}` = {value} is out of range.", f"give a whole number, {low} to {high}"
            )
    world = replace(WORLDS[variant], **options)
    if world.window % 2 == 0:
        raise ConfigError(f"`env.options.window` = {world.window} is even.", "give an odd number")
    if world.tokens % 16:
        raise ConfigError(f"`env.options.tokens` = {world.tokens} is not a multiple of 16.", "give 48, 64, 80 or 96")
    if not world.stock and not world.mines:
        raise ConfigError("No object in this world gives hearts.", "set env.options.stock or env.options.mines above 0")
    things, cells = world.agents + world.altars + world.mines + world.walls, (world.size - 2) ** 2
    if things > cells:
        raise ConfigError(
            f"{things} objects do not fit into a map of {world.size} x {world.size} cells with a wall around it.",
            "set env.options.size higher, or agents, altars, mines or walls lower",
        )
    return world


class Stage:
    """The simulator's configuration of a world; makes its games."""

    statistics = ("heart.gained", "ore.gained", "action.move.success", "action.failed", "cell.unique_visited")
    """The simulator's statistics of each agent that are reported."""
    behaviours = ("hearts", "ores", "moves", "failed", "cells", "cut")
    """Their names, and the share of steps in which an observation had too many tokens."""
    resources: Sequence[str] = RESOURCES
    thresholds: ClassVar[Mapping[str, float]] = {}
    exact = True

    def __init__(self, world: World) -> None:
        self.world, config = world, configure_world(world)
        self._game, names = convert(config)
        self.agents: list[str] = names["agent.agent"]
        ids = config.id_map()
        self.features = {feature.name: int(feature.id) for feature in ids.features()}
        self.tags = {name: number for number, name in enumerate(ids.tag_names())}
        self.actions: list[str] = [action.name for action in config.actions.actions()]
        self.action_ids = np.arange(len(self.actions), dtype=np.int32)

    @cached_property
    def meanings(self) -> tuple[tuple[str, str], ...]:
        """The names of feature ids, tag ids and actions."""
        return describe_meanings(self.features, self.tags, self.actions)

    def grid(self, seed: int) -> list[list[str]]:
        """The map of a seed: all objects at random cells within the wall."""
        world, inner = self.world, self.world.size - 2
        things = [*self.agents, *["altar"] * world.altars, *["mine"] * world.mines, *[WALL] * world.walls]
        rng = np.random.default_rng([seed, 0x3E77A])
        rows = [[WALL] * world.size, *([WALL, *[EMPTY] * inner, WALL] for _ in range(inner)), [WALL] * world.size]
        for thing, cell in zip(things, rng.choice(inner * inner, len(things), replace=False).tolist(), strict=True):
            rows[1 + cell // inner][1 + cell % inner] = thing
        return rows

    def make_game(self, seed: int) -> Any:
        """Make the game of a seed, which determines all its randomness."""
        return require().MettaGrid(self._game, self.grid(seed), int(seed & 0x7FFFFFFF))


@lru_cache(maxsize=8)
def stage(world: World) -> Stage:
    """The cached `Stage` of a world."""
    return Stage(world)


def require() -> Any:
    """Import the simulator."""
    return import_package("mettagrid.mettagrid_c", "mettagrid", "MettaGrid", INSTALL)


def describe_meanings(
    features: Mapping[str, int], tags: Mapping[str, int], actions: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """What tokens and actions mean, as texts that are stored with a policy."""
    named = {"features": features, "tags": tags}
    listed = {what: ", ".join(f"{number} {name}" for name, number in ids.items()) for what, ids in named.items()}
    return (*listed.items(), ("actions", ", ".join(actions)))


def convert(config: Any) -> tuple[Any, Mapping[str, list[str]]]:
    """The configuration for the simulator's C++ core, and the names of agents on a map."""
    from mettagrid.config.mettagrid_c_config import convert_to_cpp_game_config

    converted: tuple[Any, Mapping[str, list[str]]] = convert_to_cpp_game_config(config)
    return converted


def configure_world(world: World) -> Any:
    """The simulator's own configuration of a world."""
    require()
    from mettagrid.config import action_config as acts
    from mettagrid.config import handler_config as handlers
    from mettagrid.config import mettagrid_config as parts
    from mettagrid.config.obs_config import GlobalObsConfig, ObsConfig
    from mettagrid.config.reward_config import inventoryReward

    def holding(item: str, count: int, most: int) -> Any:
        limits = {item: parts.ResourceLimitsConfig(base=most, resources=[item])}
        return parts.InventoryConfig(default_limit=most, limits=limits, initial={item: count} if count else {})

    give = handlers.Handler(filters=[handlers.targetHas({"heart": 1})], mutations=[handlers.withdraw({"heart": 1})])
    trade = handlers.Handler(
        filters=[handlers.actorHas({"ore": 1})], mutations=[handlers.updateActor({"ore": -1, "heart": 1})]
    )
    dig = handlers.Handler(
        filters=[handlers.isNot(handlers.actorHas({"ore": 1}))], mutations=[handlers.updateActor({"ore": 1})]
    )
    carried = {
        "heart": parts.ResourceLimitsConfig(base=255, resources=["heart"]),
        "ore": parts.ResourceLimitsConfig(base=1, resources=["ore"]),
    }
    return parts.GameConfig(
        num_agents=world.agents,
        max_steps=world.steps,
        episode_truncates=True,
        resource_names=list(RESOURCES),
        obs=ObsConfig(
            width=world.window,
            height=world.window,
            num_tokens=world.max_tokens,
            global_obs=GlobalObsConfig(episode_completion_pct=False, last_action=True, last_reward=True),
        ),
        actions=acts.ActionsConfig(
            noop=acts.NoopActionConfig(),
            move=acts.MoveActionConfig(),
            change_vibe=acts.ChangeVibeActionConfig(enabled=False, vibes=[]),
        ),
        objects={
            "wall": parts.WallConfig(name="wall"),
            "altar": parts.GridObjectConfig(
                name="altar",
                inventory=holding("heart", world.stock, max(world.stock, 1)),
                on_use_handler=give if world.stock else trade,
            ),
            "mine": parts.GridObjectConfig(name="mine", on_use_handler=dig),
        },
        agent=parts.AgentConfig(
            inventory=parts.InventoryConfig(default_limit=0, limits=carried),
            rewards={"heart": inventoryReward("heart")},
        ),
        events=_refills(world),
        protocol_details_obs=False,
    )


def _refills(world: World) -> dict[str, Any]:
    """The periodic event that refills altars which give hearts."""
    if not world.stock:
        return {}
    from mettagrid.config.event_config import EventConfig, periodic
    from mettagrid.config.handler_config import updateTarget
    from mettagrid.config.tag import typeTag

    times = periodic(world.refill, world.refill, end=world.steps)
    event = EventConfig(
        name="refill", target_query=typeTag("altar"), timesteps=times, mutations=[updateTarget({"heart": 1})]
    )
    return {"refill": event}
