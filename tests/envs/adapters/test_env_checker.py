"""The environment checker: all problems at once, each with a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium import spaces

from slipstream.cli import main
from slipstream.envs.adapters.env_checker import inspect_env
from slipstream.testing import BrokenEnv, ToyEnv, check_env


def found(env: Any, steps: int = 200) -> list[str]:
    """The problems of an env without their hints; each has a hint."""
    problems = inspect_env(env, steps).problems
    assert all(problem.hint for problem in problems)
    return [problem.what for problem in problems]


class Wrong(ToyEnv):
    """A ToyEnv whose spaces or return values are changed."""

    def __init__(self, actions: str = "discrete", **wrong: Any) -> None:
        super().__init__(actions, length=5)
        self._wrong = wrong
        for word in ("observation_space", "action_space"):
            if word in wrong:
                setattr(self, word, wrong[word])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, or return another value."""
        told = super().reset(seed=seed)
        return self._wrong["reset"](told) if "reset" in self._wrong else told

    def step(self, action: Any) -> Any:
        """Step, or return another value."""
        told = super().step(action)
        return self._wrong["step"](told) if "step" in self._wrong else told


def test_good_environments_have_no_problems() -> None:
    """Good environments with any action space have no problems, and their speed is reported."""
    for actions in ("discrete", "multi_discrete", "binary", "continuous", "masked"):
        report = inspect_env(ToyEnv(actions))
        assert report.problems == [] and report.remarks == []
        assert report.steps == 200 and report.episodes == 20 and report.steps_per_second > 0
    assert check_env(ToyEnv()) == []


