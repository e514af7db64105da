"""The command line: one subcommand per verb."""

from slipstream.cli import convert, demos, import_export, info, performance, play, record, rewards, train
from slipstream.cli.app import main

__all__ = [
    "convert",
    "demos",
    "import_export",
    "info",
    "main",
    "performance",
    "play",
    "record",
    "rewards",
    "train",
]
