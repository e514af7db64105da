"""Worlds generated ahead of time equal those generated in the step, and stale ones are not taken; played with kart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kart_laps import begun, fact, hold
from slipstream.contracts import Array
from slipstream.envs.native.kernels import DECISIONS, READY, TASK
from slipstream.envs.native.mathematics import COUNTER, GAME
from slipstream.system.gpu_kernels import EmptyArray, KernelCall
from slipstream.system.rng import next_game
from slipstream.vector.device import OUTPUTS

SHORT: dict[str, Any] = {"match_seconds": 0.2, "random_starts": 0.5, "compiled": False}
"""Laps of three decisions, as plain Python."""


class Ahead:
    """A lap that is played as on a device: by the kernels of one env, with the next world generated ahead of time."""

    def __init__(self, seed: int = 3) -> None:
        self.game, self.out = begun(1, seed=seed, **SHORT)
        assert self.game.world is not None
        self.world: Array = self.game.world
        self._rooms: dict[EmptyArray, Array] = {}
        self._kernels = self.game.on_device()
        assert self._kernels.before is not None
        _, self.next_world, self.next_numbers, *_ = self._arrays(self._kernels.before.args)

    def _arrays(self, args: Any) -> Any:
        """Arguments with an array for each empty one."""
        if isinstance(args, tuple):
            return tuple(self._arrays(one) for one in args)
        if isinstance(args, EmptyArray):
            return self._rooms.setdefault(args, np.zeros(args.shape, args.dtype))
        return args

    def _run(self, work: KernelCall | None, *more: Any) -> None:
        assert work is not None
        args = self._arrays(work.args)
        for index in range(work.count):
            work.one(index, *args, *more)

    def generate(self) -> None:
        """Generate the world of the next game, unless it is ready."""
        self._run(self._kernels.before)

    def step(self) -> None:
        """Play a decision, without the copy that follows it."""
        action = np.zeros((1, 2), np.float32)
        self._run(self._kernels.step, action, *(getattr(self.out, name) for name in OUTPUTS))

    def take(self) -> None:
        """Copy the world that was taken in the last step."""
        self._run(self._kernels.after)

    def end(self) -> bool:
        """Play to the end of the lap; return whether the next one began in the world that was ready for it."""
        self.game.numbers[0, DECISIONS] = self.game.limit_steps - 1
        self.step()
        assert self.out.truncated[0]
        return bool(self.next_numbers[0, READY] == 2)

    def check_same(self, change: Any = lambda game: None) -> None:
        """The lap is the one that the vector begins by itself after the same `change`."""
        game, out = begun(1, seed=3, **SHORT)
        change(game)
        game.numbers[0, DECISIONS] = game.limit_steps - 1
        hold(game, out, 0, 0)
        for name, array in game.snapshot().items():
            assert np.array_equal(array, self.game.snapshot()[name]), name
        for name in OUTPUTS:
            assert np.array_equal(getattr(out, name), getattr(self.out, name)), name


def test_the_world_is_that_of_the_next_game() -> None:
    """World, RNG counter, state and observation equal those of the game that the env begins by itself."""
    ahead = Ahead()
    before = fact(ahead.game, "length").copy()
    ahead.generate()
    assert ahead.next_numbers[0, GAME] == next_game(int(ahead.game.seeds()[0]))
    drawn = ahead.next_numbers[0, COUNTER]
    assert ahead.end()
    assert fact(ahead.game, "length") == before, "the next world is copied after the step"
    ahead.take()
    assert np.array_equal(ahead.world, ahead.next_world) and fact(ahead.game, "length") != before
    assert 0 < drawn < ahead.game.numbers[0, COUNTER], "the start is drawn after the world"
    ahead.check_same()


def test_without_being_taken_nothing_moves() -> None:
    """A world generated for the next game does not change the present one."""
    ahead = Ahead()
    before = ahead.world.copy()
    ahead.generate()
    ahead.step()
    ahead.take()
    assert ahead.next_numbers[0, READY] == 1 and np.array_equal(ahead.world, before)


def test_a_world_is_taken_once() -> None:
    """In the step after the first one of a game nothing is copied, and the game after it generates its own world."""
    ahead = Ahead()
    ahead.generate()
    assert ahead.end()
    ahead.take()
    ahead.next_world[:] = 7
    ahead.step()
    ahead.take()
    assert ahead.next_numbers[0, READY] == 0 and not (ahead.world == 7).any()
    assert not ahead.end() and not (ahead.world == 7).any()


@pytest.mark.parametrize("change", ["nothing generated", "another game", "another task"])
def test_a_world_of_something_else_is_not_taken(change: str) -> None:
    """After a restored snapshot or a new task the old world is not taken, and the step generates the right one."""

    def apply(game: Any) -> None:
        if change == "another game":
            game.numbers[0, GAME] = next_game(int(game.numbers[0, GAME]))
        if change == "another task":
            game.assign(np.array([2]))

    ahead = Ahead()
    if change != "nothing generated":
        ahead.generate()
        ahead.next_world[:] = 7
    apply(ahead.game)
    assert not ahead.end()
    ahead.take()
    ahead.check_same(apply)


def test_a_ready_world_is_not_generated_again() -> None:
    """A ready world is kept; when the task has changed, it is generated again."""
    ahead = Ahead()
    ahead.generate()
    ahead.next_world[:] = 7
    ahead.generate()
    assert (ahead.next_world == 7).all()
    ahead.game.assign(np.array([1]))
    ahead.generate()
    assert not (ahead.next_world == 7).any()
    assert ahead.end() and ahead.game.numbers[0, TASK] == 1
    ahead.take()
    assert 0.2 <= fact(ahead.game, "difficulty")[0] <= 0.4
    ahead.check_same(lambda game: game.assign(np.array([1])))


def test_the_world_of_a_target() -> None:
    """Without a given task the world is that of the env's target."""
    game, _ = begun(1, target=("level 5",), **SHORT)
    before = game.on_device().before
    assert before is not None
    made = tuple(np.zeros(one.shape, one.dtype) if isinstance(one, EmptyArray) else one for one in before.args)
    before.one(0, *made)
    assert made[2][0, TASK] == 4 and 0.8 <= made[1][0, -1] <= 1
