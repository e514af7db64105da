"""Replays described as text, and rendered as videos and pictures that can be opened."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from slipstream.agents.specs import load_agent
from slipstream.cli import main
from slipstream.envs.registry import EnvChoice
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.replay_recording import write_replay
from slipstream.settings import EnvSettings


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of a game of eight seconds, with goals."""
    choice = EnvChoice("soccer", EnvSettings(match_seconds=8))
    fixtures = [ScheduledGame(("scripted:rule", "random"), seed) for seed in range(20)]
    games = play_scheduled(choice, load_agent, fixtures, keep_actions=True)
    scored = next(game for game in games if game.behaviour[0]["goals"] > 0)
    path = tmp_path_factory.mktemp("kept") / "best.replay"
    write_replay(choice, scored, path, kind="best", steps=1000)
    return path


def call(*words: object) -> Result:
    """Run `slipstream replay`."""
    return CliRunner().invoke(main, ["replay", *map(str, words)], catch_exceptions=False)


def test_as_text(kept: Path) -> None:
    """The text has the players, the result and the events with their times."""
    done = call(kept)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{kept}: soccer, ") and lines[0].endswith(" kB")
    assert lines[1].startswith("scripted:rule (blue) against random (orange): ") and "won" in lines[1]
    assert " steps, " in lines[2] and lines[2].endswith("best after 1,000 steps of training")
    assert any(" s  goal   scripted:rule" in line for line in lines[3:])
    assert not any(" s  touch " in line for line in lines)


def test_as_json(kept: Path) -> None:
    """The JSON has all facts; the goals add up to the score."""
    facts = json.loads(call(kept, "--json").stdout)
    assert facts["players"] == ["scripted:rule", "random"] and facts["env"] == "soccer"
    assert facts["counts"]["goal"] == facts["score"]
    assert facts["events"][0].keys() == {"step", "seconds", "kind", "agent", "side"}
    assert facts["written"] == [] and facts["verified"] is False
    assert {"env/state", "env/numbers", "action", "reward", "terms", "active"} <= set(facts["arrays"])


def test_verified(kept: Path) -> None:
    """--verify plays the game again."""
    done = call(kept, "--verify")
    assert done.exit_code == 0 and done.stdout.strip().endswith("states identical bit for bit")


def test_a_sheet(kept: Path, tmp_path: Path) -> None:
    """--png writes one picture of the key moments and no other file."""
    done = call(kept, "--png", tmp_path / "deep" / "x.png", "--size", "480x270")
    assert done.exit_code == 0 and "x.png: images of several moments" in done.stdout
    with Image.open(tmp_path / "deep" / "x.png") as picture:
        assert picture.width >= 700 and len(picture.convert("RGB").getcolors(1 << 24) or ()) > 500
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x.png"]


def test_an_animation(kept: Path, tmp_path: Path) -> None:
    """A GIF has the expected number of frames, size and pace, and keeps blue and orange."""
    done = call(kept, "--gif", tmp_path / "x.gif", "--from", 1, "--to", 2, "--fps", 10, "--size", "320x180")
    assert done.exit_code == 0
    with Image.open(tmp_path / "x.gif") as video:
        assert video.size == (320, 180) and video.n_frames >= 9 and video.info["duration"] == 100
        video.seek(5)
        frame = np.asarray(video.convert("RGB")).astype(int)
    assert ((frame[..., 2] > 220) & (frame[..., 0] < 110)).sum() > 50
    assert ((frame[..., 0] > 220) & (frame[..., 2] < 110)).sum() > 50


def test_a_video(kept: Path, tmp_path: Path) -> None:
    """A video has the requested number of frames; odd sizes become even."""
    av = pytest.importorskip("av")
    words = ["--from", 1, "--to", 2, "--fps", 24, "--size", "321x181", "--speed", 2]
    done = call(kept, "--mp4", tmp_path / "x.mp4", *words)
    assert done.exit_code == 0, done.stderr
    with av.open(str(tmp_path / "x.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, float(stream.average_rate)) == (320, 180, 24.0)
        frames = list(container.decode(stream))
    assert f"x.mp4: {len(frames):,} frames" in done.stdout and len(frames) >= 12
    assert np.abs(frames[0].to_ndarray(format="rgb24").astype(int) - frames[-1].to_ndarray(format="rgb24")).max() > 50


def test_a_video_needs_pyav(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyAV the error names the extra, and no file is left behind."""
    monkeypatch.setitem(sys.modules, "av", None)
    done = call(kept, "--mp4", tmp_path / "x.mp4")
    assert done.exit_code == 6
    assert done.stderr == (
        'error: A video needs PyAV, which is not installed.\nhint: pip install "slipstream[video]", or make a --gif\n'
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "big"], "`--size big` is not a size.\nhint: write --size 1280x720"),
        (["--size", "10x10"], "A size of 10x10 is not possible.\nhint: each edge must be 64 to 8192"),
        (["--speed", "0"], "`--speed 0` is not possible.\nhint: give a positive number"),
        (["--fps", "-3"], "`--fps -3` is not possible."),
        (["--from", "100"], "The game has no steps from 100 s to "),
        (["--from", "3", "--to", "2"], "The game has no steps from 3 s to 2 s."),
    ],
)
def test_invalid_options_are_errors(kept: Path, tmp_path: Path, words: list[str], said: str) -> None:
    """An error names the wrong number."""
    done = call(kept, "--gif", tmp_path / "x.gif", *words)
    assert done.exit_code == 2 and said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_replay(tmp_path: Path) -> None:
    """A missing file or another kind of file ends with the exit code of recorded data."""
    (tmp_path / "x.replay").write_bytes(b"hello, world, this is no replay")
    assert call(tmp_path / "gone.replay").exit_code == 4
    done = call(tmp_path / "x.replay", "--json")
    assert done.exit_code == 4 and "is not a replay" in done.stderr


def test_a_folder_that_is_a_file(kept: Path) -> None:
    """A path that cannot be written is an error."""
    done = call(kept, "--png", kept / "x.png")
    assert done.exit_code == 6 and "could not be written" in done.stderr
