"""The command line: results on stdout, progress on stderr, exit codes, and the keys of the JSON output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import slipstream
from result_keys import RETURNS, WINS
from slipstream.api import Run
from slipstream.cli import main
from slipstream.runs.checkpoint import steps_of
from slipstream.runs.layout import RunDir

Cli = Callable[..., Result]
TRAINED = {
    "run",
    "steps",
    "seconds",
    "start_seconds",
    "steps_per_second",
    "mean_return",
    "checkpoint",
    "stopped",
    "evaluating",
    "evaluate_every",
}
RESULT = WINS | RETURNS | {"score", "score_low", "score_high", "behaviour", "opponent_behaviour"}
EVALUATED = RESULT | {"agent", "env", "seed", "sampled", "opponents"}
QUICK = ["--preset", "smoke", "--set", "every.evaluate=0"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words])

    return call


def facts(result: Result) -> dict[str, Any]:
    """The JSON object on stdout, which holds nothing else."""
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1, "stdout is for the result alone"
    loaded: dict[str, Any] = json.loads(lines[0])
    return loaded


def error(result: Result, code: int) -> str:
    """The error message of a command on stderr, with its exit code and without a traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_train_json(cli: Cli, tmp_path: Path) -> None:
    """`train --json` prints one object with exactly the documented keys; progress goes to stderr."""
    result = cli("train", "soccer", *QUICK, "--steps", 300, "--run", "r", "--seed", 3, "--json")
    found = facts(result)
    assert found.keys() == TRAINED
    assert found["run"] == "r" and found["steps"] == 384 and found["stopped"] == ""
    assert Path(found["checkpoint"]).is_dir()
    assert re.search(r"^plan\.collector +local +local +requested$", result.stderr, re.MULTILINE)
    assert re.search(r"^env\.action_repeat +4 +the game's default$", result.stderr, re.MULTILINE)
    assert "plan.workers" not in result.stderr and "plan.graphs" not in result.stderr
    assert "seed: 3  # flag" in (tmp_path / "r" / "config.yaml").read_text()


def test_train_for_a_person(cli: Cli) -> None:
    """Without --json the result is a few lines with the command that resumes; the run directory gets a default name."""
    result = cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 256)
    assert result.exit_code == 0, result.output
    run = next(Path("runs").iterdir())
    lines = result.stdout.splitlines()
    assert lines[0].startswith("256 steps in ")
    assert lines[1].startswith("mean return of the last 100 episodes: ")
    assert lines[-1].endswith(f"slipstream resume {run} --steps 512")
    assert run.name.startswith("gymnasium-cartpole-v1-")


def test_train_by_the_clock(cli: Cli) -> None:
    """`--minutes` replaces the preset's steps."""
    found = facts(cli("train", "gymnasium:CartPole-v1", *QUICK, "--minutes", 0.005, "--run", "r", "--json"))
    assert found["steps"] > 0
    assert found["seconds"] > 0.25  # the last iteration is timed slightly before the check of the time limit
    assert found["seconds"] - found["start_seconds"] < 10


def test_resume_json(cli: Cli) -> None:
    """`resume --steps` is the new total; the error for a finished run suggests a larger one."""
    cli("train", "soccer", *QUICK, "--steps", 256, "--run", "r")
    found = facts(cli("resume", "r", "--steps", 512, "--json"))
    assert found.keys() == TRAINED
    assert found["steps"] == 512
    text = error(cli("resume", "r", "--json"), 2)
    assert "512 steps" in text and "slipstream resume r --steps 1024" in text


def test_evaluate_json(cli: Cli, trained: Run) -> None:
    """`evaluate --json` has exactly the documented keys, in total and for each opponent."""
    words = ["--env", "soccer", "--set", "env.match_seconds=3", "--games", 6]
    opponents = ["--opponent", "scripted:chaser", "--opponent", "random"]
    found = facts(cli("evaluate", f"run:{trained.path}", *words, *opponents, "--seed", 2, "--json"))
    assert found.keys() == EVALUATED
    assert found["games"] == 12 and found["wins"] + found["draws"] + found["losses"] == 12
    assert found["opponents"].keys() == {"scripted:chaser", "random"}
    assert all(result.keys() == RESULT and result["games"] == 6 for result in found["opponents"].values())
    again = facts(cli("evaluate", f"run:{trained.path}", *words, *opponents, "--seed", 2, "--json"))
    assert again == found
    spoken = cli("evaluate", f"run:{trained.path}@best", *words, "--opponent", "random", "--sampled")
    assert spoken.stdout.startswith("against random: won ")


