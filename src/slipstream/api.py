"""The Python functions behind `slipstream.train`, `slipstream.evaluate` and the other public names.

A function resolves settings and environment (`stages.prepare`) and calls its stage. The options of a verb are the
keyword parameters of the stage function; `verb` adds them to the signature that `help` shows.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from slipstream.agents.own import name_agents
from slipstream.agents.simple import BatchAgent
from slipstream.agents.specs import FORMS, load_trained, run_folder
from slipstream.agents.specs import load_agent as _load_agent
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import Vector
from slipstream.demos.format import read_schema
from slipstream.envs.adapters.vector_api import VectorEnv, as_sb3
from slipstream.envs.registry import EnvChoice, UserCode, import_modules, known
from slipstream.errors import CheckpointError, ConfigError
from slipstream.perf import bench as benching
from slipstream.perf import diagnose as diagnosing
from slipstream.perf import tune as tuning
from slipstream.perf.env_timing import best_workers
from slipstream.plan import NATIVE_GAIN
from slipstream.runs.checkpoint import find, load
from slipstream.runs.figures import Figure
from slipstream.runs.layout import RunDir, default_path
from slipstream.runs.metrics import read
from slipstream.runs.notebook import facts_table, metrics_figure
from slipstream.runs.provenance import read_config, stage_of
from slipstream.runs.replays import Replay
from slipstream.runs.sinks import MetricsSink, check_sink_names
from slipstream.stages import clone as cloning
from slipstream.stages import compete as competing
from slipstream.stages import convert as converting
from slipstream.stages import evaluate as evaluation
from slipstream.stages import record as recording
from slipstream.stages import replay as replaying
from slipstream.stages import reward_report as rewarding
from slipstream.stages import run as running
from slipstream.stages import tournament as competition
from slipstream.stages import train as training
from slipstream.stages import watch as watching
from slipstream.stages.prepare import (
    AgentLike,
    EnvLike,
    Prepared,
    Sources,
    agent_spec,
    configure,
    keyword_options,
    prepare,
    source_names,
)
from slipstream.system.machine import cores
from slipstream.system.user_modules import names as module_names
from slipstream.training.build import choose_env
from slipstream.training.callbacks import OnIteration
from slipstream.vector.make import choose_native, spaces_of, spread_vector, steps_in_batches
from slipstream.vector.make import make_vector as _make_vector

F = TypeVar("F", bound=Callable[..., Any])
Sinks = str | MetricsSink | Sequence[str | MetricsSink]
"""Metrics sinks: names or objects, one or several."""
APIS = ("gymnasium", "sb3")
"""The interfaces that `make_vector` can return."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished or stopped run: its directory and its results."""

    path: Path
    facts: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a run that exists, for its metrics, charts and agents."""
        run = RunDir.open(Path(path))
        newest = find(run)
        steps = load(newest, groups=()).steps
        return cls(run.path, {"run": str(run.path), "steps": steps, "checkpoint": str(newest)})

    def agent(self, which: str = "latest", sampled: bool = False) -> TrainedAgent:
        """Load an agent of this run: `latest`, `best`, or a number of steps."""
        return TrainedAgent.from_run(self.path, which, sampled)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read(RunDir.open(self.path))

    def plot(self, *keys: str | Sequence[str]) -> Figure:
        """A chart of each metric over steps, by default of the most telling ones; `.save(path)` writes a PNG file."""
        names = [name for key in keys for name in ([key] if isinstance(key, str) else key)]
        return metrics_figure(self.metrics(), names, str(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return facts_table(str(self.path), self.facts)


def verb(stage: Callable[..., Any] | None = None, configurable: bool = True) -> Callable[[F], F]:
    """Complete the signature of a public function: the keyword options of `stage`, then sources and settings."""

    def complete(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {one.name for one in own}
        more = [one for name, one in keyword_options(stage).items() if name not in taken]
        if configurable:
            more += [
                inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
                for one in fields(Sources)
                if one.name in source_names() and one.name not in taken
            ]
            more.append(inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD, annotation="Any"))
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return complete


def _path(place: str | Path | None) -> Path | None:
    return Path(place) if place else None


def _spec_of(agent: Any, options: dict[str, Any], name: str = "agent") -> str:
    """The spec of an agent; one that is a Python object is added to `options["agents"]`."""
    if agent is None:
        raise ConfigError(f"`{name}` is None, which is not an agent.", f"write {FORMS}, or pass a Python object")
    options["agents"] = agents = name_agents(options.get("agents"))
    return str(agent_spec(agent, agents, name))


def _specs_of(given: Any, options: dict[str, Any], name: str = "agents") -> list[str]:
    """The specs of several agents, or of one."""
    one = isinstance(given, str) or callable(given) or hasattr(given, "act") or not isinstance(given, Iterable)
    return [_spec_of(agent, options, name) for agent in ([given] if one else given)]


def _notice(line: str) -> None:
    print(line, file=sys.stderr)


@verb()
def train(
    env: EnvLike,
    *,
    run: str | Path | None = None,
    opponent: AgentLike = None,
    teacher: AgentLike = None,
    on_iteration: OnIteration | None = None,
    sinks: Sinks | None = None,
    **options: Any,
) -> Run:
    """Train on an environment, by name or by a function that makes it; settings as `steps=...`, `ppo__epochs=...`.

    `opponent` plays the other side. `teacher` is imitated beside PPO; a trained one is a KL reference.
    `on_iteration(steps, metrics, handle)` is called after every iteration. `sinks` get the metrics: names such as
    `"csv"`, or objects with the methods of `MetricsSink`.
    """
    if opponent is not None:
        options["opponent"] = _spec_of(opponent, options, "opponent")
    if teacher is not None:
        spec = _spec_of(teacher, options, "teacher")
        options["ppo__reference" if spec.startswith("run:") else "ppo__teacher"] = spec
    own = _own_sinks(sinks, options)
    prepared = prepare(env, options)
    result = training.train(prepared.choice, prepared.resolved, _path(run), on_iteration=on_iteration, sinks=own)
    return Run(result.run, result.facts())


@verb()
def compete(
    env: EnvLike,
    *,
    run: str | Path | None = None,
    on_iteration: OnIteration | None = None,
    sinks: Sinks | None = None,
    **options: Any,
) -> Run:
    """Train by self-play in a league; settings as `league__snapshot=...`. `facts["ladder"]` holds the ratings.

    `on_iteration` and `sinks` are those of `train`.
    """
    own = _own_sinks(sinks, options)
    prepared = prepare(env, options)
    facts = competing.compete(prepared.choice, prepared.resolved, _path(run), on_iteration=on_iteration, sinks=own)
    return Run(Path(facts["run"]), facts)


def _own_sinks(given: Sinks | None, options: dict[str, Any]) -> list[MetricsSink]:
    """The sinks that are objects; the names of the others become the setting `sinks`, which a resumed run reads."""
    sinks = [] if given is None else _listed(given)
    check_sink_names(sinks)
    if given is not None:
        options["sinks"] = [one for one in sinks if isinstance(one, str)]
    return [one for one in sinks if not isinstance(one, str)]


def _listed(sinks: Sinks) -> list[str | MetricsSink]:
    """Several sinks, or one."""
    return list(sinks) if isinstance(sinks, list | tuple) else [cast(Any, sinks)]


@verb()
def clone(
    demos: str | Path,
    *,
    run: str | Path | None = None,
    expert: AgentLike = None,
    env: Callable[[], Any] | None = None,
    sinks: Sinks | None = None,
    on_notice: Callable[[str], None] = _notice,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Run:
    """Train a policy on demonstrations (behaviour cloning); settings as `clone__epochs=...`, `policy__hidden=...`.

    `expert` labels what the clone visits in rounds of DAgger (`clone__dagger=...`); `env` makes their environment if a
    Python function made that of the demos. `sinks` are those of `train`.
    """
    folder = Path(demos)
    if expert is not None:
        options["clone__expert"] = _spec_of(expert, options, "expert")
    own = _own_sinks(sinks, options)
    sources, _ = Sources.split({"clone__demos": str(folder)} | options)
    code = sources.code(env)
    _refuse_terms(code)
    import_modules(sources.modules)
    recorded = read_schema(folder).env
    resolved = sources.resolve(recorded if known(recorded) else "")
    result = cloning.clone(resolved, folder, _path(run), on_notice, on_progress, code, own)
    return Run(result.run, result.facts())


def _refuse_terms(code: UserCode) -> None:
    """Raise for code of the user that cloning would ignore."""
    if code.terms or code.observation is not None:
        raise ConfigError(
            "Cloning learns from recorded demos: it takes neither reward terms nor an observation builder.",
            "give them to `record`, and to `train --start run:CLONE`",
        )


def resume(
    run: str | Path,
    *,
    steps: int | None = None,
    env: Callable[[], Any] | None = None,
    terms: Mapping[str, Callable[..., float]] | Sequence[str] | None = None,
    observation: Callable[..., Any] | str | None = None,
    agents: Sequence[AgentLike] | Mapping[str, AgentLike] = (),
    modules: Sequence[str] = (),
    network: type | str | None = None,
    trust: bool = False,
    python: str | None = None,
    on_iteration: OnIteration | None = None,
    sinks: Sinks = (),
    on_notice: Callable[[str], None] = _notice,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Resume a run of `train`, `compete` or `clone` from its newest checkpoint; `steps` is the new total.

    What was given as a Python object is needed again: `env`, `terms`, `observation`, `agents`, `network`,
    `on_iteration`, and sinks that are objects. Sinks that the run was started with by name are used again.
    """
    place, sinks = RunDir.open(Path(run)), _listed(sinks)
    sources = Sources(
        terms=terms,
        observation=observation,
        agents=name_agents(agents),
        modules=modules,
        network=network,
        trust=trust,
        python=python,
    )
    sources.load()
    sources.check_network(place.path)
    stage, code = stage_of(place), sources.code(env)
    if stage == "convert":
        flags = "".join(f" --import {name}" for name in place.modules)
        hint = f"train from it: slipstream train {read_config(place)[1]} --start run:{place.path}{flags}"
        raise ConfigError(f"{run} was converted, not trained, so there is nothing to resume.", hint)
    if stage == "clone":
        _refuse_terms(code)
        if on_iteration is not None:
            raise ConfigError(f"{run} is a run of `clone`, which has no `on_iteration`.", "leave it out")
        cloned = cloning.resume(place.path, read_config(place)[0], on_notice, on_progress, code, sinks)
        return Run(cloned.run, cloned.facts())
    if stage == "compete":
        facts = competing.resume(place.path, steps, code, on_iteration=on_iteration, sinks=sinks)
        return Run(place.path, facts)
    result = training.resume(place.path, steps, code, on_iteration=on_iteration, sinks=sinks)
    return Run(result.run, result.facts())


