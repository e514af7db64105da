"""Rendering: distances computed by hand, equality with one ray per pixel, sizes, and distinct hues."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs import native
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.treechop import raycast, scripted
from slipstream.envs.treechop.columns import EYE, LEVELS, RANGE, SIDE, TOP, Seen, World
from slipstream.envs.treechop.game import game as treechop
from slipstream.envs.treechop.minerl_spaces import Treechop
from slipstream.envs.treechop.raycast import cast
from slipstream.envs.treechop.rendering import OPENING
from slipstream.envs.treechop.scripted import kind_of
from treechop_games import (
    NEW,
    begun,
    clear,
    images,
    leaves,
    logs,
    meadow,
    place,
    put,
    rock,
    solid,
    worlds,
)

rays = native.Game("rays", max_decisions=1000)
"""One ray in each env, in the world of a game of treechop."""
rays.variant("one", scalars=1, size=64)


class Ray(native.State):
    """A ray, and what it hits."""

    x: float
    y: float
    z: float
    dx: float
    dy: float
    dz: float
    limit: float
    t: float
    block: int
    face: int


class Kind(native.Action):
    """What a pixel shows."""

    kind: float = native.box(0.0, 9.0)


@rays.reset
def reset(s: Ray) -> None:
    """A ray straight down."""
    s.dz = -1.0


@rays.step
def step(s: Ray, w: World, action: Kind) -> None:
    """Cast the ray."""
    t, block, face = cast(w, s.x, s.y, s.z, s.dx, s.dy, s.dz, s.limit)
    s.t, s.block, s.face = t, block, face


@rays.observe
def observe(s: Ray, seen: Seen) -> None:
    """Nothing is seen."""
    seen.scalars[0] = s.t


@rays.player
def classify(seen: Seen, action: Kind) -> None:
    """What the pixel shows whose row and column are written before the image."""
    action.kind = kind_of(seen, int(seen.scalars[0]), int(seen.scalars[1]))


def cast_all(world: Array, starts: Array, ways: Array, limit: float) -> tuple[Array, Array]:
    """The distance and the block of each ray in one world."""
    vector: NativeVector = rays.vector(len(starts))
    out = empty_rows(vector.spec, len(starts))
    vector.reset(out)
    assert vector.world is not None
    vector.world[:] = world.reshape(-1)
    for name, values in zip(("x", "y", "z"), starts.T, strict=True):
        vector.column(name)[:] = values
    for name, values in zip(("dx", "dy", "dz"), ways.T, strict=True):
        vector.column(name)[:] = values
    vector.column("limit")[:] = limit
    vector.step(np.zeros((len(starts), 1), np.float32), out)
    return vector.column("t").copy(), vector.column("block").astype(int)


def kinds(image: Array) -> Array:
    """What every pixel of an image of 64 x 64 shows, by the lumberjack's reading of hues."""
    spec = rays.spec()
    obs, action = np.zeros((64 * 64, spec.obs.width), np.uint8), np.zeros((64 * 64, 1), np.float32)
    parts = spec.obs.split(obs)
    parts["numbers"][:] = np.indices((64, 64)).reshape(2, -1).T
    parts["pov"][:] = image
    rays.act("classify", obs, spec.action.kind, action)
    return action.reshape(64, 64).astype(int)


def directions(game: Treechop, env: int, size: int = 64) -> Iterator[Array]:
    """The direction of the ray of every pixel, row by row."""
    yaw, pitch = (np.radians(float(game.column(name)[env])) for name in ("yaw", "pitch"))
    across = ((np.arange(size) + 0.5) * 2 / size - 1) * OPENING
    for up in -across:
        ahead, dz = np.cos(pitch) + up * np.sin(pitch), up * np.cos(pitch) - np.sin(pitch)
        north, east = ahead * np.cos(yaw) - across * np.sin(yaw), ahead * np.sin(yaw) + across * np.cos(yaw)
        yield np.stack([north, east, np.full(size, dz)], axis=1).astype(np.float32)


def slow_cast(game: Treechop, start: Array, way: Array, limit: float) -> tuple[float, int]:
    """March in tiny steps until something is hit."""
    found = solid(game) | leaves(game)
    for t in np.arange(0, limit, 0.002):
        x, y, z = start + way * t
        if z <= 0:
            return t, raycast.GRASS
        if z < TOP:
            ix, iy = int(np.floor(x)) % SIDE, int(np.floor(y)) % SIDE
            if (int(found[ix, iy]) >> int(z)) & 1:
                return t, (ix * SIDE + iy) * LEVELS + int(z)
    return limit, raycast.SKY


@pytest.mark.slow
@pytest.mark.parametrize("task", ["dense", "rough"])
def test_rays_meet_what_tiny_steps_meet(task: str) -> None:
    """Leaping over empty columns finds the same first block, grass or sky, at the same distance."""
    game, _ = begun(variant=task, seed=1)
    rng, starts, ways = np.random.default_rng(0), [], []
    while len(starts) < 150:
        start = np.array([*rng.uniform(0, 64, 2), rng.uniform(0.5, 3.5)], np.float32)
        way = rng.normal(size=3).astype(np.float32)
        way[2] *= np.float32(0.3)
        if slow_cast(game, start, way, 0.004)[1] < 0:  # not begun inside a block
            starts.append(start)
            ways.append(way / np.linalg.norm(way))
    found = cast_all(worlds(game)[0], np.array(starts), np.array(ways), 20.0)
    wrong = 0
    for start, way, t, block in zip(starts, ways, *found, strict=True):
        slow_t, slow_block = slow_cast(game, start, way, 20.0)
        wrong += block != slow_block or (block != raycast.SKY and abs(t - slow_t) > 0.01)
    assert wrong <= 1  # an edge that is grazed
    assert len(set(found[1].tolist())) > 40


