"""The policy in torch: the definition that the kernels are held to, and what torch learners train."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from slipstream.models.shape import Shape

MASKED = -1e9
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class ActorCritic(nn.Module):
    """Multi-layer perceptrons with a policy head and a value, named as `Shape.named` names them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        for net in shape.nets:
            layers = [nn.Linear(layer.inputs, layer.outputs) for layer in net]
            setattr(self, net[0].name.partition(".")[0], nn.ModuleList(layers))
        self.activate = ACTIVATIONS[shape.activation]()
        if shape.action.kind == "continuous":
            self.log_std = nn.Parameter(torch.zeros(shape.action.outputs))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs [samples, outputs] and the values [samples] of normalised observations."""
        if self.shape.shared:
            out = self._run("trunk", obs)
            return out[:, :-1], out[:, -1]
        return self._run("policy", obs), self._run("value", obs)[:, 0]

    def measure(self, outputs: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of actions [samples, parts]."""
        if self.shape.action.kind == "continuous":
            noise = (action - outputs) * torch.exp(-self.log_std)
            constant = 0.5 * math.log(2 * math.pi)
            logp = -(0.5 * noise.square() + self.log_std + constant).sum(-1)
            return logp, (self.log_std + constant + 0.5).sum().expand_as(logp)
        if mask is not None:
            outputs = torch.where(mask != 0, outputs, MASKED)
        logp, entropy = torch.zeros(len(outputs)), torch.zeros(len(outputs))
        for part, logits in enumerate(torch.split(outputs, list(self.shape.action.sizes), dim=-1)):
            logs = torch.log_softmax(logits, -1)
            logp = logp + logs.gather(-1, action[:, part : part + 1].long())[:, 0]
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return logp, entropy

    def _run(self, name: str, x: Tensor) -> Tensor:
        layers = getattr(self, name)
        for layer in layers[:-1]:
            x = self.activate(layer(x))
        result: Tensor = layers[-1](x)
        return result
