"""Compete: train by self-play in a league, and write a ladder with the ratings of all players."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.config import Resolved
from slipstream.envs.registry import EnvChoice, UserCode
from slipstream.errors import ConfigError
from slipstream.league.ladder import write_ladder
from slipstream.league.league import League
from slipstream.runs.layout import RunDir
from slipstream.training import runner
from slipstream.training.runner import TrainingResult


def compete(choice: EnvChoice, resolved: Resolved, run: Path | None = None, **observers: Any) -> dict[str, Any]:
    """Start a new league; `observers` are `on_iteration` and `sinks` as `train` takes them."""
    if resolved.settings.opponent:
        raise ConfigError(
            f"A league chooses its own opponents, but `opponent` = {resolved.settings.opponent}.",
            f"make it an anchor: --set 'league.anchors=[{resolved.settings.opponent}]'",
        )
    return _facts(runner.begin(choice, resolved, run, stage="compete", opponents=League, **observers))


def resume(run: Path, steps: int | None = None, code: UserCode | None = None, **observers: Any) -> dict[str, Any]:
    """Resume a league from its newest valid checkpoint; `steps` is the total."""
    return _facts(runner.resume(run, steps, code, opponents=League, **observers))


def _facts(trained: TrainingResult) -> dict[str, Any]:
    """The final metrics, and the ladder, which is computed from all games."""
    run = RunDir.open(trained.run)
    return trained.facts() | {"ladder": write_ladder(run)}
