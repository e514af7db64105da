"""VPT and BASALT recordings: line i belongs to frame i, the camera is in floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.demos.importers.ingest import ingest
from slipstream.demos.importers.vpt import (
    ADAPTER,
    CURSOR,
    draw_cursor,
    null_steps,
    read_actions,
    read_lines,
    vpt_source,
)
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import TABLE_14, VPT_BUTTONS
from slipstream.minecraft.env_settings import minerl_options
from slipstream.minecraft.frames import FrameAdapter
from slipstream.policies.convert_agent import VptAgentShape
from slipstream.policies.convert_weights import VptShape

Write = Callable[..., Path]
Line = Callable[..., dict[str, Any]]
SMALL = FrameAdapter((36, 64))


def brought(place: Path, out: Path, allow: float = 0.01, **options: Any) -> Demos:
    """Import recordings and open what came out."""
    ingest(vpt_source(place, **({"adapter": SMALL} | options)), out, allow=allow)
    return Demos.open(out)


def pov(demos: Demos, episode: int = 0) -> Array:
    """The frames of an episode."""
    return demos.schema.obs.split(np.array(demos.episode(episode)["obs"]))["pov"]


def pressed(actions: dict[str, Array], step: int) -> set[str]:
    """The buttons that are down at a step."""
    return {name for name in VPT_BUTTONS if actions[name][step]}


def test_frames_and_lines_go_together(segment: Write, vpt_line: Line, tmp_path: Path, numbers: Any) -> None:
    """N frames and lines make N - 1 steps: frame i is the observation of action i."""
    lines = [vpt_line(n, mouse={"dx": float(n)}) for n in range(12)]
    demos = brought(segment(lines), tmp_path / "out")
    assert numbers(pov(demos)) == list(range(12))
    values = demos.episode(0)
    np.testing.assert_allclose(values["raw/camera"][:, 1], np.arange(11) * 0.15, rtol=1e-6)
    assert demos.steps == 11 and demos.episodes["ended"].tolist() == [0] and not values["reward"].any()
    assert demos.schema.env == "vpt"


def test_the_actions_of_published_agents(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """With the action map `vpt`, demos have the spaces of a published agent, and of a live game with the same map."""
    lines = [vpt_line(0, keyboard={"keys": ["key.keyboard.w"]}), vpt_line(1, mouse={"dx": 100.0}), vpt_line(2)]
    demos = brought(segment(lines), tmp_path / "out", actions="vpt", adapter=ADAPTER)
    agent = VptAgentShape(VptShape()).design()
    assert (demos.schema.obs, demos.schema.action) == (agent.obs, agent.action)
    assert demos.episode(0)["action"].tolist() == [[288, 60], [1, 65]]
    assert minerl_options(demos.shards[0].origin) == {"actions": "vpt", "size": "128x128"}


def test_the_camera_is_in_floats(vpt_line: Line) -> None:
    """dy = 5, dx = -9 turn by 0.75 and -1.35 degrees, which whole numbers would make 0 and -1."""
    camera = read_actions([vpt_line(0, mouse={"dy": 5.0, "dx": -9.0}), vpt_line(1, mouse={"dx": 2400})])["camera"]
    assert camera.dtype == np.float32
    assert camera.tolist() == [[np.float32(0.75), np.float32(-1.35)], [0.0, 360.0]]


def test_every_key_and_button(vpt_line: Line) -> None:
    """Keys and mouse buttons are mapped to the names of the game's buttons; others are ignored."""
    keys = {
        "w": "forward",
        "s": "back",
        "a": "left",
        "d": "right",
        "space": "jump",
        "left.shift": "sneak",
        "left.control": "sprint",
        "q": "drop",
        "e": "inventory",
        "f": "swapHands",
        "escape": "ESC",
        "1": "hotbar.1",
        "9": "hotbar.9",
    }
    lines = [vpt_line(n, keyboard={"keys": [f"key.keyboard.{key}", "key.keyboard.f3"]}) for n, key in enumerate(keys)]
    lines += [vpt_line(20 + button, mouse={"buttons": [button, 7], "newButtons": [button]}) for button in range(3)]
    actions = read_actions(lines)
    found = [pressed(actions, step) for step in range(len(lines))]
    assert found == [{name} for name in (*keys.values(), "attack", "use", "pickItem")]


