"""Names of environments: parsing, errors with hints, games of other packages and `--import`."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.envs import registry
from slipstream.envs.native.examples import cartpole
from slipstream.envs.registry import EnvChoice, Game, games, import_modules, parse
from slipstream.errors import ConfigError, EnvError


def test_names_split_into_game_and_variant() -> None:
    """A native game has variants with a first one as default; a Gymnasium id may hold anything behind the colon."""
    assert parse("soccer")[1] == "1v1"
    assert parse("soccer:3v3") == (games()["soccer"], "3v3")
    assert parse("recall")[1] == "8" and parse("recall:masked")[1] == "masked"
    assert parse("pixels")[1] == "12" and parse("mixed:team") == (games()["mixed"], "team")
    assert parse("gymnasium:ALE/Pong-v5") == (None, "ALE/Pong-v5")
    assert parse("gymnasium:module:Env-v0") == (None, "module:Env-v0")
    assert parse("python:MyEnv") == (None, "MyEnv")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "socer",
            "There is no environment `socer`. Did you mean `soccer`?\n"
            "hint: for a Gymnasium env write gymnasium:socer; `slipstream envs` lists what there is",
        ),
        (
            "CartPole-v1",
            "There is no environment `CartPole-v1`.\n"
            "hint: for a Gymnasium env write gymnasium:CartPole-v1; `slipstream envs` lists what there is",
        ),
        (
            "soccer:4v4",
            "`soccer` has no variant `4v4`.\nhint: use one of: soccer:1v1, soccer:2v2, soccer:3v3, soccer:mixed",
        ),
        (
            "atari:pong",
            "`atari` has no variant `pong`. Did you mean `Pong`?\n"
            "hint: use one of: atari:Pong; `slipstream envs` lists all of them",
        ),
        ("atari:zzz", "`atari` has no variant `zzz`.\nhint: there are 57; `slipstream envs` lists all of them"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_hint(name: str, message: str) -> None:
    """The error has the given name, the nearest one and a hint; the exit code is 3."""
    with pytest.raises(EnvError) as caught:
        parse(name)
    assert str(caught.value) == message
    assert caught.value.code == 3


@pytest.mark.parametrize("name", ["", ":", "gymnasium:", "python:", "soccer:"])
def test_empty_halves(name: str) -> None:
    """An empty name or an empty part around the colon is an error."""
    if name == "soccer:":
        with pytest.raises(EnvError, match="has no variant ``"):
            parse(name)
    else:
        with pytest.raises(EnvError, match=f"There is no environment `{name}`"):
            parse(name)


class Entry:
    """An entry point of another package."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value = name, value

    def load(self) -> Any:
        """The object that the package declares."""
        return self._value


def test_games_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point that is a Game or a native game is found by name, others are errors; they are read once."""
    monkeypatch.setattr(registry, "package_games", functools.cache(registry.package_games.__wrapped__))
    kart = Game("karts", ("1",), make=lambda *_: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry("kart", kart)])
    assert parse("kart") == (kart, "1")
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry("bad", 3)])
    assert parse("kart") == (kart, "1")
    registry.package_games.cache_clear()
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry("carts", cartpole.game)])
    found = parse("carts")[0]
    assert found is not None and found.definition is cartpole.game
    registry.package_games.cache_clear()
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry("bad", 3)])
    with pytest.raises(EnvError) as caught:
        games()
    assert str(caught.value) == "The entry point `bad` of slipstream.envs is not a Game.\nhint: fix that package"


def test_modules_are_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--import` finds a module in the current folder; a missing module is a ConfigError."""
    (tmp_path / "users_module.py").write_text("value = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    import_modules(["users_module"])
    assert sys.modules.pop("users_module").value == 1
    with pytest.raises(ConfigError) as caught:
        import_modules(["not_there"])
    assert str(caught.value) == (
        "--import not_there: No module named 'not_there'\n"
        "hint: name a module that Python finds from the current folder; repeat the flag for several modules"
    )


@pytest.mark.parametrize("name", ["soccer:mixed", "kart", "kart:hard", "treechop"])
def test_stages_are_of_the_games_own_tasks_and_players(name: str) -> None:
    """Every stage names a task of the game, and its opponent is a scripted player of the game."""
    game, variant = parse(name)
    assert game is not None
    tasks = game.make(EnvChoice(name), variant, 1, 0, 0).spec.tasks
    assert len(game.stages) == (3 if name == "treechop" else 5)
    for stage in game.stages:
        task, _, opponent = stage.partition(" vs ")
        assert task in tasks and (not opponent or opponent.partition(":")[2] in game.scripted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError"),
        ("import no_such_thing_at_all\n", "No module named 'no_such_thing_at_all'"),
        ("import sys\nsys.exit(5)\n", "SystemExit: 5"),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_error(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user's module raises is shown with its line, and the path is left in order."""
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=said) as caught:
        import_modules(("broken_module",))
    assert "broken_module.py" in caught.value.message
    assert sys.path[-1] == "" and sys.path.count("") == 1, "files of the folder replace no installed package"


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ("./mine", "write --import mine"),
        ("mine.py", "write --import mine"),
        ("folder/mine.py", "write --import folder.mine"),
        ("../there/mine.py", "write --import mine in the folder ../there"),
        ("mine,yours", "repeat the flag: --import mine --import yours; in Python modules=['mine', 'yours']"),
    ],
)
def test_what_is_no_name_of_a_module_is_refused(given: str, write: str) -> None:
    """A file and several names in one are errors that say what to write."""
    with pytest.raises(ConfigError, match=re.escape(f"--import {given} ")) as caught:
        import_modules([given])
    assert caught.value.hint == write


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("not_there", "change the variable SLIPSTREAM_IMPORT"),
        ("mine,yours", "separate several modules by spaces: SLIPSTREAM_IMPORT='mine yours'"),
        ("mine.py", "write SLIPSTREAM_IMPORT=mine"),
    ],
)
def test_errors_name_the_variable(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that SLIPSTREAM_IMPORT names and that cannot be imported is blamed on the variable, not on a flag."""
    monkeypatch.setenv("SLIPSTREAM_IMPORT", value)
    done = CliRunner().invoke(main, ["agents", "soccer"])
    assert done.exit_code == 2 and f"error: SLIPSTREAM_IMPORT={value}" in done.stderr
    assert said in done.stderr and "--import" not in done.stderr
