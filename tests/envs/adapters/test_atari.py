"""Atari by ALE: rows, seeds, and errors with hints."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, Stepper, empty_rows
from slipstream.envs.adapters.atari import Atari
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

pytest.importorskip("ale_py", reason="needs ale-py")


def play(vector: Any, steps: int) -> list[dict[str, Array]]:
    """Step with fixed actions and keep the rows."""
    rows, kept, random = empty_rows(vector.spec, vector.envs), [], np.random.default_rng(0)
    vector.reset(rows)
    for _ in range(steps):
        vector.step(random.integers(0, 6, (vector.envs, 1)).astype(np.int32), rows)
        kept.append({name: array.copy() for name, array in vars(rows).items()})
    return kept


def test_games_follow_from_their_seeds_alone() -> None:
    """Env i plays the same game, with identical frames, for any split and number of threads."""
    whole = Atari("Pong", 3, seed=5, options={"threads": 2})
    part = Atari("Pong", 2, first=1, seed=5, options={"threads": 1})
    random = np.random.default_rng(0)
    rows = [empty_rows(vector.spec, vector.envs) for vector in (whole, part)]
    for vector, into in zip((whole, part), rows, strict=True):
        vector.reset(into)
    assert np.array_equal(whole.seeds()[1:], part.seeds())
    for _ in range(40):
        action = random.integers(0, 6, (3, 1)).astype(np.int32)
        whole.step(action, rows[0])
        part.step(action[1:], rows[1])
        assert np.array_equal(rows[0].obs[1:], rows[1].obs) and np.array_equal(rows[0].reward[1:], rows[1].reward)
    whole.close()
    part.close()
    part.close()


def test_frames_are_stacked_bytes_and_steps_are_asynchronous() -> None:
    """Each row holds the four newest frames, oldest first: those of one step are seen again in the next."""
    vector = make_vector(EnvChoice("atari:Pong", EnvSettings(options={"threads": 1})), 2)
    assert isinstance(vector, Stepper) and vector.spec.own_threads
    (field,) = vector.spec.obs.fields
    assert field.shape == (4, 84, 84, 1) and field.planes == (4, 84, 84) and vector.spec.obs.dtype is np.uint8
    seen = [vector.spec.obs.split(rows["obs"])[""] for rows in play(vector, 4)]
    assert np.array_equal(seen[1][:, :3], seen[0][:, 1:]) and seen[3].max() > 0
    vector.close()


def test_episodes_end_and_reset_in_the_same_step() -> None:
    """When a game reaches its frame limit, the next one starts and the final frames are kept; no reward is lost."""
    vector = Atari("Pong", 2, options={"threads": 1, "max_num_frames_per_episode": 200, "noop_max": 0})
    kept = play(vector, 120)
    ended = [t for t, rows in enumerate(kept) if rows["truncated"].any()]
    assert ended and not any(rows["terminated"].any() for rows in kept)
    t = ended[0]
    before, rows = (vector.spec.obs.split(kept[k]["obs"])[""] for k in (t - 1, t))
    last = vector.spec.obs.split(kept[t]["final_obs"])[""]
    env = int(np.flatnonzero(kept[t]["truncated"])[0])
    assert np.array_equal(last[env, :3], before[env, 1:])
    assert not np.array_equal(rows[env, :3], before[env, 1:])
    assert vector.seeds()[env] == -1
    vector.close()


def test_one_game_can_be_reset() -> None:
    """The other games are unchanged, and the same seed starts the same game."""
    vector = Atari("Pong", 2, seed=1, options={"threads": 1})
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    vector.step(np.full((2, 1), 2, np.int32), rows)
    first = []
    for _ in range(2):
        before = rows.obs.copy()
        vector.reset_envs([1], rows, seeds=[77])
        assert np.array_equal(rows.obs[0], before[0]) and vector.seeds()[1] == 77
        first.append(rows.obs[1].copy())
        vector.step(np.full((2, 1), 3, np.int32), rows)
    assert np.array_equal(first[0], first[1])
    vector.close()


def test_errors_have_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown ALE option and a missing package are errors with hints."""
    with pytest.raises(ConfigError, match=r"`env\.options` of atari:Pong: .*frame_stack"):
        Atari("Pong", 1, options={"frame_stack": 2})
    monkeypatch.setitem(sys.modules, "ale_py.vector_env", None)
    with pytest.raises(EnvError, match="`atari:Pong` needs ale-py") as caught:
        Atari("Pong", 1)
    assert caught.value.hint == 'pip install "slipstream[atari]"'
