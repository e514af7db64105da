"""The public surface: verbs, flags, JSON keys, Python names, exit codes and settings that scripts rely on.

public_surface.json lists what version 0.1.0 had. Later versions may add to it, but must not rename or remove anything.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import slipstream
from slipstream import errors
from slipstream.cli import main
from slipstream.config import KEYS
from slipstream.errors import SlipstreamError
from slipstream.runs.signals import STOPPED

ROOT = Path(__file__).parents[1]
SURFACE: dict[str, Any] = json.loads((Path(__file__).parent / "public_surface.json").read_text(encoding="utf-8"))


def command(words: str) -> tuple[click.Command, click.Context]:
    """A verb, such as `train` or `demos info`, with its context."""
    found: click.Command = main
    context = click.Context(main, info_name="slipstream")
    for word in words.split():
        assert isinstance(found, click.Group) and word in found.commands, f"`slipstream {words}` is gone"
        found = found.commands[word]
        context = click.Context(found, info_name=word, parent=context)
    return found, context


@pytest.mark.parametrize("words", SURFACE["verbs"])
def test_verbs_keep_their_flags_and_arguments(words: str) -> None:
    """Every verb takes the same arguments in the same order, and at least the same flags."""
    found, context = command(words)
    flags = {flag for one in found.params if isinstance(one, click.Option) for flag in one.opts}
    assert set(SURFACE["verbs"][words]["flags"]) <= flags
    usage = " ".join(found.collect_usage_pieces(context)).removeprefix("[OPTIONS]").strip()
    assert usage == SURFACE["verbs"][words]["arguments"]


def test_exit_codes_stay() -> None:
    """Every exit code has the same error class or signal, and the reference lists all of them."""
    classes = {
        one.code: one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, SlipstreamError)
    }
    assert {0, *classes, *STOPPED.values()} == set(SURFACE["exit_codes"])
    codes = {"ConfigError": 2, "EnvError": 3, "DemoError": 4, "CheckpointError": 5, "MachineError": 6, "GateError": 7}
    assert {name: getattr(errors, name).code for name in codes} == codes
    assert (STOPPED["Ctrl-C"], STOPPED["SIGTERM"]) == (130, 143)
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, flags=re.MULTILINE)
    assert set(SURFACE["exit_codes"]) <= {int(code) for row in rows for code in row.split(",")}


def test_python_names_stay() -> None:
    """Every public name can be imported from `slipstream`."""
    assert set(SURFACE["python_names"]) <= set(slipstream.__all__)
    for name in SURFACE["python_names"]:
        assert getattr(slipstream, name) is not None


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("train", "env run preset config terms tuned"),
        ("compete", "env run preset config terms tuned"),
        ("clone", "demos run preset config"),
        ("resume", "run steps env terms"),
        ("record", "agent env episodes out opponent expert seed sampled workers"),
        ("evaluate", "agent env opponent games seed sampled beside"),
        ("tournament", "agents env games format run seed sampled"),
        ("diagnose", "env test seconds preset config terms tuned"),
        ("tune", "env minutes free exact preset config"),
        ("bench", "a b env seconds repeats games out settings modules"),
        ("load_agent", "spec env sampled"),
        ("make_vector", "env envs workers vector seed api deadline_s"),
    ],
)
def test_python_functions_keep_their_parameters(name: str, parameters: str) -> None:
    """Every public function has at least the parameters of version 0.1.0, and the positional ones in the same order."""
    found = inspect.signature(getattr(slipstream, name)).parameters
    assert [word for word in parameters.split() if word not in found] == []
    positional = [one.name for one in found.values() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == parameters.split()[: len(positional)]


@pytest.mark.parametrize("key", SURFACE["settings"])
def test_settings_stay(key: str) -> None:
    """The settings that scripts use most keep their names."""
    assert key in KEYS


def words_of(tree: ast.Module) -> Iterator[str]:
    """Strings, annotated fields and keyword arguments: what a key of a result can come from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition("/")[2]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


@pytest.fixture(scope="module")
def words() -> set[str]:
    """All words of the source that may be keys."""
    return {word for path in (ROOT / "src").rglob("*.py") for word in words_of(ast.parse(path.read_text("utf-8")))}


@pytest.mark.parametrize("section", SURFACE["json_keys"])
def test_json_keys_stay(section: str, words: set[str]) -> None:
    """Every key of the JSON output is on the page, in its section, and in the code."""
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0].strip(): part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
    keys = SURFACE["json_keys"][section]
    assert [key for key in keys if f"`{key}`" not in parts[section]] == []
    ends = [word for word in words if word.startswith("_")]
    built = {key for key in keys for end in ends if key.endswith(end) and key.removesuffix(end) in words}
    assert [key for key in keys if key not in words and key not in built] == []
