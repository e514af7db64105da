"""The user's own agents: what they see, when they are reset, and how they fail."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.agents import guarded
from slipstream.agents.own import OwnAgent, name_agents, register_agents
from slipstream.agents.simple import RandomAgent
from slipstream.agents.specs import load_agent
from slipstream.contracts import Array, EnvSpec, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import AgentFault, ConfigError
from slipstream.play.assignments import Players, act_players
from slipstream.system.rng import make_streams
from slipstream.vector.make import make_vector


class Worlds(gymnasium.Env[Any, Any]):
    """Observations and actions of several kinds; the observation counts the steps."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-9.0, 9.0, (2, 2), np.float64), "level": spaces.Discrete(3, start=1)}
    )
    action_space = spaces.Dict({"gear": spaces.Discrete(4, start=-1), "lights": spaces.MultiBinary(2)})

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start."""
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        self.steps += 1
        self.taken.append(action)
        return self.seen(), 0.0, self.steps == 5, False, {}

    def seen(self) -> dict[str, Any]:
        """The observation."""
        return {"place": np.full((2, 2), self.steps, np.float64), "level": 1 + self.steps % 3}


def make(env: type[gymnasium.Env[Any, Any]], given: Any, rows: int = 1) -> tuple[OwnAgent, Any, Any, Array]:
    """An agent for an env, the vector, its rows and the actions."""
    choice = EnvChoice(f"python:{env.__name__}", factory=env, agents={"it": given})
    vector = make_vector(choice, rows)
    agent = load_agent("python:it", vector.spec, choice)
    assert isinstance(agent, OwnAgent)
    out = empty_rows(vector.spec, rows)
    vector.reset(out)
    return agent, vector, out, np.zeros((rows, vector.spec.action.parts), vector.spec.action.dtype)


def soccer() -> tuple[EnvSpec, Any]:
    """The spec of soccer and the rows of two games."""
    vector = make_vector(EnvChoice("soccer"), 2)
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    vector.close()
    return vector.spec, rows


def play(agent: OwnAgent, spec: EnvSpec, rows: Any, states: Array) -> Array:
    """The actions of all rows."""
    out = np.zeros((len(rows.obs), spec.action.parts), spec.action.dtype)
    agent.act_rows(np.arange(len(rows.obs)), rows.obs, rows.mask, make_streams(3, "x", 0, len(rows.obs)), out, states)
    return out


def test_it_sees_and_acts_in_the_spaces_of_the_env() -> None:
    """A function gets the env's own nested observation and returns an action of the env's own action space."""
    seen = []

    def drive(obs: Any) -> dict[str, Any]:
        seen.append(obs)
        return {"gear": 2, "lights": [1, 0]}

    agent, vector, rows, action = make(Worlds, drive)
    agent.act_into(rows.obs, rows.mask, make_streams(0, "x", 0, 1), action)
    assert action.tolist() == [[3, 1, 0]]
    assert seen[0]["place"].dtype == np.float64 and seen[0]["place"].shape == (2, 2) and seen[0]["level"] == 1
    vector.step(action, rows)
    agent.act_into(rows.obs, rows.mask, make_streams(0, "x", 0, 1), action)
    assert (seen[1]["place"] == 1.0).all() and seen[1]["level"] == 2
    assert vector._envs[0].taken[0]["gear"] == 2 and vector._envs[0].taken[0]["lights"].tolist() == [1, 0]
    vector.close()


class Mixture(Worlds):
    """An action space that mixes continuous and discrete parts."""

    action_space = spaces.Dict({"push": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(4, start=-1)})


def test_mixed_actions_are_encoded_discrete_parts_first() -> None:
    """An action with continuous and discrete parts is clipped and reordered to the parts of the env's rows."""
    agent, vector, rows, action = make(Mixture, lambda obs: {"push": [0.5, 9.0], "gear": 1})
    agent.act_into(rows.obs, rows.mask, make_streams(0, "x", 0, 1), action)
    assert action.tolist() == [[2.0, 0.5, 1.0]]
    vector.step(action, rows)
    taken = vector._envs[0].taken[0]
    assert taken["gear"] == 1 and taken["push"].tolist() == [0.5, 1.0]
    vector.close()


