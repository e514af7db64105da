"""Action maps: convert the buttons and the camera of Minecraft-like games to a policy's actions, and back.

A game takes a dict: 0 or 1 for every button, the camera as degrees of pitch ([up -, down +]) and yaw ([left -, right
+]), and sometimes strings (`craft`, `equip`). A map converts dicts of arrays to actions [steps, parts] and actions to
dicts; encode is the inverse of decode (see `VptMap` for its one exception).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.errors import ConfigError, DemoError, did_you_mean

BUTTONS = ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint")
"""The buttons of every MineRL game, besides the camera."""
VPT_BUTTONS = (
    *BUTTONS,
    "use",
    "drop",
    "inventory",
    *(f"hotbar.{n}" for n in range(1, 10)),
    "pickItem",
    "swapHands",
    "ESC",
)
"""The buttons in the VPT and BASALT recordings."""
VPT_GROUPS = (
    ("none", *(f"hotbar.{n}" for n in range(1, 10))),
    ("none", "forward", "back"),
    ("none", "left", "right"),
    ("none", "sprint", "sneak"),
    *(("none", button) for button in ("use", "drop", "attack", "jump")),
    ("none", "camera"),
)
"""One of each group is pressed in VPT's agents; `camera` says whether the camera moves."""
RANK = ("attack", "forward", "jump", "sprint", "back", "left", "right")
"""Buttons by priority: if no table entry matches all pressed buttons, the first button that differs decides."""
LOOKS = {"look left": (0.0, -1.0), "look right": (0.0, 1.0), "look up": (-1.0, 0.0), "look down": (1.0, 0.0)}
"""Direction of pitch and yaw of each camera entry."""
NAMES = {
    "14": (
        "noop",
        "forward",
        "back",
        "left",
        "right",
        "jump",
        "jump+forward",
        "sprint+forward",
        "attack",
        "attack+forward",
        *LOOKS,
    ),
    "8": ("noop", "forward", "jump+forward", "attack", *LOOKS),
}


class ActionMap(Protocol):
    """Converts dicts of arrays to actions and back."""

    @property
    def spec(self) -> ActionSpec:
        """The action space of the policy."""

    def encode(self, given: Mapping[str, Any]) -> Array:
        """Return the actions [steps, parts] nearest to a dict of arrays, with the camera [steps, 2] in degrees."""

    def decode(self, action: Array) -> dict[str, Array]:
        """Return the game's dict of arrays; `encode` is its inverse for every action."""

    def describe(self) -> dict[str, Any]:
        """Return a JSON object."""


@dataclass(frozen=True)
class CameraBins:
    """Bins of camera angles: of equal width, or narrow near zero and wide further out (mu-law)."""

    limit: float = 10.0
    """Largest angle in degrees; larger ones are clipped."""
    width: float = 2.0
    """Mean width of a bin in degrees."""
    mu: float = 10.0
    """Mu-law parameter: how much narrower the bins near zero are; 0: equal widths."""

    @property
    def count(self) -> int:
        """Number of bins; the middle one is no movement."""
        return round(2 * self.limit / self.width) + 1

    def discretise(self, degrees: Any) -> Array:
        """Return the bin of each angle."""
        share = np.clip(np.asarray(degrees, np.float64) / self.limit, -1.0, 1.0)
        if self.mu:
            share = np.sign(share) * np.log1p(self.mu * np.abs(share)) / np.log1p(self.mu)
        bins: Array = np.round((share + 1.0) * self.limit / self.width).astype(np.int32)
        return bins

    def undiscretise(self, bins: Any) -> Array:
        """Return the angle at the centre of each bin."""
        share = np.asarray(bins, np.float64) * self.width / self.limit - 1.0
        if self.mu:
            share = np.sign(share) * np.expm1(np.abs(share) * np.log1p(self.mu)) / self.mu
        angles: Array = (share * self.limit).astype(np.float32)
        return angles


LINEAR = CameraBins(mu=0.0)


