"""Writes the documentation that is generated from the code and from benchmark results.

Whole pages: docs/reference/{settings,cli,api,glossary}.md. Parts between `<!-- NAME -->` and `<!-- /NAME -->` markers:
the folders and layers of docs/architecture.md.

`python docs/generate.py` writes everything, `python docs/generate.py --check` fails if something is out of date.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import slipstream as ss
from slipstream.cli import main
from slipstream.config import preset_layer, presets
from slipstream.envs.registry import BUILT_IN
from slipstream.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "slipstream"
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


def api_page() -> str:
    """The public names with their signatures and docstrings."""
    lines = [
        "# Python API",
        "",
        NOTE,
        "",
        "Everything in `import slipstream as ss`. Settings are keyword arguments with two underscores for the dot:",
        "`ss.train(env, ppo__learning_rate=1e-3)`; see [settings](settings.md). An ENV is a name such as `soccer`,",
        "or a function that returns a Gymnasium environment. An AGENT is a string such as `scripted:rule` or",
        "`run:DIR@best`.",
    ]
    for name in ss.__all__:
        if name == "__version__":
            continue
        thing = getattr(ss, name)
        lines += ["", f"## ss.{name}", "", *_signature(f"ss.{name}", thing)]
        lines += [inspect.cleandoc(thing.__doc__ or "")]
        if inspect.isclass(thing):
            lines += _methods(thing)
    return "\n".join(lines) + "\n"


def _signature(name: str, thing: Any) -> list[str]:
    if inspect.isclass(thing) and issubclass(thing, BaseException | BaseModel):
        return []
    text = f"{name}{inspect.signature(thing)}".replace("'", "")
    if len(text) > 100:
        parts = [f"    {str(one).replace(chr(39), '')}," for one in inspect.signature(thing).parameters.values()]
        returned = text.rpartition(" -> ")[2] if " -> " in text else ""
        text = "\n".join([f"{name}(", *parts, f") -> {returned}" if returned else ")"])
    return ["```text", text, "```", ""]


def _methods(thing: type) -> list[str]:
    rows = []
    for name, member in vars(thing).items():
        if name.startswith("_") or not (callable(member) or isinstance(member, property | classmethod)):
            continue
        summary = inspect.cleandoc(inspect.getdoc(getattr(thing, name)) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{name}` | {summary} |")
    return ["", "| member | |", "|---|---|", *rows] if rows and not issubclass(thing, BaseModel) else []


GLOSSARY = (
    (
        "agent",
        "Anything that acts: a trained policy or a scripted player.",
        "slipstream.contracts:Agent",
    ),
    ("assignment", "Who plays which side of which environment, and which side learns.", "slipstream.play.assignments"),
    ("checkpoint", "Everything needed to resume a run, or only to act, at one step.", "slipstream.runs.checkpoint"),
    ("collector", "The part that produces rollouts: local, actors, batched or device.", "slipstream.collect"),
    ("curriculum", "The rule that selects the tasks to train on.", "slipstream.training.curriculum"),
    (
        "decision",
        "One action of an agent; it lasts `env.action_repeat` ticks.",
        "setting:env.action_repeat",
    ),
    ("demos", "Recorded episodes in a demos folder.", "slipstream.demos.format"),
    ("design", "The description of a policy: observations, actions and network.", "slipstream.policies.design:Design"),
    ("engine", "Computes the gradient steps of an algorithm: fused, torch or device.", "slipstream.engines"),
    ("env", "An environment: one game. ENV on the command line is its name.", "slipstream.envs.registry"),
    ("export", "A policy in a format that runs without Slipstream.", ""),
    ("iteration", "One rollout and the update that learns from it.", "slipstream.training.loop"),
    ("ladder", "Ratings of all players, computed from all games.", "slipstream.league.ladder"),
    ("lag", "0: rollouts use the newest weights. 1: those before the last update.", "setting:plan.lag"),
    ("league", "Self-play against a pool of frozen copies.", "slipstream.league.league"),
    ("minibatch", "The samples of one gradient step.", "setting:ppo.minibatch"),
    ("outcome", "1 won, 0 drawn, -1 lost.", "slipstream.contracts:Rows"),
    ("plan", "The speed switches of a run, as requested and as applied.", "slipstream.plan:Plan"),
    ("policy", "The network that is trained, its value head included.", "setting:policy.hidden"),
    ("pool", "The players that a league's learner can meet.", "slipstream.league.pool"),
    ("preset", "A named set of settings.", "slipstream.config:preset_layer"),
    ("replay", "One recorded game that can be drawn and verified.", "slipstream.runs.replays"),
    ("replay buffer", "The transitions that SAC samples from.", "slipstream.algorithms.replay_buffer"),
    ("rollout", "The transitions of all rows over `ppo.rollout` steps.", "slipstream.collect.rollout:Rollout"),
    ("row", "One agent of one environment in a vector.", "slipstream.contracts:Rows"),
    ("run", "A directory with settings, metrics and checkpoints of one training.", "slipstream.runs.layout:RunDir"),
    ("scripted player", "A player that a game brings as code.", "slipstream.agents.simple:ScriptedAgent"),
    (
        "sequence",
        "Steps of a row through which gradients of a recurrent policy flow.",
        "setting:policy.sequence",
    ),
    ("side", "A team of a game of two sides.", "slipstream.contracts:sides_of"),
    ("slab", "One anonymous shared memory mapping with named arrays.", "slipstream.system.slab:Slab"),
    ("snapshot", "A frozen copy: of an environment's state, or of a policy in a league.", "slipstream.envs.snapshot"),
    ("stage", "One verb from settings to an artefact on disk.", "slipstream.stages"),
    ("step", "One agent of the learning policy acting once. All intervals count steps.", "setting:every.log"),
    ("task", "A variant of a game that an environment can play.", "slipstream.training.tasks"),
    ("tick", "One step of a game's physics.", "slipstream.envs.soccer.layout:TICK_HZ"),
    ("update", "One gradient step of the optimiser.", "slipstream.algorithms.ppo:PPO"),
    ("vector", "Many environments that step together.", "slipstream.contracts:Vector"),
    ("worker", "A process that steps environments.", "slipstream.system.worker_pool:WorkerPool"),
)
"""Term, meaning, and where it is: a module, `module:name`, or `setting:key`; a test checks that each exists."""


def glossary_page() -> str:
    """The words that the code and these pages use, with where each is."""
    lines = ["# Glossary", "", NOTE, "", "| term | meaning | in the code |", "|---|---|---|"]
    for term, meaning, place in GLOSSARY:
        where = f"`{place.removeprefix('slipstream.').replace(':', '.')}`" if place else "planned"
        if place.startswith("setting:"):
            key = place.partition(":")[2]
            where = f"[`{key}`](settings.md#{key})"
        lines.append(f"| **{term}** | {meaning} | {where} |")
    return "\n".join(lines) + "\n"


def folders_part() -> str:
    """A line for each folder and top-level module of the package, in the order of the layers."""
    rows = ["| folder | what it holds |", "|---|---|"]
    for name in (part.strip() for layer in _layers() for part in layer.split("|")):
        path = PACKAGE / name / "__init__.py"
        path, shown = (path, f"{name}/") if path.is_file() else (PACKAGE / f"{name}.py", f"{name}.py")
        summary = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        rows.append(f"| `{shown}` | {summary} |")
    return "\n".join(rows)


def _layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [layer.replace("slipstream.", "") for layer in contract["layers"]]


def layers_part() -> str:
    """The layers, top to bottom."""
    return "```text\n" + "\n".join(_layers()) + "\n```"


PAGES = {
    "reference/settings.md": settings_page,
    "reference/cli.md": cli_page,
    "reference/api.md": api_page,
    "reference/glossary.md": glossary_page,
}
PARTS = {
    ("docs/architecture.md", "folders"): folders_part,
    ("docs/architecture.md", "layers"): layers_part,
}


def _generated() -> Iterator[tuple[Path, str]]:
    """Every generated file with the text that it should have."""
    for name, make in PAGES.items():
        yield ROOT / "docs" / name, make()
    texts: dict[Path, str] = {}
    for (name, part), make in PARTS.items():
        path = ROOT / name
        text = texts.get(path) or path.read_text(encoding="utf-8")
        before, start, rest = text.partition(f"<!-- {part} -->\n")
        _, end, after = rest.partition(f"<!-- /{part} -->")
        if not (start and end):
            sys.exit(f"{name} has no markers for `{part}`.\nhint: add <!-- {part} --> and <!-- /{part} -->")
        texts[path] = f"{before}{start}{make()}\n{end}{after}"
    yield from texts.items()


def write(check: bool) -> int:
    """Write the generated files, or, with `check`, name those that are out of date."""
    stale = []
    for path, text in _generated():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"Out of date: {', '.join(stale)}.\nhint: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(write("--check" in sys.argv[1:]))
