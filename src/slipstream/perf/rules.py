"""The rules of a diagnosis: the condition, the verdict, the advice and the predicted gain of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.perf.measurements import Findings
from slipstream.perf.next_command import next_command

VERDICTS = (
    "leak",
    "oversubscribed",
    "wasted-updates",
    "sync-bound",
    "reset-bound",
    "transfer-bound",
    "activation-bound",
    "env-bound",
    "inference-bound",
    "learner-bound",
    "balanced",
)
"""Causes before symptoms: the verdict is the first of these that a rule gives."""
HALF = 0.5
WORTH = 0.2
"""A cause counts if it takes this share of all time."""
SLOW_ACTIVATION = 0.15
"""An activation function is slow if ReLU would save this share of all time."""
WAITING = 0.2
"""Share of their time that workers may wait for a core."""
DAYS = 2
"""Growth that fills the memory within this many days is a leak."""
FULL = 0.8
"""Share of the memory that a run may use."""
SLOWER = 0.2
LOOP = 50
"""A line that runs this often in a step counts as a loop."""
MAX_SHARE = 0.98
"""The largest share that a prediction removes."""
PPO_UPDATES, PPO_REUSE, PPO_USUAL = 0.25, 20.0, 0.1
"""Gradient steps per step and uses of a sample far above published PPO settings, and usual gradient steps."""
SAC_UPDATES, SAC_ENSEMBLE = 4.0, 8
"""Gradient steps per step above which SAC needs a large ensemble of critics."""


@dataclass(frozen=True)
class Rule:
    """A possible problem, its condition and the advice."""

    name: str
    verdict: str
    """The verdict of the rule; empty: advice only."""
    symptom: str
    """The symptom that a user sees."""
    when: str
    """The condition as text."""
    holds: Callable[[Findings], bool]
    measured: Callable[[Findings], str]
    """The measurement as text."""
    do: str
    gain: Callable[[Findings], float]
    """The predicted speed-up, from the measured shares."""
    command: Callable[[Findings], str]
    """The next command."""


@dataclass(frozen=True)
class Advice:
    """The advice of a rule whose condition holds."""

    rule: str
    verdict: str
    told: str
    do: str
    gain: float
    command: str


def apply_rules(found: Findings) -> tuple[str, list[Advice]]:
    """The verdict and all advice, by verdict and gain."""
    advice = [
        Advice(rule.name, rule.verdict, rule.measured(found), rule.do, max(1.0, rule.gain(found)), rule.command(found))
        for rule in RULES
        if rule.holds(found)
    ]
    given = {one.verdict for one in advice}
    verdict = next(word for word in VERDICTS if word in given or word == "balanced")
    explains = [one for one in advice if one.verdict == verdict]
    rest = sorted((one for one in advice if one not in explains), key=lambda one: -one.gain)
    return verdict, sorted(explains, key=lambda one: -one.gain) + rest


def speedup(share: float, factor: float = float("inf")) -> float:
    """Amdahl's law: the speed-up of the whole if a share of it gets `factor` times faster."""
    share = min(max(share, 0.0), MAX_SHARE)
    return 1.0 / (1.0 - share + share / factor)


def hours_to_full(found: Findings, per_step: float) -> float:
    """Hours of training until memory is full."""
    each_hour = per_step * found.train.rate * 3600 / 2**20
    return found.limits.memory_mib / each_hour if each_hour > 0 else float("inf")


def of_env(found: Findings, name: str) -> Any:
    """A measurement of the environment; 0 if it was not measured."""
    return getattr(found.env, name) if found.env is not None else 0.0


def sync_shares(found: Findings) -> tuple[float, float]:
    """Shares of all time that reading numbers from tensors takes: in environments, and in the learner."""
    learner = found.learn.sync_share if found.learn is not None else 0.0
    return of_env(found, "sync_share") * found.train.shares.env, learner * found.train.shares.learn


def activation_share(found: Findings) -> float:
    """The share of all time that ReLU would save."""
    shares = found.train.shares
    acting = found.inference.activation_share if found.inference is not None else 0.0
    learning = found.learn.activation_share if found.learn is not None else 0.0
    return acting * shares.inference + learning * shares.learn


