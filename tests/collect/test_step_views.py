"""The steps of a rollout: views made once, and never those of another rollout."""

from __future__ import annotations

from dataclasses import fields

from slipstream.collect.actor import Actor
from slipstream.collect.rollout import empty_rollout
from slipstream.collect.step_views import KEPT, StepViews
from slipstream.contracts import ActionSpec, Agent, EnvSpec, empty_rows, vector_obs
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import OpponentRoster, fixed_assignments
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings
from slipstream.vector.make import make_vector

SPEC = EnvSpec("toy", vector_obs(3), ActionSpec("discrete", (2,)))


def design(spec: EnvSpec, value: bool = True) -> Design:
    """A small policy."""
    return Design(spec.obs, spec.action, PolicySettings(hidden=(8,)), value=value)


def no_player(name: str) -> Agent:
    """Nobody is asked for."""
    raise AssertionError(name)


def test_steps_are_views_made_once() -> None:
    """What is written into a step stands in the rollout, the next observation in the next row; asked again, no copy."""
    rollout, now = empty_rollout(SPEC, design(SPEC), 4, 2), empty_rows(SPEC, 2)
    moments = StepViews(SPEC, now)
    steps = moments.of(rollout)
    steps[1].action[:], steps[1].rows.obs[:], steps[1].rows.reward[:] = 1, 5.0, 7.0
    assert (rollout.action[1] == 1).all() and (rollout.obs[2] == 5).all() and (rollout.reward[1] == 7).all()
    assert steps[2].obs is not steps[1].rows.obs and (steps[2].obs == 5).all()
    assert all(step.rows.final_obs is now.final_obs for step in steps)
    assert moments.of(rollout) is steps


def test_off_policy_steps_keep_their_last_observations() -> None:
    """Where the rollout has room for last observations, each step has its own."""
    rollout = empty_rollout(SPEC, design(SPEC, value=False), 3, 2)
    steps = StepViews(SPEC, empty_rows(SPEC, 2)).of(rollout)
    steps[2].rows.final_obs[:] = 9
    assert rollout.final_obs[:, 0, 0].tolist() == [0, 0, 9]


def test_rollouts_filled_in_turn_hold_what_one_alone_does() -> None:
    """More buffers in turn than are remembered give the bits of one buffer that is copied each time."""
    taken = []
    for buffers in (1, KEPT + 1):
        vector = make_vector(EnvChoice("gymnasium:CartPole-v1"), 2)
        drawn, seats = design(vector.spec), fixed_assignments(vector.spec, 2, False)
        actor = Actor(vector, drawn, seed=0, roster=OpponentRoster(no_player))
        actor.acting.load(drawn.initial_params_and_stats(0))
        actor.reset(seats)
        rollouts = [empty_rollout(vector.spec, drawn, 30, 2) for _ in range(buffers)]
        seen = []
        for turn in range(7):
            into = rollouts[turn % buffers]
            actor.fill(into, seats)
            seen += [getattr(into, field.name).copy() for field in fields(into)]
        taken.append(seen)
        vector.close()
    for one, other in zip(*taken, strict=True):
        assert one.tobytes() == other.tobytes()
