"""What the source documents said about speed, and what `bench` measures here on the same kind of work, on and off.

    .venv/bin/python benchmarks/claims.py [--only workers,bf16] [--rounds 5] [--out DIR] [--estimate]
    .venv/bin/python benchmarks/claims.py --write     make docs/claims.md from the records, measuring nothing

Every comparison trains (or does a part of training by itself) on both sides in each round, one after the other, and is
judged as `slipstream bench` judges: medians and ratios round by round. Works that share their sides are measured
together. On a machine with a GPU the comparisons that need one are measured too; `--only gpu` measures these alone.
Those start slowly, so their sides stand ready in one process and take turns, and nothing is said about their scores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parts import WORKS, Rate
from record import ROOT, Record, dated
from recording import SLOW, play
from sayings import DOCUMENTS, SAYINGS, Saying
from slipstream.api import configure
from slipstream.perf.bench import Bench, Measured, Say, this_machine, turns
from slipstream.perf.bench_report import interval, table
from slipstream.perf.comparison import EQUAL, compare, judge, median, ratio
from slipstream.perf.diagnose import shares_of
from slipstream.perf.timed_run import RunDescription, TimedRun, Work, look_around
from slipstream.perf.trial import TrialRun
from slipstream.perf.variants import Variant, parse_variant
from slipstream.system.machine import cores
from slipstream.training.build import choose_env

PAGE = ROOT / "docs" / "claims.md"
RECORDS = ROOT / "benchmarks" / "records"
CARTPOLE, SLOW_ENV = "gymnasium:CartPole-v1", "gymnasium:Slow-v0"
ALL = cores()
START_S, COMPILE_S, PART_S = 2.4, 12.0, 2.0
"""About what a process costs besides its seconds, what torch.compile adds to that, and a round of a part."""


@dataclass(frozen=True)
class Group:
    """Sides that are trained in the same rounds: an env, settings of all, and what makes each its own."""

    env: str
    seconds: float
    sides: Mapping[str, str]
    shared: tuple[str, ...] = ()
    gpu: bool = False
    modules: tuple[str, ...] = ()


HOST = "plan.device=cpu"
GROUPS = {
    "cartpole": Group(CARTPOLE, 1.0, {
        "1 worker": "plan.collector=actors,plan.workers=1",
        f"{ALL} workers": f"plan.collector=actors,plan.workers={ALL}",
        f"{4 * ALL} workers": f"plan.collector=actors,plan.workers={4 * ALL}",
        "rollouts copied": f"plan.collector=actors,plan.workers={ALL},plan.zero_copy=false",
        "envs in this process": "plan.collector=local,plan.vector=serial",
        "envs in processes": f"plan.collector=local,plan.vector=processes,plan.workers={ALL}",
    }, (HOST,)),
    "slow": Group(SLOW_ENV, 1.0, {
        "1 worker": "plan.collector=actors,plan.workers=1",
        f"{ALL} workers": f"plan.collector=actors,plan.workers={ALL}",
        "envs in this process": "plan.collector=local,plan.vector=serial",
        "envs in processes": f"plan.collector=local,plan.vector=processes,plan.workers={ALL}",
    }, (HOST, "plan.envs=16", "ppo.rollout=32", "ppo.minibatch=128"), modules=("slow_env",)),
    "envs": Group(CARTPOLE, 1.0, {
        f"{count} env{'s' * (count > 1)}": f"plan.envs={count},ppo.rollout={2048 // count}" for count in (1, 8, 64, 512)
    }, (HOST, "plan.collector=local", "ppo.minibatch=256")),
    "habits": Group(CARTPOLE, 1.0, {
        "plain": "",
        "rollouts of 2,048, minibatches of 128, 3 epochs": "ppo.rollout=64,ppo.minibatch=128,ppo.epochs=3",
        "1 epoch": "ppo.epochs=1",
        "contrastive loss": "ppo.contrastive_coef=0.1",
        "segments by priority, gradients and units looked at in every iteration":
        "ppo.priority_alpha=0.6,ppo.shuffle=segments,every.gradients=1,every.dormant_units=1",
        "LSTM": "policy.memory=lstm,policy.memory_size=64",
    }, (HOST, "plan.envs=32", "ppo.minibatch=256")),
    "bptt": Group("recall:32", 1.0, {
        "64 steps back": "policy.sequence=64", "32 steps back": "policy.sequence=32",
    }, (HOST, "policy.memory=lstm", "policy.memory_size=64", "plan.envs=32", "ppo.rollout=64", "ppo.minibatch=512")),
    "pixels": Group("pixels:84", 1.2, {
        "fp32": "", "bf16": "plan.precision=bf16", "compiled": "plan.compile=true", "in parts of 16":
        "plan.micro_batch=16",
    }, (HOST, "plan.learner=torch", "plan.envs=16", "ppo.rollout=8", "ppo.minibatch=64", "ppo.epochs=2")),
    "soccer": Group("soccer", 2.0, {
        "everything off": "plan.collector=local,plan.learner=torch,plan.threads=1",
        "as planned": "",
        "actions twice as long": "env.action_repeat=8",
        "with a teacher": "ppo.teacher=scripted:rule",
    }, (HOST,)),
    "batch": Group("kart", 3.0, {
        "batch 16,384 by 512": "plan.envs=256,ppo.minibatch=512",
        "batch 262,144 by 32,768": "plan.envs=4096,ppo.minibatch=32768",
    }, (HOST,)),
    "sac": Group("gymnasium:Pendulum-v1", 1.0, {
        "1 env": "plan.envs=1", "8 envs": "plan.envs=8",
        "8 envs, an update for 8 steps": "plan.envs=8,sac.updates_per_step=0.125",
    }, (HOST, "algorithm=sac", "sac.learning_starts=200", "policy.hidden=[64,64]")),
    "gpu": Group("pixels:84", 3.0, {
        "fp32": "plan.precision=fp32", "bf16": "plan.precision=bf16", "fp16": "plan.precision=fp16",
        "TF32": "plan.precision=tf32", "compiled": "plan.precision=fp32,plan.compile=true",
        "not pinned": "plan.precision=fp32,plan.pinned=false",
        "cuDNN tries nothing": "plan.precision=fp32,plan.cudnn_benchmark=false",
        "observations on the host": "plan.precision=fp32,plan.storage=host",
    }, ("plan.device=cuda", "plan.collector=batched", "plan.envs=256", "ppo.rollout=32", "ppo.minibatch=2048"), True),
    "gpu-kart": Group("kart", 4.0, {
        "batch 16,384 by 512": "plan.envs=256,ppo.minibatch=512",
        "batch 262,144 by 32,768": "plan.envs=4096,ppo.minibatch=32768",
    }, ("plan.collector=device",), True),
    "gpu-soccer": Group("soccer", 4.0, {
        "everything off": "plan.device=cpu,plan.collector=local,plan.learner=torch,plan.threads=1",
        "as planned": "",
    }, (), True),
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two contestants of a group or a part: off, then on."""

    group: str
    work: str
    off: str
    on: str


