"""Behaviour statistics of each car, computed by hand on constructed states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Rows, empty_rows
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer.game import game as soccer
from soccer_matches import BOOST, COAST, begun, cornered, place_ball, place_car, set_score

BEHAVIOURS = (
    *("goals", "conceded", "touches", "shots", "saves"),
    *("possession", "boost_used", "speed", "ball_distance"),
)


def arranged(decisions: int = 1) -> tuple[NativeVector, Rows]:
    """A match that team 0 leads and that ends after `decisions`, with both cars at rest near their corners."""
    game, out = cornered()
    set_score(game, (4, 1))
    game.column("ticks_left")[:] = 4 * decisions
    return game, out


def statistics(
    game: NativeVector,
    out: Rows,
    decisions: int = 1,
    actions: tuple[int, int] = (COAST, COAST),
    change: Callable[[int], None] = lambda decision: None,
) -> list[dict[str, float]]:
    """The statistics of both cars at the end of the match; `change` may set the state before each decision."""
    for decision in range(decisions):
        change(decision)
        assert not out.terminated.any()
        game.step(np.array(actions, np.int32)[:, None], out)
    assert out.terminated.all()
    return [dict(zip(BEHAVIOURS, map(float, row), strict=True)) for row in out.behaviour]


def test_goals_are_the_teams() -> None:
    """The goals of one team are conceded by the other."""
    game, out = arranged()
    first, second = statistics(game, out)
    assert (first["goals"], first["conceded"], second["goals"], second["conceded"]) == (4, 1, 1, 4)
    assert game.spec.behaviours == BEHAVIOURS


@pytest.mark.parametrize(
    ("car", "ball", "expected"),
    [
        pytest.param((-5, 0, 25, 0, 1, 0), (0, 0, 0, 0), {"touches": 1, "shots": 1, "saves": 0}, id="shot"),
        pytest.param((0, -5, 0, 25, 0, 1), (0, 0, 0, 0), {"touches": 1, "shots": 0, "saves": 0}, id="across"),
        pytest.param((5, 0, -25, 0, -1, 0), (0, 0, 0, 0), {"touches": 1, "shots": 0, "saves": 0}, id="homewards"),
        pytest.param(
            (-27, 0, 25, 0, 1, 0), (-22, 0, -9, 0), {"touches": 1, "shots": 1, "saves": 1}, id="save and shot"
        ),
        pytest.param((-27, -5, 0, 25, 0, 1), (-27, 0, -9, 0), {"touches": 1, "shots": 0, "saves": 1}, id="save"),
        pytest.param((-27, -5, 0, 25, 0, 1), (-27, 0, 0, 9), {"touches": 1, "shots": 0, "saves": 0}, id="no danger"),
        pytest.param((-30, -10, 0, 0, 1, 0), (-37, 0, -40, 0), {"touches": 0, "shots": 0, "saves": 0}, id="no touch"),
    ],
)
def test_touches_shots_and_saves(car: Any, ball: Any, expected: dict[str, float]) -> None:
    """A shot would roll into the opponents' goal; a save stops a ball that would have rolled into the own goal."""
    game, out = arranged()
    place_car(game, 0, *car)
    place_ball(game, *ball)
    first, second = statistics(game, out)
    assert {name: first[name] for name in expected} == expected
    assert all(second[name] == 0 for name in expected)


def test_a_goal_is_a_shot_of_whoever_sent_it() -> None:
    """A ball hit over the line in the same decision is a shot as well; an own goal is none."""
    for sign, shots in ((1, 1), (-1, 0)):
        game, out = arranged()
        place_ball(game, sign * 37, 0, sign * 10, 0)
        place_car(game, 0, sign * 33, 0, sign * 30, 0, sign, 0)
        first, _ = statistics(game, out)
        assert (first["touches"], first["shots"], first["goals"] - 4) == (1, shots, sign > 0)


