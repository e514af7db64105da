"""A season: the live league of one learner, which seats its games, freezes copies of it, rates and promotes them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.agents.specs import load_agent
from slipstream.agents.trained import policy_arrays
from slipstream.collect.games import Fixture, Played, paired, play_fixtures
from slipstream.collect.seats import SELF, Match
from slipstream.core.contracts import Array, EnvSpec
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.envs.registry import EnvChoice, parse
from slipstream.league.ladder import GamesLog, ladder
from slipstream.league.matchmaking import shares
from slipstream.league.pool import Pool
from slipstream.league.sprt import Sprt
from slipstream.learn.matches import Event, Roll
from slipstream.models.design import Design
from slipstream.runs.checkpoint import Checkpoint, save
from slipstream.runs.layout import RunDir
from slipstream.settings import Settings

MAIN = "main"
PLAYS = ("greedy", "sampled")
CHUNK = 64
"""Games of a promotion test between two looks at it."""


class Season:
    """The opponents of a league's main agent: itself, its frozen copies, exploiters and the anchors.

    Players are known by what they are, `main@1000000` or `scripted:rule`; `address` says where to load them from, so
    that a league that was moved finds its own copies.
    """

    sampled = True

    def __init__(
        self, run: RunDir, settings: Settings, choice: EnvChoice, spec: EnvSpec, design: Design
    ) -> None:  # fmt: skip
        self.events: list[Event] = []
        self.promotion: dict[str, Any] | None = None
        """The test that the newest copy has just passed, if it did."""
        self.pool = Pool(settings.league.decay)
        self._run, self._settings, self._choice, self._spec, self._design = run, settings, choice, spec, design
        self._log = GamesLog(run)
        self._rated: list[dict[str, Any]] = []
        self._roll: Roll | None = None
        self._resident: list[int] = []
        self._turn = 0
        self._frozen_at = 0
        self._best: int | None = None
        self._ratings: dict[str, Any] = {}
        self._open = False

    def join(self, roll: Roll) -> None:
        """Enter the anchors: those that are named, or the game's own."""
        self._roll = roll
        game, _ = parse(self._choice.name)
        anchors = self._settings.league.anchors or (game.opponents if game is not None else ())
        for name in anchors:
            try:
                load_agent(name, self._spec, self._choice)
            except SlipstreamError as error:
                raise ConfigError(f"league.anchors: {error.message}", error.hint) from error
            self.pool.add(roll.enlist(name), name, "anchor")

    def address(self, name: str) -> str:
        """Where to load a player from."""
        kind, _, steps = name.rpartition("@")
        if kind == MAIN:
            return f"run:{self._run.pool}@{steps}"
        return name

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        """The player and the learning side of each of a number of games to come."""
        alone, others = shares(self.pool, MAIN, self._settings.league)
        sides = random.integers(len(set(self._spec.teams)), size=count)
        ids = np.array(list(others), np.int64)
        if not len(ids):
            return np.full(count, SELF, np.int64), sides
        chances = np.array(list(others.values()))
        chances /= chances.sum()
        limit = self._settings.league.resident
        if len(ids) > limit:
            self._resident = [one for one in self._resident if one in others]
            self._resident += random.choice(ids, limit - len(self._resident), p=chances).tolist()
            self._resident[self._turn % limit] = int(random.choice(ids, p=chances))
            self._turn += 1
            ids, chances = np.array(self._resident, np.int64), np.full(limit, 1 / limit)
        players = random.choice(ids, count, p=chances)
        return np.where(random.random(count) < alone, SELF, players), sides

    def see(self, matches: Sequence[Match], steps: int) -> None:
        """Count the results of the main agent, and log every game."""
        lines = []
        for match in matches:
            other = self._name(match.player)
            if match.player != SELF:
                self.pool.result(MAIN, match.player, match.outcome)
            lines.append(self._line(match, f"{MAIN}@{steps}", other, steps))
        self._log.append(lines)

    def retire(self, player: int, why: str) -> None:
        """Seat a player no more."""
        self.pool.retire(player, why)
        self.events.append(("retired", f"{self._name(player)} is retired: {why}."))

    def advance(self, steps: int, pack: Array) -> dict[str, Any]:
        """Freeze a copy when one is due, rate it and test whether it is the best so far."""
        self.promotion = None
        if not self._open:
            self._open = True
            if not any(player.kind == MAIN for player in self.pool.players.values()):
                self._freeze(steps, pack)
        elif self.pool.ready(MAIN, steps - self._frozen_at, self._settings.league):
            self._freeze(steps, pack)
        return self._metrics()