COMPARISONS = {
    "workers": Comparison("cartpole", "CartPole", "1 worker", f"{ALL} workers"),
    "workers-slow": Comparison("slow", "a Python env of 0.2 ms a step", "1 worker", f"{ALL} workers"),
    "workers-many": Comparison("cartpole", "CartPole", f"{ALL} workers", f"{4 * ALL} workers"),
    "processes": Comparison("cartpole", "CartPole, a message a step", "envs in this process", "envs in processes"),
    "processes-slow": Comparison(
        "slow", "a Python env of 0.2 ms a step, a message a step", "envs in this process", "envs in processes"
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
        "habits", "CartPole", "segments by priority, gradients and units looked at in every iteration", "plain"
    ),
    "lstm": Comparison("habits", "CartPole", "plain", "LSTM"),
    "bptt": Comparison("bptt", "a game of memory, LSTM of 64 units", "64 steps back", "32 steps back"),
    "bf16": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "bf16"),
    "compile": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "compiled"),
    "micro-batch": Comparison("pixels", "84 x 84 images on the CPU", "fp32", "in parts of 16"),
    "all-on": Comparison("soccer", "car soccer, torch on one core against the plan", "everything off", "as planned"),
    "action-repeat": Comparison("soccer", "car soccer", "as planned", "actions twice as long"),
    "teacher-off": Comparison("soccer", "car soccer", "with a teacher", "as planned"),
    "batch": Comparison("batch", "kart", "batch 16,384 by 512", "batch 262,144 by 32,768"),
    "sac-envs": Comparison("sac", "SAC on Pendulum, one update a step", "1 env", "8 envs"),
    "sac-as-said": Comparison("sac", "SAC on Pendulum, as said", "1 env", "8 envs, an update for 8 steps"),
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
    "gpu-cudnn": Comparison("gpu", "84 x 84 images on the GPU", "cuDNN tries nothing", "fp32"),
    "gpu-storage": Comparison("gpu", "84 x 84 images on the GPU", "observations on the host", "fp32"),
    "gpu-batch": Comparison("gpu-kart", "kart on the GPU", "batch 16,384 by 512", "batch 262,144 by 32,768"),
    "gpu-all-on": Comparison("gpu-soccer", "car soccer, torch on one core against the plan with a GPU",
                             "everything off", "as planned"),
}  # fmt: skip


