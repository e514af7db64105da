"""Videos, animations and images of environments that draw themselves, live and from replays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from slipstream.agents.specs import load_agent
from slipstream.api import replay, watch
from slipstream.cli import main
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError, MachineError
from slipstream.play import video_files
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.rendering import RenderedGame
from slipstream.play.replay_recording import write_replay

av: Any = pytest.importorskip("av", reason='needs av (pip install "slipstream[video]")')
CARTPOLE = "gymnasium:CartPole-v1"


class Painted(gymnasium.Env[Any, Any]):
    """Five steps; the image shows the step as its brightness, in a size that is odd and small."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start."""
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step."""
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count == 5, False, {}

    def render(self) -> Any:
        """An image of one grey."""
        return np.full((41, 33, 4), 40 * self.count, np.uint8) if self.render_mode else None


def brightness(path: Path) -> list[int]:
    """The grey of each frame of a video."""
    with av.open(str(path)) as container:
        return [round(float(frame.to_ndarray(format="rgb24").mean()) / 40) for frame in container.decode(video=0)]


def test_a_video_of_an_env_of_your_own(tmp_path: Path) -> None:
    """One image per step at the env's own rate, enlarged by a whole number, with even edges."""
    facts = watch(("random",), Painted, mp4=tmp_path / "a.mp4", on_notice=lambda _: None)  # type: ignore[arg-type]
    assert brightness(tmp_path / "a.mp4") == [0, 1, 2, 3, 4]
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (33 * 6, 41 * 6, 10)
    assert facts["results"][0]["length"] == 5 and facts["results"][0]["return"] == 5.0
    assert facts["written"] == [str(tmp_path / "a.mp4")]


def test_speed_and_frame_rate(tmp_path: Path) -> None:
    """Images are repeated at a higher frame rate, and left out at a higher speed."""
    out, quiet = tmp_path / "a.mp4", {"on_notice": lambda _: None}
    watch(("random",), Painted, mp4=out, fps=20.0, **quiet)  # type: ignore[arg-type]
    assert brightness(out) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    watch(("random",), Painted, mp4=out, fps=10.0, speed=2.0, **quiet)  # type: ignore[arg-type]
    assert len(brightness(out)) == 2


def test_cartpole_from_the_command_line(tmp_path: Path) -> None:
    """One command writes an animation and a sheet of images, and exits with 0."""
    words = ["watch", "random", "--env", CARTPOLE, "--gif", str(tmp_path / "a.gif"), "--png", str(tmp_path / "a.png")]
    done = CliRunner().invoke(main, [*words, "--size", "120x80"])
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "a.gif") as gif, Image.open(tmp_path / "a.png") as png:
        assert gif.size == (120, 80) and getattr(gif, "n_frames", 1) > 2
        assert png.width == 3 * (120 + 14) + 14 and len(set(png.convert("L").tobytes())) > 2


