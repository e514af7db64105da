"""MettaGrid worlds of the user: a configuration from a file, or from an object that a Python function makes.

A file holds the fields of a `MettaGridConfig` as YAML or JSON, as `config.model_dump(mode="json")` gives them.
MettaGrid would import whatever a `type` in such a file names, or in a further file that a scene reads. Here a type may
only name a map builder or scene of the package that reads no files.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from slipstream.envs.adapters.adapter_vector import made_in_python
from slipstream.envs.metta.worlds import convert, describe_meanings, require
from slipstream.envs.options import check_options
from slipstream.errors import ConfigError, EnvError

CLASSES = {
    "map_builder.ascii": "AsciiMapBuilder",
    "map_builder.choice_ascii": "ChoiceAsciiMapBuilder",
    "map_builder.maze": "MazeKruskalMapBuilder MazePrimMapBuilder",
    "map_builder.perimeter_incontext": "PerimeterInContextMapBuilder",
    "map_builder.random_map": "RandomMapBuilder",
    "mapgen.mapgen": "MapGen",
    "mapgen.scenes.asteroid_mask": "AsteroidMask",
    "mapgen.scenes.auto": "Auto AutoLayout AutoSymmetry",
    "mapgen.scenes.biome_arena": "BiomeArena SequentialBiomeArena",
    "mapgen.scenes.biome_caves": "BiomeCaves",
    "mapgen.scenes.biome_city": "BiomeCity",
    "mapgen.scenes.biome_desert": "BiomeDesert",
    "mapgen.scenes.biome_forest": "BiomeForest",
    "mapgen.scenes.biome_plains": "BiomePlains",
    "mapgen.scenes.bounded_layout": "BoundedLayout",
    "mapgen.scenes.bsp": "BSP BSPLayout",
    "mapgen.scenes.building_distributions": "UniformExtractorScene",
    "mapgen.scenes.compound": "Compound",
    "mapgen.scenes.convchain": "ConvChain ConvChainSlow",
    "mapgen.scenes.ensure_hub_reachable_junction": "EnsureHubReachableJunction",
    "mapgen.scenes.four_corner_compounds": "FourCornerCompounds",
    "mapgen.scenes.grid_altars": "GridHubs",
    "mapgen.scenes.inline_ascii": "InlineAscii",
    "mapgen.scenes.layout": "Layout",
    "mapgen.scenes.make_connected": "MakeConnected",
    "mapgen.scenes.map_corner_placements": "MapCornerPlacements",
    "mapgen.scenes.maze": "Maze",
    "mapgen.scenes.mean_distance": "MeanDistance",
    "mapgen.scenes.mirror": "HorizontalMirror Mirror VerticalMirror X4Mirror",
    "mapgen.scenes.multi_left_and_right": "MultiLeftAndRight",
    "mapgen.scenes.nop": "Nop",
    "mapgen.scenes.perimeter_placements": "PerimeterPlacements",
    "mapgen.scenes.radial_maze": "RadialMaze",
    "mapgen.scenes.random": "Random",
    "mapgen.scenes.random_objects": "RandomObjects",
    "mapgen.scenes.random_scene": "RandomScene",
    "mapgen.scenes.random_transform": "RandomTransform",
    "mapgen.scenes.remove_agents": "RemoveAgents",
    "mapgen.scenes.room_grid": "RoomGrid",
    "mapgen.scenes.spiral": "Spiral",
    "mapgen.scenes.varied_terrain": "VariedTerrain",
    "mapgen.scenes.wfc": "WFC",
}
"""The map builders and scenes that a file may name, by module of mettagrid; none of them reads a file."""
TYPES = {
    f"mettagrid.{module}.{name}.Config": (f"mettagrid.{module}", name)
    for module, names in CLASSES.items()
    for name in names.split()
}
LIMITS = {"tokens": (2, 4096), "steps": (1, 65535)}
COUNTS = ("action.move.success", "action.failed", "cell.unique_visited")
VIBES = "change_vibe"
"""How the names of actions begin that the package's own PettingZoo env leaves out."""
NODES = 2_000_000
"""The most values that a file may hold, counted again wherever an alias (`*name`) repeats them."""
NOT_IN_CELLS = ("episode_completion_pct", "last_", "goal", "lp:", "territory:", "protocol_", "tag")
"""How the names of features begin that do not describe what is in a cell: an agent sees them of itself only, or this
version of the package never writes them (`protocol_`); tags are counted on their own."""


class Shape(NamedTuple):
    """The sizes of a world."""

    agents: int
    tokens: int
    """Tokens of an observation, nearest objects first."""
    max_tokens: int
    """Tokens for which the simulator's buffer has space."""
    steps: int
    """The largest length of an episode."""


