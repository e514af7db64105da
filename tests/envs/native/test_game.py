"""A native game as an environment: ends, turns, masks, tasks, statistics, terms, snapshots, drawing and the verbs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import slipstream as ss
from slipstream import native
from slipstream.api import configure
from slipstream.cli import main
from slipstream.contracts import Rows, empty_rows
from slipstream.envs.native.drawing import Row, colour_of
from slipstream.envs.native.examples import maze, pong
from slipstream.envs.registry import EnvChoice, find_game, labels_of, parse, register_games
from slipstream.envs.render.scenes import make_scene
from slipstream.errors import ConfigError, EnvError
from slipstream.settings import RewardSettings
from slipstream.stages.check_game import check_game
from slipstream.vector.make import make_vector, spread_vector
from tiny_run import TINY_RUN

nim = native.Game("nim", agents=2, max_decisions=50)


class Pile(native.State):
    """Stones, and whose turn it is."""

    stones: int
    player: int
    last: int


class Take(native.Action):
    """How many stones to take."""

    count: int = native.choice("one", "two", "three")


class Seen(native.Observation):
    """The pile."""

    stones: int


class Size(native.Task):
    """The stones at the start."""

    stones: int


nim.tasks(small=Size(stones=4), large=Size(stones=9), target=("large",))


@nim.reset
def reset(s: Pile, size: Size) -> None:
    """Begin."""
    s.stones = size.stones


@nim.step
def step(s: Pile, actions: list[Take]) -> None:
    """Take stones."""
    s.stones -= min(actions[s.player].count + 1, s.stones)
    s.last = s.player
    s.player = 1 - s.player


@nim.observe
def observe(s: Pile, me: int, seen: Seen) -> None:
    """See the pile."""
    seen.stones = s.stones


@nim.turn
def turn(s: Pile, me: int) -> bool:
    """Players alternate."""
    return s.player == me


@nim.mask("count")
def allowed(s: Pile, me: int, option: int) -> bool:
    """No more than there are."""
    return option < s.stones


@nim.done
def done(s: Pile) -> bool:
    """Until the pile is empty."""
    return s.stones == 0


@nim.outcome
def outcome(s: Pile, me: int) -> int:
    """Who takes the last stone wins."""
    return 1 if s.last == me else -1


@nim.reward(weight=2.0, group="sparse", decides=True)
def won(before: Pile, after: Pile, me: int) -> float:
    """1 or -1 at the end."""
    return (1 if after.last == me else -1) if after.stones == 0 else 0


@nim.reward
def taken(before: Pile, after: Pile, action: Take, me: int) -> float:
    """Stones that this player took."""
    return before.stones - after.stones if before.player == me else 0


@nim.statistic(how="max")
def most(before: Pile, after: Pile) -> float:
    """The most stones taken at once."""
    return before.stones - after.stones


@nim.statistic(how="mean")
def left(before: Pile, after: Pile) -> float:
    """Stones left, on average."""
    return after.stones


def play(counts: list[int], compiled: bool = False, **options: Any) -> tuple[Any, list[Rows]]:
    """Play one game of nim with these moves."""
    vector = nim.vector(1, compiled=compiled, **options)
    rows, found = empty_rows(vector.spec, 1), []
    vector.reset(rows)
    for count in counts:
        rows.terms[:] = 0
        vector.step(np.full((2, 1), count - 1, np.int32), rows)
        found.append(Rows(**{name: array.copy() for name, array in vars(rows).items()}))
    return vector, found


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_turn_based_game_by_hand(compiled: bool) -> None:
    """Turns, masks, rewards, outcome, statistics and the next game are those of the rules."""
    vector, (one, two, three) = play([3, 3, 3], compiled)
    assert one.active.tolist() == [0, 1] and two.active.tolist() == [1, 0] and three.active.tolist() == [1, 0]
    assert two.mask.tolist() == [[1, 1, 1], [1, 1, 1]] and (three.obs == 9).all()
    assert one.terms.tolist() == [[0, 3], [0, 0]] and three.terms.tolist() == [[2, 3], [-2, 0]]
    assert three.reward.tolist() == [5, -2] and three.terminated.tolist() == [1, 1]
    assert three.outcome.tolist() == [1, -1] and (three.final_obs == 0).all()
    assert three.behaviour.tolist() == [[3, 3], [3, 3]]
    _, (*_, last) = play([3, 3, 2], compiled)
    assert last.mask.tolist() == [[1, 1, 1], [1, 0, 0]], "one stone is left; who does not act may do anything"
    vector.assign(np.array([0]))
    rows = empty_rows(vector.spec, 1)
    vector.reset_envs([0], rows)
    assert (rows.obs == 4).all() and vector.spec.target == ("large",)


def test_rewards_follow_the_settings() -> None:
    """Weights, groups, the sparse mode, zero-sum rewards and terms of the user apply as in built-in games."""

    def twice(before: Pile, after: Pile, me: int) -> float:
        return 2 * (before.stones - after.stones)

    _, (*_, last) = play([3, 3, 3], rewards=RewardSettings(mode="sparse"))
    assert last.reward.tolist() == [2, -2]
    _, (first, *_) = play([3], rewards=RewardSettings(weights={"taken": 0.5}, zero_sum=1.0))
    assert first.reward.tolist() == [1.5, -1.5]
    vector, (first, *_) = play([3], extra_terms={"twice": twice})
    assert vector.spec.terms == ("won", "taken", "twice") and first.reward.tolist() == [9, 6]
    with pytest.raises(ConfigError, match=r"rewards.weights.takn`. Did you mean `rewards.weights.taken`"):
        play([3], rewards=RewardSettings(weights={"takn": 0.5}))


@pytest.mark.slow
def test_snapshots_and_splits_are_exact() -> None:
    """A restored vector continues bit for bit, and two processes play what one plays."""
    register_games({"pong": pong.game})
    choice, rng = EnvChoice(name="pong", games={"pong": pong.game}), np.random.default_rng(0)
    actions = rng.integers(0, 3, (60, 12, 1)).astype(np.int32)
    whole, parts = make_vector(choice, 6, seed=3), spread_vector(choice, 6, "processes", 2, seed=3)
    one, two = (empty_rows(whole.spec, 6) for _ in range(2))
    whole.reset(one)
    parts.reset(two)
    for action in actions[:30]:
        whole.step(action, one)
        parts.step(action, two)
        assert np.array_equal(one.obs, two.obs) and np.array_equal(one.reward, two.reward)
    parts.close()
    kept = whole.snapshot()
    for action in actions[30:]:
        whole.step(action, one)
    again = make_vector(choice, 6, seed=9)
    again.reset(two)
    again.restore(kept)
    for action in actions[30:]:
        again.step(action, two)
    assert np.array_equal(one.obs, two.obs) and np.array_equal(whole.seeds(), again.seeds())


def test_the_time_limit_and_ticks() -> None:
    """A game is truncated after `max_decisions`, or terminated if it says so; `action_repeat` plays more ticks."""
    for timeout, flag in (("truncated", "truncated"), ("terminated", "terminated")):
        game = native.Game("clock", max_decisions=3, timeout=timeout, ticks_per_decision=2, decisions_per_second=5)
        for kind, function in (("reset", reset_clock), ("step", tick), ("observe", see)):
            getattr(game, kind)(function)
        vector = game.vector(1, compiled=False)
        rows = empty_rows(vector.spec, 1)
        vector.reset(rows)
        ends = []
        for _ in range(3):
            vector.step(np.zeros((1, 1), np.int32), rows)
            ends.append(int(getattr(rows, flag)[0]))
        assert ends == [0, 0, 1] and rows.final_obs[0, 0] == 6 and vector.spec.step_seconds == 0.2
        assert vector.limit_steps == (3 if timeout == "truncated" else 0)
    longer = game.vector(1, compiled=False, action_repeat=4)
    longer.reset(rows)
    longer.step(np.zeros((1, 1), np.int32), rows)
    assert rows.obs[0, 0] == 4 and longer.spec.step_seconds == 0.4


class Clock(native.State):
    """Ticks."""

    ticks: int


class Wait(native.Action):
    """Nothing to do."""

    nothing: int = native.choice("wait")


class Time(native.Observation):
    """The ticks."""

    ticks: int


def reset_clock(s: Clock) -> None:
    """Begin at 0."""
    s.ticks = 0


def tick(s: Clock, action: Wait) -> None:
    """Count."""
    s.ticks += 1


def see(s: Clock, seen: Time) -> None:
    """See the count."""
    seen.ticks = s.ticks


def test_names_of_everything() -> None:
    """Columns, options and parts are labelled by their names."""
    register_games({"maze": maze.game, "pong": pong.game})
    labels = labels_of(pong.game.vector(1, compiled=False).spec)
    assert labels.parts == ("move",) and labels.options == (("down", "stay", "up"),)
    assert labels.obs[:2] == ("own_y", "other_y")
    found = find_game("pong")
    assert found is not None and found.state_labels is not None
    assert found.state_labels({"state": 8})["state"][4:] == tuple(
        f"paddles.{i}.{name}" for i in (0, 1) for name in ("y", "points")
    )


def test_a_task_is_chosen_by_its_name() -> None:
    """`env.target` takes one name; a task that is written like a variant has this as its hint."""
    register_games({"maze": maze.game})
    settings = configure("maze", flags={"env.target": "empty"}, tuned=False).settings
    assert settings.env.target == ("empty",)
    with pytest.raises(EnvError, match="`many` is a task of `maze`, not a variant") as caught:
        parse("maze:many")
    assert caught.value.hint == "--set env.target=many"
    with pytest.raises(EnvError, match="`maze` has no variants"):
        parse("maze:other")


def test_a_state_is_drawn(tmp_path: Path) -> None:
    """The scene shows the columns of a state at a step, between two steps in proportion."""
    vector = maze.game.vector(1, compiled=False)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    arrays = {name: np.concatenate([array, array]) for name, array in vector.snapshot().items()}
    scene: Any = maze.game.declare().scene((200, 200), arrays, 0.2)  # type: ignore[misc]
    picture = np.asarray(scene.paint(0.5))
    assert picture.shape == (200, 200, 3) and (picture == colour_of("blue")).all(axis=2).sum() > 50
    row = Row(pong.game.classes().state, np.arange(8, dtype=np.float32))
    assert row.paddles[1].points == 7 and row.vx == 2.0
    with pytest.raises(AttributeError, match="Did you mean `points`"):
        _ = row.paddles[0].point
    with pytest.raises(EnvError, match="Did you mean `green`"):
        colour_of("gren")


def test_check_env_finds_what_is_wrong() -> None:
    """Numbers that are not finite or not exact, and games that never end, are named with the column."""

    def divide(s: Clock, action: Wait) -> None:
        s.ticks = 1 / s.ticks if s.ticks < 1 else 2  # type: ignore[assignment]

    def jump(s: Clock, action: Wait) -> None:
        s.ticks = s.ticks + 2**23

    for name, function, said in (
        ("divide", divide, r"OverflowError at decision 1: .*\n *File .*test_game.py"),
        ("jump", jump, r"`ticks` is above 2\*\*24"),
        ("endless", tick, "No game of 8 ended in 5,000 decisions"),
    ):
        game = native.Game(name)
        for kind, one in (("reset", reset_clock), ("step", function), ("observe", see)):
            getattr(game, kind)(one)
        problems = check_game(game, 5_008).problems
        assert len(problems) == 1, problems
        assert re.search(said, problems[0].what), problems


class Length(native.Task):
    """The number that a function divides by."""

    ticks: int


LEVELS = (1.0, 2.0)


def divided(s: Clock, task: Length, seen: Time) -> None:
    """See a share."""
    seen.ticks = s.ticks / task.ticks


def looked_up(s: Clock, task: Length, seen: Time) -> None:
    """See a number of a table."""
    seen.ticks = LEVELS[task.ticks]


def misdrawn(s: Clock, canvas: native.Canvas) -> None:
    """Draw a column that does not exist."""
    canvas.text(0, 0, str(s.tick))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("observe", "draw", "said"),
    [
        (divided, None, "`ticks` of the observation is (inf|nan)"),
        (looked_up, None, "IndexError .*index 2 is not from 0 to 1\n.*looked_up"),
        (see, misdrawn, "AttributeError at drawing the start: Clock has no column `tick`(.|\n)*in misdrawn"),
    ],
)
def test_check_env_plays_all_tasks_and_draws(observe: Any, draw: Any, said: str) -> None:
    """A mistake in a task that is not the target, and one in the drawing, are problems with their lines."""
    game = native.Game("checked", max_decisions=20)
    for kind, one in (("reset", reset_clock), ("step", tick), ("observe", observe), ("draw", draw)):
        if one is not None:
            getattr(game, kind)(one)
    game.tasks(zero=Length(ticks=0), two=Length(ticks=2), one=Length(ticks=1), target=("one",))
    (problem,) = check_game(game, 160).problems
    assert re.search(said, problem.what), problem.what
    if draw is None:
        assert not check_game(game, 160, options={"target": ("one",)}).problems


def test_check_env_names_the_line_of_a_division_by_zero() -> None:
    """The decision in which a number of the state is not finite any more is played again to find the line."""

    def fall(s: Height, action: Wait) -> None:
        s.metres = 1.0 / (s.metres - s.metres)

    def begin(s: Height) -> None:
        s.metres = 2.0

    def look(s: Height, seen: Time) -> None:
        seen.ticks = 1

    game = native.Game("falling", max_decisions=20)
    for kind, one in (("reset", begin), ("step", fall), ("observe", look)):
        getattr(game, kind)(one)
    (problem,) = check_game(game, 80).problems
    assert "`metres` is inf after decision 1" in problem.what and "in fall" in problem.what


class Height(native.State):
    """Metres."""

    metres: float


def test_check_env_mentions_columns_that_are_always_0() -> None:
    """A column of the observation that is never written is a remark."""

    game = native.Game("forgetful", max_decisions=20)
    for kind, one in (("reset", reset_clock), ("step", tick), ("observe", see_half)):
        getattr(game, kind)(one)
    remarks = [one.what for one in check_game(game, 2_000).remarks]
    assert remarks == ["`forgotten` of the observation was always 0."]


class Half(native.Observation):
    """One column that is written and one that is not."""

    ticks: int
    forgotten: float


def see_half(s: Clock, seen: Half) -> None:
    """See the count."""
    seen.ticks = s.ticks


def test_print_shows_texts_in_plain_python(capsys: pytest.CaptureFixture[str]) -> None:
    """`print` takes texts and f-strings, and is left out of compiled code, as is `breakpoint`."""

    def talk(s: Clock, action: Wait) -> None:
        s.ticks += 1
        print("ticks", s.ticks, f"half: {s.ticks / 2:.2f}")
        if s.ticks > 5:
            breakpoint()

    game = native.Game("talking", max_decisions=5)
    for kind, one in (("reset", reset_clock), ("step", talk), ("observe", see)):
        getattr(game, kind)(one)
    for compiled in (False, True):
        vector = game.vector(1, compiled=compiled)
        rows = empty_rows(vector.spec, 1)
        vector.reset(rows)
        vector.step(np.zeros((1, 1), np.int32), rows)
        assert capsys.readouterr().out == ("" if compiled else "ticks 1 half: 0.50\n")


SPEED = [1.0]


def test_check_env_finds_what_changes_outside_of_the_state() -> None:
    """A table of the module that changes while the game is played is reported."""

    def hasten(s: Clock, action: Wait) -> None:
        s.ticks += int(SPEED[0])

    game = native.Game("hasty", max_decisions=20)
    for kind, one in (("reset", reset_clock), ("step", hasten), ("observe", see)):
        getattr(game, kind)(one)
    assert not check_game(game, 80).problems
    game.kernels(False)
    SPEED[0] = 2.0
    (problem,) = check_game(game, 80).problems
    SPEED[0] = 1.0
    assert "changed while the game was played" in problem.what


def test_check_env_compares_the_sides() -> None:
    """A side that is ahead in games between random players is a remark; equal sides are none."""

    def fair(s: Clock, me: int) -> int:
        return 1 if me == s.ticks % 2 else -1

    def lean(s: Clock, me: int) -> int:
        return 1 if me == (s.ticks % 4 == 1) else -1

    def step(s: Clock, actions: list[Wait], rng: native.Random) -> None:
        s.ticks += 1 + rng.integer(4)

    for outcome, ahead in ((fair, False), (lean, True)):
        game = native.Game("sides", agents=2, max_decisions=5, timeout="terminated")
        for kind, one in (("reset", reset_clock), ("step", step), ("observe", see), ("outcome", outcome)):
            getattr(game, kind)(one)
        remarks = [one.what for one in check_game(game, 80).remarks]
        assert len(remarks) == ahead, remarks
        assert not ahead or "Team 0 is ahead" in remarks[0]


def test_forms_of_a_game_compile_under_their_own_names() -> None:
    """Numba names compiled code by module and name, so no two texts of a function may share a name."""
    names = []
    for size in (2, 3):
        game = native.Game("forms", max_decisions=5)
        game.reset(reset_clock)
        game.step(wait_longer)
        game.observe(see)
        game.variant("only", waits=size)
        play = game.kernels(compiled=False).step_all.__globals__["play"]
        step = play.__globals__["step"]
        names.append(
            (step.__qualname__, step.__globals__["_wait"].__qualname__, play.__globals__["value_terms"].__name__)
        )
    assert all(one != other for one, other in zip(*names, strict=True)), names


WAITS: int = native.size("waits")


@native.function
def wait(ticks: int) -> int:
    """Ticks after a wait."""
    return ticks + WAITS


def wait_longer(s: Clock, action: Wait) -> None:
    """Wait."""
    s.ticks = wait(s.ticks)


class Longer(Clock):
    """A clock with another column."""

    extra: float


@pytest.mark.slow
def test_a_run_is_resumed_after_its_game_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Episodes begin again if the state has other columns; the message says so."""

    def reset_longer(s: Longer) -> None:
        s.ticks = 0

    def tick_longer(s: Longer, action: Wait) -> None:
        s.ticks += 1

    def see_longer(s: Longer, seen: Time) -> None:
        seen.ticks = s.ticks

    games = []
    for functions in ((reset_clock, tick, see), (reset_longer, tick_longer, see_longer)):
        games.append(native.Game("growing", max_decisions=20))
        for kind, one in zip(("reset", "step", "observe"), functions, strict=True):
            getattr(games[-1], kind)(one)
    run = ss.train(games[0], run=tmp_path / "run", steps=128, **TINY_RUN)
    capsys.readouterr()
    assert ss.resume(run.path, steps=256, env=games[0]).facts["steps"] == 256
    assert "cannot be restored" not in capsys.readouterr().err
    assert ss.resume(run.path, steps=384, env=games[1]).facts["steps"] == 384
    assert "Environment state of `growing` cannot be restored" in capsys.readouterr().err


