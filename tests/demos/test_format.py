"""The schema of a demos folder: columns, reading it back, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.demos.format import EPISODE, Column, Schema, read_schema
from slipstream.errors import DemoError


def test_a_schema_is_read_as_it_was_written(everything: Schema) -> None:
    """All columns, and infinite bounds, survive JSON."""
    assert Schema.read(json.loads(json.dumps(everything.describe()))) == everything
    free = replace(everything, action=ActionSpec("continuous", (), (-np.inf, -2.0), (np.inf, 0.5)))
    assert Schema.read(json.loads(json.dumps(free.describe()))) == free


def test_columns(everything: Schema) -> None:
    """Columns have a fixed order: the basic ones, the mask, reward terms, extras."""
    assert [column.name for column in everything.columns] == [
        "obs",
        "action",
        "reward",
        "mask",
        "terms/goal",
        "terms/touch",
        "start/state",
        "start/clock",
        "raw/keys",
        "raw/camera",
    ]
    assert everything.column("obs") == Column("obs", "uint8", (80,), "obs")
    assert everything.column("mask").shape == (7,)
    assert everything.column("terms/goal").file == "terms.goal.bin"
    with pytest.raises(DemoError, match="no column `rewards`") as raised:
        everything.column("rewards")
    assert "they have: obs, action, reward" in raised.value.hint


@pytest.mark.parametrize(("per", "count", "start"), [("step", 5, 20), ("obs", 6, 23), ("episode", 1, 3)])
def test_where_values_stand(per: Any, count: int, start: int) -> None:
    """An episode has one observation more than steps, and so has each before it."""
    column = Column("x", "float32", (2, 3), per)
    assert column.bytes == 24
    assert column.count(5) == count
    assert column.start(20, 3) == start


def test_records_have_no_gaps() -> None:
    """A record is as long as its fields, so that files are the same everywhere."""
    assert EPISODE.itemsize == sum(EPISODE[name].itemsize for name in EPISODE.names or ())
    assert EPISODE.names is not None and EPISODE.names[-1] == "seal"


def test_the_schema_of_an_env() -> None:
    """A recording takes its columns from the env, and start states from its snapshot."""
    spec = EnvSpec("toy", vector_obs(2), ActionSpec("discrete", (3,)), (0, 1), ("goal",), step_seconds=0.1)
    schema = Schema.of("toy", spec, {"state": np.zeros((7, 4), np.float32)})
    assert (schema.agents, schema.step_seconds, schema.terms) == (2, 0.1, ("goal",))
    assert schema.extras == (Column("start/state", "float32", (4,), "episode"),)


def test_what_is_no_demos_folder(tmp_path: Path) -> None:
    """The error describes what is in the folder and how to record demos."""
    with pytest.raises(DemoError, match="no such folder") as raised:
        read_schema(tmp_path / "nothing")
    assert "slipstream record" in raised.value.hint
    with pytest.raises(DemoError, match=r"there is no demos\.json in it"):
        read_schema(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="it is a file, not a folder"):
        read_schema(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: "{", "cannot be read"),
        (lambda told: json.dumps([1]), "has format version None, not 1"),
        (lambda told: json.dumps(told | {"version": 7}), "has format version 7, not 1"),
        (lambda told: json.dumps({k: v for k, v in told.items() if k != "obs"}), "is damaged: KeyError"),
        (lambda told: json.dumps(told | {"obs": 3}), "is damaged: TypeError"),
        (
            lambda told: json.dumps(told | {"extras": [{"name": "x", "dtype": "object", "shape": [], "per": "step"}]}),
            "is damaged: ValueError.*column `x` is object per step",
        ),
        (
            lambda told: json.dumps(told | {"extras": [{"name": "x", "dtype": "int8", "shape": [], "per": "week"}]}),
            "column `x` is int8 per week",
        ),
    ],
)
def test_damaged_descriptions(write: Callable[..., Path], change: Callable[[Any], str], words: str) -> None:
    """A description that cannot be trusted is refused; above all one that would map Python objects from a file."""
    folder = write(games=1)
    file = folder / "demos.json"
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(DemoError, match=words) as raised:
        read_schema(folder)
    assert "again" in raised.value.hint
