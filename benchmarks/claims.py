"""Speed claims of the source documents, and A/B measurements of each on the same kind of work.

    .venv/bin/python benchmarks/claims.py [--only workers,bf16] [--rounds 5] [--estimate]
    .venv/bin/python benchmarks/claims.py --write     write docs/claims.md from the results; measure nothing

Every comparison trains both variants (or runs both variants of a part of training) in each round, one after the other,
and uses the statistics of `slipstream bench`: medians and ratios within a round. Comparisons that share variants are
measured together. Comparisons that need a GPU are measured if there is one; `--only gpu` measures these alone. Since
they start slowly, their variants are built once in one process and take turns, and they have no score.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from claim_list import CLAIMS, DOCUMENTS, Claim
from harness import RESULTS, ROOT, Result, interleave, make_parser, read_result, run_rounds, split_names
from parts import WORKS, Rate
from recording import SLOW, play
from slipstream.api import configure
from slipstream.perf.bench import Bench, Measured, OnNotice, this_machine
from slipstream.perf.bench_report import interval, table
from slipstream.perf.comparison import EQUAL, compare, judge, median_of, ratio
from slipstream.perf.diagnose import shares_of
from slipstream.perf.timed_run import RunDescription, TimedRun, Work, measure_load
from slipstream.perf.trial import TrialRun
from slipstream.perf.variants import Variant, parse_variant
from slipstream.system.machine import cores
from slipstream.training.build import choose_env

PAGE = ROOT / "docs" / "claims.md"
CARTPOLE, SLOW_ENV = "gymnasium:CartPole-v1", "gymnasium:Slow-v0"
ALL = cores()
START_S, COMPILE_S, PART_S = 2.4, 12.0, 2.0
"""Estimates of the start of a process, of torch.compile, and of a round of a part."""


@dataclass(frozen=True)
class Group:
    """Variants that are trained in the same rounds: an env, shared settings, and the settings of each variant."""

    env: str
    seconds: float
    variants: Mapping[str, str]
    shared: tuple[str, ...] = ()
    gpu: bool = False
    modules: tuple[str, ...] = ()


HOST = "plan.device=cpu"
GROUPS = {
    "cartpole": Group(
        CARTPOLE,
        1.0,
        {
            "1 worker": "plan.collector=actors,plan.workers=1",
            f"{ALL} workers": f"plan.collector=actors,plan.workers={ALL}",
            f"{4 * ALL} workers": f"plan.collector=actors,plan.workers={4 * ALL}",
            "rollouts copied": f"plan.collector=actors,plan.workers={ALL},plan.zero_copy=false",
            "envs in this process": "plan.collector=local,plan.vector=serial",
            "envs in processes": f"plan.collector=local,plan.vector=processes,plan.workers={ALL}",
        },
        (HOST,),
    ),
    "slow": Group(
        SLOW_ENV,
        1.0,
        {
            "1 worker": "plan.collector=actors,plan.workers=1",
            f"{ALL} workers": f"plan.collector=actors,plan.workers={ALL}",
            "envs in this process": "plan.collector=local,plan.vector=serial",
            "envs in processes": f"plan.collector=local,plan.vector=processes,plan.workers={ALL}",
        },
        (HOST, "plan.envs=16", "ppo.rollout=32", "ppo.minibatch=128"),
        modules=("slow_env",),
    ),
    "envs": Group(
        CARTPOLE,
        1.0,
        {
            f"{count} env{'s' * (count > 1)}": f"plan.envs={count},ppo.rollout={2048 // count}"
            for count in (1, 8, 64, 512)
        },
        (HOST, "plan.collector=local", "ppo.minibatch=256"),
    ),
    "habits": Group(
        CARTPOLE,
        1.0,
        {
            "plain": "",
            "rollouts of 2,048, minibatches of 128, 3 epochs": "ppo.rollout=64,ppo.minibatch=128,ppo.epochs=3",
            "1 epoch": "ppo.epochs=1",
            "contrastive loss": "ppo.contrastive_coef=0.1",
            "prioritised segments, gradient and dormant-unit statistics every iteration": (
                "ppo.priority_alpha=0.6,ppo.shuffle=segments,every.gradients=1,every.dormant_units=1"
            ),
            "LSTM": "policy.memory=lstm,policy.memory_size=64",
        },
        (HOST, "plan.envs=32", "ppo.minibatch=256"),
    ),
    "bptt": Group(
        "recall:32",
        1.0,
        {
            "BPTT of 64 steps": "policy.sequence=64",
            "BPTT of 32 steps": "policy.sequence=32",
        },
        (HOST, "policy.memory=lstm", "policy.memory_size=64", "plan.envs=32", "ppo.rollout=64", "ppo.minibatch=512"),
    ),
    "pixels": Group(
        "pixels:84",
        1.2,
        {
            "fp32": "",
            "bf16": "plan.precision=bf16",
            "compiled": "plan.compile=true",
            "micro-batches of 16": "plan.micro_batch=16",
        },
        (HOST, "plan.learner=torch", "plan.envs=16", "ppo.rollout=8", "ppo.minibatch=64", "ppo.epochs=2"),
    ),
    "soccer": Group(
        "soccer",
        2.0,
        {
            "everything off": "plan.collector=local,plan.learner=torch,plan.threads=1",
            "default plan": "",
            "action repeat of 8": "env.action_repeat=8",
            "with a teacher": "ppo.teacher=scripted:rule",
        },
        (HOST,),
    ),
    "batch": Group(
        "kart",
        3.0,
        {
            "batch 16,384 by 512": "plan.envs=256,ppo.minibatch=512",
            "batch 262,144 by 32,768": "plan.envs=4096,ppo.minibatch=32768",
        },
        (HOST,),
    ),
    "sac": Group(
        "gymnasium:Pendulum-v1",
        1.0,
        {
            "1 env": "plan.envs=1",
            "8 envs": "plan.envs=8",
            "8 envs, one update per 8 steps": "plan.envs=8,sac.updates_per_step=0.125",
        },
        (HOST, "algorithm=sac", "sac.learning_starts=200", "policy.hidden=[64,64]"),
    ),
    "gpu": Group(
        "pixels:84",
        3.0,
        {
            "fp32": "plan.precision=fp32",
            "bf16": "plan.precision=bf16",
            "fp16": "plan.precision=fp16",
            "TF32": "plan.precision=tf32",
            "compiled": "plan.precision=fp32,plan.compile=true",
            "not pinned": "plan.precision=fp32,plan.pinned=false",
            "no cuDNN autotune": "plan.precision=fp32,plan.cudnn_benchmark=false",
            "observations on the host": "plan.precision=fp32,plan.storage=host",
        },
        ("plan.device=cuda", "plan.collector=batched", "plan.envs=256", "ppo.rollout=32", "ppo.minibatch=2048"),
        True,
    ),
    "gpu-kart": Group(
        "kart",
        4.0,
        {
            "batch 16,384 by 512": "plan.envs=256,ppo.minibatch=512",
            "batch 262,144 by 32,768": "plan.envs=4096,ppo.minibatch=32768",
        },
        ("plan.collector=device",),
        True,
    ),
    "gpu-soccer": Group(
        "soccer",
        4.0,
        {
            "everything off": "plan.device=cpu,plan.collector=local,plan.learner=torch,plan.threads=1",
            "default plan": "",
        },
        (),
        True,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """Two variants of a group or a part: off, then on."""

    group: str
    work: str
    off: str
    on: str


COMPARISONS = {
    "workers": Comparison("cartpole", "CartPole", "1 worker", f"{ALL} workers"),
    "workers-slow": Comparison("slow", "a Python env of 0.2 ms per step", "1 worker", f"{ALL} workers"),
    "workers-many": Comparison("cartpole", "CartPole", f"{ALL} workers", f"{4 * ALL} workers"),
    "processes": Comparison("cartpole", "CartPole, one message per step", "envs in this process", "envs in processes"),
    "processes-slow": Comparison(
        "slow", "a Python env of 0.2 ms per step, one message per step", "envs in this process", "envs in processes"
    ),
    "zero-copy": Comparison("cartpole", "CartPole", "rollouts copied", f"{ALL} workers"),
    "envs-8": Comparison("envs", "CartPole, batches of 2,048", "1 env", "8 envs"),
    "envs-64": Comparison("envs", "CartPole, batches of 2,048", "8 envs", "64 envs"),
    "envs-512": Comparison("envs", "CartPole, batches of 2,048", "64 envs", "512 envs"),
    "small-rollout": Comparison(
        "habits", "CartPole, rollouts of 4,096, 4 epochs", "plain", "rollouts of 2,048, minibatches of 128, 3 epochs"
    ),
    "epochs": Comparison("habits", "CartPole, 4 epochs", "plain", "1 epoch"),
    "contrast-off": Comparison("habits", "CartPole", "contrastive loss", "plain"),
    "extras-off": Comparison(
        "habits", "CartPole", "prioritised segments, gradient and dormant-unit statistics every iteration", "plain"
    ),
    "lstm": Comparison("habits", "CartPole", "plain", "LSTM"),
    "bptt": Comparison("bptt", "a memory game, LSTM of 64 units", "BPTT of 64 steps", "BPTT of 32 steps"),
    "bf16": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "bf16"),
    "compile": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "compiled"),
    "micro-batch": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "micro-batches of 16"),
    "all-on": Comparison("soccer", "car soccer, torch on one core against the plan", "everything off", "default plan"),
    "action-repeat": Comparison("soccer", "car soccer", "default plan", "action repeat of 8"),
    "teacher-off": Comparison("soccer", "car soccer", "with a teacher", "default plan"),
    "batch": Comparison("batch", "kart", "batch 16,384 by 512", "batch 262,144 by 32,768"),
    "sac-envs": Comparison("sac", "SAC on Pendulum, one update per step", "1 env", "8 envs"),
    "sac-as-said": Comparison("sac", "SAC on Pendulum, as claimed", "1 env", "8 envs, one update per 8 steps"),
    "loader": Comparison("loading", "cloning from memory", "by index", "DataLoader"),
    "loader-workers": Comparison("loading", "cloning from memory", "DataLoader", "DataLoader, 4 workers"),
    "index": Comparison("loading", "cloning from memory", "DataLoader", "by index"),
    "features": Comparison("caching", "a head on a frozen trunk", "encoded every epoch", "encoded once"),
    "patches": Comparison("seeing", "CLIP ViT-B", "patches of 32, 224 pixels", "patches of 16, 224 pixels"),
    "small-images": Comparison("seeing", "CLIP ViT-B", "patches of 32, 224 pixels", "patches of 32, 128 pixels"),
    "mapped": Comparison("decoding", "frames of an epoch", "decoded every epoch", "mapped from disk"),
    "resolution": Comparison("resolving", "the Nature network", "128 pixels", "64 pixels"),
    "inference": Comparison("inferring", "a torch policy for 8 envs", "one env at a time", "all at once"),
    "record": Comparison("recording", "demos of a Python env of 0.2 ms a step", "1 worker", f"{ALL} workers"),
    "gpu-bf16": Comparison("gpu", "84 x 84 images on the GPU", "fp32", "bf16"),
    "gpu-fp16": Comparison("gpu", "84 x 84 images on the GPU", "fp32", "fp16"),
    "gpu-tf32": Comparison("gpu", "84 x 84 images on the GPU", "fp32", "TF32"),
    "gpu-compile": Comparison("gpu", "84 x 84 images on the GPU", "fp32", "compiled"),
    "gpu-pinned": Comparison("gpu", "84 x 84 images on the GPU", "not pinned", "fp32"),
    "gpu-cudnn": Comparison("gpu", "84 x 84 images on the GPU", "no cuDNN autotune", "fp32"),
    "gpu-storage": Comparison("gpu", "84 x 84 images on the GPU", "observations on the host", "fp32"),
    "gpu-batch": Comparison("gpu-kart", "kart on the GPU", "batch 16,384 by 512", "batch 262,144 by 32,768"),
    "gpu-all-on": Comparison(
        "gpu-soccer", "car soccer, torch on one core against the plan with a GPU", "everything off", "default plan"
    ),
}


def chosen(only: Sequence[str], gpu: bool) -> dict[str, Comparison]:
    """The comparisons that are chosen and possible here: by name, by group, or `gpu` for all that need one."""
    known = {*COMPARISONS, *(one.group for one in COMPARISONS.values()), "gpu"}
    if unknown := set(only) - known:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(COMPARISONS)}")
    found = {}
    for name, one in COMPARISONS.items():
        needs = one.group in GROUPS and GROUPS[one.group].gpu
        asked = not only or name in only or one.group in only or (needs and "gpu" in only)
        if asked and (gpu or not needs):
            found[name] = one
    return found


def estimate(groups: Sequence[str], rounds: int) -> float:
    """An estimate of the seconds that the groups take."""
    total = 0.0
    for name in groups:
        if name in GROUPS:
            group = GROUPS[name]
            compiled = sum("plan.compile=true" in text for text in group.variants.values())
            starts = 1 if group.gpu else rounds + 1
            total += len(group.variants) * (starts * START_S + rounds * group.seconds)
            total += compiled * starts * COMPILE_S
        else:
            total += (rounds + 1) * PART_S
    return total


class Slow:
    """The slow env: its module on the path of all processes, calibrated to 0.2 ms per step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "slow_env.py").write_text(SLOW)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        code = "import slow_env; print(slow_env.calibrated())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.words = (f"env.options.rounds={done.stdout.strip()}",)

    def recording(self, quick: bool) -> dict[str, Rate]:
        """Recording demos with one process and with one per core."""
        games = 4 if quick else 40

        def rate(workers: int) -> Rate:
            more = ("--import", "slow_env", "--set", *self.words)

            def record() -> float:
                row = play(self.folder, "slow", "random", SLOW_ENV, games, workers, *more)
                return float(row["steps_per_second"])

            return record

        return {"1 worker": rate(1), f"{ALL} workers": rate(ALL)}


