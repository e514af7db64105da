"""What a policy is: sizes, packs, and a description that a checkpoint can hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, ObsField, ObsSpec, vector_obs
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings

KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "binary", "masked_binary"]
SEEN = ObsSpec((ObsField("a", "vector", (2, 2)), ObsField("b/eye", "image", (12, 14, 3))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("obs", [5, SEEN])
@pytest.mark.parametrize("value", [True, False])
def test_a_description_reads_back(kind: str, obs: Any, value: bool, make_policy: Callable[..., Any]) -> None:
    """A design goes through JSON and comes back equal, unbounded actions included."""
    design, _ = make_policy(kind, obs, memory="gru", value=value)
    assert Design.read(json.loads(json.dumps(design.describe()))) == design


def test_a_pack_is_weights_mean_and_scale(make_policy: Callable[..., Any]) -> None:
    """The three parts are views one behind another; at first, observations are taken as they are."""
    for obs in (5, SEEN):
        design, _ = make_policy("discrete", obs)
        params_and_stats = design.initial_params_and_stats(4)
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        assert np.array_equal(params, design.initial_weights(4))
        assert not mean.any() and (scale == 1).all() and len(mean) == len(scale) == design.obs.floats
        assert params_and_stats.size == params.size + 2 * design.obs.floats
        scale[:] = 7
        assert (params_and_stats[-design.obs.floats :] == 7).all()


@pytest.mark.parametrize(("memory", "parts"), [("none", 0), ("gru", 1), ("lstm", 2)])
def test_states_have_a_place_for_every_memory(memory: str, parts: int, make_policy: Callable[..., Any]) -> None:
    """Kernels pad each memory to 16 units; images' networks do not; a policy without a value has one network."""
    for shared, value, nets in ((True, True, 1), (False, True, 2), (False, False, 1)):
        more = {"memory": memory, "memory_size": 20, "memory_layers": 3, "shared": shared, "value": value}
        assert make_policy("discrete", 5, **more)[0].state_size == nets * 3 * parts * 32
        assert make_policy("discrete", SEEN, **more)[0].state_size == nets * 3 * parts * 20


def test_sequences_are_single_steps_without_memory() -> None:
    """`policy.sequence` counts only where there is something to carry."""
    action = ActionSpec("discrete", (2,))
    assert Design(vector_obs(2), action, PolicySettings(sequence=8)).sequence == 1
    assert Design(vector_obs(2), action, PolicySettings(sequence=8, memory="gru")).sequence == 8


def test_outputs_are_logits_means_or_means_and_deviations(make_policy: Callable[..., Any]) -> None:
    """A switch is told by one number; without a value, every state has deviations of its own, and tanh bends."""
    assert make_policy("multi_discrete")[0].outputs == 9
    assert make_policy("binary")[0].outputs == 5
    assert make_policy("continuous")[0].outputs == 3
    assert make_policy("continuous", value=False)[0].outputs == 6
    bent = [
        make_policy(kind, value=value)[0].squashed
        for kind, value in (("continuous", True), ("squashed", True), ("continuous", False), ("discrete", False))
    ]
    assert bent == [False, True, True, False]