@verb(running.run)
def run(env: str, **options: Any) -> dict[str, Any]:
    """Run the whole pipeline: tune, record, clone, train, compete, evaluate, tournament, report; return all results."""
    prepared = prepare(env, options, running.run)
    sources, _ = Sources.split(options, running.run)
    skip = (*prepared.options.pop("skip", ()), *(() if sources.tuned else ("tune",)))

    def reconfigure(more: Mapping[str, Any]) -> Any:
        return replace(sources, settings={**sources.settings, **more}).resolve(env)

    return running.run(prepared.choice, reconfigure, skip=skip, **prepared.options)


@verb(recording.record)
def record(
    agent: AgentLike, env: EnvLike, episodes: int, out: str | Path, *, fps: float | None = None, **options: Any
) -> dict[str, Any]:
    """Record games of an agent into a demos folder and return the results; the agent `human` plays by keyboard."""
    agent = _spec_of(agent, options)
    if fps is not None and agent != "human":
        raise ConfigError("--fps applies to a human player only.", "leave it out, or record human")
    choice, resolved, own = prepare(env, options, recording.record, agent=agent)
    if agent == "human":
        from slipstream.stages.human_player import HumanAgent

        own = {name: value for name, value in own.items() if name not in ("workers", "envs", "on_progress")}
        with HumanAgent(choice, fps) as player:
            own |= {"player": player.bind, "stop_request": player.stop_request}
            return recording.record(player.choice, agent, episodes, Path(out), **own)
    plan = resolved.settings.plan
    own.setdefault("envs", plan.envs if resolved.origins.get("plan.envs") == "flag" else None)
    own.setdefault("deadline_s", plan.deadline_s)
    return recording.record(choice, agent, episodes, Path(out), **own)


