"""Envs in worker processes step exactly like envs in this process."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

import slipstream
from env_checks import check_same_play, play_with_resets
from slipstream.envs.registry import EnvChoice
from slipstream.errors import EnvError, EnvFault
from slipstream.testing import BrokenEnv
from slipstream.vector.make import make_vector
from slipstream.vector.processes import ProcessVector


def split(choice: EnvChoice, envs: int, seed: int = 0, deadline_s: float = 60.0) -> ProcessVector:
    """Split the envs over two processes."""
    spec = make_vector(choice, 1).spec
    return ProcessVector(partial(make_vector, choice, seed=seed), spec, envs, workers=2, deadline_s=deadline_s)


@pytest.mark.parametrize(
    "env", ["gymnasium:CartPole-v1", "soccer:mixed", "kart", "pixels", "mixed:team", "recall:masked"]
)
def test_processes_equal_serial(env: str) -> None:
    """Every array of every step is the same, bit for bit, with unequal shares."""
    one, other = make_vector(EnvChoice(env), 5, seed=3), split(EnvChoice(env), 5, seed=3)
    check_same_play(one, other, 30)
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


class Photo(gymnasium.Env[Any, Any]):
    """An env with a dict of a random image and a random choice; actions are a tuple."""

    observation_space = spaces.Dict(image=spaces.Box(0, 255, (8, 8, 3), np.uint8), mood=spaces.Discrete(3))
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed the RNG."""
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward switches that agree with the choice."""
        paid = float(np.sum(action[0] == action[1]))
        return self._see(), paid, bool(self.np_random.random() < 0.2), False, {}

    def _see(self) -> Any:
        image = self.np_random.integers(0, 256, (8, 8, 3)).astype(np.uint8)
        return {"image": image, "mood": self.np_random.integers(3)}


def test_dict_observations_across_processes() -> None:
    """Rows of a dict of image and choice, and nested actions, are the same bit for bit."""
    choice = EnvChoice("python:Photo", factory=Photo)
    one, other = make_vector(choice, 5, seed=3), split(choice, 5, seed=3)
    assert other.spec.obs.dtype is np.uint8
    check_same_play(one, other, 20)


def test_an_exception_in_a_worker_has_its_traceback() -> None:
    """An env that raises in a worker raises the same error here, with its global index."""
    vector = slipstream.make_vector(lambda: BrokenEnv("raise", at=4), envs=3, workers=2).vector
    try:
        with pytest.raises(EnvFault) as caught:
            play_with_resets(vector, 10)
    finally:
        vector.close()
    assert caught.value.step == 4
    assert "ValueError: broken on purpose" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("die", r"Worker [01] ended with exit code 7\. Env [01] \(step 5\) was the last it stepped\."),
        ("hang", r"Env [01] \(step 5\) did not return from `step` or `reset` within 1 s\."),
    ],
)
def test_workers_that_die_or_hang_are_reported(fault: Any, message: str) -> None:
    """A worker that dies or hangs is reported within its deadline, and no process is left over."""
    choice = EnvChoice("python:Broken", factory=lambda: BrokenEnv(fault, at=4))
    vector = split(choice, 2, deadline_s=1.0)
    try:
        with pytest.raises(EnvError, match=message):
            play_with_resets(vector, 10)
    finally:
        vector.close()
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