def test_an_attack_that_is_stuck_is_taken_out(vpt_line: Line) -> None:
    """An attack that is down from the first frame counts only from its next press on."""
    down, new = {"buttons": [0]}, {"buttons": [0], "newButtons": [0]}
    stuck = [vpt_line(0, mouse=new), *(vpt_line(n, mouse=down) for n in (1, 2)), vpt_line(3, mouse=new)]
    stuck.append(vpt_line(4, mouse=down))
    assert read_actions(stuck)["attack"].tolist() == [0, 0, 0, 1, 1]
    assert read_actions([vpt_line(0), *stuck])["attack"].tolist() == [0, 1, 1, 1, 1, 1]


def test_a_change_of_the_hotbar_is_its_key(vpt_line: Line) -> None:
    """The wheel changes the hotbar without a key: the change counts as one."""
    actions = read_actions([vpt_line(n, hotbar=slot) for n, slot in enumerate((0, 0, 3, 3, 8))])
    assert [pressed(actions, step) for step in range(5)] == [set(), set(), {"hotbar.4"}, set(), {"hotbar.9"}]


def test_null_actions_stay_or_go(segment: Write, vpt_line: Line, tmp_path: Path, numbers: Any) -> None:
    """Null actions are kept, or dropped with their frames; the last frame always ends the episode."""
    busy = {1, 2, 5, 9}
    lines = [vpt_line(n, keyboard={"keys": ["key.keyboard.w"]} if n in busy else {}) for n in range(10)]
    assert null_steps(read_actions(lines)).tolist() == [n not in busy for n in range(10)]
    place = segment(lines)
    assert brought(place, tmp_path / "kept").steps == 9
    demos = brought(place, tmp_path / "dropped", drop_null=True)
    assert numbers(pov(demos)) == [1, 2, 5, 9]
    assert demos.episode(0)["raw/forward"].tolist() == [1, 1, 1]


