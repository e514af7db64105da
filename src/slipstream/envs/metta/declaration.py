"""MettaGrid as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import Game, lazy

METTAGRID = Game(
    summary="MettaGrid: dozens of agents gather hearts (needs the extra `mettagrid`)",
    variants=("arena", "chain", "crowd"),
    make=lazy("slipstream.envs.metta.game:make"),
    labels=lazy("slipstream.envs.metta.labels:labels"),
    scripted={"walker": lazy("slipstream.envs.metta.scripted:act", "walker")},
    expert="scripted:walker",
    preset="mettagrid",
)
