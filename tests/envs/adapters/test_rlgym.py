"""RLGym environments as rows: agents, teams, ends, winners and errors; the real package if it is installed."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import slipstream as ss
from slipstream.contracts import Rows, Vector, empty_rows
from slipstream.envs.adapters import rlgym
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import EnvError
from slipstream.vector.make import make_vector, spaces_of


class Duel:
    """An env with RLGym's parts and no arena: the first agent with action 1 scores; truncated after five steps."""

    def __init__(self, space: Any = ("discrete", 2), ragged: bool = False) -> None:
        self._space, self._ragged, self._games = space, ragged, 0
        self.transition_engine = self.state_mutator = self.reward_fn = None
        self.obs_builder, self.action_parser = SimpleNamespace(), SimpleNamespace()
        self.agents: list[str] = []
        self.closed = False

    def action_space(self, agent: str) -> Any:
        """The action space of every agent."""
        return self._space

    def reset(self) -> dict[str, Any]:
        """Start a game; the second car of each team is absent in every other game."""
        self._games += 1
        pairs = 2 if self._games % 2 else 1
        self.agents = [f"{team}-{k}" for k in range(pairs) for team in ("blue", "orange")]
        cars = {agent: SimpleNamespace(team_num=int(agent.startswith("orange"))) for agent in self.agents}
        self.state = SimpleNamespace(cars=cars, goal_scored=False, scoring_team=None)
        self._step, self.drawn = 0, float(np.random.random())
        return self._see()

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """The first agent with action 1 scores."""
        self._step += 1
        assert set(actions) == set(self.agents) and all(act.shape == (1,) for act in actions.values())
        first = next((agent for agent in self.agents if actions[agent][0] == 1), None)
        if first is not None:
            self.state.goal_scored, self.state.scoring_team = True, self.state.cars[first].team_num
        paid = {agent: float(agent == first) for agent in self.agents}
        over = dict.fromkeys(self.agents, first is not None)
        return self._see(), paid, over, dict.fromkeys(self.agents, self._step >= 5)

    def close(self) -> None:
        """Record the call."""
        self.closed = True

    def _see(self) -> dict[str, Any]:
        return {
            agent: np.array([k, self._step, self.drawn][: 2 if self._ragged and k else 3])
            for k, agent in enumerate(self.agents)
        }


def begin(envs: int = 1, **more: Any) -> tuple[Vector, Rows]:
    """Games that have just started."""
    vector = make_vector(EnvChoice("python:duel", factory=lambda: Duel(**more)), envs)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def press(*acts: int) -> Any:
    """An action of each row."""
    return np.array(acts, np.int32)[:, None]


def test_own_terms_see_the_state() -> None:
    """A Python reward term is valued for each car that plays, with the state of the game in `info`."""

    def scored(before: Any, action: Any, after: Any, info: Any) -> float:
        assert after[1] == before[1] + 1
        team = info["state"].cars[info["agent"]].team_num
        return 10.0 * (info["state"].scoring_team == team) + float(action[0])

    vector = make_vector(EnvChoice("python:duel", factory=Duel, terms={"scored": scored}), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    vector.step(press(0, 0, 1, 0), rows)
    assert vector.spec.terms == ("env", "scored")
    assert rows.terms[:, 1].tolist() == [0, 0, 11, 0], "one car per team plays this game; the orange one scored"
    assert rows.reward.tolist() == [0, 0, 12, 0], "the scorer also has the env's own reward"


def test_agents_are_rows_and_teams_sides() -> None:
    """Rows are sorted by team for any order of the env; absent agents are inactive."""
    vector, rows = begin()
    assert vector.spec.teams == (0, 0, 1, 1) and vector.spec.competitive
    assert vector.spec.action.sizes == (2,) and vector.spec.obs.width == 3
    assert rows.active.tolist() == [1, 0, 1, 0]  # its second game; the first was used for probing
    vector.reset_envs([0], rows)
    assert rows.active.tolist() == [1, 1, 1, 1]
    assert rows.obs[:, 0].tolist() == [0, 2, 1, 3]


def test_a_goal_ends_the_game() -> None:
    """The team that scored has won, rewards are in their rows, and the next game starts at once."""
    vector, rows = begin()
    vector.step(press(0, 0, 1, 0), rows)
    assert rows.terminated.tolist() == [1] * 4 and not rows.truncated.any()
    assert rows.outcome.tolist() == [-1, -1, 1, 1] and rows.reward.tolist() == [0, 0, 1, 0]
    assert rows.active.all() and rows.obs[0, 1] == 0


def test_a_game_that_is_cut_off() -> None:
    """A game without a goal is truncated after five steps, is a draw, and keeps its last observation."""
    vector, rows = begin()
    for step in range(5):
        assert not rows.truncated.any()
        vector.step(press(0, 0, 0, 0), rows)
        assert rows.active.any() and step < 5
    assert rows.truncated.all() and not rows.terminated.any() and not rows.outcome.any()
    assert rows.final_obs[0, 1] == 5 and not rows.final_obs[1].any()


def test_games_follow_from_the_seed() -> None:
    """Two games with the same seed are equal."""
    vector, rows = begin()
    drawn = []
    for seed in (7, 8, 7):
        vector.reset_envs([0], rows, [seed])
        drawn.append(float(rows.obs[0, 2]))
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("space", "kind", "sizes"),
    [
        (("real", 8), "continuous", ()),
        (("multi-discrete", (3, 2)), "multi_discrete", (3, 2)),
        (spaces.Discrete(5), "discrete", (5,)),
    ],
)
def test_action_spaces(space: Any, kind: str, sizes: tuple[int, ...]) -> None:
    """RLGym's tuples and Gymnasium's spaces are supported as action spaces."""
    vector, _ = begin(space=space)
    assert vector.spec.action.kind == kind and vector.spec.action.sizes == sizes
    assert vector.spec.action.parts == (8 if kind == "continuous" else len(sizes))


