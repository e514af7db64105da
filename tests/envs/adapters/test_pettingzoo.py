"""PettingZoo games as rows: turns, masks, rewards, ends and teams, compared with the games themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

import slipstream as ss
from env_checks import check_same_in_processes
from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice, name_made
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

pytest.importorskip("pettingzoo", reason='needs pettingzoo (pip install "slipstream[pettingzoo]")')
pytest.importorskip("mpe2", reason='needs mpe2 (pip install "slipstream[pettingzoo]")')

from pettingzoo import AECEnv, ParallelEnv

from slipstream.envs.adapters.pettingzoo import find_module


def begin(name: str, envs: int = 1, **more: Any) -> tuple[Vector, Rows]:
    """Games at their first position."""
    vector = make_vector(EnvChoice(f"pettingzoo:{name}", **more), envs)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def put(vector: Vector, rows: Rows, column: int) -> None:
    """Let the player to move play a column; the other actions are ignored."""
    action = np.full((len(rows.reward), 1), 99, np.int32)
    action[rows.active > 0] = column
    vector.step(action, rows)


def test_players_take_turns() -> None:
    """One row is active at a time, sees its own stones first, and may not play a full column."""
    vector, rows = begin("connect_four")
    assert vector.spec.teams == (0, 1) and vector.spec.action.masked and vector.spec.obs.width == 84
    assert rows.active.tolist() == [1, 0] and rows.mask[0].all()
    for turn in range(6):
        put(vector, rows, 3)
        assert rows.active.tolist() == ([0, 1] if turn % 2 == 0 else [1, 0])
    now = int(rows.active.argmax())
    assert rows.mask[now].tolist() == [1, 1, 1, 0, 1, 1, 1]
    planes = rows.obs[now].reshape(6, 7, 2)
    assert planes[:, 3, 0].tolist() == [0, 1, 0, 1, 0, 1] and planes[:, 3, 1].tolist() == [1, 0, 1, 0, 1, 0]
    vector.close()


def test_a_game_is_won() -> None:
    """Both rows end together, each with its own reward and outcome, and the next game starts in the same step."""
    vector, rows = begin("connect_four")
    for column in (0, 6, 0, 6, 0, 6):
        put(vector, rows, column)
        assert not rows.terminated.any() and not rows.reward.any()
    put(vector, rows, 0)
    assert rows.terminated.tolist() == [1, 1] and not rows.truncated.any()
    assert rows.reward.tolist() == [1, -1] and rows.outcome.tolist() == [1, -1]
    assert rows.active.tolist() == [1, 0] and not rows.obs[0].any()
    vector.close()


def test_a_game_is_drawn() -> None:
    """A full board without a winner is a draw."""
    vector, rows = begin("tictactoe")
    for square in (0, 1, 2, 4, 3, 5, 7, 6, 8):
        assert not rows.terminated.any()
        put(vector, rows, square)
    assert rows.terminated.all() and rows.outcome.tolist() == [0, 0] and not rows.reward.any()
    vector.close()


def test_all_at_once() -> None:
    """simple_tag has two teams, observations of different lengths in one layout, and a one-hot of the player type."""
    vector, rows = begin("simple_tag", 2)
    module = find_module("simple_tag")
    game = module.parallel_env()
    seeds = vector.seeds()
    seen, _ = game.reset(seed=int(seeds[0]))
    names, spec = list(game.possible_agents), vector.spec
    assert spec.teams == (0, 0, 0, 1) and spec.competitive and not spec.action.masked
    widths = [game.observation_space(name).shape[0] for name in names]
    assert spec.obs.width == max(widths) + 2
    action = np.arange(8, dtype=np.int32)[:, None] % 5
    for _ in range(5):
        for agent, name in enumerate(names):
            own = rows.obs[agent]
            assert np.array_equal(own[: widths[agent]], seen[name].astype(np.float32))
            assert not own[widths[agent] : -2].any() and own[-2:].sum() == 1
        assert rows.active.all()
        assert np.array_equal(rows.obs[0][-2:], rows.obs[1][-2:]) and rows.obs[0][-1] != rows.obs[3][-1]
        seen, paid, *_ = game.step({name: int(action[agent, 0]) for agent, name in enumerate(names)})
        vector.step(action, rows)
        assert np.allclose(rows.reward[:4], [paid[name] for name in names])
    for _ in range(40):
        vector.step(action, rows)
        if rows.truncated.any():
            break
    assert rows.truncated.all() and not rows.terminated.any() and rows.final_obs.any()
    assert set(rows.outcome.tolist()) <= {-1, 0, 1} and rows.outcome[0] == -rows.outcome[3]
    vector.close()


def test_processes_change_nothing() -> None:
    """Seeds, turns and rows are the same however games are shared out."""
    random = np.random.default_rng(0)

    def choose(rows: Rows) -> Array:
        return (random.random(rows.mask.shape) * rows.mask).argmax(axis=1).astype(np.int32)[:, None]

    names = ("obs", "reward", "terminated", "active", "mask", "outcome")
    check_same_in_processes("pettingzoo:connect_four", 5, 2, 60, choose, names)


def test_what_is_refused() -> None:
    """Unknown games, wrong options and illegal moves are errors that name the game."""
    with pytest.raises(EnvError, match=r"has no variant `connect_fore`.*Did you mean `connect_four`"):
        begin("connect_fore")
    with pytest.raises(ConfigError, match=r"`env.options` of pettingzoo:tictactoe: .*colour"):
        make_vector(EnvChoice("pettingzoo:tictactoe", env=EnvSettings(options={"colour": 1})), 1)
    vector, rows = begin("tictactoe", 2)
    put(vector, rows, 0)
    with pytest.raises(EnvFault, match=re.escape("Env 0 ")):
        put(vector, rows, 0)
    vector.close()


class Relay(ParallelEnv):  # type: ignore[misc]
    """Agents that come and go: `runner_1` leaves at step 2 and returns at step 4; others stop at step 3; 6 steps."""

    def __init__(self, hint: str = "", tokens: bool = False) -> None:
        self.possible_agents = ["runner_0", "runner_1", "runner_2"]
        self._hint, self._tokens, self.closed = hint, tokens, False

    def observation_space(self, agent: str) -> Any:
        """The number of the step and of the agent, as numbers or as tokens."""
        return spaces.Box(0, 255, (4, 3), np.uint8) if self._tokens else spaces.Box(0.0, 9.0, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        """Three choices."""
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start with everyone."""
        self.t, self.agents = 0, list(self.possible_agents)
        return self._seen(), self._infos()

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Pay each agent its action; `runner_2` is terminated at step 3, all others are truncated at step 6."""
        assert set(actions) == set(self.agents)
        self.t += 1
        before = list(self.agents)
        over = {name: name == "runner_2" and self.t == 3 for name in before}
        cut = dict.fromkeys(before, self.t >= 6)
        away = {"runner_1"} if 2 <= self.t < 4 else set()
        gone = {"runner_2"} if self.t >= 3 else set()
        self.agents = [name for name in self.possible_agents if name not in away | gone and self.t < 6]
        seen = self._seen() | {name: self._look(name) for name in before}
        return seen, {name: float(actions[name]) for name in before}, over, cut, self._infos()

    def close(self) -> None:
        """Record the call."""
        self.closed = True

    def _look(self, name: str) -> Any:
        number = int(name[-1])
        if self._tokens:
            return np.full((4, 3), 10 * self.t + number, np.uint8)
        return np.array([self.t, number], np.float32)

    def _seen(self) -> dict[str, Any]:
        return {name: self._look(name) for name in self.agents}

    def _infos(self) -> dict[str, Any]:
        mask = {"action_mask": np.array([1, 0, 1], np.int8)} if self._hint else {}
        return {name: dict(mask) for name in self.agents}


def roll(vector: Vector, steps: int) -> list[tuple[Array, ...]]:
    """What each step of random legal play brought."""
    rows, rng, found = empty_rows(vector.spec, vector.envs), np.random.default_rng(0), []
    vector.reset(rows)
    for _ in range(steps):
        mask = rows.mask if rows.mask.size else np.ones((len(rows.reward), vector.spec.action.sizes[0]))
        vector.step((rng.random(mask.shape) * mask).argmax(axis=1).astype(np.int32)[:, None], rows)
        found.append(tuple(array.copy() for array in vars(rows).values()))
    vector.close()
    return found


@pytest.mark.parametrize(
    ("name", "make", "steps"),
    [
        ("simple_tag", lambda: find_module("simple_tag").parallel_env(), 60),
        ("simple_tag", lambda: find_module("simple_tag").env(), 60),
        ("connect_four", lambda: find_module("connect_four").env(), 60),
        ("tictactoe", lambda: find_module("tictactoe").raw_env(), 40),
    ],
)
def test_a_function_equals_the_name(name: str, make: Any, steps: int) -> None:
    """A parallel or AEC env that a function makes gives the rows of `pettingzoo:NAME`, bit for bit."""
    own_name = name_made(make())
    assert re.fullmatch(rf"python:pettingzoo/{name}_v\d+", own_name)
    one = make_vector(EnvChoice(f"pettingzoo:{name}"), 2, seed=3)
    other = make_vector(EnvChoice(own_name, factory=make), 2, seed=3)
    assert replace(one.spec, name="") == replace(other.spec, name="")
    for step, again in zip(roll(one, steps), roll(other, steps), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(step, again, strict=True))


def test_agents_come_and_go() -> None:
    """Absent agents are inactive; one that was terminated is terminated when the game is cut off, others truncated."""
    vector = make_vector(EnvChoice(name_made(Relay), factory=Relay), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    active = []
    for _ in range(6):
        vector.step(np.array([[1], [2], [0]], np.int32), rows)
        active.append(rows.active.tolist())
    assert active == [[1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert rows.truncated.tolist() == [1, 1, 0] and rows.terminated.tolist() == [0, 0, 1]
    assert rows.final_obs.tolist() == [[6, 0], [6, 1], [0, 0]] and rows.reward.tolist() == [1, 2, 0]
    assert rows.obs.tolist() == [[0, 0], [0, 1], [0, 2]]
    vector.close()


class Early(Relay):
    """`runner_0` is truncated at step 2; the others are terminated at step 4."""

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Pay each agent its action."""
        self.t += 1
        before = list(self.agents)
        over, cut = dict.fromkeys(before, self.t == 4), {name: name == "runner_0" and self.t == 2 for name in before}
        self.agents = [name for name in before if not over[name] and not cut[name]]
        seen = {name: self._look(name) for name in before}
        return seen, {name: float(actions[name]) for name in before}, over, cut, self._infos()


