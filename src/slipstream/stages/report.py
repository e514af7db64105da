"""The HTML report of a run: results, ladder, curves and provenance, read from the run directory."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slipstream.errors import DemoError
from slipstream.runs import figures
from slipstream.runs.display import human_count, human_time
from slipstream.runs.figures import Line, Player, Point
from slipstream.runs.html_pages import figure, grid, page, table, tiles
from slipstream.runs.layout import RunDir, write_text
from slipstream.runs.replays import Replay
from slipstream.runs.run_data import RunData, number, read_run

CURVES = (
    ("Win rate in evaluation", "evaluate/win_rate", "%"),
    ("Win rate in training", "episode/win_rate", "%"),
    ("Return", "episode/return_mean", ""),
    ("Return in evaluation", "evaluate/mean_return", ""),
    ("Entropy", "ppo/entropy", ""),
    ("Entropy", "sac/entropy", ""),
    ("Temperature", "sac/temperature", ""),
)
WHERE = (("training", ""), ("evaluation", "evaluate/"))
SPLIT = ("env", "inference", "learn", "other")
SHOWN = ("time_utc", "cpu", "cores", "python", "slipstream", "versions", "git", "argv")
MOST_BYTES = 8 * 2**20
"""Maximum size of an image that is embedded in the page."""
MOST_PLAYERS = 12
"""Maximum number of players in a payoff matrix."""
MOST_EVENTS = 400
PICTURES = {"best.gif": "image/gif", "best.png": "image/png"}


def report(run: RunDir) -> dict[str, Any]:
    """Write report.html and return its main facts."""
    data = read_run(run)
    sections = [(title, make(data)) for title, make in SECTIONS]
    write_text(run.report, page(run.path.name, _head(data), sections))
    return {
        "run": str(run.path),
        "steps": data.steps,
        "report": str(run.report),
        "evaluation": data.evaluation or None,
        "sections": [title for title, text in sections if text],
    }


def _head(data: RunData) -> str:
    name = str(data.origin.get("env", data.run.path.name))
    parts = [f"<h1>{html.escape(name)}</h1>", f'<p class="dim">{html.escape(str(data.run.path))}</p>']
    text = " ".join(sentence for sentence in (_rated(data), _scored(data)) if sentence)
    if text:
        parts.append(f'<p class="lead">{html.escape(text)}</p>')
    last = data.rows[-1] if data.rows else {}
    facts = [("steps", f"{data.steps:,}")]
    if (seconds := number(last.get("time/seconds"))) is not None:
        facts.append(("training time", human_time(seconds)))
    if (speed := number(last.get("time/steps_per_second"))) is not None:
        facts.append(("steps per second", human_count(speed)))
    stage = [row["curriculum/stage"] for row in data.rows if row.get("curriculum/stage") is not None]
    if stage:
        facts.append(("curriculum stage", f"{stage[-1]:.0f}"))
    if games := sum(int(_sum(table.get("payoff", {}).get("games", ())) / 2) for table in _tables(data)):
        facts.append(("games in the ladder", f"{games:,}"))
    return "".join(parts) + tiles(facts)


def _sum(rows: Sequence[Sequence[float | None]]) -> float:
    return math.fsum(value or 0.0 for row in rows for value in row)


def _tables(data: RunData) -> list[dict[str, Any]]:
    return [table for table in data.ladder.get("tables", ()) if table.get("players")]


def _is_of_run(data: RunData, agent: str) -> bool:
    """Whether an agent belongs to this run: a copy in its league, or an agent of its folder or its league folder."""
    if agent.startswith("main@"):
        return True
    place, own = Path(agent.removeprefix("run:").rpartition("@")[0] or agent[4:]), data.run.path
    return agent.startswith("run:") and (place.name == own.name or place.parts[-2:] == (own.name, "league"))


def _ranked(standings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(standings["players"], key=lambda player: -float(player["rating"]))


def _rated(data: RunData) -> str:
    """The headline of the ladder: the best agent of this run in the first table."""
    for standings in _tables(data):
        ranked = _ranked(standings)
        for place, player in enumerate(ranked, 1):
            if _is_of_run(data, player["agent"]):
                where = " ".join(str(standings[key]) for key in ("mode", "play") if standings.get(key))
                return (
                    f"Rated {player['rating']:.0f}{_range(player, '', 1.0, 0)} in {where or 'its games'}: "
                    f"number {place} of {len(ranked)}."
                )
    return ""


def _scored(data: RunData) -> str:
    """The headline of the evaluation."""
    evaluation = data.evaluation
    if not evaluation:
        return ""
    if evaluation.get("opponents"):
        parts = [
            f"{100 * one['win_rate']:.1f} %{_range(one, 'win_rate', 100, 1)} of {one['games']:,} games against {name}"
            for name, one in evaluation["opponents"].items()
        ]
        return f"Wins {', '.join(parts)}."
    if evaluation.get("mean_return") is None:
        return ""
    mean = f"{evaluation['mean_return']:.4g}{_range(evaluation, 'mean_return', 1, 3)}"
    return f"Mean return {mean} over {evaluation['games']:,} episodes."


def _range(facts: Mapping[str, Any], key: str, scale: float, digits: int) -> str:
    """` [low, high]` of a number, or nothing if the interval is unknown."""
    low, high = (number(facts.get(f"{key}_{end}" if key else end)) for end in ("low", "high"))
    return "" if low is None or high is None else f" [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


def _result(data: RunData) -> str:
    evaluation = data.evaluation
    rows = []
    for name, one in (evaluation.get("opponents") or {}).items():
        rate = f"{100 * one['win_rate']:.1f} %{_range(one, 'win_rate', 100, 1)}"
        rows.append([name, *(f"{one[key]:,}" for key in ("games", "wins", "draws", "losses")), rate])
    if rows:
        return table(("against", "games", "won", "drawn", "lost", "win rate (95 %)"), rows, 5)
    if evaluation.get("mean_return") is None:
        return ""
    mean = f"{evaluation['mean_return']:.4g}{_range(evaluation, 'mean_return', 1, 3)}"
    lines = [["this agent", f"{evaluation['games']:,}", mean]]
    beside = evaluation.get("beside") or {}
    if beside.get("mean_return") is not None:
        mean = f"{beside['mean_return']:.4g}{_range(beside, 'mean_return', 1, 3)}"
        lines.append([str(beside.get("agent", "beside")), f"{beside.get('games', evaluation['games']):,}", mean])
    text = ""
    for what in ("return", "length"):
        if (gain := number(beside.get(f"{what}_gain"))) is not None:
            difference = f"{gain:+.3g}{_range(beside, f'{what}_gain', 1, 3)}"
            text += f"<p>Difference in {what} from the same initial states: {difference}.</p>"
    return table(("agent", "episodes", "mean return (95 %)"), lines, 2) + text


def _ladder(data: RunData) -> str:
    parts = []
    for standings in _tables(data):
        players = [_player(data, one) for one in _ranked(standings)]
        heads = [("rating (95 %)", 140), ("games", 66), ("score", 66), ("stronger", 74), ("Nash", 60)]
        fixed = {one["agent"]: float(one["rating"]) for one in standings["players"]}.get(str(standings.get("anchor")))
        parts.append(figure(_title(standings), figures.ladder(players, heads, fixed), wide=True))
        circles, shown = standings.get("circles") or {}, _short(standings)
        text = [standings.get("note"), circles.get("sentence"), standings.get("says")]
        text += [
            " > ".join(shown.get(name, name) for name in [*cycle, cycle[0]]) for cycle in circles.get("cycles", ())[:5]
        ]
        parts += [f"<p>{html.escape(str(sentence))}</p>" for sentence in text if sentence]
    drawn = figures.lines(_rating_lines(data), data.marks)
    parts.append(grid([figure("Ratings over time", drawn)]) if drawn else "")
    note = (
        '<p class="dim">Whiskers are 95 % intervals; the dashed line is the anchor, whose rating is fixed. '
        "Stronger: the probability of being stronger than the next player. Nash: share in the Nash equilibrium.</p>"
    )
    return "".join(parts) + note if any(parts) else ""


def _player(data: RunData, one: Mapping[str, Any]) -> Player:
    low, high, score, nash, los = (number(one.get(key)) for key in ("low", "high", "score", "nash", "los"))
    words = (
        f"{one['rating']:.0f}{_range(one, '', 1, 0) if low != high else ' fixed'}",
        human_count(one.get("games") or 0),
        "-" if score is None else f"{score:.2f}",
        "" if los is None else "> 99.9 %" if los > 0.999 else f"{100 * los:.1f} %",
        "-" if nash is None else f"{100 * nash:.0f} %",
    )
    name, own = str(one.get("short") or one["agent"]), _is_of_run(data, one["agent"])
    return Player(name, float(one["rating"]), low, high, words, own, one["agent"])


def _title(standings: Mapping[str, Any]) -> str:
    return ", ".join(str(standings[key]) for key in ("mode", "play") if standings.get(key)) or "all games"


def _short(standings: Mapping[str, Any]) -> dict[str, str]:
    return {player["agent"]: str(player.get("short") or player["agent"]) for player in standings["players"]}


def _rating_lines(data: RunData) -> list[Line]:
    """Ratings of snapshots over steps, one line for each kind of agent, mode and way of acting."""
    found: dict[str, list[Point]] = {}
    for row in data.ratings:
        steps, rating = number(row.get("steps")), number(row["rating"])
        if steps is not None and rating is not None:
            kind = figures.short((row.get("agent") or "").partition("@")[0])
            name = ", ".join(str(word) for word in (kind, row.get("mode"), row.get("play")) if word)
            found.setdefault(name, []).append((steps, rating, number(row.get("low")), number(row.get("high"))))
    return [Line(name, sorted(points, key=lambda point: point[0])) for name, points in found.items()]


def _payoff(data: RunData) -> str:
    parts = []
    for standings in _tables(data):
        payoff = standings.get("payoff") or {}
        order = {player["agent"]: place for place, player in enumerate(_ranked(standings))}
        names = list(payoff.get("agents", ()))
        kept = sorted(range(len(names)), key=lambda n: order.get(names[n], len(order)))[:MOST_PLAYERS]
        score, games = ([[payoff[key][a][b] for b in kept] for a in kept] for key in ("score", "games"))
        title, shown = _title(standings), _short(standings)
        if len(names) > len(kept):
            title += f" (the first {len(kept)} of {len(names)})"
        parts.append(
            figure(title, figures.heatmap([shown.get(names[n], names[n]) for n in kept], score, games), wide=True)
        )
    if not any(parts):
        return ""
    text = "Share of the points that the row scores against the column, with the number of games. Blue: more than half."
    return f'<p class="dim">{text}</p>{"".join(parts)}'


def _curves(data: RunData) -> str:
    drawn = [
        figure(title, figures.lines([Line(key, data.points(key))], data.marks, unit)) for title, key, unit in CURVES
    ]
    kinds = list(dict.fromkeys(mark.kind for mark in data.marks))
    key = "".join(f'<li><i class="swatch {kind}"></i>{kind}</li>' for kind in kinds)
    return grid(drawn) + (f'<ul class="key">{key}</ul>' if key and any(drawn) else "")


def _curriculum(data: RunData) -> str:
    marks = [mark for mark in data.marks if mark.kind == "curriculum"]
    drawn = [
        figure("Stage", figures.lines([Line("stage", data.points("curriculum/stage"))], marks, held=True)),
        figure("Share of the games", figures.stacked(_aligned(data, "curriculum/share/"), marks)),
        figure("Success", figures.lines(data.named("curriculum/success/")[: figures.COLOURS], marks, "%")),
    ]
    return grid(drawn)


def _aligned(data: RunData, prefix: str) -> list[Line]:
    """Every metric with a prefix at the same steps, 0 where it is missing; the smallest of many are summed."""
    rows = [row for row in data.rows if any(key.startswith(prefix) for key in row)]
    names = list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
    lines = [
        Line(name.removeprefix(prefix), [(r["steps"], r.get(name) or 0.0, None, None) for r in rows]) for name in names
    ]
    if len(lines) <= figures.COLOURS:
        return lines
    kept = sorted(lines, key=lambda line: -math.fsum(p[1] for p in line.points))[: figures.COLOURS - 1]
    rest = [line for line in lines if line not in kept]
    sums = [math.fsum(line.points[n][1] for line in rest) for n in range(len(rows))]
    others = [(row["steps"], value, None, None) for row, value in zip(rows, sums, strict=True)]
    return [line for line in lines if line in kept] + [Line("others", others)]


def _rewards(data: RunData) -> str:
    """The reward terms: from `rewards report` if it was run, and during training."""
    terms, drawn = data.rewards.get("terms") or {}, []
    paid = {name: math.copysign(one["return_share"], one["per_game"]) for name, one in terms.items()}
    drawn.append(figure("Share of the return", _share_bars(paid)))
    advantages = {name: one["advantage_share"] for name, one in terms.items()}
    drawn.append(figure("Share of the advantage", _share_bars(advantages)))
    curves = data.rewards.get("curves") or {}
    sums = [
        Line(name, list(zip(curves["at"], one["mean"], one["low"], one["high"], strict=True)))
        for name, one in (curves.get("terms") or {}).items()
        if paid.get(name)
    ]
    drawn.append(
        figure("Reward so far in a game", figures.lines(sums[: figures.COLOURS], along=curves.get("unit", "")))
    )
    trained = data.named("reward/")
    if not terms:
        late = {line.name: line.points[-max(1, len(line.points) // 4) :] for line in trained}
        means = {name: math.fsum(point[1] for point in points) / len(points) for name, points in late.items()}
        whole = math.fsum(abs(value) for value in means.values()) or 1.0
        shares = _share_bars({name: value / whole for name, value in means.items()})
        drawn.append(figure("Share of the reward in the last quarter of training", shares))
    live = [line for line in trained if any(point[1] for point in line.points)]
    drawn.append(figure("During training, per step", figures.lines(live[: figures.COLOURS], data.marks)))
    zero = [line.name for line in trained if line not in live]
    text = "Always 0 (in self-play, the rewards of the two sides may cancel out): " + ", ".join(zero)
    return grid(drawn) + (f'<p class="dim">{html.escape(text)}.</p>' if zero and any(drawn) else "")


def _share_bars(shares: Mapping[str, float]) -> str:
    rows = sorted(shares.items(), key=lambda item: -abs(item[1]))
    return figures.bars([(name, value, f"{100 * value:+.1f} %") for name, value in rows if value])


def _behaviour(data: RunData) -> str:
    """Behaviour statistics of the evaluated agents, and of the learner over time."""
    agents = _behaving(data)
    names = list(dict.fromkeys(name for means in agents.values() for name in means))
    rows = [[name, *(_spread(means.get(name)) for means in agents.values())] for name in names]
    heads = ["per game and player", *(figures.short(agent) for agent in agents)]
    over = list(dict.fromkeys(line.name for line in [*data.named("behaviour/"), *data.named("evaluate/behaviour/")]))
    curves = []
    for name in over:
        both = [Line(f"in {word}", data.points(f"{prefix}behaviour/{name}")) for word, prefix in WHERE]
        curves.append(figure(name, figures.lines(both, data.marks, width=figures.NARROW)))
    compared = f'<div class="scroll">{table(heads, rows, len(agents))}</div>' if rows else ""
    return compared + (f"<h3>Over time</h3>{grid(curves, small=True)}" if any(curves) else "")


def _behaving(data: RunData) -> dict[str, Mapping[str, Any]]:
    """The behaviour statistics of every agent in the evaluation or the ladder."""
    evaluation, found = data.evaluation, dict[str, Mapping[str, Any]]()
    if evaluation.get("behaviour"):
        found[str(evaluation.get("agent", "this agent"))] = evaluation["behaviour"]
    for name, one in (evaluation.get("opponents") or {}).items():
        if one.get("opponent_behaviour"):
            found[name] = one["opponent_behaviour"]
    beside = evaluation.get("beside") or {}
    if beside.get("behaviour"):
        found[str(beside.get("agent", "beside"))] = beside["behaviour"]
    for source in (data.ladder, *_tables(data)):
        for name, means in (source.get("behaviour") or {}).items():
            found.setdefault(name, means)
    return found


def _spread(value: Any) -> str:
    """A mean with its interval, from a number or [mean, low, high]."""
    mean, low, high = (*value, None, None)[:3] if isinstance(value, Sequence) else (value, None, None)
    ends = "" if low is None or high is None else f" [{figures.number(low)}, {figures.number(high)}]"
    return figures.number(number(mean)) + ends


def _replays(data: RunData) -> str:
    folder = data.run.replays
    if not folder.is_dir():
        return ""
    parts: list[str] = []
    for name, kind in PICTURES.items():
        picture = folder / name
        if not parts and picture.is_file() and picture.stat().st_size <= MOST_BYTES:
            encoded = base64.b64encode(picture.read_bytes()).decode()
            parts.append(f'<img alt="the best game" src="data:{kind};base64,{encoded}"/>')
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    links = []
    for path in files:
        place, text = path.relative_to(data.run.path).as_posix(), html.escape(_game(path))
        links.append(
            f'<li><a href="./{quote(place)}">{html.escape(path.name)}</a> <span class="dim">{text}</span></li>'
        )
    listed = f"<ul>{''.join(links)}</ul>" if links else ""
    if len(links) > 30:
        listed = f"<details><summary>{len(links)} files</summary>{listed}</details>"
    return "".join(parts) + listed


def _game(path: Path) -> str:
    """A description of a replay; only the size of other files."""
    size = f"{human_count(path.stat().st_size)}B"
    try:
        facts = Replay.open(path).facts if path.suffix == ".replay" else None
    except DemoError:
        return f"{size}, damaged"
    if facts is None:
        return size
    names = [figures.short(name) for name in facts.players]
    score = ":".join(f"{goals:g}" for goals in facts.score) if facts.score and len(names) > 1 else ""
    when = human_time(facts.length * facts.step_seconds) if facts.step_seconds else f"{facts.length} steps"
    return ", ".join(word for word in (" - ".join(names), score, facts.task, when, size) if word)


def _time(data: RunData) -> str:
    seconds = [(name, number(value)) for name, value in (data.story.get("seconds") or {}).items()]
    stages = figures.strip([(name, value, human_time(value)) for name, value in seconds if value is not None])
    expected = data.story.get("expected") or {}
    pairs = [(name, number(expected.get(name)), value) for name, value in seconds if value is not None]
    rows_expected = [[name, human_time(one), human_time(value)] for name, one, value in pairs if one is not None]
    stages += table(("stage", "expected", "actual"), rows_expected) if rows_expected else ""
    rows = [row for row in data.rows if all(row.get(f"time/{name}") is not None for name in SPLIT)]
    split = [Line(name, [(row["steps"], row[f"time/{name}"], None, None) for row in rows]) for name in SPLIT]
    drawn = [
        figure("Time of training by part", figures.stacked(split)),
        figure("Steps per second", figures.lines([Line("", data.points("time/steps_per_second"))], zero=True)),
    ]
    return figure("Stages", stages) + grid(drawn)


def _events(data: RunData) -> str:
    """The events of the run: decisions, snapshots, faults."""
    events = data.events[-MOST_EVENTS:]
    rows = [[f"{event['steps']:,}", event["kind"], event["text"]] for event in events]
    if not rows:
        return ""
    listed = table(("steps", "kind", ""), rows)
    if len(data.events) > len(events):
        listed = f'<p class="dim">The last {len(events)} of {len(data.events):,}.</p>{listed}'
    return listed if len(rows) <= 30 else f"<details><summary>{len(rows)} events</summary>{listed}</details>"


def _provenance(data: RunData) -> str:
    def words(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {one}" for key, one in value.items())
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    return table((), [[key, words(data.origin[key])] for key in SHOWN if data.origin.get(key) is not None])


SECTIONS: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("Result", _result),
    ("Ladder", _ladder),
    ("Payoff matrix", _payoff),
    ("Curves", _curves),
    ("Curriculum", _curriculum),
    ("Rewards", _rewards),
    ("Behaviour", _behaviour),
    ("Replays", _replays),
    ("Time", _time),
    ("Events", _events),
    ("Provenance", _provenance),
)
