"""Computations that exist in torch and as compiled kernels: how much faster the kernels are.

    python benchmarks/implementations.py [--rounds 11] [--device]

Every pair does the same work on one core, in turns. `--device` compares the networks on a GPU instead. The table of
docs/concepts/fused-kernels.md is made from the results `implementations` and `implementations-gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness import Result, make_parser, rates_of, ratios, run_rounds, spread, table
from slipstream.algorithms.engine import Engine
from slipstream.algorithms.ppo import PPO
from slipstream.algorithms.ppo_loss import standardise
from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.engines import tensor_batch
from slipstream.engines.fused_engine import FusedEngine
from slipstream.engines.torch_engine import TorchEngine
from slipstream.perf.network_timing import synthetic_rollout
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import log_prob_and_entropy
from slipstream.policies.encoders import Encoder
from slipstream.policies.fused_actor import make_actor
from slipstream.policies.fused_network import load_obs
from slipstream.policies.linear_algebra import adam
from slipstream.policies.torch_actor import select_actions
from slipstream.policies.torch_policy import ActorCritic
from slipstream.settings import PolicySettings, PPOSettings, SACSettings, Settings
from slipstream.system.numba_compile import compiled_fused
from slipstream.system.rng import make_streams
from slipstream.training.build import make_sac_engine

OBS, OPTIONS, ROWS, STEPS, MINIBATCH, ACTING_ROWS = 44, 18, 64, 64, 1024, 64
WEIGHTS = 50_000
DEVICE_ROWS = 65_536
Work = Callable[[], Any]
Pair = tuple[Work, Work]
"""The same work in torch, and by the compiled kernel."""


def design_of(memory: str = "none", kind: str = "discrete", value: bool = True) -> Design:
    """A policy of car soccer's size."""
    action = ActionSpec("discrete", (OPTIONS,)) if kind == "discrete" else ActionSpec("continuous", (), (-1.0,), (1.0,))
    policy = PolicySettings(hidden=(128, 128), activation="relu", memory=memory, memory_size=64)  # type: ignore[arg-type]
    return Design(vector_obs(OBS), action, policy, value)


def floats(*shape: int) -> Array:
    """Random numbers."""
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def ppo_update(memory: str) -> Pair:
    """An update of PPO: advantages, then forward, loss, backward, clipping and Adam of four minibatches."""
    design = design_of(memory)
    settings = Settings(ppo=PPOSettings(rollout=STEPS, minibatch=MINIBATCH, epochs=1))
    rollout = synthetic_rollout(EnvSpec("game", design.obs, design.action), design, settings, ROWS)

    def learner(kind: Callable[[Design, Array, int], Engine]) -> Work:
        params_and_stats = design.initial_params_and_stats(0)
        engine = kind(design, design.split_params_and_stats(params_and_stats)[0], 1)
        ppo = PPO(settings, design, params_and_stats, engine, ROWS)
        return lambda: ppo.update(rollout, 0)

    return learner(TorchEngine), learner(FusedEngine)


def sac_updates() -> Pair:
    """Gradient steps of SAC, the sampling from the replay buffer included."""
    from slipstream.algorithms.sac import SAC

    settings = Settings(
        algorithm="sac",
        sac=SACSettings(learning_starts=0, actor_warmup=0, buffer_size=16_384, updates_per_step=1 / ROWS),
    )
    design = design_of(kind="continuous", value=False)
    spec = EnvSpec("game", design.obs, design.action)

    def learner(kind: str) -> Work:
        params = design.initial_params_and_stats(0)
        sac = SAC(settings, design, params, make_sac_engine(settings, design, params, kind, 1), ROWS)
        rollout = synthetic_rollout(spec, design, settings, ROWS)
        return lambda: sac.update(rollout, 0)

    return learner("torch"), learner("fused")


