"""The resources of this machine: usable cores, memory, disk, GPU, and a fingerprint."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from pathlib import Path

import psutil


def affinity_cores() -> int:
    """Return the number of cores on which this process may be scheduled."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the CPU quota of the control group in cores; None if there is none."""
    quotas = []
    for folder in _cgroup_folders(root, membership):
        quota = _quota(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas) if quotas else None


def cores() -> int:
    """Return the number of usable cores, by affinity and CPU quota; at least 1."""
    quota = cgroup_cores()
    usable = affinity_cores()
    return max(1, min(usable, int(quota + 0.5)) if quota is not None else usable)


def memory_bytes() -> int:
    """Return the memory that this process can use: the machine's, or the control group's limit if lower."""
    total = int(psutil.virtual_memory().total)
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        return min(total, int(text)) if text.isdigit() else total
    except OSError:
        return total


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def disk_free_bytes(path: Path) -> int:
    """Return the free disk space at `path`, which need not exist."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def threads() -> int:
    """Return the number of threads for libraries in this process: all usable cores, or OMP_NUM_THREADS if lower."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(limit)) if limit.isdigit() and int(limit) else cores()


def gpu_name(devices: Path = Path("/dev")) -> str:
    """Return the name of the GPU; empty if torch can use none. Torch is imported only if there may be one."""
    if os.name == "posix" and not (any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()):
        return ""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


def gpu_bf16() -> bool:
    """Return whether the GPU supports bf16 natively; older ones emulate it."""
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability(0) >= (8, 0)


def fingerprint() -> str:
    """Return a short hash of this kind of machine, the same on every call."""
    facts = (platform.system(), platform.machine(), cpu_model(), cores(), memory_bytes() >> 30, gpu_name())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    folders = [root, root / "cpu"]
    try:
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            top = root / "cpu" if "cpu" in controllers.split(",") else root
            parts = Path(path.strip("/")).parts
            folders += [top.joinpath(*parts[:n]) for n in range(1, len(parts) + 1)]
    except (OSError, ValueError):
        pass
    return folders


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
