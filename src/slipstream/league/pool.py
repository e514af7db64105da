"""The pool of a league: frozen players, every learner's record against them, and which players are kept."""

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
    OpponentRecords,
    bounds,
    pfsp_weights,
    probabilities,
    update_skill,
    win_rate,
)
from slipstream.settings import LeagueSettings

Kind = Literal["anchor", "main", "main_exploiter", "league_exploiter"]
MAIN = "main"
"""The name of the main learner."""
LIVE = -1
"""The player id of the current main agent in the records of exploiters."""


@dataclass
class Player:
    """A player that does not learn: a snapshot or an anchor."""

    id: int
    name: str
    """The agent's name: scripted:rule, main@STEPS, run:DIR@STEPS."""
    kind: Kind = "main"
    steps: int = 0
    learner: str = ""
    """The learner of which it is a snapshot."""
    retired: bool = False
    why: str = ""
    """Why it was retired."""


class Pool:
    """Frozen players, and every learner's decayed record against each: wins, draws and games."""

    def __init__(self, decay: float = LeagueSettings().decay) -> None:
        self.decay = decay
        self.players: dict[int, Player] = {}
        """By id, oldest first, including retired players."""
        self.best: int | None = None
        """The id of the best snapshot so far, which is never retired as surplus."""
        self._record: dict[tuple[str, int], Array] = {}
        self._skill: dict[str, tuple[float, float]] = {}

    @property
    def active(self) -> list[Player]:
        """Players that are not retired, oldest first."""
        return [player for player in self.players.values() if not player.retired]

    def add(self, id: int, name: str, kind: Kind = "main", steps: int = 0, learner: str = "") -> Player:
        """Add a player with a new id; a snapshot starts with its learner's skill."""
        assert id >= 0
        assert id not in self.players
        player = self.players[id] = Player(id, name, kind, steps, learner)
        if learner in self._skill:
            self._skill[str(player.id)] = self._skill[learner]
        return player

    def retire(self, id: int, why: str) -> None:
        """Take a player out of matchmaking; its record stays, and its id is not used again."""
        self.players[id].retired, self.players[id].why = True, why

    def result(self, learner: str, player: int, outcome: int) -> None:
        """Record that the learner won (1), drew (0) or lost (-1); older results against the player decay."""
        record = self._record.setdefault((learner, player), np.zeros(3))
        record *= self.decay
        record += (outcome == 1, outcome == 0, 1)
        other = MAIN if player == LIVE else str(player)
        self._skill[learner], self._skill[other] = update_skill(self.skill(learner), self.skill(other), outcome)

    def record(self, learner: str, player: int) -> tuple[float, float, float]:
        """Decayed wins, draws and games of a learner against a player."""
        wins, draws, games = self._record.get((learner, player), np.zeros(3))
        return float(wins), float(draws), float(games)

    def clear_record(self, learner: str) -> None:
        """Delete the results of a learner that was reset."""
        self._record = {key: counts for key, counts in self._record.items() if key[0] != learner}

    def skill(self, who: str | int) -> tuple[float, float]:
        """The skill (mu, sigma) of a learner by name or a player by id; used for matchmaking only, not for ratings."""
        return self._skill.get(str(who), (MU, SIGMA))

    def opponents(self, learner: str, kind: Kind = "main") -> OpponentRecords:
        """A learner's record against the active players; the ancestors of a main exploiter are the main agent's."""
        players = self.active
        wins, draws, games = self._records(learner, [player.id for player in players])
        parent = MAIN if kind == "main_exploiter" else learner
        return OpponentRecords(
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
        """The probability of self-play (for a main exploiter: of the main agent), and of every active player by id."""
        self_play, each = probabilities(settings, self.opponents(learner, kind), kind)
        return self_play, {player.id: float(p) for player, p in zip(self.active, each, strict=True)}

    def ready(self, learner: str, steps_since: int, settings: LeagueSettings, kind: Kind = "main") -> bool:
        """Whether to take a snapshot: the learner beats all its opponents, or the time limit has passed.

        `steps_since` counts from the last snapshot. The lower 95 % bounds of the win rates must exceed
        `league.snapshot_win`, so a few lucky games do not suffice, nor does an opponent that was never met.
        """
        if steps_since >= 2 * settings.snapshot:
            return True
        if steps_since < settings.snapshot:
            return False
        others = [LIVE] if kind == "main_exploiter" else [player.id for player in self.active]
        low, _ = bounds(*self._records(learner, others))
        return bool(len(low) and (low > settings.snapshot_win).all())

    def retire_surplus(self, cap: int, learner: str = MAIN, weighting: str = "hard") -> list[Player]:
        """Retire the players with the lowest PFSP weight until `cap` are left, not counting anchors.

        Anchors, the best and the newest player stay, and exploiters as long as there is another player to retire.
        """
        retired = []
        while len(snapshots := [player for player in self.active if player.kind != "anchor"]) > cap:
            candidates = [player for player in snapshots[:-1] if player.id != self.best]
            candidates = [player for player in candidates if player.kind == "main"] or candidates
            if not candidates:
                break
            weights = pfsp_weights(win_rate(*self._records(learner, [player.id for player in candidates])), weighting)
            lowest = candidates[int(weights.argmin())]
            self.retire(lowest.id, f"the least useful of {len(snapshots)} players in a pool for {cap}")
            retired.append(lowest)
        return retired

    def describe(self) -> dict[str, Any]:
        """The state as JSON values; numbers are restored exactly."""
        return {
            "decay": self.decay,
            "best": self.best,
            "players": [asdict(player) for player in self.players.values()],
            "record": [[*key, *values.tolist()] for key, values in self._record.items()],
            "skill": {name: list(skill) for name, skill in self._skill.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Pool:
        """The inverse of `describe`."""
        try:
            pool = cls(state["decay"])
            pool.best = state["best"]
            pool.players = {player["id"]: Player(**player) for player in state["players"]}
            pool._record = {(learner, id): np.array(counts, float) for learner, id, *counts in state["record"]}
            pool._skill = {name: (mu, sigma) for name, (mu, sigma) in state["skill"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The league's pool in this checkpoint cannot be read: {error!r}.", "resume from another checkpoint"
            ) from error
        return pool