def train_group(
    result: Result, name: str, comparisons: Mapping[str, Comparison], options: argparse.Namespace, slow: Slow | None
) -> dict[str, Any]:
    """Train all compared variants of a group in rounds; the outcome of each comparison."""
    group = GROUPS[name]
    shared = [*group.shared, *(slow.words if group.modules and slow else ())]
    labels = [label for label in group.variants if any(label in (one.off, one.on) for one in comparisons.values())]
    work = Work(group.env, 0.3 if options.quick else group.seconds, modules=group.modules)
    variants = [parse_variant(group.variants[label], shared) for label in labels]

    def say(line: str) -> None:
        print(f"  {name}: {line}", file=sys.stderr, flush=True)

    if group.gpu:
        found = take_turns(work, variants, options.rounds, say)
    else:
        with tempfile.TemporaryDirectory(prefix="claims-") as folder:
            found = Bench(work, Path(folder), say).measure(variants, options.rounds)
    measured = dict(zip(labels, found, strict=True))
    for label, one in measured.items():
        for number, run in enumerate(one.runs):
            facts = {"steps_per_second": run.rate, "mean_return": run.score, "seconds": run.seconds}
            start = {"start_seconds": run.start_s, "warm_seconds": run.warm_s, "busy": run.busy}
            row = {"work": name, "contestant": label, "round": number, **facts, **start}
            result.add({**row, "load_before": [round(run.load, 2)]})
    results = {}
    for key, one in comparisons.items():
        off, on = measured[one.off], measured[one.on]
        outcome = compare(off.description, on.description, off.runs, on.runs, paired=True, gate=None)
        rates = {"off": off.facts()["steps_per_second"], "on": on.facts()["steps_per_second"]}
        kept = ("verdict", "speed", "score", "like_for_like", "bought_with", "busy")
        other = [part["key"] for part in outcome["differences"] if part["matters"]]
        results[key] = (
            _names(one) | rates | {part: outcome[part] for part in kept} | {"other": other, "unit": "steps/s"}
        )
    return results


