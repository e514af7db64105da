"""From a game that was played to a replay: it is played again from its seed and actions, and written down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from slipstream.contracts import Agent, Array, EnvSpec, empty_rows, sides_of
from slipstream.envs.events import find_events
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.scenes import labels, pace, render_state
from slipstream.errors import ConfigError, DemoError
from slipstream.play.games import GameResult, ScheduledGame, Seat, play_scheduled, task_number
from slipstream.runs.replays import Event, Facts, Replay, write
from slipstream.settings import EnvSettings
from slipstream.system.rng import make_streams
from slipstream.vector.make import make_vector

STATE = "env/"
"""What the names of the state's arrays begin with."""
LIMIT = 8
"""Replays of one kind that a folder keeps."""


class ReplayRecorder:
    """One game of one env, stepped by whoever holds it; what happened is told step by step."""

    def __init__(self, choice: EnvChoice, fixture: ScheduledGame) -> None:
        choice = replace(choice, env=choice.env.model_copy(update={"random_starts": 0.0}))
        self.choice, self.fixture = choice, fixture
        self.vector = make_vector(choice, 1)
        self.spec: EnvSpec = self.vector.spec
        self.rows = empty_rows(self.spec, 1)
        self.vector.reset(self.rows)
        if self.spec.tasks:
            self.vector.assign(np.array([task_number(fixture, self.spec)]))
        self.vector.reset_envs([0], self.rows, [fixture.seed])
        self.state = render_state(self.vector)
        """The game as it stands, if the env can tell; where it ended, that of the next one."""
        self.steps, self.over, self.last_touch = 0, False, -1
        self.score = [0] * len(set(self.spec.teams))

    def seen(self) -> dict[str, Array]:
        """What there is to write down before a step."""
        own = {STATE + name: np.array(array[0]) for name, array in self.state.items()}
        if not own:
            own = {"obs": self.spec.obs.vectors(self.rows.obs).copy()}
        return own | {"active": self.rows.active.copy()}

    def step(self, action: Array) -> list[Event]:
        """Play one decision; return what happened in it."""
        before = self.state
        self.rows.terms[:] = 0
        self.vector.step(action, self.rows)
        self.state = render_state(self.vector)
        told = find_events(self.spec, before, self.state, self.rows, self.last_touch) if before else []
        events = [Event(self.steps, kind, agent) for kind, agent in told]
        for event in events:
            if event.kind == "touch":
                self.last_touch = event.agent
            if event.kind == "goal":
                self.score[sides_of(self.spec.teams)[event.agent]] += 1
        self.steps += 1
        self.over = bool((self.rows.terminated | self.rows.truncated).any())
        return events

    def close(self) -> None:
        """Free the env."""
        self.vector.close()


class ReplayedActions:
    """The agents at one game: asks each for its side, and for what it expects."""

    def __init__(self, tape: ReplayRecorder, seat: Seat) -> None:
        spec = tape.spec
        sides = sorted(set(spec.teams))
        if len(tape.fixture.players) != len(sides):
            count = "one side" if len(sides) == 1 else f"{len(sides)} sides"
            named = ", ".join(tape.fixture.players)
            raise ConfigError(f"`{spec.name}` has {count}, but was given {named}.", "name one agent for each side")
        self._agents: list[Agent] = [seat(name, spec, tape.choice) for name in tape.fixture.players]
        self._rows = [np.flatnonzero([team == side for team in spec.teams]) for side in sides]
        self._memory = [np.zeros((spec.agents, agent.memory(0).shape[1]), np.float32) for agent in self._agents]
        self._streams = make_streams(tape.fixture.seed, "game", 0, spec.agents)
        self._tape = tape
        self.action = np.zeros((spec.agents, spec.action.parts), spec.action.dtype)

    def act(self) -> Array:
        """Let everybody choose; return what each expects of the game, NaN for those that do not tell."""
        rows, values = self._tape.rows, np.full(len(self.action), np.nan, np.float32)
        for agent, own, memory in zip(self._agents, self._rows, self._memory, strict=True):
            acting = own[rows.active[own] > 0]
            agent.act_rows(acting, rows.obs, rows.mask, self._streams, self.action, memory)
            told: Array | None = getattr(agent, "values", None)
            if told is not None:
                values[acting] = told[acting]
        return values


