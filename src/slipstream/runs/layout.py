"""The run directory: its files, its lock and its default name.

The lock is a small JSON file that identifies the process that uses the run: host, pid and start time of the process, so
that a reused pid is not mistaken for it. An OS lock is held on the file only while it is read and written, so two
processes cannot both decide that the lock is stale, and a forked worker that outlives its parent holds no lock.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from slipstream.errors import CheckpointError, MachineError, did_you_mean

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

GUARD_WAIT_S = 5.0
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


def module_names(value: Any) -> list[str]:
    """The names of modules that a file lists; anything else in it is left out, because the names are printed."""
    names = value if isinstance(value, list) else []
    return [name for name in names if isinstance(name, str) and all(part.isidentifier() for part in name.split("."))]


@dataclass(frozen=True)
class RunDir:
    """The paths of the files of one run; nothing is opened."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings with their origins."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def discarded(self) -> Path:
        """Metrics newer than the checkpoint from which the run was resumed."""
        return self.path / "metrics.discarded.jsonl"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint, and best.json."""
        return self.path / "checkpoints"

    @property
    def provenance(self) -> Path:
        """The code, machine, versions and command of this run."""
        return self.path / "provenance.json"

    @property
    def games(self) -> Path:
        """The match log, one game per line."""
        return self.path / "games.jsonl"

    @property
    def events(self) -> Path:
        """Decisions and faults, one JSON object per line, with their step counts."""
        return self.path / "events.jsonl"

    @property
    def pool(self) -> Path:
        """The frozen policies of a league; a run directory of its own."""
        return self.path / "pool"

    @property
    def replays(self) -> Path:
        """Replays of games."""
        return self.path / "replays"

    @property
    def traces(self) -> Path:
        """Profiler traces."""
        return self.path / "traces"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files, a copy of the metrics."""
        return self.path / "tensorboard"

    @property
    def csv(self) -> Path:
        """The metrics as a table, if the sink `csv` is used."""
        return self.path / "metrics.csv"

    @property
    def trackers(self) -> Path:
        """The local stores of experiment trackers, and the ids of their runs."""
        return self.path / "trackers"

    @property
    def lock_file(self) -> Path:
        """Identifies the process that uses the run, while it is in use."""
        return self.path / "lock"

    @property
    def holds_run(self) -> bool:
        """Whether the directory already contains files of a run."""
        return any(p.exists() for p in (self.config, self.metrics, self.checkpoints, self.provenance))

    @property
    def modules(self) -> list[str]:
        """The modules that the run was started with, by `--import`."""
        try:
            facts = json.loads(self.provenance.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return module_names(facts.get("modules")) if isinstance(facts, dict) else []

    @property
    def observation(self) -> str:
        """The observation builder `MODULE:NAME` with which the demos of a clone were recorded; empty if unknown."""
        try:
            facts = json.loads(self.provenance.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        found = str(facts.get("observation", "")) if isinstance(facts, dict) else ""
        module, _, name = found.partition(":")
        return found if module_names([module, name]) == [module, name] else ""

    @property
    def resume_command(self) -> str:
        """The command that resumes the run, with the modules that it needs."""
        return f"slipstream resume {shlex.quote(str(self.path))}" + "".join(f" --import {one}" for one in self.modules)

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the directory of a new run; refuse one that already holds a run."""
        run = cls(Path(path))
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            taken = run.holds_run
        except OSError as error:
            raise MachineError(
                f"Could not create the run directory {path}: {error.strerror or error}.",
                hint="choose a writable folder with `--run DIR`",
            ) from error
        if taken:
            raise CheckpointError(
                f"{path} already holds a run.",
                hint=f"resume it with `{run.resume_command}`, or choose another `--run DIR`",
            )
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Return the run at `path`; raise if there is none."""
        run = cls(Path(path))
        if run.path.is_dir() and run.holds_run:
            return run
        why = "no such folder" if not run.path.exists() else "it contains neither settings nor checkpoints"
        if run.path.is_file():
            why = "it is a file, not a folder"
        raise CheckpointError(
            f"No run at {path}: {why}.{did_you_mean(run.path.name, _runs_beside(run.path))}",
            hint=f"start one with `slipstream train ENV --run {path}`, or give the folder that contains `checkpoints`",
        )


def _runs_beside(path: Path) -> list[str]:
    try:
        return [p.name for p in path.parent.iterdir() if p != path and p.is_dir() and RunDir(p).holds_run]
    except OSError:
        return []


def default_path(env: str, folder: str = "runs") -> Path:
    """Return an unused path `runs/<env>-<time>`; runs started in the same second get a number."""
    slug = re.sub(r"[^a-z0-9]+", "-", env.lower()).strip("-") or "run"
    name = f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
    suffixes = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    return next(path for suffix in suffixes if not (path := Path(folder) / (name + suffix)).exists())


def plain(value: Any) -> Any:
    """Convert `value` to strict JSON: NaN and infinity become null, NumPy values and paths become plain ones."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {error}", "delete it; the command that wrote it will write it again"
        ) from error
    return value if isinstance(value, dict) else None


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` as JSON atomically: a reader sees the old file or the new one."""
    write_text(path, json.dumps(plain(obj), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically: a reader sees the old file or the new one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` atomically: temporary file in the same folder, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and fsync it."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that a rename in it is on disk; Windows and some network folders do not support it."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED | {errno.EINVAL, errno.EBADF}:
            raise
    finally:
        os.close(fd)


def birth(pid: int) -> str | None:
    """Return what distinguishes this process from a later one with the same pid; None if it is dead or a zombie.

    On Linux psutil's start time moves with the wall clock, so the kernel's own tick count and boot id are used there.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if sys.platform == "linux":
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
            return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{ticks}"
        return f"{process.create_time():.0f}"
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None
    except (psutil.AccessDenied, OSError, IndexError):
        return "unknown"


@contextlib.contextmanager
def lock(run: RunDir) -> Iterator[list[str]]:
    """Lock the run; yield notices (such as a stale lock that was replaced). Raise if another process uses it."""
    me = {"pid": os.getpid(), "host": socket.gethostname(), "birth": birth(os.getpid())}
    notices = _acquire(run, me)
    try:
        yield notices
    finally:
        _release(run, me)


def _acquire(run: RunDir, me: dict[str, Any]) -> list[str]:
    with _guarded(run) as (fd, guarded, created):
        text = _read_all(fd)
        holder = _parse_holder(text)
        if guarded:
            _refuse_if_held(run, holder, me)
        elif not created:
            raise CheckpointError(
                f"{run.path} is locked, and its file system does not show whether the other process is still running.",
                hint=f"if no other process uses it, delete {run.lock_file} and try again",
            )
        os.lseek(fd, 0, os.SEEK_SET)
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(me).encode())
        os.fsync(fd)
    if not text.strip():
        return []
    who = f"pid {holder['pid']} on {holder['host']}" if holder else "an unknown process"
    return [f"Replaced the stale lock of {run.path}, left by {who}, which is no longer running."]


def _read_all(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, 4096)


def _parse_holder(text: bytes) -> dict[str, Any] | None:
    try:
        holder = json.loads(text)
    except ValueError:
        return None
    if isinstance(holder, dict) and isinstance(holder.get("pid"), int) and isinstance(holder.get("host"), str):
        return holder
    return None


def _refuse_if_held(run: RunDir, holder: dict[str, Any] | None, me: dict[str, Any]) -> None:
    """Raise if the lock is held. An empty or incomplete lock is not: its writer died before it was complete."""
    if holder is None:
        return
    who = f"pid {holder['pid']} on {holder['host']}"
    if holder["host"] != me["host"]:
        raise CheckpointError(
            f"{run.path} is in use by {who}, and this machine ({me['host']}) cannot check whether it is still running.",
            hint=f"stop it there; if it has ended, delete {run.lock_file} and try again",
        )
    if birth(holder["pid"]) in (holder.get("birth"), "unknown"):
        raise CheckpointError(
            f"{run.path} is in use by {who}.",
            hint=f"wait for it or stop it with `kill {holder['pid']}` (it saves first), or choose another `--run DIR`",
        )


def _release(run: RunDir, me: dict[str, Any]) -> None:
    """Remove the lock if it is still ours; the folder may have been deleted."""
    if os.getpid() != me["pid"] or not run.lock_file.exists():
        return
    with contextlib.suppress(OSError, CheckpointError), _guarded(run) as (fd, _, _):
        if _parse_holder(_read_all(fd)) == me:
            os.ftruncate(fd, 0)
            run.lock_file.unlink()


@contextlib.contextmanager
def _guarded(run: RunDir) -> Iterator[tuple[int, bool, bool]]:
    """Open the lock file and lock it: (fd, whether it could be locked, whether this call created it).

    On a file system without locks, only the process that created the file owns the run.
    """
    deadline = time.monotonic() + GUARD_WAIT_S
    while True:
        fd, created = _open_lock(run)
        try:
            guarded = _try_guard(fd)
            if guarded is not None and _is_still(run.lock_file, fd):
                yield fd, guarded, created
                return
        finally:
            os.close(fd)
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"{run.path} is being started by another process.", hint="try again, or choose another `--run DIR`"
            )
        time.sleep(0.02)


def _open_lock(run: RunDir) -> tuple[int, bool]:
    binary = getattr(os, "O_BINARY", 0)
    try:
        try:
            return os.open(run.lock_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | binary, 0o644), True
        except FileExistsError:
            return os.open(run.lock_file, os.O_RDWR | os.O_CREAT | binary, 0o644), False
    except OSError as error:
        raise MachineError(
            f"Could not lock {run.path}: {error.strerror or error}.",
            hint="check that the folder exists and is writable",
        ) from error


def _try_guard(fd: int) -> bool | None:
    """True: locked. None: another process has locked it. False: this file system has no locks."""
    try:
        if sys.platform == "win32":
            os.lseek(fd, 1 << 30, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        return None
    return True


def _is_still(path: Path, fd: int) -> bool:
    """Return whether `fd` is still the file at `path`, which another process may have removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
