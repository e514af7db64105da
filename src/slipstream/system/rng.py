"""Counter-based RNG with one stream per row, so that results do not depend on how rows are split over processes.

A stream is two int64: a key and a counter. Draw number n of a stream is a hash of both, so a stream is saved, copied
and replayed by copying two numbers. The hash is 32-bit, computed in int64 with explicit masks and multipliers below
2**31, and therefore the same in Python, numba and on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import ConfigError
from slipstream.system.numba_compile import Number, compiled, inlined

MASK32 = 0xFFFFFFFF
TO_UNIT = np.float32(1.0 / 16777216.0)
HALF_STEP = np.float32(0.5 / 16777216.0)
GAME_SEEDS = 1 << 48
"""Seeds of native games are below this: the key of an env << 16, plus the number of games before it."""


@inlined
def mix(x: int) -> int:
    """Hash the lowest 32 bits of a number to 32 bits."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x5A2D4C6B) & MASK32
    x = ((x ^ (x >> 14)) * 0x2C1B3C6D) & MASK32
    return x ^ (x >> 16)


@inlined
def game_key(game: int) -> int:
    """Return the key of the game with this seed; consecutive seeds give unrelated keys."""
    return mix(mix(game) ^ mix((game >> 32) + 0x1E3779B1))


@inlined
def next_game(game: int) -> int:
    """Return the seed of the next game in the same env."""
    return (game + 1) & (GAME_SEEDS - 1)


@compiled
def first_games(seed: int, first: int, games: Array) -> None:
    """Write the seeds of the first games of the envs with global indices from `first` on, in the run with `seed`."""
    for env in range(games.shape[0]):
        games[env] = mix(mix(mix(seed) ^ (seed >> 32)) + mix(first + env + 0x1E3779B1)) << 16


@compiled
def uniform(streams: Array, row: int) -> Number:
    """Draw from (0, 1] (float32 rounds the largest draw up to 1) and advance the row's counter."""
    counter = streams[row, 1]
    streams[row, 1] = counter + 1
    low = counter & MASK32
    high = (counter >> np.int64(32)) & MASK32
    bits = mix(mix(streams[row, 0] ^ low) ^ high ^ np.int64(0x5BD1E995))
    return np.float32(bits >> np.int64(8)) * TO_UNIT + HALF_STEP


def make_streams(seed: int, purpose: str, first: int, rows: int) -> Array:
    """Return the streams [rows, 2] of the global rows [first, first + rows) for one purpose of a run."""
    salt = int.from_bytes(purpose.encode()[:8].ljust(8, b"\0"), "little")
    streams = np.zeros((rows, 2), np.int64)
    for row in range(rows):
        entropy = np.random.SeedSequence([seed & (2**63 - 1), salt, first + row])
        streams[row, 0] = int(entropy.generate_state(1, np.uint32)[0])
    return streams


def env_seeds(seed: int, first: int, envs: int) -> list[int]:
    """Return the seed of each environment, which depends on its global index only."""
    keys = [np.random.SeedSequence([seed, 0xE27, index]) for index in range(first, first + envs)]
    return [int(key.generate_state(1, np.uint32)[0]) for key in keys]


class Seeds:
    """The seeds of Python environments: an episode has a given seed, or continues with the env's own RNG."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.next: list[int | None] = list(seeds)
        """The seed of each env's next episode; None: the env's own RNG."""
        self.named = list(seeds)
        """The last seed that each env was given, for fault reports."""
        self.begun = np.full(len(seeds), -1)
        """The seed of each env's current episode; -1: the env's own RNG."""

    def give(self, indices: Sequence[int], seeds: Sequence[int] | None) -> None:
        """Set the seeds of the next episodes of these envs; -1 stands for the env's own RNG."""
        for index, seed in zip(indices, seeds or (), strict=seeds is not None):
            if seed >= 0:
                self.next[index] = self.named[index] = int(seed)

    def begin(self, index: int) -> None:
        """Record that an env began its next episode; the one after it has no seed."""
        seed, self.next[index] = self.next[index], None
        self.begun[index] = -1 if seed is None else seed


def check_seeds(indices: Sequence[int], seeds: Sequence[int] | None) -> Sequence[int]:
    """Return the seeds of native games; -1 stands for the env's own next seed."""
    if seeds is None:
        return [-1] * len(indices)
    for seed in seeds:
        if not -1 <= seed < GAME_SEEDS:
            raise ConfigError(f"{seed} is not a valid seed of a game.", f"use a seed from 0 to {GAME_SEEDS - 1}.")
    return seeds