def take_turns(work: Work, variants: Sequence[Variant], rounds: int, say: OnNotice) -> list[Measured]:
    """Build all variants in this process and measure them in interleaved rounds."""
    runs: list[list[TimedRun]] = [[] for _ in variants]
    with ExitStack() as stack:
        descriptions, trials = [], []
        for variant in variants:
            resolved = configure(work.env, preset=variant.presets, flags=variant.words, tuned=False)
            settings = resolved.settings
            trial = stack.enter_context(TrialRun(choose_env(work.env, settings), settings))
            trials.append(trial)
            seen = trial.measure(0.0)
            description = RunDescription(
                settings={key: value for key, value, _ in resolved.rows()},
                plan=trial.parts.plan.applied(),
                weights=trial.parts.design.weights.size,
                batch=trial.parts.batch,
                updates=seen.updates / seen.steps,
                cold_s=trial.build_s + trial.warm_s,
                warm_s=trial.warm_s,
                rate=seen.rate,
            )
            descriptions.append(description)
            say(f"{variant.label}: built in {trial.build_s:.1f} s, warm-up {trial.warm_s:.1f} s")
        for turn, number in interleave(rounds, range(len(variants))):
            trial, (load, busy) = trials[number], measure_load()
            seen = trial.measure(work.seconds)
            run = TimedRun(
                steps=seen.steps,
                seconds=seen.seconds,
                rate=seen.rate,
                start_s=trial.build_s + trial.warm_s,
                warm_s=trial.warm_s,
                score=None,
                memory_mib=seen.memory_mib,
                split=asdict(shares_of(seen)),
                busy=busy,
                load=load,
            )
            runs[number].append(run)
            say(f"{variants[number].label} {turn + 1}/{rounds}: {seen.rate:,.0f} steps/s")
    together = zip(variants, descriptions, runs, strict=True)
    return [Measured(variant.label, description, tuple(own)) for variant, description, own in together]


