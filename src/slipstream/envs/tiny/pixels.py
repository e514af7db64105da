"""Pixels: an image of noise with a bright square in one quarter, and the action names that quarter.

Each right answer earns 1. An episode has 8 steps, so the optimum is 8.
"""

from __future__ import annotations

from functools import partial
from math import isqrt

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec
from slipstream.envs.game import Labels
from slipstream.envs.tiny.vector import AGE, KEY, TinyVector, draw, pick
from slipstream.system.numba_compile import compiled, inlined

LENGTH = 8
QUARTERS = 4
BRIGHT, NOISE = 255, 63
NOISE_PLACE = 64
"""Index of the first random number used for noise; lower ones place the square."""


@inlined
def quarter_of(key: int, step_key: int) -> int:
    """Return the quarter of the square: 0 and 1 are above, 2 and 3 below, left before right."""
    return pick(key, step_key, 0, QUARTERS)


@inlined
def paint(key: int, step_key: int, side: int, image: Array) -> None:
    """Draw the noise, four pixels from each random number, and a square a sixth of the side wide."""
    for pixel in range(0, side * side, 4):
        bits = draw(key, step_key, NOISE_PLACE + pixel)
        for k in range(4):
            image[pixel + k] = (bits >> (8 * k)) & NOISE
    half, size = side // 2, side // 6
    quarter = quarter_of(key, step_key)
    top = quarter // 2 * half + pick(key, step_key, 1, half - size + 1)
    left = quarter % 2 * half + pick(key, step_key, 2, half - size + 1)
    for y in range(top, top + size):
        for x in range(left, left + size):
            image[y * side + x] = BRIGHT


@compiled
def write_observations(side: int, clock: Array, chosen: Array, vectors: Array, rows: Array, mask: Array) -> None:
    """Write the observations: one image for each chosen env."""
    for env in range(clock.shape[0]):
        if chosen[env] == 1:
            paint(clock[env, KEY], clock[env, AGE], side, rows[env])


@compiled
def write_rewards(clock: Array, action: Array, reward: Array) -> None:
    """Write the rewards: 1 for the right quarter."""
    for env in range(clock.shape[0]):
        reward[env] = action[env, 0] == quarter_of(clock[env, KEY], clock[env, AGE])


def make(variant: str, envs: int, *, first: int = 0, seed: int = 0) -> TinyVector:
    """Make the game with images of `variant` pixels on a side."""
    side = int(variant)
    spec = EnvSpec(
        name="pixels" if variant == "12" else f"pixels:{variant}",
        obs=ObsSpec((ObsField("", "image", (side, side, 1)),)),
        action=ActionSpec("discrete", (QUARTERS,)),
        exact=True,
    )
    return TinyVector(spec, envs, LENGTH, partial(write_observations, side), write_rewards, first=first, seed=seed)


def brightest_quarter(images: Array) -> Array:
    """The quarter of the brightest pixel of each of the images [rows, side * side]."""
    side = isqrt(images.shape[1])
    y, x = divmod(images.argmax(axis=1), side)
    quarters: Array = 2 * (y >= side // 2) + (x >= side // 2)
    return quarters


def oracle(obs: Array, action: ActionSpec, out: Array) -> None:
    """Write the optimal actions."""
    out[:, 0] = brightest_quarter(obs)


def labels(spec: EnvSpec) -> Labels:
    """The names of the quarters; images have no columns to name."""
    return Labels(("quarter",), (("top left", "top right", "bottom left", "bottom right"),), ())
