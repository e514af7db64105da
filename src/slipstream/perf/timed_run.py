"""One timed training run of a variant in its own process, with its speed and score."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import safetensors
import yaml

from slipstream.errors import CheckpointError, ConfigError, DemoError, EnvError, MachineError, SlipstreamError
from slipstream.perf.variants import Variant, child_environment, command, has_flag
from slipstream.runs.layout import RunDir, read_json
from slipstream.runs.metrics import read

Row = Mapping[str, Any]
PROBE_S = 1.0
"""Training time of the first, untimed run of a variant, which compiles and measures the batch."""
ROWS = 50
"""Approximate number of metrics rows of a timed run."""
WARM_LOG = 100
"""Steps between rows of a variant that starts with random actions: its rate at first does not count."""
START_LIMIT_S = 900.0
"""Time limit of start-up and compiling."""
LENGTH_FACTORS = (1, 3, 9)
"""A run that is too short for two iterations is repeated this much longer. The time of the score stays."""
ERROR_LINES = 12
CODES = {kind.code: kind for kind in (ConfigError, EnvError, DemoError, CheckpointError, MachineError)}
LOAD_S = 0.2


@dataclass(frozen=True)
class Work:
    """The work of both variants."""

    env: str
    seconds: float
    seed: int = 0
    games: int = 0
    """Evaluation games after each run; 0: the score is the mean return of the last episodes."""
    modules: tuple[str, ...] = ()
    trust: bool = False


@dataclass(frozen=True)
class TimedRun:
    """One timed training run."""

    steps: int
    """Steps of the timed part."""
    seconds: float
    rate: float
    start_s: float
    """Seconds of building, compiling and the first iteration."""
    warm_s: float
    """How much longer the first iteration took than a later one."""
    score: float | None
    """The score at a fixed time after the warm-up."""
    curve: tuple[tuple[float, float], ...] = ()
    """Pairs of seconds after the warm-up and score."""
    memory_mib: float | None = None
    split: dict[str, float] = field(default_factory=dict)
    """Shares of the wall clock."""
    busy: float = 0.0
    """Share of the machine that other processes used just before."""
    load: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RunDescription:
    """A variant as its first run describes it."""

    settings: dict[str, Any]
    """Every setting by its dotted key, as that code names it."""
    plan: dict[str, Any]
    weights: int
    """Parameters of the policy."""
    batch: float
    """Steps per iteration."""
    updates: float
    """Gradient steps per step of experience."""
    cold_s: float
    """Seconds of building, compiling and the first iteration in the first run."""
    warm_s: float
    rate: float
    """Approximate; sets the logging interval."""
    tuned: bool = False
    """Whether its code has tuned plans, which comparisons must not use."""
    commit: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)


def probe(variant: Variant, work: Work, limit_s: float = START_LIMIT_S) -> RunDescription:
    """Train for a moment: compile everything and describe the variant."""
    tuned = has_flag(variant, "--no-tuned")
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        run = RunDir(Path(folder) / "run")
        facts = _train(variant, work, run, PROBE_S, 1, work.seed, tuned, limit_s)
        rows = read(run)
        settings = _flat(yaml.safe_load(run.config.read_text(encoding="utf-8")) or {})
        state = Path(facts["checkpoint"])
        provenance = read_json(run.provenance) or {}
        timing = clock(rows, facts, 0)
        batch = rows[-1]["steps"] / rows[-1]["iteration"]
        return RunDescription(
            settings=settings,
            plan=(read_json(state / "state.json") or {}).get("plan", {}),
            weights=_weights(state / "policy.safetensors"),
            batch=batch,
            updates=_updates(settings, rows[-1], batch),
            cold_s=facts["start_seconds"],
            warm_s=timing.warm_s,
            rate=timing.rate or batch / max(rows[-1]["time/seconds"], 1e-9),
            tuned=tuned,
            commit=variant.commit or str((provenance.get("git") or {}).get("commit", "")),
        )


def timed_run(
    variant: Variant, description: RunDescription, work: Work, seed: int, limit_s: float = START_LIMIT_S
) -> TimedRun:
    """Train for the seconds of the work after the warm-up, and measure speed and score."""
    load, busy = measure_load()
    warm_steps = _warm_steps(description.settings)
    log = WARM_LOG if warm_steps else max(1, int(description.rate * work.seconds / ROWS))
    for factor in LENGTH_FACTORS:
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
            run = RunDir(Path(folder) / "run")
            seconds = description.warm_s + factor * work.seconds
            facts = _train(variant, work, run, seconds, log, seed, description.tuned, limit_s)
            rows = read(run)
            timing = clock(rows, facts, warm_steps)
            if timing.rate:
                games = _evaluated(variant, work, run, seed, limit_s) if work.games else None
                break
    else:
        raise ConfigError(
            f"{variant.label}: {seconds:.3g} s are too short for two iterations of {description.batch:,.0f} steps.",
            f"give --seconds at least {2 * seconds:.0f}, or reduce the batch",
        )
    curve = tuple((at - timing.warm_s, score) for at, score in _scores(rows) if at - timing.warm_s <= work.seconds)
    used = [row["system/memory_mib"] for row in rows if row.get("system/memory_mib") is not None]
    last = rows[-1] if rows else {}
    split = {name: last[f"time/{name}"] for name in ("env", "inference", "learn", "other") if f"time/{name}" in last}
    return TimedRun(
        steps=timing.steps,
        seconds=timing.seconds,
        rate=timing.rate,
        start_s=facts["start_seconds"],
        warm_s=timing.warm_s,
        score=games if work.games else (curve[-1][1] if curve else None),
        curve=curve,
        memory_mib=max(used, default=None),
        split=split,
        busy=busy,
        load=load,
    )


def measure_load() -> tuple[float, float]:
    """The load average, and the share of the machine that is in use now."""
    return os.getloadavg()[0], psutil.cpu_percent(LOAD_S) / 100


@dataclass(frozen=True)
class Timing:
    """The timed part of a run, and its warm-up."""

    steps: int
    seconds: float
    rate: float
    """0: the run was too short."""
    warm_s: float


def clock(rows: Sequence[Row], facts: Mapping[str, Any], warm_steps: int) -> Timing:
    """Steps per second of a run without its first iteration, from its metrics rows and its output.

    The first iteration compiles, so it is not timed; the warm-up is how much longer it took than a later one. Rows up
    to `warm_steps` (random actions of off-policy learning) are not timed either.
    """
    if not rows or not facts["steps_per_second"]:
        return Timing(0, 0.0, 0.0, max((row["time/seconds"] for row in rows), default=0.0))
    last = rows[-1]
    batch = last["steps"] / last["iteration"]
    first_s = facts["seconds"] - (facts["steps"] - batch) / facts["steps_per_second"]
    ordinary_s = (facts["seconds"] - first_s) / max(1.0, facts["steps"] / batch - 1)
    warm_s = max(0.0, first_s - ordinary_s)
    settled = [row for row in rows if row["steps"] >= warm_steps]
    if len(settled) < 2 and warm_steps:
        return Timing(0, 0.0, 0.0, warm_s)
    if len(settled) < 2:
        return Timing(int(facts["steps"] - batch), facts["seconds"] - first_s, facts["steps_per_second"], warm_s)
    steps = settled[-1]["steps"] - settled[0]["steps"]
    seconds = settled[-1]["time/seconds"] - settled[0]["time/seconds"]
    return Timing(steps, seconds, steps / seconds, warm_s)


def _scores(rows: Sequence[Row]) -> list[tuple[float, float]]:
    return [(row["time/seconds"], row["episode/return_mean"]) for row in rows if row["episode/return_mean"] is not None]


def _train(
    variant: Variant, work: Work, run: RunDir, seconds: float, log: int, seed: int, tuned: bool, limit_s: float
) -> dict[str, Any]:
    """Train in a child process; its JSON output."""
    verb = ["train", work.env, "--run", str(run.path), "--minutes", repr(seconds / 60), "--seed", str(seed), "--json"]
    verb += ["--no-tuned"] if tuned else []
    words = command(variant, verb, work.modules, work.trust)
    words += ["--set", f"every.log={log}", "--set", f"every.system={10 * log}"]
    return _facts(variant, _call(variant, words, limit_s + 4 * seconds))


def _evaluated(variant: Variant, work: Work, run: RunDir, seed: int, limit_s: float) -> float | None:
    """Evaluate the run: score against the game's reference opponent, or the mean return."""
    from slipstream.envs.registry import parse

    game, _ = parse(work.env)
    against = ["--opponent", game.reference] if game is not None and game.reference else []
    verb = ["evaluate", f"run:{run.path}", "--env", work.env, "--games", str(work.games), "--seed", str(seed), "--json"]
    bare = Variant(variant.text, commit=variant.commit)
    facts = _facts(variant, _call(variant, command(bare, [*verb, *against], work.modules, work.trust), limit_s))
    found = facts["score"] if against else facts["mean_return"]
    return None if found is None else float(found)