def wasted_times(found: Findings) -> float:
    """Gradient steps relative to the usual number; below 1: not too many."""
    train = found.train
    if train.algorithm == "sac":
        usual = 20.0 if found.settings.get("sac.critics", 2) >= SAC_ENSEMBLE else 1.0
        return train.updates_per_step / usual if train.updates_per_step > max(SAC_UPDATES, usual) else 0.0
    too_often = train.updates_per_step > PPO_UPDATES
    too_much = train.update_to_data > PPO_REUSE
    return max(too_often * train.updates_per_step / PPO_USUAL, too_much * train.update_to_data / 4.0)


def workers_of(found: Findings) -> int:
    """Processes or threads that step environments."""
    return int(found.train.plan["workers"])


def planned_mib(found: Findings) -> float:
    """The memory of all parts of a training."""
    return sum(part.budget_mib for part in found.memory if (part.stage, part.name) == ("train", "in all"))


def overlapped(found: Findings) -> float:
    """The speed-up of an iteration if learning and collecting overlap on all cores."""
    shares, plan, cores = found.train.shares, found.train.plan, found.limits.cores
    collect, learn = shares.env + shares.inference, shares.learn
    work = (collect * min(workers_of(found), cores) + learn * min(int(plan["threads"]), cores)) / cores
    return 1.0 / max(work + shares.rest, learn + shares.rest, 0.01)


def lost_speed(found: Findings) -> float:
    """The share of its speed that training has lost, in the past of a run or during the measurement."""
    trends = [found.train.drift] + ([found.past.drift] if found.past is not None else [])
    return max((-trend.change for trend in trends if trend.sure), default=0.0)


def batching(found: Findings) -> float:
    """The cost of a row in the batch of training relative to the largest batch."""
    if found.inference is None:
        return 1.0
    inference = found.inference
    return inference.per_row_us(inference.rows) / max(inference.per_row_us(max(inference.by_batch)), 1e-9)


def _next(verb: str, *words: str, **flags: Any) -> Callable[[Findings], str]:
    """The next command: a verb with settings and flags, on top of what the user gave."""

    def text(found: Findings) -> str:
        sizes = {"cores": found.limits.cores, "envs": 4 * int(found.train.plan["envs"])}
        pairs = [word.format(**sizes).partition("=") for word in words]
        return next_command(verb, found.name, found.given, {key: value for key, _, value in pairs}, flags)

    return text


def _less_learning(found: Findings) -> str:
    """The next command with half of the learning."""
    if found.train.algorithm == "sac":
        return _next("diagnose", f"sac.updates_per_step={found.train.updates_per_step / 2:.3g}")(found)
    epochs = round(found.train.update_to_data)
    return _next("diagnose", f"ppo.epochs={epochs // 2}" if epochs > 1 else "policy.hidden=[64,64]")(found)


