"""One spec string for every agent: `random`, `scripted:NAME`, `run:DIR`, `run:DIR@best`, `run:DIR@STEPS`."""

from __future__ import annotations

from pathlib import Path

from slipstream.agents.simple import BatchAgent, ChoosingAgent, RandomAgent, ScriptedAgent
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import EnvSpec
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError, did_you_mean

FORMS = "random, scripted:NAME, run:DIR, run:DIR@best or run:DIR@STEPS"


def load_agent(text: str, spec: EnvSpec, choice: EnvChoice, sampled: bool = False) -> BatchAgent:
    """Build the agent of a spec string for an environment."""
    head, _, rest = text.partition(":")
    if text == "random":
        return RandomAgent(spec)
    if head == "scripted" and rest:
        players = scripted_players(choice.name)
        if rest not in players:
            hint = f"use one of: {', '.join(players)}" if players else f"`{spec.name}` has no scripted players"
            raise ConfigError(f"`{spec.name}` has no player `{text}`.{did_you_mean(rest, players)}", hint)
        game, _ = parse(choice.name)
        assert game is not None
        if rest in game.choosers:
            return ChoosingAgent(text, spec, game.choosers[rest])
        return ScriptedAgent(text, spec, game.scripted[rest])
    if head == "run" and rest:
        agent = load_trained(text, sampled)
        agent.check_fits(spec)
        return agent
    kinds = ("random", "scripted", "run")
    suggestion = "" if head in kinds else did_you_mean(head, kinds)
    raise ConfigError(f"`{text}` does not name an agent.{suggestion}", f"write {FORMS}")


def load_trained(text: str, sampled: bool = False) -> TrainedAgent:
    """Load the agent of a run from `run:DIR[@best|@STEPS]`."""
    folder, which = split_run(text)
    return TrainedAgent.from_run(folder, which, sampled)


def run_folder(text: str) -> Path:
    """The run directory of `run:DIR[@...]`."""
    return split_run(text)[0]


def split_run(text: str) -> tuple[Path, str]:
    """The run directory and the checkpoint of `run:DIR[@best|@STEPS]`."""
    head, _, rest = text.partition(":")
    if head != "run" or not rest:
        raise ConfigError(f"`{text}` does not name a trained agent.", "write run:DIR, run:DIR@best or run:DIR@STEPS")
    folder, at, which = rest.rpartition("@")
    if at and (which in ("best", "latest") or which.isdigit()):
        return Path(folder), which
    if at and not Path(rest).exists():
        raise ConfigError(f"`@{which}` in `{text}` is neither `best` nor a number of steps.", f"write {FORMS}")
    return Path(rest), "latest"


def scripted_players(env: str) -> list[str]:
    """Names of the scripted players of an environment."""
    game, _ = parse(env)
    return game.players if game is not None else []
