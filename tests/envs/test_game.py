"""Declared parts of games: labels of every built-in game, and a game of another module that brings all parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.agents.specs import scripted_players
from slipstream.contracts import ActionSpec, EnvSpec, ObsField, ObsSpec, empty_rows, vector_obs
from slipstream.envs import registry
from slipstream.envs.events import find_events
from slipstream.envs.game import Game, Labels, LazyCall, lazy, lazy_value
from slipstream.envs.registry import EnvChoice, games, import_modules, labels_of, numbered_labels, parse, register
from slipstream.envs.render.scenes import draw, measured_step_seconds, state_labels
from slipstream.errors import ConfigError, EnvError
from slipstream.play.games import GameResult, ScheduledGame, play_scheduled
from slipstream.play.replay_recording import write_replay
from slipstream.runs.replays import Replay
from slipstream.settings import EnvSettings
from slipstream.stages.human_player import HumanAgent
from slipstream.vector.make import make_vector

KINDS = ("discrete", "multi_discrete", "continuous")
LABELLED = [
    *((name, kind) for name in ("soccer", "soccer:2v2", "soccer:mixed", "kart") for kind in KINDS),
    *(("treechop", kind) for kind in KINDS[:2]),
    *(
        (name, "")
        for name in ("recall", "recall:masked", "pixels", "mixed", "mixed:continuous", "mixed:hybrid", "mixed:team")
    ),
]


def spec_of(name: str, kind: str = "", **options: object) -> EnvSpec:
    """The spec of a game with one kind of actions."""
    settings = EnvSettings(actions=kind, options=options) if kind else EnvSettings()  # type: ignore[arg-type]
    return make_vector(EnvChoice(name, settings), 1).spec


def check_labels(spec: EnvSpec) -> Labels:
    """The labels of a spec: one for each part, option and column, none empty and none twice."""
    found = labels_of(spec)
    assert len(found.parts) == spec.action.parts
    assert tuple(len(options) for options in found.options) == spec.action.sizes
    assert len(found.obs) == spec.obs.floats
    for names in (found.parts, *found.options, found.obs):
        assert all(names) and len(set(names)) == len(names)
    return found


@pytest.mark.parametrize(("name", "kind"), LABELLED)
def test_every_action_and_column_has_a_label(name: str, kind: str) -> None:
    """The built-in games name every action part, every option and every observation column once."""
    spec = spec_of(name, kind)
    assert check_labels(spec) != numbered_labels(spec)


def test_rocket_has_labels() -> None:
    """Rocket's labels fit its specs, which need no simulator."""
    from slipstream.envs.rocket.actions import SPECS
    from slipstream.envs.rocket.batch import obs_size

    for slots in (1, 2, 3):
        for action in SPECS.values():
            spec = EnvSpec("rocket", vector_obs(obs_size(2 * slots)), action, teams=(0,) * slots + (1,) * slots)
            found = check_labels(spec)
            assert found.obs[12] == "spin.x" and found.obs[15] == "boost" and found.obs[19] == "ball.position.x"


def test_mettagrid_has_labels() -> None:
    """MettaGrid's actions are named as its world names them; tokens have no columns."""
    tokens = ObsSpec((ObsField("", "tokens", (64, 3)),))
    world = (("actions", "noop, move_north, use"),)
    assert check_labels(EnvSpec("mettagrid:arena", tokens, ActionSpec("discrete", (3,)), world=world)) == Labels(
        ("action",), (("noop", "move_north", "use"),), ()
    )


def test_labels_name_the_right_columns() -> None:
    """Labels are those of the columns and of the options that they name."""
    seen = labels_of(spec_of("soccer:mixed")).obs
    columns = {
        "spin": 6,
        "time_left": 8,
        "ball.distance": 13,
        "own_goal.ahead": 22,
        "pad.0": 28,
        "teammate.0.position.ahead": 36,
        "opponent.0.position.ahead": 36 + 2 * 8,
        "present.0": 36 + 5 * 8,
    }
    assert {name: seen.index(name) for name in columns} == columns
    match = make_vector(EnvChoice("soccer:mixed"), 1)
    rows = empty_rows(match.spec, 1)
    match.reset(rows)
    known = {"spin": 0, "time_left": 1, "pad.0": 1, "opponent.0.heading.ahead": -1, "present.0": 0, "present.2": 1}
    assert {name: round(float(rows.obs[0, seen.index(name)]), 3) for name in known} == known, "a 1v1 match at its start"
    seen = labels_of(spec_of("kart")).obs
    assert seen.index("lap_left") == 7 and seen.index("ahead.4m.ahead") == 11 and len(seen) == 11 + 12 * 4
    (options,) = labels_of(spec_of("kart", "discrete")).options
    assert [options.index(name) for name in ("right brake", "straight", "left accelerate")] == [0, 4, 8]
    assert labels_of(spec_of("treechop", "discrete", scalars=True)).obs
    from slipstream.envs.soccer.columns import DRIVING

    (options,) = labels_of(spec_of("soccer", "discrete")).options
    assert DRIVING[options.index("forward left boost")] == (1, 1, 1, 0)
    assert DRIVING[options.index("coast")] == (0, 0, 0, 0)


