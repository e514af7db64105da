"""The tiny games as the registry lists them."""

from __future__ import annotations

from importlib import import_module

from slipstream.contracts import Vector, choose_target
from slipstream.envs.game import EnvChoice, Game, MakeVector, lazy


def _make(module: str) -> MakeVector:
    def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Vector:
        vector: Vector = import_module(f"slipstream.envs.tiny.{module}").make(variant, envs, first=first, seed=seed)
        choose_target(vector.spec.name, vector.spec.tasks, (), choice.env.target)  # raises: there are no tasks
        return vector

    return make


RECALL = Game(
    summary="a cue, a wait and a question, for policies with memory",
    variants=("8", "2", "32", "masked"),
    make=_make("recall"),
    labels=lazy("slipstream.envs.tiny.recall:labels"),
)
PIXELS = Game(
    summary="name the quarter of the image that has the bright square",
    variants=("12", "84"),
    make=_make("pixels"),
    labels=lazy("slipstream.envs.tiny.pixels:labels"),
    scripted={"oracle": lazy("slipstream.envs.tiny.pixels:oracle")},
)
MIXED = Game(
    summary="three questions about an image, a vector and tokens",
    variants=("multi", "continuous", "hybrid", "team"),
    make=_make("mixed"),
    labels=lazy("slipstream.envs.tiny.mixed:labels"),
    scripted={"oracle": lazy("slipstream.envs.tiny.mixed:oracle")},
)
