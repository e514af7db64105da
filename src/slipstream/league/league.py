"""A season: the live league of one learner, which seats its games, freezes copies of it, rates and promotes them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.agents.specs import load_agent
from slipstream.agents.trained import policy_arrays
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.league.exploiters import SPARRING, Exploiter
from slipstream.league.ladder import GamesLog, game_line, ladder
from slipstream.league.pool import MAIN, Kind, Player, Pool
from slipstream.league.sprt import Sprt
from slipstream.play.assignments import SELF, FinishedGame
from slipstream.play.engine import GameResult, ScheduledGame, play_scheduled
from slipstream.play.games import paired_games
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import Checkpoint, save
from slipstream.runs.layout import RunDir
from slipstream.settings import Settings
from slipstream.training.opponents import Event, Roll

PLAYS = {"greedy": False, "sampled": True}
VISIT = 0.25
"""A turn of an exploiter, as a share of `league.snapshot`."""
LOOK = 64
"""Games of a promotion test between two looks at it."""


class League:
    """The opponents of a league's main agent: itself, its frozen copies, those of exploiters, and the anchors.

    Players are known by what they are, `main@1000000` or `scripted:rule`; `address` says where to load them from, so
    that a league that was moved finds its own copies.
    """

    sampled = promotes = True

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
        self._resident: list[int] = []
        self._turn = 0
        self._steps = self._frozen_at = 0
        self._debt = 0.0
        """Steps that exploiters are due."""
        self._visits = 0
        self.exploiters = self._hire()
        self._shown: dict[str, float] = {}

    def join(self, roll: Roll) -> None:
        """Enter the anchors: those that are named, or the game's own."""
        self._roll = roll
        for name in dict.fromkeys(self._settings.league.anchors or self._game_anchors()):
            try:
                load_agent(name, self._spec, self._choice)
            except SlipstreamError as error:
                raise ConfigError(f"league.anchors: {error.message}", error.hint) from error
            self.pool.add(roll.enlist(name), name, "anchor")

    def address(self, name: str) -> str:
        """Where to load a player from."""
        learner, _, steps = name.rpartition("@")
        if learner == MAIN:
            return f"run:{self._run.pool}@{steps}"
        own = {SPARRING, *(exploiter.name for exploiter in self.exploiters)}
        return f"run:{self._run.path / learner}@{steps}" if learner in own else name

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        """The player and the learning side of each of a number of games to come.

        Of a large pool some players sit there at a time, one of them changing with every call, so that a step asks few
        networks; over time each is met as often as its chance says.
        """
        league, sides = self._settings.league, random.integers(len(set(self._spec.teams)), size=count)
        alone, each = self.pool.probabilities(MAIN, league)
        ids, probabilities = np.array(list(each), np.int64), np.array(list(each.values()))
        if probabilities.sum() <= 0:
            return np.full(count, SELF, np.int64), sides
        probabilities /= probabilities.sum()
        if len(ids) > league.resident:
            self._resident = [one for one in self._resident if each.get(one)]
            missing = league.resident - len(self._resident)
            self._resident += random.choice(ids, missing, p=probabilities).tolist()
            self._resident[self._turn % league.resident] = int(random.choice(ids, p=probabilities))
            self._turn += 1
            ids, probabilities = np.array(self._resident, np.int64), np.full(league.resident, 1 / league.resident)
        players = random.choice(ids, count, p=probabilities)
        return np.where(random.random(count) < alone, SELF, players), sides

    def see(self, matches: Sequence[FinishedGame], steps: int) -> None:
        """Count the results of the main agent, and log every game."""
        assert self._roll is not None
        for match in matches:
            if match.player in self.pool.players:
                self.pool.result(MAIN, match.player, match.outcome)
        self._log_matches(matches, self._roll.players, MAIN, steps)

    def retire(self, player: int, why: str) -> None:
        """Seat a player no more."""
        if player in self.pool.players:
            self._retire(self.pool.players[player], why)

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """Freeze a copy when one is due, rate it and test whether it is the best so far."""
        league, took = self._settings.league, steps - self._steps
        self.promotion, self._steps = None, steps
        if steps == 0:
            self._rate_anchors()
        if steps == 0 or self.pool.ready(MAIN, steps - self._frozen_at, league):
            self._frozen_at = steps
            self._promote(self._freeze(MAIN, "main", steps, params_and_stats, steps), steps)
            self._make_room()
        if self.exploiters:
            self._debt += took * league.exploiter_share / (1 - league.exploiter_share)
            while self._debt >= league.snapshot * VISIT:
                self._debt -= league.snapshot * VISIT
                self._visit(steps, params_and_stats)
        records = [self.pool.record(MAIN, player.id) for player in self.pool.active]
        wins, draws, games = np.sum([(0.0, 0.0, 0.0), *records], axis=0)
        row = {"league/pool": float(len(self.pool.active)), "league/copies": float(len(self.pool.players))}
        if games > 0:
            row["league/score"] = float((wins + draws / 2) / games)
        return row | self._shown

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that a resumed league needs; its games are in the log."""
        arrays, exploiters = dict[str, Array](), dict[str, Any]()
        for exploiter in self.exploiters:
            named, exploiters[exploiter.name] = exploiter.snapshot()
            arrays |= {f"{exploiter.name}/{name}": array for name, array in named.items()}
        return arrays, {
            "exploiters": exploiters, "debt": self._debt, "visits": self._visits, "pool": self.pool.describe(),
            "resident": list(self._resident), "turn": self._turn,
            "frozen_at": self._frozen_at, "shown": dict(self._shown), "steps": self._steps,
        }  # fmt: skip

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave, and drop games that were played after it."""
        self.pool = Pool.restore(state["pool"])
        self._resident, self._turn = list(state["resident"]), int(state["turn"])
        self._steps, self._frozen_at, self._shown = int(state["steps"]), int(state["frozen_at"]), dict(state["shown"])
        self._debt, self._visits = float(state["debt"]), int(state["visits"])
        for exploiter in self.exploiters:
            own = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith(f"{exploiter.name}/")}
            exploiter.restore(own, state["exploiters"][exploiter.name])
        self._log.rewind(int(state["steps"]))
        self._rated = [game for game in self._log.read()[0] if game["kind"] != "train"]

    def close(self) -> None:
        """End the exploiters' workers."""
        for exploiter in self.exploiters:
            exploiter.parts.close()

    def _game_anchors(self) -> tuple[str, ...]:
        game, _ = parse(self._choice.name)
        return game.opponents if game is not None else ()

    def _retire(self, player: Player, why: str) -> None:
        if not player.retired:
            self.pool.retire(player.id, why)
            self.events.append(("retired", f"{player.name} is retired: {why}."))

    def _hire(self) -> list[Exploiter]:
        """Make the exploiters, with weights and games of their own."""
        league = self._settings.league
        kinds: list[Kind] = ["main_exploiter"] * league.main_exploiters
        kinds += ["league_exploiter"] * league.league_exploiters
        hired = []
        for number, kind in enumerate(kinds):
            name = f"{kind.replace('_', '-')}-{number + 1}"
            hired.append(Exploiter(name, kind, number, self._settings, self._choice, lambda: self.pool))
            prey = hired[-1].prey
            assert prey is not None
            prey.find, prey.log = self.address, self._log_matches
        return hired

    def _visit(self, steps: int, params_and_stats: Array) -> None:
        """Give one exploiter its turn; freeze it first, then let it begin anew, when it is ready."""
        league, exploiter = self._settings.league, self.exploiters[self._visits % len(self.exploiters)]
        self._visits += 1
        sparring = RunDir(self._run.path / SPARRING)
        self._save(sparring, steps, params_and_stats)
        exploiter.visit(round(league.snapshot * VISIT), f"{SPARRING}@{steps}")
        since = exploiter.steps - exploiter.frozen_at
        if self.pool.ready(exploiter.name, since, league, exploiter.kind):
            own = exploiter.parts.learner.params_and_stats
            self._freeze(exploiter.name, exploiter.kind, exploiter.steps, own, steps)
            anew = exploiter.begin_anew()
            self.pool.forget(exploiter.name)
            self.events.append(("exploiter", f"{exploiter.name} {'begins anew' if anew else 'goes on'}."))
            self._make_room()

    def _save(self, folder: RunDir, steps: int, params_and_stats: Array) -> None:
        """Write the weights of a learner, as a run of its own that can be played by name."""
        folder.path.mkdir(exist_ok=True)
        for file in (self._run.config, self._run.provenance):
            if not (folder.path / file.name).exists():
                shutil.copyfile(file, folder.path / file.name)
        state = {"policy": self._design.describe(), "env": self._choice.name, "frozen": True}
        save(folder, Checkpoint(steps, {"policy": policy_arrays(self._design, params_and_stats)}, state))

    def _freeze(self, learner: str, kind: Kind, own_steps: int, params_and_stats: Array, steps: int) -> Player:
        """Keep a copy of a learner, and find out how strong it is."""
        assert self._roll is not None
        self._save(RunDir(self._run.pool if learner == MAIN else self._run.path / learner), own_steps, params_and_stats)
        name = f"{learner}@{own_steps}"
        copy = self.pool.add(self._roll.enlist(name), name, kind, own_steps, learner)
        self.events.append(("snapshot", f"{name} is frozen; {len(self.pool.active)} players in the pool."))
        self._rate(copy, steps)
        return copy

    def _make_room(self) -> None:
        for gone in self.pool.retire_surplus(self._settings.league.pool):
            self.events.append(("retired", f"{gone.name} is retired: {gone.why}."))

    def _rate(self, copy: Player, steps: int) -> None:
        """Let a new copy play the anchors and some others, greedily and by chance, in every mode that counts."""
        league, random = (
            self._settings.league,
            np.random.Generator(np.random.PCG64([self._settings.seed, 0xA7E, steps])),
        )
        others = [player for player in self.pool.active if player.kind != "anchor" and player.id != copy.id]
        chosen = [player for player in self.pool.active if player.kind == "anchor"]
        some = random.permutation(len(others))[: league.rating_opponents]
        chosen += [others[place] for place in sorted(some.tolist())]
        self._meet([(copy.name, other.name) for other in chosen], steps)
        self._show(copy)

    def _rate_anchors(self) -> None:
        """Let the anchors play each other, so that everything else is measured by one scale."""
        names = [player.name for player in self.pool.active]
        self._meet(list(itertools.combinations(names, 2)), 0)

    def _meet(self, couples: Sequence[tuple[str, str]], steps: int) -> None:
        """Rating games between some players in every mode that counts, greedily and by chance."""
        games = self._settings.league.rating_games
        for play in PLAYS:
            fixtures: list[ScheduledGame] = []
            for number, (one, other) in enumerate(couples):
                for task in self._spec.target or ("",):
                    fixtures += paired_games(one, other, games, steps * 31 + number, task)
            self._play(fixtures, play, "rating", steps)

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
            fixtures = paired_games(copy.name, champion.name, games, seed, tasks[(test.games // LOOK) % len(tasks)])
            played = self._play(fixtures, "greedy", "gate", steps)
            if any(game.fault for game in played):
                return
            for first, second in zip(played[::2], played[1::2], strict=False):
                test.add(first.outcome, -second.outcome)
        told = test.describe()
        words = (
            f"{copy.name} against {champion.name}: {test.verdict} after {test.games} games (score {told['score']:.3f})"
        )
        self.events.append(
            ("promotion", f"{words}; {'it is the best now' if test.verdict == 'PASS' else 'no change'}.")
        )
        if test.verdict == "PASS":
            self.pool.best = copy.id
            self.promotion = {"agent": copy.name, "over": champion.name} | told

    def _play(self, fixtures: Sequence[ScheduledGame], play: str, kind: str, steps: int) -> list[GameResult]:
        """Play games between frozen players, log them, and retire whoever fails."""

        def seat(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
            return load_agent(self.address(name), spec, choice, PLAYS[play])

        played = play_scheduled(self._choice, seat, fixtures, envs=self._settings.evaluation.envs)
        lines = []
        for game in played:
            if game.fault:
                at_fault = [player for player in self.pool.active if player.name == game.culprit]
                for player in at_fault:
                    self._retire(player, game.fault)
            else:
                lines.append(played_line(game, self._choice.name, self._spec, play, kind, steps))
        self._log.append(lines)
        self._rated += lines
        return played

    def _show(self, copy: Player) -> None:
        """Rate everybody anew from all games, and keep the newest copy's numbers for the log."""
        for table in ladder(self._rated):
            for player in table["players"]:
                if player["agent"] == copy.name:
                    name = "/".join(filter(None, ("league/rating", table["mode"], table["play"])))
                    ends = ("rating", ""), ("low", "_low"), ("high", "_high")
                    self._shown |= {name + end: player[key] for key, end in ends if player[key] is not None}

    def _log_matches(self, matches: Sequence[FinishedGame], players: list[str], learner: str, own_steps: int) -> None:
        """Log games of a learner, whose steps may be others than the main agent's."""
        lines, name = [], f"{learner}@{own_steps}"
        for match in matches:
            agents = [name, name if match.player == SELF else players[match.player]]
            outcome, score = match.outcome, _score(self._spec, match.behaviour, match.opponent_behaviour)
            if match.side == 1:
                agents, outcome, score = agents[::-1], -outcome, score[::-1] if score else None
            task = self._spec.tasks[match.task] if match.task >= 0 else mode_of(self._spec)
            lines.append(
                game_line(
                    "train",
                    self._choice.name,
                    task,
                    "sampled",
                    agents,
                    outcome,
                    seed=match.seed,
                    score=score,
                    length=match.length,
                    steps=own_steps if learner == MAIN else self._steps,
                )
            )
        self._log.append(lines)


def played_line(game: GameResult, env: str, spec: EnvSpec, play: str, kind: str, steps: int | None) -> dict[str, Any]:
    """A game of frozen players, as the log holds it."""
    own, theirs = (tuple(side.values()) for side in game.behaviour)
    return game_line(
        kind, env, game.game.task or mode_of(spec), play, game.game.players, game.outcome,
        seed=game.game.seed, score=_score(spec, own, theirs), length=game.length, steps=steps,
    )  # fmt: skip


def mode_of(spec: EnvSpec) -> str:
    """What is played where no task is named."""
    return spec.target[0] if len(spec.target) == 1 else "any" if spec.target else ""


def _score(spec: EnvSpec, own: Sequence[float], theirs: Sequence[float]) -> list[int] | None:
    """Goals of both sides, in games that have them."""
    if "goals" not in spec.behaviours:
        return None
    column = spec.behaviours.index("goals")
    return [round(own[column]), round(theirs[column])]
