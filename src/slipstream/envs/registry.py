"""The games there are, by name: the built-in ones, Gymnasium's, and those that other packages bring.

A package brings a game through the entry point group `slipstream.envs`: each entry is a `Game`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from slipstream.contracts import Array, Vector, choose_target
from slipstream.errors import ConfigError, EnvError, did_you_mean
from slipstream.settings import EnvSettings, RewardSettings

if TYPE_CHECKING:
    from slipstream.envs.rewards import Scheme

Scripted = Callable[[Array, str, Array], None]
"""Writes actions for observations [rows, obs], given the kind of action asked for."""
Chooser = Callable[[Array], Array]
"""Says which options [rows, options] are worth taking, for observations [rows, obs]; one of them is drawn."""


def import_modules(modules: Sequence[str]) -> None:
    """Import what the user named by the flag `--import`."""
    for module in modules:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"--import {module}: {error}", "name a module that Python finds from the current folder"
            ) from error


ATARI_GAMES = (
    "Pong", "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "BankHeist", "BattleZone", "BeamRider",
    "Berzerk", "Bowling", "Boxing", "Breakout", "Centipede", "ChopperCommand", "CrazyClimber", "Defender",
    "DemonAttack", "DoubleDunk", "Enduro", "FishingDerby", "Freeway", "Frostbite", "Gopher", "Gravitar", "Hero",
    "IceHockey", "Jamesbond", "Kangaroo", "Krull", "KungFuMaster", "MontezumaRevenge", "MsPacman", "NameThisGame",
    "Phoenix", "Pitfall", "PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank", "Seaquest", "Skiing",
    "Solaris", "SpaceInvaders", "StarGunner", "Surround", "Tennis", "TimePilot", "Tutankham", "UpNDown", "Venture",
    "VideoPinball", "WizardOfWor", "YarsRevenge", "Zaxxon",
)  # fmt: skip
"""What may be played as `atari:NAME`."""


LIVE = ("minerl", "minecraft")
"""What may stand before a game of the minerl package; both are the same."""
SINGLE = ("gymnasium", "python", *LIVE)
"""What may stand before the name of an environment that is made one at a time."""


@dataclass(frozen=True)
class EnvChoice:
    """Which environment, with which settings: all that a process needs to make it."""

    name: str
    env: EnvSettings = field(default_factory=EnvSettings)
    rewards: RewardSettings = field(default_factory=RewardSettings)
    modules: tuple[str, ...] = ()
    """Modules named by the flag `--import`, imported before the env is made."""
    factory: Callable[[], Any] | None = None
    """Makes a Python environment that has no name."""
    terms: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    """A user's own reward terms."""
    native: bool = False
    """Whether the vector env that is registered for it steps it."""
    gamma: float = 0.99
    """The learner's discount per step, by which potentials are paid; `rewards.half_life_s` goes before it."""


@dataclass(frozen=True)
class Game:
    """A game that steps as a native batch."""

    summary: str
    variants: tuple[str, ...]
    """What may stand behind the colon; the first is the default."""
    make: Callable[[EnvChoice, str, int, int, int], Vector]
    """(choice, variant, envs, first env, seed) -> vector."""
    open: bool = False
    """Whether there are more variants than are listed: whoever makes the game knows them."""
    scripted: Mapping[str, Scripted] = field(default_factory=dict)
    choosers: Mapping[str, Chooser] = field(default_factory=dict)
    """Scripted players that leave some of it to chance."""
    reference: str = ""
    """The scripted player that training is measured against."""
    opponents: tuple[str, ...] = ()
    """The scripted players that `run` measures the result against."""
    preset: str = ""
    """The preset that holds the game's own defaults."""
    expert: str = ""
    """The scripted player that `run` records and clones first."""
    stages: tuple[str, ...] = ()
    """The curriculum's own stages, easiest first, as `TASK` or `TASK vs AGENT`; a variant has those of its tasks."""
    scheme: Callable[[], Scheme] | None = None
    """What the game says about its reward terms."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a variant has that the others have not, by variant and name of a field."""

    @property
    def players(self) -> list[str]:
        """Names of all scripted players."""
        return [*self.scripted, *self.choosers]


def _driven(choice: EnvChoice, first: int, seed: int) -> dict[str, Any]:
    """What the games of cars have in common."""
    return {
        "seed": seed,
        "first": first,
        "action_repeat": choice.env.action_repeat or 4,
        "actions": choice.env.actions,
        "random_starts": choice.env.random_starts,
        "target": choice.env.target,
        "rewards": choice.rewards,
        "gamma": choice.gamma,
        "extra_terms": choice.terms,
    }


