"""The command line: results on stdout, progress on stderr, exit codes and keys that scripts rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import slipstream
from slipstream.api import Run
from slipstream.cli import main
from slipstream.runs.checkpoint import steps_of
from slipstream.runs.layout import RunDir

Cli = Callable[..., Result]
TRAINED = {
    "run", "steps", "seconds", "start_seconds", "steps_per_second", "mean_return", "checkpoint", "stopped",
    "evaluating", "evaluate_every",
}  # fmt: skip
RESULT = {
    "games", "wins", "draws", "losses", "win_rate", "win_rate_low", "win_rate_high", "score", "score_low", "score_high",
    "mean_return", "mean_return_low", "mean_return_high", "mean_length", "behaviour", "opponent_behaviour",
}  # fmt: skip
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
    """The one JSON object, which is all that stands on stdout."""
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1, "stdout is for the result alone"
    loaded: dict[str, Any] = json.loads(lines[0])
    return loaded


def error(result: Result, code: int) -> str:
    """What is said when a command fails: on stderr, with its exit code, without a traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_train_json(cli: Cli, tmp_path: Path) -> None:
    """`train --json` ends with one object with exactly the documented keys; progress goes to stderr."""
    result = cli("train", "soccer", *QUICK, "--steps", 300, "--run", "r", "--seed", 3, "--json")
    found = facts(result)
    assert found.keys() == TRAINED
    assert found["run"] == "r" and found["steps"] == 384 and found["stopped"] == ""
    assert Path(found["checkpoint"]).is_dir()
    assert re.search(r"^plan\.collector +local +local +asked for$", result.stderr, re.MULTILINE)
    assert re.search(r"^env\.action_repeat +4 +the game's own$", result.stderr, re.MULTILINE)
    assert "plan.workers" not in result.stderr and "plan.graphs" not in result.stderr
    assert "seed: 3  # flag" in (tmp_path / "r" / "config.yaml").read_text()


def test_train_for_a_person(cli: Cli) -> None:
    """Without --json the result is a few lines, with the command that goes on; the run has a name of its own."""
    result = cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 256)
    assert result.exit_code == 0, result.output
    run = next(Path("runs").iterdir())
    lines = result.stdout.splitlines()
    assert lines[0].startswith("256 steps in ")
    assert lines[1].startswith("mean return of the last 100 episodes: ")
    assert lines[-1] == f"go on: slipstream resume {run} --steps 512"
    assert run.name.startswith("gymnasium-cartpole-v1-")


def test_train_by_the_clock(cli: Cli) -> None:
    """`--minutes` replaces the preset's steps."""
    found = facts(cli("train", "gymnasium:CartPole-v1", *QUICK, "--minutes", 0.005, "--run", "r", "--json"))
    assert found["steps"] > 0
    assert found["seconds"] > 0.25  # the last iteration is timed a little before it is seen to be the last
    assert found["seconds"] - found["start_seconds"] < 10


def test_resume_json(cli: Cli) -> None:
    """`resume --steps` is the total; a finished run says how to go further."""
    cli("train", "soccer", *QUICK, "--steps", 256, "--run", "r")
    found = facts(cli("resume", "r", "--steps", 512, "--json"))
    assert found.keys() == TRAINED
    assert found["steps"] == 512
    assert error(cli("resume", "r", "--json"), 2) == (
        "error: r is finished: it has 512 steps.\nhint: give a larger total: slipstream resume r --steps 1024\n"
    )


def test_evaluate_json(cli: Cli, trained: Run) -> None:
    """`evaluate --json` has exactly the documented keys, in all and against each opponent."""
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
    """A game of one side has returns and no rates."""
    found = facts(cli("evaluate", "random", "--env", "gymnasium:CartPole-v1", "--games", 5, "--json"))
    assert found.keys() == EVALUATED
    assert found["win_rate"] is None and found["opponents"] == {}
    assert found["mean_return"] == found["mean_length"]


def test_run_json_and_its_report(cli: Cli) -> None:
    """`run` records, clones, trains, competes, plays and reports, each from disk; its object holds theirs."""
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
        assert outside not in page, "the report needs nothing but itself"


