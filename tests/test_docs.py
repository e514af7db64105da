"""The documentation is correct: blocks and examples run, links and keys exist, generated pages are up to date."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from command_server import CommandServer
from slipstream.api import Run, train
from slipstream.cli import main
from slipstream.config import KEYS, OPEN_KEYS
from slipstream.other_names import RENAMED

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CURRENT = [page for page in PAGES if page.name not in ("results.md", "claims.md", "log.md", "CHANGELOG.md")]
"""Pages without the settings of earlier versions."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNNABLE, SKIPPED = ("sh", "python"), ("text", "console-output", "yaml")
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SECTIONS = sorted({key.partition(".")[0] for key in KEYS if "." in key})
KEY = re.compile(rf"\b((?:{'|'.join(SECTIONS)})(?:\.|__)[a-z_]+)\b(?!\.|\()")
TIMEOUT_S = 300
MISSPELT = {"ppo.learnig_rate"}
SUFFIXES = ("md", "py", "json", "yaml", "safetensors", "png")
"""File extensions, which distinguish a file name from a setting."""


def names(paths: list[Path]) -> list[str]:
    """Paths as test names."""
    return [path.relative_to(ROOT).as_posix() for path in paths]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


TELLING = [page for page in PAGES if any(language in RUNNABLE for language, _ in blocks(page))]


def script(page: Path) -> str:
    """The runnable blocks of a page as one shell script."""
    lines = ["set -euo pipefail"]
    for language, text in blocks(page):
        if language == "python":
            lines.append(f"python - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK")
        elif language == "sh":
            lines.append(text)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `slipstream` and `python` that need not import the package for each command."""
    server = CommandServer(tmp_path_factory.mktemp("server"))
    yield server.folder
    server.close()


def run(command: list[str], folder: Path, *programs: Path) -> None:
    """Run a command with our own interpreter first on the path; show its output if it fails."""
    path = os.pathsep.join([*map(str, programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command, cwd=folder, env=dict(os.environ, PATH=path), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", TELLING, ids=names(TELLING))
def test_blocks_run(page: Path, tmp_path: Path, programs: Path) -> None:
    """The shell and Python blocks of a page run from top to bottom in an empty folder."""
    run(["bash", "-c", script(page)], tmp_path, programs)


@pytest.mark.parametrize("example", EXAMPLES, ids=names(EXAMPLES))
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """Every example runs, and leaves nothing behind."""
    run([sys.executable, str(example)], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_fences_are_known(page: Path) -> None:
    """Every block names its language, so that none is skipped by accident."""
    unknown = {language for language, _ in blocks(page)} - {*RUNNABLE, *SKIPPED}
    assert not unknown, f"mark these as one of {RUNNABLE} or {SKIPPED}: {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_resolve(page: Path) -> None:
    """Every local link names a file that exists."""
    local = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in local if not (page.parent / target.partition("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("page", CURRENT, ids=names(CURRENT))
def test_settings_exist(page: Path) -> None:
    """Every setting that a page mentions is one."""
    text = LINK.sub("", page.read_text(encoding="utf-8"))
    mentioned = {key.replace("__", ".") for key in KEY.findall(text)} - MISSPELT
    if page.name == "CHANGELOG.md":
        mentioned -= set(RENAMED)
    unknown = {key for key in mentioned if key not in (*KEYS, *OPEN_KEYS)}
    assert {key for key in unknown if key.partition(".")[2] not in SUFFIXES} == set()


def test_every_page_is_reachable() -> None:
    """Every page is linked from the index of the documentation."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [page.name for page in PAGES if page.is_relative_to(index.parent) and page not in {*linked, index}] == []


def test_generated_pages_are_up_to_date() -> None:
    """Generated pages and tables equal what the generator writes now."""
    run([sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], ROOT)


