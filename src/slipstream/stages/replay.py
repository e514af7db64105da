"""Describe a replay in text, and write it as a video or an image."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from slipstream.contracts import sides_of
from slipstream.envs.registry import UserCode
from slipstream.envs.render.video import short_name
from slipstream.errors import ConfigError
from slipstream.play import replay_recording
from slipstream.play.video_files import Progress, VideoOptions, check_files, save_gif, save_mp4, save_png
from slipstream.runs.replays import Event, Replay


def replay(
    recorded: Replay,
    code: UserCode,
    *,
    mp4: str | Path | None = None,
    gif: str | Path | None = None,
    png: str | Path | None = None,
    speed: float = 1.0,
    fps: float | None = None,
    size: tuple[int, int] | None = None,
    first_s: float = 0.0,
    last_s: float | None = None,
    verify: bool = False,
    on_progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Describe a replay, write it into the given files, and on request check that it can be played again."""
    outputs = {kind: Path(path) for kind, path in (("mp4", mp4), ("gif", gif), ("png", png)) if path is not None}
    check_files(outputs)
    if png is not None and (first_s or last_s is not None):
        raise ConfigError("--from and --to do not apply to --png, which shows the whole game.", "leave them out")
    options, lines = VideoOptions(speed, fps, size, first_s, last_s), []
    for kind, path in outputs.items():
        if kind == "png":
            save_png(recorded, path, options, code)
            lines.append(f"{path}: images of several moments")
        else:
            save = save_mp4 if kind == "mp4" else save_gif
            lines.append(f"{path}: {save(recorded, path, options, on_progress, code):,} frames")
    if verify:
        replay_recording.verify(recorded, code)
        lines.append(f"{recorded.path}: played again, {recorded.facts.length:,} states identical bit for bit")
    done = {"verified": verify, "written": [str(path) for path in outputs.values()]}
    return describe(recorded) | done | {"text": lines or describe_lines(recorded)}


def describe(replay: Replay) -> dict[str, Any]:
    """The facts of a replay as JSON values: players, game, result and events."""
    facts = replay.facts
    counts = Counter((event.kind, _side(replay, event)) for event in facts.events)
    kinds = dict.fromkeys(event.kind for event in facts.events)
    return {
        "path": str(replay.path),
        "bytes": replay.path.stat().st_size,
        "env": facts.env,
        "task": facts.task,
        "seed": facts.seed,
        "players": list(facts.players),
        "outcome": facts.outcome,
        "score": None if facts.score is None else list(facts.score),
        "length": facts.length,
        "seconds": facts.length * facts.step_seconds,
        "kind": facts.kind,
        "steps": facts.steps,
        "counts": {kind: [counts[kind, side] for side in range(len(facts.players))] for kind in kinds},
        "events": [
            {
                "step": event.step,
                "seconds": event.step * facts.step_seconds,
                "kind": event.kind,
                "agent": event.agent,
                "side": _side(replay, event),
            }
            for event in facts.events
        ],
        "arrays": list(replay.names),
    }


def describe_lines(replay: Replay) -> list[str]:
    """The facts as lines of text; touches are only counted."""
    facts, about = replay.facts, describe(replay)
    lines = [f"{replay.path}: {facts.env}{', ' + facts.task if facts.task else ''}, {about['bytes'] / 1024:.0f} kB"]
    names = [short_name(name) for name in facts.players]
    if len(names) > 1:
        ended = {1: f"{names[0]} won", 0: "a draw", -1: f"{names[1]} won"}[facts.outcome]
        score = "" if facts.score is None else " " + " : ".join(f"{goals:g}" for goals in facts.score)
        lines.append(f"{names[0]} (blue) against {names[1]} (orange):{score} {ended}")
    else:
        lines.append(f"{names[0]}: return {facts.returns[0]:.4g}" if facts.returns else names[0])
    pace = f", {about['seconds']:.1f} s" if facts.step_seconds else ""
    trained = f" after {facts.steps:,} steps of training" if facts.steps is not None else ""
    why = f", {facts.kind}{trained}" if facts.kind else ""
    lines.append(f"{facts.length:,} steps{pace}, seed {facts.seed}{why}")
    for kind, numbers in about["counts"].items():
        lines.append(f"{kind}: " + ", ".join(f"{n} {name}" for n, name in zip(numbers, names, strict=True)))
    for event in facts.events:
        if event.kind != "touch":
            when = f"{event.step * facts.step_seconds:6.1f} s" if facts.step_seconds else f"step {event.step:,}"
            lines.append(f"{when}  {event.kind:<6} {names[_side(replay, event)]}")
    return lines


def _side(replay: Replay, event: Event) -> int:
    return sides_of(replay.facts.teams)[event.agent] if event.agent >= 0 else 0
