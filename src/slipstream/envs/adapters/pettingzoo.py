"""PettingZoo games as rows, by name or made by a Python function: turn-based (AEC) or parallel, one row per player.

In turn-based games only the row of the player to move is active; rewards of the other players belong to their last
action. Players with different spaces share one row layout: shorter observations are padded with zeros, missing actions
are masked, and a one-hot of the player's type follows the observation.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import iter_modules
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.adapters.action_spaces import action_decoder, action_spec
from slipstream.envs.adapters.adapter_vector import made_in_python
from slipstream.envs.adapters.multi_agent import Encoder, MultiAgentEnvs
from slipstream.envs.adapters.observation_spaces import obs_encoder, obs_spec
from slipstream.envs.game import EnvChoice
from slipstream.errors import ConfigError, EnvError, did_you_mean

PACKAGES = ("pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl", "pettingzoo.atari", "mpe2")
"""The packages that are searched for games; nothing else is imported by name."""
INSTALL = 'pip install "slipstream[pettingzoo]"'


def find_module(name: str) -> Any:
    """The module of a game, by its name with or without a version; the default is the newest version."""
    found: dict[str, str] = {}
    missing = ""
    for package in PACKAGES:
        try:
            inside = importlib.import_module(package)
        except ImportError as error:
            missing = missing or str(error)
            continue
        found |= {module.name: package for module in iter_modules(inside.__path__) if re.search(r"_v\d+$", module.name)}
        found |= {word: package for word in getattr(inside, "__all__", ()) if re.search(r"_v\d+$", word)}
    if not found:
        raise EnvError(f"`pettingzoo:{name}` needs PettingZoo: {missing}.", INSTALL)
    fitting = sorted((word for word in found if name in (word, _stem(word))), key=_version, reverse=True)
    if not fitting:
        near = did_you_mean(name, sorted({_stem(word) for word in found}))
        raise EnvError(f"PettingZoo has no game `{name}`.{near}", "see pettingzoo.farama.org for a list")
    try:
        return importlib.import_module(f"{found[fitting[0]]}.{fitting[0]}")
    except ImportError as error:
        raise EnvError(
            f"`pettingzoo:{name}` cannot be imported: {error}.", f"{INSTALL}, or the package named in the error"
        ) from error


def _stem(name: str) -> str:
    return re.sub(r"_v\d+$", "", name)


def _version(name: str) -> int:
    return int(name.rpartition("_v")[2])


def recognise(made: Any) -> str:
    """The name of a PettingZoo env, or of a class of them; empty for anything else."""
    cls = made if inspect.isclass(made) else type(made)
    if not _has_base(cls, "ParallelEnv", "AECEnv"):
        return ""
    metadata = getattr(made, "metadata", None)
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return re.sub(r"[^\w.-]+", "-", name if isinstance(name, str) and name else cls.__name__)


def _has_base(cls: type, *names: str) -> bool:
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == "pettingzoo" for base in inspect.getmro(cls)
    )


class PettingZooGame:
    """One PettingZoo env behind the `MultiAgentGame` protocol."""

    def __init__(self, env: Any, label: str) -> None:
        self.turns = _has_base(type(env), "AECEnv")
        self.env, self._label = env, label
        self.players: list[Any] = list(getattr(env, "possible_agents", ()))
        if not self.players:
            raise EnvError(
                f"`{label}` does not list its agents.", "set `possible_agents` to the names of all agents in __init__"
            )
        self.acting: list[Any] = []
        self._last: dict[Any, Any] = {}
        """The last observation of each player of a parallel game, and of truncated players of a turn-based one."""
        self._parallel_infos: Mapping[Any, Any] = {}
        """The infos of a parallel game; a turn-based env keeps its own."""

    def observation_space(self, player: Any) -> spaces.Space[Any]:
        """The observation space of a player, without the action mask."""
        space: Any = self.env.observation_space(player)
        found: spaces.Space[Any] = space["observation"] if _is_masked(space) else space
        return found

    def is_masked(self) -> bool:
        """Whether the game gives action masks, in its observations or in its infos."""
        if any(_is_masked(self.env.observation_space(player)) for player in self.players):
            return True
        self.reset(0)
        if any("action_mask" in self._infos.get(player, {}) for player in self.players):
            return True
        return any(self.observe(player)[1] is not None for player in self.acting)

    def reset(self, seed: int | None) -> None:
        """Start a game."""
        if self.turns:
            self._last.clear()
            self.env.reset(seed=seed)
            self._set_acting([self.env.agent_selection])
        else:
            self._last, self._parallel_infos = self.env.reset(seed=seed)
            self._last = dict(self._last)
            self._set_acting(self.env.agents)

    def step(self, actions: Mapping[Any, Any]) -> tuple[Mapping[Any, float], Mapping[Any, bool], Mapping[Any, bool]]:
        """Step with the actions of the acting players; returns rewards, terminations and truncations."""
        if not self.turns:
            observations, rewards, terminations, truncations, self._parallel_infos = self.env.step(dict(actions))
            self._last |= observations
            self._set_acting(self.env.agents)
            self._check_known([*rewards, *truncations])
            return rewards, terminations, truncations
        env = self.env
        env.step(actions[self.acting[0]])
        self._keep_truncated()
        rewards, terminations, truncations = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        while env.agents and not self._all_over():
            if not (terminations.get(env.agent_selection) or truncations.get(env.agent_selection)):
                break
            env.step(None)
            self._keep_truncated()
            for player, more in env.rewards.items():
                rewards[player] = rewards.get(player, 0.0) + more
            terminations |= env.terminations
            truncations |= env.truncations
        self._set_acting([] if not env.agents or self._all_over() else [env.agent_selection])
        self._check_known([*rewards, *truncations])
        return rewards, terminations, truncations

    def observe(self, player: Any) -> tuple[Any, Any]:
        """The observation of a player and its action mask; None if all actions are allowed.

        A player that is not in the game has its last observation, or zeros.
        """
        if self.turns:
            obs = self.env.observe(player) if player in self.env.agents else self._last.get(player)
        else:
            obs = self._last.get(player)
        if obs is None:
            return _blank(self.observation_space(player)), None
        if isinstance(obs, Mapping) and "action_mask" in obs:
            return obs["observation"], obs["action_mask"]
        return obs, self._infos.get(player, {}).get("action_mask")

    def info(self, player: str) -> dict[str, Any]:
        """The game's info of a player, with the player's name as `agent`."""
        return {"agent": player, **self._infos.get(player, {})}

    def winner(self) -> int | None:
        """None: PettingZoo games do not report a winner."""
        return None

    def close(self) -> None:
        """Close the game."""
        self.env.close()

    @property
    def _infos(self) -> Mapping[Any, Any]:
        found: Mapping[Any, Any] = self.env.infos if self.turns else self._parallel_infos
        return found

    def _set_acting(self, players: Sequence[Any]) -> None:
        self.acting = list(players)
        self._check_known(self.acting)

    def _keep_truncated(self) -> None:
        """Keep the observations of truncated players, which leave a turn-based game with their next turn."""
        self._last |= {player: self.env.observe(player) for player in self.env.agents if self.env.truncations[player]}

    def _check_known(self, players: Iterable[Any]) -> None:
        new = [str(player) for player in players if player not in self.players]
        if new:
            raise EnvError(
                f"`{self._label}` has agents that are not in its `possible_agents`: {', '.join(new)}.",
                "list all agents that can ever be in the game in `possible_agents`",
            )

    def _all_over(self) -> bool:
        env = self.env
        return all(env.terminations[player] or env.truncations[player] for player in env.agents)


def _blank(space: spaces.Space[Any]) -> Any:
    """An observation of a player that is not in the game: zeros, or the first option."""
    if isinstance(space, spaces.Dict):
        return {key: _blank(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_blank(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype) + getattr(space, "start", 0)


def takes_turns(env: Any) -> bool:
    """Whether an AEC env is turn-based, and not a parallel game behind the AEC interface."""
    return not env.metadata.get("is_parallelizable", False)


def _is_masked(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and "action_mask" in space.spaces and "observation" in space.spaces


class PettingZoo(MultiAgentEnvs):
    """`envs` games of one kind, each of which `make_env` makes; `label` is the name of the environment."""

    def __init__(
        self,
        label: str,
        make_env: Callable[[], Any],
        envs: int,
        *,
        first: int = 0,
        seed: int = 0,
        choice: EnvChoice | None = None,
    ) -> None:
        games = [PettingZooGame(make_env(), label) for _ in range(envs)]
        types = [re.sub(r"_?\d+$", "", str(player)) for player in games[0].players]
        teams = list(map(str, games[0].players)) if games[0].turns else types
        self._first_game = games[0]
        type_numbers = np.array([sorted(set(types)).index(one) for one in types])
        super().__init__(games, *_layout(label, games[0], type_numbers, teams), first, seed, choice)

    @property
    def render_fps(self) -> float | None:
        """The images per second that the game declares."""
        found = self._first_game.env.metadata.get("render_fps")
        return float(found) if found else None

    def render(self) -> Any:
        """Return what the first game's `render` returns."""
        return self._first_game.env.render()


