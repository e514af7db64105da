"""The verb `convert`: a trunk and a report, or a refusal with the report and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from slipstream.api import Run
from slipstream.cli import main
from slipstream.policies.convert_weights import PREFIX, VptImageEncoder, VptShape
from slipstream.policies.pretrained import load_trunk

SHAPE = VptShape(widths=(4, 6), blocks=1, channels=3, side=12, dense=8, features=10)
REPORT = {"layout", "source", "minimum", "matched", "missing", "mismatched", "unused", "counts", "share"}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file of random weights in VPT's layout, in an empty folder where commands are called."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(2)
    state = {PREFIX + name: tensor for name, tensor in VptImageEncoder(SHAPE).state_dict().items()}
    torch.save(state | {"value_head.linear.bias": torch.zeros(1)}, "small.weights")
    return tmp_path / "small.weights"


def cli(*words: object) -> Result:
    """Call the command line."""
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_file_is_converted_and_trained_with(weights: Path, quick: Callable[..., Run]) -> None:
    """The report is printed, the command that uses the trunk follows, and a policy trains behind it."""
    result = cli("convert", "vpt", "small.weights", "--out", "trunk")
    assert result.exit_code == 0, result.output
    count = len(VptImageEncoder(SHAPE).state_dict())
    assert result.stdout.splitlines() == [
        f"{count} matched, 0 missing, 0 mismatched, 1 unused",
        "written: trunk (10 features of 12x12 images)",
        "use it: slipstream train ENV --set policy.image=frozen --set policy.trunk=trunk",
        "for the whole agent, with its actions: slipstream convert vpt-agent small.weights --out DIR",
    ]
    run = quick("pixels", policy__image="frozen", policy__trunk="trunk", steps=64)
    assert run.agent().act(np.zeros((3, 12, 12, 1), np.uint8)).shape == (3,)


def test_the_report_as_json(weights: Path) -> None:
    """Every key is listed, with the counts and the written folder."""
    result = cli("convert", "vpt", weights, "--out", "trunk", "--json")
    facts = json.loads(result.stdout)
    assert facts.keys() == REPORT | {"out", "kind", "features", "side", "hash"}
    assert facts["unused"] == ["value_head.linear.bias"] and facts["share"] == 1.0
    assert facts["counts"] == {"matched": len(facts["matched"]), "missing": 0, "mismatched": 0, "unused": 1}
    assert facts["hash"] == load_trunk("trunk").hash and facts["kind"] == "vpt-impala"
    origin = json.loads(Path("trunk/trunk.json").read_text())["origin"]
    assert origin["source"] == str(weights) and origin["counts"] == facts["counts"]


def test_under_the_minimum_it_fails_with_the_report(weights: Path) -> None:
    """Exit code 5, the keys by name on stderr, the whole report as JSON, and nothing written."""
    state = torch.load(weights, weights_only=True)
    del state[f"{PREFIX}linear.norm.bias"]
    state[f"{PREFIX}cnn.dense.norm.bias"] = torch.zeros(7)
    torch.save(state, weights)
    result = cli("convert", "vpt", weights, "--out", "trunk", "--json")
    assert result.exit_code == 5 and not Path("trunk").exists() and "Traceback" not in result.stderr
    assert f"1 missing ({PREFIX}linear.norm.bias)" in result.stderr
    assert f"1 mismatched ({PREFIX}cnn.dense.norm.bias: expected (54,), found (7,))" in result.stderr
    assert "--minimum is 100%" in result.stderr and "hint: " in result.stderr
    facts = json.loads(result.stdout)
    assert facts.keys() == REPORT and facts["counts"]["missing"] == facts["counts"]["mismatched"] == 1
    assert cli("convert", "vpt", weights, "--out", "trunk").stdout == ""
    assert cli("convert", "vpt", weights, "--out", "trunk", "--minimum", 0.8).exit_code == 0
    assert load_trunk("trunk").features == 10


def test_wrong_arguments_are_refused(weights: Path) -> None:
    """An unknown layout, a folder in use, an impossible share and a pickle of settings have their own exit codes."""
    Path("used").mkdir()
    Path("used/file").write_text("mine")
    Path("policy.model").write_bytes(b"\x80\x04.")
    cases = (
        (("vtp", weights, "--out", "trunk"), 2, "There is no layout `vtp`. Did you mean `vpt`?"),
        (("vpt", weights, "--out", "used"), 2, "used already exists and is not empty."),
        (("vpt", weights, "--out", "trunk", "--minimum", 1.5), 2, "--minimum is 1.5"),
        (("vpt", "policy.model", "--out", "trunk"), 5, "policy.model is a pickle of settings"),
        (("vpt", "none", "--out", "trunk"), 5, "none cannot be converted: no such file."),
    )
    for words, code, said in cases:
        result = cli("convert", *words)
        assert result.exit_code == code and said in result.stderr and result.stdout == ""
