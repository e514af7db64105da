"""Tournament: any agents play each other in pairs of games, and leave a log and a ladder."""

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

from slipstream.agents.specs import load_agent, split_run
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
LEVEL = 20
"""Further pairs after a drawn knockout match, before the better seed goes on."""
Say = Callable[[str], None]


def tournament(
    choice: EnvChoice, agents: Sequence[str], games: int, *, format: Format = "round-robin", seed: int = 0,
    sampled: bool = False, run: Path | None = None, envs: int = 256, anchor: str = ANCHOR,
    replays: bool = True, on_progress: Callable[[int, int], None] | None = None, on_notice: Say | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Play `games` games between every two agents that the format brings together, and rate everybody.

    Games come in pairs from the same start with the sides swapped. In a folder that has a log, games are added to it:
    other starts than those that two agents have played already. Agents that cannot play are retired with a notice.
    """
    if games < 2 or games % 2:
        raise ConfigError(f"{games} games cannot be played in pairs.", "give --games an even number, 2 or more")
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
    if not spec.competitive:
        raise ConfigError(
            f"`{choice.name}` has one side: nobody wins against anybody.",
            "compare agents by slipstream evaluate AGENT --beside AGENT",
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
        entry = _enter(choice, spec, agents, sampled, on_notice)
        hall = _Hall(choice, spec, entry, folder, seed, sampled, envs, on_progress)
        rounds = _FORMATS[format](hall, games)
        hall.log.close()
        seconds = time.perf_counter() - start
        whole = write_ladder(folder, anchor)
        kept = hall.replays(winner) if (winner := _winner(whole["tables"], hall)) and replays else []
    return {
        "env": choice.name, "format": format, "seed": seed, "play": hall.play, "run": str(folder.path),
        "agents": entry.names, "retired": entry.retired, "games": hall.played, "seconds": seconds,
        "rounds": rounds, "logged": whole["logged"], "unreadable": whole["unreadable"], "tables": whole["tables"],
        "files": [str(folder.path / name) for name in ("games.jsonl", "ladder.json", "ratings.csv")]
        + whole["pictures"],
        "winner": winner, "replays": [str(path) for path in kept],
    }  # fmt: skip


def _winner(tables: Sequence[dict[str, Any]], hall: _Hall) -> str:
    """The best rated of those that have just played."""
    ranked = [player["agent"] for one in tables if one["play"] == hall.play for player in one["players"]]
    return next((agent for agent in ranked if agent in hall.entry.names), "")


@dataclass
class _Entry:
    """Who takes part, and who cannot any more."""

    say: Say
    names: list[str] = field(default_factory=list)
    """With versions, in the order of their seeding."""
    retired: dict[str, str] = field(default_factory=dict)

    def retire(self, name: str, why: str) -> None:
        """Leave a player out from now on; the games that it has played stand."""
        if name not in self.retired:
            self.retired[name] = why
            self.say(f"{name} is retired: {why}")
        if name in self.names:
            self.names.remove(name)
        if len(self.names) < 2:
            reasons = "; ".join(f"{who}: {reason}" for who, reason in self.retired.items())
            raise ConfigError(f"Fewer than two agents are left to play. {reasons}", "name at least two that can play")


def _enter(choice: EnvChoice, spec: EnvSpec, agents: Sequence[str], sampled: bool, say: Say | None) -> _Entry:
    """Load everybody once, to know their versions and who cannot play."""
    entry = _Entry(say or (lambda text: None))
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
        if (same := found.setdefault(_identity(name), name)) in entry.names:
            entry.say(f"{text} is {same}, which is entered already: it plays once")
        else:
            entry.names.append(name)
    if len(agents) < 2:
        raise ConfigError(f"{len(agents)} agent cannot play a tournament.", "name at least two")
    if len(entry.names) < 2 and not broken:
        raise ConfigError(f"All of these are one agent, {entry.names[0]}.", "name at least two different ones")
    for text, why in broken.items():
        entry.retire(text, why)
    return entry


def _identity(name: str) -> tuple[str, str]:
    """What tells agents apart: for a trained one its folder, however written, and its version."""
    if not name.startswith("run:"):
        return name, ""
    folder, which = split_run(name)
    return str(folder.resolve()), which


class _Hall:
    """Where games are played, in some threads at once (compiled games and policies hold no lock), and logged."""

    def __init__(
        self, choice: EnvChoice, spec: EnvSpec, entry: _Entry, folder: RunDir, seed: int, sampled: bool, envs: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self.entry, self.log, self.played = entry, GamesLog(folder), 0
        self.play = "sampled" if sampled else "greedy"
        self._results: list[GameResult] = []
        self._folder, self._choice, self._spec, self._seed = folder, choice, spec, seed
        self._sampled, self._envs = sampled, envs
        self._on_progress = on_progress
        self._ended = self._total = 0
        self._turn = threading.Lock()
        self._done = {_key(line) for line in self.log.read()[0]}

    def meet(self, pairs: Sequence[tuple[str, str]], games: int) -> list[Line]:
        """Play every two of these so often in each mode; return the games that count."""
        fixtures = []
        for one, other in pairs:
            for task in self._spec.target or ("",):
                fixtures += self._fixtures(one, other, games, task)
        self._total += len(fixtures)
        chunks = [fixtures[first : first + CHUNK] for first in range(0, len(fixtures), CHUNK)]
        lines = []
        for played in self._play_all(chunks):
            sound = [game for game in played if not game.fault]
            good = [result_line(game, self._choice.name, self._spec, self.play, "tournament", None) for game in sound]
            self._results += sound
            self.log.append(good)
            self._done |= {_key(line) for line in good}
            lines += good
            self.played += len(good)
            for name, why in {game.culprit: game.fault for game in played if game.fault}.items():
                self.entry.retire(name, why.removeprefix(f"{name} "))
        return lines

    def _fixtures(self, one: str, other: str, games: int, task: str) -> list[ScheduledGame]:
        """Games from starts that these two have not played yet."""
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
        """Play the chunks in threads; the games of somebody who was retired meanwhile are not begun."""
        waiting = list(reversed(chunks))
        running: set[Future[list[GameResult]]] = set()
        with ThreadPoolExecutor(max(1, cores())) as pool:
            while waiting or running:
                while waiting and len(running) < cores():
                    chunk = [game for game in waiting.pop() if not set(game.players) & set(self.entry.retired)]
                    if chunk:
                        running.add(pool.submit(self._play, chunk))
                ended, running = wait(running, return_when=FIRST_COMPLETED) if running else (set(), running)
                for future in ended:
                    yield future.result()

    def _play(self, chunk: list[ScheduledGame]) -> list[GameResult]:
        before = 0

        def tell(done: int) -> None:
            nonlocal before
            with self._turn:
                self._ended += done - before
                before = done
                if self._on_progress is not None:
                    self._on_progress(self._ended, self._total)

        return play_scheduled(self._choice, self._seat, chunk, envs=self._envs, on_progress=tell)

    def _seat(self, name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        return load_agent(name, spec, choice, self._sampled)

    def replays(self, agent: str) -> list[Path]:
        """Keep the best, worst, closest and lost games of an agent."""
        return record_replays(self._choice, self._results, agent, self._folder.replays, load=self._seat)


def _key(line: Line) -> tuple[Any, ...]:
    return *line["agents"], line.get("mode"), line.get("play"), line.get("seed")


def _round_robin(hall: _Hall, games: int) -> list[list[dict[str, Any]]]:
    """Everybody against everybody."""
    hall.meet(list(combinations(hall.entry.names, 2)), games)
    return []


def _gauntlet(hall: _Hall, games: int) -> list[list[dict[str, Any]]]:
    """The first against all others."""
    first, *others = hall.entry.names
    hall.meet([(first, other) for other in others], games)
    return []


def _knockout(hall: _Hall, games: int) -> list[list[dict[str, Any]]]:
    """The first seed against the last and so on, byes for the best, until one is left; a tie is played on in pairs."""
    seeding = {name: rank for rank, name in enumerate(hall.entry.names)}
    left, rounds = list(seeding), []
    while len(left) > 1:
        byes = (1 << (len(left) - 1).bit_length()) - len(left)
        playing = left[byes:]
        half = len(playing) // 2
        pairs = [(playing[i], playing[-1 - i]) for i in range(half)]
        results = _decide(hall, pairs, games)
        rounds.append(results)
        left = sorted([*left[:byes], *(result["winner"] for result in results)], key=seeding.__getitem__)
    return rounds


def _decide(hall: _Hall, pairs: list[tuple[str, str]], games: int) -> list[dict[str, Any]]:
    """Matches until each has a winner: who is retired has lost, and of two that stay level the better seed goes on."""
    points = {pair: [0.0, 0.0] for pair in pairs}
    replays = dict.fromkeys(pairs, 0)
    open_pairs, length = list(pairs), games
    while open_pairs:
        for line in hall.meet(open_pairs, length):
            one, other = line["agents"]
            pair, turned = ((one, other), 1) if (one, other) in points else ((other, one), -1)
            result = turned * line["outcome"]
            points[pair][0] += (1 + result) / 2
            points[pair][1] += (1 - result) / 2
        retired = hall.entry.retired
        open_pairs = [
            pair for pair in open_pairs
            if points[pair][0] == points[pair][1] and replays[pair] < LEVEL and not set(pair) & set(retired)
        ]  # fmt: skip
        for pair in open_pairs:
            replays[pair] += 1
        length = 2
    return [_result(pair, points[pair], replays[pair], hall.entry.retired) for pair in pairs]


def _result(pair: tuple[str, str], points: list[float], replays: int, retired: dict[str, str]) -> dict[str, Any]:
    one, other = pair
    walkover = (one in retired) != (other in retired)
    first = other in retired if walkover else points[0] >= points[1]
    return {"agents": [one, other], "points": points, "replayed_pairs": replays, "walkover": walkover,
            "winner": one if first else other}  # fmt: skip


_FORMATS: dict[str, Callable[[_Hall, int], list[list[dict[str, Any]]]]] = {
    "round-robin": _round_robin,
    "gauntlet": _gauntlet,
    "knockout": _knockout,
}
