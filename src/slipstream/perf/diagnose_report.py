"""The report of a diagnosis: a summary for the terminal, and an HTML page with charts."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from slipstream.perf.diagnose import Diagnosis
from slipstream.perf.measurements import EnvFindings, Findings, InferenceFindings, LearnFindings, Times
from slipstream.perf.rules import RULES
from slipstream.runs import figures
from slipstream.runs.display import human_count
from slipstream.runs.figures import Line
from slipstream.runs.html_pages import figure, grid, page, table, tiles
from slipstream.runs.layout import write_text

MEANS = {
    "leak": "memory leaks until the run is killed",
    "oversubscribed": "more threads or workers than cores",
    "wasted-updates": "too many gradient steps for the collected data",
    "sync-bound": "training waits for single numbers read from tensors",
    "reset-bound": "training waits for resets",
    "transfer-bound": "training waits for copies to the GPU",
    "activation-bound": "training waits for the activation function",
    "env-bound": "training waits for environments",
    "inference-bound": "training waits for inference",
    "learner-bound": "training waits for the learner",
    "balanced": "no bottleneck",
}
"""The meaning of each verdict."""


def summary(diagnosis: Diagnosis) -> str:
    """The summary of a diagnosis."""
    found, train = diagnosis.found, diagnosis.found.train
    shares = ", ".join(f"{name} {share:.0%}" for name, share in vars(train.shares).items())
    lines = [
        f"{found.name}: {diagnosis.verdict} ({MEANS[diagnosis.verdict]})",
        f"{train.rate:,.0f} steps/s: {shares}; each step used {train.update_to_data:.3g} times",
    ]
    lines += [f"{name}: {text}" for name, text in _rows(found)]
    for number, one in enumerate(diagnosis.advice, 1):
        gain = f"about {one.gain:.2g}x" if one.gain > 1.005 else "no speed-up, but more robust"
        lines += [f"{number}. {one.told} [{one.rule}]", f"   {one.do}: {gain}", f"   try: {one.command}"]
    return "\n".join(lines)


def write_page(diagnosis: Diagnosis, place: Path) -> None:
    """Write the page as one self-contained HTML file."""
    found = diagnosis.found
    sections = [
        ("Advice", _advice(diagnosis)),
        ("Where the time goes", _time(found)),
        ("Limits of the machine", _limits(found)),
        ("Parts alone", table(["what", "measured"], _rows(found))),
        ("Inference by batch size", _batches(found.inference)),
        ("Memory", _memory(found)),
        ("The plan", table(["switch", "applied"], [[f"plan.{k}", str(v)] for k, v in found.train.plan.items()])),
        ("All rules", table(["rule", "verdict", "when"], [[r.name, r.verdict or "advice", r.when] for r in RULES])),
    ]
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, page(f"Diagnosis of {found.name}", _head(diagnosis), sections))


def _head(diagnosis: Diagnosis) -> str:
    found, train = diagnosis.found, diagnosis.found.train
    best = max((one.gain for one in diagnosis.advice), default=1.0)
    facts = [
        ("verdict", diagnosis.verdict),
        ("steps per second", human_count(train.rate)),
        ("uses of each step", f"{train.update_to_data:.3g}"),
        ("best predicted gain", f"{best:.2g}x" if best > 1.005 else "none"),
    ]
    return (
        f"<h1>{html.escape(found.name)}</h1>"
        f'<p class="lead">{diagnosis.verdict}: {html.escape(MEANS[diagnosis.verdict])}.</p>{tiles(facts)}'
    )


def _advice(diagnosis: Diagnosis) -> str:
    rows = [[one.rule, one.told, one.do, one.command, f"{one.gain:.2f}x"] for one in diagnosis.advice]
    return table(["rule", "measured", "what to do", "try", "predicted"], rows, 1) or "<p>No advice.</p>"


def _time(found: Findings) -> str:
    train = found.train
    strip = figures.strip([(name, share, f"{share:.0%}") for name, share in vars(train.shares).items()])
    drawn = [
        figure("Steps per second, by time slice", _line("steps/s", list(enumerate(train.rates)), "slices")),
        figure("Memory of this process and its workers", _line("MiB", train.memory, "s", "MiB")),
    ]
    if found.past is not None:
        drawn.append(figure(f"Steps per second in {found.past.run}", _line("steps/s", found.past.rates, "s")))
        drawn.append(figure(f"Memory in {found.past.run}", _line("MiB", found.past.memory, "steps", "MiB")))
    return figure("An iteration of training", strip) + grid(drawn)


def _line(name: str, points: Any, along: str, unit: str = "") -> str:
    line = Line(name, [(float(x), float(y), None, None) for x, y in points])
    return figures.lines([line], unit=unit, zero=True, along=along)


def _limits(found: Findings) -> str:
    bars = [("training, as measured", found.train.rate, f"{human_count(found.train.rate)}/s")]
    if found.env is not None:
        if found.env.workers_rate:
            rate = found.env.workers_rate
            bars.append((f"envs alone, {found.env.workers} processes", rate, f"{human_count(rate)}/s"))
        bars.append(("envs alone, 1 process", found.env.rate, f"{human_count(found.env.rate)}/s"))
        bars.append((f"envs alone x {found.limits.cores} cores", found.env_limit, f"{human_count(found.env_limit)}/s"))
    if found.learn is not None:
        rate = found.learn.samples_per_second / max(found.train.update_to_data, 1e-9)
        bars.append(("learner alone", rate, f"{human_count(rate)}/s"))
    return figure("Steps per second", figures.bars(bars))


def _batches(inference: InferenceFindings | None) -> str:
    if inference is None:
        return ""
    rows = [
        [f"{size:,}" + (" (training)" if size == inference.rows else "")]
        + [f"{us:,.1f}" for us in (times.mean_us, times.p50_us, times.p95_us, times.p99_us)]
        + [f"{inference.per_row_us(size):.2f}"]
        for size, times in inference.by_batch.items()
    ]
    return table(["rows", "mean us", "p50", "p95", "p99", "us per row"], rows, 5)


def _memory(found: Findings) -> str:
    rows = [
        [part.stage, part.name, f"{part.budget_mib:,.1f}", "" if part.used_mib is None else f"{part.used_mib:,.1f}"]
        for part in found.memory
    ]
    return table(["stage", "part", "budget MiB", "used MiB"], rows, 2)


def _rows(found: Findings) -> list[tuple[str, str]]:
    """The measurements of each part as text."""
    rows = _env_rows(found.env) + _network_rows(found.inference, found.learn)
    limits, gpu = found.limits, found.gpu
    rows.append(
        (
            "machine",
            f"{limits.cores} cores, {limits.gemm_gflops:,.0f} GFLOP/s, memory {limits.copy_gib_s:,.0f} GiB/s, a line "
            f"of Python {1e3 * limits.line_us:.0f} ns",
        )
    )
    if gpu is not None:
        rows.append(
            (
                "GPU",
                f"{gpu.name}: busy {gpu.utilisation:.0%}, {gpu.memory_mib:,.0f} of {gpu.total_mib:,.0f} MiB, copies "
                f"{gpu.to_device_gib_s:.1f} GiB/s to the GPU, {gpu.to_host_gib_s:.1f} back",
            )
        )
    drift = found.train.drift
    grown = f"grows by {found.train.growth_bytes:,.0f} bytes per step" if found.train.growth_bytes else "steady"
    rows.append(("over time", f"steps/s {f'{drift.change:+.0%}' if drift.sure else 'steady'}, memory {grown}"))
    return rows


def _env_rows(env: EnvFindings | None) -> list[tuple[str, str]]:
    if env is None:
        return []
    rows = [("env step", f"{_times(env.step)}; {env.rate:,.0f} per second in one process")]
    if env.workers_rate:
        rows.append(
            ("env workers", f"{env.workers_rate:,.0f} per second in {env.workers} processes, one exchange per step")
        )
    if env.reset is not None:
        rows.append(("env reset", f"{_times(env.reset)}; {env.reset_share:.0%} of the env's time"))
        rows.append(("env checks", f"Gymnasium's wrappers would add {env.wrapper_share:.0%}; training removes them"))
    rows.append(("env Python", f"{env.lines:,.0f} lines per step, at least {env.python_share:.0%} of its time"))
    return rows


def _network_rows(inference: InferenceFindings | None, learn: LearnFindings | None) -> list[tuple[str, str]]:
    rows = []
    if inference is not None:
        rows.append(("inference", f"{inference.rows} rows: {_times(inference.by_batch[inference.rows])}"))
    if learn is not None:
        rows.append(
            (
                "learner",
                f"{learn.engine}, {learn.samples_per_second:,.0f} samples/s, {learn.update_ms:.3g} ms per update, "
                f"{learn.gflops:.3g} GFLOP/s, {learn.syncs:.3g} synchronisations, activations "
                f"{learn.activation_share:.0%}",
            )
        )
    return rows


def _times(times: Times) -> str:
    return f"p50 {times.p50_us:,.1f} us, p95 {times.p95_us:,.1f}, p99 {times.p99_us:,.1f}"
