"""The games by name: built-in games, games that a module registers, and games of installed packages.

A module imported by the flag `--import` adds a game by `register`; a package adds games by the entry point group
`slipstream.envs`, in which each entry is a `Game`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import traceback
from collections import ChainMap, UserDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Any

from slipstream.contracts import EnvSpec
from slipstream.envs.adapters.declarations import ATARI, ENVPOOL, PETTINGZOO
from slipstream.envs.game import (
    OWN,
    Chooser,
    DeclaredGame,
    EnvChoice,
    Game,
    Labels,
    ScriptedPlayer,
    UserCode,
    is_declared_game,
    lazy_value,
)
from slipstream.envs.metta.declaration import METTAGRID
from slipstream.envs.rocket.declaration import ROCKET
from slipstream.envs.tiny.declaration import MIXED, PIXELS, RECALL
from slipstream.errors import ConfigError, EnvError, SlipstreamError, did_you_mean, user_frames
from slipstream.system import user_modules

__all__ = [
    "BUILT_IN",
    "MINERL_PREFIXES",
    "SINGLE_ENV_PREFIXES",
    "Chooser",
    "EnvChoice",
    "Game",
    "Labels",
    "ScriptedPlayer",
    "UserCode",
    "find_game",
    "games",
    "import_modules",
    "is_registered",
    "known",
    "labels_of",
    "load_object",
    "name_made",
    "numbered_labels",
    "package_games",
    "parse",
    "reference_opponent",
    "register",
]


class BuiltInGames(UserDict[str, Any]):
    """The built-in games; one that is named by `module:attribute` is imported when it is looked up."""

    def __getitem__(self, name: str) -> Game:
        """The game of this name."""
        game = self.data[name]
        if isinstance(game, str):
            game = self.data[name] = lazy_value(game)()
        assert isinstance(game, Game)
        return game


BUILT_IN = BuiltInGames(
    {
        "soccer": "slipstream.envs.soccer.game:SOCCER",
        "kart": "slipstream.envs.kart.game:KART",
        "recall": RECALL,
        "pixels": PIXELS,
        "mixed": MIXED,
        "atari": ATARI,
        "mettagrid": METTAGRID,  # before PettingZoo, whose API it also has: the first that recognises an env takes it
        "pettingzoo": PETTINGZOO,
        "rocket": ROCKET,
        "envpool": ENVPOOL,
        "treechop": "slipstream.envs.treechop.game:TREECHOP",
    }
)
MINERL_PREFIXES = ("minerl", "minecraft")
"""Prefixes of the games of the minerl package; both mean the same."""
SINGLE_ENV_PREFIXES = ("gymnasium", "python", *MINERL_PREFIXES)
"""Prefixes of environments that are made one at a time."""
MAX_LISTED = 12
"""Variants of a game that an error lists."""
_registered: dict[str, Game] = {}


def register(name: str, game: Game) -> None:
    """Add a game under a name of its own, for this process; workers import the modules of `--import` and add it too."""
    if name in BUILT_IN or name in SINGLE_ENV_PREFIXES or ":" in name or not name:
        raise EnvError(f"A game cannot be registered as `{name}`.", "choose a name without a colon that is not taken")
    _registered[name] = game


def register_games(games: Mapping[str, DeclaredGame]) -> None:
    """Add games that were given as Python objects."""
    for name, game in games.items():
        register(name, game.declare())


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules given by the flag `--import`, and add the native games that they define.

    The current folder is first on the path for them, and last from then on: files there replace no installed package.
    """
    for module in user_modules.names(modules):
        in_variable = user_modules.in_variable(module)
        given = f"{user_modules.VARIABLE}={module}" if in_variable else f"--import {module}"
        _check_module_name(module, given, in_variable)
        while "" in sys.path:
            sys.path.remove("")
        sys.path.insert(0, "")
        try:
            found = importlib.import_module(module)
            user_modules.allow(module)
            register_games({one.name: one for one in vars(found).values() if is_declared_game(one)})
        except SlipstreamError:
            raise
        except (Exception, SystemExit) as error:  # the user's module can raise anything
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                raise ConfigError(f"{given}: {error}", _not_found_hint(in_variable)) from error
            what = "".join(traceback.format_exception_only(error)).strip()
            frames = user_frames(error)
            raise ConfigError(
                f"{given} failed: {what}" + (f"\n{frames}" if frames else ""), "fix the module"
            ) from error
        finally:
            while "" in sys.path:
                sys.path.remove("")
            sys.path.append("")