class Counter:
    """Counts the steps of its episode and draws numbers from its seed."""

    def __init__(self) -> None:
        self.count = -1

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self.count, self.rng = 0, np.random.default_rng(seed)

    def act(self, obs: Array) -> int:
        """Count."""
        self.count += 1
        return int(self.rng.integers(3)) if self.count > 1 else self.count


@pytest.mark.parametrize("given", [Counter, Counter(), lambda: Counter()])
def test_every_row_has_its_own_object_that_is_reset_by_episodes(given: Any) -> None:
    """A class, an object and a function that makes one give each row an object, seeded and reset per episode."""
    spec, rows = soccer()
    agent = OwnAgent("python:it", spec, given)
    states = np.zeros((4, agent.memory(0).shape[1]), np.float32)
    assert play(agent, spec, rows, states).tolist() == [[1]] * 4
    later = [play(agent, spec, rows, states)[:, 0].tolist() for _ in range(20)]
    assert len({tuple(row) for row in np.transpose(later)}) == 4, "every row has its own seed"
    again = OwnAgent("python:it", spec, given)
    states = np.zeros_like(states)
    play(again, spec, rows, states)
    assert [play(again, spec, rows, states)[:, 0].tolist() for _ in range(20)] == later
    states[2] = 0
    assert play(again, spec, rows, states)[2] == 1, "the third row starts a new episode"
    assert states[:, 0].tolist() == [22, 22, 1, 22]


class Remembers:
    """Keeps all of its memory in `state`."""

    def __init__(self) -> None:
        self.state = np.zeros(2)

    def reset(self) -> None:
        """Begin an episode."""
        self.state = np.array([0.0, 1.0])

    def act(self, obs: Array) -> int:
        """Count up to 3."""
        self.state[0] += self.state[1]
        return int(self.state[0]) % 3


def test_state_belongs_to_the_row() -> None:
    """An object with `state` serves all rows, and a copy of the recurrent states continues where it was."""
    spec, rows = soccer()
    agent = OwnAgent("python:it", spec, Remembers)
    states = np.zeros((4, agent.memory(0).shape[1]), np.float32)
    assert states.shape == (4, 3)
    assert [play(agent, spec, rows, states)[0, 0] for _ in range(4)] == [1, 2, 0, 1]
    states[1] = 0
    other = OwnAgent("python:it", spec, Remembers)
    assert play(other, spec, rows, states)[:, 0].tolist() == [2, 1, 2, 2]


def test_a_state_without_reset_starts_each_episode_anew() -> None:
    """Without `reset` an episode begins with the state that the object was made with, whatever other rows did."""

    class Counts:
        def __init__(self) -> None:
            self.state = np.array([0], np.int64)

        def act(self, obs: Array) -> int:
            self.state = self.state + 1
            return int(self.state[0]) % 3

    spec, rows = soccer()
    agent, states = OwnAgent("python:it", spec, Counts()), np.zeros((4, 2), np.float32)
    assert play(agent, spec, rows, states)[:, 0].tolist() == [1, 1, 1, 1]
    states[2] = 0
    assert play(agent, spec, rows, states)[:, 0].tolist() == [2, 2, 1, 2]
    states[0, 1] = 2**24
    with pytest.raises(AgentFault, match=r"whole numbers up to 2\*\*24"):
        play(agent, spec, rows, states)


def test_players_of_a_board_game_see_the_board() -> None:
    """In PettingZoo games whose players are alike an agent sees the env's own observation; the mask is a parameter."""
    pytest.importorskip("pettingzoo")
    seen: list[tuple[int, ...]] = []

    def first(obs: Any, mask: Any) -> int:
        seen.append((obs.shape, obs.dtype, mask.shape))
        return int(np.argmax(mask))

    vector = make_vector(EnvChoice("pettingzoo:tictactoe"), 1)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    agent = OwnAgent("first", vector.spec, first)
    agent.act_rows(
        np.array([0]), out.obs, out.mask, make_streams(0, "x", 0, 2), np.zeros((2, 1), np.int32), agent.memory(2)
    )
    assert seen == [((3, 3, 2), np.dtype(np.int8), (9,))]
    vector.close()


