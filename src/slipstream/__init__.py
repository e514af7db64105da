"""Slipstream trains game-playing agents, from demonstrations to self-play.

The public names are imported on first use, so that `import slipstream` loads neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_HOMES = {
    "train": "slipstream.api",
    "record": "slipstream.api",
    "clone": "slipstream.api",
    "compete": "slipstream.api",
    "resume": "slipstream.api",
    "evaluate": "slipstream.api",
    "tournament": "slipstream.api",
    "watch": "slipstream.api",
    "replay": "slipstream.api",
    "bench": "slipstream.api",
    "diagnose": "slipstream.api",
    "tune": "slipstream.api",
    "convert_sb3": "slipstream.api",
    "load_agent": "slipstream.api",
    "make_vector": "slipstream.api",
    "Run": "slipstream.api",
    "TrainingHandle": "slipstream.training.callbacks",
    "MetricsSink": "slipstream.runs.sinks",
    "RunInfo": "slipstream.runs.sinks",
    "CSVSink": "slipstream.runs.sinks",
    "WandbSink": "slipstream.runs.sinks",
    "MLflowSink": "slipstream.runs.sinks",
    "TrackioSink": "slipstream.runs.sinks",
    "Demos": "slipstream.demos.reader",
    "sarsd_iter": "slipstream.demos.iterators",
    "batch_iter": "slipstream.demos.iterators",
    "buffered_batch_iter": "slipstream.demos.iterators",
    "import_trajectories": "slipstream.stages.import_export",
    "empty_rows": "slipstream.contracts",
    "Settings": "slipstream.settings",
    "SlipstreamError": "slipstream.errors",
    "ConfigError": "slipstream.errors",
    "EnvError": "slipstream.errors",
    "DemoError": "slipstream.errors",
    "CheckpointError": "slipstream.errors",
    "MachineError": "slipstream.errors",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