class OwnStage:
    """The simulator's configuration of a world of the user; makes its games."""

    def __init__(self, name: str, config: Any, options: Mapping[str, Any]) -> None:
        self.name, self._config = name, config.model_copy(deep=True)
        game = self._config.game
        for option, value in _check(options).items():
            if option == "steps":
                game.max_steps = value
        if not 1 <= game.max_steps <= LIMITS["steps"][1]:
            raise ConfigError(
                f"`game.max_steps` of `{name}` is {game.max_steps}, which is not 1 to {LIMITS['steps'][1]}.",
                "set it in the configuration, or set env.options.steps",
            )
        given = game.obs.num_tokens
        tokens = options.get("tokens", given)
        if tokens > given:
            raise ConfigError(
                f"`env.options.tokens` = {tokens} is more than `game.obs.num_tokens` = {given} of `{name}`.",
                f"give at most {given}",
            )
        self.thresholds = {stat: float(value) for stat, value in game.end_episode_on_game_stats.items()}
        """Statistics of a game that end it when they reach these values."""
        resources = list(game.resource_names)
        self.statistics = (*(f"{resource}.gained" for resource in resources), *COUNTS)
        self.behaviours = (*resources, "moves", "failed", "cells", "cut")
        self.resources = resources
        self._digest = hashlib.sha256(self._config.model_dump_json().encode()).hexdigest()[:16]
        check_room(game.map_builder, name)
        try:
            ids = game.id_map()
            features = {feature.name: int(feature.id) for feature in ids.features()}
            tags = {tag: number for number, tag in enumerate(ids.tag_names())}
            game.obs.num_tokens = max(given, most_tokens(game, list(features), list(tags)))
            self.world = Shape(game.num_agents, tokens, game.obs.num_tokens, game.max_steps)
            self._game, self._agent_cells = convert(game.model_copy(deep=True))
            self.exact = self.grid(0) == self.grid(0)
            """Whether a seed determines the map."""
        except Exception as error:
            raise EnvError(f"`{name}` cannot be played: {error}", "fix the configuration") from error
        every = [action.name for action in game.actions.actions()]
        self.actions = [action for action in every if not action.startswith(VIBES)]
        self.action_ids = np.array([every.index(action) for action in self.actions], np.int32)
        """The simulator's number of each action."""
        self._named = features, tags

    @cached_property
    def meanings(self) -> tuple[tuple[str, str], ...]:
        """The names of feature ids, tag ids and actions, and a digest of the configuration."""
        return (*describe_meanings(*self._named, self.actions), ("config", self._digest))

    def grid(self, seed: int) -> list[list[str]]:
        """The map of a seed."""
        builder = self._config.game.map_builder.model_copy(deep=True)
        for part in _parts_with(builder, "seed"):
            part.seed = (seed + (part.seed or 0)) % 2**31
        cells: list[list[str]] = builder.create().build_for_num_agents(self.world.agents).grid.tolist()
        if not self._agent_cells:
            return cells
        from mettagrid.config.mettagrid_c_config import rename_map_agents

        renamed: list[list[str]] = rename_map_agents(cells, dict(self._agent_cells))
        return renamed

    def make_game(self, seed: int) -> Any:
        """Make the game of a seed, which determines all its randomness."""
        return require().MettaGrid(self._game, self.grid(seed), int(seed & 0x7FFFFFFF))


def most_tokens(game: Any, features: Sequence[str], tags: Sequence[str]) -> int:
    """The largest number of tokens that an agent can ever need, for the size of the simulator's buffer.

    Each cell shows at most one thing, with all that a thing can have; what the agent sees of itself comes on top.
    """
    named_values = tuple(game.obs.global_obs.obs)
    things = [name for name in features if not name.startswith(NOT_IN_CELLS)]
    of_cells = [name for name in things if name.partition(":p")[0] not in named_values]
    kinds = sum(tag.startswith("type:") for tag in tags)
    tokens_of_cell = len(of_cells) + len(tags) - max(0, kinds - 1)  # a thing is of one kind
    goals = len(game.resource_names)
    return int(game.obs.width * game.obs.height) * tokens_of_cell + len(features) + goals


def check_room(builder: Any, name: str) -> None:
    """Raise if a random map has too few free cells for its agents; the package would search for room forever."""
    for part in _parts_with(builder, "agents"):
        if any(base.__name__ == "RandomMapBuilderConfig" for base in inspect.getmro(type(part))):
            agents = part.agents if isinstance(part.agents, int) else sum(part.agents.values())
            border = 2 * max(0, part.border_width)
            cells = max(0, part.width - border) * max(0, part.height - border)
            # the package halves the number of each object until all fit, but keeps one of each
            objects, least = sum(part.objects.values()), len(part.objects)
            if agents + objects > cells and agents + least > cells:
                raise EnvError(
                    f"`{name}` cannot be played: {agents} agents and {objects} objects (of {least} kinds) do not fit "
                    f"into the {cells} free cells of its map of {part.width} x {part.height}.",
                    "set `width` and `height` of the map builder higher, or `agents` lower",
                )


def _check(options: Mapping[str, Any]) -> Mapping[str, Any]:
    check_options("a MettaGrid world of your own", options, tuple(LIMITS))
    for name, value in options.items():
        low, high = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(
                f"`env.options.{name}` = {value} is out of range.", f"give a whole number, {low} to {high}"
            )
    return options


