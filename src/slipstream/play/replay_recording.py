"""Replay recording: a played game is played again from its seed and actions and written as a replay."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

import numpy as np

from slipstream.contracts import Array, EnvSpec, sides_of
from slipstream.envs.events import counts_goals, find_events
from slipstream.envs.registry import EnvChoice, UserCode
from slipstream.envs.render.scenes import measured_step_seconds, render_state, state_labels
from slipstream.errors import ConfigError, DemoError
from slipstream.play.assignments import Players
from slipstream.play.engine import (
    AgentLoader,
    GameEngine,
    GameResult,
    ScheduledGame,
    play_scheduled,
    without_random_starts,
)
from slipstream.runs.replays import Event, Replay, ReplayFacts, write
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

STATE = "env/"
"""Prefix of the arrays that hold the env's state."""
LIMIT = 8
"""Replays of one kind that a folder keeps."""


class SingleGame:
    """One game in one env, stepped by the caller, with its state for drawing, its events and its score.

    With `load`, agents play the game; without it, the caller gives all actions.
    """

    def __init__(self, choice: EnvChoice, game: ScheduledGame, load: AgentLoader | None = None) -> None:
        choice = without_random_starts(choice)
        self.choice, self.game = choice, game
        self.vector = make_vector(choice, 1)
        self.spec: EnvSpec = self.vector.spec
        players = None
        if load is not None:
            players = Players(lambda name: load(name, self.spec, choice), strict=True)
        self.engine = GameEngine(self.vector, players)
        self.engine.start([0], [game])
        self.rows = self.engine.rows
        self.state = render_state(self.vector)
        """The env's state for drawing, if it has one; after the end, that of the next episode."""
        self.over, self.last_touch = False, -1
        self.score = [0] * min(2, len(set(self.spec.teams))) if counts_goals(self.spec) else []
        """Goals of both sides, if the game counts goals; no game of more sides does."""

    @property
    def steps(self) -> int:
        """Steps played so far."""
        return self.engine.steps

    def frame(self) -> dict[str, Array]:
        """The arrays of the current step that a replay stores."""
        own = {STATE + name: np.array(array[0]) for name, array in self.state.items()}
        if not own:
            own = {"obs": self.spec.obs.vectors(self.rows.obs).copy()}
        return own | {"active": self.rows.active.copy()}

    def act(self) -> Array:
        """Let the agents act into `engine.action`; return their value estimates, NaN where there are none."""
        self.engine.act()
        assert self.engine.agents is not None
        return self.engine.agents.values(self.rows.active)

    def step(self, action: Array | None = None) -> list[Event]:
        """Play one step, by default with what `act` chose; return its events."""
        before, step = self.state, self.steps
        self.over = bool(self.engine.step(action))
        self.state = render_state(self.vector)
        found = find_events(self.spec, before, self.state, self.rows, self.last_touch) if before else []
        events = [Event(step, kind, agent) for kind, agent in found]
        for event in events:
            if event.kind == "touch":
                self.last_touch = event.agent
            if event.kind == "goal" and self.score:
                self.score[sides_of(self.spec.teams)[event.agent]] += 1
        return events

    def close(self) -> None:
        """Close the env."""
        self.vector.close()


def write_replay(
    choice: EnvChoice,
    result: GameResult,
    path: Path,
    *,
    load: AgentLoader | None = None,
    names: Mapping[str, str] | None = None,
    kind: str = "",
    steps: int | None = None,
) -> GameResult:
    """Play a game again and write it as a replay; return the result that was written.

    With `load`, the replay also holds the agents' value estimates. `names` are the player names to show. If the game
    ends differently this time, that is an error, except in an env that is not exact: with `load`, the agents then
    play a new game from the same seed, and that game is written.
    """
    assert result.actions is not None
    with contextlib.closing(SingleGame(choice, result.game, load)) as game:
        columns, events, again = _play(game, load is not None, result.actions)
    if (again.outcome, again.length, again.behaviour) != (result.outcome, result.length, result.behaviour):
        if game.spec.exact or load is None:
            raise DemoError(
                f"The game of seed {result.game.seed} ended differently when it was played again.",
                "an env with its own source of randomness cannot be replayed",
            )
        with contextlib.closing(SingleGame(choice, result.game, load)) as game:
            columns, events, result = _play(game, True, None)
    named = state_labels(game.spec.name, game.state) if game.state else {}
    arrays = {name: np.stack(rows) for name, rows in columns.items()}
    if "value" in arrays and np.isnan(arrays["value"]).all():
        del arrays["value"]
    facts = _facts(game, result, arrays, names or {})
    facts = facts.model_copy(update={"events": tuple(events), "kind": kind, "steps": steps})
    write(path, facts, arrays, {STATE + name: words for name, words in named.items()})
    return result


