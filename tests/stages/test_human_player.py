"""Human players: keys become actions, and whole episodes are recorded from a real terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.contracts import ActionSpec
from slipstream.demos.reader import Demos
from slipstream.envs.controls import default_action
from slipstream.envs.kart.game import game as kart
from slipstream.envs.registry import EnvChoice, games
from slipstream.envs.soccer.columns import DRIVING
from slipstream.envs.soccer.game import game as soccer
from slipstream.errors import ConfigError
from slipstream.stages.human_player import HumanAgent, Window, permitted
from terminal_process import TerminalProcess

Start = Callable[..., TerminalProcess]
LAST = np.zeros(4)
MODULE = """
import gymnasium, numpy as np
from gymnasium import spaces

class Lamp(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode=None, drawn=True):
        self.render_mode, self._drawn = render_mode, drawn

    def reset(self, *, seed=None, options=None):
        self._age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._age += 1
        return np.full(1, 0.25, np.float32), float(action), self._age == 40, False, {}

    def render(self):
        if not self._drawn:
            raise RuntimeError("no lamp")
        return np.full((20, 30, 3), (250, 10, 20), np.uint8)

gymnasium.register("Lamp-v0", Lamp)
"""


@pytest.mark.parametrize(
    ("keys", "controls"),
    [
        ([], (0, 0, 0, 0)),
        (["up"], (1, 0, 0, 0)),
        (["down", "right"], (-1, -1, 0, 0)),
        (["up", "left", "space"], (1, 1, 1, 0)),
        (["space"], (1, 0, 1, 0)),
        (["left", "x"], (1, 1, 0, 1)),
        (["left", "right"], (0, -1, 0, 0)),
    ],
)
def test_driving_in_soccer(keys: list[str], controls: tuple[int, ...]) -> None:
    """Keys set throttle, steer, boost and drift in each kind of action; the newer of two opposite keys wins."""
    drive = games()["soccer"].controls
    assert drive is not None
    discrete, parts, continuous = (
        soccer.spec(actions=kind).action for kind in ("discrete", "multi_discrete", "continuous")
    )
    (index,) = drive(keys, LAST, discrete)
    assert DRIVING[index] == controls
    throttle, steer, boost, drift = controls
    assert drive(keys, LAST, parts).tolist() == [throttle + 1, steer + 1, boost, drift]
    assert tuple(drive(keys, LAST, continuous)) == controls


def test_driving_a_kart() -> None:
    """Keys set steer and throttle, in kart's order."""
    drive = games()["kart"].controls
    assert drive is not None
    discrete, parts, continuous = (
        kart.spec(actions=kind).action for kind in ("discrete", "multi_discrete", "continuous")
    )
    table = list(product((-1, 0, 1), repeat=2))
    assert table[drive(["left", "up"], LAST, discrete)[0]] == (1, 1)
    assert [drive(keys, LAST, discrete)[0] for keys in ([], ["right", "down"], ["up"])] == [4, 0, 5]
    assert drive(["right", "down"], LAST, parts).tolist() == [0, 0]
    assert drive(["right"], LAST, continuous).tolist() == [-1, 0]


def test_other_games() -> None:
    """A digit stays until the next one, space is option 0, arrows push continuous actions to their bounds."""
    three = ActionSpec("discrete", (3,))
    assert default_action(["1", "2"], np.array([0]), three).tolist() == [2]
    assert default_action(["up", "7"], np.array([1]), three).tolist() == [1], "no such option: the last one stays"
    assert default_action(["2", "space"], np.array([1]), three).tolist() == [0]
    box = ActionSpec("continuous", low=(-2.0, 0.0, -np.inf), high=(2.0, 1.0, np.inf))
    assert default_action(["right", "down"], np.zeros(3), box).tolist() == [2.0, 0.0, 0.0]
    assert default_action([], np.zeros(3), box).tolist() == [0.0, 0.5, 0.0]
    masked = ActionSpec("discrete", (3,), masked=True)
    assert permitted(np.array([0]), np.array([0, 0, 1]), masked).tolist() == [2]
    assert permitted(np.array([1]), np.array([0, 1, 1]), masked).tolist() == [1]


def test_what_cannot_be_played() -> None:
    """Several choices per step need controls of the game, and the frame rate must be positive."""
    with pytest.raises(ConfigError, match="0 steps per second cannot be played"):
        HumanAgent(EnvChoice("soccer"), 0.0)
    from slipstream.vector.make import make_vector

    with pytest.raises(ConfigError) as caught:
        HumanAgent(EnvChoice("mixed")).bind(make_vector(EnvChoice("mixed"), 1))
    assert "`mixed` has actions of 3 parts" in caught.value.message and "Game.controls" in caught.value.hint