def test_states_of_another_version_are_not_drawn() -> None:
    """Arrays that are not those of a native game's state are an error that says so."""
    with pytest.raises(EnvError, match="These states are not those of `soccer`"):
        make_scene("soccer", (100, 60), {"state": np.zeros((2, 39), np.float32), "clock": np.zeros((2, 9))}, 0.1)


def test_mistakes_of_a_declaration() -> None:
    """A wrong name, number of teams or option, and a game without functions, are errors with a hint."""
    for make, said in (
        (lambda: native.Game("My Game"), "cannot be called `My Game`"),
        (lambda: native.Game("two", agents=2, teams=(0,)), "has 2 agents and 1 teams"),
        (lambda: native.Game("x", timeout="stopped"), "timeout='stopped' is unknown"),
        (lambda: native.Game("x").vector(1), "has no function `step`"),
        (lambda: native.choice(), "takes names or values"),
        (lambda: native.box(1.0, 1.0), "is empty"),
        (lambda: Size(rocks=3), "Size has no number `rocks`"),
        (lambda: Size(), "Size has no value for `stones`"),
        (lambda: native.Game("x", reference="rul").declare(), "reference='rul' is no scripted player"),
    ):
        with pytest.raises((EnvError, ConfigError), match=said) as caught:
            make()  # type: ignore[no-untyped-call]
        assert caught.value.hint