def test_unsupported_spaces_raise() -> None:
    """An unknown action space and observations of different lengths are errors."""
    with pytest.raises(EnvError, match="action space 'wheel'") as caught:
        begin(space="wheel")
    assert "discrete" in (caught.value.hint or "")
    with pytest.raises(EnvError, match="2 numbers") as caught:
        begin(ragged=True)
    assert "zero_padding" in (caught.value.hint or "")


def test_a_missing_rlgym_gives_the_install_command() -> None:
    """If RLGym is missing, the error gives the command that installs it without its dependencies."""

    def make() -> Any:
        raise ModuleNotFoundError("No module named 'rlgym'", name="rlgym.api")

    with pytest.raises(EnvError, match="needs RLGym") as caught:
        make_vector(EnvChoice("python:duel", factory=make), 1)
    assert caught.value.hint == rlgym.INSTALL and "--no-deps" in rlgym.INSTALL
    with pytest.raises(EnvError, match=r"ss\.train\(lambda: RLGym"):
        parse("rlgym:1v1")


def test_other_envs_are_not_taken_for_it() -> None:
    """An RLGym env is recognised by its parts."""
    assert rlgym.is_rlgym(Duel()) and not rlgym.is_rlgym(SimpleNamespace(obs_builder=1, step=2))
    choice = EnvChoice("python:duel", factory=Duel)
    seen, acts = spaces_of(make_vector(choice, 1))
    assert seen.shape == (3,) and acts == spaces.Discrete(2)


def real() -> Any:
    """RLGym's own 1v1 as its documentation makes it."""
    api = pytest.importorskip("rlgym.api", reason=f"needs RLGym ({rlgym.INSTALL})")
    from rlgym.rocket_league import action_parsers, done_conditions, obs_builders, reward_functions, state_mutators
    from rlgym.rocket_league.sim import RocketSimEngine

    sizes = state_mutators.FixedTeamSizeMutator(blue_size=1, orange_size=1)
    return api.RLGym(
        state_mutator=state_mutators.MutatorSequence(sizes, state_mutators.KickoffMutator()),
        obs_builder=obs_builders.DefaultObs(zero_padding=1),
        action_parser=action_parsers.RepeatAction(action_parsers.LookupTableAction(), repeats=8),
        reward_fn=reward_functions.CombinedReward(
            (reward_functions.GoalReward(), 10.0), (reward_functions.TouchReward(), 0.1)
        ),
        termination_cond=done_conditions.GoalCondition(),
        truncation_cond=done_conditions.TimeoutCondition(2.0),
        transition_engine=RocketSimEngine(),
    )


def test_the_real_one_steps_as_by_hand() -> None:
    """Rows equal RLGym's own results for the same actions from the same start."""
    one = real()
    vector = make_vector(EnvChoice("python:real", factory=real), 2)
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    vector.reset_envs([0], rows, [5])
    random.seed(5)
    np.random.seed(5)
    seen = one.reset()
    rng = np.random.default_rng(0)
    for step in range(30):
        assert np.allclose(rows.obs[0], seen["blue-0"], atol=1e-6) and np.allclose(rows.obs[1], seen["orange-0"])
        acts = rng.integers(0, 90, (4, 1)).astype(np.int32)
        seen, paid, over, cut = one.step({"blue-0": acts[0].astype(int), "orange-0": acts[1].astype(int)})
        vector.step(acts, rows)
        assert rows.reward[0] == pytest.approx(paid["blue-0"])
        assert bool(rows.truncated[0]) == any(cut.values()) and not any(over.values())
        if rows.truncated[0]:
            assert step >= 25 and np.allclose(rows.final_obs[1], seen["orange-0"], atol=1e-6)
            break
    assert rows.truncated[0]
    vector.close()


def test_the_real_one_trains(tmp_path: Path) -> None:
    """Self-play on an RLGym env with the user's parts works with two workers."""
    real().close()
    run = ss.train(real, steps=1024, preset="smoke", run=tmp_path / "run", plan__envs=2, plan__workers=2)
    assert run.facts["steps"] >= 1024


@pytest.mark.slow
def test_every_verb_takes_own_parts(tmp_path: Path) -> None:
    """An env with RLGym's parts trains, resumes, is evaluated, watched and recorded."""

    def make() -> Duel:
        return Duel()

    small: dict[str, Any] = {"preset": "smoke", "plan__envs": 2, "plan__collector": "local", "ppo__rollout": 16}
    run = ss.train(make, steps=128, run=tmp_path / "run", **small)
    run = ss.resume(run.path, steps=256, env=make)
    agent = f"run:{run.path}"
    assert ss.evaluate(agent, make, opponent="random", games=4)["games"] == 4
    assert ss.watch([agent, "random"], make)["games"] == 1
    assert ss.record("random", make, 2, tmp_path / "demos", opponent="random")["episodes"] == 2
