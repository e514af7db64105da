"""Every PPO, policy and plan setting on every engine: it has a measured effect or is refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.api import Run, configure
from slipstream.contracts import Array
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.plan import Facts, make_plan
from slipstream.policies.network_registry import network_name, register_networks
from slipstream.settings import PlanSettings, PolicySettings, PPOSettings
from slipstream.stages.record import record
from slipstream.training.build import build, choose_env
from user_networks import Dense

register_networks({network_name(Dense): Dense})
ENGINES: dict[str, dict[str, Any]] = {
    "fused": {"plan.collector": "local", "plan.learner": "fused"},
    "torch": {"plan.collector": "local", "plan.learner": "torch"},
    "device": {"plan.collector": "device"},
}
SMALL: dict[str, Any] = {
    "plan.device": "cpu",
    "plan.envs": 4,
    "plan.threads": 1,
    "ppo.rollout": 16,
    "ppo.minibatch": 32,
    "ppo.epochs": 2,
    "ppo.learning_rate": 3e-3,
    "policy.hidden": [16],
    "policy.memory_size": 8,
    "policy.sequence": 8,
    "policy.features": 8,
    "env.match_seconds": 1.0,
}
UPDATES = 3


@dataclass(frozen=True)
class Row:
    """A value that differs from the default, the settings that it needs, and the engines that refuse it, by reason."""

    value: Any
    given: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    env: str = "soccer"


def torch_only(key: str) -> dict[str, str]:
    """Refused by the engines other than torch."""
    return {"fused": key, "device": key}


MEMORY = {"policy.memory": "lstm"}
CONTINUOUS = {"env.actions": "continuous"}
VTRACE, PRIORITY = {"ppo.vtrace_rho": 1.0}, {"ppo.priority_alpha": 0.8}
CONTRAST, CONTRAST_REFUSED = {"ppo.contrastive_coef": 0.5}, torch_only("ppo.contrastive_coef")
REFERENCE, REFERENCE_REFUSED = {"ppo.reference": "RUN"}, {"device": "ppo.reference"}
TEACHER, TEACHER_REFUSED = {"ppo.teacher": "scripted:rule"}, {"device": "ppo.teacher"}
DEMOS, DEMOS_REFUSED = {"ppo.demos": "DEMOS"}, {"device": "ppo.demos"}
IMAGES_REFUSED = {"fused": "images", "device": "no GPU version"}

PPO_ROWS: dict[str, Row] = {
    "rollout": Row(32),
    "minibatch": Row(64),
    "epochs": Row(1),
    "shuffle": Row("time"),
    "learning_rate": Row(1e-3),
    "optimiser": Row("adamw", {"ppo.weight_decay": 0.1}),
    "weight_decay": Row(0.1, {"ppo.optimiser": "adamw"}),
    "gamma": Row(0.5),
    "gae_lambda": Row(0.5),
    "clip": Row(0.001),
    "clip_value": Row(0.001),
    "value_coef": Row(2.0),
    "entropy_coef": Row(0.1),
    "max_grad_norm": Row(0.01),
    "target_kl": Row(1e-9),
    "epochs_max": Row(4),
    "epochs_target_kl": Row(1e-9, {"ppo.epochs_max": 4}),
    "epochs_max_clip_fraction": Row(1.0, {"ppo.epochs_max": 4, "ppo.clip": 0.001, "ppo.epochs_target_kl": 1.0}),
    "vtrace_rho": Row(0.5, refused={"device": "ppo.vtrace_rho"}),
    "vtrace_c": Row(0.1, VTRACE, {"device": "ppo.vtrace_rho"}),
    "priority_alpha": Row(0.8, refused={"device": "ppo.priority_alpha"}),
    "priority_beta": Row(0.1, PRIORITY, {"device": "ppo.priority_alpha"}),
    "contrastive_coef": Row(0.5, refused=CONTRAST_REFUSED),
    "contrastive_temperature": Row(0.5, CONTRAST, CONTRAST_REFUSED),
    "contrastive_steps": Row(2, CONTRAST, CONTRAST_REFUSED),
    "centre_rewards": Row(0.5, env="kart"),  # rewards of soccer have a mean of exactly 0
    "reference": Row("RUN", refused=REFERENCE_REFUSED),
    "reference_kl_coef": Row(2.0, REFERENCE, REFERENCE_REFUSED),
    "reference_decay": Row(0.5, REFERENCE, REFERENCE_REFUSED),
    "reference_target": Row(1e-6, REFERENCE, REFERENCE_REFUSED),
    "teacher": Row("scripted:rule", refused=TEACHER_REFUSED),
    "teacher_coef": Row(0.1, TEACHER, TEACHER_REFUSED),
    "demos": Row("DEMOS", refused=DEMOS_REFUSED),
    "demo_coef": Row(1.0, DEMOS, DEMOS_REFUSED),
    "demo_decay": Row(0.1, DEMOS, DEMOS_REFUSED),
    "demo_batch": Row(16, DEMOS, DEMOS_REFUSED),
    "value_warmup": Row(1),
    "value_warmup_explained_variance": Row(1e-6, {"ppo.value_warmup": 3}),
    "freeze_obs_stats_steps": Row(10**9),
    "normalise_advantage": Row(False),
    "normalise_obs": Row(False),
    "normalise_return": Row(False),
    "adam_eps": Row(0.01),
}
POLICY_ROWS: dict[str, Row] = {
    "hidden": Row([8]),
    "activation": Row("elu"),
    "layer_norm": Row(True, refused={"device": "policy.layer_norm"}),
    "shared": Row(False),
    "memory": Row("lstm"),
    "memory_size": Row(12, MEMORY),
    "memory_first": Row(True, MEMORY),
    "memory_layers": Row(2, MEMORY),
    "sequence": Row(4, MEMORY),
    "burn_in": Row(2, MEMORY, {"device": "policy.burn_in"}),
    "image": Row("impala", refused=IMAGES_REFUSED, env="pixels"),
    "trunk": Row("missing", {"policy.image": "frozen"}, dict.fromkeys(ENGINES, "missing|policy.trunk"), env="pixels"),
    "features": Row(12, refused=IMAGES_REFUSED, env="pixels"),
    "network": Row("user_networks:Dense", refused=torch_only("policy.network")),
    "network_options": Row({"width": 8}, {"policy.network": "user_networks:Dense"}, torch_only("policy.network")),
    "init": Row("uniform"),
    "squash": Row(True, CONTINUOUS),
    "log_std": Row(-1.0, CONTINUOUS),
}
OTHER_VALUES = [
    ("ppo.optimiser", Row("muon", refused=torch_only("ppo.optimiser"))),
    ("ppo.shuffle", Row("segments")),
    ("policy.memory", Row("gru", refused={"device": "policy.memory"})),
    ("schedules.ppo.vtrace_rho", Row("linear to 1 over 1000", refused={"device": "ppo.vtrace_rho"})),
]
ROWS = [(f"ppo.{name}", row) for name, row in PPO_ROWS.items()]
ROWS += [(f"policy.{name}", row) for name, row in POLICY_ROWS.items()] + OTHER_VALUES


@pytest.mark.parametrize(
    ("section", "rows"), [(PPOSettings, PPO_ROWS), (PolicySettings, POLICY_ROWS)], ids=["ppo", "policy"]
)
def test_every_setting_has_a_row(section: Any, rows: dict[str, Row]) -> None:
    """Every setting has a row that states its effect on every engine."""
    assert set(rows) == set(section.model_fields)
    for name, row in rows.items():
        assert row.value != section.model_fields[name].default, f"{name}: the row must change the setting"


@pytest.fixture(scope="module")
def paths(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A trained run and recorded demos, which rows name as RUN and DEMOS."""
    demos: Path = tmp_path_factory.mktemp("demos") / "demos"
    settings = configure("soccer", flags={"env.match_seconds": 1.0}, tuned=False).settings
    record(choose_env("soccer", settings), "scripted:rule", 4, demos, workers=1)
    return {"RUN": f"run:{trained.path}", "DEMOS": str(demos)}


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    """The results of the settings that rows are compared with."""
    return {}