RULES = (
    Rule(
        name="leaking-env",
        verdict="leak",
        symptom="memory grows until the run is killed",
        when=(f"a step of the env never frees some bytes, enough to fill this machine's memory within {DAYS} days"),
        holds=lambda f: f.env is not None and hours_to_full(f, f.env.leak_bytes) < 24 * DAYS,
        measured=(
            lambda f: (
                f"each step leaks {of_env(f, 'leak_bytes'):,.0f} bytes, at {of_env(f, 'leak_at')}: memory is "
                f"full after {hours_to_full(f, of_env(f, 'leak_bytes')):.1f} h"
            )
        ),
        do="free what that line collects, in `reset` at the latest",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="growing-memory",
        verdict="leak",
        symptom="memory grows, and the env alone does not leak",
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
        measured=(
            lambda f: (
                f"memory rises by {f.train.growth_bytes:,.0f} bytes per step"
                if f.train.growth_bytes or f.past is None
                else f"memory rose from {f.past.growth.first:,.0f} to {f.past.growth.last:,.0f} MiB over the run"
            )
        ),
        do="check for memory outside of Python: libraries, images, open files",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="memory", seconds=60),
    ),
    Rule(
        name="more-workers-than-cores",
        verdict="oversubscribed",
        symptom="more workers do not increase the speed",
        when=f"there are more workers than usable cores, and they wait for one more than {WAITING:.0%} of the time",
        holds=lambda f: workers_of(f) > f.limits.cores and not 0 <= f.train.waiting_share < WAITING,
        measured=(
            lambda f: (
                f"{workers_of(f)} workers share {f.limits.cores} cores"
                + (f" and wait for one {f.train.waiting_share:.0%} of the time" if f.train.waiting_share >= 0 else "")
            )
        ),
        do="use one worker per core; each worker uses memory too",
        gain=lambda f: f.train.fewer_rate / max(f.train.rate, 1e-9),
        command=_next("train", "plan.workers={cores}"),
    ),
    Rule(
        name="more-threads-than-cores",
        verdict="oversubscribed",
        symptom="a learner with many threads is slower",
        when="the learner has more threads than there are usable cores",
        holds=lambda f: f.train.plan["threads"] > f.limits.cores,
        measured=lambda f: f"the learner has {f.train.plan['threads']} threads for {f.limits.cores} cores",
        do="leave plan.threads to the plan",
        gain=lambda f: 1.0,
        command=_next("train", "plan.threads={cores}"),
    ),
    Rule(
        name="updates-without-data",
        verdict="wasted-updates",
        symptom=("slow although the env is fast; the rate falls with every setting that adds updates"),
        when=(
            f"learning takes 40% of the time, and PPO takes more than {PPO_UPDATES:g} gradient steps per step or "
            f"uses each step more than {PPO_REUSE:g} times (SAC: more than {SAC_UPDATES:g} gradient steps per step, 20 "
            f"with {SAC_ENSEMBLE} critics)"
        ),
        holds=lambda f: f.train.shares.learn >= 0.4 and wasted_times(f) > 1.0,
        measured=(
            lambda f: (
                f"{f.train.updates_per_step:.3g} gradient steps for every step, each step used "
                f"{f.train.update_to_data:.3g} times: {wasted_times(f):.3g} times the usual number"
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
        when=f"reading single numbers from tensors in `step` takes {WORTH:.0%} of all time",
        holds=lambda f: sync_shares(f)[0] >= WORTH,
        measured=(
            lambda f: (
                f"a step reads {of_env(f, 'syncs'):,.0f} single numbers from tensors (.item(), float(t), "
                f"`if t`): {of_env(f, 'sync_share'):.0%} of its time"
            )
        ),
        do="compute on whole tensors, or in NumPy, and read numbers once",
        gain=lambda f: speedup(sync_shares(f)[0]),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="numbers-out-of-tensors-in-updates",
        verdict="sync-bound",
        symptom="the GPU is idle between small kernels",
        when=f"waiting for single numbers from tensors in the learner takes {WORTH:.0%} of all time",
        holds=lambda f: sync_shares(f)[1] >= WORTH,
        measured=lambda f: f"an update waits for {f.learn.syncs if f.learn else 0:,.1f} numbers",
        do="accumulate on the device and read once per iteration",
        gain=lambda f: speedup(sync_shares(f)[1]),
        command=_next("diagnose", test="learn"),
    ),
    Rule(
        name="slow-reset",
        verdict="reset-bound",
        symptom="short episodes make training slow",
        when=f"`reset` takes {WORTH:.0%} of all time",
        holds=lambda f: of_env(f, "reset_share") * f.train.shares.env >= WORTH,
        measured=(
            lambda f: (
                f"a reset takes {f.env.reset.p50_us / 1e3 if f.env and f.env.reset else 0:.3g} ms, "
                f"{of_env(f, 'reset_share'):.0%} of the env's time"
            )
        ),
        do="load and build once, in `__init__`; let `reset` only restore state; longer episodes help too",
        gain=lambda f: speedup(of_env(f, "reset_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="copies-to-the-gpu",
        verdict="transfer-bound",
        symptom="the GPU waits for data",
        when=f"copies take {WORTH:.0%} of an iteration",
        holds=lambda f: f.gpu is not None and f.gpu.transfer_share >= WORTH,
        measured=lambda f: f"copies to the GPU take {f.gpu.transfer_share if f.gpu else 0:.0%} of an iteration",
        do="use pinned memory, keep the rollout on the device, keep pixels as bytes",
        gain=lambda f: speedup(f.gpu.transfer_share if f.gpu else 0.0),
        command=_next("train", "plan.pinned=true", "plan.storage=device"),
    ),
    Rule(
        name="dear-activations",
        verdict="activation-bound",
        symptom="a wide network with tanh is slow on a CPU",
        when=f"ReLU instead of the policy's own activation would save {SLOW_ACTIVATION:.0%} of all time",
        holds=lambda f: activation_share(f) >= SLOW_ACTIVATION,
        measured=(
            lambda f: (
                f"ReLU would save {activation_share(f):.0%} of all time compared with "
                f"{f.learn.activation if f.learn else 'the activation'}"
            )
        ),
        do="use policy.activation=relu; it changes learning, so compare the score too",
        gain=lambda f: speedup(activation_share(f)),
        command=_next("diagnose", "policy.activation=relu"),
    ),
    Rule(
        name="python-loop-in-step",
        verdict="env-bound",
        symptom="the env is slow and written in Python",
        when=(
            f"the env takes half of the time, one of its lines runs {LOOP} times in a step or more, and lines of "
            f"Python take at least {WORTH:.0%} of the step"
        ),
        holds=lambda f: (
            f.train.shares.env >= HALF and of_env(f, "hottest_times") >= LOOP and of_env(f, "python_share") >= WORTH
        ),
        measured=(
            lambda f: (
                f"{of_env(f, 'hottest')} runs {of_env(f, 'hottest_times'):,.0f} times in a step; Python itself takes "
                f"at least {of_env(f, 'python_share'):.0%} of it"
            )
        ),
        do="vectorise that loop (NumPy, Numba) before adding processes, which only distribute its cost over cores",
        gain=lambda f: speedup(of_env(f, "python_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="checkers-inside",
        verdict="env-bound",
        symptom="a Gymnasium env with your own wrappers is slow",
        when=(
            "Gymnasium's checking wrappers are inside of yours, where they cannot be removed, and the env takes half "
            "of the time"
        ),
        holds=lambda f: f.train.shares.env >= HALF and of_env(f, "checkers") > 0,
        measured=lambda f: f"{of_env(f, 'checkers'):.0f} checking wrappers run at every step",
        do="make the inner env with gymnasium.make(..., disable_env_checker=True)",
        gain=lambda f: speedup(of_env(f, "wrapper_share") * f.train.shares.env),
        command=_next("diagnose", test="env"),
    ),
    Rule(
        name="idle-cores",
        verdict="env-bound",
        symptom="one core is busy, the others are idle",
        when="environments take half of the time, and there are fewer workers than usable cores",
        holds=(
            lambda f: (
                f.train.shares.env >= HALF
                and f.train.plan["collector"] != "device"
                and min(workers_of(f), f.train.plan["envs"]) < f.limits.cores
            )
        ),
        measured=lambda f: f"{workers_of(f)} of {f.limits.cores} cores step environments",
        do="use all cores: `actors` with one worker per core",
        gain=lambda f: speedup(f.train.shares.env + f.train.shares.inference, f.limits.cores / workers_of(f)),
        command=_next("train", "plan.collector=actors", "plan.workers={cores}", "plan.envs={envs}"),
    ),
    Rule(
        name="slow-env",
        verdict="env-bound",
        symptom="steps/s hardly depend on the network",
        when="environments take half of the time",
        holds=lambda f: f.train.shares.env >= HALF,
        measured=(
            lambda f: (
                f"environments take {f.train.shares.env:.0%} of the time"
                + (f"; this machine can step at most {f.env_limit:,.0f} times per second" if f.env is not None else "")
            )
        ),
        do="make the env faster: profile its `step`, repeat actions, drop unused observations",
        gain=lambda f: speedup(f.train.shares.env, 2.0),
        command=_next("diagnose", "env.action_repeat=2"),
    ),
    Rule(
        name="small-inference-batches",
        verdict="inference-bound",
        symptom="inference runs on few rows at a time",
        when="inference takes half of the time, and a row costs half as much in larger batches",
        holds=lambda f: f.train.shares.inference >= HALF and batching(f) >= 2.0,
        measured=lambda f: f"a row costs {batching(f):.1f} times as much as in larger batches",
        do="more envs per worker",
        gain=lambda f: speedup(f.train.shares.inference, batching(f)),
        command=_next("train", "plan.envs={envs}"),
    ),
    Rule(
        name="slow-policy",
        verdict="inference-bound",
        symptom="steps/s fall as the network grows",
        when="inference takes half of the time",
        holds=lambda f: f.train.shares.inference >= HALF,
        measured=lambda f: f"inference takes {f.train.shares.inference:.0%} of the time",
        do="use a smaller network, no memory, or a GPU",
        gain=lambda f: speedup(f.train.shares.inference, 2.0),
        command=_next("diagnose", "policy.hidden=[64,64]"),
    ),
    Rule(
        name="torch-by-choice",
        verdict="learner-bound",
        symptom="plan.learner=torch is slow on a CPU",
        when="learning takes half of the time with plan.learner=torch, and the fused learner is a fifth faster",
        holds=lambda f: f.train.shares.learn >= HALF and f.learn is not None and f.learn.fused_ratio > 1.2,
        measured=lambda f: (
            f"the fused learner is {f.learn.fused_ratio if f.learn else 1:.2g} times as fast as torch here"
        ),
        do="use plan.learner=auto",
        gain=lambda f: speedup(f.train.shares.learn, f.learn.fused_ratio if f.learn else 1.0),
        command=_next("train", "plan.learner=auto"),
    ),
    Rule(
        name="slow-learner",
        verdict="learner-bound",
        symptom="steps/s hardly depend on the env",
        when="learning takes half of the time",
        holds=lambda f: f.train.shares.learn >= HALF,
        measured=(
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
        symptom="learner and envs wait for each other",
        when=("rollouts wait for the learner and the learner for rollouts while cores are idle"),
        holds=(
            lambda f: (
                f.train.plan["collector"] == "actors"
                and not f.train.plan["lag"]
                and f.limits.cores > 1
                and f.train.shares.learn >= WORTH
                and overlapped(f) > 1.1
            )
        ),
        measured=(
            lambda f: (
                f"collecting takes {f.train.shares.env + f.train.shares.inference:.0%}, learning "
                f"{f.train.shares.learn:.0%} of the time, one after the other"
            )
        ),
        do="collect the next rollout while learning; its policy is one update old",
        gain=overlapped,
        command=_next("train", "plan.lag=1"),
    ),
    Rule(
        name="slowing-down",
        verdict="",
        symptom="steps/s fall during a run",
        when="the rate falls steadily, by a fifth or more",
        holds=lambda f: lost_speed(f) >= SLOWER,
        measured=lambda f: f"the rate has fallen by {lost_speed(f):.0%}",
        do="check for something that grows: a list that is never cleared, longer episodes; or thermal throttling",
        gain=lambda f: 1.0 / (1.0 - min(lost_speed(f), 0.9)),
        command=_next("diagnose", seconds=60),
    ),
    Rule(
        name="memory-short",
        verdict="",
        symptom="the machine swaps, or the run is killed at the start",
        when=f"the parts of the run add up to more than {FULL:.0%} of the memory",
        holds=lambda f: planned_mib(f) > FULL * f.limits.memory_mib,
        measured=lambda f: f"the run needs {planned_mib(f):,.0f} MiB of {f.limits.memory_mib:,.0f}",
        do="fewer envs, shorter rollouts or a smaller sac.buffer_size",
        gain=lambda f: 1.0,
        command=_next("diagnose", test="memory"),
    ),
)
