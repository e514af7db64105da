"""Treechop on the native API: gather logs with an axe, in first-person view and with MineRLTreechop's spaces."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.game import lazy
from slipstream.envs.treechop.columns import (
    ENOUGH,
    ENOUGH_TICKS,
    HALF,
    SCALARS,
    SIDE,
    TASKS,
    TICK_HZ,
    WRAP,
    Action,
    Forest,
    Seen,
    State,
    Workspace,
    World,
    ground_of,
    logs_of,
)
from slipstream.envs.treechop.physics import tick, turn
from slipstream.envs.treechop.raycast import cosine, sine
from slipstream.envs.treechop.rendering import render
from slipstream.envs.treechop.scripted import lumberjack
from slipstream.envs.treechop.world import MIDDLE, crowded, grow

game = native.Game(
    "treechop",
    "gather logs with an axe, in first-person view and with MineRLTreechop's spaces",
    decisions_per_second=TICK_HZ,
    expert="lumberjack",
)
game.option("size", 64, 128)
game.option("scalars", 0, 1)
for name in TASKS:
    game.variant(name, tasks=TASKS, target=(name,))
game.variant("mixed", tasks=TASKS, target=("dense", "medium", "sparse"))


@game.world
def generate(w: World, rng: native.Random, forest: Forest) -> None:
    """Generate the world of a game."""
    grow(w, rng, forest)


@game.reset
def reset(s: State, w: World, rng: native.Random, settings: native.Settings) -> None:
    """Place the player on the ground in the middle of the world or, with `env.random_starts`, anywhere."""
    s.ticks_left, s.aim = settings.match_ticks, -1
    s.x, s.y = MIDDLE + 0.5, MIDDLE + 0.5
    s.yaw = rng.uniform(-180.0, 180.0)
    if rng.uniform(0.0, 1.0) < settings.random_starts:
        x, y = rng.uniform(0.0, SIDE), rng.uniform(0.0, SIDE)
        while crowded(w, int(x), int(y)):
            x, y = rng.uniform(0.0, SIDE), rng.uniform(0.0, SIDE)
        s.x, s.y = x, y
    for ix in range(native.floor(s.x - HALF), native.floor(s.x + HALF) + 1):
        for iy in range(native.floor(s.y - HALF), native.floor(s.y + HALF) + 1):
            s.z = max(s.z, ground_of(w.blocks[ix & WRAP, iy & WRAP]))


@game.step
def step(s: State, w: World, action: Action, ticks: int) -> None:
    """Play one decision: the camera turns once, and buttons are held for all ticks."""
    s.walked, s.ticks, s.gathered, s.cut, s.hit = 0.0, 0, 0, 0, 0
    turn(s, action.pitch, action.yaw)
    while s.ticks < ticks and s.logs < ENOUGH:
        tick(s, w, action)
        s.ticks += 1
    s.ticks_left -= s.ticks


@game.done
def done(s: State) -> int:
    """Enough logs end the game; when the time is up, it is truncated."""
    if s.logs >= ENOUGH:
        return native.TERMINATED
    return native.TRUNCATED if s.ticks_left <= 0 else native.RUNNING


@game.outcome
def outcome(s: State, settings: native.Settings) -> int:
    """A win needs MineRL's pace: 64 logs in 8,000 ticks."""
    return 1 if s.logs * ENOUGH_TICKS >= ENOUGH * min(settings.match_ticks, ENOUGH_TICKS) else -1


@native.function
def nearer(gap: float) -> float:
    """A difference of coordinates, through the edge of the world if that is shorter."""
    half = SIDE // 2
    return gap - (SIDE if gap > half else -SIDE if gap < -half else 0)


@native.function(inline=False)
def bearing(s: State, w: World) -> float:
    """The angle in degrees (positive: right) from the view direction to the nearest tree with logs."""
    best, north, east = 1e9, 1.0, 0.0
    for x in range(SIDE):
        for y in range(SIDE):
            if logs_of(w.blocks[x, y]):
                dx, dy = nearer(x + 0.5 - s.x), nearer(y + 0.5 - s.y)
                if dx * dx + dy * dy < best:
                    best, north, east = dx * dx + dy * dy, dx, dy
    # Bisection: a turn is accepted if the tree stays to the right of the view direction.
    ahead = north * cosine(s.yaw) + east * sine(s.yaw)
    aside = east * cosine(s.yaw) - north * sine(s.yaw)
    angle, part = 0.0, 90.0
    for _ in range(12):
        if cosine(angle + part) * abs(aside) - sine(angle + part) * ahead >= 0.0:
            angle += part
        part *= 0.5
    return angle if aside >= 0.0 else -angle


@game.observe
def observe(s: State, w: World, work: Workspace, seen: Seen) -> None:
    """Write the image and, if they are enabled, compass and logs."""
    for k in range(2 * SCALARS):
        seen.scalars[k] = bearing(s, w) if k == 0 else s.logs
    render(s, w, work, seen)


@game.reward(decides=True, group="sparse")
def log(after: State) -> float:
    """Logs gathered, as in MineRL."""
    return after.gathered


@game.reward(weight=0.0, group="work")
def chop(after: State) -> float:
    """Seconds of hitting a block."""
    return after.hit / TICK_HZ


@game.reward(weight=0.0, group="work")
def leaf(after: State) -> float:
    """Leaves cut."""
    return after.cut


@game.reward(weight=0.0, group="penalties")
def time(after: State) -> float:
    """Minus the elapsed seconds."""
    return -after.ticks / TICK_HZ


@game.statistic
def logs(after: State) -> float:
    """Logs gathered."""
    return after.gathered


@game.statistic
def leaves(after: State) -> float:
    """Leaves cut."""
    return after.cut


@game.statistic
def metres(after: State) -> float:
    """Metres walked."""
    return after.walked


@game.statistic(by="seconds")
def chopping(after: State) -> float:
    """The share of the time in which the axe hits a block."""
    return after.hit / TICK_HZ


@game.statistic(how="last")
def seconds(after: State, settings: native.Settings) -> float:
    """The length of the game."""
    return (settings.match_ticks - after.ticks_left) / TICK_HZ


game.player(lumberjack)

TREECHOP = game.declare(
    make=lazy("slipstream.envs.treechop.minerl_spaces:make"),
    labels=lazy("slipstream.envs.treechop.minerl_spaces:labels"),
    scripted={"lumberjack": lazy("slipstream.envs.treechop.minerl_spaces:act", "lumberjack")},
    scene=lazy("slipstream.envs.treechop.drawing:PlayerView"),
    preset="treechop",
    stages=("dense", "medium", "sparse"),
)
