"""EnvPool: rows, seeds, turns, and errors with hints."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, Stepper, empty_rows
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import EnvError


def test_a_missing_package_gives_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that installs EnvPool."""
    from slipstream.envs.adapters.envpool import make_pool

    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match="`envpool:CartPole-v1` needs EnvPool") as caught:
        make_pool("CartPole-v1", [1], {})
    assert caught.value.hint.startswith('pip install "slipstream[envpool]"')


def test_any_of_its_games_may_be_named() -> None:
    """Any game of the package is accepted; the listed ones are examples."""
    assert parse("envpool:Ant-v4")[1] == "Ant-v4" and parse("envpool")[1] == "CartPole-v1"


class TestGames:
    """Tests with the installed package."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        """Skip if the package is not installed."""
        pytest.importorskip("envpool", reason="needs envpool, which is too large for the development tools")

    def made(self, name: str, envs: int, **more: Any) -> Any:
        """A vector of a game."""
        from slipstream.envs.adapters.envpool import EnvPool

        return EnvPool(name, envs, **more)

    def play(self, vector: Any, steps: int) -> list[dict[str, Array]]:
        """Step with actions that depend on the env's number alone, and keep the rows."""
        rows, kept = empty_rows(vector.spec, vector.envs), list[dict[str, Array]]()
        vector.reset(rows)
        for step in range(steps):
            action = np.array([[(step + env) // 2 % 2] for env in range(vector.first, vector.first + vector.envs)])
            vector.step(action.astype(np.int32), rows)
            kept.append({name: array.copy() for name, array in vars(rows).items()})
        return kept

    def test_episodes_end_and_reset_in_the_same_step(self) -> None:
        """CartPole pays 1 in every step; a limit truncates; the next observation is of another episode."""
        vector = self.made("CartPole-v1", 3, options={"max_episode_steps": 6})
        kept = self.play(vector, 20)
        assert isinstance(vector, Stepper) and all((rows["reward"] == 1).all() for rows in kept)
        for t, rows in enumerate(kept):
            assert rows["truncated"].all() == (t % 6 == 5) and not rows["terminated"].any() and rows["active"].all()
            if t % 6 == 5:
                assert (np.abs(rows["obs"]) <= 0.05).all()
                assert np.abs(rows["final_obs"] - kept[t - 1]["obs"]).max() < 0.5
                assert not np.array_equal(rows["final_obs"], rows["obs"])
        vector.close()
        vector.close()

    def test_games_follow_from_their_seeds_alone(self) -> None:
        """Env i plays the same game for any split; a given seed starts the same game in any env."""
        whole, part = self.made("CartPole-v1", 4, seed=3), self.made("CartPole-v1", 2, first=2, seed=3)
        one, two = self.play(whole, 40), self.play(part, 40)
        assert any(rows["terminated"].any() for rows in one)
        for name in ("obs", "reward", "terminated", "truncated"):
            assert all(np.array_equal(a[name][2:], b[name]) for a, b in zip(one, two, strict=True))
        first = []
        for vector, place in ((whole, 3), (part, 0)):
            rows = empty_rows(vector.spec, vector.envs)
            vector.reset_envs([place], rows, [77])
            assert vector.seeds()[place] == 77
            seen = [rows.obs[place].copy()]
            for _ in range(30):
                vector.step(np.zeros((vector.envs, 1), np.int32), rows)
                seen.append(rows.obs[place].copy())
            first.append(seen)
            assert vector.seeds()[place] == -1
        assert np.array_equal(*first)

    def test_players_take_turns(self) -> None:
        """In Connect Four one of two rows is active, masks close full columns, and four in a row win."""
        vector = self.made("ConnectFour-v1", 2, seed=1)
        spec = vector.spec
        assert spec.competitive and spec.agents == 2 and spec.action.masked and spec.absences
        rows, turns, won = empty_rows(spec, 2), [0, 0], 0
        vector.reset(rows)
        for _ in range(80):
            active = rows.active.reshape(2, 2).copy()
            assert (active.sum(axis=1) == 1).all() and (rows.mask.reshape(2, 2, -1).sum(axis=2) > 0).all()
            action = np.zeros((4, 1), np.int32)
            for env in range(2):  # the first to move stays in column 0, the other one goes from column to column
                mover = env * 2 + int(active[env].argmax())
                turns[env] += 1
                wanted = 0 if turns[env] % 2 else 1 + turns[env] // 2 % 6
                allowed = np.flatnonzero(rows.mask[mover])
                action[mover] = wanted if wanted in allowed else allowed[0]
            before = active
            vector.step(action, rows)
            ended = (rows.terminated > 0).reshape(2, 2)
            assert np.array_equal(ended[:, 0], ended[:, 1])
            for env in np.flatnonzero(ended[:, 0]).tolist():
                outcome = rows.outcome.reshape(2, 2)[env]
                assert turns[env] == 7 and outcome[before[env].argmax()] == 1 and outcome.sum() == 0
                turns[env], won = 0, won + 1
        assert won >= 8

    @pytest.mark.parametrize("name", ["Pendulum-v1", "MiniGrid-Empty-5x5-v0", "Pong-v5"])
    def test_other_kinds_of_games(self, name: str) -> None:
        """Numbers, dicts with images and frames can be stepped."""
        from slipstream.vector.random_rollout import RandomRollout

        vector = self.made(name, 2)
        walk = RandomRollout(vector)
        walk.steps(20)
        assert np.isfinite(vector.spec.obs.vectors(walk._out.obs)).all()

    def test_training_and_an_unknown_game(self) -> None:
        """A game can be trained by name, and an unknown name gets a suggestion."""
        from slipstream.api import configure
        from slipstream.training.build import build, choose_env
        from slipstream.vector.make import make_vector

        flags = {"plan__envs": 8, "plan__collector": "local", "ppo__rollout": 32, "ppo__minibatch": 64}
        settings = configure("envpool:CartPole-v1", flags=flags).settings
        parts = build(choose_env("envpool:CartPole-v1", settings), settings)
        parts.publish(0)
        parts.collector.start(0, None)
        assert parts.learner.update(parts.collector.collect(0), 0)[0] == 8 * 32
        parts.close()
        with pytest.raises(EnvError, match=r"EnvPool has no game `CartPole-v9`\. Did you mean `CartPole-v"):
            make_vector(EnvChoice("envpool:CartPole-v9"), 1)
