"""Metrics sinks: where rows of metrics.jsonl are also sent. CSV is always possible, trackers are optional packages.

A sink has `open`, `log` and `close`. `SinkWriter` calls them in a thread, so a slow tracker does not slow training.
A sink that raises is dropped with one warning; metrics.jsonl is complete in every case. None of the sinks here uses the
network unless the user's environment asks for it.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import logging
import math
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

from slipstream.errors import ConfigError, MachineError, did_you_mean
from slipstream.runs.layout import RunDir, plain, read_json, write_bytes, write_json
from slipstream.runs.metrics import read

QUEUE_ROWS = 10_000
"""Rows that wait for a slow sink; more are dropped."""
CLOSE_S = 60.0
"""Seconds that the end of a run waits for its sinks, all together."""
PROJECT = "slipstream"
"""The project or experiment of a run, unless the tracker's own environment variable names another."""


@dataclass(frozen=True)
class RunInfo:
    """The run whose metrics a sink gets."""

    path: Path
    """The run directory."""
    env: str
    """The name of the environment."""
    stage: str
    """`train`, `compete` or `clone`."""
    settings: dict[str, Any]
    """Every setting by its dotted key, as JSON values."""
    resumed_at: int | None = None
    """The steps at which the run resumes; rows of later steps are void. None for a new run."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.resolve().name


@runtime_checkable
class MetricsSink(Protocol):
    """Receives metrics. The methods are called one after another from a thread; the first that raises is the last."""

    def open(self, run: RunInfo) -> str | None:
        """Begin, before the first row; the text that is returned, if any, is shown to the user."""

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Receive one row: numbers, strings, or None for values that are not finite."""

    def close(self) -> None:
        """End, after the last row."""