def _parts_with(part: Any, field: str) -> Iterator[Any]:
    """The configuration of a map builder and all within it that have a field."""
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, list | tuple):
        for inner in part:
            yield from _parts_with(inner, field)
    elif hasattr(type(part), "model_fields"):
        if field in type(part).model_fields:
            yield part
        for name in type(part).model_fields:
            yield from _parts_with(getattr(part, name), field)


def recognise(made: Any) -> str:
    """The name of a MettaGrid env or configuration; empty for anything else."""
    if inspect.isclass(made):
        return ""
    config = _config_of(made)
    return "" if config is None else re.sub(r"[^\w.-]+", "-", config.label) or "world"


def _config_of(made: Any) -> Any:
    """The configuration of what a function made; None if it is something else, or has code of its own."""
    kind = type(made)
    names = [f"{base.__module__}.{base.__name__}" for base in inspect.getmro(kind)]
    if "mettagrid.config.mettagrid_config.MettaGridConfig" in names:
        return made
    if names[0] == "mettagrid.envs.pettingzoo_env.MettaGridPettingZooEnv":
        return None if made._simulator._event_handlers else made._cfg
    return made.config if names[0] == "mettagrid.simulator.simulator.Simulation" else None


def make_stage(choice: Any, variant: str) -> OwnStage:
    """The world of a file `variant`, or of the user's function."""
    if not choice.name.startswith("python:"):
        return OwnStage(choice.name, read_file(variant), choice.env.options)
    if choice.factory is None:
        raise made_in_python(choice.name)
    made = choice.factory()
    config = _config_of(made)
    if config is None:
        raise EnvError(
            f"The function of `{choice.name}` made a {type(made).__name__}, which has no MettaGrid configuration.",
            "return a MettaGridConfig or a MettaGridPettingZooEnv",
        )
    stage = OwnStage(choice.name, config, choice.env.options)
    if made is not config:
        made.close()
    return stage


def read_file(path: str) -> Any:
    """Read a configuration from a file; nothing in it is imported or executed."""
    require()
    from mettagrid.config.mettagrid_config import MettaGridConfig

    try:
        data = load_yaml(Path(path).read_text(encoding="utf-8"), f"mettagrid:{path}")
    except OSError as error:
        raise EnvError(
            f"`mettagrid:{path}` cannot be read: {error.strerror}.",
            f"run the command in the folder where {path} is, or give its full path",
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise EnvError(f"`mettagrid:{path}` is not YAML: {error}", "write the fields of a MettaGridConfig") from error
    if not isinstance(data, dict):
        raise EnvError(
            f"`mettagrid:{path}` holds a {type(data).__name__}, not the fields of a MettaGridConfig.",
            'write it with yaml.safe_dump(config.model_dump(mode="json"))',
        )
    try:
        return MettaGridConfig.model_validate(_replace_types(data, path))
    except (ValueError, TypeError, RecursionError) as error:
        raise EnvError(
            f"`mettagrid:{path}` is not a MettaGridConfig: {_first_errors(error)}",
            'compare it with MettaGridConfig().model_dump(mode="json")',
        ) from error


def load_yaml(text: str, name: str) -> Any:
    """The value of a YAML text; raise if its aliases make it too large or contain themselves."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        count = _count_values(node, {})
        if count > NODES:
            many = "endlessly many" if count == inf else f"{count:,}"
            raise EnvError(
                f"`{name}` holds {many} values where its aliases (`*name`) are written out, more than {NODES:,}.",
                "write it without aliases",
            )
        return loader.construct_document(node) if node is not None else None
    finally:
        loader.dispose()


def _count_values(node: Any, counted: dict[int, float]) -> float:
    """The number of values in a YAML node, those of an alias once for each use; infinite if it contains itself.

    `counted` holds the numbers of the nodes that have been counted.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in counted:
        counted[id(node)] = inf  # found by an alias within the node itself
        inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        counted[id(node)] = 1 + sum(_count_values(part, counted) for part in inner)
    return counted[id(node)]


def _replace_types(data: Any, path: str) -> Any:
    """The data with the classes that a `type` names, so that MettaGrid imports nothing."""
    if isinstance(data, list | tuple):  # YAML's !!pairs gives tuples
        return [_replace_types(part, path) for part in data]
    if not isinstance(data, dict):
        return data
    found = {key: _replace_types(part, path) for key, part in data.items()}
    named = data.get("type")
    if isinstance(named, str) and "." in named:
        module, name = TYPES.get(named, ("", ""))
        value = getattr(import_module(module), name, None) if module else None
        if value is None:
            raise EnvError(
                f"`mettagrid:{path}` names the type `{named}`, and files may only name map builders and scenes of "
                "mettagrid that read no other files.",
                "make the configuration in Python: slipstream.train(lambda: config)",
            )
        found["type"] = value.Config
    return found


def _first_errors(error: Exception) -> str:
    """The first three problems that pydantic found, or the error itself."""
    if not hasattr(error, "errors"):
        return str(error)
    listed = error.errors()
    texts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in listed[:3]]
    return "; ".join([*texts, f"{len(listed) - 3} more"] if len(listed) > 3 else texts)