def test_evaluate_without_sides(cli: Cli) -> None:
    """A game with one side has returns and no win rates."""
    found = facts(cli("evaluate", "random", "--env", "gymnasium:CartPole-v1", "--games", 5, "--json"))
    assert found.keys() == EVALUATED
    assert found["win_rate"] is None and found["opponents"] == {}
    assert found["mean_return"] == found["mean_length"]


def test_run_json_and_its_report(cli: Cli) -> None:
    """`run` runs all stages, and its result holds the results of the stages."""
    result = cli("run", "soccer", "--preset", "smoke", "--steps", 512, "--run", "r", "--json")
    found = facts(result)
    stages = ["tune", "record", "clone", "train", "compete", "evaluate", "tournament", "report"]
    assert found["stages"] == stages and found.keys() == {*stages, "stages", "times"}
    assert found["train"].keys() == TRAINED
    assert found["evaluate"].keys() == EVALUATED
    assert found["evaluate"]["opponents"].keys() == {"scripted:chaser", "scripted:rule"}
    begun = [line[3:].partition(":")[0] for line in result.stderr.splitlines() if line.startswith("== ")]
    assert begun == stages
    assert found["times"].keys() == set(stages)
    assert all(one.keys() == {"seconds", "share", "expected"} for one in found["times"].values())
    page = Path(found["report"]).read_text()
    assert json.loads(Path("r/evaluation.json").read_text()).keys() == EVALUATED
    assert "scripted:rule" in page and "<svg" in page
    for outside in ("http:", "https:", "@import", "url("):
        assert outside not in page, "the report must not load anything"


def test_run_skips_stages(cli: Cli) -> None:
    """`--skip` skips stages; their results must exist if later stages need them."""
    found = facts(
        cli("run", "gymnasium:CartPole-v1", *QUICK, "--steps", 256, "--run", "r", "--skip", "evaluate", "--json")
    )
    assert found.keys() == {"stages", "tune", "train", "report", "times"}
    assert found["stages"] == ["tune", "train", "report"]
    words = ["--skip", "train", "--skip", "report", "--run", "r", "--set", "evaluation.final_games=3", "--json"]
    later = facts(cli("run", "gymnasium:CartPole-v1", *words))
    assert later["stages"] == ["evaluate"] and later["evaluate"]["games"] == 3
    text = error(cli("run", "soccer", "--skip", "trian"), 2)
    assert "`trian`. Did you mean `train`?" in text
    assert "tune, record, clone, train, compete, evaluate, tournament, report" in text
    assert "--run DIR" in error(cli("run", "soccer", "--skip", "train"), 2)


def test_envs_json(cli: Cli) -> None:
    """`envs` lists the built-in games with their variants and all environments of Gymnasium."""
    found = facts(cli("envs", "--json"))
    assert found.keys() == {"games", "gymnasium"}
    assert found["games"]["soccer"].keys() == {"summary", "variants"}
    assert "gymnasium:CartPole-v1" in found["gymnasium"]
    assert "soccer:2v2" in cli("envs").stdout


def test_agents_json(cli: Cli) -> None:
    """`agents` lists the random agent, the scripted players, and the runs in ./runs."""
    assert facts(cli("agents", "soccer", "--json")) == {
        "env": "soccer",
        "agents": ["random", "scripted:chaser", "scripted:keeper", "scripted:rule"],
    }
    cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 64, "--run", "runs/mine")
    assert facts(cli("agents", "gymnasium:CartPole-v1", "--json"))["agents"] == ["random", "run:runs/mine"]