def acting() -> Pair:
    """Actions, log-probabilities and values of 64 rows."""
    design = design_of()
    params_and_stats = design.initial_params_and_stats(0)
    inputs = ActInputs(
        rows=np.arange(ACTING_ROWS),
        obs=floats(ACTING_ROWS, OBS),
        mask=np.zeros((ACTING_ROWS, 0), np.uint8),
        states=np.zeros((ACTING_ROWS, 0), np.float32),
        streams=make_streams(0, "act", 0, ACTING_ROWS),
    )
    log_prob, value = np.zeros((2, ACTING_ROWS), np.float32)
    out = ActOutputs(np.zeros((ACTING_ROWS, 1), np.int32), log_prob, value)
    policy, actor, probs = ActorCritic(design), make_actor(design), np.zeros(OPTIONS, np.float32)
    actor.load(params_and_stats)
    mean, scale = (torch.from_numpy(part) for part in design.split_params_and_stats(params_and_stats)[1:])

    def by_torch() -> None:
        with torch.inference_mode():
            result = policy(torch.from_numpy(inputs.obs), mean, scale, torch.zeros(ACTING_ROWS, 0))
        outputs, values = result.outputs.numpy(), result.value.numpy()
        select_actions(outputs, values, np.zeros(0, np.float32), design.head, inputs, probs, True, out)

    return by_torch, lambda: actor.act(inputs, out, True)


@compiled_fused
def measure_rows(outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, result: Array) -> None:
    """`log_prob_and_entropy` of every row."""
    for row in range(outputs.shape[0]):
        log_prob_and_entropy(outputs[row], log_std, head, action[row], probs, result[row])


def distributions() -> Pair:
    """Log-probability and entropy of the actions of a minibatch."""
    design = design_of()
    policy, outputs = ActorCritic(design), floats(MINIBATCH, OPTIONS)
    action = np.random.default_rng(0).integers(0, OPTIONS, (MINIBATCH, 1)).astype(np.int32)
    probs, result, none = np.zeros(OPTIONS, np.float32), np.zeros((MINIBATCH, 2), np.float32), np.zeros(0, np.float32)

    def by_torch() -> None:
        with torch.inference_mode():
            policy.log_prob_and_entropy(torch.from_numpy(outputs), torch.from_numpy(action), None)

    return by_torch, lambda: measure_rows(outputs, none, design.head, action, probs, result)


def optimiser() -> Pair:
    """A step of Adam on 50,000 weights."""
    weights = torch.nn.Parameter(torch.zeros(WEIGHTS))
    weights.grad = torch.from_numpy(floats(WEIGHTS))
    fused = torch.optim.Adam([weights], lr=1e-5, fused=True)
    params, gradient, moments = np.zeros(WEIGHTS, np.float32), floats(WEIGHTS), np.zeros((2, WEIGHTS), np.float32)
    return fused.step, lambda: adam(params, gradient, moments[0], moments[1], 10, 1e-5, 1e-8, 1.0, 0.0)


def standardisation() -> Pair:
    """Mean and deviation of the advantages of a minibatch."""
    advantage, weight = floats(STEPS * ROWS), np.ones(STEPS * ROWS, np.float32)
    index = np.random.default_rng(0).permutation(STEPS * ROWS)[:MINIBATCH]
    tensors = [torch.from_numpy(array) for array in (advantage, weight, index)]

    def by_torch() -> None:
        tensor_batch.standardise(tensors[0][tensors[2]], tensors[1][tensors[2]], True)

    return by_torch, lambda: standardise(advantage, weight, index, 1, ROWS, True)


@compiled_fused
def load_rows(obs: Array, mean: Array, scale: Array, into: Array) -> None:
    """`load_obs` of every row."""
    for row in range(obs.shape[0]):
        load_obs(obs, row, mean, scale, into[row])


def normalisation() -> Pair:
    """The normalised observations of 64 rows."""
    obs, into, mean, scale = floats(ACTING_ROWS, OBS), floats(ACTING_ROWS, OBS), floats(OBS), np.abs(floats(OBS))
    encoder, tensors = Encoder(vector_obs(OBS), PolicySettings()), [torch.from_numpy(x) for x in (obs, mean, scale)]

    def by_torch() -> None:
        with torch.inference_mode():
            encoder(*tensors)

    return by_torch, lambda: load_rows(obs, mean, scale, into)