def chosen(only: Sequence[str], gpu: bool) -> dict[str, Comparison]:
    """The comparisons that are asked for and can be made here: by name, by group, or `gpu` for all that need one."""
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
    """About how many seconds the groups take."""
    total = 0.0
    for name in groups:
        if name in GROUPS:
            group = GROUPS[name]
            compiled = sum("plan.compile=true" in text for text in group.sides.values())
            starts = 1 if group.gpu else rounds + 1
            total += len(group.sides) * (starts * START_S + rounds * group.seconds)
            total += compiled * starts * COMPILE_S
        else:
            total += (rounds + 1) * PART_S
    return total


class Slow:
    """The slow env: its module on the path of all processes, and how many rounds of its work take 0.2 ms here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "slow_env.py").write_text(SLOW)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        told = "import slow_env; print(slow_env.calibrated())"
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
        self.words = (f"env.options.rounds={done.stdout.strip()}",)

    def recording(self, quick: bool) -> dict[str, Rate]:
        """Demos recorded by one process and by one per core."""
        games = 4 if quick else 40

        def rate(workers: int) -> Rate:
            more = ("--import", "slow_env", "--set", *self.words)

            def record() -> float:
                row = play(self.folder, "slow", "random", SLOW_ENV, games, workers, *more)
                return float(row["steps_per_second"])

            return record

        return {"1 worker": rate(1), f"{ALL} workers": rate(ALL)}


def train_group(
    record: Record, name: str, wanted: Mapping[str, Comparison], options: argparse.Namespace, slow: Slow | None
) -> dict[str, Any]:
    """All sides of a group that are compared, round by round; what each comparison gave."""
    group = GROUPS[name]
    shared = [*group.shared, *(slow.words if group.modules and slow else ())]
    labels = [label for label in group.sides if any(label in (one.off, one.on) for one in wanted.values())]
    work = Work(group.env, 0.3 if options.quick else group.seconds, modules=group.modules)
    sides = [parse_variant(group.sides[label], shared) for label in labels]

    def say(line: str) -> None:
        print(f"  {name}: {line}", file=sys.stderr, flush=True)

    if group.gpu:
        found = side_by_side(work, sides, options.rounds, say)
    else:
        with tempfile.TemporaryDirectory(prefix="claims-") as folder:
            found = Bench(work, Path(folder), say).measure(sides, options.rounds)
    measured = dict(zip(labels, found, strict=True))
    for label, one in measured.items():
        for number, heat in enumerate(one.heats):
            record.loads.append([round(heat.load, 2)])
            facts = {"steps_per_second": heat.rate, "mean_return": heat.score, "seconds": heat.seconds}
            start = {"start_seconds": heat.start_s, "warm_seconds": heat.warm_s, "busy": heat.busy, "split": heat.split}
            settings = {"settings": [*shared, group.sides[label]], "plan": one.portrait.plan, "env": group.env}
            record.add({"work": name, "contestant": label, "round": number, **facts, **start, **settings})
    results = {}
    for key, one in wanted.items():
        off, on = measured[one.off], measured[one.on]
        told = compare(off.portrait, on.portrait, off.heats, on.heats, paired=True, gate=None)
        rates = {"off": off.facts()["steps_per_second"], "on": on.facts()["steps_per_second"]}
        kept = ("verdict", "speed", "score", "like_for_like", "bought_with", "busy")
        other = [part["key"] for part in told["differences"] if part["matters"]]
        results[key] = _words(one) | rates | {part: told[part] for part in kept} | {"other": other, "unit": "steps/s"}
    return results


def side_by_side(work: Work, sides: Sequence[Variant], rounds: int, say: Say) -> list[Measured]:
    """Sides that stand ready in this process and take turns, who goes first changing from round to round."""
    heats: list[list[TimedRun]] = [[] for _ in sides]
    with ExitStack() as stack:
        portraits, ready = [], []
        for side in sides:
            resolved = configure(work.env, preset=side.presets, flags=side.words, tuned=False)
            settings = resolved.settings
            one = stack.enter_context(TrialRun(choose_env(work.env, settings), settings))
            ready.append(one)
            seen = one.measure(0.0)
            portraits.append(RunDescription(
                settings={key: value for key, value, _ in resolved.rows()}, plan=one.parts.plan.applied(),
                weights=one.parts.design.weights.size, batch=one.parts.batch, updates=seen.updates / seen.steps,
                cold_s=one.build_s + one.warm_s, warm_s=one.warm_s, rate=seen.rate,
            ))  # fmt: skip
            say(f"{side.label}: ready after {one.build_s:.1f} s, warm after {one.warm_s:.1f} s more")
        for turn, number in turns(rounds, len(sides)):
            one, (load, busy) = ready[number], look_around()
            seen = one.measure(work.seconds)
            heats[number].append(TimedRun(
                steps=seen.steps, seconds=seen.seconds, rate=seen.rate, start_s=one.build_s + one.warm_s,
                warm_s=one.warm_s, score=None, memory_mib=seen.memory_mib, split=asdict(shares_of(seen)), busy=busy,
                load=load,
            ))  # fmt: skip
            say(f"{sides[number].label} {turn}/{rounds}: {seen.rate:,.0f} steps/s")
    together = zip(sides, portraits, heats, strict=True)
    return [Measured(side.label, portrait, tuple(own)) for side, portrait, own in together]


def do_part(
    record: Record, name: str, contestants: Mapping[str, Rate], wanted: Mapping[str, Comparison], rounds: int
) -> dict[str, Any]:
    """The contestants of a part, round by round, each once before; what each comparison gave."""
    rates: dict[str, list[float]] = {label: [] for label in contestants}
    for rate in contestants.values():
        rate()
    labels = list(contestants)
    for turn, number in turns(rounds, len(labels)):
        label = labels[number]
        record.load()
        rates[label].append(contestants[label]())
        record.add({"work": name, "contestant": label, "round": turn - 1, "steps_per_second": rates[label][-1]})
    results = {}
    for key, one in wanted.items():
        speed = ratio(rates[one.off], rates[one.on], paired=True)
        told = {"verdict": judge(speed, ("faster", "slower"), 1.0, EQUAL), "speed": speed.facts(), "score": None}
        ends = {"off": median(rates[one.off]).facts(), "on": median(rates[one.on]).facts()}
        results[key] = _words(one) | ends | told | {"like_for_like": True, "bought_with": [], "unit": "units/s"}
    return results


def _words(one: Comparison) -> dict[str, str]:
    return {"work": one.work, "from": one.off, "to": one.on}


def measure(options: argparse.Namespace) -> None:
    """Measure what is asked for and write the record; what a group cannot do is told, and the rest goes on."""
    machine = this_machine()
    wanted = chosen(options.only, bool(machine["gpu"]))
    groups = list(dict.fromkeys(one.group for one in wanted.values()))
    print(f"about {estimate(groups, options.rounds) / 60:.0f} minutes on a quiet machine", file=sys.stderr, flush=True)
    if options.estimate:
        return
    record = Record(options.out or dated("claims-gpu" if machine["gpu"] else "claims"))
    record.begin()
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        slow = None
        if {"slow", "recording"} & set(groups):
            slow = Slow(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="claims-"))))
        for name in groups:
            own = {key: one for key, one in wanted.items() if one.group == name}
            try:
                if name in GROUPS:
                    results |= train_group(record, name, own, options, slow)
                else:
                    work = slow.recording if slow and name == "recording" else WORKS[name]
                    results |= do_part(record, name, work(options.quick), own, options.rounds)
            except Exception as error:
                failed |= dict.fromkeys(own, str(error).splitlines()[0])
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    summary = {
        "machine": machine,
        "rounds": options.rounds,
        "quick": options.quick,
        "results": results,
        "failed": failed,
    }
    record.close(summary, text_of(summary))


def answer(result: Mapping[str, Any]) -> str:
    """What a comparison gave, in a few words."""
    text = f"{result['work']}, {result['from']} -> {result['to']}: {interval(result['speed'], 'x', 3)}, "
    text += result["verdict"]
    if not result["like_for_like"]:
        text += f", not like for like ({'; '.join(result['bought_with'] or result['other'])})"
    if result["score"]:
        told = {"higher": "higher score", "lower": "lower score"}.get(
            result["score"]["verdict"], "no difference in score"
        )
        text += f"; {told} at equal wall-clock ({interval(result['score'], '', 3, sign=True)})"
    return text


def text_of(summary: Mapping[str, Any]) -> str:
    """The summary of a record for people."""
    machine = summary["machine"]
    heads = ["comparison", "work", "from", "to", "off", "on", "ratio", "verdict", "like for like", "score"]
    rows = [
        [
            name, one["work"], one["from"], one["to"],
            *(f"{one[end]['median']:,.4g} {one['unit']}" for end in ("off", "on")),
            interval(one["speed"], "x", 3), one["verdict"], "yes" if one["like_for_like"] else "no",
            "-" if not one["score"] else f"{one['score']['verdict']} ({interval(one['score'], '', 3, sign=True)})",
        ]
        for name, one in summary["results"].items()
    ]  # fmt: skip
    lines = [
        f"# Claims: {machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}",
        "",
        table(heads, rows),
    ]
    lines += [f"- {name} failed: {why}" for name, why in summary["failed"].items()]
    return "\n".join(lines)


def records() -> dict[str, dict[str, Any]]:
    """What the records hold, oldest first, by folder name; quick ones do not count.

    Of each comparison the newest is kept, with a GPU and without one, so that a record of a few leaves the rest alone.
    """
    found: dict[str, dict[str, Any]] = {}
    newer: set[tuple[bool, str]] = set()
    for path in sorted(RECORDS.glob("*-claims*/summary.json"), reverse=True):
        told = json.loads(path.read_text(encoding="utf-8"))
        gpu = bool(told["machine"]["gpu"])
        fresh = {part: {key: one for key, one in told[part].items() if (gpu, key) not in newer}
                 for part in ("results", "failed")}  # fmt: skip
        if not told["quick"] and any(fresh.values()):
            found[path.parent.name] = told | fresh
            newer |= {(gpu, key) for part in fresh.values() for key in part}
    return dict(reversed(found.items()))


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/claims.md: a row for every claim."""
    parts = [
        "# Claims",
        "Made by `benchmarks/claims.py --write` from its records: no number here was typed by hand.",
        "Five documents were the start of this project. Each row is what one of them said about speed, and what\n"
        "[`slipstream bench`](guides/bench.md) found when the same kind of work was done without and with it: the\n"
        "median ratio over interleaved rounds, with the interval of that median. Above 1 the second way is faster.\n"
        "On a GPU, where starting takes long, the sides stood ready in one process and took turns.",
    ]
    for name, told in found.items():
        machine = told["machine"]
        where = f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}"
        link = f"[{name}](../benchmarks/records/{name}/summary.md)"
        parts.append(f"Record {link}: {where}; {told['rounds']} rounds.")
    if not found:
        parts.append("There is no record yet.")
    for head, described in DOCUMENTS.items():
        own = [one for one in SAYINGS if one.number.startswith(f"{head}.")]
        rows = [[one.number, one.said, _found(one, found)] for one in own]
        parts += [f"## {head}: {described}", table(["claim", "it said", "measured here"], rows)]
    return "\n\n".join(parts) + "\n"


def _found(one: Saying, found: Mapping[str, Mapping[str, Any]]) -> str:
    cells = []
    for name in one.answers:
        there = [(place, told["results"][name]) for place, told in found.items() if name in told["results"]]
        cells += [f"{answer(result)} ([record](../benchmarks/records/{place}/summary.md))" for place, result in there]
        if not there:
            why = next((told["failed"][name] for told in found.values() if name in told["failed"]), "")
            needs = " (needs a GPU)" if GROUPS.get(COMPARISONS[name].group, GROUPS["envs"]).gpu else ""
            cells.append(f"`{name}`: not measured here{needs}: {why or 'no record holds it yet'}")
    return "<br>".join(cells) if cells else f"not measured here: {one.why_not}"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="comparisons or groups, or gpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny works, to see that all of them run; no evidence")
    parser.add_argument("--estimate", action="store_true", help="say how long it takes, and stop")
    parser.add_argument("--write", action="store_true", help="make docs/claims.md from the records; measure nothing")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or write the page."""
    options = parse(words)
    if options.write:
        PAGE.write_text(page(records()), encoding="utf-8")
        return
    measure(options)


if __name__ == "__main__":
    main()
