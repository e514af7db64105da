"""Rocket League as rows: what cars see, what they earn, ends, seeds, exact snapshots, the scripted driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import slipstream as ss
from env_checks import check_same_in_processes
from slipstream.agents.specs import load_agent
from slipstream.contracts import Rows, empty_rows
from slipstream.envs.registry import EnvChoice, labels_of
from slipstream.envs.rocket import arena, batch, scripted
from slipstream.errors import CheckpointError, ConfigError, EnvError
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

pytest.importorskip("RocketSim", reason='needs rocketsim (pip install "slipstream[rocket]")')

from slipstream.envs.rocket.game import Rocket

IDLE, AHEAD = 11, 23
"""Choices of the table: nothing at all (found by test), and full throttle with boost."""


def begin(envs: int = 2, **more: Any) -> tuple[Rocket, Rows]:
    """Matches that have just started."""
    game = Rocket(envs, **more)
    rows = empty_rows(game.spec, envs)
    game.reset(rows)
    return game, rows


def random_actions(game: Rocket, rng: np.random.Generator) -> np.ndarray:
    """Any choices."""
    spec, rows = game.spec.action, game.envs * game.spec.agents
    if spec.kind == "continuous":
        return rng.uniform(-1, 1, (rows, spec.parts)).astype(np.float32)
    return rng.integers(0, spec.sizes, (rows, spec.parts)).astype(np.int32)


def test_both_sides_see_the_same_kick_off() -> None:
    """A kick-off is symmetrical: each car sees itself, the ball and the other as the other one does."""
    _, rows = begin(4)
    assert np.allclose(rows.obs[0::2], rows.obs[1::2], atol=1e-5)
    assert (rows.obs[:, 1] < 0).all()  # the own half
    assert (rows.obs[:, 74] == 1).all() and not rows.obs[:, 75].any()
    assert rows.obs.shape[1] == batch.obs_size(2) == 96


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cars_see_their_mates_first(size: int) -> None:
    """The own columns are followed by teammates, then opponents, all present."""
    game, rows = begin(1, team_size=size)
    others = rows.obs[:, batch.OWN :].reshape(2 * size, 2 * size - 1, batch.OTHER)
    assert (others[:, :, 0] == 1).all()
    assert (others[:, : size - 1, 1] == 1).all() and not others[:, size - 1 :, 1].any()
    assert game.spec.teams == (0,) * size + (1,) * size


def test_a_goal_is_paid_and_kicked_off() -> None:
    """A goal for blue rewards blue, penalises orange, and is followed by a kick-off."""
    game, rows = begin(1)
    field = game._arenas[0]
    ball = field.ball.get_state()
    ball.pos, ball.vel = game._simulator.Vec(0, 5000, 100), game._simulator.Vec(0, 2500, 0)
    field.ball.set_state(ball)
    nothing = np.full((2, 1), 6, np.int32)
    for _ in range(10):
        game.step(nothing, rows)
        if rows.reward[0] > 0.9:
            break
    assert rows.reward[0] > 0.9 and rows.reward[1] < -0.9 and not rows.terminated.any()
    assert np.allclose(rows.obs[0, 19:21], 0, atol=1e-3)  # the ball is in the middle
    assert rows.obs[0, 75] == pytest.approx(0.2) and rows.obs[1, 75] == pytest.approx(-0.2)


def test_a_match_ends_in_time() -> None:
    """A match without goals is drawn after overtime; the next starts in the same step with the next seed."""
    game, rows = begin(1, match_seconds=2.0)
    seeds, ended = game.seeds(), 0
    nothing = np.full((2, 1), 6, np.int32)
    for step in range(50):
        game.step(nothing, rows)
        if rows.terminated.any():
            ended = step + 1
            break
    assert ended == 45  # 240 + 120 ticks in decisions of 8
    assert rows.outcome.tolist() == [0, 0] and rows.terminated.all() and game.seeds()[0] == seeds[0] + 1
    assert rows.behaviour[0, batch.B_GOALS] == 0 and rows.behaviour[0, batch.B_BALL_DISTANCE] > 100


@pytest.mark.parametrize("size", [2, 3])
def test_a_kick_off_follows_from_its_seed(size: int) -> None:
    """Kick-off positions within a team do not depend on memory order; such matches are not declared exact."""
    one, rows = begin(4, team_size=size)
    other, others = begin(4, team_size=size, seed=5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        for _ in range(11):
            other.step(random_actions(other, rng), others)
        other.reset_envs(range(4), others, one.seeds().tolist())
        assert np.array_equal(rows.obs, others.obs)
    assert not one.spec.exact and one.snapshot() == {}


@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "continuous"])
def test_a_match_follows_from_its_seed(actions: str) -> None:
    """Whatever an arena played before, the same seed and actions bring the same match, bit for bit."""
    one, rows = begin(2, actions=actions)
    other, others = begin(2, actions=actions, seed=5)
    rng = np.random.default_rng(0)
    for _ in range(37):
        other.step(random_actions(other, rng), others)
    other.reset_envs([0, 1], others, one.seeds().tolist())
    assert np.array_equal(rows.obs, others.obs)
    for _ in range(150):
        action = random_actions(one, rng)
        one.step(action, rows)
        other.step(action, others)
        for name in ("obs", "reward", "terminated"):
            assert np.array_equal(getattr(rows, name), getattr(others, name)), name


def test_a_snapshot_is_exact() -> None:
    """A restored match continues bit for bit, including goals and random starts."""
    one, rows = begin(3, random_starts=1.0, match_seconds=20.0)
    rng = np.random.default_rng(1)
    for _ in range(120):
        one.step(random_actions(one, rng), rows)
    state = one.snapshot()
    other, others = begin(3, random_starts=1.0, match_seconds=20.0, seed=9)
    other.step(random_actions(other, rng), others)
    other.restore(state)
    for _ in range(200):
        action = random_actions(one, rng)
        one.step(action, rows)
        other.step(action, others)
        for name in ("obs", "reward", "terminated", "outcome", "behaviour"):
            assert np.array_equal(getattr(rows, name), getattr(others, name)), name


def test_a_named_match_is_the_same_after_others() -> None:
    """Played first or after others, bit for bit: in these it does differ after a mere kick-off."""

    def play(game: Rocket, rows: Rows, seed: int) -> np.ndarray:
        rng, seen = np.random.default_rng(seed), []
        game.reset_envs([0], rows, [1000 + seed])
        for _ in range(300):
            game.step(random_actions(game, rng), rows)
            seen.append(rows.obs.copy())
        return np.array(seen)

    used, rows = begin(1, match_seconds=30.0)
    for seed in (43, 55, 65, 91):
        assert np.array_equal(play(used, rows, seed), play(*begin(1, match_seconds=30.0), seed))


class Anew(Rocket):
    """Every match in an arena of its own."""

    def _start_match(self, env: int, game: int, task: int) -> None:
        self._arenas[env] = None
        super()._start_match(env, game, task)


@pytest.mark.parametrize(("starts", "seed"), [(0.0, 51), (0.5, 4)])
def test_a_match_does_not_depend_on_earlier_ones(starts: float, seed: int) -> None:
    """It is the same, bit for bit, in an arena that others were played in, contacts and goals included."""
    games = [kind(16, seed=seed, match_seconds=5.0, random_starts=starts) for kind in (Rocket, Anew)]
    rows = [empty_rows(game.spec, 16) for game in games]
    rng, ended, goals = np.random.default_rng(seed), 0, 0.0
    for game, out in zip(games, rows, strict=True):
        game.reset(out)
    for _ in range(500):
        action, driven = random_actions(games[0], rng), np.zeros((32, 1), np.int32)
        scripted.act("driver", rows[0].obs, games[0].spec.action, driven)
        np.copyto(action, driven, where=rng.random((32, 1)) < 0.8)
        for game, out in zip(games, rows, strict=True):
            game.step(action, out)
        for name in ("obs", "reward", "terminated", "outcome"):
            assert np.array_equal(getattr(rows[0], name), getattr(rows[1], name)), name
        over = rows[0].terminated > 0
        ended += over.sum() // 2
        goals += rows[0].behaviour[over, batch.B_GOALS].sum()
    assert ended >= 60 and goals >= 3


def test_respawns_follow_from_the_seed() -> None:
    """A car respawns after three seconds at one of four positions, chosen by the seed."""

    def play(seed: int) -> tuple[list[float], np.ndarray]:
        game, rows = begin(1)
        game.reset_envs([0], rows, [seed])
        game._cars[0][1].demolish()
        seen = []
        for _ in range(60):
            game.step(np.full((2, 1), IDLE, np.int32), rows)
            seen.append(rows.obs.copy())
        gone = game._bodies[0, 1, 0, batch.DEMOED]
        assert gone == 0
        return game._bodies[0, 1, 0, batch.BODY : batch.BODY + 2].tolist(), np.array(seen)

    places = {tuple(np.round(play(seed)[0], -1)) for seed in range(12)}
    assert len(places) == 4 and {abs(y) for _, y in places} == {4610.0}
    first = play(3)[1]
    assert all(np.array_equal(first, play(3)[1]) for _ in range(6))
    away = first[:, 0, -1]  # the last number that a car sees of the other one
    assert away[:43].all() and not away[45:].any()


def test_a_snapshot_is_exact_while_a_demolished_car_waits(tmp_path: Path) -> None:
    """A snapshot between a demolition and the respawn restores exactly."""
    cars = np.zeros((1, 2, 13))
    cars[0, :, :3], cars[0, :, 3] = [[0, -600, 17], [0, 0, 17]], np.pi / 2
    cars[0, 0, 7], cars[0, :, 12] = 2300, 100
    np.savez(tmp_path / "hit.npz", ball=[[3000, 3000, 95, 0, 0, 0, 0, 0, 0]], cars=cars)
    options = {"starts": str(tmp_path / "hit.npz"), "starts_share": 1.0}
    one, rows = begin(1, options=options)
    for _ in range(20):
        one.step(np.full((2, 1), IDLE, np.int32), rows)
    assert one._bodies[0, 1, 0, batch.DEMOED] == 1, "the orange car was hit by the blue one"
    other, others = begin(1, options=options, seed=9)
    other.restore(one.snapshot())
    rng, back = np.random.default_rng(0), False
    for _ in range(80):
        action = random_actions(one, rng)
        one.step(action, rows)
        other.step(action, others)
        back |= one._bodies[0, 1, 0, batch.DEMOED] == 0
        for name in ("obs", "reward", "terminated"):
            assert np.array_equal(getattr(rows, name), getattr(others, name)), name
    assert back


def test_processes_change_nothing() -> None:
    """However matches are shared out, they are the same."""
    rng = np.random.default_rng(2)
    check_same_in_processes(
        "rocket", 3, 4, 40, lambda rows: rng.integers(0, 90, (6, 1)).astype(np.int32), ("obs", "reward")
    )


def test_mixed_matches_have_empty_places() -> None:
    """The task sets the number of cars; empty slots have zero observations and are inactive."""
    game, rows = begin(3, mixed=True, team_size=3)
    game.assign(np.array([game.spec.tasks.index(name) for name in ("1v1", "2v2", "3v3 scattered")]))
    game.reset_envs([0, 1, 2], rows)
    active = rows.active.reshape(3, 6)
    assert active.sum(axis=1).tolist() == [2, 4, 6] and active[0].tolist() == [1, 0, 0, 1, 0, 0]
    assert not rows.obs.reshape(3, 6, -1)[0, 1].any()
    rng = np.random.default_rng(0)
    for _ in range(20):
        game.step(random_actions(game, rng), rows)
    assert not rows.reward.reshape(3, 6)[0, 1:3].any()


def test_potentials_telescope() -> None:
    """With `rewards.potential`, the discounted sum of those terms is minus the potential at the start."""
    from slipstream.settings import RewardSettings

    rewards = RewardSettings(
        potential=True, weights={"goal": 0, "win": 0, "touch": 0, "car_to_ball": 0, "boost_gain": 0}
    )
    game, rows = begin(1, rewards=rewards, gamma=0.97, match_seconds=4.0)
    start = batch.ball_potential(game._balls[0, 0]) * 0.6
    rng, total, factor = np.random.default_rng(3), 0.0, 1.0
    while True:
        game.step(random_actions(game, rng), rows)
        total += factor * rows.reward[0]
        factor *= 0.97
        if rows.terminated[0]:
            break
    assert total == pytest.approx(-start, abs=1e-4)


def test_the_driver_scores_against_an_idle_car() -> None:
    """In 60 seconds, in at least 80 % of matches."""
    told = ss.evaluate("scripted:driver", "rocket", opponent="scripted:idle", games=40)
    assert told["win_rate"] >= 0.8


def test_what_is_refused(tmp_path: Path) -> None:
    """Unknown options, and starts that do not fit."""
    with pytest.raises(ConfigError, match=r"env\.options\.stats`.*Did you mean `env\.options\.starts"):
        Rocket(1, options={"stats": 1})
    np.savez(tmp_path / "few.npz", ball=np.zeros((3, 9)), cars=np.zeros((3, 1, 13)))
    with pytest.raises(ConfigError, match=r"\[n, 2, 13\]"):
        Rocket(1, options={"starts": str(tmp_path / "few.npz")})


def test_starts_from_a_file(tmp_path: Path) -> None:
    """Kick-offs start from the states of a file."""
    cars = np.zeros((1, 2, 13))
    cars[0, :, :3] = [[1000, -2000, 17], [-1000, 2000, 17]]
    cars[0, :, 12] = 50
    np.savez(tmp_path / "one.npz", ball=[[500, 600, 700, 0, 0, 0, 0, 0, 0]], cars=cars)
    _, rows = begin(1, options={"starts": str(tmp_path / "one.npz"), "starts_share": 1.0})
    assert np.allclose(rows.obs[0, 19:22] * 2300, [500, 600, 700], atol=1)
    assert np.allclose(rows.obs[0, :3] * 2300, [1000, -2000, 17], atol=1) and rows.obs[0, 15] == pytest.approx(0.5)


def test_a_run_trains_resumes_and_keeps_its_meshes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO trains in processes; a resumed run continues on the same arena and is refused on another."""
    small = {"preset": "smoke", "plan__envs": 4, "plan__workers": 2, "ppo__rollout": 16, "plan__collector": "local"}
    run = ss.train("rocket", steps=256, run=tmp_path / "run", **small)
    assert ss.resume(run.path, steps=512).facts["steps"] >= 512
    monkeypatch.setattr(arena, "_loaded", ["0123456789abcdef (others)"])
    with pytest.raises(CheckpointError, match="meshes"):
        ss.resume(run.path, steps=1024)