def run_updates(
    engine: str, env: str, flags: dict[str, Any], device: str = "cpu"
) -> tuple[Array, list[dict[str, Any]]]:
    """Weights, normaliser and metrics after some updates."""
    flags = SMALL | ENGINES[engine] | {"plan.device": device} | flags
    settings = configure(env, flags=flags, tuned=False).settings
    parts = build(choose_env(env, settings), settings)
    try:
        parts.publish(0)
        parts.collector.start(0, None)
        steps, logged = 0, []
        for version in range(UPDATES):
            parts.learner.settings = parts.schedules.at(parts.learner.section, steps)
            samples, row = parts.learner.update(parts.collector.collect(version), steps)
            parts.publish(version + 1)
            steps += samples
            logged.append({name: value for name, value in row.items() if value == value})
        return parts.learner.params_and_stats.copy(), logged
    finally:
        parts.close()


def check(engine: str, key: str, row: Row, paths: dict[str, str], results: dict[Any, Any], device: str = "cpu") -> None:
    """Compare a run with the setting to one without it, or expect the refusal."""
    given = {name: paths.get(str(value), value) for name, value in row.given.items()}
    changed = given | {key: paths.get(str(row.value), row.value)}
    if engine in row.refused:
        with pytest.raises(SlipstreamError, match=row.refused[engine]):
            run_updates(engine, row.env, changed, device)
        return
    base = engine, row.env, device, str(sorted(given.items()))
    if base not in results:
        results[base] = run_updates(engine, row.env, given, device)
    weights, logged = results[base]
    other_weights, other_logged = run_updates(engine, row.env, changed, device)
    same = weights.shape == other_weights.shape and np.array_equal(weights, other_weights)
    assert not same, f"{key} = {row.value} changes nothing on {engine}"
    assert logged != other_logged
    assert np.isfinite(other_weights).all()


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize(("key", "row"), ROWS, ids=[f"{key}={row.value}" for key, row in ROWS])
def test_a_setting_acts_or_is_refused(
    engine: str, key: str, row: Row, paths: dict[str, str], results: dict[Any, Any]
) -> None:
    """Changing a setting changes the trained weights, or is refused with an error that names the setting."""
    check(engine, key, row, paths, results)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize(("key", "row"), ROWS, ids=[f"{key}={row.value}" for key, row in ROWS])
