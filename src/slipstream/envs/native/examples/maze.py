"""A robot in a grid with walls looks at an image of it, and walks to the goal. Tasks differ in the number of walls."""

from __future__ import annotations

from slipstream.envs import native

SIDE = 8
DX, DY = (0, 1, 0, -1), (-1, 0, 1, 0)

game = native.Game("maze", "walk to the goal of a grid, seen as an image", decisions_per_second=5, max_decisions=64)


class State(native.State):
    x: int
    y: int
    goal_x: int
    goal_y: int
    walls: native.Array[int] = native.array(SIDE, SIDE)


class Action(native.Action):
    move: int = native.choice("up", "right", "down", "left")


class Seen(native.Observation):
    picture: native.Array[int] = native.image(SIDE, SIDE, 3)


class Level(native.Task):
    walls: int


game.tasks(empty=Level(walls=0), some=Level(walls=10), many=Level(walls=20))


@native.function
def is_free(s: State, x: int, y: int) -> bool:
    if x < 0 or y < 0 or x >= SIDE or y >= SIDE:
        return False
    return s.walls[y, x] == 0


@game.reset
def reset(s: State, rng: native.Random, level: Level) -> None:
    s.x, s.y, s.goal_x, s.goal_y = 0, 0, rng.integer(SIDE), rng.integer(SIDE)
    for _ in range(level.walls):
        x, y = rng.integer(SIDE), rng.integer(SIDE)
        if x + y > 0 and (x != s.goal_x or y != s.goal_y):
            s.walls[y, x] = 1
    x, y = 0, 0  # clear a way to the goal
    while x != s.goal_x or y != s.goal_y:
        if y == s.goal_y or (x < s.goal_x and rng.integer(2) == 0):
            x += 1
        else:
            y += 1
        s.walls[y, x] = 0


@game.step
def step(s: State, action: Action) -> None:
    x, y = s.x + DX[action.move], s.y + DY[action.move]
    if is_free(s, x, y):
        s.x, s.y = x, y


@game.mask("move")
def can_move(s: State, option: int) -> bool:
    return is_free(s, s.x + DX[option], s.y + DY[option])


@game.observe
def observe(s: State, seen: Seen) -> None:
    for y in range(SIDE):
        for x in range(SIDE):
            seen.picture[y, x, 0] = 255 * s.walls[y, x]
    seen.picture[s.y, s.x, 1] = 255
    seen.picture[s.goal_y, s.goal_x, 2] = 255


@game.reward(decides=True)
def arrive(before: State, after: State) -> float:
    return done_at(after)


@native.function
def done_at(s: State) -> bool:
    return s.x == s.goal_x and s.y == s.goal_y


@game.done
def done(s: State) -> bool:
    return done_at(s)


@game.draw
def draw(s: State, canvas: native.Canvas) -> None:
    canvas.window(0, SIDE, SIDE, 0)
    for y in range(SIDE):
        for x in range(SIDE):
            canvas.rectangle(x + 0.05, y + 0.05, x + 0.95, y + 0.95, "grey" if s.walls[y, x] else "floor")
    canvas.rectangle(s.goal_x + 0.2, s.goal_y + 0.2, s.goal_x + 0.8, s.goal_y + 0.8, "green")
    canvas.circle(s.x + 0.5, s.y + 0.5, 0.35, "blue")
