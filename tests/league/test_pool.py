"""The pool: decayed records, snapshots, retirement of surplus players, and exact state."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slipstream.errors import CheckpointError
from slipstream.league.matchmaking import MU, SIGMA
from slipstream.league.pool import LIVE, Pool
from slipstream.settings import LeagueSettings

SETTINGS = LeagueSettings(snapshot=1000)


def play(pool: Pool, player: int, outcomes: str, learner: str = "main") -> None:
    """Record results written as w, d and l."""
    for letter in outcomes:
        pool.result(learner, player, "ldw".index(letter) - 1)


def filled(snapshots: int = 3) -> Pool:
    """A pool with one anchor and some snapshots of the main agent."""
    pool = Pool()
    pool.add(0, "scripted:rule", "anchor")
    for number in range(snapshots):
        pool.add(number + 1, f"run:x@{number}", steps=number, learner="main")
    return pool


def test_results_decay() -> None:
    """Each result decays the earlier results against the same player by 0.5 %, and no others."""
    pool = filled()
    play(pool, 1, "wdl")
    play(pool, 2, "w")
    assert pool.record("main", 1) == pytest.approx((0.995**2, 0.995, 1 + 0.995 + 0.995**2))
    assert pool.record("main", 2) == (1, 0, 1)
    assert pool.record("main", 3) == (0, 0, 0) and pool.record("other", 1) == (0, 0, 0)


def test_ids_are_never_used_again() -> None:
    """A retired player keeps its id, record and reason; the id cannot be reused."""
    pool = filled()
    play(pool, 2, "ww")
    pool.retire(2, "its file is damaged")
    assert [player.id for player in pool.active] == [0, 1, 3]
    assert pool.players[2].retired and pool.players[2].why == "its file is damaged"
    with pytest.raises(AssertionError):
        pool.add(2, "run:x@9")
    assert pool.record("main", 2)[2] > 0


def test_a_snapshot_starts_with_the_skill_of_its_learner() -> None:
    """A beaten player has a lower skill; a snapshot has the skill of its learner."""
    pool = filled()
    play(pool, 0, "wwwww")
    snapshot = pool.add(9, "run:x@5", learner="main")
    assert pool.skill("main")[0] > MU > pool.skill(0)[0]
    assert pool.skill(snapshot.id) == pool.skill("main")
    assert pool.skill(1) == (MU, SIGMA)


def test_no_snapshot_after_a_few_lucky_games() -> None:
    """5 wins of 5 against every player do not prove 70 %; 30 of 30 do."""
    pool = filled(2)
    for player in pool.active:
        play(pool, player.id, "wwwww")
    assert not pool.ready("main", 1500, SETTINGS)
    for player in pool.active:
        play(pool, player.id, "w" * 25)
    assert pool.ready("main", 1500, SETTINGS)
    assert not pool.ready("main", 999, SETTINGS)


def test_a_player_never_met_delays_a_snapshot() -> None:
    """All active players must be beaten, until the time limit; retired players do not count."""
    pool = filled(2)
    for player in (0, 1):
        play(pool, player, "w" * 60)
    assert not pool.ready("main", 1999, SETTINGS)
    assert pool.ready("main", 2000, SETTINGS)
    pool.retire(2, "gone")
    assert pool.ready("main", 1000, SETTINGS)


def test_an_empty_pool() -> None:
    """Without opponents there is no early snapshot, only the one at the time limit."""
    assert not Pool().ready("main", 1500, SETTINGS)
    assert Pool().ready("main", 2000, SETTINGS)
    assert Pool().probabilities("main", SETTINGS) == (1.0, {})


def test_exploiters_are_ready_by_their_own_targets() -> None:
    """A main exploiter must beat the current main agent; a league exploiter the whole pool."""
    pool = filled(1)
    play(pool, LIVE, "w" * 60, "exploiter")
    assert pool.ready("exploiter", 1000, SETTINGS, "main_exploiter")
    assert not pool.ready("exploiter", 1000, SETTINGS, "league_exploiter")
    for player in (0, 1):
        play(pool, player, "w" * 60, "exploiter")
    assert pool.ready("exploiter", 1000, SETTINGS, "league_exploiter")
    assert pool.skill("main")[0] < MU


@pytest.mark.parametrize("snapshots", [0, 1, 2, 5])
def test_verification_works_for_any_number_of_snapshots(snapshots: int) -> None:
    """The probabilities sum to 1 for any number of own snapshots, including 0 and 1."""
    pool = filled(snapshots)
    for player in pool.active:
        play(pool, player.id, "l" * 40)
    for kind in ("main", "main_exploiter", "league_exploiter"):
        self_play, each = pool.probabilities("main", SETTINGS, kind)
        assert self_play + sum(each.values()) == pytest.approx(1)


def test_a_losing_main_exploiter_plays_snapshots_of_the_main_agent() -> None:
    """After many losses it plays the main agent's snapshots, not the anchors or its own."""
    pool = filled(2)
    pool.add(3, "run:y@1", "main_exploiter", learner="exploiter")
    assert pool.probabilities("exploiter", SETTINGS, "main_exploiter")[0] == 1
    play(pool, LIVE, "l" * 50, "exploiter")
    self_play, each = pool.probabilities("exploiter", SETTINGS, "main_exploiter")
    assert self_play == 0 and each == pytest.approx({0: 0, 1: 0.5, 2: 0.5, 3: 0})


def test_the_least_useful_player_is_retired() -> None:
    """The player that is beaten most often is retired, but not an anchor, the best, the newest or an exploiter."""
    pool = filled(4)
    exploiter = pool.add(7, "run:y@1", "main_exploiter", learner="exploiter")
    newest = pool.add(8, "run:x@9", learner="main")
    for player in pool.active:
        play(pool, player.id, "w" * 50)
    play(pool, 3, "l")
    pool.best = 1
    retired = pool.retire_surplus(5)
    assert [player.id for player in retired] == [2]
    assert pool.players[2].why == "the least useful of 6 players in a pool for 5"
    assert [player.id for player in pool.retire_surplus(3)] == [4, 3]
    assert [player.id for player in pool.active] == [0, 1, exploiter.id, newest.id]
    assert [player.id for player in pool.retire_surplus(1)] == [exploiter.id]
    assert [player.id for player in pool.active] == [0, 1, newest.id]
    assert pool.retire_surplus(2) == []


def test_a_restored_pool_continues_exactly() -> None:
    """Restored from JSON, the pool and its later decisions are the same bit for bit."""
    random = np.random.default_rng(0)
    pool = filled(3)
    pool.best = 2
    for outcome, player in zip(random.integers(-1, 2, 200), random.integers(-1, 4, 200), strict=True):
        pool.result("main" if player >= 0 else "exploiter", int(player), int(outcome))
    pool.retire(1, "old")
    other = Pool.restore(json.loads(json.dumps(pool.describe())))
    for one in (pool, other):
        play(one, 2, "wdlw")
        one.add(4, "run:x@77", learner="main")
        one.retire_surplus(2)
    assert other.describe() == pool.describe()
    assert other.probabilities("main", SETTINGS) == pool.probabilities("main", SETTINGS)


def test_a_damaged_pool_is_an_error() -> None:
    """The error names the missing key."""
    state = filled().describe()
    del state["record"]
    with pytest.raises(CheckpointError, match=r"pool in this checkpoint cannot be read: KeyError\('record'\)"):
        Pool.restore(state)
