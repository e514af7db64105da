"""Converts a whole VPT agent, as a state dict, to a policy with `policy.network=vpt`.

The two action heads and the value head become the head of the policy: the temperature of the actions and the scale of
the value are multiplied into it, so that the outputs are those of VPT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.contracts import ActionSpec, Array, ObsField, ObsSpec
from slipstream.policies.convert_weights import MAX_STACKS, VptShape, vpt_shape
from slipstream.policies.design import Design
from slipstream.policies.vpt_network import BASES, VptNetwork
from slipstream.settings import PolicySettings

BLOCKS = "net.recurrent_layer.blocks."
HEADS = ("buttons", "camera")
"""VPT's action heads, in the order of the action's parts."""
LEAST_VARIANCE, LEAST_DEBIASING = 1e-2, 1e-5
"""The bounds of VPT's normaliser of the value."""


@dataclass(frozen=True)
class VptAgentShape:
    """The sizes of a VPT agent; the defaults are those of the smallest published model."""

    image: VptShape
    layers: int = 4
    heads: int = 8
    memory: int = 128
    ratio: int = 4
    buttons: int = 8641
    camera: int = 121

    @property
    def obs(self) -> ObsSpec:
        """The observation: one image."""
        return ObsSpec((ObsField("", "image", (self.image.side, self.image.side, self.image.channels)),))

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the network."""
        image = self.image
        own = {"layers": self.layers, "heads": self.heads, "memory": self.memory, "ratio": self.ratio}
        sizes = {"blocks": image.blocks, "dense": image.dense, "hidden": image.features}
        return {"widths": list(image.widths), **sizes, **own}

    def design(self) -> Design:
        """The design of the policy."""
        policy = PolicySettings(network="vpt", network_options=self.options(), shared=True)
        return Design(self.obs, ActionSpec("multi_discrete", (self.buttons, self.camera)), policy)


def vpt_agent_shape(tensors: Mapping[str, Tensor]) -> VptAgentShape:
    """Infer the sizes from a file's tensors; unknown sizes are those of the smallest published model."""
    image = vpt_shape(tensors)
    default = VptAgentShape(image)

    def size(key: str, axis: int, fallback: int) -> int:
        tensor = tensors.get(key)
        return int(tensor.shape[axis]) if tensor is not None and tensor.ndim > axis else fallback

    numbers = [int(found[1]) for key in tensors if (found := re.match(re.escape(BLOCKS) + r"(\d+)\.", key))]
    first = f"{BLOCKS}0."
    return VptAgentShape(
        image=image,
        layers=min(max(numbers, default=default.layers - 1), MAX_STACKS - 1) + 1,
        heads=max(1, size(f"{first}r.orc_block.r_layer.weight", 0, BASES * default.heads) // BASES),
        memory=max(1, size(f"{first}r.orc_block.b_nd", 1, default.memory)),
        ratio=max(1, size(f"{first}mlp0.layer.weight", 0, default.ratio * image.features) // image.features),
        buttons=size("pi_head.buttons.linear_layer.weight", 0, default.buttons),
        camera=size("pi_head.camera.linear_layer.weight", 0, default.camera),
    )


def agent_keys(shape: VptAgentShape) -> dict[str, tuple[int, ...]]:
    """The shapes of a VPT agent's tensors by key."""
    with torch.device("meta"):
        network = VptNetwork(shape.obs, **shape.options())
    keys = {f"net.{key}": tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    features = shape.image.features
    for head in HEADS:
        outputs = getattr(shape, head)
        keys |= {f"pi_head.{head}.linear_layer.weight": (outputs, features)}
        keys |= {f"pi_head.{head}.linear_layer.bias": (outputs,)}
    keys |= {"value_head.linear.weight": (1, features), "value_head.linear.bias": (1,)}
    statistics = {"running_mean": (1,), "running_mean_sq": (1,), "debiasing_term": ()}
    return keys | {f"value_head.normalizer.{name}": size for name, size in statistics.items()}


def agent_params(design: Design, tensors: Mapping[str, Tensor], temperature: float, missing: bool = False) -> Array:
    """The `params_and_stats` of the agent; if tensors are missing, their weights are the initial ones of seed 0."""
    params_and_stats = np.zeros(design.params_and_stats_size, np.float32)
    params, _, _ = design.split_params_and_stats(params_and_stats)  # an image has no numbers to normalise
    named = design.weights.named(design.initial_weights(0) if missing else params)
    for name in named:
        key = name.replace("trunk.network.", "net.")
        if key in tensors:
            named[name] = tensors[key].float().numpy()
    for end in ("weight", "bias"):
        head, start = named[f"trunk.head.{end}"], 0
        for part, size in zip(HEADS, design.action.sizes, strict=True):
            key = f"pi_head.{part}.linear_layer.{end}"
            if key in tensors:
                head[start : start + size] = tensors[key].float().numpy() / temperature
            start += size
        mean, deviation = _value_scale(tensors)
        if (key := f"value_head.linear.{end}") in tensors:
            head[-1] = tensors[key].float().numpy()[0] * deviation + (mean if end == "bias" else 0.0)
    design.weights.flatten(named, params)
    return params_and_stats


def _value_scale(tensors: Mapping[str, Tensor]) -> tuple[float, float]:
    """Mean and standard deviation of the value, from the running statistics of its normaliser."""
    names = ("running_mean", "running_mean_sq", "debiasing_term")
    found = [tensors.get(f"value_head.normalizer.{name}") for name in names]
    if any(tensor is None for tensor in found):
        return 0.0, 1.0
    mean, square, share = (float(tensor.reshape(-1)[0]) for tensor in found if tensor is not None)
    mean, square = (number / max(share, LEAST_DEBIASING) for number in (mean, square))
    return mean, float(np.sqrt(max(square - mean**2, LEAST_VARIANCE)))
