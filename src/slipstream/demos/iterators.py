"""The iterators that people know from MineRL, over any demos.

Each yields observations, actions, rewards, next observations and done. Observations are dicts, nested as the game has
them, or an array where there is but one field without a name. Actions are dicts where the demos keep them as they were
(`raw/` columns, as imported from MineRL and VPT), words included, else an array: [...] for one choice, else
[..., parts]. `done` marks the last step of an episode, however it ended. Nothing is held beyond what is yielded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError

Sarsd = tuple[Any, Any, Array, Any, Array]
ENDLESS = ("num_epochs", "max_sequence_len")
"""Numbers that may be -1: no limit."""


def sarsd_iter(
    demos: Demos | Path | str, num_epochs: int = 1, max_sequence_len: int = 64, seed: int | None = None
) -> Iterator[Sarsd]:
    """Yield sequences within episodes, leaves [T, ...], T at most `max_sequence_len`; -1 gives whole episodes.

    -1 epochs never end. The order of episodes is drawn anew in every epoch; the same seed gives the same order.
    """
    found = _open(demos)
    _positive(max_sequence_len=max_sequence_len, num_epochs=num_epochs)

    def sequences() -> Iterator[Sarsd]:
        for order in _epochs(found, num_epochs, np.random.default_rng(seed)):
            for episode in order:
                start, stop = found.offsets[episode], found.offsets[episode + 1]
                length = stop - start if max_sequence_len == -1 else max_sequence_len
                for first in range(start, stop, length):
                    yield _sarsd(found, np.arange(first, min(first + length, stop)))

    return sequences()


def batch_iter(
    demos: Demos | Path | str, batch_size: int, seq_len: int, num_epochs: int = 1, seed: int | None = None
) -> Iterator[Sarsd]:
    """Yield batches of sequences, leaves [B, T, ...]: row b of a batch goes on where row b of the one before ended.

    A row whose episode ends goes on with another episode, so that a sequence may hold the end of one and the start of
    the next (`done` tells). An epoch ends when no episode is left for a row; what the rows still hold is dropped.
    """
    found = _open(demos)
    _positive(batch_size=batch_size, seq_len=seq_len, num_epochs=num_epochs)
    if batch_size > len(found):
        raise DemoError(
            f"A batch of {batch_size} rows needs as many episodes; these demos have {len(found)}.",
            f"choose batch_size <= {len(found)}, or use buffered_batch_iter",
        )

    def batches() -> Iterator[Sarsd]:
        for order in _epochs(found, num_epochs, np.random.default_rng(seed)):
            waiting = iter(_steps(found, episode) for episode in order)
            rows = [next(waiting) for _ in range(batch_size)]
            filled = False
            while _fill(rows, waiting, seq_len):
                filled = True
                steps = np.stack([row[:seq_len] for row in rows])
                rows = [row[seq_len:] for row in rows]
                yield _sarsd(found, steps)
            if not filled:
                raise DemoError(
                    f"{found.steps} steps in {len(found)} episodes fill no batch of {batch_size} x {seq_len}.",
                    "choose a smaller batch_size or seq_len, or use buffered_batch_iter",
                )

    return batches()


def _fill(rows: list[Array], waiting: Iterator[Array], length: int) -> bool:
    """Give every row episodes until it holds enough steps; False when none are left."""
    for number in range(len(rows)):
        while len(rows[number]) < length:
            more = next(waiting, None)
            if more is None:
                return False
            rows[number] = np.concatenate([rows[number], more])
    return True


def buffered_batch_iter(
    demos: Demos | Path | str, batch_size: int, num_epochs: int | None = None, num_batches: int | None = None,
    buffer_target_size: int = 50_000, seed: int | None = None,
) -> Iterator[Sarsd]:  # fmt: skip
    """Yield batches of single steps, leaves [B, ...], shuffled over as many episodes as fit into the buffer.

    One of `num_epochs` and `num_batches` says how long; steps that fill no whole batch are left over at an epoch's end.
    """
    found = _open(demos)
    _positive(batch_size=batch_size, buffer_target_size=buffer_target_size)
    if (num_epochs is None) == (num_batches is None):
        raise ConfigError("How many batches?", "give one of num_epochs and num_batches")
    _positive(num_epochs=1 if num_epochs is None else num_epochs, num_batches=1 if num_batches is None else num_batches)
    if batch_size > found.steps:
        raise DemoError(f"A batch of {batch_size} needs as many steps; these demos have {found.steps}.", "")

    def batches() -> Iterator[Sarsd]:
        random = np.random.default_rng(seed)
        left = num_batches if num_batches is not None else -1
        for order in _epochs(found, -1 if num_epochs is None else num_epochs, random):
            buffer = np.zeros(0, np.int64)
            waiting = iter(_steps(found, episode) for episode in order)
            while True:
                grown = _grow(buffer, waiting, max(buffer_target_size, batch_size))
                if len(grown) > len(buffer):
                    random.shuffle(grown)
                if len(grown) < batch_size:
                    break
                buffer = grown[:-batch_size]
                if left == 0:
                    return
                left -= 1
                yield _sarsd(found, grown[-batch_size:])

    return batches()


def _grow(buffer: Array, waiting: Iterator[Array], target: int) -> Array:
    """The buffer with further episodes, until it holds `target` steps or none are left."""
    parts, size = [buffer], len(buffer)
    while size < target:
        more = next(waiting, None)
        if more is None:
            break
        parts.append(more)
        size += len(more)
    return np.concatenate(parts)


def raw_actions(demos: Demos, episode: int, values: Mapping[str, Array]) -> dict[str, Array]:
    """The actions of an episode as they were recorded elsewhere, by name; empty where demos keep none."""
    words = demos.shards[int(demos.chosen[episode, 0])].origin.get("vocabulary", {})
    found = {}
    for name in _raw(demos):
        array = np.array(values[name])
        found[name.removeprefix("raw/")] = np.array(words[name])[array] if name in words else array
    return found


def nested_obs(demos: Demos, episode: int, rows: Array) -> dict[str, Array]:
    """The fields of observations by name, in the form that they were recorded in elsewhere: words, whole numbers."""
    origin = demos.shards[int(demos.chosen[episode, 0])].origin
    words, kinds = origin.get("vocabulary", {}), origin.get("kinds", {})
    found = demos.schema.obs.split(rows)
    for name, array in found.items():
        if name in words:
            found[name] = np.array(words[name])[array.argmax(axis=-1)]
        elif name in kinds:
            bare = array[..., 0] if array.shape[-1] == 1 else array
            found[name] = bare.astype(kinds[name])
    return found


def _sarsd(demos: Demos, steps: Array) -> Sarsd:
    """What happened at some steps [...], numbered over all episodes."""
    flat = steps.reshape(-1)
    episode, within = demos.locate(flat)
    names = _raw(demos)
    told = {name: demos.take(name, flat).reshape(*steps.shape, *demos.schema.column(name).shape) for name in names}
    action: Any = raw_actions(demos, int(episode[0]), told) if names else _bare(demos, flat, steps.shape)
    obs, after = (
        nest(nested_obs(demos, int(episode[0]), demos.take("obs", flat, ahead).reshape(*steps.shape, -1)))
        for ahead in (0, 1)
    )
    done = (within == demos.episodes["steps"][episode] - 1).reshape(steps.shape)
    return obs, nest(action) if names else action, demos.take("reward", flat).reshape(steps.shape), after, done


def _bare(demos: Demos, steps: Array, shape: tuple[int, ...]) -> Array:
    parts = () if demos.schema.action.kind == "discrete" else (demos.schema.action.parts,)
    return demos.take("action", steps).reshape(*shape, *parts)


def _raw(demos: Demos) -> list[str]:
    return [column.name for column in demos.schema.extras if column.name.startswith("raw/") and column.per == "step"]


def nest(named: dict[str, Array]) -> Any:
    """Fields called `a/b` as dicts within dicts; a field without a name alone."""
    if "" in named:
        return named[""]
    found: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split("/")
        inner = found
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def _steps(demos: Demos, episode: int) -> Array:
    return np.arange(demos.offsets[episode], demos.offsets[episode + 1])


def _epochs(demos: Demos, number: int, random: np.random.Generator) -> Iterator[Array]:
    """The order of episodes in every epoch; -1 epochs never end."""
    for _ in repeat(None) if number == -1 else range(number):
        yield random.permutation(len(demos))


def _open(demos: Demos | Path | str) -> Demos:
    found = demos if isinstance(demos, Demos) else Demos.open(demos)
    if not len(found):
        raise DemoError(f"{found.path} holds no episodes.", "record or import some")
    words = [found.shards[number].origin.get("vocabulary", {}) for number in np.unique(found.chosen[:, 0])]
    if any(other != words[0] for other in words):
        raise DemoError(f"{found.path} holds demos with different words behind their numbers.", "import them together")
    return found


def _positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1 and not (value == -1 and name in ENDLESS):
            raise ConfigError(f"{name} = {value} is not positive.", f"give {name} a number from 1")
