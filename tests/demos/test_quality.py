"""The quality check: bad episodes are found and left out, and the statistics are correct."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.confidence import mean_interval
from slipstream.contracts import ActionSpec, Array
from slipstream.demos import quality
from slipstream.demos.format import EPISODE, Schema
from slipstream.demos.quality import check_quality, examine
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare, seal
from slipstream.errors import DemoError, MachineError

Write = Callable[..., Path]
Draw = Callable[..., dict[str, Array]]
CONTINUOUS = ActionSpec("continuous", (), (-1.0, 0.0), (1.0, 4.0))


def spoil(*numbers: int, **spoilt: Callable[[Array], Any]) -> Callable[[int, dict[str, Array]], None]:
    """Change columns of some episodes; `/` in their names is written `_`."""

    def alter(number: int, values: dict[str, Array]) -> None:
        for name, change in spoilt.items():
            if number in numbers:
                change(values[name.replace("_", "/", 1)])

    return alter


def put(place: Any, value: float) -> Callable[[Array], None]:
    """Write a value into an array."""
    return lambda array: array.__setitem__(place, value)


def flip(file: Path, place: int) -> None:
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


def test_good_demos(write: Write, everything: Schema) -> None:
    """Where nothing is wrong nothing is written."""
    folder = write(schema=everything)
    report = check_quality(folder)
    assert report.bad == {}
    assert report.share == 0
    assert report.facts()["good"] == 8
    assert report.facts()["verified"]
    assert not (folder / "quarantine.json").exists()
    json.dumps(report.facts(), allow_nan=False)
    assert f"{folder}: 8 of 8 episodes are good" in report.lines()


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (spoil(3, obs=put((7, 1), np.nan)), "has NaN or infinite values in `obs`"),
        (spoil(3, obs=put((-1, 0), -np.inf)), "has NaN or infinite values in `obs`"),
        (spoil(3, reward=put(0, np.inf)), "has NaN or infinite values in `reward`"),
        (spoil(3, terms_goal=put(5, np.nan)), "has NaN or infinite values in `terms/goal`"),
        (spoil(3, start_state=put((0, 5), np.nan)), "has NaN or infinite values in `start/state`"),
        (spoil(3, raw_camera=put((40, 1, 1), np.nan)), "has NaN or infinite values in `raw/camera`"),
        (spoil(3, action=put((4, 0), 3)), "has an action out of its range"),
        (spoil(3, action=put((4, 0), -1)), "has an action out of its range"),
        (spoil(3, mask=put((slice(None), slice(3)), 0)), "has an action that its mask forbids"),
        (spoil(3, obs=put((slice(None),), 1.0)), "is constant: its observations never change"),
    ],
)
def test_bad_values(write: Write, everything: Schema, alter: Any, reason: str, plain: Schema) -> None:
    """Each fault is found in the one episode that has it, and that episode is quarantined."""
    schema = replace(everything, obs=plain.obs)
    folder = write(schema=schema, alter=alter, games=3)
    report = check_quality(folder, limit=0.2)
    assert report.bad == {"a/3": reason}
    assert json.loads((folder / "quarantine.json").read_text())["episodes"] == {"a/3": reason}
    assert len(Demos.open(folder)) == 5
    assert f"  a/3 {reason}" in report.lines()


def test_numbers_among_pixels(write: Write, everything: Schema) -> None:
    """In rows of bytes the vectors are numbers, and pixels are not, whatever their bits would mean."""

    def alter(number: int, values: dict[str, Array]) -> None:
        fields = everything.obs.split(values["obs"])
        fields["eye"][:] = 255
        if number == 2:
            fields["speed"][3, 1] = np.nan

    assert check_quality(write(schema=everything, alter=alter), limit=0.2).bad == {
        "a/2": "has NaN or infinite values in `obs`"
    }


def test_large_numbers_are_no_fault(write: Write) -> None:
    """Numbers the sum of which is infinite are finite all the same."""
    assert check_quality(write(alter=spoil(1, obs=put((slice(None, 20), 0), 3e38)))).bad == {}


def test_continuous_actions_out_of_range(write: Write, plain: Schema) -> None:
    """Rounding is no fault, more is; infinite bounds bound nothing."""
    schema = replace(plain, action=CONTINUOUS)
    alter = lambda n, v: v["action"].__setitem__((0, 1), {1: 4.0001, 2: 4.01}.get(n, 4.0))  # noqa: E731
    assert list(check_quality(write(schema=schema, alter=alter), limit=0.5).bad) == ["a/2"]
    free = replace(plain, action=ActionSpec("continuous", (), (-np.inf,), (np.inf,)))
    path = write("free", schema=replace(free, action=replace(free.action, low=(-2e9,), high=(2e9,))))
    told = json.loads((path / "demos.json").read_text())
    (path / "demos.json").write_text(json.dumps(told | {"action": free.action.describe()}))
    assert check_quality(path).bad == {}
    assert check_quality(path).facts()["actions"][0]["reach"] is None


def test_a_flipped_bit(write: Write, everything: Schema) -> None:
    """A flipped bit on disk is found by the checksum if verification is on."""
    folder = write(schema=everything)
    flip(folder / "shards" / "a" / "terms.touch.bin", 4 * 100)
    assert check_quality(folder, limit=0.2, verify=False).bad == {}
    report = check_quality(folder, limit=0.2)
    assert report.bad == {"a/2": "is damaged: its checksum is wrong"}


def test_lost_episodes(write: Write) -> None:
    """Episodes in the index without values count as bad, also for a whole shard."""
    folder = write(games=6)
    write(games=2, shard="b", seed=1)
    file = folder / "shards" / "a" / "obs.bin"
    os.truncate(file, file.stat().st_size // 2)
    (folder / "shards" / "b" / "reward.bin").unlink()
    report = examine(folder)
    assert list(report.bad) == ["a/3", "a/4", "a/5", "b/0", "b/1"]
    assert set(report.bad.values()) == {"is lost: its record is damaged or its values are missing"}
    assert (report.lost, report.episodes, report.share) == (5, 8, 5 / 8)


def test_an_index_with_a_flipped_bit(write: Write) -> None:
    """A record with a wrong seal invalidates the rest of its shard."""
    folder = write(games=5)
    flip(folder / "shards" / "a" / "episodes.bin", 2 * EPISODE.itemsize + 9)
    assert list(examine(folder).bad) == ["a/2", "a/3", "a/4"]


def test_an_episode_without_steps(write: Write) -> None:
    """A record of no steps, as another program might write it, is bad."""
    folder = write(games=3)
    file = folder / "shards" / "a" / "episodes.bin"
    records = np.frombuffer(file.read_bytes(), EPISODE).copy()
    empty = np.zeros(1, EPISODE)
    empty["first"] = records[-1]["first"] + records[-1]["steps"]
    empty["seal"] = seal(empty)
    file.write_bytes(np.concatenate([records, empty]).tobytes())
    with open(folder / "shards" / "a" / "obs.bin", "ab") as obs:
        obs.write(bytes(12))
    assert examine(folder, verify=False).bad == {"a/3": "has no steps"}


def test_copies(write: Write) -> None:
    """Extra copies are left out, the first stays; they are no reason to stop, since leaving them out is the cure."""
    folder = write(games=3)
    shutil.copytree(folder / "shards" / "a", folder / "shards" / "b")
    report = check_quality(folder)
    assert report.bad == {f"b/{n}": f"is a copy of a/{n}" for n in range(3)}
    assert (report.copies, report.share, report.facts()["good"]) == (3, 0.0, 3)
    assert "bad: 3, 3 of them copies" in report.lines()


def test_short_episodes_may_be_alike(tmp_path: Path, plain: Schema, values: Draw) -> None:
    """In a small game other starts give the same episode; only the same game twice is a copy there."""
    prepare(tmp_path / "demos", plain)
    shard = Shard(tmp_path / "demos", "a", plain, {})
    for game, seed in ((0, 0), (1, 0), (1, 0), (0, 7)):
        shard.add(values(steps=5), game=game, seed=seed)
    shard.close()
    report = check_quality(tmp_path / "demos")
    assert report.bad == {}
    assert report.repeats == 3
    shard = Shard(tmp_path / "demos", "b", plain, {})
    shard.add(values(steps=5), game=0, seed=0)
    shard.close()
    assert check_quality(tmp_path / "demos").bad == {"b/0": "is a copy of a/0"}


def test_the_same_checksum_is_not_the_same_episode(write: Write) -> None:
    """Episodes are copies only if they are equal bit for bit."""
    folder = write(games=6)
    file = folder / "shards" / "a" / "episodes.bin"
    records = np.frombuffer(file.read_bytes(), EPISODE).copy()
    records["checksum"] = 7
    records["seal"] = seal(records)
    file.write_bytes(records.tobytes())
    assert examine(folder, verify=False).bad == {}


def test_over_the_limit(write: Write) -> None:
    """More than 1 % of bad episodes raises an error with examples and a hint; the quarantine is written."""
    folder = write(games=100, alter=spoil(*range(1, 8), reward=put(0, np.nan)))
    with pytest.raises(DemoError) as raised:
        check_quality(folder)
    assert raised.value.code == 4
    lines = raised.value.message.splitlines()
    assert lines[0] == f"7 of 100 episodes in {folder} are bad (7.00%); the limit is 1.00%."
    assert lines[1] == "  a/1 has NaN or infinite values in `reward`"
    assert lines[-1] == "  ... and 2 more (--json lists all)"
    assert f"slipstream demos check {folder} --allow 0.07" in raised.value.hint
    assert len(json.loads((folder / "quarantine.json").read_text())["episodes"]) == 7


def test_one_percent_is_not_over_it(write: Write) -> None:
    """A share equal to the limit is accepted; the bad episodes are left out."""
    report = check_quality(write(games=100, alter=spoil(5, reward=put(0, np.nan))))
    assert report.share == 0.01
    assert report.facts()["good"] == 99


def test_an_accepted_share_stays_accepted(write: Write) -> None:
    """A share allowed once stays allowed for the folder."""
    folder = write(games=10, alter=spoil(5, reward=put(0, np.nan)))
    with pytest.raises(DemoError, match=r"1 of 10 episodes"):
        check_quality(folder)
    quality.quarantine(examine(folder), allowed=0.1)
    assert check_quality(folder).share == 0.1


def test_episodes_quarantined_by_hand_stay(write: Write) -> None:
    """Reasons of others are kept; what a check found before and does not find any more is let out."""
    folder = write(games=5)
    told = {"a/1": "he was not looking", "a/2": "has NaN or infinite values in `obs`"}
    (folder / "quarantine.json").write_text(json.dumps({"version": 1, "episodes": told}))
    report = check_quality(folder)
    assert report.bad == {}
    assert report.facts()["good"] == 4
    assert "quarantined by hand: 1" in report.lines()
    assert json.loads((folder / "quarantine.json").read_text())["episodes"] == {"a/1": "he was not looking"}
    (folder / "quarantine.json").write_text(json.dumps({"version": 1, "episodes": {"a/2": told["a/2"]}}))
    check_quality(folder)
    assert not (folder / "quarantine.json").exists()


def test_nothing_to_check(tmp_path: Path, plain: Schema, write: Write) -> None:
    """A folder without a whole episode cannot be learnt from."""
    prepare(tmp_path / "empty", plain)
    with pytest.raises(DemoError, match="empty holds no complete episode") as raised:
        check_quality(tmp_path / "empty")
    assert raised.value.hint == "record or import some"
    folder = write()
    (folder / "shards" / "a" / "obs.bin").unlink()
    with pytest.raises(DemoError, match="no complete episode: all 4 in its index are damaged"):
        check_quality(folder)


def test_a_quarantine_that_cannot_be_written(write: Write) -> None:
    """If the quarantine cannot be written, an error is raised instead of using bad episodes."""
    folder = write(games=3, alter=spoil(0, reward=put(0, np.nan)))
    (folder / "quarantine.json").mkdir()
    report = examine_ignoring_quarantine(folder)
    with pytest.raises(MachineError, match=r"quarantine\.json could not be written") as raised:
        quality.quarantine(report)
    assert "slipstream demos merge" in raised.value.hint


def examine_ignoring_quarantine(folder: Path) -> quality.QualityReport:
    """A report made while there is no quarantine."""
    (folder / "quarantine.json").rmdir()
    report = examine(folder)
    (folder / "quarantine.json").mkdir()
    return report


@pytest.mark.parametrize("block", [1, 2000, 10**9])
def test_blocks_change_nothing(
    write: Write, everything: Schema, monkeypatch: pytest.MonkeyPatch, block: int, plain: Schema
) -> None:
    """Read one by one or all at once, the same episodes are bad and the same actions are counted."""
    schema = replace(everything, obs=plain.obs)
    folder = write(schema=schema, games=9, alter=spoil(3, 4, 11, reward=put(2, np.nan)))
    monkeypatch.setattr(quality, "BLOCK_BYTES", block)
    report = examine(folder)
    assert list(report.bad) == ["a/3", "a/4", "a/11"]
    good = report.good.load(["action"])["action"]
    assert report.actions.steps == len(good) == report.facts()["steps"]
    for part, told in enumerate(report.actions.parts()):
        assert told["histogram"] == np.bincount(good[:, part], minlength=schema.action.sizes[part]).tolist()


def test_returns_and_lengths(write: Write, everything: Schema) -> None:
    """Returns, lengths, outcomes and ends are those of the good episodes."""
    report = check_quality(write(schema=everything, games=10, alter=spoil(0, reward=put(0, np.nan))), limit=0.1)
    facts, records = report.facts(), Demos.open(report.demos.path).episodes
    mean, low, high = mean_interval(records["return"].tolist())
    assert facts["returns"] == {
        "mean": mean,
        "mean_low": low,
        "mean_high": high,
        "min": records["return"].min(),
        "median": float(np.median(records["return"])),
        "max": records["return"].max(),
    }
    assert facts["lengths"] == {"mean": records["steps"].mean(), "min": 40, "median": 41, "max": 42}
    assert facts["outcomes"] == {"won": 9, "drawn": 0, "lost": 10}
    assert facts["ended"] == {"terminated": 19, "truncated": 0, "cut": 0}
    assert (facts["episodes"], facts["good"], facts["games"]) == (20, 19, 10)


def test_options_used(write: Write, plain: Schema) -> None:
    """The reach of a discrete part is the share of its options that occur; the null action is given by the user."""

    def alter(number: int, values: dict[str, Array]) -> None:
        values["action"][:] = 2
        values["action"][:10] = 0

    folder = write(games=3, alter=alter, steps=39)
    report = examine(folder, null=[0])
    (told,) = report.facts()["actions"]
    assert told == {"reach": 0.5, "histogram": [30, 0, 90, 0]}
    assert report.facts()["null_share"] == 0.25
    assert "actions: 2 of 4 options used (2: 75.0%, 0: 25.0%)" in report.lines()
    assert "null actions: 25.0%" in report.lines()
    assert check_quality(folder).facts()["null_share"] is None
    for wrong in ([4], [0, 0], [-1]):
        with pytest.raises(DemoError, match="is not an action of these demos") as raised:
            examine(folder, null=wrong)
        assert "0 to 3" in raised.value.hint


def test_ranges_used(write: Write, plain: Schema) -> None:
    """Of continuous actions there are moments, a histogram, the share of the range that is used, and rest."""

    def alter(number: int, values: dict[str, Array]) -> None:
        steps = len(values["reward"])
        values["action"][:, 0] = np.linspace(-0.5, 0.5, steps)
        values["action"][:, 1] = 1.0
        values["action"][:20] = [0.02, 0.04]

    report = examine(write(games=1, steps=80, schema=replace(plain, action=CONTINUOUS), alter=alter))
    taken = report.demos.load(["action"])["action"].astype(np.float64)
    first, second = report.facts()["actions"]
    assert first["reach"] == pytest.approx((taken[:, 0].max() - taken[:, 0].min()) / 2)
    assert second["reach"] == pytest.approx(0.96 / 4)
    for part, told in enumerate((first, second)):
        assert told["mean"] == pytest.approx(taken[:, part].mean())
        assert told["std"] == pytest.approx(taken[:, part].std())
        assert (told["min"], told["max"]) == (taken[:, part].min(), taken[:, part].max())
        assert (
            told["histogram"]
            == np.histogram(taken[:, part], 20, (CONTINUOUS.low[part], CONTINUOUS.high[part]))[0].tolist()
        )
    assert report.facts()["null_share"] == 20 / 80
    assert any(line.startswith("action 1: min 0.04, mean 0.76, max 1,") for line in report.lines())
    assert any("reach 24% of [0, 4]" in line for line in report.lines())


def test_zero_out_of_range_is_no_rest(write: Write, plain: Schema) -> None:
    """If zero is not a valid action, the null share is unknown."""
    schema = replace(plain, action=ActionSpec("continuous", (), (1.0,), (2.0,)))
    assert examine(write(schema=schema)).facts()["null_share"] is None


def test_one_episode(write: Write) -> None:
    """Of one episode there is no interval, and that is not an error."""
    report = check_quality(write(games=1))
    assert math.isnan(report.facts()["returns"]["mean_low"])
    assert not any("nan" in line for line in report.lines())
