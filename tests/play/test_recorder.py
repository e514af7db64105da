"""Recording: the same games for any split into shares, exact episodes, and exact resimulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.agents.simple import BatchAgent, RandomAgent
from slipstream.agents.specs import load_agent
from slipstream.api import Run
from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows, vector_obs
from slipstream.demos.format import TERMINATED, TRUNCATED, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer.columns import State
from slipstream.errors import DemoError, MachineError
from slipstream.play import recorder as module
from slipstream.play.recorder import Recorder, RecordJob, make_vectors, rechoose, resimulate, spread
from slipstream.settings import EnvSettings, RewardSettings
from slipstream.system.rng import env_seeds
from slipstream.testing import BrokenEnv, ToyEnv
from slipstream.vector.make import make_vector

NAN = float("nan")
SHORT = EnvSettings(match_seconds=2.0, random_starts=0.5)


def play(
    out: Path,
    choice: EnvChoice,
    agent: str,
    games: int,
    *,
    opponent: str | None = None,
    splits: int = 1,
    seed: int = 3,
    envs: int | None = None,
    sampled: bool = False,
) -> list[Recorder]:
    """Record in this process, with the envs split into `splits` shares."""
    probe = make_vector(choice, 1)
    spec = probe.spec
    schema = Schema.of(choice.name, spec, probe.snapshot() if spec.exact else None)
    probe.close()
    prepare(out, schema)
    job = RecordJob(choice, agent, opponent, games, spread(games, spec, envs), seed, sampled)
    edges = [k * job.envs // splits for k in range(splits + 1)]
    origin = {
        "env": choice.name,
        "settings": {"env": choice.env.model_dump(), "rewards": choice.rewards.model_dump()},
    }
    made = []
    for number, low in enumerate(edges[:-1]):
        vectors = make_vectors(job, low, edges[number + 1] - low, np.zeros(3, np.int64))
        shard = Shard(out, f"share-{number}", schema, origin)
        first, other = (load_agent(text, spec, choice, sampled) if text else None for text in (agent, opponent))
        assert first is not None
        recorder = Recorder(job, vectors, first, other, shard, first=low)
        recorder.run()
        recorder.close()
        shard.close()
        made.append(recorder)
    return made


def contents(path: Path) -> dict[tuple[int, int], tuple[Any, dict[str, bytes]]]:
    """All episodes by game and agent."""
    demos, found = Demos.open(path), {}
    names = [name for name in demos.episodes.dtype.names or () if name not in ("first", "seal")]
    for number, record in enumerate(demos.episodes):
        columns = {name: array.tobytes() for name, array in demos.episode(number).items()}
        found[int(record["game"]), int(record["agent"])] = ([record[name].item() for name in names], columns)
    assert len(found) == len(demos), "no game is recorded twice"
    return found


@pytest.mark.parametrize(
    ("choice", "agent", "opponent", "games"),
    [
        (EnvChoice("soccer", SHORT), "scripted:rule", None, 9),
        (EnvChoice("soccer:2v2", SHORT), "random", "scripted:chaser", 7),
        (EnvChoice("recall:masked"), "random", None, 100),
        (EnvChoice("mixed:team"), "random", None, 5),
        (EnvChoice("gymnasium:CartPole-v1"), "random", None, 20),
        (EnvChoice("python:Toy", factory=lambda: ToyEnv("masked")), "random", None, 11),
    ],
    ids=lambda value: value.name if isinstance(value, EnvChoice) else None,
)
def test_the_split_into_shares_changes_nothing(
    choice: EnvChoice, agent: str, opponent: str | None, games: int, tmp_path: Path
) -> None:
    """One, two or three shares record the same games, bit for bit."""
    results = []
    for splits in (1, 2, 3):
        play(tmp_path / str(splits), choice, agent, games, opponent=opponent, splits=splits)
        results.append(contents(tmp_path / str(splits)))
    assert results[0] == results[1] == results[2]
    assert {game for game, _ in results[0]} == set(range(games))


@pytest.mark.parametrize("sampled", [False, True])
def test_the_split_of_a_trained_agent_changes_nothing(sampled: bool, trained: Run, tmp_path: Path) -> None:
    """Sampled or not, a trained agent's games do not depend on the split; sampling changes them."""
    choice = EnvChoice("soccer", EnvSettings(match_seconds=2.0))
    for splits in (1, 2):
        play(tmp_path / str(splits), choice, f"run:{trained.path}", 5, splits=splits, sampled=sampled)
    first = contents(tmp_path / "1")
    assert first == contents(tmp_path / "2")
    play(tmp_path / "other", choice, f"run:{trained.path}", 5, sampled=not sampled)
    assert first != contents(tmp_path / "other")


