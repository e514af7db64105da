"""The scripted driver: where it steers, and that it does not get stuck."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.rocket.actions import JUMP, STEER, THROTTLE
from slipstream.envs.rocket.batch import PLACE

pytest.importorskip("RocketSim", reason='needs rocketsim (pip install "slipstream[rocket]")')

from slipstream.envs.rocket import layout as at
from slipstream.envs.rocket import scripted
from slipstream.envs.rocket.game import Rocket


def look(place: tuple[float, float], heading: tuple[float, float], ball: tuple[float, float], up: float = 1.0) -> Array:
    """The observation of a car at rest."""
    obs = np.zeros((1, 96), np.float32)
    obs[0, :2], obs[0, 3:5], obs[0, 8] = np.array(place) * PLACE, heading, up
    obs[0, 19:21], obs[0, 16], obs[0, 15] = np.array(ball) * PLACE, 1, 0.5
    return obs


def drive(obs: Array) -> Array:
    """Its controls."""
    out = np.zeros((1, 8), np.float32)
    scripted.drive(obs, out)
    return out[0]


def test_it_drives_at_the_ball() -> None:
    """Straight ahead if the ball is between it and the goal; to the right if the ball is on the right."""
    assert drive(look((0, -2000), (0, 1), (0, 0)))[[THROTTLE, STEER]].tolist() == [1, 0]
    assert (
        drive(look((0, -2000), (0, 1), (1500, -1000)))[STEER] != drive(look((0, -2000), (0, 1), (-1500, -1000)))[STEER]
    )


def test_it_backs_off_walls() -> None:
    """With its nose at a wall it reverses, in a goal too, but not with its back at one."""
    assert drive(look((3900, 0), (1, 0), (0, 0)))[THROTTLE] == -1
    assert drive(look((700, 5700), (1, 0), (0, 0)))[THROTTLE] == -1
    assert drive(look((3900, 0), (-1, 0), (0, 0)))[THROTTLE] == 1


def test_on_its_roof_it_jumps_now_and_then() -> None:
    """The jump is pressed and let go as the clock runs, since only a fresh press counts."""
    obs = np.repeat(look((0, 0), (0, 1), (0, 1000), up=-1.0), 60, axis=0)
    obs[:, scripted.LEFT] = 1 - np.arange(60) / 900
    out = np.zeros((60, 8), np.float32)
    scripted.drive(obs, out)
    assert 10 < out[:, JUMP].sum() < 50


def test_nothing_holds_it_for_long() -> None:
    """In a minute of eight matches cars are at rest for less than a tenth of the time, and never for ten seconds."""
    envs = 8
    game = Rocket(envs)
    rows, action = empty_rows(game.spec, envs), np.zeros((2 * envs, 1), np.int32)
    game.reset(rows)
    still = []
    for _ in range(880):
        scripted.act("driver", rows.obs, game.spec.action, action)
        game.step(action, rows)
        cars = game.view()["state"][:, at.CARS :].reshape(envs, 2, at.CAR_SIZE)
        still.append(np.hypot(cars[..., at.VX], cars[..., at.VY]) < 1.5)
    told = np.array(still)
    longest = np.zeros(told.shape[1:], int)
    run = np.zeros_like(longest)
    for row in told:
        run = (run + 1) * row
        longest = np.maximum(longest, run)
    assert told.mean() < 0.1 and longest.max() < 150
