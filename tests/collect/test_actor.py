"""One actor: who plays which rows, and how NaN is kept out and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.collect.actor import Actor
from slipstream.collect.nan_guard import ABSENT, BROKEN, CUT, ENDED, check_rows, checked_rows
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows, empty_rows, vector_obs
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import OpponentRoster, fixed_assignments, learning_rows
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings
from slipstream.testing import BrokenEnv
from slipstream.vector.make import make_vector


def no_player(name: str) -> Any:
    """Nobody is asked for."""
    raise AssertionError(name)


def fill(vector: Any, steps: int, first: int = 0) -> tuple[Rollout, Actor]:
    """Fill one rollout with a new policy."""
    spec = vector.spec
    design = Design(spec.obs, spec.action, PolicySettings(hidden=(8,)))
    actor = Actor(vector, design, seed=0, roster=OpponentRoster(no_player), first=first)
    actor.acting.load(design.initial_params_and_stats(0))
    seats = fixed_assignments(spec, vector.envs, False)
    actor.reset(seats)
    rollout = empty_rollout(spec, design, steps, vector.envs)
    actor.fill(rollout, seats)
    return rollout, actor


def test_a_look_at_a_step_finds_what_it_holds() -> None:
    """NaN or infinity anywhere is seen, in last observations only where an episode ended; so are ends and absences."""
    spec = EnvSpec("toy", vector_obs(5), ActionSpec("discrete", (2,)))
    rows = empty_rows(spec, 20)
    looked = checked_rows(spec, rows)
    rows.obs[:], rows.reward[:], rows.final_obs[:] = 3e38, -3e38, np.nan
    assert check_rows(*looked) == 0
    for array, place in ((rows.obs, (13, 2)), (rows.reward, 13)):
        for bad in (np.nan, np.inf, -np.inf):
            kept, array[place] = array[place], bad
            assert check_rows(*looked) == BROKEN
            array[place] = kept
    rows.terminated[4] = 1
    assert check_rows(*looked) == ENDED | BROKEN
    rows.final_obs[4] = 0
    assert check_rows(*looked) == ENDED
    rows.truncated[5], rows.final_obs[5], rows.active[0] = 1, 0, 0
    assert check_rows(*looked) == ENDED | CUT | ABSENT


def test_a_look_reads_the_numbers_beside_pixels() -> None:
    """Of an observation with an image only the vector can be broken: bytes are never taken for numbers."""
    obs = ObsSpec((ObsField("speed", "vector", (2,)), ObsField("view", "image", (4, 4, 1))))
    spec = EnvSpec("toy", obs, ActionSpec("discrete", (2,)))
    rows = empty_rows(spec, 3)
    looked = checked_rows(spec, rows)
    obs.split(rows.obs)["view"][:] = 255
    assert check_rows(*looked) == 0
    obs.split(rows.obs)["speed"][2, 1] = np.nan
    assert check_rows(*looked) == BROKEN


def test_learning_rows_are_all_or_one_side() -> None:
    """In self-play all rows learn; against an opponent one team of each env, sides alternating by global index."""
    assert learning_rows((0, 1), 3, opponent=False).all()
    assert learning_rows((0, 1), 3, opponent=True).tolist() == [True, False, False, True, True, False]
    assert learning_rows((0, 1), 1, opponent=True, first=1).tolist() == [False, True]
    assert learning_rows((0, 0, 1, 1), 2, opponent=True).astype(int).tolist() == [1, 1, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(("fault", "what"), [("nan_reward", "The reward"), ("nan_obs", "The observation")])
def test_nan_is_masked_and_named(fault: Any, what: str) -> None:
    """The transition leaves the batch, the env starts anew, and env and step are named; nothing else changes."""
    choice = EnvChoice("python:Broken", factory=lambda: BrokenEnv(fault, at=5))
    vector = make_vector(choice, 2, first=3)
    rollout, actor = fill(vector, 16, first=3)
    assert actor.guard.drain() == [
        f"{what} was not finite in env {env} at step 5: masked, and the env was reset." for env in (3, 4)
    ]
    assert actor.guard.drain() == []
    assert rollout.active[4].tolist() == [0, 0]
    assert rollout.active.sum() == 2 * 17 - 2
    assert rollout.truncated[4].tolist() == [1, 1] and rollout.reward[4].tolist() == [0, 0]
    assert np.array_equal(rollout.final_value[4], rollout.value[4])
    for name, array in vars(rollout).items():
        assert np.isfinite(array).all(), name
    assert np.array_equal(np.flatnonzero(rollout.terminated[:, 0]), [14]), "the next episode has its full ten steps"


def test_many_faults_of_one_kind_are_told_in_few_lines() -> None:
    """The first three are told one by one, the rest as a number."""
    vector = make_vector(EnvChoice("python:Broken", factory=lambda: BrokenEnv("nan_reward", at=2)), 5)
    _, actor = fill(vector, 4)
    said = actor.guard.drain()
    assert len(said) == 4
    assert said[-1] == "The reward was not finite 2 times more."


class Terms:
    """Two agents per env and two named reward terms; on demand one of them turns NaN."""

    spec = EnvSpec("terms", vector_obs(2), ActionSpec("discrete", (2,)), teams=(0, 1), terms=("value_target", "touch"))

    def __init__(self, envs: int, bad_step: int, bad_row: int) -> None:
        self.envs, self._bad_step, self._bad_row, self._t = envs, bad_step, bad_row, 0
        self.resets: list[list[int]] = []

    def reset(self, out: Rows) -> None:
        """Begin."""
        out.obs[:], out.active[:] = 0, 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin anew in some envs."""
        self.resets.append(list(indices))
        for env in indices:
            out.obs[2 * env : 2 * env + 2] = -1

    def seeds(self) -> Array:
        """None has one."""
        return np.full(self.envs, -1)

    def assign(self, tasks: Array) -> None:
        """There is one kind of game."""

    def step(self, action: Array, out: Rows) -> None:
        """Pay one for each term, or NaN."""
        self._t += 1
        paid = np.ones((2 * self.envs, 2), np.float32)
        if self._t == self._bad_step:
            paid[self._bad_row, 1] = np.nan
        out.terms += paid
        out.reward[:] = paid.sum(axis=1)
        out.obs[:] = self._t
        out.terminated[:], out.truncated[:], out.active[:] = 0, 0, 1

    def snapshot(self) -> dict[str, Array]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def test_a_reward_term_that_turns_nan_is_named() -> None:
    """The term is named, all rows of that env are masked, and other envs go on."""
    vector = Terms(envs=3, bad_step=2, bad_row=3)
    rollout, actor = fill(vector, 4)
    assert actor.guard.drain() == [
        "Reward term `touch` was not finite in env 1 at step 2: masked, and the env was reset."
    ]
    assert vector.resets == [[1]]
    assert rollout.active[1].tolist() == [1, 1, 0, 0, 1, 1]
    assert rollout.obs[2, :, 0].tolist() == [2, 2, -1, -1, 2, 2]
    assert np.isfinite(rollout.terms).all() and np.isfinite(rollout.reward).all()


def test_an_opponents_rows_are_not_transitions(make_policy: Callable[..., Any]) -> None:
    """Rows that the opponent plays are inactive in every step of the rollout."""
    choice = EnvChoice("soccer")
    vector = make_vector(choice, 2)
    from slipstream.agents.specs import load_agent

    spec = vector.spec
    design = Design(spec.obs, spec.action, PolicySettings(hidden=(8,)))
    actor = Actor(vector, design, seed=0, roster=OpponentRoster(lambda name: load_agent(name, spec, choice)))
    actor.roster.add(["scripted:chaser"])
    seats = fixed_assignments(spec, 2, True)
    actor.reset(seats)
    rollout = empty_rollout(spec, design, 5, 2)
    actor.fill(rollout, seats)
    assert rollout.active.tolist() == [[1, 0, 0, 1]] * 6
