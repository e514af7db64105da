"""Reports about rewards: the contribution of each term in demos or games, and ablations of single terms."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.confidence import CONFIDENCE, mean_interval, t_quantile
from slipstream.config import Resolved
from slipstream.contracts import Array
from slipstream.demos.format import Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare
from slipstream.envs import python_terms
from slipstream.envs.registry import EnvChoice, known, parse, reference_opponent
from slipstream.envs.rewards import OWN, RewardScheme, discount, weighted_terms
from slipstream.errors import ConfigError, DemoError, did_you_mean
from slipstream.play.games import play
from slipstream.play.recorder import Recorder, RecordJob, make_vectors, spread
from slipstream.runs.checkpoint import find, load, steps_of
from slipstream.runs.figures import PANEL, Chart, Line, Player, bar_chart, ladder_chart, save_png, xy_chart
from slipstream.runs.layout import RunDir, read_json, write_json
from slipstream.settings import RewardSettings, Settings
from slipstream.training.run_state import check_terms
from slipstream.training.runner import begin, resume
from slipstream.vector.make import make_vector

SPARSE, DENSE = 0.02, 0.5
"""A term is sparse if it is non-zero in less than this share of the steps, and dense above that share."""
POINTS = 80
"""Points of a curve over a game."""
FULL = "full"
Charts = Sequence[tuple[str, Chart]]
OnProgress = Callable[[int, int], None]


def opponent_of(choice: EnvChoice, requested: str | None) -> str | None:
    """The opponent for measurements: the requested one, or the game's reference; None in a game with one side."""
    with contextlib.closing(make_vector(choice, 1)) as vector:
        if not vector.spec.competitive:
            return None
    found = requested or reference_opponent(choice)
    if not found:
        raise ConfigError(f"`{choice.name}` has two sides and no reference opponent.", "set evaluation.opponent=AGENT")
    return found


def report_demos(folder: Path, settings: Settings, games: int | None = None) -> dict[str, Any]:
    """The reward report of recorded demos, or of their first `games` games."""
    demos = Demos.open(folder)
    agent = demos.shards[0].origin.get("agent") if demos.shards else None
    discounts = _discounts(settings, demos.schema.step_seconds, demos.schema.env)
    return {"source": str(folder), "agent": agent, "opponent": None} | reward_report(demos, games, *discounts)


