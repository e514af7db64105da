"""Comparisons: statistics computed by hand, equal work, real training runs, baselines, the gate, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from slipstream.cli import main
from slipstream.errors import ConfigError, EnvError, GateError, MachineError
from slipstream.perf import variants as parsing
from slipstream.perf.bench import bench, missing_flags, pass_gate, read_baseline
from slipstream.perf.comparison import bought_with, compare, differences, gain, judge, median_of, ratio
from slipstream.perf.timed_run import RunDescription, TimedRun, Work, clock, probe, timed_run
from slipstream.perf.variants import parse_variant
from slipstream.system import user_modules

SETTINGS = {
    "algorithm": "ppo",
    "ppo.minibatch": 256,
    "ppo.epochs": 4,
    "policy.hidden": [64, 64],
    "env.action_repeat": None,
    "every.evaluate": 0,
    "every.log": 10,
    "plan.workers": None,
    "evaluation.games": 100,
}
PORTRAIT = RunDescription(SETTINGS, {"workers": 2, "lag": 0}, 5_000, 1024.0, 4 / 256, 2.0, 0.5, 1000.0)
TOYS = """
import time
import gymnasium
from slipstream.testing import BrokenEnv, ToyEnv


class Toy(ToyEnv):
    def __init__(self, delay_s=0.0, fault="none", at=20):
        super().__init__()
        self._delay_s, self._broken = delay_s, BrokenEnv(fault, at)
        self._broken.reset(seed=0)

    def step(self, action):
        time.sleep(self._delay_s)
        self._broken.step(0)
        return super().step(action)


