"""Cached features of demos: computed once, verified, and as useful for training as images."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from ppo_cases import COEFFICIENTS, blank_batch
from slipstream.agents.trained import TrainedAgent
from slipstream.algorithms import pretrained_features
from slipstream.algorithms.engine import SUMS, Batch
from slipstream.algorithms.pretrained_features import replace_images
from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec, vector_obs
from slipstream.demos.format import TERMINATED, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare
from slipstream.engines.fused_engine import FusedEngine
from slipstream.envs.tiny.pixels import brightest_quarter
from slipstream.errors import DemoError, MachineError
from slipstream.policies.convert_weights import VptImageEncoder, VptShape, write_trunk
from slipstream.policies.design import Design
from slipstream.policies.pretrained import Trunk, from_head_params, head_design, load_trunk
from slipstream.settings import PolicySettings

POLICY_LOSS = COEFFICIENTS._replace(
    minibatch=256, clip=1e6, value=0.0, entropy=0.0, max_grad_norm=1.0, learning_rate=3e-3, adam_eps=1e-8,
    normalise_advantage=False,
)  # fmt: skip
"""Coefficients of the policy loss alone, without clipping."""
SHAPE = VptShape(widths=(8, 12), blocks=1, channels=1, side=12, dense=48, features=64)
EYE = ObsSpec((ObsField("eye", "image", (12, 12, 1)),))
MIXED = ObsSpec(
    (
        ObsField("speed", "vector", (3,)),
        ObsField("eye", "image", (12, 12, 1)),
        ObsField("map", "tokens", (4, 3)),
        ObsField("back", "image", (8, 10, 1)),
    )
)
QUARTERS = ActionSpec("discrete", (4,))


@pytest.fixture
def trunk(tmp_path: Path) -> Trunk:
    """A small trunk with random weights."""
    return make_trunk(tmp_path / "trunk", 0)


def make_trunk(folder: Path, seed: int) -> Trunk:
    """Write a trunk and load it."""
    torch.manual_seed(seed)
    write_trunk(folder, SHAPE, VptImageEncoder(SHAPE).state_dict(), {})
    return load_trunk(str(folder))


def record(folder: Path, obs: ObsSpec, lengths: tuple[int, ...], name: str = "first", seed: int = 0) -> Demos:
    """Append a shard of noise with a bright pixel in the quarter of the action."""
    schema, random = Schema("made-up", obs, QUARTERS), np.random.default_rng(seed)
    prepare(folder, schema)
    shard = Shard(folder, name, schema, {})
    for number, steps in enumerate(lengths):
        named: dict[str, Array] = {}
        for field in obs.fields:
            size = (steps + 1, *field.shape)
            named[field.name] = random.normal(0, 1, size) if field.kind == "vector" else random.integers(0, 64, size)
        eye = named["eye"].reshape(steps + 1, -1)
        eye[np.arange(steps + 1), random.integers(0, eye.shape[1], steps + 1)] = 255
        action = brightest_quarter(eye)[:steps, None].astype(np.int32)
        values = {"obs": obs.join(named), "action": action, "reward": np.ones(steps, np.float32)}
        shard.add(values, game=number, ended=TERMINATED)
    shard.close()
    return Demos.open(folder)


def alike(cached: Array, computed: Array) -> bool:
    """Whether features are equal up to the last bit, which depends on the batch size."""
    return cached.shape == computed.shape and np.allclose(cached, computed, rtol=2e-3, atol=1e-4)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of every call of the trunk."""
    counts: list[int] = []
    read = Trunk.read

    def watch(self: Trunk, pixels: Any) -> Any:
        counts.append(len(pixels))
        return read(self, pixels)

    monkeypatch.setattr(Trunk, "read", watch)
    return counts


