"""The plan: every switch as requested, as applied, and why; batches that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.core.errors import ConfigError
from slipstream.core.plan import Facts, Plan, Switch, check_batch, make_plan
from slipstream.settings import PlanSettings, PPOSettings, Settings

SWITCHES = tuple(name for name in PlanSettings.model_fields if name != "deadline_s")


def plan(cores: int = 4, native: bool = False, **wanted: Any) -> Plan:
    """A plan for a machine and wishes."""
    return make_plan(PlanSettings(**wanted), Facts(cores=cores, native=native, minibatch=8192))


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("native", [False, True])
def test_every_switch_says_what_and_why(cores: int, native: bool) -> None:
    """Each row has a name, what was asked, what is done and a reason; nothing stays undecided."""
    rows = plan(cores, native).rows()
    assert [name for name, *_ in rows] == [f"plan.{name}" for name in SWITCHES]
    for name, _, applied, why in rows:
        assert applied != "auto" and (applied is not None or name == "plan.micro_batch"), name
        assert why, name


@pytest.mark.parametrize(
    "wanted",
    [{"envs": 3}, {"collector": "local"}, {"collector": "actors"}, {"workers": 2}, {"lag": 1}, {"lag": 0},
     {"learner": "torch"}, {"learner": "fused"}, {"threads": 3}, {"precision": "bf16"}, {"compile": True}],
)  # fmt: skip
def test_what_is_asked_for_is_done(wanted: dict[str, Any]) -> None:
    """A switch that is set is applied as it is, and says so."""
    ((name, value),) = wanted.items()
    switch = getattr(plan(4, **({"collector": "actors"} | wanted)), name)
    assert (switch.requested, switch.applied, switch.why) == (value, value, "asked for")


def test_one_core_collects_in_this_process() -> None:
    """Actors on one core would only take turns, and one env cannot be shared out."""
    assert plan(1).collector.applied == "local"
    assert plan(1).collector.why == "one usable core"
    assert plan(4, envs=1).collector.applied == "local"
    assert plan(4, envs=1).collector.why == "one env"
    assert plan(2).collector.applied == "actors"


def test_local_has_no_workers() -> None:
    """Workers that were asked for are not there when `local` collects, and the plan says why."""
    workers = plan(4, collector="local", workers=3).workers
    assert (workers.requested, workers.applied) == (3, 1)
    assert workers.why == "local collects in this process"


def test_never_more_workers_than_envs() -> None:
    """A worker without an env would be of no use."""
    workers = plan(4, collector="actors", envs=2, workers=4).workers
    assert (workers.requested, workers.applied, workers.why) == (4, 2, "no more workers than envs")
    assert plan(16, collector="actors", envs=3).workers.applied <= 3


def test_a_resumed_run_keeps_its_plan() -> None:
    """What the run began with stands, whatever this machine would choose, and is read back exactly."""
    began = plan(2, native=True, lag=1)
    again = make_plan(PlanSettings(lag=1), Facts(cores=64, native=True, minibatch=8192), before=began.applied())
    assert again.applied() == began.applied()
    assert {why for *_, why in again.rows()} == {"as the run began"}


def test_a_run_from_before_a_switch_goes_on_without_it() -> None:
    """What an older run has not kept in its plan is what it did: fp32, nothing compiled, whatever is asked for now."""
    began = plan(2, learner="torch").applied()
    assert (began.pop("precision"), began.pop("compile")) == ("fp32", False)
    wanted = PlanSettings(learner="torch", precision="bf16", compile=True)
    again = make_plan(wanted, Facts(cores=2, native=False, minibatch=8192), before=began)
    assert [(s.requested, s.applied, s.why) for s in (again.precision, again.compile)] == [
        ("bf16", "fp32", "as the run began"), (True, False, "as the run began")
    ]  # fmt: skip
    assert again.applied() == began | {"precision": "fp32", "compile": False}


def test_half_precision_and_compiling_take_the_torch_learner() -> None:
    """What only torch does makes `auto` choose it and say why; unasked, torch computes in fp32 and as it is."""
    half, compiled = plan(precision="bf16").learner, plan(compile=True).learner
    assert (half.applied, half.why) == ("torch", "bf16 needs it")
    assert (compiled.applied, compiled.why) == ("torch", "torch.compile needs it")
    unasked = plan(learner="torch")
    assert (unasked.precision.applied, unasked.precision.why) == ("fp32", "bf16 only if asked for")
    assert (unasked.compile.applied, unasked.compile.why) == (False, "off")
    asked = plan(learner="torch", precision="fp32").precision
    assert (asked.requested, asked.applied, asked.why) == ("fp32", "fp32", "asked for")


def test_the_fused_learner_has_its_own_precision() -> None:
    """It computes in fp32 and is compiled anyway; what it cannot do is refused where both are asked for."""
    fused = plan(learner="fused")
    assert (fused.precision.requested, fused.precision.applied) == ("auto", "fp32")
    assert fused.precision.why == "the fused kernel computes in fp32"
    assert (fused.compile.applied, fused.compile.why) == (False, "the fused kernel is compiled anyway")
    assert plan(learner="fused", precision="fp32").precision.applied == "fp32"
    for wanted, name in (({"precision": "bf16"}, "bf16"), ({"compile": True}, "torch.compile")):
        with pytest.raises(ConfigError) as caught:
            plan(learner="fused", **wanted)
        assert str(caught.value) == (
            f"The fused learner cannot do {name}.\nhint: leave plan.learner=auto, which takes torch"
        )


@pytest.mark.parametrize("learner", ["auto", "torch"])
def test_sac_learns_in_fp32(learner: str) -> None:
    """SAC has neither switch: unasked it says fp32, asked it refuses instead of doing something else."""
    for wanted, name in (({"precision": "bf16"}, "bf16"), ({"compile": True}, "torch.compile")):
        with pytest.raises(ConfigError, match=rf"^SAC cannot do {name}\.\nhint: .* or use algorithm=ppo$"):
            wishes = PlanSettings(learner=learner, **wanted)
            make_plan(wishes, Facts(cores=2, native=False, minibatch=256, replay=True))
    quiet = make_plan(PlanSettings(learner=learner), Facts(cores=2, native=False, minibatch=256, replay=True))
    assert (quiet.precision.applied, quiet.compile.applied) == ("fp32", False)


def test_a_plan_can_be_mended() -> None:
    """What could not be carried out is told as it is: still requested, not applied, and why."""
    made = plan(compile=True)
    made.mend("compile", False, "no compiler")
    assert made.compile == Switch(True, False, "no compiler")
    assert made.applied()["compile"] is False
    assert ("plan.compile", True, False, "no compiler") in made.rows()


def settings(rollout: int, minibatch: int, **more: Any) -> Settings:
    """Settings with the shapes of a batch."""
    return Settings(ppo=PPOSettings(rollout=rollout, minibatch=minibatch), **more)


def test_batch_is_envs_by_agents_by_rollout() -> None:
    """All rows count, and one side of them where an opponent plays the other."""
    assert check_batch(settings(128, 1024), 64, 1) == 8192
    assert check_batch(settings(128, 1024), 64, 2) == 16384
    assert check_batch(settings(128, 1024, opponent="random"), 64, 2) == 8192


def test_a_batch_that_does_not_divide_is_refused() -> None:
    """The message has the numbers, the key and a divisor that works."""
    with pytest.raises(ConfigError) as caught:
        check_batch(settings(128, 3000), 64, 1)
    assert str(caught.value) == (
        "A rollout of 64 envs x 128 steps = 8192 samples does not divide by `ppo.minibatch` = 3000.\n"
        "hint: use a divisor, e.g. 2048."
    )
    assert caught.value.code == 2
    with pytest.raises(ConfigError, match=r"A rollout of 4 envs x 2 agents x 10 steps = 80 samples .*\nhint: .* 80\.$"):
        check_batch(settings(10, 90), 4, 2)
