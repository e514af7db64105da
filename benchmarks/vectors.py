"""`ss.make_vector` compared with the vector environments of Gymnasium and Stable-Baselines3, with random actions.

    .venv/bin/python benchmarks/vectors.py [--cases cartpole,acrobot,...] [--rounds 7] [--seconds 1] [--quick]

All contestants of an environment are created once and run in interleaved rounds; ratios to the fastest of the four
others are taken within a round. A step that only resets does not count. Slipstream is measured
with both APIs; the bar is for the better one: 2x on CartPole with 64 environments and 1x elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from contestants import VENVS, install_games

import slipstream as ss
from harness import (
    Result,
    make_parser,
    rates_of,
    ratios,
    run_rounds,
    split_names,
    spread,
    spread_cells,
    table,
    verdict,
)
from slipstream.testing import SlowEnv

OURS, OURS_SB3 = "slipstream", "slipstream, as SB3's"


class DictEnv(gymnasium.Env[Any, Any]):
    """A fast environment with a dict observation; episodes of 50 steps."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-1, 1, (8,), np.float32), "held": spaces.Discrete(6), "near": spaces.MultiBinary(4)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._left = 0
        self._shown = {"place": np.zeros(8, np.float32), "held": 2, "near": np.ones(4, np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._left = 50
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        self._left -= 1
        return self._shown, 1.0, self._left == 0, False, {}


@dataclass(frozen=True)
class Case:
    """An environment, the number of copies, and the bar of the ratio to the fastest other."""

    env: str | Callable[[], Any]
    envs: int
    bar: float = 1.0

    def make(self) -> Any:
        """One environment."""
        return gymnasium.make(self.env) if isinstance(self.env, str) else self.env()


def grid() -> Any:
    """MiniGrid's empty room with a flat observation; its packages are those of the other benchmarks."""
    if str(VENVS / "games") not in sys.path:
        sys.path.append(str(VENVS / "games"))
    from grids import make

    return gymnasium.wrappers.TimeLimit(make(), 256)


def pong() -> Any:
    """One ALE game with colour frames."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5")


def slow() -> Any:
    """An environment whose step takes about half a millisecond of Python."""
    return SlowEnv("loop", 10_000, length=50)


CASES = {
    "cartpole": Case("CartPole-v1", 64, bar=2.0),
    "acrobot": Case("Acrobot-v1", 64),
    "pendulum": Case("Pendulum-v1", 64),
    "halfcheetah": Case("HalfCheetah-v5", 16),
    "minigrid": Case(grid, 16),
    "pong": Case(pong, 8),
    "dict": Case(DictEnv, 64),
    "slow": Case(slow, 8),
}


class Contestant:
    """A vector environment that is stepped with the same actions repeatedly."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        self.env, self._actions, self._places = env, actions, places
        self._at, self._over = 0, np.zeros(places, bool)

    def step(self) -> int:
        """Step once; the number of steps of episodes."""
        raise NotImplementedError

    def rate(self, seconds: float) -> float:
        """Steps of episodes per second."""
        self.step()
        began, count = time.perf_counter(), 0
        while not count or time.perf_counter() - began < seconds:
            count += self.step()
        return count / (time.perf_counter() - began)

    def action(self) -> Any:
        """The next batch of actions."""
        self._at = (self._at + 1) % len(self._actions)
        return self._actions[self._at]


class GymnasiumContestant(Contestant):
    """A vector environment with Gymnasium's API."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        super().__init__(env, actions, places)
        self._late = env.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
        env.reset(seed=0)

    def step(self) -> int:
        """Step once; a step that only resets does not count."""
        _, _, terminated, truncated, _ = self.env.step(self.action())
        count = self._places - int(self._over.sum()) if self._late else self._places
        self._over = terminated | truncated
        return count


class SB3Contestant(Contestant):
    """A vector environment with Stable-Baselines3's API."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        super().__init__(env, actions, places)
        env.reset()

    def step(self) -> int:
        """Step once."""
        self.env.step(self.action())
        return self._places


def contestants(case: Case) -> dict[str, Callable[[list[Any]], Contestant]]:
    """Functions that create each contestant from its actions."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    name = f"gymnasium:{case.env}" if isinstance(case.env, str) else case.env
    makers, n = [case.make] * case.envs, case.envs
    return {
        OURS: lambda actions: GymnasiumContestant(ss.make_vector(name, envs=n), actions, n),
        OURS_SB3: lambda actions: SB3Contestant(ss.make_vector(name, envs=n, api="sb3"), actions, n),
        "SyncVectorEnv": lambda actions: GymnasiumContestant(SyncVectorEnv(makers), actions, n),
        "AsyncVectorEnv": lambda actions: GymnasiumContestant(AsyncVectorEnv(makers), actions, n),
        "DummyVecEnv": lambda actions: SB3Contestant(DummyVecEnv(makers), actions, n),
        "SubprocVecEnv": lambda actions: SB3Contestant(SubprocVecEnv(makers, start_method="fork"), actions, n),
    }


def run_case(name: str, options: argparse.Namespace, result: Result) -> None:
    """All rounds of one environment."""
    case = CASES[name]
    space = case.make().action_space
    space.seed(0)
    actions = [np.array([space.sample() for _ in range(case.envs)]) for _ in range(32)]
    with contextlib.ExitStack() as stack:
        field: dict[str, Contestant] = {}
        for who, make in contestants(case).items():
            began = time.perf_counter()
            field[who] = make(actions)
            stack.callback(field[who].env.close)
            result.say(f"{name}: {who} made in {time.perf_counter() - began:.1f} s")

        def measured(one: Contestant) -> Callable[[int], dict[str, Any]]:
            return lambda _: {"steps_per_second": round(one.rate(options.seconds))}

        run_rounds(result, name, {who: measured(one) for who, one in field.items()}, options.rounds)


def summarise(rows: list[dict[str, Any]], bar: float) -> dict[str, Any]:
    """Rates, and ratios to the fastest of the four others within a round."""
    rates = rates_of(rows)
    others = {who: median(found.values()) for who, found in rates.items() if who not in (OURS, OURS_SB3)}
    fastest = max(others, key=lambda who: others[who])
    found = {who: spread(ratios(rates, who, fastest)) for who in (OURS, OURS_SB3)}
    met = max(one["median"] for one in found.values()) >= bar
    return {
        "rates": {who: spread(list(by_round.values())) for who, by_round in rates.items()},
        "fastest": fastest,
        "ratios": found,
        "bar": bar,
        "met": met,
    }


def page(summary: dict[str, Any]) -> str:
    """The report."""
    parts = ["# Steps of episodes per second, random actions"]
    for name, found in summary.items():
        parts.append(f"## {name}, {CASES[name].envs} environments")
        lines = [[who, *spread_cells(rates, 0)] for who, rates in found["rates"].items()]
        parts.append(table(("vector", "median", "min..max", "95 %"), lines))
        for who, ratio in found["ratios"].items():
            middle, extent, interval = spread_cells(ratio, 2)
            parts.append(f"{who} / {found['fastest']}: **{middle}x** (95 % {interval}, {extent})")
        parts.append(f"bar {found['bar']:g}x {verdict(found['met'])}")
    return "\n\n".join(parts)


def main() -> None:
    """Run all cases and write the result."""
    parser = make_parser(__doc__, rounds=7, seconds=1.0)
    parser.add_argument("--cases", type=split_names, default=list(CASES), help=f"of {','.join(CASES)}")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 0.2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = options.cases
    if unknown := [name for name in chosen if name not in CASES]:
        parser.error(f"unknown cases {unknown}; choose from {list(CASES)}")
    if "minigrid" in chosen and (failed := install_games()):
        raise SystemExit(failed)
    result = Result("vectors", options)
    for name in chosen:
        run_case(name, options, result)
    summary = {name: summarise([row for row in result.rows if row["work"] == name], CASES[name].bar) for name in chosen}
    result.close(summary, page(summary))


if __name__ == "__main__":
    main()