def test_doctor_json(cli: Cli) -> None:
    """`doctor` reports the machine, with a check and a hint for each item."""
    found = facts(cli("doctor", "--json"))
    assert found.keys() == {
        "platform",
        "python",
        "cpu",
        "cores",
        "cores_affinity",
        "cores_cgroup",
        "cores_all",
        "memory_gib",
        "disk_free_gib",
        "fingerprint",
        "versions",
        "torch",
        "checks",
        "ok",
    }
    assert {check["name"] for check in found["checks"]} == {
        "python",
        "cores",
        "memory",
        "disk",
        "folder",
        "torch",
        "numba",
    }
    assert all(check.keys() == {"name", "ok", "says", "hint"} for check in found["checks"])
    assert found["torch"]["works"] is True
    assert cli("doctor").stdout.startswith("ok   python")


def test_show(cli: Cli) -> None:
    """`--show` prints every setting with its value and origin, and does not train."""
    lines = cli("train", "soccer", "--show", "--set", "ppo.epochs=9").stdout.splitlines()
    assert "ppo.epochs = 9  (flag)" in lines
    assert "plan.lag = unset  (default)" in lines
    found = facts(cli("train", "soccer", "--show", "--json", "--set", "ppo.epochs=9"))
    assert found.keys() == {"settings"}
    assert found["settings"]["ppo.epochs"] == {"value": 9, "origin": "flag"}
    assert not Path("runs").exists()


def test_dry_run(cli: Cli) -> None:
    """`--dry-run` builds everything, prints the plan with its reasons, and writes no files."""
    found = facts(cli("train", "soccer", *QUICK, "--dry-run", "--json"))
    assert found.keys() == {"env", "agents", "obs", "batch", "parameters", "gamma", "plan"}
    assert found["agents"] == 2 and found["batch"] == 4 * 2 * 16
    assert found["plan"]["plan.collector"] == {"requested": "local", "applied": "local", "why": "requested"}
    assert all(switch.keys() == {"requested", "applied", "why"} for switch in found["plan"].values())
    assert not Path("runs").exists()
    assert "nothing was trained" in cli("train", "soccer", *QUICK, "--dry-run").stdout


