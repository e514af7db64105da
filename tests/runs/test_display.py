"""The progress display of training."""

from __future__ import annotations

import io
import math
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slipstream.runs import display as module
from slipstream.runs.display import Display, human_count, human_time, panel, plain_line

VIEW: dict[str, Any] = {
    "env": "soccer",
    "run": "runs/soccer-20260101-120000",
    "steps": 1_234_567,
    "total_steps": 10_000_000,
    "seconds": 312.0,
    "eta_s": 40.0,
    "steps_per_second": 240_123.0,
    "updates": 1204,
    "split": {"env": 0.41, "inference": 0.22, "learn": 0.31, "other": 0.06},
    "losses": {"policy": -0.0123, "value": 0.312},
    "kl": 0.00412,
    "entropy": 1.023,
    "explained_variance": 0.81,
    "clip_fraction": 0.11,
    "learning_rate": 3e-4,
    "lag": 1,
    "mean_return": 3.21,
    "mean_return_low": 2.91,
    "mean_return_high": 3.52,
    "mean_length": 312.4,
    "win_rate": 0.62,
    "win_rate_low": 0.58,
    "win_rate_high": 0.66,
    "opponent": "scripted:rule",
    "cpu_percent": 187.3,
    "memory_mib": 812.0,
    "checkpoint": 1_200_000,
    "faults": 0,
    "plan": "actors x2, 64 envs, lag 1",
}


COUNTS = {0: "0", 0.5: "0.5", 999: "999", 1000: "1k", 240_123.4: "240k", 999_999: "1M", 1_234_567: "1.23M"}
COUNTS |= {10_000_000: "10M", 2**31: "2.15B", 3.2e15: "3200T", -1500: "-1.5k", math.nan: "-", math.inf: "-"}
TIMES = {3725: "1:02:05", 40: "0:40", 0: "0:00", 59.6: "1:00", 90061: "1d 1:01:01", -5: "0:00"}
TIMES |= {None: "-", math.inf: "-", math.nan: "-"}


@pytest.mark.parametrize(("value", "text"), COUNTS.items())
def test_human_count(value: float, text: str) -> None:
    """Counts have three digits and a unit."""
    assert human_count(value) == text


@pytest.mark.parametrize(("seconds", "text"), TIMES.items())
def test_human_time(seconds: float | None, text: str) -> None:
    """Times have the format of a clock; unknown times are a dash and negative times zero."""
    assert human_time(seconds) == text


def test_plain_line() -> None:
    """A pipe gets one line with the main values."""
    assert plain_line(VIEW) == (
        "steps 1.23M/10M | 240k/s | eta 0:40 | return 3.21 [2.91, 3.52] | win 62% vs scripted:rule"
        " | kl 0.00412 | entropy 1.02 | ev 0.81 | saved 1.2M"
    )
    assert plain_line({}) == "steps 0"
    assert plain_line({"steps": 5, "total_steps": None, "win_rate": 0.5, "faults": 2, "mean_return": None}) == (
        "steps 5 | win 50% | faults 2"
    )


def test_plain_rows_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal the first and the last line and one every five seconds are printed, and all messages."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with Display("train soccer", stream=stream) as display:
        for second in range(12):
            clock[0] = 100.0 + second
            display.show({"steps": second})
        display.message("Checkpoint 3 was not saved.")
        assert display.poll_key() is None
    assert stream.getvalue().splitlines() == [
        "steps 0",
        "steps 5",
        "steps 10",
        "Checkpoint 3 was not saved.",
        "steps 11",
    ]


def test_closed_stream_does_not_matter() -> None:
    """A closed stream does not end the run."""
    stream = io.StringIO()
    display = Display("train", stream=stream)
    stream.close()
    display.show({"steps": 1})
    display.message("x")
    display.stop()


def test_wrong_view_does_not_matter() -> None:
    """An error in drawing is shown and not raised."""
    stream = io.StringIO()
    with Display("train", stream=stream) as display:
        display.show({"steps": "many"})
        assert "the display failed" in str(display._render())
    assert stream.getvalue().startswith("the display failed: ")


def rendered(view: dict[str, Any], width: int = 80, unicode: bool = True) -> list[str]:
    """The panel as lines of text."""
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
    console.print(panel("train soccer", view, unicode))
    return console.export_text().splitlines()


