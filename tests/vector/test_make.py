"""Making vectors: seeds depend on the global index."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.system.rng import env_seeds
from slipstream.vector.make import make_vector


def test_seeds_do_not_depend_on_the_split() -> None:
    """Envs made together or in two parts have the same seeds; runs with other seeds have others."""
    assert env_seeds(3, 0, 6) == env_seeds(3, 0, 2) + env_seeds(3, 2, 4)
    assert len(set(env_seeds(3, 0, 50))) == 50
    assert not set(env_seeds(3, 0, 50)) & set(env_seeds(4, 0, 50))


def test_a_part_of_a_vector_equals_the_whole() -> None:
    """The second half of a vector starts like that half made alone."""
    for name in ("gymnasium:CartPole-v1", "soccer"):
        choice = EnvChoice(name)
        whole, part = make_vector(choice, 4, seed=1), make_vector(choice, 2, seed=1, first=2)
        one, two = empty_rows(whole.spec, 4), empty_rows(part.spec, 2)
        whole.reset(one)
        part.reset(two)
        assert np.array_equal(one.obs[2 * whole.spec.agents :], two.obs)
        whole.close()
        part.close()
