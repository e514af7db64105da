"""Behaviour statistics of a game of treechop: not part of the reward, reported when the game ends.

`logs` and `leaves` are the broken blocks, `metres` the distance walked, `chopping` the share of time in which the axe
hit a block, and `seconds` the length of the game.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ONE
from slipstream.envs.treechop.layout import CUT, GOT, HIT, TICK_HZ, TICKS, WALKED, F
from slipstream.system.numba_compile import inlined

BEHAVIOURS = ("logs", "leaves", "metres", "chopping", "seconds")
B_LOGS, B_LEAVES, B_METRES, B_CHOPPING, B_SECONDS = range(5)


@inlined
def count(s: Array, clock: Array, sums: Array) -> None:
    """Add one step."""
    sums[B_LOGS] += F(clock[GOT])
    sums[B_LEAVES] += F(clock[CUT])
    sums[B_METRES] += s[WALKED]
    sums[B_CHOPPING] += F(clock[HIT])
    sums[B_SECONDS] += F(clock[TICKS])


@inlined
def conclude(sums: Array, out: Array) -> None:
    """Write the statistics of the game that ended."""
    for k in range(sums.shape[0]):
        out[k] = sums[k]
    out[B_CHOPPING] = sums[B_CHOPPING] / max(sums[B_SECONDS], ONE)
    out[B_SECONDS] = sums[B_SECONDS] / F(TICK_HZ)
