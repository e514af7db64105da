"""The cache of compiled code: a change in any compiled source starts a new one, and old ones are deleted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba
import pytest

from slipstream.envs.kart import game as kart
from slipstream.envs.native import Game
from slipstream.envs.soccer import game as soccer
from slipstream.system import numba_compile as module
from slipstream.system.numba_compile import cache_folder, compiled


def test_any_compiled_source_changes_the_folder(tmp_path: Path) -> None:
    """A change in any compiled file changes the folder; files that are not compiled do not matter."""
    (tmp_path / "kernel.py").write_text("import numba\n")
    (tmp_path / "plain.py").write_text("x = 1\n")
    first = cache_folder(tmp_path)
    assert cache_folder(tmp_path) == first
    (tmp_path / "plain.py").write_text("x = 2\n")
    assert cache_folder(tmp_path) == first
    (tmp_path / "kernel.py").write_text("import numba  # changed\n")
    assert cache_folder(tmp_path) != first


def test_a_constant_that_is_compiled_in_changes_the_folder(tmp_path: Path) -> None:
    """Numba compiles constants in, so a change in a file with an imported constant changes the folder."""
    package = tmp_path / "slipstream"
    (package / "game").mkdir(parents=True)
    (package / "kernel.py").write_text(
        "import numba\nfrom slipstream.game.layout import (\n    helper,\n    SIZE,\n)\n"
        "from slipstream.words import say\n"
    )
    (package / "game" / "layout.py").write_text("from slipstream.game import other\nSIZE = 1 + other.X\n")
    (package / "game" / "other.py").write_text("X = 1\n")
    (package / "words.py").write_text("def say(): ...\n")
    folders = [cache_folder(package)]
    for source, text in (("game/layout.py", "SIZE = 2 + other.X"), ("game/other.py", "X = 2")):
        (package / source).write_text((package / source).read_text() + text)
        folders.append(cache_folder(package))
    assert len(set(folders)) == 3
    (package / "words.py").write_text("def say(): return 'a function that is not compiled'\n")
    assert cache_folder(package) == folders[-1]


def test_every_constant_of_a_compiled_module_is_watched() -> None:
    """In the package, every module with constants that a compiled module imports is part of the hash."""
    package = Path(module.__file__).parents[1]
    watched = {source.relative_to(package).as_posix() for source in module._compiled_sources(package)}
    assert {
        "envs/metta/worlds.py",
        "envs/native/controls.py",
        "policies/parameter_layout.py",
        "algorithms/engine.py",
    } <= watched
    assert not {"settings.py", "config.py"} & watched


@pytest.mark.parametrize(
    ("game", "constant"),
    [
        (soccer.game, "soccer.physics.BURN"),
        (soccer.game, "soccer.columns.LENGTH"),
        (kart.game, "kart.physics.GRIP"),
        (kart.game, "kart.columns.TOP_SPEED"),
    ],
)
def test_every_constant_of_a_native_game_is_watched(game: Game, constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops of a native game are cached under a hash of its functions and of the constants that these read."""

    def digest() -> str:
        monkeypatch.setattr(game, "_built", {})
        return game.kernels(compiled=False).digest

    first = digest()
    assert digest() == first
    name = constant.rpartition(".")[2]
    for source, loaded in list(sys.modules.items()):  # a function reads its own module's copy
        if source.startswith("slipstream.envs.") and hasattr(loaded, name):
            monkeypatch.setattr(loaded, name, 2 * getattr(loaded, name))
    assert digest() != first


def test_numba_cache_dir_has_a_folder_per_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NUMBA_CACHE_DIR a changed source starts a new cache as well, in a subfolder of it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    (tmp_path / "kernel.py").write_text("import numba\n")
    first = cache_folder(tmp_path)
    (tmp_path / "kernel.py").write_text("import numba  # changed\n")
    assert cache_folder(tmp_path) != first and first.parent == tmp_path / "mine" / "slipstream"
    code = "from slipstream.system import numba_compile as n; import numba; print(n.COLD, numba.config.CACHE_DIR)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cold, folder = done.stdout.split()
    assert cold == "True" and Path(folder).parent == tmp_path / "mine" / "slipstream"


def test_old_folders_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest cache folders stay; other folders are not touched."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    (tmp_path / "other").mkdir()
    for number in range(4):
        module._use_cache(tmp_path / f"numba-{number}")
    assert len(list(tmp_path.glob("numba-*"))) == 2
    assert (tmp_path / "numba-3").is_dir() and (tmp_path / "other").is_dir()


def test_strict_arithmetic_equals_python() -> None:
    """Compiled scalars divide by zero like NumPy and keep the order of additions."""

    def total(x: float, y: float) -> float:
        return (x + y) - x

    assert compiled(total)(1e16, 1.0) == total(1e16, 1.0)

    def ratio(x: float, y: float) -> float:
        return x / y

    assert compiled(ratio)(1.0, 0.0) == float("inf")


def test_long_compiling_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that compiles for long prints one notice per run, and none if everything is compiled."""
    monkeypatch.setattr(module, "NOTICE_AFTER_S", 1e-9)
    notices: list[str] = []
    module.announce(notices.append)
    more = [numba.njit(lambda x, k=k: x + k) for k in range(3)]
    assert [add(1) for add in more] == [1, 2, 3] and notices == [module.NOTICE]
    module.announce(notices.append)
    assert [add(1) for add in more] == [1, 2, 3] and len(notices) == 1
    monkeypatch.setattr(module, "COLD", True)
    module.announce(notices.append)
    assert len(notices) == 2
