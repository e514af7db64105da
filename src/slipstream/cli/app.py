"""What the verbs share: the group with its exit codes, common flags, settings, printing and a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slipstream import __version__
from slipstream.errors import SlipstreamError

F = TypeVar("F", bound=Callable[..., Any])
ORDER = (
    "run", "record", "demos", "clone", "train", "compete", "resume", "evaluate", "tournament", "watch", "replay",
    "rewards", "report", "diagnose", "tune", "bench", "envs", "check-env", "agents", "convert", "doctor",
)  # fmt: skip


class Verbs(click.Group):
    """Turns our errors into messages and exit codes; keeps the verbs in the order of the story."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the story, any others behind them."""
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; an error of ours ends with its own exit code."""
        try:
            return super().invoke(ctx)
        except SlipstreamError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.code)
        except KeyboardInterrupt:
            click.echo("stopped at once; the last checkpoint stands", err=True)
            ctx.exit(130)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Train game-playing agents: follow a demonstrator closely, then overtake it.

    ENV is `soccer`, `soccer:2v2`, `gymnasium:CartPole-v1`, ...
    AGENT is `random`, `scripted:NAME`, `run:DIR`, `run:DIR@best` or `run:DIR@STEPS`.
    """


preset_option = click.option(
    "--preset", multiple=True, metavar="NAME", help="Settings that ship with slipstream, e.g. smoke; may be repeated."
)


def shared(function: F) -> F:
    """The flags that every verb has."""
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
    words = "Import a module of yours first."
    modules = click.option("--import", "modules", multiple=True, metavar="MODULE", help=words)
    return modules(as_json(function))


def configurable(function: F) -> F:
    """The flags of a run: how long, where, and what sets settings."""
    for option in reversed(
        (
            click.option("--steps", type=int, help="Steps in all."),
            click.option("--minutes", type=float, help="Stop after this much time instead."),
            click.option("--run", "place", type=click.Path(path_type=Path), help="The run directory [runs/ENV-TIME]."),
            settable,
            click.option("--no-tuned", is_flag=True, help="Ignore the plan that `tune` found on this machine."),
        )
    ):
        function = option(function)
    return function


def settable(function: F) -> F:
    """The flags that set settings."""
    for option in reversed(
        (
            click.option("--seed", type=int, help="Everything random follows from it."),
            click.option("--opponent", metavar="AGENT", help="Who plays the other side [self-play]."),
            preset_option,
            click.option("--config", type=click.Path(path_type=Path), help="A YAML file of settings."),
            click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated."),
        )
    ):
        function = option(function)
    return function


def resolve_settings(env: str, modules: tuple[str, ...], flags: dict[str, Any]) -> Any:
    """The environment and the settings that the flags ask for."""
    from slipstream.api import configure
    from slipstream.config import flag_layer
    from slipstream.envs.registry import import_modules
    from slipstream.training.build import choose_env

    import_modules(modules)
    words = flag_layer(list(flags.pop("words", ()))).values
    preset, config, agent = flags.pop("preset", None), flags.pop("config", None), flags.pop("agent", "")
    tuned = not flags.pop("no_tuned", False)
    chosen = words | {key: value for key, value in flags.items() if value is not None}
    resolved = configure(env, preset=preset, config=config, agent=agent, flags=chosen, tuned=tuned)
    return choose_env(env, resolved.settings, modules=modules), resolved


def print_result(facts: dict[str, Any], as_json: bool, text: str) -> None:
    """Results for a person, or one JSON object for a script."""
    if as_json:
        from slipstream.runs import layout

        click.echo(json.dumps(layout.plain(facts)))
    else:
        click.echo(text)


def plain(value: Any) -> Any:
    """A value as JSON and people see it."""
    return list(value) if isinstance(value, tuple) else value


def text(value: Any) -> str:
    """A value in words."""
    return "unset" if value is None else str(plain(value))


def exit_with(facts: dict[str, Any]) -> None:
    """A run that was stopped from outside ends with the code that says so."""
    from slipstream.runs.signals import STOPPED

    if facts.get("stopped") in STOPPED:
        click.echo(f"stopped by {facts['stopped']} after saving", err=True)
        sys.exit(STOPPED[facts["stopped"]])


class Bar:
    """A progress bar on stderr, where that is a terminal."""

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
        """Move the bar."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)