def report_games(
    choice: EnvChoice,
    settings: Settings,
    agent: str,
    *,
    run: RunDir | None = None,
    games: int = 100,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The reward report of games that `agent` plays now against the reference opponent.

    With `run`, the env must have the reward terms that this run was trained with.
    """
    if run is not None:
        with contextlib.closing(make_vector(choice, 1)) as vector:
            check_terms(vector.spec, load(find(run), groups=()).state.get("terms", vector.spec.terms))
    opponent = opponent_of(choice, settings.evaluation.opponent)
    with played(choice, agent, opponent, games, settings.seed, on_progress, on_notice) as demos:
        discounts = _discounts(settings, demos.schema.step_seconds, choice.name)
        return {"source": agent, "agent": agent, "opponent": opponent} | reward_report(demos, None, *discounts)


def _discounts(settings: Settings, step_seconds: float, env: str) -> tuple[float, float]:
    """Gamma and lambda of training."""
    section = settings.ppo if settings.algorithm == "ppo" else settings.sac
    return discount(settings.rewards, step_seconds, section.gamma, env), getattr(section, "gae_lambda", 1.0)


@contextlib.contextmanager
def played(
    choice: EnvChoice,
    agent: str,
    opponent: str | None,
    games: int,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] = lambda line: None,
) -> Iterator[Demos]:
    """Play games and yield them as temporary demos; trained agents sample their actions.

    `on_notice` is told why games were left out.
    """
    _check_games(games)
    with tempfile.TemporaryDirectory(prefix="slipstream-rewards-") as place:
        with contextlib.closing(make_vector(choice, 1, seed=seed)) as probe:
            spec = probe.spec
            schema = Schema.of(choice.name, spec, probe.snapshot() if spec.exact else None)
        folder = Path(place) / "demos"
        prepare(folder, schema)
        job = RecordJob(choice, agent, opponent, games, spread(games, spec), seed, sampled=True)
        player = load_agent(agent, spec, choice, True)
        other = load_agent(opponent, spec, choice, True) if opponent else None
        shard = Shard(folder, "played", schema, {"agent": agent, "opponent": opponent})
        recorder = Recorder(job, make_vectors(job, 0, job.envs, np.zeros(3, np.int64)), player, other, shard)

        def report_progress() -> bool:
            if on_progress is not None:
                on_progress(recorder.games, games)
            return False

        try:
            recorder.run(report_progress)
        finally:
            recorder.close()
            shard.close()
        for line in recorder.fault_messages():
            on_notice(line)
        yield Demos.open(folder)


def _check_games(games: int) -> None:
    if games < 1:
        raise ConfigError(f"{games} games are too few.", "give --games a positive number")


def reward_report(demos: Demos, games: int | None, gamma: float, gae_lambda: float) -> dict[str, Any]:
    """Measure each reward term in the first `games` games (see `measure`), with curves of its sum over a game.

    An env without reward terms has one term, its reward. Every agent of a game is an episode.
    """
    if games is not None:
        _check_games(games)
        demos = demos.pick(np.flatnonzero(demos.games < games))
    if not len(demos):
        raise DemoError(f"{demos.path} holds no whole episode.", "record some games first")
    names = demos.schema.terms or ("reward",)
    columns = [f"terms/{name}" for name in demos.schema.terms] or ["reward"]
    episodes = []
    for number in range(len(demos)):
        values = demos.episode(number, columns)
        episodes.append(np.stack([values[column] for column in columns], axis=1).astype(np.float64))
    seconds = demos.schema.step_seconds
    scheme = _scheme(demos.schema.env)
    groups = {term: group for group, held in scheme.groups.items() for term in held} if scheme else {}
    other = OWN if demos.schema.terms else ""
    found = measure(episodes, gamma, gae_lambda, seconds)
    mean, low, high = mean_interval([float(episode.sum()) for episode in episodes])
    return {
        "env": demos.schema.env,
        "games": len(set(demos.games.tolist())),
        "episodes": len(demos),
        "steps": demos.steps,
        "step_seconds": seconds or None,
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "mean_return": mean,
        "mean_return_low": low,
        "mean_return_high": high,
        "terms": {name: {"group": groups.get(name, other)} | one for name, one in zip(names, found, strict=True)},
        "curves": _curves(episodes, names, seconds),
    }


def _scheme(env: str) -> RewardScheme | None:
    """The built-in reward terms of an environment; those of a Python env if it has no scheme, None if unknown."""
    if not known(env):
        return None
    game = parse(env)[0]
    return game.scheme() if game is not None and game.scheme is not None else python_terms.SCHEME


def measure(episodes: Sequence[Array], gamma: float, gae_lambda: float, seconds: float = 0.0) -> list[dict[str, Any]]:
    """Statistics of each term in episodes of shape [steps, terms].

    Mean per game and per second, minimum, maximum, density (share of non-zero steps), share of the return (of the sum
    of absolute rewards) and share of the advantage (mean absolute deviation of the term's own discounted return, with
    gamma * lambda). Both shares sum to 1 over the terms.
    """
    steps = np.concatenate(episodes)
    sums = np.array([episode.sum(axis=0) for episode in episodes])
    sizes = np.abs(steps).sum(axis=0)
    returns = np.concatenate([discounted_sums(episode, gamma * gae_lambda) for episode in episodes])
    deviations = np.abs(returns - returns.mean(axis=0)).mean(axis=0)
    facts = []
    for k in range(steps.shape[1]):
        mean, low, high = mean_interval(sums[:, k].tolist())
        density = float((steps[:, k] != 0).mean())
        one: dict[str, Any] = {"per_game": mean, "per_game_low": low, "per_game_high": high}
        one["per_second"] = float(steps[:, k].mean()) / seconds if seconds else None
        one |= {"min": float(steps[:, k].min()), "max": float(steps[:, k].max()), "density": density}
        one["kind"] = (
            "off" if not density else "sparse" if density < SPARSE else "dense" if density > DENSE else "regional"
        )
        one["return_share"] = float(sizes[k] / max(sizes.sum(), 1e-12))
        one["advantage_share"] = float(deviations[k] / max(deviations.sum(), 1e-12))
        facts.append(one)
    return facts


def discounted_sums(values: Array, rate: float) -> Array:
    """The discounted sum from each step to the end of an episode, of shape [steps, terms]."""
    found, total = np.zeros_like(values), np.zeros(values.shape[1])
    for t in range(len(values) - 1, -1, -1):
        total = values[t] + rate * total
        found[t] = total
    return found


def _curves(episodes: Sequence[Array], names: Sequence[str], seconds: float) -> dict[str, Any]:
    """The cumulative reward of each term over a game, with 95 % intervals; a finished game keeps its sum."""
    longest = max(len(episode) for episode in episodes)
    moments = np.unique(np.linspace(0, longest, POINTS + 1).astype(int))
    sums = np.zeros((len(episodes), len(moments), len(names)))
    for number, episode in enumerate(episodes):
        summed = np.concatenate([np.zeros((1, len(names))), np.cumsum(episode, axis=0)])
        sums[number] = summed[np.minimum(moments, len(episode))]
    mean, half = sums.mean(axis=0), np.zeros(sums.shape[1:])
    if len(episodes) > 1:
        factor = t_quantile(0.5 + CONFIDENCE / 2, len(episodes) - 1) / math.sqrt(len(episodes))
        half = factor * sums.std(axis=0, ddof=1)
    return {
        "unit": "seconds" if seconds else "steps",
        "at": (moments * (seconds or 1)).tolist(),
        "terms": {
            name: {
                "mean": mean[:, k].tolist(),
                "low": (mean - half)[:, k].tolist(),
                "high": (mean + half)[:, k].tolist(),
            }
            for k, name in enumerate(names)
        },
    }


def keep(facts: Mapping[str, Any], out: Path, draw: Callable[[Mapping[str, Any]], Charts], name: str) -> Path:
    """Write NAME.json and NAME.png into a folder; return the path of the PNG file."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", facts)
    save_png(out / f"{name}.png", draw(facts))
    return out / f"{name}.png"


