"""The plan: every switch as requested, as applied, and why; batches that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.errors import ConfigError
from slipstream.plan import Facts, Plan, Switch, check_batch, make_plan
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
    assert workers.why == "local steps all envs in this process"


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


def test_a_run_of_a_gpu_goes_on_without_one() -> None:
    """What began on a GPU is collected and learned on the CPU where there is none, with as many envs, and says so."""
    there = Facts(cores=16, native=True, minibatch=8192, gpu="Some GPU", off_device="")
    began = make_plan(PlanSettings(collector="device", envs=32), there)
    assert (began.collector.applied, began.device.applied) == ("device", "cuda")
    here = Facts(cores=2, native=True, minibatch=8192, off_device="")
    again = make_plan(PlanSettings(collector="device", envs=32), here, before=began.applied())
    assert (again.collector.applied, again.device.applied, again.envs.applied) == ("actors", "cpu", 32)
    assert again.learner.applied == "fused"
    assert again.collector.why == "the run began with device on a GPU, none is here"
    kept = make_plan(PlanSettings(collector="device", envs=32), there, before=began.applied())
    assert kept.applied() == began.applied()


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
    wishes = {
        "bf16": {"precision": "bf16"},
        "torch.compile": {"compile": True},
        "activation_checkpointing": {"activation_checkpointing": True},
    }
    for name, wanted in wishes.items():
        with pytest.raises(ConfigError, match=rf"^SAC cannot do {name}\.\nhint: .* or use algorithm=ppo$"):
            make_plan(PlanSettings(learner=learner, **wanted), Facts(cores=2, native=False, minibatch=256, replay=True))
    quiet = make_plan(PlanSettings(learner=learner), Facts(cores=2, native=False, minibatch=256, replay=True))
    assert (quiet.precision.applied, quiet.compile.applied) == ("fp32", False)


GPU: dict[str, Any] = {"gpu": "H200", "native": True, "minibatch": 1024, "cores": 8}


def on_gpu(off_device: str = "", images: bool = False, **wanted: Any) -> Plan:
    """A plan for a machine with a GPU and a game that can live on it."""
    return make_plan(PlanSettings(**wanted), Facts(off_device=off_device, images=images, **GPU))


def shown(made: Plan, *names: str) -> list[tuple[Any, str]]:
    """What is applied, and why."""
    return [(getattr(made, name).applied, getattr(made, name).why) for name in names]


def test_where_a_gpu_is_used() -> None:
    """Whole games and networks for images go to the GPU; a small network, SAC and the fused learner stay."""
    assert shown(on_gpu(), "device", "collector", "inference", "learner") == [
        ("cuda", "game, policy and learner live on the H200"), ("device", "the whole game runs on the H200"),
        ("cuda", "the policy lives where the game does"),
        ("torch", "gradients are products of matrices on the device"),
    ]  # fmt: skip
    seen = on_gpu("no GPU version", images=True)
    assert shown(seen, "device", "collector", "inference", "storage", "pinned", "cudnn_benchmark", "groups") == [
        ("cuda", "a network for images, and a H200"), ("batched", "one policy on the GPU chooses for all envs"),
        ("cuda", "where the learner is"), ("device", "where the learner is"), (True, "copies overlap with work"),
        (True, "there are convolutions"), (2, "one group steps while the policy chooses for the other"),
    ]  # fmt: skip
    assert on_gpu("no").device.applied == on_gpu("no", collector="actors").device.applied == "cpu"
    assert shown(on_gpu(learner="fused"), "device", "collector") == [
        ("cpu", "the fused learner computes on the CPU"), ("actors", "8 usable cores")
    ]  # fmt: skip
    sac = make_plan(PlanSettings(), Facts(replay=True, images=True, **GPU))
    assert shown(sac, "device", "collector")[0] == ("cpu", "SAC learns on the CPU")
    asked = on_gpu("no", device="cpu", inference="cuda")
    assert shown(asked, "collector", "inference", "storage", "graphs") == [
        ("batched", "plan.inference=cuda: one policy on the GPU chooses for all envs"), ("cuda", "asked for"),
        ("host", "the learner is on the CPU"), (True, "one launch instead of hundreds"),
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", [{"device": "cuda"}, {"inference": "cuda"}])
def test_a_gpu_that_is_not_there_is_missed(wanted: dict[str, Any]) -> None:
    """Asking for one is an error with the next thing to do; what only a GPU does is off, with the reason."""
    with pytest.raises(ConfigError) as caught:
        plan(**wanted)
    assert str(caught.value) == (
        "The plan asks for a GPU, and torch finds none here.\nhint: slipstream doctor; or plan.device=cpu"
    )
    with pytest.raises(ConfigError, match=r"SAC cannot do a learner on the GPU\.\nhint: leave plan\.device=auto"):
        make_plan(PlanSettings(device="cuda"), Facts(replay=True, **GPU))
    with pytest.raises(ConfigError, match=r"plan\.collector=device: this game has no GPU version\."):
        plan(collector="device")
    without = plan(graphs=True, pinned=True, cudnn_benchmark=True, storage="device")
    for name in ("graphs", "pinned", "cudnn_benchmark"):
        assert getattr(without, name) == Switch(True, False, "nothing runs on a GPU")
    assert without.storage == Switch("device", "host", "the learner is on the CPU")


def test_precision_follows_the_device() -> None:
    """On a GPU bf16 unless asked otherwise or unknown to it; tf32 and fp16 are a GPU's, and a CPU says so."""
    assert shown(on_gpu(), "precision") == [("bf16", "fast on a GPU; weights, optimiser and losses stay fp32")]
    for wanted in ("fp32", "tf32", "bf16"):
        assert on_gpu(precision=wanted).precision == Switch(wanted, wanted, "asked for")
    older = make_plan(PlanSettings(), Facts(off_device="", bf16=False, **GPU)).precision
    assert older == Switch("auto", "fp32", "the H200 has no bf16 of its own")
    for learner in ("auto", "torch"):
        assert plan(precision="tf32", learner=learner).precision == Switch("tf32", "fp32", "TensorFloat-32 is a GPU's")
        assert plan(precision="fp16", learner=learner).precision == Switch("fp16", "fp32", "fp16 is too slow on a CPU")


