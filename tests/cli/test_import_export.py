"""`slipstream demos import` and `export`: flags, results, errors and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.contracts import Array
from slipstream.demos.exporters.minerl import write_recording
from slipstream.demos.reader import Demos
from slipstream.minecraft.action_maps import TABLE_14

Cli = Callable[..., Result]
IMPORTED = {
    "format",
    "source",
    "out",
    "env",
    "shards",
    "episodes",
    "steps",
    "bytes",
    "workers",
    "seconds",
    "skipped",
    "notes",
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return lambda *words: CliRunner().invoke(main, ["demos", *map(str, words)])


def facts(result: Result) -> dict[str, Any]:
    """The JSON object, which is the only output on stdout."""
    assert result.exit_code == 0, result.output
    (only,) = result.stdout.splitlines()
    loaded: dict[str, Any] = json.loads(only)
    return loaded


def error(result: Result, code: int) -> str:
    """The error message of a failed command."""
    assert result.exit_code == code, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    return result.stderr


def pov(demos: Demos) -> Array:
    """The frames of the first episode."""
    return demos.schema.obs.split(np.array(demos.episode(0)["obs"]))["pov"]


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """Three MineRL recordings of 12 steps."""
    random = np.random.default_rng(0)
    folder = tmp_path / "MineRLTreechop-v0"
    for number in range(3):
        frames = random.integers(0, 256, (13, 32, 32, 3)).astype(np.uint8)
        actions = TABLE_14.decode(random.integers(0, 14, (12, 1)))
        write_recording(folder / f"v3_stream-{number}_0-12", frames, actions, np.ones(12))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An NPZ file of two episodes of 5 steps."""
    random = np.random.default_rng(0)
    dones = np.arange(10) % 5 == 4
    np.savez(tmp_path / "t.npz", obs=random.normal(size=(10, 3)), actions=np.arange(10) % 3, rewards=dones, dones=dones)
    return tmp_path / "t.npz"


def test_import_minerl(cli: Cli, game: Path) -> None:
    """Frames and actions are as the flags say, and the JSON has exactly the documented keys."""
    words = ["--actions", 14, "--size", "16x24", "--grey", "--stack", 4, "--max-samples", 30, "--workers", 2]
    found = facts(cli("import", "minerl", game, "--out", "d", *words, "--json"))
    assert found.keys() == IMPORTED
    assert found["steps"] == 30 and found["episodes"] == 3 and found["workers"] == 2 and found["format"] == "minerl"
    demos = Demos.open("d")
    assert demos.schema.obs.fields[0].shape == (16, 24, 4) and demos.schema.action.sizes == (14,)


def test_import_for_a_person(cli: Cli, game: Path) -> None:
    """Without --json the result is a summary: counts, skipped episodes, and the next command."""
    (game / "v3_stream-1_0-12" / "recording.mp4").write_bytes(b"broken")
    result = cli("import", "auto", game, "--out", "d", "--allow", 0.5, "--env", "treechop")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("2 episodes, 24 steps of treechop in ") and lines[0].endswith(f"{Path('d').absolute()}")
    assert lines[1].startswith("skipped: v3_stream-1_0-12: ") and "recording.mp4 cannot be decoded" in lines[1]
    assert lines[-1] == f"check them: slipstream demos check {Path('d').absolute()}"


def test_look_angles_and_bins_can_be_set(cli: Cli, game: Path) -> None:
    """The look angle, its margin and the camera bins are used by the map and stored in the shard's origin."""
    facts(cli("import", "minerl", game, "--out", "a", "--actions", 8, "--look", 20, "--margin", 2, "--json"))
    told = Demos.open("a").shards[0].origin["options"]["actions"]
    assert (told["look"], told["margin"], len(told["names"])) == (20.0, 2.0, 8)
    facts(cli("import", "minerl", game, "--out", "b", "--actions", "full", "--camera", "20,4,0", "--json"))
    assert Demos.open("b").schema.action.sizes[-1] == 11
    assert Demos.open("b").shards[0].origin["options"]["actions"]["camera"] == {"limit": 20, "width": 4, "mu": 0}


