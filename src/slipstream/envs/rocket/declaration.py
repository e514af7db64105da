"""Rocket as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import Game, lazy, lazy_value

ROCKET = Game(
    summary="Rocket League by RocketSim, 1v1 to 3v3 (needs the extra `rocket`)",
    variants=("1v1", "2v2", "3v3", "mixed"),
    make=lazy("slipstream.envs.rocket.game:make"),
    scene=lazy("slipstream.envs.rocket.drawing:Stadium"),
    events=lazy("slipstream.envs.rocket.labels:find_events"),
    labels=lazy("slipstream.envs.rocket.labels:labels"),
    state_labels=lazy("slipstream.envs.rocket.drawing:labels"),
    tick_hz=120,
    scripted={name: lazy("slipstream.envs.rocket.scripted:act", name) for name in ("driver", "idle")},
    reference="scripted:driver",
    opponents=("scripted:idle", "scripted:driver"),
    expert="scripted:driver",
    preset="rocket",
    stages=(
        "1v1 vs scripted:idle",
        "1v1 vs scripted:driver",
        "2v2 vs scripted:driver",
        "3v3 vs scripted:driver",
        "3v3",
    ),
    scheme=lazy_value("slipstream.envs.rocket.rewards:SCHEME"),
)
