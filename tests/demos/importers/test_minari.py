"""Minari datasets, both ways: bit by bit, images included, from this machine only."""

from __future__ import annotations

import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.contracts import ActionSpec, ObsField, ObsSpec, vector_obs
from slipstream.demos.exporters.minari import export_minari
from slipstream.demos.format import TERMINATED, TRUNCATED, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare
from slipstream.errors import ConfigError, DemoError, MachineError
from slipstream.stages.import_export import export_demos, import_demos

minari = pytest.importorskip("minari", reason='needs minari (pip install "slipstream[minari]")')
EpisodeBuffer = pytest.importorskip("minari.data_collector.episode_buffer").EpisodeBuffer

IMAGE = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("in/eye", "image", (40, 36, 3))))
KINDS = {
    "plain": Schema("e", vector_obs(4), ActionSpec("discrete", (3,))),
    "continuous": Schema("e", vector_obs(4), ActionSpec("continuous", (), (-1.0, -2.0), (1.0, np.inf))),
    "image": Schema("e", ObsSpec((ObsField("", "image", (40, 36, 3)),)), ActionSpec("multi_discrete", (3, 4))),
    "dict": Schema("e", IMAGE, ActionSpec("multi_discrete", (2, 2, 11, 5), binary=(True, True, False, False))),
    "switches": Schema("e", vector_obs(2), ActionSpec("multi_discrete", (2, 2, 2), binary=(True,) * 3)),
    "tokens": Schema("e", ObsSpec((ObsField("", "tokens", (5, 3)),)), ActionSpec("multi_discrete", (4,))),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Minari's own folder, and no network."""

    def refuse(*_: object) -> None:
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write(folder: Path, schema: Schema, seed: int = 0) -> Demos:
    """Three episodes that ended in each of the ways there are."""
    random = np.random.default_rng(seed)
    prepare(folder, schema)
    shard = Shard(folder, "a", schema, {})
    for number, (steps, ended) in enumerate(((6, TERMINATED), (1, TRUNCATED), (9, 0))):
        fields = {
            f.name: random.normal(size=(steps + 1, *f.shape))
            if f.kind == "vector"
            else random.integers(0, 256, (steps + 1, *f.shape))
            for f in schema.obs.fields
        }
        action: Any = random.normal(size=(steps, 2))
        if schema.action.kind != "continuous":
            action = np.stack([random.integers(0, size, steps) for size in schema.action.sizes], axis=1)
        values = {"obs": schema.obs.join(fields), "action": action, "reward": random.normal(size=steps).astype("f")}
        shard.add(values, game=number, ended=ended, seed=11 + number)
    shard.close()
    return Demos.open(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same_bit_by_bit(tmp_path: Path, kind: str) -> None:
    """All observations and actions are preserved, with rewards, ends and seeds; images are not JPEG."""
    demos = write(tmp_path / "one", KINDS[kind])
    facts = export_minari(demos, tmp_path / "out" / "demos-v0")
    assert facts["dataset"] == "demos-v0" and facts["episodes"] == 3
    import_demos("minari", str(tmp_path / "out" / "demos-v0"), tmp_path / "two", env="e")
    again = Demos.open(tmp_path / "two")
    assert again.schema == demos.schema
    assert again.checksum == demos.checksum
    for name in ("ended", "seed", "steps", "return"):
        np.testing.assert_array_equal(again.episodes[name], demos.episodes[name])


def test_minari_reads_what_was_exported(tmp_path: Path, home: Path) -> None:
    """Below Minari's folder the dataset has a name, T + 1 observations, flags at the end, and an environment."""
    schema = Schema("gymnasium:CartPole-v1", vector_obs(4), ActionSpec("discrete", (2,)))
    demos = write(tmp_path / "one", schema)
    facts = export_demos("minari", tmp_path / "one", home / "cartpole" / "expert-v3")
    assert facts["dataset"] == "cartpole/expert-v3"
    dataset = minari.load_dataset("cartpole/expert-v3")
    assert dataset.total_steps == 16 and dataset.spec.dataset_id == "cartpole/expert-v3"
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    for number, episode in enumerate(dataset.iterate_episodes()):
        values = demos.episode(number)
        np.testing.assert_array_equal(episode.observations, values["obs"])
        np.testing.assert_array_equal(episode.actions, values["action"][:, 0])
        assert not episode.terminations[:-1].any() and not episode.truncations[:-1].any()
        ended = demos.episodes["ended"][number]
        assert (episode.terminations[-1], episode.truncations[-1]) == (ended == TERMINATED, ended == TRUNCATED)
    import_demos("auto", "cartpole/expert-v3", tmp_path / "two")
    assert Demos.open(tmp_path / "two").schema == schema


def made(name: str, obs: Any, action: Any, episodes: list[EpisodeBuffer], **more: Any) -> Any:
    """Write a dataset with Minari itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minari.create_dataset_from_buffers(
            name, episodes, observation_space=obs, action_space=action, **({"jpeg_encoding": False} | more)
        )


def test_what_minari_wrote_is_read(tmp_path: Path) -> None:
    """All spaces are encoded as the environment adapter encodes them."""
    random = np.random.default_rng(0)
    eye = random.integers(0, 256, (5, 3, 40, 36)).astype(np.uint8)
    obs = spaces.Dict(
        {"eye": spaces.Box(0, 255, (3, 40, 36), np.uint8), "level": spaces.Discrete(4), "x": spaces.Box(-9, 9, (2,))}
    )
    action = spaces.Dict({"turn": spaces.Discrete(3, start=-1), "jump": spaces.MultiBinary(2)})
    values = {"eye": eye, "level": np.array([0, 1, 2, 3, 0]), "x": random.normal(size=(5, 2)).astype(np.float32)}
    acts = {"turn": np.array([-1, 0, 1, 0]), "jump": np.array([[0, 1], [1, 0], [0, 0], [1, 1]], np.int8)}
    flags = np.zeros(4, bool)
    buffer = EpisodeBuffer(
        observations=values, actions=acts, rewards=np.arange(4.0), terminations=flags, truncations=~flags, seed=5
    )
    made("mixed-v0", obs, action, [buffer])
    import_demos("minari", "mixed-v0", tmp_path / "out")
    demos = Demos.open(tmp_path / "out")
    found = demos.schema.obs.split(np.array(demos.episode(0)["obs"]))
    np.testing.assert_array_equal(found["eye"], eye.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found["level"].argmax(axis=1), values["level"])
    np.testing.assert_array_equal(found["x"], values["x"])
    # Gymnasium sorts the keys of a Dict: jump comes before turn
    np.testing.assert_array_equal(demos.episode(0)["action"], np.column_stack([acts["jump"], acts["turn"] + 1]))
    assert demos.episodes["ended"].tolist() == [TRUNCATED] and demos.episodes["seed"].tolist() == [5]
    assert demos.schema.env == "mixed-v0"


def test_max_samples_and_jpeg(tmp_path: Path) -> None:
    """A JPEG dataset is read as Minari decodes it, and the options say so; the last episode is cut."""
    eye = np.random.default_rng(0).integers(0, 256, (9, 40, 36, 3)).astype(np.uint8)
    flags = np.arange(8) == 7
    buffers = [
        EpisodeBuffer(
            observations=eye,
            actions=np.zeros(8, int),
            rewards=np.ones(8),
            terminations=flags,
            truncations=~flags & False,
        )
        for _ in range(3)
    ]
    box = spaces.Box(0, 255, (40, 36, 3), np.uint8)
    dataset = made("lossy-v0", box, spaces.Discrete(2), buffers, jpeg_encoding=True)
    facts = import_demos("minari", "lossy-v0", tmp_path / "out", max_samples=11)
    demos = Demos.open(tmp_path / "out")
    assert facts["steps"] == 11 and demos.episodes["steps"].tolist() == [8, 3]
    assert demos.episodes["ended"].tolist() == [TERMINATED, 0]
    assert demos.shards[0].origin["options"] == {"dataset": "lossy-v0", "jpeg": True}
    seen = demos.schema.obs.split(np.array(demos.episode(0)["obs"]))[""]
    np.testing.assert_array_equal(seen, next(iter(dataset.iterate_episodes())).observations)
    assert (seen != eye).any()


def test_datasets_that_are_not_there(tmp_path: Path, home: Path) -> None:
    """A dataset that is not local is not downloaded; similar names are suggested."""
    with pytest.raises(DemoError, match="There is no Minari dataset `D4RL/door/human-v2`") as caught:
        import_demos("minari", "D4RL/door/human-v2", tmp_path / "out")
    assert caught.value.hint == "download it first: minari download NAME"
    export_minari(write(tmp_path / "one", KINDS["plain"]), home / "demos-v0")
    with pytest.raises(DemoError, match="Did you mean `demos-v0`") as caught:
        import_demos("minari", "demo-v0", tmp_path / "out")
    assert caught.value.hint == "datasets there: demos-v0"


def test_targets_that_cannot_be(tmp_path: Path, home: Path) -> None:
    """A dataset needs a version in its name, and is never overwritten."""
    demos = write(tmp_path / "one", KINDS["plain"])
    with pytest.raises(ConfigError, match="`out` is not a valid Minari dataset id") as caught:
        export_minari(demos, tmp_path / "out")
    assert caught.value.hint == "give --out a folder such as out-v0"
    export_minari(demos, tmp_path / "out-v0")
    with pytest.raises(DemoError, match="out-v0 already exists"):
        export_minari(demos, tmp_path / "out-v0")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "out-v0"]


def test_a_missing_minari_gives_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package and its extra are named."""
    demos = write(tmp_path / "one", KINDS["plain"])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MachineError, match="This needs the package `minari`") as caught:
        export_minari(demos, tmp_path / "out-v0")
    assert caught.value.hint == 'pip install "slipstream[minari]"'


def test_imported_demos_are_those_of_the_environment(tmp_path: Path, home: Path) -> None:
    """A dataset of an environment has exactly the fields and actions of the environment."""
    from slipstream.envs.adapters.gymnasium import env_spec

    env = gymnasium.make("Pendulum-v1")
    random = np.random.default_rng(0)
    flags = np.zeros(3, bool)
    buffer = EpisodeBuffer(
        observations=random.normal(size=(4, 3)).astype(np.float32),
        actions=random.uniform(-2, 2, (3, 1)).astype(np.float32),
        rewards=np.ones(3),
        terminations=flags,
        truncations=flags,
    )
    made("pendulum-v0", None, None, [buffer], env="Pendulum-v1")
    import_demos("minari", "pendulum-v0", tmp_path / "out")
    schema, spec = Demos.open(tmp_path / "out").schema, env_spec(env, "gymnasium:Pendulum-v1")
    assert (schema.env, schema.obs, schema.action) == (spec.name, spec.obs, spec.action)