def test_a_seed_determines_the_games(tmp_path: Path) -> None:
    """The same seed records the same games, and another seed records others."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        play(tmp_path / name, EnvChoice("soccer", SHORT), "scripted:chaser", 4, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


def test_blocks_leave_no_seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes that span many blocks of the buffer are the same as in one long block."""
    choice = EnvChoice("soccer", SHORT)
    play(tmp_path / "long", choice, "scripted:rule", 6)
    monkeypatch.setattr(module, "BLOCK_STEPS", 9)
    play(tmp_path / "short", choice, "scripted:rule", 6)
    assert contents(tmp_path / "long") == contents(tmp_path / "short")


def test_an_episode_matches_the_env(tmp_path: Path) -> None:
    """Observations, rewards, terms and ends are those of the same env stepped by hand with the recorded actions."""
    choice = EnvChoice("soccer", SHORT)
    play(tmp_path, choice, "scripted:rule", 2)
    demos = Demos.open(tmp_path)
    vector = make_vector(choice, 2, seed=3)
    rows = module.EpisodeBuffer(vector.spec, 4).first
    vector.reset(rows)
    episodes = {int(record["env"]) * 2 + int(record["agent"]): number for number, record in enumerate(demos.episodes)}
    columns = [demos.episode(episodes[row]) for row in range(4)]
    for t in range(max(len(c["reward"]) for c in columns)):
        now = rows.obs.copy()
        vector_action = np.array([c["action"][min(t, len(c["action"]) - 1)] for c in columns])
        rows.terms[:] = 0
        vector.step(vector_action, rows)
        for row, c in enumerate(columns):
            if t >= len(c["reward"]):
                continue
            assert np.array_equal(c["obs"][t], now[row])
            assert c["reward"][t] == rows.reward[row]
            assert [c[f"terms/{name}"][t] for name in vector.spec.terms] == rows.terms[row].tolist()
            assert (t == len(c["reward"]) - 1) == bool(rows.terminated[row])
            if rows.terminated[row]:
                assert np.array_equal(c["obs"][t + 1], rows.final_obs[row])
                record = demos.episodes[episodes[row]]
                assert (record["outcome"], record["ended"]) == (rows.outcome[row], TERMINATED)
                assert record["return"] == pytest.approx(c["reward"].sum(), rel=1e-6)


