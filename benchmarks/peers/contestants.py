"""The contestants and one run of each: virtual environments, command lines and processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from case import CASES, Case

from harness import set_flags

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent
VENVS = ROOT / ".venvs"
TORCH = "torch==2.13.0"
INSTALL_LIMIT_S = 900.0
START_LIMIT_S = 150.0  # imports, first iteration and shutdown of the slowest peer on a busy machine
PROBE_ITERATIONS = 8


@dataclass(frozen=True)
class Build:
    """Additional requirements for building a source release."""

    requirements: tuple[str, ...]
    environment: Mapping[str, str]
    prelude: str


@dataclass(frozen=True)
class Peer:
    """Another trainer, installed in its own virtual environment."""

    script: str
    requirements: tuple[str, ...]
    variants: tuple[str, ...]
    build: Build | None = None
    slow: tuple[str, ...] = ()
    """Variants that run on slow environments only. They are far slower than the others elsewhere."""


# PufferLib 3.0.0: without NO_OCEAN its build downloads raylib and compiles games; with it setup.py reads an
# undefined name, which the prelude (run as that interpreter starts) provides; an nvcc on the PATH would start a
# CUDA build.
PUFFER_BUILD = Build(
    ("setuptools", "wheel", "Cython", "numpy", "ninja"),
    {"NO_OCEAN": "1", "PATH": "/usr/bin:/bin"},
    "import builtins\n\nbuiltins.c_extension_paths = []\n",
)
PEERS = {
    "sb3": Peer("sb3.py", ("stable-baselines3", "sb3-contrib"), ("dummy", "subproc")),
    "sbx": Peer("sbx_ppo.py", ("sbx-rl",), ("dummy",)),
    "skrl": Peer("skrl_ppo.py", ("skrl",), ("sync",), slow=("async",)),
    "samplefactory": Peer("samplefactory.py", ("sample-factory",), ("async", "sync", "serial")),
    "pufferlib": Peer("puffer.py", ("pufferlib>=3,<4",), ("serial",), PUFFER_BUILD, slow=("multi",)),
    "tianshou": Peer("tianshou_ppo.py", ("tianshou",), ("dummy",)),
    "torchrl": Peer("torchrl_ppo.py", ("torchrl",), ("serial",)),
    "rllib": Peer("rllib.py", ("ray[rllib]",), ("local",)),
    "imitation": Peer("imitation_bc.py", ("imitation",), ()),  # no PPO: only cloning.py runs it
}
LAGS = (0, 1)
HALF = "bf16-"
"""Prefix of Slipstream's variants in bf16. They run on cases with images only."""

# name on the command line: (case, epochs, bar of the ratio to the best peer)
WORK = {
    "cartpole-1": ("cartpole", 1, 4.0),
    "cartpole-4": ("cartpole", 4, 4.0),
    "halfcheetah": ("halfcheetah", 10, 4.0),
    "minigrid": ("minigrid", 4, 1.2),
    "pong-1": ("pong", 1, 1.5),
    "pong-4": ("pong", 4, 1.2),
}
GAMES = {
    "games": ("minigrid==3.2.0", "pygame"),
    "atari": ("ale-py==0.12.1", "opencv-python-headless"),
}
"""Packages of environments by folder, installed once for all contestants, without dependencies."""
FRAMED = ("slipstream", "sb3", "samplefactory")
"""Peers that run Atari games."""


@dataclass(frozen=True)
class Contestant:
    """A peer with a variant, or Slipstream with a lag."""

    peer: str
    variant: str

    @property
    def name(self) -> str:
        """The name in tables and on the command line."""
        return f"{self.peer}-{self.variant}"


def contestants(wanted: Sequence[str]) -> list[Contestant]:
    """The contestants with these names or of these peers; all contestants for no names."""
    everyone = [Contestant("slipstream", f"{half}lag{lag}") for half in ("", HALF) for lag in LAGS]
    everyone += [Contestant(name, way) for name, peer in PEERS.items() for way in (*peer.variants, *peer.slow)]
    unknown = set(wanted) - {one.name for one in everyone} - {one.peer for one in everyone}
    if unknown:
        raise SystemExit(f"Unknown peers {sorted(unknown)}. hint: choose from {[one.name for one in everyone]}")
    return [one for one in everyone if not wanted or one.name in wanted or one.peer in wanted]


