"""Three hunters chase one runner in a square; the runner wins if it is not caught in 20 seconds."""

from __future__ import annotations

from slipstream.envs import native

RUNNER, REACH, FRICTION = 3, 0.1, 0.8

game = native.Game(
    "tag", "three hunters and a runner", agents=4, teams=(0, 0, 0, 1), decisions_per_second=10, max_decisions=200
)


class Body(native.Record):
    x: float
    y: float
    vx: float
    vy: float


class State(native.State):
    caught: bool
    bodies: list[Body] = native.records(4)


class Action(native.Action):
    ax: float = native.box(-1.0, 1.0)
    ay: float = native.box(-1.0, 1.0)


class Seen(native.Observation):
    x: float
    y: float
    vx: float
    vy: float
    is_runner: bool
    others: native.Array[float] = native.array(3, 2)


@game.reset
def reset(s: State, rng: native.Random) -> None:
    for body in s.bodies:
        body.x, body.y = rng.uniform(-1.0, 1.0), rng.uniform(-1.0, 1.0)


@game.step
def step(s: State, actions: list[Action]) -> None:
    for i in range(len(s.bodies)):
        body = s.bodies[i]
        push = 0.05 if i == RUNNER else 0.035
        body.vx = FRICTION * body.vx + push * actions[i].ax
        body.vy = FRICTION * body.vy + push * actions[i].ay
        body.x, body.y = min(max(body.x + body.vx, -1.0), 1.0), min(max(body.y + body.vy, -1.0), 1.0)
    runner = s.bodies[RUNNER]
    for i in range(RUNNER):
        if native.hypot(s.bodies[i].x - runner.x, s.bodies[i].y - runner.y) < REACH:
            s.caught = True


@game.observe
def observe(s: State, me: int, seen: Seen) -> None:
    own = s.bodies[me]
    seen.x, seen.y, seen.vx, seen.vy, seen.is_runner = own.x, own.y, 10 * own.vx, 10 * own.vy, me == RUNNER
    for k in range(3):
        other = s.bodies[(me + 1 + k) % 4]
        seen.others[k, 0], seen.others[k, 1] = other.x - own.x, other.y - own.y


@game.reward(weight=10.0, decides=True)
def catch(before: State, after: State, me: int) -> float:
    return (-1.0 if me == RUNNER else 1.0) if after.caught else 0.0


@game.reward(weight=0.01)
def time(before: State, after: State, me: int) -> float:
    return 1.0 if me == RUNNER else -1.0


@game.statistic
def caught(before: State, after: State) -> float:
    return after.caught


@game.done
def done(s: State) -> bool:
    return s.caught


@game.outcome
def outcome(s: State, me: int) -> int:
    return 1 if s.caught != (me == RUNNER) else -1
