"""MineRL's iterators: shapes and contents, compared with plain loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec, vector_obs
from slipstream.demos.format import TRUNCATED, Column, Schema
from slipstream.demos.iterators import batch_iter, buffered_batch_iter, sarsd_iter
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare
from slipstream.errors import ConfigError, DemoError

SEEN = ObsSpec(
    (ObsField("inventory/log", "vector", (1,)), ObsField("hand", "vector", (3,)), ObsField("pov", "image", (8, 8, 3)))
)
RAW = (Column("raw/forward", "int64", ()), Column("raw/camera", "float32", (2,)), Column("raw/craft", "int32", ()))
MINERL = Schema("MineRL", SEEN, ActionSpec("discrete", (14,)), extras=RAW)
ORIGIN = {
    "vocabulary": {"hand": ["none", "axe", "log"], "raw/craft": ["none", "planks"]},
    "kinds": {"inventory/log": "<i8", "hand": "<U4"},
}


def record(folder: Path, lengths: list[int], schema: Schema = MINERL, origin: dict[str, Any] | None = None) -> Demos:
    """Episodes in two shards whose rewards count all steps."""
    random = np.random.default_rng(0)
    prepare(folder, schema)
    first = 0
    for name, part in (("a", lengths[::2]), ("b", lengths[1::2])):
        shard = Shard(folder, name, schema, ORIGIN if origin is None else origin)
        for steps in part:
            fields = {f.name: random.integers(0, 200, (steps + 1, *f.shape)) for f in schema.obs.fields}
            if "hand" in fields:
                fields["hand"] = np.eye(3)[random.integers(0, 3, steps + 1)]
            values = {
                "obs": schema.obs.join(fields),
                "action": random.integers(0, 14, (steps, schema.action.parts)),
                "reward": np.arange(first, first + steps),
                "raw/forward": random.integers(0, 2, steps),
                "raw/camera": random.normal(size=(steps, 2)),
                "raw/craft": random.integers(0, 2, steps),
            }
            shard.add(values, ended=TRUNCATED)
            first += steps
        shard.close()
    return Demos.open(folder)


@pytest.fixture
def demos(tmp_path: Path) -> Demos:
    """Seven episodes."""
    return record(tmp_path / "demos", [5, 12, 3, 8, 1, 20, 7])


def steps_of(demos: Demos) -> list[dict[str, Any]]:
    """Every step of every episode, one by one."""
    found = []
    for number in range(len(demos)):
        values = demos.episode(number)
        fields = demos.schema.obs.split(np.array(values["obs"]))
        count = len(values["reward"])
        for t in range(count):
            sides = [
                {
                    "log": int(fields["inventory/log"][at, 0]),
                    "hand": ["none", "axe", "log"][int(fields["hand"][at].argmax())],
                    "pov": fields["pov"][at],
                }
                for at in (t, t + 1)
            ]
            action = {
                "forward": int(values["raw/forward"][t]),
                "camera": values["raw/camera"][t],
                "craft": ["none", "planks"][int(values["raw/craft"][t])],
            }
            found.append(
                {
                    "obs": sides[0],
                    "action": action,
                    "reward": float(values["reward"][t]),
                    "next": sides[1],
                    "done": t == count - 1,
                    "episode": number,
                }
            )
    return found


def check(given: Any, expected: list[dict[str, Any]]) -> None:
    """Whether leaves [n, ...] hold these steps."""
    obs, action, reward, after, done = given
    assert reward.dtype == np.float32 and done.dtype == bool and obs["pov"].dtype == np.uint8
    assert obs["inventory"]["log"].dtype == np.int64 and action["forward"].dtype == np.int64
    assert len(reward) == len(expected)
    for n, step in enumerate(expected):
        for side, told in ((obs, step["obs"]), (after, step["next"])):
            assert side["inventory"]["log"][n] == told["log"] and side["hand"][n] == told["hand"]
            np.testing.assert_array_equal(side["pov"][n], told["pov"])
        assert action["forward"][n] == step["action"]["forward"] and action["craft"][n] == step["action"]["craft"]
        np.testing.assert_array_equal(action["camera"][n], step["action"]["camera"])
        assert reward[n] == step["reward"] and done[n] == step["done"]


def by_reward(demos: Demos) -> dict[float, dict[str, Any]]:
    """Steps by their reward, which no two share."""
    return {step["reward"]: step for step in steps_of(demos)}


@pytest.mark.parametrize("length", [1, 4, 64, -1])
def test_sarsd_iter_gives_every_step_once(demos: Demos, length: int) -> None:
    """Sequences lie within episodes, follow one another, and hold what a plain loop finds."""
    known = by_reward(demos)
    sequences = list(sarsd_iter(demos, num_epochs=1, max_sequence_len=length, seed=1))
    for found in sequences:
        expected = [known[r] for r in found[2].tolist()]
        check(found, expected)
        assert len({step["episode"] for step in expected}) == 1
        assert np.diff(found[2]).tolist() == [1] * (len(expected) - 1)
        assert len(expected) <= length or length == -1
    assert sorted(r for found in sequences for r in found[2].tolist()) == sorted(known)
    if length == -1:
        assert len(sequences) == 7


def test_the_order_follows_from_the_seed(demos: Demos) -> None:
    """The same seed gives the same order, another another; every epoch has its own."""

    def order(seed: int) -> list[list[float]]:
        return [found[2].tolist() for found in sarsd_iter(demos, num_epochs=2, max_sequence_len=-1, seed=seed)]

    assert order(1) == order(1) != order(2)
    assert order(1)[:7] != order(1)[7:] and sorted(order(1)[:7]) == sorted(order(1)[7:])


def reference_batches(order: list[list[float]], batch: int, length: int) -> Iterator[list[list[float]]]:
    """MineRL's batches in plain lists: rows continue, episodes are appended to short rows, remainders are dropped."""
    waiting = list(order)
    rows = [waiting.pop(0) for _ in range(batch)]
    while True:
        out = []
        for n in range(batch):
            while len(rows[n]) < length:
                if not waiting:
                    return
                rows[n] = rows[n] + waiting.pop(0)
            out.append(rows[n][:length])
            rows[n] = rows[n][length:]
        yield out