def takes_part(one: Contestant, case: Case) -> bool:
    """Whether a contestant is run on a case."""
    if case.frames and one.peer not in FRAMED:
        return False
    if one.variant.startswith(HALF):
        return case.frames
    return case.slow or one.peer not in PEERS or one.variant not in PEERS[one.peer].slow


def case_of(work: str) -> Case:
    """The case of a name on the command line, with its epochs."""
    name, epochs, _ = WORK[work]
    return replace(CASES[name], epochs=epochs)


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def install(name: str) -> str | None:
    """Create a peer's virtual environment if it is missing. Return the reason if that fails."""
    peer, folder = PEERS[name], VENVS / name
    wanted = " ".join((TORCH, *peer.requirements))
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    say(f"{name}: installing {', '.join(peer.requirements)}")
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    constraints = VENVS / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-c", str(constraints)]
    steps: list[list[str]] = [[TORCH], [*peer.requirements, "gymnasium[mujoco]"]]  # torch first: no other may come
    if peer.build:
        steps = [steps[0], [*peer.build.requirements], ["--no-build-isolation", *steps[1]]]
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "sitecustomize.py").write_text(peer.build.prelude)
    for words in steps:
        environment = peer.build.environment if peer.build else None
        done = launch([*pip, *words], INSTALL_LIMIT_S, environment, expects_json=False)
        if done.failure:
            return f"install: {done.failure}"
    stamp.write_text(wanted)
    return None


def games_of(case: Case) -> str:
    """The folder of packages that a case's environment needs; empty: none."""
    return "games" if case.module else "atari" if case.frames else ""


def install_games(name: str = "games", venvs: Path = VENVS) -> str | None:
    """Install the packages of environments if they are missing. Return the reason if that fails."""
    folder, wanted = venvs / name, GAMES[name]
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == " ".join(wanted):
        return None
    say(f"installing {', '.join(wanted)}")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(folder)]
    done = launch([*pip, *wanted], INSTALL_LIMIT_S, expects_json=False)
    if done.failure:
        return f"install: {done.failure}"
    stamp.write_text(" ".join(wanted))
    return None


def path_of(case: Case) -> dict[str, str]:
    """The search path of the modules of a case's environment."""
    name = games_of(case)
    return search_path(*([SCRIPTS, VENVS / name] if name else []))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a process: its last line of JSON, or the reason why there is none."""

    row: dict[str, Any]
    failure: str | None
    wall_seconds: float


def launch(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None, expects_json: bool = True
) -> Outcome:
    """Run a command in an empty folder and kill its children afterwards. `expects_json`: its last line must be JSON."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, open(Path(folder) / "stderr", "w+b") as errors:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome({}, f"does not start: {last_error(str(error), folder)}", 0.0)
        try:
            out, _ = process.communicate(timeout=limit_s)
            failure = None
        except subprocess.TimeoutExpired:
            out, failure = b"", f"no end after {limit_s:.0f} s"
        finally:
            end_children()
        wall = time.perf_counter() - started
        errors.seek(0)
        last = last_error(errors.read().decode(errors="replace"), folder)
    if failure is None and process.returncode:
        failure = f"exit {process.returncode}: {last}"
    row: dict[str, Any] = {}
    lines = out.decode(errors="replace").strip().splitlines()
    if failure is None and expects_json:
        try:
            row = json.loads(lines[-1])
        except (IndexError, json.JSONDecodeError):
            failure = f"last line is not JSON: {''.join(lines[-1:])[:200]!r}"
    return Outcome(row, failure, wall)