gymnasium.register("Toy-v0", Toy)
"""
SLOWED = "env.options.delay_s=0.005"
TINY = (
    "plan.envs=2",
    "plan.collector=local",
    "ppo.rollout=16",
    "ppo.minibatch=32",
    "policy.hidden=[8]",
    "ppo.epochs=1",
)


def runs(*rates: float, scores: tuple[float | None, ...] = ()) -> list[TimedRun]:
    """Runs with these rates and scores."""
    told = scores or (None,) * len(rates)
    return [TimedRun(1000, 1000 / rate, rate, 1.0, 0.1, score) for rate, score in zip(rates, told, strict=True)]


def judged(before: list[TimedRun], after: list[TimedRun], **more: Any) -> dict[str, Any]:
    """A comparison of two variants that are equal by default."""
    b, gate = more.get("b", PORTRAIT), more.get("gate")
    return compare(PORTRAIT, b, before, after, paired=more.get("paired", True), gate=gate)


def test_ratios_are_taken_within_rounds() -> None:
    """Ratios 1.1, 1.2, 1.3, 1.4, 1.5 have the median 1.3; with five of them the interval is their whole range."""
    found = ratio([10, 20, 30, 40, 50], [11, 24, 39, 56, 75], paired=True)
    assert (found.median, found.low, found.high) == pytest.approx((1.3, 1.1, 1.5))
    assert found.sure == 1 - 2 / 2**5


def test_a_baseline_is_compared_from_interval_to_interval() -> None:
    """10 [8, 12] against 20 [18, 24]: 2x, at least 18 / 12, at most 24 / 8; differences likewise."""
    before, after = [8, 9, 10, 11, 12], [18, 19, 20, 22, 24]
    found = ratio(before, after, paired=False)
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 1.5, 3.0))
    more = gain(before, after, paired=False)
    assert (more.median, more.low, more.high) == pytest.approx((10, 6, 16))


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.1, 1.2, 1.15, 1.3, 1.12), "faster"),
        ((0.9, 0.8, 0.95, 0.7, 0.88), "slower"),
        ((1.1, 1.2, 0.99, 1.3, 1.12), "no difference"),  # one round in the other direction: not significant
        ((1.001, 1.002, 1.003, 1.004, 1.009), "no difference"),  # significant, but too small
        ((1.5, 1.6), "no difference"),  # two rounds are too few
    ],
)
def test_verdicts(ratios: tuple[float, ...], verdict: str) -> None:
    """Faster or slower needs a significant interval, enough rounds, and a difference of at least 1 %."""
    found = judge(median_of(ratios), ("faster", "slower"), 1.0, 0.01)
    assert found == verdict
    assert judged(runs(*[100.0] * len(ratios)), runs(*[100 * one for one in ratios]))["verdict"] == verdict


def test_identical_rates_are_no_difference() -> None:
    """Equal runs of both variants have a ratio of 1 and pass a gate of 0 %."""
    same = runs(90, 100, 110, 95, 105, scores=(1.0, 2.0, 3.0, 4.0, 5.0))
    facts = judged(same, same, gate=0.0)
    assert facts["verdict"] == "no difference" and facts["speed"]["median"] == 1.0
    assert facts["score"]["verdict"] == "no difference" and facts["gate"]["passed"]
    assert facts["like_for_like"] and facts["differences"] == []


def test_scores_are_compared_by_rounds() -> None:
    """Score differences of 1, 2, 3, 4, 5 have a significant median of 3; rounds without both scores are left out."""
    before = runs(*[100.0] * 6, scores=(1.0, 1.0, 1.0, 1.0, 1.0, None))
    after = runs(*[100.0] * 6, scores=(2.0, 3.0, 4.0, 5.0, 6.0, 9.0))
    score = judged(before, after)["score"]
    assert (score["median"], score["low"], score["high"], score["verdict"]) == (3.0, 1.0, 5.0, "higher")
    assert judged(runs(1.0), runs(1.0))["score"] is None


def test_speed_switches_are_like_for_like() -> None:
    """A different number of workers is equal work; settings that the comparison sets itself are ignored."""
    b = replace(PORTRAIT, settings=SETTINGS | {"plan.workers": 1, "every.log": 99}, plan={"workers": 1, "lag": 0})
    (only,) = differences(PORTRAIT, b)
    assert (only.key, only.a, only.b, only.matters) == ("plan.workers", 2, 1, False)


@pytest.mark.parametrize(
    ("b", "keys", "price"),
    [
        (
            replace(PORTRAIT, settings=SETTINGS | {"ppo.epochs": 1}, updates=1 / 256),
            {"ppo.epochs", "updates per step"},
            "fewer gradient steps per step of experience (0.25 of the other's)",
        ),
        (
            replace(PORTRAIT, settings=SETTINGS | {"policy.hidden": [8]}, weights=100),
            {"policy.hidden", "weights"},
            "a smaller network (100 parameters instead of 5,000)",
        ),
        (
            replace(PORTRAIT, settings=SETTINGS | {"env.action_repeat": 4}),
            {"env.action_repeat"},
            "fewer decisions in the same game time (env.action_repeat)",
        ),
        (replace(PORTRAIT, plan={"workers": 2, "lag": 1}), {"plan.lag"}, None),
        (replace(PORTRAIT, batch=2048.0), {"batch"}, None),
    ],
)
def test_other_work_is_not_like_for_like(b: RunDescription, keys: set[str], price: str | None) -> None:
    """Fewer updates, a smaller network, longer actions, older data, another batch are listed with what they saved."""
    facts = judged(runs(*[100.0] * 5), runs(*[200.0] * 5), b=b)
    assert facts["verdict"] == "faster" and not facts["like_for_like"]
    assert {one["key"] for one in facts["differences"] if one["matters"]} == keys
    assert (price in facts["bought_with"]) if price else facts["bought_with"] == []
    assert bought_with(PORTRAIT, b) == [], "the other way round nothing is saved"


def test_evaluation_is_work() -> None:
    """A variant with fewer evaluations is not equal work."""
    busy = replace(PORTRAIT, settings=SETTINGS | {"every.evaluate": 1000})
    assert bought_with(PORTRAIT, busy) == ["less evaluation"]


def test_the_gate() -> None:
    """5 % slower passes a gate of 10 % but not one of 3 %; the error states the ratio."""
    before, after = runs(*[100.0] * 5), runs(95, 94, 95, 96, 95)
    assert judged(before, after, gate=10.0)["gate"]["passed"]
    facts = judged(before, after, gate=3.0) | {"out": "here"}
    assert not facts["gate"]["passed"]
    with pytest.raises(GateError, match=r"B is slower than A: 0\.950x \[0\.940, 0\.960\], and 3 % are allowed"):
        pass_gate(facts)


def row(iteration: int, seconds: float, score: float | None = None) -> dict[str, Any]:
    """A row of metrics with batches of 100 steps."""
    return {"steps": 100 * iteration, "iteration": iteration, "time/seconds": seconds, "episode/return_mean": score}


def test_the_first_iteration_is_not_timed() -> None:
    """With a first iteration of 5 s and later ones of 1 s, the rate is 100 steps/s and the warm-up 4 s."""
    rows = [row(n, 4.0 + n) for n in range(1, 5)]
    facts = {"steps": 400, "seconds": 8.0, "steps_per_second": 100.0}
    found = clock(rows, facts, 0)
    assert (found.steps, found.seconds, found.rate, found.warm_s) == pytest.approx((300, 3.0, 100.0, 4.0))
    few = clock(rows[-1:], facts, 0)
    assert (few.rate, few.seconds, few.warm_s) == pytest.approx((100.0, 3.0, 4.0)), "one row: by the run's own facts"


def test_steps_without_updates_are_not_timed() -> None:
    """Steps before the first update do not count."""
    rows = [row(1, 0.1), row(2, 0.2), row(3, 1.2), row(4, 2.2)]
    facts = {"steps": 400, "seconds": 2.2, "steps_per_second": 300 / 2.1}
    assert clock(rows, facts, 200).rate == pytest.approx(100.0)
    assert clock(rows[:1], facts, 200).rate == 0.0
    assert clock([], {"steps_per_second": 0.0}, 0).rate == 0.0


def test_variants_are_parsed(tmp_path: Path) -> None:
    """Settings with brackets, a preset and a file can be combined; shared settings come first."""
    file = tmp_path / "mine.yaml"
    file.write_text("ppo: {epochs: 2}")
    variant = parse_variant(f"smoke,policy.hidden=[8,8],ppo.gamma=0.9,{file}", ["seed=3"])
    assert variant.words == ("seed=3", "policy.hidden=[8,8]", "ppo.gamma=0.9")
    assert (variant.presets, variant.config) == (("smoke",), file)
    assert parse_variant("").label == "defaults"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smok", "neither KEY=VALUE, a preset, a YAML file nor a commit. Did you mean `smoke`?"),
        ("ppo.epoch=3", "Unknown setting `ppo.epoch`. Did you mean `ppo.epochs`?"),
        ("none.yaml", "There is no config file `none.yaml`."),
        ("commit:HEAD,commit:HEAD", "commit:HEAD,commit:HEAD"),
    ],
)
def test_wrong_variants(text: str, said: str) -> None:
    """An invalid variant is an error before anything is trained."""
    with pytest.raises(ConfigError) as found:
        parse_variant(text)
    assert said in str(found.value)


OLDER = """
import json, sys
from pathlib import Path