def _play(
    game: SingleGame, agents: bool, actions: Array | None
) -> tuple[dict[str, list[Array]], list[Event], GameResult]:
    """Play a game with recorded actions, or with those of the agents; return its columns, events and result."""
    columns, events = dict[str, list[Array]](), list[Event]()
    while not game.over and (actions is None or game.steps < len(actions)):
        frame = game.frame()
        if agents:
            frame["value"] = game.act()
        frame["action"] = game.engine.action.copy() if actions is None else actions[game.steps]
        events += game.step(frame["action"])
        frame |= {"reward": game.rows.reward.copy(), "terms": game.rows.terms.copy()}
        for name, array in frame.items():
            columns.setdefault(name, []).append(array)
    return columns, events, game.engine.result(0) if game.over else GameResult(game.game)


def _facts(game: SingleGame, result: GameResult, arrays: Mapping[str, Array], names: Mapping[str, str]) -> ReplayFacts:
    """The header of a replay."""
    spec, choice, played = game.spec, game.choice, result.game
    states = {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}
    counted = tuple(map(float, game.score)) or None
    return ReplayFacts(
        env=choice.name,
        settings={"env": choice.env.model_dump(), "rewards": choice.rewards.model_dump()},
        task=played.task,
        seed=played.seed,
        players=tuple(names.get(name, name) for name in played.players),
        teams=spec.teams,
        outcome=result.outcome,
        score=goals(result) or counted,
        length=result.length,
        step_seconds=measured_step_seconds(spec.name, states, spec.step_seconds),
        returns=result.returns,
        behaviour=result.behaviour,
        terms=spec.terms,
    )


def verify(replay: Replay, code: UserCode | None = None) -> None:
    """Play a replay again from its seed and actions; raise an error if a single bit differs."""
    facts = replay.facts
    scheduled = ScheduledGame(facts.players, facts.seed, facts.task)
    with contextlib.closing(SingleGame(replayed_choice(replay, code), scheduled)) as game:
        for _ in play_again(replay, game):
            pass
        if not game.over:
            raise DemoError(f"{replay.path} has {facts.length:,} steps; played again, the game is longer.")


def replayed_choice(replay: Replay, code: UserCode | None = None) -> EnvChoice:
    """The environment of a replay, with the settings that it was played with."""
    facts, code = replay.facts, code or UserCode()
    if facts.env.startswith("python:") and code.factory is None:
        raise ConfigError(
            f"{replay.path} is of `{facts.env}`, which a Python function made.",
            f'slipstream.replay("{replay.path}", env=lambda: MyEnv(), mp4="game.mp4") in Python',
        )
    settings = EnvSettings.model_validate(facts.settings.get("env", {}))
    return EnvChoice(name=facts.env, env=settings, **vars(code))


def play_again(replay: Replay, game: SingleGame) -> Iterator[int]:
    """Play a replay's actions in a game that has just started; yield the number of each step before it is played.

    A state that differs from the recorded one is an error.
    """
    facts, actions = replay.facts, replay.read("action")
    missing = set(game.frame()) - set(replay.names)
    if missing:
        raise DemoError(f"{replay.path} does not hold {', '.join(sorted(missing))}.", _version_hint(facts))
    stored = {name: replay.read(name) for name in game.frame()}
    for step in range(facts.length):
        for name, array in game.frame().items():
            kept = stored[name][step]
            if kept.tobytes() != np.ascontiguousarray(array).tobytes():
                raise DemoError(
                    f"{replay.path} differs from the same game played again: "
                    f"{_difference(replay, name, kept, array)} at step {step:,} of {facts.length:,}.",
                    _version_hint(facts),
                )
        yield step
        game.step(actions[step])


def _version_hint(facts: ReplayFacts) -> str:
    return (
        f"it was written by slipstream {facts.version}: the game has changed since, or does not follow from its seed "
        f"(slipstream check-env {facts.env})"
    )


def _difference(replay: Replay, name: str, kept: Array, array: Array) -> str:
    """The first column that differs, with both values."""
    stored, now = np.ravel(kept), np.ravel(array)
    differs = stored.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)
    column = int(np.flatnonzero(differs)[0]) // stored.itemsize
    label = dict(enumerate(replay.labels(name))).get(column) or f"column {column}"
    return f"{name} {label} is {now[column]}, and was {stored[column]},"


