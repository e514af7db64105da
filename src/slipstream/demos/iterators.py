"""Iterators with the interface of MineRL's data loader, over any demos.

Each yields observations, actions, rewards, next observations and done. Observations are nested dicts, or an array if
there is a single unnamed field. Actions are dicts if the demos store the original actions (`raw/` columns, as imported
from MineRL and VPT), including strings; otherwise an array: [...] for discrete actions, else [..., parts]. `done` marks
the last step of an episode, however it ended. Only the yielded data are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array, nest
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError

Sarsd = tuple[Any, Any, Array, Any, Array]
UNLIMITED = ("num_epochs", "max_sequence_len")
"""Arguments that may be -1 for no limit."""


def sarsd_iter(
    demos: Demos | Path | str, num_epochs: int = 1, max_sequence_len: int = 64, seed: int | None = None
) -> Iterator[Sarsd]:
    """Yield sequences within episodes, leaves [T, ...], T at most `max_sequence_len`; -1 gives whole episodes.

    With -1 epochs the iterator never ends. Episodes are shuffled in every epoch; the same seed gives the same order.
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
    """Yield batches of sequences, leaves [B, T, ...]; row b continues where row b of the previous batch ended.

    When the episode of a row ends, the row continues with another episode, so a sequence may span two episodes (see
    `done`). An epoch ends when no episode is left for a row; the remaining steps of the rows are dropped.
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
    """Append episodes to every row until it has enough steps; returns False if none are left."""
    for number in range(len(rows)):
        while len(rows[number]) < length:
            more = next(waiting, None)
            if more is None:
                return False
            rows[number] = np.concatenate([rows[number], more])
    return True


def buffered_batch_iter(
    demos: Demos | Path | str,
    batch_size: int,
    num_epochs: int | None = None,
    num_batches: int | None = None,
    buffer_target_size: int = 50_000,
    seed: int | None = None,
) -> Iterator[Sarsd]:
    """Yield batches of single steps, leaves [B, ...], shuffled over as many episodes as fit into the buffer.

    Exactly one of `num_epochs` and `num_batches` must be given; a partial batch at the end of an epoch is dropped.
    """
    found = _open(demos)
    _positive(batch_size=batch_size, buffer_target_size=buffer_target_size)
    if (num_epochs is None) == (num_batches is None):
        raise ConfigError("Both or neither of num_epochs and num_batches are given.", "give exactly one of them")
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
    """Add episodes to the buffer until it holds `target` steps or none are left."""
    parts, size = [buffer], len(buffer)
    while size < target:
        more = next(waiting, None)
        if more is None:
            break
        parts.append(more)
        size += len(more)
    return np.concatenate(parts)


def raw_actions(demos: Demos, episode: int, values: Mapping[str, Array]) -> dict[str, Array]:
    """The original actions of an imported episode, by name; empty if the demos do not store them."""
    categories = demos.shards[int(demos.chosen[episode, 0])].origin.get("vocabulary", {})
    found = {}
    for name in _raw_columns(demos):
        array = np.array(values[name])
        found[name.removeprefix("raw/")] = np.array(categories[name])[array] if name in categories else array
    return found


def nested_obs(demos: Demos, episode: int, rows: Array) -> dict[str, Array]:
    """The fields of observations by name, with the strings and dtypes of the imported recording."""
    origin = demos.shards[int(demos.chosen[episode, 0])].origin
    categories, dtypes = origin.get("vocabulary", {}), origin.get("kinds", {})
    found = demos.schema.obs.split(rows)
    for name, array in found.items():
        if name in categories:
            found[name] = np.array(categories[name])[array.argmax(axis=-1)]
        elif name in dtypes:
            values = array[..., 0] if array.shape[-1] == 1 else array
            found[name] = values.astype(dtypes[name])
    return found


def _sarsd(demos: Demos, steps: Array) -> Sarsd:
    """The transitions at some steps [...], numbered over all episodes."""
    flat = steps.reshape(-1)
    episode, within = demos.locate(flat)
    names = _raw_columns(demos)
    raw = {name: demos.take(name, flat).reshape(*steps.shape, *demos.schema.column(name).shape) for name in names}
    action: Any = raw_actions(demos, int(episode[0]), raw) if names else _action_array(demos, flat, steps.shape)
    obs, after = (
        nest(nested_obs(demos, int(episode[0]), demos.take("obs", flat, ahead).reshape(*steps.shape, -1)))
        for ahead in (0, 1)
    )
    done = (within == demos.episodes["steps"][episode] - 1).reshape(steps.shape)
    return obs, nest(action) if names else action, demos.take("reward", flat).reshape(steps.shape), after, done


def _action_array(demos: Demos, steps: Array, shape: tuple[int, ...]) -> Array:
    parts = () if demos.schema.action.kind == "discrete" else (demos.schema.action.parts,)
    return demos.take("action", steps).reshape(*shape, *parts)


def _raw_columns(demos: Demos) -> list[str]:
    return [column.name for column in demos.schema.extras if column.name.startswith("raw/") and column.per == "step"]


def _steps(demos: Demos, episode: int) -> Array:
    return np.arange(demos.offsets[episode], demos.offsets[episode + 1])


def _epochs(demos: Demos, number: int, random: np.random.Generator) -> Iterator[Array]:
    """Yield a permutation of the episodes for every epoch; with -1 epochs it never ends."""
    for _ in repeat(None) if number == -1 else range(number):
        yield random.permutation(len(demos))


def _open(demos: Demos | Path | str) -> Demos:
    found = demos if isinstance(demos, Demos) else Demos.open(demos)
    if not len(found):
        raise DemoError(f"{found.path} holds no episodes.", "record or import some")
    categories = [found.shards[number].origin.get("vocabulary", {}) for number in np.unique(found.chosen[:, 0])]
    if any(other != categories[0] for other in categories):
        raise DemoError(
            f"{found.path} holds shards with different category names (`vocabulary`).", "import them together"
        )
    return found


def _positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1 and not (value == -1 and name in UNLIMITED):
            raise ConfigError(f"{name} = {value} is not positive.", f"set {name} to 1 or more")
