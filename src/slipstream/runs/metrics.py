"""metrics.jsonl, mirrored to TensorBoard and to metrics sinks.

Every row has `steps`. Keys that begin with `time/` or `system/` depend on the clock. All others are equal in a resumed
and in an uninterrupted run. Writing never raises in the loop: rows that cannot be written are kept in memory.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.runs.layout import RunDir, plain, write_bytes

if TYPE_CHECKING:
    from slipstream.runs.sinks import SinkWriter

ROWS_IN_MEMORY = 100_000  # while the disk refuses them
MIRROR_QUEUE = 10_000


class Metrics:
    """Appends rows to metrics.jsonl; a row is written completely or not at all."""

    def __init__(self, run: RunDir, tensorboard: bool = True, sinks: Sequence[SinkWriter] = ()) -> None:
        self.run = run
        self.problems: list[str] = []
        self._waiting: deque[bytes] = deque(maxlen=ROWS_IN_MEMORY)
        self._fd: int | None = None
        self._good = _whole_bytes(run.metrics)  # size of the complete lines
        self._failing = False
        self._mirror = TensorBoardMirror(run.tensorboard, _last_steps(run)) if tensorboard else None
        self._sinks = sinks

    def append(self, row: dict[str, Any]) -> None:
        """Write one row and flush it; NaN and infinity become null. If that fails, the next call tries again."""
        if "steps" not in row:
            raise ValueError(f"a metrics row needs `steps`; it has {sorted(row)}")
        row = plain(row)
        self._waiting.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._flush()
        if self._mirror is not None:
            self._mirror.add(row)
        for sink in self._sinks:
            sink.log(row["steps"], {key: value for key, value in row.items() if key != "steps"})

    def close(self) -> None:
        """Try once more to write pending rows, and close the mirror and the sinks."""
        self._flush()
        self._drop_file()
        if self._mirror is not None:
            self._mirror.close()
        for sink in self._sinks:  # all end at the same time, so that the waiting is that for the slowest
            sink.end()
        for sink in self._sinks:
            sink.close()

    def drain_problems(self) -> list[str]:
        """Return the problems since the last call, and what sinks say; a persistent failure is reported once."""
        drained, self.problems = self.problems, []
        for sink in self._sinks:
            while not sink.notices.empty():
                drained.append(sink.notices.get())
        return drained

    def _flush(self) -> None:
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            self._drop_file()
            if not self._failing:
                why = error.strerror or error
                self.problems.append(
                    f"Metrics could not be written to {self.run.metrics}: {why}. They are kept in memory."
                )
            self._failing = True
        else:
            self._failing = False

    def _write(self, line: bytes) -> None:
        fd = self._open()
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(fd, rest) :]
        self._good += len(line)

    def _open(self) -> int:
        """Return the file, truncated to its complete lines; open it again if it was deleted."""
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self._drop_file()
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._fd = os.open(self.run.metrics, flags, 0o644)
            self._good = min(self._good, os.fstat(self._fd).st_size)
            os.ftruncate(self._fd, self._good)
        return self._fd

    def _drop_file(self) -> None:
        """Close the file and remove an incomplete line that a full disk may have left."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._good)
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _whole_bytes(path: Path) -> int:
    """Return the size of the complete lines of a file."""
    try:
        return path.read_bytes().rfind(b"\n") + 1
    except OSError:
        return 0


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the row, or None if the line is incomplete."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("steps"), int) else None


def _last_steps(run: RunDir) -> int | None:
    rows = read(run)
    return int(rows[-1]["steps"]) if rows else None


def read(run: RunDir) -> list[dict[str, Any]]:
    """Return all rows, oldest first, without incomplete lines; empty if there is no file."""
    try:
        data = run.metrics.read_bytes()
    except FileNotFoundError:
        return []
    return [row for line in data.split(b"\n") if (row := _parse(line)) is not None]


