"""The user's reward terms in Python environments: values by hand, errors, processes and training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

import slipstream as ss
from slipstream.api import configure
from slipstream.cli import main
from slipstream.contracts import Array, Vector, empty_rows
from slipstream.envs.kart.columns import State as Lap
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer.columns import State as Match
from slipstream.errors import ConfigError, EnvError, EnvFault, NonFiniteGame
from slipstream.settings import RewardSettings
from slipstream.stages import reward_report
from slipstream.stages.prepare import load_terms
from slipstream.training.build import choose_env
from slipstream.vector.make import choose_native, make_vector, spread_vector
from tiny_run import TINY_RUN


class Walk(gymnasium.Env[Any, Any]):
    """Counts up by the action in one reused array, ends at 3, and pays 1 per step."""

    observation_space = gymnasium.spaces.Dict({"at": gymnasium.spaces.Box(-9, 9, (1,), np.float32)})
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self._obs = {"at": np.zeros(1, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start at 0."""
        self._obs["at"][0] = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move by the action."""
        self._obs["at"][0] += action
        return self._obs, 1.0, bool(self._obs["at"][0] >= 3), False, {"bonus": 4.0}


def gain(before: Any, action: Any, after: Any, info: Any) -> float:
    """The progress, which is the action, plus the bonus of the info."""
    assert after["at"][0] - before["at"][0] == action
    return float(10 * before["at"][0] + action + info["bonus"])


def walk(rewards: RewardSettings | None = None, **terms: Any) -> Vector:
    """One walk with reward terms."""
    return make_vector(EnvChoice("python:Walk", rewards=rewards or RewardSettings(), factory=Walk, terms=terms), 1)


def paid(vector: Vector, actions: list[int]) -> tuple[list[float], Array]:
    """The reward of each step, and the sums of the terms."""
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    rewards = []
    for action in actions:
        vector.step(np.array([[action]], np.int32), out)
        rewards.append(float(out.reward[0]))
    return rewards, out.terms[0]


def test_terms_by_hand() -> None:
    """A term sees the observations around a step, also at the end of an episode, and adds to the env's own reward."""
    vector = walk(RewardSettings(weights={"gain": 0.5, "env": 3.0}), gain=gain)
    assert vector.spec.terms == ("env", "gain")
    rewards, terms = paid(vector, [1, 2, 2])
    assert rewards == [3 + 0.5 * (0 + 1 + 4), 3 + 0.5 * (10 + 2 + 4), 3 + 0.5 * (0 + 2 + 4)]
    assert terms.tolist() == [9.0, 13.5]


def test_without_terms_nothing_changes() -> None:
    """An env without own terms has no terms; weight 0 removes the env's own reward; clipping acts on own terms."""
    assert walk().spec.terms == () and paid(walk(), [1])[0] == [1.0]
    assert paid(walk(RewardSettings(weights={"env": 0.0}), gain=gain), [1])[0] == [5.0]
    assert paid(walk(RewardSettings(clip=2.0), gain=gain), [1])[0] == [3.0]


def test_a_failing_term_is_named() -> None:
    """An exception is reported with term, env and step; NaN is passed on to the collector."""
    with pytest.raises(EnvFault, match="Reward term `broken`: ZeroDivisionError") as caught:
        paid(walk(broken=lambda before, action, after, info: 1 / 0), [1])
    assert (caught.value.env, caught.value.step) == (0, 1)
    assert np.isnan(paid(walk(nan=lambda before, action, after, info: np.nan), [1])[0][0])


def untyped(before, after, clock, car, team_size):  # type: ignore[no-untyped-def]
    """A term of a native game whose parameters have no types."""
    return 0.0


def nothing(before: Match, after: Match) -> None:
    """A term that returns nothing."""


def text(before: Lap, after: Lap) -> float:
    """A term that adds a number to a text."""
    return "x" + before.x  # type: ignore[operator,no-any-return]


def more(before: Lap, after: Lap, scale: float = 2.0) -> float:
    """A term with a parameter that no term has."""
    return scale


def misspelt(before: Lap, after: Lap) -> float:
    """A term that reads what is not there."""
    return after.passd  # type: ignore[attr-defined,no-any-return]


def writes(before: Match, after: Match, me: int) -> float:
    """A term that changes the game."""
    after.ball.x = 7.0
    return 0.0


def imports(before: Lap, after: Lap) -> float:
    """A term that imports a module."""
    import os

    return float(len(os.sep))


def test_terms_that_return_no_number() -> None:
    """What a term returned is shown, and the hint is about the term and not about the environment."""
    values: list[tuple[Any, str]] = [(None, "None"), ("x", "'x'"), (np.ones(3), r"array\(\[1")]
    for value, told in values:
        with pytest.raises(EnvFault, match=rf"Reward term `odd` returned {told}.*, not a number") as caught:
            paid(walk(odd=lambda before, action, after, info, value=value: value), [1])
        assert "fix the reward term" in caught.value.hint


