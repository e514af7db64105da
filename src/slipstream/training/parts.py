"""The parts of a training run: environment, plan, policy, learner, collector, matchmaker. `build` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.algorithms.episode_stats import EpisodeStats
from slipstream.algorithms.reward_hacking import RewardHackingDetector
from slipstream.algorithms.rollback import Rollback
from slipstream.algorithms.schedules import Schedules
from slipstream.collect.collector import Collector
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.plan import Plan
from slipstream.policies.design import Design
from slipstream.training.opponents import Matchmaker


class Learner(Protocol):
    """Updates the weights from rollouts: PPO or SAC."""

    section: str
    """The section of the settings that it reads: `ppo` or `sac`."""
    settings: Any
    """That section with the current values of its schedules."""
    params_and_stats: Array
    """The weights and the observation normaliser, as actors load them."""
    notices: list[str]
    """Notices for the user; the loop drains them."""
    engine: Any
    """Holds the weights and their optimiser; has `snapshot` and `restore`."""

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Update the weights with a rollout that began at `steps`; return its number of samples and the metrics."""

    def gradient_statistics(self) -> dict[str, float]:
        """Return statistics of the last gradient of each layer."""

    def dormant(self) -> dict[str, float]:
        """Return the fraction of dormant units of each layer."""

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return copies of everything that a resumed run needs."""

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore what `snapshot` returned."""


@dataclass
class TrainingParts:
    """The parts of a run."""

    choice: EnvChoice
    spec: EnvSpec
    plan: Plan
    design: Design
    learner: Learner
    schedules: Schedules
    episodes: EpisodeStats
    matchmaker: Matchmaker
    collector: Collector
    batch: int
    """Samples of one rollout."""
    reward_hacking: RewardHackingDetector
    rollback: Rollback | None = None

    def publish(self, version: int) -> None:
        """Give the collector the newest weights as `version`, and the assignments of games that begin with them."""
        games = self.matchmaker
        self.collector.publish(version, self.learner.params_and_stats, games.assignments, games.new_players())

    def close(self) -> None:
        """End everything that was started."""
        self.collector.close()
        self.matchmaker.opponents.close()
