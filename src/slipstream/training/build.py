"""From settings to parts: environments, policy, collector and learner of a run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from slipstream.agents.specs import load_agent
from slipstream.algorithms.engine import Engine
from slipstream.algorithms.episode_stats import EpisodeStats
from slipstream.algorithms.imitation_loss import make_imitation_loss
from slipstream.algorithms.kl_reference import make_kl_reference
from slipstream.algorithms.ppo import PPO
from slipstream.algorithms.reward_hacking import RewardHackingDetector
from slipstream.algorithms.rollback import Rollback
from slipstream.algorithms.schedules import Schedules
from slipstream.algorithms.warm_start import load_start
from slipstream.collect.actor import Actor
from slipstream.collect.actors import ActorsCollector
from slipstream.collect.batched_groups import BatchedPlan, make_batched
from slipstream.collect.local import LocalCollector
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import Array, EnvSpec, Vector
from slipstream.envs.registry import EnvChoice, parse
from slipstream.envs.rewards import discount
from slipstream.errors import ConfigError, MachineError
from slipstream.plan import PYTHON_ENVS, Facts, Plan, changed, check_batch, make_plan
from slipstream.play.assignments import FinishedGame, OpponentRoster, fixed_assignments
from slipstream.play.games import nobody_to_play
from slipstream.policies.design import Design
from slipstream.settings import PlanSettings, Settings
from slipstream.system import machine
from slipstream.system.slab import Field
from slipstream.training.curriculum import make_curriculum
from slipstream.training.device_support import off_device
from slipstream.training.opponents import FixedOpponent, Matchmaker, Opponents
from slipstream.vector.make import choose_native, make_vector, spread_vector

PASSES = 8
"""About how many networks of the actor's size SAC runs through in a gradient step, against PPO's one."""


class Learner(Protocol):
    """What turns rollouts into better weights."""

    section: str
    """The settings it reads."""
    now: Any
    """Those settings as they are at this moment."""
    params_and_stats: Array
    """Weights and normaliser: what acts."""
    notices: list[str]
    engine: Any
    """What holds the weights and their optimiser: `snapshot` and `restore`."""

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Learn from a rollout that began at `steps`; return its number of samples and what is to be logged."""

    def gradient_statistics(self) -> dict[str, float]:
        """Facts about the last gradient of each layer."""

    def dormant(self) -> dict[str, float]:
        """The share of units that hardly move, by layer."""

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all that a resumed run needs."""

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""


class Collector(Protocol):
    """How rollouts are made is hidden behind this; the learner never knows."""

    lag: int

    @property
    def failed(self) -> dict[int, str]:
        """Frozen players that failed, and how."""

    def publish(self, version: int, params_and_stats: Array, seats: Array, players: Sequence[str] = ()) -> None:
        """Give the weights and normaliser of a version and the seats of games begun with them; let more players in."""

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""

    def ahead(self, version: int) -> None:
        """Begin with rollout number `version` now if that can be done beside something else; its weights are there."""

    def collect(self, version: int) -> Any:
        """Return rollout number `version`, made with weights number `version - lag`."""

    def matches(self, version: int) -> list[FinishedGame]:
        """The games that ended in rollout number `version`."""

    def snapshot(self, version: int) -> Mapping[str, Array]:
        """What rollout number `version`, the next one to be trained on, starts from."""

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call."""

    def seconds(self) -> tuple[float, float]:
        """Time spent in environments and in inference so far."""

    def close(self) -> None:
        """End everything that was started."""


@dataclass
class TrainingParts:
    """What a run is made of."""

    choice: EnvChoice
    spec: EnvSpec
    plan: Plan
    design: Design
    learner: Learner
    schedules: Schedules
    episodes: EpisodeStats
    matches: Matchmaker
    collector: Collector
    batch: int
    alarm: RewardHackingDetector
    gate: Rollback | None = None

    def publish(self, version: int) -> None:
        """Hand the newest weights over as this version, with the seats of the games that begin under it."""
        self.collector.publish(version, self.learner.params_and_stats, self.matches.seats, self.matches.newcomers())

    def close(self) -> None:
        """End everything that was started."""
        self.collector.close()
        self.matches.opponents.close()


def choose_env(name: str, settings: Settings, **more: Any) -> EnvChoice:
    """The environment of a run."""
    gamma = getattr(settings, settings.algorithm).gamma
    return EnvChoice(name, settings.env, settings.rewards, gamma=gamma, **more)