def test_settings_reach_the_game() -> None:
    """Tick skip, match length and actions."""
    choice = EnvChoice("rocket", env=EnvSettings(action_repeat=4, actions="multi_discrete"))
    vector = make_vector(choice, 1)
    assert vector.spec.step_seconds == pytest.approx(4 / 120) and vector.spec.action.parts == 8


def test_a_league_a_curriculum_and_a_tournament(tmp_path: Path) -> None:
    """All that soccer has: one policy from 1v1 to 3v3, a league with ratings, a cup with replays."""
    small = {"preset": "smoke", "plan__envs": 4, "ppo__rollout": 16, "plan__collector": "local", "plan__workers": 1}
    short = {"env__match_seconds": 2.0, "evaluation__games": 2, "evaluation__envs": 2}
    staged = ss.train(
        "rocket:mixed",
        steps=2048,
        run=tmp_path / "staged",
        curriculum__kind="staged",
        curriculum__episodes=2,
        curriculum__max_steps=512,
        every__evaluate=1024,
        **small,
        **short,
    )
    stages = {row["curriculum/stage"] for row in staged.metrics() if "curriculum/stage" in row}
    assert len(stages) > 1
    league = ss.compete(
        "rocket",
        steps=1024,
        run=tmp_path / "league",
        league__snapshot=256,
        league__rating_games=2,
        league__sprt_games=4,
        **small,
        **short,
    )
    assert (league.path / "games.jsonl").exists() and len(league.facts["ladder"]) >= 2
    told = ss.tournament(
        [f"run:{league.path}", "scripted:driver"], "rocket", games=2, run=tmp_path / "cup", env__match_seconds=2.0
    )
    assert told["games"] == 2 and list((tmp_path / "cup" / "replays").glob("*.replay"))


