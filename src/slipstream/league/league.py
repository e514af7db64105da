"""The league of one main agent: matchmaking, snapshots, exploiters, ratings and promotion."""

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
from slipstream.league.exploiters import CURRENT_MAIN, Exploiter
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
from slipstream.training.opponents import Event, PlayerRegistry

PLAYS = {"greedy": False, "sampled": True}
EXPLOITER_TURN = 0.25
"""The length of an exploiter's turn, as a share of `league.snapshot`."""
SPRT_BATCH = 64
"""Games of a promotion test between two checks of its verdict."""


class League:
    """The opponents of a league's main agent: itself, snapshots of it and of exploiters, and the anchors.

    Players have names such as `main@1000000` or `scripted:rule`. `agent_spec` finds their files, so that a league
    whose folder was moved still finds its snapshots.
    """

    sampled = promotes = True

    def __init__(self, run: RunDir, settings: Settings, choice: EnvChoice, spec: EnvSpec, design: Design) -> None:
        self.events: list[Event] = []
        self.promotion: dict[str, Any] | None = None
        """The test that the newest snapshot has just passed, if it did."""
        self.pool = Pool(settings.league.decay)
        self._run, self._settings, self._choice, self._spec, self._design = run, settings, choice, spec, design
        self._log = GamesLog(run)
        self._rated: list[dict[str, Any]] = []
        """Games between players that do not learn, from which the ratings are computed."""
        self._registry: PlayerRegistry | None = None
        self._resident: list[int] = []
        self._turn = 0
        self._steps = self._frozen_at = 0
        self._exploiter_steps = 0.0
        """Steps that the exploiters have not trained yet."""
        self._exploiter_turns = 0
        self.exploiters = self._make_exploiters()
        self._rating_metrics: dict[str, float] = {}

    def register_players(self, registry: PlayerRegistry) -> None:
        """Add the anchors: those of the settings, or the game's own."""
        self._registry = registry
        for name in dict.fromkeys(self._settings.league.anchors or self._game_anchors()):
            try:
                load_agent(name, self._spec, self._choice)
            except SlipstreamError as error:
                raise ConfigError(f"league.anchors: {error.message}", error.hint) from error
            self.pool.add(registry.register(name), name, "anchor")

    def agent_spec(self, name: str) -> str:
        """The agent spec from which a player is loaded."""
        learner, _, steps = name.rpartition("@")
        if learner == MAIN:
            return f"run:{self._run.pool}@{steps}"
        own = {CURRENT_MAIN, *(exploiter.name for exploiter in self.exploiters)}
        return f"run:{self._run.path / learner}@{steps}" if learner in own else name

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample the opponent and the learning side of each of the next `count` games.

        Only some players of a large pool are resident at a time, and one of them changes with every call, so that each
        step runs few networks. In the long run every player is met with its own probability.
        """
        league, sides = self._settings.league, rng.integers(len(set(self._spec.teams)), size=count)
        self_play, each = self.pool.probabilities(MAIN, league)
        ids, probabilities = np.array(list(each), np.int64), np.array(list(each.values()))
        if probabilities.sum() <= 0:
            return np.full(count, SELF, np.int64), sides
        probabilities /= probabilities.sum()
        if len(ids) > league.resident:
            self._resident = [id for id in self._resident if each.get(id)]
            missing = league.resident - len(self._resident)
            self._resident += rng.choice(ids, missing, p=probabilities).tolist()
            self._resident[self._turn % league.resident] = int(rng.choice(ids, p=probabilities))
            self._turn += 1
            ids, probabilities = np.array(self._resident, np.int64), np.full(league.resident, 1 / league.resident)
        players = rng.choice(ids, count, p=probabilities)
        return np.where(rng.random(count) < self_play, SELF, players), sides

    def record_games(self, games: Sequence[FinishedGame], steps: int) -> None:
        """Record the results of the main agent in the pool, and log every game."""
        assert self._registry is not None
        for game in games:
            if game.player in self.pool.players:
                self.pool.result(MAIN, game.player, game.outcome)
        self._log_training_games(games, self._registry.players, MAIN, steps)

    def retire(self, player: int, why: str) -> None:
        """Do not play against this player again."""
        if player in self.pool.players:
            self._retire(self.pool.players[player], why)

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """Take a snapshot of the main agent when due, rate it and test it for promotion; train the exploiters."""
        league, new_steps = self._settings.league, steps - self._steps
        self.promotion, self._steps = None, steps
        if steps == 0:
            self._rate_anchors()
        if steps == 0 or self.pool.ready(MAIN, steps - self._frozen_at, league):
            self._frozen_at = steps
            self._promote(self._add_snapshot(MAIN, "main", steps, params_and_stats, steps), steps)
            self._retire_surplus()
        if self.exploiters:
            self._exploiter_steps += new_steps * league.exploiter_share / (1 - league.exploiter_share)
            while self._exploiter_steps >= league.snapshot * EXPLOITER_TURN:
                self._exploiter_steps -= league.snapshot * EXPLOITER_TURN
                self._train_exploiter(steps, params_and_stats)
        records = [self.pool.record(MAIN, player.id) for player in self.pool.active]
        wins, draws, games = np.sum([(0.0, 0.0, 0.0), *records], axis=0)
        row = {"league/pool": float(len(self.pool.active)), "league/snapshots": float(len(self.pool.players))}
        if games > 0:
            row["league/score"] = float((wins + draws / 2) / games)
        return row | self._rating_metrics

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The state for a checkpoint; the games are in the log."""
        arrays, exploiters = dict[str, Array](), dict[str, Any]()
        for exploiter in self.exploiters:
            named, exploiters[exploiter.name] = exploiter.snapshot()
            arrays |= {f"{exploiter.name}/{name}": array for name, array in named.items()}
        return arrays, {
            "exploiters": exploiters,
            "debt": self._exploiter_steps,
            "visits": self._exploiter_turns,
            "pool": self.pool.describe(),
            "resident": list(self._resident),
            "turn": self._turn,
            "frozen_at": self._frozen_at,
            "shown": dict(self._rating_metrics),
            "steps": self._steps,
        }

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore the state of `snapshot`, and drop games that were logged after it."""
        self.pool = Pool.restore(state["pool"])
        self._resident, self._turn = list(state["resident"]), int(state["turn"])
        self._steps, self._frozen_at = int(state["steps"]), int(state["frozen_at"])
        self._rating_metrics = dict(state["shown"])
        self._exploiter_steps, self._exploiter_turns = float(state["debt"]), int(state["visits"])
        for exploiter in self.exploiters:
            own = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith(f"{exploiter.name}/")}
            exploiter.restore(own, state["exploiters"][exploiter.name])
        self._log.rewind(int(state["steps"]))
        self._rated = [game for game in self._log.read()[0] if game["kind"] != "train"]

    def close(self) -> None:
        """Close the exploiters' workers."""
        for exploiter in self.exploiters:
            exploiter.parts.close()

    def _game_anchors(self) -> tuple[str, ...]:
        game, _ = parse(self._choice.name)
        if game is None:
            return ()
        return game.opponents if self._choice.observation is None else ("random",)  # scripted players cannot read it

    def _retire(self, player: Player, why: str) -> None:
        if not player.retired:
            self.pool.retire(player.id, why)
            self.events.append(("retired", f"{player.name} is retired: {why}."))

    def _make_exploiters(self) -> list[Exploiter]:
        """Make the exploiters, each with its own weights and games."""
        league = self._settings.league
        kinds: list[Kind] = ["main_exploiter"] * league.main_exploiters
        kinds += ["league_exploiter"] * league.league_exploiters
        exploiters = []
        for number, kind in enumerate(kinds):
            name = f"{kind.replace('_', '-')}-{number + 1}"
            exploiter = Exploiter(name, kind, number, self._settings, self._choice, lambda: self.pool)
            exploiter.target.find_spec, exploiter.target.log = self.agent_spec, self._log_training_games
            exploiters.append(exploiter)
        return exploiters

    def _train_exploiter(self, steps: int, params_and_stats: Array) -> None:
        """Train the next exploiter for one turn; add a snapshot of it to the pool when due, and maybe reset it."""
        league, exploiter = self._settings.league, self.exploiters[self._exploiter_turns % len(self.exploiters)]
        self._exploiter_turns += 1
        self._save(RunDir(self._run.path / CURRENT_MAIN), steps, params_and_stats)
        exploiter.train(round(league.snapshot * EXPLOITER_TURN), f"{CURRENT_MAIN}@{steps}")
        since = exploiter.steps - exploiter.frozen_at
        if self.pool.ready(exploiter.name, since, league, exploiter.kind):
            own = exploiter.parts.learner.params_and_stats
            self._add_snapshot(exploiter.name, exploiter.kind, exploiter.steps, own, steps)
            reset = exploiter.reset_after_snapshot()
            self.pool.clear_record(exploiter.name)
            text = "is reset to its initial weights" if reset else "continues from its weights"
            self.events.append(("exploiter", f"{exploiter.name} {text}."))
            self._retire_surplus()

    def _save(self, folder: RunDir, steps: int, params_and_stats: Array) -> None:
        """Write the weights of a learner as a run directory, so that an agent spec can name them."""
        folder.path.mkdir(exist_ok=True)
        for file in (self._run.config, self._run.provenance):
            if not (folder.path / file.name).exists():
                shutil.copyfile(file, folder.path / file.name)
        state = {"policy": self._design.describe(), "env": self._choice.name, "frozen": True}
        save(folder, Checkpoint(steps, {"policy": policy_arrays(self._design, params_and_stats)}, state))

    def _add_snapshot(self, learner: str, kind: Kind, own_steps: int, params_and_stats: Array, steps: int) -> Player:
        """Add a snapshot of a learner to the pool, and rate it."""
        assert self._registry is not None
        self._save(RunDir(self._run.pool if learner == MAIN else self._run.path / learner), own_steps, params_and_stats)
        name = f"{learner}@{own_steps}"
        player = self.pool.add(self._registry.register(name), name, kind, own_steps, learner)
        self.events.append(("snapshot", f"{name} is added; the pool has {len(self.pool.active)} players."))
        self._rate(player, steps)
        return player

    def _retire_surplus(self) -> None:
        for player in self.pool.retire_surplus(self._settings.league.pool):
            self.events.append(("retired", f"{player.name} is retired: {player.why}."))

    def _rate(self, player: Player, steps: int) -> None:
        """Play rating games of a new snapshot against the anchors and some other players, and update the ratings."""
        league = self._settings.league
        rng = np.random.Generator(np.random.PCG64([self._settings.seed, 0xA7E, steps]))
        others = [other for other in self.pool.active if other.kind != "anchor" and other.id != player.id]
        opponents = [other for other in self.pool.active if other.kind == "anchor"]
        chosen = rng.permutation(len(others))[: league.rating_opponents]
        opponents += [others[place] for place in sorted(chosen.tolist())]
        self._play_rating_games([(player.name, other.name) for other in opponents], steps)
        self._update_ratings(player)

    def _rate_anchors(self) -> None:
        """Play rating games between the anchors, so that all ratings have one scale."""
        names = [player.name for player in self.pool.active]
        self._play_rating_games(list(itertools.combinations(names, 2)), 0)

    def _play_rating_games(self, pairs: Sequence[tuple[str, str]], steps: int) -> None:
        """Play rating games between pairs of players in every target task, greedy and sampled."""
        games = self._settings.league.rating_games
        for play in PLAYS:
            schedule: list[ScheduledGame] = []
            for number, (one, other) in enumerate(pairs):
                for task in self._spec.target or ("",):
                    schedule += paired_games(one, other, games, steps * 31 + number, task)
            self._play(schedule, play, "rating", steps)

    def _promote(self, player: Player, steps: int) -> None:
        """Test with an SPRT whether a new snapshot is stronger than the best one; the first snapshot is the best."""
        best, league = self.pool.best, self._settings.league
        if best is None:
            self.pool.best = player.id
            return
        test, champion = Sprt(high=league.sprt_elo), self.pool.players[best]
        tasks = self._spec.target or ("",)
        while test.verdict == "INCONCLUSIVE" and test.games < league.sprt_games:
            seed = steps * 37 + test.games + 1
            games = min(SPRT_BATCH, league.sprt_games - test.games)
            task = tasks[(test.games // SPRT_BATCH) % len(tasks)]
            results = self._play(paired_games(player.name, champion.name, games, seed, task), "greedy", "gate", steps)
            if any(result.fault for result in results):
                return
            for first, second in zip(results[::2], results[1::2], strict=False):
                test.add(first.outcome, -second.outcome)
        facts = test.describe()
        text = f"{player.name} against {champion.name}: {test.verdict} after {test.games} games"
        change = f"{player.name} is the best now" if test.verdict == "PASS" else "no change"
        self.events.append(("promotion", f"{text} (score {facts['score']:.3f}); {change}."))
        if test.verdict == "PASS":
            self.pool.best = player.id
            self.promotion = {"agent": player.name, "over": champion.name} | facts

    def _play(self, schedule: Sequence[ScheduledGame], play: str, kind: str, steps: int) -> list[GameResult]:
        """Play games between players of the pool, log them, and retire players that fail."""

        def load(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
            return load_agent(self.agent_spec(name), spec, choice, PLAYS[play])

        results = play_scheduled(self._choice, load, schedule, envs=self._settings.evaluation.envs)
        lines = []
        for result in results:
            if result.fault:
                failed = [player for player in self.pool.active if player.name == result.culprit]
                for player in failed:
                    self._retire(player, result.fault)
            else:
                lines.append(result_line(result, self._choice.name, self._spec, play, kind, steps))
        self._log.append(lines)
        self._rated += lines
        return results

    def _update_ratings(self, newest: Player) -> None:
        """Rate all players from all games, and store the metrics of the newest snapshot."""
        for table in ladder(self._rated):
            for player in table["players"]:
                if player["agent"] == newest.name:
                    name = "/".join(filter(None, ("league/rating", table["mode"], table["play"])))
                    ends = ("rating", ""), ("low", "_low"), ("high", "_high")
                    self._rating_metrics |= {name + end: player[key] for key, end in ends if player[key] is not None}

    def _log_training_games(
        self, games: Sequence[FinishedGame], players: list[str], learner: str, own_steps: int
    ) -> None:
        """Log games of a learner, whose step count may differ from the main agent's."""
        lines, name = [], f"{learner}@{own_steps}"
        for game in games:
            agents = [name, name if game.player == SELF else players[game.player]]
            outcome, score = game.outcome, _score(self._spec, game.behaviour, game.opponent_behaviour)
            if game.side == 1:
                agents, outcome, score = agents[::-1], -outcome, score[::-1] if score else None
            lines.append(
                game_line(
                    "train",
                    self._choice.name,
                    self._spec.tasks[game.task] if game.task >= 0 else mode_of(self._spec),
                    "sampled",
                    agents,
                    outcome,
                    seed=game.seed,
                    score=score,
                    length=game.length,
                    steps=own_steps if learner == MAIN else self._steps,
                )
            )
        self._log.append(lines)


def result_line(result: GameResult, env: str, spec: EnvSpec, play: str, kind: str, steps: int | None) -> dict[str, Any]:
    """The line of games.jsonl for a scheduled game."""
    own, theirs = (tuple(side.values()) for side in result.behaviour)
    return game_line(
        kind,
        env,
        result.game.task or mode_of(spec),
        play,
        result.game.players,
        result.outcome,
        seed=result.game.seed,
        score=_score(spec, own, theirs),
        length=result.length,
        steps=steps,
    )


def mode_of(spec: EnvSpec) -> str:
    """The mode of a game without a named task."""
    return spec.target[0] if len(spec.target) == 1 else "any" if spec.target else ""


def _score(spec: EnvSpec, own: Sequence[float], theirs: Sequence[float]) -> list[int] | None:
    """Goals of both sides, in games that count goals."""
    if "goals" not in spec.behaviours:
        return None
    column = spec.behaviours.index("goals")
    return [round(own[column]), round(theirs[column])]