def device_network(memory: str) -> Pair:
    """Forward and backward pass of 65,536 rows on a GPU, in bf16 with float32 weights; the LSTM over 16 steps.

    The kernels run as one CUDA graph, as in training. The torch policy cannot be captured: it splits sequences at the
    starts of episodes on the host.
    """
    from slipstream.policies.device_net import DeviceNet
    from slipstream.system.gpu_kernels import capture

    design = design_of(memory)
    net, steps = DeviceNet(design, "cuda", "bf16"), 16 if memory == "lstm" else 1
    net.load(design.initial_params_and_stats(0))
    lanes = DEVICE_ROWS // steps
    inputs = torch.zeros(DEVICE_ROWS, net.width, device="cuda", dtype=net.dtype)
    inputs[:, :OBS] = torch.randn(DEVICE_ROWS, OBS, device="cuda")
    state = torch.zeros(lanes, design.state_size, device="cuda")
    starts = torch.zeros(steps, lanes, dtype=torch.uint8, device="cuda") if steps > 1 else None
    stack = design.stack

    def passes() -> None:
        outputs, memories, _ = net.forward(inputs, state, starts)
        grads = {layer: torch.ones_like(outputs[layer]) for layer in {stack.policy_layer, stack.value_layer}}
        net.backward(inputs, outputs, memories, grads)

    graph = capture(passes, 1)

    def by_kernels() -> None:
        graph.replay()
        torch.cuda.synchronize()

    policy = ActorCritic(design).cuda()
    obs, mean, scale = torch.randn(DEVICE_ROWS, OBS, device="cuda"), torch.zeros(OBS), torch.ones(OBS)
    mean, scale = mean.cuda(), scale.cuda()

    def by_torch() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            result = policy(obs, mean, scale, state, starts)
        (result.outputs.sum() + result.value.sum()).backward()
        torch.cuda.synchronize()

    return by_torch, by_kernels


CASES: dict[str, Callable[[], Pair]] = {
    "PPO update, 2 layers of 128": lambda: ppo_update("none"),
    "PPO update, LSTM of 64": lambda: ppo_update("lstm"),
    "PPO update, GRU of 64": lambda: ppo_update("gru"),
    "SAC update": sac_updates,
    "acting for 64 rows": acting,
    "log-probability and entropy": distributions,
    "Adam": optimiser,
    "advantage standardisation": standardisation,
    "observation normalisation": normalisation,
}
DEVICE_CASES: dict[str, Callable[[], Pair]] = {
    "network on a GPU": lambda: device_network("none"),
    "LSTM on a GPU": lambda: device_network("lstm"),
}


def timed(work: Work, seconds: float) -> Callable[[int], dict[str, float]]:
    """Calls of `work` per second."""
    work()
    began = time.perf_counter()
    work()
    calls = max(2, int(seconds / (time.perf_counter() - began)))

    def measure(_: int) -> dict[str, float]:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return {"steps_per_second": calls / (time.perf_counter() - start)}

    return measure


def main() -> None:
    """Measure every pair and write the result."""
    parser = make_parser(__doc__, rounds=11, seconds=0.3)
    parser.add_argument("--device", action="store_true", help="compare the networks on a GPU")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = Result("implementations-gpu" if options.device else "implementations", options)
    rows, summary = [], {}
    for name, make in (DEVICE_CASES if options.device else CASES).items():
        one, other = make()
        seconds = 0.01 if options.quick else options.seconds
        contestants = {"torch": timed(one, seconds), "compiled": timed(other, seconds)}
        run_rounds(result, name, contestants, 2 if options.quick else options.rounds)
        rates = rates_of(result.rows, name)
        found = summary[name] = spread(ratios(rates, "compiled", "torch"))
        micros = [1e6 / float(np.median(list(rates[who].values()))) for who in ("torch", "compiled")]
        interval = f"{found['median']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"
        rows.append((name, *(f"{value:,.1f}" for value in micros), interval))
    text = table(("computation", "torch, us", "compiled, us", "ratio"), rows)
    title = "Computations that exist twice: torch and compiled kernels"
    where = "one GPU" if options.device else "one core"
    result.close(summary, f"# {title}, on {where}\n\n{text}\n\nAbove 1 the compiled kernel is faster.")


if __name__ == "__main__":
    main()
