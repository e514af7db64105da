"""The plan: every switch as requested, as applied, and why; batches that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.errors import ConfigError
from slipstream.plan import Facts, Plan, Switch, check_batch, make_plan
from slipstream.settings import PlanSettings, PPOSettings, Settings

SWITCHES = tuple(name for name in PlanSettings.model_fields if name != "deadline_s")


def plan(cores: int = 4, native: bool = False, **requested: Any) -> Plan:
    """Return the plan for a machine and requested switches."""
    return make_plan(PlanSettings(**requested), Facts(cores=cores, native=native, minibatch=8192))


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("native", [False, True])
def test_every_switch_has_a_value_and_a_reason(cores: int, native: bool) -> None:
    """Each row has a name, the requested and the applied value and a reason; nothing is undecided."""
    rows = plan(cores, native).rows()
    assert [name for name, *_ in rows] == [f"plan.{name}" for name in SWITCHES]
    for name, _, applied, why in rows:
        assert applied != "auto" and (applied is not None or name == "plan.micro_batch"), name
        assert why, name


@pytest.mark.parametrize(
    "requested",
    [
        {"envs": 3},
        {"collector": "local"},
        {"collector": "actors"},
        {"workers": 2},
        {"lag": 1},
        {"lag": 0},
        {"learner": "torch"},
        {"learner": "fused"},
        {"threads": 3},
        {"precision": "bf16"},
        {"compile": True},
    ],
)
def test_a_requested_switch_is_applied(requested: dict[str, Any]) -> None:
    """A switch that is set is applied, and its reason is that it was requested."""
    ((name, value),) = requested.items()
    switch = getattr(plan(4, **({"collector": "actors"} | requested)), name)
    assert (switch.requested, switch.applied, switch.why) == (value, value, "requested")


def test_one_core_collects_in_this_process() -> None:
    """With one core or one env, `auto` chooses the local collector."""
    assert plan(1).collector.applied == "local"
    assert plan(1).collector.why == "one usable core"
    assert plan(4, envs=1).collector.applied == "local"
    assert plan(4, envs=1).collector.why == "there is only one env"
    assert plan(2).collector.applied == "actors"


def test_local_has_no_workers() -> None:
    """The local collector has one worker whatever is requested, and the plan gives the reason."""
    workers = plan(4, collector="local", workers=3).workers
    assert (workers.requested, workers.applied) == (3, 1)
    assert workers.why == "the local collector steps all envs in this process"


def test_never_more_workers_than_envs() -> None:
    """The number of workers is limited by the number of envs."""
    workers = plan(4, collector="actors", envs=2, workers=4).workers
    assert (workers.requested, workers.applied, workers.why) == (4, 2, "at most one worker per env")
    assert plan(16, collector="actors", envs=3).workers.applied <= 3


def test_a_resumed_run_keeps_its_plan() -> None:
    """A resumed run keeps the plan it was started with, whatever this machine would choose."""
    began = plan(2, native=True, lag=1)
    again = make_plan(PlanSettings(lag=1), Facts(cores=64, native=True, minibatch=8192), before=began.applied())
    assert again.applied() == began.applied()
    assert {why for *_, why in again.rows()} == {"the run was started with it"}


def test_a_gpu_run_can_be_resumed_without_a_gpu() -> None:
    """Without a GPU, a run that was started on one uses the CPU with the same number of envs, with a reason."""
    there = Facts(cores=16, native=True, minibatch=8192, gpu="Some GPU", off_device="")
    began = make_plan(PlanSettings(collector="device", envs=32), there)
    assert (began.collector.applied, began.device.applied) == ("device", "cuda")
    here = Facts(cores=2, native=True, minibatch=8192, off_device="")
    again = make_plan(PlanSettings(collector="device", envs=32), here, before=began.applied())
    assert (again.collector.applied, again.device.applied, again.envs.applied) == ("actors", "cpu", 32)
    assert again.learner.applied == "fused"
    assert again.collector.why == "the run was started with device on a GPU, and this machine has none"
    kept = make_plan(PlanSettings(collector="device", envs=32), there, before=began.applied())
    assert kept.applied() == began.applied()


def test_an_older_run_gets_defaults_for_newer_switches() -> None:
    """Switches that are missing in an older checkpoint have the values of that time, whatever is requested now."""
    began = plan(2, learner="torch").applied()
    assert (began.pop("precision"), began.pop("compile")) == ("fp32", False)
    requested = PlanSettings(learner="torch", precision="bf16", compile=True)
    again = make_plan(requested, Facts(cores=2, native=False, minibatch=8192), before=began)
    assert [(s.requested, s.applied, s.why) for s in (again.precision, again.compile)] == [
        ("bf16", "fp32", "the run was started with it"),
        (True, False, "the run was started with it"),
    ]
    assert again.applied() == began | {"precision": "fp32", "compile": False}


def test_half_precision_and_compiling_need_the_torch_learner() -> None:
    """What only torch supports makes `auto` choose it; by default torch computes in fp32, uncompiled."""
    half, compiled = plan(precision="bf16").learner, plan(compile=True).learner
    assert (half.applied, half.why) == ("torch", "bf16 needs torch")
    assert (compiled.applied, compiled.why) == ("torch", "torch.compile needs torch")
    unasked = plan(learner="torch")
    assert (unasked.precision.applied, unasked.precision.why) == ("fp32", "bf16 only if requested")
    assert (unasked.compile.applied, unasked.compile.why) == (False, "off")
    asked = plan(learner="torch", precision="fp32").precision
    assert (asked.requested, asked.applied, asked.why) == ("fp32", "fp32", "requested")


def test_the_fused_learner_has_its_own_precision() -> None:
    """It computes in fp32 and is always compiled; requesting it together with what it lacks is an error."""
    fused = plan(learner="fused")
    assert (fused.precision.requested, fused.precision.applied) == ("auto", "fp32")
    assert fused.precision.why == "the fused kernel computes in fp32"
    assert (fused.compile.applied, fused.compile.why) == (False, "the fused kernel is compiled already")
    assert plan(learner="fused", precision="fp32").precision.applied == "fp32"
    for requested, name in (({"precision": "bf16"}, "bf16"), ({"compile": True}, "torch.compile")):
        with pytest.raises(ConfigError) as caught:
            plan(learner="fused", **requested)
        assert str(caught.value) == (
            f"The fused learner does not support {name}.\nhint: leave plan.learner=auto, which uses torch"
        )


@pytest.mark.parametrize("learner", ["auto", "torch"])
def test_sac_learns_in_fp32(learner: str) -> None:
    """SAC computes in fp32; requesting bf16, compiling or checkpointing is an error."""
    unsupported = {
        "bf16": {"precision": "bf16"},
        "torch.compile": {"compile": True},
        "activation_checkpointing": {"activation_checkpointing": True},
    }
    for name, requested in unsupported.items():
        with pytest.raises(ConfigError, match=rf"^SAC does not support {name}\.\nhint: .* or use algorithm=ppo$"):
            make_plan(
                PlanSettings(learner=learner, **requested), Facts(cores=2, native=False, minibatch=256, replay=True)
            )
    quiet = make_plan(PlanSettings(learner=learner), Facts(cores=2, native=False, minibatch=256, replay=True))
    assert (quiet.precision.applied, quiet.compile.applied) == ("fp32", False)


GPU: dict[str, Any] = {"gpu": "H200", "native": True, "minibatch": 1024, "cores": 8}


def on_gpu(off_device: str = "", images: bool = False, **requested: Any) -> Plan:
    """Return the plan for a machine with a GPU and a game that can run on it."""
    return make_plan(PlanSettings(**requested), Facts(off_device=off_device, images=images, **GPU))


def shown(made: Plan, *names: str) -> list[tuple[Any, str]]:
    """Return the applied values with their reasons."""
    return [(getattr(made, name).applied, getattr(made, name).why) for name in names]


def test_where_a_gpu_is_used() -> None:
    """GPU games and image networks use the GPU; small networks, SAC and the fused learner use the CPU."""
    assert shown(on_gpu(), "device", "collector", "inference", "learner") == [
        ("cuda", "env, policy and learner all run on the H200"),
        ("device", "env, policy and learner all run on the H200"),
        ("cuda", "same device as the env"),
        ("torch", "the device collector trains with torch on the same device"),
    ]
    seen = on_gpu("no GPU version", images=True)
    assert shown(seen, "device", "collector", "inference", "storage", "pinned", "cudnn_benchmark", "groups") == [
        ("cuda", "an image network is faster on the H200"),
        ("batched", "one policy on the GPU acts for all envs"),
        ("cuda", "same device as the learner"),
        ("device", "same device as the learner"),
        (True, "transfers overlap with computation"),
        (True, "the network has convolutions"),
        (2, "one group steps while the policy acts for the other"),
    ]
    assert on_gpu("no").device.applied == on_gpu("no", collector="actors").device.applied == "cpu"
    assert shown(on_gpu(learner="fused"), "device", "collector") == [
        ("cpu", "plan.learner=fused runs on the CPU only"),
        ("actors", "8 usable cores"),
    ]
    sac = make_plan(PlanSettings(), Facts(replay=True, images=True, **GPU))
    assert shown(sac, "device", "collector")[0] == ("cpu", "SAC runs on the CPU only")
    asked = on_gpu("no", device="cpu", inference="cuda")
    assert shown(asked, "collector", "inference", "storage", "graphs") == [
        ("batched", "plan.inference=cuda: one policy on the GPU acts for all envs"),
        ("cuda", "requested"),
        ("host", "the learner is on the CPU"),
        (True, "one graph launch instead of hundreds of kernel launches"),
    ]


@pytest.mark.parametrize("requested", [{"device": "cuda"}, {"inference": "cuda"}])
def test_requesting_a_missing_gpu_is_an_error(requested: dict[str, Any]) -> None:
    """The error has a hint; switches that concern only a GPU are off, with the reason."""
    with pytest.raises(ConfigError) as caught:
        plan(**requested)
    assert str(caught.value) == (
        "The plan requests a GPU, but torch finds none.\nhint: slipstream doctor; or plan.device=cpu"
    )
    with pytest.raises(ConfigError, match=r"SAC runs on the CPU only\.\nhint: leave plan\.device=auto"):
        make_plan(PlanSettings(device="cuda"), Facts(replay=True, **GPU))
    with pytest.raises(ConfigError, match=r"plan\.collector=device: this game has no GPU version\."):
        plan(collector="device")
    without = plan(graphs=True, pinned=True, cudnn_benchmark=True, storage="device")
    for name in ("graphs", "pinned", "cudnn_benchmark"):
        assert getattr(without, name) == Switch(True, False, "nothing runs on a GPU")
    assert without.storage == Switch("device", "host", "the learner is on the CPU")


def test_precision_follows_the_device() -> None:
    """The default on a GPU is bf16 if it is supported; tf32 and fp16 fall back to fp32 on a CPU."""
    assert shown(on_gpu(), "precision") == [("bf16", "fast on a GPU; weights, optimiser and losses stay fp32")]
    for requested in ("fp32", "tf32", "bf16"):
        assert on_gpu(precision=requested).precision == Switch(requested, requested, "requested")
    older = make_plan(PlanSettings(), Facts(off_device="", bf16=False, **GPU)).precision
    assert older == Switch("auto", "fp32", "the H200 does not support bf16 natively")
    for learner in ("auto", "torch"):
        assert plan(precision="tf32", learner=learner).precision == Switch("tf32", "fp32", "TensorFloat-32 needs a GPU")
        assert plan(precision="fp16", learner=learner).precision == Switch("fp16", "fp32", "fp16 is too slow on a CPU")


def test_how_envs_are_stepped() -> None:
    """`plan.vector` selects the local collector with that vector; actors always step serially."""
    for how in ("threads", "processes"):
        made = plan(4, vector=how)
        assert shown(made, "collector", "vector", "workers") == [
            ("local", f"plan.vector={how}: the policy in this process acts for all envs"),
            (how, "requested"),
            (4, "one per usable core"),
        ]
    forced = plan(4, vector="serial")
    assert shown(forced, "collector", "workers") == [
        ("local", "plan.vector=serial: the policy in this process acts for all envs"),
        (1, "the local collector steps all envs in this process"),
    ]
    assert plan(4, vector="threads", collector="actors").vector == Switch(
        "threads", "serial", "each actor steps its own envs"
    )
    facts = {"cores": 4, "minibatch": 64, "posix": False}
    elsewhere = make_plan(PlanSettings(vector="processes"), Facts(native=False, **facts)).vector
    assert elsewhere == Switch("processes", "serial", "step workers need POSIX pipes")
    for native, why in ((True, "native games release the GIL"), (False, "step workers need POSIX")):
        batched = make_plan(PlanSettings(collector="batched"), Facts(native=native, **facts)).vector
        assert batched.applied == "threads" and batched.why.startswith(why)
    python = plan(4, collector="batched")
    assert shown(python, "vector") == [("processes", "Python envs would hold the GIL in threads")]


def test_the_device_collector_overrides_some_switches() -> None:
    """On the device collector the lag is 0, rollouts stay on the device, and fp16 falls back to bf16."""
    made = on_gpu(lag=1, storage="host", precision="fp16", pinned=True, compile=True)
    assert made.collector.applied == "device"
    assert shown(made, "lag", "storage", "precision", "pinned", "compile") == [
        (0, "collecting and updating alternate on the GPU"),
        ("device", "rollouts are made on the learner's device"),
        ("bf16", "the device collector does not support fp16"),
        (False, "nothing is transferred: the env is on the GPU"),
        (False, "the GPU's work is captured as CUDA graphs instead"),
    ]
    assert on_gpu(precision="fp16", collector="batched", device="cuda").precision == Switch("fp16", "fp16", "requested")


def test_groups_and_zero_copy_depend_on_the_collector() -> None:
    """Only `batched` has several groups, at most one per env; only workers' rollouts can be copied."""
    assert plan(collector="batched", groups=3).groups == Switch(3, 3, "requested")
    assert plan(collector="batched", groups=4, envs=2).groups == Switch(4, 2, "at most one group per env")
    assert plan(collector="actors", groups=3).groups == Switch(3, 1, "the actors collector has one group")
    assert plan(collector="actors", zero_copy=False).zero_copy == Switch(False, False, "requested")
    assert plan(collector="local", zero_copy=False).zero_copy == Switch(
        False, True, "the local collector has no worker rollouts to copy"
    )


