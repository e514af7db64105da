"""What turns gradients into steps of the torch learner: Adam, with Muon for the matrices inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slipstream.core.errors import ConfigError
from slipstream.learn.batch import Knobs
from slipstream.models.reference import ActorCritic


class Optimiser:
    """Adam, with Muon for the matrices inside if that is wanted.

    Decay is decoupled, so that Adam is AdamW with a decay of 0.
    """

    def __init__(self, policy: ActorCritic, kind: str) -> None:
        self.named = dict(policy.named_parameters())
        inner = [name for name, p in self.named.items() if kind == "muon" and p.ndim == 2 and inside(policy, name)]
        rest = [name for name in self.named if name not in inner]
        cuda = next(policy.parameters()).is_cuda
        self.adam = torch.optim.AdamW([self.named[name] for name in rest], fused=True, capturable=cuda)
        self.adam._warned_capturable_if_run_uncaptured = True  # the first steps are not captured
        for name in rest:
            p = self.named[name]
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.adam.state[p] = {"step": torch.zeros((), device=p.device), **zeros}
        self.muon: torch.optim.Optimizer | None = None
        if inner:
            self.muon = make_muon([self.named[name] for name in inner])
            for name in inner:
                self.muon.state[self.named[name]] = {"momentum_buffer": torch.zeros_like(self.named[name])}

    def step(self, knobs: Knobs, left_out: Tensor) -> None:
        """Take a step, unless `left_out` is 1."""
        rate = {"lr": knobs.learning_rate, "weight_decay": knobs.weight_decay}
        for group in self.adam.param_groups:
            group.update(rate, eps=knobs.adam_eps)
        self.adam.found_inf = left_out  # type: ignore[attr-defined]
        self.adam.step()
        if self.muon is not None and not bool(left_out):
            for group in self.muon.param_groups:
                group.update(rate)
            self.muon.step()

    def both(self) -> list[torch.optim.Optimizer]:
        """Adam, and Muon if there is one."""
        return [self.adam] if self.muon is None else [self.adam, self.muon]

    def clear(self) -> None:
        """Forget the gradient."""
        for parameter in self.named.values():
            parameter.grad = None

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The first and second moments of each weight's gradient; Muon has no second."""
        found = {}
        for name, parameter in self.named.items():
            if parameter in self.adam.state:
                state = self.adam.state[parameter]
                found[name] = state["exp_avg"], state["exp_avg_sq"]
            elif self.muon is not None:
                found[name] = self.muon.state[parameter]["momentum_buffer"], torch.zeros_like(parameter)
        return found

    def count(self, steps: int) -> None:
        """Say how many steps were taken."""
        for state in self.adam.state.values():
            state["step"].fill_(float(steps))


def inside(policy: ActorCritic, name: str) -> bool:
    """Whether a weight stands between layers: neither a head's nor a table of embeddings."""
    owner = name.rpartition(".")[0]
    return not owner.endswith(".head") and not isinstance(policy.get_submodule(owner), nn.Embedding)


def make_muon(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Muon whose steps are as large as Adam's, so that `ppo.learning_rate` means the same for both."""
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"`ppo.optimiser` = muon needs torch 2.9 or later; this is {torch.__version__}.",
            "upgrade torch, or use ppo.optimiser = adamw",
        )
    return torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw")


def shorten(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale the gradient down to a length of `limit` if it is longer; return the length that it had."""
    slopes = [p.grad for p in parameters if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
    torch._foreach_mul_(slopes, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
