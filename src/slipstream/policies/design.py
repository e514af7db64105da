"""What a policy is: what it sees, what it does, and the network between; as a checkpoint tells it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.errors import ConfigError
from slipstream.policies.parameter_layout import DENSE, GRU, LSTM, Chain, PlainWeights, PolicyStack, head_table
from slipstream.policies.token_encoder import POOLED, token_slots
from slipstream.settings import PolicySettings

MEMORIES = {"none": DENSE, "gru": GRU, "lstm": LSTM}


@dataclass(frozen=True)
class Design:
    """All that sizes a policy, its weights and its kernels."""

    obs: ObsSpec
    action: ActionSpec
    policy: PolicySettings
    value: bool = True
    """Whether it tells a value too; without one, continuous actions have a deviation of their own in every state."""

    def __post_init__(self) -> None:
        image, trunk = self.policy.image, self.policy.trunk
        if image == "frozen" and trunk is None:
            hint = "set policy.trunk to the folder of a CLIP model or of `slipstream convert`, or to run:DIR"
            raise ConfigError("`policy.image` = frozen says nothing about which network reads the images.", hint)
        if image != "frozen" and trunk is not None:
            hint = "set policy.image=frozen, or leave policy.trunk out"
            raise ConfigError(f"`policy.trunk` = {trunk} does nothing while `policy.image` = {image}.", hint)

    @property
    def frozen(self) -> bool:
        """Whether a trunk that is never trained reads its images."""
        return self.policy.image == "frozen" and any(field.kind == "image" for field in self.obs.fields)

    @property
    def fused(self) -> bool:
        """Whether the compiled kernels can run it: vectors or one set of tokens in, layers and memories between."""
        return self.obs.plain or self.tokens is not None

    @property
    def tokens(self) -> ObsField | None:
        """The tokens that the compiled kernels read: where they are all there is to see, and one network sees them."""
        fields = self.obs.fields
        alone = len(fields) == 1 and fields[0].kind == "tokens" and (self.policy.shared or not self.value)
        return fields[0] if alone else None

    @cached_property
    def weights(self) -> PolicyStack | PlainWeights:
        """The layout of its weights."""
        if self.fused:
            return self.stack
        from slipstream.policies.torch_policy import ActorCritic

        return PlainWeights({name: tuple(p.shape) for name, p in ActorCritic(self).named_parameters()})

    @cached_property
    def stack(self) -> PolicyStack:
        """The tables of a network that the kernels run."""
        p, tokens = self.policy, self.tokens is not None
        chain = Chain(
            "", POOLED if tokens else self.obs.floats, p.hidden, 0, p.activation, p.layer_norm, MEMORIES[p.memory],
            p.memory_size, p.memory_layers, p.features if tokens else 0,
        )  # fmt: skip
        return PolicyStack(chain, self.action, p.shared, p.squash, self.value, token_slots if tokens else None)

    @cached_property
    def head(self) -> Array:
        """What the kernels need to know to choose among outputs."""
        if self.fused:
            return self.stack.head
        return head_table(self.action, self.policy.squash, not self.value, 0, 0)

    @property
    def outputs(self) -> int:
        """Numbers that the policy gives for a row."""
        return self.action.outputs * (2 if self.action.kind == "continuous" and not self.value else 1)

    @property
    def squashed(self) -> bool:
        """Whether continuous actions are bent by tanh."""
        return self.action.kind == "continuous" and (self.policy.squash or not self.value)

    @property
    def state_size(self) -> int:
        """Floats of a row's memory."""
        if self.fused:
            return self.stack.state_size
        p = self.policy
        if p.memory == "none":
            return 0
        nets = 1 if p.shared or not self.value else 2
        return nets * p.memory_layers * p.memory_size * (2 if p.memory == "lstm" else 1)

    @property
    def sequence(self) -> int:
        """Steps of a sequence; 1 without memory."""
        return self.policy.sequence if self.state_size else 1

    def initial_weights(self, seed: int) -> Array:
        """The flat weights that a run starts from."""
        if self.obs.plain:
            return self.stack.first(seed, self.policy.init, self.policy.log_std)
        from slipstream.policies.torch_policy import initial_weights

        return self.weights.flatten(initial_weights(self, seed))

    def of_value(self) -> Array:
        """1 for every weight that only the value depends on, 0 for the rest, in the flat layout."""
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
        """Numbers that are normalised: those of the observed vectors, and behind them what a frozen trunk gives."""
        if not self.frozen:
            return self.obs.floats
        from slipstream.policies.pretrained import head_design

        return head_design(self).obs.floats

    @property
    def params_and_stats_size(self) -> int:
        """Length of a pack: the weights, then mean and scale of the numbers."""
        return self.weights.size + 2 * self.numbers

    def split_params_and_stats(self, params_and_stats: Array) -> tuple[Array, Array, Array]:
        """Views of the weights, the mean and the scale in a pack."""
        size, numbers = self.weights.size, self.numbers
        return params_and_stats[:size], params_and_stats[size : size + numbers], params_and_stats[size + numbers :]

    def write_normaliser(self, params_and_stats: Array, mean: Array, scale: Array) -> None:
        """Let a pack read observations by this mean and scale; those of vectors alone leave a trunk's as they are."""
        _, own_mean, own_scale = self.split_params_and_stats(params_and_stats)
        own_mean[: len(mean)], own_scale[: len(scale)] = mean, scale

    def initial_params_and_stats(self, seed: int) -> Array:
        """The pack that a run starts from: first weights, and observations as they are."""
        params_and_stats = np.zeros(self.params_and_stats_size, np.float32)
        params, _, scale = self.split_params_and_stats(params_and_stats)
        params[:], scale[:] = self.initial_weights(seed), 1.0
        return params_and_stats

    def describe(self) -> dict[str, Any]:
        """What a checkpoint must say so that the policy can act again."""
        policy = self.policy.model_dump(mode="json")
        told = {"obs": self.obs.describe(), "action": self.action.describe(), "policy": policy, "value": self.value}
        if self.frozen:
            from slipstream.policies.pretrained import describe_trunk

            told["trunk"] = describe_trunk(self)
        return told

    @classmethod
    def read(cls, description: dict[str, Any]) -> Design:
        """The inverse of `describe`; refuses a trunk that is missing or not the one that was described."""
        obs, action = ObsSpec.read(description["obs"]), ActionSpec.read(description["action"])
        design = cls(obs, action, PolicySettings.model_validate(description["policy"]), bool(description["value"]))
        if design.frozen:
            from slipstream.policies.pretrained import check_trunk

            check_trunk(description["trunk"])
        return design


class PolicyActor(Protocol):
    """The acting copy of a policy: a pack of weights and normaliser, and the memory to run it in."""

    design: Design

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, which is used where it stands."""

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, log_prob: Array,
        value: Array, states: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows` and move their states on; all arrays indexed by row."""

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""

    def tell(self, rows: Array, obs: Array, states: Array, told: Array) -> None:
        """Write the policy's outputs (and log deviations) of `rows` and move their states on."""
