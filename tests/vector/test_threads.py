"""Envs split over threads step exactly like envs in one thread."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import numpy as np
import pytest

import slipstream
from env_checks import check_same_play, play_with_resets
from slipstream.contracts import empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.testing import BrokenEnv, ToyEnv
from slipstream.vector.make import make_vector, spread_vector


def spread(choice: EnvChoice, envs: int, how: str = "threads", **more: Any) -> Any:
    """Split the envs over two workers."""
    return spread_vector(choice, envs, how, 2, seed=3, **more)


@pytest.mark.parametrize(
    "env", ["gymnasium:CartPole-v1", "soccer:mixed", "kart", "treechop", "pixels", "recall:masked"]
)
def test_threads_equal_serial(env: str) -> None:
    """Every array of every step is the same, bit for bit, with unequal shares; no thread is left over."""
    one, other = make_vector(EnvChoice(env), 5, seed=3), spread(EnvChoice(env), 5)
    before = threading.active_count()
    check_same_play(one, other, 30)
    assert threading.active_count() == before - 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_snapshot_and_restore(how: str) -> None:
    """A snapshot equals that of a serial vector, and a vector that restores it continues the same way."""
    one, other = make_vector(EnvChoice("soccer"), 5, seed=3), spread(EnvChoice("soccer"), 5, how)
    try:
        play_with_resets(one, 12)
        play_with_resets(other, 3)
        other.restore(one.snapshot())
        for name, array in one.snapshot().items():
            assert np.array_equal(array, other.snapshot()[name]), name
        rows = [empty_rows(vector.spec, 5) for vector in (one, other)]
        action = np.zeros((10, one.spec.action.parts), one.spec.action.dtype)
        for vector, out in zip((one, other), rows, strict=True):
            vector.step(action, out)
        assert np.array_equal(rows[0].obs, rows[1].obs)
    finally:
        other.close()


class Busy(ToyEnv):
    """An env that records the threads that step it and sleeps, which releases the GIL."""

    stepped: ClassVar[set[int]] = set()

    def step(self, action: Any) -> Any:
        """Sleep without the GIL."""
        self.stepped.add(threading.get_ident())
        time.sleep(0.005)
        return super().step(action)


def test_sleeping_envs_overlap() -> None:
    """Four sleeping envs take about half the time in two threads."""
    seconds = {}
    for how in ("serial", "threads"):
        Busy.stepped.clear()
        vector = spread(EnvChoice("python:Busy", factory=Busy), 4, how)
        began = time.perf_counter()
        play_with_resets(vector, 12)
        seconds[how] = time.perf_counter() - began
        vector.close()
        assert len(Busy.stepped) == (2 if how == "threads" else 1)
    assert seconds["threads"] < 0.8 * seconds["serial"]


def test_an_exception_in_a_thread_names_the_env() -> None:
    """An env that raises raises the same error here, with its global index, and the vector can be closed."""
    vector = slipstream.make_vector(lambda: BrokenEnv("raise", at=4), envs=3, workers=2, vector="threads").vector
    try:
        with pytest.raises(EnvFault) as caught:
            play_with_resets(vector, 10)
    finally:
        vector.close()
    assert caught.value.env in (0, 1)  # both threads meet their first broken env at once
    assert caught.value.step == 4
    with pytest.raises(
        ConfigError, match=r"`vector` cannot be 'fibres'\.\nhint: use one of: serial, threads, processes"
    ):
        slipstream.make_vector(BrokenEnv, envs=3, workers=2, vector="fibres")


@pytest.mark.slow
def test_an_env_that_hangs_is_reported() -> None:
    """An env that hangs in a thread is reported within the deadline."""
    choice = EnvChoice("python:Broken", factory=lambda: BrokenEnv("hang", at=4))
    vector = spread(choice, 2, deadline_s=0.3)
    with pytest.raises(EnvError, match=r"Env [01] .*did not return from `step` or `reset` within 0\.3 s\."):
        play_with_resets(vector, 10)
    vector.close()
