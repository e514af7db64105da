"""Demos in other folders: split by game, merged, with where they came from kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.demos.format import EPISODE
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, compare, prepare
from slipstream.errors import ConfigError, DemoError, MachineError

FACTS = tuple(set(EPISODE.names or ()) - {"first", "steps", "return", "checksum", "seal"})
"""What a record tells that its values do not."""
PRIVATE = ("from", "worker")
"""What may differ between shards of one recording."""


def split(demos: Demos, share: float, seed: int) -> tuple[Demos, Demos]:
    """The episodes to learn from, and about `share` of them held out; the sides of one game stay together.

    Where a game goes follows from the seed and from what it is (the recording's seed, its env, its number) alone, so
    that the order of episodes and the number of workers that recorded them change nothing.
    """
    if not 0 < share < 1:
        raise ConfigError(f"A share of {share:g} cannot be held out.", "choose one between 0 and 1, such as 0.1")
    games = int(demos.games.max()) + 1 if len(demos) else 0
    if games < 2:
        raise DemoError(
            f"{demos.path} cannot be split: it holds {games} game{'' if games == 1 else 's'}, and each side needs one.",
            "record more games",
        )
    firsts = np.unique(demos.games, return_index=True)[1]
    marks = [_mark(demos, int(episode), seed) for episode in firsts]
    held = min(games - 1, max(1, round(share * games)))
    chosen = np.isin(demos.games, sorted(range(games), key=marks.__getitem__)[:held])
    return demos.pick(np.flatnonzero(~chosen)), demos.pick(np.flatnonzero(chosen))


def _mark(demos: Demos, episode: int, seed: int) -> tuple[bytes, str]:
    """What the game of an episode is sorted by: chance that follows from what it is."""
    record = demos.episodes[episode]
    told = f"{seed}/{record['seed']}/{record['env']}/{record['game']}"
    return hashlib.sha256(told.encode()).digest(), demos.label(episode)


def split_to(path: Path, share: float, seed: int, outs: Sequence[Path]) -> tuple[Demos, Demos]:
    """Split a folder into two new ones: the rest, and the share held out."""
    if outs[0].resolve() == outs[1].resolve():
        raise DemoError(f"Both parts cannot go to {outs[0]}.", "name two folders: --out TRAIN HELD_OUT")
    parts = split(_open(path), share, seed)
    with _made(outs[0]) as first, _made(outs[1]) as second:
        _copy([parts[0]], first)
        _copy([parts[1]], second)
    return Demos.open(outs[0]), Demos.open(outs[1])


def merge(paths: Sequence[Path], out: Path) -> Demos:
    """Copy the good episodes of some folders into a new one."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise DemoError(f"{path} is named twice.", "name each folder once")
        seen.add(path.resolve())
    found = [_open(path) for path in paths]
    for demos in found[1:]:
        difference = compare(demos.schema, found[0].schema)
        if difference:
            raise DemoError(
                f"{demos.path} does not go with {found[0].path}: it holds demos with {difference}.",
                "merge only what was recorded alike",
            )
    with _made(out) as folder:
        _copy(found, folder)
    return Demos.open(out)


def _open(path: Path) -> Demos:
    demos = Demos.open(path)
    if not len(demos):
        raise DemoError(f"{path} holds no good episode.", f"see why: slipstream demos check {path}")
    return demos


@contextlib.contextmanager
def _made(out: Path) -> Iterator[Path]:
    """A folder that appears under its name when it is complete, or not at all."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise DemoError(f"{out} is there already and is not empty.", "choose another folder with --out")
    draft = out.with_name(f".{out.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        draft.mkdir(parents=True)
        yield draft
        if out.is_dir():
            out.rmdir()
        os.rename(draft, out)
    except OSError as error:
        raise MachineError(f"{out} could not be written: {error.strerror}.", "choose a folder that can be") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@dataclass
class _Part:
    """A shard to write: who recorded it, and the episodes that go there."""

    origin: dict[str, Any]
    sources: list[str] = field(default_factory=list)
    episodes: list[tuple[Demos, int]] = field(default_factory=list)
    seats: set[tuple[int, int]] = field(default_factory=set)
    """Game and agent of each episode: another episode of the same would be of another recording."""


def _copy(sets: Sequence[Demos], out: Path) -> None:
    """Write episodes into a new folder, one shard for each recording."""
    prepare(out, sets[0].schema)
    for name, part in _plan(sets).items():
        shard = Shard(out, name, sets[0].schema, part.origin | {"from": part.sources})
        try:
            for demos, number in part.episodes:
                source, place = (int(x) for x in demos.chosen[number])
                if not demos.shards[source].intact(place):
                    hint = f"put it into quarantine: slipstream demos check {demos.path}"
                    raise DemoError(f"Episode {demos.label(number)} of {demos.path} is damaged.", hint)
                record = demos.episodes[number]
                shard.add(demos.episode(number), **{name: int(record[name]) for name in FACTS})
        finally:
            shard.close()


def _plan(sets: Sequence[Demos]) -> dict[str, _Part]:
    """Which episodes go to which shard: those of one recording together, each game told from all others."""
    parts: dict[str, _Part] = {}
    for demos in sets:
        for number in np.unique(demos.chosen[:, 0]):
            view, mine = demos.shards[number], np.flatnonzero(demos.chosen[:, 0] == number)
            records = demos.episodes[mine]
            seats = set(zip(records["game"].tolist(), records["agent"].tolist(), strict=True))
            origin = {key: value for key, value in view.origin.items() if key not in PRIVATE}
            fitting = (p for p in parts.values() if p.origin == origin and origin and not p.seats & seats)
            part = next(fitting, None)
            if part is None:
                part = parts[_free_name(view.name, parts)] = _Part(origin)
            part.sources += [*view.origin.get("from", []), str(view.path)]
            part.episodes += [(demos, int(episode)) for episode in mine]
            part.seats |= seats
    return parts


def _free_name(name: str, taken: dict[str, _Part]) -> str:
    """The name of a shard, with a number behind it where it is taken."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
