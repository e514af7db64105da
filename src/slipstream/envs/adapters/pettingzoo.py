"""PettingZoo's games as rows: players in turn (AEC) or all at once (parallel), one row for each player.

Where players take turns, only the row whose turn it is is active; what the others earn meanwhile belongs to their last
act. Players that see or do different things share one row layout: shorter observations are filled up with zeros behind
them, fewer actions are masked, and where players differ in kind a one-hot of the kind follows the observation.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pkgutil import iter_modules
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.adapters.action_spaces import action_decoder, action_spec
from slipstream.envs.adapters.multi_agent import MultiAgentEnvs
from slipstream.envs.adapters.observation_spaces import obs_encoder, obs_spec
from slipstream.errors import ConfigError, EnvError, did_you_mean

PACKAGES = ("pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl", "pettingzoo.atari", "mpe2")
"""Where games are looked for; nothing else is ever imported by name."""
INSTALL = 'pip install "slipstream[pettingzoo]"'


def find(name: str) -> Any:
    """The module of a game, by its name with or without a version; without, the newest that can be imported."""
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
        raise EnvError(f"PettingZoo has no game `{name}`.{near}", "see pettingzoo.farama.org for those there are")
    try:
        return importlib.import_module(f"{found[fitting[0]]}.{fitting[0]}")
    except ImportError as error:
        raise EnvError(f"`pettingzoo:{name}` cannot be imported: {error}.", f"{INSTALL}, or what it names") from error


def _stem(name: str) -> str:
    return re.sub(r"_v\d+$", "", name)


def _version(name: str) -> int:
    return int(name.rpartition("_v")[2])


class Table:
    """One game and its players: who may act, what they see, what they earned."""

    def __init__(self, module: Any, turns: bool, options: Mapping[str, Any]) -> None:
        self.turns = turns
        make = getattr(module, "raw_env", module.env) if turns else module.parallel_env  # raw: without checks
        self.env = make(**options)
        self.players: list[str] = list(self.env.possible_agents)

    def observation_space(self, player: str) -> spaces.Space[Any]:
        """What a player sees, without its mask."""
        space: Any = self.env.observation_space(player)
        found: spaces.Space[Any] = space["observation"] if _is_masked(space) else space
        return found

    def reset(self, seed: int | None) -> None:
        """Begin a game."""
        if self.turns:
            self.env.reset(seed=seed)
            self.acting = [self.env.agent_selection]
        else:
            self.seen, self.infos = self.env.reset(seed=seed)
            self.acting = list(self.env.agents)

    def step(self, chosen: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, bool], Mapping[str, bool]]:
        """Take the acts of those who may; rewards, and who has ended how."""
        if not self.turns:
            self.seen, rewards, over, cut, self.infos = self.env.step(chosen)
            self.acting = list(self.env.agents)
            return rewards, over, cut
        env = self.env
        env.step(chosen[self.acting[0]])
        rewards, over, cut = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        while env.agents and not self._all_over() and (over.get(env.agent_selection) or cut.get(env.agent_selection)):
            env.step(None)
            for player, more in env.rewards.items():
                rewards[player] = rewards.get(player, 0.0) + more
            over |= env.terminations
            cut |= env.truncations
        self.acting = [] if not env.agents or self._all_over() else [env.agent_selection]
        return rewards, over, cut

    def look(self, player: str) -> tuple[Any, Any]:
        """What a player sees and may do; None: anything."""
        seen = self.env.observe(player) if self.turns else self.seen[player]
        if isinstance(seen, Mapping) and "action_mask" in seen:
            return seen["observation"], seen["action_mask"]
        infos = self.env.infos if self.turns else self.infos
        return seen, infos.get(player, {}).get("action_mask")

    def winner(self) -> int | None:
        """The side that won, where the game itself tells: it does not."""
        return None

    def close(self) -> None:
        """Close the game."""
        self.env.close()

    def _all_over(self) -> bool:
        env = self.env
        return all(env.terminations[player] or env.truncations[player] for player in env.agents)


def takes_turns(module: Any, options: Mapping[str, Any]) -> bool:
    """Whether players act in turn, rather than all at once with turns only pretended."""
    if not hasattr(module, "parallel_env"):
        return True
    made = module.env(**options)
    in_turn = not made.metadata.get("is_parallelizable", False)
    made.close()
    return in_turn


def _is_masked(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and "action_mask" in space.spaces and "observation" in space.spaces


class PettingZoo(MultiAgentEnvs):
    """`envs` games of one kind, stepped one after another; an episode is a game, for all its players."""

    def __init__(
        self, name: str, envs: int, *, first: int = 0, seed: int = 0, options: Mapping[str, Any] | None = None
    ) -> None:
        module = find(name)
        try:
            turns = takes_turns(module, options or {})
            tables = [Table(module, turns, options or {}) for _ in range(envs)]
        except TypeError as error:
            raise ConfigError(
                f"`env.options` of pettingzoo:{name}: {error}.", "see the game's own arguments"
            ) from error
        table = tables[0]
        kinds = [re.sub(r"_?\d+$", "", player) for player in table.players]
        sides = kinds if not table.turns else table.players
        numbers = np.array([sorted(set(kinds)).index(kind) for kind in kinds])
        super().__init__(tables, *_layout(name, table, numbers, sides), first, seed)


class Decoder:
    """Turns one player's action into what its game takes."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._decode = action_decoder(space)
        self.options = int(getattr(space, "n", 0))

    def __call__(self, action: Array) -> list[Any]:
        """A list of one."""
        return self._decode(action)