def test_micro_batches() -> None:
    """A micro-batch is at most a minibatch; the fused learner and SAC ignore it, with a reason."""
    assert plan(micro_batch=100, learner="torch").micro_batch == Switch(100, 100, "requested")
    assert plan(micro_batch=9000, learner="torch").micro_batch == Switch(9000, 8192, "at most a minibatch")
    assert plan(micro_batch=100, learner="fused").micro_batch.applied is None
    sac = make_plan(PlanSettings(learner="torch", micro_batch=8), Facts(2, False, 256, replay=True))
    assert sac.micro_batch == Switch(8, None, "SAC computes whole batches")
    assert shown(plan(activation_checkpointing=True), "activation_checkpointing", "learner") == [
        (True, "requested"),
        ("torch", "activation_checkpointing needs torch"),
    ]


def test_the_compile_mode() -> None:
    """The mode is applied only if torch.compile is on."""
    assert plan(compile=True, compile_mode="max-autotune").compile_mode.applied == "max-autotune"
    assert plan(compile_mode="max-autotune").compile_mode == Switch("max-autotune", "default", "plan.compile is off")


def test_reproducible_turns_timing_dependent_choices_off() -> None:
    """cuDNN autotune is off, and the number of threads is 1 unless it is requested."""
    made = make_plan(PlanSettings(reproducible=True), Facts(off_device="no", images=True, weights=10**6, **GPU))
    assert shown(made, "reproducible", "cudnn_benchmark", "threads") == [
        (True, "requested"),
        (False, "plan.reproducible: no autotuning by timing"),
        (1, "plan.reproducible: the same on every machine"),
    ]
    assert plan(reproducible=True, threads=3).threads == Switch(3, 3, "requested")
    assert plan().reproducible == Switch(False, False, "not requested: fastest choices")


