"""The command line: one subcommand per verb; reads argv, prints results, owns exit codes."""

from slipstream.cli import (
    bench,
    clone,
    compete,
    convert,
    demos,
    record,
    replay,
    report,
    rewards,
    tournament,
    transfer,
    tune,
    verbs,
)
from slipstream.cli.shell import main

__all__ = [
    "bench",
    "clone",
    "compete",
    "convert",
    "demos",
    "main",
    "record",
    "replay",
    "report",
    "rewards",
    "tournament",
    "transfer",
    "tune",
    "verbs",
]
