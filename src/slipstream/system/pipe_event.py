"""A bell between two processes: one byte over a pipe wakes the one who waits; nobody spins."""

from __future__ import annotations

import contextlib
import os
import select


class PipeEvent:
    """A pipe with one end in each of two processes; POSIX only."""

    def __init__(self, ear: int | None = None, cord: int | None = None) -> None:
        if ear is None and cord is None:
            ear, cord = os.pipe()
        self.ear, self.cord = ear, cord
        """The descriptors to read from and to write to; None where this process does not hold that end."""
        self.word = 0
        """What the last ring that was heard said."""

    def ring(self, word: int = 0) -> None:
        """Wake the other side with a word (one byte); a dead one is noticed by whoever waits for its answer."""
        assert self.cord is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.cord, bytes([word]))

    def wait(self, timeout_s: float | None = None) -> bool | None:
        """True when rung, False when the other side is gone, None when the time is over."""
        assert self.ear is not None
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self.ear, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                return None
        heard = os.read(self.ear, 1)
        self.word = heard[0] if heard else self.word
        return bool(heard)

    def drop(self, *, ear: bool = False, cord: bool = False) -> None:
        """Close the end that the other process holds too, so that its death is an end of file here."""
        if ear and self.ear is not None:
            os.close(self.ear)
            self.ear = None
        if cord and self.cord is not None:
            os.close(self.cord)
            self.cord = None
