"""MineRL recordings: aligned from the end, actions as they were, bad ones left out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.demos.exporters.minerl import export_minerl, write_recording
from slipstream.demos.format import TERMINATED
from slipstream.demos.importers.ingest import ingest
from slipstream.demos.importers.minerl import find_recordings, minerl_source
from slipstream.demos.iterators import sarsd_iter
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, DemoError, MachineError
from slipstream.minecraft.action_maps import FULL, TABLE_8, TABLE_14
from slipstream.minecraft.env_settings import minerl_options, treechop_settings
from slipstream.minecraft.frames import FrameAdapter
from slipstream.settings import EnvSettings
from slipstream.stages.prepare import configure
from slipstream.vector.make import make_vector

Write = Callable[..., Path]
Tell = Callable[[Array], list[int]]
OBTAIN = "MineRLObtainDiamond-v0"
NAME = "v3_absolute_grape_changeling-6_3774-4098"


def brought(game: Path, out: Path, allow: float = 0.01, **options: Any) -> Demos:
    """Import a game and open what came out."""
    ingest(minerl_source(game, **options), out, allow=allow)
    return Demos.open(out)


def pov(demos: Demos, episode: int = 0) -> Array:
    """The frames of an episode."""
    return demos.schema.obs.split(np.array(demos.episode(episode)["obs"]))["pov"]


def members(game: Path, name: str = NAME) -> dict[str, Array]:
    """The arrays of a recording."""
    with np.load(game / name / "rendered.npz") as found:
        return dict(found)


@pytest.mark.parametrize("name", ["v3_absolute_grape_changeling-6_3774-4098", "v4_player_stream_x-2_10-30"])
def test_the_video_is_aligned_from_its_end(recording: Write, tmp_path: Path, numbers: Tell, name: str) -> None:
    """T steps have the last T + 1 frames, and the last frame is replaced by the one before it."""
    demos = brought(recording(name, steps=20, lead=5), tmp_path / "out")
    assert numbers(pov(demos)) == [*range(5, 25), 24]
    assert demos.schema.obs.fields[0].shape == (16, 16, 3)
    assert demos.episodes["ended"].tolist() == [TERMINATED] and demos.episodes["outcome"].tolist() == [1]
    assert demos.schema.env == "minerl:MineRLTreechop-v0" and demos.schema.step_seconds == 0.05


def test_frames_are_counted_without_metadata(recording: Write, tmp_path: Path, numbers: Tell) -> None:
    """Without metadata.json the end is that of the video; with one, frames behind its count are not read."""
    bare = recording("v3_bare-1_0-20", steps=20, lead=3, meta={"x": 1})
    (bare / "v3_bare-1_0-20" / "metadata.json").unlink()
    assert numbers(pov(brought(bare, tmp_path / "bare"))) == [*range(3, 23), 22]
    longer = recording(
        "v3_long-1_0-20", game="MineRLNavigate-v0", steps=20, lead=3, meta={"true_video_frame_count": 22}
    )
    assert numbers(pov(brought(longer, tmp_path / "longer"))) == [*range(1, 21), 20]


def test_actions_stay_as_they_were(recording: Write, tmp_path: Path) -> None:
    """Buttons are int64 and the camera float32, bit for bit, beside the mapped actions."""
    game = recording(steps=30)
    told = members(game)
    for kind, table in (("14", TABLE_14), ("8", TABLE_8)):
        demos = brought(game, tmp_path / kind, actions=kind)
        values = demos.episode(0)
        for name in ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint"):
            np.testing.assert_array_equal(values[f"raw/{name}"], told[f"action${name}"])
            assert values[f"raw/{name}"].dtype == np.int64
        assert values["raw/camera"].dtype == np.float32
        np.testing.assert_array_equal(values["raw/camera"], told["action$camera"])
        np.testing.assert_array_equal(values["reward"], told["reward"])
        given = {key.partition("$")[2]: value for key, value in told.items() if key.startswith("action$")}
        np.testing.assert_array_equal(values["action"], table.encode(given))
    assert len(np.unique(values["action"])) > 3


def test_the_full_map(recording: Write, tmp_path: Path) -> None:
    """Every button is a switch and the camera has bins for each axis."""
    game = recording()
    demos = brought(game, tmp_path / "out", actions="full")
    assert demos.schema.action.sizes == (2,) * 8 + (11, 11)
    np.testing.assert_array_equal(demos.episode(0)["action"][:, 2], members(game)["action$forward"])


def obtain(steps: int, seed: int) -> dict[str, Any]:
    """What an Obtain game has beyond Treechop."""
    random = np.random.default_rng([seed, 1])
    return {
        "action__craft": random.choice(["none", "planks", "stick"], steps),
        "action__place": np.full(steps, "none"),
        "observation__inventory__log": random.integers(0, 64, steps + 1),
        "observation__equipped_items__mainhand__type": random.choice(["none", "stone_axe"], steps + 1),
        "observation__equipped_items__mainhand__damage": random.integers(-1, 9, steps + 1),
    }


def test_strings_and_numbers_of_obtain(recording: Write, tmp_path: Path) -> None:
    """Nested observations are fields, strings are one-hot or integer codes, and the shard stores their names."""
    recording("v3_a-1_0-20", game="MineRLObtainDiamond-v0", **obtain(20, 1))
    game = recording("v3_b-1_0-12", steps=12, game="MineRLObtainDiamond-v0", **(obtain(12, 2)))
    demos = brought(game, tmp_path / "out", actions="full")
    fields = {field.name: field.shape for field in demos.schema.obs.fields}
    assert fields == {
        "equipped_items/mainhand/damage": (1,),
        "equipped_items/mainhand/type": (2,),
        "inventory/log": (1,),
        "pov": (16, 16, 3),
    }
    assert demos.shards[0].origin["vocabulary"] == {
        "raw/craft": ["none", "planks", "stick"],
        "raw/place": ["none"],
        "equipped_items/mainhand/type": ["none", "stone_axe"],
    }
    assert demos.schema.action.sizes == (2,) * 8 + (3, 1, 11, 11)
    for number, name in enumerate(("v3_a-1_0-20", "v3_b-1_0-12")):
        told, found = members(game, name), demos.schema.obs.split(np.array(demos.episode(number)["obs"]))
        np.testing.assert_array_equal(found["inventory/log"][:, 0], told["observation$inventory$log"])
        held = told["observation$equipped_items$mainhand$type"]
        np.testing.assert_array_equal(found["equipped_items/mainhand/type"][:, 1], held == "stone_axe")
        np.testing.assert_array_equal(demos.episode(number)["raw/craft"] == 1, told["action$craft"] == "planks")
    obs, action, _, after, done = next(sarsd_iter(demos.pick([0]), max_sequence_len=-1))
    told = members(game, "v3_a-1_0-20")
    assert action["craft"].tolist() == told["action$craft"].tolist()
    assert obs["equipped_items"]["mainhand"]["type"].tolist() == (
        told["observation$equipped_items$mainhand$type"][:-1].tolist()
    )
    assert after["inventory"]["log"].dtype == np.int64
    np.testing.assert_array_equal(after["inventory"]["log"], told["observation$inventory$log"][1:])
    assert done.tolist() == [False] * 19 + [True]


def test_obfuscated_recordings(recording: Write, tmp_path: Path) -> None:
    """A vector of actions is imported unchanged; an action table cannot represent it."""
    random = np.random.default_rng(0)
    gone = {
        f"action__{name}": None for name in ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint")
    }
    vectors = random.uniform(-1, 1, (20, 64)).astype(np.float32), random.uniform(-1, 1, (21, 64)).astype(np.float32)
    game = recording(action__vector=vectors[0], observation__vector=vectors[1], action__camera=None, **gone)
    with pytest.raises(ConfigError, match=r"Obfuscated actions .* `14`"):
        minerl_source(game)
    demos = brought(game, tmp_path / "out", actions="full")
    np.testing.assert_array_equal(demos.episode(0)["action"], vectors[0])
    np.testing.assert_array_equal(demos.schema.obs.split(np.array(demos.episode(0)["obs"]))["vector"], vectors[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("8", "MineRLTreechop-v0"), ("14", "MineRLTreechop-v0"), ("full", "MineRLTreechop-v0"), ("full", OBTAIN)],
)
def test_a_clone_is_trained_further_as_it_says(
    recording: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_python: str, kind: str, name: str
) -> None:
    """With every action map, the commands that `clone` prints train it in treechop and in the game of the demos."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        more = stand_in(24) if name == OBTAIN else {}
        game = recording(f"v3_r-{number}_0-24", steps=24, lead=0, seed=number, game=name, size=64, **more)
    brought(game, tmp_path / "demos", actions=kind)
    small = ["--set", "policy.features=8", "--set", "plan.threads=1", "--json"]
    cloned = call("clone", "demos", "--epochs", "1", "--batch", "16", "--run", "clone", *small)
    lines = [re.search(r"slipstream (train .*?)(?:, where|$)", line) for line in cloned["next"]]
    commands = [found[1].replace("PATH", other_python) for found in lines if found]
    in_treechop = name != OBTAIN
    assert len(commands) == (2 if in_treechop else 1) and (" treechop " in commands[0]) == in_treechop
    tiny = "--preset smoke --steps 32 --set plan.envs=2 --set ppo.rollout=8 --set ppo.minibatch=16 --set ppo.epochs=1"
    tiny += " --set plan.collector=local --set env.match_seconds=1"
    quiet = "--set every.evaluate=0 --set evaluation.final_games=1 --set evaluation.envs=1"
    for number, command in enumerate(commands):
        facts = call(*command.split(), *tiny.split(), *quiet.split(), "--run", f"run{number}", *small)
        assert facts["steps"] >= 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size", "look"), [("8", 64, 15.0), ("8", 128, 20.0), ("14", 128, 15.0), ("full", 64, 15.0)]
)
@pytest.mark.parametrize("env", ["", "treechop:rough"])
def test_a_clone_of_imported_demos_plays_treechop(
    recording: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, look: float, env: str
) -> None:
    """Demos with 8 actions, or with frames of 128 x 128, are cloned, and the clone plays treechop with these spaces.

    Imported as demos of the real game or of treechop, the clone takes the env settings from them.
    """
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        game = recording(f"v3_r-{number}_0-24", steps=24, lead=0, seed=number, size=size)
    flags = ["--actions", kind, *(["--look", str(look)] if kind != "full" else []), *(["--env", env] if env else [])]
    call("demos", "import", "minerl", str(game), "--out", "demos", *flags, "--json")
    demos = Demos.open(tmp_path / "demos")
    spec = {"8": TABLE_8, "14": TABLE_14, "full": FULL}[kind].spec
    assert demos.schema.action == spec and demos.schema.env == (env or "minerl:MineRLTreechop-v0")
    small = ["--set", "policy.features=8", "--set", "plan.threads=1", "--json"]
    cloned = call("clone", "demos", "--epochs", "1", "--batch", "16", "--run", "clone", *small)
    assert any(f" train {env or 'treechop'} --start run:clone" in line for line in cloned["next"])
    for task in ("treechop", "treechop:rough"):
        found = call(
            *("evaluate", "run:clone", "--env", task, "--games", "2", "--set", "env.match_seconds=1", "--json")
        )
        assert found["games"] == 2 and 0 <= found["mean_return"] < 64
    kept = configure("treechop", agent="run:clone").settings.env
    vector = make_vector(EnvChoice("treechop", kept), 1)
    assert vector.spec.action == spec and vector.spec.obs == demos.schema.obs
    given = {"actions": "8"} if kind == "8" else {}
    given |= {"size": 128} if size == 128 else {}
    assert {name: kept.options[name] for name in given} == given
    assert kept.options.get("look", 15.0) == look


