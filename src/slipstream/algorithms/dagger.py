"""DAgger: the clone plays, and its expert says what it would have done in the states that the clone comes to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

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
"""Seeds of the rounds start here, far from those of recordings."""


def expert_of(demos: Demos, asked: str | None) -> str:
    """Who is asked: the agent named, or the scripted one that recorded the demos."""
    recorded = [str(shard.origin.get("agent", "")) for shard in demos.shards]
    found = asked or next((name for name in recorded if name.startswith("scripted:")), "")
    if not found:
        raise ConfigError(
            f"{demos.path} was not recorded by a scripted agent: there is nobody for DAgger to ask.",
            "name an agent that plays this env: --expert AGENT",
        )
    return found


def play_round(
    choice: EnvChoice, student: str, expert: str, games: int, number: int, folder: Path, schema: Schema
) -> Demos:
    """Let the student play some games, against its expert where there are two sides, and write the expert's actions."""
    shutil.rmtree(folder, ignore_errors=True)
    vector = make_vector(choice, 1)
    try:
        spec = vector.spec
    finally:
        vector.close()
    order = RecordJob(
        choice, student, expert if spec.competitive else None, games, spread(games, spec), FIRST_SEED + number,
        sampled=False, expert=expert,
    )  # fmt: skip
    prepare(folder, schema)
    origin = {"agent": student, "expert": expert, "round": number, "env": choice.name, "seed": order.seed}
    share = RecordShare(0, order, 0, order.envs, folder, f"round-{number:03d}", schema, origin, memory_bytes() // 2)
    told = {name: np.zeros(field.shape, field.dtype) for name, field in slab_fields(1).items()}
    RecordWorker(share, told).run(lambda: False)
    return Demos.open(folder)
