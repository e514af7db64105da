"""From term values to rewards, step by step against arithmetic by hand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from slipstream.agents.simple import RandomAgent
from slipstream.contracts import ActionSpec, Array, EnvSpec, empty_rows, vector_obs
from slipstream.envs.kart.columns import State as Lap
from slipstream.envs.kart.columns import Track
from slipstream.envs.kart.game import game as kart
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.rewards import (
    CombinedReward,
    RewardScheme,
    check_signature,
    discount,
    try_calls,
    weighted_terms,
)
from slipstream.envs.soccer.columns import State as Match
from slipstream.envs.soccer.game import game as soccer
from slipstream.envs.treechop.columns import SIDE
from slipstream.envs.treechop.columns import State as Player
from slipstream.envs.treechop.columns import World as Blocks
from slipstream.envs.treechop.game import game as treechop
from slipstream.errors import ConfigError
from slipstream.settings import RewardSettings
from soccer_matches import begun

SCHEME = RewardScheme(
    ("goal", "near", "fast"),
    {"sparse": {"goal": 1.0}, "dense": {"goal": 1.0, "near": 0.5, "fast": 0.25}},
    {"sparse": ("goal",), "shaping": ("near", "fast")},
    potentials=("near",),
)


def payout(teams: tuple[int, ...] = (0, 0, 1, 1), envs: int = 1, **settings: Any) -> CombinedReward:
    """The payout of an invented game."""
    rewards = RewardSettings(**settings)
    action = ActionSpec("discrete", (2,))
    spec = EnvSpec("made-up", vector_obs(1), action, teams=teams, terms=SCHEME.terms, step_seconds=0.1)
    return CombinedReward(SCHEME, rewards, spec, envs, gamma=0.9)


def paid(made: CombinedReward, values: Any, acted: Any = None) -> tuple[Array, Array]:
    """Rewards and terms of one step with these values [rows, terms]."""
    made.values[:] = values
    rows = len(made.values)
    reward, terms = np.full(rows, 9.0, np.float32), np.zeros((rows, 3), np.float32)
    made.pay(np.ones(rows, np.uint8) if acted is None else np.array(acted, np.uint8), reward, terms)
    return reward, terms


def test_weights_and_groups_multiply() -> None:
    """A term's weight is its own times its group's factor, in each mode; the user's terms have the group `own`."""
    assert weighted_terms(SCHEME, RewardSettings()) == {"goal": 1.0, "near": 0.5, "fast": 0.25}
    assert weighted_terms(SCHEME, RewardSettings(groups={"shaping": 0.5}, weights={"near": 3.0})) == {
        "goal": 1.0,
        "near": 1.5,
        "fast": 0.125,
    }
    assert weighted_terms(SCHEME, RewardSettings(mode="sparse")) == {"goal": 1.0, "near": 0.0, "fast": 0.0}
    assert weighted_terms(SCHEME, RewardSettings(groups={"own": 4.0}), ["mine"])["mine"] == 4.0


def test_unknown_groups_are_config_errors() -> None:
    """An unknown group is an error with the nearest known one."""
    with pytest.raises(ConfigError) as caught:
        weighted_terms(SCHEME, RewardSettings(groups={"shapin": 0.5}))
    assert caught.value.message == "Unknown setting `rewards.groups.shapin`. Did you mean `rewards.groups.shaping`?"
    assert caught.value.hint == "groups: sparse, shaping."
    with pytest.raises(ConfigError, match=r"Unknown setting `rewards\.groups\.own`"):
        weighted_terms(SCHEME, RewardSettings(groups={"own": 0.5}))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300])
