"""The command line: one subcommand per verb; reads argv, prints results, owns exit codes."""

from slipstream.cli import verbs
from slipstream.cli.shell import main

__all__ = ["main", "verbs"]
