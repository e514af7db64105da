"""Makes the parts of a run from its settings: environments, policy, plan, learner, collector.

`build` reads top to bottom: probe one environment, decide the plan, make the learner, make the collector.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.agents.own import OwnAgent
from slipstream.agents.specs import is_own, load_agent
from slipstream.algorithms.engine import Engine
from slipstream.algorithms.episode_stats import EpisodeStats, EpisodeTracker
from slipstream.algorithms.imitation_loss import make_imitation_loss
from slipstream.algorithms.kl_reference import make_kl_reference
from slipstream.algorithms.ppo import PPO
from slipstream.algorithms.reward_hacking import RewardHackingDetector
from slipstream.algorithms.rollback import Rollback
from slipstream.algorithms.schedules import Schedules
from slipstream.algorithms.warm_start import load_start
from slipstream.collect.actor import Actor
from slipstream.collect.actors import ActorsCollector
from slipstream.collect.batched import BatchedPlan, make_batched
from slipstream.collect.collector import Collector
from slipstream.collect.local import LocalCollector
from slipstream.collect.rollout import empty_rollout
from slipstream.contracts import Array, EnvSpec, Vector
from slipstream.envs.registry import EnvChoice, parse
from slipstream.envs.rewards import discount
from slipstream.errors import ConfigError, MachineError, SlipstreamError
from slipstream.plan import PYTHON_ENVS, Facts, Plan, check_batch, describe_change, make_plan
from slipstream.play.assignments import Players, fixed_assignments
from slipstream.play.games import one_sided_error
from slipstream.policies.design import Design
from slipstream.settings import PlanSettings, Settings
from slipstream.system import machine
from slipstream.system.slab import Field
from slipstream.training.curriculum import make_curriculum
from slipstream.training.opponents import FixedOpponent, Matchmaker, Opponents
from slipstream.training.parts import Learner, TrainingParts
from slipstream.vector.make import choose_native, make_vector, spread_vector

if TYPE_CHECKING:
    from slipstream.algorithms.sac_critics import SACEngine
    from slipstream.collect.device import DeviceCollector

SAC_PASSES = 8
"""Forward passes of a network of the actor's size in one gradient step of SAC; PPO has one."""
Notify = Callable[[str], Any]
"""Receives a notice for the user."""


def choose_env(name: str, settings: Settings, **code: Any) -> EnvChoice:
    """Return the environment of a run: its name with the settings that concern it and the fields of `UserCode`."""
    gamma = getattr(settings, settings.algorithm).gamma
    return EnvChoice(name, settings.env, settings.rewards, gamma=gamma, deadline_s=settings.plan.deadline_s, **code)


def build(
    choice: EnvChoice,
    settings: Settings,
    before: Mapping[str, Any] | None = None,
    opponents: Callable[[EnvSpec, Design], Opponents] | None = None,
) -> TrainingParts:
    """Make the parts of a run.

    `before` is the applied plan of a run that is resumed. `opponents` makes the opponents of a league; without it the
    run plays against `settings.opponent` or itself.
    """
    env = probe_env(choice, settings)
    spec, design, resumed = env.spec, env.design, before is not None
    settings = apply_half_life(settings, spec.step_seconds, choice.name)
    schedules = Schedules(settings)
    has_opponents = bool(settings.opponent or opponents)
    if has_opponents and not spec.competitive:
        raise one_sided_error(spec)

    plan = make_plan(settings.plan, _plan_facts(choice, settings, env, has_opponents, resumed), before)
    batch = check_batch(settings, plan.envs.applied, spec.agents, recurrent=design.state_size > 0)
    envs, on_device = plan.envs.applied, plan.collector.applied == "device"
    game, _ = parse(choice.name)
    stages = game.stages if game is not None else ()
    curriculum = None if on_device else make_curriculum(settings.curriculum, spec.tasks, stages)
    rivals = opponents(spec, design) if opponents else FixedOpponent(settings.opponent, spec, envs)
    matchmaker = Matchmaker(spec, envs, settings.seed, rivals, curriculum)
    learner: Learner
    collector: Collector
    tracker: EpisodeTracker | None = None
    if on_device:
        learner, collector = _make_on_device(choice, settings, env, plan, resumed)
        tracker = collector
    else:
        learner = _make_learner(choice, settings, spec, design, plan, resumed)
        collector = _make_collector(
            replace(choice, native=plan.native.applied), settings, plan, env, rivals.sampled, learner.notices.append
        )
    if notice := describe_half_life(settings, spec.step_seconds):
        learner.notices.append(notice)
    if resumed and env.forgetful:
        learner.notices.append(
            f"`{env.forgetful[0]}` is reset in the running episodes, so this run may differ from an uninterrupted one: "
            "what an agent remembers is saved only in `state`."
        )
    return TrainingParts(
        choice=choice,
        spec=spec,
        plan=plan,
        design=design,
        learner=learner,
        schedules=schedules,
        episodes=EpisodeStats(envs * spec.agents, versus=settings.opponent is not None, tracker=tracker),
        matchmaker=matchmaker,
        collector=collector,
        batch=batch,
        reward_hacking=RewardHackingDetector(steady=curriculum is None),
        rollback=_make_rollback(settings),
    )