@pytest.mark.parametrize(
    ("options", "adapter", "more", "settings", "reason"),
    [
        ({}, {"size": (64, 64)}, {}, {"actions": "discrete", "options": {"look": 15.0}}, ""),
        ({"actions": "8"}, {"size": (64, 64)}, {}, {"options": {"actions": "8", "look": 15.0}}, ""),
        ({"actions": "8", "look": 9.0}, {"size": (128, 128)}, {}, {"options": {"size": 128, "look": 9.0}}, ""),
        ({"actions": "full"}, {"size": (128, 128)}, {}, {"actions": "multi_discrete", "options": {"size": 128}}, ""),
        ({}, {"size": (32, 32)}, {}, {}, "their frames are 32 x 32 x 3, those of treechop 64 x 64 x 3 or 128"),
        ({}, {"size": (64, 128)}, {}, {}, "their frames are 64 x 128 x 3, those of treechop 64 x 64 x 3"),
        ({}, {"size": (64, 64), "grey": True, "stack": 3}, {}, {}, "their frames are grey or stacked"),
        ({}, {"size": (64, 64), "grey": True}, {}, {}, "their frames are 64 x 64 x 1"),
        ({}, {"size": (64, 64)}, {"observation__inventory__log": np.arange(21)}, {}, "they have inventory/log beside"),
        ({"actions": "full"}, {"size": (64, 64)}, {"action__craft": ["none"] * 20}, {}, "their buttons, words"),
    ],
)
def test_which_demos_fit_treechop(
    recording: Write,
    tmp_path: Path,
    options: dict[str, Any],
    adapter: dict[str, Any],
    more: dict[str, Any],
    settings: dict[str, Any],
    reason: str,
) -> None:
    """Demos of all action maps and of both sizes have env settings of treechop; for the others there is a reason."""
    more = {name: np.array(values) for name, values in more.items()}
    demos = brought(recording(**more), tmp_path / "out", adapter=FrameAdapter(**adapter), **options)
    own = minerl_options(demos.shards[0].origin)
    assert own is not None
    found, why = treechop_settings(own, demos.schema.obs)
    assert why.startswith(reason) if reason else not why
    assert found["options"].items() >= settings.get("options", {}).items()
    assert found["actions"] == settings.get("actions", found["actions"])
    if not reason:
        vector = make_vector(EnvChoice("treechop", EnvSettings(**found)), 1)
        assert vector.spec.obs == demos.schema.obs and vector.spec.action == demos.schema.action


