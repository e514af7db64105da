"""Your own network: its place in a policy, sequences and steps, what is refused, and runs from start to resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import user_networks
from slipstream.agents.trained import TrainedAgent
from slipstream.api import Run, clone, evaluate, load_agent, record, resume, train
from slipstream.contracts import ObsField, ObsSpec, vector_obs
from slipstream.envs.registry import import_modules
from slipstream.errors import ConfigError, NonFinitePolicy, SlipstreamError
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.fused_actor import make_actor
from slipstream.policies.gpu_actor import GPUActor
from slipstream.policies.network_registry import find_network, network_name, register_networks
from slipstream.policies.torch_policy import ActorCritic, initial_weights
from slipstream.policies.user_network import check_finite
from slipstream.runs.checkpoint import find, load, steps_of
from slipstream.runs.layout import RunDir
from slipstream.testing import ToyEnv
from tiny_run import TINY_RUN
from user_networks import Dense, Mixed, Recurrent

register_networks({network_name(network): network for network in (Dense, Recurrent, Mixed)})
SEEN = ObsSpec(
    (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (12, 12, 1)), ObsField("map", "tokens", (6, 3)))
)
TOY: dict[str, Any] = {
    "plan__collector": "local", "plan__envs": 16, "plan__threads": 1, "ppo__rollout": 32, "ppo__minibatch": 128,
    "ppo__learning_rate": 3e-3, "ppo__gamma": 0.9, "policy__sequence": 8, "every__gradients": 0,
}  # fmt: skip
FEW: dict[str, Any] = TOY | {"plan__envs": 4, "ppo__rollout": 16, "ppo__minibatch": 32, "steps": 128}


def act_all(design: Design, params: Any, obs: Any, states: Any) -> tuple[Any, Any]:
    """Act greedily for every row; return log-probabilities and values."""
    actor = make_actor(design)
    actor.load(params)
    rows = len(obs)
    out = ActOutputs(np.zeros((rows, 1), np.int32), np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    streams = np.zeros((rows, 2), np.int64)
    actor.act(ActInputs(np.arange(rows), obs, np.ones((rows, 0), np.uint8), states, streams), out, False)
    return out.log_prob, out.value


@pytest.mark.parametrize("shared", [True, False])
def test_parameters_are_entries_of_the_layout(shared: bool, make_policy: Callable[..., Any]) -> None:
    """The parameters are named in the layout; they come from the constructor under the seed, the heads are ours."""
    design, _ = make_policy("continuous", SEEN, network="user_networks:Mixed", shared=shared)
    named = initial_weights(design, 5)
    own = {name for name in named if ".network." in name}
    networks = ["trunk"] if shared else ["policy", "value"]
    assert own == {f"{net}.network.{name}" for net in networks for name, _ in Mixed(SEEN).named_parameters()}
    assert {name: array.shape for name, array in named.items()} == {s.name: s.shape for s in design.weights.slots}
    again, other = initial_weights(design, 5), initial_weights(design, 6)
    assert all(np.array_equal(again[name], named[name]) for name in named)
    assert not any(np.array_equal(other[name], named[name]) for name in own)
    assert np.abs(named[f"{networks[0]}.head.weight"][:-1]).max() < 0.011, "the policy's head starts small"
    if not shared:
        assert not np.array_equal(named["policy.network.image.weight"], named["value.network.image.weight"])
    assert design.state_size == 0
    assert Design.read(design.describe()) == design, "the name is enough to find the class"


@pytest.mark.parametrize("shared", [True, False])
def test_sequence_equals_steps(shared: bool, make_policy: Callable[..., Any]) -> None:
    """A sequence with resets gives the outputs and the state of single steps, from the stored state on."""
    design, params = make_policy("discrete", 6, network="user_networks:Recurrent", shared=shared)
    assert design.state_size == (17 if shared else 34)
    policy, lanes, steps = ActorCritic(design), 3, 9
    weights, mean, scale = design.split_params_and_stats(params)
    policy.load_state_dict({name: torch.from_numpy(a) for name, a in design.weights.named(weights).items()})
    random = torch.Generator().manual_seed(0)
    obs = torch.randn(steps, lanes, 6, generator=random)
    state = torch.randn(lanes, design.state_size, generator=random)
    start = (torch.rand(steps, lanes, generator=random) < 0.3).to(torch.uint8)
    assert start.any()
    normaliser = torch.from_numpy(mean), torch.from_numpy(scale)
    whole = policy(obs.reshape(-1, 6), *normaliser, state, start)
    actor, now = make_actor(design), state.numpy().copy()
    actor.load(params)
    for step in range(steps):
        now[start[step].numpy() > 0] = 0
        outputs = np.zeros((lanes, design.outputs), np.float32)
        actor.outputs(np.arange(lanes), obs[step].numpy(), now, outputs)
        expected = whole.outputs.detach().reshape(steps, lanes, -1)[step].numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(now, whole.state.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert now.any()


def test_rows_do_not_depend_on_the_worker(make_policy: Callable[..., Any]) -> None:
    """A process that owns some blocks of rows computes the same bits as one that owns all of them."""
    design, params = make_policy("discrete", 6, network="user_networks:Recurrent")
    obs = np.random.default_rng(0).normal(0, 1, (128, 6)).astype(np.float32)
    whole = act_all(design, params, obs, np.zeros((128, design.state_size), np.float32))
    half = act_all(design, params, obs[:64], np.zeros((64, design.state_size), np.float32))
    assert all(np.array_equal(one[:64], other) for one, other in zip(whole, half, strict=True))


class Base(Dense):
    """A valid network, for networks with one defect each."""


def broken(**members: Any) -> type:
    """A network that differs from `Dense` in some members."""
    return type("Broken", (Base,), members)


class Tied(Dense):
    """Two layers with one matrix."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.layers[2].weight


