"""Split and merge demos folders; the origin of every episode is kept."""

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
"""The fields of a record that do not follow from the values."""
PRIVATE = ("from", "worker")
"""The keys of an origin that may differ between shards of one recording."""


def split(demos: Demos, share: float, seed: int) -> tuple[Demos, Demos]:
    """Split into training and held-out episodes (about `share` of the games); agents of one game stay together.

    The assignment of a game depends only on `seed` and on the game's identity (the recording's seed, env and game
    number), not on the order of episodes or on the number of workers that recorded them.
    """
    if not 0 < share < 1:
        raise ConfigError(f"The held-out share is {share:g}.", "choose a share between 0 and 1, such as 0.1")
    games = int(demos.games.max()) + 1 if len(demos) else 0
    if games < 2:
        raise DemoError(
            f"{demos.path} cannot be split: it holds {games} game{'' if games == 1 else 's'}, and each part needs one.",
            "record more games",
        )
    firsts = np.unique(demos.games, return_index=True)[1]
    keys = [_sort_key(demos, int(episode), seed) for episode in firsts]
    held = min(games - 1, max(1, round(share * games)))
    chosen = np.isin(demos.games, sorted(range(games), key=keys.__getitem__)[:held])
    return demos.pick(np.flatnonzero(~chosen)), demos.pick(np.flatnonzero(chosen))


def _sort_key(demos: Demos, episode: int, seed: int) -> tuple[bytes, str]:
    """A pseudo-random sort key of an episode's game, derived from its identity."""
    record = demos.episodes[episode]
    identity = f"{seed}/{record['seed']}/{record['env']}/{record['game']}"
    return hashlib.sha256(identity.encode()).digest(), demos.label(episode)


def split_to(path: Path, share: float, seed: int, outs: Sequence[Path]) -> tuple[Demos, Demos]:
    """Split a folder into two new ones: training and held-out episodes."""
    if outs[0].resolve() == outs[1].resolve():
        raise DemoError(f"Both parts would be written to {outs[0]}.", "give two folders: --out TRAIN HELD_OUT")
    parts = split(_open(path), share, seed)
    with _new_folder(outs[0]) as first, _new_folder(outs[1]) as second:
        _copy([parts[0]], first)
        _copy([parts[1]], second)
    return Demos.open(outs[0]), Demos.open(outs[1])


def merge(paths: Sequence[Path], out: Path) -> Demos:
    """Copy the good episodes of several folders into a new one."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise DemoError(f"{path} is given twice.", "give each folder once")
        seen.add(path.resolve())
    found = [_open(path) for path in paths]
    for demos in found[1:]:
        difference = compare(demos.schema, found[0].schema)
        if difference:
            raise DemoError(
                f"{demos.path} cannot be merged with {found[0].path}: it holds demos with {difference}.",
                "merge only demos with the same schema",
            )
    with _new_folder(out) as folder:
        _copy(found, folder)
    return Demos.open(out)


def _open(path: Path) -> Demos:
    demos = Demos.open(path)
    if not len(demos):
        raise DemoError(f"{path} holds no good episode.", f"see why: slipstream demos check {path}")
    return demos


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` when the block succeeds, and removed otherwise."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise DemoError(f"{out} already exists and is not empty.", "choose another folder with --out")
    draft = out.with_name(f".{out.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        draft.mkdir(parents=True)
        yield draft
        if out.is_dir():
            out.rmdir()
        os.rename(draft, out)
    except OSError as error:
        raise MachineError(f"{out} could not be written: {error.strerror}.", "choose a writable folder") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@dataclass
class _ShardPlan:
    """A shard to write: its origin and its episodes."""

    origin: dict[str, Any]
    sources: list[str] = field(default_factory=list)
    episodes: list[tuple[Demos, int]] = field(default_factory=list)
    game_agents: set[tuple[int, int]] = field(default_factory=set)
    """Game and agent of each episode; a second episode with the same pair belongs to another recording."""


def _copy(sets: Sequence[Demos], out: Path) -> None:
    """Write episodes into a new folder, one shard for each recording."""
    prepare(out, sets[0].schema)
    for name, plan in _plan_shards(sets).items():
        shard = Shard(out, name, sets[0].schema, plan.origin | {"from": plan.sources})
        try:
            for demos, number in plan.episodes:
                source, index = (int(x) for x in demos.chosen[number])
                if not demos.shards[source].intact(index):
                    hint = f"quarantine it: slipstream demos check {demos.path}"
                    raise DemoError(f"Episode {demos.label(number)} of {demos.path} is damaged.", hint)
                record = demos.episodes[number]
                shard.add(demos.episode(number), **{name: int(record[name]) for name in FACTS})
        finally:
            shard.close()


def _plan_shards(sets: Sequence[Demos]) -> dict[str, _ShardPlan]:
    """Assign episodes to shards: one recording per shard, without mixing games of the same number."""
    plans: dict[str, _ShardPlan] = {}
    for demos in sets:
        for number in np.unique(demos.chosen[:, 0]):
            view, mine = demos.shards[number], np.flatnonzero(demos.chosen[:, 0] == number)
            records = demos.episodes[mine]
            pairs = set(zip(records["game"].tolist(), records["agent"].tolist(), strict=True))
            origin = {key: value for key, value in view.origin.items() if key not in PRIVATE}
            matching = (p for p in plans.values() if p.origin == origin and origin and not p.game_agents & pairs)
            plan = next(matching, None)
            if plan is None:
                plan = plans[_free_name(view.name, plans)] = _ShardPlan(origin)
            plan.sources += [*view.origin.get("from", []), str(view.path)]
            plan.episodes += [(demos, int(episode)) for episode in mine]
            plan.game_agents |= pairs
    return plans


def _free_name(name: str, taken: dict[str, _ShardPlan]) -> str:
    """The name of a shard, with a number appended if the name is taken."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