def _make_on_device(
    choice: EnvChoice, settings: Settings, env: EnvProbe, plan: Plan, resumed: bool
) -> tuple[PPO, DeviceCollector]:
    """Make the learner and the collector of a run whose environments and policy are all on one device."""
    from slipstream.collect.device import DeviceCollector
    from slipstream.engines.device_engine import DeviceEngine
    from slipstream.engines.torch_backends import set_backend_flags
    from slipstream.policies.device_net import DeviceNet
    from slipstream.vector.device import DeviceVector

    set_backend_flags(plan)
    spec, design, began = env.spec, env.design, time.perf_counter()
    envs, device, graphs = plan.envs.applied, plan.device.applied, plan.graphs.applied
    rows = envs * spec.agents
    params_and_stats, start = _initial_weights(settings, spec, design, resumed)
    net = DeviceNet(design, device, plan.precision.applied)
    params = design.split_params_and_stats(params_and_stats)[0]
    engine = DeviceEngine(net, params, graphs=graphs, absences=spec.absences)
    learner = PPO(settings, design, params_and_stats, engine, rows, start=start)
    vector = DeviceVector(make_vector(choice, envs, seed=settings.seed), device)  # type: ignore[arg-type]
    collector = DeviceCollector(vector, net, steps=settings.ppo.rollout, seed=settings.seed, graphs=graphs)
    if graphs:
        try:
            collector.prepare()
            engine.prepare(collector.rollout, settings.ppo, learner.coefficients())
        except RuntimeError as error:
            raise MachineError(
                f"The GPU cannot capture this run: {str(error).splitlines()[0]}",
                "lower plan.envs or ppo.rollout if memory ran out; plan.graphs=false runs without graphs",
            ) from error
        learner.notices.append(f"compiled and captured for the GPU in {time.perf_counter() - began:.1f} s")
    return learner, collector


class EnvProbe(NamedTuple):
    """What one environment shows about all of them."""

    spec: EnvSpec
    design: Design
    memory: int
    """Size of the largest recurrent state of policy and opponents; 0 if there is no opponent."""
    state_fields: dict[str, Field]
    """The fields of an actor's snapshot, for one env."""
    on_device: bool
    """Whether the game can run on a GPU."""
    forgetful: list[str]
    """Own agents whose memory no checkpoint holds."""


def probe_env(choice: EnvChoice, settings: Settings) -> EnvProbe:
    """Make one environment and fill a rollout of one step with it.

    This compiles the kernels that workers need, and finds a broken environment or opponent before workers start.
    """
    vector = make_vector(choice, 1, seed=settings.seed)
    try:
        spec = vector.spec
        design = Design(spec.obs, spec.action, settings.policy, value=settings.algorithm == "ppo")
        roster = Players(lambda name: load_agent(name, spec, choice))
        opponents = [settings.opponent] if settings.opponent else []
        if settings.evaluation.opponent and settings.every.evaluate and spec.competitive:
            load_agent(settings.evaluation.opponent, spec, choice)  # a missing file or permission is found now
        own = [load_agent(name, spec, choice) for name in opponents]
        state_sizes = [agent.memory(0).shape[1] for agent in own]
        if settings.ppo.teacher and is_own(settings.ppo.teacher):
            own.append(load_agent(settings.ppo.teacher, spec, choice))
        forgetful = [agent.name for agent in own if isinstance(agent, OwnAgent) and agent.hides_memory]
        more = [*settings.league.anchors, *(task.partition(" vs ")[2] for task in settings.curriculum.tasks)]
        for name in more:
            with contextlib.suppress(SlipstreamError):  # league and curriculum report agents that cannot be loaded
                state_sizes.append(load_agent(name, spec, choice).memory(0).shape[1])
        memory = max([design.state_size, *state_sizes]) if spec.competitive else 0
        actor = Actor(vector, design, seed=settings.seed, roster=roster, memory=memory)
        if design.policy.network is not None:  # it may divide by a norm of its weights
            actor.policy.load(design.initial_params_and_stats(settings.seed))
        roster.add(opponents)
        assignments = fixed_assignments(spec, 1, bool(opponents))
        actor.reset(assignments)
        state_fields = {name: Field(value.shape, value.dtype.name) for name, value in actor.snapshot().items()}
        actor.fill(empty_rollout(spec, design, 1, 1), assignments)
    finally:
        vector.close()
    return EnvProbe(spec, design, memory, state_fields, hasattr(vector, "on_device"), forgetful)