def test_a_board_game_of_pettingzoo(tmp_path: Path) -> None:
    """PettingZoo's games draw themselves too."""
    watch(("random", "random"), "pettingzoo:tictactoe", png=tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as png:
        assert png.width > 400


def test_a_replay_is_played_again_for_its_images(tmp_path: Path) -> None:
    """`replay --mp4` of an env without a drawing plays the recorded actions again; `--from` and `--to` cut it."""
    choice, scheduled = EnvChoice(CARTPOLE), ScheduledGame(("random",), 7)
    (played,) = play_scheduled(choice, load_agent, [scheduled], keep_actions=True, tolerant=False)
    path = tmp_path / "game.replay"
    write_replay(choice, played, path)
    done = CliRunner().invoke(main, ["replay", str(path), "--mp4", str(tmp_path / "a.mp4")])
    assert done.exit_code == 0 and f"{played.length} frames" in done.output
    words = ["replay", str(path), "--gif", str(tmp_path / "a.gif"), "--to", "0.1", "--fps", "50"]
    assert "5 frames" in CliRunner().invoke(main, words).output
    for cut, said in (
        (["--gif", str(tmp_path / "b.gif"), "--from", "0.011", "--to", "0.015"], "No step of the game"),
        (["--mp4", str(tmp_path / "b.mp4"), "--from", "0.011", "--to", "0.015"], "No step of the game"),
        (["--png", str(tmp_path / "b.png"), "--to", "0.1"], "--from and --to do not apply to --png"),
        (["--gif", str(tmp_path)], "is a folder"),
    ):
        refused = CliRunner().invoke(main, ["replay", str(path), *cut])
        assert refused.exit_code in (2, 6) and said in refused.output, refused.output
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.gif", "a.mp4", "game.replay"]


def test_a_game_without_images_is_an_error(tmp_path: Path) -> None:
    """A game that has neither a drawing nor images is named, and nothing is written."""
    with pytest.raises(EnvError, match="`recall` cannot be drawn"):
        watch(("random",), "recall", gif=tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


def test_image_observations_are_drawn(tmp_path: Path) -> None:
    """A game without `rgb_array` is drawn by the newest frame that its agent sees."""
    game = RenderedGame(EnvChoice("atari:Pong"), ScheduledGame(("random",), 0), load_agent)
    images = game.images()
    first, second = next(images), next(images)
    images.close()
    newest = game.game.rows.obs[0].reshape(4, 84, 84)[-1]
    assert first.shape == (84, 84, 3) and (second == newest[:, :, None]).all() and len(np.unique(second)) > 2


def test_an_env_in_another_interpreter_draws_itself(tmp_path: Path) -> None:
    """Images cross the bridge: they equal those of the same env in this interpreter, at its own rate."""
    here, there = (
        RenderedGame(EnvChoice(CARTPOLE, python=python), ScheduledGame(("random",), 3), load_agent)
        for python in ("", sys.executable)
    )
    assert here.rate == there.rate == 50
    first, second = list(here.images()), list(there.images())
    assert len(first) == len(second) > 2 and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_replay_of_an_env_of_your_own_is_written_from_python(tmp_path: Path) -> None:
    """The replay names the Python function to give, and with it the video is written."""
    choice = EnvChoice("python:Painted", factory=Painted)
    (played,) = play_scheduled(choice, load_agent, [ScheduledGame(("random",), 7)], keep_actions=True, tolerant=False)
    path = tmp_path / "game.replay"
    write_replay(choice, played, path)
    with pytest.raises(ConfigError, match="which a Python function made") as caught:
        replay(path, mp4=tmp_path / "a.mp4")
    assert "slipstream.replay(" in str(caught.value.hint)
    facts = replay(path, env=Painted, mp4=tmp_path / "a.mp4", verify=True)
    assert facts["verified"] and brightness(tmp_path / "a.mp4") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("image", [np.full((4, 4, 3), 0.5), np.zeros((4, 4), np.uint8), [[0]]])
def test_what_render_returns_must_be_an_image(image: Any, tmp_path: Path) -> None:
    """Floats, grey images and lists are named, and not drawn as a black picture."""

    class Wrong(Painted):
        def render(self) -> Any:
            return image

    with pytest.raises(EnvError, match=rf"render\(\) of `python:Wrong` returned a {type(image).__name__}"):
        watch(("random",), Wrong, gif=tmp_path / "a.gif")  # type: ignore[arg-type]


def test_the_name_of_a_file_must_fit_its_kind(tmp_path: Path) -> None:
    """An MP4 is not written into a text file."""
    with pytest.raises(ConfigError, match=r"a.txt does not end in .mp4"):
        watch(("random",), CARTPOLE, mp4=tmp_path / "a.txt")


def test_an_env_that_was_made_without_images_is_an_error(tmp_path: Path) -> None:
    """A function that makes an env without `render_mode` cannot be drawn."""
    with pytest.raises(EnvError, match=r"`python:Painted` cannot be drawn"):
        watch(("random",), lambda: Painted(None), gif=tmp_path / "a.gif")  # type: ignore[arg-type]


def test_an_env_that_does_not_know_render_mode_is_an_error() -> None:
    """An env whose constructor takes no `render_mode` cannot be drawn, which the error says."""
    gymnasium.register("NoImages-v0", lambda: Painted(None))
    try:
        with pytest.raises(EnvError, match=r"`gymnasium:NoImages-v0` cannot be drawn"):
            RenderedGame(EnvChoice("gymnasium:NoImages-v0"), ScheduledGame(("random",), 0))
    finally:
        del gymnasium.registry["NoImages-v0"]


def test_options_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    """A video is of one game; a size needs a video; without PyAV the hint names the extra."""
    with pytest.raises(ConfigError, match="2 games cannot be written"):
        watch(("random",), CARTPOLE, games=2, mp4=tmp_path / "a.mp4")
    with pytest.raises(ConfigError, match="--fps and --size"):
        watch(("random",), CARTPOLE, size=(100, 100))
    with pytest.raises(ConfigError, match="size of 10x10"):
        watch(("random",), CARTPOLE, size=(10, 10), png=tmp_path / "a.png")


def test_a_video_without_pyav_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyAV a video is an error with the pip command, and an animation still works."""
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MachineError, match=r"slipstream\[video\]"):
        watch(("random",), Painted, mp4=tmp_path / "a.mp4")  # type: ignore[arg-type]
    watch(("random",), Painted, gif=tmp_path / "a.gif", on_notice=lambda _: None)  # type: ignore[arg-type]
    assert video_files.SLOW_FPS == 20 and (tmp_path / "a.gif").exists()
