"""Settings are described, used, immutable and closed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import slipstream
from slipstream.config import KEYS
from slipstream.settings import EverySettings, PPOSettings, Section, Settings

SOURCE = Path(slipstream.__file__).parent


def sections() -> list[type[BaseModel]]:
    """Every group of settings."""
    return [Settings, *(type(value) for _, value in Settings() if isinstance(value, Section))]


def test_every_field_has_a_description() -> None:
    """Each setting has a description, which the reference page shows."""
    for section in sections():
        for name, field in section.model_fields.items():
            if not isinstance(field.default, Section):
                assert field.description, f"{section.__name__}.{name} has no description"


def test_every_setting_is_read_somewhere() -> None:
    """The code reads every setting."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "settings.py")
    unread = [key for key in KEYS if not re.search(rf"\.{key.rpartition('.')[2]}\b(?!\s*=[^=])", text)]
    assert not unread


def test_settings_are_frozen() -> None:
    """Settings cannot be assigned."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().ppo.epochs = 3  # type: ignore[misc]


def test_unknown_keys_are_forbidden() -> None:
    """An unknown key is an error."""
    for section in sections():
        with pytest.raises(ValidationError, match="extra"):
            section.model_validate({"no_such_key": 1})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [(PPOSettings, "epochs", 0), (PPOSettings, "gamma", 1.5), (PPOSettings, "clip", -0.1), (EverySettings, "log", -1)],
)
def test_impossible_values_are_refused(section: type[BaseModel], key: str, value: float) -> None:
    """Invalid values are validation errors."""
    with pytest.raises(ValidationError):
        section.model_validate({key: value})


def test_names_that_scripts_rely_on_are_there() -> None:
    """The keys that scripts use keep their names."""
    promised = {
        "plan.envs",
        "plan.workers",
        "plan.lag",
        "plan.collector",
        "ppo.rollout",
        "ppo.minibatch",
        "ppo.epochs",
        "ppo.learning_rate",
        "schedules",
        "algorithm",
        "policy.memory",
        "policy.hidden",
        "policy.activation",
        "policy.shared",
        "env.action_repeat",
        "env.match_seconds",
        "rewards.mode",
        "rewards.weights",
        "every.log",
        "every.checkpoint",
        "every.evaluate",
        "every.system",
        "every.gradients",
        "every.profile",
    }
    assert promised <= set(KEYS)
