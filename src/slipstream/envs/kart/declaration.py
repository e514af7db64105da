"""Kart as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import Game, lazy, lazy_value

KART = Game(
    summary="a lap against the clock, on a new track every time",
    variants=("mixed", "easy", "hard"),
    make=lazy("slipstream.envs.kart.game:make"),
    scene=lazy("slipstream.envs.kart.drawing:LapScene"),
    events=lazy("slipstream.envs.kart.labels:find_events"),
    controls=lazy("slipstream.envs.kart.actions:keyboard_action"),
    labels=lazy("slipstream.envs.kart.labels:labels"),
    state_labels=lazy("slipstream.envs.kart.labels:state_labels"),
    tick_hz=60,
    scripted={name: lazy("slipstream.envs.kart.scripted:act", name) for name in ("expert", "cruiser")},
    expert="scripted:expert",
    preset="kart",
    stages=("level 1", "level 2", "level 3", "level 4", "level 5"),
    scheme=lazy_value("slipstream.envs.kart.rewards:SCHEME"),
)