@pytest.mark.slow
def test_a_new_game_goes_through_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The skeleton is checked, trained, resumed, evaluated and watched by the commands that are printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny = [f"{key.replace('__', '.')}={value}" for key, value in TINY_RUN.items() if "__" in key]
    own = ["--import", "stroll", "--preset", "smoke", *(word for one in tiny for word in ("--set", one))]

    def call(*words: str) -> Any:
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, done.output
        return done

    assert "wrote stroll.py" in call("new-game", "stroll").output
    assert CliRunner().invoke(main, ["new-game", "stroll"]).exit_code == 2
    assert "ready for training" in call("check-env", "stroll", "--import", "stroll", "--steps", "400").output
    call("train", "stroll", "--steps", "256", "--run", "run", *own)
    call("resume", "run", "--steps", "512", "--import", "stroll")
    call("evaluate", "run:run", "--env", "stroll", "--games", "4", "--import", "stroll")
    call("watch", "scripted:walker", "--env", "stroll", "--png", "a.png", "--import", "stroll")
    assert Path("a.png").exists()
    game = importlib.import_module("stroll").game
    run = ss.train(game, run="python", steps=128, **TINY_RUN | {"plan__collector": "actors", "plan__workers": 2})
    assert ss.evaluate(f"run:{run.path}", game, games=2)["games"] == 2
