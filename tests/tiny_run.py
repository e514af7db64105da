"""Settings of a run that takes a moment: iterations of 64 steps, each logged, without evaluations."""

from __future__ import annotations

from typing import Any

TINY_RUN: dict[str, Any] = {
    "preset": "smoke",
    "plan__collector": "local",
    "plan__envs": 4,
    "ppo__rollout": 16,
    "ppo__minibatch": 64,
    "every__log": 1,
    "every__evaluate": 0,
    "tuned": False,
}
