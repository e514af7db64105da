"""Kernel launches: loops on the CPU, kernels and captured graphs on a GPU."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.collect.device import reset_row
from slipstream.contracts import Array
from slipstream.system.gpu_kernels import Graph, _kernel, capture, launch
from slipstream.system.numba_compile import compiled

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
SIZE = 1 << 20


@compiled
def double_at(index: int, factor: float, values: Array) -> None:
    """Write one element."""
    values[index] = factor * index


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_every_index_is_reached(device: str) -> None:
    """The loop and the kernel reach every index, with the same tensors and numbers as arguments."""
    values = torch.zeros(300, dtype=torch.float64, device=device)
    launch(double_at, len(values), (2.0, values))
    np.testing.assert_array_equal(values.cpu().numpy(), 2.0 * np.arange(300))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_are_cached() -> None:
    """A kernel is loaded from the cache in another process and computes the same."""
    ended = torch.tensor([1, 0], dtype=torch.uint8, device="cuda")
    for attempt in range(2):
        memory, last = torch.ones(2, 3, device="cuda"), torch.zeros(2, 3, device="cuda")
        _kernel.cache_clear()
        launch(reset_row, 2, (ended, torch.zeros_like(ended), memory, last))
        assert memory.sum(1).tolist() == [0.0, 3.0] and last.sum(1).tolist() == [3.0, 0.0]
        found = _kernel(reset_row, False).stats
        assert attempt == 0 or sum(found.cache_hits.values()) == 1
    assert list(Path(found.cache_path).glob("gpu_kernels.slipstream.collect.device.reset_row*.nbc"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_keeps_its_tensors_alive() -> None:
    """Memory that only the captured function references is not reused while the graph can be replayed."""

    def make() -> tuple[Graph, Any]:
        room, total = torch.zeros(SIZE, device="cuda"), torch.zeros(1, device="cuda")

        def work() -> None:
            room.add_(1)
            total.copy_(room.sum())

        return capture(work, 1, [room, total]), total

    graph, total = make()
    gc.collect()
    others = [torch.zeros(SIZE, device="cuda") for _ in range(8)]
    graph.replay()
    assert float(total) == SIZE
    assert all(float(other.abs().sum()) == 0 for other in others)
    del others
    torch.cuda.empty_cache()
    graph.replay()
    assert float(total) == 2 * SIZE