def test_a_setting_acts_or_is_refused_on_a_gpu(
    key: str, row: Row, paths: dict[str, str], results: dict[Any, Any]
) -> None:
    """On a GPU the device engine, captured as graphs, treats every setting as it does on the CPU."""
    check("device", key, row, paths, results, "cuda")


def test_a_refused_setting_is_an_error_of_the_config(paths: dict[str, str]) -> None:
    """A refusal by the device engine is a ConfigError with a hint."""
    with pytest.raises(ConfigError, match=r"ppo\.vtrace_rho.*\nhint: leave plan\.collector=auto"):
        run_updates("device", "soccer", {"ppo.vtrace_rho": 1.0})


ACTS, DECLINED, REFUSED = "acts", "declined", "refused"
"""The switch is applied as requested; another value is applied and the plan says why; an error."""
PLANS: dict[str, dict[str, Any]] = {
    "fused": {"learner": "fused", "collector": "local", "device": "cpu"},
    "torch": {"learner": "torch", "collector": "local", "device": "cuda"},
    "device": {"collector": "device", "device": "cuda"},
}
BATCHED = {"collector": "batched"}
Plans = tuple[tuple[Any, str], tuple[Any, str], tuple[Any, str], dict[str, Any]]


def everywhere(value: Any, outcome: str = ACTS, given: dict[str, Any] | None = None) -> Plans:
    """The same value and outcome on all engines."""
    return (value, outcome), (value, outcome), (value, outcome), given or {}


