"""Dense networks in one GPU kernel equal the separate products of `DeviceNet`, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.contracts import ActionSpec, ObsField, ObsSpec
from slipstream.policies.design import Design
from slipstream.policies.device_net import DeviceNet
from slipstream.settings import PolicySettings

ROWS = 1000
"""Not a multiple of a tile."""
DESIGNS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "two networks": (4, 2, {"shared": False, "hidden": (128, 128), "activation": "tanh"}),
    "one network": (50, 18, {"shared": True, "hidden": (64, 64), "activation": "relu"}),
    "unlike heads": (37, 40, {"shared": False, "hidden": (48, 20), "activation": "elu"}),
}


def design(inputs: int, options: int, policy: dict[str, Any]) -> Design:
    """A policy for vectors of so many numbers."""
    obs = ObsSpec((ObsField("", "vector", (inputs,)),))
    return Design(obs, ActionSpec("discrete", (options,)), PolicySettings(**policy))


def results(net: DeviceNet, x: torch.Tensor, grads: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The outputs of the heads, and the gradient of all weights."""
    state = torch.zeros(len(x), 0, device=x.device)
    outputs, kept, _ = net.forward(x, state)
    heads = list(dict.fromkeys(net.design.stack.heads))
    net.backward(x, outputs, kept, dict(zip(heads, grads, strict=True)))
    return [outputs[head] for head in heads], net.gradient.clone()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("name", list(DESIGNS))
@pytest.mark.parametrize(("precision", "tolerance", "relative"), [("fp32", 1e-5, 1e-5), ("tf32", 1e-2, 5e-2)])
def test_one_kernel_equals_separate_products(name: str, precision: str, tolerance: float, relative: float) -> None:
    """Heads and gradients are those of separate products in fp32; with tf32 some units of a ReLU change sides."""
    made = design(*DESIGNS[name])
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    fused, plain = DeviceNet(made, "cuda", precision), DeviceNet(made, "cuda", "fp32")
    assert fused._chains is not None
    plain._chains = None
    for net in (fused, plain):
        net.flat.copy_(torch.from_numpy(made.stack.first(1, "orthogonal", 0.0)))
    x = torch.zeros(ROWS, plain.width, device="cuda")
    x[:, : DESIGNS[name][0]] = torch.randn(ROWS, DESIGNS[name][0], device="cuda")
    columns = [made.stack.layers[head].columns for head in dict.fromkeys(made.stack.heads)]
    grads = [torch.randn(count, ROWS, device="cuda").T / ROWS for count in columns]
    (heads, gradient), (expected, expected_gradient) = results(fused, x, grads), results(plain, x, grads)
    for mine, theirs in zip(heads, expected, strict=True):
        assert (mine - theirs).norm() <= tolerance * theirs.norm()
    assert (gradient - expected_gradient).norm() <= relative * expected_gradient.norm()


def test_other_networks_are_left_to_separate_products() -> None:
    """Networks of another depth, with norms or memory, or on the CPU have no chains."""
    pytest.importorskip("triton")
    from slipstream.policies.triton_mlp import find_chains

    for more in ({"hidden": (64,)}, {"hidden": (256, 256)}, {"layer_norm": True}, {"memory": "lstm"}):
        assert find_chains(design(4, 2, {"hidden": (64, 64)} | more).stack) is None, more
    assert DeviceNet(design(4, 2, {}), "cpu")._chains is None
