"""Reward terms: sums computed by hand, and a user's own term."""

from __future__ import annotations

import math

import numpy as np
import pytest

from env_checks import check_reward_errors, check_rewards_are_sums_of_terms
from kart_laps import SEEN, act, begun, fact, hold, place_cars, points, set_columns, speed
from slipstream.contracts import Array
from slipstream.envs.kart.columns import State, Track
from slipstream.envs.kart.game import game as kart
from slipstream.settings import RewardSettings

SCHEME = kart.scheme
TERMS, WEIGHTS = SCHEME.terms, SCHEME.weights
ONES = RewardSettings(weights=dict.fromkeys(TERMS, 1.0))
SPARSE = RewardSettings(mode="sparse")


def totals(player: str, repeat: int = 4, envs: int = 20) -> tuple[Array, Array]:
    """Return each term's sum over the first lap of each env [envs, terms], and the steps that it took."""
    game, out = begun(envs, rewards=ONES, seed=12, action_repeat=repeat)
    sums, steps, driving = np.zeros((envs, len(TERMS))), np.zeros(envs, int), np.ones(envs, bool)
    while driving.any():
        action = act(player, game, out)
        out.terms[:] = 0
        game.step(action, out)
        sums[driving] += out.terms[driving]
        steps += driving
        driving &= (out.terminated | out.truncated) == 0
    return sums, steps


def test_progress_sums_to_one_however_a_lap_is_driven() -> None:
    """A lap's progress telescopes to one for fast and slow drivers, easy and hard tracks, and any repeat."""
    for player, repeat in (("expert", 4), ("expert", 2), ("cruiser", 4)):
        sums, steps = totals(player, repeat)
        assert sums[:, TERMS.index("progress")] == pytest.approx(1, abs=0.01)
        assert (sums[:, TERMS.index("finish")] == 1).all()
        seconds = -sums[:, TERMS.index("time")]
        assert np.abs(seconds - steps * repeat / 60).max() <= repeat / 60
        assert (sums[:, TERMS.index("off_track")] == 0).all()


def test_faster_is_better() -> None:
    """With the default weights, discounted or not, the faster driver earns more on every track."""
    weights = np.array([WEIGHTS["dense"].get(name, 0.0) for name in TERMS])
    fast, slow = (totals(player)[0] @ weights for player in ("expert", "cruiser"))
    assert (fast > slow).all()


def test_driving_back_takes_off_what_driving_on_gave() -> None:
    """Driving forward and back sums to the final position; standing still only costs time."""
    game, out = begun(8, rewards=ONES, random_starts=1.0)
    for throttle in (1.0, -1.0, 1.0, -1.0):
        hold(game, out, 0, throttle, 30)
    assert out.terms[:, TERMS.index("progress")] == pytest.approx(game.column("done"), abs=1e-4)
    assert out.terms[:, TERMS.index("time")] == pytest.approx(-8, abs=1e-3)


def test_grass_costs_its_seconds() -> None:
    """A car that stands on grass for a second gets -1 from off_track."""
    game, out = begun(2, rewards=ONES)
    start = game.state[1].copy()
    place_cars(game, offset=float(points(game, "half_width")[0, 0]) + 1)
    game.state[1] = start
    hold(game, out, 0, 0, 15)
    assert out.terms[:, TERMS.index("off_track")].tolist() == pytest.approx([-1, 0])
    assert out.obs[:, SEEN["on_asphalt"]].tolist() == [0, 1]


def test_smooth_is_the_square_of_the_change() -> None:
    """Controls that jump from (0, 0) to (0.5, -1) cost 1.25 once, and holding them costs nothing."""
    game, out = begun(1, rewards=ONES)
    hold(game, out, 0.5, -1.0, 3)
    assert out.terms[0, TERMS.index("smooth")] == pytest.approx(-1.25)


def test_reward_is_the_weighted_sum_of_its_terms() -> None:
    """`terms` holds weighted contributions, and the reward is their sum."""
    game, _ = begun(32, random_starts=1.0)
    check_rewards_are_sums_of_terms(game, lambda rng: rng.uniform(-1, 1, (32, 2)).astype(np.float32))


