"""`ss.make_vector` beside Gymnasium's and Stable-Baselines3's vectors, stepping with random actions, all in one run.

    .venv/bin/python benchmarks/vectors.py [--cases cartpole,acrobot,...] [--rounds 7] [--seconds 1] [--quick]

For every environment all contestants are made once; a round lets each step for so long in turn, and ratios to the
fastest of the four others are taken within a round. Only steps of episodes count: where the others reset in a step of
their own, that step is none. Slipstream's place in both APIs is measured; the bar is on the better of them for a
trainer that may choose, 2x on CartPole with 64 environments and 1x elsewhere.
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

from contest import VENVS, install_games
from stats import spread, table, told

import slipstream as ss
from record import Progress, Record, dated
from slipstream.testing import SlowEnv

OURS, OURS_SB3 = "slipstream", "slipstream, as SB3's"


class Seen(gymnasium.Env[Any, Any]):
    """A dict of what little a game shows, as quick as Python allows; episodes of 50 steps."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-1, 1, (8,), np.float32), "held": spaces.Discrete(6), "near": spaces.MultiBinary(4)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._left = 0
        self._shown = {"place": np.zeros(8, np.float32), "held": 2, "near": np.ones(4, np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        self._left = 50
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        self._left -= 1
        return self._shown, 1.0, self._left == 0, False, {}


@dataclass(frozen=True)
class Case:
    """An environment, how many of it, and how much faster than the fastest other it should be."""

    env: str | Callable[[], Any]
    envs: int
    goal: float = 1.0

    def make(self) -> Any:
        """One of it, as people make it."""
        return gymnasium.make(self.env) if isinstance(self.env, str) else self.env()


def grid() -> Any:
    """MiniGrid's empty room, seen as a vector; its packages are those of the other benchmarks."""
    if str(VENVS / "games") not in sys.path:
        sys.path.append(str(VENVS / "games"))
    from grids import make

    return gymnasium.wrappers.TimeLimit(make(), 256)


def pong() -> Any:
    """One game of ALE's by itself, frames in colours."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5")


def slow() -> Any:
    """An env whose every step is half a millisecond or so of Python."""
    return SlowEnv("loop", 10_000, length=50)


CASES = {
    "cartpole": Case("CartPole-v1", 64, goal=2.0),
    "acrobot": Case("Acrobot-v1", 64),
    "pendulum": Case("Pendulum-v1", 64),
    "halfcheetah": Case("HalfCheetah-v5", 16),
    "minigrid": Case(grid, 16),
    "pong": Case(pong, 8),
    "dict": Case(Seen, 64),
    "slow": Case(slow, 8),
}


class Contestant:
    """A vector that is stepped with the same actions again and again."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        self.env, self._actions, self._places = env, actions, places
        self._at, self._over = 0, np.zeros(places, bool)

    def step(self) -> int:
        """Step once; how many steps of episodes that was."""
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


class Gymnastic(Contestant):
    """One of Gymnasium's API, ours included."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        super().__init__(env, actions, places)
        self._late = env.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
        env.reset(seed=0)

    def step(self) -> int:
        """Step once; a step that only resets is none."""
        _, _, terminated, truncated, _ = self.env.step(self.action())
        count = self._places - int(self._over.sum()) if self._late else self._places
        self._over = terminated | truncated
        return count


class Stable(Contestant):
    """One of Stable-Baselines3's API, ours included."""

    def __init__(self, env: Any, actions: list[Any], places: int) -> None:
        super().__init__(env, actions, places)
        env.reset()

    def step(self) -> int:
        """Step once."""
        self.env.step(self.action())
        return self._places


def contestants(case: Case) -> dict[str, Callable[[list[Any]], Contestant]]:
    """How each is made, given the actions."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    name = f"gymnasium:{case.env}" if isinstance(case.env, str) else case.env
    makers, n = [case.make] * case.envs, case.envs
    return {
        OURS: lambda actions: Gymnastic(ss.make_vector(name, envs=n), actions, n),
        OURS_SB3: lambda actions: Stable(ss.make_vector(name, envs=n, api="sb3"), actions, n),
        "SyncVectorEnv": lambda actions: Gymnastic(SyncVectorEnv(makers), actions, n),
        "AsyncVectorEnv": lambda actions: Gymnastic(AsyncVectorEnv(makers), actions, n),
        "DummyVecEnv": lambda actions: Stable(DummyVecEnv(makers), actions, n),
        "SubprocVecEnv": lambda actions: Stable(SubprocVecEnv(makers, start_method="fork"), actions, n),
    }


def run_case(name: str, options: argparse.Namespace, record: Record, progress: Progress) -> None:
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
            progress.say(f"{name}: {who} made in {time.perf_counter() - began:.1f} s")
        for turn in range(options.rounds):
            for who, one in field.items():
                record.load()
                rate = one.rate(options.seconds)
                record.add({"work": name, "contestant": who, "round": turn, "steps_per_second": round(rate)})


def summarise(rows: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    """Spreads of the rates, and of the ratios to the fastest of the four others within each round."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        rates.setdefault(row["contestant"], {})[row["round"]] = row["steps_per_second"]
    others = {who: median(found.values()) for who, found in rates.items() if who not in (OURS, OURS_SB3)}
    fastest = max(others, key=lambda who: others[who])
    ratios = {
        who: spread([rate / rates[fastest][turn] for turn, rate in rates[who].items()]) for who in (OURS, OURS_SB3)
    }
    held = max(ratios[who]["median"] for who in ratios) >= goal
    return {
        "rates": {who: spread(list(found.values())) for who, found in rates.items()}, "fastest": fastest,
        "ratios": ratios, "goal": goal, "met": held,
    }  # fmt: skip


def page(summary: dict[str, Any]) -> str:
    """The summary for people."""
    parts = ["# Steps of episodes per second, random actions"]
    for name, found in summary.items():
        parts.append(f"## {name}, {CASES[name].envs} environments")
        lines = [[who, *told(rates, 0)] for who, rates in found["rates"].items()]
        parts.append(table(("vector", "median", "min..max", "95 %"), lines))
        for who, ratio in found["ratios"].items():
            middle, extent, interval = told(ratio, 2)
            parts.append(f"{who} / {found['fastest']}: **{middle}x** (95 % {interval}, {extent})")
        parts.append(f"goal {found['goal']:g}x {'met' if found['met'] else 'NOT met'}")
    return "\n\n".join(parts)


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {','.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=None, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="two short rounds, to see that all of it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 0.2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [name for name in options.cases.split(",") if name]
    if unknown := [name for name in chosen if name not in CASES]:
        parser.error(f"unknown cases {unknown}; choose from {list(CASES)}")
    if "minigrid" in chosen and (failed := install_games()):
        raise SystemExit(failed)
    record, progress = Record(options.out or dated("vectors")), Progress(1e9)
    record.begin()
    for name in chosen:
        run_case(name, options, record, progress)
    summary = {
        name: summarise([row for row in record.rows if row["work"] == name], CASES[name].goal) for name in chosen
    }
    record.close(summary, page(summary))


if __name__ == "__main__":
    main()
