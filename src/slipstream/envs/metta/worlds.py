"""The worlds that are played in MettaGrid: what there is in each, its map by its seed, and what its tokens mean.

All worlds have the same resources, objects and actions, whether a map has them or not, so that a token means the same
in every one of them. An altar's hearts come back with time; at a mine ore is dug, which an altar takes for a heart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from slipstream.envs.options import check_options
from slipstream.errors import ConfigError, EnvError

INSTALL = 'pip install "slipstream[mettagrid]"'
RESOURCES = ("heart", "ore")
OWN_TOKENS, AGENT_TOKENS, OBJECT_TOKENS, WALL_TOKENS = 3, 6, 3, 1
"""Tokens, at most, about an agent's own last step, an agent that it sees, an altar or mine, and a wall."""
WALL, EMPTY = "wall", "empty"


@dataclass(frozen=True)
class World:
    """What a game is played in; lengths are cells."""

    agents: int
    size: int
    """Side of the square map, with the wall around it."""
    altars: int
    mines: int = 0
    walls: int = 20
    """Single walls that stand about."""
    window: int = 11
    """Side of the square that an agent sees, which it is in the middle of."""
    tokens: int = 64
    """Tokens that an agent is told, those of the nearest things first; whole 16s."""
    steps: int = 500
    """Length of an episode."""
    refill: int = 5
    """Steps after which an altar that gives hearts has one more."""
    stock: int = 1
    """Hearts that it can hold; 0: altars give them for ore only."""

    @property
    def room(self) -> int:
        """Tokens that an agent can ever need, so that the simulator never runs out of them."""
        things = AGENT_TOKENS * self.agents + OBJECT_TOKENS * (self.altars + self.mines)
        cells = self.window**2
        return max(self.tokens, OWN_TOKENS + min(things + WALL_TOKENS * cells, AGENT_TOKENS * cells))


WORLDS = {
    "arena": World(agents=24, size=25, altars=16),
    "chain": World(agents=24, size=25, altars=8, mines=8, stock=0),
    "crowd": World(agents=64, size=40, altars=42, walls=50),
}
LIMITS = {
    "agents": (1, 255), "size": (5, 200), "altars": (1, 4096), "mines": (0, 4096), "walls": (0, 16384),
    "window": (3, 15), "tokens": (16, 512), "steps": (1, 65535), "refill": (1, 65535), "stock": (0, 255),
}  # fmt: skip


def choose(variant: str, options: Mapping[str, Any]) -> World:
    """The world of a variant, with what `env.options` says about it."""
    check_options("mettagrid", options, tuple(LIMITS))
    for name, value in options.items():
        low, high = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(
                f"`env.options.{name}` = {value} is out of range.", f"give a whole number, {low} to {high}"
            )
    world = replace(WORLDS[variant], **options)
    if world.window % 2 == 0:
        raise ConfigError(f"`env.options.window` = {world.window} has no middle.", "give an odd number")
    if world.tokens % 16:
        raise ConfigError(f"`env.options.tokens` = {world.tokens} is not a multiple of 16.", "give 48, 64, 80 or 96")
    if not world.stock and not world.mines:
        raise ConfigError("Nothing in this world gives hearts.", "set env.options.stock or env.options.mines above 0")
    things, cells = world.agents + world.altars + world.mines + world.walls, (world.size - 2) ** 2
    if things > cells:
        raise ConfigError(
            f"{things} things do not fit into a map of {world.size} x {world.size} cells with a wall around it.",
            "set env.options.size higher, or agents, altars, mines or walls lower",
        )
    return world


class Stage:
    """A world as the simulator knows it: makes its games."""

    def __init__(self, world: World) -> None:
        self.world, config = world, configure_world(world)
        self._game, names = _convert(config)
        self.agents: list[str] = names["agent.agent"]
        ids = config.id_map()
        self.features = {feature.name: int(feature.id) for feature in ids.features()}
        self.tags = {name: number for number, name in enumerate(ids.tag_names())}
        self.actions: list[str] = [action.name for action in config.actions.actions()]

    @cached_property
    def meanings(self) -> tuple[tuple[str, str], ...]:
        """What the numbers in tokens and actions stand for."""
        named = {"features": self.features, "tags": self.tags}
        told = {what: ", ".join(f"{number} {name}" for name, number in ids.items()) for what, ids in named.items()}
        return (*told.items(), ("actions", ", ".join(self.actions)))

    def grid(self, seed: int) -> list[list[str]]:
        """The map of a seed: everything anywhere within the wall."""
        world, inner = self.world, self.world.size - 2
        things = [*self.agents, *["altar"] * world.altars, *["mine"] * world.mines, *[WALL] * world.walls]
        rng = np.random.default_rng([seed, 0x3E77A])
        rows = [[WALL] * world.size, *([WALL, *[EMPTY] * inner, WALL] for _ in range(inner)), [WALL] * world.size]
        for thing, cell in zip(things, rng.choice(inner * inner, len(things), replace=False).tolist(), strict=True):
            rows[1 + cell // inner][1 + cell % inner] = thing
        return rows

    def play(self, seed: int) -> Any:
        """The game of a seed; all its chance follows from it."""
        return require().MettaGrid(self._game, self.grid(seed), int(seed & 0x7FFFFFFF))


@lru_cache(maxsize=8)
def stage(world: World) -> Stage:
    """A world made ready, once per process."""
    return Stage(world)


def require() -> Any:
    """The simulator's module."""
    try:
        import mettagrid.mettagrid_c as simulator
    except ImportError as error:
        raise EnvError(f"`mettagrid` needs MettaGrid: {error}.", INSTALL) from error
    return simulator


def _convert(config: Any) -> tuple[Any, Mapping[str, list[str]]]:
    """The configuration as the simulator's core takes it, and the names of agents on a map."""
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
            width=world.window, height=world.window, num_tokens=world.room,
            global_obs=GlobalObsConfig(episode_completion_pct=False, last_action=True, last_reward=True),
        ),
        actions=acts.ActionsConfig(
            noop=acts.NoopActionConfig(), move=acts.MoveActionConfig(),
            change_vibe=acts.ChangeVibeActionConfig(enabled=False, vibes=[]),
        ),
        objects={
            "wall": parts.WallConfig(name="wall"),
            "altar": parts.GridObjectConfig(
                name="altar", inventory=holding("heart", world.stock, max(world.stock, 1)),
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
    )  # fmt: skip


def _refills(world: World) -> dict[str, Any]:
    """Altars that give hearts get one more from time to time."""
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