def test_terms_of_the_user() -> None:
    """A compiled term sees the match before and after a step in the view of its car's team."""

    def used(before: Any, after: Any, car: int, team_size: int) -> float:
        return before.cars[car, 10] - after.cars[car, 10] + 100.0 * (after.cars[car, 12] > 0) + 0.0 * team_size

    game, rows = begin(2, extra_terms={"used": used})
    boost = game._bodies[:, :, 0, batch.BOOST].copy()
    game.step(np.full((4, 1), AHEAD, np.int32), rows)
    burnt = (boost - game._bodies[:, :, 0, batch.BOOST]).reshape(-1)
    assert (burnt > 0).all() and rows.terms[:, -1] == pytest.approx(burnt)  # both teams start at negative y
    assert game.spec.terms[-1] == "used"
    with pytest.raises(ConfigError, match="is called with 4 arguments"):
        Rocket(1, extra_terms={"mine": lambda before, after: 0.0})
    wrong: list[tuple[Any, str]] = [
        (lambda before, after, car, team_size: None, "none"),
        (lambda before, after, car, team_size: (1.0, 2.0), r"UniTuple\(float64 x 2\)"),
        (lambda before, after, car, team_size: before.ball, "array"),
    ]
    for term, told in wrong:
        with pytest.raises(ConfigError, match=rf"Reward term `mine` returns {told}.*, not a number"):
            Rocket(1, extra_terms={"mine": term})
    with pytest.raises(ConfigError, match=r"`mine` cannot be compiled: .*'speed' of type MatchState, in line .*speed"):
        Rocket(1, extra_terms={"mine": lambda before, after, car, team_size: before.speed})