def test_full_and_tables(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """The full map has a switch for every button and VPT's bins; tables are as for MineRL."""
    lines = [vpt_line(n, keyboard={"keys": ["key.keyboard.w"]}, mouse={"dx": 40.0 * (n % 2)}) for n in range(6)]
    place = segment(lines)
    full = brought(place, tmp_path / "full")
    assert full.schema.action.sizes == (2,) * len(VPT_BUTTONS) + (11, 11)
    # 40 units are 6 degrees, nearest to the middle at 5.81 of bin 9
    assert full.episode(0)["action"][:, -1].tolist() == [5, 9, 5, 9, 5]
    table = brought(place, tmp_path / "14", actions="14")
    names = [TABLE_14.names[n] for n in table.episode(0)["action"][:, 0]]
    assert names == ["forward", "look right", "forward", "look right", "forward"]


def test_lines_and_frames_that_do_not_match(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """A line without a frame, or a truncated last line, ends the episode; many such lines give a note."""
    lines = [vpt_line(n) for n in range(12)]
    place = segment(lines, "a", frames=11)
    segment(lines, "b", tail='{"mouse": {"x": 3.0, "y"')
    segment(lines, "c", frames=6)
    segment(lines, "d", frames=20)
    facts = ingest(vpt_source(place, adapter=SMALL), tmp_path / "out")
    assert Demos.open(tmp_path / "out").episodes["steps"].tolist() == [10, 11, 5, 11]
    assert facts["notes"] == ["c: 6 lines have no frame"]


def test_bad_recordings_are_named(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """A broken line in the middle, a video without lines and an undecodable video are listed."""
    lines = [vpt_line(n) for n in range(8)]
    place = segment(lines, "good")
    broken = segment(lines, "broken") / "broken.jsonl"
    broken.write_text(broken.read_text().replace('"tick": 3', '"tick": '))
    segment(lines, "alone")
    (place / "alone.jsonl").unlink()
    segment(lines, "film")
    (place / "film.mp4").write_bytes(b"no video")
    facts = ingest(vpt_source(place, adapter=SMALL), tmp_path / "out", allow=1.0)
    assert facts["episodes"] == 1
    told = {one["episode"]: one["why"] for one in facts["skipped"]}
    assert told["alone"] == "has no .jsonl beside its video"
    assert "Line 4 of" in told["broken"] and "film.mp4 cannot be decoded" in told["film"]


def test_lines_that_are_no_recording(tmp_path: Path, vpt_line: Line) -> None:
    """A line without mouse or keyboard is an error with its number."""
    file = tmp_path / "x.jsonl"
    file.write_text("\n".join(json.dumps(told) for told in (vpt_line(), {"keyboard": {}}, vpt_line())))
    with pytest.raises(DemoError, match=r"Line 2 of .*x\.jsonl cannot be read: KeyError\('mouse'\)"):
        read_lines(file)


def test_an_index_names_recordings(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """An index file selects recordings in any subfolder; missing ones give a note."""
    lines = [vpt_line(n) for n in range(5)]
    place = segment(lines, "8.0/one")
    segment(lines, "two")
    segment(lines, "not-named")
    index = place / "index.json"
    index.write_text(
        json.dumps({"basedir": "https://example.org/", "relpaths": ["8.0/one", "9.0/two.mp4", "8.0/gone"]})
    )
    facts = ingest(vpt_source(index, adapter=SMALL), tmp_path / "out")
    assert facts["episodes"] == 2
    assert facts["notes"] == [f"1 of 3 recordings listed in {index} are missing"]
    assert Demos.open(tmp_path / "out").shards[0].origin["worker"]["episodes"][0] == "8.0/one"


def test_the_cursor_is_drawn_where_a_window_is_open(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """The tip of the arrow is at the mouse, in coordinates of a window 720 high, and it is clipped at the edge."""
    frame = np.full((72, 128, 3), 100, np.uint8)
    draw_cursor(frame, 640.0, 360.0)
    assert frame[36, 64].tolist() == [0, 0, 0] and frame[40, 66].tolist() == [255, 255, 255]
    changed = np.argwhere((frame != 100).any(axis=2))
    assert changed.min(axis=0).tolist() == [36, 64] and (changed.max(axis=0) < np.add([36, 64], CURSOR.shape)).all()
    draw_cursor(frame, 1279.0, 719.0)
    before = frame.copy()
    draw_cursor(frame, 5000.0, -3.0)
    np.testing.assert_array_equal(frame, before)
    lines = [vpt_line(n, isGuiOpen=n == 2, mouse={"x": 640.0, "y": 360.0}) for n in range(4)]
    place = segment(lines, height=144, width=256)
    spread = np.ptp(pov(brought(place, tmp_path / "out", adapter=FrameAdapter())).reshape(4, -1), axis=1)
    assert spread[2] > 150 and max(spread[0], spread[1], spread[3]) < 20


def test_the_usual_size_is_what_vpt_sees(segment: Write, vpt_line: Line, tmp_path: Path) -> None:
    """Frames are resized to 128x128 by default."""
    ingest(vpt_source(segment([vpt_line(n) for n in range(3)])), tmp_path / "out")
    assert Demos.open(tmp_path / "out").schema.obs.fields[0].shape == (128, 128, 3)


def test_a_folder_without_recordings(tmp_path: Path) -> None:
    """An empty folder is an error."""
    with pytest.raises(DemoError, match=r"has no recording \(an \.mp4 with a \.jsonl beside it\)"):
        vpt_source(tmp_path)
