"""Pixels: an image with a bright square in one quarter, which the action names; what else there is is noise.

Every right answer earns 1, there are 8 questions in an episode, and so the optimum is 8.
"""

from __future__ import annotations

from functools import partial
from math import isqrt

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec
from slipstream.envs.tiny.scenes import AGE, KEY, Scenes, draw, pick
from slipstream.system.numba_compile import compiled, inlined

LENGTH = 8
QUARTERS = 4
BRIGHT, NOISE = 255, 63
NOISE_PLACE = 64
"""The first of a turn's numbers that are noise; those before are for what the scene means."""


@inlined
def quarter_of(key: int, turn: int) -> int:
    """Return where the square is: 0 and 1 above, 2 and 3 below."""
    return pick(key, turn, 0, QUARTERS)


@inlined
def paint(key: int, turn: int, side: int, image: Array) -> None:
    """Draw the noise, four pixels from each number, and the square, a sixth of the side wide."""
    for pixel in range(0, side * side, 4):
        bits = draw(key, turn, NOISE_PLACE + pixel)
        for k in range(4):
            image[pixel + k] = (bits >> (8 * k)) & NOISE
    half, size = side // 2, side // 6
    quarter = quarter_of(key, turn)
    top = quarter // 2 * half + pick(key, turn, 1, half - size + 1)
    left = quarter % 2 * half + pick(key, turn, 2, half - size + 1)
    for y in range(top, top + size):
        for x in range(left, left + size):
            image[y * side + x] = BRIGHT


@compiled
def show(side: int, clock: Array, chosen: Array, vectors: Array, rows: Array, mask: Array) -> None:
    """Paint the images."""
    for env in range(clock.shape[0]):
        if chosen[env] == 1:
            paint(clock[env, KEY], clock[env, AGE], side, rows[env])


@compiled
def pay(clock: Array, action: Array, reward: Array) -> None:
    """Pay for the right quarter."""
    for env in range(clock.shape[0]):
        reward[env] = action[env, 0] == quarter_of(clock[env, KEY], clock[env, AGE])


def make(variant: str, envs: int, *, first: int = 0, seed: int = 0) -> Scenes:
    """Make the game with images of so many pixels on a side."""
    side = int(variant)
    spec = EnvSpec(
        name="pixels" if variant == "12" else f"pixels:{variant}",
        obs=ObsSpec((ObsField("", "image", (side, side, 1)),)),
        action=ActionSpec("discrete", (QUARTERS,)),
        exact=True,
    )
    return Scenes(spec, envs, LENGTH, partial(show, side), pay, first=first, seed=seed)


def brightest_quarter(images: Array) -> Array:
    """The quarter of the brightest pixel of each of the images [rows, side * side]."""
    side = isqrt(images.shape[1])
    y, x = divmod(images.argmax(axis=1), side)
    quarters: Array = 2 * (y >= side // 2) + (x >= side // 2)
    return quarters


def oracle(obs: Array, kind: str, out: Array) -> None:
    """Play the optimum."""
    out[:, 0] = brightest_quarter(obs)
