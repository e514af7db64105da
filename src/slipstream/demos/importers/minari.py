"""Minari datasets, read from this machine only.

Observations and actions become what they are in the environment itself. Numbers of 64 bits become 32; images are
exact unless the dataset itself holds them as JPEG.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.demos.format import TERMINATED, TRUNCATED, Schema
from slipstream.demos.importers.ingest import Episode, Part, Source, optional, readable
from slipstream.demos.importers.space_values import Codec, SpaceRules
from slipstream.errors import DemoError, did_you_mean


def minari_root() -> Path:
    """Where Minari keeps its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def minari_data(place: str) -> Path:
    """The data folder of a dataset, given by its folder or by its name; nothing is downloaded."""
    folders = [Path(place), Path(place) / "data", minari_root() / place / "data"]
    for folder in folders:
        if (folder / "metadata.json").is_file() and _metadata(folder).get("data_format"):
            return folder
    root = minari_root()
    known = [data.parent.relative_to(root).as_posix() for data in sorted(root.rglob("data")) if data.is_dir()]
    raise DemoError(
        f"There is no Minari dataset `{place}`, neither as a folder nor in {root}.{did_you_mean(place, known)}",
        f"there are: {', '.join(known)}" if known else "get it first: minari download NAME",
    )


def minari_source(place: str, rules: SpaceRules, env: str = "") -> Source:
    """The episodes of a dataset; the environment is `gymnasium:` and the name that the dataset tells, unless given."""
    minari = optional("minari", "minari")
    data = minari_data(place)
    told = _metadata(data)
    try:
        dataset = minari.MinariDataset(data)
    except Exception as error:  # whatever its own reader meets is what the user has to see
        raise DemoError(f"Minari cannot open {data}: {error!r}.", "look at it with: minari show NAME") from error
    spec = json.loads(told["env_spec"]) if told.get("env_spec") else {}
    env = env or (f"gymnasium:{spec['id']}" if spec.get("id") else str(told.get("dataset_id", data.parent.name)))
    codec = Codec(dataset.observation_space, dataset.action_space, env, rules)
    storage = dataset.storage

    def read(part: Part) -> Episode:
        with readable(data):
            (found,) = storage.get_episodes([part.key])
            (facts,) = storage.get_episode_metadata([part.key])
        return _episode(found, int(facts.get("seed") or 0), codec)

    def count(part: Part) -> int:
        with readable(data):
            (facts,) = storage.get_episode_metadata([part.key])
            return int(facts["total_steps"])

    files = tuple(sorted(file for file in data.iterdir() if file.is_file()))
    parts = [Part(f"episode_{number}", int(number), files) for number in dataset.episode_indices]
    schema = Schema(env, codec.obs, codec.action)
    options = {"dataset": told.get("dataset_id"), "jpeg": bool(told.get("jpeg_encoding", True))}
    return Source("minari", place, schema, parts, read, count, options=options)


def _episode(found: dict[str, Any], seed: int, codec: Codec) -> Episode:
    reward = np.asarray(found["rewards"], np.float32)
    steps = len(reward)
    values = {
        "obs": codec.rows(found["observations"], steps + 1),
        "action": codec.actions(found["actions"], steps),
        "reward": reward,
    }
    ended = 0
    if steps:
        ended = TERMINATED if found["terminations"][-1] else TRUNCATED if found["truncations"][-1] else 0
    return Episode(values, ended, seed=seed)


def _metadata(folder: Path) -> dict[str, Any]:
    with readable(folder / "metadata.json"):
        told: dict[str, Any] = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    return told