def measure_part(
    result: Result, name: str, contestants: Mapping[str, Rate], comparisons: Mapping[str, Comparison], rounds: int
) -> dict[str, Any]:
    """Measure the variants of a part in rounds after a warm-up; the outcome of each comparison."""
    rates: dict[str, list[float]] = {label: [] for label in contestants}

    def measured(label: str) -> Callable[[int], dict[str, float]]:
        contestants[label]()

        def rate(_: int) -> dict[str, float]:
            rates[label].append(contestants[label]())
            return {"steps_per_second": rates[label][-1]}

        return rate

    run_rounds(result, name, {label: measured(label) for label in contestants}, rounds)
    results = {}
    for key, one in comparisons.items():
        speed = ratio(rates[one.off], rates[one.on], paired=True)
        outcome = {"verdict": judge(speed, ("faster", "slower"), 1.0, EQUAL), "speed": speed.facts(), "score": None}
        ends = {"off": median_of(rates[one.off]).facts(), "on": median_of(rates[one.on]).facts()}
        results[key] = _names(one) | ends | outcome | {"like_for_like": True, "bought_with": [], "unit": "units/s"}
    return results


def _names(one: Comparison) -> dict[str, str]:
    return {"work": one.work, "from": one.off, "to": one.on}


def measure(options: argparse.Namespace) -> None:
    """Measure the chosen comparisons and write the result. A group that fails has its reason in the result.

    Comparisons that are not measured keep their rows and their outcome of the result before.
    """
    machine = this_machine()
    comparisons = chosen(options.only, bool(machine["gpu"]))
    groups = list(dict.fromkeys(one.group for one in comparisons.values()))
    print(f"about {estimate(groups, options.rounds) / 60:.0f} minutes on a quiet machine", file=sys.stderr, flush=True)
    if options.estimate:
        return
    result = Result("claims-gpu" if machine["gpu"] else "claims", options)
    before = json.loads(result.path.read_text()) if result.path and result.path.exists() else None
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        slow = None
        if {"slow", "recording"} & set(groups):
            slow = Slow(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="claims-"))))
        for name in groups:
            own = {key: one for key, one in comparisons.items() if one.group == name}
            try:
                if name in GROUPS:
                    results |= train_group(result, name, own, options, slow)
                else:
                    work = slow.recording if slow and name == "recording" else WORKS[name]
                    results |= measure_part(result, name, work(options.quick), own, options.rounds)
            except Exception as error:
                failed |= dict.fromkeys(own, str(error).splitlines()[0])
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    results = {key: one | result.provenance() for key, one in results.items()}
    if before and before["summary"] and not before["summary"]["quick"]:
        measured = {(row["work"], row["contestant"]) for row in result.rows}
        result.rows = [row for row in before["rows"] if (row["work"], row["contestant"]) not in measured] + result.rows
        results = before["summary"]["results"] | results
        failed = {key: why for key, why in (before["summary"]["failed"] | failed).items() if key not in results}
    head = {"machine": machine, "rounds": options.rounds, "quick": options.quick}
    summary = head | {"results": results, "failed": failed}
    result.close(summary, report(summary))


