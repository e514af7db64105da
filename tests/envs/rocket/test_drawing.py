"""Rocket from above: places, colours, heights, and what a replay holds of a match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.agents.specs import load_agent
from slipstream.contracts import Array, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.scenes import draw, make_scene
from slipstream.envs.render.video import ReplayVideo, contact_sheet
from slipstream.envs.rocket import layout as at
from slipstream.errors import DemoError
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.replay_recording import record_replays, verify, write_replay
from slipstream.runs.replays import Replay
from slipstream.settings import EnvSettings

pytest.importorskip("RocketSim", reason='needs rocketsim (pip install "slipstream[rocket]")')

from slipstream.envs.rocket.drawing import BIG, Stadium, pad_places
from slipstream.envs.rocket.game import Rocket

SHORT = EnvSettings(match_seconds=6.0)


def seat(name: str, spec: Any, choice: Any) -> Any:
    """The scripted players."""
    return load_agent(name, spec, choice)


def begin(**more: Any) -> Rocket:
    """A match that has just started."""
    game = Rocket(1, **more)
    game.reset(empty_rows(game.spec, 1))
    return game


def blank(cars: int = 2) -> dict[str, Array]:
    """A match of two cars at the side walls, without pads, with the ball in the middle."""
    state, clock = np.zeros((2, at.CARS + cars * at.CAR_SIZE), np.float32), np.zeros((2, at.CLOCK_SIZE), np.int64)
    for car in range(cars):
        own = state[:, at.CARS + car * at.CAR_SIZE :][:, : at.CAR_SIZE]
        own[:, at.X], own[:, at.Y] = (-30 if car < cars // 2 else 30), -20 + 12 * car
        own[:, at.HX], own[:, at.UP], own[:, at.THERE] = 1, 1, 1
    return {"state": state, "clock": clock}


def test_pads_lie_where_the_simulator_has_them() -> None:
    """All 34, in its order, the six large ones among them."""
    game = begin()
    pads = game._arenas[0].get_boost_pads()
    places = [(one.get_pos().y * at.SCALE, -one.get_pos().x * at.SCALE) for one in pads]
    assert np.allclose(places, pad_places()) and tuple(k for k, one in enumerate(pads) if one.is_big) == BIG


@pytest.mark.parametrize("size", [1, 3])
def test_a_view_tells_where_everything_is(size: int) -> None:
    """Blue attacks +x: at a kick-off its cars are left, turned, upright, with a third of boost; the clock is full."""
    game = begin(team_size=size)
    view = game.view()
    cars = view["state"][0, at.CARS :].reshape(-1, at.CAR_SIZE)
    assert at.cars_in(view["state"][0]) == 2 * size
    assert (cars[:size, at.X] < 0).all() and (cars[size:, at.X] > 0).all() and np.allclose(cars[:, at.UP], 1, atol=1e-3)
    assert (cars[:size, at.HX] >= -1e-3).all() and np.allclose(cars[:, at.BOOST], 1 / 3, atol=1e-2)
    assert view["clock"][0].tolist()[:4] == [7200, 0, 0, 0] and view["state"][0, at.PAD : at.CARS].all()
    away = np.hypot(cars[:, at.X], cars[:, at.Y])
    assert np.allclose(np.sort(away[:size]), np.sort(away[size:]))


def test_cars_and_ball_are_seen() -> None:
    """Blue left, orange right, the ball white in the middle; a demolished car is not there."""
    arrays = blank()
    picture = np.asarray(Stadium((480, 290), arrays, 0.0).paint(0.0)).astype(int)
    colour = picture[..., 0] - picture[..., 2]
    left, right = picture[:, :240], picture[:, 240:]
    assert (left[..., 2] - left[..., 0]).max() > 120 and colour[:, 240:400].max() > 120
    assert picture[140:150, 235:245].min(axis=2).max() > 200 and right.shape == left.shape
    arrays["state"][:, at.CARS + at.CAR_SIZE + at.GONE] = 1
    gone = np.asarray(Stadium((480, 290), arrays, 0.0).paint(0.0)).astype(int)
    field = slice(60, 230), slice(300, 390)
    assert (picture[field] != gone[field]).any() and colour[field].max() > 120
    assert (gone[field][..., 0] - gone[field][..., 2]).max() < 60


def test_what_flies_is_larger() -> None:
    """The ball near the ceiling covers more than on the floor."""
    low, high = blank(), blank()
    high["state"][:, at.Z] = 18
    white = [np.asarray(Stadium((960, 580), one, 0.0).paint(0.0)).min(axis=2) > 200 for one in (low, high)]
    assert white[1].sum() > 1.4 * white[0].sum()


def test_between_two_decisions() -> None:
    """Halfway in between, and on through a goal's kick-off by its own speed."""
    arrays = blank()
    arrays["state"][1, at.X], arrays["state"][:, at.VX] = 10, 15
    scene = Stadium((480, 290), arrays, 0.1)
    assert scene.between(0.5)[at.X] == pytest.approx(5) and scene.clock(0) == "0:00" and scene.score(0) == (0, 0)
    arrays["clock"][1, at.SCORE] = 1
    scene = Stadium((480, 290), arrays, 0.1)
    assert scene.between(0.5)[at.X] == pytest.approx(0.75) and scene.score(1) == (1, 0)


def test_the_picture_of_a_match_as_it_stands() -> None:
    """`draw` takes a view; scenes are made by the game's name."""
    view = begin().view()
    picture = draw("rocket:1v1", view)
    assert picture is not None and picture.shape == (290, 480, 3) and picture.std() > 10
    assert make_scene("rocket", (480, 290), view, 0.0) is not None


def test_a_replay_holds_the_match(tmp_path: Path) -> None:
    """Goals, touches and score are recorded, a replay reproduces every state, and it can be drawn."""
    choice = EnvChoice("rocket", env=SHORT)
    fixture = ScheduledGame(("scripted:driver", "scripted:idle"), 5)
    (played,) = play_scheduled(choice, seat, [fixture], keep_actions=True)
    path = tmp_path / "one.replay"
    assert write_replay(choice, played, path, load=seat) is played
    replay = Replay.open(path)
    kinds = [event.kind for event in replay.facts.events]
    assert kinds.count("goal") >= 1 and "touch" in kinds and replay.facts.score == (kinds.count("goal"), 0)
    assert {event.agent for event in replay.facts.events if event.kind == "goal"} == {0}
    assert replay.labels("env/state")[:3] == ("ball.x", "ball.y", "ball.z")
    verify(replay)
    assert contact_sheet(ReplayVideo(replay)).size[0] > 900


def test_matches_of_teams_are_kept_whatever_happens(tmp_path: Path) -> None:
    """If a replay of a match ends differently, a new match is played and recorded."""
    choice = EnvChoice("rocket:2v2", env=SHORT)
    fixture = ScheduledGame(("scripted:driver", "scripted:idle"), 6)
    (played,) = play_scheduled(choice, seat, [fixture], keep_actions=True)
    assert played.actions is not None
    played.behaviour[0]["touches"] += 1.0  # as if it had gone another way
    (path,) = record_replays(choice, [played], "scripted:driver", tmp_path, load=seat)[:1]
    facts = Replay.open(path).facts
    assert facts.behaviour[0]["touches"] != played.behaviour[0]["touches"]
    assert facts.score is not None and f"{facts.score[0]:g}-{facts.score[1]:g}" in path.name
    with pytest.raises(DemoError, match="ended differently when it was played again"):
        write_replay(choice, played, tmp_path / "two.replay")
