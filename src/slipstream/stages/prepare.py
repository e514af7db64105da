"""The settings and the environment that a verb works on, resolved from its arguments.

The command line and the Python functions pass their arguments through here, so that presets, files, assignments, tuned
plans and imported modules mean the same for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from slipstream.agents.own import PREFIX, name_agents, register_agents
from slipstream.agents.specs import load_trained, run_folder
from slipstream.algorithms.warm_start import DEFAULTS
from slipstream.config import (
    Layer,
    Presets,
    Resolved,
    file_layer,
    flag_layer,
    flatten,
    preset_layer,
    preset_layers,
    preset_names,
    resolve,
)
from slipstream.demos.reader import Demos
from slipstream.envs.game import DeclaredGame, is_declared_game
from slipstream.envs.registry import (
    MINERL_PREFIXES,
    EnvChoice,
    UserCode,
    import_modules,
    is_registered,
    load_object,
    name_made,
    parse,
    register_games,
)
from slipstream.errors import ConfigError
from slipstream.minecraft.env_settings import FORMATS, minerl_options, treechop_settings
from slipstream.perf.next_command import Given
from slipstream.perf.plan_cache import tuned_layer
from slipstream.policies.network_registry import network_name, register_networks
from slipstream.runs.layout import RunDir
from slipstream.runs.provenance import read_config, stage_of
from slipstream.settings import Settings
from slipstream.system import user_modules
from slipstream.training.build import choose_env

EnvLike = str | Callable[[], Any] | DeclaredGame
"""An environment: its name, a function that makes it, or a native game."""
AgentLike = Any
"""An agent: its spec as a string, or the user's own function, class or object (see `agents.own`)."""
AGENT_OPTIONS = (
    "opponent",
    "expert",
    "beside",
    "anchor",
    "ppo__teacher",
    "clone__expert",
    "evaluation__opponent",
    "league__anchors",
    "record__agent",
)
"""The options and settings whose values are agents."""


