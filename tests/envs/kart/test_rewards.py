"""Reward terms: sums computed by hand, and a user's own term."""

from __future__ import annotations

import math

import numpy as np
import pytest

from env_checks import check_reward_errors, check_rewards_are_sums_of_terms
from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart import scripted
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.rewards import SCHEME, TERMS, WEIGHTS
from slipstream.settings import RewardSettings

ONES = RewardSettings(weights=dict.fromkeys(TERMS, 1.0))
SPARSE = RewardSettings(mode="sparse")


def totals(player: str, repeat: int = 4, envs: int = 20) -> tuple[Array, Array]:
    """Return each term's sum over the first lap of each env [envs, terms], and the steps that it took."""
    game = Kart(envs, rewards=ONES, seed=12, action_repeat=repeat)
    out, action = empty_rows(game.spec, envs), np.zeros((envs, 2), np.float32)
    game.reset(out)
    sums, steps, driving = np.zeros((envs, len(TERMS))), np.zeros(envs, int), np.ones(envs, bool)
    while driving.any():
        scripted.act(player, out.obs, "continuous", action)
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
    game = Kart(8, rewards=ONES, random_starts=1.0)
    out = empty_rows(game.spec, 8)
    for throttle in (1.0, -1.0, 1.0, -1.0):
        for _ in range(30):
            game.step(np.full((8, 2), (0.0, throttle), np.float32), out)
    assert out.terms[:, TERMS.index("progress")] == pytest.approx(game.state[:, at.DONE], abs=1e-4)
    assert out.terms[:, TERMS.index("time")] == pytest.approx(-8, abs=1e-3)


def test_grass_costs_its_seconds() -> None:
    """A car that stands on grass for a second gets -1 from off_track."""
    game = Kart(2, rewards=ONES)
    out = empty_rows(game.spec, 2)
    track = game.tracks[0]
    game.state[0, at.X : at.Y + 1] += (track[0, at.WIDE] + 1) * track[0, [at.TY, at.TX]] * [-1, 1]
    for _ in range(15):
        game.step(np.zeros((2, 2), np.float32), out)
    assert out.terms[:, TERMS.index("off_track")].tolist() == pytest.approx([-1, 0])
    assert out.obs[:, at.O_ASPHALT].tolist() == [0, 1]


def test_smooth_is_the_square_of_the_change() -> None:
    """Controls that jump from (0, 0) to (0.5, -1) cost 1.25 once, and holding them costs nothing."""
    game = Kart(1, rewards=ONES)
    out = empty_rows(game.spec, 1)
    for _ in range(3):
        game.step(np.array([[0.5, -1.0]], np.float32), out)
    assert out.terms[0, TERMS.index("smooth")] == pytest.approx(-1.25)


def test_reward_is_the_weighted_sum_of_its_terms() -> None:
    """`terms` holds weighted contributions, and the reward is their sum."""
    game = Kart(32, random_starts=1.0)
    check_rewards_are_sums_of_terms(game, lambda rng: rng.uniform(-1, 1, (32, 2)).astype(np.float32))


def test_sparse_counts_laps_and_time_only() -> None:
    """In sparse mode only the lap and its time count, and an explicit weight overrides the mode."""
    sparse = dict(zip(TERMS, Kart(1, rewards=SPARSE).payout.weights.tolist(), strict=True))
    assert sparse == pytest.approx({name: WEIGHTS["sparse"].get(name, 0.0) for name in TERMS})
    assert sparse["progress"] == 0 and sparse["finish"] > 0
    overridden = RewardSettings(mode="sparse", weights={"smooth": 0.5})
    assert Kart(1, rewards=overridden).payout.weights[TERMS.index("smooth")] == 0.5


def test_every_term_is_in_one_group() -> None:
    """Every term is in exactly one group."""
    assert sorted(name for held in SCHEME.groups.values() for name in held) == sorted(TERMS)


@pytest.mark.parametrize("match_seconds", [60.0, 4.0])
def test_shaped_progress_telescopes_over_a_lap(match_seconds: float) -> None:
    """The discounted sum is the initial remaining share minus gamma^T times that of a truncated lap."""
    gamma, envs = 0.97, 12
    rewards = RewardSettings(weights={"progress": 2.0}, potential=True)
    game = Kart(envs, rewards=rewards, gamma=gamma, random_starts=0.5, match_seconds=match_seconds, seed=3)
    out, action = empty_rows(game.spec, envs), np.zeros((envs, 2), np.float32)
    game.reset(out)
    first, sums, finished = game.state[:, at.DONE].copy(), np.zeros(envs), np.zeros(envs, int)
    for t in range(600):
        scripted.act("expert", out.obs, "continuous", action)
        out.terms[:] = 0
        game.step(action, out)
        running = finished == 0
        sums[running] += gamma**t * out.terms[running, TERMS.index("progress")]
        for env in np.flatnonzero(running & ((out.terminated | out.truncated) > 0)):
            finished[env] = t + 1
            last = -out.final_obs[env, at.O_LEFT] if out.truncated[env] else 0.0
            assert sums[env] == pytest.approx(2 * (gamma ** (t + 1) * last - (first[env] - 1)), abs=1e-5)
            assert out.truncated[env] == (match_seconds < 10)
    assert (finished > 0).all()


def pace(before: Array, after: Array, clock: Array) -> float:
    """The speed in m/s, as a user would write it."""
    return math.sqrt(after[2] ** 2 + after[3] ** 2)


def test_a_users_term_is_compiled_and_logged() -> None:
    """A plain function becomes a term with its own name, weight and column, and gets the state before a new lap."""
    rewards = RewardSettings(weights={"pace": 2.0})
    game = Kart(2, extra_terms={"pace": pace}, rewards=rewards, match_seconds=0.1, action_repeat=6)
    assert game.spec.terms == (*TERMS, "pace")
    out = empty_rows(game.spec, 2)
    game.state[:, at.VX] = 5.0
    game.step(np.zeros((2, 2), np.float32), out)
    assert out.truncated.all() and (game.state[:, at.VX] == 0).all()
    assert (out.terms[:, -1] > 5).all() and out.reward == pytest.approx(out.terms.sum(1))


def test_wrong_weights_and_terms_are_config_errors() -> None:
    """An unknown weight, a duplicate name and a function that cannot be compiled are errors with a hint."""

    def broken(before, after, clock):  # type: ignore[no-untyped-def]
        return open(after)

    check_reward_errors(Kart, "finnish", "finish", {"time": pace, "broken": broken})
