"""A terminal as a screen: frames as coloured characters, and key presses."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.errors import MachineError

HOLD_S = 0.3
"""How long a key counts as held: terminals report key presses only, and repeat only the last key."""
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
LETTERS = {" ": "space", "w": "up", "s": "down", "a": "left", "d": "right"}


def read_keys(text: str) -> list[str]:
    """Parse the characters that a terminal sends into key names."""
    keys, at = [], 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            keys.append(ARROWS.get(text[at + 2 : at + 3], ""))
            at += 3
        else:
            keys.append(LETTERS.get(text[at].lower(), text[at].lower()))
            at += 1
    return [key for key in keys if key]


def half_blocks(frame: Array, columns: int, rows: int) -> list[str]:
    """A frame as lines of coloured half blocks; each character shows two pixels, one above the other."""
    scale = min(columns / frame.shape[1], 2 * rows / frame.shape[0])
    width, height = max(1, int(frame.shape[1] * scale)), max(2, int(frame.shape[0] * scale) // 2 * 2)
    small = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BOX))
    lines = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        line, last = "", None
        for colours in zip(upper, lower, strict=True):
            (r, g, b), (below_r, below_g, below_b) = colours
            line += "▀" if colours == last else f"\x1b[38;2;{r};{g};{b};48;2;{below_r};{below_g};{below_b}m▀"
            last = colours
        lines.append(f"{line}\x1b[0m")
    return lines


def is_terminal() -> bool:
    """Whether stdin and stderr are a terminal."""
    return sys.platform != "win32" and sys.stdin.isatty() and sys.stderr.isatty()


class Terminal:
    """Draws frames on stderr and reads keys from stdin."""

    def __init__(self) -> None:
        if not is_terminal():
            raise MachineError(
                "A terminal is needed to play.",
                "run the command in a terminal, or install pygame on a machine with a display",
            )
        import termios
        import tty

        self._fd = sys.stdin.fileno()
        self._saved = termios.tcgetattr(self._fd)
        self._pressed: dict[str, float] = {}
        self._size, self._shown = (0, 0), list[str]()
        tty.setcbreak(self._fd)
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")

    def show(self, frame: Array | None, lines: list[str]) -> None:
        """Draw a frame and lines of text; only changed lines are sent."""
        size = columns, rows = os.get_terminal_size(sys.stderr.fileno())
        if size != self._size:
            self._size, self._shown = size, []
        drawn = [] if frame is None else half_blocks(frame, max(columns, 8), max(rows - len(lines) - 1, 4))
        new = [*drawn, *lines]
        old = [*self._shown, *[None] * len(new)]
        text = "".join(f"\x1b[{k + 1};1H{line}\x1b[K" for k, line in enumerate(new) if line != old[k])
        self._write(text if len(new) == len(self._shown) else f"{text}\x1b[{len(new) + 1};1H\x1b[J")
        self._shown = new

    def presses(self, seconds: float) -> list[str]:
        """The keys pressed within the given time, or until q."""
        limit, found = time.monotonic() + seconds, list[str]()
        while "q" not in found and select.select([self._fd], [], [], max(0.0, limit - time.monotonic()))[0]:
            try:
                data = os.read(self._fd, 256).decode("latin-1") or "q"
            except OSError:  # the terminal was closed
                data = "q"
            for key in read_keys(data):
                found.append(key)
                self._pressed.pop(key, None)
                self._pressed[key] = time.monotonic()
        return found

    def wait(self, seconds: float) -> list[str]:
        """The keys that are held after the given time."""
        limit = time.monotonic() + seconds
        self.presses(seconds)
        return [key for key, pressed in self._pressed.items() if limit - pressed < HOLD_S]

    def close(self) -> None:
        """Restore the terminal."""
        import termios

        self._write("\x1b[?25h\x1b[?1049l")
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.buffer.write(text.encode())
            sys.stderr.flush()
