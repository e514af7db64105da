"""Bench: an A/B benchmark of two variants in interleaved training runs, with confidence intervals."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from slipstream.errors import ConfigError, GateError, MachineError, SlipstreamError
from slipstream.perf.bench_report import draw, page
from slipstream.perf.comparison import compare, median_of
from slipstream.perf.timed_run import RunDescription, TimedRun, Work, probe, timed_run
from slipstream.perf.variants import Variant, parse_variant
from slipstream.runs.layout import plain, read_json, write_json, write_text
from slipstream.runs.provenance import git_state
from slipstream.system import machine
from slipstream.system.user_modules import in_variable
from slipstream.system.user_modules import names as module_names

BASELINE = "slipstream bench baseline"
NEED_ROUNDS = 5
BUSY = 0.15
"""Above this share of CPU used by other processes, the result gets a note."""

OnNotice = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """A variant and its timed runs."""

    text: str
    description: RunDescription
    runs: tuple[TimedRun, ...]
    when: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields as JSON, without the curves."""
        rates = median_of([run.rate for run in self.runs])
        scores = [run.score for run in self.runs if run.score is not None]
        memory = [run.memory_mib for run in self.runs if run.memory_mib is not None]
        return {
            "side": self.text,
            "commit": self.description.commit,
            "steps_per_second": rates.facts(),
            "score": median_of(scores).facts() if scores else None,
            "start_s": median_of([run.start_s for run in self.runs]).median,
            "warm_s": median_of([run.warm_s for run in self.runs]).median,
            "cold_s": self.description.cold_s,
            "memory_mib": max(memory, default=None),
            "split": dict(self.runs[-1].split),
            "batch": self.description.batch,
            "weights": self.description.weights,
            "updates_per_step": self.description.updates,
            "plan": self.description.plan,
        }


def turns(rounds: int, variants: int) -> Iterator[tuple[int, int]]:
    """Pairs of round (from 1) and variant (from 0). Every second round runs in reverse order."""
    for turn in range(1, rounds + 1):
        for number in range(variants) if turn % 2 else reversed(range(variants)):
            yield turn, number


class Bench:
    """One comparison. Every run is appended to `runs.jsonl` in its folder as soon as it ends."""

    def __init__(self, work: Work, out: Path, on_notice: OnNotice) -> None:
        self.work, self.out, self._on_notice = work, out, on_notice
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"{out} cannot be created: {error.strerror}.", "choose another --out DIR") from error
        self._raw = out / "runs.jsonl"
        write_text(self._raw, "")

    def measure(self, variants: Sequence[Variant], rounds: int) -> list[Measured]:
        """Train every variant once untimed, then all variants in interleaved rounds."""
        names = ascii_uppercase[: len(variants)] if len(variants) > 1 else "B"
        done: list[list[TimedRun]] = [[] for _ in variants]
        turn = 0
        try:
            descriptions = [self._probe(name, variant) for name, variant in zip(names, variants, strict=True)]
            for turn, number in turns(rounds, len(variants)):
                one = timed_run(variants[number], descriptions[number], self.work, self.work.seed + turn)
                done[number].append(one)
                self._keep(names[number], turn, rounds, one)
        except SlipstreamError as error:
            where = f"Round {turn} of {rounds}" if turn else "The first, untimed run"
            kept = f" The runs before are in {self._raw}." if any(done) else ""
            error.message = f"{where} of the comparison failed. {error.message}{kept}"
            raise
        now = datetime.now(UTC).isoformat(timespec="seconds")
        together = zip(variants, descriptions, done, strict=True)
        return [Measured(variant.label, description, tuple(runs), now) for variant, description, runs in together]

    def _probe(self, name: str, variant: Variant) -> RunDescription:
        if variant.commit:
            self._on_notice(
                f"{name}: commit {variant.commit[:12]}; the first run compiles, which can take a minute or two"
            )
        description = probe(variant, self.work)
        self._on_notice(
            f"{name} ({variant.label}): first run: {description.cold_s:.1f} s for building, compiling and the first "
            f"iteration; batch {description.batch:,.0f}, {description.weights:,} parameters in the policy"
        )
        return description

    def _keep(self, name: str, turn: int, rounds: int, one: TimedRun) -> None:
        with open(self._raw, "a", encoding="utf-8") as file:
            file.write(json.dumps(plain({"side": name, "round": turn, **one.facts()})) + "\n")
        score = "" if one.score is None else f", score {one.score:.4g}"
        self._on_notice(
            f"{name} {turn}/{rounds}: {one.rate:,.0f} steps/s{score} (start-up {one.start_s:.1f} s, not counted)"
        )


