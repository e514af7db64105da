"""NAME: one player walks along a line to a goal. Change everything; docs/guides/your-own-game.md explains the parts."""

from __future__ import annotations

from slipstream.envs import native

game = native.Game("skeleton", "walk to the goal", decisions_per_second=10, max_decisions=100)


class State(native.State):
    """What the game remembers: one row of numbers per env."""

    x: float
    speed: float
    goal: float


class Action(native.Action):
    """What a player can do."""

    push: float = native.choice(left=-1.0, nothing=0.0, right=1.0)


class Seen(native.Observation):
    """What a player sees."""

    distance: float
    speed: float


@game.reset
def reset(s: State, rng: native.Random) -> None:
    """Begin a game; all columns are 0 before."""
    s.goal = rng.uniform(-5.0, 5.0)


@game.step
def step(s: State, action: Action) -> None:
    """Play one decision."""
    s.speed = 0.8 * s.speed + 0.1 * action.push
    s.x += s.speed


@game.observe
def observe(s: State, seen: Seen) -> None:
    """Write what the player sees."""
    seen.distance, seen.speed = s.goal - s.x, s.speed


@game.reward
def progress(before: State, after: State) -> float:
    """Distance gained."""
    return abs(before.goal - before.x) - abs(after.goal - after.x)


@game.reward(weight=1.0, decides=True)
def arrive(before: State, after: State) -> float:
    """1 at the goal."""
    return abs(after.goal - after.x) < 0.1


@game.done
def done(s: State) -> bool:
    """Whether the game is over."""
    return abs(s.goal - s.x) < 0.1


@game.player
def walker(seen: Seen, action: Action) -> None:
    """A scripted player to learn from or to compare with."""
    action.push = 1.0 if seen.distance > 0 else -1.0


@game.draw
def draw(s: State, canvas: native.Canvas) -> None:
    """Draw a state, for `watch` and videos."""
    canvas.window(-6.0, -2.0, 6.0, 2.0)
    canvas.line([(-6.0, 0.0), (6.0, 0.0)], "grey", 0.05)
    canvas.rectangle(s.goal - 0.1, -0.5, s.goal + 0.1, 0.5, "green")
    canvas.circle(s.x, 0.0, 0.25, "blue")
