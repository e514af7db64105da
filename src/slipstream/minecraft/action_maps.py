"""Action maps: the buttons and the camera of Minecraft-like games as choices a policy can make, and back.

A game takes a dict: a 0 or 1 for every button, the camera as degrees of pitch and yaw ([up -, down +], [left -,
right +]), and sometimes words (`craft`, `equip`). A map turns arrays of such dicts into actions [steps, parts] and
actions into dicts; encode after decode changes nothing.
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
"""What every MineRL game has beside the camera."""
VPT_BUTTONS = (
    *BUTTONS, "use", "drop", "inventory", *(f"hotbar.{n}" for n in range(1, 10)), "pickItem", "swapHands", "ESC",
)  # fmt: skip
"""What players of the VPT and BASALT recordings press."""
RANK = ("attack", "forward", "jump", "sprint", "back", "left", "right")
"""Buttons by weight: where no entry of a table has all that were pressed, the first that differs decides."""
LOOKS = {"look left": (0.0, -1.0), "look right": (0.0, 1.0), "look up": (-1.0, 0.0), "look down": (1.0, 0.0)}
"""Directions of pitch and yaw."""
NAMES = {
    "14": (
        "noop", "forward", "back", "left", "right", "jump", "jump+forward", "sprint+forward", "attack",
        "attack+forward", *LOOKS,
    ),
    "8": ("noop", "forward", "jump+forward", "attack", *LOOKS),
}  # fmt: skip


class ActionMap(Protocol):
    """Turns dicts of arrays into actions and back."""

    @property
    def spec(self) -> ActionSpec:
        """What a policy is told about these actions."""

    def encode(self, given: Mapping[str, Any]) -> Array:
        """Actions [steps, parts] nearest to what was done: a dict of arrays, the camera [steps, 2] in degrees."""

    def decode(self, action: Array) -> dict[str, Array]:
        """A dict of arrays as the game takes them; the inverse of `encode` on all actions there are."""

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""


@dataclass(frozen=True)
class CameraBins:
    """Degrees as one of a few bins around zero: even ones, or fine near zero and coarse further out (mu-law)."""

    limit: float = 10.0
    """Degrees; what turns further is taken for this."""
    width: float = 2.0
    """Degrees from bin to bin, on average."""
    mu: float = 10.0
    """How much finer the bins near zero are; 0: all alike."""

    @property
    def count(self) -> int:
        """Bins; the middle one is rest."""
        return round(2 * self.limit / self.width) + 1

    def discretise(self, degrees: Any) -> Array:
        """The bin of each angle."""
        share = np.clip(np.asarray(degrees, np.float64) / self.limit, -1.0, 1.0)
        if self.mu:
            share = np.sign(share) * np.log1p(self.mu * np.abs(share)) / np.log1p(self.mu)
        bins: Array = np.round((share + 1.0) * self.limit / self.width).astype(np.int32)
        return bins

    def undiscretise(self, bins: Any) -> Array:
        """The angle in the middle of each bin."""
        share = np.asarray(bins, np.float64) * self.width / self.limit - 1.0
        if self.mu:
            share = np.sign(share) * np.expm1(np.abs(share) * np.log1p(self.mu)) / self.mu
        angles: Array = (share * self.limit).astype(np.float32)
        return angles


LINEAR = CameraBins(mu=0.0)


@dataclass(frozen=True)
class TableMap:
    """One choice out of a table.

    An entry is `noop`, buttons joined by `+`, or `look left|right|up|down`. What was done is encoded so: where the
    camera turned by `margin` degrees or more about either axis, the look along the axis that turned more (yaw if both
    did alike); else the entry whose buttons are nearest, where the highest button of `RANK` that differs decides.
    Buttons that the table does not have are not looked at.
    """

    names: tuple[str, ...]
    look: float = 15.0
    """Degrees that a look turns."""
    margin: float = 5.0
    """Degrees from which a turn is a look."""

    def __post_init__(self) -> None:
        if not 0.0 < self.margin <= self.look:
            raise ConfigError(
                f"A look of {self.look:g} degrees is less than the margin of {self.margin:g} from which a turn counts.",
                "choose 0 < margin <= look",
            )

    @property
    def spec(self) -> ActionSpec:
        """One choice among the entries."""
        return ActionSpec("discrete", (len(self.names),))

    @cached_property
    def pressed(self) -> dict[str, Array]:
        """For every button that the table has or MineRL needs: which entries press it."""
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
        """What was pressed as one number, the button of highest rank as its highest bit."""
        code = np.zeros(count, np.int64)
        for button in self._ranked:
            code = 2 * code + (np.asarray(pressed.get(button, 0)).reshape(-1) != 0)
        return code

    @cached_property
    def _nearest(self) -> Array:
        """The entry nearest to each combination of buttons; looks press nothing and are never nearer than noop."""
        still = np.flatnonzero(~self.camera.any(axis=1))
        entries = self._code(self.pressed, len(self.names))[still]
        combinations = np.arange(1 << len(self._ranked))
        nearest: Array = still[np.argmin(combinations[:, None] ^ entries[None, :], axis=1)]
        return nearest

    def encode(self, given: Mapping[str, Any]) -> Array:
        """The entry nearest to what was done at each step [steps, 1]."""
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
        """The buttons and the camera of the chosen entries."""
        index = np.asarray(action).reshape(-1)
        found = {button: entries[index] for button, entries in self.pressed.items()}
        return found | {"camera": self.camera[index]}

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"map": "table", "names": list(self.names), "look": self.look, "margin": self.margin}


@dataclass(frozen=True)
class FullMap:
    """All there is to press, side by side: a switch for every button, words as choices, bins for pitch and for yaw."""

    buttons: tuple[str, ...] = BUTTONS
    bins: CameraBins | None = field(default_factory=CameraBins)
    """None: there is no camera."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Actions that are words (`craft`), each with all of its words."""

    @property
    def spec(self) -> ActionSpec:
        """Switches first, then words, then pitch and yaw."""
        switches = len(self.buttons)
        sizes = [2] * switches + [len(words) for _, words in self.choices]
        sizes += [self.bins.count] * 2 if self.bins else []
        binary = tuple(part < switches for part in range(len(sizes)))
        return ActionSpec("multi_discrete", tuple(sizes), binary=binary if switches else ())

    def encode(self, given: Mapping[str, Any]) -> Array:
        """One column for each button, word and axis [steps, parts]; what is not given is not pressed."""
        count = len(np.asarray(next(iter(given.values()))))
        columns = [np.broadcast_to(np.asarray(given.get(button, 0)) != 0, count) for button in self.buttons]
        columns += [codes(given[name], words, name) for name, words in self.choices]
        if self.bins:
            columns += list(self.bins.discretise(np.asarray(given["camera"]).reshape(-1, 2)).T)
        return np.stack(columns, axis=1).astype(np.int32)

    def decode(self, action: Array) -> dict[str, Array]:
        """Every button, word and axis as the game takes it, the camera in the middle of its bins."""
        columns = list(np.asarray(action).T)
        found = {button: columns.pop(0).astype(np.int64) for button in self.buttons}
        found |= {name: np.array(words)[columns.pop(0)] for name, words in self.choices}
        if self.bins:
            found["camera"] = self.bins.undiscretise(np.stack(columns, axis=1))
        return found

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""
        bins = {"limit": self.bins.limit, "width": self.bins.width, "mu": self.bins.mu} if self.bins else None
        return {"map": "full", "buttons": list(self.buttons), "choices": dict(self.choices), "camera": bins}