def bench(
    variants: Sequence[str],
    *,
    env: str | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
    games: int | None = None,
    shared: Sequence[str] = (),
    seed: int = 0,
    modules: Sequence[str] = (),
    trust: bool = False,
    against: Path | None = None,
    save: Path | None = None,
    gate: float | None = None,
    out: Path,
    any_machine: bool = False,
    on_notice: OnNotice = lambda line: None,
) -> dict[str, Any]:
    """Compare two variants, or one with a saved baseline, or measure one and save it as a baseline.

    With a baseline, its env, seconds, rounds, games and shared settings are the defaults.
    """
    texts = list(variants)
    if len(texts) == 2 and texts[0].endswith(".json"):
        against, texts = Path(texts[0]), texts[1:]
    _check(texts, against, save, gate)
    before = read_baseline(against) if against else None
    saved = dict(before["work"]) if before else {}
    work = Work(
        env=env or saved.get("env", "soccer"),
        seconds=seconds or saved.get("seconds", 10.0),
        seed=seed,
        games=saved.get("games", 0) if games is None else games,
        modules=module_names(modules),
        trust=trust,
    )
    rounds = rounds or saved.get("rounds", NEED_ROUNDS)
    shared = list(shared) or saved.get("shared", [])
    if before:
        _check_baseline(before, work, any_machine)
    runner = Bench(work, out, on_notice)
    measured = runner.measure([parse_variant(text, shared) for text in texts], rounds)
    facts = _common_facts(work, rounds, shared, measured)
    if save:
        facts["saved"] = str(write_baseline(save, facts, measured[-1]))
    notes = facts["notes"]
    if before:
        measured.insert(0, before["measured"])
        notes.append(f"A is a baseline of {before['measured'].when}, not trained at the same time as B")
        if before["machine"] != facts["machine"]:
            notes.append(f"A was measured on another machine: {before['machine']['cpu']}")
    if len(measured) == 2:
        one, two = measured
        facts |= compare(one.description, two.description, one.runs, two.runs, paired=before is None, gate=gate)
        if facts["busy"] > BUSY:
            notes.append(
                f"other processes used {facts['busy']:.0%} of the machine before the runs: repeat on a quiet machine"
            )
    facts |= {name: one.facts() for name, one in zip(("a", "b")[-len(measured) :], measured, strict=True)}
    _write(runner.out, facts, measured)
    return facts


def pass_gate(facts: Mapping[str, Any]) -> None:
    """Raise `GateError` if B is slower than the gate allows."""
    gate = facts.get("gate")
    if gate and not gate["passed"]:
        speed = facts["speed"]
        raise GateError(
            f"B is slower than A: {speed['median']:.3f}x [{speed['low']:.3f}, {speed['high']:.3f}], and "
            f"{gate['percent']:g} % are allowed.",
            f"{facts['out']}/bench.md says where the time goes",
        )


def _check(variants: Sequence[str], against: Path | None, save: Path | None, gate: float | None) -> None:
    """Check that there is something to compare or to save."""
    if len(variants) == 2 and against:
        raise ConfigError("Two variants and a baseline cannot be compared.", "leave out A: the baseline is A")
    if len(variants) == 1 and not (against or save):
        raise ConfigError(
            "One variant has nothing to compare with.", "name a second variant, --against FILE or --save FILE"
        )
    if any(variant.endswith(".json") for variant in variants):
        raise ConfigError("A saved baseline can only be A.", "slipstream bench FILE.json B")
    if gate is not None and not (against or len(variants) == 2):
        raise ConfigError("--gate needs a comparison.", "name two variants, or --against FILE")


