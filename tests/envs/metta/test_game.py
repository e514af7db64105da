"""MettaGrid as rows: observations, rewards, ends, seeds, snapshots, processes, meanings, the walker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream as ss
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.metta.worlds import WORLDS, Stage, choose
from slipstream.envs.registry import EnvChoice
from slipstream.errors import CheckpointError, ConfigError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector, spread_vector

pytest.importorskip("mettagrid", reason='needs mettagrid (pip install "slipstream[mettagrid]")')

from slipstream.envs.metta import scripted
from slipstream.envs.metta.game import Metta

BEHAVIOURS = Stage.behaviours
SMALL: dict[str, Any] = {"agents": 6, "size": 11, "altars": 5, "walls": 4, "steps": 30}


def begin(envs: int = 2, variant: str = "arena", **options: Any) -> tuple[Metta, Rows]:
    """Games that have just started."""
    game = Metta(envs, variant=variant, options=options, seed=4)
    rows = empty_rows(game.spec, envs)
    game.reset(rows)
    return game, rows


def random_actions(game: Metta, rng: np.random.Generator) -> Array:
    """Any choices."""
    rows = game.envs * game.spec.agents
    return rng.integers(0, game.spec.action.sizes[0], (rows, 1)).astype(np.int32)


def play(game: Metta, rows: Rows, steps: int, seed: int = 0) -> list[tuple[Array, ...]]:
    """What each step of random play brought."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(steps):
        game.step(random_actions(game, rng), rows)
        found.append(tuple(getattr(rows, name).copy() for name in ("obs", "reward", "truncated", "terminated")))
    return found


