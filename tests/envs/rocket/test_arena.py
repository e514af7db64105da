"""The arena that we make: a closed bowl with two goals, which the simulator plays on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from slipstream.envs.rocket import arena
from slipstream.envs.rocket.actions import TABLE, Controls


def test_every_face_points_inwards() -> None:
    """Seen from the middle of the arena, or from inside a goal, all corners go round anticlockwise."""
    triangles, corners = arena.build()
    faces = corners[triangles].astype(float)
    normals = np.cross(faces[:, 1] - faces[:, 0], faces[:, 2] - faces[:, 0])
    middles = faces.mean(axis=1)
    in_goal = (abs(middles[:, 1]) > arena.END) | (abs(abs(middles[:, 0]) - arena.GOAL_WIDTH) < 1e-3)
    eye = np.where(in_goal[:, None], middles * [0, 0, 0] + [0, 0, 300.0], [0, 0, 1000.0])
    eye[in_goal, 1] = np.sign(middles[in_goal, 1]) * (arena.END + 300)
    assert (((eye - middles) * normals).sum(axis=1) > 0).all()
    assert np.linalg.norm(normals, axis=1).min() > 1.0


def test_it_is_closed_but_for_floor_and_ceiling() -> None:
    """Every edge inside has two faces; those with one lie on the floor, on the ceiling or in a goal's mouth."""
    triangles, corners = arena.build()
    names = [tuple(np.round(corner, 1)) for corner in corners.tolist()]
    edges = Counter(
        frozenset((names[a], names[b]))
        for triangle in triangles.tolist()
        for a, b in zip(triangle, triangle[1:] + triangle[:1], strict=True)
    )
    for edge, count in edges.items():
        heights = {corner[2] for corner in edge}
        level = heights in ({0.0}, {round(arena.HEIGHT, 1)})
        mouth = all(
            (abs(abs(x) - arena.GOAL_WIDTH) < 1 and abs(y) <= arena.END + 1) or abs(abs(y) - arena.END) < 1
            for x, y, _ in edge
        )
        assert count == 2 or level or mouth, edge


def test_the_pieces_are_the_whole() -> None:
    """Every triangle is in exactly one piece, and each piece spans less than half of the arena."""
    whole, pieces = arena.build(), arena.split(*arena.build())

    def faces(triangles: np.ndarray, corners: np.ndarray) -> Counter[bytes]:
        return Counter(face.tobytes() for face in corners[triangles])

    assert sum((faces(*piece) for piece in pieces), Counter()) == faces(*whole)
    spans = [np.prod(np.ptp(corners, axis=0)) for _, corners in pieces]
    assert max(spans) < np.prod(np.ptp(whole[1], axis=0)) / 2 and len(pieces) > 8


def test_the_file_is_as_the_simulator_reads_it() -> None:
    """Two counts, the triangles, the corners in fiftieths."""
    triangles, corners = arena.build()
    data = arena.encode(triangles, corners)
    counts = np.frombuffer(data[:8], "<i4")
    assert counts.tolist() == [len(triangles), len(corners)]
    read = np.frombuffer(data[8 + 12 * len(triangles) :], "<f4").reshape(-1, 3)
    assert np.allclose(read * arena.UNIT, corners)


def test_the_table_has_ninety_different_choices() -> None:
    """24 of driving and 66 of jumping and flying."""
    assert TABLE.shape == (90, 8) and len({tuple(row) for row in TABLE.tolist()}) == 90
    assert (TABLE[:24, 5] == 0).all() and (TABLE[:24, 2] == 0).all()


def test_a_ball_meets_walls_and_scores() -> None:
    """It bounces off floor, walls, corners and ramps, stays inside, and counts in the goal; a car climbs the wall."""
    simulator = pytest.importorskip("RocketSim", reason='needs rocketsim (pip install "slipstream[rocket]")')
    arena.load()
    assert arena.load() == arena.load()
    field = simulator.Arena(simulator.GameMode.SOCCAR)

    def shoot(place: tuple[float, ...], speed: tuple[float, ...], ticks: int = 600) -> np.ndarray:
        ball = field.ball.get_state()
        ball.pos, ball.vel, ball.ang_vel = simulator.Vec(*place), simulator.Vec(*speed), simulator.Vec(0, 0, 0)
        field.ball.set_state(ball)
        seen = []
        for _ in range(ticks):
            field.step(1)
            seen.append(field.ball.get_state().pos.as_tuple())
        return np.array(seen)

    for speed in ((3000, 0, 500), (1800, 2500, 300), (2000, -2600, 900), (0, 3500, 1800)):
        path = shoot((1500, 0, 200), speed)
        assert (abs(path) < [arena.SIDE, arena.END, arena.HEIGHT + 5]).all()
        assert (abs(path[:, 0]) + abs(path[:, 1]) < arena.CORNER).all() and (path[:, 2] > 80).all()
    assert field.blue_score == field.orange_score == 0
    shoot((0, 3000, 100), (0, 2500, 0), 240)
    assert (field.blue_score, field.orange_score) == (1, 0)
    shoot((300, -3000, 100), (0, -2500, 0), 240)
    assert (field.blue_score, field.orange_score) == (1, 1)
    car = field.add_car(simulator.Team.BLUE)
    state = car.get_state()
    state.pos, state.rot_mat, state.boost = simulator.Vec(0, 1500, 17), simulator.Angle(yaw=0.0).as_rot_mat(), 100.0
    car.set_state(state)
    car.set_controls(Controls(simulator, "continuous").of(np.array([[1, 0, 0, 0, 0, 0, 1, 0]], np.float32))[0])
    heights = []
    for _ in range(60):
        field.step(8)
        heights.append(car.get_state().pos.z)
    assert max(heights) > 1500
