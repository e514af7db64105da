"""Ladders as text."""

from __future__ import annotations

from slipstream.league.ladder import game_line, ladder
from slipstream.league.ladder_text import ladder_text, short_names, steps_of


def test_names_are_short_and_unambiguous() -> None:
    """A name is the shortest unique path suffix, or the whole name if none is unique."""
    names = ["run:/home/me/runs/a@best", "run:/home/me/runs/b@best", "run:/else/runs/b@best", "scripted:rule", "random"]
    shown = short_names(names)
    assert shown["run:/home/me/runs/a@best"] == "a@best"
    assert shown["run:/home/me/runs/b@best"] == "me/runs/b@best"
    assert shown["run:/else/runs/b@best"] == "else/runs/b@best"
    assert shown["scripted:rule"] == "scripted:rule"
    for clash in (["random", "run:random"], ["run:b", "run:/b"], ["run:a/b", "run:b", "run:c/a/b"]):
        assert len(set(short_names(clash).values())) == len(clash)


def test_versions_have_steps() -> None:
    """The steps are the number after the last @."""
    assert steps_of("run:a@b@2000") == 2000 and steps_of("main@5") == 5
    assert steps_of("run:a@best") is None and steps_of("scripted:rule") is None and steps_of("12") is None


def test_a_ladder_as_text() -> None:
    """The text has ratings with intervals, the payoff matrix, who beats whom, and the fixed player."""
    games = [
        game_line("tournament", "soccer", "1v1", "greedy", sides, outcome, seed=seed)
        for seed in range(50)
        for sides, outcome in (
            (("scripted:rule", "run:x/far@9"), -1),
            (("run:x/far@9", "scripted:rule"), seed % 5 and 1),
        )
    ]
    text = ladder_text(ladder(games))
    lines = text.splitlines()
    assert lines[0] == "soccer 1v1 greedy: 100 games, 10% drawn; scripted:rule is fixed at 1500"
    assert (
        lines[2].split()[:2] == ["1", "far@9"] and " to " in lines[2] and "95.0%" in lines[2] and ">99.9%" in lines[2]
    )
    assert lines[3].split()[:4] == ["2", "scripted:rule", "1500", "fixed"]
    assert "  1 far@9             .   95" in lines
    assert "far@9 beats scripted:rule" in lines
    assert lines[-1].startswith("Too few of these players")
    assert ladder_text([]) == "There are no games to rate."


def test_unconnected_players_are_explained() -> None:
    """A player without games that connect it to the anchor has no interval, and a line explains it."""
    games = [game_line("rating", "soccer", "", "greedy", names, 1) for names in (("scripted:rule", "a"), ("b", "c"))]
    assert "no interval: no games connect this player to the anchor" in ladder_text(ladder(games))