def _common_facts(work: Work, rounds: int, shared: Sequence[str], measured: Sequence[Measured]) -> dict[str, Any]:
    """The facts of one or two variants."""
    sure = median_of([0.0] * rounds).sure
    notes = [f"{rounds} rounds: intervals of medians have {sure:.0%} confidence"]
    return {
        "env": work.env,
        "seconds": work.seconds,
        "rounds": rounds,
        "games": work.games,
        "shared": list(shared),
        "score_is": f"result of {work.games} games after training" if work.games else "mean return of last episodes",
        "machine": this_machine(),
        "git": git_state(),
        "command": shlex.join(["slipstream", *sys.argv[1:], *missing_flags(work)]),
        "time_utc": measured[-1].when,
        "notes": notes,
    }


def missing_flags(work: Work) -> list[str]:
    """The flags for modules that the environment variable named."""
    return [word for name in work.modules if in_variable(name) for word in ("--import", name)]


def this_machine() -> dict[str, Any]:
    """The machine, as it is compared with that of a baseline."""
    return {
        "fingerprint": machine.fingerprint(),
        "cpu": machine.cpu_model(),
        "cores": machine.cores(),
        "gpu": machine.gpu_name(),
    }


def _write(out: Path, facts: dict[str, Any], measured: Sequence[Measured]) -> None:
    """Write bench.json, bench.md and bench.png."""
    facts["out"] = str(out)
    write_json(out / "bench.json", facts)
    draw(out / "bench.png", facts, [(one.text, one.runs) for one in measured])
    write_text(out / "bench.md", page(facts) + "\n")


def write_baseline(path: Path, facts: Mapping[str, Any], measured: Measured) -> Path:
    """Save the runs of a variant with machine, commit and settings."""
    path = path.with_suffix(path.suffix or ".json")
    kept = {
        "kind": BASELINE,
        "version": 1,
        "work": {key: facts[key] for key in ("env", "seconds", "rounds", "games", "shared")},
        "machine": facts["machine"],
        "git": facts["git"],
        "side": measured.text,
        "time_utc": measured.when,
        "portrait": measured.description.facts(),
        "heats": [run.facts() for run in measured.runs],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, kept)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}.", "choose another --save FILE") from error
    return path


def read_baseline(path: Path) -> dict[str, Any]:
    """Read a saved baseline."""
    path = path if path.suffix else path.with_suffix(".json")
    saved = read_json(path)
    if saved is None:
        raise ConfigError(f"There is no baseline {path}.", f"make one: slipstream bench VARIANT --save {path}")
    try:
        if saved["kind"] != BASELINE or saved["version"] != 1:
            raise KeyError("kind")
        description = RunDescription(**saved["portrait"])
        curves = [tuple(tuple(point) for point in run["curve"]) for run in saved["heats"]]
        runs = tuple(TimedRun(**run | {"curve": curve}) for run, curve in zip(saved["heats"], curves, strict=True))
        return saved | {"measured": Measured(saved["side"], description, runs, saved["time_utc"])}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a baseline of this version.", "measure it again with --save") from error


def _check_baseline(before: Mapping[str, Any], work: Work, any_machine: bool) -> None:
    """Check that the baseline has the same work and the same machine."""
    for key in ("env", "seconds", "games"):
        was, now = before["work"][key], getattr(work, key)
        if was != now:
            raise ConfigError(
                f"The baseline was measured with {key} {was}, not {now}.", f"leave --{key} out, or measure it again"
            )
    here = this_machine()
    if before["machine"] != here and not any_machine:
        there = before["machine"]
        raise MachineError(
            f"The baseline was measured on another machine: {there['cpu']}, {there['cores']} cores, "
            f"{there['gpu'] or 'no GPU'}; this is {here['cpu']}, {here['cores']} cores, {here['gpu'] or 'no GPU'}.",
            "measure it here with --save, or compare anyway with --any-machine",
        )