def draw_report(facts: Mapping[str, Any]) -> Charts:
    """The cumulative reward of each term over a game, and the terms' shares of the return and the advantage."""
    terms = {name: one for name, one in facts["terms"].items() if one["density"]} or facts["terms"]
    curves = facts["curves"]
    lines = [
        Line.of(name, curves["at"], *(curves["terms"][name][key] for key in ("mean", "low", "high"))) for name in terms
    ]
    heading = f"{facts['env']}, {facts['games']} games: reward so far"
    charts = [(heading, xy_chart(lines, size=PANEL, along=curves["unit"], most=2 * PANEL.width))]
    for key in ("return", "advantage"):
        rows = [(name, one[f"{key}_share"], f"{100 * one[f'{key}_share']:.1f} %") for name, one in terms.items()]
        charts.append((f"share of the {key}", bar_chart(rows)))
    return charts


def choose_terms(choice: EnvChoice, wanted: Sequence[str]) -> list[str]:
    """The terms that an ablation removes one at a time: the named ones, or all with a weight that shape the reward."""
    scheme = _scheme(choice.name)
    if scheme is None or (scheme is python_terms.SCHEME and not choice.terms):
        hint = "give terms of your own (--reward MODULE:NAME), or use a built-in game, such as soccer"
        raise ConfigError(f"`{choice.name}` has no reward terms.", hint)
    weights = weighted_terms(scheme, choice.rewards, tuple(choice.terms))
    live = [name for name, weight in weights.items() if weight]
    for name in wanted:
        if name not in live:
            why = "has weight 0" if name in weights else "does not exist"
            raise ConfigError(f"Reward term `{name}` {why}.{did_you_mean(name, live)}", f"terms: {', '.join(live)}.")
    chosen = list(wanted) or [name for name in live if name not in scheme.weights["sparse"]]
    if not chosen:
        raise ConfigError("There is no reward term to remove.", "name some: --terms a,b")
    return chosen


