"""Run the whole pipeline of a game: tune, record, clone, train, compete, evaluate, tournament, report.

Stages exchange data on disk only: the demos are in DIR/demos, the clone in DIR/clone, the training run in DIR itself,
the league in DIR/league. DIR/story.json lists the finished stages, so that the same command resumes an interrupted
pipeline. Tuning tries only changes that keep results identical: a seed gives the same result with and without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from slipstream.config import Resolved
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError, did_you_mean
from slipstream.perf import plan_cache
from slipstream.perf.trial import run_trial
from slipstream.perf.tune import tune
from slipstream.play.video_files import VideoOptions, save_png
from slipstream.runs.checkpoint import read_best
from slipstream.runs.layout import RunDir, default_path, write_json
from slipstream.runs.provenance import read_config
from slipstream.runs.replays import Replay
from slipstream.settings import Settings
from slipstream.stages import STAGES
from slipstream.stages import clone as cloning
from slipstream.stages import compete as competing
from slipstream.stages import train as training
from slipstream.stages.evaluate import evaluate
from slipstream.stages.record import record
from slipstream.stages.report import report
from slipstream.stages.tournament import tournament

Configure = Callable[[dict[str, Any]], Resolved]
OnNotice = Callable[[str], None]
OnProgress = Callable[[int, int], None]
WORTH_TUNING_S = 60.0
"""Tuning is skipped for trainings shorter than this."""
TUNED_FACTS = ("settings", "steps_per_second", "gain", "exact")
FOLDERS = {"record": "demos", "clone": "clone", "train": "checkpoints", "compete": "league"}
"""The folder of the run directory that each stage writes into."""
REPEATED = ("evaluate", "tournament", "report")
"""Stages that run again when a finished pipeline is started again."""


class Pipeline:
    """All stages of one game in one run directory."""

    def __init__(
        self,
        choice: EnvChoice,
        configure: Configure,
        place: Path,
        skip: Collection[str],
        on_notice: OnNotice,
        on_progress: OnProgress,
    ) -> None:
        self.choice, self.place = choice, place
        self._configure, self._on_notice, self._on_progress = configure, on_notice, on_progress
        self._file = place / "story.json"
        game, _ = parse(choice.name)
        self._game = game
        resolved = configure({})
        self._settings: Settings = resolved.settings
        self._untuned: Settings = resolved.untuned or resolved.settings
        self.expert = self._settings.record.agent or (game.expert if game is not None else "")
        absent = [] if self.expert else ["record", "clone"]
        absent += [] if game is not None and game.reference else ["compete", "tournament"]
        trains = "train" not in skip and not RunDir(place).holds_run
        absent += [] if trains and not choice.name.startswith("python:") else ["tune"]
        self.stages = [name for name in STAGES if name not in skip and name not in absent]
        before = self._read_state()
        if not before and RunDir(place).holds_run and "train" in self.stages:
            raise ConfigError(
                f"{place} holds a run that `slipstream run` did not start.",
                f"resume it: {RunDir(place).resume_command}, skip finished stages with --skip, or choose another --run",
            )
        self.facts: dict[str, Any] = {"stages": self.stages} | {n: before[n] for n in STAGES if n in before}
        self._seconds: dict[str, float] = before.get("seconds", {})
        self._expected: dict[str, float] = before.get("expected", {})
        self._costs = plan_cache.stage_costs(choice.name, self._untuned)

    def _read_state(self) -> dict[str, Any]:
        """The results of the stages that are finished."""
        try:
            state = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def run(self) -> dict[str, Any]:
        """Run every stage that is not finished."""
        if self._settings.opponent and "compete" in self.stages and "compete" not in self.facts:
            self._on_notice(f"{self._settings.opponent} plays in training only: the league chooses its own opponents")
        for name in self.stages:
            if name in self.facts and name not in REPEATED and not self._needs_more_steps(name):
                self._on_notice(f"{name}: finished already")
                continue
            fresh = not self._started(name)
            expected = self._expect(name, fresh)
            self._on_notice(name if expected is None else f"{name}: expected to take {expected:,.1f} s")
            began = time.perf_counter()
            self.facts[name] = getattr(self, f"_{name}")()
            if isinstance(self.facts[name], dict) and self.facts[name].get("stopped"):
                return self.facts
            self._seconds[name] = time.perf_counter() - began
            if fresh and (work := self._work(name)):
                plan_cache.keep_stage_cost(self.choice.name, self._untuned, name, self._seconds[name] / work)
            self.place.mkdir(parents=True, exist_ok=True)
            write_json(self._file, self.facts | {"seconds": self._seconds, "expected": self._expected})
        whole = sum(self._seconds.values())
        self.facts["times"] = {
            name: {"seconds": s, "share": s / whole, "expected": self._expected.get(name)}
            for name, s in self._seconds.items()
        }
        return self.facts

    def _started(self, name: str) -> bool:
        """Whether a stage was interrupted: the time of the remaining part does not measure the whole stage."""
        return name in FOLDERS and (self.place / FOLDERS[name]).exists()

    def _work(self, name: str) -> float:
        """The amount of work of a stage, in the unit that its time is proportional to; 0 if it is unknown."""
        s, games = self._settings, float(self._settings.evaluation.final_games)
        amounts = {
            "record": float(s.record.games),
            "clone": float(s.record.games * s.clone.epochs),
            "train": float(s.steps or 0),
            "compete": float(s.league.steps),
            "evaluate": games,
            "tournament": games,
            "report": 1.0,
        }
        return amounts.get(name, 0.0)

    def _expect(self, name: str, fresh: bool) -> float | None:
        """The expected seconds of a stage, from the last pipeline on this machine or from the tuned speed."""
        self._expected.pop(name, None)
        if not fresh:
            return None
        rate = self.facts["tune"].get("steps_per_second") if isinstance(self.facts.get("tune"), dict) else None
        if name == "train" and self._settings.minutes is not None:
            self._expected[name] = 60 * self._settings.minutes
        elif name in self._costs and self._work(name):
            self._expected[name] = self._costs[name] * self._work(name)
        elif name in ("train", "compete") and rate and self._work(name):
            self._expected[name] = self._work(name) / rate
        return self._expected.get(name)

    def _tune(self) -> dict[str, Any]:
        """Find a faster plan, unless one is saved or training is too short for tuning to pay off."""
        found = plan_cache.load(self.choice.name, self._untuned)
        if found is not None:
            self._on_notice("a tuned plan is saved on this machine")
            return {key: found.get(key) for key in TUNED_FACTS}
        trial = run_trial(self.choice, self._untuned, seconds=0.3, warm_iterations=1)
        seconds = (self._work("train") + self._work("compete") * ("compete" in self.stages)) / trial.rate
        seconds = max(seconds, 60 * (self._settings.minutes or 0))
        if seconds < WORTH_TUNING_S:
            self._on_notice(f"tuning is skipped: training takes about {seconds:,.1f} s")
            return {"settings": {}, "steps_per_second": trial.rate, "gain": 1.0, "exact": True}
        tuned = tune(self.choice, self._configure({}), exact=True, on_notice=self._on_notice)
        return {key: tuned.facts()[key] for key in TUNED_FACTS}

    def _needs_more_steps(self, name: str) -> bool:
        """Whether more steps are requested than the finished training has done."""
        return name == "train" and (self._settings.steps or 0) > self.facts["train"]["steps"]

    def _record(self) -> dict[str, Any]:
        """Record the games that are missing."""
        out, requested = self.place / "demos", self._settings.record.games
        recorded = len(set(Demos.open(out).games)) if (out / "demos.json").exists() else 0
        if recorded >= requested:
            return {"out": str(out), "games": recorded}
        return record(self.choice, self.expert, requested - recorded, out, on_progress=self._on_progress)

    def _clone(self) -> dict[str, Any]:
        """Clone the demos, or resume the clone."""
        demos, run = self.place / "demos", self.place / "clone"
        if RunDir(run).holds_run:
            return self._resume_clone(run)
        resolved = self._configure({"clone.demos": str(demos)})
        return cloning.clone(resolved, demos, run, self._on_notice, self._on_progress, self.choice.code).facts()

    def _resume_clone(self, run: Path) -> dict[str, Any]:
        settings = read_config(RunDir(run))[0]
        return cloning.resume(run, settings, self._on_notice, self._on_progress, self.choice.code).facts()

    def _train(self) -> dict[str, Any]:
        """Train, from the clone if there is one, or resume the training."""
        if RunDir(self.place).holds_run:
            before = read_config(RunDir(self.place))[0].steps or 0
            steps = self._settings.steps if (self._settings.steps or 0) > before else None
            return training.resume(self.place, steps, self.choice.code).facts()
        cloned = "clone" in self.facts
        resolved = self._configure({"start": f"run:{self.place / 'clone'}"} if cloned else {})
        return training.train(self.choice, resolved, self.place).facts()

    def _compete(self) -> dict[str, Any]:
        """Train the agent further in a league, or resume the league."""
        place = self.place / "league"
        if RunDir(place).holds_run:
            return competing.resume(place, code=self.choice.code)
        more = {"start": self._trained(), "steps": self._settings.league.steps, "minutes": None, "opponent": None}
        facts = competing.compete(self.choice, self._configure(more), place)
        return {name: value for name, value in facts.items() if name != "ladder"}

    def _trained(self) -> str:
        """The agent of the training stage."""
        return f"run:{self.place}" + ("@best" if read_best(RunDir.open(self.place)) else "")

    def _agent(self) -> str:
        """The final agent: the best of the league, or the agent of the training stage."""
        league = self.place / "league"
        if "compete" not in self.facts:
            return self._trained()
        return f"run:{league}" + ("@best" if read_best(RunDir.open(league)) else "")

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate the final agent against the opponents, or beside the expert in a game with one side."""
        folder, wanted = RunDir.open(self.place), self._settings.evaluation
        opponents = [wanted.opponent] if wanted.opponent else list(self._game.opponents if self._game else ())
        result = evaluate(
            self.choice,
            self._agent(),
            opponents,
            wanted.final_games,
            seed=self._settings.seed + 1_000_003,
            envs=wanted.envs,
            on_progress=self._on_progress,
            beside=None if opponents or not self.expert else self.expert,
        )
        write_json(folder.path / "evaluation.json", result)
        return result

    def _tournament(self) -> dict[str, Any]:
        """Play a tournament between the agents of all stages and the scripted players."""
        assert self._game is not None
        agents = [self._agent(), *([self._trained()] if "compete" in self.facts else [])]
        agents += [f"run:{self.place / 'clone'}"] if "clone" in self.facts else []
        agents += [f"scripted:{name}" for name in self._game.players]
        games = max(2, self._settings.evaluation.final_games // 4 * 2)
        result = tournament(
            self.choice,
            agents,
            games,
            seed=self._settings.seed + 2_000_003,
            run=self.place,
            on_progress=self._on_progress,
            on_notice=self._on_notice,
        )
        best = [Path(path) for path in result["replays"] if "best" in Path(path).name]
        if best:
            save_png(Replay.open(best[0]), self.place / "replays" / "best.png", VideoOptions())
        return result

    def _report(self) -> str:
        return str(report(RunDir.open(self.place))["report"])


def run(
    choice: EnvChoice,
    configure: Configure,
    *,
    run: str | Path | None = None,
    skip: Collection[str] = (),
    on_notice: OnNotice = lambda line: None,
    on_progress: OnProgress = lambda done, total: None,
) -> dict[str, Any]:
    """Run every stage that is neither skipped nor finished; return the results by stage.

    `configure` resolves the settings with more values on top, which come from earlier stages.
    """
    for name in skip:
        if name not in STAGES:
            near = did_you_mean(name, STAGES)
            raise ConfigError(f"There is no stage `{name}`.{near}", f"stages: {', '.join(STAGES)}")
    if run is None and "train" in skip:
        raise ConfigError("Without the train stage, an existing run is needed.", "name it: --run DIR")
    place = Path(run) if run else default_path(choice.name)
    return Pipeline(choice, configure, place, skip, on_notice, on_progress).run()