@pytest.mark.parametrize("collector", ["local", "actors", "batched"])
def test_a_term_that_is_always_nan(collector: str, tmp_path: Path) -> None:
    """The error of a first rollout without a transition names the term, env, seed and step."""
    more: dict[str, Any] = {"plan__collector": collector, "plan__envs": 2, "plan__workers": 1, "run": tmp_path / "r"}
    with pytest.raises(EnvError, match=r"masked. Reward term `odd` was not finite in env 0 \(seed \d+\) at step 1"):
        ss.train("gymnasium:CartPole-v1", preset="smoke", terms={"odd": always_nan}, **more)


def always_nan(before: Any, action: Any, after: Any, info: Any) -> float:
    """NaN."""
    return float("nan")


def test_turns_are_normalised_per_decision() -> None:
    """In a turn-based game a row counts when its term is valued, not whenever the game reports a reward for it."""
    pytest.importorskip("pettingzoo")
    rewards = RewardSettings(normalise=True)
    terms = {"one": lambda before, action, after, info: 1.0}
    vector = make_vector(EnvChoice("pettingzoo:tictactoe", rewards=rewards, terms=terms), 1)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    seen = []
    for action in range(5):
        vector.step(np.full((2, 1), action, np.int32), out)
        seen.append(out.reward.tolist())
    assert seen == [[0, 0], [1, 0], [0, 1], [1, 0], [0, 1]]


def test_wrong_terms_are_config_errors() -> None:
    """A wrong signature, an unknown weight, a taken name and an unusable setting are found when envs are made."""
    with pytest.raises(ConfigError) as caught:
        walk(short=lambda before, after: 0.0)
    assert "4 arguments" in caught.value.message and "short(before, action, after, info)" in caught.value.hint
    with pytest.raises(ConfigError, match="argument 2 is `action`, not `after`"):
        walk(other=lambda before, after, car, team_size: 0.0)
    with pytest.raises(ConfigError, match="`a b` cannot be the name"):
        walk(**{"a b": gain})
    with pytest.raises(ConfigError, match=r"`rewards\.weights\.env` is nan"):
        walk(RewardSettings(weights={"env": np.nan}), gain=gain)
    with pytest.raises(ConfigError, match=r"`rewards.weights.gian`. Did you mean `rewards.weights.gain`"):
        walk(RewardSettings(weights={"gian": 1.0}), gain=gain)
    with pytest.raises(ConfigError, match=r"Unknown setting `rewards.weights.touch`"):
        walk(RewardSettings(weights={"touch": 1.0}))
    with pytest.raises(ConfigError, match="`env` is built in"):
        walk(env=gain)
    with pytest.raises(ConfigError, match=r"`rewards.potential` is set"):
        walk(RewardSettings(potential=True), gain=gain)


FORM = "write def mine(before: State, after: State, me: int) -> float, with State of slipstream.envs."


@pytest.mark.parametrize(
    ("game", "term", "message", "hint"),
    [
        ("soccer", untyped, "`before` is not a parameter of a reward function", f"{FORM}soccer.columns"),
        ("soccer", lambda after: 0.0, "`after` is not a parameter of a reward function", f"{FORM}soccer.columns"),
        ("soccer", nothing, "it returns nothing", "return a number"),
        ("soccer", writes, "`after.ball.x` belongs to what this function only reads", ""),
        ("kart", text, "'x' is not a number", "use numbers"),
        ("kart", more, "`scale` is not a parameter of a reward function", f"{FORM}kart.columns"),
        ("kart", misspelt, "State has no column `passd`. Did you mean `passed`?", "it has x, y, "),
        ("kart", imports, "a game's function cannot use `import`", "use assignments"),
    ],
)
def test_wrong_terms_of_native_games(game: str, term: Any, message: str, hint: str) -> None:
    """A term that cannot be compiled is an error when envs are made, with the line and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        make_vector(EnvChoice(game, terms={"mine": term}), 1)
    assert re.match(
        rf'Reward term `mine` cannot be compiled: File ".*test_python_terms.py", line \d+, in .*: {re.escape(message)}',
        caught.value.message,
    )
    assert hint in caught.value.hint


def test_games_without_terms_refuse_them() -> None:
    """A game that ignores terms, weights or an observation builder raises, and so does a vector env."""
    with pytest.raises(ConfigError, match="`recall` takes no reward terms of your own, such as `gain`"):
        make_vector(EnvChoice("recall", terms={"gain": gain}), 1)
    with pytest.raises(ConfigError, match=r"`rewards.weights.goal` is set, but `recall` has no reward terms"):
        make_vector(EnvChoice("recall", rewards=RewardSettings(weights={"goal": 1.0})), 1)
    with pytest.raises(ConfigError, match="`soccer` takes no observation builder"):
        make_vector(EnvChoice("soccer", observation=gain), 1)
    choice = EnvChoice("gymnasium:CartPole-v1", terms={"gain": gain})
    assert choose_native(choice, make_vector(choice, 1).spec, 1)[0] == "reward terms are computed for single envs"
    with pytest.raises(ConfigError, match="takes no reward terms"):
        make_vector(EnvChoice("gymnasium:CartPole-v1", terms={"gain": gain}, native=True), 1)


def test_turns_are_valued_when_a_player_acts_again() -> None:
    """In a turn-based game, a player's term compares the observations of its own two turns."""
    pytest.importorskip("pettingzoo")
    seen: list[tuple[str, int, float, float]] = []

    def mark(before: Any, action: Any, after: Any, info: Any) -> float:
        seen.append((info["agent"], int(action), float(before.sum()), float(after.sum())))
        return float(action)

    vector = make_vector(EnvChoice("pettingzoo:tictactoe", terms={"mark": mark}), 1)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    rewards = []
    for action in range(4):
        vector.step(np.full((2, 1), action, np.int32), out)
        rewards.append(out.reward.tolist())
    assert seen == [("player_1", 0, 0, 2), ("player_2", 1, 1, 3), ("player_1", 2, 2, 4)]
    assert rewards == [[0, 0], [0, 0], [0, 1], [2, 0]]