@pytest.mark.parametrize("task", ["dense", "rough"])
def test_a_picture_is_that_of_one_ray_per_pixel(task: str) -> None:
    """Inferred pixels equal ray-cast pixels, except for a few edges."""
    game, out = begun(8, task, seed=2)
    shown = np.stack([kinds(image) for image in images(game, out.obs)])
    own = np.zeros_like(shown)
    for env in range(8):
        world = worlds(game)[env]
        trunks, hard, rocks = logs(game, env).reshape(-1), solid(game, env).reshape(-1), rock(game, env).reshape(-1)
        eye = np.array([*(float(game.column(name)[env]) for name in "xyz")], np.float32) + np.float32([0, 0, EYE])
        ways = np.concatenate(list(directions(game, env)))
        _, block = cast_all(world, np.tile(eye, (len(ways), 1)), ways, RANGE)
        column, bit = block // LEVELS, 1 << block % LEVELS
        bark = (block >= 0) & (trunks[column] & bit != 0)
        grass = (block == raycast.GRASS) | ((block >= 0) & ~bark & (hard[column] & bit != 0) & ~rocks[column])
        own[env] = np.select([bark, grass], [scripted.BARK, scripted.GRASS], scripted.NO).reshape(64, 64)
    seen = np.where(shown == scripted.LIT_BARK, scripted.BARK, shown)
    seen = np.where(seen == scripted.LIT_LEAF, scripted.NO, seen)
    assert (seen == own).mean() > 0.985


def test_the_width_of_a_trunk_follows_from_its_distance() -> None:
    """A block 1 metre wide whose face is 4 metres away covers 64 / (2 * 0.7002 * 4) = 11.4 pixels."""
    game, out = meadow()
    put(game, 36, 32, logs=0b1111)
    place(game, x=32.0)
    game.observe(out.obs)
    shown = kinds(images(game, out.obs)[0])
    bark = (shown == scripted.BARK) | (shown == scripted.LIT_BARK)
    assert bark[32].sum() in (11, 12) and bark[32, 26:38].sum() >= 11
    assert (shown[32, 26:38] == scripted.LIT_BARK).any()  # within reach
    foot = np.flatnonzero(bark[:, 32]).max()  # 1.62 below the eye at 4 metres: 18.5 pixels below the middle
    assert abs(foot - (31.5 + 18.5)) <= 1
    place(game, x=29.0)
    game.observe(out.obs)
    assert kinds(images(game, out.obs)[0])[32, 32] == scripted.BARK  # 7 metres away: not lit


def test_nothing_is_left_of_the_picture_before() -> None:
    """An image does not depend on the previous one; one ray is cast for four pixels, and those at the edge."""
    game, out = begun(2, seed=8)
    kept = out.obs.copy()
    out.obs[:] = 7
    game.observe(out.obs)
    assert np.array_equal(out.obs, kept)
    for size in (64, 128):
        scratch = treechop.classes("dense", {"size": size}).scratch
        assert scratch is not None
        assert {field.shape for field in scratch.fields.values()} == {(size // 2 + 1, size // 2 + 1)}


@pytest.mark.parametrize("task", ["dense", "rough"])
def test_a_large_picture_shows_the_same_scene(task: str) -> None:
    """The mean of 2 x 2 of 128 x 128 pixels is near the pixel of 64 x 64; every second pixel shows the same kind."""
    small, out = begun(4, task, seed=5)
    large, more = begun(4, task, seed=5, options={"size": 128})
    assert large.spec.obs.fields[0].shape == (128, 128, 3) and small.spec.obs.fields[0].shape == (64, 64, 3)
    assert np.array_equal(worlds(small), worlds(large))
    one, two = images(small, out.obs).astype(int), images(large, more.obs).astype(int)
    means = two.reshape(4, 64, 2, 64, 2, 3).mean((2, 4))
    off, turned = np.abs(means - one).mean(), np.abs(np.roll(means, 8, axis=2) - one).mean()
    assert off < 10 and off < 0.3 * turned, "as the same view, and unlike one turned by 8 pixels"
    for env in range(4):
        same = kinds(one[env]) == kinds(two[env, ::2, ::2])
        assert same.mean() > 0.95
    assert len(np.unique(two[0, 1::2, 1::2] - two[0, ::2, ::2])) > 20, "the other pixels are pictured, too"


def test_hills_and_rocks_have_hues_of_their_own() -> None:
    """The top of a hill is green as grass, its side darker and green, a rock grey; none looks like bark or a leaf."""
    game, out = meadow()
    colours = {}
    for name, bits in {"hill": {"ground": 2}, "rock": {"ground": 2, "rock": True}, "log": {"logs": 0b11}}.items():
        clear(game)
        put(game, 36, 32, **bits)
        game.observe(out.obs)
        colours[name] = images(game, out.obs)[0, 34, 32].astype(int)
        assert (kinds(images(game, out.obs)[0])[34, 32] in (scripted.BARK, scripted.LIT_BARK)) == (name == "log")
    r, g, b = colours["hill"]
    assert g > r > b
    r, g, b = colours["rock"]
    assert b >= r == g > 0.9 * b
    place(game, z=3.0)
    put(game, 36, 32, ground=3)
    game.observe(out.obs)
    top, grass = images(game, out.obs)[0, 42, 32], images(game, out.obs)[0, 60, 32]  # 4 and 1.6 metres ahead
    for pixel in (top, grass):
        assert pixel[1] > pixel[0] > pixel[2]
    for task in NEW:
        hilly, rows = begun(4, task, seed=1)
        place(hilly, pitch=30.0)
        hilly.observe(rows.obs)
        assert all((kinds(image) == scripted.GRASS).mean() > 0.2 for image in images(hilly, rows.obs))