def test_smoke_does_everything(trained: Run) -> None:
    """The smoke preset writes metrics, evaluations, checkpoints, system statistics and TensorBoard files."""
    run = RunDir.open(trained.path)
    rows = trained.metrics()
    assert trained.facts["steps"] == 1024
    assert len(rows) >= 7
    keys = set().union(*rows)
    for name in (
        "steps",
        "iteration",
        "lag",
        "loss/policy",
        "loss/value",
        "ppo/entropy",
        "ppo/kl",
        "ppo/clip_fraction",
        "ppo/explained_variance",
        "ppo/learning_rate",
        "episode/return_mean",
        "reward/goal",
        "evaluate/win_rate",
        "evaluate/opponent",
        "gradient/trunk.layers.0.weight/norm",
        "system/cpu_percent",
        "time/steps_per_second",
    ):
        assert name in keys, name
    assert steps_of(run)[-1] == 1024
    assert (run.checkpoints / "best.json").is_file()
    (trace,) = run.traces.glob("*.json")
    assert "iteration" in {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert list(run.tensorboard.glob("events.*"))
    assert json.loads(run.provenance.read_text())["env"] == "soccer"
    assert not run.lock_file.exists()


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (
            ["train", "soccer", "--set", "ppo.learnig_rate=1"],
            2,
            ["`ppo.learnig_rate`", "Did you mean `ppo.learning_rate`?", "slipstream train ENV --show"],
        ),
        (["train", "soccer", "--set", "ppo.value=1"], 2, ["`ppo.value` is now `ppo.value_coef`", "ppo.value_coef=1"]),
        (["train", "soccer", "--set", "n_steps=1"], 2, ["`n_steps`", "`ppo.rollout`", "--set ppo.rollout="]),
        (
            ["train", "gymnasium:CartPole-v1", "--set", "plan.envs=64", "--set", "ppo.minibatch=3000"],
            2,
            ["64 envs x 128 steps = 8192", "`ppo.minibatch` = 3000", "2048"],
        ),
        (
            ["train", "socker"],
            3,
            ["`socker`", "Did you mean `soccer`?", "gymnasium:socker", "slipstream envs"],
        ),
        (["train", "gymnasium:NoSuch-v0"], 3, ["`NoSuch-v0`", "--import MODULE", "slipstream envs"]),
        (
            ["train", "soccer", "--opponent", "scripted:rulle"],
            2,
            ["`scripted:rulle`", "Did you mean `rule`?", "chaser, keeper, rule"],
        ),
        (
            ["evaluate", "rule", "--env", "soccer", "--opponent", "random", "--games", "2"],
            2,
            ["`rule`", "random, scripted:NAME, run:DIR, run:DIR@best, run:DIR@STEPS, sb3:FILE.zip, onnx:FILE"],
        ),
        (["evaluate", "random", "--env", "soccer", "--games", "2"], 2, ["`soccer`", "--opponent AGENT"]),
        (
            ["evaluate", "random", "--env", "soccer", "--opponent", "random", "--games", "0"],
            2,
            ["0 games", "--games"],
        ),
        (["train", "gymnasium:CartPole-v1", "--opponent", "random"], 2, ["`gymnasium:CartPole-v1`", "--opponent"]),
        (["resume", "runs/none"], 5, ["runs/none", "slipstream train ENV --run runs/none", "`checkpoints`"]),
        (
            ["evaluate", "run:none", "--env", "soccer", "--opponent", "random", "--games", "2"],
            5,
            ["none", "slipstream train ENV --run none", "`checkpoints`"],
        ),
        (["train", "soccer", "--import", "not_a_module"], 2, ["--import not_a_module", "No module named"]),
        (["train", "soccer", "--config", "none.yaml"], 2, ["`none.yaml`", "--config"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0] in main.commands else "",
)
def test_mistakes(words: list[str], code: int, parts: list[str], cli: Cli) -> None:
    """The error for a mistake names the wrong value and a remedy, and has its own exit code."""
    text = error(cli(*words), code)
    assert text.startswith("error: ") and "\nhint: " in text
    assert [part for part in parts if part not in text] == []
    assert not Path("runs").exists(), "nothing is started"


def test_a_flag_that_does_not_exist(cli: Cli) -> None:
    """An unknown flag or verb exits with code 2."""
    assert cli("train", "soccer", "--stepz", "3").exit_code == 2
    assert cli("trane").exit_code == 2


def test_a_run_is_not_started_twice_in_one_folder(cli: Cli) -> None:
    """Training into a directory that holds a run is an error that names `resume` and `--run`."""
    cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 64, "--run", "r")
    text = error(cli("train", "gymnasium:CartPole-v1", *QUICK, "--run", "r"), 5)
    assert "r already holds a run" in text and "slipstream resume r" in text and "--run DIR" in text


def test_damaged_checkpoints(cli: Cli) -> None:
    """A damaged checkpoint is skipped with a notice; if all are damaged, the exit code is 5."""
    cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 256, "--run", "r", "--set", "every.checkpoint=0")
    cli("resume", "r", "--steps", 512)

    def damage(steps: int) -> None:
        path = Path("r") / "checkpoints" / f"{steps:012d}" / "learner.safetensors"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] = (data[len(data) // 2] + 1) % 256  # damaged twice, it is not whole again
        path.write_bytes(data)

    damage(512)
    result = cli("resume", "r", "--steps", 640, "--json")
    assert facts(result)["steps"] == 640
    assert "Checkpoint 512" in result.stderr
    assert "learner.safetensors is damaged" in result.stderr and "sha256" in result.stderr
    assert steps_of(RunDir(Path("r"))) == [256, 512, 640]
    for steps in steps_of(RunDir(Path("r"))):
        damage(steps)
    text = error(cli("resume", "r", "--steps", 999), 5)
    assert text.startswith("error: ") and "Checkpoint 640" in text
    assert "slipstream train ENV --run DIR" in text.rpartition("hint: ")[2]
    policy = Path("r") / "checkpoints" / f"{steps_of(RunDir(Path('r')))[-1]:012d}" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1])
    words = ["--env", "gymnasium:CartPole-v1", "--games", 1]
    assert "policy.safetensors is damaged" in error(cli("evaluate", "run:r", *words), 5)