def same(one: list[tuple[Array, ...]], other: list[tuple[Array, ...]]) -> bool:
    """Whether two plays were the same bit for bit."""
    return all(np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def test_rows_equal_the_simulator() -> None:
    """Tokens (cut to the observation), rewards and ends equal those of the bare simulator, agent by agent."""
    game, rows = begin(2, **SMALL)
    made, tokens = Stage(choose("arena", SMALL)), game.spec.obs.fields[0].shape[0]
    agents, room = made.world.agents, made.world.max_tokens
    from slipstream.system.rng import game_key

    bare, seen, earned, acts = [], np.zeros((2, agents, room, 3), np.uint8), np.zeros((2, agents), np.float32), []
    for env, seed in enumerate(game.seeds().tolist()):
        bare.append(made.make_game(game_key(seed)))
        acts.append(np.zeros(agents, np.int32))
        bare[env].set_buffers(seen[env], *np.zeros((2, agents), np.bool_), earned[env], acts[env])
    rng = np.random.default_rng(1)
    for _ in range(SMALL["steps"] - 1):
        action = random_actions(game, rng)
        game.step(action, rows)
        for env in range(2):
            acts[env][:] = action[env * agents : (env + 1) * agents, 0]
            bare[env].step()
        assert np.array_equal(rows.obs.reshape(2, agents, tokens, 3), seen[:, :, :tokens])
        assert np.array_equal(rows.reward, earned.reshape(-1))
        assert not rows.truncated.any() and not rows.terminated.any() and rows.active.all()


def test_a_full_game_is_truncated_and_reported() -> None:
    """A timeout is a truncation: the final observation is kept, the next game starts, and hearts equal rewards."""
    game, rows = begin(3, **SMALL)
    first = game.seeds()
    found = play(game, rows, SMALL["steps"])
    assert rows.truncated.all() and not rows.terminated.any()
    assert all(not step[2].any() for step in found[:-1])
    total = np.sum([step[1] for step in found], axis=0)
    assert np.array_equal(rows.behaviour[:, BEHAVIOURS.index("hearts")], total) and total.sum() > 0
    moves, failed = (rows.behaviour[:, BEHAVIOURS.index(name)] for name in ("moves", "failed"))
    assert (moves + failed <= SMALL["steps"]).all() and moves.sum() > 0 and (rows.behaviour[:, 4] >= 1).all()
    assert np.array_equal(game.seeds(), first + 1)
    fresh = Metta(3, options=SMALL, seed=4)
    anew = empty_rows(fresh.spec, 3)
    fresh.reset_envs(range(3), anew, (first + 1).tolist())
    assert np.array_equal(rows.obs, anew.obs) and not np.array_equal(rows.obs, rows.final_obs)
    before_end, at_end = play_to_the_last(first)
    assert np.array_equal(rows.final_obs, at_end) and not np.array_equal(before_end, at_end)


def play_to_the_last(seeds: Array) -> tuple[Array, Array]:
    """The observations one step before the end and at it, in games that would last longer."""
    game = Metta(3, options=SMALL | {"steps": 60}, seed=4)
    rows = empty_rows(game.spec, 3)
    game.reset_envs(range(3), rows, seeds.tolist())
    found = play(game, rows, SMALL["steps"])
    return found[-2][0], found[-1][0]


@pytest.mark.parametrize("variant", WORLDS)
def test_random_play_is_rewarded_and_the_walker_far_better(variant: str) -> None:
    """Every variant really rewards; the walker earns at least three times as much."""
    earned = {}
    for who in ("random", "walker"):
        game, rows = begin(2, variant)
        rng, total = np.random.default_rng(0), 0.0
        for _ in range(game._world.steps):
            action = random_actions(game, rng)
            if who == "walker":
                scripted.act("walker", rows.obs, game.spec.action, action)
            game.step(action, rows)
            total += float(rows.reward.sum())
        earned[who] = total / len(rows.reward)
    assert earned["random"] > 0.3 and earned["walker"] > 3 * earned["random"]


def test_cut_views_are_counted() -> None:
    """With few tokens observations are cut, nearest objects first, and the share of such steps is reported."""
    game, rows = begin(1, **SMALL, tokens=16)
    wide, more = begin(1, **SMALL, tokens=96)
    assert np.array_equal(rows.obs, more.obs[:, :48])
    assert np.array_equal(play(game, rows, 30)[5][1], play(wide, more, 30)[5][1])
    cut = BEHAVIOURS.index("cut")
    assert (rows.behaviour[:, cut] > 0.5).all() and not more.behaviour[:, cut].any()


def test_a_snapshot_is_exact() -> None:
    """A restored vector continues bit for bit, beyond the end of the episode."""
    game, rows = begin(2, **SMALL)
    play(game, rows, 17)
    state = game.snapshot()
    other = Metta(2, options=SMALL, seed=99)
    other.restore(state)
    anew = empty_rows(other.spec, 2)
    one, two = play(game, rows, 40, seed=5), play(other, anew, 40, seed=5)
    assert same(one, two) and np.array_equal(game.seeds(), other.seeds())
    assert np.array_equal(rows.behaviour, anew.behaviour)


def test_games_made_ahead_change_nothing() -> None:
    """The next game of an env is made ahead, one per step, from its seed."""
    game, rows = begin(4, **SMALL)
    play(game, rows, SMALL["steps"] - 1)
    assert sorted(game._spares) == [0, 1, 2, 3]
    plain, anew = begin(4, **SMALL)
    plain._lead = -1
    play(plain, anew, SMALL["steps"] - 1)
    assert not plain._spares
    assert same(play(game, rows, 30, 2), play(plain, anew, 30, 2))


@pytest.mark.parametrize("how", ["processes", "threads"])
def test_spread_out_they_play_the_same(how: str) -> None:
    """Over processes or threads, bit for bit."""
    choice = EnvChoice("mettagrid:arena", EnvSettings(options=SMALL))
    alone = make_vector(choice, 3, seed=4)
    spread = spread_vector(choice, 3, how, 2, seed=4)
    try:
        rows, others = empty_rows(alone.spec, 3), empty_rows(alone.spec, 3)
        alone.reset(rows)
        spread.reset(others)
        assert np.array_equal(rows.obs, others.obs)
        assert same(play(alone, rows, 35), play(spread, others, 35))  # type: ignore[arg-type]
    finally:
        alone.close()
        spread.close()


def test_a_fault_names_its_env() -> None:
    """What the simulator cannot do comes with the env, its seed and the step."""
    game, rows = begin(2, **SMALL)
    game._steppers[1] = lambda: (_ for _ in ()).throw(RuntimeError("broken core"))
    with pytest.raises(EnvFault, match="broken core") as caught:
        play(game, rows, 1)
    assert "Env 1" in caught.value.message and str(game.seeds()[1]) in caught.value.message


def test_a_target_is_refused() -> None:
    """The game has no tasks."""
    with pytest.raises(ConfigError, match="has no task `maze`"):
        make_vector(EnvChoice("mettagrid:arena", EnvSettings(target=("maze",))), 1)


TINY: dict[str, Any] = {
    "env__options": SMALL,
    "plan__envs": 2,
    "plan__collector": "local",
    "ppo__rollout": 16,
    "ppo__minibatch": 96,
    "policy__memory_size": 16,
    "policy__sequence": 8,
    "every__evaluate": 0,
    "every__checkpoint": 192,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations with tokens and an LSTM."""
    folder = tmp_path_factory.mktemp("metta") / "run"
    ss.train("mettagrid:arena", steps=576, run=folder, **TINY)
    return folder


def test_meanings_are_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy is kept from a world where features have other numbers: acting, starting and resuming all refuse."""
    agent = TrainedAgent.from_run(run)
    spec = make_vector(EnvChoice("mettagrid:chain", EnvSettings(options=SMALL | {"mines": 3})), 1).spec
    agent.check_fits(spec)
    assert "inv:heart" in agent.meanings["features"]
    moved = Stage.meanings.func  # type: ignore[attr-defined]

    def shifted(self: Stage) -> Any:
        told = dict(moved(self))
        return tuple((told | {"features": told["features"].replace("inv:heart,", "inv:soul,")}).items())

    monkeypatch.setattr(Stage, "meanings", property(shifted))
    other = Metta(1, options=SMALL).spec
    with pytest.raises(CheckpointError, match=r"was trained where the features are .*inv:heart,.* they are .*inv:soul"):
        agent.check_fits(other)
    with pytest.raises(CheckpointError, match="inv:soul"):
        ss.train("mettagrid:arena", steps=192, run=run.parent / "next", start=f"run:{run}", **TINY)
    with pytest.raises(CheckpointError, match="This run was trained with features"):
        ss.resume(run, steps=768)


def test_a_resumed_run_is_the_uninterrupted_one(run: Path, tmp_path: Path) -> None:
    """Bit for bit, from the middle of episodes, with memory and everything."""
    ss.train("mettagrid:arena", steps=384, run=tmp_path / "short", **TINY)
    ss.resume(tmp_path / "short", steps=576)
    whole, parts = TrainedAgent.from_run(run, "576"), TrainedAgent.from_run(tmp_path / "short", "576")
    assert np.array_equal(whole.params_and_stats, parts.params_and_stats) and np.abs(whole.params_and_stats).sum() > 0
