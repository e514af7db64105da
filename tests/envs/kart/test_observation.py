"""Kart's observations, compared with geometry computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kart_laps import HEADING, POINT, SEEN, begun, columns, fact, hold, looks, place_cars, set_columns, tracks
from slipstream.envs.kart.columns import DISTANCES, POINTS
from slipstream.envs.kart.observation import INV_BEND, INV_WIDE, NEAR


def test_the_way_ahead_is_seen_in_the_cars_frame() -> None:
    """Each point ahead, rotated back by the heading, lies on the centre line at its distance."""
    game, out = begun(40, random_starts=1.0, seed=2)
    cars = columns(game, "x", "y", "hx", "hy", "segment", "along")
    for car, track, per_metre, seen in zip(cars, tracks(game), fact(game, "per_metre"), looks(out.obs), strict=True):
        own_x, own_y, hx, hy, segment, along = car
        place = segment + along + np.array(DISTANCES) * per_metre
        turned = np.arange(POINTS + 1)
        closed = np.concatenate([track, track[:1]])
        x, y, bend, wide = (
            np.interp(place % POINTS, turned, closed[:, POINT.index(name)]) for name in ("x", "y", "bend", "half_width")
        )
        dx, dy = x - own_x, y - own_y
        assert seen[:, 0] / NEAR == pytest.approx(dx * hx + dy * hy, abs=0.02)
        assert seen[:, 1] / NEAR == pytest.approx(dy * hx - dx * hy, abs=0.02)
        assert seen[:, 2] == pytest.approx(bend * INV_BEND, abs=1e-3)
        assert seen[:, 3] == pytest.approx(wide * INV_WIDE, abs=1e-3)


def test_motion_and_place() -> None:
    """Speeds, offset, heading, remaining lap and last controls are in the documented columns."""
    game, out = begun(1)
    place_cars(game, offset=2.0, slope=0.75)
    ((hx, hy),) = columns(game, *HEADING)
    set_columns(game, vx=hx * 10 - hy * 2, vy=hy * 10 + hx * 2)
    seen = []
    for _ in range(2):
        game.observe(out.obs)
        seen.append({name: float(out.obs[0, column]) for name, column in SEEN.items()})
        hold(game, out, 0.3, 0.7)
    first, second = seen
    assert first["speed.ahead"] == pytest.approx(10 / 33, abs=1e-4)
    assert first["speed.left"] == pytest.approx(2 / 8, abs=1e-4)
    assert (first["heading.sine"], first["heading.cosine"]) == pytest.approx((0.6, 0.8), abs=1e-3)
    assert (first["steer"], first["throttle"]) == (0, 0)
    assert (second["steer"], second["throttle"]) == pytest.approx((0.3, 0.7))
    ((offset, edge),) = columns(game, "offset", "edge")
    assert first["offset"] == pytest.approx(2 / (8 * first["half_width"]), abs=1e-3)
    assert second["offset"] == pytest.approx(offset / edge, abs=0.2) and second["offset"] > 0.2
    assert first["lap_left"] == pytest.approx(1, abs=1e-6)
    assert 0.99 < second["lap_left"] < 1 and second["on_asphalt"] == 1


def test_everything_is_of_size_one() -> None:
    """Over random starts every column has a moderate size and varies."""
    game, out = begun(2000, random_starts=1.0)
    for _ in range(20):
        game.step(np.random.default_rng(1).uniform(-1, 1, (2000, 2)).astype(np.float32), out)
    assert np.abs(out.obs).max() < 3 and np.quantile(np.abs(out.obs), 0.99) < 1.3
    assert (out.obs.std(0) > 0.01).all()


def test_observations_have_no_jumps() -> None:
    """Observations of a slow car change little from step to step, past every point of the track."""
    game, out = begun(8, seed=5)
    last = out.obs.copy()
    for _ in range(300):
        hold(game, out, 0.0, 0.02)
        motion = np.abs(out.obs - last)
        motion[:, [SEEN["steer"], SEEN["throttle"]]] = 0
        inside = np.abs(game.column("offset")) < game.column("edge") - 0.1
        assert motion[inside].max() < 0.05
        last = out.obs.copy()
