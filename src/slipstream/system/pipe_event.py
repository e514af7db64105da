"""An event between two processes: one byte over a pipe wakes the process that waits. Nothing busy-waits."""

from __future__ import annotations

import contextlib
import os
import select


class PipeEvent:
    """A pipe with one end in each of two processes; POSIX only."""

    def __init__(self, read_fd: int | None = None, write_fd: int | None = None) -> None:
        """Open a new pipe, or use the descriptors of one."""
        if read_fd is None and write_fd is None:
            read_fd, write_fd = os.pipe()
        self.read_fd, self.write_fd = read_fd, write_fd
        """The descriptors; None where this process does not hold that end."""
        self.value = 0
        """The byte that was received last."""

    def notify(self, value: int = 0) -> None:
        """Wake the other process and pass it one byte. If it is dead, waiting for its answer will show that."""
        assert self.write_fd is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.write_fd, bytes([value]))

    def wait(self, timeout_s: float | None = None) -> bool | None:
        """Wait for `notify`: True when it was called, False when the other process is gone, None after the timeout."""
        assert self.read_fd is not None
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self.read_fd, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                return None
        received = os.read(self.read_fd, 1)
        self.value = received[0] if received else self.value
        return bool(received)

    def close(self, *, read: bool = False, write: bool = False) -> None:
        """Close one or both ends. Closing the end that the other process holds makes its death an end of file here."""
        if read and self.read_fd is not None:
            os.close(self.read_fd)
            self.read_fd = None
        if write and self.write_fd is not None:
            os.close(self.write_fd)
            self.write_fd = None
