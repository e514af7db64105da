"""Schedules: settings that change during training, with the number of steps or with a metric."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from pydantic import ValidationError

from slipstream.algorithms.engine import UpdateStats
from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import PPOSettings, SACSettings, Section, Settings

SECTIONS: dict[str, type[Section]] = {"ppo": PPOSettings, "sac": SACSettings}
FIXED = {
    "ppo.rollout",
    "ppo.minibatch",
    "ppo.epochs_max",
    "ppo.value_warmup",
    "ppo.contrastive_steps",
    "ppo.normalise_advantage",
    "ppo.normalise_obs",
    "ppo.normalise_return",
    "ppo.priority_alpha",
    "ppo.reference_decay",
    "sac.rollout",
    "sac.batch_size",
    "sac.buffer_size",
    "sac.buffer_mib",
    "sac.learning_starts",
    "sac.n_step",
    "sac.critics",
    "sac.target_critics",
    "sac.critic_layer_norm",
    "sac.normalise_obs",
    "sac.temperature",
    "sac.demo_share",
    "sac.actor_warmup",
    "sac.initial_temperature",
    "ppo.freeze_obs_stats_steps",
    "ppo.value_warmup_explained_variance",
    "ppo.demo_batch",
    "ppo.demo_decay",
}
"""Numbers without schedules: array sizes, settings with state, and switches."""
BUILT_FOR = ("ppo.contrastive_coef", "ppo.vtrace_rho")
"""Settings for which a run is built differently if they are, or can become, other than 0."""
NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
FORM = re.compile(
    rf"(constant)|(linear|cosine) to {NUMBER}(?: over {NUMBER}| by (\S+) from {NUMBER} to {NUMBER})?", re.ASCII
)
HINT = 'write "linear to END", "cosine to END over STEPS", "linear to END by METRIC from A to B", or "constant"'


@dataclass(frozen=True)
class Schedule:
    """One setting's way from its start value to its end value."""

    key: str
    shape: str
    start: float
    end: float
    steps: float = 0.0
    metric: str = ""
    low: float = 0.0
    high: float = 1.0

    def at(self, steps: int, seen: Mapping[str, float]) -> float:
        """The current value; it stays at its start until its metric was logged."""
        if self.metric:
            progress = (seen.get(self.metric, self.low) - self.low) / (self.high - self.low)
        else:
            progress = steps / self.steps
        progress = min(max(progress, 0.0), 1.0)
        if self.shape == "cosine":
            progress = 0.5 * (1.0 - math.cos(math.pi * progress))
        return self.start + (self.end - self.start) * progress


