"""Checkpoints: safetensors + JSON + sha256 manifest, written atomically.

A checkpoint is a folder `checkpoints/<steps>/`: one safetensors file per group of arrays (`policy` is all that acting
needs), the rest in `state.json`, and `manifest.json` with the size and sha256 of each. It is written under another
name, synced and renamed, so a folder that is named by a step count is complete. A reader verifies the same bytes that
it parses, follows no links or paths, and unpickles nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import safetensors
import safetensors.numpy

from slipstream.errors import CheckpointError, MachineError, SlipstreamError
from slipstream.runs.layout import RunDir, plain, sync_folder, write_json, write_new
from slipstream.system.machine import disk_free_bytes

VERSION = 1
MANIFEST_LIMIT = 2**24
CARRIED = frozenset(
    {"b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"}
)  # dtypes that safetensors supports
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
SCRATCH = re.compile(r"\.(writing|pruned|replaced)-(\d+)-(\d+)")
_writing = threading.Lock()


@dataclass
class Checkpoint:
    """Arrays by group and name (unordered), and the rest as JSON (tuples become lists)."""

    steps: int
    groups: dict[str, dict[str, np.ndarray]]
    state: dict[str, Any]


def save(run: RunDir, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; when this returns, it is complete on disk under its final name."""
    with _writing:
        _sweep(run)
        target = run.checkpoints / f"{checkpoint.steps:012d}"
        writing = run.checkpoints / f".writing-{target.name}-{os.getpid()}"
        files = _encode(checkpoint)
        writing.mkdir(parents=True)
        try:
            for name, data in files.items():
                write_new(writing / name, data)
            sync_folder(writing)
            _put_in_place(writing, target)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        return target