def _layout(
    name: str, table: Table, kinds: Array, sides: Sequence[str]
) -> tuple[EnvSpec, list[Callable[[Any, Array], None]], list[Decoder]]:
    """One row for all players: the spec, how each one's observation is written, how its action is read."""
    seen = [table.observation_space(player) for player in table.players]
    acts = [table.env.action_space(player) for player in table.players]
    label = f"pettingzoo:{name}"
    specs = [obs_spec(space, label) for space in seen]
    actions = [action_spec(space, label) for space in acts]
    masked = any(_is_masked(table.env.observation_space(player)) for player in table.players)
    alike = all(spec == specs[0] for spec in specs) and len(set(actions)) == 1
    if not alike and not all(spec.plain for spec in specs):
        raise EnvError(f"The players of `{label}` see images of different kinds.", "use a game where they see the same")
    action, obs = actions[0], specs[0]
    if not alike:
        if len(set(actions)) > 1:
            if any(one.kind != "discrete" for one in actions):
                raise EnvError(f"The players of `{label}` act in different ways.", "use one where all are Discrete")
            action, masked = ActionSpec("discrete", (max(one.sizes[0] for one in actions),)), True
        obs = vector_obs(max(spec.width for spec in specs) + int(kinds.max()) + 1)
    if masked:
        action = replace(action, masked=True)
    teams = tuple(list(dict.fromkeys(sides)).index(side) for side in sides)
    spec = EnvSpec(label, obs, action, teams=teams, absences=True)
    marks = [None if alike else int(kind) for kind in kinds]
    encoders = [_encoder(space, mark) for space, mark in zip(seen, marks, strict=True)]
    return spec, encoders, [Decoder(space) for space in acts]


def _encoder(space: spaces.Space[Any], kind: int | None) -> Callable[[Any, Array], None]:
    """How an observation is written into a row, with the player's kind at its end where they differ."""
    plain = obs_encoder(space)
    width = obs_spec(space, "").width

    def write(seen: Any, row: Array) -> None:
        own = row[:width]
        if plain is None:
            own[:] = seen
        else:
            plain(seen, own)
        if kind is not None:
            row[width:] = 0
            row[row.size - 1 - kind] = 1

    return write


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> PettingZoo:
    """Make games of one kind as the settings say."""
    return PettingZoo(variant, envs, first=first, seed=seed, options=choice.env.options)
