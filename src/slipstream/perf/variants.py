"""Variants of a comparison: settings, presets and commits, parsed and turned into commands."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.config import flag_layer, preset_layer, presets, resolve
from slipstream.errors import ConfigError, did_you_mean

PACKAGE = Path(__file__).parents[1]
COMMIT, PRESET = "commit:", "preset:"
KEPT_SOURCES = 4
"""Commits whose sources and compiled kernels are kept for the next comparison."""
OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Variant:
    """A variant: its text, and the settings, presets, file and commit that it names."""

    text: str
    words: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    """Later presets override earlier ones."""
    config: Path | None = None
    commit: str = ""
    """The full hash of a commit; empty: the running code."""

    @property
    def label(self) -> str:
        """The name in texts."""
        return self.text or "defaults"


def parse_variant(text: str, shared: Sequence[str] = ()) -> Variant:
    """Parse comma-separated words: KEY=VALUE, a preset, a YAML file, `commit:REV`; `shared` are settings of both.

    Settings of this code are checked here, before anything is trained; those of a commit by that commit.
    """
    variant = Variant(text)
    for word in _split(text):
        head, equals, _ = word.partition("=")
        if word.startswith(COMMIT):
            variant = _once(variant, commit=full_commit(word.removeprefix(COMMIT)))
        elif equals and "/" not in head:
            variant = replace(variant, words=(*variant.words, word))
        elif word.endswith((".yaml", ".yml")):
            variant = _once(variant, config=_existing(Path(word)))
        elif word.startswith(PRESET) or word in presets():
            variant = replace(variant, presets=(*variant.presets, word.removeprefix(PRESET)))
        else:
            raise ConfigError(
                f"`{word}` is neither KEY=VALUE, a preset, a YAML file nor a commit.{did_you_mean(word, presets())}",
                f"presets are {', '.join(presets())}; write commit:REV for a commit and NAME.json for a saved baseline",
            )
    variant = replace(variant, words=(*shared, *variant.words))
    if not variant.commit:
        resolve(*(preset_layer(name) for name in variant.presets), flag_layer(list(variant.words)))
    return variant


def _once(variant: Variant, **more: Path | str) -> Variant:
    """Set the file or the commit of a variant, once."""
    for name, value in more.items():
        if before := getattr(variant, name):
            raise ConfigError(f"`{variant.text}` names both {before} and {value}.", "keep one of them")
    return replace(variant, **more)  # type: ignore[arg-type]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"There is no config file `{path}`.", "name an existing YAML file")
    return path.resolve()


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not depth:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


def command(variant: Variant, verb: Sequence[str], modules: Sequence[str] = (), trust: bool = False) -> list[str]:
    """The command line of a verb with the settings of a variant."""
    words = [sys.executable, "-m", "slipstream.cli", *verb]
    for preset in variant.presets:
        words += ["--preset", preset]
    if variant.config:
        words += ["--config", str(variant.config)]
    for word in variant.words:
        words += ["--set", word]
    for module in modules:
        words += ["--import", module]
    return words + ["--trust"] * trust


def has_flag(variant: Variant, flag: str) -> bool:
    """Whether the command line of a variant's code has a flag, which older commits may not."""
    files = [*(_source(variant) / "slipstream").glob("cli.py"), *(_source(variant) / "slipstream" / "cli").glob("*.py")]
    return any(f'{flag}"' in file.read_text(encoding="utf-8") for file in files)


def _source(variant: Variant) -> Path:
    return sources(variant.commit) if variant.commit else PACKAGE.parent


def child_environment(variant: Variant) -> dict[str, str]:
    """The environment variables of its process, with its sources first in PYTHONPATH."""
    paths = [str(_source(variant)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def checkout() -> Path:
    """The git checkout of the running code."""
    root = PACKAGE.parents[1]
    if PACKAGE.parent.name != "src" or not (root / ".git").exists():
        raise ConfigError(
            "Comparing commits requires that slipstream runs from its git checkout.",
            "clone the repository and run it from there, or compare settings and saved baselines",
        )
    return root


def full_commit(rev: str) -> str:
    """The full hash of a commit."""
    done = subprocess.run(
        ["git", "-C", str(checkout()), "rev-parse", "--verify", "-q", f"{rev}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        raise ConfigError(f"There is no commit `{rev}` in {checkout()}.", "`git log --oneline` lists the commits")
    return done.stdout.strip()


def sources(commit: str) -> Path:
    """The sources of a commit, extracted once; their compiled kernels are cached beside them."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipstream" / "commits"
    folder = home / commit
    if not folder.is_dir():
        done = subprocess.run(
            ["git", "-C", str(checkout()), "archive", commit, "src"], capture_output=True, check=False
        )
        if done.returncode:
            raise ConfigError(f"git cannot write out commit {commit[:12]}: {done.stderr.decode().strip()}", "git fsck")
        writing = folder.with_name(f".{commit}.{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(writing, filter="data")
        try:
            writing.rename(folder)
        except OSError:  # another comparison was faster
            shutil.rmtree(writing, ignore_errors=True)
        others = sorted(folder.parent.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in others[KEPT_SOURCES:]:
            shutil.rmtree(old, ignore_errors=True)
    os.utime(folder)
    return folder / "src"