def _not_found_hint(in_variable: bool) -> str:
    more = f", or change the variable {user_modules.VARIABLE}"
    return "name a module that Python finds from the current folder" + (
        more if in_variable else "; repeat the flag for several modules"
    )


def _check_module_name(module: str, given: str, in_variable: bool) -> None:
    """Raise for what is not the name of a module: a file, or several names."""
    if "," in module:
        several = [name for name in module.split(",") if name]
        flags = " ".join(f"--import {name}" for name in several)
        raise ConfigError(
            f"{given} is not the name of a module.",
            f"separate several modules by spaces: {user_modules.VARIABLE}='{' '.join(several)}'"
            if in_variable
            else f"repeat the flag: {flags}; in Python modules={several!r}",
        )
    path = PurePath(module.replace("\\", "/").removesuffix(".py"))
    if module.endswith(".py") or module.startswith(".") or "/" in module or "\\" in module:
        outside = path.is_absolute() or ".." in path.parts
        name = path.name if outside else ".".join(path.parts).lstrip(".")
        write = f"{user_modules.VARIABLE}={name}" if in_variable else f"--import {name}"
        where = f" in the folder {path.parent}" if outside else ""
        raise ConfigError(f"{given} names a file, not a module.", f"write {write}{where}")


def load_object(text: str, modules: Sequence[str], flag: str) -> Any:
    """The object that `MODULE:NAME` names; only a module given by `--import` is imported."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{flag} {text} does not name an object.", f"write {flag} MODULE:NAME --import MODULE")
    if module not in modules:
        raise ConfigError(
            f"{flag} {text} names the module `{module}`, which is not imported.",
            f"add --import {module} (in Python: modules=[{module!r}])",
        )
    import_modules((module,))
    known = vars(sys.modules[module])
    if name not in known:
        names = [key for key in known if not key.startswith("_")]
        raise ConfigError(f"{flag} {text}: `{module}` has no `{name}`.{did_you_mean(name, names)}", "check the name")
    return known[name]


def reference_opponent(choice: EnvChoice) -> str:
    """The agent that training is measured against: `random` if scripted players cannot read the observation."""
    game = parse(choice.name)[0]
    if game is None or not game.reference:
        return ""
    return "random" if choice.observation is not None else game.reference


def games() -> Mapping[str, Game]:
    """Every game that steps in batches, by name."""
    return ChainMap(package_games(), _registered, BUILT_IN)


@functools.cache
def package_games() -> dict[str, Game]:
    """The games of installed packages; the entry points are read once per process, which is slow."""
    found = {}
    for entry in entry_points(group="slipstream.envs"):
        loaded = entry.load()
        game = loaded.declare() if is_declared_game(loaded) else loaded
        if not isinstance(game, Game):
            raise EnvError(f"The entry point `{entry.name}` of slipstream.envs is not a Game.", "fix that package")
        found[entry.name] = game
    return found


def find_game(name: str) -> Game | None:
    """The game of an environment such as `soccer:2v2`; None where there is none, as for Gymnasium environments."""
    return games().get((_made_game(name) or name).partition(":")[0])


def name_made(made: Any) -> str:
    """The name of an environment that a Python function made, or of a class of them.

    It is `python:GAME/NAME` where a game recognises it, such as `python:pettingzoo/simple_tag_v3`, else `python:CLASS`.
    """
    for head, game in games().items():
        own = game.recognise(made) if game.recognise is not None else ""
        if own:
            return f"python:{head}/{own}"
    return f"python:{(made if inspect.isclass(made) else type(made)).__name__}"


def _made_game(name: str) -> str:
    """`GAME:NAME` for an env `python:GAME/NAME`, which a Python function makes; empty for other names."""
    head, _, rest = name.partition(":")
    game, slash, own = rest.partition("/")
    return f"{game}:{own}" if head == "python" and slash else ""


def labels_of(spec: EnvSpec) -> Labels:
    """The names of an environment's actions and observation columns: the game's own, or numbered ones."""
    game, action, obs = find_game(spec.name), spec.action, spec.obs
    if game is None or game.labels is None:
        return numbered_labels(spec)
    labels = game.labels(spec)
    sizes = tuple(len(names) for names in labels.options)
    if (len(labels.parts), sizes, len(labels.obs)) != (action.parts, action.sizes, obs.floats):
        raise EnvError(
            f"The labels of `{spec.name}` name {len(labels.parts)} action parts, {sizes} options and {len(labels.obs)} "
            f"observation columns; it has {action.parts}, {action.sizes} and {obs.floats}.",
            "fix `Game.labels`",
        )
    return labels


def numbered_labels(spec: EnvSpec) -> Labels:
    """Labels for an environment that declares none: numbers, behind the field's name where a field has one."""
    columns: list[str] = []
    for obs_field in spec.obs.fields:
        if obs_field.kind == "vector":
            (size,) = obs_field.shape
            name = obs_field.name or "obs"
            columns += [name] if size == 1 else [f"{name}.{column}" for column in range(size)]
    options = tuple(tuple(str(option) for option in range(size)) for size in spec.action.sizes)
    return Labels(tuple(f"action.{part}" for part in range(spec.action.parts)), options, tuple(columns))


