"""Games from above: soccer and kart as pictures, drawn from their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from slipstream.core.contracts import Array

GRASS, ASPHALT, WHITE, BLUE, ORANGE, YELLOW = (
    (38, 84, 52), (96, 96, 100), (245, 245, 245), (60, 130, 246), (249, 140, 40), (250, 220, 70)
)  # fmt: skip
PIXELS = 240
"""The width of a picture."""
Disc = tuple[float, float, float, tuple[int, int, int]]
"""Where, how large, in which colour."""


def draw(game: str, state: Mapping[str, Array]) -> Array | None:
    """A picture [height, width, 3] of the first env of a snapshot; None for games that have none."""
    if game == "soccer":
        return soccer(state["state"][0])
    return kart(state["state"][0], state["tracks"][0]) if game == "kart" else None


def paint(discs: Iterable[Disc], centre: tuple[float, float], reach: tuple[float, float]) -> Array:
    """Coloured discs on grass, `reach` to each side of the centre, y upwards."""
    height = round(PIXELS * reach[1] / reach[0])
    y, x = np.linspace(reach[1], -reach[1], height)[:, None], np.linspace(-reach[0], reach[0], PIXELS)
    frame = np.full((height, PIXELS, 3), GRASS, np.uint8)
    for disc_x, disc_y, radius, colour in discs:
        frame[(x + centre[0] - disc_x) ** 2 + (y + centre[1] - disc_y) ** 2 <= radius**2] = colour
    return frame


def soccer(state: Array) -> Array:
    """Soccer from above: pads, cars with their noses, the ball; you are blue and attack to the right."""
    from slipstream.envs.soccer import layout as at
    from slipstream.envs.soccer.physics import pad_x, pad_y

    length, width = float(at.LENGTH), float(at.WIDTH)
    pads = [(sign * pad_x(pair), sign * pad_y(pair)) for pair in range(at.PAIRS) for sign in (1, -1)]
    discs: list[Disc] = [(*pads[k], 0.9, YELLOW) for k in range(at.PADS) if state[at.PAD + k] <= 0]
    for side, colour in ((-1, BLUE), (1, ORANGE)):
        discs += [(side * (length + 1), float(y), 0.8, colour) for y in np.linspace(-at.GOAL_WIDTH, at.GOAL_WIDTH, 15)]
        for x in np.linspace(float(at.DIAGONAL) - width, length, 9):
            discs += [(side * x, y, 0.4, ASPHALT) for y in (float(at.DIAGONAL) - x, x - float(at.DIAGONAL))]
    cars = state[at.CARS :].reshape(-1, at.CAR_SIZE)[: at.cars_in(state)]
    for number, car in enumerate(cars):
        colour = BLUE if number < len(cars) // 2 else ORANGE
        discs.append((car[at.X], car[at.Y], float(at.CAR_RADIUS), colour))
        discs.append((car[at.X] + 2 * car[at.HX], car[at.Y] + 2 * car[at.HY], 0.8, WHITE))
    discs.append((state[at.X], state[at.Y], float(at.BALL_RADIUS), WHITE))
    return paint(discs, (0.0, 0.0), (length + float(at.GOAL_DEPTH), width))


def kart(state: Array, track: Array) -> Array:
    """The track around a kart, which stays in the middle."""
    from slipstream.envs.kart import layout as at

    here = (float(state[at.X]), float(state[at.Y]))
    near = track[np.hypot(track[:, at.X] - here[0], track[:, at.Y] - here[1]) < 90.0]
    discs: list[Disc] = [(p[at.X], p[at.Y], float(p[at.WIDE]), ASPHALT) for p in near]
    discs += [(p[at.X], p[at.Y], 0.5, WHITE) for p in near[::2]]
    discs += [(*here, 1.6, BLUE), (here[0] + 2 * state[at.HX], here[1] + 2 * state[at.HY], 0.8, YELLOW)]
    return paint(discs, here, (64.0, 40.0))
