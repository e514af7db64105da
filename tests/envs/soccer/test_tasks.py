"""Soccer's tasks: team sizes, starts and decision length from match to match, and the mixed variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer import scripted
from slipstream.envs.soccer.game import Soccer
from slipstream.errors import ConfigError

COAST = 7
TWELVE = tuple(f"{n}v{n}{option}" for n in (1, 2, 3) for option in ("", " scattered", " slow", " scattered slow"))


def coast(game: Soccer) -> Array:
    """Actions of cars that coast."""
    return np.full((game.envs * game.spec.agents, 1), COAST, np.int32)


def number(name: str) -> int:
    """The index of a task of the mixed variant."""
    return TWELVE.index(name)


def test_what_each_variant_has() -> None:
    """A fixed variant has the four tasks of its size and one target; mixed has all twelve tasks and three targets."""
    fixed, mixed = Soccer(1, team_size=2).spec, Soccer(1, mixed=True).spec
    assert fixed.tasks == ("2v2", "2v2 scattered", "2v2 slow", "2v2 scattered slow") and fixed.target == ("2v2",)
    assert mixed.tasks == TWELVE and mixed.target == ("1v1", "2v2", "3v3")
    assert mixed.name == "soccer:mixed" and mixed.teams == (0, 0, 0, 1, 1, 1) and mixed.obs.width == 81


def test_a_task_begins_with_the_next_match() -> None:
    """A new task applies from the next match on, after an end or a reset; -1 is the target."""
    game = Soccer(3, mixed=True, match_seconds=1.0)
    out = empty_rows(game.spec, 3)
    game.reset(out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]], "the target's sizes in turn"
    game.assign(np.array([number("3v3"), number("1v1"), -1]))
    game.step(coast(game), out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]]
    game.reset_envs([0], out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[3, 3], [2, 2], [3, 3]]
    while not out.terminated[6]:
        game.step(coast(game), out)
    assert out.active.reshape(3, 2, 3).sum(axis=2)[1:].tolist() == [[1, 1], [3, 3]]
    game.assign(np.full(3, -1))
    game.reset(out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]]


def test_slow_decides_half_as_often() -> None:
    """A match of a second has 15 decisions of four ticks, or 8 of eight; overtime has half of that."""
    game = Soccer(2, match_seconds=1.0)
    out = empty_rows(game.spec, 2)
    game.assign(np.array([-1, game.spec.tasks.index("1v1 slow")]))
    game.reset(out)
    ends = [[], []]  # type: list[list[int]]
    for step in range(1, 47):
        game.step(coast(game), out)
        for env in np.flatnonzero(out.terminated[::2]):
            ends[env].append(step)
    assert ends == [[15 + 8, 46], [8 + 4, 24, 36]]


def test_scattered_kicks_off_from_anywhere_every_time() -> None:
    """The first kick-off and the one after a goal are random states; the plain task begins in the middle."""
    game = Soccer(200, mixed=True, seed=3)
    out = empty_rows(game.spec, 200)
    game.assign(np.where(np.arange(200) < 100, number("2v2 scattered"), number("2v2")))
    game.reset(out)
    for _ in range(2):
        assert (game.state[:100, at.BALL : at.BALL + 2] != 0).all() and game.state[:100, at.BALL].std() > 10
        assert (game.state[100:, at.BALL : at.BALL + 4] == 0).all()
        game.state[:, at.BALL : at.BALL + 4] = (37, 0, 40, 0)
        game.step(coast(game), out)
    assert (game.clock[:, at.SCORE] == 2).all()


def test_the_target_can_be_chosen() -> None:
    """`env.target` restricts the matches without a given task; an unknown name is an error that lists all."""
    game = Soccer(4, mixed=True, target=("3v3", "1v1 slow"), first=1)
    assert game.spec.target == ("3v3", "1v1 slow")
    out = empty_rows(game.spec, 4)
    game.reset(out)
    assert out.active.reshape(4, 6).sum(axis=1).tolist() == [2, 6, 2, 6], "by the global index"
    with pytest.raises(ConfigError) as caught:
        Soccer(1, mixed=True, target=("3v3", "1v1 slo"))
    assert caught.value.message == "`env.target`: `soccer:mixed` has no task `1v1 slo`. Did you mean `1v1 slow`?"
    assert caught.value.hint == f"tasks: {', '.join(TWELVE)}"
    with pytest.raises(ConfigError) as caught:
        game.assign(np.array([12, 0, 0, 0]))
    assert caught.value.message.startswith("`soccer:mixed` has no task number 12. Its tasks are 1v1, 1v1 scattered,")


def columns(size: int) -> Array:
    """The columns of a mixed observation that hold those of a fixed size."""
    others = [k for k in range(5) if k < size - 1 or 2 <= k < 2 + size]
    return np.concatenate([np.arange(at.O_OTHERS), *(at.O_OTHERS + 8 * k + np.arange(8) for k in others)])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_mixed_plays_the_same_matches(size: int) -> None:
    """From the same seeds the mixed variant plays the same matches as the fixed size, bit for bit."""
    envs = 12
    fixed, mixed = (
        Soccer(envs, team_size=size, match_seconds=20.0),
        Soccer(envs, mixed=True, match_seconds=20.0, seed=5),
    )
    outs = empty_rows(fixed.spec, envs), empty_rows(mixed.spec, envs)
    mixed.assign(np.full(envs, number(f"{size}v{size}")))
    for game, out in zip((fixed, mixed), outs, strict=True):
        game.reset(out)
        game.reset_envs(range(envs), out, seeds=range(100, 100 + envs))
    rows = np.flatnonzero(np.tile(np.arange(3) < size, 2 * envs))
    slots, width = columns(size), fixed.state.shape[1]
    goals = 0
    for _ in range(460):
        assert np.array_equal(fixed.state, mixed.state[:, :width]) and not mixed.state[:, width:].any()
        assert np.array_equal(fixed.clock, mixed.clock)
        assert np.array_equal(outs[0].obs, outs[1].obs[rows][:, slots])
        for game, out in zip((fixed, mixed), outs, strict=True):
            action, other = np.zeros((len(out.obs), 1), np.int32), np.zeros((len(out.obs), 1), np.int32)
            scripted.act("rule", out.obs, "discrete", action)
            scripted.act("chaser", out.obs, "discrete", other)
            second = np.tile(np.array(game.spec.teams) == 1, envs)
            game.step(np.where(second[:, None], other, action), out)
        for name in ("reward", "terminated", "truncated", "active", "terms"):
            assert np.array_equal(getattr(outs[0], name), getattr(outs[1], name)[rows]), name
        ended = outs[0].terminated == 1
        for name in ("outcome", "behaviour"):
            assert np.array_equal(getattr(outs[0], name)[ended], getattr(outs[1], name)[rows][ended]), name
        goals += int(fixed.clock[:, at.SCORE : at.SCORE + 2].sum())
    assert goals > 20 and (mixed.seeds() > np.arange(100, 100 + envs)).all(), "over goals and ends"


def test_absent_cars_are_not_rows_that_act() -> None:
    """Rows without a car have zero observations, rewards and statistics, end with the match, and are flagged."""
    game = Soccer(3, mixed=True, match_seconds=2.0, seed=2)
    out = empty_rows(game.spec, 3)
    game.reset(out)
    absent = out.active == 0
    assert absent.reshape(3, 6).sum(axis=1).tolist() == [4, 2, 0]
    flags = out.obs[:, at.O_PRESENT :].reshape(3, 6, 5)
    assert flags[0, 0].tolist() == flags[0, 3].tolist() == [0, 0, 1, 0, 0]
    assert flags[1, 1].tolist() == [1, 0, 1, 1, 0] and flags[2, 5].tolist() == [1, 1, 1, 1, 1]
    assert [at.cars_in(state) for state in game.state] == [2, 4, 6]
    for array in (out.obs, out.reward, out.behaviour, out.final_obs, out.terms):
        array[absent] = 9
    out.terms[:], ends = 0, 0
    rng = np.random.default_rng(0)
    for _ in range(100):
        out.final_obs[:], out.behaviour[:] = 9, 9
        game.step(rng.integers(0, 18, (18, 1)).astype(np.int32), out)
        assert not out.obs[absent].any() and not out.reward[absent].any() and not out.terms[absent].any()
        assert out.obs[~absent].any(axis=1).all()
        ended = out.terminated.reshape(3, 6)
        assert (ended.any(axis=1) == ended.all(axis=1)).all()
        over = ended.reshape(-1) == 1
        ends += int(over.sum())
        assert not out.final_obs[over & absent].any() and not out.behaviour[over & absent].any()
        assert (
            out.outcome.reshape(3, 2, 3)[ended[:, 0] == 1] == out.outcome.reshape(3, 2, 3)[ended[:, 0] == 1][:, :, :1]
        ).all()
    assert ends > 30


def test_mixed_goes_on_from_a_snapshot() -> None:
    """Present and next tasks are part of a snapshot: sizes change from match to match as without it."""
    settings: dict[str, Any] = {"mixed": True, "match_seconds": 1.5, "random_starts": 0.3}
    one, other = Soccer(8, seed=1, **settings), Soccer(8, seed=2, **settings)
    out, again = empty_rows(one.spec, 8), empty_rows(one.spec, 8)
    one.reset(out)
    rng = np.random.default_rng(0)
    sizes = set()
    for step in range(120):
        action = rng.integers(0, 18, (48, 1)).astype(np.int32)
        if step % 9 == 0:
            tasks = rng.integers(-1, 12, 8)
            one.assign(tasks)
            if step > 30:
                other.assign(tasks)
        if step == 30:
            other.restore(one.snapshot())
        one.step(action, out)
        if step >= 30:
            other.step(action, again)
            assert np.array_equal(out.obs, again.obs) and np.array_equal(out.active, again.active)
            assert np.array_equal(out.reward, again.reward)
        sizes |= {int(n) for n in out.active.reshape(8, 6).sum(axis=1)}
    assert sizes == {2, 4, 6}


def test_rewards_of_teams_are_shared_among_those_who_play() -> None:
    """A user's term gets the team size of the match, and with team spirit 1 two cars share their rewards."""
    from slipstream.settings import RewardSettings

    def size(before: Any, after: Any, clock: Any, car: int, team_size: int) -> float:
        return np.float32(10 * team_size + car)

    rewards = RewardSettings(mode="sparse", weights={"goal": 0.0, "win": 0.0}, team_spirit=1.0)
    game = Soccer(3, mixed=True, rewards=rewards, extra_terms={"size": size})
    out = empty_rows(game.spec, 3)
    game.reset(out)
    game.step(coast(game), out)
    assert out.terms[:, -1].reshape(3, 6).tolist() == [
        [10, 0, 0, 11, 0, 0],
        [20, 21, 0, 22, 23, 0],
        [30, 31, 32, 33, 34, 35],
    ]
    assert out.reward.reshape(3, 6).tolist() == [
        [10, 0, 0, 11, 0, 0],
        [20.5, 20.5, 0, 22.5, 22.5, 0],
        [31, 31, 31, 34, 34, 34],
    ]