@dataclass(frozen=True)
class TableMap:
    """A discrete action: one entry of a table.

    An entry is `noop`, buttons joined by `+`, or `look left|right|up|down`. Encoding: if the camera turned by `margin`
    degrees or more about either axis, the look along the axis that turned more (yaw if equal); otherwise the entry with
    the nearest buttons, where the first button of `RANK` that differs decides. Buttons that no entry has are ignored.
    """

    names: tuple[str, ...]
    look: float = 15.0
    """Degrees by which a look entry turns the camera."""
    margin: float = 5.0
    """Degrees from which a camera movement is encoded as a look."""

    def __post_init__(self) -> None:
        if not 0.0 < self.margin <= self.look:
            raise ConfigError(
                f"`look` = {self.look:g} degrees is smaller than `margin` = {self.margin:g}.",
                "choose 0 < margin <= look",
            )

    @property
    def spec(self) -> ActionSpec:
        """One discrete action over the entries."""
        return ActionSpec("discrete", (len(self.names),))

    @cached_property
    def pressed(self) -> dict[str, Array]:
        """For every button of the table or of MineRL: which entries press it."""
        parts = [() if name == "noop" or name in LOOKS else name.split("+") for name in self.names]
        used = dict.fromkeys((*BUTTONS, *(button for part in parts for button in part)))
        return {button: np.array([button in part for part in parts], np.int64) for button in used}

    @cached_property
    def camera(self) -> Array:
        """Degrees of pitch and yaw of every entry [entries, 2]."""
        return np.array([LOOKS.get(name, (0.0, 0.0)) for name in self.names], np.float32) * np.float32(self.look)

    @cached_property
    def _ranked(self) -> list[str]:
        used = [button for button, entries in self.pressed.items() if entries.any()]
        return [b for b in RANK if b in used] + [b for b in used if b not in RANK]

    def _code(self, pressed: Mapping[str, Any], count: int) -> Array:
        """Return the pressed buttons as one number; the button with the highest priority is the highest bit."""
        code = np.zeros(count, np.int64)
        for button in self._ranked:
            code = 2 * code + (np.asarray(pressed.get(button, 0)).reshape(-1) != 0)
        return code

    @cached_property
    def _nearest(self) -> Array:
        """The entry nearest to each combination of buttons; looks press none and are never nearer than noop."""
        no_look = np.flatnonzero(~self.camera.any(axis=1))
        entries = self._code(self.pressed, len(self.names))[no_look]
        combinations = np.arange(1 << len(self._ranked))
        nearest: Array = no_look[np.argmin(combinations[:, None] ^ entries[None, :], axis=1)]
        return nearest

    def encode(self, given: Mapping[str, Any]) -> Array:
        """Return the nearest entry at each step [steps, 1]."""
        camera = np.asarray(given["camera"], np.float64).reshape(-1, 2)
        pitch, yaw = np.abs(camera).T
        chosen = self._nearest[self._code(given, len(camera))]
        sideways = yaw >= pitch
        for name, (up_down, left_right) in LOOKS.items():
            if name in self.names:
                along = (left_right * camera[:, 1] >= self.margin) & sideways
                along |= (up_down * camera[:, 0] >= self.margin) & ~sideways
                chosen = np.where(along, self.names.index(name), chosen)
        return chosen.astype(np.int32)[:, None]

    def decode(self, action: Array) -> dict[str, Array]:
        """Return the buttons and the camera of the chosen entries."""
        index = np.asarray(action).reshape(-1)
        found = {button: entries[index] for button, entries in self.pressed.items()}
        return found | {"camera": self.camera[index]}

    def describe(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"map": "table", "names": list(self.names), "look": self.look, "margin": self.margin}