def test_a_plan_can_fall_back() -> None:
    """After a fallback the switch has the requested value, another applied value, and the reason."""
    made = plan(compile=True)
    made.fall_back("compile", False, "no compiler")
    assert made.compile == Switch(True, False, "no compiler")
    assert made.applied()["compile"] is False
    assert ("plan.compile", True, False, "no compiler") in made.rows()


def settings(rollout: int, minibatch: int, **more: Any) -> Settings:
    """Return settings with a rollout and a minibatch."""
    return Settings(ppo=PPOSettings(rollout=rollout, minibatch=minibatch), **more)


def test_batch_is_envs_by_agents_by_rollout() -> None:
    """All rows count, or one side of them if an opponent plays the other."""
    assert check_batch(settings(128, 1024), 64, 1) == 8192
    assert check_batch(settings(128, 1024), 64, 2) == 16384
    assert check_batch(settings(128, 1024, opponent="random"), 64, 2) == 8192


def test_a_batch_that_does_not_divide_is_refused() -> None:
    """The message has the numbers, the key and a valid divisor."""
    with pytest.raises(ConfigError) as caught:
        check_batch(settings(128, 3000), 64, 1)
    assert str(caught.value) == (
        "A rollout of 64 envs x 128 steps = 8192 samples does not divide by `ppo.minibatch` = 3000.\n"
        "hint: use a divisor, e.g. 2048."
    )
    assert caught.value.code == 2
    with pytest.raises(ConfigError, match=r"A rollout of 4 envs x 2 agents x 10 steps = 80 samples .*\nhint: .* 80\.$"):
        check_batch(settings(10, 90), 4, 2)
