"""Soccer's tasks: the team size, how kick-offs start, and how often a car acts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.contracts import Array

OPTIONS = ("", " scattered", " slow", " scattered slow")
"""Suffixes of a team size: `scattered` (every kick-off from a random state), `slow` (half as many decisions)."""
GIVEN, PLAYED = 0, 1
"""Columns of an env's tasks: the task of its next match (-1: its target), and the task of this match."""
SIZE, REPEAT, SCATTERED = 0, 1, 2
"""Columns of a task's rules: cars per team, ticks per decision, and whether every kick-off is random."""


def task_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """The names of the tasks of these team sizes."""
    return tuple(f"{size}v{size}{option}" for size in sizes for option in OPTIONS)


def task_rules(names: Sequence[str], repeat: int) -> Array:
    """The rules of each task, [tasks, 3]."""
    return np.array([(int(name[0]), repeat * (2 if "slow" in name else 1), "scattered" in name) for name in names])
