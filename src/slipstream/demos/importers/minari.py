"""Minari datasets on the local disk; nothing is downloaded.

Observations and actions are encoded as in the environment itself. 64-bit values become 32-bit. Images are exact unless
the dataset stores them as JPEG.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.importers.source import (
    Episode,
    EpisodeRef,
    Source,
    file_errors,
    import_optional,
    read_json_object,
)
from slipstream.demos.importers.space_values import Codec, SpaceRules
from slipstream.errors import DemoError, did_you_mean


def minari_root() -> Path:
    """The folder where Minari stores its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def minari_data(location: str) -> Path:
    """The data folder of a dataset, given by its folder or by its name."""
    root = minari_root()
    for folder in (Path(location), Path(location) / "data", root / location / "data"):
        file = folder / "metadata.json"
        if file.is_file() and read_json_object(file).get("data_format"):
            return folder
    known = [data.parent.relative_to(root).as_posix() for data in sorted(root.rglob("data")) if data.is_dir()]
    raise DemoError(
        f"There is no Minari dataset `{location}`, neither as a folder nor in {root}.{did_you_mean(location, known)}",
        f"datasets there: {', '.join(known)}" if known else "download it first: minari download NAME",
    )


def minari_source(location: str, rules: SpaceRules, env: str = "") -> Source:
    """The episodes of a dataset; the environment defaults to `gymnasium:` and the id in the dataset's metadata."""
    minari = import_optional("minari", "minari")
    data = minari_data(location)
    metadata = read_json_object(data / "metadata.json")
    try:
        dataset = minari.MinariDataset(data)
    except Exception as error:  # any failure of Minari's own reader
        raise DemoError(f"Minari cannot open {data}: {error!r}.", "inspect it with: minari show NAME") from error
    spec = json.loads(metadata["env_spec"]) if metadata.get("env_spec") else {}
    env = env or (f"gymnasium:{spec['id']}" if spec.get("id") else str(metadata.get("dataset_id", data.parent.name)))
    codec = Codec(dataset.observation_space, dataset.action_space, env, rules)
    storage = dataset.storage

    def read(ref: EpisodeRef) -> Episode:
        with file_errors(data):
            (found,) = storage.get_episodes([ref.key])
            (facts,) = storage.get_episode_metadata([ref.key])
        ended = 0
        if len(found["rewards"]):
            ended = TERMINATED if found["terminations"][-1] else TRUNCATED if found["truncations"][-1] else 0
        seed = int(facts.get("seed") or 0)
        return codec.episode(found["observations"], found["actions"], found["rewards"], ended, seed)

    def count(ref: EpisodeRef) -> int:
        with file_errors(data):
            (facts,) = storage.get_episode_metadata([ref.key])
            return int(facts["total_steps"])

    files = tuple(sorted(file for file in data.iterdir() if file.is_file()))
    episodes = [EpisodeRef(f"episode_{number}", int(number), files) for number in dataset.episode_indices]
    options = {"dataset": metadata.get("dataset_id"), "jpeg": bool(metadata.get("jpeg_encoding", True))}
    return Source("minari", location, codec.schema, episodes, read, count, options=options)