def apply_half_life(settings: Settings, step_seconds: float, env: str) -> Settings:
    """Return the settings with gamma set from `rewards.half_life_s`, if it is given."""
    rewards = settings.rewards
    if rewards.potential and f"{settings.algorithm}.gamma" in settings.schedules:
        raise ConfigError(
            f"`rewards.potential` needs a constant discount, but `{settings.algorithm}.gamma` has a schedule.",
            "remove one of the two",
        )
    if rewards.half_life_s is None:
        return settings
    gamma = {"gamma": discount(rewards, step_seconds, 0.0, env)}
    return settings.model_copy(
        update={"ppo": settings.ppo.model_copy(update=gamma), "sac": settings.sac.model_copy(update=gamma)}
    )


def describe_half_life(settings: Settings, step_seconds: float) -> str:
    """Return a notice with the gamma that follows from `rewards.half_life_s`; empty without it."""
    half_life, gamma = settings.rewards.half_life_s, getattr(settings, settings.algorithm).gamma
    if half_life is None:
        return ""
    why = f"rewards.half_life_s: {half_life:g} s in steps of {step_seconds:.3g} s"
    return f"{settings.algorithm}.gamma = {gamma:.6g}  ({why})"


def _plan_facts(choice: EnvChoice, settings: Settings, env: EnvProbe, has_opponents: bool, resumed: bool) -> Facts:
    """Return the facts about env, network and machine from which the plan follows."""
    off_policy, design = settings.algorithm == "sac", env.design
    native: dict[str, Any] = {}
    if not resumed and settings.plan.native is not False:  # a resumed run keeps its decision
        share = max(1, (settings.plan.envs or PYTHON_ENVS) // machine.cores())
        why, gain = choose_native(choice, env.spec, share, late=design.state_size == 0)
        native = {"no_native": why, "native_gain": gain}
    return Facts(
        cores=machine.cores(),
        native=parse(choice.name)[0] is not None,
        minibatch=settings.sac.batch_size if off_policy else settings.ppo.minibatch,
        weights=design.weights.size * (SAC_PASSES if off_policy else 1),
        replay=off_policy,
        needs_torch=needs_torch(settings, design),
        images=not env.spec.obs.plain,
        off_device=off_device(settings, env, terms=bool(choice.terms), opponents=has_opponents),
        **machine_facts(settings.plan),
        **native,
    )


def machine_facts(requested: PlanSettings) -> dict[str, Any]:
    """Return the facts about the machine that the plan needs; a GPU is searched for only if it may be used."""
    gpu = machine.gpu_name() if requested.device != "cpu" or requested.inference == "cuda" else ""
    return {"gpu": gpu, "bf16": bool(gpu) and machine.gpu_bf16(), "posix": os.name == "posix"}


def needs_torch(settings: Settings, design: Design) -> str:
    """Return what in this run the fused kernels do not support; empty if they support everything."""
    unsupported = {
        "`policy.network`": design.policy.network is not None,
        "an observation with images or tokens": not design.fused,
        "`policy.burn_in` over tokens": design.tokens is not None and settings.policy.burn_in > 0,
        "`ppo.optimiser` = muon": settings.algorithm == "ppo" and settings.ppo.optimiser == "muon",
        "`ppo.contrastive_coef`": settings.algorithm == "ppo"
        and (settings.ppo.contrastive_coef > 0 or "ppo.contrastive_coef" in settings.schedules),
    }
    return next((what for what, requested in unsupported.items() if requested), "")


def off_device(settings: Settings, env: EnvProbe, *, terms: bool, opponents: bool) -> str:
    """Why a run cannot be played and trained on one device; empty: it can.

    `terms` is whether there are user-defined reward terms, `opponents` whether any agent besides the policy plays.
    """
    ppo, policy = settings.ppo, settings.policy

    def used(name: str) -> bool:
        return bool(getattr(ppo, name)) or f"ppo.{name}" in settings.schedules

    reasons = {
        "this game has no GPU version": not env.on_device,
        "`algorithm` = sac runs on the CPU only": settings.algorithm != "ppo",
        "user-defined reward terms run on the CPU only": terms,
        "opponents play on the CPU": opponents,
        "`curriculum.kind` needs a collector on the CPU": settings.curriculum.kind != "none",
        "action masks are not supported on the device": env.spec.action.masked,
        "mixed actions are not supported on the device": env.spec.action.kind == "mixed",
        "image and token observations are not supported on the device": not env.design.obs.plain,
        "`policy.network` is not supported on the device": policy.network is not None,
        "`policy.layer_norm` is not supported on the device": policy.layer_norm,
        "`policy.memory` = gru is not supported on the device": policy.memory == "gru",
        "`policy.burn_in` is not supported on the device": bool(policy.memory != "none" and policy.burn_in),
        "`ppo.optimiser` = muon needs the torch learner": ppo.optimiser == "muon",
        "`ppo.contrastive_coef` needs the torch learner": used("contrastive_coef"),
        "`ppo.vtrace_rho` is not supported on the device": used("vtrace_rho"),
        "`ppo.priority_alpha` is not supported on the device": used("priority_alpha"),
        "`ppo.reference` is not supported on the device": ppo.reference is not None,
        "`ppo.teacher` is not supported on the device": ppo.teacher is not None,
        "`ppo.demos` is not supported on the device": ppo.demos is not None,
    }
    return next((why for why, applies in reasons.items() if applies), "")


def _initial_weights(
    settings: Settings, spec: EnvSpec, design: Design, resumed: bool
) -> tuple[Array, Mapping[str, Array]]:
    """Return the initial weights and normaliser, and the statistics that come with `settings.start`.

    A resumed run loads its weights from a checkpoint later, so `start` is not read again.
    """
    params_and_stats = design.initial_params_and_stats(settings.seed)
    if settings.start and not resumed:
        return params_and_stats, load_start(settings.start, design, params_and_stats, spec)
    return params_and_stats, {}


def _make_learner(
    choice: EnvChoice, settings: Settings, spec: EnvSpec, design: Design, plan: Plan, resumed: bool
) -> Learner:
    rows = plan.envs.applied * spec.agents
    params_and_stats, start = _initial_weights(settings, spec, design, resumed)
    if settings.algorithm == "sac":
        return _make_sac(settings, design, plan, rows, params_and_stats, start)
    notices: list[str] = []
    engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan, notices.append)
    reference = settings.ppo.reference
    kl_reference = make_kl_reference(reference, spec, design, rows) if reference else None
    imitation_loss = make_imitation_loss(settings, choice, spec, design, rows)
    ppo = PPO(settings, design, params_and_stats, engine, rows, kl_reference, imitation_loss, start)
    ppo.notices = notices  # the engine appends to the same list during training
    return ppo


