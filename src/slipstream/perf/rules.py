"""The rules of a diagnosis: what must have been measured for each, what it says then, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from slipstream.perf.derived_measures import (  # fmt: skip
    PPO_REUSE,
    PPO_UPDATES,
    SAC_ENSEMBLE,
    SAC_UPDATES,
    activation_share,
    batching,
    hours_to_full,
    lost_speed,
    of_env,
    overlapped,
    planned_mib,
    speedup,
    sync_shares,
    wasted_times,
    workers_of,
)
from slipstream.perf.measurements import Findings

VERDICTS = (
    "leak", "oversubscribed", "wasted-updates", "sync-bound", "reset-bound", "transfer-bound", "activation-bound",
    "env-bound", "inference-bound", "learner-bound", "balanced",
)  # fmt: skip
"""Causes before symptoms: the verdict is the first of these that a rule gives."""
HALF = 0.5
WORTH = 0.2
"""A cause counts when it takes this share of all time."""
DEAR = 0.15
"""An activation function is dear when ReLU would save this share of all time."""
WAITING = 0.2
"""Share of their time that workers may wait for a core."""
DAYS = 2
"""Memory that is full within so many days is a leak."""
FULL = 0.8
"""Share of the memory that a run may plan to use."""
SLOWER = 0.2
LOOP = 50
"""How often a line may run in a step before it is called a loop."""


@dataclass(frozen=True)
class Rule:
    """What can be wrong, how that is seen, and what to do then."""

    name: str
    verdict: str
    """What it makes the verdict; empty: it only advises."""
    symptom: str
    """What a user sees."""
    when: str
    """Its condition in words."""
    holds: Callable[[Findings], bool]
    told: Callable[[Findings], str]
    """What was measured, in words."""
    do: str
    gain: Callable[[Findings], float]
    """How many times faster training would be, by the measured shares."""
    command: Callable[[Findings], str]
    """What to type next."""


@dataclass(frozen=True)
class Advice:
    """A rule that holds."""

    rule: str
    verdict: str
    told: str
    do: str
    gain: float
    command: str


def apply_rules(found: Findings) -> tuple[str, list[Advice]]:
    """The verdict, and all advice, that which gains most first."""
    advice = [
        Advice(rule.name, rule.verdict, rule.told(found), rule.do, max(1.0, rule.gain(found)), rule.command(found))
        for rule in RULES
        if rule.holds(found)
    ]
    given = {one.verdict for one in advice}
    verdict = next(word for word in VERDICTS if word in given or word == "balanced")
    explains = [one for one in advice if one.verdict == verdict]
    rest = sorted((one for one in advice if one not in explains), key=lambda one: -one.gain)
    return verdict, sorted(explains, key=lambda one: -one.gain) + rest


def _next(verb: str, *words: str, **flags: Any) -> Callable[[Findings], str]:
    """What to type next: a verb with settings and flags, or the call where an env was given in Python."""

    def say(found: Findings) -> str:
        settings = [word.format(cores=found.limits.cores, envs=4 * int(found.train.plan["envs"])) for word in words]
        head, _, made = found.name.partition(":")
        if head != "python":
            told = [f"--set {word}" for word in settings] + [f"--{name} {value}" for name, value in flags.items()]
            return " ".join([f"slipstream {verb} {found.name}", *told])
        pairs = [word.partition("=") for word in settings]
        told = [f"{key.replace('.', '__')}={yaml.safe_load(value)!r}" for key, _, value in pairs]
        return f"slipstream.{verb}({', '.join([made, *told, *(f'{key}={value!r}' for key, value in flags.items())])})"

    return say


def _less_learning(found: Findings) -> str:
    """Half as much of what makes the learner slow."""
    if found.train.algorithm == "sac":
        return _next("diagnose", f"sac.updates_per_step={found.train.updates_per_step / 2:.3g}")(found)
    epochs = round(found.train.update_to_data)
    return _next("diagnose", f"ppo.epochs={epochs // 2}" if epochs > 1 else "policy.hidden=[64,64]")(found)


RULES = (
    Rule(
        name="leaking-env",
        verdict="leak",
        symptom="memory grows until the run is killed",
        when=(f"a step of the env keeps bytes for ever, enough to fill this machine's memory within {DAYS} days"),
        holds=lambda f: f.env is not None and hours_to_full(f, f.env.leak_bytes) < 24 * DAYS,
        told=(
            lambda f: (
                f"each step keeps {of_env(f, 'leak_bytes'):,.0f} bytes for ever, at {of_env(f, 'leak_at')}: memory is "
                f"full after {hours_to_full(f, of_env(f, 'leak_bytes')):.1f} h"
            )
        ),
        do="let go of what that line collects, in `reset` at the latest",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="growing-memory",
        verdict="leak",
        symptom="memory grows, and the env by itself keeps nothing",
        when=(
            "memory of the run and its workers rises steadily, enough to fill this machine's within "
            f"{DAYS} days; or it rose by a fifth over the past of a run"
        ),
        holds=(
            lambda f: (
                (f.train.growth_bytes > 0 and hours_to_full(f, f.train.growth_bytes) < 24 * DAYS)
                or (f.past is not None and f.past.growth.sure and f.past.growth.change > 0.2)
            )
        ),
        told=(
            lambda f: (
                f"memory rises by {f.train.growth_bytes:,.0f} bytes per step"
                if f.train.growth_bytes or f.past is None
                else f"memory rose from {f.past.growth.first:,.0f} to {f.past.growth.last:,.0f} MiB over the run"
            )
        ),
        do="look for what is kept outside of Python: libraries, pictures, open files",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="memory", seconds=60),
    ),
    Rule(
        name="more-workers-than-cores",
        verdict="oversubscribed",
        symptom="more workers, and no more speed",
        when=f"there are more workers than usable cores, and they wait for one more than {WAITING:.0%} of the time",
        holds=lambda f: workers_of(f) > f.limits.cores and not 0 <= f.train.waiting_share < WAITING,
        told=(
            lambda f: (
                f"{workers_of(f)} workers share {f.limits.cores} cores"
                + (f" and wait for one {f.train.waiting_share:.0%} of the time" if f.train.waiting_share >= 0 else "")
            )
        ),
        do="let each core have one worker; each takes memory too",
        gain=lambda f: f.train.fewer_rate / max(f.train.rate, 1e-9),
        command=_next("train", "plan.workers={cores}"),
    ),
    Rule(
        name="more-threads-than-cores",
        verdict="oversubscribed",
        symptom="a learner with many threads is slower",
        when="the learner has more threads than there are usable cores",
        holds=lambda f: f.train.plan["threads"] > f.limits.cores,
        told=lambda f: f"the learner has {f.train.plan['threads']} threads for {f.limits.cores} cores",
        do="leave plan.threads to the plan",
        gain=lambda f: 1.0,
        command=_next("train", "plan.threads={cores}"),
    ),
    Rule(
        name="updates-without-data",
        verdict="wasted-updates",
        symptom=("slow although the env is quick; the rate falls with every setting that learns more"),
        when=(
            f"learning takes 40% of the time, and PPO takes more than {PPO_UPDATES:g} gradient steps per step or "
            f"uses each more than {PPO_REUSE:g} times (SAC: more than {SAC_UPDATES:g} gradient steps per step, 20 with "
            f"{SAC_ENSEMBLE} critics)"
        ),
        holds=lambda f: f.train.shares.learn >= 0.4 and wasted_times(f) > 1.0,
        told=(
            lambda f: (
                f"{f.train.updates_per_step:.3g} gradient steps for every step, each step used "
                f"{f.train.update_to_data:.3g} times: {wasted_times(f):.3g} times what is usual"
            )
        ),
        do="collect more before learning: longer rollouts, larger minibatches, fewer epochs, fewer updates per step",
        gain=lambda f: speedup(f.train.shares.learn, max(1.0, wasted_times(f))),
        command=(
            lambda f: (
                _next("diagnose", "sac.updates_per_step=1")(f)
                if f.train.algorithm == "sac"
                else _next("diagnose", "ppo.rollout=128", "ppo.minibatch=1024", "ppo.epochs=4")(f)
            )
        ),
    ),
    Rule(
        name="numbers-out-of-tensors-in-step",
        verdict="sync-bound",
        symptom="an env or reward written in torch is slow",
        when=f"taking numbers out of tensors one by one in `step` costs {WORTH:.0%} of all time",
        holds=lambda f: sync_shares(f)[0] >= WORTH,
        told=(
            lambda f: (
                f"a step takes {of_env(f, 'syncs'):,.0f} numbers out of tensors one by one (.item(), float(t), "
                f"`if t`): {of_env(f, 'sync_share'):.0%} of its time"
            )
        ),
        do="compute on whole tensors, or in NumPy, and take numbers out once",
        gain=lambda f: speedup(sync_shares(f)[0]),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="numbers-out-of-tensors-in-updates",
        verdict="sync-bound",
        symptom="the GPU idles between small pieces of work",
        when=f"waiting for numbers out of tensors in the learner costs {WORTH:.0%} of all time",
        holds=lambda f: sync_shares(f)[1] >= WORTH,
        told=lambda f: f"an update waits for {f.learn.syncs if f.learn else 0:,.1f} numbers",
        do="add numbers up on the device and read them once per iteration",
        gain=lambda f: speedup(sync_shares(f)[1]),
        command=_next("diagnose", test="learn"),
    ),
    Rule(
        name="slow-reset",
        verdict="reset-bound",
        symptom="short episodes make training slow",
        when=f"`reset` takes {WORTH:.0%} of all time",
        holds=lambda f: of_env(f, "reset_share") * f.train.shares.env >= WORTH,
        told=(
            lambda f: (
                f"a reset takes {f.env.reset.p50_us / 1e3 if f.env and f.env.reset else 0:.3g} ms, "
                f"{of_env(f, 'reset_share'):.0%} of the env's time"
            )
        ),
        do="load and build once, in `__init__`; let `reset` only put state back; longer episodes help too",
        gain=lambda f: speedup(of_env(f, "reset_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="copies-to-the-gpu",
        verdict="transfer-bound",
        symptom="the GPU waits for data",
        when=f"copies take {WORTH:.0%} of an iteration",
        holds=lambda f: f.gpu is not None and f.gpu.transfer_share >= WORTH,
        told=lambda f: f"copies to the GPU take {f.gpu.transfer_share if f.gpu else 0:.0%} of an iteration",
        do="page-lock what is copied, keep the rollout on the device, keep pixels as bytes",
        gain=lambda f: speedup(f.gpu.transfer_share if f.gpu else 0.0),
        command=_next("train", "plan.pinned=true", "plan.storage=device"),
    ),
    Rule(
        name="dear-activations",
        verdict="activation-bound",
        symptom="a wide network with tanh is slow on a CPU",
        when=f"ReLU instead of the policy's own activation would save {DEAR:.0%} of all time",
        holds=lambda f: activation_share(f) >= DEAR,
        told=(
            lambda f: (
                f"ReLU would save {activation_share(f):.0%} of all time against "
                f"{f.learn.activation if f.learn else 'the activation'}"
            )
        ),
        do="use policy.activation=relu; it changes what is learned, so look at the score too",
        gain=lambda f: speedup(activation_share(f)),
        command=_next("diagnose", "policy.activation=relu"),
    ),
    Rule(
        name="python-loop-in-step",
        verdict="env-bound",
        symptom="the env is slow, and it is written in Python",
        when=(
            f"the env takes half of the time, one of its lines runs {LOOP} times in a step or more, and lines of "
            f"Python take at least {WORTH:.0%} of the step"
        ),
        holds=lambda f: (
            f.train.shares.env >= HALF and of_env(f, "hottest_times") >= LOOP and of_env(f, "python_share") >= WORTH
        ),
        told=(
            lambda f: (
                f"{of_env(f, 'hottest')} runs {of_env(f, 'hottest_times'):,.0f} times in a step; Python itself takes "
                f"at least {of_env(f, 'python_share'):.0%} of it"
            )
        ),
        do="vectorise that loop (NumPy, Numba) before adding processes: they only share its cost out over cores",
        gain=lambda f: speedup(of_env(f, "python_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="checkers-inside",
        verdict="env-bound",
        symptom="a Gymnasium env of your own wrappers is slower than it should be",
        when=(
            "Gymnasium's checking wrappers are inside of yours, where they cannot be taken off, and the env takes half "
            "of the time"
        ),
        holds=lambda f: f.train.shares.env >= HALF and of_env(f, "checkers") > 0,
        told=lambda f: f"{of_env(f, 'checkers'):.0f} checking wrappers run at every step",
        do="make the inner env with gymnasium.make(..., disable_env_checker=True)",
        gain=lambda f: speedup(of_env(f, "wrapper_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="idle-cores",
        verdict="env-bound",
        symptom="one core works, the others do nothing",
        when="environments take half of the time, and there are fewer workers than usable cores",
        holds=(
            lambda f: (
                f.train.shares.env >= HALF
                and f.train.plan["collector"] != "device"
                and min(workers_of(f), f.train.plan["envs"]) < f.limits.cores
            )
        ),
        told=lambda f: f"{workers_of(f)} of {f.limits.cores} cores step environments",
        do="let every core step some: `actors`, with one worker per core",
        gain=lambda f: speedup(f.train.shares.env + f.train.shares.inference, f.limits.cores / workers_of(f)),
        command=_next("train", "plan.collector=actors", "plan.workers={cores}", "plan.envs={envs}"),
    ),
    Rule(
        name="slow-env",
        verdict="env-bound",
        symptom="steps/s hardly change whatever the network",
        when="environments take half of the time",
        holds=lambda f: f.train.shares.env >= HALF,
        told=(
            lambda f: (
                f"environments take {f.train.shares.env:.0%} of the time"
                + (
                    f"; this machine could step {f.env_limit:,.0f} times per second at most"
                    if f.env is not None
                    else ""
                )
            )
        ),
        do="a quicker env is the only way: profile its `step`, repeat actions, drop what is not learned from",
        gain=lambda f: speedup(f.train.shares.env, 2.0),
        command=_next("diagnose", "env.action_repeat=2"),
    ),
    Rule(
        name="small-inference-batches",
        verdict="inference-bound",
        symptom="the policy is asked for few rows at a time",
        when="acting takes half of the time, and a row costs half as much in larger batches",
        holds=lambda f: f.train.shares.inference >= HALF and batching(f) >= 2.0,
        told=lambda f: f"a row costs {batching(f):.1f} times as much as in larger batches",
        do="more envs per worker",
        gain=lambda f: speedup(f.train.shares.inference, batching(f)),
        command=_next("train", "plan.envs={envs}"),
    ),
    Rule(
        name="slow-policy",
        verdict="inference-bound",
        symptom="steps/s fall as the network grows",
        when="acting takes half of the time",
        holds=lambda f: f.train.shares.inference >= HALF,
        told=lambda f: f"the policy takes {f.train.shares.inference:.0%} of the time",
        do="a smaller network, no memory, or a GPU where there is one",
        gain=lambda f: speedup(f.train.shares.inference, 2.0),
        command=_next("diagnose", "policy.hidden=[64,64]"),
    ),
    Rule(
        name="torch-by-choice",
        verdict="learner-bound",
        symptom="plan.learner=torch is slow on a CPU",
        when="learning takes half of the time by torch, which was asked for, and the fused learner is a fifth faster",
        holds=lambda f: f.train.shares.learn >= HALF and f.learn is not None and f.learn.fused_ratio > 1.2,
        told=lambda f: f"the fused learner is {f.learn.fused_ratio if f.learn else 1:.2g} times as fast as torch here",
        do="leave plan.learner=auto",
        gain=lambda f: speedup(f.train.shares.learn, f.learn.fused_ratio if f.learn else 1.0),
        command=_next("train", "plan.learner=auto"),
    ),
    Rule(
        name="slow-learner",
        verdict="learner-bound",
        symptom="steps/s hardly change whatever the env",
        when="learning takes half of the time",
        holds=lambda f: f.train.shares.learn >= HALF,
        told=(
            lambda f: (
                f"learning takes {f.train.shares.learn:.0%} of the time: {f.train.update_to_data:.3g} uses of each "
                "step" + (f", {f.learn.samples_per_second:,.0f} samples/s" if f.learn is not None else "")
            )
        ),
        do="fewer epochs, larger minibatches or a smaller network, as far as the score allows",
        gain=lambda f: speedup(f.train.shares.learn, 2.0),
        command=_less_learning,
    ),
    Rule(
        name="no-overlap",
        verdict="",
        symptom="learner and envs take turns",
        when=("rollouts wait for the learner and the learner for rollouts, though cores are free meanwhile"),
        holds=(
            lambda f: (
                f.train.plan["collector"] == "actors"
                and not f.train.plan["lag"]
                and f.limits.cores > 1
                and f.train.shares.learn >= WORTH
                and overlapped(f) > 1.1
            )
        ),
        told=(
            lambda f: (
                f"collecting takes {f.train.shares.env + f.train.shares.inference:.0%}, learning "
                f"{f.train.shares.learn:.0%} of the time, one after the other"
            )
        ),
        do="collect the next rollout while learning; its data is one update old",
        gain=overlapped,
        command=_next("train", "plan.lag=1"),
    ),
    Rule(
        name="slowing-down",
        verdict="",
        symptom="steps/s fall while a run goes on",
        when="the rate falls steadily, by a fifth or more",
        holds=lambda f: lost_speed(f) >= SLOWER,
        told=lambda f: f"the rate has fallen by {lost_speed(f):.0%}",
        do="look for something that grows: a list that is never cleared, episodes that get longer; or a hot machine",
        gain=lambda f: 1.0 / (1.0 - min(lost_speed(f), 0.9)),
        command=_next("diagnose", seconds=60),
    ),
    Rule(
        name="memory-short",
        verdict="",
        symptom="the machine swaps, or the run is killed at its start",
        when=f"the parts of the run add up to more than {FULL:.0%} of the memory",
        holds=lambda f: planned_mib(f) > FULL * f.limits.memory_mib,
        told=lambda f: f"the run plans {planned_mib(f):,.0f} MiB of {f.limits.memory_mib:,.0f}",
        do="fewer envs, shorter rollouts or a smaller sac.buffer_size",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="memory"),
    ),
)