class EarlyTurns(AECEnv):  # type: ignore[misc]
    """The same in turns: the observation is the number of turns; the first of three agents is truncated at turn 4."""

    metadata: ClassVar[dict[str, Any]] = {"name": "early"}

    def __init__(self) -> None:
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent: str) -> Any:
        """The number of turns."""
        return spaces.Box(0.0, 99.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        """Two choices."""
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        """The number of turns."""
        return np.full(1, self.t, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start with everyone."""
        self.t, self.agents, self.agent_selection = 0, list(self.possible_agents), "a"
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {name: {} for name in self.agents}
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self._skip_agent_selection = None

    def step(self, action: Any) -> None:
        """Count turns."""
        if self.truncations[self.agent_selection] or self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.t += 1
        after = self.agents[(self.agents.index(self.agent_selection) + 1) % len(self.agents)]
        if self.t == 4:
            self.truncations["a"] = True
        if self.t == 7:
            self.terminations |= dict.fromkeys(self.agents, True)
        self.agent_selection = after
        self._deads_step_first()


@pytest.mark.parametrize(("make", "steps", "last"), [(Early, 4, 2), (EarlyTurns, 7, 4)])
def test_an_agent_is_truncated_before_the_end(make: Any, steps: int, last: int) -> None:
    """It is truncated with its own last observation when the game is over, although the others are terminated."""
    vector = make_vector(EnvChoice(name_made(make), factory=make), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    for step in range(steps):
        assert not (rows.truncated | rows.terminated).any() and rows.active[0] == (step < last and rows.active[0])
        vector.step(np.ones((3, 1), np.int32), rows)
    assert rows.truncated.tolist() == [1, 0, 0] and rows.terminated.tolist() == [0, 1, 1]
    assert rows.final_obs[:, 0].tolist() == [last, 0, 0]
    vector.step(np.ones((3, 1), np.int32), rows)
    assert not (rows.truncated | rows.terminated).any()
    vector.close()


def test_a_reward_for_an_unknown_agent() -> None:
    """A reward for an agent that is not in `possible_agents` is an error that names it."""

    class Ghost(Relay):
        def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
            seen, rewards, *rest = super().step(actions)
            return seen, rewards | {"ghost": 1.0}, *rest

    vector = make_vector(EnvChoice("python:pettingzoo/ghost", factory=Ghost), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    with pytest.raises(EnvError, match="not in its `possible_agents`: ghost"):
        vector.step(np.zeros((3, 1), np.int32), rows)


def test_tokens_and_masks_of_ones_own() -> None:
    """(N, 3) uint8 observations are tokens, and masks may be in the infos."""
    vector = make_vector(EnvChoice("python:pettingzoo/Relay", factory=lambda: Relay("masked", True)), 2)
    (field,) = vector.spec.obs.fields
    assert (field.kind, field.shape) == ("tokens", (4, 3)) and vector.spec.action.masked
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    vector.step(np.zeros((6, 1), np.int32), rows)
    assert (vector.spec.obs.split(rows.obs)[""][4] == 11).all() and rows.mask[0].tolist() == [1, 0, 1]
    vector.close()


class Masks(Relay):
    """Its infos hold the given masks of everyone in the first, second, ... observation; None: no mask."""

    def __init__(self, *masks: list[int] | None) -> None:
        super().__init__()
        self._masks = masks

    def _infos(self) -> dict[str, Any]:
        mask = self._masks[min(self.t, len(self._masks) - 1)]
        return {name: {} if mask is None else {"action_mask": np.array(mask)} for name in self.agents}


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        ([None, [1, 0, 1]], r"gives an action mask to runner_0 \(env 0, seed \d+, step 1\), but gave none at reset"),
        ([[0, 0, 0]], r"mask of runner_0 allows no action in `python:pettingzoo/m` \(env 0, seed \d+, step 0\)"),
        ([[1, 1, 1], [0, 0, 0]], r"mask of runner_0 allows no action .*step 1\)"),
        ([[1, 1]], r"mask of runner_0 .* has 2 numbers, but its actions have 3 options"),
        ([[1, 1, 1], [1, 1, 1, 1]], r"mask of runner_0 .* has 4 numbers, but its actions have 3 options .*step 1\)"),
    ],
)
def test_wrong_masks(masks: list[Any], said: str) -> None:
    """A mask that comes late, allows nothing or has another length is an error that names the agent and the step."""
    vector = make_vector(EnvChoice("python:pettingzoo/m", factory=lambda: Masks(*masks)), 1)
    rows = empty_rows(vector.spec, 1)
    with pytest.raises(EnvError, match=said) as caught:
        vector.reset(rows)
        vector.step(np.zeros((3, 1), np.int32), rows)
    assert caught.value.hint and not isinstance(caught.value, EnvFault)
    vector.close()


def test_masks_of_several_parts() -> None:
    """The mask of a MultiDiscrete action holds the options of all parts, and each part must allow one."""

    class Parts(Masks):
        def action_space(self, agent: str) -> Any:
            return spaces.MultiDiscrete([2, 3])

        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            return super().step({name: action[0] for name, action in actions.items()})

    vector = make_vector(EnvChoice("python:pettingzoo/m", factory=lambda: Parts([0, 1, 1, 0, 1], [1, 1, 0, 0, 0])), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    assert rows.mask.tolist() == [[0, 1, 1, 0, 1]] * 3
    with pytest.raises(EnvError, match="mask of runner_0 allows no action"):
        vector.step(np.zeros((6, 2), np.int32), rows)
    vector.close()


def test_masks_of_inactive_agents() -> None:
    """The mask of an agent that may not act now is not checked, and its row allows everything."""

    class Absent(Masks):
        def _infos(self) -> dict[str, Any]:
            none = {name: {"action_mask": np.zeros(3)} for name in self.possible_agents if name not in self.agents}
            return super()._infos() | none

    class Waiting(EarlyTurns):
        def reset(self, seed: int | None = None, options: Any = None) -> None:
            super().reset(seed)
            self.infos = {name: {"action_mask": np.array([0, int(name == "a")])} for name in self.agents}

        def step(self, action: Any) -> None:
            super().step(action)
            self.infos = {name: {"action_mask": [0, int(name == self.agent_selection)]} for name in self.agents}

    for make, options in ((lambda: Absent([1, 0, 1]), 3), (Waiting, 2)):
        vector = make_vector(EnvChoice("python:pettingzoo/m", factory=make), 1)
        rows = empty_rows(vector.spec, 1)
        vector.reset(rows)
        for _ in range(6):
            vector.step(np.where(rows.mask[:, :1] > 0, 0, 1).astype(np.int32), rows)
            assert (rows.mask.sum(axis=1) == np.where(rows.active > 0, options - 1, options)).all()
        vector.close()


def test_what_is_refused_of_ones_own() -> None:
    """Unknown agents, no list of agents, options, another kind of env and spaces of text are errors with a hint."""

    class Crowd(Relay):
        def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            super().reset(seed)
            self.agents = ["stranger"]
            return {}, {}

    class Nobody(Relay):
        def __init__(self) -> None:
            self.possible_agents = []

    class Talk(Relay):
        def observation_space(self, agent: str) -> Any:
            return spaces.Text(5)

    class Lists(Relay):
        def action_space(self, agent: str) -> Any:
            return spaces.Sequence(spaces.Discrete(2))

    cases: list[tuple[Any, str]] = [
        (Crowd, "not in its `possible_agents`: stranger"),
        (Nobody, "does not list its agents"),
        (Talk, "are a Text, which is not supported"),
        (Lists, "are a Sequence, which is not supported"),
        (dict, "made a dict, which is not a PettingZoo env"),
    ]
    for factory, said in cases:
        with pytest.raises(EnvError, match=said) as caught:
            make_vector(EnvChoice("python:pettingzoo/mine", factory=factory), 1)
        assert caught.value.hint
    with pytest.raises(ConfigError, match="does not apply"):
        make_vector(EnvChoice("python:pettingzoo/mine", EnvSettings(options={"a": 1}), factory=Relay), 1)
    with pytest.raises(EnvError, match="was given as a Python function"):
        make_vector(EnvChoice("python:pettingzoo/mine"), 1)
    with pytest.raises(EnvFault, match="ZeroDivisionError"):
        make_vector(EnvChoice("python:pettingzoo/mine", factory=lambda: 1 // 0), 1)


@pytest.mark.slow
def test_every_verb_takes_a_function(tmp_path: Path) -> None:
    """simple_tag as a function trains in workers, resumes, is evaluated, recorded and watched, and plays matches."""

    def make() -> Any:
        from mpe2 import simple_tag_v3

        return simple_tag_v3.parallel_env(max_cycles=10)

    small = {"preset": "smoke", "plan__envs": 4, "plan__workers": 2, "ppo__rollout": 32, "plan__collector": "actors"}
    run = ss.train(make, steps=512, run=tmp_path / "run", **small)
    with pytest.raises(ConfigError, match="was given as a Python function"):
        ss.resume(run.path, steps=1024)
    run = ss.resume(run.path, steps=1024, env=make)
    assert run.facts["steps"] == 1024
    agent = f"run:{run.path}"
    assert ss.evaluate(agent, make, opponent="random", games=4)["games"] == 4
    assert ss.record(agent, make, 2, tmp_path / "demos", opponent="random")["episodes"] >= 2
    assert ss.watch([agent, "random"], make, games=2)["games"] == 2
    assert ss.tournament([agent, "random"], make, 2)["games"] == 2


class Auction(EarlyTurns):
    """Three sides: whoever plays 1 is paid 1; two rounds."""

    metadata: ClassVar[dict[str, Any]] = {"name": "auction"}

    def step(self, action: Any) -> None:
        """Pay the player to move."""
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.t += 1
        self.rewards = {name: float(action) * (name == self.agent_selection) for name in self.agents}
        self.agent_selection = self.agents[(self.agents.index(self.agent_selection) + 1) % 3]
        if self.t == 6:
            self.terminations |= dict.fromkeys(self.agents, True)


@pytest.mark.slow
def test_games_of_three_sides(tmp_path: Path) -> None:
    """A game of three sides trains with evaluations and replays, and is evaluated, watched, recorded and rated."""
    small = {"preset": "smoke", "plan__envs": 2, "plan__collector": "local", "ppo__rollout": 32, "ppo__minibatch": 32}
    often = {"every__evaluate": 192, "evaluation__games": 3, "every__replay": 192}
    run = ss.train(Auction, steps=192, run=tmp_path / "run", **small, **often)
    agent = f"run:{run.path}"
    assert sorted((run.path / "replays").glob("*.replay"))
    told = ss.evaluate(agent, Auction, opponent="random", games=6)
    assert told["games"] == 6 and told["wins"] + told["draws"] + told["losses"] == 6
    assert [one["players"] for one in ss.watch([agent, "random"], Auction, games=2)["results"]] == [
        [agent, "random"],
        ["random", agent],
    ]
    assert ss.watch([agent, "random", "random"], Auction)["games"] == 1
    assert ss.record(agent, Auction, 3, tmp_path / "demos", opponent="random")["episodes"] == 3
    assert ss.tournament([agent, "random"], Auction, 2, run=tmp_path / "ladder")["games"] == 2
    with pytest.raises(ConfigError, match="has 3 sides: it needs an opponent"):
        ss.evaluate(agent, Auction, games=1)
    with pytest.raises(ConfigError, match="has 3 sides, but was given random, random, random, random"):
        ss.watch(["random"] * 4, Auction)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["connect_four", "tictactoe", "simple_tag"])
def test_self_play_and_league(name: str, tmp_path: Path) -> None:
    """Self-play in worker processes, a league from its result, and games between agents work."""
    env, small = f"pettingzoo:{name}", {"preset": "smoke", "plan__envs": 4, "plan__workers": 2, "ppo__rollout": 32}
    first = ss.train(env, steps=512, run=tmp_path / "first", **small)
    league = ss.compete(env, steps=1024, run=tmp_path / "league", league__snapshot=512, **small)
    assert first.facts["steps"] >= 512 and league.facts["steps"] >= 1024
    told = ss.evaluate(f"run:{first.path}", env, opponent="random", games=20)
    assert told["games"] == 20 and told["wins"] + told["draws"] + told["losses"] == 20
    resumed = ss.resume(first.path, steps=1024)
    assert resumed.facts["steps"] >= 1024
