"""Adam by torch's kernel equals torch's AdamW, and training with torch does not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from slipstream.algorithms.engine import Coefficients
from slipstream.engines.torch_optimisers import Adam

SHAPES = ((8, 4, 3, 3), (8,), (5, 16), (5,), (3, 5))
SILENT = 3
"""The index of the weight that has no gradient in every other step."""


def grads(step: int) -> list[Tensor | None]:
    """The gradients of a step."""
    random = torch.Generator().manual_seed(step)
    drawn = [torch.randn(shape, generator=random) for shape in SHAPES]
    return [None if place == SILENT and step % 2 else grad for place, grad in enumerate(drawn)]


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_are_those_of_torch(decay: float) -> None:
    """Weights, moments and counts are equal bit for bit, with weights without gradients and skipped steps."""
    random = torch.Generator().manual_seed(9)
    mine = [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in mine]
    adam, other = Adam({str(place): weight for place, weight in enumerate(mine)}), torch.optim.AdamW(theirs, fused=True)
    coefficients = Coefficients(
        64, 0.2, 0.0, 0.5, 0.0, 1.0, learning_rate=0.003, adam_eps=1e-6, weight_decay=decay, normalise_advantage=True
    )
    for step in range(8):
        left_out = torch.tensor(float(step == 4))
        for group in other.param_groups:
            group.update(lr=coefficients.learning_rate, weight_decay=decay, eps=coefficients.adam_eps)
        for ours, its, grad in zip(mine, theirs, grads(step), strict=True):
            ours.grad, its.grad = (None, None) if grad is None else (grad.clone(), grad.clone())
        before = [weight.detach().clone() for weight in mine]
        adam.step(coefficients, left_out)
        other.found_inf = left_out  # type: ignore[attr-defined]
        other.step()
        assert all(torch.equal(ours, its) for ours, its in zip(mine, theirs, strict=True))
        assert all(torch.equal(ours, old) for ours, old in zip(mine, before, strict=True)) == bool(left_out)
    for place, its in enumerate(theirs):
        kept, name = other.state[its], str(place)
        assert torch.equal(adam.first[name], kept["exp_avg"]) and torch.equal(adam.second[name], kept["exp_avg_sq"])
        assert adam.taken[name] == kept["step"] == (3 if place == SILENT else 7)


@pytest.mark.slow
def test_training_needs_no_compiler_of_torch(tmp_path: Path) -> None:
    """Training does not import torch's compiler, which takes longer to import than the rest of torch."""
    script = (
        "import sys; from slipstream.api import train\n"
        f"train('pixels', preset='smoke', run={str(tmp_path / 'run')!r}, plan__collector='local')\n"
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-2:] == ["True", "False"], done.stderr
