"""Prints the tree of src/slipstream with each module's first docstring line; --write puts it into the README."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "slipstream"
README = ROOT / "README.md"
START, END = "<!-- tree -->\n```text\n", "```\n<!-- /tree -->"


def summary(module: Path) -> str:
    """The first docstring line of a module, without its full stop."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def entries(folder: Path, depth: int = 1) -> list[tuple[str, str]]:
    """Name and summary of everything in a folder, files first; a folder's summary is that of its `__init__`."""
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py" or folder == PACKAGE]
    rows = [("  " * depth + path.name, summary(path)) for path in files]
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            rows.append(("  " * depth + f"{path.name}/", summary(path / "__init__.py")))
            rows += entries(path, depth + 1)
    return rows


def tree() -> str:
    """The whole tree as text."""
    rows = entries(PACKAGE)
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(["src/slipstream/", *(f"{name:<{width}}{words}".rstrip() for name, words in rows)]) + "\n"


def replaced(text: str) -> str:
    """The README with the tree of today between its markers."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        sys.exit(f"README.md has no place for the tree.\nhint: put {START!r} and {END!r} where it belongs")
    return before + start + tree() + end + after


def main() -> None:
    """Print, write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tree into README.md")
    parser.add_argument("--check", action="store_true", help="fail if the tree in README.md is another")
    wanted = parser.parse_args()
    if not (wanted.write or wanted.check):
        print(tree(), end="")
        return
    text = README.read_text(encoding="utf-8")
    if wanted.write:
        README.write_text(replaced(text), encoding="utf-8")
    elif replaced(text) != text:
        sys.exit("The tree in README.md is not that of src/slipstream.\nhint: python scripts/tree.py --write")


if __name__ == "__main__":
    main()
