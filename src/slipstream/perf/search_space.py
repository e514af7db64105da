"""The search space of tuning: changes of a plan that keep the data of each update.

The batch (envs x agents x rollout), the minibatch and the epochs are kept: if the number of envs changes, the rollout
length changes too. Only a `free` search tries larger batches and minibatches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import ConfigError
from slipstream.plan import check_batch
from slipstream.settings import Settings

Changes = dict[str, Any]
"""Settings by dotted key."""
ORDER = (
    "collector",
    "threads",
    "envs",
    "workers",
    "groups",
    "vector",
    "device",
    "inference",
    "precision",
    "graphs",
    "storage",
    "pinned",
    "cudnn_benchmark",
    "learner",
    "compile",
    "batch",
    "minibatch",
)
"""Coordinates of the search, in the order of their usual effect."""
EXACT = ("collector", "workers", "groups", "vector", "pinned")
"""Coordinates that keep the result bit for bit."""
FREE = ("batch", "minibatch")
"""Coordinates that change learning: larger batches with more envs, and fewer, larger gradient steps."""
OFF_DEVICE = ("collector", "device")
"""Coordinates that move a game off the GPU. They are tried last, since they are slow to try and rarely help."""
DOUBLING = ("threads", "envs", "workers", "groups", *FREE)
"""Coordinates with ordered values, which are doubled or halved."""
LEAST_ROLLOUT = 16
MOST_ENVS = 1 << 17
COMPILE_S = 90.0
"""Seconds of torch.compile, or of compiling a game for another device."""


def apply_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with some values replaced."""
    tree = settings.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        tree[section][name] = value
    return Settings.model_validate(tree)


def rollout_for(settings: Settings, envs: int, new_envs: int) -> int | None:
    """Steps per env that keep the batch when `envs` become `new_envs`; None if impossible.

    A rollout has at least 16 steps and a sequence of the memory, or its current length if that is shorter.
    """
    replay = settings.algorithm == "sac"
    rollout = settings.sac.rollout if replay else settings.ppo.rollout
    steps, left = divmod(envs * rollout, new_envs)
    if left or steps < min(rollout, 1 if replay else max(LEAST_ROLLOUT, settings.policy.sequence)):
        return None
    if not replay:
        try:
            check_batch(apply_changes(settings, {"ppo.rollout": steps}), new_envs, 1)
        except ConfigError as error:
            if "policy.sequence" in error.message or "policy.burn_in" in error.message:
                return None
    return steps


def compiles_s(plan: Mapping[str, Any], changes: Changes) -> float:
    """Estimated seconds of compiling for a change of an applied plan."""
    on_gpu = "device" in (plan["collector"], changes.get("plan.collector"))
    changes_device = on_gpu and any(f"plan.{name}" in changes for name in OFF_DEVICE)
    return COMPILE_S if changes_device or changes.get("plan.compile") else 0.0


