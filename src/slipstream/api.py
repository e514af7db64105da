"""The Python door: diagnose, tune, bench, train, compete, resume, evaluate, tournaments, an agent, a vector."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.agents.simple import BatchAgent
from slipstream.agents.specs import load_agent as _load_agent
from slipstream.agents.specs import load_trained, run_folder
from slipstream.agents.trained import TrainedAgent
from slipstream.algorithms.warm_start import DEFAULTS
from slipstream.config import Layer, Presets, Resolved, file_layer, flag_layer, preset_layer, preset_layers, resolve
from slipstream.contracts import Vector
from slipstream.demos.format import read_schema
from slipstream.demos.reader import Demos
from slipstream.envs.adapters.vector_api import VectorEnv, as_sb3
from slipstream.envs.registry import EnvChoice, known, parse
from slipstream.errors import ConfigError
from slipstream.perf import bench as benching
from slipstream.perf import diagnose as diagnosing
from slipstream.perf import tune as tuning
from slipstream.perf.env_timing import best_workers
from slipstream.perf.plan_cache import tuned_layer
from slipstream.plan import NATIVE_GAIN
from slipstream.runs.layout import RunDir, default_path
from slipstream.runs.metrics import read
from slipstream.runs.provenance import read_config, stage_of
from slipstream.stages import clone as cloning
from slipstream.stages import compete as competing
from slipstream.stages import evaluate as evaluation
from slipstream.stages import record as recording
from slipstream.stages import tournament as competition
from slipstream.stages import train as training
from slipstream.stages.tournament import Format
from slipstream.system.machine import cores
from slipstream.training.build import choose_env
from slipstream.vector.make import choose_native, spaces_of, spread_vector, steps_in_batches
from slipstream.vector.make import make_vector as _make_vector

EnvLike = str | Callable[[], Any]
APIS = ("gymnasium", "sb3")
"""What `make_vector` may return."""


@dataclass(frozen=True)
class Run:
    """A finished or stopped training: its folder and its numbers."""

    path: Path
    facts: dict[str, Any]

    def agent(self, which: str = "latest", sampled: bool = False) -> TrainedAgent:
        """Load an agent of this run: `latest`, `best`, or a number of steps."""
        return TrainedAgent.from_run(self.path, which, sampled)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read(RunDir.open(self.path))


def configure(
    env: str, *, preset: Presets = None, config: Path | None = None, agent: str = "",
    flags: Mapping[str, Any] | Sequence[str] = (), tuned: bool = True,
) -> Resolved:  # fmt: skip
    """Lay defaults, the game's preset, presets, the plan that `tune` found, a file and flags over each other.

    For a trained `agent`, what it sees and does comes from its own run, below your file and flags; so do the policy of
    a run that has a `start`, and the settings that keep it from forgetting. A clone plays as its demos were recorded.
    """
    game = parse(env)[0] if env else None
    layers: list[Layer] = []
    if game is not None and game.preset:
        layers.append(preset_layer(game.preset))
    layers += preset_layers(preset)
    chosen = flag_layer(flags if isinstance(flags, Mapping) else list(flags))
    own = [file_layer(config), chosen] if config else [chosen]
    start = next((layer.values["start"] for layer in reversed(own) if layer.values.get("start")), "")
    demos = next((layer.values["clone.demos"] for layer in reversed(own) if layer.values.get("clone.demos")), "")
    if agent.startswith("run:"):
        layers.append(_interface(agent))
    if demos:
        layers.append(_recorded(Path(demos)))
    if start:
        layers = [Layer("start", DEFAULTS), *layers, _interface(start), start_layer(start)]
    for one, other in (("steps", "minutes"), ("minutes", "steps")):
        if one in chosen.values and other not in chosen.values:
            chosen.values[other] = None
    plain = resolve(*layers, *own)
    found = tuned_layer(env, plain.settings) if tuned and env else None
    if found is None or not found.values:
        return plain
    return replace(resolve(*layers, found, *own), untuned=plain.settings)


def start_layer(start: str) -> Layer:
    """The policy of a trained agent, which a run that starts from it is held near."""
    agent = load_trained(start)
    policy = agent.design.policy.model_dump()
    normalised = bool((agent.design.split_params_and_stats(agent.params_and_stats)[2] != 1).any())
    values = {f"policy.{name}": value for name, value in policy.items()} | {"ppo.reference": start}
    return Layer(f"start {start}", values | {"ppo.normalise_obs": normalised, "sac.normalise_obs": normalised})


def _interface(agent: str) -> Layer:
    """What the env must offer so that a trained agent can play it, as its run was set."""
    folder = run_folder(agent)
    settings, _ = read_config(RunDir.open(folder))
    kept = ("action_repeat", "actions", "options")
    return Layer(f"{folder}/config.yaml", {f"env.{name}": getattr(settings.env, name) for name in kept})


def _recorded(folder: Path) -> Layer:
    """The env settings that demos were recorded with: a clone of them plays the same game."""
    shards = Demos.open(folder).shards if (folder / "demos.json").exists() else []
    told = shards[0].origin.get("settings", {}).get("env", {}) if shards else {}
    return Layer(f"{folder}", {f"env.{name}": value for name, value in told.items()})


def train(
    env: EnvLike, *, run: str | Path | None = None, preset: Presets = None, config: str | Path | None = None,
    terms: Mapping[str, Callable[..., float]] | None = None, tuned: bool = True, **settings: Any,
) -> Run:  # fmt: skip
    """Train on an environment, by name or by a function that makes it; settings as `steps=...`, `ppo__epochs=...`.

    `terms` are your own reward terms for a native game: plain functions of one env's state, compiled with the rest.
    A plan that `tune` found on this machine is used, unless `tuned` says not to.
    """
    name, factory = _name(env)
    resolved = configure(name, preset=preset, config=Path(config) if config else None, flags=settings, tuned=tuned)
    choice = choose_env(name, resolved.settings, factory=factory, terms=dict(terms or {}))
    result = training.train(choice, resolved, Path(run) if run else None)
    return Run(result.run, result.facts())


def compete(
    env: str, *, run: str | Path | None = None, preset: Presets = None, config: str | Path | None = None,
    terms: Mapping[str, Callable[..., float]] | None = None, tuned: bool = True, **settings: Any,
) -> Run:  # fmt: skip
    """Train by self-play in a league; settings as `league__snapshot=...`. The ladder is in the run's facts."""
    resolved = configure(env, preset=preset, config=Path(config) if config else None, flags=settings, tuned=tuned)
    choice = choose_env(env, resolved.settings, terms=dict(terms or {}))
    facts = competing.compete(choice, resolved, Path(run) if run else None)
    return Run(Path(facts["run"]), facts)