def tape(
    choice: EnvChoice, played: GameResult, path: Path, *, seat: Seat | None = None, names: Mapping[str, str] | None = None,
    kind: str = "", steps: int | None = None,
) -> GameResult:  # fmt: skip
    """Play a game again and write it as a replay; `seat` asks the players for values too, `names` are for people.

    A game that ends otherwise when it is played again is an error, except where the env itself is not exact and
    `seat` brings the players: then they play a new one of the same seed, and that is written. Returns what was.
    """
    assert played.actions is not None
    with contextlib.closing(ReplayRecorder(choice, played.fixture)) as game:
        columns, events, again = _play(game, ReplayedActions(game, seat) if seat is not None else None, played.actions)
    if (again.outcome, again.length, again.behaviour) != (played.outcome, played.length, played.behaviour):
        if game.spec.exact or seat is None:
            raise DemoError(
                f"The game of seed {played.fixture.seed} did not end as it did when it was first played.",
                "an env that draws chance of its own cannot be replayed",
            )
        with contextlib.closing(ReplayRecorder(choice, played.fixture)) as game:
            columns, events, played = _play(game, ReplayedActions(game, seat), None)
    told = labels(game.spec.name, game.state) if game.state else {}
    arrays = {name: np.stack(rows) for name, rows in columns.items()}
    if "value" in arrays and np.isnan(arrays["value"]).all():
        del arrays["value"]
    facts = _facts(game, played, arrays, names or {})
    facts = facts.model_copy(update={"events": tuple(events), "kind": kind, "steps": steps})
    write(path, facts, arrays, {STATE + name: words for name, words in told.items()})
    return played


def _play(
    game: ReplayRecorder, table: ReplayedActions | None, actions: Array | None
) -> tuple[dict[str, list[Array]], list[Event], GameResult]:  # fmt: skip
    """Play a game by its actions, or, without any, as the table says; what was seen, what happened, how it ended."""
    columns, events, returns = dict[str, list[Array]](), list[Event](), np.zeros(game.spec.agents)
    present = np.zeros(game.spec.agents, bool)
    while not game.over and (actions is None or game.steps < len(actions)):
        present |= game.rows.active > 0
        seen = game.seen()
        if table is not None:
            seen["value"] = table.act()
        if actions is not None:
            seen["action"] = actions[game.steps]
        elif table is not None:
            seen["action"] = table.action.copy()
        events += game.step(seen["action"])
        returns += game.rows.reward
        seen |= {"reward": game.rows.reward.copy(), "terms": game.rows.terms.copy()}
        for name, array in seen.items():
            columns.setdefault(name, []).append(array)
    spec, rows, sides = game.spec, game.rows, np.array(sides_of(game.spec.teams))
    behaviour, totals = list[dict[str, float]](), list[float]()
    for side in np.unique(sides):
        there = (sides == side) & present if ((sides == side) & present).any() else sides == side
        totals.append(float(returns[there].mean()))
        means = rows.behaviour[there].mean(axis=0).tolist()
        behaviour.append(dict(zip(spec.behaviours, map(float, means), strict=True)))
    outcome = int(rows.outcome[present & (sides == 0)][0]) if spec.competitive and game.over else 0
    length = game.steps if game.over else 0
    return columns, events, GameResult(game.fixture, outcome, length, tuple(totals), tuple(behaviour))


def _facts(game: ReplayRecorder, played: GameResult, arrays: Mapping[str, Array], names: Mapping[str, str]) -> Facts:
    """Who played what, and how it ended."""
    spec, choice, fixture = game.spec, game.choice, played.fixture
    counted = tuple(map(float, game.score)) if "goals" in spec.behaviours else None
    return Facts(
        env=choice.name,
        settings={"env": choice.env.model_dump(), "rewards": choice.rewards.model_dump()},
        task=fixture.task,
        seed=fixture.seed,
        players=tuple(names.get(name, name) for name in fixture.players),
        teams=spec.teams,
        outcome=played.outcome,
        score=goals(played) or counted,
        length=played.length,
        step_seconds=pace(spec.name, arrays.get(STATE + "clock", np.zeros((0, 0))), spec.step_seconds),
        returns=played.returns,
        behaviour=played.behaviour,
        terms=spec.terms,
    )


def verify(replay: Replay, modules: tuple[str, ...] = ()) -> None:
    """Play a replay again from its seed and actions, and refuse it where anything differs by a single bit."""
    facts = replay.facts
    if facts.env.startswith("python:"):
        raise ConfigError(f"{replay.path} is of `{facts.env}`, which only the program that made it can play.")
    settings = EnvSettings.model_validate(facts.settings.get("env", {}))
    choice = EnvChoice(facts.env, settings, modules=modules)
    actions = replay.read("action")
    with contextlib.closing(ReplayRecorder(choice, ScheduledGame(facts.players, facts.seed, facts.task))) as game:
        missing = set(game.seen()) - set(replay.names)
        if missing:
            raise DemoError(f"{replay.path} does not hold {', '.join(sorted(missing))}.", _older(facts))
        stored = {name: replay.read(name) for name in game.seen()}
        for step in range(facts.length):
            for name, array in game.seen().items():
                kept = stored[name][step]
                if kept.tobytes() != np.ascontiguousarray(array).tobytes():
                    raise DemoError(
                        f"{replay.path} differs from the same game played again: {_place(replay, name, kept, array)} "
                        f"at step {step:,} of {facts.length:,}.",
                        _older(facts),
                    )
            game.step(actions[step])
        if not game.over:
            raise DemoError(f"{replay.path} goes on when it is played again, and ended when it was written.")


