"""The pool: everybody that a learner can meet, what happened so far, and who stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import CheckpointError
from slipstream.league.matchmaking import (
    MU,
    SIGMA,
    Opponents,
    bounds,
    pfsp_weights,
    probabilities,
    update_skill,
    win_rate,
)
from slipstream.settings import LeagueSettings

Kind = Literal["anchor", "main", "main_exploiter", "league_exploiter"]
MAIN = "main"
"""The name of the learner that the league is for."""
LIVE = -1
"""Stands for the main agent as it is now, where exploiters play it."""


@dataclass
class Player:
    """Somebody who does not learn any more."""

    id: int
    name: str
    """What names the agent: scripted:rule, run:DIR@STEPS."""
    kind: Kind = "main"
    steps: int = 0
    learner: str = ""
    """Whose copy it is."""
    retired: bool = False
    why: str = ""
    """Why it was retired."""


class Pool:
    """Frozen players, and every learner's record against each: wins, draws, games, fading with every new result."""

    def __init__(self, decay: float = LeagueSettings().decay) -> None:
        self.decay = decay
        self.players: dict[int, Player] = {}
        """By id, oldest first; who is retired stays."""
        self.best: int | None = None
        """The id of the best copy so far, which is never retired for lack of room."""
        self._record: dict[tuple[str, int], Array] = {}
        self._skill: dict[str, tuple[float, float]] = {}

    @property
    def active(self) -> list[Player]:
        """Players that can be met, oldest first."""
        return [player for player in self.players.values() if not player.retired]

    def add(self, id: int, name: str, kind: Kind = "main", steps: int = 0, learner: str = "") -> Player:
        """Take in a player under an id that nobody had; a copy begins with its learner's skill."""
        assert id >= 0
        assert id not in self.players
        player = self.players[id] = Player(id, name, kind, steps, learner)
        if learner in self._skill:
            self._skill[str(player.id)] = self._skill[learner]
        return player

    def retire(self, id: int, why: str) -> None:
        """Nobody meets this player any more; its record stays, its id is not used again."""
        self.players[id].retired, self.players[id].why = True, why

    def result(self, learner: str, player: int, outcome: int) -> None:
        """Note that the learner won (1), drew (0) or lost (-1); older results of the two fade."""
        record = self._record.setdefault((learner, player), np.zeros(3))
        record *= self.decay
        record += (outcome == 1, outcome == 0, 1)
        other = MAIN if player == LIVE else str(player)
        self._skill[learner], self._skill[other] = update_skill(self.skill(learner), self.skill(other), outcome)

    def record(self, learner: str, player: int) -> tuple[float, float, float]:
        """Wins, draws and games, faded, of a learner against a player."""
        wins, draws, games = self._record.get((learner, player), np.zeros(3))
        return float(wins), float(draws), float(games)

    def forget(self, learner: str) -> None:
        """A learner begins anew: its results say nothing about what it will be."""
        self._record = {key: counts for key, counts in self._record.items() if key[0] != learner}

    def skill(self, who: str | int) -> tuple[float, float]:
        """Skill (mu, sigma) of a learner by name or a player by id: for matchmaking, the ladder has the ratings."""
        return self._skill.get(str(who), (MU, SIGMA))

    def opponents(self, learner: str, kind: Kind = "main") -> Opponents:
        """A learner's record against the active players; an exploiter's ancestors are those of the main agent."""
        players = self.active
        wins, draws, games = self._records(learner, [player.id for player in players])
        parent = MAIN if kind == "main_exploiter" else learner
        return Opponents(
            wins=wins,
            draws=draws,
            games=games,
            ancestor=np.array([p.learner == parent and p.kind != "anchor" for p in players], bool),
            anchor=np.array([p.kind == "anchor" for p in players], bool),
            mu=np.array([self.skill(p.id)[0] for p in players]),
            own_mu=self.skill(learner)[0],
            main=float(win_rate(*self._records(learner, [LIVE]))[0]),
        )

    def _records(self, learner: str, ids: list[int]) -> tuple[Array, Array, Array]:
        """Wins, draws and games against these players."""
        wins, draws, games = np.array([self.record(learner, id) for id in ids]).reshape(-1, 3).T
        return wins, draws, games

    def probabilities(
        self, learner: str, settings: LeagueSettings, kind: Kind = "main"
    ) -> tuple[float, dict[int, float]]:
        """The chance of self-play (for a main exploiter: of the main agent), and of every active player by id."""
        alone, each = probabilities(settings, self.opponents(learner, kind), kind)
        return alone, {player.id: float(rng) for player, rng in zip(self.active, each, strict=True)}

    def ready(self, learner: str, steps_since: int, settings: LeagueSettings, kind: Kind = "main") -> bool:
        """Whether to freeze a copy: it surely beats everybody it must, or it is time.

        `steps_since` counts from the last copy. The lower 95 % bounds decide, so that luck in few games does not, and
        somebody never met holds it back.
        """
        if steps_since >= 2 * settings.snapshot:
            return True
        if steps_since < settings.snapshot:
            return False
        others = [LIVE] if kind == "main_exploiter" else [player.id for player in self.active]
        low, _ = bounds(*self._records(learner, others))
        return bool(len(low) and (low > settings.snapshot_win).all())

    def retire_surplus(self, cap: int, learner: str = MAIN, weighting: str = "hard") -> list[Player]:
        """Retire those that the learner has least to learn from until `cap` are left, anchors aside.

        Anchors, the best and the newest stay, and exploiters as long as there is anybody else to go.
        """
        gone = []
        while len(copies := [player for player in self.active if player.kind != "anchor"]) > cap:
            able = [player for player in copies[:-1] if player.id != self.best]
            able = [player for player in able if player.kind == "main"] or able
            if not able:
                break
            weights = pfsp_weights(win_rate(*self._records(learner, [player.id for player in able])), weighting)
            least = able[int(weights.argmin())]
            self.retire(least.id, f"the least useful of {len(copies)} players in a pool for {cap}")
            gone.append(least)
        return gone

    def describe(self) -> dict[str, Any]:
        """All of it as JSON holds it; numbers come back exactly."""
        return {
            "decay": self.decay,
            "best": self.best,
            "players": [asdict(player) for player in self.players.values()],
            "record": [[*key, *values.tolist()] for key, values in self._record.items()],
            "skill": {name: list(skill) for name, skill in self._skill.items()},
        }

    @classmethod
    def restore(cls, told: Mapping[str, Any]) -> Pool:
        """The inverse of `describe`: a league goes on as if it had not stopped."""
        try:
            pool = cls(told["decay"])
            pool.best = told["best"]
            pool.players = {player["id"]: Player(**player) for player in told["players"]}
            pool._record = {(learner, id): np.array(counts, float) for learner, id, *counts in told["record"]}
            pool._skill = {name: (mu, sigma) for name, (mu, sigma) in told["skill"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The league's pool in this checkpoint cannot be read: {error!r}.", "resume from another checkpoint"
            ) from error
        return pool