def test_agents_that_act_together_are_valued_one_by_one() -> None:
    """In a parallel game each agent that acted has its own observations and action."""
    pytest.importorskip("mpe2")
    seen: list[tuple[str, int, tuple[int, ...]]] = []

    def number(before: Any, action: Any, after: Any, info: Any) -> float:
        assert before.shape == after.shape and not np.array_equal(before, after)
        seen.append((info["agent"], int(action), before.shape))
        return 100.0 + int(action)

    vector = make_vector(EnvChoice("pettingzoo:simple_tag", terms={"number": number}), 1)
    out = empty_rows(vector.spec, 1)
    vector.reset(out)
    vector.step(np.arange(1, 5, dtype=np.int32)[:, None], out)
    assert [(agent, action) for agent, action, _ in seen] == [
        *(("adversary_0", 1), ("adversary_1", 2), ("adversary_2", 3), ("agent_0", 4))
    ]
    assert {shape for *_, shape in seen} == {(16,), (14,)}, "the env's own observations, not padded rows"
    assert out.terms[:, 1].tolist() == [101, 102, 103, 104]
    assert out.reward == pytest.approx(out.terms.sum(axis=1))


@pytest.mark.slow
def test_processes_get_the_same_rewards() -> None:
    """One process and two processes compute the same rewards and terms, normalised too."""

    def tilt(before: Any, action: Any, after: Any, info: Any) -> float:
        return float(abs(after[2]) - abs(before[2])) + int(action)

    choice = EnvChoice("gymnasium:CartPole-v1", rewards=RewardSettings(normalise=True), terms={"tilt": tilt})
    found = []
    for kind in ("serial", "processes"):
        vector = spread_vector(choice, 4, kind, 2)
        try:
            out = empty_rows(vector.spec, 4)
            vector.reset(out)
            steps = []
            for t in range(30):
                vector.step(np.full((4, 1), t % 2, np.int32), out)
                steps.append(np.column_stack([out.reward, out.terms]))
            found.append(np.array(steps))
        finally:
            vector.close()
    assert (found[0] == found[1]).all()


@pytest.mark.slow
def test_a_run_with_terms(tmp_path: Path) -> None:
    """Terms are logged by name, and a run resumes only with them."""
    given: dict[str, Any] = {"terms": {"gain": gain}}
    run = ss.train(Walk, steps=128, preset="smoke", run=tmp_path / "run", **given)
    last = run.metrics()[-1]
    assert last["reward/env"] == pytest.approx(1.0) and last["reward/gain"] > 4
    with pytest.raises(ConfigError, match="gain") as caught:
        ss.resume(run.path, steps=256, env=Walk)
    assert "--reward" in caught.value.hint
    assert ss.resume(run.path, steps=256, env=Walk, **given).facts["steps"] == 256