def writes(before: Any, after: Any, car: int, team_size: int) -> float:
    """Writes to the state at a kick-off."""
    after.cars[car, 10] = 0.5
    return 0.0


def writes_later(before: Any, after: Any, car: int, team_size: int) -> float:
    """Would write to the state after a goal."""
    if after.goals > 0:
        before.ball[0] = 0.0
    return 0.0


def adds_later(before: Any, after: Any, car: int, team_size: int) -> float:
    """Would add to the state in place after a goal."""
    if after.goals > 0:
        ball = after.ball
        ball += 1.0
    return 0.0


def beyond(before: Any, after: Any, car: int, team_size: int) -> float:
    """Reads a car that does not exist, for the last car."""
    return float(after.cars[car + 1, 10])


def test_terms_that_leave_their_arrays_are_refused() -> None:
    """A term that writes to the state, or would, and one that reads beyond an array, are errors with the line."""
    with pytest.raises(ConfigError, match=r"`mine` writes to `after\.cars`") as caught:
        Rocket(1, extra_terms={"mine": writes})
    assert "after.cars.copy()" in caught.value.hint
    with pytest.raises(ConfigError, match=r"it writes to an array .*, in line \d+ of test_game.py: before\.ball"):
        Rocket(1, extra_terms={"mine": writes_later})
    with pytest.raises(ConfigError, match="it writes to an array"):
        Rocket(1, extra_terms={"mine": adds_later})
    with pytest.raises(ConfigError, match=r"`mine` reads beyond an array, in line \d+ of .*index 4 is out") as caught:
        Rocket(1, team_size=2, extra_terms={"mine": beyond})
    assert caught.value.hint == "shapes: ball [25], cars [4, 36], pads [34], flips [4], present [4]"
    with pytest.raises(ConfigError, match="argument 2 is `after`, not `action`"):
        Rocket(1, extra_terms={"mine": lambda before, action, after, info: 0.0})