def test_npz_to_minari_and_back(cli: Cli, table: Path, tmp_path: Path) -> None:
    """A table can be imported, exported as Minari and as NPZ, and imported again, and stays what it is."""
    facts(cli("import", "npz", table, "--out", "a", "--sizes", 4, "--env", "toy", "--json"))
    sent = facts(cli("export", "minari", "a", "--out", "minari/toy-v0", "--json"))
    assert sent == {
        "format": "minari",
        "out": str(tmp_path / "minari" / "toy-v0"),
        "dataset": "toy-v0",
        "episodes": 2,
        "steps": 10,
        "left_out": [],
    }
    facts(cli("import", "auto", "toy-v0", "--out", "b", "--env", "toy", "--json"))
    spoken = cli("export", "npz", "a", "--out", "again.npz")
    assert spoken.stdout == "again.npz: 2 episodes, 10 steps\n"
    facts(cli("import", "auto", "again.npz", "--out", "c", "--env", "toy", "--sizes", 4, "--json"))
    one, two, three = (Demos.open(name).checksum for name in "abc")
    assert one == two == three


def test_export_lists_columns_left_out(cli: Cli, game: Path, tmp_path: Path) -> None:
    """Columns that a format cannot hold are named; MineRL recordings hold the raw ones."""
    facts(cli("import", "minerl", game, "--out", "d", "--json"))
    result = cli("export", "npz", "d", "--out", "d.npz")
    assert result.stdout.splitlines()[1].startswith("not exported (npz cannot hold it): raw/attack, ")
    facts(cli("export", "minerl", "d", "--out", "again/MineRLTreechop-v0", "--json"))
    facts(cli("import", "auto", "again/MineRLTreechop-v0", "--out", "e", "--json"))
    old, new = Demos.open("d"), Demos.open("e")
    assert old.schema == new.schema and np.abs(pov(old).astype(int) - pov(new)).mean() < 20
    np.testing.assert_array_equal(old.episode(2)["raw/camera"], new.episode(2)["raw/camera"])


def test_mistakes_and_their_exit_codes(cli: Cli, game: Path, table: Path) -> None:
    """The exit code is 2 for wrong formats and flags and 4 for unusable data, each with a hint."""
    unknown = error(cli("import", "minrl", game, "--out", "d"), 2)
    assert "`minrl`. Did you mean `minerl`?\n" in unknown
    assert unknown.endswith("hint: formats: auto, minerl, vpt, minari, npz, hdf5\n")
    wrong_flag = error(cli("import", "minerl", game, "--out", "d", "--drop-null"), 2)
    assert "--drop-null" in wrong_flag and "minerl" in wrong_flag
    wrong_flag = error(cli("import", "npz", table, "--out", "d", "--grey"), 2)
    assert "--grey" in wrong_flag and "hint: npz has the options --env, --sizes, --low, --high" in wrong_flag
    assert "gone.npz" in error(cli("import", "npz", "gone.npz", "--out", "d"), 4)
    assert "`hdf5`" in error(cli("export", "hdf5", "d", "--out", "x"), 2)
    assert "No demos at d: no such folder" in error(cli("export", "npz", "d", "--out", "x"), 4)
    assert "'64*64' is not a size such as 64 or 64x96" in error(
        cli("import", "minerl", game, "--out", "d", "--size", "64*64"), 2
    )
    assert "should be limit, width and mu" in error(cli("import", "minerl", game, "--out", "d", "--camera", "1,2"), 2)
    assert "is not a list of numbers such as 3,3" in error(cli("import", "npz", table, "--out", "d", "--sizes", "a"), 2)
    assert not Path("d").exists()


def test_auto_detects_the_format_by_the_files(cli: Cli, tmp_path: Path) -> None:
    """A location of unknown format is an error that lists the formats."""
    (tmp_path / "empty").mkdir()
    message = error(cli("import", "auto", "empty", "--out", "d"), 4)
    assert "The format of empty" in message
    assert "slipstream demos import minerl|vpt|minari|npz|hdf5 empty ...\n" in message


def test_help_names_every_format(cli: Cli) -> None:
    """The help lists the values of FORMAT and SOURCE."""
    text = cli("import", "--help").stdout
    assert "FORMAT is minerl, vpt, minari, npz, hdf5, or auto" in " ".join(text.split())
    assert "--drop-null" in text and "Nothing is downloaded" in text