def test_weights_must_be_finite(number: float) -> None:
    """A weight or factor that is NaN, infinite or too large for a float32 is an error with its key."""
    for key, name in (("weights", "near"), ("groups", "shaping")):
        with pytest.raises(ConfigError, match=rf"`rewards\.{key}\.{name}` is"):
            weighted_terms(SCHEME, RewardSettings(**{key: {name: number}}))
    both = RewardSettings(weights={"near": 1e30}, groups={"shaping": 1e30})
    with pytest.raises(ConfigError, match=r"`rewards\.weights\.near` times the factor of its group is 1e\+60"):
        weighted_terms(SCHEME, both)


@pytest.mark.parametrize("name", ["a b", "x.y", "", "1st"])
def test_names_of_terms_are_identifiers(name: str) -> None:
    """The name of a term is part of settings, metrics and files, so other names are errors."""
    with pytest.raises(ConfigError, match=f"`{name}` cannot be the name of a reward term"):
        weighted_terms(SCHEME, RewardSettings(), [name])


def test_parameters_of_another_form() -> None:
    """A parameter named as one of another form or place is an error; other names and further defaults are free."""
    form = ("before", "after", "car")
    free: list[Any] = [lambda a, b, c: 0.0, lambda *all: 0.0, lambda before, after, now, team_size=0: 0.0]
    for term in free:
        check_signature("mine", term, form)
    wrong: list[tuple[Any, int, str]] = [
        (lambda before, action, after: 0.0, 2, "action"),
        (lambda after, before, car: 0.0, 1, "after"),
        (lambda x, y, info: 0.0, 3, "info"),
    ]
    for term, place, name in wrong:
        with pytest.raises(ConfigError, match=f"argument {place} is `{form[place - 1]}`, not `{name}`") as caught:
            check_signature("mine", term, form)
        assert "def mine(before, after, car)" in caught.value.hint


class State(NamedTuple):
    """A state of several arrays."""

    ball: Array
    goals: int


def test_a_term_is_tried_before_it_is_compiled() -> None:
    """Reading beyond an array or writing to it is an error with line and shapes; other exceptions are ignored."""
    state, row = State(np.full(3, np.nan, np.float32), 2), np.zeros(4, np.float32)

    def tried(term: Any) -> None:
        try_calls("mine", term, ("state", "row"), [(state, row)])

    def writes(state: Any, row: Any) -> float:
        state.ball[1] = 7
        return 1 / 0

    tried(lambda state, row: 1 / 0)
    tried(lambda state, row: math.log(float(row[0])) + state.ball[2])
    with pytest.raises(ConfigError, match=r"beyond an array, in line \d+ of test_rewards.py: .*: index 9") as caught:
        tried(numba.njit(lambda state, row: row[9]))
    assert caught.value.hint == "shapes: ball [3], row [4]"
    with pytest.raises(ConfigError, match=r"`mine` writes to `state\.ball`"):
        tried(writes)
    with pytest.raises(ConfigError, match=r"`mine` writes to `row`"):
        tried(lambda state, row: row.fill(1))
    assert np.isnan(state.ball).all() and not row.any()


def ninth_pad(before: Match, after: Match, me: int) -> float:
    """Reads a pad that does not exist."""
    return after.pads[8]


def pad_of(before: Match, after: Match, me: int) -> float:
    """Reads a pad that does not exist for the second agent."""
    return after.pads[7 + me]


def last_point(before: Lap, after: Lap, track: Track) -> float:
    """Reads a point that does not exist."""
    return track.points[192].x


def point_ahead(before: Lap, after: Lap, track: Track) -> float:
    """Reads a point that does not exist, once the car has moved."""
    return track.points[0 if before.x == after.x and before.y == after.y else 195].x


def beside(before: Player, after: Player, world: Blocks) -> float:
    """Reads a column that does not exist."""
    return world.blocks[0, 1000]


def further(before: Player, after: Player, world: Blocks) -> float:
    """Reads a column that does not exist, once the player has moved."""
    return world.blocks[0 if before.x == after.x and before.y == after.y else 1000, 0]