def settle_discount(settings: Settings, step_seconds: float, env: str) -> Settings:
    """The settings with the discounts that `rewards.half_life_s` stands for, where it is given."""
    rewards = settings.rewards
    if rewards.potential and f"{settings.algorithm}.gamma" in settings.schedules:
        raise ConfigError(
            f"`rewards.potential` pays by one discount, and `{settings.algorithm}.gamma` has a schedule.",
            "drop one of the two",
        )
    if rewards.half_life_s is None:
        return settings
    gamma = {"gamma": discount(rewards, step_seconds, 0.0, env)}
    return settings.model_copy(
        update={"ppo": settings.ppo.model_copy(update=gamma), "sac": settings.sac.model_copy(update=gamma)}
    )


def told_discount(settings: Settings, step_seconds: float) -> str:
    """What `rewards.half_life_s` makes of the discount, in words; empty without one."""
    half_life, gamma = settings.rewards.half_life_s, getattr(settings, settings.algorithm).gamma
    if half_life is None:
        return ""
    why = f"rewards.half_life_s: {half_life:g} s in steps of {step_seconds:.3g} s"
    return f"{settings.algorithm}.gamma = {gamma:.6g}  ({why})"


def build(
    choice: EnvChoice, settings: Settings, before: Mapping[str, Any] | None = None,
    opponents: Callable[[EnvSpec, Design], Opponents] | None = None,
) -> TrainingParts:  # fmt: skip
    """Make the parts of a run; `before` is the applied plan of a run that goes on."""
    spec, design, memory, fields, native = probe_env(choice, settings)
    settings = settle_discount(settings, spec.step_seconds, choice.name)
    schedules = Schedules(settings)
    if (settings.opponent or opponents) and not spec.competitive:
        raise nobody_to_play(spec)
    replay = settings.algorithm == "sac"
    facts = Facts(
        cores=machine.cores(), native=parse(choice.name)[0] is not None,
        minibatch=settings.sac.batch_size if replay else settings.ppo.minibatch,
        weights=design.weights.size * (PASSES if replay else 1), replay=replay,
        needs_torch=needs_torch(settings, design), images=not spec.obs.plain, **machine_facts(settings.plan),
        **_native_facts(choice, settings, spec, resumed=before is not None), off_device=off_device(
            settings, spec, design, game=native, terms=bool(choice.terms),
            rivals=bool(settings.opponent or opponents),
        ),
    )  # fmt: skip
    plan = make_plan(settings.plan, facts, before)
    envs = plan.envs.applied
    batch = check_batch(settings, envs, spec.agents)
    if plan.collector.applied == "device":
        return _on_device(choice, settings, spec, design, plan, schedules, batch, episode_start=before is None)
    learner = _learner(choice, settings, spec, design, plan, episode_start=before is None)
    if said := told_discount(settings, spec.step_seconds):
        learner.notices.append(said)
    game, _ = parse(choice.name)
    curriculum = make_curriculum(settings.curriculum, spec.tasks, game.stages if game is not None else ())
    rivals = opponents(spec, design) if opponents else FixedOpponent(settings.opponent, spec, envs)
    matches = Matchmaker(spec, envs, settings.seed, rivals, curriculum)
    stepped = replace(choice, native=plan.native.applied)
    collector = _collector(
        stepped, settings, plan, spec, design, fields, rivals.sampled, memory, learner.notices.append
    )
    episodes = EpisodeStats(envs * spec.agents, versus=settings.opponent is not None)
    alarm = RewardHackingDetector(steady=curriculum is None)
    gate = (
        Rollback(settings.evaluation.rollback_after)
        if settings.evaluation.rollback_after and settings.every.evaluate
        else None
    )
    return TrainingParts(
        choice, spec, plan, design, learner, schedules, episodes, matches, collector, batch, alarm, gate
    )


def _on_device(
    choice: EnvChoice, settings: Settings, spec: EnvSpec, design: Design, plan: Plan, schedules: Schedules, batch: int,
    episode_start: bool,
) -> TrainingParts:  # fmt: skip
    """The parts of a run that lives on one device."""
    from slipstream.collect.device import DeviceCollector
    from slipstream.engines.device_engine import DeviceEngine
    from slipstream.engines.torch_backends import set_backend_flags
    from slipstream.policies.device_net import DeviceNet
    from slipstream.vector.device import DeviceVector

    set_backend_flags(plan)
    envs, rows, device = plan.envs.applied, plan.envs.applied * spec.agents, plan.device.applied
    params_and_stats = design.initial_params_and_stats(settings.seed)
    start = load_start(settings.start, design, params_and_stats, spec) if settings.start and episode_start else {}
    net = DeviceNet(design, device, plan.precision.applied)
    began, graphs = time.perf_counter(), plan.graphs.applied
    params = design.split_params_and_stats(params_and_stats)[0]
    engine = DeviceEngine(net, params, graphs=graphs, absences=spec.absences)
    learner = PPO(settings, design, params_and_stats, engine, rows, start=start)
    if said := told_discount(settings, spec.step_seconds):
        learner.notices.append(said)
    game = DeviceVector(make_vector(choice, envs, seed=settings.seed), device)  # type: ignore[arg-type]
    collector = DeviceCollector(game, net, steps=settings.ppo.rollout, seed=settings.seed, graphs=graphs)
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
    episodes = EpisodeStats(rows, versus=False, tracker=collector)
    matches = Matchmaker(spec, envs, settings.seed, FixedOpponent(None, spec, envs), None)
    gate = (
        Rollback(settings.evaluation.rollback_after)
        if settings.evaluation.rollback_after and settings.every.evaluate
        else None
    )
    return TrainingParts(
        choice, spec, plan, design, learner, schedules, episodes, matches, collector, batch,
        RewardHackingDetector(steady=True), gate,
    )  # fmt: skip


