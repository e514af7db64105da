"""Memory by stage and part, against bytes counted by hand."""

from __future__ import annotations

import pytest

from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.perf.memory_budget import plan_memory, rollout_mib
from slipstream.plan import Facts, make_plan
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings, Settings


def test_memory_by_hand() -> None:
    """A policy of 2 -> 3, and rollouts of 4 envs by 5 steps, as bytes that can be counted."""
    spec = EnvSpec("x", vector_obs(2), ActionSpec("continuous", (), (-1.0,), (1.0,)))
    design = Design(spec.obs, spec.action, PolicySettings(hidden=(3,)))
    row = 5 * (4 + 4 + 4 + 1 + 1 + 1 + 4) + 6 * (8 + 4 + 1)
    assert rollout_mib(spec, design, 5, 4) == pytest.approx(4 * row / 2**20)
    settings = Settings(
        **{"algorithm": "sac", "plan": {"envs": 4, "collector": "local"}, "sac": {"buffer_size": 2**20}}
    )
    plan = make_plan(settings.plan, Facts(cores=2, native=False, minibatch=64, replay=True))
    parts = plan_memory(settings, spec, design, plan, env_mib=0.5, python_mib=100.0, used_mib=130.0)
    found = {part.name: part for part in parts if part.stage == "train"}
    assert found["environments"].budget_mib == 2.0 and found["Python and libraries"].budget_mib == 100.0
    assert found["replay buffer"].budget_mib == 2 * 4 * 2 + 4 + 4 + 1 + 4
    assert found["in all"].used_mib == 130.0
    assert found["in all"].budget_mib == pytest.approx(
        sum(part.budget_mib for name, part in found.items() if name != "in all")
    )