class Nested(gymnasium.Env[Any, Any]):
    """A nested dict of observations, some of which may be wrong; actions are a masked tuple."""

    def __init__(self, mask: Any = (1, 1, 0, 1, 1, 0), **wrong: Any) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (8, 8), np.uint8),
                "place": spaces.Tuple((spaces.Discrete(2000), spaces.Box(-np.inf, np.inf, (2,), np.float64))),
            }
        )
        self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))
        self.heard: list[Any] = []
        self._mask, self._wrong = mask, wrong

    def action_masks(self) -> Any:
        """The first switch is always on and the second off."""
        return np.array(self._mask)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End at once."""
        self.heard.append(action)
        return self._see(), 0.0, True, False, {}

    def _see(self) -> Any:
        image = np.full((8, 8), self.np_random.integers(256), np.uint8)
        return {"image": image, "place": (1999, np.array([1.0, 2.0]))} | self._wrong


def test_problems_are_listed_at_once() -> None:
    """Every problem of a broken env is named, with the step."""
    assert found(BrokenEnv("nan_reward", at=3)) == ["The reward at step 2 is not finite: nan."]
    said = found(BrokenEnv("nan_obs", at=3))
    assert said[0].startswith("The observation at step 2 is not in observation_space")
    assert said[1] == "The observation at step 2 is not finite."
    assert found(ToyEnv(length=500))[0].startswith("No episode ended within 200 random steps")
    assert check_env(ToyEnv(length=500))[0].partition("\n")[2].startswith("hint: register it with max_episode_steps=")


@pytest.mark.parametrize(
    ("wrong", "what", "hint"),
    [
        (
            {"observation_space": spaces.Text(3), "action_space": spaces.Text(3)},
            ["The observations of `Wrong` are a Text", "The actions of `Wrong` are a Text"],
            "convert it to numbers",
        ),
        ({"observation_space": 4}, ["The observation_space of `Wrong` is not"], "set self.observation_space"),
        (
            {"reset": lambda told: told[0]},
            ["reset returns a ndarray, not an observation and a dict."],
            "return obs, {}",
        ),
        ({"step": lambda told: told[:4]}, ["step returns a tuple of 4, not (obs, reward,"], "return terminated"),
        (
            {"step": lambda told: (told[0], "1p", *told[2:])},
            ["The reward at step 0 is not a number: '1p'."],
            "one float",
        ),
        ({"step": lambda told: (*told[:2], 1, *told[3:])}, ["`terminated` at step 0 is the int 1"], "return a bool"),
        ({"step": lambda told: (*told[:4], None)}, ["The info at step 0 is the NoneType None"], "return {}"),
        (
            {"step": lambda told: (told[0].astype(np.float64), *told[1:])},
            ["The observation at step 0 is not in observation_space"],
            "its dtype is float64: return np.asarray(obs, np.float32)",
        ),
        (
            {"step": lambda told: (told[0][:2], *told[1:])},
            ["The observation at step 0 is not in observation_space"],
            "its shape is (2,)",
        ),
        (
            {"step": lambda told: (told[0] * 9, *told[1:])},
            ["The observation at step 0 is not in observation_space"],
            "its range is 0 to 9: widen the Box, or clip",
        ),
        (
            {"reset": lambda told: (np.random.uniform(-1, 1, 4).astype(np.float32), {})},
            ["reset(seed=...) gives different observations for the same seed"],
            "from self.np_random",
        ),
        (
            {"step": lambda told: (np.random.uniform(-1, 1, 4).astype(np.float32), *told[1:])},
            ["step 0 of an episode from one seed gives different observations for the same seed"],
            "from self.np_random",
        ),
    ],
)
def test_each_problem_has_a_hint(wrong: dict[str, Any], what: list[str], hint: str) -> None:
    """Common mistakes are reported with a hint how to fix them."""
    problems = inspect_env(Wrong(**wrong)).problems
    for problem, words in zip(problems, what, strict=False):
        assert problem.what.startswith(words)
    assert len(problems) >= len(what) and hint in problems[0].hint


def test_exceptions_are_reported() -> None:
    """An exception is reported with its location; a reset without a seed argument is recognised."""
    (said,) = found(BrokenEnv("raise", at=4))
    assert said.startswith("Step 3, action ") and "raised ValueError: broken on purpose" in said
    assert "testing.py" in said

    class Seedless(ToyEnv):
        def reset(self) -> Any:  # type: ignore[override]
            """Reset without a seed, as in the old API."""
            return super().reset()

    problem = inspect_env(Seedless()).problems[0]
    assert problem.what.startswith("reset does not accept a seed") and "seed=None, options=None" in problem.hint


def test_remarks_are_no_problems() -> None:
    """Zero rewards, constant observations and unbounded actions are remarks, not problems."""

    def still(told: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, *told[2:]

    report = inspect_env(
        Wrong(
            "continuous",
            reset=lambda told: (np.zeros(1, np.float32), {}),
            step=still,
            action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32),
        )
    )
    assert report.problems == []
    assert [remark.what for remark in report.remarks] == [
        "All rewards were zero within 200 random steps.",
        "The observation never changed.",
        "Some actions are unbounded.",
    ]


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_every_part_of_an_observation_is_checked() -> None:
    """Each part of an observation is checked separately and named; discrete values and pixels may be large."""
    assert found(Nested()) == []
    said = found(Nested(place=(3, np.array([1.0, np.nan]))), steps=1)
    assert said[:2] == [
        "The observation `place/1` at reset is not in observation_space (Box(-inf, inf, (2,), float64)).",
        "The observation `place/1` at reset is not finite.",
    ]
    assert "The observation `place/1` at step 0 is not finite." in said
    (large,) = found(Nested(place=(3, np.array([0.0, 1e4]))))
    assert "`place/1`" in large and "1e+04" in large
    assert found(Nested(place=()), steps=1)[0] == "The observation `place/0` at reset is missing."
    assert found(Nested(image="black"), steps=1)[0] == (
        "The observation `image` at reset is not in observation_space (Box(0, 255, (8, 8), uint8))."
    )


def test_the_mask_is_played_by() -> None:
    """Only allowed actions are taken, and a mask that is too short or allows nothing is reported."""
    env = Nested()
    assert found(env) == []
    assert {(choice, *switches.tolist()) for choice, switches in env.heard} == {(0, 1, 0), (1, 1, 0)}
    assert found(Nested((1, 1, 1, 1)), steps=1) == ["The action mask at step 0 has 4 columns, not 6."]
    assert found(Nested((1, 1, 0, 0, 1, 1)), steps=1) == ["The action mask at step 0 allows no option in part 1."]


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 0 for a good env and 3 for a bad one, with text or JSON; built-in games are refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad_game.py").write_text(
        "import gymnasium\nfrom slipstream.testing import BrokenEnv\n"
        "gymnasium.register('Bad-v0', entry_point=lambda: BrokenEnv('nan_reward', at=3))\n"
    )
    done = CliRunner().invoke(main, ["check-env", "gymnasium:CartPole-v1"], catch_exceptions=False)
    assert done.exit_code == 0 and "gymnasium:CartPole-v1: ready for training (200 steps," in done.stdout
    words = ["check-env", "gymnasium:Bad-v0", "--import", "bad_game"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 3 and "problem: The reward at step 2 is not finite: nan." in done.stdout
    assert "hint: look for a division by zero in step" in done.stdout and "gymnasium:Bad-v0: 1 problem (" in done.stdout
    facts = json.loads(CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False).stdout)
    assert facts["problems"][0]["what"] == "The reward at step 2 is not finite: nan." and facts["episodes"] == 20
    refused = CliRunner().invoke(main, ["check-env", "recall"])
    assert refused.exit_code == 3 and "`recall` is a built-in game" in refused.output
