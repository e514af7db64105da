"""Watching games: printed without a terminal, drawn and controlled by keys in one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

import slipstream as ss
from slipstream.agents.specs import load_agent
from slipstream.cli import main
from slipstream.envs.registry import EnvChoice
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.settings import EnvSettings
from terminal_process import TerminalProcess


def call(*words: str) -> Result:
    """Run `slipstream watch` where there is no terminal."""
    return CliRunner().invoke(main, ["watch", *words], catch_exceptions=False)


def test_printed_without_a_terminal() -> None:
    """Goals are lines with the score, each game ends with its result, and sides are swapped."""
    done = call("scripted:rule", "random", "--env", "soccer", "--games", "2", "--set", "env.match_seconds=15")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("goal  scripted:rule  " in line for line in lines)
    endings = [line for line in lines if line.startswith("game ")]
    assert endings[0].startswith("game 1 of 2: scripted:rule ") and endings[1].startswith("game 2 of 2: random ")
    assert lines[-1] == "2 games, scripted:rule won 2"
    assert "\x1b" not in done.stdout


def test_as_json() -> None:
    """One object on stdout, events on stderr, and the same games as scheduled games with the same seed."""
    done = call("scripted:rule", "random", "--env", "soccer", "--json", "--set", "env.match_seconds=5")
    facts = json.loads(done.stdout)
    assert (facts["games"], facts["stopped"], facts["agents"]) == (1, "", ["scripted:rule", "random"])
    (result,) = facts["results"]
    choice = EnvChoice("soccer", EnvSettings(match_seconds=5))
    (game,) = play_scheduled(choice, load_agent, [ScheduledGame(("scripted:rule", "random"), result["seed"])])
    assert (result["outcome"], result["length"]) == (game.outcome, game.length)
    assert result["score"] == [side["goals"] for side in game.behaviour]
    assert "game 1 of 1" in done.stderr


def test_games_of_one_side() -> None:
    """Kart and Gymnasium envs take one agent."""
    done = call("scripted:expert", "--env", "kart", "--set", "env.match_seconds=60")
    assert done.exit_code == 0 and " s  lap  scripted:expert" in done.stdout
    done = call("random", "--env", "gymnasium:CartPole-v1", "--games", "2")
    assert done.exit_code == 0 and "game 2 of 2: random, " in done.stdout and "return" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["random", "--env", "soccer"], "`soccer` has 2 sides, but was given random."),
        (["random", "random", "--env", "kart"], "`kart` has one side, but was given random, random."),
        (["random", "random", "--env", "soccer", "--games", "0"], "0 games cannot be watched."),
        (["random", "random", "--env", "soccer", "--speed", "0"], "A speed of 0 cannot be played."),
        (["random", "scripted:nobody", "--env", "soccer"], "`soccer` has no player `scripted:nobody`."),
    ],
)
def test_invalid_arguments_are_errors(words: list[str], said: str) -> None:
    """Wrong numbers and names are errors."""
    done = call(*words)
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
def test_keys(start_terminal: Callable[..., TerminalProcess]) -> None:
    """The game is drawn; space pauses, + and - change the speed, q quits, and the terminal is restored."""
    watcher = start_terminal("watch", "scripted:rule", "scripted:chaser", "--env", "soccer")
    watcher.wait_for("▀", new=True)
    watcher.wait_for("0:5", new=True)
    watcher.press(" ")
    watcher.wait_for("paused", new=True)
    watcher.press(" +")
    watcher.wait_for("1.5x", new=True)
    watcher.press("--")
    watcher.wait_for("0.67x", new=True)
    watcher.press("q")
    code, facts = watcher.finish()
    assert (code, facts["games"], facts["stopped"]) == (0, 0, "quit")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
def test_real_time_and_numbers(start_terminal: Callable[..., TerminalProcess]) -> None:
    """A game without a drawing shows its numbers, at 15 steps a second times the speed."""
    began = time.monotonic()
    watcher = start_terminal("watch", "random", "--env", "gymnasium:CartPole-v1", "--speed", "2", "--games", "3")
    watcher.wait_for("return ", new=True)
    code, facts = watcher.finish()
    assert code == 0 and facts["games"] == 3 and isinstance(facts["results"], list)
    steps = sum(result["length"] for result in facts["results"])
    assert time.monotonic() - began >= 0.9 * steps / 30
    assert "▀" not in watcher.screen and "game 3 of 3" in watcher.screen


@pytest.mark.parametrize("agent", [lambda obs: 0, "random"])
def test_one_agent_needs_no_list(agent: Any) -> None:
    """`ss.watch` takes a single agent as it is: a function, or a spec."""
    facts = ss.watch(agent, "gymnasium:CartPole-v1")
    assert facts["games"] == 1 and len(facts["agents"]) == 1
