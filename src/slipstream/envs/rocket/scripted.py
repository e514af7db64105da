"""A scripted driver: moves behind the ball as seen from the opponents' goal, and drives through it."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.rocket.actions import BOOST, HANDBRAKE, JUMP, PITCH, ROLL, SIZES, STEER, TABLE, THROTTLE, YAW
from slipstream.envs.rocket.batch import PLACE, SPEED

GOAL = np.array([0.0, 5120.0])
AHEAD_S = 0.9
"""How far ahead, in seconds, the ball's position is predicted at most."""
REACH = 2300.0
LEFT = 74
"""The observation column of the remaining share of the match."""


def _open(place: Array) -> Array:
    """Whether positions [rows, 2] are inside the walls."""
    x, y = np.abs(place[:, 0]), np.abs(place[:, 1])
    free: Array = ((x < 4000) & (y < 5060) & (x + y < 7950)) | ((x < 870) & (y < 5970))
    return free


def act(name: str, obs: Array, action: ActionSpec, out: Array) -> None:
    """Write actions of a scripted player for observations."""
    controls = np.zeros((len(obs), 8), np.float32)
    if name == "driver":
        drive(obs, controls)
    if action.kind == "continuous":
        out[:] = controls
    elif action.kind == "multi_discrete":
        three = np.array(SIZES) == 3
        out[:] = np.where(three, np.round(controls) + 1, controls > 0)
    else:
        out[:, 0] = ((controls[:, None] - TABLE[None]) ** 2).sum(axis=2).argmin(axis=1)


def drive(obs: Array, out: Array) -> None:
    """Write the controls [rows, 8] of the driver; the observation columns are those of `batch.write_observation`."""
    place, forward, up = obs[:, 0:3] / PLACE, obs[:, 3:6], obs[:, 6:9]
    speed, fuel, grounded = (obs[:, 9:12] / SPEED * forward).sum(axis=1), obs[:, 15], obs[:, 16] > 0
    ball, rolling = obs[:, 19:22] / PLACE, obs[:, 22:25] / SPEED
    right = np.cross(up, forward)
    far = np.linalg.norm((ball - place)[:, :2], axis=1)
    meet = ball[:, :2] + rolling[:, :2] * np.minimum(far / REACH, AHEAD_S)[:, None]
    meet = np.clip(meet, [-4000, -5000], [4000, 5000])
    aim = GOAL - meet
    aim /= np.linalg.norm(aim, axis=1, keepdims=True)
    way = meet - place[:, :2]
    along = (way * aim).sum(axis=1)
    across = way - along[:, None] * aim
    behind = along > 0
    room = np.where(behind, np.minimum(0.45 * np.abs(along), 900.0), 900.0)
    target = meet - aim * room[:, None]
    beside = np.linalg.norm(across, axis=1, keepdims=True)
    dodge = np.where(beside > 1, -across / np.maximum(beside, 1.0), np.stack([aim[:, 1], -aim[:, 0]], axis=1))
    target += np.where(behind[:, None], 0.0, dodge * 350.0)  # around the ball, not through it
    target = np.clip(target, [-3900, -5000], [3900, 5000])
    inside = np.abs(place[:, 1]) > 5050  # leave a goal first
    target[inside] = np.stack([place[inside, 0] * 0.6, np.sign(place[inside, 1]) * 4500], axis=1)
    turn = target - place[:, :2]
    angle = np.arctan2((turn * right[:, :2]).sum(axis=1), (turn * forward[:, :2]).sum(axis=1))
    out[:, STEER] = np.sign(angle) * (np.abs(angle) > 0.08)
    out[:, THROTTLE] = 1.0
    sharp = np.abs(angle) > 1.7
    out[:, HANDBRAKE] = sharp & grounded & (speed > 400)
    out[:, BOOST] = (np.abs(angle) < 0.3) & (fuel > 0) & (speed < 2200) & grounded
    ahead, back = (_open(place[:, :2] + reach * forward[:, :2]) for reach in (330.0, -150.0))
    blocked = (speed < 250) & (up[:, 2] > 0.7) & ~ahead & back
    out[blocked, THROTTLE], out[blocked, BOOST], out[blocked, HANDBRAKE] = -1.0, 0.0, 0.0
    out[blocked, STEER] *= -1.0  # steering is reversed when driving backwards
    out[:, YAW] = out[:, STEER]
    still = np.abs(obs[:, 9:12] / SPEED).max(axis=1) < 200
    tipped = still & (up[:, 2] < 0.7)  # on its roof, on its side, or nose down against a wall
    out[tipped, THROTTLE], out[tipped, BOOST] = -1.0, 0.0
    leap = tipped & (np.sin(obs[:, LEFT] * 9000.0) > 0)  # pressed and released periodically
    out[leap] = 0.0
    out[leap, JUMP] = 1.0
    flying = ~grounded
    out[flying, ROLL] = -np.sign(right[flying, 2]) * (np.abs(right[flying, 2]) > 0.2)
    out[flying, PITCH] = -np.sign(forward[flying, 2]) * (np.abs(forward[flying, 2]) > 0.3)
    out[flying, HANDBRAKE] = 0.0