def test_run_skips_stages(cli: Cli) -> None:
    """`--skip` leaves stages out; what they would have made must then be there."""
    found = facts(
        cli("run", "gymnasium:CartPole-v1", *QUICK, "--steps", 256, "--run", "r", "--skip", "evaluate", "--json")
    )
    assert found.keys() == {"stages", "tune", "train", "report", "times"}
    assert found["stages"] == ["tune", "train", "report"]
    words = ["--skip", "train", "--skip", "report", "--run", "r", "--set", "evaluation.final_games=3", "--json"]
    later = facts(cli("run", "gymnasium:CartPole-v1", *words))
    assert later["stages"] == ["evaluate"] and later["evaluate"]["games"] == 3
    assert error(cli("run", "soccer", "--skip", "trian"), 2) == (
        "error: There is no stage `trian`. Did you mean `train`?\n"
        "hint: stages: tune, record, clone, train, compete, evaluate, tournament, report\n"
    )
    assert error(cli("run", "soccer", "--skip", "train"), 2) == (
        "error: Without training there must be a run to go on from.\nhint: name it: --run DIR\n"
    )


def test_envs_json(cli: Cli) -> None:
    """`envs` lists the built-in game with its variants and everything that Gymnasium has."""
    found = facts(cli("envs", "--json"))
    assert found.keys() == {"games", "gymnasium"}
    assert found["games"]["soccer"].keys() == {"summary", "variants"}
    assert "gymnasium:CartPole-v1" in found["gymnasium"]
    assert "soccer:2v2" in cli("envs").stdout


def test_agents_json(cli: Cli) -> None:
    """`agents` lists who can play an env: chance, scripts, and the runs found here."""
    assert facts(cli("agents", "soccer", "--json")) == {
        "env": "soccer", "agents": ["random", "scripted:chaser", "scripted:keeper", "scripted:rule"],
    }  # fmt: skip
    cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 64, "--run", "runs/mine")
    assert facts(cli("agents", "gymnasium:CartPole-v1", "--json"))["agents"] == ["random", "run:runs/mine"]


def test_doctor_json(cli: Cli) -> None:
    """`doctor` tells what the machine has, with a check and a hint for each thing."""
    found = facts(cli("doctor", "--json"))
    assert found.keys() == {
        "platform", "python", "cpu", "cores", "cores_affinity", "cores_cgroup", "cores_all", "memory_gib",
        "disk_free_gib", "fingerprint", "versions", "torch", "checks", "ok",
    }  # fmt: skip
    assert {check["name"] for check in found["checks"]} == {
        "python", "cores", "memory", "disk", "folder", "torch", "numba"
    }  # fmt: skip
    assert all(check.keys() == {"name", "ok", "says", "hint"} for check in found["checks"])
    assert found["torch"]["works"] is True
    assert cli("doctor").stdout.startswith("ok   python")


def test_show(cli: Cli) -> None:
    """`--show` prints every setting with value and origin, and starts nothing."""
    lines = cli("train", "soccer", "--show", "--set", "ppo.epochs=9").stdout.splitlines()
    assert "ppo.epochs = 9  (flag)" in lines
    assert "plan.lag = unset  (default)" in lines
    found = facts(cli("train", "soccer", "--show", "--json", "--set", "ppo.epochs=9"))
    assert found.keys() == {"settings"}
    assert found["settings"]["ppo.epochs"] == {"value": 9, "origin": "flag"}
    assert not Path("runs").exists()


def test_dry_run(cli: Cli) -> None:
    """`--dry-run` makes everything, says the plan with its reasons, and leaves nothing behind."""
    found = facts(cli("train", "soccer", *QUICK, "--dry-run", "--json"))
    assert found.keys() == {"env", "agents", "obs", "batch", "parameters", "gamma", "plan"}
    assert found["agents"] == 2 and found["batch"] == 4 * 2 * 16
    assert found["plan"]["plan.collector"] == {"requested": "local", "applied": "local", "why": "requested"}
    assert all(switch.keys() == {"requested", "applied", "why"} for switch in found["plan"].values())
    assert not Path("runs").exists()
    assert "nothing was trained" in cli("train", "soccer", *QUICK, "--dry-run").stdout


