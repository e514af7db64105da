"""Behaviour statistics of a kart in a lap: never rewarded, reported when the lap ends.

`seconds` is the lap time and `progress` the share of the lap that was driven, 1 if it was finished. `speed` and `slip`
(sideways speed) are means over time in m/s, `top_speed` is the maximum after any decision in m/s, and `off_track` is
the share of the time on grass.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import DONE, GRASS, HX, HY, LAPPED, OVER, TICKS, TICKS_LEFT, VX, VY, F
from slipstream.envs.soccer.physics import DT, ONE, root
from slipstream.system.numba_compile import inlined

BEHAVIOURS = ("seconds", "progress", "speed", "top_speed", "off_track", "slip")
B_SECONDS, B_PROGRESS, B_SPEED, B_TOP_SPEED, B_OFF_TRACK, B_SLIP = range(6)


@inlined
def count(s: Array, clock: Array, sums: Array) -> None:
    """Add one decision to the sums of a lap."""
    ticks, vx, vy = F(clock[TICKS]), s[VX], s[VY]
    speed = root(vx * vx + vy * vy)
    sums[B_SPEED] += speed * ticks
    sums[B_TOP_SPEED] = max(sums[B_TOP_SPEED], speed)
    sums[B_OFF_TRACK] += s[GRASS]
    sums[B_SLIP] += abs(vy * s[HX] - vx * s[HY]) * ticks


@inlined
def write_statistics(s: Array, clock: Array, limit_ticks: int, sums: Array, out: Array) -> None:
    """Write the statistics of the lap that ended."""
    ticks = F(limit_ticks - clock[TICKS_LEFT])
    out[B_SECONDS] = ticks * DT
    out[B_PROGRESS] = ONE if clock[OVER] == LAPPED else s[DONE]
    out[B_TOP_SPEED] = sums[B_TOP_SPEED]
    for k in (B_SPEED, B_OFF_TRACK, B_SLIP):
        out[k] = sums[k] / max(ticks, ONE)
