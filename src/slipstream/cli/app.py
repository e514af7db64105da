"""The command group, its exit codes, and what the verbs share: common options, printing, a progress bar.

Options are named like the keyword arguments of the Python function that a verb calls: `given` drops those that are not
set and passes the rest on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from slipstream import __version__
from slipstream.errors import SlipstreamError
from slipstream.system import user_modules

F = TypeVar("F", bound=Callable[..., Any])
ORDER = (
    "run",
    "record",
    "demos",
    "clone",
    "train",
    "compete",
    "resume",
    "evaluate",
    "tournament",
    "watch",
    "replay",
    "rewards",
    "report",
    "diagnose",
    "tune",
    "bench",
    "envs",
    "check-env",
    "new-game",
    "agents",
    "convert",
    "doctor",
)


class VerbGroup(click.Group):
    """A group that prints Slipstream's errors, exits with their codes, and lists the verbs in a fixed order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of a project, others after them."""
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; a Slipstream error ends the process with its exit code."""
        try:
            return super().invoke(ctx)
        except SlipstreamError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.code)
        except KeyboardInterrupt:
            click.echo("stopped without saving; the last checkpoint is kept", err=True)
            ctx.exit(130)


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Train game-playing agents, from demonstrations to self-play.

    ENV is `soccer`, `soccer:2v2`, `gymnasium:CartPole-v1`, ...
    AGENT is `random`, `scripted:NAME`, `run:DIR`, `run:DIR@best`, `run:DIR@STEPS`, `sb3:FILE.zip`, `onnx:FILE`, or your
    own: `MODULE:NAME` with `--import MODULE`.
    """


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, listed in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of stdout.")
import_option = click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    callback=lambda _, __, names: tuple(dict.fromkeys([*user_modules.read_variable(), *names])),
    help=f"Import a Python module first; may be repeated. {user_modules.VARIABLE} names modules for all commands.",
)
trust_option = click.option(
    "--trust", is_flag=True, default=None, help="Open files that can execute code, such as sb3:FILE.zip."
)
listing = _all(import_option, json_option)
"""The options of the verbs that make neither environments nor agents."""
shared = _all(
    import_option,
    trust_option,
    click.option("--python", metavar="PATH", help="Run the environment in this interpreter, as for the real MineRL."),
    click.option(
        "--reward",
        "terms",
        multiple=True,
        metavar="MODULE:NAME",
        help="Add a reward term of your own, from a module of --import; may be repeated.",
    ),
    click.option("--observation", metavar="MODULE:NAME", help="Use your own observation builder for rocket."),
    json_option,
)
"""The options of the verbs that make environments or agents."""
preset_option = click.option(
    "--preset", multiple=True, metavar="NAME", help="A preset of settings, for example smoke; may be repeated."
)
config_option = click.option("--config", type=click.Path(path_type=Path), help="A YAML file of settings.")
set_option = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set one setting; may be repeated."
)
env_set_option = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set one env setting; may be repeated."
)
seed_option = click.option("--seed", type=int, help="The random seed.")
run_option = click.option("--run", type=click.Path(path_type=Path), help="The run directory [runs/ENV-TIME].")
no_tuned_option = click.option(
    "--no-tuned", "tuned", flag_value=False, type=bool, default=True, help="Ignore the plan that `tune` saved."
)
start_option = click.option(
    "--start", metavar="AGENT", help="Start from the policy of run:DIR, with a KL penalty that keeps it close."
)
sink_option = click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="NAME",
    callback=lambda _, __, names: names or None,
    help="Also send the metrics to csv, wandb, mlflow or trackio; may be repeated.",
)
sampled_option = click.option("--sampled", is_flag=True, help="Sample actions instead of taking the most likely one.")
settable = _all(
    seed_option,
    click.option("--opponent", metavar="AGENT", help="The opponent [self-play]."),
    preset_option,
    config_option,
    set_option,
)
"""The options that change settings."""
configurable = _all(
    click.option("--steps", type=int, help="Total number of steps."),
    click.option("--minutes", type=float, help="Stop after this time instead."),
    run_option,
    settable,
    no_tuned_option,
)
"""The options of a training run."""


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set, as keyword arguments."""
    return {name: value for name, value in flags.items() if value is not None}


def notice(line: str) -> None:
    """Print a line on stderr."""
    click.echo(line, err=True)


def print_result(facts: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the text, or with --json the facts as one JSON object."""
    if as_json:
        from slipstream.runs import layout

        click.echo(json.dumps(layout.plain(facts)))
    else:
        click.echo(text)


def exit_with(facts: dict[str, Any]) -> None:
    """Exit with the code of the signal that stopped a run, if one did."""
    from slipstream.runs.signals import STOPPED

    if facts.get("stopped") in STOPPED:
        notice(f"stopped by {facts['stopped']} after saving")
        sys.exit(STOPPED[facts["stopped"]])


class Bar:
    """A progress bar on stderr if stderr is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Update the bar."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)
