"""Metrics sinks: CSV with columns that appear later, failing sinks, missing packages, and resumed runs."""

from __future__ import annotations

import csv
import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.api import resume, train
from slipstream.cli import main
from slipstream.errors import ConfigError, MachineError
from slipstream.runs import sinks
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics
from slipstream.runs.sinks import CSVSink, MetricsSink, RunInfo, SinkWriter, make_sinks
from tiny_run import TINY_RUN


class Recorder:
    """Keeps what it is given, and fails in the method named."""

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in, self.calls = fails_in, list[Any]()

    def open(self, run: RunInfo) -> str | None:
        """Keep the run."""
        self._keep("open", run)
        return "the recorder records"

    def log(self, steps: int, row: dict[str, Any]) -> None:
        """Keep a row."""
        self._keep("log", steps, row)

    def close(self) -> None:
        """Keep the end."""
        self._keep("close")

    def _keep(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name == self.fails_in:
            raise OSError(f"the server is down in {name}")


def info(path: Path, resumed_at: int | None = None) -> RunInfo:
    """The description of a run."""
    return RunInfo(path, "recall", "train", {"ppo.epochs": 2}, resumed_at)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_columns_may_appear_later(tmp_path: Path) -> None:
    """A new metric becomes a column at the end, earlier rows have an empty cell, and commas and quotes survive."""
    sink = CSVSink()
    sink.open(info(tmp_path))
    sink.log(10, {"a": 1.5, "name": 'x, "y"'})
    sink.log(20, {"b": 2, "a": None})
    sink.close()
    assert table(tmp_path / "metrics.csv") == [
        {"steps": "10", "a": "1.5", "name": 'x, "y"', "b": ""},
        {"steps": "20", "a": "", "name": "", "b": "2"},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_csv_of_a_resumed_run_is_rewound(tmp_path: Path) -> None:
    """On resume the file holds the rows up to the checkpoint once each, even those logged before the sink was used."""
    metrics = Metrics(RunDir(tmp_path), tensorboard=False)
    for steps in (10, 20, 30):
        metrics.append({"steps": steps, "a": steps / 2})
    metrics.close()
    sink = CSVSink()
    sink.open(info(tmp_path, resumed_at=20))
    sink.log(30, {"a": 99.0})
    sink.close()
    assert [(row["steps"], row["a"]) for row in table(tmp_path / "metrics.csv")] == [
        ("10", "5.0"), ("20", "10.0"), ("30", "99.0")
    ]  # fmt: skip


def test_csv_in_training_equals_metrics_jsonl(tmp_path: Path) -> None:
    """Names are stored with the settings: a run that is resumed without saying so writes the same file on."""
    train("recall", run=tmp_path / "run", steps=128, sinks=["csv"], **TINY_RUN)
    run = resume(tmp_path / "run", steps=256)
    rows = table(tmp_path / "run" / "metrics.csv")
    assert [int(row["steps"]) for row in rows] == [row["steps"] for row in run.metrics()] == [64, 128, 192, 256]
    assert [float(row["ppo/kl"]) for row in rows] == [row["ppo/kl"] for row in run.metrics()]


def test_an_own_sink_gets_the_run_and_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sink sees the settings, every row without `steps`, and the end; what `open` returns is shown."""
    sink = Recorder()
    run = train("recall", run=tmp_path / "run", steps=128, sinks=[sink], **TINY_RUN)
    assert isinstance(sink, MetricsSink)
    (_, opened), *logged, closed = sink.calls
    assert (opened.env, opened.stage, opened.resumed_at, opened.name) == ("recall", "train", None, "run")
    assert opened.settings["ppo.rollout"] == 16 and closed == ("close",)
    assert [{"steps": steps, **row} for _, steps, row in logged] == run.metrics()
    assert "the recorder records" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["open", "log", "close"])
def test_a_failing_sink_is_dropped_with_one_warning(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training finishes, other sinks get everything, and there is one warning with the reason."""
    broken, other = Recorder(method), Recorder()
    run = train("recall", run=tmp_path / "run", steps=128, sinks=[broken, other], **TINY_RUN)
    assert run.facts["steps"] == 128 and len(run.metrics()) == 2
    assert [name for name, *_ in broken.calls].count(method) == 1 and broken.calls[-1][0] == method
    assert [name for name, *_ in other.calls] == ["open", "log", "log", "close"]
    said = capsys.readouterr().err
    assert said.count("was dropped") == 1 and f"Recorder was dropped: OSError: the server is down in {method}" in said


def test_a_slow_sink_neither_blocks_nor_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the queue are dropped with a notice, and the end waits for a limited time."""

    class Slow(Recorder):
        def log(self, steps: int, row: dict[str, Any]) -> None:
            time.sleep(0.05)

    monkeypatch.setattr(sinks, "QUEUE_ROWS", 2)
    writer = SinkWriter(Slow(), info(tmp_path))
    for steps in range(10):
        writer.log(steps, {})
    writer.close()
    assert "too slow for" in [writer.notices.get() for _ in range(2)][-1]
    monkeypatch.setattr(sinks, "CLOSE_S", 0.01)
    writer = SinkWriter(Slow(), info(tmp_path))
    for steps in range(2):
        writer.log(steps, {})
    writer.close()
    assert "has not finished" in [writer.notices.get() for _ in range(2)][-1]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_tracker_is_an_error_before_training(name: str, tmp_path: Path) -> None:
    """Without the package the run does not begin, and the hint is the pip command."""
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(MachineError, match=rf'pip install "slipstream\[{name}\]"'):
        train("recall", run=tmp_path / "run", sinks=[name], **TINY_RUN)
    assert not (tmp_path / "run").exists()


def test_wrong_sinks_are_errors(tmp_path: Path) -> None:
    """An unknown name suggests the nearest one; an object without the methods is named."""
    with pytest.raises(ConfigError, match=r"no metrics sink `wandbb`. Did you mean `wandb`?"):
        make_sinks(["wandbb"])
    with pytest.raises(ConfigError, match="is not a metrics sink"):
        make_sinks([object()])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="is not a metrics sink"):
        make_sinks([CSVSink])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"Setting `sinks` cannot be 'wandbb'"):
        train("recall", run=tmp_path / "run", sinks=["wandbb"], **TINY_RUN)


def test_the_flag_sets_the_setting() -> None:
    """`--sink` may be repeated; without it, the setting keeps its value."""
    shown = CliRunner().invoke(main, ["train", "recall", "--sink", "csv", "--sink", "wandb", "--show"])
    assert "sinks = ['csv', 'wandb']  (flag)" in shown.output
    shown = CliRunner().invoke(main, ["train", "recall", "--set", "sinks=[csv]", "--show"])
    assert "sinks = ['csv']  (flag)" in shown.output