class Turns:
    """Two agents of two teams take turns; each step pays 1 + its number to both; a game lasts five steps."""

    spec = EnvSpec("turns", vector_obs(1), ActionSpec("discrete", (9,)), teams=(0, 1), terms=("pay",))

    def __init__(self, envs: int) -> None:
        self.envs, self._age = envs, 0

    def reset(self, out: Rows) -> None:
        """Start with agent 0."""
        self._age = 0
        self._show(out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Do nothing."""

    def seeds(self) -> Array:
        """Return no seeds."""
        return np.full(self.envs, -1)

    def assign(self, tasks: Array) -> None:
        """Do nothing."""

    def step(self, action: Array, out: Rows) -> None:
        """Pay, and pass the turn to the other agent."""
        out.reward[:] = 1 + self._age
        out.terms[:, 0] += 1 + self._age
        self._age += 1
        over = self._age == 5
        out.terminated[:], out.truncated[:] = 0, over
        out.outcome[:] = 0
        out.final_obs[:] = self._age
        self._age = 0 if over else self._age
        self._show(out)

    def _show(self, out: Rows) -> None:
        out.obs[:] = self._age
        out.active[:] = np.tile([self._age % 2 == 0, self._age % 2 == 1], self.envs)

    def snapshot(self) -> dict[str, Array]:
        """Do nothing."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Counter(BatchAgent):
    """Plays the number that it observes."""

    name, obs, action = "counter", Turns.spec.obs, Turns.spec.action

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write the observation."""
        out[:] = obs


def test_turns_are_joined(tmp_path: Path) -> None:
    """In a turn-based game an episode has the agent's own steps; rewards in between are added to its last step."""
    schema = Schema.of("recall", Turns.spec)
    prepare(tmp_path, schema)
    shard = Shard(tmp_path, "turns", schema, {})
    job = RecordJob(EnvChoice("recall"), "counter", None, 4, 2, 7)
    recorder = Recorder(job, [Turns(2)], Counter(), None, shard)
    recorder.run()
    shard.close()
    assert (recorder.games, shard.episodes) == (4, 8)
    demos = Demos.open(tmp_path)
    for number, record in enumerate(demos.episodes):
        columns = demos.episode(number)
        assert (record["ended"], record["seed"]) == (TRUNCATED, 7)
        if record["agent"] == 0:
            assert columns["action"][:, 0].tolist() == [0, 2, 4]
            assert columns["obs"][:, 0].tolist() == [0, 2, 4, 5]
            assert columns["reward"].tolist() == columns["terms/pay"].tolist() == [1 + 2, 3 + 4, 5]
        else:
            assert columns["action"][:, 0].tolist() == [1, 3]
            assert columns["obs"][:, 0].tolist() == [1, 3, 5]
            assert columns["reward"].tolist() == [2 + 3, 4 + 5], "rewards before the first action are dropped"


@pytest.mark.parametrize(
    ("choice", "agent"),
    [
        (EnvChoice("soccer", SHORT), "scripted:rule"),
        (EnvChoice("soccer:2v2", SHORT.model_copy(update={"actions": "continuous"})), "random"),
        (EnvChoice("recall"), "random"),
        (EnvChoice("mixed:team"), "random"),
        (EnvChoice("kart", EnvSettings(match_seconds=4.0, actions="continuous")), "random"),
    ],
    ids=lambda value: value.name if isinstance(value, EnvChoice) else None,
)
def test_games_can_be_played_again(choice: EnvChoice, agent: str, tmp_path: Path) -> None:
    """Played again from its start state with the recorded actions, a game gives the same bits."""
    play(tmp_path, choice, agent, 6, envs=2)
    demos = Demos.open(tmp_path)
    for game in range(6):
        episodes = np.flatnonzero(demos.games == game).tolist()
        assert len(episodes) == demos.schema.agents
        for number, again in zip(episodes, resimulate(demos, episodes), strict=True):
            recorded = demos.episode(number, [name for name in again if name != "mask" or demos.schema.action.masked])
            for name, array in recorded.items():
                assert array.tobytes() == again[name].tobytes(), name


def test_a_game_is_really_played_again(tmp_path: Path) -> None:
    """Played again with other rewards, a game has the same observations and the other rewards."""
    play(tmp_path, EnvChoice("soccer", SHORT), "scripted:rule", 1)
    demos, other = Demos.open(tmp_path), EnvChoice("soccer", SHORT, RewardSettings(weights={"touch": 7.0}))
    again, recorded = resimulate(demos, [0, 1], other)[0], demos.episode(0)
    assert again["obs"].tobytes() == recorded["obs"].tobytes()
    assert again["terms/goal"].tobytes() == recorded["terms/goal"].tobytes()
    touched = recorded["terms/touch"] != 0
    assert touched.any() and (again["terms/touch"][touched] > 2 * recorded["terms/touch"][touched]).all()


def test_what_cannot_be_played_again(tmp_path: Path) -> None:
    """Missing agents, episodes of two games and games without states are errors."""
    play(tmp_path / "versus", EnvChoice("soccer", SHORT), "random", 2, opponent="scripted:rule")
    demos = Demos.open(tmp_path / "versus")
    with pytest.raises(DemoError) as caught:
        resimulate(demos, [0])
    assert str(caught.value) == (
        "Game 0 of share-0 has 2 agents, but 1 episodes were given; playing it again needs the actions of all agents."
        "\nhint: name the episodes of all agents; if the opponent was not recorded, record again without --opponent"
    )
    with pytest.raises(DemoError, match="These 2 episodes are of 2 games"):
        resimulate(demos, [0, 1])
    play(tmp_path / "cart", EnvChoice("gymnasium:CartPole-v1"), "random", 1)
    with pytest.raises(DemoError, match="has no exact state, so its games cannot be played again"):
        resimulate(Demos.open(tmp_path / "cart"), [0])
    with pytest.raises(DemoError, match="does not name the env in which it was recorded"):
        rechoose({"env": "soccer"})
    play(tmp_path / "both", EnvChoice("soccer", SHORT), "random", 1)
    with pytest.raises(DemoError, match="`recall` is not the same game as the one in"):
        resimulate(Demos.open(tmp_path / "both"), [0, 1], EnvChoice("recall"))


def test_sides_alternate_against_an_opponent(tmp_path: Path) -> None:
    """Only the agent's rows are recorded, on one side in even envs and on the other side in odd envs."""
    play(tmp_path, EnvChoice("soccer:2v2", SHORT), "scripted:chaser", 8, opponent="random", envs=4)
    records = Demos.open(tmp_path).episodes
    assert len(records) == 16
    assert (records["team"] == records["env"] % 2).all()
    assert (records["agent"] // 2 == records["team"]).all()


class Uneven(gymnasium.Env[Any, Any]):
    """Episodes of 30 steps where the env's seed divides by 4, of 1 step elsewhere; counts the steps of all."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    length, stepped = 1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self.length = 30 if seed % 4 == 0 else 1
        self._left = self.length
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count down."""
        Uneven.stepped += 1
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, False, self._left == 0, {}


def test_an_env_is_closed_after_its_share(tmp_path: Path) -> None:
    """Short games are not favoured, and envs whose games are all played are not stepped any more."""
    Uneven.stepped = 0
    play(tmp_path, EnvChoice("python:Uneven", factory=Uneven), "random", 64, envs=16)
    records = Demos.open(tmp_path).episodes
    assert [int((records["env"] == env).sum()) for env in range(16)] == [4] * 16
    slow = [env for env in range(16) if env_seeds(3, env, 1)[0] % 4 == 0]
    assert 0 < len(slow) < 4
    assert sorted(records["env"][records["steps"] == 30].tolist()) == sorted(slow * 4)
    assert (records["ended"] == TRUNCATED).all()
    assert Uneven.stepped <= len(slow) * 4 * 120 + 16 * 4, "not all were stepped to the end"
    assert records["seed"].tolist() == [env_seeds(3, env, 1)[0] for env in records["env"]]


@pytest.mark.parametrize(
    ("games", "most", "envs"),
    [(1, None, 1), (64, None, 64), (65, None, 33), (100, None, 50), (1000, None, 63), (9, 4, 3)],
)
def test_games_are_spread_evenly(games: int, most: int | None, envs: int) -> None:
    """Each env has about the same number of games; there are at most 64 envs, or 16 for large observations."""
    spec = make_vector(EnvChoice("recall"), 1).spec
    assert spread(games, spec, most) == envs
    assert spread(1000, make_vector(EnvChoice("pixels:84"), 1).spec) == 16


@pytest.mark.parametrize(("fault", "what", "at"), [("nan_reward", "The reward", 4), ("nan_obs", "The observation", 5)])
def test_episodes_with_non_finite_numbers_are_dropped(fault: Any, what: str, at: int, tmp_path: Path) -> None:
    """The episode is dropped, counted and reported; all others are recorded."""
    choice = EnvChoice("python:Broken", factory=lambda: BrokenEnv(fault, at=25))
    (recorder,) = play(tmp_path, choice, "random", 12, envs=3)
    records = Demos.open(tmp_path).episodes
    assert sorted(records["game"].tolist()) == [0, 1, 2, 3, 4, 5, 9, 10, 11], "the third game of each env is missing"
    assert (recorder.games, recorder.dropped) == (12, 3)
    assert recorder.fault_messages() == [
        f"{what} was not finite in 3 episodes, first in env 0 at step {at} of game 6: left out."
    ]


def test_absent_agents_have_no_episode(tmp_path: Path) -> None:
    """A 1v1 game in an env with six agents has two episodes, and none is dropped."""
    (recorder,) = play(tmp_path, EnvChoice("soccer:mixed", SHORT), "random", 3, envs=3)
    records = Demos.open(tmp_path).episodes
    agents = [sorted(records["agent"][records["game"] == game].tolist()) for game in range(3)]
    assert agents == [[0, 3], [0, 1, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert (recorder.games, recorder.dropped, recorder.fault_messages()) == (3, 0, [])


def test_a_reward_term_is_named(tmp_path: Path) -> None:
    """A user's reward term that is not finite is reported by name."""

    def odd(before: State, after: State, me: int) -> float:
        return NAN if me == 1 and after.ticks_left == 2 * 60 - 3 * 4 else 0.0

    choice = EnvChoice("soccer", SHORT, terms={"odd": odd})
    (recorder,) = play(tmp_path, choice, "random", 1)
    assert Demos.open(tmp_path).episodes["agent"].tolist() == [0], "the other agent's episode is kept"
    assert recorder.fault_messages() == [
        "Reward term `odd` was not finite in 1 episode, first in env 0 at step 2 of game 0: left out."
    ]


class Endless(Uneven):
    """Never ends."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Continue for ever."""
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_an_env_that_never_ends_is_named(tmp_path: Path) -> None:
    """Memory is limited: an error names the longest running episode."""
    choice = EnvChoice("python:Endless", factory=Endless)
    job = RecordJob(choice, "random", None, 1, 1, 0)
    vectors = make_vectors(job, 0, 1, np.zeros(3, np.int64))
    schema = Schema.of(choice.name, vectors[0].spec)
    prepare(tmp_path, schema)
    shard = Shard(tmp_path, "s", schema, {})
    agent = RandomAgent(vectors[0].spec)
    recorder = Recorder(job, vectors, agent, None, shard, limit_bytes=40_000)
    with pytest.raises(MachineError) as caught:
        recorder.run()
    assert caught.value.message.endswith("that of env 0 has 3,072 steps and has not ended.")
    assert caught.value.hint == "give the env a time limit, or play fewer at a time with --set plan.envs=N"


def test_stop_leaves_whole_episodes(tmp_path: Path) -> None:
    """After a stop request all finished games are kept, and nothing of the others."""
    job = RecordJob(EnvChoice("recall"), "random", None, 1000, 4, 0)
    vectors = make_vectors(job, 0, 4, np.zeros(3, np.int64))
    schema = Schema.of("recall", vectors[0].spec, vectors[0].snapshot())
    prepare(tmp_path, schema)
    shard = Shard(tmp_path, "s", schema, {})
    recorder = Recorder(job, vectors, RandomAgent(vectors[0].spec), None, shard)
    steps = count()
    recorder.run(lambda: next(steps) == 25)
    shard.close()
    demos = Demos.open(tmp_path)
    assert demos.episodes["steps"].tolist() == [10] * 8
    assert all(demos.shards[0].intact(place) for place in range(8))