def builder(at: float, change: str) -> Any:
    """A builder that changes the ball at some share of the match."""

    def build(state: Any, car: int, team_size: int) -> Any:
        out = state.ball[:3].copy()
        if state.time_left <= at and change == "set":
            state.ball[:] = 0.0
        if state.time_left <= at and change == "sort":
            state.ball.sort()
        return out

    return build


def test_builders_that_write_to_the_state_are_refused() -> None:
    """A builder cannot change the game: at the start an error names the array, later one names env, car and step."""
    for change in ("set", "sort"):
        with pytest.raises(ConfigError, match=r"Observation builder `build` writes to `state\.ball`"):
            Rocket(1, observation=builder(1.0, change))
    game, rows = begin(1, observation=builder(0.99, "set"), match_seconds=5.0)
    with pytest.raises(EnvError, match=r"raised ValueError in env 0, car 0, at step \d.*read-only") as caught:
        for _ in range(9):
            game.step(np.full((2, 1), AHEAD, np.int32), rows)
    assert "copy()" in caught.value.hint
    with pytest.raises(ConfigError, match=r"`see_and_clear` writes to `state\.ball`"):
        Rocket(1, observation=numba.njit(see_and_clear))
    with pytest.raises(
        ConfigError, match=r"`clear_later` cannot be compiled: it writes to an array .*state\.ball\[0\]"
    ):
        Rocket(1, observation=numba.njit(clear_later))


