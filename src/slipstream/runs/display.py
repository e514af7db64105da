"""The progress display of training, on stderr.

On a terminal it is a panel that is redrawn in place, in a notebook one line that is updated; elsewhere it prints a line
every few seconds. `show` only stores the view; a thread draws the panel at most four times per second if it changed.
"""

from __future__ import annotations

import atexit
import contextlib
import html
import importlib
import math
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

if sys.platform == "win32":
    import msvcrt
else:
    import os
    import select
    import termios
    import tty

REFRESH_S = 0.25
PLAIN_EVERY_S = 5.0
NOTEBOOK_EVERY_S = 0.5
WIDTH = 80
INNER = WIDTH - 4
COLUMNS = (27, 26, 23)  # progress, time, losses; together INNER
KEYS = "pcq"
View = dict[str, Any]
T = TypeVar("T")


def human_count(value: float) -> str:
    """Three digits and a unit: 1234567 -> 1.23M."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    for unit, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)):
        if size < 999.5 * scale or unit == "T":
            break
    digits = f"{value / scale:.3g}" if size < 999.5 * scale else f"{value / scale:.0f}"
    return digits + unit


def human_time(seconds: float | None) -> str:
    """3725 -> 1:02:05; an unknown time is `-`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    if hours == 0:
        return f"{minute}:{second:02d}"
    days, hour = divmod(hours, 24)
    return (f"{days}d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"


def plain_line(view: View) -> str:
    """The view as one line, for logs and pipes."""
    parts = [
        _steps(view),
        _part(view, "steps_per_second", lambda v: f"{human_count(v)}/s"),
        _part(view, "eta_s", lambda v: f"eta {human_time(v)}"),
        _part(view, "mean_return", lambda v: f"return {_with_interval(view, 'mean_return', _number)}"),
        _part(view, "win_rate", lambda v: f"win {v:.0%}" + _versus(view)),
        _part(view, "stage", lambda v: f"stage {v:.0f}"),
        _part(view, "rating", lambda v: f"rating {_with_interval(view, 'rating', _whole)}"),
        _part(view, "kl", lambda v: f"kl {_number(v)}"),
        _part(view, "entropy", lambda v: f"entropy {_number(v)}"),
        _part(view, "explained_variance", lambda v: f"ev {_number(v)}"),
        _part(view, "checkpoint", lambda v: f"saved {human_count(v)}"),
        _part(view, "faults", lambda v: f"faults {v}" if v else ""),
        _part(view, "message", str),
    ]
    return " | ".join(part for part in parts if part)


def _part(view: View, key: str, text: Callable[[Any], str]) -> str:
    value = view.get(key)
    return "" if value is None else text(value)


def _steps(view: View) -> str:
    total = view.get("total_steps")
    return f"steps {human_count(view.get('steps') or 0)}" + (f"/{human_count(total)}" if total else "")


def _versus(view: View) -> str:
    return _part(view, "opponent", lambda v: f" vs {v}")


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _number(value: float) -> str:
    """Three significant digits at most, never wider than eight characters."""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _with_interval(view: View, key: str, text: Callable[[float], str]) -> str:
    low, high = view.get(f"{key}_low"), view.get(f"{key}_high")
    if low is None or high is None:
        return text(view[key])
    return f"{text(view[key])} [{text(low).removesuffix('%')}, {text(high).removesuffix('%')}]"


def _plus_minus(view: View, key: str, sign: str) -> str:
    """A mean with half the width of its symmetric interval."""
    low, high = view.get(f"{key}_low"), view.get(f"{key}_high")
    half = "" if low is None or high is None else f" {sign}{_number((high - low) / 2)}"
    return _number(view[key]) + half


Row = tuple[str, str]


def _progress_rows(view: View, sign: str) -> list[Row]:
    rows = [
        ("return", _part(view, "mean_return", lambda v: _plus_minus(view, "mean_return", sign))),
        ("length", _part(view, "mean_length", _number)),
        ("win rate", _part(view, "win_rate", lambda v: _with_interval(view, "win_rate", _percent))),
        ("against", _part(view, "opponent", str)),
        ("stage", _part(view, "stage", "{:.0f}".format)),
        ("rating", _part(view, "rating", lambda v: _with_interval(view, "rating", _whole))),
        ("updates", _part(view, "updates", human_count)),
        ("saved at", _part(view, "checkpoint", human_count)),
    ]
    return [row for row in rows if row[1]]


def _split_rows(view: View, bar: str) -> list[Row]:
    split: dict[str, float] = view.get("split") or {}
    return [(name, f"{share:4.0%} {bar * round(10 * min(max(share, 0.0), 1.0))}") for name, share in split.items()]


def _loss_rows(view: View) -> list[Row]:
    values: dict[str, Any] = {f"{name} loss": value for name, value in (view.get("losses") or {}).items()}
    names = ("kl", "entropy", "explained_variance", "clip_fraction", "learning_rate", "lag")
    values |= {name.replace("variance", "var").replace("_", " "): view.get(name) for name in names}
    return [(name, f"{_number(value):>8}") for name, value in values.items() if value is not None]


def _footer(view: View) -> str:
    parts = [
        _part(view, "cpu_percent", lambda v: f"cpu {v:.0f}%"),
        _part(view, "memory_mib", lambda v: f"memory {v / 1024:.1f} GiB" if v >= 1024 else f"memory {v:.0f} MiB"),
        _part(view, "faults", lambda v: f"faults {v}"),
        _part(view, "plan", str),
    ]
    return "   ".join(part for part in parts if part)


def _bar(text: Text, view: View, unicode: bool) -> None:
    """The header of the panel: steps, speed and time."""
    total = view.get("total_steps")
    share = min((view.get("steps") or 0) / total, 1.0) if total else 0.0
    head = f"{_steps(view):<24}"
    text.append(head, "bold")
    if total:
        width = INNER - len(head) - 5
        done = round(width * share)
        text.append(("━" if unicode else "#") * done, "cyan")
        text.append(("─" if unicode else "-") * (width - done), "dim")
        text.append(f"{share:5.0%}")
    text.append("\n")
    clocks = [
        _part(view, "steps_per_second", lambda v: f"{human_count(v)} steps/s"),
        _part(view, "seconds", lambda v: f"elapsed {human_time(v)}"),
        _part(view, "eta_s", lambda v: f"left {human_time(v)}"),
    ]
    text.append("   ".join(clock for clock in clocks if clock) + "\n")


def _columns(text: Text, view: View, unicode: bool) -> None:
    """Three columns of text; a rich table would be measured again at every refresh."""
    sign, block = ("±", "█") if unicode else ("+-", "#")
    columns = (_progress_rows(view, sign), _split_rows(view, block), _loss_rows(view))
    if not any(columns):
        return
    text.append("\n")
    for title, width in zip(("progress", "time", "learning"), COLUMNS, strict=True):
        text.append(f"{title:<{width}}", "bold cyan")
    for line in range(max(len(rows) for rows in columns)):
        text.append("\n")
        for rows, width, label in zip(columns, COLUMNS, (9, 10, 14), strict=True):
            name, value = rows[line] if line < len(rows) else ("", "")
            name = _cut(name, label - 1)
            text.append(f"{name:<{label}}", "dim")
            text.append(f"{_cut(value, width - label - 1):<{width - label}}")
    text.append("\n")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def panel(title: str, view: View, unicode: bool = True) -> Panel:
    """The view as a panel of 80 columns."""
    text = Text(no_wrap=True, overflow="ellipsis")
    _bar(text, view, unicode)
    _columns(text, view, unicode)
    footer = _footer(view)
    if footer:
        text.append("\n" + footer, "dim")
    if view.get("message"):
        text.append(f"\n{view['message']}", "bold yellow")
    text.rstrip()
    heading = Text("slipstream ", "bold cyan") + Text(title, "bold")
    names = " ".join(str(view[key]) for key in ("env", "run") if view.get(key) and str(view[key]) not in title)
    heading.append(f" {names}" if names else "", "dim")
    heading.truncate(WIDTH - 6, overflow="ellipsis")
    keys = Text("p pause   c checkpoint   q save and quit", "dim")
    return Panel(text, title=heading, title_align="left", subtitle=keys, subtitle_align="left", width=WIDTH)


def _safely(draw: Callable[[], T]) -> T | str:
    """The result of `draw`; an error in drawing must not end the run."""
    try:
        return draw()
    except Exception as error:
        return f"the display failed: {error!r}"


def notebook_line() -> Callable[[str], None] | None:
    """A function that shows and updates one line in the output of a Jupyter notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):
        return None
    handle = importlib.import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)

    def show(line: str) -> None:
        head, _, rest = line.partition(" | ")
        text = f"<b>{html.escape(head)}</b>" + "".join(
            f" &nbsp;·&nbsp; {html.escape(p)}" for p in rest.split(" | ") if p
        )
        style = "font-family: monospace; font-size: 90%; line-height: 1.5"
        handle.update({"text/plain": line, "text/html": f'<div style="{style}">{text}</div>'}, raw=True)

    return show


class Display:
    """A panel on a terminal, a line in a notebook, plain lines elsewhere; its errors do not end the run.

    `notebook` shows a line in place of the one before, by default in the notebook that runs this process, if any.
    """

    def __init__(
        self,
        title: str,
        *,
        stream: TextIO | None = None,
        force_plain: bool = False,
        notebook: Callable[[str], None] | None = None,
    ) -> None:
        self.title = title
        self._notebook = notebook or (None if stream is not None or force_plain else notebook_line())
        # A notebook shows stderr in red, as if something was wrong.
        self.stream = stream if stream is not None else sys.stdout if self._notebook else sys.stderr
        self._console = Console(file=self.stream, force_jupyter=False)
        self._unicode = (self._console.encoding or "").lower().startswith("utf")
        self.live = self._console.is_terminal and not self._console.is_dumb_terminal and not force_plain
        self.live = self.live and self._notebook is None
        self._view: View = {}
        self._fresh = False
        self._printed_at: float | None = None
        self._keys = _Keys()
        self._live: Live | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start drawing and reading keys if there is a terminal."""
        if not self.live or self._live is not None:
            return
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=self.stream is sys.stderr,
        )
        with contextlib.suppress(OSError, ValueError):
            self._live.start()
        self._keys.open()
        self._ended.clear()
        self._thread = threading.Thread(target=self._refresh, name="display", daemon=True)
        self._thread.start()

    def show(self, view: View) -> None:
        """Set the current view; cheap enough for every iteration."""
        self._view = view
        self._fresh = True
        now = time.monotonic()
        every = NOTEBOOK_EVERY_S if self._notebook is not None else PLAIN_EVERY_S
        if not self.live and (self._printed_at is None or now - self._printed_at >= every):
            self._printed_at = now
            self._print_view()

    def message(self, text: str) -> None:
        """Print a permanent line above the panel."""
        with contextlib.suppress(OSError, ValueError):
            if self._live is not None:
                self._console.print(Text(text))
            else:
                print(text, file=self.stream, flush=True)

    def poll_key(self) -> str | None:
        """The key `p`, `c` or `q` if it was pressed since the last call; does not block."""
        return self._keys.poll()

    def stop(self) -> None:
        """Draw the last view and restore the terminal."""
        live, self._live = self._live, None
        try:
            if self._thread is not None:
                self._ended.set()
                self._thread.join(timeout=2.0)
                self._thread = None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()
            elif not self.live and self._fresh:
                self._print_view()
        finally:
            self._keys.close()

    def __enter__(self) -> Display:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _render(self) -> Panel | str:
        return _safely(lambda: panel(self.title, self._view, self._unicode))

    def _print_view(self) -> None:
        self._fresh = False
        line = _safely(lambda: plain_line(self._view))
        if self._notebook is not None:
            with contextlib.suppress(Exception):  # the notebook was closed
                self._notebook(line)
            return
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self.stream, flush=True)

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_S):
            live = self._live
            if live is None or not self._fresh:
                continue
            self._fresh = False
            try:
                live.refresh()
            except (OSError, ValueError):  # the terminal was closed
                return