def test_every_image_becomes_its_features(trunk: Trunk, tmp_path: Path) -> None:
    """Rows hold vectors, features and tokens, also of each episode's last observation; other columns are unchanged."""
    demos = record(tmp_path / "demos", MIXED, (5, 1, 9))
    seen = replace_images(demos, trunk)
    assert [(f.name, f.kind, f.shape) for f in seen.schema.obs.fields] == [
        ("speed", "vector", (3,)),
        ("eye", "vector", (64,)),
        ("back", "vector", (64,)),
        ("map", "tokens", (4, 3)),
    ]
    for number in range(3):
        before, after = demos.episode(number), seen.episode(number)
        given, features = MIXED.split(before["obs"]), seen.schema.obs.split(after["obs"])
        for name in ("eye", "back"):
            assert alike(features[name], trunk.encode(given[name]))
        assert np.array_equal(features["speed"], given["speed"]) and np.array_equal(features["map"], given["map"])
        assert len(after["obs"]) == len(after["reward"]) + 1 and np.array_equal(after["action"], before["action"])
    steps = np.array([0, 5, 14, 7])
    whole = seen.load(["obs", "reward"])
    assert np.array_equal(seen.take("obs", steps), whole["obs"][steps]) and len(whole["reward"]) == 15
    assert np.array_equal(seen.take("obs", np.array([4]), ahead=1)[0], seen.episode(0)["obs"][5])
    assert np.array_equal(seen.take_sequences("obs", np.array([6]), 3)[0], seen.episode(2)["obs"][:3])
    assert seen.shards[0].intact(2) and len(seen.pick([2, 0])) == 2 and seen.label(1) == demos.label(1)


def test_images_alone_become_plain_rows(trunk: Trunk, tmp_path: Path) -> None:
    """Without tokens the rows are float vectors that the kernels can read."""
    seen = replace_images(record(tmp_path / "demos", EYE, (4,)), trunk)
    assert seen.schema.obs.plain and seen.take("obs", np.arange(4)).dtype == np.float32
    rows = seen.shards[0].column("obs")
    assert len(rows) == 5 and rows.shape == (5, 64) and rows.dtype == np.float32


def test_cached_features_are_not_computed_again(trunk: Trunk, tmp_path: Path, counted: list[int]) -> None:
    """Cached features are read from disk for any subset of the demos."""
    demos = record(tmp_path / "demos", EYE, (120, 80, 200))
    progress: list[tuple[int, int]] = []
    began = perf_counter()
    first = replace_images(demos, trunk, lambda *done: progress.append(done)).load(["obs"])["obs"]
    middle = perf_counter()
    assert (
        sum(counted) == 403
        and progress[-1] == (403, 403)
        and [done for done, _ in progress] == sorted(d for d, _ in progress)
    )
    counted.clear()
    progress.clear()
    seconds = []
    for _ in range(3):
        start = perf_counter()
        again = replace_images(Demos.open(tmp_path / "demos"), trunk, lambda *done: progress.append(done)).load(
            ["obs"]
        )["obs"]
        seconds.append(perf_counter() - start)
        assert not counted and not progress and np.array_equal(first, again)
    assert min(seconds) < (middle - began) / 3
    part = replace_images(demos.pick([2]), trunk).load(["obs"])["obs"]
    assert not counted and np.array_equal(part, first[200:])


def test_only_requested_episodes_are_computed(trunk: Trunk, tmp_path: Path, counted: list[int]) -> None:
    """Only requested episodes are computed; later ones and new recordings are added."""
    demos = record(tmp_path / "demos", EYE, (30, 20, 10))
    replace_images(demos.pick([1]), trunk)
    assert sum(counted) == 21
    replace_images(demos, trunk)
    assert sum(counted) == 63
    more = record(tmp_path / "demos", EYE, (7,), "second", seed=3)
    seen = replace_images(more, trunk)
    assert sum(counted) == 71 and len(list((tmp_path / "demos" / "features").glob("*.bin"))) == 2
    assert alike(seen.episode(3)["obs"], trunk.encode(EYE.split(more.episode(3)["obs"])["eye"]))


def test_another_trunk_or_other_data_has_other_features(trunk: Trunk, tmp_path: Path) -> None:
    """Another trunk or other data uses another cache file."""
    demos = record(tmp_path / "demos", EYE, (6,))
    other = make_trunk(tmp_path / "other", 1)
    ours, theirs = (replace_images(demos, one).load(["obs"])["obs"] for one in (trunk, other))
    assert not np.allclose(ours, theirs, atol=1e-2)
    record(tmp_path / "elsewhere", EYE, (6,), seed=9)
    names = {path.name for path in (tmp_path / "demos" / "features").glob("*.bin")}
    replace_images(Demos.open(tmp_path / "elsewhere"), trunk)
    (name,) = (path.name for path in (tmp_path / "elsewhere" / "features").glob("*.bin"))
    assert len(names) == 2 and name not in names and name.startswith(trunk.hash[:16])
    facts = json.loads((tmp_path / "elsewhere" / "features" / name.replace(".bin", ".json")).read_text())
    assert facts["trunk_hash"] == trunk.hash and (facts["observations"], facts["features"]) == (7, 64)