def see_and_clear(state: Any, car: int, team_size: int) -> Any:
    """Clears what it has seen."""
    out = state.ball[:3].copy()
    state.ball[:3] = 0.0
    return out


def clear_later(state: Any, car: int, team_size: int) -> Any:
    """Would clear a number after a goal."""
    if state.goals > 0:
        state.ball[0] = 0.0
    return state.ball[:3].copy()


def test_a_term_sees_the_state_before_a_step() -> None:
    """The kept state is that of the step before, step after step."""
    game, rows = begin(2, extra_terms={"moved": lambda before, after, car, team_size: after.cars[car, 12]})
    for _ in range(3):
        ball, time = game._balls.copy(), game._clock.copy()
        game.step(np.full((4, 1), AHEAD, np.int32), rows)
        assert np.array_equal(game._before.balls, ball) and np.array_equal(game._before.clock, time)


def see(state: Any, car: int, team_size: int) -> Any:
    """The ball's position and the car's y."""
    out = np.zeros(4, np.float32)
    out[:3], out[3] = state.ball[:3], state.cars[car, 12]
    return out


def test_an_observation_builder(tmp_path: Path) -> None:
    """A builder in Python and a compiled one write the same observations; scripted players cannot read them."""
    games = [begin(1, observation=builder) for builder in (see, numba.njit(see))]
    for game, rows in games:
        game.step(np.full((2, 1), AHEAD, np.int32), rows)
        assert game.spec.obs.width == 4 and (rows.obs[:, 3] < 0).all()
    assert (games[0][1].obs == games[1][1].obs).all()
    choice = EnvChoice("rocket", observation=see)
    with pytest.raises(ConfigError, match="scripted:driver` reads the observation") as caught:
        load_agent("scripted:driver", games[0][0].spec, choice)
    assert "leave out --observation" in caught.value.hint and "league.anchors=[random]" in caught.value.hint
    assert len(labels_of(games[0][0].spec).obs) == 4


