"""Shared memory: visible to another process, freed with its owner, aligned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.errors import MachineError
from slipstream.system import slab as module
from slipstream.system.slab import ALIGNMENT, Field, Slab

FIELDS = {
    "flags": Field((3,), "uint8"),
    "none": Field((4, 0), "float32"),
    "obs": Field((2, 5), "float32"),
    "count": Field((1,), "int64"),
}
CHILD = """
import json, sys
from slipstream.system.slab import Slab
slab = Slab.attach(json.loads(sys.argv[1]))
assert slab["obs"][1, 4] == 7.5 and slab["none"].shape == (4, 0)
slab["count"][0] = 2**40 + 1
slab["flags"][:] = [1, 2, 3]
"""


def test_a_second_process_sees_and_writes_the_same_memory() -> None:
    """Each process reads what the other writes, with nothing but the inherited descriptor."""
    slab = Slab(FIELDS)
    slab["obs"][1, 4] = 7.5
    assert isinstance(slab.handle, int)
    command = [sys.executable, "-c", CHILD, json.dumps(slab.describe())]
    subprocess.run(command, check=True, pass_fds=[slab.handle], timeout=60)
    assert slab["count"][0] == 2**40 + 1
    assert slab["flags"].tolist() == [1, 2, 3]
    slab.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="/dev/shm is a Linux folder")
def test_nothing_appears_in_dev_shm() -> None:
    """The mapping has no name in /dev/shm that could be left over."""
    before = set(Path("/dev/shm").iterdir())
    slab = Slab(FIELDS)
    slab["obs"][:] = 1
    ours = [path for path in set(Path("/dev/shm").iterdir()) - before if "slipstream" in path.name]
    assert not ours
    slab.close()


def test_fields_are_aligned_zeroed_and_disjoint() -> None:
    """Every field starts on a cache line and is zero, and writing one does not change another."""
    slab = Slab(FIELDS)
    for name, field in FIELDS.items():
        view = slab[name]
        assert view.shape == field.shape and view.dtype == field.dtype
        assert not view.any()
        assert view.size == 0 or view.ctypes.data % ALIGNMENT == 0
    slab["flags"][:] = 255
    assert not slab["obs"].any() and not slab["count"].any()
    slab.close()


def test_close_twice_and_views_stay_valid() -> None:
    """A slab can be closed twice, and earlier views stay readable."""
    slab = Slab(FIELDS)
    view = slab["obs"]
    view[:] = 3
    slab.close()
    slab.close()
    assert (view == 3).all()


def test_an_empty_slab() -> None:
    """A slab may have no fields or only empty ones."""
    for fields in ({}, {"none": Field((0,), "float32")}):
        Slab(fields).close()


def test_more_than_the_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that do not fit are an error before anything is allocated, with the settings that size them."""
    monkeypatch.setattr(module, "memory_bytes", lambda: 2**30)
    with pytest.raises(MachineError) as caught:
        Slab({"obs": Field((2**28,), "float32")})
    assert str(caught.value) == (
        "The rollout buffers need 1.0 GiB, more than this machine's memory.\nhint: lower plan.envs or ppo.rollout"
    )
    assert caught.value.code == 6


def test_without_memfd_an_unlinked_file_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems without memfd (macOS), the slab uses an unlinked file."""
    monkeypatch.delattr(module.os, "memfd_create", raising=False)
    slab = Slab(FIELDS)
    slab["count"][0] = 5
    again = Slab.attach(slab.describe())
    assert again["count"][0] == 5
    assert np.array_equal(again["obs"], slab["obs"])
    slab.close()
