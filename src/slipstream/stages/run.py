"""The whole story of a game, stage after stage: train, evaluate, report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from slipstream.config import Resolved
from slipstream.core.errors import ConfigError, did_you_mean
from slipstream.envs.registry import EnvChoice, parse
from slipstream.runs.checkpoint import read_best
from slipstream.runs.layout import RunDir, write_json
from slipstream.stages.evaluate import evaluate
from slipstream.stages.report import report
from slipstream.stages.train import train

STAGES = ("train", "evaluate", "report")


def run(
    choice: EnvChoice, resolved: Resolved, place: Path | None, skip: Collection[str],
    tell: Callable[[str], None], on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Do every stage that is not skipped, each from what the one before left on disk."""
    for name in skip:
        if name not in STAGES:
            near = did_you_mean(name, STAGES)
            raise ConfigError(f"There is no stage `{name}`.{near}", f"stages: {', '.join(STAGES)}")
    facts: dict[str, Any] = {"stages": [name for name in STAGES if name not in skip]}
    if "train" not in skip:
        tell("train")
        facts["train"] = train(choice, resolved, place).facts()
        place = Path(facts["train"]["run"])
        if facts["train"]["stopped"]:
            return facts
    if place is None:
        raise ConfigError("Without training there must be a run to go on from.", "name it: --run DIR")
    folder = RunDir.open(place)
    if "evaluate" not in skip:
        tell("evaluate")
        game, _ = parse(choice.name)
        wanted = resolved.settings.evaluation
        opponents = [wanted.opponent] if wanted.opponent else list(game.opponents if game is not None else ())
        agent = f"run:{place}" + ("@best" if read_best(folder) else "")
        seed = resolved.settings.seed + 1_000_003
        facts["evaluate"] = evaluate(
            choice, agent, opponents, wanted.final_games, seed=seed, envs=wanted.envs, on_progress=on_progress
        )  # fmt: skip
        write_json(folder.path / "evaluation.json", facts["evaluate"])
    if "report" not in skip:
        tell("report")
        facts["report"] = report(folder)["report"]
    return facts
