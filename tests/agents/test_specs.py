"""Agent spec strings: every valid form, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.agents.simple import RandomAgent, ScriptedAgent
from slipstream.agents.specs import load_agent, load_trained, scripted_players
from slipstream.agents.trained import TrainedAgent
from slipstream.api import Run
from slipstream.api import load_agent as public_load_agent
from slipstream.contracts import EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.checkpoint import steps_of
from slipstream.runs.layout import RunDir
from slipstream.vector.make import make_vector

FORMS = (
    "random, scripted:NAME, run:DIR, run:DIR@best, run:DIR@STEPS, sb3:FILE.zip, onnx:FILE, or MODULE:NAME with "
    "--import MODULE"
)
SOCCER, CARTPOLE = EnvChoice("soccer"), EnvChoice("gymnasium:CartPole-v1")


def spec_of(choice: EnvChoice) -> EnvSpec:
    """The EnvSpec of an env."""
    vector = make_vector(choice, 1)
    vector.close()
    return vector.spec


def test_every_form(trained: Run) -> None:
    """Random and scripted agents, and a run's latest, best and numbered checkpoints are loaded."""
    spec = spec_of(SOCCER)
    assert isinstance(load_agent("random", spec, SOCCER), RandomAgent)
    for name in ("chaser", "keeper", "rule"):
        assert isinstance(load_agent(f"scripted:{name}", spec, SOCCER), ScriptedAgent)
    steps = steps_of(RunDir.open(trained.path))
    for which in ("", "@best", "@latest", f"@{steps[0]}"):
        agent = load_agent(f"run:{trained.path}{which}", spec, SOCCER)
        assert isinstance(agent, TrainedAgent)
    assert load_trained(f"run:{trained.path}").name == f"run:{trained.path}@{steps[-1]}"
    assert load_trained(f"run:{trained.path}@{steps[0]}").name.endswith(f"@{steps[0]}")
    assert scripted_players("soccer") == ["chaser", "keeper", "rule"]
    assert scripted_players("gymnasium:CartPole-v1") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("randm", f"`randm` does not name an agent. Did you mean `random`?\nhint: write {FORMS}"),
        ("scripted:", f"`scripted:` does not name an agent.\nhint: write {FORMS}"),
        ("", f"`` does not name an agent.\nhint: write {FORMS}"),
        (
            "scripted:chasr",
            "`soccer` has no player `scripted:chasr`. Did you mean `chaser`?\nhint: use one of: chaser, keeper, rule",
        ),
        (
            "run:there/is@nothing",
            f"`@nothing` in `run:there/is@nothing` is neither `best` nor a number of steps.\nhint: write {FORMS}",
        ),
    ],
)
def test_malformed_specs_raise(text: str, message: str) -> None:
    """A malformed spec raises a ConfigError (exit code 2) that lists the valid forms."""
    with pytest.raises(ConfigError) as caught:
        load_agent(text, spec_of(SOCCER), SOCCER)
    assert str(caught.value) == message
    assert caught.value.code == 2


def test_a_game_without_players() -> None:
    """A scripted agent of an env without scripted players raises."""
    with pytest.raises(ConfigError) as caught:
        load_agent("scripted:rule", spec_of(CARTPOLE), CARTPOLE)
    assert str(caught.value) == (
        "`gymnasium:CartPole-v1` has no player `scripted:rule`.\nhint: `gymnasium:CartPole-v1` has no scripted players"
    )


def test_missing_runs_and_checkpoints(trained: Run, tmp_path: Path) -> None:
    """A missing run or checkpoint raises a CheckpointError (exit code 5)."""
    with pytest.raises(CheckpointError, match=r"No run at .*nowhere: no such folder") as caught:
        load_trained(f"run:{tmp_path / 'nowhere'}")
    assert caught.value.code == 5
    with pytest.raises(CheckpointError, match="has no checkpoint at 123 steps"):
        load_trained(f"run:{trained.path}@123")


def test_a_trained_agent_must_fit_the_env(trained: Run) -> None:
    """An env with other spaces raises a CheckpointError with both sizes (exit code 5)."""
    agent = load_trained(f"run:{trained.path}")
    with pytest.raises(CheckpointError) as caught:
        load_agent(f"run:{trained.path}", spec_of(CARTPOLE), CARTPOLE)
    spec = spec_of(SOCCER)
    assert str(caught.value) == (
        f"{agent.name} reads {spec.obs.width} numbers and outputs discrete actions of {spec.action.sizes[0]}, but "
        "`gymnasium:CartPole-v1` has 4 numbers and discrete actions of 2.\n"
        "hint: evaluate it on the env it was trained on (provenance.json in its run names it)"
    )
    assert caught.value.code == 5


def test_one_observation_or_a_batch(trained: Run) -> None:
    """One observation returns one action, a batch one per row, and greedy actions agree."""
    agent = trained.agent()
    obs = np.random.default_rng(0).normal(0, 1, (5, agent.obs.width)).astype(np.float32)
    batch = agent.act(obs)
    assert batch.shape == (5,)
    assert [int(agent.act(one)) for one in obs] == batch.tolist()
    assert np.ndim(agent.act(obs[0])) == 0


def test_sampled_actions_vary_and_greedy_ones_do_not(trained: Run) -> None:
    """Greedy actions are a function of the observation; sampled ones vary."""
    obs = np.zeros(trained.agent().obs.width, np.float32)
    assert len({int(trained.agent().act(obs)) for _ in range(3)}) == 1
    agent = trained.agent(sampled=True)
    assert len({int(agent.act(obs)) for _ in range(50)}) > 3


def test_public_load_agent(trained: Run) -> None:
    """The public `load_agent` needs an env only for agents that depend on one."""
    assert public_load_agent(f"run:{trained.path}").name.startswith("run:")
    obs = np.zeros((3, trained.agent().obs.width), np.float32)
    for spec in ("random", "scripted:rule"):
        assert public_load_agent(spec, env="soccer").act(obs).shape == (3,)
    with pytest.raises(ConfigError) as caught:
        public_load_agent("random")
    assert str(caught.value) == '`random` needs an environment.\nhint: write load_agent("random", env="soccer")'


def test_random_agent_respects_masks_and_bounds() -> None:
    """Random actions are uniform over the allowed options of every part, and within continuous bounds."""
    from slipstream.contracts import ActionSpec, EnvSpec, vector_obs

    agent = RandomAgent(EnvSpec("x", vector_obs(2), ActionSpec("multi_discrete", (4, 3), masked=True)))
    mask = np.array([1, 0, 1, 0, 0, 1, 1], np.uint8)
    drawn = np.stack([agent.act(np.zeros((1, 2)), mask)[0] for _ in range(400)])
    assert set(drawn[:, 0]) == {0, 2} and set(drawn[:, 1]) == {1, 2}
    assert abs((drawn[:, 0] == 0).mean() - 0.5) < 0.12
    free = RandomAgent(EnvSpec("x", vector_obs(1), ActionSpec("continuous", (), (2.0, -np.inf), (3.0, np.inf))))
    actions = np.stack([free.act(np.zeros(1)) for _ in range(200)])
    assert actions[:, 0].min() >= 2 and actions[:, 0].max() <= 3
    assert np.abs(actions[:, 1]).max() <= 1
