"""Metrics sinks: CSV with columns that appear later, failing sinks, missing packages, and resumed runs."""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.api import resume, train
from slipstream.cli import main
from slipstream.errors import ConfigError, MachineError
from slipstream.runs import sinks
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics
from slipstream.runs.sinks import CSVSink, MetricsSink, RunInfo, SinkWriter, WandbSink, make_sinks
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


def test_an_existing_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new run drops the sink with a warning and leaves the file; only a resumed run continues its file."""
    (tmp_path / "mine.csv").write_text("precious\n")
    train("recall", run=tmp_path / "run", steps=64, sinks=[CSVSink(tmp_path / "mine.csv")], **TINY_RUN)
    assert (tmp_path / "mine.csv").read_text() == "precious\n"
    said = capsys.readouterr().err
    assert "CSVSink was dropped: FileExistsError" in said and str(tmp_path / "mine.csv") in said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A pipe stays a pipe, also in a resumed run, and a link still points to the file that is written."""
    os.mkfifo(tmp_path / "pipe")
    for resumed_at in (None, 20):
        with pytest.raises(FileExistsError, match="pipe"):
            CSVSink(tmp_path / "pipe").open(info(tmp_path, resumed_at))
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    sink = CSVSink(tmp_path / "link.csv")
    sink.open(info(tmp_path))
    sink.log(10, {"a": 1})
    sink.close()
    assert (tmp_path / "link.csv").is_symlink() and table(tmp_path / "real.csv") == [{"steps": "10", "a": "1"}]


def test_one_sink_per_name_and_file(tmp_path: Path) -> None:
    """Names and objects with the same CSV file count once, in new runs and with the setting of a resumed one."""
    same = ["csv", CSVSink(), "csv", CSVSink(tmp_path / "run" / "metrics.csv")]
    assert len(make_sinks(same, tmp_path / "run")) == 1
    assert len(make_sinks(["csv", CSVSink(tmp_path / "other.csv")], tmp_path / "run")) == 2
    train("recall", run=tmp_path / "run", steps=128, sinks=["csv", CSVSink()], **TINY_RUN)
    resume(tmp_path / "run", steps=192, sinks=[CSVSink()])
    assert [row["steps"] for row in table(tmp_path / "run" / "metrics.csv")] == ["64", "128", "192"]


def test_a_name_alone_is_a_list_of_one(tmp_path: Path) -> None:
    """`sinks="csv"` works in `train` and in `resume`."""
    train("recall", run=tmp_path / "run", steps=64, sinks="csv", **TINY_RUN)
    resume(tmp_path / "run", steps=128, sinks="csv")
    assert [row["steps"] for row in table(tmp_path / "run" / "metrics.csv")] == ["64", "128"]


def test_a_sink_may_be_a_dataclass(tmp_path: Path) -> None:
    """Sinks that are not hashable, or equal to another, are all used; the same object only once."""

    @dataclass
    class Kept:
        rows: list[int] = field(default_factory=list)

        def open(self, run: RunInfo) -> None:
            pass

        def log(self, steps: int, row: dict[str, Any]) -> None:
            self.rows.append(steps)

        def close(self) -> None:
            pass

    one, other = Kept(), Kept()
    train("recall", run=tmp_path / "run", steps=64, sinks=[one, other, one], **TINY_RUN)
    assert (one.rows, other.rows) == ([64], [64])


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


def test_sys_exit_in_a_sink_is_reported(tmp_path: Path) -> None:
    """A sink that calls sys.exit is dropped with a warning, like one that raises."""

    class Exits(Recorder):
        def open(self, run: RunInfo) -> str | None:
            sys.exit("no licence")

    writer = SinkWriter(Exits(), info(tmp_path))
    writer.close()
    assert "Exits was dropped: SystemExit: no licence" in writer.notices.get_nowait()


def test_the_end_waits_once_for_all_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks that hang share one deadline, and each is reported."""
    release = threading.Event()

    class Hangs(Recorder):
        def close(self) -> None:
            release.wait(20)

    monkeypatch.setattr(sinks, "CLOSE_S", 0.3)
    metrics = Metrics(RunDir(tmp_path), False, [SinkWriter(Hangs(), info(tmp_path)) for _ in range(5)])
    began = time.monotonic()
    metrics.close()
    assert time.monotonic() - began < 1.0
    assert sum("has not finished" in line for line in metrics.drain_problems()) == 5
    release.set()


def test_wandb_leaves_other_runs_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new W&B run is made beside one that the user has open in this process."""
    given: dict[str, Any] = {}

    def init(**options: Any) -> Any:
        given.update(options)
        return SimpleNamespace(id="a", dir=str(tmp_path / "files"), define_metric=lambda *_, **__: None)

    monkeypatch.setattr(sinks, "_package", lambda name: SimpleNamespace(init=init, Settings=dict))
    WandbSink(tags=["x"]).open(info(tmp_path))
    assert (given["reinit"], given["tags"]) == ("create_new", ["x"])


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
    with pytest.raises(ConfigError, match=r"no metrics sink `wandbb`. Did you mean `wandb`?"):
        train("recall", run=tmp_path / "run", sinks=["wandbb"], **TINY_RUN)
    with pytest.raises(ConfigError, match=r"Setting `sinks` .*cannot be 'wandbb'.* Did you mean `wandb`?"):
        train("recall", run=tmp_path / "run", assignments=["sinks=[wandbb]"], **TINY_RUN)
    with pytest.raises(ConfigError, match="is not a metrics sink"):
        train("recall", run=tmp_path / "run", sinks=object(), **TINY_RUN)  # type: ignore[arg-type]


def test_the_flag_sets_the_setting() -> None:
    """`--sink` may be repeated; without it, the setting keeps its value."""
    shown = CliRunner().invoke(main, ["train", "recall", "--sink", "csv", "--sink", "wandb", "--show"])
    assert "sinks = ['csv', 'wandb']  (flag)" in shown.output
    shown = CliRunner().invoke(main, ["train", "recall", "--set", "sinks=[csv]", "--show"])
    assert "sinks = ['csv']  (flag)" in shown.output
