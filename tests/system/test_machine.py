"""Usable cores, memory and disk, read from file trees like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.system import machine


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write a small control-group tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": "max 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {"cpu.max": "what is this\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_quota_is_the_lowest_of_all_parents(
    membership: str, files: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    """Both versions of control groups are read, parents count, and invalid files are ignored."""
    where = tree(tmp_path / "cgroup", {"unused": "", **files})
    (tmp_path / "self").write_text(membership)
    assert machine.cgroup_cores(where, tmp_path / "self") == cores


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    """Without control-group files there is no quota."""
    assert machine.cgroup_cores(tmp_path / "none", tmp_path / "nothing") is None


def test_version_1_quota_below_the_root(tmp_path: Path) -> None:
    """In version 1 a group's folder is below its controller, and its quota counts too."""
    files = {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    where = tree(tmp_path / "cgroup", files)
    (tmp_path / "self").write_text("4:cpu,cpuacct:/job\n")
    assert machine.cgroup_cores(where, tmp_path / "self") == 1.0


@pytest.mark.parametrize(("quota", "usable"), [(None, 8), (2.0, 2), (0.2, 1), (1.5, 2), (64.0, 8)])
def test_cores_are_the_smaller_of_affinity_and_quota(
    quota: float | None, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is at least 1, at most the affinity, and the quota rounded to the nearest integer."""
    monkeypatch.setattr(machine, "affinity_cores", lambda: 8)
    monkeypatch.setattr(machine, "cgroup_cores", lambda: quota)
    assert machine.cores() == usable


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without affinity support, all cores count."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
        assert machine.affinity_cores() == 3
        monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.affinity_cores() == (os.cpu_count() or 1)


def test_free_space_of_a_path_that_does_not_exist(tmp_path: Path) -> None:
    """The free space of a missing folder is that of its nearest existing parent."""
    assert machine.disk_free_bytes(tmp_path / "a" / "b") > 0


def test_fingerprint_is_stable() -> None:
    """The fingerprint of a machine is the same on every call."""
    assert machine.fingerprint() == machine.fingerprint()
    assert len(machine.fingerprint()) == 12


def test_threads_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is the number of cores, or OMP_NUM_THREADS if it is lower, as in workers."""
    monkeypatch.setattr(machine, "cores", lambda: 4)
    for said, expected in (("", 4), ("1", 1), ("9", 4), ("0", 4), ("2,1", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert machine.threads() == expected
