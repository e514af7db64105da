"""Rendering: distances computed by hand, equality with one ray per pixel, and distinct hues."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.treechop import layout as at
from slipstream.envs.treechop import raycast, rendering, scripted
from slipstream.envs.treechop.game import Treechop
from slipstream.envs.treechop.world import cell_at
from slipstream.system.numba_compile import compiled


@compiled
def cast_one(cells: Array, at: Array, way: Array, limit: float) -> tuple[float, int, int]:
    """One ray."""
    return raycast.cast(cells, at[0], at[1], at[2], way[0], way[1], way[2], np.float32(limit))


@compiled
def kinds(pictures: Array, out: Array) -> None:
    """What every pixel shows."""
    for k in range(pictures.shape[0]):
        for row in range(64):
            for column in range(64):
                out[k, row, column] = scripted.kind_of(pictures[k], row, column)


def slow_cast(cells: Array, start: Array, way: Array, limit: float) -> tuple[float, int]:
    """March in tiny steps until something is hit."""
    for t in np.arange(0, limit, 0.002):
        x, y, z = start + way * t
        if z <= 0:
            return t, raycast.GRASS
        if z < at.LEVELS:
            index = cell_at(int(np.floor(x)), int(np.floor(y)))
            if (((int(cells[index]) >> at.WOOD) | (int(cells[index]) >> at.GREEN)) >> int(z)) & 1:
                return t, index * at.LEVELS + int(z)
    return limit, raycast.SKY


@pytest.mark.slow
def test_rays_meet_what_tiny_steps_meet() -> None:
    """Leaping from tree to tree finds the same first block, grass or sky, at the same distance."""
    game = Treechop(1, seed=1)
    out = empty_rows(game.spec, 1)
    game.reset(out)
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(150):
        start = np.array([*rng.uniform(0, 64, 2), rng.uniform(0.5, 3.5)], np.float32)
        way = rng.normal(size=3).astype(np.float32)
        way[2] *= np.float32(0.3)
        way /= np.linalg.norm(way)
        if slow_cast(game.cells[0], start, way, 0.004)[1] >= 0:
            continue  # begun inside a block
        t, block, _ = cast_one(game.cells[0], start, way, 20.0)
        slow_t, slow_block = slow_cast(game.cells[0], start, way, 20.0)
        if block != slow_block or (block != raycast.SKY and abs(t - slow_t) > 0.01):
            wrong += 1
    assert wrong <= 1  # an edge that is grazed


def test_a_picture_is_that_of_one_ray_per_pixel() -> None:
    """Inferred pixels equal ray-cast pixels, except for a few edges."""
    game = Treechop(8, seed=2)
    out = empty_rows(game.spec, 8)
    game.reset(out)
    shown = np.zeros((8, 64, 64), np.uint8)
    kinds(out.obs, shown)
    own = np.zeros_like(shown)
    for env in range(8):
        s = game.state[env]
        yaw, pitch = np.radians(s[at.YAW]), np.radians(s[at.PITCH])
        for row in range(64):
            for column in range(64):
                up, right = ((31.5 - row) / 32, (column - 31.5) / 32) * np.array(0.7002075)
                ahead, dz = np.cos(pitch) + up * np.sin(pitch), up * np.cos(pitch) - np.sin(pitch)
                dx, dy = ahead * np.cos(yaw) - right * np.sin(yaw), ahead * np.sin(yaw) + right * np.cos(yaw)
                start = np.array([s[at.X], s[at.Y], s[at.Z] + 1.62], np.float32)
                _, block, _ = cast_one(game.cells[env], start, np.array([dx, dy, dz], np.float32), float(at.RANGE))
                bark = block >= 0 and (int(game.cells[env, block // 8]) >> (at.WOOD + block % 8)) & 1
                own[env, row, column] = (
                    scripted.GRASS if block == raycast.GRASS else scripted.BARK if bark else scripted.NO
                )
    seen = np.where(shown == scripted.LIT_BARK, scripted.BARK, shown)
    seen = np.where(seen == scripted.LIT_LEAF, scripted.NO, seen)
    assert (seen == own).mean() > 0.985


def test_the_width_of_a_trunk_follows_from_its_distance() -> None:
    """A block 1 metre wide whose face is 4 metres away covers 64 / (2 * 0.7002 * 4) = 11.4 pixels."""
    game = Treechop(1)
    out = empty_rows(game.spec, 1)
    game.reset(out)
    game.cells[:] = 64 | 64 << at.GAP_WOOD
    for cell in range(at.SIDE**2):
        far = max(abs((cell >> at.BITS) - 36), abs((cell & at.WRAP) - 32))
        game.cells[0, cell] = far | far << at.GAP_WOOD
    game.cells[0, cell_at(36, 32)] = 0b1111 << at.WOOD
    game.state[0, at.X], game.state[0, at.YAW] = 32.0, 0.0
    game.observe(out.obs)
    shown = np.zeros((1, 64, 64), np.uint8)
    kinds(out.obs, shown)
    bark = (shown[0] == scripted.BARK) | (shown[0] == scripted.LIT_BARK)
    assert bark[32].sum() in (11, 12) and bark[32, 26:38].sum() >= 11
    assert (shown[0, 32, 26:38] == scripted.LIT_BARK).any()  # within reach
    foot = np.flatnonzero(bark[:, 32]).max()  # 1.62 below the eye at 4 metres: 18.5 pixels below the middle
    assert abs(foot - (31.5 + 18.5)) <= 1
    game.state[0, at.X] = 29.0
    game.observe(out.obs)
    kinds(out.obs, shown)
    assert shown[0, 32, 32] == scripted.BARK  # 7 metres away: not lit


def test_nothing_is_left_of_the_picture_before() -> None:
    """An image does not depend on the previous one."""
    game = Treechop(2, seed=8)
    out = empty_rows(game.spec, 2)
    game.reset(out)
    kept = out.obs.copy()
    out.obs[:] = 7
    game.observe(out.obs)
    assert np.array_equal(out.obs, kept) and rendering.SAMPLES == (33, 33)