MY_ENV = """
import gymnasium
from slipstream.testing import ToyEnv

gymnasium.register("Mine-v0", ToyEnv, max_episode_steps=10)
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder."""
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_users_module_is_imported_by_flag(tmp_path: Path) -> None:
    """`--import my_module` registers the user's env in this process and in the workers; `resume` needs the flag too."""
    (tmp_path / "my_module.py").write_text(MY_ENV)
    words = ["-m", "slipstream.cli", "train", "gymnasium:Mine-v0", *QUICK, "--set", "plan.collector=actors"]
    done = python(
        tmp_path, *words, "--set", "plan.workers=2", "--steps", "256", "--import", "my_module", "--run", "r", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 256
    without = python(tmp_path, "-m", "slipstream.cli", "resume", "r", "--steps", "512")
    assert without.returncode == 2
    assert "slipstream resume r --import my_module" in without.stderr
    again = python(tmp_path, "-m", "slipstream.cli", "resume", "r", "--steps", "512", "--import", "my_module", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["steps"] == 512


SCRIPT = """
import slipstream as ss
from slipstream.testing import ToyEnv

class Mine(ToyEnv):
    pass

run = ss.train(lambda: Mine(), run="r", steps=256, preset="smoke", every__evaluate=0,
               plan__collector="actors", plan__workers=2)
print(run.facts["steps"])
try:
    ss.resume("r", steps=512)
except ss.ConfigError as error:
    print(error)
print(ss.resume("r", steps=512, env=Mine).facts["steps"])
"""


def test_a_plain_script_trains_its_own_env_with_actors(tmp_path: Path) -> None:
    """A script needs no `__main__` guard and may pass a lambda; `resume` explains how to pass the env again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    first, _, hint, last = done.stdout.splitlines()
    assert (first, last) == ("256", "512") and "slipstream.resume('r', env=lambda: Mine(...))" in hint


def test_help_is_light(tmp_path: Path) -> None:
    """`--help` imports neither torch nor numba; nor does `import slipstream`."""
    code = (
        "import sys\nfrom slipstream.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numba', 'gymnasium'} & set(sys.modules)))"
    )
    done = python(tmp_path, "-c", code)
    assert done.stdout.splitlines()[-1] == "[]"
    for verb in ("run", "train", "resume", "evaluate", "envs", "agents", "doctor"):
        assert f"\n  {verb} " in done.stdout
    light = "import slipstream, sys; slipstream.__all__; print(sorted({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    assert python(tmp_path, "-c", light).stdout == "[]\n"


def test_every_verb_has_the_shared_flags(cli: Cli) -> None:
    """Every verb has `--json`, and every verb that makes an env has `--import`."""
    for verb, command in main.commands.items():
        for words in [[verb, name] for name in command.commands] if isinstance(command, click.Group) else [[verb]]:
            text = cli(*words, "--help").stdout
            assert "--json" in text, words
            assert "--import" in text or verb in ("demos", "convert"), words


def test_version(cli: Cli) -> None:
    """`--version` prints the version of the package."""
    assert cli("--version").stdout.strip() == slipstream.__version__


def test_the_public_names() -> None:
    """All public names can be imported; tests/test_public_surface.py lists those that must stay."""
    assert slipstream.__all__ == [
        "CSVSink",
        "CheckpointError",
        "ConfigError",
        "DemoError",
        "Demos",
        "EnvError",
        "MLflowSink",
        "MachineError",
        "MetricsSink",
        "Run",
        "RunInfo",
        "Settings",
        "SlipstreamError",
        "TrackioSink",
        "TrainingHandle",
        "WandbSink",
        "__version__",
        "batch_iter",
        "bench",
        "buffered_batch_iter",
        "clone",
        "compete",
        "convert_sb3",
        "diagnose",
        "empty_rows",
        "evaluate",
        "import_trajectories",
        "load_agent",
        "make_vector",
        "record",
        "replay",
        "resume",
        "sarsd_iter",
        "tournament",
        "train",
        "tune",
        "watch",
    ]
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    assert dir(slipstream) == slipstream.__all__
    with pytest.raises(AttributeError, match="module 'slipstream' has no attribute 'nothing'"):
        slipstream.nothing  # noqa: B018
