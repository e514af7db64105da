"""The env settings with which a live game has the observations and actions of imported MineRL demos.

`env.options` holds numbers and strings only, so lists are written as on the command line: `size: 64x96`,
`camera: 10,2,10`, `buttons: attack,back` and `choices: craft=none,planks;equip=none,air`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.contracts import ObsSpec
from slipstream.minecraft.action_maps import BUTTONS, FULL, NAMES
from slipstream.minecraft.frames import VPT_FRAMES

FORMATS = ("minerl", "vpt")
"""The formats of imported Minecraft demos."""
TREECHOP_ACTIONS = {"8": "discrete", "14": "discrete", "full": "multi_discrete"}
"""The value of treechop's `env.actions` for each action map."""
TREECHOP_SIZES = (64, 128)
"""The sides of treechop's images, the default first."""
TREECHOP_SCALARS = ("compass/angle", "inventory/log")


def join_words(lists: Mapping[str, Iterable[str]]) -> str:
    """Several named lists of words as one string."""
    return ";".join(f"{name}={','.join(words)}" for name, words in lists.items())


def split_words(text: str) -> dict[str, tuple[str, ...]]:
    """The named lists of words in a string."""
    parts = [part.partition("=") for part in text.split(";") if part]
    return {name: tuple(words.split(",")) for name, _, words in parts}


def split_size(size: Any) -> tuple[int, int] | None:
    """Height and width from `64` or `64x96`; None if not set."""
    if not size:
        return None
    height, _, width = str(size).partition("x")
    return int(height), int(width or height)


def minerl_options(origin: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `env.options` of `minerl:NAME` from the origin of an imported shard; None where no game has such actions."""
    actions, frames = (origin.get("options", {}).get(key, {}) for key in ("actions", "frames"))
    found: dict[str, Any] = {}
    if actions.get("map") == "table":
        kind = next((kind for kind, names in NAMES.items() if list(names) == actions["names"]), None)
        if kind is None:
            return None
        found |= {"actions": kind, "look": actions["look"], "margin": actions["margin"]}
    elif actions.get("map") == "full" and actions.get("camera"):
        bins = actions["camera"]
        found["actions"] = "full"
        if bins != FULL.describe()["camera"]:
            found["camera"] = f"{bins['limit']:g},{bins['width']:g},{bins['mu']:g}"
        if tuple(actions["buttons"]) != BUTTONS:
            found["buttons"] = ",".join(actions["buttons"])
        if actions["choices"]:
            found["choices"] = join_words(actions["choices"])
    elif actions.get("map") == "vpt":
        found["actions"] = "vpt"
    else:
        return None
    if frames.get("size"):
        found["size"] = "x".join(map(str, frames["size"]))
    found |= {name: frames[name] for name, usual in (("grey", False), ("stack", 1)) if frames.get(name, usual) != usual}
    if frames.get("resize", "area") != (VPT_FRAMES.how if found["actions"] == "vpt" else "area"):
        found["resize"] = frames["resize"]
    words = {name: names for name, names in origin.get("vocabulary", {}).items() if not name.startswith("raw/")}
    return found | ({"categories": join_words(words)} if words else {})


def treechop_settings(options: Mapping[str, Any], obs: ObsSpec) -> tuple[dict[str, Any], str]:
    """The env settings of treechop for demos with these options of `minerl:NAME`, and why it does not fit, if so."""
    shapes = {field.name: field.shape for field in obs.fields}
    frame, scalars = shapes.get("pov", ()), sorted(name for name in shapes if name != "pov")
    kind, sizes = str(options.get("actions", "14")), [(side, side, 3) for side in TREECHOP_SIZES]
    own_frames = " or ".join(" x ".join(map(str, size)) for size in sizes)
    differences = {
        f"their frames are {' x '.join(map(str, frame))}, those of treechop {own_frames}": frame not in sizes,
        "their frames are grey or stacked, those of treechop are not": (
            bool(options.get("grey")) or options.get("stack", 1) != 1
        ),
        f"they have {', '.join(scalars)} beside the frames, treechop {', '.join(TREECHOP_SCALARS)} or nothing": (
            scalars not in ([], sorted(TREECHOP_SCALARS))
        ),
        f"treechop has no action map {kind}": kind not in TREECHOP_ACTIONS,
        "their buttons, words or camera bins are not those of treechop": any(
            key in options for key in ("buttons", "choices", "camera")
        ),
    }
    reason = next((text for text, differs in differences.items() if differs), "")
    own: dict[str, Any] = {"scalars": True} if scalars else {}
    own |= {"actions": kind} if kind == "8" else {}
    own |= {"size": frame[0]} if frame in sizes[1:] else {}
    own |= {"look": options["look"]} if TREECHOP_ACTIONS.get(kind) == "discrete" and "look" in options else {}
    return {"actions": TREECHOP_ACTIONS.get(kind, "discrete"), "options": own}, reason
