"""The settings and the environment that a verb works on, resolved from its arguments.

The command line and the Python functions pass their arguments through here, so that presets, files, assignments, tuned
plans and imported modules mean the same for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

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
    resolve,
)
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice, import_modules, parse
from slipstream.errors import ConfigError
from slipstream.perf.plan_cache import tuned_layer
from slipstream.runs.layout import RunDir
from slipstream.runs.provenance import read_config
from slipstream.settings import Settings
from slipstream.training.build import choose_env

EnvLike = str | Callable[[], Any]
"""An environment: its name, or a function that makes it."""


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
    terms: Mapping[str, Callable[..., float]] | None = None
    """Reward terms for a native game: functions of the state of one env, compiled with the rest."""
    modules: Sequence[str] = ()
    """Modules to import first, for instance to register environments."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name, as `ppo__epochs=2` gives them."""

    @classmethod
    def split(
        cls, options: Mapping[str, Any], stage: Callable[..., Any] | None = None
    ) -> tuple[Sources, dict[str, Any]]:
        """Split keyword arguments into sources and settings on one side, keyword options of `stage` on the other."""
        own = {name: value for name, value in options.items() if name in keyword_options(stage)}
        rest = {name: value for name, value in options.items() if name not in own}
        sources = {name: rest.pop(name) for name in source_names() if name in rest}
        return cls(**sources, settings=rest), own

    def resolve(self, env: str, agent: str = "") -> Resolved:
        """Import the modules and resolve the settings for an environment and, if given, a trained agent."""
        import_modules(tuple(self.modules))
        config = Path(self.config) if self.config else None
        return configure(env, preset=self.preset, config=config, agent=agent, flags=self._flags(), tuned=self.tuned)

    def resolve_over(self, run: RunDir) -> Settings:
        """Import the modules and apply the assignments and settings on top of those of a run."""
        import_modules(tuple(self.modules))
        own = Layer(str(run.path), dict(flatten(read_config(run)[0])))
        return resolve(own, flag_layer(self._flags())).settings

    def _flags(self) -> dict[str, Any]:
        return flag_layer(list(self.assignments)).values | flag_layer(self.settings).values


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
    choice = choose_env(
        name, resolved.settings, factory=factory, terms=dict(sources.terms or {}), modules=tuple(sources.modules)
    )
    return Prepared(choice, resolved, own)


def name_env(env: EnvLike, made: list[Any] | None = None) -> tuple[str, Callable[[], Any] | None]:
    """The name and the factory of an environment; an env made for this is closed, or appended to `made`."""
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
    start = next((layer.values["start"] for layer in reversed(own) if layer.values.get("start")), "")
    demos = next((layer.values["clone.demos"] for layer in reversed(own) if layer.values.get("clone.demos")), "")
    if agent.startswith("run:"):
        layers.append(_env_of_agent(agent))
    if demos:
        layers.append(_env_of_demos(Path(demos)))
    if start:
        layers = [Layer("start", DEFAULTS), *layers, _env_of_agent(start), _policy_of(start)]
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
    return Layer(f"start {start}", values | {"ppo.normalise_obs": normalised, "sac.normalise_obs": normalised})


def _env_of_agent(agent: str) -> Layer:
    """The env settings that define the observations and actions of a trained agent."""
    folder = run_folder(agent)
    settings, _ = read_config(RunDir.open(folder))
    kept = ("action_repeat", "actions", "options")
    return Layer(f"{folder}/config.yaml", {f"env.{name}": getattr(settings.env, name) for name in kept})


def _env_of_demos(folder: Path) -> Layer:
    """The env settings that demos were recorded with."""
    shards = Demos.open(folder).shards if (folder / "demos.json").exists() else []
    recorded = shards[0].origin.get("settings", {}).get("env", {}) if shards else {}
    return Layer(f"{folder}", {f"env.{name}": value for name, value in recorded.items()})