def test_panel_fits_and_tells() -> None:
    """The panel is 80 columns wide and shows every value, readable without colour."""
    lines = rendered({**VIEW, "message": "paused"})
    assert {len(line) for line in lines} == {80} and len(lines) <= 20
    text = "\n".join(lines)
    for part in ("slipstream train soccer runs/soccer-20260101-120000", "steps 1.23M/10M", "12%", "240k steps/s"):
        assert part in text
    for part in ("left 0:40", "return   3.21 ±0.305", "win rate 62% [58, 66]", "scripted:rule", "inference  22%"):
        assert part in text
    for part in ("kl             0.00412", "explained var     0.81", "learning rate   0.0003", "cpu 187%", "paused"):
        assert part in text
    assert "p pause   c checkpoint   q save and quit" in lines[-1]


@pytest.mark.parametrize("key", sorted(VIEW))
def test_any_value_may_be_missing(key: str) -> None:
    """Every value may be missing or None, in the panel and in the line."""
    for view in ({k: v for k, v in VIEW.items() if k != key}, {**VIEW, key: None}):
        assert {len(line) for line in rendered(view)} == {80}
        assert plain_line(view)


def test_odd_values_do_not_break_the_panel() -> None:
    """Long names, NaN, huge numbers and a narrow terminal do not break the frame."""
    odd = {**VIEW, "opponent": "run:" + "x" * 90, "kl": float("nan"), "losses": {"v" * 40: 1e30}, "mean_return": -1e9}
    odd |= {"run": "r" * 200, "steps": 2**40, "total_steps": 10, "eta_s": float("inf"), "message": "m" * 300}
    for width in (80, 60, 200):
        assert {len(line) for line in rendered(odd, width)} == {min(width, 80)}
    assert "".join(rendered(VIEW, unicode=False)[1:-1]).replace("│", "").isascii()


def test_show_is_cheap() -> None:
    """`show` only stores a reference."""
    display = Display("train", stream=io.StringIO())
    display.show(VIEW)
    began = time.perf_counter()
    for _ in range(1000):
        display.show(VIEW)
    assert (time.perf_counter() - began) / 1000 < 50e-6


LIVE = """
import sys, termios, time
from slipstream.runs.display import Display
before = termios.tcgetattr(0)
keys = []
try:
    with Display("train soccer") as display:
        display.message("a notice that stays")
        steps = 0
        end = time.monotonic() + 10
        while "q" not in keys and time.monotonic() < end:
            steps += 1000
            display.show({"steps": steps, "total_steps": 1_000_000, "kl": 0.004, "message": "".join(keys)})
            key = display.poll_key()
            if key:
                keys.append(key)
            time.sleep(0.01)
        if sys.argv[1] == "raise":
            raise RuntimeError("boom")
finally:
    print("KEYS", "".join(keys), "RESTORED", termios.tcgetattr(0) == before, flush=True)
"""


def in_terminal(script: str, arg: str, keys: bytes) -> tuple[str, int]:
    """Run a script in a pseudo-terminal, type the keys, and return its output and exit status."""
    import pty

    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="40")
        os.execv(sys.executable, [sys.executable, "-c", script, arg])
    drawn, end = b"", time.monotonic() + 15
    typed = False
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            drawn += data
        if not typed and b"save and quit" in drawn:
            typed = True
            for key in keys:
                os.write(fd, bytes([key]))
                time.sleep(0.35)
    else:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(fd)
    return drawn.decode(), status


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("how", "status"), [("normal", 0), ("raise", 1)])
def test_live_in_a_terminal(how: str, status: int) -> None:
    """In a terminal the panel is drawn, keys are not echoed, and the terminal is restored, even after an error."""
    drawn, code = in_terminal(LIVE, how, b"xpcq")
    assert code == status, drawn
    assert "KEYS pcq RESTORED True" in drawn
    assert "slipstream" in drawn and "a notice that stays" in drawn and "kl" in drawn
    assert "\x1b[?25h" in drawn  # the cursor is shown again


FORGOTTEN = """
import os, sys, termios, time
from slipstream.runs.display import Display
if os.fork() == 0:  # the child has the terminal and ends without stopping its display
    display = Display("train")
    display.start()
    display.show({"steps": 1})
    time.sleep(0.5)
    sys.exit(0)
before = termios.tcgetattr(0)
os.wait()
print("RESTORED", termios.tcgetattr(0) == before, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_forgotten_display_restores_the_terminal() -> None:
    """A process that exits without stopping the display restores the terminal."""
    drawn, code = in_terminal(FORGOTTEN, "", b"")
    assert code == 0 and "RESTORED True" in drawn, drawn


def test_dumb_terminal_is_plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal that cannot move its cursor gets plain lines, and so does `force_plain`."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert not Display("train", stream=Terminal()).live
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Display("train", stream=Terminal()).live
    assert not Display("train", stream=Terminal(), force_plain=True).live