def test_there_must_be_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and a display the command fails with a hint."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    words = ["record", "human", "--env", "soccer", "--episodes", "1", "--out", str(tmp_path / "d")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 6
    assert done.stderr.startswith("error: A terminal is needed") and "pygame" in done.stderr


@pytest.fixture
def start_player(start_terminal: Start, tmp_path: Path) -> Start:
    """Start recording a human player into the folder `d`."""
    (tmp_path / "lamp_module.py").write_text(MODULE)
    return partial(start_terminal, "record", "human", "--out", "d", folder=tmp_path)


needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")


@needs_pty
def test_a_soccer_game_at_the_keyboard(start_player: Start, tmp_path: Path) -> None:
    """Keys drive the first car against the reference player; the game is drawn, and recorded at its pace."""
    player = start_player("--env", "soccer", "--episodes", "1", "--fps", "30", "--set", "env.match_seconds=2")
    player.wait_for("game 1   step 3")
    while player.read():
        player.press("\x1b[A\x1b[D")
    code, facts = player.finish()
    assert code == 0
    assert (facts["agent"], facts["opponent"], facts["episodes"], facts["stopped"]) == ("human", "scripted:rule", 1, "")
    assert "▀" in player.screen and "soccer   game 1   step 20   q ends" in player.screen
    demos = Demos.open(tmp_path / "d")
    assert demos.shards[0].origin["agent"] == "human"
    actions = demos.episode(0)["action"][:, 0]
    assert DRIVING[np.bincount(actions).argmax()] == (1, 1, 0, 0), "forward and to the left"
    assert facts["seconds"] >= 0.9 * len(actions) / 30, "no faster than asked for"


@needs_pty
def test_leaving_in_the_middle(start_player: Start, tmp_path: Path) -> None:
    """q ends the recording: finished episodes are kept, the unfinished one is left out."""
    words = ["--env", "gymnasium:Lamp-v0", "--import", "lamp_module", "--episodes", "9"]
    player = start_player(*words)
    player.wait_for("game 1   step 2")
    player.press("2")
    player.wait_for("game 2   step 5")
    player.press("q")
    code, facts = player.finish()
    assert (code, facts["episodes"], facts["steps"], facts["stopped"]) == (0, 1, 40, "quit")
    assert "\x1b[38;2;250;10;20;48;2;250;10;20m▀" in player.screen, "the env's own picture"
    columns = Demos.open(tmp_path / "d").episode(0)
    assert columns["action"][0] == 0 and columns["action"][-1] == 2, "the digit stays in force"
    assert facts["mean_return"] == columns["action"].sum()


@needs_pty
def test_a_game_without_a_picture(start_player: Start, tmp_path: Path) -> None:
    """An env that cannot be drawn shows its numbers, at its own pace; Ctrl-C ends the recording cleanly."""
    words = ["--env", "gymnasium:Lamp-v0", "--import", "lamp_module", "--episodes", "9"]
    player = start_player(*words, "--set", "env.options.drawn=false")
    player.wait_for("[0.25]")
    player.wait_for("game 2   step 5")
    player.process.send_signal(2)
    code, facts = player.finish()
    assert (code, facts["stopped"]) == (130, "Ctrl-C")
    assert facts["episodes"] == len(Demos.open(tmp_path / "d")) >= 1
    assert "▀" not in player.screen
    assert re.search(r"\x1b\[\?1049h.*\x1b\[\?1049l", player.screen, re.DOTALL), "on a screen of its own"


def test_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pygame installed, a window shows frames and returns the keys that are held."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = Window()
    try:
        frame = np.zeros((10, 20, 3), np.uint8)
        frame[:, :10] = (200, 100, 50)
        window.show(frame, ["soccer", "step 3"])
        assert window._screen.get_at((5, 5))[:3] == (200, 100, 50)
        assert window._screen.get_at((955, 5))[:3] == (0, 0, 0)
        assert pygame.display.get_caption()[0] == "soccer   step 3"
        for kind, key in ((pygame.KEYDOWN, pygame.K_w), (pygame.KEYDOWN, pygame.K_3), (pygame.KEYUP, pygame.K_3)):
            pygame.event.post(pygame.event.Event(kind, key=key))
        assert window.wait(0.0) == ["up", "3"], "a short press counts once"
        assert window.wait(0.0) == ["up"]
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert "q" in window.wait(0.0)
    finally:
        window.close()
