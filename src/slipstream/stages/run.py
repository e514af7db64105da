"""The whole story of a game, stage after stage: tune, record, clone, train, compete, evaluate, tournament, report.

Stages meet on disk: demos in DIR/demos, the clone in DIR/clone, the training in DIR itself, the league in DIR/league.
What is done stands in DIR/story.json, so that the same command goes on where it was stopped. Tuning tries only what
leaves every bit of the result as it is: the same seed tells the same story, tuned or not.
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
from slipstream.runs.checkpoint import read_best
from slipstream.runs.layout import RunDir, default_path, write_json
from slipstream.runs.provenance import read_config
from slipstream.runs.replays import Replay
from slipstream.settings import Settings
from slipstream.stages import STORY
from slipstream.stages import clone as cloning
from slipstream.stages import compete as competing
from slipstream.stages import train as training
from slipstream.stages.evaluate import evaluate
from slipstream.stages.record import record
from slipstream.stages.replay import FilmOptions, save_png
from slipstream.stages.report import report
from slipstream.stages.tournament import tournament

Tell = Callable[[str], None]
Show = Callable[[int, int], None]
WORTH_TUNING_S = 60.0
"""Training that takes less than this is done before tuning would have paid."""


class Story:
    """One game from its expert to a report, in one folder."""

    def __init__(
        self, choice: EnvChoice, configure: Callable[[dict[str, Any]], Resolved], place: Path, skip: Collection[str],
        tell: Tell, show: Show | None,
    ) -> None:  # fmt: skip
        self.choice, self.place, self.tell = choice, place, tell
        self._configure = configure
        self._show = show or (lambda done, total: None)
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
        self.stages = [name for name in STORY if name not in skip and name not in absent]
        before = self._before()
        if not before and RunDir(place).holds_run and "train" in self.stages:
            raise ConfigError(
                f"{place} holds a run that `run` did not begin.",
                f"go on with it by `slipstream resume {place}`, skip what is done with --skip, or choose another --run",
            )
        self.facts: dict[str, Any] = {"stages": self.stages} | {n: before[n] for n in STORY if n in before}
        self._seconds: dict[str, float] = before.get("seconds", {})
        self._expected: dict[str, float] = before.get("expected", {})
        self._costs = plan_cache.stage_costs(choice.name, self._untuned)

    def _before(self) -> dict[str, Any]:
        """What an earlier start has finished."""
        try:
            told = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def run(self) -> dict[str, Any]:
        """Do every stage that is not done."""
        for name in self.stages:
            if name in self.facts and name not in ("evaluate", "tournament", "report") and not self._wants_more(name):
                self.tell(f"{name}: done before")
                continue
            fresh = not self._begun(name)
            expected = self._expect(name, fresh)
            self.tell(name if expected is None else f"{name}: about {expected:,.1f} s expected")
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

    def _begun(self, name: str) -> bool:
        """Whether an earlier start has done a part of a stage, so that the rest says nothing about the whole."""
        places = {"record": "demos", "clone": "clone", "train": "checkpoints", "compete": "league"}
        return name in places and (self.place / places[name]).exists()

    def _work(self, name: str) -> float:
        """How much a stage has to do, in whatever its time grows with; 0 where that is not known."""
        s, games = self._settings, float(self._settings.evaluation.final_games)
        return {
            "record": float(s.record.games), "clone": float(s.record.games * s.clone.epochs),
            "train": float(s.steps or 0), "compete": float(s.league.steps), "evaluate": games, "tournament": games,
            "report": 1.0,
        }.get(name, 0.0)  # fmt: skip

    def _expect(self, name: str, fresh: bool) -> float | None:
        """Seconds that a stage should take: by the last story on this machine, or by the rate that tuning measured."""
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
        """Find a faster plan, if there is none yet and training takes long enough to pay for it."""
        found = plan_cache.load(self.choice.name, self._untuned)
        if found is not None:
            self.tell("tuned before on this machine")
            return {key: found.get(key) for key in ("settings", "steps_per_second", "gain", "exact")}
        trial = run_trial(self.choice, self._untuned, seconds=0.3, warm_iterations=1)
        seconds = (self._work("train") + self._work("compete") * ("compete" in self.stages)) / trial.rate
        seconds = max(seconds, 60 * (self._settings.minutes or 0))
        if seconds < WORTH_TUNING_S:
            self.tell(f"not worth it: training takes about {seconds:,.1f} s")
            return {"settings": {}, "steps_per_second": trial.rate, "gain": 1.0, "exact": True}
        tuned = tune(self.choice, self._configure({}), exact=True, tell=self.tell)
        return {key: tuned.facts()[key] for key in ("settings", "steps_per_second", "gain", "exact")}

    def _wants_more(self, name: str) -> bool:
        """Whether more steps are asked for than a training that is done has taken."""
        return name == "train" and (self._settings.steps or 0) > self.facts["train"]["steps"]

    def _record(self) -> dict[str, Any]:
        """Record what is missing of the games."""
        out, wanted = self.place / "demos", self._settings.record.games
        have = len(set(Demos.open(out).games)) if (out / "demos.json").exists() else 0
        if have >= wanted:
            return {"out": str(out), "games": have}
        return record(self.choice, self.expert, wanted - have, out, on_progress=self._show)

    def _clone(self) -> dict[str, Any]:
        """Clone the demos, or go on with it."""
        demos, run = self.place / "demos", self.place / "clone"
        if RunDir(run).holds_run:
            return cloning.resume(run, read_config(RunDir(run))[0], self.tell, self._show).facts()
        resolved = self._configure({"clone.demos": str(demos)})
        return cloning.clone(resolved, demos, run, self.tell, self._show).facts()

    def _train(self) -> dict[str, Any]:
        """Train, from the clone if there is one, or go on with it."""
        if RunDir(self.place).holds_run:
            had = read_config(RunDir(self.place))[0].steps or 0
            more = self._settings.steps if (self._settings.steps or 0) > had else None
            return training.resume(self.place, more, modules=self.choice.modules).facts()
        cloned = "clone" in self.facts
        resolved = self._configure({"start": f"run:{self.place / 'clone'}"} if cloned else {})
        return training.train(self.choice, resolved, self.place).facts()

    def _compete(self) -> dict[str, Any]:
        """Go on from the training in a league, or go on with that."""
        place = self.place / "league"
        if RunDir(place).holds_run:
            return competing.resume(place, modules=self.choice.modules)
        more = {"start": self._trained(), "steps": self._settings.league.steps, "minutes": None}
        facts = competing.compete(self.choice, self._configure(more), place)
        return {name: value for name, value in facts.items() if name != "ladder"}

    def _trained(self) -> str:
        """The agent that training left."""
        return f"run:{self.place}" + ("@best" if read_best(RunDir.open(self.place)) else "")

    def _agent(self) -> str:
        """The agent that the story is about: the league's best, or what training left."""
        league = self.place / "league"
        if "compete" not in self.facts:
            return self._trained()
        return f"run:{league}" + ("@best" if read_best(RunDir.open(league)) else "")

    def _evaluate(self) -> dict[str, Any]:
        """Play the final games, and beside the expert where there is nobody to play against."""
        folder, wanted = RunDir.open(self.place), self._settings.evaluation
        opponents = [wanted.opponent] if wanted.opponent else list(self._game.opponents if self._game else ())
        result = evaluate(
            self.choice, self._agent(), opponents, wanted.final_games, seed=self._settings.seed + 1_000_003,
            envs=wanted.envs, on_progress=self._show, beside=None if opponents or not self.expert else self.expert,
        )  # fmt: skip
        write_json(folder.path / "evaluation.json", result)
        return result

    def _tournament(self) -> dict[str, Any]:
        """Let everything that the story made play each other and the scripted players."""
        assert self._game is not None
        agents = [self._agent(), *([self._trained()] if "compete" in self.facts else [])]
        agents += [f"run:{self.place / 'clone'}"] if "clone" in self.facts else []
        agents += [f"scripted:{name}" for name in self._game.players]
        games = max(2, self._settings.evaluation.final_games // 4 * 2)
        result = tournament(
            self.choice, agents, games, seed=self._settings.seed + 2_000_003, run=self.place,
            on_progress=self._show, on_notice=self.tell,
        )  # fmt: skip
        best = [Path(path) for path in result["replays"] if "best" in Path(path).name]
        if best:
            save_png(Replay.open(best[0]), self.place / "replays" / "best.png", FilmOptions())
        return result

    def _report(self) -> str:
        return str(report(RunDir.open(self.place))["report"])


def run(
    choice: EnvChoice, configure: Callable[[dict[str, Any]], Resolved], place: Path | None, skip: Collection[str],
    tell: Tell, on_progress: Show | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Do every stage that is not skipped, each from what the one before left on disk.

    `configure` gives the settings with some more laid over them: those of the stages before.
    """
    for name in skip:
        if name not in STORY:
            near = did_you_mean(name, STORY)
            raise ConfigError(f"There is no stage `{name}`.{near}", f"stages: {', '.join(STORY)}")
    if place is None and "train" in skip:
        raise ConfigError("Without training there must be a run to go on from.", "name it: --run DIR")
    return Story(choice, configure, place or default_path(choice.name), skip, tell, on_progress).run()