def probe_env(choice: EnvChoice, settings: Settings) -> tuple[EnvSpec, Design, int, dict[str, Field], bool]:
    """Make one environment, play one step of it, and read off its facts, the design of its policy and what is kept.

    The last of them is whether the game can be played on a GPU.

    This compiles what workers need, once, and finds a broken environment or opponent before anything is started.
    """
    vector = make_vector(choice, 1, seed=settings.seed)
    try:
        spec = vector.spec
        design = Design(spec.obs, spec.action, settings.policy, value=settings.algorithm == "ppo")
        roster = OpponentRoster(lambda name: load_agent(name, spec, choice))
        rivals = [settings.opponent] if settings.opponent else []
        remembered = [load_agent(name, spec, choice).memory(0).shape[1] for name in rivals]
        memory = max([design.state_size, *remembered]) if spec.competitive else 0
        actor = Actor(vector, design, seed=settings.seed, roster=roster, memory=memory)
        roster.add(rivals)
        seats = fixed_assignments(spec, 1, bool(rivals))
        actor.reset(seats)
        fields = {name: Field(value.shape, value.dtype.name) for name, value in actor.snapshot().items()}
        actor.fill(empty_rollout(spec, design, 1, 1), seats)
    finally:
        vector.close()
    return spec, design, memory, fields, hasattr(vector, "on_device")


def _native_facts(choice: EnvChoice, settings: Settings, spec: EnvSpec, resumed: bool) -> dict[str, Any]:
    """What the plan has to know about a vector env of the env's own; a run that goes on has decided."""
    if resumed or settings.plan.native is False:
        return {}
    share = max(1, (settings.plan.envs or PYTHON_ENVS) // machine.cores())
    why, gain = choose_native(choice, spec, share, late=settings.policy.memory == "none")
    return {"no_native": why, "native_gain": gain}


def machine_facts(wanted: PlanSettings) -> dict[str, Any]:
    """What the plan has to know about the machine; a GPU is looked for only where it may be used."""
    looked_for = wanted.device != "cpu" or wanted.inference == "cuda"
    gpu = machine.gpu_name() if looked_for else ""
    return {"gpu": gpu, "bf16": bool(gpu) and machine.gpu_bf16(), "posix": os.name == "posix"}


def needs_torch(settings: Settings, design: Design) -> str:
    """What of this run the fused kernels cannot do; empty: nothing."""
    wants = {
        "an observation with images or tokens": not design.fused,
        "`policy.burn_in` over tokens": design.tokens is not None and settings.policy.burn_in > 0,
        "`ppo.optimiser` = muon": settings.algorithm == "ppo" and settings.ppo.optimiser == "muon",
        "`ppo.contrastive_coef`": settings.algorithm == "ppo"
        and (settings.ppo.contrastive_coef > 0 or "ppo.contrastive_coef" in settings.schedules),
    }
    return next((what for what, wanted in wants.items() if wanted), "")


def _learner(
    choice: EnvChoice, settings: Settings, spec: EnvSpec, design: Design, plan: Plan, episode_start: bool
) -> Learner:
    """What learns; a fresh one begins as `start`, one that goes on gets its weights from a checkpoint."""
    rows, threads = plan.envs.applied * spec.agents, plan.threads.applied
    params_and_stats = design.initial_params_and_stats(settings.seed)
    start = load_start(settings.start, design, params_and_stats, spec) if settings.start and episode_start else {}
    if settings.algorithm == "sac":
        if settings.ppo.teacher or settings.ppo.demos:
            raise ConfigError(
                "SAC does not imitate a teacher or minibatches of demos: `ppo.teacher` and `ppo.demos` are PPO's.",
                "start from a clone with --start run:DIR and draw from demos with sac.demos=DIR",
            )
        from slipstream.algorithms.sac import SAC

        if plan.learner.applied == "torch":
            from slipstream.engines.torch_backends import set_backend_flags

            set_backend_flags(plan)
        return SAC(settings, design, params_and_stats, rows, threads, plan.learner.applied, start)
    wanted, said = settings.ppo, list[str]()
    engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan, said.append)
    anchor = make_kl_reference(wanted.reference, spec, design, rows) if wanted.reference else None
    ppo = PPO(
        settings,
        design,
        params_and_stats,
        engine,
        rows,
        anchor,
        make_imitation_loss(settings, choice, spec, design, rows),
        start,
    )
    ppo.notices = said  # one list, so that what the engine says in the midst of training is heard too
    return ppo