def tune(
    env: EnvLike, *, minutes: float = 0.75, free: bool = False, exact: bool = False, preset: Presets = None,
    config: str | Path | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Find the fastest plan for an environment on this machine, and keep it if that has a name.

    `settings` of what is returned are the faster plan's; `free` also tries larger batches, `exact` only what changes no
    bit of the result.
    """
    name, factory = _name(env)
    resolved = configure(name, preset=preset, config=Path(config) if config else None, flags=settings)
    choice = choose_env(name, resolved.settings, factory=factory)
    return tuning.tune(choice, resolved, seconds=60 * minutes, free=free, exact=exact).facts()


def resume(
    run: str | Path, *, steps: int | None = None, env: Callable[[], Any] | None = None,
    terms: Mapping[str, Callable[..., float]] | None = None,
) -> Run:  # fmt: skip
    """Go on with a run; `steps` is the total. A run whose env was given in Python needs `env` again."""
    place = RunDir.open(Path(run))
    if stage_of(place) == "clone":
        settings = read_config(place)[0]
        cloned = cloning.resume(place.path, settings, _say, lambda done, total: None)
        return Run(cloned.run, cloned.facts())
    if stage_of(place) == "compete":
        facts = competing.resume(place.path, steps, terms=dict(terms or {}))
        return Run(place.path, facts)
    result = training.resume(Path(run), steps, factory=env, terms=dict(terms or {}))
    return Run(result.run, result.facts())


def record(
    agent: str, env: EnvLike, episodes: int, out: str | Path, *, opponent: str | None = None,
    expert: str | None = None, seed: int | None = None, sampled: bool = False, workers: int | None = None,
    **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Record the games of an agent into a demos folder; return the facts."""
    name, factory = _name(env)
    choice = choose_env(name, configure(name, agent=agent, flags=settings).settings, factory=factory)
    return recording.record(
        choice, agent, episodes, Path(out), opponent=opponent, expert=expert, seed=seed, sampled=sampled,
        workers=workers,
    )  # fmt: skip


def clone(
    demos: str | Path, *, run: str | Path | None = None, preset: Presets = None,
    config: str | Path | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """Teach a policy to do as the demos do; settings as `clone__epochs=...`, `policy__hidden=...`."""
    folder = Path(demos)
    env = read_schema(folder).env
    given = {"clone__demos": str(folder)} | settings
    resolved = configure(
        env if known(env) else "", preset=preset, config=Path(config) if config else None, flags=given
    )  # fmt: skip
    result = cloning.clone(resolved, folder, Path(run) if run else None, _say, lambda done, total: None)
    return Run(result.run, result.facts())


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def evaluate(
    agent: str, env: EnvLike, *, opponent: str | Sequence[str] = (), games: int = 100, seed: int = 0,
    sampled: bool = False, beside: str | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Play games and return counts, rates and means with 95 % intervals; `beside` plays the same starts."""
    name, factory = _name(env)
    choice = choose_env(name, configure(name, agent=agent, flags=settings).settings, factory=factory)
    opponents = [opponent] if isinstance(opponent, str) else list(opponent)
    return evaluation.evaluate(choice, agent, opponents, games, seed=seed, sampled=sampled, beside=beside)


def diagnose(
    env: EnvLike, *, test: str = "all", seconds: float = diagnosing.SECONDS, preset: str | None = None,
    config: str | Path | None = None, terms: Mapping[str, Callable[..., float]] | None = None, tuned: bool = True,
    **settings: Any,
) -> diagnosing.Diagnosis:  # fmt: skip
    """Measure what keeps training on an environment from being faster: a verdict, ranked advice, and the numbers."""
    name, factory = _name(env)
    resolved = configure(name, preset=preset, config=Path(config) if config else None, flags=settings, tuned=tuned)
    choice = choose_env(name, resolved.settings, factory=factory, terms=dict(terms or {}))
    return diagnosing.diagnose(choice, resolved.settings, test=test, seconds=seconds)


def tournament(
    agents: Sequence[str], env: str, games: int, *, format: Format = "round-robin", run: str | Path | None = None,
    seed: int = 0, sampled: bool = False, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Let agents play each other in pairs of games; return the facts with the ladder in `tables`."""
    trained = next((agent for agent in agents if agent.startswith("run:")), "")
    choice = choose_env(env, configure(env, agent=trained, flags=settings).settings)
    return competition.tournament(
        choice, agents, games, format=format, seed=seed, sampled=sampled, run=Path(run) if run else None,
        on_notice=_say,
    )  # fmt: skip


def bench(
    a: str, b: str, *, env: str = "soccer", seconds: float = 10.0, repeats: int = benching.NEED_ROUNDS,
    games: int = 0, out: str | Path | None = None, settings: Sequence[str] = (), modules: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Train two sides in turn and compare speed and score; a side as on the command line, `settings` of both."""
    place = Path(out) if out else default_path(env, "benches")
    return benching.bench(
        [a, b], env=env, seconds=seconds, rounds=repeats, games=games, shared=settings, modules=modules, out=place,
        say=_say,
    )  # fmt: skip


def load_agent(spec: str, env: str | None = None, sampled: bool = False) -> BatchAgent:
    """Load an agent; `agent.act(obs)` takes one observation or a batch. Scripted and random ones need `env`."""
    if spec.startswith("run:"):
        return load_trained(spec, sampled)
    if env is None:
        raise ConfigError(f"`{spec}` plays a given game: which?", f'write load_agent("{spec}", env="soccer")')
    choice = choose_env(env, configure(env).settings)
    vector = _make_vector(choice, 1)
    try:
        return _load_agent(spec, vector.spec, choice, sampled)
    finally:
        vector.close()


def make_vector(
    env: EnvLike, *, envs: int = 1, workers: int | None = None, vector: str = "processes", seed: int = 0,
    api: str = "gymnasium", deadline_s: float = 60.0, **settings: Any,
) -> Any:  # fmt: skip
    """Make environments that step together, for a trainer of your own.

    What is returned is a `gymnasium.vector.VectorEnv`, or, with `api="sb3"`, a `VecEnv` of Stable-Baselines3. They are
    stepped one after another, or shared out over `workers` `processes` or `threads`; without a number, over as many
    processes as pay for themselves here. A process that dies, or stands still for `deadline_s`, is started anew: its
    episodes are truncated, with a warning. `seed` is that of the first episodes if `reset` is given none. A vector env
    that is registered for the env is used if it resets in the step that ends an episode, or with `plan__native=True`.
    """
    for word, given, allowed in (("vector", vector, ("serial", "threads", "processes")), ("api", api, APIS)):
        if given not in allowed:
            raise ConfigError(f"`{word}` cannot be {given!r}.", f"use one of: {', '.join(allowed)}")
    made_once: list[Any] = []
    name, factory = _name(env, made_once)
    resolved = configure(name, flags=settings).settings
    choice = choose_env(name, resolved, factory=factory)
    choice, probe = _probe(choice, made_once, envs, resolved.plan.native, late=api != "sb3")
    with contextlib.closing(probe):
        spaces = spaces_of(probe)
        if workers is None and choice.native:
            workers = 1  # one call for all takes hardly longer than one for half of them
        elif workers is None:
            more = partial(_make_vector, choice)
            workers = best_workers(probe, envs, cores(), more) if vector == "processes" else min(envs, cores())
        how = "serial" if workers == 1 else vector
        made = spread_vector(choice, envs, how, workers, seed=seed, deadline_s=deadline_s, respawn=True, probe=probe)
    try:
        found = VectorEnv(made, *spaces)
        return as_sb3(found) if api == "sb3" else found
    except BaseException:
        made.close()
        raise


def _probe(
    choice: EnvChoice, made: Sequence[Any], envs: int, native: bool | None, late: bool
) -> tuple[EnvChoice, Vector]:
    """What is to be stepped, by a vector env of its own where that is as good, and some of it to look at.

    `made` may hold one that was made already.
    """
    batches = steps_in_batches(choice)
    probe = _make_vector(replace(choice, factory=lambda: made[0]) if made else choice, envs if batches else 1)
    if batches or native is False:
        return choice, probe
    try:
        why, gain = choose_native(choice, probe.spec, envs, late=late and native is True)
        if native and why:
            raise ConfigError(f"plan.native=true: {why}.", "leave plan.native unset")
        if why or (native is None and gain < NATIVE_GAIN):
            return choice, probe
    except BaseException:
        probe.close()
        raise
    probe.close()
    choice = replace(choice, native=True)
    return choice, _make_vector(choice, envs)


def _name(env: EnvLike, made: list[Any] | None = None) -> tuple[str, Callable[[], Any] | None]:
    """The name of an environment and what makes it; one that had to be made for that is closed, or put into `made`."""
    if isinstance(env, str):
        return env, None
    if not callable(env):
        raise ConfigError(
            f"An environment is a name or a function that makes it, not a {type(env).__name__}.",
            "write ss.train(lambda: MyEnv())",
        )
    if inspect.isclass(env):
        return f"python:{env.__name__}", env
    one = env()
    if made is None:
        one.close()
    else:
        made.append(one)
    return f"python:{type(one).__name__}", env


__all__ = [
    "EnvChoice", "Run", "bench", "clone", "compete", "configure", "diagnose", "evaluate", "load_agent", "make_vector",
    "record", "resume", "tournament", "train", "tune",
]  # fmt: skip
