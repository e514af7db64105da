"""Ingesting episodes: equal for any number of workers, limited, all or nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, vector_obs
from slipstream.demos.format import TERMINATED, Schema
from slipstream.demos.importers.ingest import ingest
from slipstream.demos.importers.source import Episode, EpisodeRef, Source, import_optional
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError, MachineError

SCHEMA = Schema("toy", vector_obs(2), ActionSpec("discrete", (3,)))


def source(count: int = 20, bad: tuple[int, ...] = (), fail: Exception | None = None, **more: Any) -> Source:
    """Episodes of 5 to 9 steps that follow from their number; some cannot be read."""

    def length(part: EpisodeRef) -> int:
        return 5 + part.key % 5

    def read(part: EpisodeRef) -> Episode:
        if part.key in bad:
            raise fail or DemoError(f"number {part.key} is odd", "")
        steps = length(part)
        random = np.random.default_rng(part.key)
        values = {
            "obs": random.normal(size=(steps + 1, 2)),
            "action": random.integers(0, 3, (steps, 1)),
            "reward": np.full(steps, part.key, np.float32),
        }
        return Episode(values, TERMINATED, seed=part.key)

    parts = [EpisodeRef(f"e{number}", number) for number in range(count)]
    return Source("toy", "nowhere", SCHEMA, parts, read, length, **({"parallel": True} | more))


def test_workers_change_nothing_but_the_shards(tmp_path: Path) -> None:
    """The order of episodes is that of the source, however many read them."""
    for workers in (1, 3, 7):
        facts = ingest(source(), tmp_path / str(workers), workers=workers)
        assert facts["workers"] == workers and len(facts["shards"]) == workers and facts["episodes"] == 20
    one, three, seven = (Demos.open(tmp_path / str(workers)) for workers in (1, 3, 7))
    assert one.checksum == three.checksum == seven.checksum
    assert seven.episodes["seed"].tolist() == list(range(20))
    assert len(set(seven.episodes["game"].tolist())) == 20
    assert one.shards[0].origin["worker"]["episodes"][:2] == ["e0", "e1"]


def test_a_source_that_is_read_in_order_has_one_worker(tmp_path: Path) -> None:
    """Episodes in one file are read sequentially."""
    assert ingest(source(parallel=False), tmp_path / "out", workers=4)["workers"] == 1


@pytest.mark.parametrize(("limit", "steps"), [(1, [1]), (5, [5]), (13, [5, 6, 2]), (10_000, None)])
def test_max_samples_cuts_the_last_episode(tmp_path: Path, limit: int, steps: list[int] | None) -> None:
    """The number of steps is limited; an episode that is cut has no end."""
    ingest(source(), tmp_path / "out", max_samples=limit, workers=2)
    demos = Demos.open(tmp_path / "out")
    if steps is None:
        assert len(demos) == 20
        return
    assert demos.episodes["steps"].tolist() == steps
    assert demos.episodes["ended"][-1] == (TERMINATED if limit == 5 else 0)
    assert demos.episode(len(steps) - 1)["obs"].shape == (steps[-1] + 1, 2)


def test_max_samples_must_be_positive(tmp_path: Path) -> None:
    """A limit of 0 is refused."""
    with pytest.raises(ConfigError, match="--max-samples is 0"):
        ingest(source(), tmp_path / "out", max_samples=0)


def test_a_few_bad_episodes_are_left_out(tmp_path: Path) -> None:
    """Up to 1 % may be unreadable; they are listed with the reason."""
    facts = ingest(source(200, bad=(7, 100)), tmp_path / "out", workers=2)
    assert facts["episodes"] == 198
    assert facts["skipped"] == [
        {"episode": "e100", "why": "number 100 is odd"},
        {"episode": "e7", "why": "number 7 is odd"},
    ]


def test_many_bad_episodes_stop_everything(tmp_path: Path) -> None:
    """More than that is an error that names the first, and leaves nothing behind."""
    with pytest.raises(DemoError, match=r"3 of 200 episodes of nowhere cannot be used, more than 1 %:\n  e7: number 7"):
        ingest(source(200, bad=(7, 8, 9, 10)), tmp_path / "out")
    assert not list(tmp_path.iterdir())
    with pytest.raises(DemoError, match="nowhere holds no usable episode"):
        ingest(source(2, bad=(0, 1)), tmp_path / "out", allow=1.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [MachineError("disk full", ""), ZeroDivisionError("a bug"), KeyboardInterrupt()])
def test_any_other_failure_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    """A full disk, a bug or Ctrl-C ends the import, closes the source, and leaves existing demos unchanged."""
    closed: list[bool] = []
    ingest(source(3), tmp_path / "out")
    before, threads = Demos.open(tmp_path / "out").checksum, set(threading.enumerate())
    failing = source(40, bad=(20,), fail=error, close=lambda: closed.append(True))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        ingest(failing, tmp_path / "out", workers=2)
    assert [file.name for file in tmp_path.iterdir()] == ["out"] and closed == [True]
    assert Demos.open(tmp_path / "out").checksum == before
    assert set(threading.enumerate()) <= threads


def test_a_folder_grows_by_imports_of_the_same_kind(tmp_path: Path) -> None:
    """A second import is added; another schema, or a folder without demos, is refused at once."""
    ingest(source(3), tmp_path / "out")
    ingest(source(4), tmp_path / "out")
    assert len(Demos.open(tmp_path / "out")) == 7
    other = Schema("toy", vector_obs(5), ActionSpec("discrete", (3,)))
    read: list[EpisodeRef] = []
    strange = Source("toy", "x", other, [EpisodeRef("a")], lambda part: read.append(part), lambda part: 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(DemoError, match="holds demos with another `obs`"):
        ingest(strange, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(DemoError, match="is not empty and holds no demos"):
        ingest(source(3), tmp_path / "full")
    with pytest.raises(DemoError, match=r"notes\.txt is a file, not a folder"):
        ingest(source(3), tmp_path / "full" / "notes.txt")
    assert not read and len(list(tmp_path.iterdir())) == 2


def test_progress_counts_episodes(tmp_path: Path) -> None:
    """Progress counts every episode once, including bad ones."""
    told: list[tuple[int, int]] = []
    ingest(source(20, bad=(3,)), tmp_path / "out", workers=2, allow=0.1, on_progress=lambda *now: told.append(now))
    assert told == [(n, 20) for n in range(1, 21)]


def test_a_package_that_is_missing_is_named() -> None:
    """The error names the package and the install command."""
    with pytest.raises(MachineError, match="This needs the package `not_there`") as caught:
        import_optional("not_there", "video")
    assert caught.value.hint == 'pip install "slipstream[video]"'
