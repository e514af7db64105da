"""Soccer alone: agent-steps per second on one core, and the strength of the scripted players.

    python benchmarks/soccer_speed.py [--games 1000] [--repeats 7]

A rate is the median of the repeats with the lowest and the highest, without compiling and warm-up. `score` is
(wins + draws / 2) / games with sides swapped after every game.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from slipstream.contracts import empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer.game import SOCCER
from slipstream.envs.soccer.game import game as soccer
from slipstream.stages.evaluate import evaluate

COAST = 7
PAIRS = [
    ("chaser", "random"),
    ("keeper", "random"),
    ("rule", "random"),
    ("rule", "chaser"),
    ("rule", "keeper"),
    ("rule", "rule"),
]


def rate(function: Callable[[], object], work: int, repeats: int, seconds: float = 0.4) -> dict[str, float]:
    """Units of work per second."""
    function()
    start = time.perf_counter()
    function()
    calls = max(int(seconds / (time.perf_counter() - start)), 1)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        rates.append(work * calls / (time.perf_counter() - start))
    return {"median": round(statistics.median(rates)), "low": round(min(rates)), "high": round(max(rates))}


def stepping(envs: int, team_size: int, repeats: int) -> dict[str, float]:
    """Agent-steps per second with precomputed random actions."""
    game = soccer.vector(envs, f"{team_size}v{team_size}")
    out = empty_rows(game.spec, envs)
    game.reset(out)
    rows = len(out.obs)
    actions = np.random.default_rng(0).integers(0, 18, (64, rows, 1)).astype(np.int32)

    def block() -> None:
        for action in actions:
            game.step(action, out)

    return rate(block, len(actions) * rows, repeats)


def acting(name: str, repeats: int) -> dict[str, float]:
    """Decisions per second of a scripted player on random states."""
    game = soccer.vector(1024, random_starts=1.0)
    out = empty_rows(game.spec, 1024)
    game.reset(out)
    action = np.zeros((2048, 1), np.int32)
    return rate(lambda: soccer.act(name, out.obs, "discrete", action), 2048, repeats)


def match(first: str, second: str, games: int, seed: int = 0, team_size: int = 1) -> dict[str, float]:
    """Play games between two players with alternating sides; score, wins and draws."""
    names = [name if name == "random" else f"scripted:{name}" for name in (first, second)]
    result = evaluate(EnvChoice(f"soccer:{team_size}v{team_size}"), names[0], names[1:], games, seed=seed)
    return {key: result[key] for key in ("score", "wins", "draws")}


def goals(name: str, games: int, seed: int = 0) -> float:
    """Goals per match of a player against itself, of both teams."""
    game = soccer.vector(games, seed=seed)
    out = empty_rows(game.spec, games)
    game.reset(out)
    action = np.zeros((2 * games, 1), np.int32)
    total, over = 0, np.zeros(games, bool)
    while not over.all():
        out.terms[:] = 0
        soccer.act(name, out.obs, "discrete", action)
        game.step(action, out)
        total += int(((out.terms[::2, 0] != 0) & ~over).sum())
        over |= out.terminated[::2] == 1
    return total / games


def unguarded(name: str, starts: int, seconds: float = 10.0, seed: int = 0) -> float:
    """The share of random starts from which a player scores in time against a car that stays in a corner."""
    game = soccer.vector(starts, random_starts=1.0, seed=seed)
    out = empty_rows(game.spec, starts)
    game.reset(out)
    x, y, vx, vy, ball_y = (game.column(name) for name in ("cars.1.x", "cars.1.y", "cars.1.vx", "cars.1.vy", "ball.y"))
    first_goal = np.zeros(starts)
    action = np.full((2 * starts, 1), COAST, np.int32)
    for _ in range(int(seconds / game.spec.step_seconds)):
        x[:], y[:] = -28, np.where(ball_y > 0, -19, 19)
        vx[:], vy[:] = 0, 0
        game.observe(out.obs)
        soccer.act(name, out.obs, "discrete", action)
        action[1::2] = COAST
        out.terms[:] = 0
        game.step(action, out)
        first_goal = np.where(first_goal == 0, np.sign(out.terms[::2, 0]), first_goal)
    return float((first_goal > 0).mean())


def main() -> None:
    """Measure and write the result."""

    from harness import Result, make_parser, table

    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    result = Result("soccer", given)
    result.gate()
    for envs, team in ((1024, 1), (64, 1), (1024, 2), (1024, 3)):
        rates = stepping(envs, team, given.repeats)
        result.add({"work": "stepping", "contestant": f"{team}v{team} x {envs}", **rates})
    for name in SOCCER.scripted:
        result.add({"work": "deciding", "contestant": name, **acting(name, given.repeats)})
    for one, other in PAIRS:
        games = {"games": given.games, **match(one, other, given.games)}
        result.add({"work": "strength", "contestant": f"{one} : {other}", **games})
    for name in SOCCER.scripted:
        row = {"games": given.games, "score": unguarded(name, given.games)}
        result.add({"work": "unguarded goal within 10 s", "contestant": name, **row})
    result.add({"work": "goals per match", "contestant": "rule : rule", "score": goals("rule", given.games)})
    keys = ("median", "low", "high", "score")
    cells = [[row["work"], row["contestant"], *(_cell(row.get(key)) for key in keys)] for row in result.rows]
    result.close({}, "# Soccer alone, on one core\n\n" + table(("what", "of", *keys), cells))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value > 100 else f"{value:.3f}"


if __name__ == "__main__":
    main()
