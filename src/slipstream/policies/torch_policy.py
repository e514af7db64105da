"""The policy in torch: the definition that the kernels are held to, and what runs images, tokens and torch learners."""

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
from slipstream.policies.distributions import HALF_LOG_2PI, LOG_STD_HIGH, LOG_STD_LOW, MASKED, NODES, SHARES
from slipstream.policies.encoders import Encoder
from slipstream.policies.parameter_layout import COLUMNS, DENSE, KIND, STATE, STATES
from slipstream.policies.pretrained import head_design, make_image_reader
from slipstream.settings import PolicySettings

LOWEST = float(MASKED)
CONSTANT = float(HALF_LOG_2PI)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
RECURRENT: dict[str, type[nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM}
MEMORY_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
EMBEDDING_SPREAD = 0.1


class PolicyOutput(NamedTuple):
    """What a policy says of observations."""

    outputs: Tensor  # [samples, outputs]
    value: Tensor  # [samples]
    features: Tensor  # [samples, units]: what the policy's head reads
    state: Tensor  # [lanes, size]: what the memory holds after the last step


@dataclass(frozen=True)
class Cuts:
    """Sequences cut where episodes begin, longest piece first, as torch packs sequences of many lengths.

    Torch's memories cannot be cleared within a sequence, but each piece can start from a state of its own.
    """

    order: Any  # where each packed sample stands in the batch
    inverse: Any
    sizes: Tensor  # [steps]: how many pieces are longer than that
    lanes: Any  # the lane of each piece
    carried: Tensor | None  # [1, pieces, 1]: 0 for pieces that start from nothing; None: all go on from a state
    ends: Any  # the piece in which each lane ends


def cut(episode_start: Tensor | None, lanes: int) -> Cuts:
    """Cut sequences whose episodes begin where `episode_start` [steps, lanes] is 1; None is one step of episodes that go on."""
    whole = slice(None)
    if episode_start is None:
        return Cuts(whole, whole, torch.tensor([lanes]), whole, None, whole)
    begins = episode_start.cpu().numpy().T > 0  # [lanes, steps]
    steps = begins.shape[1]
    starts = begins.copy()
    starts[:, 0] = True
    piece = starts.reshape(-1).cumsum() - 1
    count = int(piece[-1]) + 1
    step = np.broadcast_to(np.arange(steps), starts.shape)
    place = (step - np.maximum.accumulate(np.where(starts, step, 0), axis=1)).reshape(-1)
    by_length = np.argsort(-np.bincount(piece), kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_length] = np.arange(count)
    row = (step * lanes + np.arange(lanes)[:, None]).reshape(-1)
    order = row[np.argsort(place * count + rank[piece])]
    lane, first = (part[by_length] for part in np.nonzero(starts))
    carried = ~begins[lane, first]

    def there(array: Array, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(array).to(episode_start.device, dtype)

    return Cuts(
        there(order), there(np.argsort(order)), torch.from_numpy(np.bincount(place)), there(lane),
        there(carried, torch.float32)[None, :, None], there(rank[piece[steps - 1 :: steps]]),
    )  # fmt: skip


class Chain(nn.Module):
    """An encoder, hidden layers, memories, and the head that is applied to what they give."""

    def __init__(self, obs: ObsSpec, policy: PolicySettings, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(obs, policy)
        widths = [self.encoder.width, *policy.hidden]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in policy.hidden if policy.layer_norm)
        self.activations = nn.ModuleList(ACTIVATIONS[policy.activation]() for _ in policy.hidden)
        self.memory: nn.RNNBase | None = None
        if policy.memory != "none":
            self.memory = RECURRENT[policy.memory](widths[-1], policy.memory_size, policy.memory_layers)  # type: ignore[arg-type]
            widths.append(policy.memory_size)
        self.outlets = nn.ModuleList(nn.Identity() for _ in range(self.memory.num_layers if self.memory else 0))
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
        """Return what the head reads, and the memories' states [lanes, memories, parts, units] behind it."""
        x = self.encoder(obs, mean, scale)
        for number, (layer, activate) in enumerate(zip(self.layers, self.activations, strict=True)):
            x = layer(x)
            x = activate(self.norms[number](x) if self.norms else x)
        if self.memory is None:
            return x, state
        with torch.autocast(x.device.type, enabled=False):  # in fp32: errors of memories add up step by step
            return self._remember(x.float(), state, cuts)

    def hidden(self) -> Iterator[tuple[str, nn.Module]]:
        """What gives the outputs of its hidden layers, by name."""
        for name, module in self.encoder.hidden():
            yield f"encoder.{name}", module
        for number, module in enumerate(self.activations):
            yield str(number), module
        for number, module in enumerate(self.outlets):
            yield f"{number}.memory", module

    def _remember(self, x: Tensor, state: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
        """Run the memories one by one over all pieces; states stand with the layer on the second axis."""
        assert self.memory is not None
        run = torch.lstm if isinstance(self.memory, nn.LSTM) else torch.gru
        x, after = x[cuts.order], []
        for number, outlet in enumerate(self.outlets):
            start = [part[None, cuts.lanes] for part in state[:, number].unbind(1)]  # each [1, pieces, units]
            start = start if cuts.carried is None else [part * cuts.carried for part in start]
            start = [part.contiguous() for part in start]  # cuDNN asks for that, and to be told if gradients follow
            weights = [getattr(self.memory, f"{name}_l{number}") for name in MEMORY_WEIGHTS]
            hx: Any = start if len(start) > 1 else start[0]
            x, *last = run(x, cuts.sizes, hx, weights, True, 1, 0.0, torch.is_grad_enabled(), False)
            x = outlet(x)
            after.append(torch.stack([part[0][cuts.ends] for part in last], 1))
        return x[cuts.inverse], torch.stack(after, 1)


class ActorCritic(nn.Module):
    """Networks for policy and value, with weights named as `Design.weights` names them."""

    columns: Tensor

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        self.checkpointing = False
        """Whether activations are computed again on the way back instead of being kept."""
        self.sight = make_image_reader(design)
        """What reads images by a frozen trunk, which is no part of this module: its weights are not the policy's."""
        head, outputs, action = head_design(design), design.outputs, design.action
        widths = {"policy": outputs, "value": 1} if design.value else {"policy": outputs}
        self.names = list(widths)
        if design.value and design.policy.shared:
            widths, self.names = {"trunk": outputs + 1}, ["trunk"]
        with torch.random.fork_rng(devices=[]):
            for name, width in widths.items():
                self.add_module(name, Chain(head.obs, head.policy, width))
        if action.kind == "continuous" and design.value:
            self.log_std = nn.Parameter(torch.zeros(action.outputs))
        self.register_buffer("columns", torch.from_numpy(state_columns(design, len(widths))), persistent=False)

    def forward(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, episode_start: Tensor | None = None
    ) -> PolicyOutput:
        """Run steps of several lanes: row step * lanes + lane of `obs` is one step of one lane.

        `state` [lanes, size] is what the memory held before, and `episode_start` [steps, lanes] is 1 where an episode begins,
        which clears it. Without `episode_start` it is one step. States are those of the kernels where these can run the design.
        """
        obs = obs if self.sight is None else self.sight(obs)
        cuts = cut(episode_start, len(state))
        held = state[:, self.columns].unbind(1)  # of each chain [lanes, memories, parts, units]
        told, features, after = [], [], []
        for chain, before in zip(self.chains(), held, strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                x, behind = checkpoint(
                    chain, obs, mean, scale, before, cuts, use_reentrant=False, preserve_rng_state=False
                )  # fmt: skip
            else:
                x, behind = chain(obs, mean, scale, before, cuts)
            told.append(chain.head(x))
            features.append(x)
            after.append(behind)
        left = torch.zeros_like(state)
        left[:, self.columns] = torch.stack(after, 1)
        outputs = told[0][:, : self.design.outputs]
        value = told[-1][:, -1] if self.design.value else torch.zeros_like(outputs[:, 0])
        return PolicyOutput(outputs, value, features[0], left)

    def measure(self, outputs: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of actions [samples, parts]; continuous ones as they were before tanh."""
        if self.design.action.kind == "continuous":
            return self._measure_continuous(outputs, action)
        log_prob, entropy = torch.zeros_like(outputs[:, 0]), torch.zeros_like(outputs[:, 0])
        for part, (logits, switch) in enumerate(self._parts(self._masked(outputs, mask))):
            chosen = action[:, part : part + 1]
            if switch:
                logit = logits[:, 0]
                log_prob = log_prob - functional.softplus(logit * (1 - 2 * chosen[:, 0]))
                entropy = entropy + (functional.softplus(logit) - logit * torch.sigmoid(logit))
                continue
            logs = torch.log_softmax(logits, -1)
            log_prob = log_prob + logs.gather(-1, chosen.long())[:, 0]
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_prob, entropy

    def divergence(self, outputs: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
        """KL(policy || other) of each sample; `other` holds masked outputs, and behind means their log deviations."""
        if self.design.action.kind == "continuous":
            mean, log_dev = self._gaussian(outputs)
            mean_other, log_other = other.chunk(2, -1)
            ratio = (2 * (log_dev - log_other)).exp()
            gap = (mean - mean_other) * (-log_other).exp()
            return (log_other - log_dev + 0.5 * (ratio + gap.square()) - 0.5).sum(-1)
        total = torch.zeros_like(outputs[:, 0])
        for (logits, switch), (others, _) in zip(
            self._parts(self._masked(outputs, mask)), self._parts(other), strict=True
        ):
            if switch:
                one, two = logits[:, 0], others[:, 0]
                gap = functional.softplus(two) - functional.softplus(one)
                total = total + (torch.sigmoid(one) * (one - two) + gap)
                continue
            logs = torch.log_softmax(logits, -1)
            total = total + (logs.exp() * (logs - torch.log_softmax(others, -1))).sum(-1)
        return total

    def chains(self) -> list[Chain]:
        """Its networks: one for both, or the policy's and the value's."""
        return [cast(Chain, self.get_submodule(name)) for name in self.names]

    def hidden(self) -> dict[str, nn.Module]:
        """What gives the outputs of every hidden layer, by name."""
        chains = zip(self.names, self.chains(), strict=True)
        return {f"{name}.{part}": module for name, chain in chains for part, module in chain.hidden()}

    def _gaussian(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log deviations."""
        if self.design.value:
            return outputs, self.log_std.expand_as(outputs)
        mean, log_dev = outputs.chunk(2, -1)
        return mean, log_dev.clamp(float(LOG_STD_LOW), float(LOG_STD_HIGH))

    def _measure_continuous(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_dev = self._gaussian(outputs)
        noise = (action - mean) * torch.exp(-log_dev)
        log_prob = -(0.5 * noise.square() + log_dev + CONSTANT)
        entropy = log_dev + CONSTANT + 0.5
        if self.design.squashed:
            log_prob = log_prob - log_squash(action)
            for node, share in zip(NODES.tolist(), SHARES.tolist(), strict=True):
                entropy = entropy + share * log_squash(mean + torch.exp(log_dev) * node)
        return log_prob.sum(-1), entropy.sum(-1)

    def _parts(self, outputs: Tensor) -> Iterator[tuple[Tensor, bool]]:
        """The outputs of each part of a choice, and whether it is a switch."""
        action = self.design.action
        switches = action.binary or (False,) * action.parts
        sizes = [1 if switch else size for size, switch in zip(action.sizes, switches, strict=True)]
        return zip(torch.split(outputs, sizes, -1), switches, strict=True)

    def _masked(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Rule out the options whose mask is 0."""
        if mask is None:
            return outputs
        parts = []
        masks = torch.split(mask, list(self.design.action.sizes), -1)
        for (logits, switch), allowed in zip(self._parts(outputs), masks, strict=True):
            if switch:
                off, on = allowed[:, :1], allowed[:, 1:]
                logits = logits.masked_fill(off == 0, -LOWEST).masked_fill(on == 0, LOWEST)
            else:
                logits = logits.masked_fill(allowed == 0, LOWEST)
            parts.append(logits)
        return torch.cat(parts, -1)


def log_squash(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2)."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


def state_columns(design: Design, chains: int) -> Array:
    """Where each chain, memory, part (hidden, then cell) and unit [chains, memories, parts, units] stands in a state.

    The kernels pad what they hold; networks that they cannot run have it all side by side.
    """
    p = design.policy
    shape = chains, p.memory_layers, STATES.get(MEMORIES[p.memory], 0), p.memory_size
    if not design.fused or p.memory == "none":
        return np.arange(prod(shape)).reshape(shape)
    table = design.stack.table[design.stack.table[:, KIND] != DENSE]
    starts = table[:, STATE, None] + np.arange(shape[2]) * table[:, COLUMNS, None]
    return np.reshape(starts[:, :, None] + np.arange(p.memory_size), shape)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads meanwhile; None: as many as it does."""
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

    Behind the encoders they are those of a design that sees the features as one vector; in them, convolutions and
    matrices are orthogonal with gain sqrt(2), but residuals start at 0: six of them would multiply what they are given.
    """
    policy = ActorCritic(design)
    behind = replace(design, obs=vector_obs(policy.chains()[0].encoder.width))
    named = behind.weights.named(behind.initial_weights(seed))
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 0xE7E]).generate_state(1)[0]))
    with torch.no_grad(), torch_threads(1):  # the last bits of an orthogonal matrix depend on the threads
        for name, parameter in policy.named_parameters():
            if name in named:
                continue
            if parameter.ndim == 1 or name.endswith(".second.weight"):
                nn.init.zeros_(parameter)
            elif isinstance(policy.get_submodule(name.rpartition(".")[0]), nn.Embedding):
                nn.init.normal_(parameter, 0.0, EMBEDDING_SPREAD, generator=generator)
            else:
                nn.init.orthogonal_(parameter, math.sqrt(2), generator=generator)
            named[name] = parameter.numpy()
    return named