def test_environments_without_labels_are_numbered() -> None:
    """Columns are numbered behind the name of their field, and options by their index."""
    obs = ObsSpec((ObsField("health", "vector", (1,)), ObsField("", "vector", (2,)), ObsField("p", "image", (4, 4, 1))))
    spec = EnvSpec("gymnasium:X", obs, ActionSpec("multi_discrete", (2, 3)))
    assert labels_of(spec) == Labels(
        ("action.0", "action.1"), (("0", "1"), ("0", "1", "2")), ("health", "obs.0", "obs.1")
    )


def test_lazy_parts() -> None:
    """A lazy part imports its module when it is called, with its bound arguments first."""
    assert lazy("math:pow", 2)(3) == 8 and lazy_value("math:pi")() == np.pi
    with pytest.raises(ModuleNotFoundError):
        lazy("not_there:x")()


@pytest.mark.parametrize("name", list(games()))
def test_declared_parts_exist(name: str) -> None:
    """Every lazy part of a built-in game can be imported, unless a package of an extra is missing."""
    game = games()[name]
    parts = [game.make, game.scene, game.events, game.controls, game.labels, game.state_labels]
    for part in (*parts, *game.scripted.values(), *game.choosers.values()):
        if isinstance(part, LazyCall):
            try:
                loaded = part.load()
            except ModuleNotFoundError as error:
                if str(error.name).startswith("slipstream"):
                    raise
            else:
                assert callable(loaded)


MODULE = '''
"""A corridor: the agent starts at cell 0 of 5 and reaches the end at cell 4."""

import numpy as np
from PIL import Image

from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.envs.game import Game, Labels, StepEvent
from slipstream.envs.registry import register


class Corridor:
    def __init__(self, envs):
        self.envs = envs
        self.spec = EnvSpec(
            "corridor", vector_obs(2), ActionSpec("multi_discrete", (2, 2)), exact=True, step_seconds=0.1
        )
        self.clock = np.zeros((envs, 2), np.int64)  # ticks left, cell

    def _begin(self, envs, out):
        self.clock[envs] = 40, 0
        self._observe(out)
        out.active[envs] = 1

    def _observe(self, out):
        out.obs[:] = self.clock[:, ::-1]

    def reset(self, out):
        self._begin(np.arange(self.envs), out)

    def reset_envs(self, indices, out, seeds=None):
        self._begin(list(indices), out)

    def seeds(self):
        return np.zeros(self.envs, np.int64)

    def assign(self, tasks):
        pass

    def step(self, action, out):
        self.clock[:, 1] += action[:, 0] + action[:, 1]
        self.clock[:, 0] -= 2
        self._observe(out)
        over = self.clock[:, 1] >= 4
        out.reward[:], out.terminated[:], out.truncated[:], out.outcome[:] = over, over, 0, 0
        out.final_obs[over] = out.obs[over]
        self._begin(np.flatnonzero(over), out)
        out.active[:] = 1

    def snapshot(self):
        return {"clock": self.clock.copy()}

    def restore(self, state):
        self.clock[:] = state["clock"]

    def close(self):
        pass


class Scene:
    def __init__(self, size, arrays, step_seconds):
        self.size, self.cells = size, arrays["clock"][:, 1]

    def score(self, step):
        return None

    def clock(self, step):
        return f"step {int(step)}"

    def paint(self, step, beyond=0.0):
        return Image.new("RGB", self.size, (50 * int(self.cells[int(step)]), 0, 0))


def find_events(spec, before, after, rows, last_touch):
    return [StepEvent("exit", 0)] if rows.terminated.any() else []


def controls(keys, last, action):
    return np.array(["up" in keys, "space" in keys], np.int32)


def walk(obs, action, out):
    out[:] = 1, 0


register(
    "corridor",
    Game(
        summary="walk to the end of a corridor",
        variants=("short",),
        make=lambda choice, variant, envs, first, seed: Corridor(envs),
        scene=Scene,
        events=find_events,
        controls=controls,
        labels=lambda spec: Labels(("walk", "run"), (("stay", "go"),) * 2, ("cell", "ticks_left")),
        state_labels=lambda widths: {"clock": ("ticks_left", "cell")},
        tick_hz=20,
        scripted={"walker": walk},
    ),
)
'''


