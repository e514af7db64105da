"""Tournament: agents play each other in pairs of games; writes a log of the games and a ladder."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from slipstream.agents.own import PREFIX
from slipstream.agents.specs import is_own, load_agent, split_run
from slipstream.contracts import Agent, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, MachineError, SlipstreamError
from slipstream.league.ladder import ANCHOR, GamesLog, Line, write_ladder
from slipstream.league.league import result_line
from slipstream.play.engine import GameResult, ScheduledGame, play_scheduled
from slipstream.play.games import game_seed
from slipstream.play.replay_recording import record_replays
from slipstream.runs.layout import RunDir, default_path, lock
from slipstream.system.machine import cores
from slipstream.vector.make import make_vector

Format = Literal["round-robin", "gauntlet", "knockout"]
CHUNK = 512
"""Games that a thread plays before they are logged."""
MAX_TIEBREAKS = 20
"""Extra pairs of a drawn knockout match before the better seed advances."""
OnNotice = Callable[[str], None]


def tournament(
    choice: EnvChoice,
    agents: Sequence[str],
    games: int,
    *,
    format: Format = "round-robin",
    seed: int = 0,
    sampled: bool = False,
    run: Path | None = None,
    envs: int = 256,
    anchor: str = ANCHOR,
    replays: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    on_notice: OnNotice | None = None,
) -> dict[str, Any]:
    """Play `games` games between every two agents that the format pairs, and rate all agents.

    Games come in pairs from the same start with the sides swapped. If the folder has a log, games with new starts are
    added to it. Agents that fail are retired with a notice.
    """
    if games < 2 or games % 2:
        raise ConfigError(f"{games} games cannot be played in pairs.", "give --games an even number, 2 or more")
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
    if not spec.competitive:
        raise ConfigError(
            f"`{choice.name}` has one side, so it has no tournament.",
            "compare agents with slipstream evaluate AGENT --beside AGENT",
        )
    folder = RunDir(run if run is not None else default_path("tournament"))
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"Could not make {folder.path}: {error.strerror or error}.", "choose another --run"
        ) from error
    start = time.perf_counter()
    with lock(folder):
        unnamed = [agent for agent in agents if agent.startswith(f"{PREFIX}lambda")]
        if unnamed and folder.games.exists():
            raise ConfigError(
                f"{folder.path} has games, and `{unnamed[0]}` may be another function than in those.",
                'name it: agents={"NAME": function} and "python:NAME", or use a function that `def` makes',
            )
        entrants = _load_entrants(choice, spec, agents, sampled, on_notice)
        tournament = _Tournament(choice, spec, entrants, folder, seed, sampled, envs, on_progress)
        rounds = _FORMATS[format](tournament, games)
        tournament.log.close()
        seconds = time.perf_counter() - start
        whole = write_ladder(folder, anchor)
        winner = _winner(whole["tables"], tournament)
        kept = tournament.record_replays(winner) if winner and replays else []
    return {
        "env": choice.name,
        "format": format,
        "seed": seed,
        "play": tournament.play,
        "run": str(folder.path),
        "agents": entrants.names,
        "retired": entrants.retired,
        "games": tournament.played,
        "seconds": seconds,
        "rounds": rounds,
        "logged": whole["logged"],
        "unreadable": whole["unreadable"],
        "tables": whole["tables"],
        "files": [str(folder.path / name) for name in ("games.jsonl", "ladder.json", "ratings.csv")]
        + whole["pictures"],
        "winner": winner,
        "replays": [str(path) for path in kept],
    }


def _winner(tables: Sequence[dict[str, Any]], tournament: _Tournament) -> str:
    """The entrant with the highest rating."""
    ranked = [player["agent"] for one in tables if one["play"] == tournament.play for player in one["players"]]
    return next((agent for agent in ranked if agent in tournament.entrants.names), "")


@dataclass
class _Entrants:
    """The agents of the tournament, and those that were retired."""

    on_notice: OnNotice
    names: list[str] = field(default_factory=list)
    """With versions, in seed order."""
    retired: dict[str, str] = field(default_factory=dict)

    def retire(self, name: str, why: str) -> None:
        """Leave an agent out of all further games; the games it has played count."""
        if name not in self.retired:
            self.retired[name] = why
            self.on_notice(f"{name} is retired: {why}")
        if name in self.names:
            self.names.remove(name)
        if len(self.names) < 2:
            reasons = "; ".join(f"{who}: {reason}" for who, reason in self.retired.items())
            raise ConfigError(
                f"Fewer than two agents are left to play. {reasons}", "name at least two agents that can play"
            )


def _load_entrants(
    choice: EnvChoice, spec: EnvSpec, agents: Sequence[str], sampled: bool, on_notice: OnNotice | None
) -> _Entrants:
    """Load every agent once, to find its version and whether it can play."""
    entrants = _Entrants(on_notice or (lambda text: None))
    broken: dict[str, str] = {}
    found: dict[tuple[str, str], str] = {}
    for text in agents:
        try:
            name = load_agent(text, spec, choice, sampled).name
        except SlipstreamError as error:
            if isinstance(error, ConfigError):
                raise
            broken[text] = error.message
            continue
        if (same := found.setdefault(_identity(name), name)) in entrants.names:
            entrants.on_notice(f"{text} is {same}, which is entered already: it plays once")
        else:
            entrants.names.append(name)
    if len(agents) < 2:
        raise ConfigError(f"{len(agents)} agent cannot play a tournament.", "name at least two")
    if len(entrants.names) < 2 and not broken:
        raise ConfigError(f"All of these are one agent, {entrants.names[0]}.", "name at least two different ones")
    for text, why in broken.items():
        entrants.retire(text, why)
    return entrants


def _identity(name: str) -> tuple[str, str]:
    """The key by which agents are compared: for a trained agent its resolved folder and its version."""
    if not name.startswith("run:"):
        return name, ""
    folder, which = split_run(name)
    return str(folder.resolve()), which


class _Tournament:
    """Plays games in several threads (compiled games and policies release the GIL) and logs them."""

    def __init__(
        self,
        choice: EnvChoice,
        spec: EnvSpec,
        entrants: _Entrants,
        folder: RunDir,
        seed: int,
        sampled: bool,
        envs: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.entrants, self.log, self.played = entrants, GamesLog(folder), 0
        self.play = "sampled" if sampled else "greedy"
        self._results: list[GameResult] = []
        self._folder, self._choice, self._spec, self._seed = folder, choice, spec, seed
        self._sampled, self._envs = sampled, envs
        self._on_progress = on_progress
        self._ended = self._total = 0
        self._progress_lock = threading.Lock()
        self._done = {_key(line) for line in self.log.read()[0]}

    def play_pairs(self, pairs: Sequence[tuple[str, str]], games: int) -> list[Line]:
        """Play `games` games between each pair of agents in each mode; return the log lines of the games that count."""
        schedule = []
        for one, other in pairs:
            for task in self._spec.target or ("",):
                schedule += self._new_games(one, other, games, task)
        self._total += len(schedule)
        chunks = [schedule[first : first + CHUNK] for first in range(0, len(schedule), CHUNK)]
        lines = []
        for played in self._play_all(chunks):
            valid = [game for game in played if not game.fault]
            new = [result_line(game, self._choice.name, self._spec, self.play, "tournament", None) for game in valid]
            self._results += valid
            self.log.append(new)
            self._done |= {_key(line) for line in new}
            lines += new
            self.played += len(new)
            for name, why in {game.culprit: game.fault for game in played if game.fault}.items():
                self.entrants.retire(name, why.removeprefix(f"{name} "))
        return lines

    def _new_games(self, one: str, other: str, games: int, task: str) -> list[ScheduledGame]:
        """Games from starts that the two agents have not played yet."""
        found: list[ScheduledGame] = []
        number = 0
        while len(found) < games:
            seed = game_seed(self._seed, number)
            both = ((one, other), (other, one))
            found += [
                ScheduledGame(sides, seed, task) for sides in both if (*sides, task, self.play, seed) not in self._done
            ]
            number += 1
        return found

    def _play_all(self, chunks: list[list[ScheduledGame]]) -> Iterator[list[GameResult]]:
        """Play the chunks in threads; games of agents that were retired in the meantime are skipped.

        The user's own agents play in this thread: they share Python's lock anyway, and a hang in a blocking call is
        interrupted in the main thread only.
        """
        waiting = list(reversed(chunks))
        running: set[Future[list[GameResult]]] = set()
        with ThreadPoolExecutor(max(1, cores())) as pool:
            while waiting or running:
                while waiting and len(running) < cores():
                    chunk = [game for game in waiting.pop() if not set(game.players) & set(self.entrants.retired)]
                    if any(is_own(player) for game in chunk for player in game.players):
                        yield self._play(chunk)
                    elif chunk:
                        running.add(pool.submit(self._play, chunk))
                ended, running = wait(running, return_when=FIRST_COMPLETED) if running else (set(), running)
                for future in ended:
                    yield future.result()

    def _play(self, chunk: list[ScheduledGame]) -> list[GameResult]:
        before = 0

        def report(done: int) -> None:
            nonlocal before
            with self._progress_lock:
                self._ended += done - before
                before = done
                if self._on_progress is not None:
                    self._on_progress(self._ended, self._total)

        return play_scheduled(self._choice, self._load, chunk, envs=self._envs, on_progress=report)

    def _load(self, name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        return load_agent(name, spec, choice, self._sampled)

    def record_replays(self, agent: str) -> list[Path]:
        """Write replays of the best, worst, closest and lost games of an agent."""
        return record_replays(self._choice, self._results, agent, self._folder.replays, load=self._load)


def _key(line: Line) -> tuple[Any, ...]:
    return *line["agents"], line.get("mode"), line.get("play"), line.get("seed")


def _round_robin(tournament: _Tournament, games: int) -> list[list[dict[str, Any]]]:
    """Every agent against every other."""
    tournament.play_pairs(list(combinations(tournament.entrants.names, 2)), games)
    return []


def _gauntlet(tournament: _Tournament, games: int) -> list[list[dict[str, Any]]]:
    """The first agent against all others."""
    first, *others = tournament.entrants.names
    tournament.play_pairs([(first, other) for other in others], games)
    return []


def _knockout(tournament: _Tournament, games: int) -> list[list[dict[str, Any]]]:
    """The first seed against the last and so on, with byes for the best seeds, until one agent is left."""
    seeding = {name: rank for rank, name in enumerate(tournament.entrants.names)}
    left, rounds = list(seeding), []
    while len(left) > 1:
        byes = (1 << (len(left) - 1).bit_length()) - len(left)
        playing = left[byes:]
        half = len(playing) // 2
        pairs = [(playing[i], playing[-1 - i]) for i in range(half)]
        results = _play_matches(tournament, pairs, games)
        rounds.append(results)
        left = sorted([*left[:byes], *(result["winner"] for result in results)], key=seeding.__getitem__)
    return rounds


def _play_matches(tournament: _Tournament, pairs: list[tuple[str, str]], games: int) -> list[dict[str, Any]]:
    """Play one match per pair; a retired agent loses, and after drawn extra pairs the better seed advances."""
    points = {pair: [0.0, 0.0] for pair in pairs}
    tiebreaks = dict.fromkeys(pairs, 0)
    open_pairs, length = list(pairs), games
    while open_pairs:
        for line in tournament.play_pairs(open_pairs, length):
            one, other = line["agents"]
            pair, sign = ((one, other), 1) if (one, other) in points else ((other, one), -1)
            result = sign * line["outcome"]
            points[pair][0] += (1 + result) / 2
            points[pair][1] += (1 - result) / 2
        retired = tournament.entrants.retired
        open_pairs = [
            pair
            for pair in open_pairs
            if points[pair][0] == points[pair][1] and tiebreaks[pair] < MAX_TIEBREAKS and not set(pair) & set(retired)
        ]
        for pair in open_pairs:
            tiebreaks[pair] += 1
        length = 2
    return [_result(pair, points[pair], tiebreaks[pair], tournament.entrants.retired) for pair in pairs]


def _result(pair: tuple[str, str], points: list[float], tiebreaks: int, retired: dict[str, str]) -> dict[str, Any]:
    one, other = pair
    walkover = (one in retired) != (other in retired)
    first = other in retired if walkover else points[0] >= points[1]
    return {
        "agents": [one, other],
        "points": points,
        "replayed_pairs": tiebreaks,
        "walkover": walkover,
        "winner": one if first else other,
    }


_FORMATS: dict[str, Callable[[_Tournament, int], list[list[dict[str, Any]]]]] = {
    "round-robin": _round_robin,
    "gauntlet": _gauntlet,
    "knockout": _knockout,
}
