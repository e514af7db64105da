"""Write docs/results.md: all numbers of benchmarks/results, one section per result.

.venv/bin/python benchmarks/write_results.py
.venv/bin/python benchmarks/write_results.py --check     exit with 1 if the page is out of date
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
INTRO = """# Results

<!-- made by benchmarks/write_results.py from benchmarks/results -->

Every number that this project reports, one section per result file with its machine, commit, command and date. A file
holds the newest run of a benchmark with all its rows; older runs are in the history of the repository. Steps are
agent-steps. Intervals are 95 % intervals if not stated otherwise. `met` and `not met` are verdicts on the bar of a
benchmark. [Claims](claims.md) has the comparisons behind each speed claim, [games](guides/games.md) the speed of every
game."""


def page() -> str:
    """The page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    contents = "\n".join(f"- [{one['name']}](#{one['name']}): {_title(one)}" for one in found)
    return "\n\n".join([INTRO, contents, *(section(one) for one in found)]) + "\n"


def section(result: dict[str, Any]) -> str:
    """One result: its report below a heading with its name, and how it was measured."""
    body = re.sub(r"^#(?=#)", "##", _body(result), flags=re.MULTILINE)
    name, machine = result["name"], result["machine"]
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    commands = "\n".join(f"    {line}" for line in result["command"].splitlines())
    link = f"`benchmarks/results/{name}.json`"
    where = f"{machine['cpu']}, {machine['cores']} cores{gpu}, Python {machine['python']}"
    commit, _, state = result["commit"].splitlines()[0].partition(" ")
    state = " with local changes" if state.startswith("dirty") else ""
    about = f"{link}: {where}; commit {commit[:12]}{state}; {result['date']}; {len(result['rows'])} rows."
    return "\n\n".join([f"## {name}", f"**{_title(result)}**", body, about, commands])


def _title(result: dict[str, Any]) -> str:
    head = result["report"].splitlines()[0]
    return head.removeprefix("# ").strip() if head.startswith("# ") else result["name"]


def _body(result: dict[str, Any]) -> str:
    head, _, rest = result["report"].partition("\n")
    return (rest if head.startswith("# ") else result["report"]).strip()


def main() -> None:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit("docs/results.md is out of date. hint: python benchmarks/write_results.py")


if __name__ == "__main__":
    main()