def test_smoke_does_everything(trained: Run) -> None:
    """The smoke preset logs, evaluates, saves, samples the system, measures gradients and feeds TensorBoard."""
    run = RunDir.open(trained.path)
    rows = trained.metrics()
    assert trained.facts["steps"] == 1024
    assert len(rows) >= 7
    keys = set().union(*rows)
    for name in (
        "steps", "iteration", "lag", "loss/policy", "loss/value", "ppo/entropy", "ppo/kl", "ppo/clip_fraction",
        "ppo/explained_variance", "ppo/learning_rate", "episode/return_mean", "reward/goal", "evaluate/win_rate",
        "evaluate/opponent", "gradient/trunk.layers.0.weight/length", "system/cpu_percent", "time/steps_per_second",
    ):  # fmt: skip
        assert name in keys, name
    assert steps_of(run)[-1] == 1024
    assert (run.checkpoints / "best.json").is_file()
    (trace,) = run.traces.glob("*.json")
    assert "iteration" in {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert list(run.tensorboard.glob("events.*"))
    assert json.loads(run.provenance.read_text())["env"] == "soccer"
    assert not run.lock_file.exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            ["train", "soccer", "--set", "ppo.learnig_rate=1"], 2,
            "error: Unknown setting `ppo.learnig_rate`. Did you mean `ppo.learning_rate`?\n"
            "hint: `slipstream train ENV --show` lists all settings\n",
        ),
        (
            ["train", "gymnasium:CartPole-v1", "--set", "plan.envs=64", "--set", "ppo.minibatch=3000"], 2,
            "error: A rollout of 64 envs x 128 steps = 8192 samples does not divide by `ppo.minibatch` = 3000.\n"
            "hint: use a divisor, e.g. 2048.\n",
        ),
        (
            ["train", "socker"], 3,
            "error: There is no environment `socker`. Did you mean `soccer`?\n"
            "hint: for a Gymnasium env write gymnasium:socker; `slipstream envs` lists what there is\n",
        ),
        (
            ["train", "gymnasium:NoSuch-v0"], 3,
            "error: Gymnasium has no environment `NoSuch-v0`.\n"
            "hint: if your own module registers it, add --import MODULE; `slipstream envs` lists what there is\n",
        ),
        (
            ["train", "soccer", "--opponent", "scripted:rulle"], 2,
            "error: `soccer` has no player `scripted:rulle`. Did you mean `rule`?\n"
            "hint: use one of: chaser, keeper, rule\n",
        ),
        (
            ["evaluate", "rule", "--env", "soccer", "--opponent", "random", "--games", "2"], 2,
            "error: `rule` does not name an agent.\n"
            "hint: write random, scripted:NAME, run:DIR, run:DIR@best or run:DIR@STEPS\n",
        ),
        (
            ["evaluate", "random", "--env", "soccer", "--games", "2"], 2,
            "error: `soccer` has two sides: it needs an opponent.\nhint: add --opponent AGENT\n",
        ),
        (
            ["evaluate", "random", "--env", "soccer", "--opponent", "random", "--games", "0"], 2,
            "error: 0 games cannot be played.\nhint: give --games a positive number\n",
        ),
        (
            ["train", "gymnasium:CartPole-v1", "--opponent", "random"], 2,
            "error: `gymnasium:CartPole-v1` has one side and takes no opponent.\n"
            "hint: leave --opponent out\n",
        ),
        (
            ["resume", "runs/none"], 5,
            "error: No run at runs/none: no such folder.\nhint: start one with `slipstream train ENV --run runs/none`, "
            "or name the folder that holds `checkpoints`\n",
        ),
        (
            ["evaluate", "run:none", "--env", "soccer", "--opponent", "random", "--games", "2"], 5,
            "error: No run at none: no such folder.\nhint: start one with `slipstream train ENV --run none`, "
            "or name the folder that holds `checkpoints`\n",
        ),
        (
            ["train", "soccer", "--import", "not_a_module"], 2,
            "error: --import not_a_module: No module named 'not_a_module'\n"
            "hint: name a module that Python finds from the current folder\n",
        ),
        (
            ["train", "soccer", "--config", "none.yaml"], 2,
            "error: There is no config file `none.yaml`.\nhint: give an existing YAML file to --config\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes(words: list[str], code: int, text: str, cli: Cli) -> None:
    """Each mistake is answered with what happened and what to do, and ends with its own code."""
    assert error(cli(*words), code) == text
    assert not Path("runs").exists(), "nothing is started"


def test_a_flag_that_does_not_exist(cli: Cli) -> None:
    """A wrong flag is a wrong setting: exit code 2."""
    assert cli("train", "soccer", "--stepz", "3").exit_code == 2
    assert cli("trane").exit_code == 2


def test_a_run_is_not_started_twice_in_one_folder(cli: Cli) -> None:
    """A folder that holds a run is refused, with both ways out."""
    cli("train", "gymnasium:CartPole-v1", *QUICK, "--steps", 64, "--run", "r")
    assert error(cli("train", "gymnasium:CartPole-v1", *QUICK, "--run", "r"), 5) == (
        "error: r already holds a run.\nhint: resume it with `slipstream resume r`, or choose another `--run DIR`\n"
    )


def test_damaged_checkpoints(cli: Cli) -> None:
    """A damaged newest one is passed over with a notice; when all are damaged, nothing is made up: exit code 5."""
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
    assert "Checkpoint 512 was skipped: " in result.stderr
    assert "learner.safetensors is damaged: expected sha256" in result.stderr
    assert steps_of(RunDir(Path("r"))) == [256, 512, 640]
    for steps in steps_of(RunDir(Path("r"))):
        damage(steps)
    text = error(cli("resume", "r", "--steps", 999), 5)
    assert text.startswith("error: No checkpoint of r is valid. Checkpoint 640 was skipped: ")
    assert text.endswith("hint: start again with `slipstream train ENV --run DIR`, in another folder\n")
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
    """`--import my_module` brings the user's env to this process and to the workers, and `resume` needs it too."""
    (tmp_path / "my_module.py").write_text(MY_ENV)
    words = ["-m", "slipstream.cli", "train", "gymnasium:Mine-v0", *QUICK, "--set", "plan.collector=actors"]
    done = python(
        tmp_path, *words, "--set", "plan.workers=2", "--steps", "256", "--import", "my_module", "--run", "r", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 256
    without = python(tmp_path, "-m", "slipstream.cli", "resume", "r", "--steps", "512")
    assert without.returncode == 3
    assert "Gymnasium has no environment `Mine-v0`." in without.stderr and "add --import MODULE" in without.stderr
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
    """No `__main__` guard is needed, a lambda over a class of the script will do, and the run says how to resume it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "256",
        "The environment of r was given as a Python function and has no name.",
        "hint: resume it in Python: slipstream.resume('r', env=lambda: Mine(...))",
        "512",
    ]


def test_help_is_quick_and_light(tmp_path: Path) -> None:
    """`--help` takes less than half a second and imports neither torch nor numba; nor does `import slipstream`."""
    code = (
        "import sys, time\nfrom slipstream.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numba', 'gymnasium'} & set(sys.modules)))"
    )
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        done = python(tmp_path, "-c", code)
        taken.append(time.perf_counter() - began)
    assert done.stdout.splitlines()[-1] == "[]"
    for verb in ("run", "train", "resume", "evaluate", "envs", "agents", "doctor"):
        assert f"\n  {verb} " in done.stdout
    assert min(taken) < 0.5
    light = "import slipstream, sys; slipstream.__all__; print(sorted({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    assert python(tmp_path, "-c", light).stdout == "[]\n"


def test_every_verb_has_the_shared_flags(cli: Cli) -> None:
    """`--json` is everywhere, and `--import` wherever a verb makes an env."""
    for verb, command in main.commands.items():
        for words in [[verb, name] for name in command.commands] if isinstance(command, click.Group) else [[verb]]:
            text = cli(*words, "--help").stdout
            assert "--json" in text, words
            assert "--import" in text or verb in ("demos", "convert"), words


def test_version(cli: Cli) -> None:
    """`--version` is that of the package."""
    assert cli("--version").stdout.strip() == slipstream.__version__


def test_the_public_names() -> None:
    """What `slipstream` offers is fixed here: a change of this list is a change for users."""
    assert slipstream.__all__ == [
            "CheckpointError", "ConfigError", "DemoError", "Demos", "EnvError", "MachineError", "Run", "Settings",
            "SlipstreamError", "__version__", "batch_iter", "bench", "buffered_batch_iter", "clone", "compete",
            "diagnose", "empty_rows", "evaluate", "import_trajectories", "load_agent", "make_vector", "record",
            "resume", "sarsd_iter", "tournament", "train", "tune",
    ]  # fmt: skip
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    assert dir(slipstream) == slipstream.__all__
    with pytest.raises(AttributeError, match="module 'slipstream' has no attribute 'nothing'"):
        slipstream.nothing  # noqa: B018
