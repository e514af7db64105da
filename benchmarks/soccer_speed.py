"""Soccer alone: agent-steps per second on one core, and how strong the scripted players are.

    python benchmarks/soccer_speed.py [--games 1000] [--repeats 7]

Prints one JSON object. A rate is the median of the repeats with the lowest and highest beside it; compiling
and warming up are not in it. `score` is (wins + draws / 2) / games with sides swapped from game to game.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.core.contracts import Array, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer import scripted
from slipstream.envs.soccer.game import Soccer

COAST = 7


def rate(function: Callable[[], object], work: int, repeats: int, seconds: float = 0.4) -> dict[str, float]:
    """Return how much work is done per second."""
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
    """Return agent-steps per second with random actions made beforehand."""
    game = Soccer(envs, team_size=team_size)
    out = empty_rows(game.spec, envs)
    game.reset(out)
    rows = len(out.obs)
    actions = np.random.default_rng(0).integers(0, 18, (64, rows, 1)).astype(np.int32)

    def block() -> None:
        for action in actions:
            game.step(action, out)

    return rate(block, len(actions) * rows, repeats)


def acting(name: str, repeats: int) -> dict[str, float]:
    """Return decisions per second of a scripted player on varied observations."""
    game = Soccer(1024, random_starts=1.0)
    out = empty_rows(game.spec, 1024)
    game.reset(out)
    action = np.zeros((2048, 1), np.int32)
    return rate(lambda: scripted.act(name, out.obs, "discrete", action), 2048, repeats)


def choose(name: str, obs: Array, chance: np.random.Generator) -> Array:
    """Return the discrete actions of a scripted player, or of `random`."""
    action = np.zeros((len(obs), 1), np.int32)
    if name == "random":
        action[:, 0] = chance.integers(0, 18, len(obs))
    else:
        scripted.act(name, np.ascontiguousarray(obs), "discrete", action)
    return action


def match(first: str, second: str, games: int, seed: int = 0, team_size: int = 1) -> dict[str, float]:
    """Play whole games, the first player on team 0 in even ones and on team 1 in odd ones."""
    game = Soccer(games, team_size=team_size, seed=seed)
    out = empty_rows(game.spec, games)
    game.reset(out)
    agents = game.spec.agents
    team = np.tile(game.spec.teams, games)
    firsts = team == np.repeat(np.arange(games) % 2, agents)
    side = np.where(np.arange(games) % 2 == 0, 1, -1)
    result, goals, over = np.zeros(games), np.zeros(games), np.zeros(games, bool)
    chance = np.random.default_rng(seed)
    action = np.zeros((len(out.obs), 1), np.int32)
    while not over.all():
        action[firsts] = choose(first, out.obs[firsts], chance)
        action[~firsts] = choose(second, out.obs[~firsts], chance)
        out.terms[:] = 0
        game.step(action, out)
        goals += (out.terms[::agents, 0] != 0) & ~over
        ended = (out.terminated[::agents] == 1) & ~over
        result[ended] = (out.outcome[::agents] * side)[ended]
        over |= ended
    wins, draws = float((result > 0).mean()), float((result == 0).mean())
    return {"score": round(wins + draws / 2, 4), "wins": wins, "draws": draws, "goals": round(float(goals.mean()), 2)}


def unguarded(name: str, starts: int, seconds: float = 10.0, seed: int = 0) -> float:
    """Return the share of random starts from which a player scores in time while the other car stands in a corner."""
    game = Soccer(starts, random_starts=1.0, seed=seed)
    out = empty_rows(game.spec, starts)
    game.reset(out)
    other = at.CARS + at.CAR_SIZE
    first_goal = np.zeros(starts)
    action = np.full((2 * starts, 1), COAST, np.int32)
    for _ in range(int(seconds / game.spec.step_seconds)):
        game.state[:, other + at.X] = -28
        game.state[:, other + at.Y] = np.where(game.state[:, at.BALL + at.Y] > 0, -19, 19)
        game.state[:, other + at.VX : other + at.VY + 1] = 0
        game.observe(out.obs)
        action[::2] = choose(name, out.obs[::2], np.random.default_rng(0))
        out.terms[:] = 0
        game.step(action, out)
        first_goal = np.where(first_goal == 0, np.sign(out.terms[::2, 0]), first_goal)
    return float((first_goal > 0).mean())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    pairs = [("chaser", "random"), ("keeper", "random"), ("rule", "random"), ("rule", "chaser"), ("rule", "keeper")]
    pairs += [("rule", "rule")]
    record: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "load": round(os.getloadavg()[0], 2)},
        "agent_steps_per_second": {
            "1v1 x 1024": stepping(1024, 1, given.repeats),
            "1v1 x 64": stepping(64, 1, given.repeats),
            "2v2 x 1024": stepping(1024, 2, given.repeats),
            "3v3 x 1024": stepping(1024, 3, given.repeats),
        },
        "scripted_decisions_per_second": {name: acting(name, given.repeats) for name in scripted.SCRIPTED},
        "games": given.games,
        "strength": {f"{a} : {b}": match(a, b, given.games) for a, b in pairs},
        "unguarded_goals": {name: unguarded(name, given.games) for name in scripted.SCRIPTED},
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
