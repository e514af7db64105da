"""Rocket's reward terms, their weights and groups.

| term | value |
|---|---|
| `goal` | +1 for a goal of the own team, -1 for a goal of the opponents |
| `win` | +1 for a won match, -1 for a lost one, when it ends |
| `touch` | the change of the ball's velocity by a hit, 1 = 6,000 uu/s |
| `ball_to_goal` | progress of the ball from the own goal to the opponents' goal; telescopes, zero-sum |
| `car_to_ball` | progress of the car towards the ball's last position, in half arena lengths |
| `boost_gain` | boost picked up, 1 = a full tank |
| `aerial` | the height of a ball hit in the air, 1 = the ceiling |
| `demo` | +1 for demolishing a car, -1 for being demolished |
| `speed` | the car's speed in each step, 1 = 2,300 uu/s |
"""

from __future__ import annotations

from slipstream.envs.rewards import RewardScheme

TERMS = ("goal", "win", "touch", "ball_to_goal", "car_to_ball", "boost_gain", "aerial", "demo", "speed")
SCHEME = RewardScheme(
    TERMS,
    {
        "sparse": {"goal": 1.0, "win": 1.0},
        "dense": {"goal": 1.0, "win": 0.5, "touch": 0.2, "ball_to_goal": 0.6, "car_to_ball": 0.1, "boost_gain": 0.05},
    },
    groups={
        "sparse": ("goal", "win"),
        "ball": ("touch", "ball_to_goal", "aerial"),
        "positioning": ("car_to_ball", "speed"),
        "boost": ("boost_gain",),
        "bumps": ("demo",),
    },
    potentials=("ball_to_goal", "car_to_ball"),
)
