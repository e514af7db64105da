"""A command in a pseudo-terminal, with the text of its screen and its JSON output."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class TerminalProcess:
    """`slipstream WORDS --json` in a pseudo-terminal of 24 x 80 characters, without a display."""

    def __init__(self, *words: str, folder: Path | None = None) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._end, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = termios.tcgetattr(self._other)
        hidden = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        command = [sys.executable, "-m", "slipstream.cli", *words, "--json"]
        self.process = subprocess.Popen(
            command, stdin=self._other, stdout=subprocess.PIPE, stderr=self._other, cwd=folder, env=environment
        )
        self.screen = ""

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._end, keys.encode())

    def read(self, seconds: float = 0.1) -> bool:
        """Read the screen for a while; return whether the process is running."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0 and select.select([self._end], [], [], left)[0]:
            self.screen += os.read(self._end, 65536).decode(errors="replace")
        return self.process.poll() is None

    def wait_for(self, text: str, new: bool = False) -> None:
        """Read the screen until it contains a text, or until the text is written again."""
        limit, start = time.monotonic() + 60, len(self.screen) if new else 0
        while text not in self.screen[start:]:
            assert time.monotonic() < limit and self.read(), self.screen[-2000:]

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the JSON output. The terminal must be restored."""
        import termios

        limit = time.monotonic() + 30
        while self.read() and time.monotonic() < limit:
            continue
        stdout, _ = self.process.communicate(timeout=10)
        assert termios.tcgetattr(self._other) == self._before, "the terminal is as it was"
        return self.process.returncode, json.loads(stdout) if stdout.strip() else {}

    def close(self) -> None:
        """Stop the process and close the terminal."""
        self.process.kill()
        self.process.communicate()
        os.close(self._end)
        os.close(self._other)