def test_an_option_that_the_mask_forbids_is_the_agents_fault() -> None:
    """A forbidden option is not sent to the env; where nothing is allowed, nothing is forbidden."""
    vector = make_vector(EnvChoice("recall:masked"), 2)
    out = empty_rows(vector.spec, 2)
    vector.reset(out)
    action = np.zeros((2, 1), np.int32)
    agent = OwnAgent("lazy", vector.spec, lambda obs: 0)
    with pytest.raises(AgentFault, match="`lazy` returned 0, which the action mask forbids"):
        agent.act_into(out.obs, out.mask, make_streams(0, "x", 0, 2), action)
    agent.act_into(out.obs, np.zeros_like(out.mask), make_streams(0, "x", 0, 2), action)


def test_an_agent_cannot_change_the_mask() -> None:
    """It gets a copy, so a recording stores the mask of the env."""

    def clear(obs: Any, mask: Any) -> int:
        best = int(np.argmax(mask))
        mask[:] = 0
        return best

    vector = make_vector(EnvChoice("recall:masked"), 1)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    before = out.mask.copy()
    OwnAgent("clear", vector.spec, clear).act_into(
        out.obs, out.mask, make_streams(0, "x", 0, 1), np.zeros((1, 1), np.int32)
    )
    assert (out.mask == before).all() and before.any()


def test_a_slow_constructor_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an agent has a deadline too, and sys.exit in it is an error."""
    monkeypatch.setattr(guarded, "DEADLINE_S", 0.2)

    class Slow:
        def __init__(self) -> None:
            time.sleep(60)

    class Exits:
        def __init__(self) -> None:
            raise SystemExit(3)

    for given, said in ((Slow, "was not made within 0.2 s"), (Exits, "could not be made: SystemExit: 3")):
        with pytest.raises(ConfigError, match=said):
            make(Worlds, given)


def test_every_field_of_an_observation_is_shown() -> None:
    """A large field does not hide the others."""
    shown = guarded.short_text({"cam": np.random.default_rng(0).random((9, 9)), "place": np.arange(2)})
    assert "..." in shown and "'place': array([0, 1])" in shown


def test_functions_of_c_are_agents() -> None:
    """A builtin, whose signature Python does not know, acts like any other function."""
    spec, rows = soccer()
    with pytest.raises(AgentFault, match="which is not an action"):
        play(OwnAgent("python:it", spec, max), spec, rows, np.zeros((4, 1), np.float32))


def test_every_array_of_a_batch_has_an_action_per_row() -> None:
    """One array of a dict that is too short is a wrong shape, not an IndexError."""

    class Short:
        batched = True

        def act(self, obs: Any) -> Any:
            return {"gear": np.zeros(3, int), "lights": np.zeros((2, 2), int)}

    agent, vector, out, action = make(Worlds, Short, 3)
    with pytest.raises(AgentFault, match="returned 2 actions for a batch of 3"):
        agent.act_into(out.obs, out.mask, make_streams(0, "x", 0, 3), action)
    vector.close()


def test_batched_agents_act_once_for_all_rows() -> None:
    """An agent that says `batched` gets all observations in one call, and masks if it takes them."""
    calls = []

    class Wide:
        batched = True

        def act(self, obs: Array, mask: Array) -> Array:
            calls.append((obs.shape, mask.shape))
            return np.arange(len(obs)) % 2

    spec, rows = soccer()
    agent = OwnAgent("python:it", spec, Wide())
    assert play(agent, spec, rows, np.zeros((4, 1), np.float32))[:, 0].tolist() == [0, 1, 0, 1]
    assert calls == [((4, spec.obs.width), (4, spec.action.options))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda obs: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda obs: float("nan"), "returned nan, which is not an action of Discrete"),
        (lambda obs: [1, 2], r"returned \[1, 2\], which is not an action of Discrete"),
        (lambda obs: 99, "returned 99, which is not an action of Discrete"),
        (lambda obs: "left", "returned 'left', which is not an action of Discrete"),
        (lambda obs: None, "returned None, which is not an action of Discrete"),
        (lambda obs: 0.5, "returned 0.5, which is not an action of Discrete"),
    ],
)
def test_a_failing_agent_is_named_with_env_step_and_observation(given: Any, said: str) -> None:
    """An agent that raises, or returns no action of the space, is named with env, agent, step and observation."""
    spec, rows = soccer()
    players = Players.of([OwnAgent("python:it", spec, lambda obs: given(obs))])
    states, action = np.zeros((4, 1), np.float32), np.zeros((4, 1), np.int32)
    states[:, 0] = 7
    with pytest.raises(AgentFault, match=said) as caught:
        act_players(
            players, {0: np.array([2])}, spec, rows.obs, rows.mask, make_streams(0, "x", 0, 4), action, states, True, 10
        )
    assert "`python:it`" in caught.value.message and "(env 11, agent 0, step 7; observation: " in caught.value.message
    assert caught.value.code == 2 and caught.value.hint


def test_the_user_sees_the_line_that_raised() -> None:
    """The error holds the traceback of the user's own frames."""
    spec, rows = soccer()

    def drive(obs: Array) -> int:
        raise RuntimeError("out of fuel")

    with pytest.raises(AgentFault, match='raise RuntimeError\\("out of fuel"\\)'):
        play(OwnAgent("python:it", spec, drive), spec, rows, np.zeros((4, 1), np.float32))