@dataclass(frozen=True)
class SearchSpace:
    """The machine, the settings that the user fixed, and how much learning may change."""

    agents: int
    cores: int
    gpu: bool
    fixed: Collection[str] = ()
    """Settings that the user gave."""
    free: bool = False
    exact: bool = False

    def coordinates(self, plan: Mapping[str, Any]) -> list[str]:
        """The coordinates to try from an applied plan, in order."""
        found = [name for name in ORDER if (not self.exact or name in EXACT) and (self.free or name not in FREE)]
        return sorted(found, key=lambda name: plan["collector"] == "device" and name in OFF_DEVICE)

    def allowed(self, changes: Mapping[str, Any]) -> bool:
        """Whether no setting of a change is fixed."""
        return not any(key in self.fixed for key in changes)

    def options(self, coordinate: str, plan: Mapping[str, Any]) -> list[Changes]:
        """The alternatives to an applied plan along a coordinate without an order."""
        found: list[Changes] = []
        if self.exact and plan.get(
            "native"
        ):  # a vector env has one seed for all its envs: another split is another run
            return found
        cuda, torch, on_device = plan["device"] == "cuda", plan["learner"] == "torch", plan["collector"] == "device"
        if coordinate == "collector":
            found = self._collectors(plan)
        elif coordinate == "vector" and plan["collector"] == "batched":
            found = [{"plan.vector": name} for name in ("threads", "processes") if name != plan["vector"]]
        elif coordinate == "device" and self.gpu:
            found = [{"plan.device": "cpu" if cuda else "cuda"}]
        elif coordinate == "inference" and self.gpu and plan["collector"] == "batched":
            found = [{"plan.inference": "cpu" if plan["inference"] == "cuda" else "cuda"}]
        elif coordinate == "precision" and torch:
            names = ("bf16", "tf32", "fp32") if cuda else ("bf16", "fp32")
            found = [{"plan.precision": name} for name in names if name != plan["precision"]]
        elif coordinate == "learner":
            found = [{"plan.learner": "fused" if torch else "torch"}] if not cuda else []
        elif coordinate == "compile" and torch:
            found = [{"plan.compile": not plan["compile"]}]
        elif coordinate == "storage" and cuda and not on_device:
            found = [{"plan.storage": "host" if plan["storage"] == "device" else "device"}]
        elif coordinate == "cudnn_benchmark" and plan["cudnn_benchmark"]:  # off without convolutions
            found = [{"plan.cudnn_benchmark": False}]
        elif coordinate == "graphs" or (coordinate == "pinned" and not on_device):
            found = [{f"plan.{coordinate}": not plan[coordinate]}] if cuda or plan["inference"] == "cuda" else []
        return [changes for changes in found if self.allowed(changes)]

    def _collectors(self, plan: Mapping[str, Any]) -> list[Changes]:
        """Other collectors; an exact search stays on the same device."""
        cuda, found = plan["device"] == "cuda", list[Changes]()
        if self.exact and cuda:
            return []
        found.append({"plan.collector": "local"})
        if plan["envs"] > 1:
            workers = sorted({self.cores, max(1, self.cores // 2)}, reverse=True)
            if self.cores > 1:
                found.append({"plan.collector": "actors", "plan.workers": self.cores})
            devices = [{}, {"plan.inference": "cpu" if plan["inference"] == "cuda" else "cuda"}]
            for more in devices if self.gpu and not self.exact else [{}]:
                groups = {"plan.collector": "batched", "plan.groups": 2}
                found += [groups | {"plan.workers": count} | more for count in workers]
        if self.gpu and not self.exact:
            found.append({"plan.collector": "device"})
        return [one for one in found if one["plan.collector"] != plan["collector"]]

    def step(self, coordinate: str, plan: Mapping[str, Any], settings: Settings, up: bool) -> Changes | None:
        """The next value of a doubling coordinate from an applied plan and its settings; None at its end."""
        batch = plan["envs"] * self.agents * settings.ppo.rollout
        now = {"minibatch": settings.ppo.minibatch, "batch": plan["envs"]}.get(coordinate) or plan[coordinate]
        most = {"envs": MOST_ENVS, "batch": MOST_ENVS, "groups": 4, "minibatch": batch}.get(coordinate, self.cores)
        value = min(2 * now, most) if up else now // 2
        if coordinate == "workers" and not up and now == self.cores > 2:
            value = now - 1
        if value < 1 or value == now or not self._matters(coordinate, plan, settings, up):
            return None
        changes: Changes = {f"plan.{coordinate}": value}
        if coordinate == "envs":
            steps = rollout_for(settings, plan["envs"], value)
            changes |= {f"{settings.algorithm}.rollout": steps}
        elif coordinate == "batch":
            changes = {"plan.envs": value}
        elif coordinate == "minibatch":
            changes = {"ppo.minibatch": None if batch % value else value}
        return changes if None not in changes.values() and self.allowed(changes) else None

    def _matters(self, coordinate: str, plan: Mapping[str, Any], settings: Settings, up: bool) -> bool:
        """Whether a coordinate has an effect on the plan."""
        if self.exact and plan.get("native"):
            return False
        if coordinate == "workers":
            return plan["collector"] in ("actors", "batched")
        if coordinate == "groups":
            return bool(plan["collector"] == "batched")
        if coordinate == "threads":
            return bool(plan["device"] != "cuda")
        return coordinate not in FREE or (up and settings.algorithm == "ppo")
