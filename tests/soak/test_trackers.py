"""Trackers get the metrics of a run for real, without network, and a resumed run continues the same tracker run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slipstream as ss
from slipstream.api import Run
from slipstream.testing import ToyEnv
from tiny_run import TINY_RUN

TRACKER = os.environ["SLIPSTREAM_SOAK"]
KEY = "episode/return_mean"
Histories = list[tuple[int, float]]


def only(tracker: str) -> pytest.MarkDecorator:
    """Skip a test in the environment of another tracker."""
    return pytest.mark.skipif(tracker != TRACKER, reason=f"this environment is for {TRACKER}")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Send everything that tries to use the network to a proxy that does not exist."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def trained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> tuple[Run, Histories]:
    """Train, resume, check that nothing was dropped, and return what metrics.jsonl holds."""
    ss.train(lambda: ToyEnv(), run=tmp_path / "run", steps=256, sinks=[TRACKER], **TINY_RUN)
    run = ss.resume(tmp_path / "run", steps=512, env=lambda: ToyEnv())
    said = capfd.readouterr().err
    assert "was dropped" not in said and "not finished" not in said
    assert TRACKER in said.lower() or "W&B" in said
    return run, [(row["steps"], row[KEY]) for row in run.metrics() if KEY in row]


@only("wandb")
def test_wandb_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The offline files of W&B hold every row, and both processes have the same id."""
    from wandb.proto import wandb_internal_pb2

    run, rows = trained(tmp_path, capfd)
    found: Histories = []
    ids = set()
    files = sorted((run.path / "trackers" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    for file in files:
        ids.add(file.stem)
        for data in log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                if KEY in items:
                    found.append((int(float(items["steps"])), json.loads(items[KEY])))
    assert len(ids) == 1
    assert_equal(found, rows)


@only("mlflow")
def test_mlflow_in_the_run_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An SQLite file in the run directory holds the settings and every row, in one MLflow run that has finished."""
    from mlflow import MlflowClient

    run, rows = trained(tmp_path, capfd)
    client = MlflowClient(f"sqlite:///{(run.path / 'trackers' / 'mlflow.db').resolve()}")
    experiment = client.get_experiment_by_name("slipstream")
    (kept,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(kept.info.run_id, KEY)
    assert_equal([(metric.step, metric.value) for metric in history], rows)
    assert (kept.info.status, kept.data.params["ppo.rollout"]) == ("FINISHED", "16")


@only("trackio")
def test_trackio_local(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """trackio's local store holds every row, in one run."""
    from trackio.sqlite_storage import SQLiteStorage

    run, rows = trained(tmp_path, capfd)
    name = json.loads((run.path / "trackers" / "trackio.json").read_text(encoding="utf-8"))["name"]
    logs = SQLiteStorage.get_logs("slipstream", name)
    found = [(int(row["step"]), row[KEY]) for row in logs if KEY in row]
    assert_equal(found, rows)


def test_a_broken_tracker_is_dropped(tmp_path: Path, capfd: pytest.CaptureFixture[str], broken: Any) -> None:
    """A tracker that cannot be opened is dropped with one warning, and the run finishes."""
    run = ss.train(lambda: ToyEnv(), run=tmp_path / "run", steps=256, sinks=[broken], **TINY_RUN)
    assert run.facts["steps"] == 256 and len(run.metrics()) == 4
    assert capfd.readouterr().err.count("was dropped") == 1


@pytest.fixture
def broken() -> Any:
    """A sink of this environment's tracker with an argument that cannot work."""
    from slipstream.runs.sinks import MLflowSink, TrackioSink, WandbSink

    if TRACKER == "wandb":
        return WandbSink(mode="no such mode")
    return MLflowSink("nonsense://nowhere") if TRACKER == "mlflow" else TrackioSink(no_such_argument=1)


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file: a header of 7 bytes, then LevelDB's log format in blocks of 32 KiB."""
    at, parts = 7, list[bytes]()
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield b"".join(parts)
            parts.clear()


def assert_equal(found: Histories, expected: Histories) -> None:
    """Compare histories as sorted lists; trackers may store numbers as 64-bit floats or as JSON."""
    assert len(expected) > 3
    assert [steps for steps, _ in sorted(found)] == [steps for steps, _ in expected]
    assert all(math.isclose(a, b, rel_tol=1e-6) for (_, a), (_, b) in zip(sorted(found), expected, strict=True))
