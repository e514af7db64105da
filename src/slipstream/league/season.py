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
from slipstream.league.pool import MAIN, Player, Pool
from slipstream.league.sprt import Sprt
from slipstream.learn.matches import Event, Roll
from slipstream.models.design import Design
from slipstream.runs.checkpoint import Checkpoint, save
from slipstream.runs.layout import RunDir
from slipstream.settings import Settings

PLAYS = {"greedy": False, "sampled": True}
LOOK = 64
"""Games of a promotion test between two looks at it."""


class Season:
    """The opponents of a league's main agent: itself, its frozen copies and the anchors.

    Players are known by what they are, `main@1000000` or `scripted:rule`; `address` says where to load them from, so
    that a league that was moved finds its own copies.
    """

    sampled = True

    def __init__(self, run: RunDir, settings: Settings, choice: EnvChoice, spec: EnvSpec, design: Design) -> None:
        self.events: list[Event] = []
        self.promotion: dict[str, Any] | None = None
        """The test that the newest copy has just passed, if it did."""
        self.pool = Pool(settings.league.decay)
        self._run, self._settings, self._choice, self._spec, self._design = run, settings, choice, spec, design
        self._log = GamesLog(run)
        self._rated: list[dict[str, Any]] = []
        """Games between players that do not learn: what ratings are computed from."""
        self._roll: Roll | None = None
        self._numbers: dict[int, int] = {}
        """Players of the pool by their number on the roll."""
        self._resident: list[int] = []
        self._turn = 0
        self._frozen_at = 0
        self._shown: dict[str, float] = {}

    def join(self, roll: Roll) -> None:
        """Enter the anchors: those that are named, or the game's own."""
        self._roll = roll
        for name in self._settings.league.anchors or self._game_anchors():
            try:
                load_agent(name, self._spec, self._choice)
            except SlipstreamError as error:
                raise ConfigError(f"league.anchors: {error.message}", error.hint) from error
            self._enter(self.pool.add(name, "anchor"))

    def address(self, name: str) -> str:
        """Where to load a player from."""
        kind, _, steps = name.rpartition("@")
        return f"run:{self._run.pool}@{steps}" if kind == MAIN else name

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        """The player and the learning side of each of a number of games to come.

        Of a large pool some players sit there at a time, one of them changing with every call, so that a step asks few
        networks; over time each is met as often as its chance says.
        """
        league, sides = self._settings.league, random.integers(len(set(self._spec.teams)), size=count)
        alone, each = self.pool.chances(MAIN, league)
        ids, chances = np.array(list(each), np.int64), np.array(list(each.values()))
        if chances.sum() <= 0:
            return np.full(count, SELF, np.int64), sides
        chances /= chances.sum()
        if len(ids) > league.resident:
            self._resident = [one for one in self._resident if each.get(one)]
            missing = league.resident - len(self._resident)
            self._resident += random.choice(ids, missing, p=chances).tolist()
            self._resident[self._turn % league.resident] = int(random.choice(ids, p=chances))
            self._turn += 1
            ids, chances = np.array(self._resident, np.int64), np.full(league.resident, 1 / league.resident)
        numbers = {one.id: number for number, one in self._seated().items()}
        players = np.array([numbers[one] for one in random.choice(ids, count, p=chances).tolist()], np.int64)
        return np.where(random.random(count) < alone, SELF, players), sides

    def see(self, matches: Sequence[Match], steps: int) -> None:
        """Count the results of the main agent, and log every game."""
        lines = []
        for match in matches:
            player = self._numbers.get(match.player)
            if player is not None:
                self.pool.result(MAIN, player, match.outcome)
            lines.append(self._train_line(match, steps))
        self._log.append(lines)

    def retire(self, player: int, why: str) -> None:
        """Seat a player no more."""
        if player in self._numbers:
            self._retire(self.pool.players[self._numbers[player]], why)

    def advance(self, steps: int, pack: Array) -> dict[str, Any]:
        """Freeze a copy when one is due, rate it and test whether it is the best so far."""
        self.promotion = None
        if steps == 0 or self.pool.ready(MAIN, steps - self._frozen_at, self._settings.league):
            self._freeze(steps, pack)
        wins, draws, games = np.sum([self.pool.record(MAIN, player.id) for player in self.pool.active], axis=0)
        row = {"league/pool": float(len(self.pool.active)), "league/copies": float(len(self.pool.players))}
        if games > 0:
            row["league/score"] = float((wins + draws / 2) / games)
        return row | self._shown

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that a resumed league needs; its games are in the log."""
        return {}, {
            "pool": self.pool.describe(), "resident": list(self._resident), "turn": self._turn,
            "frozen_at": self._frozen_at, "shown": dict(self._shown),
        }  # fmt: skip

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave, and drop games that were played after it."""
        self.pool = Pool.restore(state["pool"])
        self._resident, self._turn = list(state["resident"]), int(state["turn"])
        self._frozen_at, self._shown = int(state["frozen_at"]), dict(state["shown"])
        self._numbers.clear()
        for player in self.pool.players:
            self._enter(player)
        self._log.rewind(self._last_steps(state))
        self._rated = [game for game in self._log.read() if game["kind"] != "train"]

    def _game_anchors(self) -> tuple[str, ...]:
        game, _ = parse(self._choice.name)
        return game.opponents if game is not None else ()

    def _enter(self, player: Player) -> None:
        assert self._roll is not None
        self._numbers[self._roll.enlist(player.name)] = player.id

    def _seated(self) -> dict[int, Player]:
        """The active players by their number on the roll."""
        players = {number: self.pool.players[id] for number, id in self._numbers.items()}
        return {number: player for number, player in players.items() if not player.retired}

    def _retire(self, player: Player, why: str) -> None:
        if not player.retired:
            self.pool.retire(player.id, why)
            self.events.append(("retired", f"{player.name} is retired: {why}."))

    def _freeze(self, steps: int, pack: Array) -> None:
        """Keep a copy of the learner, and find out how strong it is."""
        folder, design = RunDir(self._run.pool), self._design
        folder.path.mkdir(exist_ok=True)
        for file in (self._run.config, self._run.provenance):
            if not (folder.path / file.name).exists():
                shutil.copyfile(file, folder.path / file.name)
        state = {"policy": design.describe(), "env": self._choice.name}
        save(folder, Checkpoint(steps, {"policy": policy_arrays(design, pack)}, state))
        copy = self.pool.add(f"{MAIN}@{steps}", "main", steps, MAIN)
        self._enter(copy)
        self._frozen_at = steps
        self.events.append(("snapshot", f"{copy.name} is frozen; {len(self.pool.active)} players in the pool."))
        self._rate(copy, steps)
        self._promote(copy, steps)
        for gone in self.pool.retire_surplus(self._settings.league.pool):
            self.events.append(("retired", f"{gone.name} is retired: {gone.why}."))

    def _rate(self, copy: Player, steps: int) -> None:
        """Let a new copy play the anchors and some others, greedily and by chance, in every mode that counts."""
        league, random = self._settings.league, np.random.Generator(np.random.PCG64([self._settings.seed, 0xA7E, steps]))
        others = [player for player in self.pool.active if player.kind != "anchor" and player.id != copy.id]
        chosen = [player for player in self.pool.active if player.kind == "anchor"]
        some = random.permutation(len(others))[: league.rating_opponents]
        chosen += [others[place] for place in sorted(some.tolist())]
        for play in PLAYS:
            fixtures: list[Fixture] = []
            for number, other in enumerate(chosen):
                for task in self._spec.target or ("",):
                    fixtures += paired(copy.name, other.name, league.rating_games, steps * 31 + number, task)
            self._play(fixtures, play, "rating", steps)
        self._show(copy)

    def _promote(self, copy: Player, steps: int) -> None:
        """Test on pairs of games whether a new copy is better than the best so far; the first one is the best."""
        best, league = self.pool.best, self._settings.league
        if best is None:
            self.pool.best = copy.id
            return
        test, champion = Sprt(high=league.sprt_elo), self.pool.players[best]
        tasks = self._spec.target or ("",)
        while test.verdict == "INCONCLUSIVE" and test.games < league.sprt_games:
            seed = steps * 37 + test.games + 1
            games = min(LOOK, league.sprt_games - test.games)
            fixtures = paired(copy.name, champion.name, games, seed, tasks[(test.games // LOOK) % len(tasks)])
            played = self._play(fixtures, "greedy", "gate", steps)
            if any(game.fault for game in played):
                return
            for first, second in zip(played[::2], played[1::2], strict=False):
                test.add(first.outcome, -second.outcome)
        told = test.describe()
        words = f"{copy.name} against {champion.name}: {test.verdict} after {test.games} games (score {told['score']:.3f})"
        self.events.append(("promotion", f"{words}; {'it is the best now' if test.verdict == 'PASS' else 'no change'}."))
        if test.verdict == "PASS":
            self.pool.best = copy.id
            self.promotion = {"score": self._shown.get("league/rating", 0.0), "agent": copy.name, "test": told}

    def _play(self, fixtures: Sequence[Fixture], play: str, kind: str, steps: int) -> list[Played]:
        """Play games between frozen players, log them, and retire whoever fails."""

        def seat(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
            return load_agent(self.address(name), spec, choice, PLAYS[play])

        played = play_fixtures(self._choice, seat, fixtures, envs=self._settings.evaluation.envs)
        lines = []
        for game in played:
            if game.fault:
                at_fault = [player for player in self.pool.active if player.name == game.culprit]
                for player in at_fault:
                    self._retire(player, game.fault)
            else:
                lines.append(game_line(game, self._choice.name, self._spec, play, kind, steps))
        self._log.append(lines)
        self._rated += lines
        return played

    def _show(self, copy: Player) -> None:
        """Rate everybody anew from all games, and keep the newest copy's numbers for the log."""
        for table in ladder(self._rated)["tables"]:
            for player in table["players"]:
                if player["agent"] == copy.name:
                    name = f"league/rating_{table['mode']}_{table['play']}" if table["mode"] else f"league/rating_{table['play']}"
                    self._shown |= {name: player["rating"], f"{name}_low": player["low"], f"{name}_high": player["high"]}

    def _train_line(self, match: Match, steps: int) -> dict[str, Any]:
        """A game of the learner, as the log holds it."""
        assert self._roll is not None
        other = MAIN if match.player == SELF else self._roll.name(match.player)
        agents = [f"{MAIN}@{steps}", f"{MAIN}@{steps}" if other == MAIN else other]
        outcome, score = match.outcome, _score(self._spec, match.own, match.theirs)
        if match.side == 1:
            agents, outcome, score = agents[::-1], -outcome, score[::-1] if score else None
        task = self._spec.tasks[match.task] if match.task >= 0 else ""
        return {
            "kind": "train", "env": self._choice.name, "mode": task or mode_of(self._spec), "play": "sampled",
            "agents": agents, "seed": match.seed, "outcome": outcome, "score": score, "length": match.length,
            "steps": steps,
        }  # fmt: skip
