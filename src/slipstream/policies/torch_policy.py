"""The policy in torch: the reference for the compiled kernels, and the policy of torch engines, images and tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from slipstream.contracts import Array, ObsSpec, vector_obs
from slipstream.policies.design import MEMORIES, Design
from slipstream.policies.distributions import (
    HALF_LOG_2PI,
    HERMITE_NODES,
    HERMITE_WEIGHTS,
    LOG_STD_HIGH,
    LOG_STD_LOW,
    MASKED,
)
from slipstream.policies.encoders import Encoder
from slipstream.policies.parameter_layout import COLUMNS, DENSE, KIND, STATE, STATES
from slipstream.policies.pretrained import head_design, make_trunk_encoder
from slipstream.policies.user_network import UserNetwork
from slipstream.settings import PolicySettings

MASKED_LOGIT = float(MASKED)
GAUSSIAN_CONSTANT = float(HALF_LOG_2PI)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
RECURRENT: dict[str, type[nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM}
RECURRENT_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
EMBEDDING_STD = 0.1


class PolicyOutput(NamedTuple):
    """The output of a forward pass."""

    outputs: Tensor  # [samples, outputs]: logits, then means (and log standard deviations)
    value: Tensor  # [samples]
    features: Tensor  # [samples, units]: the input of the policy's head
    state: Tensor  # [lanes, size]: the recurrent state after the last step


@dataclass(frozen=True)
class SequencePieces:
    """Sequences split at episode starts, longest piece first, in the layout of torch's packed sequences.

    Torch's recurrent layers cannot reset their state within a sequence, but every piece can have its own initial state.
    """

    order: Any  # index in the batch of each packed sample
    inverse: Any
    sizes: Tensor  # [steps]: how many pieces are longer than that many steps
    lanes: Any  # the lane of each piece
    carried: Tensor | None  # [1, pieces, 1]: 0 for pieces with a zero initial state; None: all pieces continue a state
    ends: Any  # the last piece of each lane


def split_sequences(episode_start: Tensor | None, lanes: int) -> SequencePieces:
    """Split sequences where `episode_start` [steps, lanes] is 1; None stands for a single step without any start."""
    whole = slice(None)
    if episode_start is None:
        return SequencePieces(whole, whole, torch.tensor([lanes]), whole, None, whole)
    begins = episode_start.cpu().numpy().T > 0  # [lanes, steps]
    steps = begins.shape[1]
    starts = begins.copy()
    starts[:, 0] = True
    piece = starts.reshape(-1).cumsum() - 1
    count = int(piece[-1]) + 1
    step = np.broadcast_to(np.arange(steps), starts.shape)
    offset = (step - np.maximum.accumulate(np.where(starts, step, 0), axis=1)).reshape(-1)
    by_length = np.argsort(-np.bincount(piece), kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_length] = np.arange(count)
    row = (step * lanes + np.arange(lanes)[:, None]).reshape(-1)
    order = row[np.argsort(offset * count + rank[piece])]
    lane, first = (part[by_length] for part in np.nonzero(starts))
    carried = ~begins[lane, first]

    def to_device(array: Array, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(array).to(episode_start.device, dtype)

    return SequencePieces(
        order=to_device(order),
        inverse=to_device(np.argsort(order)),
        sizes=torch.from_numpy(np.bincount(offset)),
        lanes=to_device(lane),
        carried=to_device(carried, torch.float32)[None, :, None],
        ends=to_device(rank[piece[steps - 1 :: steps]]),
    )


class TorchNetwork(nn.Module):
    """An encoder, hidden layers, recurrent layers and a linear head. The caller applies the head."""

    def __init__(self, obs: ObsSpec, policy: PolicySettings, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(obs, policy)
        recurrent, first = policy.memory != "none", policy.memory != "none" and policy.memory_first
        self.memory_first = first
        widths = [policy.memory_size if first else self.encoder.width, *policy.hidden]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in policy.hidden if policy.layer_norm)
        self.activations = nn.ModuleList(ACTIVATIONS[policy.activation]() for _ in policy.hidden)
        self.memory: nn.RNNBase | None = None
        if recurrent:
            inputs = self.encoder.width if first else widths[-1]
            self.memory = RECURRENT[policy.memory](inputs, policy.memory_size, policy.memory_layers)  # type: ignore[arg-type]
        if recurrent and not first:
            widths.append(policy.memory_size)
        self.memory_outputs = nn.ModuleList(nn.Identity() for _ in range(self.memory.num_layers if self.memory else 0))
        """One module per recurrent layer that returns its output, so that forward hooks can read it."""
        self.head = nn.Linear(widths[-1], outputs)

    def forward(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, pieces: SequencePieces
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the head, and the recurrent states [lanes, layers, parts, units] after it."""
        x = self.encoder(obs, mean, scale) if self.memory_first else self.feedforward(obs, mean, scale)
        if self.memory is None:
            return x, state
        with torch.autocast(x.device.type, enabled=False):  # in fp32: rounding errors accumulate over steps
            x, state = self.recurrent(x.float(), state, pieces)
        return self.hidden(x) if self.memory_first else x, state

    def feedforward(self, obs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Run the encoder and the hidden layers; without recurrent layers the result is the input of the head."""
        return self.hidden(self.encoder(obs, mean, scale))

    def hidden(self, x: Tensor) -> Tensor:
        """Run the hidden layers."""
        for number, (layer, activate) in enumerate(zip(self.layers, self.activations, strict=True)):
            x = layer(x)
            x = activate(self.norms[number](x) if self.norms else x)
        return x

    def hidden_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules whose outputs are those of the hidden layers, by name."""
        for name, module in self.encoder.hidden_modules():
            yield f"encoder.{name}", module
        for number, module in enumerate(self.activations):
            yield str(number), module
        for number, module in enumerate(self.memory_outputs):
            yield f"{number}.memory", module

    def recurrent(self, x: Tensor, state: Tensor, pieces: SequencePieces) -> tuple[Tensor, Tensor]:
        """Run the recurrent layers one by one over all pieces; the second axis of `state` is the layer."""
        assert self.memory is not None
        run = torch.lstm if isinstance(self.memory, nn.LSTM) else torch.gru
        x, after = x[pieces.order], []
        for number, output in enumerate(self.memory_outputs):
            start = [part[None, pieces.lanes] for part in state[:, number].unbind(1)]  # each [1, pieces, units]
            start = start if pieces.carried is None else [part * pieces.carried for part in start]
            start = [part.contiguous() for part in start]  # required by cuDNN
            weights = [getattr(self.memory, f"{name}_l{number}") for name in RECURRENT_WEIGHTS]
            hx: Any = start if len(start) > 1 else start[0]
            x, *last = run(x, pieces.sizes, hx, weights, True, 1, 0.0, torch.is_grad_enabled(), False)
            x = output(x)
            after.append(torch.stack([part[0][pieces.ends] for part in last], 1))
        return x[pieces.inverse], torch.stack(after, 1)


class ActorCritic(nn.Module):
    """The networks of policy and value, with the parameter names of `Design.weights`, and the action distribution.

    The distribution's definition is here; `distributions.py` has the same formulas and their gradients as kernels.
    """

    columns: Tensor

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        self.checkpointing = False
        """Whether activations are recomputed in the backward pass instead of stored."""
        self.trunk_encoder = make_trunk_encoder(design)
        """Encodes images with a frozen trunk. It is not a module: the trunk's weights are not the policy's."""
        head, outputs, action = head_design(design), design.outputs, design.action
        widths = {"policy": outputs, "value": 1} if design.value else {"policy": outputs}
        self.names = list(widths)
        if design.value and design.policy.shared:
            widths, self.names = {"trunk": outputs + 1}, ["trunk"]
        with torch.random.fork_rng(devices=[]):
            for name, width in widths.items():
                kind = TorchNetwork if head.policy.network is None else UserNetwork
                self.add_module(name, kind(head.obs, head.policy, width))
        if action.continuous_parts and design.value:
            self.log_std = nn.Parameter(torch.zeros(action.continuous_parts))
        self.register_buffer("columns", torch.from_numpy(state_columns(design, len(widths))), persistent=False)

    def forward(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, episode_start: Tensor | None = None
    ) -> PolicyOutput:
        """Run steps of several lanes: row step * lanes + lane of `obs` is one step of one lane.

        `state` [lanes, size] is the recurrent state before the first step. Where `episode_start` [steps, lanes] is 1
        the state is reset; without `episode_start` there is a single step. If the kernels can run the design, `state`
        has their layout.
        """
        obs = obs if self.trunk_encoder is None else self.trunk_encoder(obs)
        own = self.design.policy.network is not None
        pieces = episode_start if own else split_sequences(episode_start, len(state))
        states = self._split_state(state)
        outputs, features, after = [], [], []
        for network, before in zip(self.networks(), states, strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                x, new_state = checkpoint(
                    network, obs, mean, scale, before, pieces, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x, new_state = network(obs, mean, scale, before, pieces)
            outputs.append(network.head(x))
            features.append(x)
            after.append(new_state)
        end = self._join_state(after, state)
        policy = outputs[0][:, : self.design.outputs]
        value = outputs[-1][:, -1] if self.design.value else torch.zeros_like(policy[:, 0])
        return PolicyOutput(policy, value, features[0], end)

    def _split_state(self, state: Tensor) -> tuple[Tensor, ...]:
        """The state of each network [lanes, layers, parts, units]; that of the user's own network is [lanes, size]."""
        if self.design.policy.network is not None:
            return state.tensor_split(len(self.names), 1)
        return state[:, self.columns].unbind(1)

    def _join_state(self, states: list[Tensor], before: Tensor) -> Tensor:
        """The inverse of `_split_state`; `before` is a state of the same shape."""
        if self.design.policy.network is not None:
            return states[0] if len(states) == 1 else torch.cat(states, 1)
        joined = torch.zeros_like(before)
        joined[:, self.columns] = torch.stack(states, 1)
        return joined

    def log_prob_and_entropy(self, outputs: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of actions [samples, parts]; squashed actions are given before tanh.

        The parts are independent given the observation: both are sums over the parts.
        """
        log_prob, entropy = torch.zeros_like(outputs[:, 0]), torch.zeros_like(outputs[:, 0])
        if self.design.action.continuous_parts:
            mean, log_std = self._mean_and_log_std(outputs)
            numbers = action[:, self.design.action.discrete_parts :]
            log_prob = self._gaussian_log_prob((numbers - mean) * torch.exp(-log_std), log_std, numbers)
            entropy = self._gaussian_entropy(mean, log_std)
        for part, (logits, binary) in enumerate(self._parts(self.apply_mask(outputs, mask))):
            chosen = action[:, part : part + 1]
            if binary:
                logit = logits[:, 0]
                log_prob = log_prob - functional.softplus(logit * (1 - 2 * chosen[:, 0]))
                entropy = entropy + (functional.softplus(logit) - logit * torch.sigmoid(logit))
                continue
            log_probs = torch.log_softmax(logits, -1)
            log_prob = log_prob + log_probs.gather(-1, chosen.long())[:, 0]
            entropy = entropy - (log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy

    def rsample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions after tanh [samples, parts] and their log-probability; `noise` is standard normal."""
        mean, log_std = self._mean_and_log_std(outputs)
        action = mean + noise * log_std.exp()
        return torch.tanh(action), self._gaussian_log_prob(noise, log_std, action)

    def kl_divergence(self, outputs: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
        """KL(policy || other) of each sample; `other` holds masked logits, then means and log standard deviations."""
        total = torch.zeros_like(outputs[:, 0])
        if count := self.design.action.continuous_parts:
            mean, log_std = self._mean_and_log_std(outputs)
            other_mean, other_log_std = other[:, -2 * count :].chunk(2, -1)
            ratio = (2 * (log_std - other_log_std)).exp()
            gap = (mean - other_mean) * (-other_log_std).exp()
            total = (other_log_std - log_std + 0.5 * (ratio + gap.square()) - 0.5).sum(-1)
        both = zip(self._parts(self.apply_mask(outputs, mask)), self._parts(other), strict=True)
        for (logits, binary), (other_logits, _) in both:
            if binary:
                p, q = logits[:, 0], other_logits[:, 0]
                gap = functional.softplus(q) - functional.softplus(p)
                total = total + (torch.sigmoid(p) * (p - q) + gap)
                continue
            log_probs = torch.log_softmax(logits, -1)
            total = total + (log_probs.exp() * (log_probs - torch.log_softmax(other_logits, -1))).sum(-1)
        return total

    def networks(self) -> list[TorchNetwork | UserNetwork]:
        """The shared network, or those of policy and value."""
        return [cast(TorchNetwork | UserNetwork, self.get_submodule(name)) for name in self.names]

    def hidden_modules(self) -> dict[str, nn.Module]:
        """The modules whose outputs are those of the hidden layers, by name."""
        networks = zip(self.names, self.networks(), strict=True)
        return {f"{name}.{part}": module for name, network in networks for part, module in network.hidden_modules()}

    def apply_mask(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Set the logits of options whose mask is 0 so low that their probability is 0."""
        if mask is None:
            return outputs
        parts = []
        masks = torch.split(mask, list(self.design.action.sizes), -1)
        for (logits, binary), allowed in zip(self._parts(outputs), masks, strict=True):
            if binary:
                off, on = allowed[:, :1], allowed[:, 1:]
                logits = logits.masked_fill(off == 0, -MASKED_LOGIT).masked_fill(on == 0, MASKED_LOGIT)
            else:
                logits = logits.masked_fill(allowed == 0, MASKED_LOGIT)
            parts.append(logits)
        return torch.cat([*parts, outputs[..., self._logits :]], -1)

    @property
    def _logits(self) -> int:
        """Number of logits, which are the first outputs."""
        return self.design.action.outputs - self.design.action.continuous_parts

    def _parts(self, outputs: Tensor) -> Iterator[tuple[Tensor, bool]]:
        """The logits of each discrete part, and whether the part is binary (one logit)."""
        action = self.design.action
        binary = action.binary or (False,) * action.discrete_parts
        sizes = [1 if one_logit else size for size, one_logit in zip(action.sizes, binary, strict=True)]
        return zip(torch.split(outputs[..., : self._logits], sizes, -1), binary, strict=True)

    def _mean_and_log_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        means = outputs[..., self._logits :]
        if self.design.value:
            return means, self.log_std.expand_as(means)
        mean, log_std = means.chunk(2, -1)
        return mean, log_std.clamp(float(LOG_STD_LOW), float(LOG_STD_HIGH))

    def _gaussian_log_prob(self, noise: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Log-probability of `action` = mean + noise * std, before tanh if actions are squashed."""
        log_prob = -(0.5 * noise.square() + log_std + GAUSSIAN_CONSTANT)
        return (log_prob - log_squash(action) if self.design.squashed else log_prob).sum(-1)

    def _gaussian_entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Entropy of the Gaussian, plus the mean of `log_squash` by quadrature if actions are squashed."""
        entropy = log_std + GAUSSIAN_CONSTANT + 0.5
        if self.design.squashed:
            for node, weight in zip(HERMITE_NODES.tolist(), HERMITE_WEIGHTS.tolist(), strict=True):
                entropy = entropy + weight * log_squash(mean + torch.exp(log_std) * node)
        return entropy.sum(-1)


def log_squash(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), the log-determinant of tanh."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


def state_columns(design: Design, networks: int) -> Array:
    """The column in a state of each network, recurrent layer, part (hidden, cell) and unit, as an array of those axes.

    The kernels pad each part; designs that only torch can run have no padding.
    """
    p = design.policy
    if p.network is not None:
        return np.zeros((networks, 0), np.int64)
    shape = networks, p.memory_layers, STATES.get(MEMORIES[p.memory], 0), p.memory_size
    if not design.fused or p.memory == "none":
        return np.arange(prod(shape)).reshape(shape)
    table = design.stack.table[design.stack.table[:, KIND] != DENSE]
    starts = table[:, STATE, None] + np.arange(shape[2]) * table[:, COLUMNS, None]
    return np.reshape(starts[:, :, None] + np.arange(p.memory_size), shape)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads within the context; None leaves it unchanged."""
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def initial_weights(design: Design, seed: int) -> dict[str, Array]:
    """The named arrays that a run starts from.

    After the encoders they equal those of a design whose observation is the feature vector. In the encoders,
    convolutions and matrices are orthogonal with gain sqrt(2). The last convolution of each residual block is 0:
    otherwise six residual blocks in a row would multiply their input. The user's own network keeps the weights of its
    constructor, which draws them from torch's RNG.
    """
    torch_seed = int(np.random.SeedSequence([seed, 0xE7E]).generate_state(1)[0])
    generator = torch.Generator().manual_seed(torch_seed)
    # The last bits of an orthogonal matrix depend on the number of threads.
    with torch.no_grad(), torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        policy = ActorCritic(design)
        named = _initial_layers(design, policy.networks()[0], seed)
        for name, parameter in policy.named_parameters():
            if name in named:
                continue
            if design.policy.network is not None:
                named[name] = parameter.detach().numpy()
                continue
            if parameter.ndim == 1 or name.endswith(".second.weight"):
                nn.init.zeros_(parameter)
            elif isinstance(policy.get_submodule(name.rpartition(".")[0]), nn.Embedding):
                nn.init.normal_(parameter, 0.0, EMBEDDING_STD, generator=generator)
            else:
                nn.init.orthogonal_(parameter, math.sqrt(2), generator=generator)
            named[name] = parameter.numpy()
    return named


def _initial_layers(design: Design, network: TorchNetwork | UserNetwork, seed: int) -> dict[str, Array]:
    """The initial weights after the encoders, or after the user's own network, by name."""
    if isinstance(network, UserNetwork):
        policy = design.policy.model_copy(update={"network": None, "network_options": {}, "hidden": ()})
        heads = replace(design, obs=vector_obs(network.sizes.features), policy=policy)
    else:
        heads = replace(design, obs=vector_obs(network.encoder.width))
    return heads.weights.named(heads.initial_weights(seed))
