"""Assignments: which player controls which rows, which rows learn, finished games, and players that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.agents.simple import BatchAgent
from slipstream.collect.actor import Actor
from slipstream.collect.rollout import empty_rollout
from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows, vector_obs
from slipstream.errors import CheckpointError
from slipstream.play.assignments import (
    PLAYER,
    SELF,
    SIDE,
    FinishedGame,
    Players,
    TrainingGames,
    fixed_assignments,
    invalid_action,
)
from slipstream.policies.design import Design
from slipstream.settings import PolicySettings

LENGTH = 3


class Counting:
    """Two agents; a game has three steps; the agent with the larger last action wins."""

    spec = EnvSpec(
        "counting", vector_obs(1), ActionSpec("discrete", (5,)), teams=(0, 1), exact=True, behaviours=("last",)
    )

    def __init__(self, envs: int) -> None:
        self.envs, self.game, self.left = envs, np.zeros(envs, np.int64), np.full(envs, LENGTH)
        self.left += np.arange(envs) % 2  # every second env ends a step later
        self.seen: list[Array] = []

    def reset(self, out: Rows) -> None:
        """Start all games."""
        out.obs[:], out.active[:] = 0, 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Do nothing."""

    def seeds(self) -> Array:
        """Number the games."""
        return self.game * 10 + np.arange(self.envs)

    def assign(self, tasks: Array) -> None:
        """Do nothing."""

    def step(self, action: Array, out: Rows) -> None:
        """Count down and compare the actions at the end."""
        self.seen.append(action[:, 0].copy())
        self.left -= 1
        over = np.repeat(self.left == 0, 2)
        gap = np.sign(action[0::2, 0] - action[1::2, 0])
        out.outcome[0::2], out.outcome[1::2] = gap, -gap
        out.reward[:] = 1.0
        out.terminated[:], out.truncated[:], out.active[:] = over, 0, 1
        out.behaviour[:, 0] = action[:, 0]
        self.game += self.left == 0
        self.left[self.left == 0] = LENGTH

    def snapshot(self) -> dict[str, Array]:
        """Return the counters."""
        return {"game": self.game.copy(), "left": self.left.copy()}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore the counters."""
        self.game[:], self.left[:] = state["game"], state["left"]

    def close(self) -> None:
        """Do nothing."""


class Always(BatchAgent):
    """Always plays one action; a negative one raises."""

    def __init__(self, number: int) -> None:
        self.name, self.action, self.number, self.calls = f"always:{number}", Counting.spec.action, number, 0

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write the action."""
        self.calls += 1
        if self.number < 0:
            raise ValueError("no action")
        out[:] = self.number


def make_actor(envs: int, players: list[Any]) -> tuple[Actor, Counting]:
    """Make an actor of the counting game with these opponents."""
    vector = Counting(envs)
    design = Design(vector.spec.obs, vector.spec.action, PolicySettings(hidden=(8,)))
    roster = Players(lambda name: players[int(name)])
    roster.add([str(number) for number in range(len(players))])
    actor = Actor(vector, design, seed=0, roster=roster)
    actor.policy.load(design.initial_params_and_stats(0))
    return actor, vector


def assigned(*rows: tuple[int, int]) -> Array:
    """Training assignments from (player, side) of each env."""
    return np.array([(-1, player, side) for player, side in rows], np.int64)


def test_rows_follow_the_assignments() -> None:
    """In self-play all rows learn; against an opponent, the learner's side learns and the opponent has the rest."""
    games = TrainingGames(Counting.spec, 4, 0)
    assert games.own.tolist() == list(range(8)) and not games.rows
    games.begin(np.arange(4), assigned((SELF, 0), (0, 0), (0, 1), (2, 1)), np.arange(4))
    assert games.own.tolist() == [0, 1, 2, 5, 7]
    assert {player: rows.tolist() for player, rows in games.rows.items()} == {0: [3, 4], 2: [6]}
    assert sorted(games.frozen.tolist()) == [3, 4, 6]
    fixed = fixed_assignments(Counting.spec, 3, True)
    assert fixed[:, PLAYER].tolist() == [0, 0, 0] and fixed[:, SIDE].tolist() == [0, 1, 0]