def test_sparse_counts_laps_and_time_only() -> None:
    """In sparse mode only the lap and its time count, and an explicit weight overrides the mode."""
    sparse = dict(zip(TERMS, kart.vector(1, rewards=SPARSE).payout.weights.tolist(), strict=True))
    assert sparse == pytest.approx({name: WEIGHTS["sparse"].get(name, 0.0) for name in TERMS})
    assert sparse["progress"] == 0 and sparse["finish"] > 0
    overridden = RewardSettings(mode="sparse", weights={"smooth": 0.5})
    assert kart.vector(1, rewards=overridden).payout.weights[TERMS.index("smooth")] == 0.5


def test_default_weights() -> None:
    """The terms, their default weights in both modes and the term with a potential are these."""
    assert TERMS == ("progress", "time", "off_track", "finish", "smooth")
    assert WEIGHTS == {
        "sparse": {"time": 0.1, "finish": 10.0},
        "dense": {"progress": 10.0, "time": 0.1, "off_track": 0.5, "finish": 1.0},
    }
    assert SCHEME.potentials == ("progress",)


def test_every_term_is_in_one_group() -> None:
    """Every term is in exactly one group."""
    assert sorted(name for held in SCHEME.groups.values() for name in held) == sorted(TERMS)


@pytest.mark.parametrize("match_seconds", [60.0, 4.0])
def test_shaped_progress_telescopes_over_a_lap(match_seconds: float) -> None:
    """The discounted sum is the initial remaining share minus gamma^T times that of a truncated lap."""
    gamma, envs = 0.97, 12
    rewards = RewardSettings(weights={"progress": 2.0}, potential=True)
    game, out = begun(envs, rewards=rewards, gamma=gamma, random_starts=0.5, match_seconds=match_seconds, seed=3)
    first, sums, finished = game.column("done").copy(), np.zeros(envs), np.zeros(envs, int)
    for t in range(600):
        action = act("expert", game, out)
        out.terms[:] = 0
        game.step(action, out)
        running = finished == 0
        sums[running] += gamma**t * out.terms[running, TERMS.index("progress")]
        for env in np.flatnonzero(running & ((out.terminated | out.truncated) > 0)):
            finished[env] = t + 1
            last = -out.final_obs[env, SEEN["lap_left"]] if out.truncated[env] else 0.0
            assert sums[env] == pytest.approx(2 * (gamma ** (t + 1) * last - (first[env] - 1)), abs=1e-5)
            assert out.truncated[env] == (match_seconds < 10)
    assert (finished > 0).all()


def pace(before: State, after: State) -> float:
    """The speed in m/s, as a user would write it."""
    return math.sqrt(after.vx**2 + after.vy**2)


def metres(before: State, after: State, track: Track) -> float:
    """The distance that was driven, which depends on the length of the track."""
    return (after.done - before.done) * track.length


OWN = {"metres": metres, "pace": pace}


def test_a_users_term_is_compiled_and_logged() -> None:
    """A plain function becomes a term with its own name, weight and column, and gets the state before a new lap."""
    rewards = RewardSettings(weights={"pace": 2.0})
    game, out = begun(2, extra_terms=OWN, rewards=rewards, match_seconds=0.1, action_repeat=6)
    assert game.spec.terms == (*TERMS, "metres", "pace")
    set_columns(game, vx=5.0)
    hold(game, out, 0, 0)
    assert out.truncated.all() and (speed(game) == 0).all()
    assert (out.terms[:, -1] > 5).all() and out.reward == pytest.approx(out.terms.sum(1))


def test_a_users_term_may_read_the_track() -> None:
    """A term with the track as a parameter gets that of the lap that it values, also at the end of the lap."""
    game, out = begun(3, extra_terms=OWN, match_seconds=0.1, action_repeat=6)
    place_cars(game, speed=20.0)
    length = fact(game, "length").copy()
    hold(game, out, 0, 0)
    assert out.truncated.all() and not (fact(game, "length") == length).any()
    progress = out.terms[:, TERMS.index("progress")] / WEIGHTS["dense"]["progress"]
    assert out.terms[:, -2] == pytest.approx(progress * length, rel=1e-4) and (out.terms[:, -2] > 1.5).all()


def test_wrong_weights_and_terms_are_config_errors() -> None:
    """An unknown weight, a duplicate name and a function that cannot be compiled are errors with a hint."""

    def broken(before: State, after: State) -> float:
        return open(after)  # type: ignore[call-overload,no-any-return]

    check_reward_errors(kart.vector, "finnish", "finish", {"time": pace, "broken": broken})
