"""Tracing of running code: counts are exact, and everything is restored."""

from __future__ import annotations

import sys

import torch

from slipstream.perf.tracing import counting_lines, counting_syncs, kept_bytes, place


def turn(times: int) -> int:
    """Two lines that run repeatedly, and two that run once."""
    total = 0
    for number in range(times):
        total += number
    return total


def test_lines_are_counted() -> None:
    """A loop of 30 iterations runs 31 + 30 lines, and two around it; the loop's own line runs most often."""
    before = sys.gettrace()
    with counting_lines() as lines:
        turn(30)
    inside = {line: count for (file, line), count in lines.counts.items() if file == __file__}
    start = turn.__code__.co_firstlineno
    assert [inside[start + number] for number in (2, 3, 4, 5)] == [1, 31, 30, 1]
    where, times = lines.hottest()
    assert where == f"test_tracing.py:{start + 3} `for number in range(times):`" and times == 31
    assert sys.gettrace() is before


def test_numbers_out_of_tensors_are_counted() -> None:
    """.item(), float(), bool(), .tolist(), .numpy() and .cpu() count; sums and products do not."""
    numbers = torch.arange(4.0)
    with counting_syncs() as counts:
        numbers[0].item()
        float(numbers[1])
        assert numbers[2] > 0
        (numbers * 2).sum().tolist()
        numbers.cpu().numpy()
    kinds = {"item": 1, "__float__": 1, "__bool__": 1, "tolist": 1, "cpu": 1, "numpy": 1}
    assert {name: counts[name] for name in kinds} == kinds
    with counting_syncs() as more:
        pass
    numbers[0].item()
    assert not more and "item" not in vars(torch.Tensor)


def test_what_is_kept_is_found() -> None:
    """Work that leaks 1,000 bytes per call is found with its line; work that allocates as much once is not."""
    kept: list[bytes] = []

    def leak(times: int) -> None:
        for _ in range(times):
            kept.append(bytes(1000))  # noqa: PERF401 (as a leak does)

    def hold(times: int) -> None:
        kept[:] = [bytes(1000) for _ in range(times)]

    size, where = kept_bytes(leak, 200)
    assert 1000 < size < 1200 and "`kept.append(bytes(1000))" in where
    assert kept_bytes(hold, 200) == (0.0, "")


def test_a_place_without_a_file() -> None:
    """Code without a file has a name and a line."""
    assert place("<string>", 3) == "<string>:3"