def test_an_interrupted_computation_continues(
    trunk: Trunk, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes finished before an interruption are not computed again."""
    monkeypatch.setattr(pretrained_features, "FLUSH_EVERY", 20)
    demos = record(tmp_path / "demos", EYE, (19, 19, 19, 19))

    def stop(done: int, total: int) -> None:
        if done > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_images(demos, trunk, stop)
    counted.clear()
    seen = replace_images(demos, trunk)
    assert sum(counted) == 40
    for number in range(4):
        images = EYE.split(demos.episode(number)["obs"])["eye"]
        assert alike(seen.episode(number)["obs"], trunk.encode(images))


def test_damaged_features_are_computed_again(trunk: Trunk, tmp_path: Path, counted: list[int]) -> None:
    """A flipped bit or a truncated file causes the affected episodes to be computed again."""
    demos = record(tmp_path / "demos", EYE, (4, 4, 4))
    first = replace_images(demos, trunk).load(["obs"])["obs"]
    (file,) = (tmp_path / "demos" / "features").glob("*.bin")
    data = bytearray(file.read_bytes())
    data[5 * 64 * 2 + 3] ^= 64
    file.write_bytes(data)
    counted.clear()
    assert alike(replace_images(demos, trunk).load(["obs"])["obs"], first) and sum(counted) == 5
    file.write_bytes(file.read_bytes()[:-10])
    counted.clear()
    assert alike(replace_images(demos, trunk).load(["obs"])["obs"], first) and sum(counted) == 5


def test_demos_without_images_and_folders_that_cannot_be_written(trunk: Trunk, tmp_path: Path) -> None:
    """Demos without images and read-only folders raise different errors with hints."""
    blind = Schema("made-up", vector_obs(3), QUARTERS)
    prepare(tmp_path / "blind", blind)
    with pytest.raises(DemoError, match=r"have no images.*\nhint: remove policy.image=frozen"):
        replace_images(Demos.open(tmp_path / "blind"), trunk)
    demos = record(tmp_path / "demos", EYE, (4,))
    (tmp_path / "demos" / "features").write_text("in the way")
    with pytest.raises(MachineError, match=r"cannot be written to .*features: .*\nhint: make the folder writable"):
        replace_images(demos, trunk)


def whole_batch(seen: Demos) -> Batch:
    """All steps of some demos as one imitation batch."""
    columns = seen.load(["obs", "action"])
    count = seen.steps
    deviation = columns["obs"].std(axis=0) + np.float32(1e-3)
    normaliser = columns["obs"].mean(axis=0), (1 / deviation).astype(np.float32)
    none, ones = np.zeros((count, 0), np.uint8), np.ones(count, np.float32)
    return blank_batch(columns["obs"], normaliser, none, columns["action"], advantage=ones, rows=count)


def test_a_head_trained_on_the_cache_plays_on_pixels(trunk: Trunk, tmp_path: Path, counted: list[int]) -> None:
    """A head trained by the kernels on cached features classifies new images behind the trunk."""
    demos = record(tmp_path / "demos", EYE, (400,) * 10)
    design = Design(EYE, QUARTERS, PolicySettings(hidden=(64,), image="frozen", trunk=trunk.name))
    head, batch = head_design(design), whole_batch(replace_images(demos, trunk))
    params_and_stats = head.initial_params_and_stats(0)
    head.write_normaliser(params_and_stats, batch.mean, batch.scale)
    engine = FusedEngine(head, head.split_params_and_stats(params_and_stats)[0], 1)
    random, totals = np.random.default_rng(0), np.zeros(SUMS)
    counted.clear()
    for _ in range(30):
        batch.log_prob[:] = engine.evaluate(batch).log_prob
        totals += engine.run_epoch(batch, random.permutation(len(batch.log_prob)), POLICY_LOSS)
    assert not counted
    episode_start = record(tmp_path / "episode_start", EYE, (500,), seed=11).load(["obs", "action"])
    agent = TrainedAgent("clone", design, from_head_params(design, params_and_stats))
    acted = np.concatenate([agent.act(part) for part in np.array_split(episode_start["obs"], 5)])
    assert (acted == episode_start["action"][:, 0]).mean() > 0.9
    alone = TrainedAgent("head", head, params_and_stats)
    seen = replace_images(Demos.open(tmp_path / "episode_start"), trunk).load(["obs"])["obs"]
    assert (alone.act(seen) == acted).mean() > 0.99