@pytest.mark.parametrize(
    ("game", "sure", "late", "limit"),
    [(soccer, ninth_pad, pad_of, 8), (kart, last_point, point_ahead, 192), (treechop, beside, further, SIDE)],
)
def test_an_index_beyond_the_columns_is_an_error(game: Any, sure: Any, late: Any, limit: int) -> None:
    """A term that reads too far is named with its line, also where the index is computed while games are played."""
    with pytest.raises(ConfigError, match=r"`mine` cannot be compiled: .*test_rewards.py\", line \d+") as caught:
        game.vector(2, extra_terms={"mine": sure})
    assert f"is not below {limit}." in caught.value.message and caught.value.hint == f"use 0 to {limit - 1}"
    for compiled in (False, True):
        vector = game.vector(2, compiled=compiled, extra_terms={"mine": late})
        rows = empty_rows(vector.spec, 2)
        vector.reset(rows)
        random = RandomAgent(vector.spec)
        with pytest.raises(
            ConfigError, match=rf"`mine` reads out of range: index \d+ is not from 0 to {limit - 1}"
        ) as late_one:
            for _ in range(50):
                vector.step(random.act(rows.obs).reshape(len(rows.reward), -1), rows)
        assert f"in {late.__name__}" in late_one.value.message


def test_the_reward_is_the_weighted_sum() -> None:
    """By default the reward is the sum of weights times values, and terms accumulate."""
    reward, terms = paid(payout(), [[1, 2, 4], [0, 0, 0], [-1, 0, 0], [0, 1, 1]])
    assert reward.tolist() == [3.0, 0.0, -1.0, 0.75]
    assert terms[0].tolist() == [1.0, 1.0, 1.0]


def test_rows_that_did_not_act_get_zero() -> None:
    """Rows that did not act get 0 and do not count in the means."""
    made = payout(team_spirit=1.0, zero_sum=1.0)
    reward, terms = paid(made, [[2, 0, 0], [8, 0, 0], [4, 0, 0], [6, 0, 0]], acted=[1, 0, 1, 1])
    assert reward.tolist() == [2 - 5, 0, 5 - 2, 5 - 2] and terms[1].tolist() == [0, 0, 0]


def test_team_spirit_and_zero_sum_by_hand() -> None:
    """r = (1 - tau) r + tau mean(team) - z mean(opponents); terms stay each row's own."""
    values = [[2, 0, 0], [8, 0, 0], [4, 0, 0], [6, 0, 0]]
    reward, terms = paid(payout(team_spirit=0.25), values)
    assert reward == pytest.approx([0.75 * 2 + 0.25 * 5, 0.75 * 8 + 0.25 * 5, 0.75 * 4 + 0.25 * 5, 0.75 * 6 + 1.25])
    assert terms[:, 0].tolist() == [2, 8, 4, 6]
    assert paid(payout(zero_sum=0.5), values)[0] == pytest.approx([2 - 2.5, 8 - 2.5, 4 - 2.5, 6 - 2.5])
    both = paid(payout(team_spirit=0.3, zero_sum=1.0), np.random.default_rng(0).normal(size=(4, 3)))[0]
    assert both.sum() == pytest.approx(0, abs=1e-6)


def test_zero_sum_without_opponents() -> None:
    """Without opponents nothing is subtracted."""
    assert paid(payout((0,), zero_sum=1.0), [[2, 2, 0]])[0].tolist() == [3.0]


def test_normalisation_divides_by_the_root_mean_square() -> None:
    """After values 3 and 4 in one env the mean square is 12.5 for any weight; deciding terms are not divided."""
    made = payout((0,), normalise=True)
    assert paid(made, [[7, 3, 0]])[1].tolist() == [[7.0, 0.5, 0.0]]
    assert paid(made, [[7, 4, -2]])[1][0] == pytest.approx([7.0, 0.5 * 4 / 12.5**0.5, -0.25 * 2 / 2**0.5])


