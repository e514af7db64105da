"""RLGym's environments as rows, with their users' parts as they are: obs builders, action parsers, rewards, conditions.

An RLGym env comes as an object from Python (`ss.train(lambda: RLGym(...))`), never by name. Each of its agents is a
row; a car's team is its side. Its chance is numpy's and Python's own global one, which is seeded before a game that is
to follow from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.multi_agent import MultiAgentEnvs
from slipstream.errors import EnvError

INSTALL = "pip install --no-deps rlgym==2.0.1 rlgym-api==2.0.0 rlgym-rocket-league==2.0.1"
"""Without what they depend on: they ask for numpy < 2, and run with ours."""
PARTS = ("transition_engine", "state_mutator", "obs_builder", "action_parser", "reward_fn")
KINDS = {"discrete": "discrete", "multi-discrete": "multi_discrete", "multi_discrete": "multi_discrete",
         "real": "continuous", "continuous": "continuous"}  # fmt: skip
"""How RLGym's tuples name what an agent can do."""


def recognise(env: Any) -> bool:
    """Whether an object is an RLGym env, by its parts."""
    return all(hasattr(env, part) for part in PARTS)


def missing(error: ModuleNotFoundError) -> EnvError | None:
    """What to say where an env could not be made because RLGym is not installed."""
    if (error.name or "").partition(".")[0] != "rlgym":
        return None
    return EnvError(f"This environment needs RLGym: {error}.", INSTALL)


class Game:
    """One RLGym env: its agents, what they see and what they earn."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.acting: list[Any] = []
        self._seen: Mapping[Any, Any] = {}
        self.reset(None)
        self.players: list[Any] = sorted(self.acting, key=lambda agent: team_of(env, agent))
        self._blank = np.zeros(np.size(self._seen[self.players[0]]), np.float32)

    def reset(self, seed: int | None) -> None:
        """Begin a game."""
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        self._seen = self.env.reset()
        self.acting = list(self.env.agents)
        if hasattr(self, "players") and not set(self.acting) <= set(self.players):
            new = sorted(map(str, set(self.acting) - set(self.players)))
            raise EnvError(
                f"This game has agents that its first one had not: {', '.join(new)}.",
                "let the first game be the one with the largest teams",
            )

    def step(self, chosen: Mapping[Any, Any]) -> tuple[Mapping[Any, float], Mapping[Any, bool], Mapping[Any, bool]]:
        """Let all agents act; the game is over as soon as it is for one of them."""
        self._seen, rewards, over, cut = self.env.step(dict(chosen))
        if any(over.values()) or any(cut.values()):
            self.acting = []
        return {agent: float(paid) for agent, paid in rewards.items()}, over, cut

    def look(self, player: Any) -> tuple[Any, Any]:
        """What an agent sees; nothing if it does not take part in this game."""
        return self._seen.get(player, self._blank), None

    def winner(self) -> int | None:
        """The side that scored in the end; a game that ends without a goal is a draw."""
        state = self.env.state
        if not hasattr(state, "goal_scored"):
            return None
        return int(state.scoring_team) if state.goal_scored else -1

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def team_of(env: Any, agent: Any) -> int:
    """The side of an agent: its car's team; without cars all are on one side."""
    cars = getattr(env.state, "cars", {})
    return int(cars[agent].team_num) if agent in cars else 0


class RLGymRows(MultiAgentEnvs):
    """`envs` games of one RLGym env, of which one is there already; an episode is over for all agents at once."""

    def __init__(
        self, name: str, probe: Any, make: Callable[[], Any], envs: int, *, first: int = 0, seed: int = 0
    ) -> None:
        games = [Game(env) for env in (probe, *(make() for _ in range(envs - 1)))]
        one = games[0]
        widths = {agent: np.asarray(one.look(agent)[0]) for agent in one.players}
        for agent, seen in widths.items():
            if seen.dtype.kind not in "fiub" or seen.size != widths[one.players[0]].size:
                raise EnvError(
                    f"The obs builder {type(one.env.obs_builder).__name__} gives `{agent}` {_told(seen)}, which is no "
                    "row of numbers as long as the others'.",
                    "return one array of numbers per agent, filled up to one length (DefaultObs: zero_padding=3)",
                )
        action = _action(one.env, one.players[0])
        teams = tuple(team_of(one.env, agent) for agent in one.players)
        spec = EnvSpec(
            name, vector_obs(widths[one.players[0]].size), action, teams=teams, absences=True,
        )  # fmt: skip
        reader = Reader(action)
        super().__init__(games, spec, [_write] * len(teams), [reader] * len(teams), first, seed)


class Reader:
    """Turns a row's action into the array that an action parser takes."""

    options = 0

    def __init__(self, action: ActionSpec) -> None:
        self._kind = np.float32 if action.kind == "continuous" else np.int64

    def __call__(self, action: Array) -> list[Array]:
        """A list of one."""
        return [action[0].astype(self._kind)]


def _write(seen: Any, row: Array) -> None:
    row[:] = np.asarray(seen, np.float32).reshape(-1)


def _told(seen: Array) -> str:
    return f"{seen.size} numbers" if seen.dtype.kind in "fiub" else f"an array of {seen.dtype}"


def _action(env: Any, agent: Any) -> ActionSpec:
    """What an agent can do, from a Gymnasium space or from RLGym's own (kind, size)."""
    given = env.action_space(agent)
    if isinstance(given, spaces.Space):
        return action_spec(given, "rlgym")
    kind, size = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    if KINDS.get(str(kind)) == "discrete" and isinstance(size, (int, np.integer)):
        return ActionSpec("discrete", (int(size),))
    if KINDS.get(str(kind)) == "continuous" and isinstance(size, (int, np.integer)):
        return ActionSpec("continuous", (), (-1.0,) * int(size), (1.0,) * int(size))
    if KINDS.get(str(kind)) == "multi_discrete" and isinstance(size, Sequence):
        return ActionSpec("multi_discrete", tuple(int(one) for one in size))
    raise EnvError(
        f"The action parser {type(env.action_parser).__name__} has the action space {given!r}.",
        'it must be a Gymnasium space, ("discrete", n), ("multi-discrete", (n, m, ...)) or ("real", n)',
    )