class _Keys:
    """Reads single key presses while this process is in the foreground; restores the terminal at exit."""

    def __init__(self) -> None:
        self._fd = -1
        self._pid = -1
        self._saved: list[Any] | None = None
        self._open = False

    if sys.platform == "win32":

        def open(self) -> None:
            self._open = sys.stdin is not None and sys.stdin.isatty()

        def close(self) -> None:
            self._open = False

        def poll(self) -> str | None:
            if not self._open or not msvcrt.kbhit():
                return None
            key = msvcrt.getwch().lower()
            return key if key in KEYS else None

    else:

        def open(self) -> None:
            """Read keys unbuffered and without echo. A background job is skipped, because it would be stopped."""
            with contextlib.suppress(OSError, ValueError, AttributeError, termios.error):
                if not sys.stdin.isatty():
                    return
                self._fd = sys.stdin.fileno()
                if not self._in_foreground():
                    return
                self._saved = termios.tcgetattr(self._fd)
                self._pid = os.getpid()
                atexit.register(self.close)
                tty.setcbreak(self._fd)
                self._open = True

        def close(self) -> None:
            saved, self._saved, self._open = self._saved, None, False
            if saved is None or os.getpid() != self._pid:  # a forked worker must not restore it
                return
            atexit.unregister(self.close)
            with contextlib.suppress(OSError, termios.error):
                if self._in_foreground():
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, saved)

        def poll(self) -> str | None:
            if not self._open:
                return None
            with contextlib.suppress(OSError, ValueError):
                while self._in_foreground() and select.select([self._fd], [], [], 0)[0]:
                    pressed = os.read(self._fd, 1)
                    if not pressed:  # the terminal was closed
                        self._open = False
                        return None
                    key = pressed.decode("latin-1").lower()
                    if key in KEYS:
                        return key
            return None

        def _in_foreground(self) -> bool:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
