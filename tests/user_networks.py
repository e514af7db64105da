"""Networks as a user writes them, for tests: in a module of its own, so that workers can import it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipstream.contracts import ObsSpec


class Dense(nn.Module):
    """Two layers on the vectors of an observation."""

    def __init__(self, obs: ObsSpec, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs.floats, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.features = width

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        """Return the features [rows, width]."""
        result: Tensor = self.layers(torch.cat(list(fields.values()), -1))
        return result


class Recurrent(nn.Module):
    """A GRU cell on the vectors of an observation; its state is larger than its output."""

    def __init__(self, obs: ObsSpec, width: int = 16) -> None:
        super().__init__()
        self.cell = nn.GRUCell(obs.floats, width)
        self.features, self.state_size = width, width + 1

    def forward(self, fields: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [rows, width] and the state: the cell's, and the number of steps."""
        after = self.cell(torch.cat(list(fields.values()), -1), state[:, :-1])
        steps = state[:, -1:] + 1
        return after * torch.tanh(steps), torch.cat([after, steps], -1)


class Mixed(nn.Module):
    """A network on every kind of field, with a constant as a buffer and a parameter that is not trained."""

    weights: Tensor

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__()
        self.names = {field.kind: field.name for field in obs.fields}
        shapes = {field.kind: field.shape for field in obs.fields}
        self.image = nn.Conv2d(shapes["image"][-1], 4, 3)
        self.vector = nn.Linear(shapes["vector"][0], 4)
        self.value = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("weights", torch.linspace(0, 1, shapes["tokens"][0]), persistent=False)
        self.features = 12

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        """Return the features [rows, 12]."""
        image = self.image(fields[self.names["image"]].movedim(-1, 1) / 255).mean((2, 3))
        tokens = (fields[self.names["tokens"]][:, :, 2] / 255 * self.weights).mean(1, keepdim=True) * self.value
        return torch.cat([self.vector(fields[self.names["vector"]]), image, tokens], -1)
