"""Vector envs of other libraries: rows equal those of single envs, in every autoreset mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import slipstream as ss
from slipstream.api import configure
from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.adapters.vector_env import Native
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.plan import Facts, make_plan
from slipstream.settings import EnvSettings, PlanSettings
from slipstream.testing import ToyEnv
from slipstream.training.build import build, choose_env
from slipstream.vector.make import LATE_RESETS, choose_native, make_vector

ENVS, LENGTH = 3, 4
SEEN = spaces.Dict({"cue": spaces.Box(-1, 1, (4,), np.float32), "left": spaces.Discrete(9, start=-4)})


class Nested(ToyEnv):
    """A toy env with dict observations and a step counter; episodes differ in length."""

    def __init__(self, truncates: bool = False) -> None:
        super().__init__(length=LENGTH, truncates=truncates)
        self.observation_space = SEEN

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Draw the length of the episode."""
        obs, info = super().reset(**given)
        self._left = int(self.np_random.integers(2, LENGTH + 1))
        return self._show(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The reward includes the remaining steps."""
        obs, reward, *rest = super().step(action)
        return self._show(obs), reward + self._left, *rest

    def _show(self, obs: Any) -> dict[str, Any]:
        return {"cue": obs, "left": -self._left}


MODES = {"Toy/NextStep-v0": "NextStep", "Toy/SameStep-v0": "SameStep", "Toy/Disabled-v0": "Disabled"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Toy envs whose vector envs use each of the three autoreset modes."""

    def vector_of(mode: str) -> Any:
        def make(num_envs: int, truncates: bool = False, **_: Any) -> SyncVectorEnv:
            return SyncVectorEnv([lambda: Nested(truncates)] * num_envs, autoreset_mode=mode)

        return make

    for name, mode in MODES.items():
        gymnasium.register(name, Nested, vector_entry_point=vector_of(mode))
    carts = lambda num_envs, **_: SyncVectorEnv([CartPoleEnv] * num_envs)  # noqa: E731
    gymnasium.register("Toy/Carts-v0", CartPoleEnv, vector_entry_point=carts)
    yield
    for name in (*MODES, "Toy/Carts-v0"):
        del gymnasium.registry[name]


def acts(step: int, row: int) -> int:
    """The action of a row at its own step count."""
    return (7 * step + row) % 4


def play(vector: Any, steps: int, seed: int = 11) -> list[list[dict[str, Any]]]:
    """The transitions of every row, those of inactive rows left out: an action depends on the row's own count."""
    rows = empty_rows(vector.spec, vector.envs)
    vector.reset_envs(range(vector.envs), rows, [seed + index for index in range(vector.envs)])
    found: list[list[dict[str, Any]]] = [[] for _ in range(vector.envs)]
    while min(map(len, found)) < steps:
        active, before = rows.active.copy(), rows.obs.copy()
        action = np.array([[acts(len(own), row)] for row, own in enumerate(found)], np.int32)
        vector.step(action, rows)
        for row, own in enumerate(found):
            if active[row]:
                own.append(told(rows, before, row))
            else:  # the step that only resets: no reward and no end
                assert not rows.reward[row] and not rows.terminated[row] and not rows.truncated[row]
    return [own[:steps] for own in found]


def told(rows: Rows, before: Array, row: int) -> dict[str, Any]:
    """Transitions are the same in all autoreset modes."""
    ended = rows.terminated[row] or rows.truncated[row]
    kept = {"obs": before[row].tolist(), "reward": float(rows.reward[row])}
    return kept | {
        "end": (int(rows.terminated[row]), int(rows.truncated[row])),
        "last": rows.final_obs[row].tolist() if ended else None,
    }


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("name", list(MODES))
def test_every_mode_gives_the_transitions_of_single_envs(name: str, truncates: bool) -> None:
    """Observations, rewards, ends, last observations: those of envs stepped one by one, from the same seeds."""
    choice = EnvChoice(f"gymnasium:{name}", EnvSettings(options={"truncates": truncates}))
    one, many = make_vector(choice, ENVS), make_vector(replace(choice, native=True), ENVS)
    assert isinstance(many, Native) and many.spec.late_resets == (MODES[name] == "NextStep")
    expected, found = play(one, 40), play(many, 40)
    assert found == expected
    assert sum(step["last"] is not None for own in found for step in own) > 20
    for vector in (one, many):
        vector.close()
    many.close()


def test_a_last_observation_may_come_as_one_batch() -> None:
    """As in ALE: one array for all envs, of which only the ended ones are valid."""

    class Batched(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, infos = super().step(actions)
            if "final_obs" in infos:
                each = [last if last is not None else {"cue": np.zeros(4), "left": 0} for last in infos["final_obs"]]
                infos["final_obs"] = {key: np.stack([one[key] for one in each]) for key in ("cue", "left")}
            return obs, reward, terminated, truncated, infos

    spec = gymnasium.registry["Toy/SameStep-v0"]
    spec.vector_entry_point = lambda num_envs, **_: Batched([Nested] * num_envs, autoreset_mode="SameStep")
    choice = EnvChoice("gymnasium:Toy/SameStep-v0")
    assert play(make_vector(replace(choice, native=True), ENVS), 20) == play(make_vector(choice, ENVS), 20)


def test_partial_resets_where_they_are_supported() -> None:
    """Without autoreset the env's partial reset is used; otherwise the error has a hint."""
    for name in MODES:
        vector = make_vector(EnvChoice(f"gymnasium:{name}", native=True), ENVS)
        rows = empty_rows(vector.spec, ENVS)
        vector.reset(rows)
        if MODES[name] != "Disabled":
            with pytest.raises(EnvError, match="cannot reset single environments") as caught:
                vector.reset_envs([1], rows)
            assert caught.value.hint == "plan.native=false steps them one by one"
            continue
        before = rows.obs.copy()
        vector.reset_envs([1], rows, [5])
        first = rows.obs[1].copy()
        vector.step(np.zeros((ENVS, 1), np.int32), rows)
        vector.reset_envs([1], rows, [5])
        assert np.array_equal(rows.obs[1], first) and not np.array_equal(rows.obs[0], before[0])
        assert vector.seeds().tolist() == [-1, 5, -1]


def test_the_same_seed_begins_the_same_games() -> None:
    """A vector env has one seed for all envs: that of its first env."""
    choice = EnvChoice("gymnasium:Toy/NextStep-v0", native=True)
    vectors = [make_vector(choice, 4, seed=seed) for seed in (1, 1, 2)]
    rows = [empty_rows(vector.spec, 4) for vector in vectors]
    for vector, into in zip(vectors, rows, strict=True):
        vector.reset(into)
    assert np.array_equal(rows[0].obs, rows[1].obs) and not np.array_equal(rows[0].obs, rows[2].obs)
    again = rows[0].obs.copy()
    vectors[0].reset(rows[0])
    assert not np.array_equal(rows[0].obs, again) and vectors[0].seeds().tolist() == [-1] * 4


@pytest.mark.parametrize("limit", [30, 500])
def test_cartpole_of_many_is_cartpole(limit: int) -> None:
    """Gymnasium's vectorised CartPoles behave like single ones with the same RNGs.

    The sine of a vector may differ from that of one number in the last bit of a float64.
    """
    choice = EnvChoice("gymnasium:CartPole-v1", EnvSettings(options={"max_episode_steps": limit}))
    one, many = make_vector(choice, 8, seed=3), make_vector(replace(choice, native=True), 8, seed=3)
    rows, ends, random = [empty_rows(one.spec, 8) for _ in range(2)], np.zeros(2, int), np.random.default_rng(0)
    one.reset(rows[0])
    many.reset(rows[1])
    assert isinstance(many, Native) and not many.spec.late_resets
    for step in range(400):
        if step == 200:
            for vector, into in zip((one, many), rows, strict=True):
                vector.reset_envs([2, 5], into, [77, -1])
        assert np.array_equal(one.seeds(), many.seeds())
        single, batch = rows
        ended = (single.terminated | single.truncated) > 0
        ends += [int(single.terminated.sum()), int(single.truncated.sum())]
        for name in ("reward", "terminated", "truncated", "active"):
            assert np.array_equal(getattr(single, name), getattr(batch, name))
        assert np.allclose(single.obs, batch.obs, rtol=1e-5, atol=1e-6)
        assert np.allclose(single.final_obs[ended], batch.final_obs[ended], rtol=1e-5, atol=1e-6)
        swaying = step // 2 % 2
        action = np.where(np.arange(8) < 6, random.integers(0, 2, 8), swaying).astype(np.int32)[:, None]
        one.step(action, single)
        many.step(action, batch)
    assert ends[0] > 50 and (ends[1] > 5) == (limit == 30)


def test_how_carts_are_shared_out_changes_nothing() -> None:
    """The second half of a vector equals that half made alone."""
    choice = EnvChoice("gymnasium:CartPole-v1", native=True)
    whole, part = make_vector(choice, 6, seed=1), make_vector(choice, 2, seed=1, first=4)
    rows = empty_rows(whole.spec, 6), empty_rows(part.spec, 2)
    whole.reset(rows[0])
    part.reset(rows[1])
    for step in range(100):
        assert np.array_equal(rows[0].obs[4:], rows[1].obs)
        whole.step(np.full((6, 1), step % 3 == 0, np.int32), rows[0])
        part.step(np.full((2, 1), step % 3 == 0, np.int32), rows[1])


def test_steps_that_reset_are_neither_learned_from_nor_counted() -> None:
    """After every end there is one inactive step; CartPole pays 1 a step, so that returns are lengths."""
    flags: dict[str, Any] = {
        "plan__envs": 8,
        "plan__collector": "local",
        "plan__native": True,
        "ppo__rollout": 64,
        "ppo__minibatch": 64,
    }
    settings = configure("gymnasium:Toy/Carts-v0", flags=flags).settings
    parts = build(choose_env("gymnasium:Toy/Carts-v0", settings), settings)
    assert parts.plan.native.applied and not parts.choice.native  # evaluation uses single envs
    parts.publish(0)
    parts.collector.start(0, None)
    samples = resets = 0
    for version in range(3):
        rollout = parts.collector.collect(version)
        ended = (rollout.terminated | rollout.truncated) > 0
        assert np.array_equal(rollout.active[1:] == 0, ended) and not ended[rollout.active[:-1] == 0].any()
        assert not rollout.reward[rollout.active[:-1] == 0].any()
        learned, _ = parts.learner.update(rollout, samples)
        assert learned == rollout.active[:-1].sum()
        parts.episodes.add(rollout)
        samples, resets = samples + learned, resets + int((rollout.active[:-1] == 0).sum())
        parts.publish(version + 1)
    window = parts.episodes._window[: int(parts.episodes.count[0])]
    assert resets > 10 and samples + resets == 3 * 8 * 64
    assert len(window) > 10 and np.array_equal(window[:, 0], window[:, 1])
    parts.close()


def test_where_it_is_used_and_why_not() -> None:
    """The reasons against the native vector env, and the speed gain if there is none."""
    cart = EnvChoice("gymnasium:CartPole-v1")
    spec = make_vector(cart, 1).spec
    why, gain = choose_native(cart, spec, 32)
    assert not why and gain > 1.5
    assert not choose_native(cart, spec, 2, late=False)[0]
    assert choose_native(EnvChoice("gymnasium:Toy/NextStep-v0"), spec, 2, late=False) == (LATE_RESETS, 0.0)
    for choice, reason in (
        (EnvChoice("soccer"), "a native game already steps in batches"),
        (EnvChoice("gymnasium:Acrobot-v1"), "no vector env is registered for it"),
        (EnvChoice("python:ToyEnv", factory=ToyEnv), "an env given as a Python function has no vector env"),
        (replace(cart, env=EnvSettings(wrappers=("FlattenObservation",))), "env.wrappers apply to single envs"),
        (replace(cart, env=EnvSettings(action_repeat=2)), "env.action_repeat applies to single envs"),
    ):
        assert choose_native(choice, spec, 2) == (reason, 0.0)
    assert choose_native(cart, replace(spec, tasks=("a",)), 2)[0] == "it has tasks"
    assert (
        choose_native(cart, replace(spec, action=replace(spec.action, masked=True)), 2)[0] == "its actions are masked"
    )


def test_the_plan_tells_what_was_asked_what_is_done_and_why() -> None:
    """By default it is used if it is faster; an impossible request is an error; a resumed run keeps the choice."""
    able = Facts(2, False, 256, no_native="", native_gain=3.0)

    def native(facts: Facts, **wanted: Any) -> Any:
        switch = make_plan(PlanSettings(**wanted), facts).native
        return switch.requested, switch.applied, switch.why

    assert native(able) == (None, True, "its own vector env steps 3.0 times as fast")
    assert native(replace(able, native_gain=1.1)) == (None, False, "its own vector env steps 1.1 times as fast")
    assert native(replace(able, native_gain=1.1), native=True) == (True, True, "requested")
    assert native(able, native=False) == (False, False, "requested")
    assert native(able, reproducible=True) == (None, False, "plan.reproducible: not chosen by a timing")
    assert native(replace(able, no_native="it has tasks")) == (None, False, "it has tasks")
    with pytest.raises(ConfigError, match=r"plan\.native=true: it has tasks") as caught:
        native(replace(able, no_native="it has tasks"), native=True)
    assert caught.value.hint == "leave plan.native unset"
    before = make_plan(PlanSettings(), able).applied()
    assert make_plan(PlanSettings(), replace(able, native_gain=0.5), before).native.applied
    del before["native"]
    assert not make_plan(PlanSettings(), able, before).native.applied


def test_a_vector_env_must_declare_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same spaces, how it resets, and last observations; and what it raises is passed on."""
    choice, spec = EnvChoice("gymnasium:Toy/SameStep-v0", native=True), gymnasium.registry["Toy/SameStep-v0"]

    def by(make: Any) -> None:
        monkeypatch.setattr(spec, "vector_entry_point", make)

    by(lambda num_envs, **_: SyncVectorEnv([ToyEnv] * num_envs))
    with pytest.raises(EnvError, match="has another observation space") as caught:
        make_vector(choice, 2)
    assert "plan.native=false" in caught.value.hint
    by(lambda **_: 1 / 0)
    with pytest.raises(EnvError, match="could not be made: division by zero"):
        make_vector(choice, 2)

    class Silent(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            return *super().step(actions)[:4], {}

    by(lambda num_envs, **_: Silent([Nested] * num_envs, autoreset_mode="SameStep"))
    with pytest.raises(EnvError, match="its infos have no `final_obs`"):
        play(make_vector(choice, 2), 9)

    def unsaid(num_envs: int, **_: Any) -> SyncVectorEnv:
        env = SyncVectorEnv([Nested] * num_envs)
        env.metadata = {}
        return env

    by(unsaid)
    with (
        pytest.warns(UserWarning, match="AutoresetMode"),
        pytest.raises(EnvError, match="does not declare its autoreset mode"),
    ):
        make_vector(choice, 2)

    class Broken(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            raise ValueError("out of order")

    by(lambda num_envs, **_: Broken([Nested] * num_envs))
    vector = make_vector(choice, 2, first=6)
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    with pytest.raises(EnvFault, match=r"Env 6 .*step 1\) raised:[\s\S]*out of order"):
        vector.step(np.zeros((2, 1), np.int32), rows)


def test_the_autoreset_mode_of_make_vector() -> None:
    """`make_vector` uses a same-step vector env by default, any other on request, and reports which."""
    plain = ss.make_vector("gymnasium:CartPole-v1", envs=64)
    assert plain.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and isinstance(plain.vector, Native)
    plain.close()
    unasked = ss.make_vector("gymnasium:Toy/Carts-v0", envs=2)
    assert unasked.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and not isinstance(unasked.vector, Native)
    unasked.close()
    asked = ss.make_vector("gymnasium:Toy/Carts-v0", envs=2, plan__native=True)
    assert asked.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP and isinstance(asked.vector, Native)
    asked.reset(seed=3)
    over = np.zeros(2, bool)
    for _ in range(60):
        obs, reward, terminated, truncated, infos = asked.step(np.ones(2, int))
        assert np.array_equal(reward, np.where(over, 0.0, 1.0)) and not (terminated | truncated)[over].any()
        over = terminated | truncated
        assert np.array_equal(infos["active"], ~over)
        if over.any():
            assert np.array_equal(infos["final_obs"][over], obs[over])
    asked.close()
    with pytest.raises(ConfigError, match=r"plan\.native=true: it resets in the step after"):
        ss.make_vector("gymnasium:Toy/Carts-v0", envs=2, plan__native=True, api="sb3")