PLAN_ROWS: dict[str, Plans] = {
    "envs": everywhere(7),
    "collector": everywhere("batched"),
    "vector": (("threads", ACTS), ("threads", ACTS), ("threads", DECLINED), {}),
    "native": everywhere(True),
    "workers": ((3, ACTS), (3, ACTS), (3, DECLINED), {"vector": "threads"}),
    "groups": ((3, ACTS), (3, ACTS), (3, DECLINED), BATCHED),
    "lag": ((1, ACTS), (1, ACTS), (1, DECLINED), {}),
    "zero_copy": ((False, ACTS), (False, ACTS), (False, DECLINED), BATCHED),
    "device": (("cuda", REFUSED), ("cpu", ACTS), ("cpu", ACTS), {}),
    "inference": (("cuda", ACTS), ("cpu", ACTS), ("cpu", DECLINED), BATCHED),
    "storage": (("device", DECLINED), ("host", ACTS), ("host", DECLINED), {}),
    "learner": (("torch", ACTS), ("fused", REFUSED), ("fused", REFUSED), {}),
    "precision": (("bf16", REFUSED), ("tf32", ACTS), ("fp32", ACTS), {}),
    "compile": ((True, REFUSED), (True, ACTS), (True, DECLINED), {}),
    "compile_mode": (("max-autotune", DECLINED), ("max-autotune", ACTS), ("max-autotune", DECLINED), {"compile": True}),
    "graphs": ((True, DECLINED), (False, ACTS), (False, ACTS), {}),
    "pinned": ((True, DECLINED), (False, ACTS), (True, DECLINED), {}),
    "cudnn_benchmark": ((True, DECLINED), (True, ACTS), (True, ACTS), {}),
    "threads": ((3, ACTS), (3, ACTS), (3, DECLINED), {}),
    "micro_batch": ((16, DECLINED), (16, ACTS), (16, DECLINED), {}),
    "activation_checkpointing": ((True, REFUSED), (True, ACTS), (True, DECLINED), {}),
    "reproducible": everywhere(True),
}
NOT_IN_THE_PLAN = {"deadline_s": "tests/faults/test_environments.py"}
"""A limit of worker processes, not a switch; the named test measures it."""


def test_every_plan_setting_has_a_row() -> None:
    """Every plan setting has a row, or a test that measures it."""
    assert set(PLAN_ROWS) | set(NOT_IN_THE_PLAN) == set(PlanSettings.model_fields)
    for name, path in NOT_IN_THE_PLAN.items():
        assert f"plan.{name}" in Path(path).read_text()


@pytest.mark.parametrize("engine", list(PLANS))
@pytest.mark.parametrize("name", list(PLAN_ROWS))
def test_a_plan_setting_acts_or_the_plan_says_why_not(engine: str, name: str) -> None:
    """A requested switch is applied, or the plan applies another value and says why, or an error names it."""
    *values, given = PLAN_ROWS[name]
    value, outcome = values[list(PLANS).index(engine)]
    own = PLANS[engine]
    needed = {key: other for key, other in given.items() if not (engine == "device" and key == "collector")}
    if engine == "fused" and needed.get("compile"):
        needed = {}
    facts = Facts(
        cores=4, native=True, minibatch=1024, gpu="GPU", off_device="", no_native="", native_gain=2.0, weights=10_000
    )
    wanted = own | needed | {name: value}
    if outcome == REFUSED:
        with pytest.raises(ConfigError, match=r"fused learner"):
            make_plan(PlanSettings(**wanted), facts)
        return
    switch = getattr(make_plan(PlanSettings(**wanted), facts), name)
    assert switch.requested == value
    assert switch.why
    assert (switch.applied == value) == (outcome == ACTS), switch