def _make_sac(
    settings: Settings, design: Design, plan: Plan, rows: int, params_and_stats: Array, start: Mapping[str, Array]
) -> Learner:
    if settings.ppo.teacher or settings.ppo.demos:
        raise ConfigError(
            "SAC does not support `ppo.teacher` and `ppo.demos`.",
            "start from a clone with --start run:DIR and draw from demos with sac.demos=DIR",
        )
    from slipstream.algorithms.sac import SAC

    if plan.learner.applied == "torch":
        from slipstream.engines.torch_backends import set_backend_flags

        set_backend_flags(plan)
    engine = make_sac_engine(settings, design, params_and_stats, plan.learner.applied, plan.threads.applied)
    return SAC(settings, design, params_and_stats, engine, rows, start)


def make_engine(
    settings: Settings, design: Design, params: Array, plan: Plan, notify: Notify = warnings.warn
) -> Engine:
    """Make the engine that takes the gradient steps, according to the plan.

    Where the engine cannot do what the plan requests, it changes the plan and calls `notify`.
    """
    if plan.learner.applied == "torch":
        from slipstream.engines.torch_backends import set_backend_flags
        from slipstream.engines.torch_engine import TorchEngine

        set_backend_flags(plan)
        return TorchEngine(
            design,
            params,
            plan.threads.applied,
            micro_batch=plan.micro_batch.applied,
            checkpointing=plan.activation_checkpointing.applied,
            optimiser=settings.ppo.optimiser,
            device=plan.device.applied,
            precision=plan.precision.applied,
            compiled=plan.compile.applied,
            compile_mode=plan.compile_mode.applied,
            report_fallback=partial(fall_back, plan, notify),
            graphs=bool(plan.graphs.applied),
            offload=plan.storage.applied == "host",
        )
    from slipstream.engines.fused_engine import FusedEngine

    return FusedEngine(design, params, plan.threads.applied)