def test_how_envs_are_stepped() -> None:
    """`plan.vector` makes this process act for all envs, in as many workers as there are; actors have their own way."""
    for how in ("threads", "processes"):
        made = plan(4, vector=how)
        assert shown(made, "collector", "vector", "workers") == [
            ("local", f"plan.vector={how}: this process acts for all envs"), (how, "asked for"),
            (4, "one per usable core"),
        ]  # fmt: skip
    forced = plan(4, vector="serial")
    assert shown(forced, "collector", "workers") == [
        ("local", "plan.vector=serial: this process acts for all envs"), (1, "local steps all envs in this process")
    ]  # fmt: skip
    assert plan(4, vector="threads", collector="actors").vector == Switch(
        "threads", "serial", "each actor steps its own envs"
    )
    facts = {"cores": 4, "minibatch": 64, "posix": False}
    elsewhere = make_plan(PlanSettings(vector="processes"), Facts(native=False, **facts)).vector
    assert elsewhere == Switch("processes", "serial", "processes that step envs need POSIX pipes")
    for native, why in ((True, "a native game lets other threads"), (False, "processes that step envs need POSIX")):
        batched = make_plan(PlanSettings(collector="batched"), Facts(native=native, **facts)).vector
        assert batched.applied == "threads" and batched.why.startswith(why)
    python = plan(4, collector="batched")
    assert shown(python, "vector") == [("processes", "Python envs hold each other up in threads")]


def test_a_game_on_the_gpu_has_its_own_way() -> None:
    """Nothing runs ahead of it, its rollouts stay there, and it computes in bf16 where fp16 is asked for."""
    made = on_gpu(lag=1, storage="host", precision="fp16", pinned=True, compile=True)
    assert made.collector.applied == "device"
    assert shown(made, "lag", "storage", "precision", "pinned", "compile") == [
        (0, "the GPU does one thing after the other"), ("device", "rollouts are made where they are learned from"),
        ("bf16", "games that live on the GPU have no fp16"), (False, "nothing is copied: the game is on the GPU"),
        (False, "what the GPU does is captured as graphs"),
    ]  # fmt: skip
    assert on_gpu(precision="fp16", collector="batched", device="cuda").precision == Switch("fp16", "fp16", "asked for")


def test_groups_and_copies_belong_to_those_who_have_them() -> None:
    """Only `batched` has groups, never more than envs; only workers' rollouts can be copied."""
    assert plan(collector="batched", groups=3).groups == Switch(3, 3, "asked for")
    assert plan(collector="batched", groups=4, envs=2).groups == Switch(4, 2, "no more groups than envs")
    assert plan(collector="actors", groups=3).groups == Switch(3, 1, "actors has one group")
    assert plan(collector="actors", zero_copy=False).zero_copy == Switch(False, False, "asked for")
    assert plan(collector="local", zero_copy=False).zero_copy == Switch(
        False, True, "local has no rollouts of workers to copy"
    )


def test_parts_of_minibatches() -> None:
    """A part is at most a minibatch; kernels and SAC take what they take, and say so."""
    assert plan(micro_batch=100, learner="torch").micro_batch == Switch(100, 100, "asked for")
    assert plan(micro_batch=9000, learner="torch").micro_batch == Switch(9000, 8192, "no more than a minibatch")
    assert plan(micro_batch=100, learner="fused").micro_batch.applied is None
    sac = make_plan(PlanSettings(learner="torch", micro_batch=8), Facts(2, False, 256, replay=True))
    assert sac.micro_batch == Switch(8, None, "SAC takes whole batches")
    assert shown(plan(activation_checkpointing=True), "activation_checkpointing", "learner") == [
        (True, "asked for"), ("torch", "checkpointing needs it")
    ]  # fmt: skip


def test_the_mode_of_compiling() -> None:
    """It is applied where something is compiled, and only there."""
    assert plan(compile=True, compile_mode="max-autotune").compile_mode.applied == "max-autotune"
    assert plan(compile_mode="max-autotune").compile_mode == Switch("max-autotune", "default", "nothing is compiled")


def test_reproducible_takes_luck_back() -> None:
    """No way of convolving is chosen by the clock, and threads do not follow the machine unless they are given."""
    made = make_plan(PlanSettings(reproducible=True), Facts(off_device="no", images=True, weights=10**6, **GPU))
    assert shown(made, "reproducible", "cudnn_benchmark", "threads") == [
        (True, "asked for"), (False, "plan.reproducible: no way of convolving is chosen by the clock"),
        (1, "plan.reproducible: the same on every machine"),
    ]  # fmt: skip
    assert plan(reproducible=True, threads=3).threads == Switch(3, 3, "asked for")
    assert plan().reproducible == Switch(False, False, "speed first")


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
