"""Convert pretrained weights of other projects into a trunk for `policy.trunk`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.errors import CheckpointError, ConfigError, did_you_mean
from slipstream.policies.convert_weights import KIND, compare_keys, copy_matching, read_tensors, vpt_shape, write_trunk
from slipstream.policies.pretrained import load_trunk

LAYOUTS = ("vpt",)
"""The supported weight layouts."""


def convert(
    layout: str,
    source: Path,
    out: Path,
    minimum: float = 1.0,
    on_report: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Write the trunk in `source` to the folder `out`; at least the share `minimum` of its keys must match.

    `on_report` receives the comparison of keys before anything is written or refused.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"There is no layout `{layout}`.{did_you_mean(layout, LAYOUTS)}", f"use {', '.join(LAYOUTS)}")
    if not 0 < minimum <= 1:
        raise ConfigError(f"--minimum is {minimum}.", "give --minimum a share above 0 and up to 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists and is not empty.", "choose another folder with --out DIR")
    tensors = read_tensors(source)
    shape = vpt_shape(tensors)
    report = compare_keys(shape, tensors)
    facts = {"layout": layout, "source": str(source), "minimum": minimum} | report.facts()
    if on_report is not None:
        on_report(facts)
    if report.share < minimum:
        raise CheckpointError(
            f"{source} does not hold what layout `{layout}` expects: {report.words()}. That is {report.share:.0%} of "
            f"the keys, and --minimum is {minimum:.0%}.",
            "give another file, or copy the matching keys with a lower --minimum (the rest is initialised randomly)",
        )
    write_trunk(out, shape, copy_matching(shape, tensors, report), facts)
    trunk = load_trunk(str(out))
    trunk_facts = {"out": str(out), "kind": KIND, "features": trunk.features, "side": shape.side, "hash": trunk.hash}
    return facts | trunk_facts
