"""Convert other projects' pretrained weights into a trunk of ours: a file in, a folder and a report out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.errors import CheckpointError, ConfigError, did_you_mean
from slipstream.policies.convert_weights import KIND, compare_keys, copy_matching, read_tensors, vpt_shape, write_trunk
from slipstream.policies.pretrained import load_trunk

LAYOUTS = ("vpt",)
"""Whose weights can be converted."""


def convert(
    layout: str, source: Path, out: Path, minimum: float = 1.0,
    on_report: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the trunk that `source` holds, unless fewer than the share `minimum` of its keys match.

    `on_report` is told how the keys compare before anything is written or refused.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"There is no layout `{layout}`.{did_you_mean(layout, LAYOUTS)}", f"use {', '.join(LAYOUTS)}")
    if not 0 < minimum <= 1:
        raise ConfigError(f"The share of keys that must match cannot be {minimum}.", "give --minimum between 0 and 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already and not empty.", "choose another folder with --out DIR")
    tensors = read_tensors(source)
    shape = vpt_shape(tensors)
    report = compare_keys(shape, tensors)
    facts = {"layout": layout, "source": str(source), "minimum": minimum} | report.facts()
    if on_report is not None:
        on_report(facts)
    if report.share < minimum:
        raise CheckpointError(
            f"{source} does not hold what layout `{layout}` expects: {report.words()}. That is {report.share:.0%} of "
            f"the keys, and at least {minimum:.0%} are asked for.",
            "name another file, or take over what matches with a lower --minimum (the rest starts from chance)",
        )
    write_trunk(out, shape, copy_matching(shape, tensors, report), facts)
    trunk = load_trunk(str(out))
    made = {"out": str(out), "kind": KIND, "features": trunk.features, "side": shape.side, "hash": trunk.hash}
    return facts | made
