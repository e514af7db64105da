"""Schedules by progress and by metric, by hand; settings that cannot have one are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.schedules import Schedules
from slipstream.errors import ConfigError
from slipstream.settings import Settings


def at(text: str, now: int, key: str = "ppo.learning_rate", start: float = 1e-3, **more: Any) -> float:
    """The value of one scheduled setting."""
    head, _, name = key.partition(".")
    schedules = Schedules(Settings(**{head: {name: start}, "schedules": {key: text}, "algorithm": head, **more}))
    return float(getattr(schedules.at(head, now), name))


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("constant", (1, 1, 1, 1)),
        ("linear to 0 over 1000", (1, 0.75, 0.5, 0)),
        ("linear to 2e-4 over 1e3", (1, 0.8, 0.6, 0.2)),
        ("cosine to 0 over 1000", (1, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0)),
        ("  linear   to 2e-3 over 1000 ", (1, 1.25, 1.5, 2)),
    ],
)
def test_by_hand(text: str, shares: tuple[float, ...]) -> None:
    """At the start, a quarter, half and after the end."""
    assert [at(text, steps) for steps in (0, 250, 500, 5000)] == pytest.approx([1e-3 * share for share in shares])


def test_without_a_length_it_is_as_long_as_the_run() -> None:
    """The progress of the run is that of the schedule."""
    assert at("linear to 0", 500, steps=2000) == pytest.approx(0.75e-3)


def test_whole_numbers_stay_whole() -> None:
    """A scheduled number of epochs is rounded."""
    assert [at("linear to 1 over 100", n, "ppo.epochs", 10) for n in (0, 50, 55, 100)] == [10, 6, 5, 1]


def test_by_metric() -> None:
    """The setting follows the last value of the metric, and stays at its start before."""
    text = "linear to 0.05 by episode/return_mean from 100 to 300"
    schedules = Schedules(Settings(schedules={"ppo.clip": text}))
    assert schedules.at("ppo", 0).clip == 0.2
    for value, clip in ((0.0, 0.2), (200.0, 0.125), (400.0, 0.05)):
        schedules.see({"episode/return_mean": value, "loss/policy": 1.0})
        assert schedules.at("ppo", 10**9).clip == pytest.approx(clip)
    schedules.see({"episode/return_mean": None})
    assert schedules.seen == {"episode/return_mean": 400.0}


def test_several_schedules_leave_other_settings_alone() -> None:
    """Every scheduled setting moves on its own; all others are those of the file."""
    text = {
        "ppo.clip": "linear to 0.1 over 100",
        "ppo.entropy_coef": "cosine to 0 over 200",
        "ppo.gamma": "linear to 1 over 50",
    }
    now = Schedules(Settings(schedules=text)).at("ppo", 100)
    assert (now.clip, now.entropy_coef, now.gamma) == pytest.approx((0.1, 0.005, 1.0))
    assert now.gae_lambda == 0.95 and now.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("ppo.clip", "falling to 0", "The schedule of `ppo.clip` cannot be read: 'falling to 0'."),
        ("ppo.clip", "linear to 0", "The schedule of `ppo.clip` has no length, because `steps` is not set."),
        (
            "ppo.clip",
            "linear to 1 by kl from 2 to 2",
            "The schedule of `ppo.clip` goes from 2 to 2: the range is empty.",
        ),
        (
            "ppo.gamma",
            "linear to 2 over 9",
            "The schedule of `ppo.gamma` cannot end at 2: input should be less than or",
        ),
        ("ppo.clipp", "linear to 1 over 9", "`ppo.clipp` cannot have a schedule: it is not a number that is read"),
        ("ppo.minibatch", "linear to 1 over 9", "`ppo.minibatch` cannot have a schedule"),
        ("policy.hidden", "linear to 1 over 9", "`policy.hidden` cannot have a schedule"),
        ("sac.tau", "linear to 1 over 9", "`sac.tau` cannot have a schedule, because `algorithm` is ppo."),
    ],
)
def test_what_cannot_be_scheduled_is_refused(key: str, text: str, message: str) -> None:
    """Each is an error that names the key, with exit code 2."""
    with pytest.raises(ConfigError) as caught:
        Schedules(Settings(schedules={key: text}))
    assert str(caught.value).startswith(message)
    assert caught.value.code == 2 and caught.value.hint


def test_numpy_numbers_can_be_set() -> None:
    """NumPy's numbers are stored as plain ones; its booleans, NaN and infinity are refused."""
    schedules = Schedules(Settings())
    schedules.set("ppo.clip", np.float32(0.5))  # type: ignore[arg-type]
    schedules.set("ppo.epochs", np.int64(3))  # type: ignore[arg-type]
    assert schedules.fixed == {"ppo.clip": 0.5, "ppo.epochs": 3}
    assert [type(value) for value in schedules.fixed.values()] == [float, int]
    for value in (True, np.bool_(True), np.float32("nan"), np.float64("inf"), np.array([0.1])):
        with pytest.raises(ConfigError, match=r"`ppo\.clip` cannot be"):
            schedules.set("ppo.clip", value)  # type: ignore[arg-type]