def _encode(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the bytes of every file, the manifest last."""
    files = {f"{group}.safetensors": _pack(group, arrays) for group, arrays in checkpoint.groups.items()}
    files["state.json"] = json.dumps(checkpoint.state, indent=1, default=plain).encode()
    invalid = [name for name in files if not NAME.fullmatch(name)]
    if invalid:
        raise CheckpointError(
            f"Group names {invalid} are not valid file names.", hint="use letters, digits, `_` and `-` in group names"
        )
    entries = {name: {"sha256": _sha256(data), "bytes": len(data)} for name, data in files.items()}
    manifest = {"version": VERSION, "steps": checkpoint.steps, "files": entries}
    sealed = {**manifest, "sha256": _seal(manifest)}
    return {**files, "manifest.json": json.dumps(sealed, indent=1).encode()}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _seal(manifest: dict[str, Any]) -> str:
    """Return the hash of the manifest's own content, which reveals damage to it."""
    return _sha256(json.dumps(manifest, sort_keys=True).encode())


def _pack(group: str, arrays: dict[str, np.ndarray]) -> bytes:
    """Return safetensors bytes; an unsupported dtype is stored as raw bytes, with its name in the header."""
    tensors, raw = {}, {}
    for name, array in arrays.items():
        array = np.asarray(array)
        if array.dtype.str[1:] in CARRIED and array.dtype.isnative:
            tensors[name] = np.ascontiguousarray(array).reshape(array.shape)
            continue
        if array.dtype.hasobject or array.dtype.names:
            raise CheckpointError(
                f"Array `{name}` of group `{group}` has dtype {array.dtype}, which a checkpoint cannot store.",
                hint="store it as plain numeric arrays, or as JSON in the checkpoint's state",
            )
        tensors[name] = np.frombuffer(array.tobytes(), np.uint8)
        raw[name] = [array.dtype.str, list(array.shape)]
    return safetensors.numpy.save(tensors, metadata={"raw": json.dumps(raw)} if raw else None)


def _unpack(data: bytes) -> dict[str, np.ndarray]:
    arrays = {name: np.array(array) for name, array in safetensors.numpy.load(data).items()}
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    raw = json.loads(header.get("__metadata__", {}).get("raw", "{}"))
    for name, (kind, shape) in raw.items():
        dtype = np.dtype(str(kind))
        if dtype.hasobject:
            raise ValueError(f"array `{name}` contains Python objects")
        arrays[name] = np.frombuffer(arrays[name].tobytes(), dtype).reshape(shape).copy()
    return arrays


def _put_in_place(writing: Path, target: Path) -> None:
    """Rename. An older checkpoint with the same step count is moved aside first; `_sweep` restores it after a crash."""
    aside = target.with_name(f".replaced-{target.name}-{os.getpid()}")
    replaces = target.exists()
    if replaces:
        os.rename(target, aside)
    try:
        os.rename(writing, target)
    except OSError:
        if replaces:
            os.rename(aside, target)
        raise
    sync_folder(target.parent)
    if replaces:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(run: RunDir) -> None:
    """Delete temporary folders of dead writers, and restore a checkpoint whose replacement was interrupted."""
    for path in _listing(run):
        match = SCRATCH.fullmatch(path.name)
        if not match or _has_writer(path, int(match[3])):
            continue
        kind, steps = match[1], match[2]
        if kind == "replaced" and not (target := path.with_name(steps)).exists():
            os.rename(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _has_writer(path: Path, pid: int) -> bool:
    """Return whether another live process, older than the folder, is writing it (this process has one writer)."""
    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= path.stat().st_mtime + 2.0
    except (psutil.NoSuchProcess, OSError):
        return False
    except psutil.AccessDenied:
        return True


def _listing(run: RunDir) -> list[Path]:
    try:
        return sorted(run.checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def steps_of(run: RunDir) -> list[int]:
    """Return the step counts of all checkpoints, oldest first; some may be damaged."""
    return sorted(int(path.name) for path in _listing(run) if re.fullmatch(r"\d{12,}", path.name))


def _path_of(run: RunDir, steps: int) -> Path:
    return run.checkpoints / f"{steps:012d}"


def verify(path: Path) -> None:
    """Compare every file with the manifest; raise CheckpointError for the first that differs."""
    for name, entry in _read_manifest(path)["files"].items():
        _read_checked(path, name, entry)


def load(path: Path, groups: Collection[str] | None = None) -> Checkpoint:
    """Read a checkpoint, or only some of its groups; every file that is read is compared with the manifest."""
    try:
        return _load(Path(path), groups)
    except CheckpointError as error:
        if not error.hint:
            error.hint = _other_valid(Path(path))
        raise


def _load(path: Path, groups: Collection[str] | None) -> Checkpoint:
    manifest = _read_manifest(path)
    files = manifest["files"]
    available = [name.removesuffix(".safetensors") for name in files if name.endswith(".safetensors")]
    requested = available if groups is None else list(groups)
    missing = [group for group in requested if group not in available]
    if missing:
        raise CheckpointError(f"Checkpoint {path} has no group {', '.join(missing)}; it has {', '.join(available)}.")
    try:
        state = json.loads(_read_checked(path, "state.json", files["state.json"]))
        arrays = {g: _unpack(_read_checked(path, f"{g}.safetensors", files[f"{g}.safetensors"])) for g in requested}
    except (KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be read: {error}.") from error
    return Checkpoint(manifest["steps"], arrays, state)


def _read_manifest(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_dir():
        raise CheckpointError(f"No checkpoint at {path}: it is not a folder.")
    try:
        manifest = json.loads(_read_plain_file(path / "manifest.json", MANIFEST_LIMIT))
        version = manifest["version"]
        if version != VERSION:
            raise CheckpointError(
                f"Checkpoint {path} has format version {version}; this slipstream reads version {VERSION}.",
                hint="use the slipstream that wrote it (see provenance.json in the run)",
            )
        seal = manifest.pop("sha256")
        if seal != _seal(manifest):
            raise CheckpointError(f"{path / 'manifest.json'} is damaged: expected {seal}, found {_seal(manifest)}.")
        _check_names(path, manifest["files"])
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path / 'manifest.json'} is damaged: it is not a manifest ({error!r}).") from error
    return dict(manifest)


def _check_names(path: Path, files: dict[str, Any]) -> None:
    for name, entry in files.items():
        if not NAME.fullmatch(name):
            raise CheckpointError(f"Checkpoint {path} names a file {name!r} outside its folder: refused.")
        if not isinstance(entry["sha256"], str) or not isinstance(entry["bytes"], int) or entry["bytes"] < 0:
            raise ValueError(f"entry of {name}")


def _read_checked(path: Path, name: str, entry: dict[str, Any]) -> bytes:
    """Return the bytes of one file, read once, so that the checked bytes are those that are used."""
    data = _read_plain_file(path / name, entry["bytes"])
    if len(data) != entry["bytes"]:
        raise CheckpointError(f"{path / name} is damaged: expected {entry['bytes']} bytes, found {len(data)}.")
    found = _sha256(data)
    if found != entry["sha256"]:
        raise CheckpointError(f"{path / name} is damaged: expected sha256 {entry['sha256']}, found {found}.")
    return data


def _read_plain_file(path: Path, limit: int) -> bytes:
    """Read a regular file, at most `limit` + 1 bytes of it; raise for a link or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link, which a checkpoint must not contain.")
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} is not a regular file: refused.")
            return file.read(min(limit, status.st_size) + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _is_valid(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def _other_valid(path: Path) -> str:
    """Return a hint with the newest other valid checkpoint of the same run."""
    run = RunDir(path.parent.parent)
    for steps in reversed(steps_of(run)):
        other = _path_of(run, steps)
        if other.name != path.name and _is_valid(other):
            return f"the newest other valid checkpoint is `run:{run.path}@{steps}`"
    return f"there is no other valid checkpoint; start again with `slipstream train ENV --run DIR` (see {run.config})"


def find(run: RunDir, which: str = "latest") -> Path:
    """Return the folder of the `latest` or `best` checkpoint, or of the one with that step count."""
    available = steps_of(run)
    hint = f"available: {', '.join(f'`run:{run.path}@{steps}`' for steps in available)}"
    if not available:
        hint = f"train further with `{run.resume_command}`, or give another run"
        raise CheckpointError(f"{run.path} has no checkpoint yet.", hint=hint)
    if which == "latest":
        return _path_of(run, available[-1])
    if which == "best":
        best = read_best(run)
        if best is None:
            raise CheckpointError(f"{run.path} has no best checkpoint: none has been evaluated yet.", hint=hint)
        which = str(best["steps"])
    if not (which.isascii() and which.isdigit()):
        raise CheckpointError(f"No checkpoint `{which}` in {run.path}: use latest, best or a step count.", hint=hint)
    if int(which) not in available:
        raise CheckpointError(f"{run.path} has no checkpoint at {which} steps.", hint=hint)
    return _path_of(run, int(which))


def load_latest(run: RunDir) -> tuple[Checkpoint, list[str]]:
    """Return the newest valid checkpoint, and a notice for each newer damaged one. Needs the run's lock."""
    with contextlib.suppress(OSError):
        _sweep(run)
    notices: list[str] = []
    for steps in reversed(steps_of(run)):
        try:
            checkpoint = _load(_path_of(run, steps), None)
        except CheckpointError as error:
            notices.append(f"Checkpoint {steps} was skipped: {error.message}")
            continue
        return checkpoint, notices
    if not notices:
        find(run)
    raise CheckpointError(
        f"No checkpoint of {run.path} is valid. " + " ".join(notices),
        hint="start again with `slipstream train ENV --run DIR`, in another folder",
    )


def mark_best(run: RunDir, steps: int, score: float, detail: dict[str, Any]) -> None:
    """Store which checkpoint is best by evaluation, with its score."""
    write_json(run.checkpoints / "best.json", {**detail, "steps": steps, "score": score})


def read_best(run: RunDir) -> dict[str, Any] | None:
    """Return `steps`, `score` and details of the best checkpoint; None if there is none or best.json is unreadable."""
    try:
        best = json.loads((run.checkpoints / "best.json").read_bytes())
        return {**best, "steps": int(best["steps"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_space(path: Path, need_bytes: int) -> None:
    """Raise MachineError if the disk of `path` has less than `need_bytes` free."""
    free = disk_free_bytes(path)
    if free < need_bytes:
        raise MachineError(
            f"The disk of {path} has {free / 2**20:,.0f} MiB free; {need_bytes / 2**20:,.0f} MiB are needed.",
            hint="free some space, or choose another disk with `--run DIR`",
        )


@dataclass
class _SaveRequest:
    checkpoint: Checkpoint
    best: dict[str, Any] | None
    must: bool

    def outdated_by(self, newer: _SaveRequest) -> bool:
        """A newer request replaces a periodic one, a newer best replaces a best; one with `must` is never replaced."""
        return not self.must and (self.best is None or newer.best is not None)


class Saver:
    """Writes checkpoints in a background thread; a failed write is reported as a problem and never raised.

    The caller must not change submitted arrays. One request is being written and one is pending; requests with `must`
    and the newest best are never dropped. A failed request is tried again at the next submit or wait.
    """

    def __init__(self, run: RunDir, keep: int) -> None:
        self.run = run
        self.keep = max(keep, 1)
        self.problems: list[str] = []
        self.saved_steps: int | None = None
        self._error: SlipstreamError | None = None
        self._valid: set[int] = set()  # verified once, not read again at every save
        self._waiting: list[_SaveRequest] = []
        self._busy = False
        self._stalled = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoint writer", daemon=True)
        self._thread.start()

    def submit(self, checkpoint: Checkpoint, best: dict[str, Any] | None = None, must: bool = False) -> None:
        """Write a checkpoint soon; `best` (its `score` and details) marks it as the best once it is on disk."""
        request = _SaveRequest(checkpoint, best, must)
        with self._changed:
            if self._closed:
                raise RuntimeError("the saver is closed")
            self._waiting = [old for old in self._waiting if not old.outdated_by(request)] + [request]
            self._stalled = False
            self._changed.notify_all()

    def wait(self, raise_errors: bool = False) -> None:
        """Wait until everything submitted is on disk or has failed once more."""
        with self._changed:
            self._stalled = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy and (self._stalled or not self._waiting))
            error = self._error
        if raise_errors and error is not None:
            raise error

    def close(self) -> None:
        """Write pending requests, then end the thread; failures stay in `problems`."""
        self.wait()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def drain_problems(self) -> list[str]:
        """Return the problems since the last call."""
        with self._changed:
            drained, self.problems = self.problems, []
        return drained

    def _work(self) -> None:
        while (request := self._next()) is not None:
            error = self._attempt(request)
            with self._changed:
                self._busy = False
                self._error = error
                if error is None:
                    self.saved_steps = request.checkpoint.steps
                else:
                    self.problems.append(error.message)
                    if isinstance(error, MachineError):  # any other failure would only repeat and block later requests
                        self._retry_later(request)
                self._changed.notify_all()

    def _next(self) -> _SaveRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._waiting and not self._stalled))
            if self._closed:
                return None
            self._busy = True
            return self._waiting.pop(0)

    def _retry_later(self, request: _SaveRequest) -> None:
        """Keep a failed request, unless a newer one is pending; the next submit or wait tries again."""
        if not any(request.outdated_by(newer) for newer in self._waiting):
            self._waiting.insert(0, request)
            self._stalled = True

    def _attempt(self, request: _SaveRequest) -> SlipstreamError | None:
        steps = request.checkpoint.steps
        try:
            self._write(request)
        except SlipstreamError as error:
            return type(error)(f"Checkpoint {steps} was not saved: {error.message}", error.hint)
        except OSError as error:
            return MachineError(
                f"Checkpoint {steps} was not saved: {error.strerror or error}.",
                hint=f"free some space or make {self.run.checkpoints} writable; it will be tried again",
            )
        except Exception as error:  # the thread must not end, or every later wait would hang
            return SlipstreamError(f"Checkpoint {steps} was not saved: {error!r}.", "please report this, it is a bug")
        return None

    def _write(self, request: _SaveRequest) -> None:
        checkpoint = request.checkpoint
        size = sum(array.nbytes for arrays in checkpoint.groups.values() for array in arrays.values())
        check_space(self.run.checkpoints, size + 2**20)
        verify(save(self.run, checkpoint))
        if request.best is not None:
            detail = {key: value for key, value in request.best.items() if key != "score"}
            mark_best(self.run, checkpoint.steps, request.best["score"], detail)
        self._prune(checkpoint.steps)

    def _prune(self, newest: int) -> None:
        """Keep the newest checkpoint, the newest valid ones before it, later ones that are valid, and the best.

        Damaged or unreadable ones do not count among these; they are deleted when they are older than all kept ones.
        """
        best = (read_best(self.run) or {}).get("steps")
        existing = steps_of(self.run)
        self._valid.add(newest)
        self._valid |= {s for s in existing if s not in self._valid and _is_valid(_path_of(self.run, s))}
        kept = [steps for steps in existing if steps <= newest and steps in self._valid][-self.keep :]
        for steps in existing:
            outdated = steps < min(kept, default=newest) or (steps > newest and steps not in self._valid)
            if outdated and steps != best:
                _remove(_path_of(self.run, steps))


def _remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so it is never incomplete. On Windows an open folder stays."""
    renamed = path.with_name(f".pruned-{path.name}-{os.getpid()}")
    with contextlib.suppress(OSError):
        os.rename(path, renamed)
        shutil.rmtree(renamed, ignore_errors=True)