class Schedules:
    """All schedules of a run, the metrics that they follow, and the values that were set during training."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._all = [made for key, text in settings.schedules.items() if (made := _read(settings, key, text))]
        self.seen: dict[str, float] = {}
        """The last value of each metric that a schedule follows."""
        self.fixed: dict[str, float] = {}
        """Values that `set` gave settings, by dotted key; they replace the setting and its schedule."""

    def set(self, key: str, value: float | None) -> None:
        """Hold a setting at a value from the next update on; None returns it to its setting or schedule."""
        _start(self._settings, key, "change during training")
        if value is None:
            self.fixed.pop(key, None)
            return
        if isinstance(value, bool) or not isinstance(value, Real):  # NumPy's numbers are real numbers too
            raise ConfigError(f"`{key}` cannot be {value!r}: it is a number.", f'write handle.set("{key}", 0.1)')
        value = float(value)
        head, _, name = key.partition(".")
        if name == "gamma" and self._settings.rewards.potential:
            raise ConfigError(
                f"`{key}` cannot change: `rewards.potential` needs a constant discount.", "remove one of the two"
            )
        at_start = getattr(getattr(self._settings, head), name)
        if key in BUILT_FOR and value and not at_start and key not in self._settings.schedules:
            raise ConfigError(
                f"`{key}` is 0, and this run was built without what it needs.",
                f"start the run with it, for example {key}={value:g}",
            )
        given = int(value) if isinstance(at_start, int) and value.is_integer() else value
        if why := _why_invalid(self._settings, key, given):
            raise ConfigError(
                f"`{key}` cannot be {value:g}: {why}.", "`slipstream train ENV --show` lists all settings"
            )
        self.fixed[key] = given

    def at(self, section: str, steps: int) -> Any:
        """A section of the settings with the values that its schedules have after `steps`."""
        start: Section = getattr(self._settings, section)
        values: dict[str, Any] = {}
        for one in self._all:
            head, _, name = one.key.partition(".")
            if head == section:
                value = one.at(steps, self.seen)
                values[name] = round(value) if isinstance(getattr(start, name), int) else value
        for key, value in self.fixed.items():
            head, _, name = key.partition(".")
            if head == section:
                values[name] = value
        return start.model_copy(update=values) if values else start

    def see(self, row: Mapping[str, Any]) -> None:
        """Add the metrics of an iteration."""
        for one in self._all:
            if one.metric and isinstance(row.get(one.metric), int | float):
                self.seen[one.metric] = float(row[one.metric])


def tune_epochs(epochs: int, stats: UpdateStats, settings: PPOSettings) -> int:
    """One epoch less where the policy moved too far, one more where it moved too little."""
    far = stats.kl > 1.5 * settings.epochs_target_kl or stats.clip_fraction > settings.epochs_max_clip_fraction
    near = stats.kl < settings.epochs_target_kl / 1.5 and stats.clip_fraction < 0.5 * settings.epochs_max_clip_fraction
    return min(max(epochs - 1 if far else epochs + 1 if near else epochs, 1), settings.epochs_max)


def _read(settings: Settings, key: str, text: str) -> Schedule | None:
    start = _start(settings, key)
    found = FORM.fullmatch(" ".join(text.split()))
    if not found:
        raise ConfigError(f"The schedule of `{key}` cannot be read: {text!r}.", HINT)
    if found[1]:
        return None
    end, metric = float(found[3]), found[5] or ""
    _check_end(settings, key, end)
    if metric:
        low, high = float(found[6]), float(found[7])
        if low == high:
            raise ConfigError(f"The schedule of `{key}` goes from {low:g} to {high:g}: the range is empty.", HINT)
        return Schedule(key, found[2], start, end, metric=metric, low=low, high=high)
    steps = float(found[4]) if found[4] else float(settings.steps or 0)
    if steps <= 0:
        raise ConfigError(
            f"The schedule of `{key}` has no length, because `steps` is not set.",
            f'set it: schedules.{key}="{found[2]} to {end:g} over STEPS"',
        )
    return Schedule(key, found[2], start, end, steps=steps)


def _start(settings: Settings, key: str, what: str = "have a schedule") -> float:
    """The start value of a setting; an error where it cannot have a schedule."""
    head, _, name = key.partition(".")
    free = [
        f"{section}.{field}"
        for section, model in SECTIONS.items()
        for field, value in model().model_dump().items()
        if isinstance(value, int | float) and not isinstance(value, bool) and f"{section}.{field}" not in FIXED
    ]
    if key not in free:
        near = did_you_mean(key, free)
        raise ConfigError(
            f"`{key}` cannot {what}: it is not a number that is read at every update.{near}",
            f"settings that can: {', '.join(one for one in free if one.startswith(settings.algorithm))}",
        )
    if head != settings.algorithm:
        raise ConfigError(
            f"`{key}` cannot {what}, because `algorithm` is {settings.algorithm}.", f"set algorithm={head}, or drop it"
        )
    return float(getattr(getattr(settings, head), name))


def _check_end(settings: Settings, key: str, end: float) -> None:
    head, _, name = key.partition(".")
    value = round(end) if isinstance(getattr(getattr(settings, head), name), int) else end
    if why := _why_invalid(settings, key, value):
        raise ConfigError(f"The schedule of `{key}` cannot end at {end:g}: {why}.", HINT)


def _why_invalid(settings: Settings, key: str, value: float) -> str:
    """Why a setting cannot become this value during training; empty if it can."""
    head, _, name = key.partition(".")
    section: Section = getattr(settings, head)
    try:
        type(section).model_validate(section.model_dump() | {name: value})
    except ValidationError as error:
        why = error.errors()[0]["msg"].lower()
        # A learning rate, for example, must start above 0 but may end at 0.
        return "" if value == 0 and "greater than 0" in why and "equal" not in why else why
    return "" if math.isfinite(value) else "it is not finite"
