"""Tasks for Slipstream and Stable-Baselines3: published hyperparameters, and the settings of Slipstream.

The hyperparameters are rl-zoo3's (hyperparams/ppo.yml and sac.yml); others are Stable-Baselines3's defaults. The peer's
virtual environment imports this module too, so it uses only the standard library and gymnasium.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from case import Case, Replay

OURS = "slipstream"
PEERS = ("sb3",)


@dataclass(frozen=True)
class Task:
    """One task, its hyperparameters and its steps."""

    work: Case | Replay
    steps: int
    """Training steps, rounded up to whole iterations."""
    peers: tuple[str, ...] = PEERS
    seeds: int = 5
    module: str = ""
    """A module of this folder that registers the environment."""
    slowest: float = 100.0
    """Steps per second below which a run counts as hung."""
    differs: str = ""
    """Differences to the published hyperparameters or between the contestants."""

    @property
    def contestants(self) -> tuple[str, ...]:
        """Slipstream and the peers."""
        return (OURS, *self.peers)

    def whole(self, steps: int | None = None) -> int:
        """Total steps, rounded up to whole iterations, so that schedules end at 0."""
        wanted, batch = steps or self.steps, self.work.batch if isinstance(self.work, Case) else 1
        return -(-wanted // batch) * batch


TASKS = {
    "cartpole": Task(
        Case(
            "CartPole-v1",
            envs=8,
            rollout=32,
            minibatch=256,
            epochs=20,
            learning_rate=1e-3,
            gamma=0.98,
            gae_lambda=0.8,
            falling=True,
        ),
        100_000,
    ),
    "acrobot": Task(
        Case("Acrobot-v1", envs=16, rollout=256, minibatch=64, epochs=4, gae_lambda=0.94, normalise=True),
        200_000,
        differs="published for 1,000,000 steps",
    ),
    "pendulum": Task(Replay("Pendulum-v1", learning_rate=1e-3), 20_000, slowest=10.0),
    "halfcheetah-ppo": Task(
        Case(
            "HalfCheetah-v5",
            envs=1,
            rollout=512,
            minibatch=64,
            epochs=20,
            hidden=(256, 256),
            activation="relu",
            learning_rate=2.0633e-05,
            gamma=0.98,
            gae_lambda=0.92,
            clip=0.1,
            entropy=0.000401762,
            value=0.58096,
            gradient_norm=0.8,
            normalise=True,
            log_std=-2.0,
            orthogonal=False,
        ),
        300_000,
        differs="published for HalfCheetah-v4 and 1,000,000 steps",
    ),
    "halfcheetah-sac": Task(
        Replay("HalfCheetah-v5", warmup=10_000),
        50_000,
        seeds=3,
        slowest=10.0,
        differs="published for HalfCheetah-v4 and 1,000,000 steps",
    ),
    "masked-recurrent": Task(
        Case(
            "DelayedCue-v0",
            envs=16,
            rollout=128,
            minibatch=512,
            epochs=10,
            hidden=(64,),
            learning_rate=1e-3,
            memory=64,
        ),
        100_000,
        peers=("sb3-recurrent", "sb3-masked"),
        module="cue",
        differs="not published: hyperparameters chosen here, the same for all. No class of sb3-contrib has memory and"
        " masks: sb3-recurrent (RecurrentPPO) reads the mask in the observation, and its forbidden actions become the"
        " first allowed one; sb3-masked (MaskablePPO) has no memory. slipstream's LSTM is after the hidden layer,"
        " RecurrentPPO's before it",
    ),
}

# tasks of learners.py, for speed only; steps before `SETTLED` (random actions, first updates) are not timed
SETTLED = 500
SPEED_TASKS: dict[str, Case | Replay] = {
    "recurrent": Case("CartPole-v1", envs=64, rollout=64, minibatch=1024, epochs=4, hidden=(64,), memory=128),
    "sac-small": Replay("Pendulum-v1", hidden=(128, 64)),
    "sac-large": Replay("Pendulum-v1", hidden=(256, 256)),
}


def settings_of(work: Case | Replay, steps: int, sequence: int | None = None) -> list[str]:
    """The hyperparameters as `key=value` of Slipstream; `sequence` is the BPTT length (default: a rollout)."""
    common: dict[str, Any] = {
        "plan.envs": work.envs,
        "plan.lag": 0,
        "policy.hidden": json.dumps(list(work.hidden), separators=(",", ":")),
        "policy.activation": work.activation,
    }
    own = _ppo(work, steps, sequence or work.rollout) if isinstance(work, Case) else _sac(work)
    return [f"{key}={json.dumps(value) if isinstance(value, bool) else value}" for key, value in (common | own).items()]


def _ppo(work: Case, steps: int, sequence: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "algorithm": "ppo",
        "ppo.rollout": work.rollout,
        "ppo.minibatch": work.minibatch,
        "ppo.epochs": work.epochs,
        "ppo.learning_rate": work.learning_rate,
        "ppo.gamma": work.gamma,
        "ppo.gae_lambda": work.gae_lambda,
        "ppo.clip": work.clip,
        "ppo.clip_value": 0.0,
        "ppo.value_coef": work.value,
        "ppo.entropy_coef": work.entropy,
        "ppo.max_grad_norm": work.gradient_norm,
        "ppo.normalise_advantage": True,
        "ppo.normalise_obs": work.normalise,
        "ppo.normalise_return": work.normalise,
        "policy.shared": bool(work.memory),
        "policy.log_std": work.log_std,
        "policy.init": "orthogonal" if work.orthogonal else "uniform",
    }
    if work.falling:
        settings |= {f"schedules.{key}": f"linear to 0 over {steps}" for key in ("ppo.learning_rate", "ppo.clip")}
    if work.memory:
        settings |= {"policy.memory": "lstm", "policy.memory_size": work.memory, "policy.sequence": sequence}
    return settings


def _sac(work: Replay) -> dict[str, Any]:
    return {
        "algorithm": "sac",
        "sac.rollout": 1,
        "sac.updates_per_step": 1.0,
        "sac.batch_size": work.batch,
        "sac.buffer_size": work.buffer,
        "sac.learning_starts": work.warmup,
        "sac.learning_rate": work.learning_rate,
        "sac.gamma": work.gamma,
        "sac.tau": work.tau,
        "sac.normalise_obs": False,
        "policy.init": "uniform",  # Stable-Baselines3's SAC uses torch's default initialisation
    }
