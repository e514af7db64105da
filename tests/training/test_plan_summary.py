"""The table of the plan that is shown when a run starts."""

from __future__ import annotations

from typing import Any

from slipstream.api import configure
from slipstream.settings import PlanSettings
from slipstream.training.build import build, choose_env
from slipstream.training.plan_summary import notable_switches, plan_rows, table

SMALL: dict[str, Any] = {
    "plan__collector": "local",
    "plan__envs": 8,
    "ppo__rollout": 16,
    "ppo__minibatch": 64,
    "policy__hidden": [16],
}


def rows(env: str, **more: Any) -> list[Any]:
    """Return the rows of a small run."""
    settings = configure(env, flags=SMALL | more, tuned=False).settings
    parts = build(choose_env(env, settings), settings)
    parts.close()
    return plan_rows(parts, settings)


def test_all_settings_that_affect_speed_have_a_row() -> None:
    """Every switch has a row, and so have the minibatch and the action repeat."""
    found = {name: (requested, applied, why) for name, requested, applied, why in rows("soccer")}
    switches = [f"plan.{name}" for name in PlanSettings.model_fields if name != "deadline_s"]
    assert list(found) == [*switches, "ppo.minibatch", "env.action_repeat"]
    assert found["ppo.minibatch"] == (64, 64, "4 per batch of 256")
    assert found["env.action_repeat"] == (None, 4, "the game's default")
    assert rows("soccer", env__action_repeat=6)[-1] == ("env.action_repeat", 6, 6, "requested")
    assert rows("gymnasium:CartPole-v1", env__action_repeat=3)[-1] == ("env.action_repeat", 3, 3, "requested")
    assert rows("recall", env__action_repeat=3)[-1] == ("env.action_repeat", 3, 1, "this game does not repeat actions")
    sac = rows("gymnasium:Pendulum-v1", algorithm="sac", sac__batch_size=32)
    assert sac[-2] == ("sac.batch_size", 32, 32, "sampled from the replay buffer")


def test_defaults_are_not_listed() -> None:
    """When a run starts, switches with default values that were not requested are not listed."""
    names = [name for name, *_ in notable_switches(rows("recall", plan__threads=1))]
    assert names == ["plan.envs", "plan.collector", "plan.learner", "ppo.minibatch"]
    requested = rows("recall", plan__learner="torch", plan__threads=2, plan__graphs=True, plan__micro_batch=16)
    names = [name for name, *_ in notable_switches(requested)]
    assert names == [
        "plan.envs",
        "plan.collector",
        "plan.learner",
        "plan.graphs",
        "plan.threads",
        "plan.micro_batch",
        "ppo.minibatch",
    ]


def test_the_table_has_columns() -> None:
    """Columns are aligned, unrequested cells are empty, and booleans are shown as on or off."""
    lines = table([("plan.lag", None, 0, "newest"), ("plan.compile", True, False, "no compiler"), ("x", 8, None, "y")])
    assert lines == [
        "switch        requested  applied  why",
        "plan.lag                 0        newest",
        "plan.compile  on         off      no compiler",
        "x             8          none     y",
    ]
