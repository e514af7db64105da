"""Claims: the page is generated from the results, every comparison exists, and measuring writes a result."""

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


def test_the_page_is_up_to_date(claims: ModuleType) -> None:
    """docs/claims.md is the page generated from the results."""
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert written == claims.page(claims.read_results()), "run: python benchmarks/claims.py --write"


def test_every_claim_has_an_answer_or_a_reason(claims: ModuleType) -> None:
    """A claim names existing comparisons or has a reason; every comparison measures some claim."""
    asked: set[str] = set()
    for one in claims.CLAIMS:
        assert bool(one.comparisons) != bool(one.reason), one.number
        asked |= set(one.comparisons)
    assert asked == set(claims.COMPARISONS)
    numbers = [one.number for one in claims.CLAIMS]
    assert len(set(numbers)) == len(numbers) and {number[:2] for number in numbers} == set(claims.DOCUMENTS)


def test_every_variant_can_be_trained(claims: ModuleType) -> None:
    """The variants that are compared exist, their settings are known, and their batches divide."""
    for name, one in claims.COMPARISONS.items():
        if one.group in claims.GROUPS:
            assert {one.off, one.on} <= set(claims.GROUPS[one.group].variants), name
        else:
            assert one.group == "recording" or one.group in claims.WORKS, name
    for group in claims.GROUPS.values():
        for text in group.variants.values():
            variant, game = parse_variant(text, group.shared), parse(group.env)[0]
            layers = [preset_layer(game.preset)] if game is not None and game.preset else []
            settings = resolve(*layers, flag_layer(list(variant.words))).settings
            check_batch(settings, settings.plan.envs or GIVEN.get(group.env, 64), AGENTS.get(group.env, 1))


def test_a_result_and_its_rows(claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick run writes rows and ratios, but the page ignores it."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    monkeypatch.setattr(sys.modules["harness"], "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    path = tmp_path / "claims.json"
    claims.main(["--quick", "--rounds", "5", "--only", "inference,mapped", "--out", str(path)])
    result = json.loads(path.read_text())
    summary = result["summary"]
    assert set(summary["results"]) == {"inference", "mapped"} and summary["failed"] == {}
    found = summary["results"]["inference"]
    rates: dict[str, dict[int, float]] = {}
    for row in result["rows"]:
        if row["work"] == "inferring":
            rates.setdefault(row["contestant"], {})[row["round"]] = row["steps_per_second"]
    off, on = rates["one env at a time"], rates["all at once"]
    ratios = sorted(on[turn] / off[turn] for turn in range(5))
    assert found["speed"]["median"] == pytest.approx(ratios[2])
    assert (found["speed"]["low"], found["speed"]["high"]) == pytest.approx((ratios[0], ratios[-1]))
    assert claims.read_results() == {}
    path.write_text(json.dumps(result | {"summary": summary | {"quick": False}}))
    page = claims.page(claims.read_results())
    ratio = re.escape(f"{found['speed']['median']:.3g}x")
    assert re.search(rf"\| S1\.5 \| [^|]*\| a torch policy for 8 envs, [^|]*: {ratio} ", page)
    assert "| not measured here: training on several GPUs is not built yet |" in page


def test_a_run_of_a_few_keeps_the_others(claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons that are not measured again keep their rows and their outcome."""
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    path = tmp_path / "claims.json"
    claims.main(["--quick", "--rounds", "1", "--only", "inference,mapped", "--out", str(path)])
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"summary": before["summary"] | {"quick": False, "failed": {"lstm": "no"}}}))
    claims.main(["--quick", "--rounds", "1", "--only", "mapped", "--out", str(path)])
    after = json.loads(path.read_text())
    assert set(after["summary"]["results"]) == {"inference", "mapped"} and after["summary"]["failed"] == {"lstm": "no"}
    assert after["summary"]["results"]["inference"] == before["summary"]["results"]["inference"]
    kinds = {(row["work"], row["contestant"]) for row in before["rows"]}
    assert {(row["work"], row["contestant"]) for row in after["rows"]} == kinds and len(after["rows"]) == len(kinds)


def test_variants_take_turns(claims: ModuleType) -> None:
    """Variants alternate in one process, and their differences are computed as in `bench`."""
    shared = ("plan.device=cpu", "plan.collector=local", "plan.envs=8", "ppo.rollout=16", "ppo.minibatch=32")
    variants = [parse_variant(text, shared) for text in ("ppo.epochs=4", "ppo.epochs=1")]
    lines: list[str] = []
    four, one = claims.take_turns(claims.Work("recall:2", 0.05), variants, 3, lines.append)
    assert [run.rate > 0 and run.score is None for run in (*four.runs, *one.runs)] == [True] * 6
    assert (four.description.batch, four.description.updates, one.description.updates) == (128, 16 / 128, 4 / 128)
    outcome = claims.compare(four.description, one.description, four.runs, one.runs, paired=True, gate=None)
    assert not outcome["like_for_like"]
    assert [part["key"] for part in outcome["differences"]] == ["ppo.epochs", "updates per step"]
    order = [line.split()[0] for line in lines[2:]]
    assert order == ["ppo.epochs=4", "ppo.epochs=1", "ppo.epochs=1", "ppo.epochs=4", "ppo.epochs=4", "ppo.epochs=1"]


def test_unknown_names_are_refused(claims: ModuleType) -> None:
    """An unknown comparison is refused; those that need a GPU are left out if there is none."""
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        claims.chosen(["nonsense"], gpu=False)
    assert set(claims.chosen(["gpu"], gpu=True)) >= {"gpu-bf16", "gpu-batch", "gpu-all-on"}
    assert claims.chosen(["gpu"], gpu=False) == {}
    assert claims.chosen(["envs"], gpu=False).keys() == {"envs-8", "envs-64", "envs-512"}
    assert not any(name.startswith("gpu") for name in claims.chosen([], gpu=False))


def test_a_failing_group_has_its_reason(claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that fails is on the page with its reason, and the others are measured."""

    def fail(quick: bool) -> dict[str, Any]:
        raise ConfigError("no such library here", "install it")

    monkeypatch.setattr(sys, "argv", ["claims.py"])
    monkeypatch.setitem(claims.WORKS, "seeing", fail)
    path = tmp_path / "claims.json"
    claims.main(["--quick", "--rounds", "1", "--only", "patches,inference", "--out", str(path)])
    result = json.loads(path.read_text())
    assert result["summary"]["failed"] == {"patches": "no such library here"}
    assert "inference" in result["summary"]["results"]
    assert "`patches`: not measured here: no such library here" in claims.page({"claims": result})
