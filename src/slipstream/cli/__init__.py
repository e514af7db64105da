"""The command line: one subcommand per verb; reads argv, prints results, owns exit codes."""

from slipstream.cli import (
    bench,
    check_env,
    clone,
    compete,
    convert,
    demos,
    diagnose,
    import_export,
    record,
    replay,
    report,
    rewards,
    tournament,
    train,
    tune,
)
from slipstream.cli.app import main

__all__ = [
    "bench",
    "check_env",
    "clone",
    "compete",
    "convert",
    "demos",
    "diagnose",
    "import_export",
    "main",
    "record",
    "replay",
    "report",
    "rewards",
    "tournament",
    "train",
    "tune",
]
