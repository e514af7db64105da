"""Videos of replays: frame times, frames, captions, and the contact sheet."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.scenes import state_labels
from slipstream.envs.render.video import (
    CELLS,
    PAUSE_S,
    FrameTime,
    ReplayVideo,
    contact_sheet,
    key_moments,
    lead,
    short_name,
)
from slipstream.errors import ConfigError
from slipstream.runs.replays import Event, Replay, ReplayFacts, write
from slipstream.vector.make import make_vector

LENGTH = 150
EVENTS = (Event(3, "touch", 0), Event(40, "shot", 0), Event(60, "save", 1), Event(80, "goal", 1), Event(120, "goal", 0))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Replay]:
    """Write a replay of ten seconds in which only the score changes, or a replay of another env."""

    def made(env: str = "soccer", value: bool = True, **more: Any) -> Replay:
        vector = make_vector(EnvChoice(env), 1)
        vector.reset(empty_rows(vector.spec, 1))
        snapshot = vector.snapshot()
        arrays = {f"env/{name}": np.repeat(array, LENGTH, axis=0) for name, array in snapshot.items()}
        agents = 2 if env == "soccer" else 1
        if env == "soccer":
            names = state_labels(env, snapshot)["state"]
            arrays["env/state"][81:, names.index("score.1")] = 1
            arrays["env/state"][121:, names.index("score.0")] = 1
        arrays["reward"] = np.random.default_rng(0).normal(0, 1, (LENGTH, agents)).astype(np.float32)
        if value:
            arrays["value"] = np.stack([np.linspace(-1, 1, LENGTH)] * agents, axis=1).astype(np.float32)
            arrays["value"][:, 1:] *= -1
        players = ("run:runs/a@1000", "scripted:rule")[:agents]
        facts_given = {"env": env, "seed": 1, "players": players, "teams": tuple(range(agents)), "outcome": 0} | more
        events = EVENTS if env == "soccer" else ()
        facts = ReplayFacts.model_validate(facts_given | {"length": LENGTH, "step_seconds": 1 / 15, "events": events})
        write(tmp_path / "x.replay", facts, arrays, {})
        return Replay.open(tmp_path / "x.replay")

    return made


def test_times(make: Callable[..., Replay]) -> None:
    """At 30 fps a step has two frames, goals and the end add a pause, and double speed halves the frames."""
    video = ReplayVideo(make(), (320, 180))
    times = list(video.moments(0, LENGTH, 30, 1.0))
    pause = round(PAUSE_S * 30)
    assert len(times) == 2 * LENGTH + 3 * pause
    moving = [moment.step for moment in times if moment.since < 0]
    assert np.diff(moving) == pytest.approx(0.5)
    stopped = [moment for moment in times if moment.since >= 0]
    assert [moment.cause for moment in stopped[::pause]] == [EVENTS[3], EVENTS[4], None]
    assert stopped[0].step == pytest.approx(80.999) and stopped[5].beyond == pytest.approx(2.5)
    fast = [moment for moment in video.moments(0, LENGTH, 30, 2.0) if moment.since < 0]
    assert len(fast) == LENGTH
    part = list(video.moments(30, 36, 30, 1.0))
    assert [moment.step for moment in part] == pytest.approx(np.arange(30, 36, 0.5))


def test_the_score_over_time(make: Callable[..., Replay]) -> None:
    """A goal counts from its step on, for the side of its agent."""
    video = ReplayVideo(make(), (320, 180))
    assert [video.score(step) for step in (0, 80.5, 80.95, 81, 140)] == [[0, 0], [0, 0], [0, 1], [0, 1], [1, 1]]


@pytest.mark.parametrize("size", [(320, 180), (960, 540), (300, 400)])
def test_pictures(make: Callable[..., Replay], size: tuple[int, int]) -> None:
    """Frames of any size can be drawn; the banner of a goal has the colour of the scoring side."""
    video = ReplayVideo(make(), size)
    still = video.frame(FrameTime(5.0))
    assert still.size == size and still.mode == "RGB"
    goal = np.asarray(video.frame(FrameTime(80.999, 3.0, 0.5, EVENTS[3]))).astype(int)
    plain = np.asarray(still).astype(int)
    orange = [np.sum((frame[..., 0] > 240) & (frame[..., 2] < 80)) for frame in (goal, plain)]
    assert orange[0] > orange[1] + size[0]


def test_the_played_part_is_bright(make: Callable[..., Replay]) -> None:
    """The strips are brighter left of the present step than right of it."""
    video = ReplayVideo(make(), (960, 540))
    early, late = (np.asarray(video.frame(FrameTime(step)).convert("L")).astype(int)[-62:] for step in (5.0, 145.0))
    assert late[:, 300:700].sum() > 1.3 * early[:, 300:700].sum()


def test_one_side(make: Callable[..., Replay]) -> None:
    """A lap has no score, and its last frames show the lap time."""
    video = ReplayVideo(make("kart"), (320, 180))
    assert video.frame(FrameTime(5.0)).size == (320, 180)
    assert video._ending()[0] == "THE END" and video._underline(FrameTime(149.0, 0.0, 1.0)) == "a@1000   10.00 s"
    assert [moment.cause for moment in video.moments(148, LENGTH, 30, 1.0)][-1] is None


def test_games_without_a_drawing(make: Callable[..., Replay]) -> None:
    """A game without a scene is an error with a hint."""
    with pytest.raises(ConfigError, match=r"`recall` has no drawing"):
        ReplayVideo(make("recall", value=False))


def test_who_is_ahead() -> None:
    """The lead is the mean of a side's values minus the other's, scaled to 1; without values it is None."""
    sides = [np.array([True, False]), np.array([False, True])]
    value = np.array([[1.0, -1.0], [0.0, 0.0], [-4.0, 0.0]])
    assert lead(value, sides) == pytest.approx(np.array([0.5, 0.0, -1.0]))
    one = value.copy()
    one[:, 1] = np.nan
    assert lead(one, sides) == pytest.approx(np.array([0.25, 0.0, -1.0]))
    other = np.array([[np.nan, 3.0], [np.nan, -6.0]])
    assert lead(other, sides) == pytest.approx(np.array([-0.5, 1.0]))
    assert lead(np.full((3, 2), np.nan), sides) is None
    assert lead(np.array([[2.0], [4.0]]), [np.array([True])]) == pytest.approx(np.array([0.0, 1.0]))


def test_names() -> None:
    """A run is shortened to its folder and version; other names stay whole."""
    assert short_name("run:/long/way/to/soccer-2@best") == "soccer-2@best"
    assert short_name("scripted:rule") == "scripted:rule"


def test_key_moments(make: Callable[..., Replay]) -> None:
    """Goals, saves and shots come first, in order of time; the rest of the sheet is evenly spaced."""
    video = ReplayVideo(make(), (320, 180))
    times = key_moments(video)
    assert len(times) == CELLS and times == sorted(times)
    captions = [words for _, words in times if words]
    assert captions == [
        "first touch, a@1000",
        "shot, a@1000",
        "save, scripted:rule",
        "goal, scripted:rule",
        "goal, a@1000",
    ]
    page = contact_sheet(video)
    assert page.width > 320 and page.height > 180


@pytest.mark.speed
def test_films_are_quick(make: Callable[..., Replay]) -> None:
    """At 960x540 at least 60 frames per second are drawn."""
    video = ReplayVideo(make(), (960, 540))
    began = time.perf_counter()
    for step in range(50):
        video.frame(FrameTime(step + 0.3))
    assert 50 / (time.perf_counter() - began) > 60