def outcome_text(result: Mapping[str, Any]) -> str:
    """The outcome of a comparison as text."""
    text = f"{result['work']}, {result['from']} -> {result['to']}: {interval(result['speed'], 'x', 3)}, "
    text += result["verdict"]
    if not result["like_for_like"]:
        text += f", not like for like ({'; '.join(result['bought_with'] or result['other'])})"
    if result["score"]:
        names = {"higher": "higher score", "lower": "lower score"}
        score = names.get(result["score"]["verdict"], "no difference in score")
        text += f"; {score} at equal wall-clock ({interval(result['score'], '', 3, sign=True)})"
    return text


def report(summary: Mapping[str, Any]) -> str:
    """The report of a result."""
    machine = summary["machine"]
    header = ["comparison", "work", "from", "to", "off", "on", "ratio", "verdict", "like for like", "score"]
    rows = []
    for name, one in summary["results"].items():
        score = one["score"]
        cells = [name, one["work"], one["from"], one["to"]]
        cells += [f"{one[end]['median']:,.4g} {one['unit']}" for end in ("off", "on")]
        cells += [interval(one["speed"], "x", 3), one["verdict"], "yes" if one["like_for_like"] else "no"]
        cells.append(f"{score['verdict']} ({interval(score, '', 3, sign=True)})" if score else "-")
        rows.append(cells)
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}"
    lines = [f"# Claims: {where}", "", table(header, rows)]
    lines += [f"- {name} failed: {why}" for name, why in summary["failed"].items()]
    return "\n".join(lines)