TABLE_14, TABLE_8, FULL = TableMap(NAMES["14"]), TableMap(NAMES["8"]), FullMap()


def action_map(
    kind: str, *, look: float = 15.0, margin: float = 5.0, buttons: Sequence[str] = BUTTONS,
    choices: Mapping[str, Sequence[str]] | None = None, bins: CameraBins | None = FULL.bins,
) -> ActionMap:  # fmt: skip
    """The map that is called `14`, `8` or `full`; `buttons`, `choices` and `bins` are those of a full one."""
    if kind == "full":
        return FullMap(tuple(buttons), bins, tuple((name, tuple(words)) for name, words in (choices or {}).items()))
    if kind not in NAMES:
        known = [*NAMES, "full"]
        raise ConfigError(f"There is no action map `{kind}`.{did_you_mean(kind, known)}", f"maps: {', '.join(known)}")
    return TableMap(NAMES[kind], look, margin)


def codes(values: Any, words: Sequence[str], name: str) -> Array:
    """The number of each word in a list of them; a word that is not there is an error."""
    told = np.asarray(values)
    if told.dtype.kind not in "UT":
        raise DemoError(f"`{name}` should be words but is {told.dtype}.", "")
    order = np.argsort(np.array(words))
    ranked = np.array(words)[order]
    place = np.minimum(np.searchsorted(ranked, told), len(words) - 1)
    strange = told[ranked[place] != told]
    if len(strange):
        raise DemoError(f"`{name}` is `{strange[0]}`, which is none of: {', '.join(words)}.", "")
    found: Array = order[place].astype(np.int32)
    return found