def _make_soccer(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Vector:
    from slipstream.envs.soccer.game import Soccer

    mixed = variant == "mixed"
    size = 3 if mixed else int(variant[0])
    driven = _driven(choice, first, seed)
    return Soccer(envs, team_size=size, mixed=mixed, match_seconds=choice.env.match_seconds, **driven)


def _scripted(game: str, name: str) -> Scripted:
    def act(obs: Array, kind: str, out: Array) -> None:
        importlib.import_module(f"slipstream.envs.{game}.scripted").act(name, obs, kind, out)

    return act


def _scheme(game: str) -> Callable[[], Scheme]:
    def load() -> Scheme:
        found: Scheme = importlib.import_module(f"slipstream.envs.{game}.rewards").SCHEME
        return found

    return load


SOCCER = Game(
    summary="car soccer, 1v1 to 3v3: boost, drift, bounce, score",
    variants=("1v1", "2v2", "3v3", "mixed"),
    make=_make_soccer,
    scripted={name: _scripted("soccer", name) for name in ("chaser", "keeper", "rule")},
    reference="scripted:rule",
    opponents=("scripted:chaser", "scripted:rule"),
    preset="soccer",
    expert="scripted:rule",
    stages=(
        "1v1 vs scripted:chaser",
        "1v1 vs scripted:rule",
        "2v2 vs scripted:rule",
        "3v3 vs scripted:rule",
        "3v3",
    ),
    scheme=_scheme("soccer"),
)


def _make_kart(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Vector:
    from slipstream.envs.kart.game import Kart, difficulty_range

    difficulty = difficulty_range(variant, choice.env.options)
    return Kart(
        envs, difficulty=difficulty, variant=variant, limit_seconds=choice.env.match_seconds,
        **_driven(choice, first, seed),
    )  # fmt: skip


KART = Game(
    summary="a lap against the clock, on a new track every time",
    variants=("mixed", "easy", "hard"),
    make=_make_kart,
    scripted={name: _scripted("kart", name) for name in ("expert", "cruiser")},
    preset="kart",
    expert="scripted:expert",
    stages=("level 1", "level 2", "level 3", "level 4", "level 5"),
    scheme=_scheme("kart"),
)


def _make_tiny(module: str) -> Callable[[EnvChoice, str, int, int, int], Vector]:
    def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Vector:
        game = importlib.import_module(f"slipstream.envs.tiny.{module}")
        made: Vector = game.make(variant, envs, first=first, seed=seed)
        choose_target(made.spec.name, made.spec.tasks, (), choice.env.target)
        return made

    return make


def _oracle(module: str) -> Scripted:
    def act(obs: Array, kind: str, out: Array) -> None:
        importlib.import_module(f"slipstream.envs.tiny.{module}").oracle(obs, kind, out)

    return act


RECALL = Game(
    summary="a cue, a wait and a question, for policies with memory",
    variants=("8", "2", "32", "masked"),
    make=_make_tiny("recall"),
)
PIXELS = Game(
    summary="name the quarter of the image that has the bright square",
    variants=("12", "84"),
    make=_make_tiny("pixels"),
    scripted={"oracle": _oracle("pixels")},
)
MIXED = Game(
    summary="three questions about an image, a vector and tokens",
    variants=("multi", "continuous", "team"),
    make=_make_tiny("mixed"),
    scripted={"oracle": _oracle("mixed")},
)


def _make_by(module: str) -> Callable[[EnvChoice, str, int, int, int], Vector]:
    """A game whose module, imported when it is wanted, makes it."""

    def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Vector:
        made: Vector = importlib.import_module(f"slipstream.envs.{module}").make(choice, variant, envs, first, seed)
        return made

    return make


ATARI = Game(
    summary="Atari games by ALE (needs the extra `atari`)", variants=ATARI_GAMES, make=_make_by("adapters.atari")
)


def _lookahead(height: int, width: int, need: int, falls: bool) -> Mapping[str, Any]:
    def choose(obs: Array) -> Array:
        mask: Array = importlib.import_module("slipstream.envs.lookahead").looker(height, width, need, falls)(obs)
        return mask

    names = ("scripted:lookahead",)
    return {"choosers": {"lookahead": choose}, "reference": names[0], "opponents": names}


PETTINGZOO = Game(
    summary="games of PettingZoo, in turn or all at once (needs the extra `pettingzoo`)",
    variants=(
        "connect_four", "tictactoe", "rps", "chess", "go", "gin_rummy", "hanabi", "leduc_holdem", "texas_holdem",
        "texas_holdem_no_limit", "simple_tag", "simple", "simple_adversary", "simple_crypto", "simple_push",
        "simple_reference", "simple_speaker_listener", "simple_spread", "simple_world_comm", "cooperative_pong",
        "knights_archers_zombies", "pistonball", "multiwalker", "pursuit", "waterworld",
    ),
    make=_make_by("adapters.pettingzoo"),
    reference="random",
    opponents=("random",),
    own={"connect_four": _lookahead(6, 7, 4, True), "tictactoe": _lookahead(3, 3, 3, False)},
)  # fmt: skip


ENVPOOL = Game(
    summary="games of EnvPool, stepped by its own threads (needs the extra `envpool`)",
    variants=(
        "CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3", "Pong-v5", "Breakout-v5", "HalfCheetah-v4",
        "MiniGrid-Empty-5x5-v0", "ConnectFour-v1", "Othello-v1", "Go9x9-v1", "Chess-v1", "KuhnPoker-v1",
    ),
    make=_make_by("adapters.envpool"),
    open=True,
)  # fmt: skip


ROCKET = Game(
    summary="Rocket League by RocketSim, 1v1 to 3v3 (needs the extra `rocket`)",
    variants=("1v1", "2v2", "3v3", "mixed"),
    make=_make_by("rocket.game"),
    scripted={name: _scripted("rocket", name) for name in ("driver", "idle")},
    reference="scripted:driver",
    opponents=("scripted:idle", "scripted:driver"),
    preset="rocket",
    expert="scripted:driver",
    stages=(
        "1v1 vs scripted:idle",
        "1v1 vs scripted:driver",
        "2v2 vs scripted:driver",
        "3v3 vs scripted:driver",
        "3v3",
    ),
    scheme=_scheme("rocket"),
)


METTAGRID = Game(
    summary="MettaGrid: agents by the dozen gather hearts (needs the extra `mettagrid`)",
    variants=("arena", "chain", "crowd"),
    make=_make_by("metta.game"),
    scripted={"walker": _scripted("metta", "walker")},
    preset="mettagrid",
    expert="scripted:walker",
)


TREECHOP = Game(
    summary="gather logs with an axe, seen through the player's eyes: MineRLTreechop's spaces",
    variants=("dense", "medium", "sparse", "mixed"),
    make=_make_by("treechop.game"),
    scripted={"lumberjack": _scripted("treechop", "lumberjack")},
    preset="treechop",
    expert="scripted:lumberjack",
    stages=("dense", "medium", "sparse"),
    scheme=_scheme("treechop"),
)


def games() -> dict[str, Game]:
    """Every native game by name."""
    found = {"soccer": SOCCER, "kart": KART, "recall": RECALL, "pixels": PIXELS, "mixed": MIXED, "atari": ATARI}
    found |= {
        "pettingzoo": PETTINGZOO,
        "rocket": ROCKET,
        "mettagrid": METTAGRID,
        "envpool": ENVPOOL,
        "treechop": TREECHOP,
    }
    return found | brought()


@functools.cache
def brought() -> dict[str, Game]:
    """The games that other packages bring; all packages are looked through once, which takes a while."""
    found = {}
    for entry in entry_points(group="slipstream.envs"):
        game = entry.load()
        if not isinstance(game, Game):
            raise EnvError(f"The entry point `{entry.name}` of slipstream.envs is not a Game.", "fix that package")
        found[entry.name] = game
    return found


def known(name: str) -> bool:
    """Whether an environment of this name can be made; imported demos may name any."""
    try:
        parse(name)
    except EnvError:
        return False
    return True


def parse(name: str) -> tuple[Game | None, str]:
    """Split `soccer:2v2` into game and variant; Gymnasium's and MineRL's have no Game, their variant is the id."""
    head, colon, variant = name.partition(":")
    if head in SINGLE and variant:
        return None, variant
    known = games()
    if head == "rlgym":
        raise EnvError(
            "RLGym's environments are made in Python: ss.train(lambda: RLGym(...)).",
            "for Rocket League without RLGym use `rocket`; see docs/guides/rocket.md",
        )
    if head not in known:
        near = did_you_mean(head, [*known, *SINGLE])
        hint = f"for a Gymnasium env write gymnasium:{name}; `slipstream envs` lists what there is"
        raise EnvError(f"There is no environment `{name}`.{near}", hint)
    game = known[head]
    if colon and variant not in game.variants and not (game.open and variant):
        raise EnvError(
            f"`{head}` has no variant `{variant}`.{did_you_mean(variant, game.variants)}",
            f"use one of: {', '.join(f'{head}:{v}' for v in game.variants)}",
        )
    variant = variant or game.variants[0]
    return replace(game, **game.own[variant]) if variant in game.own else game, variant