@dataclass(frozen=True)
class Sources:
    """The arguments that every verb with settings takes: where the settings come from."""

    preset: Presets = None
    """Presets of the package."""
    config: str | Path | None = None
    """A YAML file."""
    assignments: Sequence[str] = ()
    """`key=value` strings, as `--set` takes them."""
    tuned: bool = True
    """Use the plan that `tune` saved on this machine."""
    terms: Mapping[str, Callable[..., float]] | Sequence[str] | None = None
    """Your own reward terms by name; or, as on the command line, `MODULE:NAME` strings of imported modules."""
    observation: Callable[..., Any] | str | None = None
    """Your own observation builder for `rocket`: a function, or `MODULE:NAME` of an imported module."""
    modules: Sequence[str] = ()
    """Modules to import first, for instance to register environments."""
    agents: Mapping[str, Any] | Sequence[Any] | None = None
    """Agents given as Python objects, by the names that replace them in the settings and options."""
    network: type | str | None = None
    """Your own network, a torch module, or its name; `policy.network` becomes its name."""
    trust: bool = False
    """Open files that can execute code when they are read, such as models of Stable-Baselines3."""
    python: str | None = None
    """The interpreter in which an environment runs that cannot run in this one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name, as `ppo__epochs=2` gives them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", user_modules.names(self.modules or ()))
        if isinstance(self.terms, str):
            object.__setattr__(self, "terms", (self.terms,))

    @classmethod
    def split(
        cls, options: Mapping[str, Any], stage: Callable[..., Any] | None = None
    ) -> tuple[Sources, dict[str, Any]]:
        """Split keyword arguments into sources and settings on one side, keyword options of `stage` on the other."""
        agents = dict(name_agents(options.get("agents")))
        options = {
            name: agent_spec(value, agents, name) if name in AGENT_OPTIONS else value for name, value in options.items()
        }
        own = {name: value for name, value in options.items() if name in keyword_options(stage)}
        rest = {name: value for name, value in options.items() if name not in own}
        sources = {name: rest.pop(name) for name in source_names() if name in rest} | {"agents": agents}
        return cls(**sources, settings=rest), own

    def load(self) -> None:
        """Import the modules and register the network, so that settings and runs can name them."""
        import_modules(tuple(self.modules))
        register_networks(self._networks())

    def resolve(self, env: str, agent: str = "") -> Resolved:
        """Import the modules and resolve the settings for an environment and, if given, a trained agent."""
        self.load()
        if agent.startswith("run:"):
            self.check_network(run_folder(agent))
        config = Path(self.config) if self.config else None
        own = [file_layer(config)] if config else []
        start = _last([*own, flag_layer(self._flags())], "start")
        runs = [run_folder(one) for one in (agent, start) if one.startswith("run:")]
        _check_modules(env, runs, self.modules)
        return configure(env, preset=self.preset, config=config, agent=agent, flags=self._flags(), tuned=self.tuned)

    def resolve_over(self, run: RunDir) -> Settings:
        """Import the modules and apply the assignments and settings on top of those of a run."""
        self.load()
        settings, env = read_config(run)
        _check_modules(env, [run.path], self.modules)
        own = Layer(str(run.path), dict(flatten(settings)))
        return resolve(own, flag_layer(self._flags())).settings

    def code(self, factory: Callable[[], Any] | DeclaredGame | None = None) -> UserCode:
        """The user's code that these arguments give; `factory` may also be a native game."""
        games = {factory.name: factory} if is_declared_game(factory) else {}
        make = cast("Callable[[], Any] | None", None if games else factory)
        register_games(games)
        return UserCode(
            modules=tuple(self.modules),
            factory=make,
            games=games,
            terms=load_terms(self.terms or {}, self.modules),
            observation=load_observation(self.observation, self.modules),
            agents=name_agents(self.agents),
            networks=self._networks(),
            trust=self.trust,
            python=self.python or "",
            flags=self.command_flags(),
        )

    def command_flags(self) -> str:
        """The command-line flags that give the same code to a later command, each after a space."""
        terms = () if self.terms is None or isinstance(self.terms, Mapping) else self.terms
        words = [f"--import {name}" for name in self.modules] + [f"--reward {name}" for name in terms]
        words += [f"--observation {self.observation}"] if isinstance(self.observation, str) else []
        words += [f"--python {self.python}"] if self.python else []
        return "".join(f" {word}" for word in words)

    def given(self) -> Given:
        """All of this, for a command that is suggested."""
        values, code = self._flags(), self.python_arguments()
        if "network" in code:
            values.pop("policy.network", None)
        used = [str(value) for value in values.values()]
        named = [name for name in name_agents(self.agents) if not any(PREFIX + name in text for text in used)]
        if named:
            code["agents"] = f"[{', '.join(named)}]"
        objects = isinstance(self.terms, Mapping) or callable(self.observation) or "network" in code or named
        return Given(
            presets=preset_names(self.preset),
            config=str(self.config or ""),
            settings=values,
            tuned=self.tuned,
            flags=self.command_flags(),
            arguments=code,
            python_only=bool(objects) or any(PREFIX in text for text in used),
        )

    def python_arguments(self) -> dict[str, str]:
        """The user's code as arguments of a Python function, as source text; `trust` is never repeated."""
        found: dict[str, str] = {}
        if self.modules:
            found["modules"] = repr(list(self.modules))
        if isinstance(self.terms, Mapping):
            named = (f"{name!r}: {getattr(term, '__name__', '...')}" for name, term in self.terms.items())
            found["terms"] = f"{{{', '.join(named)}}}"
        elif self.terms:
            found["terms"] = repr(list(self.terms))
        if self.observation is not None:
            text = repr(self.observation) if isinstance(self.observation, str) else ""
            found["observation"] = text or getattr(self.observation, "__name__", "...")
        if isinstance(self.network, type):
            found["network"] = self.network.__name__
        if self.python:
            found["python"] = repr(self.python)
        return found

    def _flags(self) -> dict[str, Any]:
        values = flag_layer(list(self.assignments)).values | flag_layer(self.settings).values
        if self.network is not None:
            name = network_name(self.network)
            if values.get("policy.network", name) != name:
                raise ConfigError(
                    f"`policy.network` is {values['policy.network']}, but network={name} is given.",
                    "give one of the two",
                )
            values["policy.network"] = name
        return values

    def _networks(self) -> dict[str, type]:
        return {network_name(self.network): self.network} if isinstance(self.network, type) else {}

    def check_network(self, run: Path) -> None:
        """Raise if a network is given that is not the one of a run."""
        if self.network is None:
            return
        own, name = read_config(RunDir.open(run))[0].policy.network, network_name(self.network)
        if own != name:
            held = f"has the network `{own}`" if own else "has no network of its own"
            raise ConfigError(f"{run} {held}, but network={name} is given.", f"give the network of {run}, or none")


