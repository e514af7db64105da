"""Kart on the native API: a lap against the clock on a random track, with its terms, statistics, tasks and players."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.game import lazy
from slipstream.envs.kart import rewards, scripted, statistics
from slipstream.envs.kart.columns import LEVELS, TICK_HZ, Action, Level, Seen, Settings, State, Track
from slipstream.envs.kart.observation import observe_car
from slipstream.envs.kart.physics import tick
from slipstream.envs.kart.rewards import lap_over
from slipstream.envs.kart.starts import set_off
from slipstream.envs.kart.tracks import Workspace, draw_track

game = native.Game(
    "kart",
    "a lap against the clock, on a new track every time",
    decisions_per_second=TICK_HZ / 4,
    ticks_per_decision=4,
    time_limit=True,
    expert="expert",
)
for name, low, high in (("mixed", 0.0, 1.0), ("easy", 0.0, 0.33), ("hard", 0.67, 1.0)):
    game.variant(name, options={"difficulty_low": low, "difficulty_high": high})
game.tasks(target=None, **{f"level {k + 1}": Level(number=k, share=1.0 / LEVELS) for k in range(LEVELS)})


@game.world
def world(track: Track, work: Workspace, rng: native.Random, level: Level, settings: Settings) -> None:
    """Draw the track of a lap, of a random difficulty."""
    low, high = settings.difficulty, settings.difficulty
    if low < 0.0:
        low, high = settings.difficulty_low, settings.difficulty_high
    track.difficulty = low + (high - low) * ((level.number + rng.uniform(0.0, 1.0)) * level.share)
    draw_track(track, work, rng)


@game.reset
def reset(s: State, track: Track, rng: native.Random, settings: Settings) -> None:
    """Begin a lap."""
    s.ticks_left = settings.match_ticks
    set_off(s, track, rng, settings.random_starts)


@game.step
def step(s: State, track: Track, action: Action, ticks: int) -> None:
    """Drive one decision, at most to the end of the lap."""
    s.steer, s.throttle, s.grass = action.steer, action.throttle, 0.0
    for _ in range(ticks):
        tick(s, track)
        s.ticks_left -= 1
        if lap_over(s):
            break


@game.observe
def observe(s: State, track: Track, seen: Seen) -> None:
    """Write what the car sees."""
    observe_car(s, track, seen)


@game.done
def done(s: State) -> bool:
    """Whether the lap is finished."""
    return lap_over(s)


@game.outcome
def outcome(s: State) -> int:
    """Whether the lap was finished in time."""
    return 1 if lap_over(s) else -1


game.reward(weight=10.0, group="progress")(rewards.progress)
game.reward(weight=0.1, sparse=0.1, group="sparse")(rewards.time)
game.reward(weight=0.5, group="penalties")(rewards.off_track)
game.reward(weight=1.0, sparse=10.0, group="sparse")(rewards.finish)
game.reward(weight=0.0, group="penalties")(rewards.smooth)
game.potential("progress")(rewards.to_go)

game.statistic(how="last")(statistics.seconds)
game.statistic(how="last")(statistics.progress)
game.statistic(by="seconds")(statistics.speed)
game.statistic(how="max")(statistics.top_speed)
game.statistic(by="seconds")(statistics.off_track)
game.statistic(by="seconds")(statistics.slip)

for player in (scripted.expert, scripted.cruiser):
    game.player(player)

KART = game.declare(
    scene=lazy("slipstream.envs.kart.drawing:LapScene"),
    events=lazy("slipstream.envs.kart.drawing:find_events"),
    controls=lazy("slipstream.envs.kart.drawing:keyboard_action"),
    preset="kart",
)