def test_vpts_actions_do_not_fit_treechop() -> None:
    """The actions of VPT's agents are named as the reason."""
    obs = ObsSpec((ObsField("pov", "image", (128, 128, 3)),))
    assert treechop_settings({"actions": "vpt"}, obs)[1] == "treechop has no action map vpt"


def stand_in(steps: int) -> dict[str, Any]:
    """What the stand-in of an Obtain game has beyond Treechop."""
    return obtain(steps, 0) | {
        "action__craft": np.resize(["none", "planks", "torch"], steps),
        "action__place": None,
        "observation__equipped_items__mainhand__type": np.resize(["air", "iron_axe", "none"], steps + 1),
    }


def call(*words: str) -> dict[str, Any]:
    """Run a command; return what it prints as JSON."""
    result = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return facts


def test_frame_options(recording: Write, tmp_path: Path, numbers: Tell) -> None:
    """Frames can be smaller, grey and stacked."""
    adapter = FrameAdapter((8, 8), grey=True, stack=3)
    demos = brought(recording(steps=6, lead=2), tmp_path / "out", adapter=adapter)
    frames = pov(demos)
    assert frames.shape == (7, 8, 8, 3)
    assert numbers(frames[..., :1]) == [2, 2, 2, 3, 4, 5, 6] and numbers(frames[..., 2:]) == [*range(2, 8), 7]