def test_mean_squares_belong_to_an_env() -> None:
    """Mean squares are shared by all rows of an env and independent of other envs."""
    made = payout((0, 1), envs=2, normalise=True)
    terms = paid(made, [[0, 3, 0], [0, 4, 0], [0, 100, 0], [0, 100, 0]])[1]
    assert terms[:, 1] == pytest.approx([0.5 * 3 / 12.5**0.5, 0.5 * 4 / 12.5**0.5, 0.5, 0.5])


def test_nan_does_not_stay() -> None:
    """A non-finite value is passed on once, for the collector to report, and does not enter the mean squares."""
    made = payout((0,), normalise=True, clip=10.0)
    paid(made, [[0, 2, 0]])
    assert np.isnan(paid(made, [[0, np.nan, 0]])[0]).all()
    assert np.isfinite(paid(made, [[0, 2, 0]])[0]).all()


def test_clipping_applies_to_weighted_values() -> None:
    """Each term is clipped to the given size, except deciding and potential-based terms."""
    values = [[7, 3, -40]]
    assert paid(payout((0,), clip=1.0), values)[1].tolist() == [[7.0, 1.0, -1.0]]
    assert paid(payout((0,), clip=1.0, potential=True), values)[1].tolist() == [[7.0, 1.5, -1.0]]


def test_potentials_are_computed_only_with_a_weight() -> None:
    """Potentials of weight 0 are not computed."""
    assert payout(potential=True).shaped and not payout().shaped
    assert not payout(potential=True, groups={"shaping": 0.0}).shaped


def test_a_half_life_is_a_discount() -> None:
    """A half-life of 2 s at 0.1 s per step is 0.5 ** (1 / 20); an env without step time is an error."""
    rewards = RewardSettings(half_life_s=2.0)
    assert discount(rewards, 0.1, 0.99, "soccer") ** 20 == pytest.approx(0.5)
    assert discount(RewardSettings(), 0.0, 0.97, "gymnasium:X") == 0.97
    with pytest.raises(ConfigError) as caught:
        discount(rewards, 0.0, 0.99, "gymnasium:CartPole-v1")
    assert caught.value.message == (
        "`rewards.half_life_s` = 2 s, but `gymnasium:CartPole-v1` does not declare the duration of a step."
    )
    assert payout(half_life_s=0.1).gamma == 0.5


NORMALISED = RewardSettings(normalise=True, team_spirit=0.5, zero_sum=1.0, clip=2.0)


def four(envs: int = 4, first: int = 0) -> NativeVector:
    """Some of four matches, at their start."""
    return begun(envs, "2v2", random_starts=1.0, rewards=NORMALISED, first=first)[0]


def play(game: NativeVector, seed: int, steps: int) -> Array:
    """Rewards [steps, rows] of random play, which depends on the seed and the step alone."""
    out = empty_rows(game.spec, game.envs)
    rewards = []
    for step in range(steps):
        drawn = np.random.default_rng([seed, step]).integers(0, 18, (64, 1)).astype(np.int32)
        first = 4 * game._first
        game.step(drawn[first : first + 4 * game.envs], out)
        rewards.append(out.reward.copy())
    return np.array(rewards)


def test_a_snapshot_holds_the_mean_squares() -> None:
    """A restored game computes the same rewards as the uninterrupted one, bit for bit."""
    games = [four() for _ in range(2)]
    play(games[0], 1, 80)
    games[1].restore(games[0].snapshot())
    assert (play(games[0], 2, 40) == play(games[1], 2, 40)).all()
    assert games[0].snapshot()["moments"].shape == (4, 1 + len(games[0].spec.terms))


def test_the_split_over_processes_changes_nothing() -> None:
    """Four envs in one vector and in two get the same rewards."""
    whole = play(four(), 1, 60)
    halves = [four(2, first) for first in (0, 2)]
    assert (whole == np.concatenate([play(game, 1, 60) for game in halves], axis=1)).all()