@pytest.mark.parametrize(("batch", "length"), [(1, 3), (2, 4), (3, 2), (3, 9), (7, 1)])
def test_batch_iter_is_minerls(demos: Demos, batch: int, length: int) -> None:
    """Rows continue from batch to batch and across episodes; the remainder is dropped."""
    episodes = [found[2].tolist() for found in sarsd_iter(demos, max_sequence_len=-1, seed=5)]
    expected = list(reference_batches(episodes, batch, length))
    found = list(batch_iter(demos, batch, length, num_epochs=1, seed=5))
    assert [reward.tolist() for _, _, reward, _, _ in found] == expected and expected
    known = by_reward(demos)
    for obs, action, reward, after, done in found:
        assert obs["pov"].shape == (batch, length, 8, 8, 3) and action["camera"].shape == (batch, length, 2)
        for row in range(batch):
            leaves = [_row(part, row) for part in (obs, action, reward, after, done)]
            check(leaves, [known[r] for r in reward[row].tolist()])


def _row(tree: Any, row: int) -> Any:
    return {key: _row(value, row) for key, value in tree.items()} if isinstance(tree, dict) else tree[row]


def test_buffered_batches_are_shuffled_and_whole(demos: Demos) -> None:
    """Every step comes at most once in an epoch, in whole batches, over many episodes, and holds what it should."""
    known = by_reward(demos)
    found = list(buffered_batch_iter(demos, 5, num_epochs=1, seed=0))
    rewards = [r for batch in found for r in batch[2].tolist()]
    assert len(found) == 56 // 5 and len(set(rewards)) == len(rewards)
    assert np.mean(np.abs(np.diff(rewards)) == 1) < 0.2 and len({known[r]["episode"] for r in rewards[:10]}) > 2
    for batch in found:
        check(batch, [known[r] for r in batch[2].tolist()])
    assert len(list(buffered_batch_iter(demos, 5, num_epochs=3))) == 33
    assert len(list(buffered_batch_iter(demos, 5, num_batches=17))) == 17


def test_a_small_buffer_mixes_few_episodes(demos: Demos) -> None:
    """No more episodes are mixed than the buffer holds."""
    known = by_reward(demos)
    first = next(buffered_batch_iter(demos, 4, num_epochs=1, buffer_target_size=4, seed=3))
    assert len({known[r]["episode"] for r in first[2].tolist()}) <= 2


