"""Train soccer with a reward term of your own: a plain function of one match, compiled with the rest.

`before` and `after` are the state of one match around a decision, whose columns `slipstream.envs.soccer.columns` names;
`me` is the agent that is paid. Team 0 attacks towards +x.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import slipstream as ss
from slipstream.envs.soccer.columns import LENGTH, State, car_of, side_of


def defend(before: State, after: State, me: int) -> float:
    """Pay for ground gained towards the own goal."""
    home = -LENGTH * side_of(me)
    old = before.cars[car_of(before, me)]
    new = after.cars[car_of(after, me)]
    return (abs(old.x - home) - abs(new.x - home)) / LENGTH


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
