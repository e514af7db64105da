"""Provenance: code, machine, versions, command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.runs import provenance


def test_collect_is_json() -> None:
    """The record names code, machine, versions and command, and is plain JSON."""
    record = json.loads(json.dumps(provenance.collect(["slipstream", "train", "soccer"])))
    assert record["argv"] == ["slipstream", "train", "soccer"]
    assert record["versions"]["numpy"] and record["python"] and record["cpu"] and record["hostname"]
    assert record["cores"] >= 1 and record["memory_mib"] > 0 and record["time_utc"].endswith("+00:00")


def test_collect_imports_nothing_heavy() -> None:
    """Versions are found without importing the packages."""
    script = (
        "import sys; from slipstream.runs import provenance; provenance.collect([])\n"
        "print([n for n in ('torch', 'numba', 'gymnasium') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_git_only_of_our_own_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is known for a source checkout, but not for a package installed inside another repository."""
    package = tmp_path / "src" / "slipstream"
    package.mkdir(parents=True)
    assert provenance.git_state(package) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    (package / "a.py").write_text("")
    try:
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
            subprocess.run([*git, *words], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no usable git")
    state = provenance.git_state(package)
    assert state is not None and len(state["commit"]) == 40 and state["dirty"] is False
    (package / "a.py").write_text("changed")
    assert (provenance.git_state(package) or {})["dirty"] is True
    installed = tmp_path / "lib" / "site-packages" / "slipstream"
    installed.mkdir(parents=True)
    assert provenance.git_state(installed) is None
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(package) is None