class ActionDecoder:
    """Decodes one player's action."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._decode = action_decoder(space)
        self.options = sum(action_spec(space, "").sizes)

    def __call__(self, action: Array) -> list[Any]:
        """A list with one action."""
        return self._decode(action)


def _layout(
    label: str, game: PettingZooGame, types: Array, player_teams: Sequence[str]
) -> tuple[EnvSpec, list[Encoder], list[ActionDecoder]]:
    """The common row layout of all players, and the observation encoder and action decoder of each."""
    obs_spaces = [game.observation_space(player) for player in game.players]
    action_spaces = [game.env.action_space(player) for player in game.players]
    specs = [obs_spec(space, label) for space in obs_spaces]
    actions = [action_spec(space, label) for space in action_spaces]
    masked = game.is_masked()
    alike = all(spec == specs[0] for spec in specs) and len(set(actions)) == 1
    if not alike and not all(spec.plain for spec in specs):
        raise EnvError(
            f"The players of `{label}` have different image observations.", "use a game with equal observations"
        )
    action, obs = actions[0], specs[0]
    if not alike:
        if len(set(actions)) > 1:
            if any(one.kind != "discrete" for one in actions):
                raise EnvError(
                    f"The players of `{label}` have different action spaces.", "use a game where all are Discrete"
                )
            action, masked = ActionSpec("discrete", (max(one.sizes[0] for one in actions),)), True
        obs = vector_obs(max(spec.width for spec in specs) + int(types.max()) + 1)
    if masked:
        action = replace(action, masked=True)
    teams = tuple(list(dict.fromkeys(player_teams)).index(team) for team in player_teams)
    own = (obs_spaces[0], action_spaces[0])
    same = alike and all(pair == own for pair in zip(obs_spaces, action_spaces, strict=True))
    spec = EnvSpec(label, obs, action, teams=teams, absences=True, spaces=own if same else None)
    type_columns = [None if alike else int(number) for number in types]
    encoders = [_encoder(space, column) for space, column in zip(obs_spaces, type_columns, strict=True)]
    return spec, encoders, [ActionDecoder(space) for space in action_spaces]


def _encoder(space: spaces.Space[Any], player_type: int | None) -> Encoder:
    """A function that writes an observation into a row, followed by a one-hot of the player's type if given."""
    plain = obs_encoder(space)
    width = obs_spec(space, "").width

    def write(obs: Any, row: Array) -> None:
        own = row[:width]
        if plain is None:
            own[:] = obs
        else:
            plain(obs, own)
        if player_type is not None:
            row[width:] = 0
            row[row.size - 1 - player_type] = 1

    return write


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> PettingZoo:
    """Make games of one kind from the settings: those of a name, or those that a Python function makes."""
    options = choice.env.options
    label = choice.name
    if not label.startswith("python:"):
        label, make_env = f"pettingzoo:{variant}", _find_maker(variant, options)
    elif choice.factory is None:
        raise made_in_python(label)
    elif options:
        raise ConfigError(
            f"`env.options` = {dict(options)} does not apply to an environment that a Python function makes.",
            "give the arguments in that function",
        )
    else:
        make_env = partial(_make_own, label, choice.factory)
    return PettingZoo(label, make_env, envs, first=first, seed=seed, choice=choice)


def _find_maker(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    """A function that makes the game of a name."""
    module = find_module(name)

    def make_env() -> Any:
        try:
            return maker(**options)
        except TypeError as error:
            raise ConfigError(
                f"`env.options` of pettingzoo:{name}: {error}.", "see the game's own arguments"
            ) from error

    maker = module.env
    in_turn = True
    if hasattr(module, "parallel_env"):
        with contextlib.closing(make_env()) as env:
            in_turn = takes_turns(env)
    # raw_env: without the checking wrappers
    maker = getattr(module, "raw_env", module.env) if in_turn else module.parallel_env
    return make_env


def _make_own(label: str, factory: Callable[[], Any]) -> Any:
    """The env that a function makes, with the parallel API if its agents act at the same time."""
    env = factory()
    if not recognise(env):
        raise EnvError(
            f"The function of `{label}` made a {type(env).__name__}, which is not a PettingZoo env.",
            "return the same kind of environment as when the run was started",
        )
    if _has_base(type(env), "AECEnv") and not takes_turns(env):
        return importlib.import_module("pettingzoo.utils.conversions").aec_to_parallel(env)
    return env
