"""Your own network: the protocol of its class, the checks that it follows it, and its place in a policy.

The class is a torch module that replaces encoders, hidden layers and memory:

    class MyNetwork(nn.Module):
        features: int         # size of its output
        state_size: int = 0   # optional: floats of memory per row

        def __init__(self, obs: ObsSpec, **options): ...                # `policy.network_options`
        def forward(self, fields: dict[str, Tensor]) -> Tensor: ...     # [rows, features]
        def forward(self, fields, state) -> tuple[Tensor, Tensor]: ...  # with memory; state [rows, state_size]

`fields` holds the observation by the names in `obs.fields` (`obs` if it is a single array): vectors as normalised
floats, images and tokens as bytes. A state of zeros begins an episode. The heads of policy and value are not part of
the class. Its parameters become named entries of the policy's layout, so its buffers must be constants.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.contracts import Array, ObsSpec
from slipstream.errors import ConfigError, NonFinitePolicy, SlipstreamError
from slipstream.policies.encoders import split_fields
from slipstream.policies.network_registry import BUILT_IN, find_network
from slipstream.settings import PolicySettings

CHECKED_ROWS = 3
"""Rows of the random observations that a network is checked with."""
TOLERANCE = 1e-3
"""How much the output of a row may depend on the number of rows."""
FEATURE_TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The types that features may have: float32, or the lower precision of `plan.precision`."""
PROTOCOL = "see `Your own network` in docs/guides/policies.md"


class NetworkSizes(NamedTuple):
    """The sizes that a network declares."""

    features: int
    state_size: int


def network_sizes(obs: ObsSpec, policy: PolicySettings) -> NetworkSizes:
    """Check the network that `policy.network` names on observations of this kind; return its sizes."""
    assert policy.network is not None
    network = find_network(policy.network)
    if policy.network in BUILT_IN:
        with torch.device("meta"):
            made = network(obs, **policy.network_options)
        return NetworkSizes(made.features, made.state_size)
    return _checked_sizes(network, policy.network, obs, json.dumps(policy.network_options, sort_keys=True))