def make_sac_engine(
    settings: Settings, design: Design, params_and_stats: Array, learner: str, threads: int
) -> SACEngine:
    """Build the engine that takes SAC's gradient steps: the fused kernels, or torch."""
    from slipstream.algorithms.sac import check_supported
    from slipstream.algorithms.sac_critics import CriticEnsemble

    check_supported(settings, design)
    critics = CriticEnsemble(design, settings.sac)
    if learner == "torch":
        from slipstream.engines.sac_torch import TorchSAC

        return TorchSAC(design, critics, params_and_stats, threads, settings.seed)
    from slipstream.engines.sac_fused import FusedSAC

    return FusedSAC(design, critics, params_and_stats, settings.sac.batch_size, threads, settings.seed)


def fall_back(plan: Plan, notify: Notify, name: str, applied: Any, why: str) -> None:
    """Change a switch of the plan to what is applied instead, and notify the user once."""
    if getattr(plan, name).applied != applied:
        plan.fall_back(name, applied, why)
        notify(describe_change(name, applied, why))


def _make_collector(
    choice: EnvChoice, settings: Settings, plan: Plan, env: EnvProbe, sampled: bool, notify: Notify
) -> Collector:
    """Make the collector of the plan; if its workers cannot be started, fall back to the local collector."""
    spec, design, seed = env.spec, env.design, settings.seed
    envs, lag, deadline_s = plan.envs.applied, plan.lag.applied, settings.plan.deadline_s
    steps = settings.ppo.rollout if settings.algorithm == "ppo" else settings.sac.rollout
    roster = Players(lambda name: load_agent(name, spec, choice, sampled))
    state_fields = {
        name: Field((envs * spec.agents if name.startswith("row/") else envs, *field.shape[1:]), field.dtype)
        for name, field in env.state_fields.items()
    }
    if plan.collector.applied == "batched":
        obs_on_device = plan.storage.applied == "device" and plan.learner.applied == "torch"
        batched_plan = BatchedPlan(
            envs=envs,
            workers=plan.workers.applied,
            groups=plan.groups.applied,
            vector=plan.vector.applied,
            steps=steps,
            lag=lag,
            zero_copy=plan.zero_copy.applied,
            deadline_s=deadline_s,
            inference=plan.inference.applied,
            precision=plan.precision.applied,
            graphs=plan.graphs.applied,
            pinned=plan.pinned.applied,
            mirror=plan.device.applied if obs_on_device else "",
        )
        return make_batched(
            choice,
            spec,
            design,
            roster,
            state_fields,
            batched_plan,
            seed=seed,
            memory=env.memory,
            fall_back=partial(fall_back, plan, notify),
        )
    if plan.collector.applied == "actors":
        try:
            return ActorsCollector(
                choice,
                spec,
                design,
                state_fields,
                envs=envs,
                workers=plan.workers.applied,
                steps=steps,
                lag=lag,
                seed=seed,
                sampled=sampled,
                memory=env.memory,
                deadline_s=deadline_s,
                zero_copy=plan.zero_copy.applied,
            )
        except OSError as error:
            fall_back(plan, notify, "collector", "local", f"workers cannot be started: {error}")
            fall_back(plan, notify, "workers", 1, "the local collector steps all envs in this process")
    vector = _make_local_vector(choice, settings, plan, notify)
    return LocalCollector(Actor(vector, design, seed=seed, roster=roster, memory=env.memory), steps, lag)


def _make_local_vector(choice: EnvChoice, settings: Settings, plan: Plan, notify: Notify) -> Vector:
    """Make the vector of the local collector; if its workers cannot be started, a serial one."""
    envs, kind, workers = plan.envs.applied, plan.vector.applied, plan.workers.applied
    try:
        return spread_vector(choice, envs, kind, workers, seed=settings.seed, deadline_s=settings.plan.deadline_s)
    except OSError as error:
        fall_back(plan, notify, "vector", "serial", f"workers cannot be started: {error}")
        fall_back(plan, notify, "workers", 1, "plan.vector is serial")
        return make_vector(choice, envs, seed=settings.seed)


def _make_rollback(settings: Settings) -> Rollback | None:
    evaluation = settings.evaluation
    return Rollback(evaluation.rollback_after) if evaluation.rollback_after and settings.every.evaluate else None