def last_error(text: str, folder: str) -> str:
    """The line of a log that most likely names the error, without paths of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line] or lines or ["nothing on stderr"]
    return errors[-1].replace(folder, "TMP").replace(str(ROOT), ".")[:300]


def adopt_orphans() -> None:
    """Adopt processes that outlive their parent (Linux), so that none is left behind."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def end_children() -> None:
    """Kill all descendants of this process."""
    for _ in range(10):
        children = psutil.Process().children(recursive=True)
        if not children:
            return
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(children, timeout=2)


@contextmanager
def child_cleanup() -> Iterator[None]:
    """Kill all descendants of this process at the end."""
    adopt_orphans()
    try:
        yield
    finally:
        end_children()


def peer_run(
    one: Contestant, options: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a peer's script in its virtual environment."""
    python = VENVS / one.peer / "bin" / "python"
    script = SCRIPTS / PEERS[one.peer].script
    return launch([str(python), str(script), "--vec", one.variant, *options], limit_s, environment)


def slipstream_program() -> list[str]:
    """The command of slipstream: from the project's virtual environment, or with this interpreter if there is none."""
    program = ROOT / ".venv" / "bin" / "slipstream"
    return [str(program)] if program.exists() else [sys.executable, "-m", "slipstream.cli"]


def slipstream_command(env: str, run: Path, steps: int, seed: int, extra: Sequence[str]) -> list[str]:
    """The command line of one slipstream training run."""
    fixed = ["--steps", str(steps), "--seed", str(seed), "--run", str(run), "--json", "--no-tuned"]
    return [*slipstream_program(), "train", env if ":" in env else f"gymnasium:{env}", *fixed, *extra]


def interpreter(text: str) -> str:
    """A Python interpreter of the command line: a name as it is, a path made absolute."""
    return str(Path(text).absolute()) if os.sep in text else text


def search_path(*folders: Path) -> dict[str, str]:
    """PYTHONPATH followed by these folders, absolute because runs have their own working directory."""
    known = [Path(name) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name]
    return {"PYTHONPATH": os.pathsep.join(str(folder.resolve()) for folder in (*known, *folders))}


def slipstream_settings(case: Case, lag: int) -> list[str]:
    """The case as settings of Slipstream."""
    settings = {
        "plan.envs": case.envs,
        "plan.lag": lag,
        "ppo.rollout": case.rollout,
        "ppo.minibatch": case.minibatch,
        "ppo.epochs": case.epochs,
        "ppo.learning_rate": case.learning_rate,
        "policy.hidden": json.dumps(list(case.hidden), separators=(",", ":")),
        "policy.activation": case.activation,
        "policy.shared": "false",
    }
    if case.frames:
        settings |= {
            "policy.shared": "true",
            "policy.features": 512,
            "ppo.clip": case.clip,
            "ppo.entropy_coef": case.entropy,
        }
    return set_flags([f"{key}={value}" for key, value in settings.items()])


def slipstream_run(case: Case, lag: int, steps: int, seed: int, limit_s: float, extra: Sequence[str] = ()) -> Outcome:
    """Train Slipstream on a case for a number of steps; its row has the keys of the peers' rows."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        options = [*slipstream_settings(case, lag), *extra, *(["--import", case.module] if case.module else [])]
        env = f"atari:{case.env.removesuffix('NoFrameskip-v4')}" if case.frames else case.env
        command = slipstream_command(env, Path(folder) / "run", steps, seed, options)
        done = launch(command, limit_s, path_of(case))
    row = {key: value for key, value in done.row.items() if key not in ("run", "checkpoint")}
    shape = {
        "env": case.env,
        "seed": seed,
        "envs": case.envs,
        "batch": case.batch,
        "minibatch": case.minibatch,
        "epochs": case.epochs,
        "hidden": list(case.hidden),
        "activation": case.activation,
        "version": slipstream_version(),
    }
    return replace(done, row=shape | row)


def slipstream_version() -> str:
    """The installed version of Slipstream."""
    return version_of("slipstream")


def version_of(package: str) -> str:
    """The version of a package in this virtual environment."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def whole_iterations(steps: float, case: Case) -> int:
    """A step count rounded to whole iterations, two at least."""
    return max(2, round(steps / case.batch)) * case.batch
