"""The HTML report: one self-contained page, made from the run directory."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from slipstream.agents.specs import load_agent
from slipstream.api import Run
from slipstream.envs.registry import EnvChoice
from slipstream.errors import CheckpointError
from slipstream.league.ladder import GamesLog, game_line, write_ladder
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.replay_recording import write_replay
from slipstream.runs.layout import RunDir
from slipstream.stages.report import SECTIONS, report

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def directory(path: Path, rows: list[dict[str, Any]], **files: Any) -> RunDir:
    """A run directory with the files that a report reads."""
    run = RunDir.create(path)
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, value in files.items():
        (run.path / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return run


def compete(run: RunDir) -> None:
    """Draw the results of a league from known strengths, and rate it."""
    strengths = {
        "main@10000000": 1712,
        "main@6000000": 1655,
        "main@2000000": 1540,
        "scripted:rule": 1500,
        "scripted:chaser": 1310,
    }
    random = np.random.default_rng(0)
    games = []
    for mode in ("1v1", "3v3"):
        for one, other in itertools.combinations(strengths, 2):
            probability = 1 / (1 + 10 ** ((strengths[other] - strengths[one]) / 400))
            for n, won in enumerate(random.random(200) < probability):
                outcome = (1 if won else -1) * (-1 if n % 2 else 1)
                agents = (other, one) if n % 2 else (one, other)
                games.append(game_line("rating", "soccer", mode, "greedy", agents, outcome, seed=n // 2))
    log = GamesLog(run)
    log.append(games)
    log.close()
    write_ladder(run, pictures=False)


def whole(path: Path) -> RunDir:
    """A run directory with everything that a report can show."""
    names = ("1v1 vs scripted:chaser", "1v1 vs scripted:rule", "2v2", "3v3 vs scripted:rule", "3v3")
    rows = []
    for n in range(200):
        x = n / 199
        stage = min(4, int(5 * x))
        win = min(0.93, 0.3 + 0.7 * x) + 0.02 * math.sin(n)
        row = {
            "steps": 50_000 * (n + 1),
            "episode/return_mean": 8 * x + 0.4 * math.sin(n / 3),
            "episode/win_rate": win,
            "episode/return_low": 8 * x - 0.8,
            "episode/return_high": 8 * x + 0.9,
            "episode/win_rate_low": win - 0.07,
            "episode/win_rate_high": min(1.0, win + 0.06),
            "ppo/entropy": 2.2 - 1.1 * x,
            "curriculum/stage": stage + 1.0,
            "time/env": 0.3 + 0.05 * x,
            "time/inference": 0.25,
            "time/learn": 0.35 - 0.05 * x,
            "time/other": 0.1,
            "time/steps_per_second": 120_000 + 3000 * math.sin(n),
            "time/seconds": 6.0 * (n + 1),
            "reward/goal": 0.002 + 0.006 * x,
            "reward/touch": 0.003,
            "reward/boost": -0.001 * x,
            "reward/ball": 0.002,
            "behaviour/goals": 1 + 2 * x,
            "behaviour/touches": 30 - 10 * x,
            "behaviour/speed": 900 + 300 * x,
            "behaviour/boost_used": 40 + 20 * x,
        }
        row |= {
            f"curriculum/share/{t}": (0.75 if k == stage else 0.25 / max(1, stage) if k < stage else 0.0)
            for k, t in enumerate(names)
        }
        row |= {f"curriculum/success/{t}": min(0.95, 0.3 + x - 0.15 * k) for k, t in enumerate(names) if k <= stage}
        if n % 20 == 19:
            row |= {"evaluate/win_rate": win - 0.02, "evaluate/win_rate_low": win - 0.07, "evaluate/games": 200}
            row["evaluate/win_rate_high"] = min(1.0, win + 0.03)
        rows.append(row)
    one = {
        "games": 400,
        "wins": 340,
        "draws": 20,
        "losses": 40,
        "win_rate": 0.85,
        "win_rate_low": 0.81,
        "win_rate_high": 0.88,
        "opponent_behaviour": {"goals": [0.6, 0.5, 0.7], "touches": [25.0, 24.0, 26.0]},
    }
    evaluation = {
        "agent": f"run:{path}@best",
        "behaviour": {"goals": [2.5, 2.3, 2.7], "touches": [20.1, 19.5, 20.9]},
        "opponents": {"scripted:chaser": one, "scripted:rule": one},
    }
    story = {"seconds": {"record": 5.0, "clone": 16.0, "train": 260.0, "compete": 1200.0, "tournament": 24.0}}
    run = directory(
        path,
        rows,
        evaluation=evaluation,
        story=story,
        provenance={
            "env": "soccer",
            "cpu": "a processor",
            "cores": 2,
            "argv": ["slipstream", "run"],
            "versions": {"numpy": "2.0", "torch": "2.5"},
        },
    )
    compete(run)
    events = [
        {"steps": 2_000_000, "kind": "curriculum", "text": "stage 2 of 5: 1v1 (stage 1: success 0.71)"},
        {"steps": 3_000_000, "kind": "snapshot", "text": "copy 3 is in the pool"},
        {"steps": 4_000_000, "kind": "curriculum", "text": "stage 3 of 5: 2v2 (stage 2: success 0.74)"},
        {"steps": 6_000_000, "kind": "promotion", "text": "copy 6 is the best: SPRT PASS after 412 games"},
        {"steps": 7_500_000, "kind": "alarm", "text": "shaped return rises while the win rate falls"},
        {"steps": 8_000_000, "kind": "retired", "text": "run:old@1 raised ValueError"},
        {"steps": 9_000_000, "kind": "notice", "text": "metrics could not be written for a while"},
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"steps": 1')
    (path / "replays").mkdir()
    (path / "replays" / "game 1.replay").write_bytes(b"0" * 2000)
    (path / "replays" / "best.png").write_bytes(PNG)
    return run


def tree(run: RunDir) -> ElementTree.Element:
    """The page, which must be well-formed."""
    text = run.report.read_text()
    assert text.startswith("<!doctype html>\n")
    return ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def text_of(element: ElementTree.Element | None) -> str:
    """All text in an element."""
    assert element is not None
    return " ".join(part.strip() for part in element.itertext() if part.strip())


def section(run: RunDir, name: str) -> ElementTree.Element:
    """A section of the page by its title."""
    return next(one for one in tree(run).iter("section") if one.findtext("h2") == name)


def test_the_page_of_a_real_run(trained: Run) -> None:
    """Curves, machine and command are on the page, and the page loads nothing."""
    run = RunDir.open(trained.path)
    facts = report(run)
    assert facts.keys() == {"run", "steps", "report", "evaluation", "sections"}
    page = Path(facts["report"]).read_text()
    assert page.count("<svg") >= 3 and facts["sections"][-1] == "Provenance"
    assert "1,024" in text_of(tree(run).find("body/header"))
    assert not any(word in page for word in ("http:", "https:", "//", "<script", "src=", "<link", "@import", "url("))


def test_the_page_of_a_run_with_everything(tmp_path: Path) -> None:
    """Every section is there in order, and all links point into the page or to files of the run."""
    run = whole(tmp_path / "league")
    assert report(run)["sections"] == [title for title, _ in SECTIONS]
    page = tree(run)
    assert [one.text for one in page.iter("h2")] == [title for title, _ in SECTIONS]
    links = [link.attrib["href"] for link in page.iter("a")]
    assert {link for link in links if not link.startswith("#")} == {"./replays/game%201.replay", "./replays/best.png"}
    anchors = {one.attrib["id"] for one in page.iter("section")}
    assert {link[1:] for link in links if link.startswith("#")} == anchors
    (picture,) = page.iter("img")
    assert picture.attrib["src"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    text = run.report.read_text()
    assert not re.search(r"https?:|<script|<link|@import|url\(|\bnan\b|\binf\b|\bNone\b", text)


def test_the_headline(tmp_path: Path) -> None:
    """The headline has rating and rank of the best copy, then the win rates."""
    run = whole(tmp_path / "league")
    report(run)
    header = text_of(tree(run).find("body/header"))
    first = json.loads((run.path / "ladder.json").read_text())["tables"][0]["players"][0]
    rated = f"Rated {first['rating']:.0f} [{first['low']:.0f}, {first['high']:.0f}] in 1v1 greedy: number 1 of 5."
    assert first["agent"] == "main@10000000" and rated in header
    assert "85.0 % [81.0, 88.0] of 400 games against scripted:rule." in header
    assert "4,000 games in the ladder" in header


def test_ladder_and_payoff(tmp_path: Path) -> None:
    """Players are ordered by rating with intervals and Nash shares; the matrix has score and games in every cell."""
    run = whole(tmp_path / "league")
    report(run)
    ladder, told = section(run, "Ladder"), json.loads((run.path / "ladder.json").read_text())["tables"][0]
    order = [player["agent"] for player in told["players"]]
    assert [text.text for text in ladder.iter("text") if text.text in order][:5] == order
    words = text_of(ladder)
    for player in told["players"][:3]:
        assert f"{player['rating']:.0f} [{player['low']:.0f}, {player['high']:.0f}]" in words
    assert "1500 fixed" in words and told["circles"]["sentence"] in words
    assert len(list(ladder.iter("circle"))) >= 10 and "Ratings over time" in words
    titles = [one.text or "" for one in section(run, "Payoff matrix").iter("title")]
    score = told["payoff"]["score"][0][1]
    assert f"main@10000000 against {told['payoff']['agents'][1]}: score {score:.3f} in 200 games" in titles


def test_many_players_are_cut(tmp_path: Path) -> None:
    """A payoff matrix has the best twelve players with a note; pairs without games are blank."""
    agents = [f"p{n}" for n in range(20)]
    players = [{"agent": a, "rating": 1500.0 + n, "low": None, "high": None, "games": 0} for n, a in enumerate(agents)]
    grid = [[None] * 20 for _ in range(20)]
    table = {"players": players, "payoff": {"agents": agents, "score": grid, "games": [[0] * 20 for _ in range(20)]}}
    run = directory(tmp_path / "r", [], ladder={"tables": [table]})
    report(run)
    payoff = text_of(section(run, "Payoff matrix"))
    assert "(the first 12 of 20)" in payoff and "p19" in payoff and "p7" not in payoff


def test_events_are_listed_and_marked(tmp_path: Path) -> None:
    """Events are in a table and on the curves; an incomplete line is skipped."""
    run = whole(tmp_path / "league")
    report(run)
    assert "6,000,000 promotion copy 6 is the best: SPRT PASS after 412 games" in text_of(section(run, "Events"))
    titles = [one.text or "" for one in section(run, "Curves").iter("title")]
    assert any(title.startswith("7.5M steps, alarm: shaped return rises") for title in titles)
    assert not any("notice" in title for title in titles)


def test_behaviours_are_compared(tmp_path: Path) -> None:
    """Behaviour statistics of the agent and its opponents are compared with intervals."""
    run = whole(tmp_path / "league")
    report(run)
    behaviour = text_of(section(run, "Behaviour"))
    assert "league@best scripted:chaser scripted:rule" in behaviour
    assert "goals 2.5 [2.3, 2.7] 0.6 [0.5, 0.7]" in behaviour


def test_replays_are_told_by_their_facts(tmp_path: Path) -> None:
    """A replay is listed with players and score; a damaged one is marked."""
    run = whole(tmp_path / "league")
    rule = "scripted:rule"
    (played,) = play_scheduled(
        EnvChoice("soccer"), load_agent, [ScheduledGame((rule, "scripted:chaser"), 1)], keep_actions=True
    )
    write_replay(EnvChoice("soccer"), played, run.replays / "best-3-0.replay", kind="best")
    report(run)
    words = text_of(section(run, "Replays"))
    assert "best-3-0.replay scripted:rule - scripted:chaser, " in words and "game 1.replay 2kB, damaged" in words


def test_reward_shares(tmp_path: Path) -> None:
    """Without a reward report, the shares come from the end of training, with signs."""
    rows = [
        {"steps": n, "reward/goal": 3.0 if n > 15 else 99.0, "reward/cost": -1.0, "reward/win": 0.0}
        for n in range(1, 21)
    ]
    run = directory(tmp_path / "r", rows)
    report(run)
    words = text_of(section(run, "Rewards"))
    assert "goal +75.0 %" in words and "cost -25.0 %" in words and "cancel out): win." in words
    terms = {
        "goal": {"return_share": 0.6, "advantage_share": 0.5, "per_game": 3.0},
        "cost": {"return_share": 0.4, "advantage_share": 0.5, "per_game": -2.0},
    }
    sums = {name: {"mean": [0, 1], "low": [0, 0.5], "high": [0, 1.5]} for name in terms}
    curves = {"unit": "seconds", "at": [0, 60], "terms": sums}
    (run.path / "rewards.json").write_text(json.dumps({"terms": terms, "curves": curves}))
    report(run)
    words = text_of(section(run, "Rewards"))
    assert "Share of the return goal +60.0 % cost -40.0 %" in words and "Share of the advantage" in words
    assert "Reward so far in a game" in words and "60 seconds" in words and "last quarter" not in words


def test_names_are_escaped(tmp_path: Path) -> None:
    """Text from files is escaped everywhere."""
    bad = "<script>alert('1')</script>\""
    rows = [
        {
            "steps": n,
            "episode/return_mean": float(n),
            f"behaviour/{bad}": 1.0,
            f"curriculum/share/{bad}": 1.0,
            f"reward/{bad}": 1.0,
        }
        for n in (1, 2)
    ]
    player = {"agent": bad, "rating": 1500.0, "low": 1, "high": 2, "games": 3}
    payoff = {"agents": [bad, "b"], "score": [[None, 0.5], [0.5, None]], "games": [[0, 3], [3, 0]]}
    table = {"mode": bad, "play": bad, "players": [player], "payoff": payoff, "says": bad}
    run = directory(
        tmp_path / "r",
        rows,
        provenance={"env": bad, "argv": [bad]},
        ladder={"tables": [table]},
        story={"seconds": {bad: 1.0}},
        evaluation={"agent": bad, "behaviour": {bad: 1.0}, "opponents": {}},
    )
    (run.path / "events.jsonl").write_text(json.dumps({"steps": 1, "kind": bad, "text": bad}) + "\n")
    (run.path / "replays").mkdir()
    (run.path / "replays" / "<b>.replay").write_bytes(b"")
    report(run)
    tree(run)
    page = run.report.read_text()
    assert "<script" not in page and "<b>.replay" not in page
    assert page.count("&lt;script&gt;") > 8


def test_gaps_and_flat_lines_are_drawn(tmp_path: Path) -> None:
    """Missing values are skipped, a constant curve has a height, and a single point is not a curve."""
    rows = [
        {"steps": n, "episode/return_mean": 5.0 if n % 2 else None, "ppo/entropy": 1.0 if n == 1 else None}
        for n in range(1, 8)
    ]
    run = directory(tmp_path / "r", rows)
    report(run)
    page = run.report.read_text()
    assert page.count("<svg") == 1 and "nan" not in page


def test_a_run_without_metrics(tmp_path: Path) -> None:
    """A run without metrics has a page without curves."""
    run = directory(tmp_path / "r", [])
    facts = report(run)
    assert facts["steps"] == 0 and facts["sections"] == []
    assert "0 steps" in text_of(tree(run).find("body/header")) and "<svg" not in run.report.read_text()


@pytest.mark.parametrize("name", ["evaluation", "ladder"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    """A damaged file is an error."""
    run = directory(tmp_path / "r", [{"steps": 1}], **{name: "{"})
    with pytest.raises(CheckpointError, match=rf"{name}\.json is not valid JSON"):
        report(run)


def test_results_against_opponents(tmp_path: Path) -> None:
    """Counts and the win rate with its interval are in a table, one row per opponent."""
    run = whole(tmp_path / "league")
    report(run)
    assert "scripted:rule 400 340 20 40 85.0 % [81.0, 88.0]" in text_of(section(run, "Result"))


def test_results_of_games_of_one_side(tmp_path: Path) -> None:
    """The mean returns of the agent and the compared agent are shown, and their difference."""
    one = {"mean_return": 12.5, "mean_return_low": 12.0, "mean_return_high": 13.0, "games": 64}
    beside = one | {
        "agent": "scripted:expert",
        "mean_return": 10.0,
        "length_gain": -8.0,
        "length_gain_low": -9.0,
        "length_gain_high": -7.0,
    }
    run = directory(tmp_path / "r", [{"steps": 1}], evaluation=one | {"opponents": {}, "beside": beside})
    report(run)
    words = text_of(section(run, "Result"))
    assert "this agent 64 12.5 [12.000, 13.000] scripted:expert 64 10" in words
    assert "-8 [-9.000, -7.000]." in words