def test_epochs_without_end(demos: Demos) -> None:
    """With -1 epochs the iterator never ends."""
    endless: list[Callable[[], Iterator[Any]]] = [
        lambda: sarsd_iter(demos, -1, 64),
        lambda: batch_iter(demos, 2, 4, -1),
        lambda: buffered_batch_iter(demos, 4, num_epochs=-1),
    ]
    for make in endless:
        assert len(list(islice(make(), 60))) == 60


def test_other_demos_give_arrays(tmp_path: Path) -> None:
    """Demos without names and raw columns give arrays: a choice as [T], parts as [T, parts]; a path will do."""
    one = record(tmp_path / "one", [4, 6], Schema("toy", vector_obs(3), ActionSpec("discrete", (14,))), {})
    obs, action, _, after, done = next(sarsd_iter(tmp_path / "one", max_sequence_len=-1, seed=0))
    number = 0 if len(action) == 4 else 1
    values = one.episode(number)
    np.testing.assert_array_equal(obs, values["obs"][:-1])
    np.testing.assert_array_equal(after, values["obs"][1:])
    np.testing.assert_array_equal(action, values["action"][:, 0])
    assert done.tolist() == [False] * (len(action) - 1) + [True]
    record(tmp_path / "two", [4, 6], Schema("toy", vector_obs(3), ActionSpec("multi_discrete", (14, 14))), {})
    assert next(batch_iter(str(tmp_path / "two"), 2, 3))[1].shape == (2, 3, 2)


def test_nothing_is_held_beyond_a_batch(demos: Demos, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are read when they are yielded, and no more of them than that."""
    asked: list[int] = []
    take = Demos.take

    def watched(self: Demos, name: str, steps: Array, *more: Any) -> Array:
        asked.append(len(steps))
        return take(self, name, steps, *more)

    monkeypatch.setattr(Demos, "take", watched)
    batches = buffered_batch_iter(demos, 4, num_epochs=1)
    assert not asked
    next(batches)
    assert set(asked) == {4}


def test_impossible_arguments_raise_at_once(demos: Demos, tmp_path: Path) -> None:
    """Impossible arguments raise when the iterator is made, not when it is first used."""
    with pytest.raises(DemoError, match="A batch of 8 rows needs as many episodes; these demos have 7") as caught:
        batch_iter(demos, 8, 2)
    assert caught.value.hint == "choose batch_size <= 7, or use buffered_batch_iter"
    with pytest.raises(DemoError, match="A batch of 57 needs as many steps; these demos have 56"):
        buffered_batch_iter(demos, 57, num_epochs=1)
    with pytest.raises(ConfigError, match="num_epochs and num_batches"):
        buffered_batch_iter(demos, 5)
    with pytest.raises(ConfigError, match="seq_len = 0 is not positive"):
        batch_iter(demos, 2, 0)
    with pytest.raises(ConfigError, match="num_epochs = 0 is not positive"):
        sarsd_iter(demos, 0)
    with pytest.raises(ConfigError, match="num_batches = -1 is not positive"):
        buffered_batch_iter(demos, 5, num_batches=-1)
    with pytest.raises(ConfigError, match="max_sequence_len = -2 is not positive"):
        sarsd_iter(demos, max_sequence_len=-2)
    prepare(tmp_path / "empty", MINERL)
    with pytest.raises(DemoError, match="holds no episodes"):
        sarsd_iter(tmp_path / "empty")


def test_a_batch_that_is_never_full_is_an_error(tmp_path: Path) -> None:
    """If the first batch can never be filled, an error is raised."""
    demos = record(tmp_path / "demos", [1, 1, 1, 100])
    with pytest.raises(DemoError, match="103 steps in 4 episodes fill no batch of 4 x 2"):
        next(batch_iter(demos, 4, 2, num_epochs=-1))


def test_different_category_names_are_refused(demos: Demos) -> None:
    """Shards with different category names are refused."""
    Shard(demos.path, "c", MINERL, {"vocabulary": {"raw/craft": ["planks", "none"]}}).close()
    other = Shard(demos.path, "d", MINERL, {"vocabulary": {"raw/craft": ["planks", "none"]}})
    other.add({name: np.array(value) for name, value in demos.episode(0).items()})
    other.close()
    with pytest.raises(DemoError, match=r"different category names \(`vocabulary`\)"):
        sarsd_iter(demos.path)
