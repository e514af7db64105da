"""Parts of training in two variants each, for claims that no setting of a training run covers.

Each function returns a dict of contestants; a contestant does the work once and returns its rate per second.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Rate = Callable[[], float]
BATCH = 256


def per_second(count: float, work: Callable[[], Any]) -> Rate:
    """A contestant that does `count` units of work per call."""

    def rate() -> float:
        began = time.perf_counter()
        work()
        return count / (time.perf_counter() - began)

    return rate


def loading(quick: bool) -> dict[str, Rate]:
    """An epoch of cloning a vector policy from memory: by index, and through torch's DataLoader."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    count = 2_000 if quick else 50_000
    obs, action = torch.randn(count, 32), torch.randint(0, 8, (count,))
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimiser, loss = torch.optim.Adam(net.parameters()), nn.CrossEntropyLoss()

    def learn(x: torch.Tensor, y: torch.Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(net(x), y).backward()
        optimiser.step()

    def indexed() -> None:
        for some in torch.randperm(count).split(BATCH):
            learn(obs[some], action[some])

    def loaded(workers: int) -> Callable[[], None]:
        loader = DataLoader(TensorDataset(obs, action), BATCH, shuffle=True, num_workers=workers)

        def epoch() -> None:
            for x, y in loader:
                learn(x, y)

        return epoch

    return {
        "DataLoader": per_second(count, loaded(0)),
        "DataLoader, 4 workers": per_second(count, loaded(4)),
        "by index": per_second(count, indexed),
    }


def caching(quick: bool) -> dict[str, Rate]:
    """Five epochs of a head on features of a frozen trunk: computed once, and computed again in every epoch."""
    import torch
    from torch import nn
    from transformers import CLIPVisionConfig, CLIPVisionModel

    images, epochs = (16, 2) if quick else (128, 5)
    config = CLIPVisionConfig(
        hidden_size=192, intermediate_size=768, num_hidden_layers=6, num_attention_heads=3, image_size=64, patch_size=16
    )
    trunk = CLIPVisionModel(config).eval().requires_grad_(False)
    pixels, action = torch.randn(images, 3, 64, 64), torch.randint(0, 8, (images,))
    head = nn.Linear(192, 8)
    optimiser, loss = torch.optim.Adam(head.parameters()), nn.CrossEntropyLoss()

    @torch.no_grad()
    def encode() -> torch.Tensor:
        return torch.cat([trunk(some).pooler_output for some in pixels.split(32)])

    def learn(features: torch.Tensor) -> None:
        for some in torch.randperm(images).split(32):
            optimiser.zero_grad(set_to_none=True)
            loss(head(features[some]), action[some]).backward()
            optimiser.step()

    def once() -> None:
        features = encode()
        for _ in range(epochs):
            learn(features)

    def every_epoch() -> None:
        for _ in range(epochs):
            learn(encode())

    samples = images * epochs
    return {"encoded every epoch": per_second(samples, every_epoch), "encoded once": per_second(samples, once)}


def seeing(quick: bool) -> dict[str, Rate]:
    """Images encoded by a CLIP ViT-B with patches of 32 and of 16, and smaller images; weights are random."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    layers, count = (1, 1) if quick else (12, 2)

    def reader(patch: int, side: int) -> Rate:
        config = CLIPVisionConfig(patch_size=patch, image_size=side, num_hidden_layers=layers)
        net, pixels = CLIPVisionModel(config).eval(), torch.randn(count, 3, side, side)

        @torch.no_grad()
        def read() -> None:
            net(pixels)

        return per_second(count, read)

    return {
        "patches of 32, 224 pixels": reader(32, 224),
        "patches of 16, 224 pixels": reader(16, 224),
        "patches of 32, 128 pixels": reader(32, 128),
    }


def decoding(quick: bool) -> dict[str, Rate]:
    """Frames for an epoch: decoded from PNG and resized every time, and read from a memory-mapped file of bytes."""
    from PIL import Image

    count, side = (8 if quick else 400), 64
    frames = np.random.default_rng(0).integers(0, 40, (count, 2 * side, 2 * side, 3), np.uint8)
    coded = []
    for frame in frames:
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, "PNG")
        coded.append(buffer.getvalue())
    folder = tempfile.TemporaryDirectory(prefix="claims-")
    path = Path(folder.name) / "frames.bin"

    def decode() -> np.ndarray:
        opened = (Image.open(io.BytesIO(data)) for data in coded)
        return np.stack([np.asarray(image.resize((side, side))) for image in opened])

    decode().tofile(path)
    kept = np.memmap(path, np.uint8, "r", shape=(count, side, side, 3))

    def read(held: Any = folder) -> np.ndarray:
        return np.array(kept[np.random.default_rng(0).permutation(count)])

    return {"decoded every epoch": per_second(count, decode), "mapped from disk": per_second(count, read)}


def resolving(quick: bool) -> dict[str, Rate]:
    """Gradient steps of the Nature network on images of 128 and of 64 pixels."""
    import torch
    from torch import nn

    count = 2 if quick else 32

    def learner(side: int) -> Rate:
        body = [nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1)]
        net = nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 8))
        pixels = torch.randn(count, 3, side, side)
        net(pixels)
        optimiser = torch.optim.Adam(net.parameters())

        def learn() -> None:
            optimiser.zero_grad(set_to_none=True)
            net(pixels).square().mean().backward()
            optimiser.step()

        return per_second(count, learn)

    return {"128 pixels": learner(128), "64 pixels": learner(64)}


def inferring(quick: bool) -> dict[str, Rate]:
    """Actions for 8 envs from a policy in torch: one env at a time, and all in one batch."""
    import torch
    from torch import nn

    from slipstream.policies.torch_policy import torch_threads

    rows, calls = 8, 20 if quick else 500
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))
    obs = torch.randn(rows, 32)

    def ask(groups: list[torch.Tensor]) -> Callable[[], None]:
        @torch.inference_mode()
        def work() -> None:
            with torch_threads(1):  # as in inference; more threads are slower
                for _ in range(calls):
                    for some in groups:
                        torch.multinomial(net(some).softmax(-1), 1).numpy()

        return work

    return {
        "one env at a time": per_second(rows * calls, ask([obs[i : i + 1] for i in range(rows)])),
        "all at once": per_second(rows * calls, ask([obs])),
    }


WORKS: dict[str, Callable[[bool], dict[str, Rate]]] = {
    "loading": loading,
    "caching": caching,
    "seeing": seeing,
    "decoding": decoding,
    "resolving": resolving,
    "inferring": inferring,
}
