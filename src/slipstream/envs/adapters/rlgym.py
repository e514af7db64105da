"""RLGym environments as rows, with the user's own obs builder, action parser, rewards and conditions.

An RLGym env is passed as a Python object (`ss.train(lambda: RLGym(...))`), never by name. Each agent is a row, and the
team of its car is its team. RLGym uses the global RNGs of NumPy and Python, which are seeded before a game that starts
from a seed.
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
from slipstream.envs.game import EnvChoice
from slipstream.errors import EnvError

INSTALL = "pip install --no-deps rlgym==2.0.1 rlgym-api==2.0.0 rlgym-rocket-league==2.0.1"
"""Without dependencies: RLGym requires numpy < 2, but runs with newer versions."""
PARTS = ("transition_engine", "state_mutator", "obs_builder", "action_parser", "reward_fn")
KINDS = {
    "discrete": "discrete",
    "multi-discrete": "multi_discrete",
    "multi_discrete": "multi_discrete",
    "real": "continuous",
    "continuous": "continuous",
}
"""The action kind for each name in RLGym's action space tuples."""


def is_rlgym(env: Any) -> bool:
    """Whether an object is an RLGym env, by its parts."""
    return all(hasattr(env, part) for part in PARTS)


def missing_package_error(error: ModuleNotFoundError) -> EnvError | None:
    """The error to raise if an env could not be made because RLGym is not installed; None for other modules."""
    if (error.name or "").partition(".")[0] != "rlgym":
        return None
    return EnvError(f"This environment needs RLGym: {error}.", INSTALL)


class RLGymGame:
    """One RLGym env behind the `MultiAgentGame` protocol."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.acting: list[Any] = []
        self._observations: Mapping[Any, Any] = {}
        self.reset(None)
        self.players: list[Any] = sorted(self.acting, key=lambda agent: team_of(env, agent))
        self._blank = np.zeros(np.size(self._observations[self.players[0]]), np.float32)

    def reset(self, seed: int | None) -> None:
        """Start a game."""
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        self._observations = self.env.reset()
        self.acting = list(self.env.agents)
        if hasattr(self, "players") and not set(self.acting) <= set(self.players):
            new = sorted(map(str, set(self.acting) - set(self.players)))
            raise EnvError(
                f"This game has agents that the first game did not have: {', '.join(new)}.",
                "start with the game that has the largest teams",
            )

    def step(self, actions: Mapping[Any, Any]) -> tuple[Mapping[Any, float], Mapping[Any, bool], Mapping[Any, bool]]:
        """Step all agents; the game is over as soon as it is over for one of them."""
        self._observations, rewards, over, cut = self.env.step(dict(actions))
        if any(over.values()) or any(cut.values()):
            self.acting = []
        return {agent: float(reward) for agent, reward in rewards.items()}, over, cut

    def observe(self, player: Any) -> tuple[Any, Any]:
        """The observation of an agent; zeros if the agent is not in this game."""
        return self._observations.get(player, self._blank), None

    def info(self, player: Any) -> dict[str, Any]:
        """The game's state and shared info, with the agent as `agent`."""
        return {"agent": player, "state": self.env.state, "shared_info": getattr(self.env, "shared_info", {})}

    def winner(self) -> int | None:
        """The team that scored last; a game that ends without a goal is a draw."""
        state = self.env.state
        if not hasattr(state, "goal_scored"):
            return None
        return int(state.scoring_team) if state.goal_scored else -1

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def team_of(env: Any, agent: Any) -> int:
    """The team of an agent's car; without cars all agents are in one team."""
    cars = getattr(env.state, "cars", {})
    return int(cars[agent].team_num) if agent in cars else 0


class RLGymRows(MultiAgentEnvs):
    """`envs` games of one RLGym env, the first of which is `probe`; an episode ends for all agents at once."""

    def __init__(
        self,
        name: str,
        probe: Any,
        make: Callable[[], Any],
        envs: int,
        *,
        first: int = 0,
        seed: int = 0,
        choice: EnvChoice | None = None,
    ) -> None:
        games = [RLGymGame(env) for env in (probe, *(make() for _ in range(envs - 1)))]
        one = games[0]
        observations = {agent: np.asarray(one.observe(agent)[0]) for agent in one.players}
        width = observations[one.players[0]].size
        for agent, obs in observations.items():
            if obs.dtype.kind not in "fiub" or obs.size != width:
                raise EnvError(
                    f"The obs builder {type(one.env.obs_builder).__name__} gives `{agent}` {_describe(obs)}, and not "
                    f"{width} numbers as for the first agent.",
                    "return one array of numbers per agent, padded to one length (DefaultObs: zero_padding=3)",
                )
        action = _action_spec(one.env, one.players[0])
        teams = tuple(team_of(one.env, agent) for agent in one.players)
        spec = EnvSpec(name, vector_obs(width), action, teams=teams, absences=True)
        decoder = ActionDecoder(action)
        super().__init__(games, spec, [_write_obs] * len(teams), [decoder] * len(teams), first, seed, choice)


class ActionDecoder:
    """Turns a row's action into the array that an action parser takes."""

    options = 0

    def __init__(self, action: ActionSpec) -> None:
        self._dtype = np.float32 if action.kind == "continuous" else np.int64

    def __call__(self, action: Array) -> list[Array]:
        """A list with one action."""
        return [action[0].astype(self._dtype)]


def _write_obs(obs: Any, row: Array) -> None:
    row[:] = np.asarray(obs, np.float32).reshape(-1)


def _describe(obs: Array) -> str:
    return f"{obs.size} numbers" if obs.dtype.kind in "fiub" else f"an array of {obs.dtype}"


def _action_spec(env: Any, agent: Any) -> ActionSpec:
    """The action spec of an agent, from a Gymnasium space or from RLGym's own (kind, size)."""
    given = env.action_space(agent)
    if isinstance(given, spaces.Space):
        spec = action_spec(given, "rlgym")
        if spec.kind == "mixed":
            raise EnvError(
                f"The action parser {type(env.action_parser).__name__} has discrete and continuous actions; one array "
                "cannot hold both.",
                "give it a MultiDiscrete space, or one Box of floats",
            )
        return spec
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