def read_results() -> dict[str, dict[str, Any]]:
    """The results of the claims, without and with a GPU; quick ones do not count."""
    names = [name for name in ("claims", "claims-gpu") if (RESULTS / f"{name}.json").exists()]
    found = {name: read_result(name) for name in names}
    return {name: one for name, one in found.items() if one["summary"] and not one["summary"]["quick"]}


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/claims.md: a row for every claim."""
    parts = [
        "# Claims",
        "Written by `benchmarks/claims.py --write` from its results.",
        "This project started from five documents. Each row is a claim of one of them about speed, and the outcome of\n"
        "an A/B benchmark with confidence intervals ([`slipstream bench`](guides/bench.md)) of the same kind of work\n"
        "without and with it: the median ratio over interleaved rounds, with its interval. Above 1 the second variant\n"
        "is faster. On a GPU, where starting takes long, both variants run in one process and take turns.",
    ]
    for name, one in found.items():
        machine = one["summary"]["machine"]
        where = f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}"
        link = f"[`benchmarks/results/{name}.json`](results.md#{name})"
        parts.append(f"{link}: {where}; {one['summary']['rounds']} rounds.")
    if not found:
        parts.append("There is no result yet.")
    for document, title in DOCUMENTS.items():
        own = [claim for claim in CLAIMS if claim.number.startswith(f"{document}.")]
        rows = [[claim.number, claim.text, _measured(claim, found)] for claim in own]
        parts += [f"## {document}: {title}", table(["claim", "text", "measured here"], rows)]
    return "\n\n".join(parts) + "\n"


def _measured(claim: Claim, found: Mapping[str, Mapping[str, Any]]) -> str:
    cells = []
    summaries = {place: one["summary"] for place, one in found.items()}
    for name in claim.comparisons:
        there = [(place, one["results"][name]) for place, one in summaries.items() if name in one["results"]]
        cells += [f"{outcome_text(result)} ([{place}](results.md#{place}))" for place, result in there]
        if not there:
            why = next((one["failed"][name] for one in summaries.values() if name in one["failed"]), "")
            needs = " (needs a GPU)" if GROUPS.get(COMPARISONS[name].group, GROUPS["envs"]).gpu else ""
            cells.append(f"`{name}`: not measured here{needs}: {why or 'no result has it yet'}")
    return "<br>".join(cells) if cells else f"not measured here: {claim.reason}"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--only", type=split_names, default=[], help="comparisons or groups, or gpu")
    parser.add_argument("--estimate", action="store_true", help="print the estimated time and stop")
    parser.add_argument("--write", action="store_true", help="write docs/claims.md from the results; measure nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or write the page."""
    options = parse(words)
    if options.write:
        PAGE.write_text(page(read_results()), encoding="utf-8")
        return
    measure(options)


if __name__ == "__main__":
    main()
