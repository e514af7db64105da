"""The command that a diagnosis suggests: it repeats what the user gave, on the command line and in Python."""

from __future__ import annotations

import shlex

import click
import pytest

from slipstream.cli import main
from slipstream.config import flag_layer
from slipstream.perf.next_command import Given, next_command
from slipstream.stages.prepare import Sources

ENVS = {"plan.envs": "256"}


def drive(obs: object) -> int:
    """An agent of the user."""
    return 0


def parsed(command: str) -> dict[str, object]:
    """The options of a command line."""
    program, verb, *words = shlex.split(command)
    assert program == "slipstream"
    context = main.commands[verb].make_context(verb, words, parent=click.Context(main))
    return context.params


def test_a_command_repeats_what_was_given() -> None:
    """Presets, file, settings, opponent and the user's code are repeated; a suggested setting replaces a given one."""
    options = {"preset": "smoke,quick", "config": "my settings.yaml", "assignments": ["plan.envs=64", "seed=3"]}
    more = {"opponent": "mine:Pilot", "policy__hidden": [16], "tuned": False, "modules": ["mine"], "python": "py"}
    given = Sources.split(options | more | {"terms": ["mine:speed"], "observation": "mine:build"})[0].given()
    command = next_command("train", "gymnasium:My-v0", given, ENVS, {})
    found = parsed(command)
    assert found["env"] == "gymnasium:My-v0" and found["preset"] == ("smoke", "quick")
    assert str(found["config"]) == "my settings.yaml" and (found["opponent"], found["seed"]) == ("mine:Pilot", 3)
    assert flag_layer(list(found["assignments"])).values == {"plan.envs": 256, "policy.hidden": [16]}  # type: ignore[call-overload]
    assert found["tuned"] is False
    assert (found["modules"], found["terms"]) == (("mine",), ("mine:speed",))
    assert (found["observation"], found["python"]) == ("mine:build", "py")


@pytest.mark.parametrize("value", [True, None, 0.25, "linear to 0", "1", [1, 2], "a: b"])
def test_values_of_settings_survive(value: object) -> None:
    """A setting of any type is read again as the same value."""
    given = Given(settings={"env.target": value})
    assert flag_layer(list(parsed(next_command("train", "kart", given, {}, {}))["assignments"])).values == {  # type: ignore[call-overload]
        "env.target": value
    }


def test_python_objects_make_a_python_call() -> None:
    """What no flag can name is suggested as a call with the names of the objects."""
    given = Sources.split({"preset": "smoke", "opponent": drive, "modules": "mine"})[0].given()
    assert next_command("diagnose", "soccer", given, ENVS, {"test": "env"}) == (
        "slipstream.diagnose('soccer', preset='smoke', opponent=drive, plan__envs=256, test='env', modules=['mine'])"
    )
    given = Sources.split({"terms": {"speed": drive}, "agents": [drive], "network": dict})[0].given()
    assert next_command("train", "python:game/World", given, {}, {}) == (
        "slipstream.train(World, terms={'speed': drive}, network=dict, agents=[drive])"
    )
