"""One spec string for every agent.

`random`, `scripted:NAME`, `run:DIR[@best|@STEPS]`, `sb3:FILE.zip`, `onnx:FILE`, or the user's own agent `MODULE:NAME`.
The module of an own agent must have been named by `--import`: a spec may come from a file, and nothing in a file is
imported. `python:NAME` stands for an agent that was given as a Python object.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from slipstream.agents.own import PREFIX, OwnAgent
from slipstream.agents.simple import BatchAgent, ChoosingAgent, RandomAgent, ScriptedAgent
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import EnvSpec
from slipstream.envs.registry import EnvChoice, load_object, parse
from slipstream.errors import ConfigError, did_you_mean
from slipstream.system import user_modules

FORMS = (
    "random, scripted:NAME, run:DIR, run:DIR@best, run:DIR@STEPS, sb3:FILE.zip, onnx:FILE, or MODULE:NAME with "
    "--import MODULE"
)
KINDS = ("random", "scripted", "run", "sb3", "onnx")
_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


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
        if choice.observation is not None:
            raise ConfigError(
                f"`{text}` reads the observation of `{spec.name}` itself, not that of your observation builder.",
                f"leave out --observation, or give random or a run instead of {text}; in a league: "
                "--set 'league.anchors=[random]'",
            )
        if rest in game.choosers:
            return ChoosingAgent(text, spec, game.choosers[rest])
        return ScriptedAgent(text, spec, game.scripted[rest])
    if head == "run" and rest:
        agent = load_trained(text, sampled)
        agent.check_fits(spec)
        return agent
    if head == "sb3" and rest:
        from slipstream.agents.sb3_agent import load_sb3

        return load_sb3(rest, spec, choice.trust, sampled)
    if head == "onnx" and rest:
        from slipstream.agents.onnx_agent import load_onnx

        return load_onnx(rest, spec, sampled)
    if is_own(text):
        return OwnAgent(text, spec, find_own(text, choice))
    raise _no_agent(text)


def is_own(text: str) -> bool:
    """Whether a spec has the form of the user's own agents: `MODULE:NAME`, or `python:NAME`."""
    return bool(_OWN.fullmatch(text)) and text.partition(":")[0] not in KINDS


def find_own(text: str, choice: EnvChoice) -> Any:
    """The user's own agent of `MODULE:NAME` or `python:NAME`."""
    head, _, name = text.partition(":")
    if text.startswith(PREFIX):
        if name not in choice.agents:
            raise ConfigError(
                f"The agent `{text}` was given as a Python object, and is not given here.",
                f"pass it again in Python: ss.resume(run, agents=[{name}]), or ss.clone(demos, expert={name})",
            )
        return choice.agents[name]
    if head not in choice.modules and did_you_mean(head, KINDS):
        raise _no_agent(text)
    return load_object(text, choice.modules, "the agent")


def _no_agent(text: str) -> ConfigError:
    head = text.partition(":")[0]
    suggestion = "" if head in KINDS else did_you_mean(head, KINDS)
    hint = (
        f"write {text}:NAME, where NAME is the agent in that module" if user_modules.allowed(text) else f"write {FORMS}"
    )
    return ConfigError(f"`{text}` does not name an agent.{suggestion}", hint)


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
    if head == "sb3" and rest:
        hint = f"convert it first: slipstream convert sb3 {rest} --env ENV --out DIR --trust; then use run:DIR"
        raise ConfigError(f"`{text}` has no weights of ours.", hint)
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
