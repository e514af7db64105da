"""Train soccer with a reward term of your own: a plain function of one match, compiled with the rest.

`before` and `after` are the state of one match around a decision, `clock` is its clock after it; the columns are named
in `slipstream.envs.soccer.layout`. Team 0 attacks towards +x and holds the cars below `team_size`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import slipstream as ss
from slipstream.envs.soccer.layout import CAR_SIZE, CARS, LENGTH, X


def defend(before: Any, after: Any, clock: Any, car: int, team_size: int) -> float:
    """Pay for ground gained towards the own goal."""
    home = -LENGTH if car < team_size else LENGTH
    at = CARS + car * CAR_SIZE + X
    return (abs(before[at] - home) - abs(after[at] - home)) / LENGTH


with TemporaryDirectory() as folder:
    run = ss.train(
        "soccer",
        preset="smoke",
        run=Path(folder) / "run",
        terms={"defend": defend},
        rewards__weights={"defend": 0.05, "touch": 0.2},
    )
    rewards = {key: value for key, value in run.metrics()[-1].items() if key.startswith("reward/")}
    print("mean reward per step, term by term:")
    for key, value in rewards.items():
        print(f"  {key:<22}{value:+.5f}")
