"""The architecture: layers, names, docstrings, safe loading, and imports on any system."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "slipstream"
MODULES = sorted(PACKAGE.rglob("*.py"))
BANNED = {
    "utils", "util", "common", "helpers", "helper", "misc", "base", "manager", "handler", "v2", "new", "old", "fast",
    "optimized", "advanced", "ultra", "final",
}  # fmt: skip
PICKLES = {"system/worker_pool.py", "system/worker_main.py"}
"""A job travels to our own child process by value, over a private pipe; nothing else may unpickle."""
TRUSTED = {"policies/sb3_model.py"}
"""Reads pickles of others, but only with `--trust`: tests/agents/test_sb3_agent.py."""


def contract() -> dict[str, Any]:
    """The import contract."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (only,) = settings["tool"]["importlinter"]["contracts"]
    return dict(only)


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_layers_hold() -> None:
    """Every import goes downwards through the layers."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_import_contract_is_complete() -> None:
    """No import is ignored, and every module belongs to a layer."""
    layers = contract()
    assert "ignore_imports" not in layers
    named = {part.strip() for layer in layers["layers"] for part in layer.split("|")}
    there = {f"slipstream.{path.stem}" for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}
    there |= {f"slipstream.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    assert named == there


def test_stages_meet_only_on_disk() -> None:
    """No stage imports another, except `run`, which is a loop over them."""
    for path in (PACKAGE / "stages").glob("*.py"):
        if path.name != "run.py":
            assert "slipstream.stages" not in path.read_text(), path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_named_and_described(path: Path) -> None:
    """No module has a name that says nothing, and the first docstring line of each says what it holds."""
    assert not BANNED & set(path.stem.strip("_").split("_")), path.name
    described = (ast.get_docstring(parsed(path)) or "").partition("\n")[0]
    assert described.endswith(".") and len(described) <= 120


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_kernels_without_references_return_no_arrays(path: Path) -> None:
    """An array that `compiled` or `inlined` returned would be freed twice, since they count no references."""
    allowed = {"None", "Number", "int", "float", "bool", "tuple"}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef):
            kinds = {ast.unparse(one) for one in node.decorator_list}
            if kinds & {"compiled", "inlined"}:
                returned = set(re.findall(r"\w+", ast.unparse(node.returns) if node.returns else "nothing"))
                assert returned <= allowed, f"{node.name} returns {returned}: use compiled_with_arrays"


COMPILES = {"envs/native/rewrite.py", "envs/native/build.py"}
"""Compile the functions of native games, which come from modules that Python has imported, never from other files."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_loads_code_from_files(path: Path) -> None:
    """No pickle, no eval, no exec, no unsafe YAML, no unsafe torch.load, anywhere that reads what others wrote."""
    name = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"pickle", "dill", "joblib", "shelve", "marshal"} or name in TRUSTED
            assert "cloudpickle" not in roots or name in {*PICKLES, *TRUSTED}
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"exec", "compile"} or name in COMPILES
            assert called not in {"eval", "yaml.load", "yaml.unsafe_load"}
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert called != "torch.load" or said.get("weights_only") == "True"
            assert called != "np.load" or said.get("allow_pickle") == "False"
            assert called != "os.system" and not any(k.arg == "shell" for k in node.keywords)


def test_no_asserts_on_what_users_do() -> None:
    """`assert` is for our own invariants: there are few, and none has a message for a user."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            assert not (isinstance(node, ast.Assert) and node.msg is not None), f"{path.name}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{path.name}: bare except"


def test_no_banners_and_nothing_left_to_do() -> None:
    """No TODO, no commented-out banners."""
    for path in MODULES:
        text = path.read_text()
        assert not re.search(r"#.*\b(TODO|FIXME|XXX|HACK)\b", text), path.name
        assert not re.search(r"#\s*[-=#*]{4,}", text), path.name


def test_every_test_says_what_it_tests() -> None:
    """One sentence of behaviour is the docstring of every test."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for function in functions(parsed(path)):
            if function.name.startswith("test_"):
                said = ast.get_docstring(function) or ""
                assert said.rstrip().endswith((".", ".)", '."')), f"{path.name}: {function.name}"


WITHOUT_EXTRAS = """
import sys, pytest
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Missing())
sys.exit(pytest.main(["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]))
"""


@pytest.mark.slow
def test_gpu_tests_collect_without_optional_packages() -> None:
    """A GPU machine that has none of the optional packages can collect the GPU tests."""
    extras = {"ale_py", "av", "envpool", "h5py", "mettagrid", "minari", "mpe2", "openskill", "pettingzoo", "RocketSim"}
    extras |= {"grimp", "importlinter", "mkdocs", "mujoco", "stable_baselines3", "sb3_contrib", "onnx", "onnxruntime"}
    command = [sys.executable, "-c", WITHOUT_EXTRAS.format(extras=extras)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


ELSEWHERE = """
import importlib, os, pkgutil, signal, sys, sysconfig, tempfile, types
import click, cloudpickle, gymnasium.wrappers, numba, numpy, psutil, pydantic, rich.live, safetensors.numpy, torch, yaml
from pydantic import BaseModel
sysconfig.get_config_vars()
for module, name in ((os, "memfd_create"), (os, "sched_getaffinity"), (os, "O_NOFOLLOW")):
    if hasattr(module, name):
        delattr(module, name)
sys.platform = sys.argv[1]
if sys.platform == "win32":
    for name in ("fcntl", "termios", "tty", "resource"):
        sys.modules[name] = None
    sys.modules["msvcrt"] = types.ModuleType("msvcrt")
    del signal.SIGKILL
import slipstream
gpu_only = {"slipstream.policies.triton_mlp"}  # imported where Triton is installed
for found in pkgutil.walk_packages(slipstream.__path__, "slipstream."):
    if found.name not in gpu_only:
        importlib.import_module(found.name)
if sys.platform == "darwin":
    from slipstream.testing import ToyEnv
    for collector in ("local", "actors"):
        run = slipstream.train(lambda: ToyEnv(), run=tempfile.mkdtemp(), preset="smoke", steps=128,
                               every__evaluate=0, plan__collector=collector, plan__workers=2)
        assert run.facts["steps"] == 128
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_everything_imports_elsewhere(platform: str, tmp_path: Path) -> None:
    """Without Linux's own calls, and on Windows without POSIX's modules, everything imports (and trains on macOS)."""
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    done = subprocess.run([sys.executable, str(script), platform], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("fine\n"), done.stderr
