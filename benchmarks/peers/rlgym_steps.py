"""RLGym's own environment stepped with random actions for some seconds: agent-steps per second as one line of JSON.

    python rlgym_steps.py SIZE SECONDS SEED      SIZE cars per team

Set up as in its documentation: DefaultObs, LookupTableAction repeated 8 times, rewards for goals and touches.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from rlgym.api import RLGym
from rlgym.rocket_league.action_parsers import LookupTableAction, RepeatAction
from rlgym.rocket_league.done_conditions import GoalCondition, TimeoutCondition
from rlgym.rocket_league.obs_builders import DefaultObs
from rlgym.rocket_league.reward_functions import CombinedReward, GoalReward, TouchReward
from rlgym.rocket_league.sim import RocketSimEngine
from rlgym.rocket_league.state_mutators import FixedTeamSizeMutator, KickoffMutator, MutatorSequence

WARM_STEPS = 300


def make(size: int) -> Any:
    """One match that ends with a goal or after a minute."""
    return RLGym(
        state_mutator=MutatorSequence(FixedTeamSizeMutator(blue_size=size, orange_size=size), KickoffMutator()),
        obs_builder=DefaultObs(zero_padding=size),
        action_parser=RepeatAction(LookupTableAction(), repeats=8),
        reward_fn=CombinedReward((GoalReward(), 10.0), (TouchReward(), 0.1)),
        termination_cond=GoalCondition(),
        truncation_cond=TimeoutCondition(60.0),
        transition_engine=RocketSimEngine(),
    )


def main() -> None:
    """Step until the time is up."""
    size, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    env, rng = make(size), np.random.default_rng(seed)
    env.reset()
    steps, began, cpu = -WARM_STEPS, 0.0, 0.0
    while steps <= 0 or time.perf_counter() - began < seconds:
        if steps == 0:
            began, cpu = time.perf_counter(), time.process_time()
        acts = {agent: rng.integers(0, 90, 1) for agent in env.agents}
        _, _, over, cut = env.step(acts)
        if any(over.values()) or any(cut.values()):
            env.reset()
        steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    rate, per_core = 2 * size * steps / wall, 2 * size * steps / cpu
    versions = {name: version(name) for name in ("rocketsim", "numpy")}
    told = {"steps_per_second": rate, "steps_per_cpu_second": per_core, "version": version("rlgym-rocket-league")}
    print(json.dumps(told | {"versions": versions, "wall_seconds": wall}))


if __name__ == "__main__":
    main()
