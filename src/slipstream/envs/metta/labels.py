"""Names of MettaGrid's actions; its observations are tokens, whose features `spec.world` names."""

from __future__ import annotations

from slipstream.contracts import EnvSpec
from slipstream.envs.game import Labels


def labels(spec: EnvSpec) -> Labels:
    """The names of the actions, in the simulator's words."""
    return Labels(("action",), (tuple(dict(spec.world)["actions"].split(", ")),), ())