def agent_spec(given: Any, agents: dict[str, Any], name: str = "agent") -> Any:
    """The spec of an agent, or of none; an agent that is a Python object is added to `agents`.

    Only `league__anchors` has several.
    """
    if isinstance(given, list | tuple) and name != "league__anchors":
        raise ConfigError(f"`{name}` is one agent, not a {type(given).__name__}.", "give its spec, or a Python object")
    return register_agents(given, agents)


def _check_modules(env: str, runs: Sequence[Path], given: Sequence[str]) -> None:
    """Raise if an environment is unknown here because modules that a run of it was started with are missing."""
    if not env or is_registered(env):
        return
    for place in runs:
        missing = [name for name in RunDir(place).modules if name not in given]
        if missing:
            flags = " ".join(f"--import {name}" for name in missing)
            raise ConfigError(
                f"There is no environment `{env}` without {flags}, with which {place} was started.",
                f"add {flags} (in Python: modules={missing})",
            )


def _last(layers: Sequence[Layer], key: str) -> str:
    """The value of a setting in the last layer that has one; empty if none has."""
    return next((str(layer.values[key]) for layer in reversed(layers) if layer.values.get(key)), "")


def load_terms(
    terms: Mapping[str, Callable[..., float]] | Sequence[str], modules: Sequence[str]
) -> dict[str, Callable[..., float]]:
    """Reward terms by name; `MODULE:NAME` names a function or a mapping of names to functions."""
    if isinstance(terms, Mapping):
        return dict(terms)
    found: dict[str, Callable[..., float]] = {}
    for text in [terms] if isinstance(terms, str) else terms:
        value = load_object(text, modules, "--reward")
        named = value if isinstance(value, Mapping) else {text.rpartition(":")[2]: value}
        if not named:
            raise ConfigError(f"--reward {text} is an empty mapping.", "name a function, or map names to functions")
        for name, function in named.items():
            if name in found:
                raise ConfigError(f"--reward {text}: there are two reward terms `{name}`.", "rename one of them")
            found[name] = function
    return found


def load_observation(given: Callable[..., Any] | str | None, modules: Sequence[str]) -> Callable[..., Any] | None:
    """An observation builder, itself or by `MODULE:NAME`."""
    function: Callable[..., Any] | None = (
        load_object(given, modules, "--observation") if isinstance(given, str) else given
    )
    return function


def source_names() -> list[str]:
    """The names of the arguments that `Sources` stands for."""
    return [one.name for one in fields(Sources) if one.name != "settings"]