class Lazy(Dense):
    """A layer whose input size is not known."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.more = nn.LazyLinear(3)


class Normed(Dense):
    """Batch norm, whose statistics are buffers."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.norm = nn.BatchNorm1d(16)


class RandomBuffer(Dense):
    """A buffer that differs between processes."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.register_buffer("noise", torch.randn(3), persistent=False)


class Half(Dense):
    """A parameter that is not float32."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float16))


def with_state(forward: Callable[..., Any], size: int = 4) -> type:
    """A network with a state."""
    return type("Stateful", (Dense,), {"state_size": size, "forward": forward})


class NoFeatures(nn.Module):
    """A module that does not say how many features it has."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__()


class HalfFeature(NoFeatures):
    """A module with a number of features that is not whole."""

    features = 1.5


FORWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda self, f: f["nothing"], r"failed on obs \(3, 6\): KeyError"),
    "output shape": (lambda self, f: f["obs"], r"features of shape \(3, 6\) for 3 rows"),
    "float64": (lambda self, f: Dense.forward(self, f).double(), r"features of torch\.float64"),
    "no tensor": (lambda self, f: None, "features of type NoneType"),
    "nan": (lambda self, f: Dense.forward(self, f) / 0, "returned NaN or infinity"),
    "random": (lambda self, f: nn.functional.dropout(Dense.forward(self, f)), "two results"),
    "detached": (lambda self, f: Dense.forward(self, f).detach(), "depend on none of its parameters"),
    "no gradient": (torch.no_grad()(Dense.forward), "depend on none of its parameters"),
    "mixes rows": (lambda self, f: Dense.forward(self, f) - Dense.forward(self, f).mean(0), "other rows"),
}
DEFECTS: dict[str, tuple[type, str]] = {
    **{name: (broken(forward=forward), message) for name, (forward, message) in FORWARDS.items()},
    "no module": (type("Plain", (), {"__init__": lambda self, obs: None}), "is not a torch module"),
    "no features": (NoFeatures, "has no attribute `features`"),
    "half a feature": (HalfFeature, r"has 1\.5 as `features`"),
    "constructor": (broken(__init__=lambda self, obs: 1 / 0), "cannot be made: ZeroDivisionError"),
    "shared": (Tied, r"`layers\.2\.weight` and `again\.weight` share one parameter"),
    "lazy": (Lazy, r"`more\.weight` is lazy"),
    "buffer": (Normed, r"the buffer `norm\.running_mean` would be lost"),
    "random buffer": (RandomBuffer, "`noise` is random"),
    "half": (Half, r"`scale` is torch\.float16"),
    "no state": (with_state(lambda self, f, s: Dense.forward(self, f)), "state_size` of 4"),
    "state shape": (
        with_state(lambda self, f, s: (Dense.forward(self, f), s[:, :3])),
        r"state of shape \(3, 3\) for 3 rows; its `state_size` is 4",
    ),
    "state in place": (
        with_state(lambda self, f, s: (Dense.forward(self, f), s.mul_(0.9) + 1)),
        "changes `state` in place",
    ),
    "true feature": (
        broken(__init__=lambda self, obs: (Dense.__init__(self, obs), setattr(self, "features", True))[0]),
        "has True as",
    ),
    "negative state": (with_state(Dense.forward, -1), "-1 as `state_size`"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_refused(defect: str, make_policy: Callable[..., Any]) -> None:
    """A class that does not follow the protocol is refused with what is wrong and a hint, before any training."""
    network, message = DEFECTS[defect]
    register_networks({f"python:{defect}": network})
    with pytest.raises(ConfigError, match=message) as error:
        make_policy("discrete", 6, network=f"python:{defect}")
    assert error.value.hint


class Popping(Recurrent):
    """A network with sizes of NumPy that takes its field out of the dictionary."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__(obs)
        self.features, self.state_size = np.int64(16), np.int64(17)  # type: ignore[assignment]

    def forward(self, fields: dict[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Empty the dictionary, as it may."""
        return super().forward({"obs": fields.pop("obs")}, state)


def test_what_is_accepted(make_policy: Callable[..., Any]) -> None:
    """Sizes may be NumPy's whole numbers, and `forward` may change its dictionary."""
    register_networks({"python:Popping": Popping})
    design, params = make_policy("discrete", 6, network="python:Popping")
    assert (design.state_size, type(design.state_size)) == (17, int)
    _, values = act_all(design, params, np.ones((2, 6), np.float32), np.zeros((2, 17), np.float32))
    assert np.isfinite(values).all()


class Cosine(Dense):
    """A network that divides by the norms of its weights."""

    def forward(self, fields: Any) -> Any:
        """Return cosines."""
        weight = self.layers[0].weight
        return torch.cat(list(fields.values()), -1) @ (weight / weight.norm(dim=1, keepdim=True)).T


def test_a_network_may_divide_by_its_weights(tmp_path: Path) -> None:
    """The first look at an env uses initial weights, not zeros, which would give NaN here."""
    run = train(lambda: ToyEnv(), network=Cosine, run=tmp_path / "run", **FEW)
    assert run.facts["steps"] == 128


def test_the_network_that_is_given_must_be_that_of_the_run(tmp_path: Path) -> None:
    """Another class is named beside the run's own, also where it would not be used; a name is as good as a class."""
    run = train(lambda: ToyEnv(), network="user_networks:Dense", modules=["user_networks"], run=tmp_path / "r", **FEW)
    agent = f"run:{run.path}"
    for use in (
        lambda: load_agent(agent, network=Recurrent),
        lambda: evaluate(agent, lambda: ToyEnv(), games=1, network=Recurrent),
        lambda: resume(run.path, env=lambda: ToyEnv(), network=Recurrent),
    ):
        with pytest.raises(ConfigError, match="has the network `user_networks:Dense`, but network=user_networks:Rec"):
            use()
    assert load_agent(agent, network=Dense).name


def test_options_need_a_network(make_policy: Callable[..., Any]) -> None:
    """`policy.network_options` without `policy.network` would have no effect, and is refused."""
    with pytest.raises(ConfigError, match=r"`policy\.network_options` = \{'width': 3\} has no effect"):
        make_policy("discrete", 6, network_options={"width": 3})


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up only in modules that the user named; errors name the flag to add."""
    (tmp_path / "named_nets.py").write_text("from user_networks import Dense as Net\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("named_nets")
    with pytest.raises(ConfigError, match=r"add --import named_nets \(in Python: modules=\['named_nets'\]\)"):
        find_network("named_nets:Net")
    with pytest.raises(ConfigError, match="add --import os"):
        find_network("os:system")
    import_modules(["named_nets"])
    assert find_network("named_nets:Net") is Dense
    with pytest.raises(ConfigError, match=r"has no class `Nett`\. Did you mean `Net`\?"):
        find_network("named_nets:Nett")
    with pytest.raises(ConfigError, match="holds a int, not a class"):
        find_network("named_nets:number")
    for name in ("Net", "named_nets:", "named_nets:Net.forward", "named_nets:a b"):
        with pytest.raises(ConfigError, match="MODULE:CLASS"):
            find_network(name)
    with pytest.raises(ConfigError, match="pass it again: network=Unknown"):
        find_network("python:Unknown")
    with pytest.raises(ConfigError, match="the class of a torch module, or its name, not a Dense"):
        network_name(Dense(vector_obs(3)))

    class Local(Dense):
        pass

    assert (network_name(Local), network_name(Dense)) == ("python:Local", "user_networks:Dense")


def test_nan_while_acting_is_an_error() -> None:
    """A network that returns NaN later is named, with the number of rows; our own networks are not checked."""
    outputs, values = np.zeros((4, 2), np.float32), np.zeros(4, np.float32)
    check_finite("a:B", outputs, values)
    outputs[1:3, 0] = np.nan, np.inf
    with pytest.raises(ConfigError, match=r"`policy\.network` = a:B returned NaN or infinity for 2 of 4 rows"):
        check_finite("a:B", outputs, values)
    check_finite(None, outputs)


@pytest.mark.parametrize("sampled", [True, False])
def test_nan_outputs_on_a_device_are_an_error(sampled: bool, make_policy: Callable[..., Any]) -> None:
    """An actor on a device finds outputs that are not finite beside values that are."""
    design, params = make_policy("discrete", 6, network="user_networks:Dense", shared=False)
    (bias,) = (slot for slot in design.weights.slots if slot.name == "policy.head.bias")
    params[bias.offset : bias.end] = np.nan
    actor = GPUActor(design, 3, "cpu")
    actor.load(params)
    obs, states = np.ones((3, 6), np.float32), np.zeros((3, 0), np.float32)
    out = ActOutputs(np.zeros((3, 1), np.int32), np.zeros(3, np.float32), np.zeros(3, np.float32))
    inputs = ActInputs(np.arange(2), obs, np.ones((3, 0), np.uint8), states, np.zeros((3, 2), np.int64))
    with pytest.raises(NonFinitePolicy, match="NaN or infinity for 2 of 2 rows"):
        actor.act(inputs, out, sampled)
    with pytest.raises(NonFinitePolicy, match="NaN or infinity for 3 of 3 rows"):
        actor.outputs(np.arange(3), obs, states, np.zeros((3, design.outputs), np.float32))


@pytest.mark.parametrize(
    ("collector", "every", "saved", "hint"),
    [
        ("local", 0, [64], "then resume from step 64: slipstream resume"),
        ("actors", 0, [64], "then resume from step 64: slipstream resume"),
        ("local", 64, [64, 128], "run@64"),
    ],
)
def test_weights_that_give_nan_are_not_saved(
    collector: str, every: int, saved: list[int], hint: str, tmp_path: Path
) -> None:
    """The end of a run whose network returns NaN saves nothing, and the hint names a checkpoint before it."""

    class Fails(Dense):
        calls = 0

        def forward(self, fields: dict[str, torch.Tensor]) -> torch.Tensor:
            self.calls += 1
            return super().forward(fields) * (np.nan if self.calls > 44 else 1)

    def save_first(steps: int, metrics: dict[str, Any], handle: Any) -> None:
        if steps == 64:
            handle.save()

    settings = TINY_RUN | {"plan__collector": collector, "plan__workers": 1, "every__checkpoint": every, "steps": 640}
    with pytest.raises(NonFinitePolicy, match="returned NaN or infinity") as caught:
        train("recall", run=tmp_path / "run", network=Fails, on_iteration=save_first, **settings)
    assert steps_of(RunDir(tmp_path / "run")) == saved
    assert hint in caught.value.hint and caught.value.code == 2


@pytest.mark.slow
def test_learns_with_a_class(tmp_path: Path) -> None:
    """A class passed in Python learns ToyEnv in worker processes and in this one with the same weights."""
    more = {"steps": 8_000, "network": Dense, "policy__network_options": {"width": 24}}
    run = train(lambda: ToyEnv(), run=tmp_path / "a", **TOY | more)
    assert evaluate(f"run:{run.path}", lambda: ToyEnv(), games=30)["mean_return"] >= 9.0
    state = load(find(RunDir.open(run.path))).state
    assert state["policy"]["policy"]["network"] == "user_networks:Dense"
    assert state["policy"]["policy"]["network_options"] == {"width": 24}
    assert run.agent().act(np.eye(4, dtype=np.float32)).shape == (4,)

    class Local(Dense):
        pass

    few = FEW | {"network": Local, "plan__envs": 8}
    local = train(lambda: ToyEnv(), run=tmp_path / "b", **few)
    workers = train(lambda: ToyEnv(), run=tmp_path / "c", **few | {"plan__collector": "actors", "plan__workers": 2})
    one, other = (run.agent().params_and_stats for run in (local, workers))
    assert np.allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_learns_to_remember(tmp_path: Path) -> None:
    """A network with memory learns `recall`, which a policy without memory can only guess."""
    more = {"steps": 16_000, "modules": ["user_networks"], "policy__network": "user_networks:Recurrent"}
    run = train("recall:2", run=tmp_path / "run", **TOY | more | {"policy__sequence": 16, "ppo__gamma": 0.95})
    result = evaluate(f"run:{run.path}", "recall:2", games=50)
    assert result["mean_return"] > 0.9


CASES: dict[str, dict[str, Any]] = {
    "dense": {"policy__network": "user_networks:Dense", "policy__shared": False},
    "memory, actors, lag 1, burn-in": {
        "policy__network": "user_networks:Recurrent", "plan__collector": "actors", "plan__workers": 1, "plan__lag": 1,
        "policy__burn_in": 2,
    },
    "memory, batched": {"policy__network": "user_networks:Recurrent", "plan__collector": "batched"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    """A resumed run has the weights, optimiser, environments and RNG of an uninterrupted one, bit for bit."""
    settings = FEW | CASES[case] | {"modules": ["user_networks"], "env__match_seconds": 1.0, "preset": "smoke"}
    whole = train("soccer", run=tmp_path / "whole", **settings | {"steps": 512})
    half = train("soccer", run=tmp_path / "half", **settings | {"steps": 256})
    again = resume(half.path, steps=512, modules=["user_networks"])
    one, other = (load(find(RunDir.open(run.path))) for run in (whole, again))
    assert one.steps == other.steps
    for group, arrays in one.groups.items():
        for name, array in arrays.items():
            assert np.array_equal(array, other.groups[group][name]), f"{group}/{name} differs"


@pytest.mark.slow
def test_a_run_needs_its_network_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the class a run is refused with the flag to add; with it, it is loaded, resumed and an opponent."""
    run = train("soccer", run=tmp_path / "run", network=Recurrent, env__match_seconds=1.0, preset="smoke", **FEW)
    expected = load_agent(f"run:{run.path}").act(np.ones((2, run.agent().obs.width), np.float32))
    monkeypatch.setattr("slipstream.policies.network_registry._given", {})
    monkeypatch.setattr("slipstream.system.user_modules._named", set())
    calls: list[Callable[[], Any]] = [
        lambda: run.agent(),
        lambda: resume(run.path, steps=256),
        lambda: evaluate(f"run:{run.path}", "soccer", opponent="random", games=1),
        lambda: train("soccer", start=f"run:{run.path}", run=tmp_path / "next", steps=128),
    ]
    for call in calls:
        with pytest.raises(SlipstreamError, match="add --import user_networks"):
            call()
    agent = load_agent(f"run:{run.path}", network=Recurrent)
    assert isinstance(agent, TrainedAgent)
    agent.begin()
    assert np.array_equal(agent.act(np.ones((2, agent.obs.width), np.float32)), expected)
    resume(run.path, steps=256, network=Recurrent)
    more = {"opponent": f"run:{run.path}", "modules": ["user_networks"], "plan__collector": "actors"}
    versus = train("soccer", run=tmp_path / "versus", preset="smoke", env__match_seconds=1.0, **FEW | more)
    started = train(
        "soccer", run=tmp_path / "started", start=f"run:{run.path}", preset="smoke", env__match_seconds=1.0, **FEW
    )
    assert versus.agent().design.policy.network is None
    assert started.agent().design.policy.network == "user_networks:Recurrent"


@pytest.mark.slow
def test_cloned(tmp_path: Path) -> None:
    """A network of the user's own, with memory, is cloned from demos and resumed as a start of training."""
    record("scripted:rule", "soccer", 4, tmp_path / "demos", env__match_seconds=2.0)
    cloned = clone(
        tmp_path / "demos", run=tmp_path / "clone", network=Recurrent, clone__epochs=2, clone__batch_size=64,
        policy__sequence=8, on_notice=lambda line: None,
    )  # fmt: skip
    assert cloned.agent().design.policy.network == "user_networks:Recurrent"
    assert cloned.facts["accuracy"] > 0


@pytest.mark.slow
def test_sac(tmp_path: Path) -> None:
    """SAC's actor can be a network without memory; one with memory is refused."""
    settings = {"algorithm": "sac", "sac__learning_starts": 64, "sac__batch_size": 32, "steps": 192, "plan__envs": 2}
    run = train(lambda: ToyEnv("continuous"), run=tmp_path / "run", network=Dense, **settings)
    before = initial_weights(run.agent().design, 0)
    trained = run.agent().design.weights.named(run.agent().params_and_stats)
    assert not np.array_equal(trained["policy.network.layers.0.weight"], before["policy.network.layers.0.weight"])
    with pytest.raises(ConfigError, match=r"`policy\.network` = user_networks:Recurrent has memory"):
        train(lambda: ToyEnv("continuous"), run=tmp_path / "memory", network=Recurrent, **settings)


@pytest.mark.slow
def test_images_and_tokens(tmp_path: Path) -> None:
    """A network on images and tokens trains, except for its parameters that do not require a gradient."""
    few = FEW | {"modules": [user_networks.__name__], "policy__network": "user_networks:Mixed"}
    run = train("mixed", run=tmp_path / "run", **few)
    before = initial_weights(run.agent().design, 0)
    after = load(find(RunDir.open(run.path))).groups["policy"]
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same == {"trunk.network.value"}


def test_memory_setting_is_refused(make_policy: Callable[..., Any]) -> None:
    """`policy.memory` beside a network of the user's own would have no effect, and is refused."""
    with pytest.raises(ConfigError, match=r"`policy\.memory` = gru has no effect with `policy\.network`"):
        make_policy("discrete", 6, network="user_networks:Dense", memory="gru")


def test_sequences_of_a_network_with_memory_must_fit(quick: Callable[..., Run]) -> None:
    """`ppo.rollout` must divide into sequences for a network with memory."""
    with pytest.raises(ConfigError, match="does not divide into sequences"):
        quick(network=Recurrent, policy__sequence=7)
