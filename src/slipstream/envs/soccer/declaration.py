"""Soccer as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import Game, lazy, lazy_value

SOCCER = Game(
    summary="car soccer, 1v1 to 3v3: boost, drift, bounce, score",
    variants=("1v1", "2v2", "3v3", "mixed"),
    make=lazy("slipstream.envs.soccer.game:make"),
    scene=lazy("slipstream.envs.soccer.drawing:MatchScene"),
    events=lazy("slipstream.envs.soccer.labels:find_events"),
    controls=lazy("slipstream.envs.soccer.actions:keyboard_action"),
    labels=lazy("slipstream.envs.soccer.labels:labels"),
    state_labels=lazy("slipstream.envs.soccer.labels:state_labels"),
    tick_hz=60,
    scripted={name: lazy("slipstream.envs.soccer.scripted:act", name) for name in ("chaser", "keeper", "rule")},
    reference="scripted:rule",
    opponents=("scripted:chaser", "scripted:rule"),
    expert="scripted:rule",
    preset="soccer",
    stages=(
        "1v1 vs scripted:chaser",
        "1v1 vs scripted:rule",
        "2v2 vs scripted:rule",
        "3v3 vs scripted:rule",
        "3v3",
    ),
    scheme=lazy_value("slipstream.envs.soccer.rewards:SCHEME"),
)
