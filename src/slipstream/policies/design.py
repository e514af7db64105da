"""The design of a policy: observation and action spaces and network settings, as a checkpoint describes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.errors import ConfigError
from slipstream.policies.network_registry import find_network
from slipstream.policies.parameter_layout import DENSE, GRU, LSTM, NetworkSpec, PolicyLayout, UnpaddedLayout, head_table
from slipstream.policies.token_encoder import POOLED, token_slots
from slipstream.settings import PolicySettings

MEMORIES = {"none": DENSE, "gru": GRU, "lstm": LSTM}


@dataclass(frozen=True)
class Design:
    """Everything that determines a policy's networks and the layout of their weights."""

    obs: ObsSpec
    action: ActionSpec
    policy: PolicySettings
    value: bool = True
    """Whether there is a value function (PPO). Without one (SAC) the standard deviation depends on the state."""

    def __post_init__(self) -> None:
        image, trunk = self.policy.image, self.policy.trunk
        if image == "frozen" and trunk is None:
            hint = "set policy.trunk to the folder of a CLIP model or of `slipstream convert`, or to run:DIR"
            raise ConfigError(
                "`policy.image` = frozen needs `policy.trunk`, the network that encodes the images.", hint
            )
        if image != "frozen" and trunk is not None:
            hint = "set policy.image=frozen, or remove policy.trunk"
            raise ConfigError(f"`policy.trunk` = {trunk} has no effect with `policy.image` = {image}.", hint)

        if self.policy.network is not None and self.policy.memory != "none":
            raise ConfigError(
                f"`policy.memory` = {self.policy.memory} has no effect with `policy.network` = {self.policy.network}.",
                "remove policy.memory; a network of your own has memory if it sets `state_size`",
            )
        if self.policy.network is None and self.policy.network_options:
            raise ConfigError(
                f"`policy.network_options` = {self.policy.network_options} has no effect without `policy.network`.",
                "set policy.network to your own network, or remove policy.network_options",
            )

    @property
    def frozen(self) -> bool:
        """Whether a frozen, pretrained trunk encodes the images."""
        return self.policy.image == "frozen" and any(field.kind == "image" for field in self.obs.fields)

    @property
    def fused(self) -> bool:
        """Whether the compiled kernels can run the policy: its observation is a vector or one set of tokens."""
        return self.policy.network is None and (self.obs.plain or self.tokens is not None)

    @property
    def tokens(self) -> ObsField | None:
        """The token field that the compiled kernels can read: the only field, read by a single network."""
        fields = self.obs.fields
        alone = len(fields) == 1 and fields[0].kind == "tokens" and (self.policy.shared or not self.value)
        return fields[0] if alone else None

    @cached_property
    def weights(self) -> PolicyLayout | UnpaddedLayout:
        """The layout of the weights in a flat vector."""
        if self.fused:
            return self.stack
        from slipstream.policies.torch_policy import ActorCritic

        return UnpaddedLayout({name: tuple(p.shape) for name, p in ActorCritic(self).named_parameters()})

    @cached_property
    def stack(self) -> PolicyLayout:
        """The layout of the weights and layers as the kernels read it."""
        p, tokens = self.policy, self.tokens is not None
        network = NetworkSpec(
            name="",
            inputs=POOLED if tokens else self.obs.floats,
            hidden=p.hidden,
            outputs=0,
            activation=p.activation,
            norm=p.layer_norm,
            memory=MEMORIES[p.memory],
            memory_size=p.memory_size,
            memory_layers=p.memory_layers,
            memory_first=p.memory_first,
            joined=p.features if tokens else 0,
        )
        return PolicyLayout(network, self.action, p.shared, p.squash, self.value, token_slots if tokens else None)

    @cached_property
    def head(self) -> Array:
        """The head table, which describes the action distribution to the kernels."""
        if self.fused:
            return self.stack.head
        return head_table(self.action, self.policy.squash, not self.value, 0, 0)

    @property
    def outputs(self) -> int:
        """Outputs of the policy per row: logits, then means (and log standard deviations)."""
        return self.action.outputs + (0 if self.value else self.action.continuous_parts)

    @property
    def squashed(self) -> bool:
        """Whether continuous actions are squashed by tanh."""
        return self.action.continuous_parts > 0 and (self.policy.squash or not self.value)

    @property
    def state_size(self) -> int:
        """Floats of a row's recurrent state."""
        if self.fused:
            return self.stack.state_size
        p = self.policy
        networks = 1 if p.shared or not self.value else 2
        if p.network is not None:
            return networks * self._network_state_size
        if p.memory == "none":
            return 0
        return networks * p.memory_layers * p.memory_size * (2 if p.memory == "lstm" else 1)

    @cached_property
    def _network_state_size(self) -> int:
        """Floats of memory of the user's own network."""
        from slipstream.policies.pretrained import head_design
        from slipstream.policies.user_network import network_sizes

        return network_sizes(head_design(self).obs, self.policy).state_size

    @property
    def sequence(self) -> int:
        """Steps of a training sequence; 1 without recurrent layers."""
        return self.policy.sequence if self.state_size else 1

    def initial_weights(self, seed: int) -> Array:
        """The flat weights that a run starts from."""
        if self.obs.plain and self.fused:
            return self.stack.first(seed, self.policy.init, self.policy.log_std)
        from slipstream.policies.torch_policy import initial_weights

        return self.weights.flatten(initial_weights(self, seed))

    def of_value(self) -> Array:
        """A flat mask: 1 for every weight that only the value depends on, 0 for the others."""
        marks = {name: np.zeros(array.shape, np.float32) for name, array in self.weights.named(self._zeros()).items()}
        for name, array in marks.items():
            if name.startswith("value."):
                array[:] = 1.0
            elif name.startswith("trunk.head."):
                array[-1] = 1.0
        return self.weights.flatten(marks)

    def _zeros(self) -> Array:
        return np.zeros(self.weights.size, np.float32)

    @cached_property
    def numbers(self) -> int:
        """Inputs that are normalised: those of the observation vectors, then the features of a frozen trunk."""
        if not self.frozen:
            return self.obs.floats
        from slipstream.policies.pretrained import head_design

        return head_design(self).obs.floats

    @property
    def params_and_stats_size(self) -> int:
        """Length of `params_and_stats`: the weights, then mean and scale of the normalised inputs."""
        return self.weights.size + 2 * self.numbers

    def split_params_and_stats(self, params_and_stats: Array) -> tuple[Array, Array, Array]:
        """Views of the weights, the mean and the scale in `params_and_stats`."""
        size, numbers = self.weights.size, self.numbers
        return params_and_stats[:size], params_and_stats[size : size + numbers], params_and_stats[size + numbers :]

    def write_normaliser(self, params_and_stats: Array, mean: Array, scale: Array) -> None:
        """Write mean and scale into `params_and_stats`; if they cover only the vectors, those of a trunk stay."""
        _, own_mean, own_scale = self.split_params_and_stats(params_and_stats)
        own_mean[: len(mean)], own_scale[: len(scale)] = mean, scale

    def initial_params_and_stats(self, seed: int) -> Array:
        """The `params_and_stats` that a run starts from: initial weights, observations not normalised."""
        params_and_stats = np.zeros(self.params_and_stats_size, np.float32)
        params, _, scale = self.split_params_and_stats(params_and_stats)
        params[:], scale[:] = self.initial_weights(seed), 1.0
        return params_and_stats

    def describe(self) -> dict[str, Any]:
        """The description that a checkpoint stores, from which `read` builds the design again."""
        policy = self.policy.model_dump(mode="json")
        description = {
            "obs": self.obs.describe(),
            "action": self.action.describe(),
            "policy": policy,
            "value": self.value,
        }
        if self.frozen:
            from slipstream.policies.pretrained import describe_trunk

            description["trunk"] = describe_trunk(self)
        return description

    @classmethod
    def read(cls, description: dict[str, Any]) -> Design:
        """The inverse of `describe`.

        Raises if the frozen trunk is missing or is not the one described, or if the user's own network is not given.
        """
        obs, action = ObsSpec.read(description["obs"]), ActionSpec.read(description["action"])
        design = cls(obs, action, PolicySettings.model_validate(description["policy"]), bool(description["value"]))
        if design.frozen:
            from slipstream.policies.pretrained import check_trunk

            check_trunk(description["trunk"])
        if design.policy.network is not None:
            find_network(design.policy.network)
        return design


class ActInputs(NamedTuple):
    """What a policy acts on. All arrays are indexed by row."""

    rows: Array  # the rows to act for
    obs: Array  # [all rows, obs]
    mask: Array  # [all rows, options] or [all rows, 0]
    states: Array  # [all rows, size]: recurrent states, which advance
    streams: Array  # RNG streams, which advance


class ActOutputs(NamedTuple):
    """Where a policy writes the result of acting: arrays, or tensors on a device, indexed by row."""

    action: Any  # [all rows, parts]
    log_prob: Any  # [all rows]
    value: Any  # [all rows]


class PolicyActor(Protocol):
    """The acting copy of a policy: weights and normaliser, and the scratch memory to run them in."""

    design: Design

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, without a copy if possible."""

    def act(self, inputs: ActInputs, out: ActOutputs, sampled: bool) -> None:
        """Write action, log-probability and value of the rows and advance their recurrent states.

        `sampled` False selects the most likely action.
        """

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows` (and log standard deviations) and advance their recurrent states."""