def ablate(
    choice: EnvChoice,
    resolved: Resolved,
    place: Path,
    terms: Sequence[str],
    *,
    seeds: int = 3,
    games: int = 400,
    on_notice: Callable[[str], None] = lambda line: None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Train with all terms and without each of them, from the same seeds, and compare how well the agents play.

    The measure is the win rate against the reference opponent, or, in a game with one side, the sparse return; never
    the shaped return. Finished runs in the folder `place` are not repeated.
    """
    _check_games(games)
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds are too few.", "give --seeds a positive number")
    settings = resolved.settings
    dropped = choose_terms(choice, terms)
    opponent = opponent_of(choice, settings.evaluation.opponent)
    plan: dict[str, Any] = {"env": choice.name, "steps": settings.steps, "games": games, "opponent": opponent}
    _check_place(place, plan)
    variants = [FULL, *(f"without-{name}" for name in dropped)]
    values: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(seeds * len(variants)):
        seed, variant = settings.seed + number // len(variants), variants[number % len(variants)]
        if on_progress is not None:
            on_progress(number, seeds * len(variants))
        on_notice(f"{number + 1} of {seeds * len(variants)}: {variant.replace('-', ' ', 1)}, seed {seed}")
        weights = settings.rewards.weights | ({variant.partition("-")[2]: 0.0} if variant != FULL else {})
        rewards = settings.rewards.model_copy(update={"weights": weights})
        update = {"rewards": rewards, "seed": seed, "every": settings.every.model_copy(update={"evaluate": 0})}
        one = Resolved(settings.model_copy(update=update), resolved.origins)
        folder = place / f"{variant}-seed{seed}"
        value, stopped = _result(replace(choice, rewards=rewards), one, folder, games, opponent)
        if stopped:
            return plan | {"run": str(place), "stopped": stopped, "terms": {}}
        values[variant].append(value)
    facts = plan | {"run": str(place), "stopped": "", "seeds": seeds, "measure": "win_rate" if opponent else "return"}
    facts |= {FULL: values[FULL], "full_mean": mean_interval(values[FULL])[0]}
    return facts | {"terms": {name: verdict(values[FULL], values[f"without-{name}"]) for name in dropped}}


def verdict(full: Sequence[float], without: Sequence[float]) -> dict[str, Any]:
    """The effect of a term: the mean over seeds of the gain that all terms have over all but this one (Student's t)."""
    gain, low, high = mean_interval([a - b for a, b in zip(full, without, strict=True)])
    word = "helps" if low > 0 else "hurts" if high < 0 else "no difference"
    return {"verdict": word, "gain": gain, "gain_low": low, "gain_high": high, "without": list(without)}


def _check_place(place: Path, plan: Mapping[str, Any]) -> None:
    """Check that a folder is new or holds the same ablation, and write the plan of the ablation into it."""
    before = read_json(place / "plan.json") or {}
    for key, value in plan.items():
        if before and before.get(key) != value:
            raise ConfigError(
                f"{place} holds an ablation with `{key}` = {before.get(key)}, not {value}.", "choose another --run DIR"
            )
    if not before and place.exists() and any(place.iterdir()):
        raise ConfigError(f"{place} is not empty and holds no ablation.", "choose another --run DIR")
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / "plan.json", dict(plan))


def _result(choice: EnvChoice, resolved: Resolved, folder: Path, games: int, opponent: str | None) -> tuple[float, str]:
    """Train or resume one run of an ablation; return its score, and the signal that stopped it, if any."""
    settings, run = resolved.settings, RunDir(folder)
    done = read_json(folder / "result.json")
    if done is not None:
        return float(done["value"]), ""
    reached = max(steps_of(run), default=0) if run.holds_run else 0
    if not reached:
        shutil.rmtree(folder, ignore_errors=True)  # interrupted before its first checkpoint
        stopped = begin(choice, resolved, folder).stopped
    elif reached < (settings.steps or 0):
        stopped = resume(folder, code=choice.code).stopped
    else:
        stopped = ""
    if stopped:
        return math.nan, stopped
    value = _value(choice, f"run:{folder}", settings, games, opponent)
    write_json(folder / "result.json", {"value": value, "games": games, "opponent": opponent})
    return value, ""


def _value(choice: EnvChoice, agent: str, settings: Settings, games: int, opponent: str | None) -> float:
    """The win rate of an agent, or its mean sparse return in a game with one side."""
    plain = replace(choice, rewards=RewardSettings(mode="sparse"), terms={})
    versus = (lambda spec, where: load_agent(opponent, spec, where)) if opponent else None
    result = play(
        plain,
        lambda spec, where: load_agent(agent, spec, where),
        versus,
        games,
        seed=settings.seed + 1_000_003,
        envs=settings.evaluation.envs,
    ).summary()
    return float(result["win_rate"] if opponent else result["mean_return"])


def draw_ablation(facts: Mapping[str, Any]) -> Charts:
    """The gain of each term with its interval and its verdict."""
    players = []
    for name, one in facts["terms"].items():
        low, high = (one[end] if math.isfinite(one[end]) else None for end in ("gain_low", "gain_high"))
        players.append(Player(name, one["gain"], low, high, (one["verdict"],)))
    measure = facts["measure"].replace("_", " ")
    heading = f"{facts['env']}, {facts['seeds']} seeds of {facts['steps']:,} steps: gain in {measure}"
    return [(heading, ladder_chart(players, [("", 120)], 0.0, margin=1e-3))] if players else []