def test_possession_goes_to_the_team_that_hit_last() -> None:
    """Team 0 has possession from the fifth to the eighth of ten decisions, team 1 in the last two."""
    game, out = arranged(10)

    def change(decision: int) -> None:
        if decision == 4:
            place_car(game, 0, -5, 0, 25, 0, 1, 0)
        if decision == 5:
            place_car(game, 0, -25, -18, 0, 0, 1, 0)
        if decision == 8:
            place_ball(game, 0, 0, 0, 0)
            place_car(game, 1, 5, 0, -25, 0, -1, 0)

    first, second = statistics(game, out, 10, change=change)
    assert (first["possession"], second["possession"]) == (pytest.approx(0.4), pytest.approx(0.2))


def test_possession_after_simultaneous_hits_and_kick_offs() -> None:
    """Hits of both teams in one decision change nothing, and a goal ends possession."""
    game, out = arranged(4)
    place_car(game, 0, -5, 0, 25, 0, 1, 0)
    place_car(game, 1, 5, 0, -25, 0, -1, 0)

    def part(decision: int) -> None:
        if decision == 1:
            place_car(game, 0, -25, -18, 0, 0, 1, 0)
            place_car(game, 1, 25, 18, 0, 0, -1, 0)

    first, second = statistics(game, out, 4, change=part)
    assert (first["touches"], second["touches"]) == (1, 1)
    assert first["possession"] == second["possession"] == 0

    game, out = arranged(5)

    def change(decision: int) -> None:
        if decision == 0:
            place_ball(game, 37, 0, 10, 0)
            place_car(game, 0, 33, 0, 30, 0, 1, 0)

    first, _ = statistics(game, out, 5, change=change)
    assert first["goals"] == 5 and first["possession"] == pytest.approx(1 / 5)


def test_boost_is_counted_in_tanks() -> None:
    """Ten decisions of four ticks use 40 / 180 of a tank; an empty tank uses nothing; a pad does not reduce the use."""
    game, out = arranged(10)
    game.column("cars.0.boost")[:] = 1.0
    first, second = statistics(game, out, 10, (BOOST, BOOST))
    assert first["boost_used"] == pytest.approx(40 / 180, rel=1e-4) and second["boost_used"] == 0
    game, out = arranged()
    place_car(game, 0, 0, 20)
    game.column("cars.0.boost")[:] = 0.5
    first, _ = statistics(game, out, 1, (BOOST, COAST))
    assert first["boost_used"] == pytest.approx(4 / 180, rel=1e-4)


def test_speed_and_distance_are_means() -> None:
    """A car set to 10 units/s before each decision has 10 * 0.97 ** 4 after it; a car at rest stays."""
    game, out = arranged(3)

    def change(decision: int) -> None:
        place_car(game, 0, -25, -18, 10, 0)

    first, second = statistics(game, out, 3, change=change)
    assert first["speed"] == pytest.approx(10 * 0.97**4, rel=1e-4)
    assert second["speed"] == 0 and second["ball_distance"] == pytest.approx(np.hypot(25, 18), rel=1e-5)


def test_statistics_start_at_zero_in_every_match() -> None:
    """Statistics belong to one match, are reported at its end only, and are part of a snapshot."""
    game, out = begun(4, match_seconds=2.0, seed=1)
    other, again = soccer.vector(4, match_seconds=2.0, seed=5), empty_rows(game.spec, 4)
    rng = np.random.default_rng(0)
    seen = 0
    for step in range(150):
        action = rng.integers(0, 18, (8, 1)).astype(np.int32)
        if step == 20:
            other.restore(game.snapshot())
        game.step(action, out)
        if step >= 20:
            other.step(action, again)
            ended = out.terminated == 1
            assert np.array_equal(out.behaviour[ended], again.behaviour[ended])
            seen += int(ended.sum())
            assert not game.behaviour[ended.reshape(4, 2)].any()
            assert ended.all() or game.behaviour[~ended.reshape(4, 2)].any()
    assert seen > 8
    game.reset(out)
    assert not game.behaviour.any()