def test_glossary_names_things_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place that the glossary names is a module, a name in one, or a setting."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for _, _, place in generate.GLOSSARY:
        module, _, name = place.partition(":")
        if module == "setting":
            assert name in KEYS, place
        elif module:
            assert not name or hasattr(importlib.import_module(module), name), place
            importlib.import_module(module)


def test_site_builds(tmp_path: Path) -> None:
    """The documentation builds into a static site, with no dead link or anchor."""
    run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")], ROOT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A smoke run against an opponent, which writes every key that there is."""
    place = tmp_path_factory.mktemp("docs") / "run"
    return train("soccer", preset="smoke", run=place, opponent="scripted:chaser")


def test_metrics_are_listed(finished: Run) -> None:
    """The keys of metrics.jsonl and those on the page are the same."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    cells = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    listed = set(re.findall(r"`([a-z_]+(?:/[a-z_*]+){0,2})`", cells))
    families = {key.removesuffix("*") for key in listed if key.endswith("*")}
    written = {key for row in finished.metrics() for key in row}
    assert {key for key in written if not key.startswith(tuple(families))} == listed - {f"{x}*" for x in families}


def json_of(*words: str) -> dict[str, Any]:
    """What a command prints with --json."""
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def test_json_keys_are_listed(finished: Run, tmp_path: Path) -> None:
    """Every key that a command prints with --json is on the page."""
    listed = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")))
    assert set(finished.facts) <= listed
    place, demos, part, rest, table = str(finished.path), *(str(tmp_path / name) for name in ("d", "a", "b", "t.npz"))
    for words in (
        ("envs",),
        ("agents", "soccer"),
        ("check-env", "gymnasium:CartPole-v1"),
        ("train", "soccer", "--show"),
        ("train", "soccer", "--preset", "smoke", "--dry-run"),
        ("evaluate", f"run:{place}", "--env", "soccer", "--opponent", "random", "--games", "2"),
        ("run", "soccer", "--preset", "smoke", "--skip", "train", "--run", place),
        ("record", "scripted:oracle", "--env", "pixels", "--episodes", "8", "--out", demos, "--workers", "1"),
        ("demos", "info", demos),
        ("demos", "check", demos),
        ("demos", "view", demos, "--out", str(tmp_path / "view.png")),
        ("demos", "split", demos, "--out", part, rest),
        ("demos", "merge", part, rest, "--out", str(tmp_path / "m")),
        ("demos", "export", "npz", demos, "--out", table),
        ("demos", "import", "npz", table, "--out", str(tmp_path / "i")),
        ("clone", demos, "--epochs", "1", "--batch", "16", "--run", str(tmp_path / "clone")),
    ):
        assert set(json_of(*words)) <= listed, words


def said() -> Iterator[str]:
    """Every string constant in the code, including the parts of f-strings."""
    yield (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_are_real() -> None:
    """The messages that the troubleshooting page quotes are in the code, word for word."""
    text = (ROOT / "docs" / "guides" / "when-it-breaks.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    corpus = "\n".join(said())
    pieces = [
        piece.strip(" `.,:()")
        for cell in cells
        for quote in re.findall(r"`([^`]+)`", cell)
        for piece in re.split(r"\S*\d\S*|NaN|\bDict\b|SIGTERM|--import.*", quote)
    ]
    assert len(cells) > 20
    assert [piece for piece in pieces if " " in piece and piece not in corpus] == []


def test_measured_numbers_are_in_a_result() -> None:
    """Every rate and ratio of the README's table of results is in a report of benchmarks/results."""
    section = re.search(r"<!-- results -->(.*)<!-- /results -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert section is not None
    reports = "\n".join(json.loads(path.read_text())["report"] for path in ROOT.glob("benchmarks/results/*.json"))
    claims = re.findall(r"(?<![\w.-])\d+(?:,\d{3})+|\d+\.\d+(?=x)", section.group(1))
    assert len(claims) > 15
    assert [claim for claim in claims if claim not in reports] == []
