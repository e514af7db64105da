"""Small demos on disk, with any schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec, vector_obs
from slipstream.demos.format import TERMINATED, Column, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare

EVERYTHING = Schema(
    "mixed",
    ObsSpec(
        (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (4, 5, 3)), ObsField("near", "tokens", (2, 3)))
    ),
    ActionSpec("multi_discrete", (3, 4), masked=True),
    ("goal", "touch"),
    agents=2,
    step_seconds=0.05,
    extras=(
        Column("start/state", "float64", (6,), "episode"),
        Column("start/clock", "int64", (), "episode"),
        Column("raw/keys", "bool", (4,)),
        Column("raw/camera", "float32", (2, 2), "obs"),
    ),
)
"""A schema with every column type."""
PLAIN = Schema("toy", vector_obs(3), ActionSpec("discrete", (4,)))


def draw(schema: Schema, steps: int, random: np.random.Generator) -> dict[str, Array]:
    """One episode of random values that nothing is wrong with."""
    values: dict[str, Array] = {}
    for column in schema.columns:
        shape = (column.count(steps), *column.shape)
        kind = np.dtype(column.dtype).kind
        drawn = random.normal(0, 1, shape) if kind == "f" else random.integers(0, 2 if kind == "b" else 200, shape)
        values[column.name] = drawn.astype(column.dtype)
    if not schema.obs.plain:
        fields = {f.name: random.normal(0, 1, (steps + 1, *f.shape)) for f in schema.obs.fields if f.kind == "vector"}
        others = [f for f in schema.obs.fields if f.kind != "vector"]
        fields |= {f.name: random.integers(0, 256, (steps + 1, *f.shape)) for f in others}
        values["obs"] = schema.obs.join(fields)
    if schema.action.kind == "continuous":
        values["action"] = random.uniform(schema.action.low, schema.action.high, (steps, schema.action.parts))
    else:
        values["action"] = np.stack([random.integers(0, size, steps) for size in schema.action.sizes], axis=1)
    if schema.action.masked:
        values["mask"] = np.ones_like(values["mask"])
    return values


@pytest.fixture
def values() -> Callable[..., dict[str, Array]]:
    """Draw the values of one good episode."""
    return lambda schema=PLAIN, steps=10, seed=0: draw(schema, steps, np.random.default_rng([seed, 5]))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a shard of random episodes, each game with its agents, and return the folder; `alter` spoils values."""

    def make(
        name: str = "demos",
        games: int = 4,
        *,
        schema: Schema = PLAIN,
        shard: str = "a",
        steps: int = 40,
        first: int = 0,
        seed: int = 0,
        origin: Mapping[str, Any] | None = None,
        alter: Callable[[int, dict[str, Array]], None] | None = None,
    ) -> Path:
        folder = tmp_path / name
        prepare(folder, schema)
        writer = Shard(folder, shard, schema, {"agent": "test", "seed": seed} if origin is None else origin)
        for number in range(games * schema.agents):
            game, agent = first + number // schema.agents, number % schema.agents
            drawn = draw(schema, steps + game % 3, np.random.default_rng([seed, game, agent]))
            if alter is not None:
                alter(number, drawn)
            outcome = (0, 1 - 2 * agent)[schema.agents > 1]
            writer.add(
                drawn, game=game, env=game % 2, seed=seed, agent=agent, team=agent, outcome=outcome, ended=TERMINATED
            )
        writer.close()
        return folder

    return make


@pytest.fixture
def everything() -> Schema:
    """A schema with every column type."""
    return EVERYTHING


@pytest.fixture
def plain() -> Schema:
    """A schema of numbers and one choice."""
    return PLAIN


@pytest.fixture
def opened(write: Callable[..., Path], everything: Schema) -> Demos:
    """Demos with every column type, in three shards, with episodes of 2 to 12 steps."""
    for number, steps in enumerate((2, 7, 10)):
        folder = write(shard=f"s{number}", games=3, schema=everything, steps=steps, first=10 * number)
    return Demos.open(folder)
