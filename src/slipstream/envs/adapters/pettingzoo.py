"""PettingZoo games as rows: turn-based (AEC) or parallel, one row per player.

In turn-based games only the row of the player to move is active; rewards of the other players belong to their last
action. Players with different spaces share one row layout: shorter observations are padded with zeros, missing actions
are masked, and a one-hot of the player's type follows the observation.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pkgutil import iter_modules
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.adapters.action_spaces import action_decoder, action_spec
from slipstream.envs.adapters.multi_agent import Encoder, MultiAgentEnvs
from slipstream.envs.adapters.observation_spaces import obs_encoder, obs_spec
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


class PettingZooGame:
    """One PettingZoo game behind the `MultiAgentGame` protocol."""

    def __init__(self, module: Any, turns: bool, options: Mapping[str, Any]) -> None:
        self.turns = turns
        make = (
            getattr(module, "raw_env", module.env) if turns else module.parallel_env
        )  # raw_env: without the checking wrappers
        self.env = make(**options)
        self.players: list[str] = list(self.env.possible_agents)

    def observation_space(self, player: str) -> spaces.Space[Any]:
        """The observation space of a player, without the action mask."""
        space: Any = self.env.observation_space(player)
        found: spaces.Space[Any] = space["observation"] if _is_masked(space) else space
        return found

    def reset(self, seed: int | None) -> None:
        """Start a game."""
        if self.turns:
            self.env.reset(seed=seed)
            self.acting = [self.env.agent_selection]
        else:
            self.observations, self.infos = self.env.reset(seed=seed)
            self.acting = list(self.env.agents)

    def step(self, actions: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, bool], Mapping[str, bool]]:
        """Step with the actions of the acting players; returns rewards, terminations and truncations."""
        if not self.turns:
            self.observations, rewards, over, cut, self.infos = self.env.step(actions)
            self.acting = list(self.env.agents)
            return rewards, over, cut
        env = self.env
        env.step(actions[self.acting[0]])
        rewards, over, cut = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        while env.agents and not self._all_over() and (over.get(env.agent_selection) or cut.get(env.agent_selection)):
            env.step(None)
            for player, more in env.rewards.items():
                rewards[player] = rewards.get(player, 0.0) + more
            over |= env.terminations
            cut |= env.truncations
        self.acting = [] if not env.agents or self._all_over() else [env.agent_selection]
        return rewards, over, cut

    def observe(self, player: str) -> tuple[Any, Any]:
        """The observation of a player and its action mask; None if all actions are allowed."""
        obs = self.env.observe(player) if self.turns else self.observations[player]
        if isinstance(obs, Mapping) and "action_mask" in obs:
            return obs["observation"], obs["action_mask"]
        infos = self.env.infos if self.turns else self.infos
        return obs, infos.get(player, {}).get("action_mask")

    def winner(self) -> int | None:
        """None: PettingZoo games do not report a winner."""
        return None

    def close(self) -> None:
        """Close the game."""
        self.env.close()

    def _all_over(self) -> bool:
        env = self.env
        return all(env.terminations[player] or env.truncations[player] for player in env.agents)


def takes_turns(module: Any, options: Mapping[str, Any]) -> bool:
    """Whether the game is turn-based, and not a parallel game behind the AEC interface."""
    if not hasattr(module, "parallel_env"):
        return True
    made = module.env(**options)
    in_turn = not made.metadata.get("is_parallelizable", False)
    made.close()
    return in_turn


def _is_masked(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and "action_mask" in space.spaces and "observation" in space.spaces


class PettingZoo(MultiAgentEnvs):
    """`envs` games of one kind."""

    def __init__(
        self, name: str, envs: int, *, first: int = 0, seed: int = 0, options: Mapping[str, Any] | None = None
    ) -> None:
        module = find_module(name)
        try:
            turns = takes_turns(module, options or {})
            games = [PettingZooGame(module, turns, options or {}) for _ in range(envs)]
        except TypeError as error:
            raise ConfigError(
                f"`env.options` of pettingzoo:{name}: {error}.", "see the game's own arguments"
            ) from error
        types = [re.sub(r"_?\d+$", "", player) for player in games[0].players]
        teams = games[0].players if turns else types
        type_numbers = np.array([sorted(set(types)).index(one) for one in types])
        super().__init__(games, *_layout(name, games[0], type_numbers, teams), first, seed)


class ActionDecoder:
    """Decodes one player's action."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._decode = action_decoder(space)
        self.options = int(getattr(space, "n", 0))

    def __call__(self, action: Array) -> list[Any]:
        """A list with one action."""
        return self._decode(action)


def _layout(
    name: str, game: PettingZooGame, types: Array, player_teams: Sequence[str]
) -> tuple[EnvSpec, list[Encoder], list[ActionDecoder]]:
    """The common row layout of all players, and the observation encoder and action decoder of each."""
    obs_spaces = [game.observation_space(player) for player in game.players]
    action_spaces = [game.env.action_space(player) for player in game.players]
    label = f"pettingzoo:{name}"
    specs = [obs_spec(space, label) for space in obs_spaces]
    actions = [action_spec(space, label) for space in action_spaces]
    masked = any(_is_masked(game.env.observation_space(player)) for player in game.players)
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
    spec = EnvSpec(label, obs, action, teams=teams, absences=True)
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
    """Make games of one kind from the settings."""
    return PettingZoo(variant, envs, first=first, seed=seed, options=choice.env.options)
