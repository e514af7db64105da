"""Check this machine: cores, memory, disk and libraries."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from slipstream.runs.provenance import version
from slipstream.system import machine

LIBRARIES = ("slipstream", "torch", "numpy", "numba", "gymnasium", "pydantic", "safetensors", "rich", "tensorboard")


def examine_machine(folder: Path = Path()) -> dict[str, Any]:
    """Facts about the machine, and checks with hints."""
    quota = machine.cgroup_cores()
    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": machine.cpu_model(),
        "cores": machine.cores(),
        "cores_affinity": machine.affinity_cores(),
        "cores_cgroup": quota,
        "cores_all": os.cpu_count(),
        "memory_gib": round(machine.memory_bytes() / 2**30, 1),
        "disk_free_gib": round(machine.disk_free_bytes(folder.resolve()) / 2**30, 1),
        "fingerprint": machine.fingerprint(),
        "versions": {name: version(name) for name in LIBRARIES},
    }
    facts["torch"] = _torch()
    facts["checks"] = _checks(facts, folder)
    facts["ok"] = all(check["ok"] for check in facts["checks"])
    return facts


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"works": False, "why": str(error)}
    cuda = torch.cuda.is_available()
    return {
        "works": bool((torch.ones(2) + 1).sum() == 4),
        "version": torch.__version__,
        "cuda": cuda,
        "device": torch.cuda.get_device_name(0) if cuda else "cpu",
    }


def _checks(facts: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    affinity, quota = facts["cores_affinity"], facts["cores_cgroup"] or "none"
    cores = f"{facts['cpu']}: {facts['cores']} usable of {facts['cores_all']} (affinity {affinity}, quota {quota})"
    memory, disk, torch = facts["memory_gib"], facts["disk_free_gib"], facts["torch"]
    writable = os.access(folder, os.W_OK)
    rows = [
        ("python", sys.version_info >= (3, 11), facts["python"], "install Python 3.11 or newer"),
        (
            "cores",
            facts["cores"] >= 2,
            cores,
            "training works on one core, but does not overlap collecting and learning",
        ),
        ("memory", memory >= 2, f"{memory} GiB", "lower plan.envs and ppo.rollout"),
        ("disk", disk >= 1, f"{disk} GiB free here", "free some, or use --run on another disk"),
        ("folder", writable, "writable" if writable else "not writable", "change to a folder you may write to"),
        ("torch", torch["works"], str(torch.get("version")), "reinstall: pip install -c constraints.txt torch"),
        ("numba", *_numba()),
    ]
    return [{"name": name, "ok": bool(ok), "says": says, "hint": hint} for name, ok, says, hint in rows]


def _numba() -> tuple[bool, str, str]:
    from slipstream.system.rng import mix

    try:
        works = int(mix(1)) == int(mix.py_func(1))  # type: ignore[attr-defined]
    except Exception as error:  # any error of the compiler is reported
        return False, f"cannot compile: {error}", "reinstall numba; no compiler is needed"
    return works, f"{version('numba')} compiles", "reinstall numba"