def goals(result: GameResult) -> tuple[float, ...] | None:
    """Goals of each side, if the env counts goals."""
    found = [behaviour["goals"] for behaviour in result.behaviour if "goals" in behaviour]
    return tuple(found) if found and len(found) == len(result.game.players) else None


def margin(result: GameResult, agent: str) -> float:
    """An agent's winning margin: in goals if they are counted, else 1, 0 or -1; in games of one side its return."""
    side, scored = result.game.players.index(agent), goals(result)
    if len(result.game.players) < 2:
        return result.returns[0]
    if scored is not None:
        return scored[side] - scored[1 - side]
    return float(result.outcome if side == 0 else -result.outcome)


def choose(results: Sequence[GameResult], agent: str, lost: int = 2) -> dict[str, GameResult]:
    """The games of an agent to keep as replays, by kind; no game is chosen twice.

    best: the largest win, and the shortest of those; worst: the largest loss; closest: the smallest margin, and the
    longest of those; lost, lost2, ...: the losses with the smallest margin. Games of one side have only best and worst.
    """
    games = [result for result in results if agent in result.game.players and not result.fault]
    margins = [(margin(result, agent), result.length, result) for result in games]
    found: dict[str, GameResult] = {}

    def take(kind: str, order: Callable[[float, int], tuple[float, int]], below: float = inf) -> None:
        taken = {id(result) for result in found.values()}
        left = [k for k, (size, _, result) in enumerate(margins) if id(result) not in taken and size < below]
        if left:
            found[kind] = games[min(left, key=lambda k: order(*margins[k][:2]))]

    take("best", lambda size, length: (-size, length))
    take("worst", lambda size, length: (size, length))
    if games and len(games[0].game.players) > 1:
        take("closest", lambda size, length: (abs(size), -length))
        for number in range(1, lost + 1):
            take("lost" if number == 1 else f"lost{number}", lambda size, length: (-size, -length), below=0.0)
    return found


def record_replays(
    choice: EnvChoice,
    results: Sequence[GameResult],
    agent: str,
    folder: Path,
    *,
    steps: int | None = None,
    load: AgentLoader | None = None,
    names: Mapping[str, str] | None = None,
    limit: int = LIMIT,
) -> list[Path]:
    """Write the games of `choose` into a folder, and delete the oldest replays of a kind beyond the limit.

    A game whose actions were not kept is played once more from its seed.
    """
    written = []
    for kind, result in choose(results, agent).items():
        if result.actions is None:
            assert load is not None
            (result,) = play_scheduled(choice, load, [result.game], keep_actions=True, tolerant=False)
        path = folder / f"{file_name(result, agent, kind, steps, names or {})}.replay"
        stored = write_replay(choice, result, path, load=load, names=names, kind=kind, steps=steps)
        if stored is not result:
            path = path.rename(folder / f"{file_name(stored, agent, kind, steps, names or {})}.replay")
        written.append(path)
        same_kind = [other for other in folder.glob("*.replay") if _kind_of(other) == kind]
        same_kind.sort(key=lambda other: (other == path, other.stat().st_mtime_ns, other.name))
        for old in same_kind[: max(0, len(same_kind) - limit)]:
            old.unlink(missing_ok=True)
    return written


def file_name(result: GameResult, agent: str, kind: str, steps: int | None, names: Mapping[str, str]) -> str:
    """A descriptive file name: training steps, kind, result and opponent."""
    sides, scored = result.game.players, goals(result)
    side = sides.index(agent)
    parts = [kind, _slug(names.get(agent, agent))] if steps is None else [f"{steps:012d}", kind]
    if len(sides) < 2:
        return "-".join([*parts, f"{result.length}-steps"])
    if scored is not None:
        parts.append(f"{scored[side]:g}-{scored[1 - side]:g}")
    else:
        parts.append({1: "won", 0: "drew", -1: "lost"}[result.outcome if side == 0 else -result.outcome])
    return "-".join([*parts, "vs", _slug(names.get(sides[1 - side], sides[1 - side]))])


def _kind_of(path: Path) -> str:
    found = re.match(r"(?:\d{12}-)?([a-z]+\d?)-", path.name)
    return found.group(1) if found else ""


def _slug(name: str) -> str:
    """A player's name as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")[-60:].strip("-.") or "agent"
