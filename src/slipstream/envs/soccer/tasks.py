"""Soccer's tasks: how many play, from where each kick-off starts, and how often a car decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.contracts import Array

OPTIONS = ("", " scattered", " slow", " scattered slow")
"""What may stand behind a team size: every kick-off from a random state, decisions half as often, both."""
GIVEN, PLAYED = 0, 1
"""Columns of an env's tasks: the one that its next match has (-1: its target), and that of this match."""
SIZE, REPEAT, SCATTERED = 0, 1, 2
"""Columns of a task's rules: cars per team, ticks per decision, whether every kick-off starts anywhere."""


def task_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """The tasks of these team sizes."""
    return tuple(f"{size}v{size}{option}" for size in sizes for option in OPTIONS)


def task_rules(names: Sequence[str], repeat: int) -> Array:
    """What each task means, [tasks, 3]."""
    return np.array([(int(name[0]), repeat * (2 if "slow" in name else 1), "scattered" in name) for name in names])
