"""Treechop with the spaces of imported MineRL demos: an action map, and observations with MineRL's names.

MineRL's actions are a dict of eight buttons and a camera. Here they are one option of a table (the 14 or 8 actions that
importers use as well) or separate parts. `MineRLTreechop` takes the original dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows
from slipstream.envs.game import EnvChoice, Labels
from slipstream.envs.options import check_choice, check_options
from slipstream.envs.treechop.columns import SCALAR_NAMES
from slipstream.envs.treechop.game import game
from slipstream.errors import ConfigError
from slipstream.minecraft.action_maps import BUTTONS, FULL, NAMES, TABLE_8, TABLE_14, ActionMap, action_map

DEFAULT_MAPS = {"discrete": "14", "multi_discrete": "full"}
"""The action map for each value of `env.actions` where `env.options.actions` is not set."""
MAPS = (*NAMES, "full")
OPTIONS = ("actions", "look", "scalars", "size")
LOWEST_LOOK, HIGHEST_LOOK = 5.0, 90.0


class Treechop:
    """Games of treechop that are played by the options of an action map, or by MineRL's dicts with `press`."""

    def __init__(self, envs: int, *, variant: str = "dense", **options: Any) -> None:
        """Make the games; the other keyword arguments are those of `GameOptions`."""
        own, kind = dict(options.pop("options", {})), options.pop("actions", "discrete")
        self.actions, scalars = _read_options(kind, own)
        self.games = game.vector(envs, variant, options=own | {"scalars": scalars}, **options)
        spec = self.games.spec
        fields = [ObsField(key, "vector", (1,)) for key in SCALAR_NAMES if scalars]
        image = next(field for field in spec.obs.fields if field.kind == "image")
        self.spec: EnvSpec = replace(spec, obs=ObsSpec((*fields, image)), action=self.actions.spec)
        self.envs, self.payout = envs, self.games.payout
        self._pressed = np.zeros((envs, spec.action.parts), spec.action.dtype)
        self.reset, self.reset_envs, self.observe = self.games.reset, self.games.reset_envs, self.games.observe
        self.seeds, self.assign, self.column = self.games.seeds, self.games.assign, self.games.column
        self.snapshot, self.restore, self.close = self.games.snapshot, self.games.restore, self.games.close

    def step(self, action: Array, out: Rows) -> None:
        """Step every game with actions of the action map."""
        self.press(self.actions.decode(action), out)

    def press(self, given: Mapping[str, Any], out: Rows) -> None:
        """Step every game with MineRL's actions: arrays [envs] of buttons, and the camera [envs, 2]."""
        for column, button in enumerate(BUTTONS):
            self._pressed[:, column] = given[button]
        self._pressed[:, len(BUTTONS) :] = given["camera"]
        self.games.step(self._pressed, out)


def _read_options(kind: str, options: dict[str, Any]) -> tuple[ActionMap, int]:
    """The action map, and whether scalars are part of the observation; both are taken out of `options`."""
    check_choice("env.actions", kind, tuple(DEFAULT_MAPS))
    chosen = str(options.pop("actions", DEFAULT_MAPS[kind]))
    check_choice("env.options.actions", chosen, MAPS)
    look = options.pop("look", TABLE_14.look)
    if isinstance(look, bool) or not isinstance(look, int | float) or not LOWEST_LOOK <= look <= HIGHEST_LOOK:
        raise ConfigError(
            f"`env.options.look` = {look} is out of range.",
            f"give degrees from {LOWEST_LOOK:g} to {HIGHEST_LOOK:g}.",
        )
    scalars = options.pop("scalars", False)
    if not isinstance(scalars, bool):
        raise ConfigError(f"`env.options.scalars` = {scalars} is not a boolean.", "give true or false.")
    check_options("treechop", options, OPTIONS)
    return action_map(chosen, look=float(look)), int(scalars)


def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Treechop:
    """Make games from the settings."""
    return Treechop(envs, variant=variant, **choice.game_options(first, seed, action_repeat=1))


def labels(spec: EnvSpec) -> Labels:
    """The names for one kind of action: entries of a table, or buttons and camera bins in degrees."""
    numbers = tuple(field.name for field in spec.obs.fields if field.kind == "vector")
    if spec.action.kind == "discrete":
        return Labels(("action",), (NAMES[str(spec.action.sizes[0])],), numbers)
    bins = FULL.bins
    degrees = tuple(f"{angle:+.1f}" for angle in bins.undiscretise(range(bins.count))) if bins else ()
    parts = (*FULL.buttons, "camera.pitch", "camera.yaw")
    return Labels(parts, (*(("off", "on") for _ in FULL.buttons), degrees, degrees), numbers)


def act(player: str, obs: Array, action: ActionSpec, out: Array) -> None:
    """Write the actions [rows, parts] of a scripted player for observations [rows, obs]."""
    pressed = np.zeros((len(obs), len(BUTTONS) + 2), np.float32)
    game.act(player, obs, "mixed", pressed)
    given = dict(zip(BUTTONS, pressed.T, strict=False)) | {"camera": pressed[:, len(BUTTONS) :]}
    out[:] = map_of(action).encode(given)


def map_of(action: ActionSpec) -> ActionMap:
    """The action map of an action space."""
    return next(one for one in (TABLE_14, TABLE_8, FULL) if one.spec.sizes == action.sizes)