@pytest.mark.parametrize("threaded", [False, True])
def test_a_hanging_agent_is_stopped(threaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not answer fails after the deadline, even if it catches every `Exception`, in any thread."""
    monkeypatch.setattr(guarded, "DEADLINE_S", 0.2)
    spec, rows = soccer()
    caught: list[AgentFault] = []

    def hang(obs: Array) -> int:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                time.sleep(0.01)
        return 0

    def act() -> None:
        try:
            play(OwnAgent("python:it", spec, hang), spec, rows, np.zeros((4, 1), np.float32))
        except AgentFault as fault:
            caught.append(fault)

    if threaded:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(10)
    else:
        act()
    assert "did not answer within 0.2 s (step 0" in caught[0].message


@pytest.mark.parametrize("threaded", [False, True])
def test_the_deadline_is_that_of_one_answer(threaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that answer in time one after another are no fault, however long they take together."""
    monkeypatch.setattr(guarded, "DEADLINE_S", 0.4)
    spec, rows = soccer()
    found: list[Array] = []

    def slow(obs: Array) -> int:
        time.sleep(0.15)
        return 1

    def act() -> None:
        found.append(play(OwnAgent("python:it", spec, slow), spec, rows, np.zeros((4, 1), np.float32)))

    thread = threading.Thread(target=act)
    thread.start() if threaded else act()
    if threaded:
        thread.join(10)
    assert found[0][:, 0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "is a int, which is not an agent"),
        (type("Bad", (), {"__init__": lambda self, gain: None, "act": lambda self, obs: 0}), "could not be made"),
        (type("Rows", (), {"batched": True, "state": np.zeros(1), "act": lambda self, obs: 0})(), "has `state`"),
        (type("Both", (), {"batched": True, "reset": lambda self: None, "act": lambda self, obs: 0})(), "is batched"),
    ],
)
def test_what_is_not_an_agent_is_refused(given: Any, said: str) -> None:
    """Objects that cannot act are refused before any game."""
    with pytest.raises(ConfigError, match=said):
        OwnAgent("python:it", soccer()[0], given)


def test_names_of_agents_given_as_objects() -> None:
    """Each object gets one name; our own agents keep their spec, and names are unique."""

    def drive(obs: Any) -> int:
        return 0

    def other(obs: Any) -> int:
        return 1

    other.__name__ = "drive"
    agents: dict[str, Any] = {}
    assert register_agents(drive, agents) == "python:drive" == register_agents(drive, agents)
    assert register_agents([other, "random", None], agents) == ["python:drive2", "random", None]
    assert register_agents(RandomAgent(soccer()[0]), agents) == "random"
    assert (
        register_agents(Counter(), agents) == "python:Counter" and register_agents(lambda obs: 0, {}) == "python:lambda"
    )
    assert name_agents([drive, Counter]) == {"drive": drive, "Counter": Counter} and name_agents(None) == {}