def test_terms_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--reward` names a function or a mapping of an imported module; other modules are not imported."""
    (tmp_path / "my_reward_terms.py").write_text("def slow(b, a, n, i): return 1.0\nBOTH = {'x': slow, 'y': slow}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = ["my_reward_terms"]
    assert list(load_terms(["my_reward_terms:slow", "my_reward_terms:BOTH"], modules)) == ["slow", "x", "y"]
    for text, given, hint in (
        ("my_reward_terms:slow", [], "--import my_reward_terms"),
        ("slow", modules, "MODULE:NAME"),
        ("my_reward_terms:slwo", modules, "check the name"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_terms([text], given)
        assert hint in caught.value.hint


def test_report_ablation_and_metrics_of_a_turn_based_game(tmp_path: Path) -> None:
    """The term of a PettingZoo game is in the metrics, which the reward-hacking alarm reads, reports and ablations."""
    pytest.importorskip("pettingzoo")
    env, terms = "pettingzoo:tictactoe", {"mark": lambda before, action, after, info: float(action == 4)}
    resolved = configure(env, preset="smoke", flags={"steps": 64})
    choice = choose_env(env, resolved.settings, terms=terms)
    told = reward_report.report_games(choice, resolved.settings, "random", games=4)
    assert list(told["terms"]) == ["env", "mark"] and told["terms"]["mark"]["group"] == "own"
    assert 0 < told["terms"]["mark"]["per_game"] <= 1 and told["terms"]["env"]["per_game"] <= 1
    ablated = reward_report.ablate(choice, resolved, tmp_path, ["mark"], seeds=1, games=2)
    assert list(ablated["terms"]) == ["mark"] and ablated["measure"] == "win_rate"
    run = ss.train(env, terms=terms, preset="smoke", steps=64, every__log=1, run=tmp_path / "run")
    assert {"reward/env", "reward/mark"} <= set(run.metrics()[-1])


def test_what_is_not_finite_in_a_game_is_named(tmp_path: Path) -> None:
    """Evaluations name the term, seed and step; a training leaves the evaluation out, and a later one can be best."""
    env, bad = "gymnasium:CartPole-v1", [True]

    def sometimes(before: Any, action: Any, after: Any, info: Any) -> float:
        return float("nan") if bad[0] and abs(after[0]) > 0.02 else 0.0

    with pytest.raises(NonFiniteGame, match=r"Reward term `sometimes` of .* the game of seed \d+ at step \d+"):
        ss.evaluate("random", env, games=4, terms={"sometimes": sometimes})

    def steer(steps: int, metrics: dict[str, Any], handle: Any) -> None:
        bad[0] = steps < 128

    run = ss.train(
        env, terms={"sometimes": sometimes}, steps=192, run=tmp_path / "run", on_iteration=steer,
        **TINY_RUN | {"every__evaluate": 64, "evaluation__games": 2},
    )  # fmt: skip
    scores = [row.get("evaluate/mean_return") for row in run.metrics()]
    assert scores[0] is None and scores[-1] > 0
    best = json.loads((run.path / "checkpoints/best.json").read_text())
    assert best["steps"] == run.facts["steps"] and best["score"] > 0


@pytest.mark.slow
def test_commands_name_report_and_ablate_a_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed command resumes; `rewards report` and `ablate` list the term; `check-env` refuses a bad one."""
    (tmp_path / "ablated_terms.py").write_text("def fast(b, a, n, i): return abs(n[1])\ndef bad(b): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    env, own = "gymnasium:CartPole-v1", ["--import", "ablated_terms", "--reward", "ablated_terms:fast"]
    tiny = ["--preset", "smoke", "--set", "plan.collector=local", "--set", "rewards.weights.fast=0.1"]

    def call(*words: str) -> Any:
        return CliRunner().invoke(main, list(words))

    trained = call("train", env, "--steps", "128", "--run", "r", *own, *tiny)
    assert trained.exit_code == 0, trained.output
    (line,) = (line for line in trained.stdout.splitlines() if line.startswith("resume: slipstream "))
    assert "--import ablated_terms --reward ablated_terms:fast" in line
    resumed = call(*line.removeprefix("resume: slipstream ").split())
    assert resumed.exit_code == 0, resumed.output
    report = call("rewards", "report", "--env", env, "--agent", "random", "--games", "4", "--json", *own)
    terms = json.loads(report.stdout.splitlines()[-1])["terms"]
    assert list(terms) == ["env", "fast"] and terms["fast"]["group"] == "own" and terms["fast"]["per_game"] > 0
    other = call("rewards", "report", "r", "--games", "2", "--import", "ablated_terms")
    assert other.exit_code == 2 and "fast" in other.stderr and "--reward MODULE:NAME" in other.stderr
    assert not Path("r/rewards.json").exists()
    ablated = call("rewards", "ablate", env, "--seeds", "1", "--steps", "128", "--games", "2", "--json", *own, *tiny)
    assert list(json.loads(ablated.stdout.splitlines()[-1])["terms"]) == ["fast"], ablated.output
    refused = call("check-env", env, "--import", "ablated_terms", "--reward", "ablated_terms:bad")
    assert refused.exit_code == 2 and "bad(before, action, after, info)" in refused.stderr
