"""Report on a run: one page of results, ladder, curves and facts, read from the run directory alone."""

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
"""Of a picture that is put into the page."""
MOST_PLAYERS = 12
"""In a payoff map."""
MOST_EVENTS = 400
PICTURES = {"best.gif": "image/gif", "best.png": "image/png"}


def report(run: RunDir) -> dict[str, Any]:
    """Write report.html and return the facts it shows."""
    seen = read_run(run)
    sections = [(title, make(seen)) for title, make in SECTIONS]
    write_text(run.report, page(run.path.name, _head(seen), sections))
    return {
        "run": str(run.path),
        "steps": seen.steps,
        "report": str(run.report),
        "evaluation": seen.evaluation or None,
        "sections": [title for title, text in sections if text],
    }


def _head(seen: RunData) -> str:
    name = str(seen.origin.get("env", seen.run.path.name))
    parts = [f"<h1>{html.escape(name)}</h1>", f'<p class="dim">{html.escape(str(seen.run.path))}</p>']
    said = " ".join(sentence for sentence in (_rated(seen), _scored(seen)) if sentence)
    if said:
        parts.append(f'<p class="lead">{html.escape(said)}</p>')
    last = seen.rows[-1] if seen.rows else {}
    facts = [("steps", f"{seen.steps:,}")]
    if (seconds := number(last.get("time/seconds"))) is not None:
        facts.append(("training time", human_time(seconds)))
    if (speed := number(last.get("time/steps_per_second"))) is not None:
        facts.append(("steps per second", human_count(speed)))
    stage = [row["curriculum/stage"] for row in seen.rows if row.get("curriculum/stage") is not None]
    if stage:
        facts.append(("curriculum's stage", f"{stage[-1]:.0f}"))
    if games := sum(int(_sum(table.get("payoff", {}).get("games", ())) / 2) for table in _tables(seen)):
        facts.append(("games in the ladder", f"{games:,}"))
    return "".join(parts) + tiles(facts)


def _sum(rows: Sequence[Sequence[float | None]]) -> float:
    return math.fsum(value or 0.0 for row in rows for value in row)


def _tables(seen: RunData) -> list[dict[str, Any]]:
    return [table for table in seen.ladder.get("tables", ()) if table.get("players")]


def _is_own(seen: RunData, agent: str) -> bool:
    """Whether an agent is of this run: a copy in its own league, or named by its folder or that of its league."""
    if agent.startswith("main@"):
        return True
    place, own = Path(agent.removeprefix("run:").rpartition("@")[0] or agent[4:]), seen.run.path
    return agent.startswith("run:") and (place.name == own.name or place.parts[-2:] == (own.name, "league"))


