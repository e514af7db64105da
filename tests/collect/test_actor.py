"""The actor: which rows learn, step views, and how NaN is masked and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from slipstream.collect.actor import CACHED_ROLLOUTS, Actor, StepViews
from slipstream.collect.nan_guard import ENDED, INACTIVE, NONFINITE, TRUNCATED, check_args, check_rows
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows, empty_rows, vector_obs
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import Players, fixed_assignments, learning_rows
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings
from slipstream.system.rng import env_seeds
from slipstream.testing import BrokenEnv
from slipstream.vector.make import make_vector

SPEC = EnvSpec("toy", vector_obs(3), ActionSpec("discrete", (2,)))


def load_no_opponent(name: str) -> Any:
    """Fail: these tests have no opponents."""
    raise AssertionError(name)


def small_design(spec: EnvSpec, value: bool = True) -> Design:
    """Return the design of a small policy."""
    return Design(spec.obs, spec.action, PolicySettings(hidden=(8,)), value=value)


def fill(vector: Any, steps: int, first: int = 0) -> tuple[Rollout, Actor]:
    """Fill one rollout with an untrained policy."""
    spec = vector.spec
    design = small_design(spec)
    actor = Actor(vector, design, seed=0, roster=Players(load_no_opponent), first=first)
    actor.policy.load(design.initial_params_and_stats(0))
    assignments = fixed_assignments(spec, vector.envs, False)
    actor.reset(assignments)
    rollout = empty_rollout(spec, design, steps, vector.envs)
    actor.fill(rollout, assignments)
    return rollout, actor


def test_check_rows_finds_nonfinite_ended_and_inactive_rows() -> None:
    """The flags show NaN and infinity (in `final_obs` only where an episode ended), ends and inactive rows."""
    spec = EnvSpec("toy", vector_obs(5), ActionSpec("discrete", (2,)))
    rows = empty_rows(spec, 20)
    args = check_args(spec, rows)
    rows.obs[:], rows.reward[:], rows.final_obs[:] = 3e38, -3e38, np.nan
    assert check_rows(*args) == 0
    for array, place in ((rows.obs, (13, 2)), (rows.reward, 13)):
        for bad in (np.nan, np.inf, -np.inf):
            kept, array[place] = array[place], bad
            assert check_rows(*args) == NONFINITE
            array[place] = kept
    rows.terminated[4] = 1
    assert check_rows(*args) == ENDED | NONFINITE
    rows.final_obs[4] = 0
    assert check_rows(*args) == ENDED
    rows.truncated[5], rows.final_obs[5], rows.active[0] = 1, 0, 0
    assert check_rows(*args) == ENDED | TRUNCATED | INACTIVE


def test_check_rows_ignores_pixels() -> None:
    """In an observation with an image only the vector can be non-finite; pixels are never read as floats."""
    obs = ObsSpec((ObsField("speed", "vector", (2,)), ObsField("view", "image", (4, 4, 1))))
    spec = EnvSpec("toy", obs, ActionSpec("discrete", (2,)))
    rows = empty_rows(spec, 3)
    args = check_args(spec, rows)
    obs.split(rows.obs)["view"][:] = 255
    assert check_rows(*args) == 0
    obs.split(rows.obs)["speed"][2, 1] = np.nan
    assert check_rows(*args) == NONFINITE


def test_learning_rows_are_all_or_one_side() -> None:
    """In self-play all rows learn; against an opponent one team of each env, sides alternating by global index."""
    assert learning_rows((0, 1), 3, opponent=False).all()
    assert learning_rows((0, 1), 3, opponent=True).tolist() == [True, False, False, True, True, False]
    assert learning_rows((0, 1), 1, opponent=True, first=1).tolist() == [False, True]
    assert learning_rows((0, 0, 1, 1), 2, opponent=True).astype(int).tolist() == [1, 1, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(("fault", "what"), [("nan_reward", "The reward"), ("nan_obs", "The observation")])
def test_nan_is_masked_and_reported(fault: Any, what: str) -> None:
    """The transition is masked, the env is reset, and the report names env, seed and step; nothing else changes."""
    choice = EnvChoice("python:Broken", factory=lambda: BrokenEnv(fault, at=5))
    vector = make_vector(choice, 2, first=3)
    rollout, actor = fill(vector, 16, first=3)
    assert actor.guard.drain() == [
        f"{what} was not finite in env {env} (seed {seed}) at step 5: masked, and the env was reset."
        for env, seed in zip((3, 4), env_seeds(0, 3, 2), strict=True)
    ]
    assert actor.guard.drain() == []
    assert rollout.active[4].tolist() == [0, 0]
    assert rollout.active.sum() == 2 * 17 - 2
    assert rollout.truncated[4].tolist() == [1, 1] and rollout.reward[4].tolist() == [0, 0]
    assert np.array_equal(rollout.final_value[4], rollout.value[4])
    for name, array in vars(rollout).items():
        assert np.isfinite(array).all(), name
    assert np.array_equal(np.flatnonzero(rollout.terminated[:, 0]), [14]), "the next episode has its full ten steps"


def test_many_faults_of_one_kind_are_summarised() -> None:
    """The first three are reported one by one, the others as a count."""
    vector = make_vector(EnvChoice("python:Broken", factory=lambda: BrokenEnv("nan_reward", at=2)), 5)
    _, actor = fill(vector, 4)
    reports = actor.guard.drain()
    assert len(reports) == 4
    assert reports[-1] == "The reward was not finite 2 times more."


class Terms:
    """A vector with two agents per env and two reward terms, one of which is NaN in a given step and row."""

    spec = EnvSpec("terms", vector_obs(2), ActionSpec("discrete", (2,)), teams=(0, 1), terms=("goal", "touch"))

    def __init__(self, envs: int, bad_step: int, bad_row: int) -> None:
        self.envs, self._bad_step, self._bad_row, self._t = envs, bad_step, bad_row, 0
        self.resets: list[list[int]] = []

    def reset(self, out: Rows) -> None:
        """Reset all envs."""
        out.obs[:], out.active[:] = 0, 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset some envs."""
        self.resets.append(list(indices))
        for env in indices:
            out.obs[2 * env : 2 * env + 2] = -1

    def seeds(self) -> Array:
        """Return no seeds."""
        return np.full(self.envs, -1)

    def assign(self, tasks: Array) -> None:
        """Ignore tasks."""

    def step(self, action: Array, out: Rows) -> None:
        """Reward each term with one, or NaN."""
        self._t += 1
        paid = np.ones((2 * self.envs, 2), np.float32)
        if self._t == self._bad_step:
            paid[self._bad_row, 1] = np.nan
        out.terms += paid
        out.reward[:] = paid.sum(axis=1)
        out.obs[:] = self._t
        out.terminated[:], out.truncated[:], out.active[:] = 0, 0, 1

    def snapshot(self) -> dict[str, Array]:
        """Do nothing."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def test_a_nan_reward_term_is_reported_by_name() -> None:
    """The report names the term, all rows of that env are masked, and other envs are not affected."""
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
    design = small_design(spec)
    actor = Actor(vector, design, seed=0, roster=Players(lambda name: load_agent(name, spec, choice)))
    actor.roster.add(["scripted:chaser"])
    assignments = fixed_assignments(spec, 2, True)
    actor.reset(assignments)
    rollout = empty_rollout(spec, design, 5, 2)
    actor.fill(rollout, assignments)
    assert rollout.active.tolist() == [[1, 0, 0, 1]] * 6


def test_step_views_are_made_once() -> None:
    """What is written into a step view is in the rollout, and the views of a rollout are made only once."""
    rollout, now = empty_rollout(SPEC, small_design(SPEC), 4, 2), empty_rows(SPEC, 2)
    views = StepViews(SPEC, now)
    steps = views.of(rollout)
    steps[1].out.action[:], steps[1].rows.obs[:], steps[1].rows.reward[:] = 1, 5.0, 7.0
    assert (rollout.action[1] == 1).all() and (rollout.obs[2] == 5).all() and (rollout.reward[1] == 7).all()
    assert steps[2].obs is not steps[1].rows.obs and (steps[2].obs == 5).all()
    assert all(step.rows.final_obs is now.final_obs for step in steps)
    assert views.of(rollout) is steps


def test_off_policy_steps_have_their_own_final_obs() -> None:
    """Where the rollout has `final_obs`, each step has its own."""
    rollout = empty_rollout(SPEC, small_design(SPEC, value=False), 3, 2)
    steps = StepViews(SPEC, empty_rows(SPEC, 2)).of(rollout)
    steps[2].rows.final_obs[:] = 9
    assert rollout.final_obs[:, 0, 0].tolist() == [0, 0, 9]


def test_rollout_buffers_filled_in_turn_equal_a_single_buffer() -> None:
    """More buffers in turn than are cached give the same bits as one buffer that is filled again and again."""
    results = []
    for buffers in (1, CACHED_ROLLOUTS + 1):
        vector = make_vector(EnvChoice("gymnasium:CartPole-v1"), 2)
        design, assignments = small_design(vector.spec), fixed_assignments(vector.spec, 2, False)
        actor = Actor(vector, design, seed=0, roster=Players(load_no_opponent))
        actor.policy.load(design.initial_params_and_stats(0))
        actor.reset(assignments)
        rollouts = [empty_rollout(vector.spec, design, 30, 2) for _ in range(buffers)]
        arrays = []
        for turn in range(7):
            rollout = rollouts[turn % buffers]
            actor.fill(rollout, assignments)
            arrays += [getattr(rollout, field.name).copy() for field in fields(rollout)]
        results.append(arrays)
        vector.close()
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()
