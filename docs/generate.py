"""The reference pages that are made from the code: docs/reference/settings.md and docs/reference/cli.md.

`python docs/generate.py` writes them, `python docs/generate.py --check` says whether they are up to date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipstream.cli import main
from slipstream.config import preset_layer, presets
from slipstream.envs.registry import BUILT_IN
from slipstream.settings import Settings

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- made by docs/generate.py: change the code, then run it -->"
BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def settings_page() -> str:
    """Every setting: key, type, default, meaning."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "Every knob, with its default. Set one with `--set KEY=VALUE` (may be repeated), in a YAML file given to",
        "`--config`, or in Python as `ss.train(env, ppo__epochs=2)`, two underscores for the dot. Later layers win:",
        "defaults, the game's own preset, `--preset`, `--config`, flags. `slipstream train ENV --show` prints every",
        "value with where it came from; an unknown key is an error that suggests the nearest one.",
    ]
    for title, intro, rows in _sections():
        lines += ["", f"## {title}", "", intro, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += rows
    for name, game in BUILT_IN.items():
        if game.scheme is None:
            continue
        terms, weights = game.scheme().terms, game.scheme().weights
        lines += ["", f"## Reward weights of {name}", "", "What `rewards.weights` changes, by `rewards.mode`.", ""]
        lines += [f"| term | {' | '.join(weights)} |", "|---" * (1 + len(weights)) + "|"]
        lines += [f"| `{term}` | {' | '.join(str(of.get(term, 0.0)) for of in weights.values())} |" for term in terms]
    lines += ["", "## Presets", "", "What ships under the names that `--preset` takes."]
    for name in presets():
        lines += ["", f"### {name}", "", "| key | value |", "|---|---|"]
        lines += [f"| `{key}` | `{_plain(value)}` |" for key, value in preset_layer(name).values.items()]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, str, list[str]]]:
    top = []
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows = [_row(f"{name}.{key}", inner) for key, inner in kind.model_fields.items()]
            yield name, (kind.__doc__ or "").strip(), rows
        else:
            top.append(_row(name, field))
    yield "the run as a whole", "Keys without a section; most have a flag of their own.", top


def _row(key: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    shown = "unset" if default is None else f"`{_plain(default)}`"
    bounds = [f"{sign} {getattr(m, name):g}" for m in field.metadata for name, sign in BOUNDS if hasattr(m, name)]
    kind = ", ".join([_words(field.annotation), *bounds])
    meaning = " ".join((field.description or "").split())
    return f'| <a id="{key}"></a>`{key}` | {kind} | {shown} | {meaning} |'


def _words(kind: Any) -> str:
    """A type as a person would say it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in args)
    if origin in (UnionType, Union):
        return " or ".join("unset" if arg is NoneType else _words(arg) for arg in args)
    if origin is tuple:
        return f"list, each {_words(args[0])}"
    if origin is dict:
        return f"{_words(args[1])} by name"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(kind, str(kind))


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return list(value) if isinstance(value, tuple) else value


def cli_page() -> str:
    """Every command with its arguments and flags, as `--help` says it."""
    lines = [
        "# Command line",
        "",
        NOTE,
        "",
        "Results go to stdout and progress to stderr. With `--json` the last line of stdout is one JSON object",
        "([its keys](json.md)). ENV is `soccer`, `soccer:2v2`, `gymnasium:CartPole-v1`, ...; AGENT is `random`,",
        "`scripted:NAME`, `run:DIR` (the newest checkpoint), `run:DIR@best` or `run:DIR@STEPS`.",
        "`record` also takes `human`.",
        "",
        "| exit code | means |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | a bug of ours |",
        "| 2 | a setting, a flag or an agent that cannot be used |",
        "| 3 | an environment that is missing, raises, hangs or dies |",
        "| 4 | recorded data that cannot be used |",
        "| 5 | a run or checkpoint that is missing, locked or damaged |",
        "| 6 | this machine lacks something |",
        "| 7 | `bench --gate`: slower than allowed |",
        "| 130, 143 | stopped by Ctrl-C or SIGTERM, after saving |",
    ]
    for command, context in _commands(click.Context(main, info_name="slipstream")):
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["", f"## {context.command_path}", "", inspect.cleandoc(command.help or "")]
        lines += ["", "```text", f"{context.command_path} {usage}", "```", "", "| flag | meaning |", "|---|---|"]
        options = [param for param in command.params if isinstance(param, click.Option)]
        records = [option.get_help_record(context) for option in options]
        lines += [
            "| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in record)) for record in records if record
        ]
    return "\n".join(lines) + "\n"


def _commands(parent: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Every command, those of a group behind one another."""
    group = parent.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(parent):
        command = group.commands[name]
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from _commands(context)
        else:
            yield command, context


PAGES = {"settings.md": settings_page, "cli.md": cli_page}


def write(check: bool) -> int:
    """Write the pages, or, with `check`, name those that are out of date."""
    stale = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"Out of date: {', '.join(stale)}.\nhint: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(write("--check" in sys.argv[1:]))
