"""VPT's network, `policy.network=vpt`: its image encoder, its transformer over the last frames, and its last layer.

The published agents are converted to it by `slipstream convert vpt-agent`. The parameters have VPT's names. The memory
of a row holds the keys and values of the last frames of every transformer block, then the number of these frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.contracts import ObsSpec
from slipstream.errors import ConfigError
from slipstream.policies.convert_weights import VptImageEncoder, VptShape, VptUnit

BASES = 10
"""Learned functions of the distance in time, from which each head mixes its attention bias."""


class VptNetwork(nn.Module):
    """VPT's network in the protocol of `user_network`; the defaults are the sizes of the smallest published model."""

    def __init__(
        self,
        obs: ObsSpec,
        widths: Sequence[int] = (64, 128, 128),
        blocks: int = 2,
        dense: int = 256,
        hidden: int = 1024,
        layers: int = 4,
        heads: int = 8,
        memory: int = 128,
        ratio: int = 4,
    ) -> None:
        """Blocks are those of an image stack, `memory` the frames that a frame attends to, including itself."""
        super().__init__()
        images = [field for field in obs.fields if field.kind == "image"]
        if len(images) != 1 or len(obs.fields) != 1 or images[0].planes[1] != images[0].planes[2]:
            raise ConfigError(
                "`policy.network` = vpt reads one square image and nothing else.", "use another env or another network"
            )
        self.field = images[0].name or "obs"
        channels, side, _ = images[0].planes
        shape = VptShape(tuple(widths), blocks, channels, side, dense, hidden)
        self.img_process = VptImageEncoder(shape)
        transformer = nn.ModuleList(VptTransformerBlock(hidden, heads, memory, ratio) for _ in range(layers))
        self.recurrent_layer = nn.ModuleDict({"blocks": transformer})
        self.lastlayer = VptUnit(nn.LayerNorm(hidden), nn.Linear(hidden, hidden, bias=False))
        self.final_ln = nn.LayerNorm(hidden)
        self.features = hidden
        self.past = layers, 2, memory - 1, hidden
        self.state_size = layers * 2 * (memory - 1) * hidden + 1

    def forward(self, fields: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [rows, hidden] of one frame per row, and the state."""
        pixels = fields[self.field]
        x = self.img_process(pixels.movedim(-1, -3).flatten(1, -3).float() / 255)
        past, seen = state[:, :-1].view(len(state), *self.past), state[:, -1:]
        length = self.past[2]
        ages = torch.arange(length, 0, -1, device=state.device)
        masked = functional.pad(ages > seen, (0, 1))  # [rows, memory]: frames before the episode; never the last one
        new = []
        transformer = cast(nn.ModuleList, self.recurrent_layer["blocks"])
        for number, block in enumerate(transformer):
            x, own = block(x, past[:, number], masked)
            new.append(own)
        kept = torch.cat([past[:, :, :, 1:], torch.stack(new, 1)[:, :, :, None]], 3) if length else past
        after = torch.cat([kept.flatten(1), (seen + 1).clamp(max=length)], 1)
        return self.final_ln(self.lastlayer(x.relu())), after


class VptTransformerBlock(nn.Module):
    """Attention over the last frames, then two dense layers; the input of each is added to its output."""

    def __init__(self, hidden: int, heads: int, memory: int, ratio: int) -> None:
        super().__init__()
        self.pre_r_ln = nn.LayerNorm(hidden)
        self.r = nn.ModuleDict({"orc_block": VptAttention(hidden, heads, memory)})
        self.mlp0 = VptUnit(nn.LayerNorm(hidden), nn.Linear(hidden, ratio * hidden, bias=False))
        self.mlp1 = nn.ModuleDict({"layer": nn.Linear(ratio * hidden, hidden)})

    def forward(self, x: Tensor, past: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new frame [rows, units], and its key and value [rows, 2, units]."""
        x = self.pre_r_ln(x)
        attended, own = self.r["orc_block"](x, past, masked)
        x = x + attended
        return x + self.mlp1["layer"](self.mlp0(x)), own


class VptAttention(nn.Module):
    """Multi-head attention of one frame to the past ones and itself, with a learned bias by distance in time."""

    def __init__(self, hidden: int, heads: int, memory: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_layer, self.proj_layer = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.k_layer, self.v_layer = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.r_layer = nn.Linear(hidden, BASES * heads)
        self.b_nd = nn.Parameter(0.2 * torch.randn(BASES, memory))

    def forward(self, x: Tensor, past: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from `x` [rows, units] to `past` [rows, 2, frames, units] and itself, except where `masked`."""
        rows, own = len(x), torch.stack([self.k_layer(x), self.v_layer(x)], 1)
        both = torch.cat([past, own[:, :, None]], 2)  # [rows, 2, frames + 1, units]
        keys, values = both.view(*both.shape[:3], self.heads, -1).unbind(1)
        query = self.q_layer(x).view(rows, self.heads, -1)
        # b_nd is ordered by distance, frames by time. The scale of the products is 1 / size, not its root.
        bias = self.r_layer(x).view(rows, self.heads, BASES) @ self.b_nd.flip(1)
        logits = torch.einsum("rhe,rthe->rht", query, keys) / query.shape[-1] + bias
        weights = logits.masked_fill(masked[:, None], -torch.inf).softmax(-1)
        attended = torch.einsum("rht,rthe->rhe", weights, values).flatten(1)
        return self.proj_layer(attended), own