@dataclass(frozen=True)
class FullMap:
    """A multi-discrete action: a switch for every button, one part per string choice, bins for pitch and yaw."""

    buttons: tuple[str, ...] = BUTTONS
    bins: CameraBins | None = field(default_factory=CameraBins)
    """None if there is no camera."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """String actions (such as `craft`), each with all of its values."""

    @property
    def spec(self) -> ActionSpec:
        """Switches first, then string choices, then pitch and yaw."""
        switches = len(self.buttons)
        sizes = [2] * switches + [len(words) for _, words in self.choices]
        sizes += [self.bins.count] * 2 if self.bins else []
        binary = tuple(part < switches for part in range(len(sizes)))
        return ActionSpec("multi_discrete", tuple(sizes), binary=binary if switches else ())

    def encode(self, given: Mapping[str, Any]) -> Array:
        """Return one column per button, string choice and axis [steps, parts]; missing buttons are not pressed."""
        count = len(np.asarray(next(iter(given.values()))))
        columns = [np.broadcast_to(np.asarray(given.get(button, 0)) != 0, count) for button in self.buttons]
        columns += [codes(given[name], words, name) for name, words in self.choices]
        if self.bins:
            columns += list(self.bins.discretise(np.asarray(given["camera"]).reshape(-1, 2)).T)
        return np.stack(columns, axis=1).astype(np.int32)

    def decode(self, action: Array) -> dict[str, Array]:
        """Return every button, string and axis as the game takes it, with the camera at the centres of its bins."""
        columns = list(np.asarray(action).T)
        found = {button: columns.pop(0).astype(np.int64) for button in self.buttons}
        found |= {name: np.array(words)[columns.pop(0)] for name, words in self.choices}
        if self.bins:
            found["camera"] = self.bins.undiscretise(np.stack(columns, axis=1))
        return found

    def describe(self) -> dict[str, Any]:
        """Return a JSON object."""
        bins = {"limit": self.bins.limit, "width": self.bins.width, "mu": self.bins.mu} if self.bins else None
        return {"map": "full", "buttons": list(self.buttons), "choices": dict(self.choices), "camera": bins}


@dataclass(frozen=True)
class VptMap:
    """The two actions of VPT's published agents: a combination of buttons, and the bins of pitch and yaw together.

    Combinations are those of `VPT_GROUPS`, the last group fastest, and at the end `inventory` alone. The camera moves
    only if the combination has `camera`, so actions without it that differ in the camera are the same action: `encode`
    gives them the bin of no movement. Of two buttons of a group the later one is encoded, but opposite directions
    cancel out.
    """

    bins: CameraBins = field(default_factory=CameraBins)

    @property
    def spec(self) -> ActionSpec:
        """8,641 combinations and 121 bins."""
        return ActionSpec("multi_discrete", (len(self._choices) + 1, self.bins.count**2))

    @cached_property
    def _choices(self) -> Array:
        """The choice in each group for all combinations without `inventory` [combinations, groups]."""
        return np.indices([len(group) for group in VPT_GROUPS]).reshape(len(VPT_GROUPS), -1).T

    def encode(self, given: Mapping[str, Any]) -> Array:
        """Return the combination and the camera's bin at each step [steps, 2]."""
        bins = self.bins.discretise(np.asarray(given["camera"]).reshape(-1, 2))
        still = self.bins.count // 2
        pressed = {name: np.asarray(given.get(name, 0)) != 0 for name in VPT_BUTTONS}
        pressed["camera"] = (bins != still).any(axis=1)
        choices = np.zeros((len(VPT_GROUPS), len(bins)), np.int64)
        for choice, (_, *names) in zip(choices, VPT_GROUPS, strict=True):
            for number, name in enumerate(names, 1):
                choice[:] = np.where(pressed[name], number, choice)
            if names[-1] in ("back", "right"):
                choice[:] = np.where(pressed[names[0]] & pressed[names[1]], 0, choice)
        together = np.ravel_multi_index(tuple(choices), [len(group) for group in VPT_GROUPS])
        camera = np.where(pressed["inventory"], still * (self.bins.count + 1), bins @ [self.bins.count, 1])
        combination = np.where(pressed["inventory"], len(self._choices), together)
        return np.stack([combination, camera], axis=1).astype(np.int32)

    def decode(self, action: Array) -> dict[str, Array]:
        """Return every button of the combinations, and the camera where they have it."""
        combination, camera = np.asarray(action).T
        inventory = combination == len(self._choices)
        choices = np.where(inventory, 0, self._choices[np.where(inventory, 0, combination)].T)
        found = {
            name: (choice == number).astype(np.int64)
            for choice, group in zip(choices, VPT_GROUPS, strict=True)
            for number, name in enumerate(group)
            if number
        }
        angles = self.bins.undiscretise(np.stack(np.divmod(camera, self.bins.count), axis=1))
        moved = np.where(found["camera"][:, None], angles, np.float32(0.0))
        return found | {"inventory": inventory.astype(np.int64), "camera": moved}

    def describe(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"map": "vpt"}


TABLE_14, TABLE_8, FULL = TableMap(NAMES["14"]), TableMap(NAMES["8"]), FullMap()


def action_map(
    kind: str,
    *,
    look: float = 15.0,
    margin: float = 5.0,
    buttons: Sequence[str] = BUTTONS,
    choices: Mapping[str, Sequence[str]] | None = None,
    bins: CameraBins | None = FULL.bins,
) -> ActionMap:
    """Return the map named `14`, `8`, `full` or `vpt`; `buttons`, `choices` and `bins` apply to `full` only."""
    if kind == "vpt":
        return VptMap()
    if kind == "full":
        return FullMap(tuple(buttons), bins, tuple((name, tuple(words)) for name, words in (choices or {}).items()))
    if kind not in NAMES:
        known = [*NAMES, "full", "vpt"]
        raise ConfigError(f"There is no action map `{kind}`.{did_you_mean(kind, known)}", f"maps: {', '.join(known)}")
    return TableMap(NAMES[kind], look, margin)


def codes(values: Any, words: Sequence[str], name: str) -> Array:
    """Return the index of each string in `words`; raise for a string that is not among them."""
    strings = np.asarray(values)
    if strings.dtype.kind not in "UT":
        raise DemoError(f"`{name}` should be strings but is {strings.dtype}.", "")
    order = np.argsort(np.array(words))
    ranked = np.array(words)[order]
    place = np.minimum(np.searchsorted(ranked, strings), len(words) - 1)
    unknown = strings[ranked[place] != strings]
    if len(unknown):
        raise DemoError(f"`{name}` is `{unknown[0]}`, which is none of: {', '.join(words)}.", "")
    found: Array = order[place].astype(np.int32)
    return found