def keyword_options(stage: Callable[..., Any] | None) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a stage."""
    if stage is None:
        return {}
    parameters = inspect.signature(stage).parameters
    return {name: one for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}


class Prepared(NamedTuple):
    """What a stage needs to start."""

    choice: EnvChoice
    resolved: Resolved
    options: dict[str, Any]
    """The keyword options of the stage."""


def prepare(
    env: EnvLike,
    options: Mapping[str, Any],
    stage: Callable[..., Any] | None = None,
    *,
    agent: str = "",
    made: list[Any] | None = None,
) -> Prepared:
    """Resolve the environment and the settings of a call to `stage`.

    `agent` is a trained agent that plays: the environment gets the actions and the action repeat of its run. An env
    that had to be made to learn its name is appended to `made`.
    """
    sources, own = Sources.split(options, stage)
    name, factory = name_env(env, made)
    resolved = sources.resolve(name, agent)
    return Prepared(choose_env(name, resolved.settings, **vars(sources.code(factory))), resolved, own)


def name_env(env: EnvLike, made: list[Any] | None = None) -> tuple[str, Callable[[], Any] | DeclaredGame | None]:
    """The name of an environment, and the factory or native game that it comes from; None for a name.

    An env made for this is closed, or appended to `made`.
    """
    if isinstance(env, str):
        return env, None
    if is_declared_game(env):
        register_games({env.name: env})
        return env.name, env
    if not callable(env):
        raise ConfigError(
            f"An environment is a name or a function that makes it, not a {type(env).__name__}.",
            "write ss.train(lambda: MyEnv())",
        )
    if inspect.isclass(env):
        return name_made(env), env
    one = env()
    name = name_made(one)
    if made is not None:
        made.append(one)
    elif hasattr(one, "close"):
        one.close()
    return name, env


def configure(
    env: str,
    *,
    preset: Presets = None,
    config: Path | None = None,
    agent: str = "",
    flags: Mapping[str, Any] | Sequence[str] = (),
    tuned: bool = True,
) -> Resolved:
    """Merge the defaults, the game's preset, other presets, the tuned plan, a YAML file and flags, in this order.

    The env settings of a trained `agent` come below the file and the flags. A run with a `start` takes the policy of
    that agent, and defaults that keep it from forgetting. A clone takes the env settings of its demos.
    """
    game = parse(env)[0] if env else None
    layers: list[Layer] = []
    if game is not None and game.preset:
        layers.append(preset_layer(game.preset))
    layers += preset_layers(preset)
    given = flag_layer(flags if isinstance(flags, Mapping) else list(flags))
    own = [file_layer(config), given] if config else [given]
    start, demos = _last(own, "start"), _last(own, "clone.demos")
    if agent.startswith("run:"):
        layers.append(_env_of_agent(agent, env))
    if demos:
        layers.append(_env_of_demos(Path(demos)))
    if start:
        layers = [Layer("start", DEFAULTS), *layers, _env_of_agent(start, env), _policy_of(start)]
    for one, other in (("steps", "minutes"), ("minutes", "steps")):
        if one in given.values and other not in given.values:
            given.values[other] = None
    untuned = resolve(*layers, *own)
    plan = tuned_layer(env, untuned.settings) if tuned and env else None
    if plan is None or not plan.values:
        return untuned
    return replace(resolve(*layers, plan, *own), untuned=untuned.settings)


def _policy_of(start: str) -> Layer:
    """The policy settings of the agent that a run starts from, with that agent as the KL reference."""
    agent = load_trained(start)
    policy = agent.design.policy.model_dump()
    normalised = bool((agent.design.split_params_and_stats(agent.params_and_stats)[2] != 1).any())
    values = {f"policy.{name}": value for name, value in policy.items()} | {"ppo.reference": start}
    values |= {"ppo.normalise_obs": normalised, "sac.normalise_obs": normalised}
    run = RunDir.open(run_folder(start))
    if stage_of(run) == "convert":  # its values were learned with this discount, in these units
        settings = read_config(run)[0]
        values |= {"ppo.gamma": settings.ppo.gamma, "sac.gamma": settings.sac.gamma}
        values["ppo.normalise_return"] = settings.ppo.normalise_return
    return Layer(f"start {start}", values)


def _env_of_agent(agent: str, env: str) -> Layer:
    """The env settings that define the observations and actions of a trained agent, for the game `env`."""
    folder = run_folder(agent)
    settings, own = read_config(RunDir.open(folder))
    kept = {name: getattr(settings.env, name) for name in ("action_repeat", "actions", "options")}
    if _is_minerl(own) and env.partition(":")[0] == "treechop":
        kept |= treechop_settings(settings.env.options, load_trained(agent).obs)[0]
    return Layer(f"{folder}/config.yaml", {f"env.{name}": value for name, value in kept.items()})


def _env_of_demos(folder: Path) -> Layer:
    """The env settings that demos were recorded with, or with which a game has the spaces of imported demos."""
    demos = Demos.open(folder) if (folder / "demos.json").exists() else None
    origin = demos.shards[0].origin if demos and demos.shards else {}
    recorded = origin.get("settings", {}).get("env", {})
    options = minerl_options(origin) if origin.get("format") in FORMATS else None
    if demos and options is not None and _is_minerl(demos.schema.env):
        recorded = {"options": options}
    elif demos and options is not None and demos.schema.env.partition(":")[0] == "treechop":
        recorded = treechop_settings(options, demos.schema.obs)[0]
    return Layer(f"{folder}", {f"env.{name}": value for name, value in recorded.items()})


def _is_minerl(env: str) -> bool:
    return env.partition(":")[0] in MINERL_PREFIXES