def known(name: str) -> bool:
    """Whether an environment of this name can be made; imported demos may carry any name."""
    try:
        parse(name)
    except EnvError:
        return False
    return True


def is_registered(name: str) -> bool:
    """Whether the environment of this name exists here; unlike `known`, also whether Gymnasium has it."""
    head, _, variant = name.partition(":")
    if head != "gymnasium":
        return known(name)
    import gymnasium

    return variant in gymnasium.registry


def _near_variants(variant: str, variants: Sequence[str]) -> Sequence[str]:
    """The variants that an error lists: all, or the most similar of many."""
    if len(variants) <= MAX_LISTED:
        return variants
    lower = {one.lower(): one for one in variants}
    return [lower[one] for one in difflib.get_close_matches(variant.lower(), lower, n=3, cutoff=0.7)]


def parse(name: str) -> tuple[Game | None, str]:
    """Split `soccer:2v2` into its game and variant; Gymnasium's and MineRL's have no Game, their variant is the id.

    The variant of an env `python:GAME/NAME` is NAME.
    """
    made = _made_game(name)
    head, colon, variant = (made or name).partition(":")
    if head in SINGLE_ENV_PREFIXES and variant:
        return None, variant
    listed = games()
    if head == "rlgym":
        raise EnvError(
            "RLGym's environments are made in Python: ss.train(lambda: RLGym(...)).",
            "for Rocket League without RLGym use `rocket`; see docs/guides/rocket.md",
        )
    if head not in listed:
        near = did_you_mean(head, [*listed, *SINGLE_ENV_PREFIXES])
        hint = f"for a Gymnasium env write gymnasium:{name}; `slipstream envs` lists what there is"
        raise EnvError(f"There is no environment `{name}`.{near}", hint)
    game = listed[head]
    own = bool(made) or variant.endswith(game.files)
    if colon and not own and variant not in game.variants and not (game.open_variants and variant):
        listed_variants = ", ".join(f"{head}:{one}" for one in _near_variants(variant, game.variants))
        more = f", or {head}:FILE{game.files[0]}" if game.files else ""
        if variant in game.stages:
            raise EnvError(f"`{variant}` is a task of `{head}`, not a variant.", f"--set env.target={variant}")
        if not any(game.variants):
            raise EnvError(f"`{head}` has no variants.", f"write {head}")
        raise EnvError(
            f"`{head}` has no variant `{variant}`.{did_you_mean(variant, game.variants)}",
            (f"use one of: {listed_variants}" if listed_variants else f"there are {len(game.variants)}")
            + (more if len(game.variants) <= MAX_LISTED else "; `slipstream envs` lists all of them"),
        )
    variant = variant or game.variants[0]
    fields = game.variant_fields.get(OWN if own else variant)
    return (replace(game, **fields) if fields else game), variant
