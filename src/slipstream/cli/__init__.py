"""The command line: one subcommand per verb; reads argv, prints results, owns exit codes."""

from slipstream.cli import (
    bench,
    check,
    clone,
    compete,
    convert,
    demos,
    diagnose,
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
    "check",
    "clone",
    "compete",
    "convert",
    "demos",
    "diagnose",
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