def _older(facts: Facts) -> str:
    return f"it was written by slipstream {facts.version}; the game has changed since"


def _place(replay: Replay, name: str, kept: Array, array: Array) -> str:
    """The first column that differs, with both values."""
    one, other = np.ravel(kept), np.ravel(array)
    column = int(np.flatnonzero(one.view(np.uint8) != np.ascontiguousarray(other).view(np.uint8))[0]) // one.itemsize
    named = dict(enumerate(replay.labels(name))).get(column) or f"column {column}"
    return f"{name} {named} is {other[column]}, and was {one[column]},"


def goals(played: GameResult) -> tuple[float, ...] | None:
    """Goals of each side, where they are counted."""
    told = [one["goals"] for one in played.behaviour if "goals" in one]
    return tuple(told) if told and len(told) == len(played.fixture.players) else None


def margin(played: GameResult, agent: str) -> float:
    """By how much an agent won: goals where they are counted, else 1, 0 or -1; in games of one side its return."""
    side, scored = played.fixture.players.index(agent), goals(played)
    if len(played.fixture.players) < 2:
        return played.returns[0]
    if scored is not None:
        return scored[side] - scored[1 - side]
    return float(played.outcome if side == 0 else -played.outcome)


def choose(played: Sequence[GameResult], agent: str, lost: int = 2) -> dict[str, GameResult]:
    """The games of an agent that are worth a look, by kind; none is chosen twice.

    best: the largest win, the quickest of those; worst: the largest loss; closest: the one with the least between the
    sides, the longest of those; lost, lost2, ...: those that were lost by the least. Games of one side have no more
    than a best and a worst.
    """
    games = [one for one in played if agent in one.fixture.players and not one.fault]
    sized = [(margin(one, agent), one.length, one) for one in games]
    found: dict[str, GameResult] = {}

    def take(kind: str, order: Callable[[float, int], tuple[float, int]], below: float = inf) -> None:
        taken = {id(one) for one in found.values()}
        left = [k for k, (size, _, one) in enumerate(sized) if id(one) not in taken and size < below]
        if left:
            found[kind] = games[min(left, key=lambda k: order(*sized[k][:2]))]

    take("best", lambda size, length: (-size, length))
    take("worst", lambda size, length: (size, length))
    if games and len(games[0].fixture.players) > 1:
        take("closest", lambda size, length: (abs(size), -length))
        for number in range(1, lost + 1):
            take("lost" if number == 1 else f"lost{number}", lambda size, length: (-size, -length), below=0.0)
    return found


def record_replay(
    choice: EnvChoice, played: Sequence[GameResult], agent: str, folder: Path, *, steps: int | None = None,
    seat: Seat | None = None, names: Mapping[str, str] | None = None, limit: int = LIMIT,
) -> list[Path]:  # fmt: skip
    """Write the games worth a look into a folder, and remove the oldest of a kind beyond the limit.

    All chance of a game follows from its seed: those whose actions were not kept are played once more.
    """
    written = []
    for kind, one in choose(played, agent).items():
        if one.actions is None:
            assert seat is not None
            (one,) = play_scheduled(choice, seat, [one.fixture], keep_actions=True, tolerant=False)
        path = folder / f"{file_name(one, agent, kind, steps, names or {})}.replay"
        told = tape(choice, one, path, seat=seat, names=names, kind=kind, steps=steps)
        if told is not one:
            path = path.rename(folder / f"{file_name(told, agent, kind, steps, names or {})}.replay")
        written.append(path)
        alike = [other for other in folder.glob("*.replay") if _kind_of(other) == kind]
        alike.sort(key=lambda other: (other == path, other.stat().st_mtime_ns, other.name))
        for old in alike[: max(0, len(alike) - limit)]:
            old.unlink(missing_ok=True)
    return written


def file_name(played: GameResult, agent: str, kind: str, steps: int | None, names: Mapping[str, str]) -> str:
    """A telling name: when, why, how it ended, against whom."""
    sides, scored = played.fixture.players, goals(played)
    side = sides.index(agent)
    parts = [kind, _slug(names.get(agent, agent))] if steps is None else [f"{steps:012d}", kind]
    if len(sides) < 2:
        return "-".join([*parts, f"{played.length}-steps"])
    if scored is not None:
        parts.append(f"{scored[side]:g}-{scored[1 - side]:g}")
    else:
        parts.append({1: "won", 0: "drew", -1: "lost"}[played.outcome if side == 0 else -played.outcome])
    return "-".join([*parts, "vs", _slug(names.get(sides[1 - side], sides[1 - side]))])


def _kind_of(path: Path) -> str:
    found = re.match(r"(?:\d{12}-)?([a-z]+\d?)-", path.name)
    return found.group(1) if found else ""


def _slug(name: str) -> str:
    """A player's name as part of a file's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")[-60:].strip("-.") or "agent"