def rewind(run: RunDir, steps: int) -> int:
    """Move rows newer than `steps`, and incomplete ones, to metrics.discarded.jsonl; return how many.

    The moved lines are on disk before metrics.jsonl is replaced. If this is interrupted, the next call finds them at
    the end of the discarded lines and does not add them twice.
    """
    return rewind_lines(run.metrics, steps, run.discarded)


def rewind_lines(path: Path, steps: int, discarded: Path | None = None) -> int:
    """Remove lines newer than `steps`, and incomplete ones, from a file of JSON lines; return how many."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    lines = [line for line in data.split(b"\n") if line]
    rows = [_parse(line) for line in lines]
    kept = [line for line, row in zip(lines, rows, strict=True) if row is not None and row["steps"] <= steps]
    moved = [line for line, row in zip(lines, rows, strict=True) if row is None or row["steps"] > steps]
    if moved and discarded is not None:
        before = discarded.read_bytes() if discarded.exists() else b""
        added = b"".join(line + b"\n" for line in moved)
        if not before.endswith(added):
            write_bytes(discarded, before + added)
    write_bytes(path, b"".join(line + b"\n" for line in kept))
    return len(moved)


def record_events(run: RunDir, steps: int, events: Sequence[tuple[str, str]]) -> None:
    """Append events to events.jsonl; if the disk fails, events are lost, but the run continues."""
    lines = [json.dumps({"steps": steps, "kind": kind, "text": text}) + "\n" for kind, text in events]
    if lines:
        with contextlib.suppress(OSError), open(run.events, "a", encoding="utf-8") as file:
            file.write("".join(lines))


class TensorBoardMirror:
    """Copies numbers into TensorBoard event files in a thread; inactive if tensorboard is not installed.

    It writes TensorBoard's messages to a plain file. TensorBoard's own writers take a third of a second to import
    (plugins, tensorflow and cloud storage clients included) and block the caller when their queue is full; here rows
    are dropped instead.
    """

    def __init__(self, folder: Path, last_steps: int | None = None) -> None:
        self.active = importlib.util.find_spec("tensorboard") is not None
        self._folder = folder
        self._last_steps = last_steps
        self._rows: queue.Queue[tuple[float, dict[str, Any]] | None] = queue.Queue(MIRROR_QUEUE)
        self._thread: threading.Thread | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Queue one row; never blocks, never raises."""
        if not self.active:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tensorboard mirror", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait((time.time(), row))

    def close(self) -> None:
        """Write the queued rows, for at most a few seconds."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._rows.put_nowait(None)
            self._thread.join(timeout=5.0)

    def _work(self) -> None:
        try:
            self._write_events()
        except Exception:  # a failing mirror (old protobuf, full disk, deleted folder) must not stop the run
            self.active = False

    def _write_events(self) -> None:
        proto = "tensorboard.compat.proto"
        event = importlib.import_module(f"{proto}.event_pb2")
        summary = importlib.import_module(f"{proto}.summary_pb2")
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        with open(self._folder / name, "xb") as file:
            file.write(_framed(event.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()))
            if self._last_steps is not None:  # TensorBoard then discards newer events of the run before it was resumed
                start = event.SessionLog(status=event.SessionLog.START)
                first = event.Event(wall_time=time.time(), step=self._last_steps + 1, session_log=start)
                file.write(_framed(first.SerializeToString()))
            while (item := self._rows.get()) is not None:
                when, row = item
                values = [summary.Summary.Value(tag=key, simple_value=value) for key, value in _scalars(row)]
                message = event.Event(wall_time=when, step=row["steps"], summary=summary.Summary(value=values))
                file.write(_framed(message.SerializeToString()))
                if self._rows.empty():
                    file.flush()


def _scalars(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the numbers of a row except `steps`, which is the x axis."""
    return [(k, float(v)) for k, v in row.items() if k != "steps" and isinstance(v, int | float)]


def _castagnoli() -> list[int]:
    """Return the lookup table of CRC-32C (Castagnoli)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _castagnoli()


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of TensorBoard's record format, as four bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _framed(data: bytes) -> bytes:
    """Return a TensorBoard record: length and data, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)