def mend(plan: Plan, say: Callable[[str], None], name: str, applied: Any, why: str) -> None:
    """Put down in the plan what is done instead, and say it, once."""
    if getattr(plan, name).applied != applied:
        plan.mend(name, applied, why)
        say(changed(name, applied, why))


def make_engine(
    settings: Settings, design: Design, params: Array, plan: Plan, say: Callable[[str], None] = warnings.warn
) -> Engine:
    """What takes the gradient steps, as the plan says; where it cannot, the plan is mended and `say` told."""
    if plan.learner.applied == "torch":
        from slipstream.engines.torch_backends import set_backend_flags
        from slipstream.engines.torch_engine import TorchEngine

        set_backend_flags(plan)
        return TorchEngine(
            design, params, plan.threads.applied, micro_batch=plan.micro_batch.applied,
            checkpointing=plan.activation_checkpointing.applied, optimiser=settings.ppo.optimiser,
            device=plan.device.applied, precision=plan.precision.applied, compiled=plan.compile.applied,
            compile_mode=plan.compile_mode.applied, report_fallback=partial(mend, plan, say),
            graphs=bool(plan.graphs.applied),
            offload=plan.storage.applied == "host",
        )  # fmt: skip
    from slipstream.engines.fused_engine import FusedEngine

    return FusedEngine(design, params, plan.threads.applied)


def _collector(
    choice: EnvChoice, settings: Settings, plan: Plan, spec: EnvSpec, design: Design, fields: dict[str, Field],
    sampled: bool, memory: int, say: Callable[[str], None],
) -> Collector:  # fmt: skip
    envs, lag = plan.envs.applied, plan.lag.applied
    steps = settings.ppo.rollout if settings.algorithm == "ppo" else settings.sac.rollout
    roster = OpponentRoster(lambda name: load_agent(name, spec, choice, sampled))
    if plan.collector.applied == "local":
        vector = _vector(choice, settings, plan, say)
        return LocalCollector(Actor(vector, design, seed=settings.seed, roster=roster, memory=memory), steps, lag)

    def sized(name: str, field: Field) -> Field:
        first = envs * spec.agents if name.startswith("row/") else envs
        return Field((first, *field.shape[1:]), field.dtype)

    state = {name: sized(name, field) for name, field in fields.items()}
    if plan.collector.applied == "batched":
        kept = plan.storage.applied == "device" and plan.learner.applied == "torch"
        how = BatchedPlan(
            envs, plan.workers.applied, plan.groups.applied, plan.vector.applied, steps, lag, plan.zero_copy.applied,
            settings.plan.deadline_s, plan.inference.applied, plan.precision.applied, plan.graphs.applied,
            plan.pinned.applied, plan.device.applied if kept else "",
        )  # fmt: skip
        return make_batched(
            choice, spec, design, roster, state, how, seed=settings.seed, memory=memory, mend=partial(mend, plan, say)
        )  # fmt: skip
    try:
        return ActorsCollector(
            choice, spec, design, state, envs=envs, workers=plan.workers.applied, steps=steps, lag=lag,
            seed=settings.seed, sampled=sampled, memory=memory, deadline_s=settings.plan.deadline_s,
            zero_copy=plan.zero_copy.applied,
        )  # fmt: skip
    except OSError as error:
        mend(plan, say, "collector", "local", f"workers cannot be started: {error}")
        mend(plan, say, "workers", 1, "local steps all envs in this process")
    return _collector(choice, settings, plan, spec, design, fields, sampled, memory, say)


def _vector(choice: EnvChoice, settings: Settings, plan: Plan, say: Callable[[str], None]) -> Vector:
    """What steps all environments for this process; where no workers can be started, one after another."""
    envs, how, workers = plan.envs.applied, plan.vector.applied, plan.workers.applied
    try:
        return spread_vector(choice, envs, how, workers, seed=settings.seed, deadline_s=settings.plan.deadline_s)
    except OSError as error:
        mend(plan, say, "vector", "serial", f"workers cannot be started: {error}")
        mend(plan, say, "workers", 1, "plan.vector is serial")
        return make_vector(choice, envs, seed=settings.seed)
