"""The optimisers of the torch engine: Adam, with Muon for hidden matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slipstream.algorithms.engine import Coefficients
from slipstream.errors import ConfigError
from slipstream.policies.torch_policy import ActorCritic


class Adam:
    """AdamW by torch's fused kernel; a weight decay of 0 is Adam.

    `torch.optim.AdamW` would load torch's compiler, which takes 1.5 s, and its overhead is as long as the kernel.
    """

    def __init__(self, named: dict[str, nn.Parameter]) -> None:
        self.named = named
        self.first, self.second = ({name: torch.zeros_like(p) for name, p in named.items()} for _ in range(2))
        self.taken = {name: torch.zeros((), device=p.device) for name, p in named.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The weights, for torch's loss scaler."""
        return [{"params": list(self.named.values())}]

    def step(self, coefficients: Coefficients, left_out: Tensor) -> None:
        """Move every weight that has a gradient, unless `left_out` is 1."""
        grads = {name: p.grad for name, p in self.named.items() if p.grad is not None}
        weights, first, second, taken = (
            [kept[name] for name in grads] for kept in (self.named, self.first, self.second, self.taken)
        )
        with torch.no_grad():
            torch._foreach_add_(taken, 1)
            torch._fused_adamw_(
                weights,
                list(grads.values()),
                first,
                second,
                [],
                taken,
                lr=coefficients.learning_rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=coefficients.weight_decay,
                eps=coefficients.adam_eps,
                amsgrad=False,
                maximize=False,
                found_inf=left_out,
            )
            torch._foreach_sub_(taken, [left_out] * len(taken))


class Optimiser:
    """Adam, with Muon for hidden matrices if `kind` is muon."""

    def __init__(self, policy: ActorCritic, kind: str) -> None:
        self.named = dict(policy.named_parameters())
        inner = [name for name, p in self.named.items() if kind == "muon" and p.ndim == 2 and is_hidden(policy, name)]
        self.adam = Adam({name: p for name, p in self.named.items() if name not in inner})
        self.muon: torch.optim.Optimizer | None = None
        if inner:
            self.muon = make_muon([self.named[name] for name in inner])
            for name in inner:
                self.muon.state[self.named[name]] = {"momentum_buffer": torch.zeros_like(self.named[name])}

    def step(self, coefficients: Coefficients, left_out: Tensor) -> None:
        """Take a step, unless `left_out` is 1."""
        self.adam.step(coefficients, left_out)
        if self.muon is not None and not bool(left_out):
            for group in self.muon.param_groups:
                group.update(lr=coefficients.learning_rate, weight_decay=coefficients.weight_decay)
            self.muon.step()

    def both(self) -> list[Any]:
        """Adam, and Muon if there is one."""
        return [self.adam] if self.muon is None else [self.adam, self.muon]

    def clear(self) -> None:
        """Clear the gradient."""
        for parameter in self.named.values():
            parameter.grad = None

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The first and second moments of each weight's gradient; Muon has no second."""
        adam, found = self.adam, {}
        for name, parameter in self.named.items():
            if name in adam.named:
                found[name] = adam.first[name], adam.second[name]
            elif self.muon is not None:
                found[name] = self.muon.state[parameter]["momentum_buffer"], torch.zeros_like(parameter)
        return found

    def count(self, steps: int) -> None:
        """Restore the number of steps taken."""
        for taken in self.adam.taken.values():
            taken.fill_(float(steps))


def is_hidden(policy: ActorCritic, name: str) -> bool:
    """Whether a weight belongs to a hidden layer: neither to a head nor to an embedding."""
    owner = name.rpartition(".")[0]
    return not owner.endswith(".head") and not isinstance(policy.get_submodule(owner), nn.Embedding)


def make_muon(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Muon with the step size of Adam, so that `ppo.learning_rate` means the same for both."""
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"`ppo.optimiser` = muon needs torch 2.9 or later; this is {torch.__version__}.",
            "upgrade torch, or use ppo.optimiser = adamw",
        )
    return torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw")


def clip_grad_norm(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Clip the gradient to a norm of `limit`; return its norm before."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
