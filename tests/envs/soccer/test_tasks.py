"""Soccer's tasks: team sizes, starts and decision length from match to match, and the mixed variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import empty_rows
from slipstream.envs.native.kernels import GIVEN, TASK
from slipstream.envs.soccer.columns import State, car_of
from slipstream.envs.soccer.game import game as soccer
from slipstream.errors import ConfigError
from soccer_matches import ball, begun, car, coasting, place_ball, places, score

TWELVE = tuple(f"{n}v{n}{option}" for n in (1, 2, 3) for option in ("", " scattered", " slow", " scattered slow"))


def number(name: str) -> int:
    """The index of a task of the mixed variant."""
    return TWELVE.index(name)


def test_what_each_variant_has() -> None:
    """A fixed variant has the four tasks of its size and one target; mixed has all twelve tasks and three targets."""
    fixed, mixed = soccer.vector(1, "2v2").spec, soccer.vector(1, "mixed").spec
    assert fixed.tasks == ("2v2", "2v2 scattered", "2v2 slow", "2v2 scattered slow") and fixed.target == ("2v2",)
    assert mixed.tasks == TWELVE and mixed.target == ("1v1", "2v2", "3v3")
    assert mixed.name == "soccer:mixed" and mixed.teams == (0, 0, 0, 1, 1, 1) and mixed.obs.width == 81


def test_a_task_begins_with_the_next_match() -> None:
    """A new task applies from the next match on, after an end or a reset; -1 is the target."""
    game, out = begun(3, "mixed", match_seconds=1.0)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]], "the target's sizes in turn"
    game.assign(np.array([number("3v3"), number("1v1"), -1]))
    game.step(coasting(game), out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]]
    game.reset_envs([0], out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[3, 3], [2, 2], [3, 3]]
    while not out.terminated[6]:
        game.step(coasting(game), out)
    assert out.active.reshape(3, 2, 3).sum(axis=2)[1:].tolist() == [[1, 1], [3, 3]]
    game.assign(np.full(3, -1))
    game.reset(out)
    assert out.active.reshape(3, 2, 3).sum(axis=2).tolist() == [[1, 1], [2, 2], [3, 3]]


def test_slow_decides_half_as_often() -> None:
    """A match of a second has 15 decisions of four ticks, or 8 of eight; overtime has half of that."""
    game = soccer.vector(2, match_seconds=1.0)
    out = empty_rows(game.spec, 2)
    game.assign(np.array([-1, game.spec.tasks.index("1v1 slow")]))
    game.reset(out)
    ends = [[], []]  # type: list[list[int]]
    for step in range(1, 47):
        game.step(coasting(game), out)
        for env in np.flatnonzero(out.terminated[::2]):
            ends[env].append(step)
    assert ends == [[15 + 8, 46], [8 + 4, 24, 36]]


def test_scattered_kicks_off_from_anywhere_every_time() -> None:
    """The first kick-off and the one after a goal are random states; the plain task begins in the middle."""
    game = soccer.vector(200, "mixed", seed=3)
    out = empty_rows(game.spec, 200)
    game.assign(np.where(np.arange(200) < 100, number("2v2 scattered"), number("2v2")))
    game.reset(out)
    for _ in range(2):
        assert (ball(game)[:100, :2] != 0).all() and game.column("ball.x")[:100].std() > 10
        assert (ball(game)[100:] == 0).all()
        place_ball(game, 37, 0, 40, 0)
        game.step(coasting(game), out)
    assert (game.column("score.0") == 2).all()


def test_the_target_can_be_chosen() -> None:
    """`env.target` restricts the matches without a given task; an unknown name is an error that lists all."""
    game, out = begun(4, "mixed", target=("3v3", "1v1 slow"), first=1)
    assert game.spec.target == ("3v3", "1v1 slow")
    assert out.active.reshape(4, 6).sum(axis=1).tolist() == [2, 6, 2, 6], "by the global index"
    with pytest.raises(ConfigError) as caught:
        soccer.vector(1, "mixed", target=("3v3", "1v1 slo"))
    assert caught.value.message == "`env.target`: `soccer:mixed` has no task `1v1 slo`. Did you mean `1v1 slow`?"
    assert caught.value.hint == f"tasks: {', '.join(TWELVE)}"
    with pytest.raises(ConfigError) as caught:
        game.assign(np.array([12, 0, 0, 0]))
    assert caught.value.message.startswith("`soccer:mixed` has no task number 12. Its tasks are 1v1, 1v1 scattered,")


def columns(size: int) -> list[int]:
    """The columns of a mixed observation that hold those of a fixed size, which have the same names."""
    mixed = places("mixed")
    return [mixed[name] for name in places(f"{size}v{size}")]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_mixed_plays_the_same_matches(size: int) -> None:
    """From the same seeds the mixed variant plays the same matches as the fixed size, bit for bit."""
    envs = 12
    fixed = soccer.vector(envs, f"{size}v{size}", match_seconds=20.0)
    mixed = soccer.vector(envs, "mixed", match_seconds=20.0, seed=5)
    outs = empty_rows(fixed.spec, envs), empty_rows(mixed.spec, envs)
    mixed.assign(np.full(envs, number(f"{size}v{size}")))
    for game, out in zip((fixed, mixed), outs, strict=True):
        game.reset(out)
        game.reset_envs(range(envs), out, seeds=range(100, 100 + envs))
    rows = np.flatnonzero(np.tile(np.arange(3) < size, 2 * envs))
    slots, same = columns(size), soccer.classes(f"{size}v{size}").state.names()
    absent = [name for name in soccer.classes("mixed").state.names() if name not in same]
    assert len(absent) == (3 - size) * 2 * 13
    kept = [column for column in range(fixed.numbers.shape[1]) if column not in (GIVEN, TASK)]
    goals = 0
    for _ in range(460):
        assert all(np.array_equal(fixed.column(name), mixed.column(name)) for name in same)
        assert not any(mixed.column(name).any() for name in absent)
        assert np.array_equal(fixed.numbers[:, kept], mixed.numbers[:, kept])
        assert np.array_equal(outs[0].obs, outs[1].obs[rows][:, slots])
        for game, out in zip((fixed, mixed), outs, strict=True):
            action, other = np.zeros((len(out.obs), 1), np.int32), np.zeros((len(out.obs), 1), np.int32)
            soccer.act("rule", out.obs, "discrete", action)
            soccer.act("chaser", out.obs, "discrete", other)
            second = np.tile(np.array(game.spec.teams) == 1, envs)
            game.step(np.where(second[:, None], other, action), out)
        for name in ("reward", "terminated", "truncated", "active", "terms"):
            assert np.array_equal(getattr(outs[0], name), getattr(outs[1], name)[rows]), name
        ended = outs[0].terminated == 1
        for name in ("outcome", "behaviour"):
            assert np.array_equal(getattr(outs[0], name)[ended], getattr(outs[1], name)[rows][ended]), name
        goals += int(score(fixed).sum())
    assert goals > 20 and (mixed.seeds() > np.arange(100, 100 + envs)).all(), "over goals and ends"


def test_absent_cars_are_not_rows_that_act() -> None:
    """Rows without a car have zero observations, rewards and statistics, end with the match, and are flagged."""
    game, out = begun(3, "mixed", match_seconds=2.0, seed=2)
    absent = out.active == 0
    assert absent.reshape(3, 6).sum(axis=1).tolist() == [4, 2, 0]
    flags = out.obs[:, places("mixed")["present.0"] :].reshape(3, 6, 5)
    assert flags[0, 0].tolist() == flags[0, 3].tolist() == [0, 0, 1, 0, 0]
    assert flags[1, 1].tolist() == [1, 0, 1, 1, 0] and flags[2, 5].tolist() == [1, 1, 1, 1, 1]
    headings = np.stack([car(game, k, "hx", "hy").any(axis=1) for k in range(6)], axis=1)
    assert headings.sum(axis=1).tolist() == [2, 4, 6] and (np.diff(headings.astype(int), axis=1) <= 0).all()
    assert game.column("team_size").tolist() == [1, 2, 3]
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
    settings: dict[str, Any] = {"match_seconds": 1.5, "random_starts": 0.3}
    (one, out), (other, again) = (begun(8, "mixed", seed=seed, **settings) for seed in (1, 2))
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
    """A user's term gets the agent and the team size, and with team spirit 1 two cars share their rewards."""
    from slipstream.settings import RewardSettings

    def size(before: State, after: State, me: int) -> float:
        return 10 * after.team_size + car_of(after, me)

    rewards = RewardSettings(mode="sparse", weights={"goal": 0.0, "win": 0.0}, team_spirit=1.0)
    game, out = begun(3, "mixed", rewards=rewards, extra_terms={"size": size})
    game.step(coasting(game), out)
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
