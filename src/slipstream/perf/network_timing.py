"""Timing of inference by batch size and of gradient steps, and the cost of activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from slipstream.algorithms.ppo import PPO
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.perf.machine_limits import item_us
from slipstream.perf.measurements import InferenceFindings, LearnFindings, Times
from slipstream.perf.tracing import counting_syncs
from slipstream.plan import Plan, Switch
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.fused_actor import make_actor
from slipstream.settings import Settings
from slipstream.system.rng import make_streams
from slipstream.training.build import make_engine, make_sac_engine, needs_torch
from slipstream.training.parts import Learner
from slipstream.vector.random_rollout import draw_actions

BATCHES = (1, 8, 64, 512)
ROUNDS = 3
"""Minimum repeats of a comparison."""
MINIBATCHES = 4
"""Gradient steps per synthetic rollout."""
SAC_UPDATES = 32
"""Gradient steps of SAC per timing."""


def measure_inference(design: Design, spec: EnvSpec, rows: int, seconds: float) -> InferenceFindings:
    """Time inference on synthetic rows for several batch sizes, including that of training."""
    sizes = sorted({*BATCHES, rows})
    share = seconds / (len(sizes) + 2)
    by_batch = {size: Times.of(_repeat(_acting(design, spec, size), share)) for size in sizes}
    saved = 0.0
    if design.policy.activation != "relu" and design.policy.network is None:
        works = [_acting(one, spec, rows) for one in (design, with_relu(design))]
        own, plain = _compare(works, 2 * share)
        saved = max(0.0, 1.0 - plain / own)
    return InferenceFindings(by_batch, rows, saved)


def measure_learner(settings: Settings, design: Design, spec: EnvSpec, plan: Plan, seconds: float) -> LearnFindings:
    """Time gradient steps on synthetic samples with the plan, with ReLU, and with the fused engine if possible."""
    envs = _enough_envs(settings, spec, plan)
    rollout = synthetic_rollout(spec, design, settings, envs)
    own = _learning(settings, design, spec, plan, rollout, envs)
    works, fused_at, relu_at = [own], 0, 0
    if design.policy.activation != "relu" and design.policy.network is None:
        relu_at = len(works)
        works.append(_learning(settings, with_relu(design), spec, plan, rollout, envs))
    if plan.learner.applied == "torch" and _could_be_fused(settings, design, plan):
        fused_at = len(works)
        quicker = Plan(**(vars(plan) | {"learner": Switch("auto", "fused", "compared")}))
        works.append(_learning(settings, design, spec, quicker, rollout, envs))
    updates, samples = own()
    with counting_syncs() as counted:
        own()
    taken = _compare(works, seconds)
    syncs = sum(counted.values()) / max(1, updates)
    cost = item_us(plan.device.applied) if syncs else 0.0
    update_us = taken[0] / max(1, updates) * 1e6
    return LearnFindings(
        engine=str(plan.learner.applied),
        samples_per_second=samples / taken[0],
        update_ms=update_us * 1e-3,
        activation=design.policy.activation,
        activation_share=max(0.0, 1.0 - taken[relu_at] / taken[0]) if relu_at else 0.0,
        syncs=syncs,
        sync_share=min(1.0, syncs * cost / update_us),
        gflops=6e-9 * design.weights.size * samples / taken[0],
        fused_ratio=taken[0] / taken[fused_at] if fused_at else 0.0,
    )


def with_relu(design: Design) -> Design:
    """The same policy with ReLU."""
    return Design(design.obs, design.action, design.policy.model_copy(update={"activation": "relu"}), design.value)


def synthetic_rollout(spec: EnvSpec, design: Design, settings: Settings, envs: int) -> Rollout:
    """A rollout of the right shape with random values."""
    random = np.random.default_rng(0)
    steps = settings.ppo.rollout if settings.algorithm == "ppo" else SAC_UPDATES
    rollout = empty_rollout(spec, design, steps, envs)
    rows = envs * spec.agents
    rollout.obs[:] = _draw_obs(spec, rollout.obs.shape, random)
    rollout.mask[:], rollout.active[:] = 1, 1
    for t in range(steps):
        rollout.action[t] = draw_actions(spec, rollout.mask[t], random)
    rollout.reward[:] = random.normal(0, 1, (steps, rows))
    rollout.terminated[:] = random.random((steps, rows)) < 0.01
    rollout.log_prob[:] = -1.0
    if rollout.final_obs.size:
        rollout.final_obs[:] = rollout.obs[1:]
    return rollout


def _draw_obs(spec: EnvSpec, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if spec.obs.plain:
        return random.normal(0, 1, shape).astype(np.float32)
    kinds = 8 if any(field.kind == "tokens" for field in spec.obs.fields) else 255  # a game has few token types
    drawn: Array = random.integers(0, kinds, shape).astype(np.uint8)
    spec.obs.vectors(drawn)[:] = 0.0
    return drawn


def _acting(design: Design, spec: EnvSpec, rows: int) -> Callable[[], Any]:
    """Inference on a number of rows."""
    acting = make_actor(design)
    acting.load(design.initial_params_and_stats(0))
    random = np.random.default_rng(0)
    obs = _draw_obs(spec, (rows, spec.obs.width), random)
    mask = np.ones((rows, spec.action.options), np.uint8)
    action = np.zeros((rows, spec.action.parts), spec.action.dtype)
    log_prob, value = np.zeros((2, rows), np.float32)
    states, streams = np.zeros((rows, design.state_size), np.float32), make_streams(0, "act", 0, rows)
    every = np.arange(rows)
    return lambda: acting.act(ActInputs(every, obs, mask, states, streams), ActOutputs(action, log_prob, value), True)


def _learning(
    settings: Settings, design: Design, spec: EnvSpec, plan: Plan, rollout: Rollout, envs: int
) -> Callable[[], tuple[int, int]]:
    """One update from a rollout; returns gradient steps and samples."""
    params_and_stats, rows = design.initial_params_and_stats(settings.seed), envs * spec.agents
    learner: Learner
    if settings.algorithm == "sac":
        from slipstream.algorithms.sac import SAC

        small = {
            "learning_starts": 0,
            "actor_warmup": 0,
            "buffer_size": 16_384,
            "updates_per_step": 1.0 / rows,
            "demos": None,
        }
        settings = settings.model_copy(update={"sac": settings.sac.model_copy(update=small)})
        sac_engine = make_sac_engine(settings, design, params_and_stats, plan.learner.applied, plan.threads.applied)
        learner = SAC(settings, design, params_and_stats, sac_engine, rows)
    else:
        once = {"epochs": 1, "epochs_max": 0, "reference": None, "teacher": None, "demos": None, "target_kl": 0.0}
        settings = settings.model_copy(update={"ppo": settings.ppo.model_copy(update=once)})
        engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan, lambda _: None)
        learner = PPO(settings, design, params_and_stats, engine, rows)
    taken = 0

    def learn() -> tuple[int, int]:
        nonlocal taken
        samples, row = learner.update(rollout, 0)
        if settings.algorithm == "ppo":
            return int(row["ppo/updates"]), samples
        updates, taken = row["sac/updates"] - taken, row["sac/updates"]
        return updates, updates * settings.sac.batch_size

    return learn


def _could_be_fused(settings: Settings, design: Design, plan: Plan) -> bool:
    """Whether torch learns on a CPU by choice alone."""
    chosen = plan.learner.requested == "torch" and plan.device.applied == "cpu"
    return chosen and not needs_torch(settings, design) and plan.precision.applied == "fp32"


def _enough_envs(settings: Settings, spec: EnvSpec, plan: Plan) -> int:
    """Envs for a few gradient steps, at most as many as in training."""
    if settings.algorithm == "sac":
        return 1
    wanted = MINIBATCHES * settings.ppo.minibatch
    return int(np.clip(-(-wanted // (settings.ppo.rollout * spec.agents)), 1, plan.envs.applied))


def _repeat(work: Callable[[], Any], seconds: float, least: int = 20) -> list[float]:
    """Seconds of each repeat after the first."""
    work()
    taken: list[float] = []
    began = perf_counter()
    while len(taken) < least or perf_counter() - began < seconds:
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return taken


def _compare(works: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Seconds of the fastest repeat of each function, measured in turns."""
    taken: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    began = perf_counter()
    while len(taken[0]) < ROUNDS or perf_counter() - began < seconds:
        for work, times in zip(works, taken, strict=True):
            start = perf_counter()
            work()
            times.append(perf_counter() - start)
    return [min(times) for times in taken]
