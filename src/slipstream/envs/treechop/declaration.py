"""Treechop as the registry lists it."""

from __future__ import annotations

from slipstream.envs.game import Game, lazy, lazy_value

TREECHOP = Game(
    summary="gather logs with an axe, in first-person view and with MineRLTreechop's spaces",
    variants=("dense", "medium", "sparse", "mixed"),
    make=lazy("slipstream.envs.treechop.game:make"),
    scene=lazy("slipstream.envs.treechop.drawing:Eyes"),
    labels=lazy("slipstream.envs.treechop.labels:labels"),
    state_labels=lazy("slipstream.envs.treechop.drawing:labels"),
    tick_hz=20,
    scripted={"lumberjack": lazy("slipstream.envs.treechop.scripted:act", "lumberjack")},
    expert="scripted:lumberjack",
    preset="treechop",
    stages=("dense", "medium", "sparse"),
    scheme=lazy_value("slipstream.envs.treechop.rewards:SCHEME"),
)
