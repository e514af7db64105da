"""Treechop's reward terms: 1 per log, as in MineRL, and optional terms with a default weight of 0.

A term is `term(before, after, clock) -> float`: state rows before and after a step, and the clock after it.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.rewards import RewardScheme
from slipstream.envs.treechop.layout import CUT, GOT, HIT, TICK_HZ, TICKS, F
from slipstream.system.numba_compile import inlined

TERMS = ("log", "chop", "leaf", "time")
T_LOG, T_CHOP, T_LEAF, T_TIME = range(4)
WEIGHTS: dict[str, dict[str, float]] = {"sparse": {"log": 1.0}, "dense": {"log": 1.0}}
"""Default weights of each `rewards.mode`; terms that are not listed have weight 0."""
SCHEME = RewardScheme(TERMS, WEIGHTS, groups={"sparse": ("log",), "work": ("chop", "leaf"), "penalties": ("time",)})


@inlined
def value_terms(clock: Array, values: Array) -> None:
    """Write the values: logs gathered, seconds of hitting a block, leaves cut, and minus the elapsed seconds."""
    values[T_LOG] = F(clock[GOT])
    values[T_CHOP] = F(clock[HIT]) / F(TICK_HZ)
    values[T_LEAF] = F(clock[CUT])
    values[T_TIME] = -F(clock[TICKS]) / F(TICK_HZ)
