"""The code uses the words of its field: no identifier of the package contains a word from the old private dialect."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "slipstream"
INSTEAD = {
    "slope": "gradient",
    "slopes": "gradients",
    "knob": "coefficient or setting",
    "knobs": "coefficients or settings",
    "tell": "describe, report or log",
    "tells": "describes",
    "told": "result, output or facts",
    "telling": "reporting",
    "untold": "missing",
    "hear": "parse",
    "mend": "repair or fall_back",
    "mends": "repairs",
    "mended": "repaired",
    "wish": "request",
    "wishes": "requests",
    "heeded": "handled",
    "seat": "assignment",
    "seats": "assignments",
    "scribe": "recorder",
    "tape": "recording",
    "tapes": "recordings",
    "fixture": "scheduled game",
    "fixtures": "scheduled games",
    "lesson": "batch",
    "lessons": "batches",
    "mentor": "teacher",
    "pupil": "student",
    "heat": "timed run",
    "heats": "timed runs",
    "prey": "target",
    "hire": "make",
    "beginnings": "episode starts",
}
"""Words that are not used in identifiers, and what to say instead."""


ALLOWED = {
    "demos/importers/npz_stream.py": {"tell"},  # the position in a file
    "envs/kart/starts.py": {"slope"},  # of a line
    "perf/diagnose_report.py": {"told"},  # a key of `diagnose --json`
    "perf/rules.py": {"told"},
}


def words(name: str) -> set[str]:
    """The words of an identifier: `told_rows` and `ToldRows` both have two."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(spaced.lower().split("_"))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_identifiers_use_standard_words(path: Path) -> None:
    """No identifier contains a word that has a standard equivalent."""
    found, allowed = {}, ALLOWED.get(path.relative_to(PACKAGE).as_posix(), set())
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME and (odd := words(token.string) & INSTEAD.keys() - allowed):
            found[token.string] = ", ".join(INSTEAD[word] for word in odd)
    assert not found, f"rename (identifier: standard word): {found}"
