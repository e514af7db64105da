"""Policy designs: sizes, params_and_stats, and the description in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, ObsField, ObsSpec, vector_obs
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings

KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "binary", "masked_binary", "masked_mixed"]
SEEN = ObsSpec((ObsField("a", "vector", (2, 2)), ObsField("b/eye", "image", (12, 14, 3))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("obs", [5, SEEN])
@pytest.mark.parametrize("value", [True, False])
def test_a_description_reads_back(kind: str, obs: Any, value: bool, make_policy: Callable[..., Any]) -> None:
    """A design equals itself after a JSON round trip, with unbounded actions too."""
    design, _ = make_policy(kind, obs, memory="gru", value=value)
    assert Design.read(json.loads(json.dumps(design.describe()))) == design


def test_params_and_stats_are_weights_mean_and_scale(make_policy: Callable[..., Any]) -> None:
    """The three parts are consecutive views; initially observations are not normalised."""
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
def test_state_sizes(memory: str, parts: int, make_policy: Callable[..., Any]) -> None:
    """Kernels pad each recurrent layer to 16 units, torch does not; without a value there is one network."""
    for shared, value, nets in ((True, True, 1), (False, True, 2), (False, False, 1)):
        more = {"memory": memory, "memory_size": 20, "memory_layers": 3, "shared": shared, "value": value}
        assert make_policy("discrete", 5, **more)[0].state_size == nets * 3 * parts * 32
        assert make_policy("discrete", SEEN, **more)[0].state_size == nets * 3 * parts * 20


def test_sequences_are_single_steps_without_memory() -> None:
    """`policy.sequence` has an effect on recurrent policies only."""
    action = ActionSpec("discrete", (2,))
    assert Design(vector_obs(2), action, PolicySettings(sequence=8)).sequence == 1
    assert Design(vector_obs(2), action, PolicySettings(sequence=8, memory="gru")).sequence == 8


def test_outputs_are_logits_means_or_means_and_deviations(make_policy: Callable[..., Any]) -> None:
    """A binary part has one logit; without a value, standard deviations are outputs and actions are squashed."""
    assert make_policy("multi_discrete")[0].outputs == 9
    assert make_policy("binary")[0].outputs == 5
    assert make_policy("continuous")[0].outputs == 3
    assert make_policy("continuous", value=False)[0].outputs == 6
    bent = [
        make_policy(kind, value=value)[0].squashed
        for kind, value in (("continuous", True), ("squashed", True), ("continuous", False), ("discrete", False))
    ]
    assert bent == [False, True, True, False]
