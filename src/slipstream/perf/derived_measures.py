"""Numbers that rules look at, worked out of what was measured."""

from __future__ import annotations

from typing import Any

from slipstream.perf.measurements import Findings

MOST = 0.98
"""The largest share that a prediction takes away: nothing is free."""
PPO_UPDATES, PPO_REUSE, PPO_USUAL = 0.25, 20.0, 0.1
"""Gradient steps per step and uses of a sample that no published PPO comes near, and what is usual."""
SAC_UPDATES, SAC_ENSEMBLE = 4.0, 8
"""Gradient steps per step that only a large ensemble of critics can bear."""


def speedup(share: float, factor: float = float("inf")) -> float:
    """Amdahl: how many times faster the whole gets when a share of it gets `factor` times faster."""
    share = min(max(share, 0.0), MOST)
    return 1.0 / (1.0 - share + share / factor)


def hours_to_full(found: Findings, per_step: float) -> float:
    """Hours of training until memory is full."""
    each_hour = per_step * found.train.rate * 3600 / 2**20
    return found.limits.memory_mib / each_hour if each_hour > 0 else float("inf")


def of_env(found: Findings, name: str) -> Any:
    """What was measured of the environment under this name; 0 where it was not looked at."""
    return getattr(found.env, name) if found.env is not None else 0.0


def sync_shares(found: Findings) -> tuple[float, float]:
    """Shares of all time that numbers out of tensors take: in environments, and in the learner."""
    learner = found.learn.sync_share if found.learn is not None else 0.0
    return of_env(found, "sync_share") * found.train.shares.env, learner * found.train.shares.learn


def activation_share(found: Findings) -> float:
    """The share of all time that ReLU would save."""
    shares = found.train.shares
    acting = found.inference.activation_share if found.inference is not None else 0.0
    learning = found.learn.activation_share if found.learn is not None else 0.0
    return acting * shares.inference + learning * shares.learn


def wasted_times(found: Findings) -> float:
    """How many times more gradient steps are taken than is usual; below 1: none too many."""
    train = found.train
    if train.algorithm == "sac":
        usual = 20.0 if found.settings.get("sac.critics", 2) >= SAC_ENSEMBLE else 1.0
        return train.updates_per_step / usual if train.updates_per_step > max(SAC_UPDATES, usual) else 0.0
    too_often = train.updates_per_step > PPO_UPDATES
    too_much = train.update_to_data > PPO_REUSE
    return max(too_often * train.updates_per_step / PPO_USUAL, too_much * train.update_to_data / 4.0)


def workers_of(found: Findings) -> int:
    """Processes or threads that step environments."""
    return int(found.train.plan["workers"])


def planned_mib(found: Findings) -> float:
    """The memory that all parts of a training add up to."""
    return sum(part.budget_mib for part in found.memory if (part.stage, part.name) == ("train", "in all"))


def overlapped(found: Findings) -> float:
    """How many times faster an iteration is when learning and collecting share the cores all the time."""
    shares, plan, cores = found.train.shares, found.train.plan, found.limits.cores
    collect, learn = shares.env + shares.inference, shares.learn
    work = (collect * min(workers_of(found), cores) + learn * min(int(plan["threads"]), cores)) / cores
    return 1.0 / max(work + shares.rest, learn + shares.rest, 0.01)


def lost_speed(found: Findings) -> float:
    """The share of its speed that training has lost, in the past of a run or while it was watched."""
    trends = [found.train.drift] + ([found.past.drift] if found.past is not None else [])
    return max((-trend.change for trend in trends if trend.sure), default=0.0)


def batching(found: Findings) -> float:
    """How many times cheaper a row is in the largest batch than in that of training."""
    if found.inference is None:
        return 1.0
    inference = found.inference
    return inference.per_row_us(inference.rows) / max(inference.per_row_us(max(inference.by_batch)), 1e-9)
