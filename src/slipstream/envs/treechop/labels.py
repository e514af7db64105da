"""Names of treechop's actions and of the numbers beside its image."""

from __future__ import annotations

from slipstream.contracts import EnvSpec
from slipstream.envs.game import Labels
from slipstream.minecraft.action_maps import FULL, NAMES


def labels(spec: EnvSpec) -> Labels:
    """The names for one kind of action: entries of a table, or buttons and camera bins in degrees."""
    numbers = tuple(field.name for field in spec.obs.fields if field.kind == "vector")
    if spec.action.kind == "discrete":
        return Labels(("action",), (NAMES[str(spec.action.sizes[0])],), numbers)
    bins = FULL.bins
    degrees = tuple(f"{angle:+.1f}" for angle in bins.undiscretise(range(bins.count))) if bins else ()
    parts = (*FULL.buttons, "camera.pitch", "camera.yaw")
    return Labels(parts, (*(("off", "on") for _ in FULL.buttons), degrees, degrees), numbers)
