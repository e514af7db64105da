"""MettaGrid as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import OWN, Game, lazy

METTAGRID = Game(
    summary="MettaGrid: dozens of agents gather hearts (needs the extra `mettagrid`)",
    variants=("arena", "chain", "crowd"),
    make=lazy("slipstream.envs.metta.game:make"),
    files=(".yaml", ".yml", ".json"),
    recognise=lazy("slipstream.envs.metta.own_worlds:recognise"),
    scene=lazy("slipstream.envs.metta.drawing:GridScene"),
    labels=lazy("slipstream.envs.metta.labels:labels"),
    scripted={"walker": lazy("slipstream.envs.metta.scripted:act", "walker")},
    expert="scripted:walker",
    preset="mettagrid",
    variant_fields={OWN: {"scripted": {}, "expert": ""}},
)
