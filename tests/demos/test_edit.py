"""Splitting and merging: whole games, nothing lost or damaged, and the origin is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.demos.edit import merge, split, split_to
from slipstream.demos.format import Schema
from slipstream.demos.quality import examine
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError, MachineError

Write = Callable[..., Path]


def names(demos: Demos) -> set[str]:
    """The names of all episodes."""
    return {demos.label(n) for n in range(len(demos))}


def games(demos: Demos) -> set[tuple[int, int]]:
    """Which games there are, whatever shard they are in."""
    return {(int(r["seed"]), int(r["game"])) for r in demos.episodes}


def told(demos: Demos) -> list[tuple[object, ...]]:
    """What each episode is: its facts and its values."""
    kept = ["steps", "game", "env", "seed", "return", "agent", "team", "outcome", "ended", "checksum"]
    return sorted(tuple(record) for record in demos.episodes[kept].tolist())


@pytest.mark.parametrize(("share", "held"), [(0.1, 2), (0.25, 5), (0.001, 1), (0.999, 19)])
def test_the_sides_of_a_game_stay_together(write: Write, everything: Schema, share: float, held: int) -> None:
    """Every episode goes to one side, with all of its game; each side has its share of the games and at least one."""
    demos = Demos.open(write(schema=everything, games=20))
    train, held_out = split(demos, share, seed=0)
    assert names(train) | names(held_out) == names(demos)
    assert not names(train) & names(held_out)
    assert not games(train) & games(held_out)
    assert len(games(held_out)) == held
    assert len(held_out) == 2 * held


def test_the_split_follows_from_the_seed(write: Write, everything: Schema) -> None:
    """The same seed gives the same split, another seed another."""
    demos = Demos.open(write(schema=everything, games=30))
    assert names(split(demos, 0.2, 1)[1]) == names(split(demos, 0.2, 1)[1])
    assert len({frozenset(names(split(demos, 0.2, seed)[1])) for seed in range(10)}) == 10


def test_order_and_workers_change_nothing(write: Write) -> None:
    """The same games are held out whatever the order of episodes, and however many workers recorded them."""
    alone = Demos.open(write("alone", games=30))
    for worker in range(3):
        folder = write("crew", games=10, shard=f"worker-{worker}", first=10 * worker)
    crew = Demos.open(folder)
    shuffled = alone.pick(np.random.default_rng(0).permutation(30))
    wanted = games(split(alone, 0.2, 3)[1])
    assert games(split(crew, 0.2, 3)[1]) == wanted
    assert games(split(shuffled, 0.2, 3)[1]) == wanted


def test_the_share_is_drawn_fairly(write: Write) -> None:
    """Over many seeds every game is held out about as often as any other."""
    demos = Demos.open(write(games=10, steps=1))
    counts = np.zeros(10)
    for seed in range(500):
        counts[[game for _, game in games(split(demos, 0.3, seed)[1])]] += 1
    assert counts.sum() == 1500
    assert (np.abs(counts - 150) < 50).all()


def test_splits_that_cannot_be(write: Write, everything: Schema) -> None:
    """One game cannot be split, and the share must be between 0 and 1."""
    demos = Demos.open(write(schema=everything, games=1))
    with pytest.raises(DemoError, match="cannot be split: it holds 1 game,") as raised:
        split(demos, 0.1, 0)
    assert raised.value.hint == "record more games"
    with pytest.raises(DemoError, match="it holds 0 games"):
        split(demos.pick([]), 0.1, 0)
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="held-out share is"):
            split(demos, share, 0)


def test_a_split_on_disk(write: Write, tmp_path: Path, everything: Schema) -> None:
    """Two new folders hold the split, intact, and record its origin."""
    folder = write(schema=everything, games=10)
    outs = (tmp_path / "new" / "train", tmp_path / "held")
    train, held_out = split_to(folder, 0.3, 5, outs)
    wanted = split(Demos.open(folder), 0.3, 5)
    assert told(train) == told(wanted[0])
    assert told(held_out) == told(wanted[1])
    assert train.checksum == wanted[0].checksum
    assert examine(outs[0]).bad == examine(outs[1]).bad == {}
    origin = {"agent": "test", "seed": 0, "from": [str(folder / "shards" / "a")]}
    assert train.shards[0].origin == held_out.shards[0].origin == origin
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demos", "held", "new"]


def test_merging_what_was_split(write: Write, tmp_path: Path, everything: Schema) -> None:
    """Merging the parts of a split restores the whole: one shard, with the agents of each game together."""
    folder = write(schema=everything, games=10)
    split_to(folder, 0.3, 5, (tmp_path / "a", tmp_path / "b"))
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert told(merged) == told(Demos.open(folder))
    assert len(merged.shards) == 1
    assert len(np.unique(merged.games)) == 10
    origin = merged.shards[0].origin["from"]
    assert origin == [str(p / "shards" / "a") for p in (folder, tmp_path / "a", folder, tmp_path / "b")]


def test_merging_recordings(write: Write, tmp_path: Path) -> None:
    """Other recordings are shards of their own, even under one name, so that their games stay apart."""
    one, two = write("one", games=3), write("two", games=2, seed=9)
    merged = merge([one, two], tmp_path / "out")
    assert told(merged) == sorted(told(Demos.open(one)) + told(Demos.open(two)))
    assert [shard.name for shard in merged.shards] == ["a", "a-2"]
    assert [shard.origin["seed"] for shard in merged.shards] == [0, 9]
    assert len(np.unique(merged.games)) == 5


def test_the_same_games_twice_stay_apart(write: Write, tmp_path: Path) -> None:
    """Two copies of one recording stay separate, and the check finds them."""
    one, two = write("one", games=3), write("two", games=3)
    merged = merge([one, two], tmp_path / "out")
    assert len(np.unique(merged.games)) == 6
    assert examine(tmp_path / "out").copies == 3


def test_workers_of_one_recording_become_one_shard(write: Write, tmp_path: Path) -> None:
    """Shards of one recording that differ only by their worker are merged."""
    for worker in range(3):
        origin = {"recording": "x", "worker": worker}
        folder = write(games=4, shard=f"x-{worker}", first=4 * worker, origin=origin)
    merged = merge([folder], tmp_path / "out")
    assert told(merged) == told(Demos.open(folder))
    assert [shard.name for shard in merged.shards] == ["x-0"]
    assert merged.shards[0].origin["recording"] == "x"


def test_what_does_not_go_together(write: Write, tmp_path: Path, plain: Schema) -> None:
    """A different schema is refused before anything is written, with the difference."""
    one, two = write("one"), write("two", schema=replace(plain, terms=("goal",)))
    with pytest.raises(DemoError, match=r'two cannot be merged with .*one: .* another `terms`: \["goal"\], not \[\]'):
        merge([one, two], tmp_path / "out")
    with pytest.raises(DemoError, match="one is given twice"):
        merge([one, tmp_path / "x" / ".." / "one"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quarantine_is_left_behind(write: Write, tmp_path: Path) -> None:
    """Quarantined episodes are not copied; if none are left, an error is raised."""
    folder = write(games=3)
    quarantine = folder / "quarantine.json"
    quarantine.write_text(json.dumps({"version": 1, "episodes": {"a/1": "spoilt"}}))
    assert told(merge([folder], tmp_path / "out")) == told(Demos.open(folder))
    quarantine.write_text(json.dumps({"version": 1, "episodes": {f"a/{n}": "spoilt" for n in range(3)}}))
    with pytest.raises(DemoError, match="holds no good episode") as raised:
        merge([folder], tmp_path / "none")
    assert "slipstream demos check" in raised.value.hint


def test_damage_is_not_copied(write: Write, tmp_path: Path) -> None:
    """A damaged episode would get a new checksum; it is refused, and nothing is left half done."""
    folder = write(games=3)
    with open(folder / "shards" / "a" / "reward.bin", "r+b") as file:
        file.write(b"\x01")
    with pytest.raises(DemoError, match=r"Episode a/0 of .* is damaged") as raised:
        merge([folder], tmp_path / "out")
    assert "slipstream demos check" in raised.value.hint
    with pytest.raises(DemoError):
        split_to(folder, 0.5, 0, (tmp_path / "p", tmp_path / "q"))
    assert [p.name for p in tmp_path.iterdir()] == ["demos"]


def test_places_that_are_taken(write: Write, tmp_path: Path) -> None:
    """A folder with something in it is left alone; an empty one is used."""
    folder = write()
    with pytest.raises(DemoError, match="already exists and is not empty"):
        merge([folder], folder)
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="already exists"):
        merge([folder], tmp_path / "file")
    with pytest.raises(DemoError, match="Both parts would be written to"):
        split_to(folder, 0.5, 0, (tmp_path / "x", tmp_path / "x"))
    with pytest.raises(MachineError, match="could not be written: Not a directory"):
        merge([folder], tmp_path / "file" / "below")
    (tmp_path / "empty").mkdir()
    assert len(merge([folder], tmp_path / "empty")) == 4
