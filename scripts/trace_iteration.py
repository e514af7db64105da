"""List the files and lines that one training iteration of `train soccer` runs through, workers included.

    .venv/bin/python scripts/trace_iteration.py [--source src] [--collector actors] [--list]

Trains soccer for six iterations and records every Python function of the package that runs from the second to the
fourth one, in this process and in its workers (`sys.setprofile`). Workers collect ahead of the learner, so a single
iteration would not always hold a whole rollout. The profiler cannot see inside compiled functions. So every function
that a recorded function refers to and that was compiled for this run counts as well, and what that one refers to, and
so on. Numba's cache is off, because it hides which functions were compiled; so this takes some minutes. The table
shows, for each file, the lines of the functions met and the lines of the whole file. `statements` counts the statements
of those functions, which does not depend on how lines are broken.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from pathlib import Path

TRACER = textwrap.dedent(
    """
    import json, os, sys

    PLACE = os.environ.get("TRACE_FOLDER")
    if PLACE:
        PACKAGE = os.environ["TRACE_PACKAGE"]
        MARK = os.path.join(PLACE, "record")
        met = set()

        from numba.core import dispatcher

        dispatcher.Dispatcher.enable_caching = lambda self: None  # a function from the cache hides what it calls

        def add_compiled(one, seen, found):
            inner = getattr(one, "py_func", None)
            if inner is not None and inner not in seen and one.overloads:
                seen.add(inner)
                found.add((inner.__code__.co_filename, inner.__code__.co_firstlineno))
                compiled_in(inner.__code__, inner.__globals__, seen, found)

        def compiled_in(code, names, seen, found):
            for name in code.co_names:
                one = names.get(name)
                add_compiled(one, seen, found)
                if type(one).__name__ == "module" and getattr(one, "__name__", "").startswith("slipstream"):
                    for other in code.co_names:
                        add_compiled(getattr(one, other, None), seen, found)

        def profile(frame, event, argument):
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(PACKAGE) and os.path.exists(MARK):
                key = (code.co_filename, code.co_firstlineno)
                if key not in met:
                    met.add(key)
                    seen, found = set(), set()
                    compiled_in(code, frame.f_globals, seen, found)
                    met.update(found)
                    with open(os.path.join(PLACE, f"{os.getpid()}.json"), "w") as file:  # workers exit without cleanup
                        json.dump(sorted(met), file)

        sys.setprofile(profile)
    """
)
DRIVER = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path

    sys.setprofile(None)
    folder, collector = Path(os.environ["TRACE_FOLDER"]), sys.argv[1]
    import sitecustomize
    try:
        from slipstream.training import runner as driver
    except ImportError:
        from slipstream.learn import drive as driver
    plain = driver.iterate

    def iterate(*arguments, **named):
        steps = plain(*arguments, **named)
        for number in range(10_000):
            if number == 1:
                (folder / "record").touch()
            if 1 <= number <= 3:
                sys.setprofile(sitecustomize.profile)
            try:
                progress = next(steps)
            except StopIteration:
                return
            finally:
                sys.setprofile(None)
                if number == 3:
                    (folder / "record").unlink()
            yield progress

    driver.iterate = iterate
    import slipstream as ss
    ss.train("soccer", run=folder / "run", steps=6 * 8 * 16 * 2, plan__collector=collector, plan__workers=2,
             plan__envs=8, ppo__rollout=16, ppo__minibatch=64, every__evaluate=0, every__checkpoint=0, every__system=0)
    """
)


def functions_met(source: Path, collector: str) -> dict[str, set[int]]:
    """Train, and return the first lines of all recorded functions, by file relative to the package."""
    package = (source / "slipstream").resolve()
    with tempfile.TemporaryDirectory(prefix="trace-") as place:
        folder = Path(place)
        (folder / "sitecustomize.py").write_text(TRACER)
        paths = os.pathsep.join([str(folder), str(source.resolve())])
        environment = os.environ | {"PYTHONPATH": paths, "TRACE_FOLDER": place, "TRACE_PACKAGE": str(package)}
        command = [sys.executable, "-c", DRIVER, collector]
        subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=900)
        met: dict[str, set[int]] = defaultdict(set)
        for file in folder.glob("*.json"):
            for name, line in json.loads(file.read_text()):
                if name.startswith(str(package)):
                    met[Path(name).relative_to(package).as_posix()].add(line)
    return met


def lines_and_statements(file: Path, firsts: set[int]) -> tuple[int, int]:
    """Count the functions of a file that begin at some lines (a decorator counts as the beginning)."""
    lines: set[int] = set()
    statements: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            if first in firsts or node.lineno in firsts:
                lines |= set(range(first, (node.end_lineno or first) + 1))
                statements |= {id(one) for one in ast.walk(node) if isinstance(one, ast.stmt)}
    return len(lines), len(statements)


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--collector", default="actors", help="the default collector for soccer is actors")
    parser.add_argument("--list", action="store_true", help="print every file, not only the sums")
    options = parser.parse_args()
    met = functions_met(options.source, options.collector)
    rows = []
    for name, firsts in sorted(met.items()):
        file = options.source / "slipstream" / name
        whole = len(file.read_text(encoding="utf-8").splitlines())
        rows.append((name, len(firsts), *lines_and_statements(file, firsts), whole))
    if options.list:
        print("| file | functions | lines of them | statements of them | lines of the file |\n|---|---|---|---|---|")
        for row in rows:
            print("| `{}` | {} | {} | {} | {} |".format(*row))
    for title, some in (
        ("without the game", [row for row in rows if not row[0].startswith("envs/")]),
        ("with the game", rows),
    ):
        functions, lines, statements, file_lines = (sum(row[k] for row in some) for k in (1, 2, 3, 4))
        met = f"{functions} functions of {lines} lines and {statements} statements"
        print(f"{title}: {len(some)} files, {met}, in files of {file_lines} lines")


if __name__ == "__main__":
    main()
