"""metrics.jsonl, mirrored to TensorBoard."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.runs import metrics as module
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics, TensorBoardMirror, _checksum, _framed, read, rewind


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a new run directory."""
    return RunDir.create(tmp_path / "run")


def test_rows_are_written_and_read(run: RunDir) -> None:
    """Rows are on disk at once, one JSON object a line, floats exact, NaN and infinity as null."""
    metrics = Metrics(run, tensorboard=False)
    metrics.append({"steps": 5, "loss": 0.1 + 0.2, "nan": float("nan"), "np": np.float32(np.inf), "name": "a\nb"})
    assert read(run) == [{"steps": 5, "loss": 0.1 + 0.2, "nan": None, "np": None, "name": "a\nb"}]
    metrics.append({"steps": 2**40, "n": np.int64(3)})
    metrics.close()
    assert [json.loads(line)["steps"] for line in run.metrics.read_text().splitlines()] == [5, 2**40]


def test_steps_are_required(run: RunDir) -> None:
    """A row without `steps` is an error, since it could not be rewound."""
    with pytest.raises(ValueError, match="needs `steps`"):
        Metrics(run, tensorboard=False).append({"loss": 1.0})


def test_an_incomplete_line_is_ignored(run: RunDir) -> None:
    """An incomplete last line is not read, and the next row is written on a new line."""
    run.metrics.write_bytes(b'{"steps": 1}\n{"steps": 2, "lo')
    assert read(run) == [{"steps": 1}]
    metrics = Metrics(run, tensorboard=False)
    metrics.append({"steps": 3})
    metrics.close()
    assert run.metrics.read_bytes() == b'{"steps": 1}\n{"steps": 3}\n'


def test_rewind_is_exact(run: RunDir) -> None:
    """Rows up to the checkpoint keep their bytes; newer and incomplete ones are moved byte for byte."""
    kept = b'{"steps": 1, "x": 1e-07}\n{"steps": 2,  "spaces":  true}\n'
    newer = b'{"steps": 3}\n{"steps": 4}\n'
    run.metrics.write_bytes(kept + newer + b'{"steps": 5, "to')
    assert rewind(run, 2) == 3
    assert run.metrics.read_bytes() == kept
    assert run.discarded.read_bytes() == newer + b'{"steps": 5, "to\n'
    assert rewind(run, 2) == 0 and run.metrics.read_bytes() == kept
    run.metrics.write_bytes(kept + b'{"steps": 9}\n')
    assert rewind(run, 2) == 1
    assert run.discarded.read_bytes() == newer + b'{"steps": 5, "to\n{"steps": 9}\n'
    assert rewind(run, 0) == 2 and read(run) == []


def test_interrupted_rewind_does_not_double(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rewind is interrupted, repeating it loses no row and copies none twice."""
    run.metrics.write_bytes(b'{"steps": 1}\n{"steps": 2}\n')
    real = module.write_bytes

    def stop(path: Path, data: bytes) -> None:
        if path == run.metrics:
            raise KeyboardInterrupt
        real(path, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_bytes", stop)
        rewind(run, 1)
    rewind(run, 1)
    assert run.metrics.read_bytes() == b'{"steps": 1}\n' and run.discarded.read_bytes() == b'{"steps": 2}\n'


def test_no_metrics_yet(run: RunDir) -> None:
    """A run without metrics has no rows and nothing to rewind."""
    assert read(run) == [] and rewind(run, 10) == 0


def test_a_deleted_folder(run: RunDir) -> None:
    """Rows are kept in memory while the run folder is missing, with one report, and written when it is back."""
    metrics = Metrics(run, tensorboard=False)
    metrics.append({"steps": 1})
    shutil.rmtree(run.path)
    for steps in (2, 3):
        metrics.append({"steps": steps})
    assert len(metrics.drain_problems()) == 1 and not metrics.problems
    run.path.mkdir()
    metrics.append({"steps": 4})
    metrics.close()
    assert [row["steps"] for row in read(run)] == [2, 3, 4]


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Return what TensorBoard reads."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_the_rows(run: RunDir) -> None:
    """TensorBoard's reader finds every number; after a rewind it drops the discarded ones."""
    pytest.importorskip("tensorboard")
    metrics = Metrics(run)
    for steps in range(1, 6):
        metrics.append({"steps": steps, "loss/policy": steps / 2, "time/s": 1.0, "bad": float("nan"), "name": "x"})
    metrics.close()
    assert scalars(run.tensorboard, "loss/policy") == [(s, s / 2) for s in range(1, 6)]
    rewind(run, 3)
    time.sleep(1.1)  # event files are ordered by the second in their names
    metrics = Metrics(run)
    metrics.append({"steps": 4, "loss/policy": 9.0})
    metrics.close()
    assert scalars(run.tensorboard, "loss/policy") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 9.0)]


def test_tensorboard_imports_no_framework(run: RunDir) -> None:
    """Mirroring imports no framework and none of tensorboard's plugins; importing metrics not even tensorboard."""
    script = (
        "import sys; from pathlib import Path; from slipstream.runs.layout import RunDir\n"
        "from slipstream.runs.metrics import Metrics\n"
        "assert 'tensorboard' not in sys.modules\n"
        f"m = Metrics(RunDir(Path({str(run.path)!r}))); m.append({{'steps': 1, 'x': 2.0}}); m.close()\n"
        "print([n for n in ('torch', 'tensorflow', 'numba', 'boto3', 'tensorboard.plugins') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_records_are_those_of_tensorboard() -> None:
    """The checksum is CRC-32C (of "123456789": e3069283), and a record equals that of tensorboard's writer."""
    turned = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert int.from_bytes(_checksum(b"123456789"), "little") == turned
    records = pytest.importorskip("tensorboard.summary.writer.record_writer")
    for data in (b"", b"x", bytes(range(256)) * 5):
        file = io.BytesIO()
        records.RecordWriter(file).write(data)
        assert _framed(data) == file.getvalue()


def test_mirror_absent_or_broken(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tensorboard, or with a folder that is not writable, metrics are written as usual."""
    run.tensorboard.write_text("in the way")
    metrics = Metrics(run)
    for steps in range(3):
        metrics.append({"steps": steps, "x": 1.0})
    metrics.close()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    mirror = TensorBoardMirror(run.path / "tb")
    mirror.add({"steps": 1, "x": 1.0})
    mirror.close()
    assert not mirror.active and not (run.path / "tb").exists() and len(read(run)) == 3


def test_append_is_cheap(run: RunDir) -> None:
    """A row of 40 numbers costs the loop well under a millisecond, mirror included."""
    metrics = Metrics(run)
    row = {"steps": 1, **{f"key/{i}": i / 7 for i in range(40)}}
    metrics.append(row)
    took = []
    for _ in range(200):
        began = time.perf_counter()
        metrics.append(row)
        took.append(time.perf_counter() - began)
    metrics.close()
    assert sorted(took)[len(took) // 2] < 1e-3
    assert os.path.getsize(run.metrics) > 0