words = sys.argv[1:]
if any("tuned" in word for word in words):
    sys.exit(2)
if words[0] == "evaluate":
    against = words[words.index("--opponent") + 1]
    print(json.dumps({"score": 0.75, "mean_return": 1.0, "opponents": {against: {}}}))
    sys.exit(against != "scripted:rule")
run = Path(words[words.index("--run") + 1])
state = run / "checkpoints" / "000000000400"
state.mkdir(parents=True)
(run / "config.yaml").write_text("ppo: {epochs: 4}")
(state / "state.json").write_text('{"plan": {"workers": 3}}')
row = {"steps": 0, "ppo/updates": 4, "episode/return_mean": 7.0}
rows = [row | {"steps": 100 * n, "iteration": n, "time/seconds": float(n)} for n in range(1, 5)]
(run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\\n" for one in rows))
facts = {"steps": 400, "seconds": 4.0, "steps_per_second": 100.0, "start_seconds": 1.5, "checkpoint": str(state)}
print(json.dumps(facts))
"""


def test_commits_run_by_their_own_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of a commit are extracted once, and its command line gets only flags that it supports."""
    package = tmp_path / "repo" / "src" / "slipstream"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli" / "__init__.py").write_text("")
    (package / "cli" / "__main__.py").write_text(OLDER)
    names = ["-c", "user.name=n", "-c", "user.email=e@e"]
    for words in (["init", "-q"], ["add", "."], [*names, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path / "repo"), *words], check=True)
    monkeypatch.setattr(parsing, "PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    variant = parse_variant("commit:HEAD,ppo.epochs=4")
    (package / "cli" / "__main__.py").write_text("raise SystemExit('the working tree, not the commit')")
    work = Work("soccer", 1.0)
    description = probe(variant, work)
    assert (description.plan, description.batch, description.commit) == ({"workers": 3}, 100.0, variant.commit)
    found = timed_run(variant, description, replace(work, seconds=4.0), seed=1)
    assert (found.rate, found.score, found.warm_s) == (100.0, 7.0, 0.0)
    assert timed_run(variant, description, replace(work, seconds=4.0, games=8), seed=1).score == 0.75, (
        "of games, if asked for"
    )
    assert (tmp_path / "cache" / "slipstream" / "commits" / variant.commit / "src" / "slipstream").is_dir()
    with pytest.raises(ConfigError, match="There is no commit `nowhere`"):
        parse_variant("commit:nowhere")
    monkeypatch.setattr(parsing, "PACKAGE", tmp_path / "site-packages" / "slipstream")
    with pytest.raises(ConfigError, match="git checkout"):
        parse_variant("commit:HEAD")


def call(*words: str) -> Result:
    """Call bench on the toy game."""
    shared = [word for setting in TINY for word in ("--set", setting)]
    common = ["--env", "gymnasium:Toy-v0", "--import", "toys", "--seconds", "0.2", *shared]
    return CliRunner().invoke(main, ["bench", *words, *common])


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a game that can be slowed down and broken."""
    (tmp_path / "toys.py").write_text(TOYS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Result]]:
    """A complete comparison with a game that is slower in one variant, saved as a baseline too."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "toys.py").write_text(TOYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder, call("", SLOWED, "--gate", "10", "--out", "found", "--save", "kept", "--json")


@pytest.mark.usefixtures("quiet_machine")
def test_a_planted_slow_down_is_recognised(planted: tuple[Path, Result]) -> None:
    """An env with a sleep in every step is slower; the gate exits with code 7, and all files are written."""
    toys, result = planted
    assert result.exit_code == 7, result.output
    assert "error: B is slower than A: 0." in result.stderr and "10 % are allowed" in result.stderr
    facts = json.loads(result.stdout)
    assert facts["verdict"] == "slower" and facts["speed"]["high"] < 0.9 and not facts["gate"]["passed"]
    assert facts["like_for_like"] is False
    assert [one["key"] for one in facts["differences"]] == ["env.options"]
    assert facts["a"]["start_s"] > 0 and facts["a"]["score"]["median"] > 0
    rows = [json.loads(line) for line in (toys / "found" / "runs.jsonl").read_text().splitlines()]
    assert "".join(one["side"] for one in rows) == "ABBAABBAAB"
    assert json.loads((toys / "found" / "bench.json").read_text()) == facts
    page = (toys / "found" / "bench.md").read_text()
    assert "B is slower: 0." in page and "| learning | " not in page and "**not passed**" in page
    assert Image.open(toys / "found" / "bench.png").size[0] == 1000


@pytest.mark.usefixtures("quiet_machine")
def test_baselines(planted: tuple[Path, Result]) -> None:
    """A saved variant can be compared with later; different work or a different machine is refused."""
    toys = planted[0]
    common: dict[str, Any] = {"modules": ("toys",), "rounds": 1}
    facts = bench([""], against=toys / "kept.json", out=toys / "two", gate=0.0, **common)
    assert (facts["env"], facts["seconds"], facts["shared"]) == ("gymnasium:Toy-v0", 0.2, list(TINY))
    assert facts["a"]["side"] == SLOWED and facts["speed"]["median"] > 1.5
    assert facts["verdict"] == "no difference", "one round proves nothing"
    assert any("baseline of" in note for note in facts["notes"])
    with pytest.raises(ConfigError, match=r"The baseline was measured with seconds 0\.2, not 3"):
        bench([str(toys / "kept.json"), ""], seconds=3, out=toys / "three", **common)
    told = json.loads((toys / "kept.json").read_text())
    told["machine"]["cpu"] = "another one"
    (toys / "kept.json").write_text(json.dumps(told))
    with pytest.raises(MachineError, match="measured on another machine: another one") as refused:
        bench([""], against=toys / "kept.json", out=toys / "four", **common)
    assert "--any-machine" in refused.value.hint
    (toys / "kept.json").write_text(json.dumps(told | {"version": 99}))
    with pytest.raises(ConfigError, match="is not a baseline of this version"):
        read_baseline(toys / "kept.json")


def test_a_broken_variant_is_named_and_runs_are_kept(toys: Path) -> None:
    """A variant that fails after its first run ends the comparison with the env's error; measured runs are kept."""
    (toys / "toys.py").write_text(
        TOYS.replace("at=20", 'at=20, only=""').replace(
            "self._delay_s, self._broken",
            'import os\n        at = at if os.path.exists(only or "none") else 10**9\n'
            "        self._delay_s, self._broken",
        )
    )
    flag = toys / "flag"

    def say(line: str) -> None:
        if line.startswith("A 1/"):
            flag.write_text("")

    broken = f"env.options.fault=raise,env.options.only={flag}"
    with pytest.raises(EnvError, match="broken on purpose") as found:
        bench(
            ["", broken],
            env="gymnasium:Toy-v0",
            seconds=0.2,
            rounds=5,
            shared=TINY,
            modules=("toys",),
            out=toys / "kept",
            on_notice=say,
        )
    said = str(found.value)
    assert said.startswith("Round 1 of 5 of the comparison failed.")
    assert "env.options.fault=raise" in said and "exit code 3" in said and f"{toys / 'kept' / 'runs.jsonl'}" in said
    (kept,) = (toys / "kept" / "runs.jsonl").read_text().splitlines()
    assert json.loads(kept)["side"] == "A"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["", "", ""], "3 variants cannot be compared"),
        ([""], "One variant"),
        (["", "", "--repeats", "3"], "3 repeats are too few"),
        (["", "", "--against", "x.json"], "Two variants and a baseline"),
        (["", "x.json"], "A saved baseline can only be A"),
        (["", "--save", "x.json", "--gate", "5"], "--gate needs"),
        (["", "--against", "x.json"], "There is no baseline x.json"),
        (["", "ppo.epoch=2"], "Did you mean `ppo.epochs`?"),
    ],
)
def test_what_cannot_be_compared(toys: Path, words: list[str], said: str) -> None:
    """Invalid arguments are refused before anything is trained, with exit code 2."""
    result = call(*words)
    assert result.exit_code == 2 and said in result.stderr, result.output


@pytest.mark.speed
def test_identical_variants_show_no_difference(toys: Path) -> None:
    """Equal settings trained in nine rounds give no difference."""
    facts = bench(["", ""], env="gymnasium:CartPole-v1", seconds=1.0, rounds=9, shared=TINY, out=toys / "same")
    assert facts["verdict"] == "no difference" and facts["like_for_like"]


def test_help_needs_no_torch() -> None:
    """Listing the verb does not import its dependencies."""
    told = "import sys; from slipstream.cli import main; print('torch' in sys.modules, 'bench' in main.commands)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"


def test_the_command_of_a_comparison_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the environment variable named is a flag of the command in the report."""
    monkeypatch.setenv(user_modules.VARIABLE, "in_shell")
    assert user_modules.read_variable() == ("in_shell",)
    work = Work("soccer", seconds=1.0, seed=0, games=0, modules=("in_shell", "by_flag"), trust=False)
    assert missing_flags(work) == ["--import", "in_shell"]
    monkeypatch.delenv(user_modules.VARIABLE)
    assert user_modules.read_variable() == () and missing_flags(work) == []