def _call(variant: Variant, words: Sequence[str], limit_s: float) -> str:
    """Run a command of a variant and return its output. An error keeps its exit code and message."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_environment(variant)
        )
        try:
            printed, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"{variant.label} did not end within {time.monotonic() - began:.0f} s.",
                "run it alone to see why: slipstream train",
            ) from None
        finally:
            if child.poll() is None:
                child.terminate()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(10)
                child.kill()
                child.wait()
        if child.returncode == 0:
            return printed
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    error = next((number for number, line in enumerate(lines) if line.startswith("error: ")), None)
    message = "\n".join(lines[error:] if error is not None else lines[-ERROR_LINES:]).removeprefix("error: ")
    kind = CODES.get(child.returncode, SlipstreamError)
    message, _, hint = message.partition("\nhint: ")
    raise kind(f"{variant.label} failed (exit code {child.returncode}): {message}", hint)


def _facts(variant: Variant, printed: str) -> dict[str, Any]:
    """The JSON object of the last line of an output."""
    try:
        facts = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        raise ConfigError(f"{variant.label} printed no JSON object.", "commits older than `--json` cannot be compared")
    return facts


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and key != "schedules":
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _weights(path: Path) -> int:
    """Number of parameters in a weights file; 0 if a commit stores them elsewhere."""
    if not path.is_file():
        return 0
    total = 0
    with safetensors.safe_open(str(path), "numpy") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            size = 1
            for length in file.get_slice(name).get_shape():
                size *= length
            total += size
    return total


def _updates(settings: Mapping[str, Any], row: Row, batch: float) -> float:
    if settings.get("algorithm") == "sac":  # its warm-up without updates may outlast the probe
        return float(settings.get("sac.updates_per_step", 0.0))
    return float(row.get("ppo/updates") or 0.0) / batch


def _warm_steps(settings: Mapping[str, Any]) -> int:
    return int(settings.get("sac.learning_starts") or 0) if settings.get("algorithm") == "sac" else 0