@verb(evaluation.evaluate)
def evaluate(
    agent: AgentLike,
    env: EnvLike,
    *,
    opponent: AgentLike | Sequence[AgentLike] = (),
    games: int = 100,
    **options: Any,
) -> dict[str, Any]:
    """Play games and return counts, rates and means with 95 % intervals; `beside` plays the same initial states."""
    agent = _spec_of(agent, options)
    opponents = [] if opponent is None else _specs_of(opponent, options, "opponent")
    choice, resolved, own = prepare(env, options, evaluation.evaluate, agent=agent)
    own.setdefault("envs", resolved.settings.evaluation.envs)
    return evaluation.evaluate(choice, agent, opponents, games, **own)


@verb(competition.tournament)
def tournament(
    agents: Sequence[AgentLike], env: EnvLike, games: int, *, run: str | Path | None = None, **options: Any
) -> dict[str, Any]:
    """Play pairs of games between agents and return the results, with the ladder in `tables`."""
    players = _specs_of(agents, options)
    choice, _, own = _prepare_for_any(players, env, options, competition.tournament)
    own.setdefault("on_notice", _notice)
    return competition.tournament(choice, players, games, run=_path(run), **own)


@verb(watching.watch)
def watch(agents: AgentLike | Sequence[AgentLike], env: EnvLike, **options: Any) -> dict[str, Any]:
    """Play games of one agent, or between agents, live in the terminal and return their results."""
    players = _specs_of(agents, options)
    agent = next((player for player in players if player.startswith("run:")), "")
    choice, _, own = prepare(env, options, watching.watch, agent=agent)
    return watching.watch(choice, tuple(players), **own)