def test_which_folders_count(recording: Write, tmp_path: Path) -> None:
    """Only folders of version 3 and 4 with a video and arrays count, and not those that are known to be broken."""
    game = recording("v3_good-1_0-20")
    recording("v2_older-1_0-20")
    recording("v3_tempting_capers_shapeshifter-14_1-20")
    recording("v4_half-1_0-20")
    (game / "v4_half-1_0-20" / "rendered.npz").unlink()
    assert [place.name for place in find_recordings(game)] == ["v3_good-1_0-20"]
    recording("v3_other-1_0-20", game="MineRLNavigate-v0")
    with pytest.raises(DemoError, match="holds recordings of several games: MineRLNavigate-v0, MineRLTreechop-v0"):
        find_recordings(game.parent)
    (game.parent / "VERSION").write_text("5\n")
    with pytest.raises(DemoError, match="VERSION is version 5, not 3 or 4"):
        find_recordings(game)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DemoError, match="holds no MineRL recording of version 3 or 4"):
        find_recordings(tmp_path / "empty")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"action__forward": np.array([{}] * 20, object)}, r"`action\$forward` in .* holds pickled Python objects"),
        ({"action__forward": np.zeros(19, np.int64)}, r"`action\$forward` in .* is int64 \(19,\), not int64 \(20,\)"),
        ({"action__forward": None}, r"has no `action\$forward`"),
        ({"action__camera": np.full((20, 2), np.nan, np.float32)}, r"`action\$camera` in .* has NaN or infinite"),
        ({"lead": -3}, "has 18 frames for 21 states"),
        ({"meta": {"true_video_frame_count": 60}}, "has fewer frames than the expected 60"),
    ],
)
def test_bad_recordings_are_left_out_and_named(
    recording: Write, tmp_path: Path, spoil: dict[str, Any], why: str
) -> None:
    """What cannot be used is skipped and listed; too much of it stops everything, and nothing is written."""
    recording("v3_a-1_0-20")
    recording("v3_c-1_0-20")
    game = recording("v3_b-1_0-20", **spoil)
    with pytest.raises(
        DemoError, match=r"1 of 3 episodes of .* cannot be used, more than 1 %:\n  v3_b-1_0-20: .*" + why
    ):
        ingest(minerl_source(game), tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["data"]
    facts = ingest(minerl_source(game), tmp_path / "out", allow=0.5)
    assert facts["episodes"] == 2 and [one["episode"] for one in facts["skipped"]] == ["v3_b-1_0-20"]
    assert len(Demos.open(tmp_path / "out")) == 2


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_damaged_video_is_left_out(recording: Write, tmp_path: Path, keep: float) -> None:
    """A video that was cut off, or that is empty, is named."""
    recording("v3_a-1_0-20")
    game = recording("v3_b-1_0-20")
    file = game / "v3_b-1_0-20" / "recording.mp4"
    file.write_bytes(file.read_bytes()[: int(keep * file.stat().st_size)])
    facts = ingest(minerl_source(game), tmp_path / "out", allow=1.0)
    assert facts["episodes"] == 1 and "recording.mp4 cannot be decoded" in facts["skipped"][0]["why"]


def test_a_damaged_archive_is_left_out(recording: Write, tmp_path: Path) -> None:
    """Arrays whose bytes were changed or cut off are named, wherever they are found out."""
    recording("v3_a-1_0-20")
    game = recording("v3_b-1_0-20")
    recording("v3_c-1_0-20")
    cut, flipped = (game / name / "rendered.npz" for name in ("v3_b-1_0-20", "v3_c-1_0-20"))
    cut.write_bytes(cut.read_bytes()[:-50])
    data = bytearray(flipped.read_bytes())
    data[600:640] = bytes(40)
    flipped.write_bytes(data)
    facts = ingest(minerl_source(game), tmp_path / "out", allow=1.0)
    assert facts["episodes"] == 1
    assert [one["episode"] for one in facts["skipped"]] == ["v3_b-1_0-20", "v3_c-1_0-20"]


def test_doubts_about_metadata_are_notes(recording: Write, tmp_path: Path) -> None:
    """Where metadata.json and the data differ, the data are used and a note is added."""
    game = recording(meta={"total_reward": 64.0, "duration_steps": 99, "success": False})
    facts = ingest(minerl_source(game), tmp_path / "out")
    total = members(game)["reward"].sum()
    assert facts["notes"] == [
        f"{NAME}: duration_steps is 99 in metadata.json and 20 in the data",
        f"{NAME}: total_reward is 64 in metadata.json and {total:g} in the data",
    ]
    assert Demos.open(tmp_path / "out").episodes["outcome"].tolist() == [-1]


def test_where_it_came_from(recording: Write, tmp_path: Path) -> None:
    """Each shard stores format, source, options, and the files with their sizes."""
    game = recording()
    demos = brought(game, tmp_path / "out", actions="8", adapter=FrameAdapter((8, 8)))
    origin = demos.shards[0].origin
    assert origin["format"] == "minerl" and origin["source"] == str(game)
    assert origin["options"]["actions"]["names"][2] == "jump+forward"
    assert origin["options"]["frames"] == {"size": [8, 8], "grey": False, "stack": 1, "resize": "area"}
    assert origin["worker"]["episodes"] == [NAME]
    file = game / NAME / "recording.mp4"
    assert origin["worker"]["files"][str(file)]["bytes"] == file.stat().st_size


def test_different_categories_are_refused(recording: Write, tmp_path: Path) -> None:
    """A second import with different category names is refused, because codes would be ambiguous."""
    first = recording("v3_a-1_0-20", action__craft=np.full(20, "none"))
    second = recording("v3_b-1_0-20", game="MineRLOther-v0", action__craft=np.full(20, "planks"))
    brought(first, tmp_path / "out")
    ingest(minerl_source(first), tmp_path / "out")
    with pytest.raises(DemoError, match="holds demos with a different `vocabulary`"):
        ingest(minerl_source(second, env="minerl:MineRLTreechop-v0"), tmp_path / "out")
    assert len(Demos.open(tmp_path / "out")) == 2


def test_what_is_written_is_read_again(recording: Write, tmp_path: Path) -> None:
    """Imported demos can be exported as recordings and imported again, actions and numbers exact, frames nearly."""
    game = recording("v3_a-1_0-20", game="MineRLObtainDiamond-v0", **obtain(20, 1))
    demos = brought(game, tmp_path / "one")
    export_minerl(demos, tmp_path / "MineRLObtainDiamond-v0")
    again = brought(tmp_path / "MineRLObtainDiamond-v0", tmp_path / "two")
    assert again.schema == demos.schema
    old, new = demos.episode(0), again.episode(0)
    for column in demos.schema.columns:
        if column.name != "obs":
            np.testing.assert_array_equal(new[column.name], old[column.name])
    fields = (demos.schema.obs.split(np.array(values["obs"])) for values in (old, new))
    one, two = fields
    for name in demos.schema.obs.places:
        assert np.abs(one[name].astype(float) - two[name].astype(float)).max() <= (3 if name == "pov" else 0)
    with pytest.raises(DemoError, match="MineRLObtainDiamond-v0 already exists"):
        export_minerl(demos, tmp_path / "MineRLObtainDiamond-v0")
    told = json.loads(next((tmp_path / "MineRLObtainDiamond-v0").glob("*/metadata.json")).read_text())
    assert told["duration_steps"] == 20 and told["true_video_frame_count"] == 21


def test_a_game_can_be_written_as_recordings(tmp_path: Path, numbers: Tell) -> None:
    """`write_recording` takes frames, decoded actions and rewards; `lead` frames come first."""
    chosen = np.array([[1], [9], [10], [0]])
    frames = np.stack([np.full((16, 16, 3), 10 + 6 * n, np.uint8) for n in range(5)])
    folder = tmp_path / "treechop" / "v4_ours-0_0-4"
    write_recording(folder, frames, TABLE_14.decode(chosen), np.array([0, 0, 0, 1.0]), lead=2)
    demos = brought(folder.parent, tmp_path / "out")
    assert demos.episode(0)["action"].tolist() == chosen.tolist()
    assert numbers(pov(demos)) == [0, 1, 2, 3, 3]
    with pytest.raises(DemoError, match="4 steps have 5 frames, not 4"):
        write_recording(folder, frames[1:], {}, np.zeros(4))


def test_a_missing_pyav_gives_the_install_command(recording: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package and its extra are named."""
    game = recording()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MachineError, match="This needs the package `av`") as caught:
        minerl_source(game)
    assert caught.value.hint == 'pip install "slipstream[video]"'