def test_an_assignment_changes_only_when_a_game_ends() -> None:
    """A requested assignment is adopted env by env; an opponent acts once per step, and its rows are inactive."""
    one, two = Always(1), Always(2)
    actor, vector = make_actor(4, [one, two])
    actor.reset(assigned((0, 0), (0, 0), (SELF, 0), (0, 1)))
    rollout = empty_rollout(vector.spec, actor.design, 5, 4)
    actor.fill(rollout, assigned((1, 1), (1, 0), (0, 0), (SELF, 0)))
    played = np.array(vector.seen)
    assert played[:3, 1].tolist() == [1, 1, 1], "env 0: the first game ends after three steps"
    assert played[3:, 0].tolist() == [2, 2], "then the other player has the other side"
    assert played[:4, 3].tolist() == [1] * 4 and played[4, 3] == 2, "env 1 ends a step later"
    assert rollout.active[:, 0].tolist() == [1, 1, 1, 0, 0, 0] and rollout.active[:, 1].tolist() == [0, 0, 0, 1, 1, 1]
    assert rollout.active[:, 4].tolist() == [1] * 6, "env 2, first row: it learns in self-play and against a player"
    assert rollout.active[:, 5].tolist() == [1, 1, 1, 0, 0, 0]
    assert one.calls == 5 and two.calls == 2


def test_finished_games() -> None:
    """A finished game has player, side, the learner's outcome, length, return, seed and behaviours, in time order."""
    actor, vector = make_actor(2, [Always(4)])
    actor.reset(assigned((0, 1), (0, 0)))
    rollout = empty_rollout(vector.spec, actor.design, 4, 2)
    actor.fill(rollout, assigned((0, 1), (SELF, 0)))
    (t, first), (u, second) = actor.drain_finished()
    assert (t, u) == (2, 3)
    assert (first.env, first.player, first.side, first.length, first.episode_return, first.seed) == (0, 0, 1, 3, 3.0, 0)
    assert first.outcome == int(np.sign(vector.seen[2][1] - 4)) and first.opponent_behaviour == (4.0,)
    assert first.behaviour == (float(vector.seen[2][1]),)
    assert (second.env, second.player, second.length, second.seed) == (1, 0, 4, 1)
    assert first.value == pytest.approx(rollout.value[0, 1])
    assert FinishedGame.from_json(first.to_json()) == first
    assert actor.drain_finished() == []


def test_games_of_a_failed_player_do_not_count() -> None:
    """A player that raises, gives an invalid action or cannot be loaded is named; the others continue."""

    def load(name: str) -> Any:
        if name == "missing":
            raise CheckpointError("missing is not there.", "")
        return Always(int(name))

    vector = Counting(4)
    design = Design(vector.spec.obs, vector.spec.action, PolicySettings(hidden=(8,)))
    roster = Players(load)
    roster.add(["-1", "9", "missing", "1"])
    actor = Actor(vector, design, seed=0, roster=roster)
    actor.policy.load(design.initial_params_and_stats(0))
    requested = assigned((0, 0), (1, 0), (2, 0), (3, 0))
    actor.reset(requested)
    actor.fill(empty_rollout(vector.spec, design, 4, 4), requested)
    assert roster.faults == {
        0: "-1 raised ValueError: no action",
        1: "9 gave an action that does not exist",
        2: "missing is not there.",
    }
    assert [match.player for _, match in actor.drain_finished()] == [3]
    assert [played[1] for played in vector.seen] == [0] * 4, "its actions are 0 until its game is over"


def test_a_snapshot_restores_the_assignments() -> None:
    """Assignments, lengths and returns of running games are part of a snapshot."""
    one, vector = make_actor(3, [Always(1), Always(2)])
    requested, later = assigned((0, 0), (1, 1), (SELF, 0)), assigned((1, 0), (SELF, 0), (0, 1))
    one.reset(requested)
    one.fill(empty_rollout(vector.spec, one.design, 2, 3), later)
    kept = one.snapshot()
    other, _ = make_actor(3, [Always(1), Always(2)])
    other.restore(kept, later)
    rollouts = [empty_rollout(vector.spec, one.design, 6, 3) for _ in range(2)]
    for actor, rollout in ((one, rollouts[0]), (other, rollouts[1])):
        actor.drain_finished()
        actor.fill(rollout, later)
    assert one.drain_finished() == other.drain_finished()
    assert np.array_equal(rollouts[0].action, rollouts[1].action)
    assert np.array_equal(rollouts[0].active, rollouts[1].active)


@pytest.mark.parametrize(
    ("action", "spec", "fault"),
    [
        ([[0], [4]], ActionSpec("discrete", (5,)), ""),
        ([[0], [5]], ActionSpec("discrete", (5,)), "gave an action that does not exist"),
        ([[-1]], ActionSpec("discrete", (5,)), "gave an action that does not exist"),
        ([[0.5, np.nan]], ActionSpec("continuous", (), (-1, -1), (1, 1)), "gave an action that is not a number"),
        ([[0.5, 9.0]], ActionSpec("continuous", (), (-1, -1), (1, 1)), ""),
    ],
)
def test_invalid_actions(action: Any, spec: ActionSpec, fault: str) -> None:
    """Options that do not exist and NaN are invalid; the env clips continuous actions to their bounds."""
    assert invalid_action(np.array(action), EnvSpec("x", vector_obs(1), spec)) == fault