class CSVSink:
    """Writes metrics.csv in the run directory, or another file: one column per metric, empty cells for missing values.

    A metric that appears later becomes a new column at the end, for which the file is replaced. A resumed run writes
    the file anew from metrics.jsonl, so that it never holds rows that were rewound. A new run does not write into a
    file that exists.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._target = Path()
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def target(self, run: Path) -> Path:
        """The file that a run in this directory is written to; links are followed."""
        return (self._path or RunDir(run).csv).resolve()

    def open(self, run: RunInfo) -> str | None:
        """Write the rows that the run already has."""
        self._target = self.target(run.path)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        if run.resumed_at is None and self._target.exists():
            raise FileExistsError(f"{self._target} exists already; give CSVSink another path, or move that file")
        last = -1 if run.resumed_at is None else run.resumed_at
        rows = [row for row in read(RunDir(run.path)) if row["steps"] <= last]
        self._columns = list(dict.fromkeys(["steps", *(key for row in rows for key in row)]))
        self._replace(rows)
        return None

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Append a line."""
        row = {"steps": steps, **row}
        new = [key for key in row if key not in self._columns]
        if new:
            assert self._file is not None
            self._file.close()
            with open(self._target, encoding="utf-8", newline="") as file:
                before = list(csv.DictReader(file))
            self._columns += new
            self._replace(before)
        assert self._file is not None
        self._file.write(self._lines([row]))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _replace(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write the header and rows into a new file that takes the place of the old one, and open it to append."""
        if self._target.exists() and not self._target.is_file():
            raise FileExistsError(f"{self._target} is not a regular file; give CSVSink another path")
        header = self._lines([{key: key for key in self._columns}])
        write_bytes(self._target, (header + self._lines(rows)).encode())
        self._file = open(self._target, "a", encoding="utf-8", newline="")  # noqa: SIM115

    def _lines(self, rows: Sequence[dict[str, Any]]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            values = (row.get(key) for key in self._columns)
            writer.writerow(["" if value is None else value for value in values])
        return text.getvalue()


class WandbSink:
    """Logs to Weights & Biases, offline unless WANDB_MODE says otherwise; keyword arguments go to `wandb.init`."""

    def __init__(self, **init: Any) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb, self._init = _package("wandb"), init
        self._run: Any = None

    def open(self, run: RunInfo) -> str | None:
        """Begin a W&B run, or continue the one that this run began."""
        folder = RunDir(run.path).trackers
        mode = os.environ.get("WANDB_MODE") or "offline"
        known = _remembered(folder / "wandb.json", run)
        own = {
            "project": os.environ.get("WANDB_PROJECT") or PROJECT,
            "name": run.name,
            "id": known.get("id") or uuid.uuid4().hex[:12],
            "resume": "allow",
            "reinit": "create_new",  # a run that the user has open in this process stays as it is
            "dir": str(folder),
            "mode": mode,
            "config": {"env": run.env, "stage": run.stage, **run.settings},
            "settings": self._wandb.Settings(silent=True, console="off"),
        }
        self._run = self._wandb.init(**own | self._init)
        write_json(folder / "wandb.json", {"id": self._run.id})
        # W&B's own step cannot go back, but a resumed run may: every chart has the steps of training as its x axis.
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")
        place = Path(self._run.dir).parent
        return f"W&B run {self._run.id} ({mode})" + (f": upload it with `wandb sync {place}`" * (mode == "offline"))

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Log the numbers of a row."""
        self._run.log({"steps": steps, **_numbers(row)})

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class MLflowSink:
    """Logs to MLflow: to MLFLOW_TRACKING_URI, or to an SQLite file in the run directory."""

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = _package("mlflow")
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self._client: Any = None
        self._id = ""

    def open(self, run: RunInfo) -> str | None:
        """Create an MLflow run, or continue the one that this run created."""
        folder = RunDir(run.path).trackers.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = self._uri or f"sqlite:///{(folder / 'mlflow.db').as_posix()}"
        for name in ("alembic", "mlflow"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = client = self._mlflow.MlflowClient(tracking_uri=uri)
        known = _remembered(folder / "mlflow.json", run)
        if known.get("uri") == uri:
            self._id = known["id"]
            client.update_run(self._id, status="RUNNING")
        else:
            experiment = client.get_experiment_by_name(self._experiment)
            number = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
            tags = {"env": run.env, "stage": run.stage}
            self._id = client.create_run(number, run_name=run.name, tags=tags).info.run_id
            entities = self._mlflow.entities
            settings = [entities.Param(key, str(value)[:500]) for key, value in run.settings.items()]
            for first in range(0, len(settings), 100):
                client.log_batch(self._id, params=settings[first : first + 100])
            write_json(folder / "mlflow.json", {"uri": uri, "id": self._id})
        show = f": look at it with `mlflow ui --backend-store-uri {uri}`" if uri.startswith("sqlite:") else f" at {uri}"
        return f"MLflow run {self._id}{show}"

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Log the numbers of a row; characters that MLflow does not allow in names become `_`."""
        make, now = self._mlflow.entities.Metric, int(1000 * time.time())
        metrics = [make(re.sub(r"[^\w\-. /]", "_", key), value, now, steps) for key, value in _numbers(row).items()]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[first : first + 1000])

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        self._client.set_terminated(self._id)


class TrackioSink:
    """Logs to trackio's local store (TRACKIO_DIR); keyword arguments go to `trackio.init`."""

    def __init__(self, **init: Any) -> None:
        self._trackio, self._init = _package("trackio"), init
        self._run: Any = None

    def open(self, run: RunInfo) -> str | None:
        """Begin a trackio run, or continue the one of the same name."""
        folder = RunDir(run.path).trackers
        folder.mkdir(parents=True, exist_ok=True)
        known = _remembered(folder / "trackio.json", run)
        name = known.get("name") or f"{run.name}-{uuid.uuid4().hex[:6]}"
        own = {
            "project": PROJECT,
            "name": name,
            "resume": "allow",
            "config": {"env": run.env, "stage": run.stage, **run.settings},
            "embed": False,
        }
        self._run = self._trackio.init(**own | self._init)
        write_json(folder / "trackio.json", {"name": name})
        return f"trackio run {name}: look at it with `trackio show --project {(own | self._init)['project']}`"

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Log the numbers of a row."""
        self._run.log(_numbers(row), step=steps)

    def close(self) -> None:
        """Finish the trackio run."""
        self._run.finish()


SINKS: dict[str, Callable[[], MetricsSink]] = {
    "csv": CSVSink,
    "wandb": WandbSink,
    "mlflow": MLflowSink,
    "trackio": TrackioSink,
}
"""The sinks by the name that the setting `sinks` and the flag `--sink` use."""


def check_sink_names(given: Sequence[str | MetricsSink]) -> None:
    """Raise if a sink is given by a name that does not exist."""
    for one in given:
        if isinstance(one, str) and one not in SINKS:
            near = did_you_mean(one, SINKS)
            raise ConfigError(f"There is no metrics sink `{one}`.{near}", f"use one of: {', '.join(SINKS)}")


def make_sinks(given: Sequence[str | MetricsSink], run: Path = Path()) -> list[MetricsSink]:
    """Make the sinks of a run in this directory from names and objects; a missing package is an error.

    Of sinks with the same name, or that write the same CSV file, the first is kept.
    """
    check_sink_names(given)
    made: list[MetricsSink] = []
    seen: set[str | int | Path] = set()
    for one in given:
        if isinstance(one, type) or not isinstance(one, str | MetricsSink):
            raise ConfigError(
                f"`sinks`: {one!r} is not a metrics sink.", "give an object with open(run), log(steps, row) and close()"
            )
        key: str | int | Path = one if isinstance(one, str) else id(one)
        if key in seen:
            continue
        sink = SINKS[one]() if isinstance(one, str) else one
        target = sink.target(run) if isinstance(sink, CSVSink) else key
        if target not in seen:
            made.append(sink)
        seen |= {key, target}
    return made


class SinkWriter:
    """Calls one sink in a thread; after the first exception the sink is dropped."""

    def __init__(self, sink: MetricsSink, run: RunInfo) -> None:
        self.notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Texts for the user: where the metrics go, and why the sink was dropped."""
        self._sink, self._info = sink, run
        self._rows: queue.SimpleQueue[tuple[int, dict[str, Any]] | None] = queue.SimpleQueue()
        self._lost, self._deadline = 0, math.inf
        self._thread = threading.Thread(target=self._work, name=f"metrics sink {self.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name of the sink's class."""
        return type(self._sink).__name__

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Queue one row; never blocks, never raises."""
        if self._thread.is_alive():
            if self._rows.qsize() < QUEUE_ROWS:
                self._rows.put((steps, row))
            else:
                self._lost += 1

    def end(self) -> None:
        """Let the sink end after the queued rows; does not wait."""
        self._rows.put(None)
        self._deadline = time.monotonic() + CLOSE_S

    def close(self) -> None:
        """Wait for the queued rows, until at most a minute after `end`."""
        if self._deadline == math.inf:
            self.end()
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            self.notices.put(f"{self.name} has not finished after {CLOSE_S:.0f} s; metrics.jsonl holds every row.")
        elif self._lost:
            self.notices.put(f"{self.name} was too slow for {self._lost:,} rows; metrics.jsonl holds every row.")

    def _work(self) -> None:
        try:
            if text := self._sink.open(self._info):
                self.notices.put(text)
            while (item := self._rows.get()) is not None:
                self._sink.log(*item)
            self._sink.close()
        except BaseException as error:  # a sink must not stop the run, and sys.exit only ends this thread
            self.notices.put(
                f"{self.name} was dropped: {type(error).__name__}: {str(error).strip() or 'no message'}. "
                "Training continues, and metrics.jsonl holds every row."
            )


def _package(name: str) -> Any:
    """Import a tracker; if it is missing, the error has the command that installs it."""
    if importlib.util.find_spec(name) is None:
        raise MachineError(
            f"The metrics sink `{name}` needs the package {name}, which is not installed.",
            f'pip install "slipstream[{name}]"',
        )
    return importlib.import_module(name)


def _remembered(path: Path, run: RunInfo) -> dict[str, Any]:
    """What an earlier process of a resumed run wrote about its tracker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return (read_json(path) or {}) if run.resumed_at is not None else {}


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row."""
    return {key: float(value) for key, value in plain(row).items() if isinstance(value, int | float)}
