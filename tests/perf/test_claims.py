"""The claims: the page says what the records say, every comparison is a real one, and measuring writes a record."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slipstream.config import flag_layer, preset_layer, resolve
from slipstream.envs.registry import parse
from slipstream.errors import ConfigError
from slipstream.perf.variants import parse_variant
from slipstream.plan import check_batch

ROOT = Path(__file__).parents[2]
AGENTS = {"soccer": 2}
GIVEN = {"soccer": 512, "kart": 256}


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    """The script that measures them."""
    spec = importlib.util.spec_from_file_location("claims", ROOT / "benchmarks" / "claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_records(claims: ModuleType) -> None:
    """docs/claims.md is what the newest records give, to the letter."""
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert written == claims.page(claims.records()), "run: python benchmarks/claims.py --write"


def test_every_claim_has_an_answer_or_a_reason(claims: ModuleType) -> None:
    """A claim names comparisons that exist, or says why there is none; each comparison answers some claim."""
    asked: set[str] = set()
    for one in claims.SAYINGS:
        assert bool(one.answers) != bool(one.why_not), one.number
        asked |= set(one.answers)
    assert asked == set(claims.COMPARISONS)
    numbers = [one.number for one in claims.SAYINGS]
    assert len(set(numbers)) == len(numbers) and {number[:2] for number in numbers} == set(claims.DOCUMENTS)


def test_every_side_can_be_trained(claims: ModuleType) -> None:
    """The sides that are compared exist, their settings are known, and their batches divide."""
    for name, one in claims.COMPARISONS.items():
        if one.group in claims.GROUPS:
            assert {one.off, one.on} <= set(claims.GROUPS[one.group].sides), name
        else:
            assert one.group == "recording" or one.group in claims.WORKS, name
    for group in claims.GROUPS.values():
        for text in group.sides.values():
            side, game = parse_variant(text, group.shared), parse(group.env)[0]
            layers = [preset_layer(game.preset)] if game is not None and game.preset else []
            settings = resolve(*layers, flag_layer(list(side.words))).settings
            check_batch(settings, settings.plan.envs or GIVEN.get(group.env, 64), AGENTS.get(group.env, 1))


def test_a_record_and_its_rows(claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part measured in a hurry leaves a record with ratios; it is no evidence, and the page does not take it."""
    monkeypatch.setattr(claims, "RECORDS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    claims.main(["--quick", "--rounds", "5", "--only", "inference,mapped", "--out", str(tmp_path / "d-claims")])
    summary = json.loads((tmp_path / "d-claims" / "summary.json").read_text())
    assert set(summary["results"]) == {"inference", "mapped"} and summary["failed"] == {}
    found = summary["results"]["inference"]
    rows = [json.loads(line) for line in (tmp_path / "d-claims" / "raw.jsonl").read_text().splitlines()]
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row["work"] == "inferring":
            rates.setdefault(row["contestant"], []).append(row["steps_per_second"])
    ratios = sorted(b / a for a, b in zip(rates["one env at a time"], rates["all at once"], strict=True))
    assert found["speed"]["median"] == pytest.approx(ratios[2])
    assert (found["speed"]["low"], found["speed"]["high"]) == pytest.approx((ratios[0], ratios[-1]))
    assert claims.records() == {}
    (tmp_path / "d-claims" / "summary.json").write_text(json.dumps(summary | {"quick": False}))
    page = claims.page(claims.records())
    ratio = re.escape(f"{found['speed']['median']:.3g}x")
    assert re.search(rf"\| S1\.5 \| [^|]*\| a torch policy for 8 envs, [^|]*: {ratio} ", page)
    assert "| not measured here: training on several GPUs is not built yet |" in page


def test_a_record_of_a_few_leaves_the_rest_alone(
    claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of each comparison counts; what a later record does not hold stands, and so does what a GPU gave."""
    monkeypatch.setattr(claims, "RECORDS", tmp_path)
    held = {
        "1-claims": ("", {"bf16": 1, "lstm": 1}, {"patches": "no"}),
        "2-claims-gpu": ("X", {"gpu-bf16": 2, "bf16": 2}, {}),
        "3-claims": ("", {"bf16": 3, "patches": 3}, {}),
        "4-claims-gpu": ("X", {"gpu-bf16": 4, "bf16": 4}, {}),
    }
    for name, (gpu, results, failed) in held.items():
        (tmp_path / name).mkdir()
        told = {"machine": {"gpu": gpu}, "quick": False, "results": results, "failed": failed}
        (tmp_path / name / "summary.json").write_text(json.dumps(told))
    found = {name: (told["results"], told["failed"]) for name, told in claims.records().items()}
    assert list(found.items()) == [
        ("1-claims", ({"lstm": 1}, {})),
        ("3-claims", ({"bf16": 3, "patches": 3}, {})),
        ("4-claims-gpu", ({"gpu-bf16": 4, "bf16": 4}, {})),
    ]


def test_sides_that_stand_side_by_side(claims: ModuleType) -> None:
    """They take turns in one process, and what they do not share is seen as `bench` sees it."""
    shared = ("plan.device=cpu", "plan.collector=local", "plan.envs=8", "ppo.rollout=16", "ppo.minibatch=32")
    sides = [parse_variant(text, shared) for text in ("ppo.epochs=4", "ppo.epochs=1")]
    said: list[str] = []
    four, one = claims.side_by_side(claims.Work("recall:2", 0.05), sides, 3, said.append)
    assert [heat.rate > 0 and heat.score is None for heat in (*four.heats, *one.heats)] == [True] * 6
    assert (four.portrait.batch, four.portrait.updates, one.portrait.updates) == (128, 16 / 128, 4 / 128)
    told = claims.compare(four.portrait, one.portrait, four.heats, one.heats, paired=True, gate=None)
    assert not told["like_for_like"]
    assert [part["key"] for part in told["differences"]] == ["ppo.epochs", "updates per step"]
    order = [line.split()[0] for line in said[2:]]
    assert order == ["ppo.epochs=4", "ppo.epochs=1", "ppo.epochs=1", "ppo.epochs=4", "ppo.epochs=4", "ppo.epochs=1"]


def test_unknown_names_are_refused(claims: ModuleType) -> None:
    """A comparison that does not exist is not silently left out; those that need a GPU are, where there is none."""
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        claims.chosen(["nonsense"], gpu=False)
    assert set(claims.chosen(["gpu"], gpu=True)) >= {"gpu-bf16", "gpu-batch", "gpu-all-on"}
    assert claims.chosen(["gpu"], gpu=False) == {}
    assert claims.chosen(["envs"], gpu=False).keys() == {"envs-8", "envs-64", "envs-512"}
    assert not any(name.startswith("gpu") for name in claims.chosen([], gpu=False))


def test_what_fails_is_told_and_the_rest_goes_on(
    claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work that cannot be done here is named on the page with its reason."""

    def fail(quick: bool) -> dict[str, Any]:
        raise ConfigError("no such library here", "install it")

    monkeypatch.setattr(claims, "RECORDS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    monkeypatch.setitem(claims.WORKS, "seeing", fail)
    claims.main(["--quick", "--rounds", "1", "--only", "patches,inference", "--out", str(tmp_path / "d-claims")])
    summary = json.loads((tmp_path / "d-claims" / "summary.json").read_text())
    assert summary["failed"] == {"patches": "no such library here"} and "inference" in summary["results"]
    assert "`patches`: not measured here: no such library here" in claims.page({"d-claims": summary})
