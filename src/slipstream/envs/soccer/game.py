"""Car soccer on the native API: the match, what ends it, its reward terms, statistics, tasks and players."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.game import lazy
from slipstream.envs.soccer import rewards, scripted
from slipstream.envs.soccer.columns import (
    DRIVING,
    SLOTS,
    TICK_HZ,
    Action,
    Level,
    Seen,
    State,
    agent_of,
    levels,
    team_size,
)
from slipstream.envs.soccer.kick_off import kick_off
from slipstream.envs.soccer.observation import observe_car
from slipstream.envs.soccer.physics import tick

game = native.Game(
    "soccer",
    "car soccer, 1v1 to 3v3: boost, drift, bounce, score",
    decisions_per_second=TICK_HZ / 4,
    ticks_per_decision=4,
    reference="rule",
    expert="rule",
)
game.combinations(*DRIVING)
for size in (1, 2, 3):
    game.variant(
        f"{size}v{size}",
        teams=(0,) * size + (1,) * size,
        tasks=levels(size),
        target=(f"{size}v{size}",),
        slots=size,
        present=0,
    )
game.variant("mixed", teams=(0, 0, 0, 1, 1, 1), tasks=levels(1, 2, 3), target=("1v1", "2v2", "3v3"), slots=3, present=5)


@game.present
def present(s: State, me: int) -> bool:
    """Whether the agent has a car in this match."""
    return me % SLOTS < team_size(s)


@game.reset
def reset(s: State, rng: native.Random, level: Level, settings: native.Settings) -> None:
    """Begin a match."""
    s.team_size, s.ticks_left = level.team_size, settings.match_ticks
    kick_off(s, rng, 1.0 if level.scattered else settings.random_starts)


@game.step
def step(
    s: State, actions: list[Action], rng: native.Random, ticks: int, level: Level, settings: native.Settings
) -> None:
    """Play one decision; nothing moves in the ticks after a goal."""
    cars = 2 * team_size(s)
    for k in range(cars):
        car = s.cars[k]
        action = actions[agent_of(s, k)]
        car.throttle, car.steer, car.boosting, car.drifting = action.throttle, action.steer, action.boost, action.drift
        car.touch = 0.0
    # The order in which cars hit the ball alternates between kick-offs and matches, so that neither team has an edge.
    last_first = (rng.key() + rng.seed() + s.score[0] + s.score[1]) & 1
    s.goal = 0.0
    count = ticks * level.slow
    for k in range(count):
        tick(s, s.ticks_left - k, last_first)
        if s.goal != 0.0:
            break
    s.ticks_left -= count
    keep_score(s, settings.match_ticks // 2)
    note_possession(s)


@native.function
def keep_score(s: State, overtime_ticks: int) -> None:
    """Count a goal, and see whether the match goes on: to overtime after a draw, where the first goal wins."""
    scored = s.goal != 0.0
    if scored:
        s.score[0 if s.goal > 0.0 else 1] += 1
        s.kick_off_due = True
    if s.overtime:
        s.over = scored or s.ticks_left <= 0
    elif s.ticks_left <= 0:
        if s.score[0] == s.score[1] and overtime_ticks > 0:
            s.overtime, s.kick_off_due = True, True
            s.ticks_left = overtime_ticks
        else:
            s.over = True


@native.function
def note_possession(s: State) -> None:
    """Note the team that alone hit the ball in this decision."""
    first, second = False, False
    for k in range(team_size(s)):
        first = first or s.cars[k].touch > 0.0
        second = second or s.cars[k + team_size(s)].touch > 0.0
    if first != second:
        s.possession = 1 if first else 2


@game.prepare
def prepare(s: State, rng: native.Random, level: Level, settings: native.Settings) -> None:
    """Kick off after a goal and when overtime begins."""
    if s.kick_off_due:
        kick_off(s, rng, 1.0 if level.scattered else settings.random_starts)


@game.observe
def observe(s: State, me: int, seen: Seen, settings: native.Settings) -> None:
    """Write what a car sees."""
    observe_car(s, me, settings.match_ticks, seen)


@game.done
def done(s: State) -> bool:
    """Whether the match is over."""
    return s.over


@game.outcome
def outcome(s: State, me: int) -> int:
    """Whether the agent's team has won."""
    lead = s.score[0] - s.score[1] if me < SLOTS else s.score[1] - s.score[0]
    return 1 if lead > 0 else -1 if lead < 0 else 0


game.reward(weight=1.0, sparse=1.0, group="sparse")(rewards.goal)
game.reward(weight=0.5, sparse=1.0, group="sparse")(rewards.win)
game.reward(weight=0.1, group="ball")(rewards.touch)
game.reward(weight=0.6, group="ball")(rewards.ball_to_goal)
game.reward(weight=0.1, group="positioning")(rewards.car_to_ball)
game.reward(weight=0.05, group="boost")(rewards.boost_gain)
game.reward(weight=0.0, group="goal")(rewards.aim)
game.reward(weight=0.0, group="goal")(rewards.save)
game.reward(weight=0.0, group="positioning")(rewards.goal_side)
game.reward(weight=0.0, group="boost")(rewards.boost_waste)
game.reward(weight=0.0, group="penalties")(rewards.concede)
game.reward(weight=0.0, group="penalties")(rewards.idle)
game.potential("ball_to_goal")(rewards.ball_potential)
game.potential("car_to_ball")(rewards.car_potential)

game.statistic(how="last")(rewards.goals)
game.statistic(how="last")(rewards.conceded)
game.statistic(event="touch")(rewards.touches)
game.statistic(event="shot")(rewards.shots)
game.statistic(event="save")(rewards.saves)
game.statistic(how="mean")(rewards.possession)
game.statistic(rewards.boost_used)
game.statistic(how="mean")(rewards.speed)
game.statistic(how="mean")(rewards.ball_distance)

for player in (scripted.chaser, scripted.keeper, scripted.rule):
    game.player(player)

SOCCER = game.declare(
    scene=lazy("slipstream.envs.soccer.drawing:MatchScene"),
    events=lazy("slipstream.envs.soccer.drawing:find_events"),
    controls=lazy("slipstream.envs.soccer.drawing:keyboard_action"),
    opponents=("scripted:chaser", "scripted:rule"),
    preset="soccer",
    stages=("1v1 vs scripted:chaser", "1v1 vs scripted:rule", "2v2 vs scripted:rule", "3v3 vs scripted:rule", "3v3"),
)