@pytest.fixture
def corridor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnvChoice]:
    """A game that a module of the user registers, as `--import` imports it."""
    (tmp_path / "corridor_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(registry, "_registered", {})
    import_modules(["corridor_module"])
    yield EnvChoice("corridor")
    sys.modules.pop("corridor_module")


def test_a_registered_game_is_drawn_and_has_events(corridor: EnvChoice, tmp_path: Path) -> None:
    """A game of the user's module is found, drawn, labelled, played and written as a replay with its own events."""
    assert parse("corridor")[1] == "short" and scripted_players("corridor") == ["walker"]
    vector = make_vector(corridor, 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    vector.step(np.array([[1, 1]], np.int32), rows)
    frame = draw("corridor", vector.snapshot(), (8, 4))
    assert frame is not None and frame.shape == (4, 8, 3) and frame[0, 0].tolist() == [100, 0, 0]
    assert find_events(vector.spec, vector.snapshot(), vector.snapshot(), rows, -1) == []
    assert labels_of(vector.spec).obs == ("cell", "ticks_left") and labels_of(vector.spec).parts == ("walk", "run")
    assert state_labels("corridor", vector.snapshot()) == {"clock": ("ticks_left", "cell")}
    assert measured_step_seconds("corridor", {"clock": np.array([[40, 0], [38, 1]])}, 0.5) == pytest.approx(0.1)

    from slipstream.agents.specs import load_agent
    from slipstream.envs.render.video import FrameTime, ReplayVideo, key_moments

    game = ScheduledGame(("scripted:walker",), 7)
    (played,) = play_scheduled(
        corridor, lambda name, spec, choice: load_agent(name, spec, choice), [game], keep_actions=True
    )
    assert isinstance(played, GameResult) and played.length == 4
    write_replay(corridor, played, tmp_path / "c.replay")
    replay = Replay.open(tmp_path / "c.replay")
    assert [(event.step, event.kind) for event in replay.facts.events] == [(3, "exit")]
    video = ReplayVideo(replay, (160, 90))
    assert video.frame(FrameTime(1.0)).size == (160, 90)
    assert any(caption.startswith("exit") for _, caption in key_moments(video))


def test_a_registered_game_is_played_by_keys(corridor: EnvChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyboard controls of the game decide, although it has two choices per step."""

    class Screen:
        def __init__(self) -> None:
            self.frames: list[object] = []

        def show(self, frame: object, lines: list[str]) -> None:
            self.frames.append(frame)

        def wait(self, seconds: float) -> list[str]:
            return [["up"], ["space", "up"]][len(self.frames) - 1]

        def close(self) -> None:
            pass

    monkeypatch.setattr("slipstream.stages.human_player.open_screen", Screen)
    vector = make_vector(corridor, 1)
    rows, out = empty_rows(vector.spec, 1), np.zeros((1, 2), np.int32)
    vector.reset(rows)
    with HumanAgent(corridor, fps=1000.0) as human:
        human.bind(vector)
        human.begin()
        taken = []
        for _ in range(2):
            human.act_into(rows.obs, rows.mask, np.zeros(0), out)
            vector.step(out, rows)
            taken.append(out[0].tolist())
        frames = human._screen.frames  # type: ignore[union-attr]
    assert taken == [[1, 0], [1, 1]] and vector.snapshot()["clock"][0, 1] == 3
    assert np.asarray(frames[1])[0, 0].tolist() == [50, 0, 0]


def test_what_cannot_be_registered(corridor: EnvChoice) -> None:
    """Names of built-in games and prefixes are taken, and labels must fit the spec."""
    game = Game("x", ("1",), make=lambda *_: None)  # type: ignore[arg-type,return-value]
    for name in ("soccer", "gymnasium", "a:b", ""):
        with pytest.raises(EnvError, match=f"`{name}`"):
            register(name, game)
    register("short_labels", Game("x", ("1",), game.make, labels=lambda spec: Labels((), (), ())))
    with pytest.raises(EnvError, match=r"short_labels.*`?2"):
        labels_of(EnvSpec("short_labels", vector_obs(2), ActionSpec("discrete", (3,))))
    with pytest.raises(ConfigError, match=r"mixed.*3 parts"):
        HumanAgent(EnvChoice("mixed")).bind(make_vector(EnvChoice("mixed"), 1))