def _ranked(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(told["players"], key=lambda player: -float(player["rating"]))


def _rated(seen: RunData) -> str:
    """The headline of the ladder: the best of this run's agents in its first table."""
    for told in _tables(seen):
        ranked = _ranked(told)
        for place, player in enumerate(ranked, 1):
            if _is_own(seen, player["agent"]):
                where = " ".join(str(told[key]) for key in ("mode", "play") if told.get(key))
                return (
                    f"Rated {player['rating']:.0f}{_range(player, '', 1.0, 0)} in {where or 'its games'}: "
                    f"number {place} of {len(ranked)}."
                )
    return ""


def _scored(seen: RunData) -> str:
    """The headline of the evaluation."""
    told = seen.evaluation
    if not told:
        return ""
    if told.get("opponents"):
        parts = [
            f"{100 * one['win_rate']:.1f} %{_range(one, 'win_rate', 100, 1)} of {one['games']:,} games against {name}"
            for name, one in told["opponents"].items()
        ]
        return f"Wins {', '.join(parts)}."
    if told.get("mean_return") is None:
        return ""
    return f"Mean return {told['mean_return']:.4g}{_range(told, 'mean_return', 1, 3)} over {told['games']:,} episodes."


def _range(told: Mapping[str, Any], key: str, scale: float, digits: int) -> str:
    """` [low, high]` of a number, where it is known."""
    low, high = (number(told.get(f"{key}_{end}" if key else end)) for end in ("low", "high"))
    return "" if low is None or high is None else f" [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


def _result(seen: RunData) -> str:
    told = seen.evaluation
    rows = []
    for name, one in (told.get("opponents") or {}).items():
        rate = f"{100 * one['win_rate']:.1f} %{_range(one, 'win_rate', 100, 1)}"
        rows.append([name, *(f"{one[key]:,}" for key in ("games", "wins", "draws", "losses")), rate])
    if rows:
        return table(("against", "games", "won", "drawn", "lost", "win rate (95 %)"), rows, 5)
    if told.get("mean_return") is None:
        return ""
    lines = [["this agent", f"{told['games']:,}", f"{told['mean_return']:.4g}{_range(told, 'mean_return', 1, 3)}"]]
    beside = told.get("beside") or {}
    if beside.get("mean_return") is not None:
        mean = f"{beside['mean_return']:.4g}{_range(beside, 'mean_return', 1, 3)}"
        lines.append([str(beside.get("agent", "beside")), f"{beside.get('games', told['games']):,}", mean])
    said = ""
    for what in ("return", "length"):
        if (gain := number(beside.get(f"{what}_gain"))) is not None:
            said += (
                f"<p>Difference in {what} over the same starts: {gain:+.3g}{_range(beside, f'{what}_gain', 1, 3)}.</p>"
            )
    return table(("agent", "episodes", "mean return (95 %)"), lines, 2) + said


def _ladder(seen: RunData) -> str:
    parts = []
    for told in _tables(seen):
        players = [_player(seen, one) for one in _ranked(told)]
        heads = [("rating (95 %)", 140), ("games", 66), ("score", 66), ("stronger", 74), ("Nash", 60)]
        fixed = {one["agent"]: float(one["rating"]) for one in told["players"]}.get(str(told.get("anchor")))
        parts.append(figure(_title(told), figures.ladder(players, heads, fixed), wide=True))
        circles, shown = told.get("circles") or {}, _short(told)
        said = [told.get("note"), circles.get("sentence"), told.get("says")]
        said += [
            " > ".join(shown.get(name, name) for name in [*cycle, cycle[0]]) for cycle in circles.get("cycles", ())[:5]
        ]
        parts += [f"<p>{html.escape(str(sentence))}</p>" for sentence in said if sentence]
    drawn = figures.lines(_rating_lines(seen), seen.marks)
    parts.append(grid([figure("Ratings over time", drawn)]) if drawn else "")
    note = (
        '<p class="dim">Whiskers are 95 % intervals; the dashed line is the anchor, whose rating is fixed. '
        "Stronger: the likelihood of being stronger than the next. Nash: share in the best mixture of all.</p>"
    )
    return "".join(parts) + note if any(parts) else ""


def _player(seen: RunData, one: Mapping[str, Any]) -> Player:
    low, high, score, nash, los = (number(one.get(key)) for key in ("low", "high", "score", "nash", "los"))
    words = (
        f"{one['rating']:.0f}{_range(one, '', 1, 0) if low != high else ' fixed'}",
        human_count(one.get("games") or 0),
        "-" if score is None else f"{score:.2f}",
        "" if los is None else "> 99.9 %" if los > 0.999 else f"{100 * los:.1f} %",
        "-" if nash is None else f"{100 * nash:.0f} %",
    )
    name, own = str(one.get("short") or one["agent"]), _is_own(seen, one["agent"])
    return Player(name, float(one["rating"]), low, high, words, own, one["agent"])


def _title(told: Mapping[str, Any]) -> str:
    return ", ".join(str(told[key]) for key in ("mode", "play") if told.get(key)) or "all games"


def _short(told: Mapping[str, Any]) -> dict[str, str]:
    return {player["agent"]: str(player.get("short") or player["agent"]) for player in told["players"]}


def _rating_lines(seen: RunData) -> list[Line]:
    """Ratings of versions over steps, one line for each kind, mode and way of playing."""
    found: dict[str, list[Point]] = {}
    for row in seen.ratings:
        steps, rating = number(row.get("steps")), number(row["rating"])
        if steps is not None and rating is not None:
            kind = figures.short((row.get("agent") or "").partition("@")[0])
            name = ", ".join(str(word) for word in (kind, row.get("mode"), row.get("play")) if word)
            found.setdefault(name, []).append((steps, rating, number(row.get("low")), number(row.get("high"))))
    return [Line(name, sorted(points, key=lambda point: point[0])) for name, points in found.items()]


def _payoff(seen: RunData) -> str:
    parts = []
    for told in _tables(seen):
        payoff = told.get("payoff") or {}
        order = {player["agent"]: place for place, player in enumerate(_ranked(told))}
        names = list(payoff.get("agents", ()))
        kept = sorted(range(len(names)), key=lambda n: order.get(names[n], len(order)))[:MOST_PLAYERS]
        score, games = ([[payoff[key][a][b] for b in kept] for a in kept] for key in ("score", "games"))
        title, shown = _title(told), _short(told)
        if len(names) > len(kept):
            title += f" (the first {len(kept)} of {len(names)})"
        parts.append(
            figure(title, figures.heat([shown.get(names[n], names[n]) for n in kept], score, games), wide=True)
        )
    if not any(parts):
        return ""
    said = "How much of the points the row takes from the column, with the number of games. Blue: it takes more."
    return f'<p class="dim">{said}</p>{"".join(parts)}'


def _curves(seen: RunData) -> str:
    drawn = [
        figure(title, figures.lines([Line(key, seen.points(key))], seen.marks, unit)) for title, key, unit in CURVES
    ]
    kinds = list(dict.fromkeys(mark.kind for mark in seen.marks))
    key = "".join(f'<li><i class="swatch {kind}"></i>{kind}</li>' for kind in kinds)
    return grid(drawn) + (f'<ul class="key">{key}</ul>' if key and any(drawn) else "")


def _curriculum(seen: RunData) -> str:
    marks = [mark for mark in seen.marks if mark.kind == "curriculum"]
    drawn = [
        figure("Stage", figures.lines([Line("stage", seen.points("curriculum/stage"))], marks, held=True)),
        figure("Share of the games", figures.stacked(_aligned(seen, "curriculum/share/"), marks)),
        figure("Success", figures.lines(seen.named("curriculum/success/")[: figures.COLOURS], marks, "%")),
    ]
    return grid(drawn)


def _aligned(seen: RunData, prefix: str) -> list[Line]:
    """Every metric under a prefix at the same places, 0 where it is missing; the smallest of many as one line."""
    rows = [row for row in seen.rows if any(key.startswith(prefix) for key in row)]
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


def _rewards(seen: RunData) -> str:
    """What the terms pay: from `rewards report` where that was made, and in training."""
    terms, drawn = seen.rewards.get("terms") or {}, []
    paid = {name: math.copysign(one["return_share"], one["per_game"]) for name, one in terms.items()}
    drawn.append(figure("Share of the return", _share_bars(paid)))
    swings = {name: one["advantage_share"] for name, one in terms.items()}
    drawn.append(figure("Share of the advantage", _share_bars(swings)))
    curves = seen.rewards.get("curves") or {}
    sums = [
        Line(name, list(zip(curves["at"], one["mean"], one["low"], one["high"], strict=True)))
        for name, one in (curves.get("terms") or {}).items()
        if paid.get(name)
    ]
    drawn.append(
        figure("Reward so far in a game", figures.lines(sums[: figures.COLOURS], along=curves.get("unit", "")))
    )
    trained = seen.named("reward/")
    if not terms:
        late = {line.name: line.points[-max(1, len(line.points) // 4) :] for line in trained}
        means = {name: math.fsum(point[1] for point in points) / len(points) for name, points in late.items()}
        whole = math.fsum(abs(value) for value in means.values()) or 1.0
        shares = _share_bars({name: value / whole for name, value in means.items()})
        drawn.append(figure("Share of what was paid, in the last quarter of the training", shares))
    live = [line for line in trained if any(point[1] for point in line.points)]
    drawn.append(figure("In training, per step", figures.lines(live[: figures.COLOURS], seen.marks)))
    still = [line.name for line in trained if line not in live]
    said = "0 throughout (in self-play, what one side gains and the other loses cancels out): " + ", ".join(still)
    return grid(drawn) + (f'<p class="dim">{html.escape(said)}.</p>' if still and any(drawn) else "")


def _share_bars(shares: Mapping[str, float]) -> str:
    rows = sorted(shares.items(), key=lambda item: -abs(item[1]))
    return figures.bars([(name, value, f"{100 * value:+.1f} %") for name, value in rows if value])


def _behaviour(seen: RunData) -> str:
    """Behaviours of the agents in the evaluation side by side, and of the learner over time."""
    agents = _behaving(seen)
    names = list(dict.fromkeys(name for means in agents.values() for name in means))
    rows = [[name, *(_spread(means.get(name)) for means in agents.values())] for name in names]
    heads = ["per game and player", *(figures.short(agent) for agent in agents)]
    over = list(dict.fromkeys(line.name for line in [*seen.named("behaviour/"), *seen.named("evaluate/behaviour/")]))
    curves = []
    for name in over:
        both = [Line(f"in {word}", seen.points(f"{prefix}behaviour/{name}")) for word, prefix in WHERE]
        curves.append(figure(name, figures.lines(both, seen.marks, width=figures.NARROW)))
    compared = f'<div class="scroll">{table(heads, rows, len(agents))}</div>' if rows else ""
    return compared + (f"<h3>Over time</h3>{grid(curves, small=True)}" if any(curves) else "")


def _behaving(seen: RunData) -> dict[str, Mapping[str, Any]]:
    """The behaviours of every agent that the evaluation or the ladder tells of."""
    told, found = seen.evaluation, dict[str, Mapping[str, Any]]()
    if told.get("behaviour"):
        found[str(told.get("agent", "this agent"))] = told["behaviour"]
    for name, one in (told.get("opponents") or {}).items():
        if one.get("opponent_behaviour"):
            found[name] = one["opponent_behaviour"]
    beside = told.get("beside") or {}
    if beside.get("behaviour"):
        found[str(beside.get("agent", "beside"))] = beside["behaviour"]
    for source in (seen.ladder, *_tables(seen)):
        for name, means in (source.get("behaviour") or {}).items():
            found.setdefault(name, means)
    return found


def _spread(value: Any) -> str:
    """A mean, with its interval where there is one: a number, or [mean, low, high]."""
    mean, low, high = (*value, None, None)[:3] if isinstance(value, Sequence) else (value, None, None)
    ends = "" if low is None or high is None else f" [{figures.number(low)}, {figures.number(high)}]"
    return figures.number(number(mean)) + ends


def _replays(seen: RunData) -> str:
    folder = seen.run.replays
    if not folder.is_dir():
        return ""
    parts: list[str] = []
    for name, kind in PICTURES.items():
        picture = folder / name
        if not parts and picture.is_file() and picture.stat().st_size <= MOST_BYTES:
            data = base64.b64encode(picture.read_bytes()).decode()
            parts.append(f'<img alt="the best game" src="data:{kind};base64,{data}"/>')
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    links = []
    for path in files:
        place, said = path.relative_to(seen.run.path).as_posix(), html.escape(_game(path))
        links.append(
            f'<li><a href="./{quote(place)}">{html.escape(path.name)}</a> <span class="dim">{said}</span></li>'
        )
    listed = f"<ul>{''.join(links)}</ul>" if links else ""
    if len(links) > 30:
        listed = f"<details><summary>{len(links)} files</summary>{listed}</details>"
    return "".join(parts) + listed


def _game(path: Path) -> str:
    """What a replay shows, in words; of other files only how large they are."""
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


def _time(seen: RunData) -> str:
    told = [(name, number(value)) for name, value in (seen.story.get("seconds") or {}).items()]
    stages = figures.strip([(name, value, human_time(value)) for name, value in told if value is not None])
    wanted = seen.story.get("expected") or {}
    pairs = [(name, number(wanted.get(name)), value) for name, value in told if value is not None]
    told_before = [[name, human_time(one), human_time(value)] for name, one, value in pairs if one is not None]
    stages += table(("stage", "expected", "took"), told_before) if told_before else ""
    rows = [row for row in seen.rows if all(row.get(f"time/{name}") is not None for name in SPLIT)]
    split = [Line(name, [(row["steps"], row[f"time/{name}"], None, None) for row in rows]) for name in SPLIT]
    drawn = [
        figure("Where the time of training went", figures.stacked(split)),
        figure("Steps per second", figures.lines([Line("", seen.points("time/steps_per_second"))], zero=True)),
    ]
    return figure("The stages", stages) + grid(drawn)


def _happened(seen: RunData) -> str:
    """Decisions, snapshots, faults: what the run said of itself."""
    events = seen.events[-MOST_EVENTS:]
    rows = [[f"{event['steps']:,}", event["kind"], event["text"]] for event in events]
    if not rows:
        return ""
    listed = table(("steps", "what", ""), rows)
    if len(seen.events) > len(events):
        listed = f'<p class="dim">The last {len(events)} of {len(seen.events):,}.</p>{listed}'
    return listed if len(rows) <= 30 else f"<details><summary>{len(rows)} events</summary>{listed}</details>"


def _made(seen: RunData) -> str:
    def words(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {one}" for key, one in value.items())
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    return table((), [[key, words(seen.origin[key])] for key in SHOWN if seen.origin.get(key) is not None])


SECTIONS: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("Result", _result),
    ("Ladder", _ladder),
    ("Who beats whom", _payoff),
    ("Curves", _curves),
    ("Curriculum", _curriculum),
    ("Rewards", _rewards),
    ("Behaviour", _behaviour),
    ("Replays", _replays),
    ("Time", _time),
    ("What happened", _happened),
    ("Made by", _made),
)
