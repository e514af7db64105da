"""The command line: one subcommand per verb; reads argv, prints results, owns exit codes."""

from slipstream.cli import clone, convert, demos, record, tournament, transfer, verbs
from slipstream.cli.shell import main

__all__ = ["clone", "convert", "demos", "main", "record", "tournament", "transfer", "verbs"]
