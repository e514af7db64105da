"""Provenance of a run (code, machine, versions, command), and the settings it was started with."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from slipstream.config import file_layer, flag_layer, resolve
from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.layout import RunDir, write_json
from slipstream.settings import Settings
from slipstream.system.machine import cores, cpu_model, memory_bytes

PACKAGES = ("torch", "numpy", "numba", "gymnasium", "safetensors")


def collect(command: list[str]) -> dict[str, Any]:
    """The facts needed to reproduce a run; imports none of the packages it lists."""
    return {
        "slipstream": version("slipstream"),
        "git": git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_mib": memory_bytes() // 2**20,
        "hostname": socket.gethostname(),
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(command),
    }


def record_plan(run: RunDir, rows: Sequence[tuple[str, Any, Any, str]]) -> None:
    """Write the requested and applied value of each switch, with the reason, into provenance.json."""
    facts = json.loads(run.provenance.read_text(encoding="utf-8"))
    facts["plan"] = facts.get("plan", {}) | {
        name: {"requested": requested, "applied": applied, "why": why} for name, requested, applied, why in rows
    }
    write_json(run.provenance, facts)


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(package: Path = Path(__file__).parents[1]) -> dict[str, Any] | None:
    """Commit and dirty state if the package is used from its own git checkout, else None.

    Only `<checkout>/src/slipstream` counts: an installed package may be inside the repository of another project.
    """
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if commit is None:
        return None
    changes = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def stage_of(run: RunDir) -> str:
    """The stage that made a run, from its provenance; `train` by default."""
    try:
        facts = json.loads(run.provenance.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "train"
    return str(facts.get("stage", "train")) if isinstance(facts, dict) else "train"


def check_modules(run: RunDir, given: Sequence[str]) -> None:
    """Raise if a run was started with modules that are not given now; nothing in a file is imported."""
    missing = [name for name in run.modules if name not in given]
    if missing:
        flags = " ".join(f"--import {name}" for name in missing)
        raise ConfigError(
            f"{run.path} was started with {flags}, which {'is' if len(missing) == 1 else 'are'} missing here.",
            f"add {flags}: {run.resume_command}; in Python modules={run.modules}",
        )


def read_config(run: RunDir, steps: int | None = None) -> tuple[Settings, str]:
    """The settings of a run (config.yaml) and the name of its environment (provenance.json)."""
    if not run.config.is_file():
        raise CheckpointError(f"{run.path} has no config.yaml.", "it is not a run, or it was interrupted at its start")
    layers = [file_layer(run.config)]
    if steps is not None:
        layers.append(flag_layer({"steps": steps, "minutes": None}))
    try:
        name = str(json.loads(run.provenance.read_text(encoding="utf-8"))["env"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{run.provenance} does not name the environment of this run.", 'it must hold "env": "NAME"'
        ) from error
    return resolve(*layers).settings, name


def _output(command: list[str]) -> str | None:
    """The output of a command, or None if it is missing, slow or fails."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=clean)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
