"""The lumberjack's games as MineRL folders, and back: what was done and paid is equal, frames are near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.minecraft.action_maps import FULL
from slipstream.settings import EnvSettings
from slipstream.stages.import_export import export_demos, import_demos
from slipstream.stages.record import record

pytest.importorskip("av")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("discrete", {"scalars": True, "look": 20.0}),
        ("multi_discrete", {}),
        ("discrete", {"actions": "8", "look": 12.0}),
        ("discrete", {"actions": "8", "size": 128}),
    ],
)
def test_folders_give_back_what_was_recorded(kind: str, options: dict[str, object], tmp_path: Path) -> None:
    """Actions, rewards and numbers are equal; frames differ as video does; the spaces are the same."""
    env = EnvSettings(match_seconds=3.0, actions=kind, options=options)  # type: ignore[arg-type]
    choice = EnvChoice("treechop", env)
    record(choice, "scripted:lumberjack", 3, tmp_path / "played", seed=1, workers=1)
    export_demos("minerl", tmp_path / "played", tmp_path / "data" / "MineRLTreechop-v0")
    told = {"actions": "full"} if kind == "multi_discrete" else {"look": options.get("look", 15.0)}
    told |= {"actions": options["actions"]} if "actions" in options else {}
    import_demos("auto", tmp_path / "data" / "MineRLTreechop-v0", tmp_path / "back", env="treechop", workers=1, **told)
    before, after = Demos.open(tmp_path / "played"), Demos.open(tmp_path / "back")
    assert after.schema.obs == before.schema.obs and after.schema.action == before.schema.action
    assert len(after) == 3 and after.steps == before.steps == 180
    for number in range(3):
        played = before.episode(number)
        match = [k for k in range(3) if np.array_equal(after.episode(k)["action"], played["action"])]
        assert match
        back = after.episode(match[0])
        assert np.array_equal(back["reward"], played["reward"])
        ours, theirs = (d.schema.obs.split(np.array(e["obs"])) for d, e in ((before, played), (after, back)))
        off = np.abs(ours["pov"][:-1].astype(int) - theirs["pov"][:-1].astype(int))
        assert off.mean() < 8
        for name in ours:
            if name != "pov":
                assert np.array_equal(ours[name], theirs[name])
        if kind == "discrete":
            assert set(np.unique(np.abs(np.array(back["raw/camera"])))) <= {0.0, options.get("look", 15.0)}
        else:
            assert np.array_equal(FULL.decode(np.array(played["action"]))["camera"], np.array(back["raw/camera"]))