class UserNetwork(nn.Module):
    """The user's network and our head, with the interface of `torch_policy.TorchNetwork`."""

    def __init__(self, obs: ObsSpec, policy: PolicySettings, outputs: int) -> None:
        super().__init__()
        assert policy.network is not None
        self.obs, self.name = obs, policy.network
        self.sizes = network_sizes(obs, policy)
        self.network = find_network(policy.network)(obs, **policy.network_options)
        self.output = nn.Identity()
        """Returns the features, so that forward hooks can read them."""
        self.head = nn.Linear(self.sizes.features, outputs)

    def forward(
        self, obs: Tensor, mean: Tensor, scale: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the features [steps * lanes, features], and the states [lanes, size] after the last step."""
        fields = split_fields(self.obs, obs, mean, scale)
        if not self.sizes.state_size:
            return self.output(_run(self.name, self.network, self.sizes, fields, None)[0]), state
        with torch.autocast(obs.device.type, enabled=False):  # in fp32: rounding errors accumulate over steps
            return self.recurrent(fields, state, episode_start)

    def recurrent(
        self, fields: dict[str, Tensor], state: Tensor, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run step by step; where `episode_start` [steps, lanes] is 1 the state is reset, None is a single step."""
        if episode_start is None:
            features, state = _run(self.name, self.network, self.sizes, fields, state)
            return self.output(features), state
        lanes, outputs = len(state), []
        starts = episode_start.bool()
        for step, begins in enumerate(starts.any(1).tolist()):
            if begins:
                state = torch.where(starts[step, :, None], torch.zeros_like(state), state)
            now = {name: field[step * lanes : (step + 1) * lanes] for name, field in fields.items()}
            features, state = _run(self.name, self.network, self.sizes, now, state)
            outputs.append(features)
        return self.output(torch.cat(outputs)), state

    def hidden_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules whose outputs are those of the hidden layers: the features alone."""
        yield "network", self.output


def _run(
    name: str, network: Any, sizes: NetworkSizes, fields: Mapping[str, Tensor], state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run one step of a network and check the shapes of its result."""
    rows, given = len(next(iter(fields.values()))), dict(fields)  # `forward` may change its dictionary
    result = network(given) if state is None else network(given, state)
    if state is None:
        features, after = result, torch.zeros(0)
    elif isinstance(result, tuple) and len(result) == 2:
        features, after = result
    else:
        raise ConfigError(
            f"`policy.network` = {name} has a `state_size` of {sizes.state_size}, but `forward` returns "
            f"{_describe(result)}.",
            f"return features and the new state; {PROTOCOL}",
        )
    _check_shape(name, "features", features, rows, sizes.features, "features")
    if features.dtype not in FEATURE_TYPES:
        raise ConfigError(
            f"`policy.network` = {name} returned features of {features.dtype}.", f"return float32; {PROTOCOL}"
        )
    if state is None:
        return features, after
    _check_shape(name, "state", after, rows, sizes.state_size, "state_size")
    return features, after.to(state.dtype)


def _check_shape(name: str, what: str, tensor: Any, rows: int, width: int, key: str) -> None:
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != (rows, width):
        raise ConfigError(
            f"`policy.network` = {name} returned {what} of {_describe(tensor)} for {rows} rows; its `{key}` is "
            f"{width}.",
            f"return [rows, {width}], or change `{key}`; {PROTOCOL}",
        )


def _describe(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"


def check_finite(network: str | None, *outputs: Array) -> None:
    """Raise if the outputs [rows, ...] of a policy with its own network are not finite."""
    if network is None:
        return
    for array in outputs:
        bad = len(array) - np.count_nonzero(np.isfinite(array).reshape(len(array), -1).all(1))
        if bad:
            raise NonFinitePolicy(
                f"`policy.network` = {network} returned NaN or infinity for {bad} of {len(array)} rows.",
                "check for divisions by zero, logarithms and exponentials in its forward, or lower ppo.learning_rate",
            )


@lru_cache(maxsize=64)
def _checked_sizes(network: type, name: str, obs: ObsSpec, options: str) -> NetworkSizes:
    """Make the network once and check that it follows the protocol; the result is kept for the process."""
    subject = f"`policy.network` = {name}"
    if not issubclass(network, nn.Module):
        raise ConfigError(f"{subject} is not a torch module.", f"derive the class from torch.nn.Module; {PROTOCOL}")
    with torch.random.fork_rng(devices=[]):
        made = _make(network, subject, obs, options, seed=0)
        sizes = NetworkSizes(_size(made, subject, "features", 1), _size(made, subject, "state_size", 0))
        _check_parameters(made, subject)
        if buffers := dict(made.named_buffers()):
            _check_buffers(buffers, dict(_make(network, subject, obs, options, seed=1).named_buffers()), made, subject)
        _check_outputs(made, name, obs, sizes)
    return sizes


def _make(network: type, subject: str, obs: ObsSpec, options: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    try:
        made = network(obs, **json.loads(options))
    except SlipstreamError:
        raise
    except Exception as error:  # the user's code can raise anything
        raise ConfigError(
            f"{subject} cannot be made: {type(error).__name__}: {error}",
            f"its __init__ takes the observation and `policy.network_options` = {options}; {PROTOCOL}",
        ) from error
    assert isinstance(made, nn.Module)
    return made


def _size(made: nn.Module, subject: str, key: str, least: int) -> int:
    size: Any = getattr(made, key, 0 if key == "state_size" else None)
    try:
        number = least - 1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = least - 1
    if number < least:
        found = "has no attribute" if size is None else f"has {size!r} as"
        raise ConfigError(f"{subject} {found} `{key}`.", f"set self.{key} to a whole number of at least {least}")
    return number


def _check_parameters(made: nn.Module, subject: str) -> None:
    """Every parameter must be one array of floats of known shape, in one place."""
    places: dict[int, str] = {}
    for key, parameter in made.named_parameters(remove_duplicate=False):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"{subject}: the parameter `{key}` is lazy, so its shape is not known.",
                "use the module without `Lazy`; `obs.fields` holds the shapes of the observation",
            )
        if parameter.dtype != torch.float32:
            raise ConfigError(f"{subject}: the parameter `{key}` is {parameter.dtype}.", "make it float32")
        if id(parameter) in places:
            raise ConfigError(
                f"{subject}: `{places[id(parameter)]}` and `{key}` share one parameter.",
                "keep it in one place, and use it from there in forward",
            )
        places[id(parameter)] = key


def _check_buffers(buffers: dict[str, Tensor], others: dict[str, Tensor], made: nn.Module, subject: str) -> None:
    """Buffers are not saved, so they must be constants that `__init__` computes: the same ones in every process."""
    kept = [key for key in made.state_dict() if key in buffers]
    if kept:
        raise ConfigError(
            f"{subject}: the buffer `{kept[0]}` would be lost: only parameters are trained, shared and saved.",
            "use LayerNorm or GroupNorm instead of BatchNorm; register constants with persistent=False",
        )
    for key, tensor in buffers.items():
        if key not in others or not torch.equal(tensor, others[key]):
            raise ConfigError(
                f"{subject}: the buffer `{key}` is random, so it would differ between processes.",
                "make it a parameter with requires_grad=False, or draw it from a generator with a fixed seed",
            )


def _check_outputs(made: nn.Module, name: str, obs: ObsSpec, sizes: NetworkSizes) -> None:
    """Run the network on random observations: shapes, finite numbers, gradients, and rows that do not mix."""
    subject, generator = f"`policy.network` = {name}", torch.Generator().manual_seed(0)
    fields: dict[str, Tensor] = {}
    for field in obs.fields:
        shape = CHECKED_ROWS, *field.shape
        drawn = torch.randn(shape, generator=generator)
        if field.kind != "vector":
            drawn = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        fields[field.name or "obs"] = drawn
    state = torch.zeros(CHECKED_ROWS, sizes.state_size) if sizes.state_size else None
    before = {key: tensor.clone() for key, tensor in made.named_buffers()}
    try:
        with torch.no_grad():
            first, after = _run(name, made, sizes, fields, state)
            if state is not None and state._version:  # the number of changes in place
                raise ConfigError(
                    f"{subject} changes `state` in place.",
                    "make a new tensor, for example state = state + x instead of state += x, and return it",
                )
            again = _run(name, made, sizes, fields, state)[0]
            one = {key: tensor[:1] for key, tensor in fields.items()}
            alone = _run(name, made, sizes, one, None if state is None else state[:1])[0]
            second = first if state is None else _run(name, made, sizes, fields, after)[0]
        _check_gradient(made, name, sizes, fields, state)
    except SlipstreamError:
        raise
    except Exception as error:  # the user's code can raise anything
        shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in fields.items())
        raise ConfigError(
            f"{subject} failed on {shapes}: {type(error).__name__}: {error}", f"fix its forward; {PROTOCOL}"
        ) from error
    if not all(torch.isfinite(tensor).all() for tensor in (first, second, after)):
        raise ConfigError(
            f"{subject} returned NaN or infinity for random observations.",
            "check for divisions by zero, logarithms and exponentials in its forward",
        )
    if not torch.equal(first, again) or any(not torch.equal(before[key], b) for key, b in made.named_buffers()):
        raise ConfigError(
            f"{subject} returned two results for the same observations.",
            "remove Dropout and other randomness, and keep what it remembers in `state`",
        )
    if not torch.allclose(first[:1], alone, rtol=TOLERANCE, atol=TOLERANCE):
        raise ConfigError(
            f"{subject}: the features of a row depend on the other rows of the batch.",
            "use LayerNorm or GroupNorm instead of BatchNorm, and reduce over all axes but the first",
        )


def _check_gradient(
    made: nn.Module, name: str, sizes: NetworkSizes, fields: Mapping[str, Tensor], state: Tensor | None
) -> None:
    """Raise if a network with parameters to train has features, after two steps, that depend on none of them."""
    trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
    if not trained:
        return
    with torch.enable_grad():
        features, state = _run(name, made, sizes, fields, state)
        if sizes.state_size:
            features = _run(name, made, sizes, fields, state)[0]
        gradients = torch.autograd.grad(features.sum(), trained, allow_unused=True) if features.requires_grad else ()
    if all(gradient is None for gradient in gradients):
        raise ConfigError(
            f"`policy.network` = {name}: its features depend on none of its parameters, so it would not be trained.",
            "remove torch.no_grad() and detach() from its forward, or give its parameters requires_grad=False",
        )
