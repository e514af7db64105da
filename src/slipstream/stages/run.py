"""The whole story of a game, stage after stage: record, clone, train, compete, evaluate, tournament, report.

Stages meet on disk: demos in DIR/demos, the clone in DIR/clone, the training in DIR itself, the league in DIR/league.
What is done stands in DIR/story.json, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from slipstream.config import Resolved
from slipstream.core.errors import ConfigError, did_you_mean
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice, parse
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
from slipstream.stages.replay import Cut, save_png
from slipstream.stages.report import report
from slipstream.stages.tournament import tournament

Tell = Callable[[str], None]
Show = Callable[[int, int], None]


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
        self._settings: Settings = configure({}).settings
        self.expert = self._settings.record.agent or (game.expert if game is not None else "")
        absent = [] if self.expert else ["record", "clone"]
        absent += [] if game is not None and game.reference else ["compete", "tournament"]
        self.stages = [name for name in STORY if name not in skip and name not in absent]
        before = self._before()
        if not before and RunDir(place).holds_run and "train" in self.stages:
            raise ConfigError(
                f"{place} holds a run that `run` did not begin.",
                f"go on with it by `slipstream resume {place}`, skip what is done with --skip, or choose another --run",
            )
        self.facts: dict[str, Any] = {"stages": self.stages} | {n: before[n] for n in STORY if n in before}
        self._seconds: dict[str, float] = before.get("seconds", {})

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
            self.tell(name)
            began = time.perf_counter()
            self.facts[name] = getattr(self, f"_{name}")()
            if isinstance(self.facts[name], dict) and self.facts[name].get("stopped"):
                return self.facts
            self._seconds[name] = time.perf_counter() - began
            self.place.mkdir(parents=True, exist_ok=True)
            write_json(self._file, self.facts | {"seconds": self._seconds})
        whole = sum(self._seconds.values())
        self.facts["times"] = {name: {"seconds": s, "share": s / whole} for name, s in self._seconds.items()}
        return self.facts

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
        agents += [f"scripted:{name}" for name in self._game.scripted]
        games = max(2, self._settings.evaluation.final_games // 4 * 2)
        result = tournament(
            self.choice, agents, games, seed=self._settings.seed + 2_000_003, run=self.place,
            on_progress=self._show, on_notice=self.tell,
        )  # fmt: skip
        best = [Path(path) for path in result["replays"] if "best" in Path(path).name]
        if best:
            save_png(Replay.open(best[0]), self.place / "replays" / "best.png", Cut())
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
