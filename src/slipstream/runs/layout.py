"""A run directory: its files, its lock, its name.

The lock is a small JSON file that says who holds the run (host, pid, and when that process was born, so that a recycled
pid is not believed). An operating-system lock is held on the file only while it is read and rewritten: that closes the
window in which two starters could both judge it stale, and a forked worker that outlives its parent keeps nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
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


@dataclass(frozen=True)
class RunDir:
    """The files of one run; a path and the names below it, nothing is opened."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings with their origins."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object per line: the truth of what happened."""
        return self.path / "metrics.jsonl"

    @property
    def discarded(self) -> Path:
        """Metrics newer than the checkpoint that a resume went on from."""
        return self.path / "metrics.discarded.jsonl"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint, and best.json."""
        return self.path / "checkpoints"

    @property
    def provenance(self) -> Path:
        """What made this run: code, machine, versions, command."""
        return self.path / "provenance.json"

    @property
    def games(self) -> Path:
        """The match log, one game per line."""
        return self.path / "games.jsonl"

    @property
    def events(self) -> Path:
        """Decisions and faults, one per line, with the steps at which they fell."""
        return self.path / "events.jsonl"

    @property
    def pool(self) -> Path:
        """The frozen copies of a league, a run directory of its own."""
        return self.path / "pool"

    @property
    def replays(self) -> Path:
        """Games to look at."""
        return self.path / "replays"

    @property
    def traces(self) -> Path:
        """Profiler traces."""
        return self.path / "traces"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        """Event files, a copy of the metrics."""
        return self.path / "tensorboard"

    @property
    def lock_file(self) -> Path:
        """Who holds this run, while it is held."""
        return self.path / "lock"

    @property
    def holds_run(self) -> bool:
        """Whether something has been written here that a new run would mix with."""
        return any(p.exists() for p in (self.config, self.metrics, self.checkpoints, self.provenance))

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the directory of a new run; refuse one that already holds a run."""
        run = cls(Path(path))
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            taken = run.holds_run
        except OSError as error:
            raise MachineError(
                f"Could not make the run directory {path}: {error.strerror or error}.",
                hint="choose a folder that can be written to with `--run DIR`",
            ) from error
        if taken:
            raise CheckpointError(
                f"{path} already holds a run.",
                hint=f"go on with it by `slipstream resume {path}`, or choose another `--run DIR`",
            )
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """The run at `path`; an error that says what is there instead if there is none."""
        run = cls(Path(path))
        if run.path.is_dir() and run.holds_run:
            return run
        why = "no such folder" if not run.path.exists() else "it holds neither settings nor checkpoints"
        if run.path.is_file():
            why = "it is a file, not a folder"
        raise CheckpointError(
            f"No run at {path}: {why}.{did_you_mean(run.path.name, _runs_beside(run.path))}",
            hint=f"start one with `slipstream train ENV --run {path}`, or name the folder that holds `checkpoints`",
        )


def _runs_beside(path: Path) -> list[str]:
    try:
        return [p.name for p in path.parent.iterdir() if p != path and p.is_dir() and RunDir(p).holds_run]
    except OSError:
        return []


def default_path(env: str, folder: str = "runs") -> Path:
    """A free `runs/<env>-<time>`; runs begun in the same second are told apart by a number."""
    slug = re.sub(r"[^a-z0-9]+", "-", env.lower()).strip("-") or "run"
    name = f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
    suffixes = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    return next(path for suffix in suffixes if not (path := Path(folder) / (name + suffix)).exists())


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: NaN and infinity become null, numpy scalars and paths become plain ones."""
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
    """The object in a JSON file of ours; None where there is no such file."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {error}", "remove it, and what wrote it does so anew"
        ) from error
    return told if isinstance(told, dict) else None


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` as JSON so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(plain(obj), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Temporary file in the same folder, fsync, rename, fsync of the folder."""
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
    """Write a file that must not exist yet, and wait until it is on disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Put a rename in `path` on disk; Windows and some network folders have no such call, and need none."""
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
    """What tells this process from a later one with the same pid; None if it is dead (a zombie is dead).

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
    """Hold the run; yields notices (a stale lock that was taken over). A second holder is refused."""
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
                f"{run.path} has a lock, and its file system cannot tell whether the holder still runs.",
                hint=f"if no other process uses it, delete {run.lock_file} and try again",
            )
        os.lseek(fd, 0, os.SEEK_SET)
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(me).encode())
        os.fsync(fd)
    if not text.strip():
        return []
    who = f"pid {holder['pid']} on {holder['host']}" if holder else "a process that left it unreadable"
    return [f"Took over the lock of {run.path}, left by {who}, which is no longer running."]


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
    """An empty or torn lock holds nothing: its writer died, since the guard shows that nobody is writing now."""
    if holder is None:
        return
    who = f"pid {holder['pid']} on {holder['host']}"
    if holder["host"] != me["host"]:
        raise CheckpointError(
            f"{run.path} is in use by {who}, and this machine ({me['host']}) cannot see whether it still runs.",
            hint=f"stop it there; if it is gone, delete {run.lock_file} and try again",
        )
    if birth(holder["pid"]) in (holder.get("birth"), "unknown"):
        raise CheckpointError(
            f"{run.path} is in use by {who}.",
            hint=f"wait for it or stop it with `kill {holder['pid']}` (it saves first), or choose another `--run DIR`",
        )


def _release(run: RunDir, me: dict[str, Any]) -> None:
    """Remove the lock if it is still ours; a run folder that vanished has none."""
    if os.getpid() != me["pid"] or not run.lock_file.exists():
        return
    with contextlib.suppress(OSError, CheckpointError), _guarded(run) as (fd, _, _):
        if _parse_holder(_read_all(fd)) == me:
            os.ftruncate(fd, 0)
            run.lock_file.unlink()


@contextlib.contextmanager
def _guarded(run: RunDir) -> Iterator[tuple[int, bool, bool]]:
    """Open the lock file and keep others from changing it: (fd, whether that is so, whether this call created it).

    Where the file system has no locks, having created the file is the only proof of owning it.
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
            hint="check that the folder exists and can be written to",
        ) from error


def _try_guard(fd: int) -> bool | None:
    """True: guarded. None: another process has it now. False: this file system has no locks."""
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
    """Whether `fd` is the file at `path`, and not one that its holder removed before the guard was ours."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