@verb(replaying.replay, configurable=False)
def replay(
    file: str | Path, env: Callable[[], Any] | None = None, *, modules: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    """Describe a replay, and write it as a video or an image: `mp4`, `gif` or `png`; `text` holds lines for people.

    `env` makes the environment of a game in an env that was given as a Python function.
    """
    code = UserCode(modules=module_names(modules), factory=env)
    import_modules(code.modules)
    return replaying.replay(Replay.open(Path(file)), code, **options)


def _prepare_for_any(
    agents: Sequence[str], env: EnvLike, options: Mapping[str, Any], stage: Callable[..., Any]
) -> Prepared:
    """Prepare with the env settings of the first trained agent that can be read."""
    for agent in (agent for agent in agents if agent.startswith("run:")):
        with contextlib.suppress(CheckpointError):
            return prepare(env, options, stage, agent=agent)
    return prepare(env, options, stage)


def reward_report(
    source: str | Path | None = None, *, env: str | None = None, agent: str | None = None, **options: Any
) -> tuple[dict[str, Any], Path]:
    """Measure each reward term in a run, in demos, or in games of any agent; return the results and their folder."""
    if source and (Path(source) / "demos.json").exists():
        if agent or env:
            raise ConfigError(f"{source} holds recorded demos.", "leave out --agent and --env")
        recorded = read_schema(Path(source)).env
        sources, own = Sources.split(options, rewarding.report_games)
        settings = sources.resolve(recorded if known(recorded) else "").settings
        return rewarding.report_demos(Path(source), settings, own.get("games")), Path(source)
    if source:
        spec = str(source) if str(source).startswith("run:") else f"run:{source}"
        place = run_folder(spec)
        run = RunDir.open(place)
        sources, own = Sources.split(options, rewarding.report_games)
        settings = sources.resolve_over(run)
        choice = choose_env(env or read_config(run)[1], settings, **vars(sources.code()))
        own.setdefault("on_notice", _notice)
        own["run"] = None if env else run
        facts = rewarding.report_games(choice, settings, agent or spec, **own)
        return facts | {"source": str(source)}, place
    if not (env and agent):
        raise ConfigError(
            "There is nothing to report on.",
            "name a run or a folder of demos, or an agent: --env soccer --agent scripted:rule",
        )
    choice, resolved, own = prepare(env, options, rewarding.report_games, agent=agent)
    own.setdefault("on_notice", _notice)
    return rewarding.report_games(choice, resolved.settings, agent, **own), Path()


@verb()
def convert_sb3(source: str | Path, env: EnvLike, out: str | Path, **options: Any) -> dict[str, Any]:
    """Convert a model of Stable-Baselines3 into a run for `run:DIR` and `start="run:DIR"`; needs `trust=True`."""
    prepared = prepare(env, options)
    return converting.convert_sb3(prepared.choice, prepared.resolved, Path(source), Path(out))


@verb(diagnosing.diagnose)
def diagnose(env: EnvLike | None = None, *, run: str | Path | None = None, **options: Any) -> diagnosing.Diagnosis:
    """Measure what limits the training speed on an environment: a verdict, ranked advice, and the measurements.

    With `run` (or `run:DIR` as the environment), the settings and the metrics of that run are used.
    """
    if isinstance(env, str) and env.startswith("run:"):
        run = env.removeprefix("run:")
        env = None
    place = RunDir.open(Path(run)) if run else None
    if place is not None:
        name = read_config(place)[1]
        if name.startswith("python:") and not callable(env):
            raise ConfigError(
                f"The environment of {run} was given in Python and has no name.",
                "diagnose it there: slipstream.diagnose(lambda: MyEnv(...))",
            )
        if isinstance(env, str) and env != name:
            raise ConfigError(f"{run} is a run of `{name}`, not of `{env}`.", "leave ENV out")
        env = env or name
        options = {"config": place.config} | {key: value for key, value in options.items() if value is not None}
    if env is None:
        raise ConfigError("There is nothing to diagnose.", "name an ENV, or a run by --run DIR")
    agent = f"run:{place.path}" if place is not None else ""
    choice, resolved, own = prepare(env, options, diagnosing.diagnose, agent=agent)
    given = Sources.split(options, diagnosing.diagnose)[0].given()
    return diagnosing.diagnose(choice, resolved.settings, given, run=place, **own)


@verb(tuning.tune)
def tune(env: EnvLike, *, minutes: float = 0.75, **options: Any) -> dict[str, Any]:
    """Find the fastest plan for an environment on this machine, and save it if the environment has a name.

    `settings` in the result are those of the faster plan. `free` also tries larger batches; `exact` tries only
    changes that keep results identical bit for bit.
    """
    choice, resolved, own = prepare(env, options, tuning.tune)
    return tuning.tune(choice, resolved, seconds=60 * minutes, **own).facts()


@verb(benching.bench, configurable=False)
def bench(
    a: str,
    b: str | None = None,
    *,
    repeats: int | None = None,
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train two variants in turn and compare speed and score.

    A variant is written as on the command line; `settings` apply to both. Without `b`, `a` is compared with a saved
    baseline (`against`), or saved as one (`save`).
    """
    variants = [a] if b is None else [a, b]
    place = Path(out) if out else default_path(options.get("env") or "bench", "benches")
    return benching.bench(variants, rounds=repeats, shared=settings, out=place, **{"on_notice": _notice} | options)


def load_agent(spec: AgentLike, env: EnvLike | None = None, sampled: bool = False, **options: Any) -> BatchAgent:
    """Load an agent; `agent.act(obs)` takes one observation or a batch. All but trained agents need `env`.

    A run with a network of its own needs `network`, or the module that defines it in `modules`.
    """
    spec = _spec_of(spec, options)
    sources, _ = Sources.split(options)
    sources.load()
    if spec.startswith("run:"):
        sources.check_network(run_folder(spec))
        return load_trained(spec, sampled)
    if env is None:
        raise ConfigError(f"`{spec}` needs an environment.", f'write load_agent("{spec}", env="soccer")')
    choice = prepare(env, options).choice
    vector = _make_vector(choice, 1)
    try:
        return _load_agent(spec, vector.spec, choice, sampled)
    finally:
        vector.close()


def make_vector(
    env: EnvLike,
    *,
    envs: int = 1,
    workers: int | None = None,
    vector: str = "processes",
    seed: int = 0,
    api: str = "gymnasium",
    deadline_s: float = 60.0,
    **settings: Any,
) -> Any:
    """Make a vector environment for a trainer of your own.

    Returns a `gymnasium.vector.VectorEnv`, or, with `api="sb3"`, a `VecEnv` of Stable-Baselines3. The environments are
    stepped in `workers` `processes` or `threads`, or one after another (`serial`); by default in as many processes as
    are fastest on this machine. A process that dies, or makes no progress for `deadline_s`, is restarted: its episodes
    are truncated, with a warning. `seed` is used for the first episodes if `reset` gets none. A vector env that is
    registered for the env is used if it resets in the step that ends an episode, or with `plan__native=True`.
    """
    for word, given, allowed in (("vector", vector, ("serial", "threads", "processes")), ("api", api, APIS)):
        if given not in allowed:
            raise ConfigError(f"`{word}` cannot be {given!r}.", f"use one of: {', '.join(allowed)}")
    made_once: list[Any] = []
    choice, resolved, _ = prepare(env, settings, made=made_once)
    choice, probe = _probe(choice, made_once, envs, resolved.settings.plan.native, late=api != "sb3")
    with contextlib.closing(probe):
        spaces = spaces_of(probe)
        if workers is None and choice.native:
            workers = 1  # one call for all envs takes hardly longer than one for half of them
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
    """Choose between the env and the vector env registered for it; return the choice and a small vector of it.

    `made` may hold an env that exists already.
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


__all__ = [
    "EnvChoice",
    "Run",
    "bench",
    "clone",
    "compete",
    "configure",
    "convert_sb3",
    "diagnose",
    "evaluate",
    "load_agent",
    "make_vector",
    "record",
    "replay",
    "resume",
    "reward_report",
    "run",
    "tournament",
    "train",
    "tune",
    "watch",
]