def only_second_car(state: Any, car: int, team_size: int) -> Any:
    """Infinity for the second car."""
    return np.full(2, np.inf if car == 1 else 0.0)


def test_wrong_observation_builders() -> None:
    """A wrong signature, shape or width, and values that are not finite, are errors that name the builder."""
    with pytest.raises(ConfigError, match="Observation builder `<lambda>` is"):
        Rocket(1, observation=lambda state: [0.0])
    with pytest.raises(ConfigError, match=r"returns an array of shape \(1, 1\)"):
        Rocket(1, observation=lambda state, car, team_size: [[0.0]])
    with pytest.raises(EnvError, match=r"returned shape \(2,\) instead of \(1,\) in env 0, car 1"):
        begin(1, observation=lambda state, car, team_size: [0.0] * (1 + car))
    with pytest.raises(ConfigError, match=r"`<lambda>` returns nan as value 1 at a kick-off"):
        Rocket(1, observation=lambda state, car, team_size: [0.0, np.nan])
    for own in (only_second_car, numba.njit(only_second_car)):
        with pytest.raises(EnvError, match=r"`only_second_car` returned inf as value 0 in env 0, car 1, at the start"):
            begin(1, observation=own)
    for own in (complex_ball, numba.njit(complex_ball)):
        with pytest.raises(ConfigError, match="`complex_ball` returns complex numbers"):
            Rocket(1, observation=own)


def complex_ball(state: Any, car: int, team_size: int) -> Any:
    """The ball's height as a complex number."""
    return np.full(2, state.ball[2] + 1j)


def nan_later(state: Any, car: int, team_size: int) -> Any:
    """NaN as soon as the match has begun."""
    return np.full(2, 0.0 if state.time_left == 1 else np.nan)


def test_a_builder_that_returns_nan_later_is_named(tmp_path: Path) -> None:
    """The report of a masked observation names the builder."""
    with pytest.raises(EnvError, match=r"The observation of your builder `nan_later` was not finite in env 0"):
        ss.train("rocket", preset="smoke", observation=nan_later, run=tmp_path / "run", plan__collector="local")


@pytest.mark.slow
def test_a_league_with_an_observation_builder(tmp_path: Path) -> None:
    """A league whose anchor is `random` trains with a builder."""
    league = ss.compete(
        "rocket",
        steps=512,
        run=tmp_path / "league",
        observation=see,
        league__anchors=["random"],
        league__snapshot=256,
        league__rating_games=2,
        env__match_seconds=2.0,
        evaluation__games=2,
        preset="smoke",
    )
    for table in league.facts["ladder"]["tables"]:
        assert "random" in {player["agent"] for player in table["players"]}


@pytest.mark.slow
def test_a_run_with_an_observation_builder(tmp_path: Path) -> None:
    """A run with a builder trains, resumes only with it, and its agent plays only with it."""
    own: dict[str, Any] = {"observation": see}
    small = {"preset": "smoke", "env__match_seconds": 2.0}
    run = ss.train("rocket", run=tmp_path / "run", steps=128, **small, **own)
    with pytest.raises(ConfigError, match="trained with the observation builder `see`") as caught:
        ss.resume(run.path, steps=256)
    assert "--observation MODULE:see" in caught.value.hint
    assert ss.resume(run.path, steps=256, **own).facts["steps"] == 256
    played = ss.evaluate(f"run:{run.path}", "rocket", opponent="random", games=2, env__match_seconds=2.0, **own)
    assert played["games"] == 2
    with pytest.raises(CheckpointError, match="trained with the observation of see"):
        ss.evaluate(f"run:{run.path}", "rocket", opponent="random", games=2)
