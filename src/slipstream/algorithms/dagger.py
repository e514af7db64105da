"""DAgger: the clone plays, and the expert's actions in the visited states are recorded as demos."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from slipstream.agents.specs import is_own
from slipstream.demos.format import Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import prepare
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.play.record_worker import RecordShare, RecordWorker, slab_fields
from slipstream.play.recorder import RecordJob, spread
from slipstream.system.machine import memory_bytes
from slipstream.vector.make import make_vector

FIRST_SEED = 1_000_000
"""The seed of round 0; recordings use much lower seeds."""


def choose_expert(demos: Demos, requested: str | None) -> str:
    """The requested agent, or the one that recorded the demos, if it is scripted or the user's own."""
    recorded = [str(shard.origin.get("agent", "")) for shard in demos.shards]
    found = requested or next((name for name in recorded if name.startswith("scripted:") or is_own(name)), "")
    if not found:
        raise ConfigError(
            f"DAgger needs an expert: {demos.path} was not recorded by a scripted agent or one of your own.",
            "choose an agent that plays this env: --expert AGENT",
        )
    return found


def play_dagger_round(
    choice: EnvChoice, student: str, expert: str, games: int, number: int, folder: Path, schema: Schema
) -> Demos:
    """Let the student play games (against the expert in competitive envs) and record the expert's actions."""
    shutil.rmtree(folder, ignore_errors=True)
    vector = make_vector(choice, 1)
    try:
        spec = vector.spec
    finally:
        vector.close()
    job = RecordJob(
        choice,
        student,
        expert if spec.competitive else None,
        games,
        spread(games, spec),
        FIRST_SEED + number,
        sampled=False,
        expert=expert,
    )
    prepare(folder, schema)
    origin = {"agent": student, "expert": expert, "round": number, "env": choice.name, "seed": job.seed}
    share = RecordShare(0, job, 0, job.envs, folder, f"round-{number:03d}", schema, origin, memory_bytes() // 2)
    progress = {name: np.zeros(field.shape, field.dtype) for name, field in slab_fields(1).items()}
    RecordWorker(share, progress).run(lambda: False)
    return Demos.open(folder)
