"""Curricula: staged, learning progress, prioritised levels, learnability, uniform; and robustness to luck."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.confidence import wilson
from slipstream.errors import CheckpointError, ConfigError
from slipstream.settings import CurriculumSettings
from slipstream.training.curriculum import (
    WINDOW,
    Curriculum,
    LearningProgress,
    Mixture,
    PrioritisedLevels,
    SuccessRates,
    make_curriculum,
    stretch,
)
from slipstream.training.tasks import Result

TASKS = ("a", "b", "c", "d", "e")
KINDS = ("staged", "progress", "levels", "learnability", "uniform")


def made(kind: str, known: tuple[str, ...] = TASKS, **settings: Any) -> Any:
    """Make a curriculum."""
    curriculum = make_curriculum(CurriculumSettings(kind=kind, **settings), known)  # type: ignore[arg-type]
    assert curriculum is not None
    return curriculum


def result(task: int, success: float, episode_return: float = 0.0, value: float = 0.0) -> Result:
    """Make the result of a game."""
    return Result(task, success, episode_return, value, 0)


def play(
    curriculum: Curriculum, skill: Callable[[int, int], float], games: int, rng: np.random.Generator, batch: int = 20
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Train a learner whose success in a task after some games is `skill`; return messages and games by task."""
    messages: list[str] = []
    counts = np.zeros(len(curriculum.tasks), int)
    for start in range(0, games, batch):
        drawn = curriculum.sample(batch, rng)
        counts += np.bincount(drawn, minlength=len(counts))
        won = rng.random(batch) < [skill(task, start) for task in drawn.tolist()]
        messages += curriculum.update([result(t, float(w)) for t, w in zip(drawn.tolist(), won, strict=True)], start)
    return messages, counts


def test_none_is_no_curriculum() -> None:
    """The default kind makes no curriculum."""
    assert make_curriculum(CurriculumSettings(), TASKS) is None


def test_invalid_settings_are_errors() -> None:
    """Missing and unknown tasks, unknown stages, a stage without stages and swapped thresholds are errors."""
    with pytest.raises(ConfigError, match=r"curriculum.kind = uniform: this env declares no tasks"):
        make_curriculum(CurriculumSettings(kind="uniform"), ())
    with pytest.raises(ConfigError, match=r"unknown task `easyy`. Did you mean `easy`"):
        made("levels", ("easy", "hard"), tasks=("easyy",))
    with pytest.raises(ConfigError, match=r"curriculum.stage = 6, but there are 5 stages.\nhint: stages: 1 a, 2 b"):
        made("staged", stage=6)
    with pytest.raises(ConfigError, match=r"curriculum.stage = 2, but curriculum.kind = progress has no stages"):
        made("progress", stage=2)
    with pytest.raises(ConfigError, match=r"curriculum.demote = 0.7 is not below curriculum.advance = 0.6"):
        made("staged", demote=0.7)


def test_where_the_tasks_come_from() -> None:
    """The tasks are those of the settings, else (for `staged`) the game's stages of this env, else the env's tasks."""
    stages = ("a vs scripted:easy", "b", "elsewhere vs scripted:easy")
    for kind, tasks, expected in (
        ("staged", (), ["a vs scripted:easy", "b"]),
        ("staged", ("c", "a"), ["c", "a"]),
        ("progress", (), list(TASKS)),
        ("progress", ("c vs scripted:x",), ["c vs scripted:x"]),
    ):
        curriculum = make_curriculum(CurriculumSettings(kind=kind, tasks=tasks), TASKS, stages)  # type: ignore[arg-type]
        assert curriculum is not None and [str(task) for task in curriculum.tasks] == expected


def test_a_stage_advances_when_the_lower_bound_is_above_the_threshold() -> None:
    """70 wins of 100 have a lower bound of 0.604 and pass 0.6; 69 do not."""
    for won, moved in ((70, True), (69, False)):
        curriculum = made("staged")
        messages = curriculum.update([result(0, float(n < won)) for n in range(100)], 5000)
        assert bool(messages) == moved == (wilson(won, 100)[0] > 0.6)
        assert curriculum.metrics()["curriculum/stage"] == 1 + moved
        if messages:
            assert messages == ["stage 2 of 5: b (stage 1: success 0.70, at least 0.60 in 100 games)"]


def test_too_few_games_decide_nothing() -> None:
    """99 wins are too few for a test of 100 games, and games of other tasks do not count."""
    curriculum = made("staged")
    assert curriculum.update([result(0, 1.0)] * 99 + [result(1, 1.0)] * 500, 0) == []
    assert len(curriculum.update([result(0, 1.0)], 0)) == 1
    assert curriculum.update([result(1, 1.0)] * 99, 0) == []


def test_a_second_test_needs_more_confidence() -> None:
    """70 wins of 100 pass the first test, but not the second one, which uses 1 - 0.05 / 2; losses are not tests."""
    lost, missed = [result(0, 0.0)] * 5000, [result(0, float(n < 65)) for n in range(100)]
    for won in (70, 71, 72, 73):
        curriculum = made("staged")
        assert curriculum.update([*lost, *missed], 0) == []
        messages = curriculum.update([result(0, float(n < won)) for n in range(100)], 0)
        assert bool(messages) == (wilson(won, 100, 0.975)[0] > 0.6)
    assert wilson(70, 100, 0.975)[0] < 0.6 < wilson(73, 100, 0.975)[0]


def test_draws_are_half_a_success() -> None:
    """A stage with draws only has a success of 0.5."""
    curriculum = made("staged", advance=0.35)
    assert curriculum.update([result(0, 0.5)] * 100, 0) == [
        "stage 2 of 5: b (stage 1: success 0.50, at least 0.40 in 100 games)"
    ]


def test_a_stage_is_demoted_when_the_upper_bound_is_below_the_threshold() -> None:
    """12 wins of 100 have an upper bound of 0.198; the first stage cannot be demoted."""
    curriculum = made("staged", episodes=100)
    assert curriculum.update([result(0, 0.0)] * 200, 0) == []
    assert len(curriculum.update([result(0, 1.0)] * 100, 0)) == 1
    messages = curriculum.update([result(1, float(n < 12)) for n in range(100)], 0)
    assert messages == ["back to stage 1 of 5: a (stage 2: success 0.12, at most 0.20 in 100 games)"]
    assert curriculum.metrics()["curriculum/stage"] == 1


def test_max_steps_advances_a_stage() -> None:
    """After `max_steps` in a stage the next one starts, and the last one stays."""
    curriculum = made("staged", ("a", "b"), max_steps=1000)
    assert curriculum.update([], 999) == []
    assert curriculum.update([], 1200) == ["stage 2 of 2: b (stage 1: 1,200 steps)"]
    assert curriculum.update([result(1, 1.0)] * 300, 99_999) == []


def test_a_forced_stage_stays() -> None:
    """With `stage` set, neither wins, losses nor steps change the stage."""
    curriculum = made("staged", stage=3, max_steps=10)
    assert curriculum.update([result(2, 1.0)] * 500 + [result(2, 0.0)] * 500, 10_000) == []
    assert curriculum.metrics()["curriculum/stage"] == 3


def test_earlier_stages_are_not_forgotten() -> None:
    """A quarter of the games repeats the earlier stages evenly, and none is of later stages."""
    curriculum = made("staged", stage=3)
    assert curriculum.shares().tolist() == [0.125, 0.125, 0.75, 0.0, 0.0]
    assert made("staged").shares().tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    counts = np.bincount(curriculum.sample(8000, np.random.default_rng(0)), minlength=5)
    assert abs(counts[2] - 6000) < 150 and abs(counts[0] - 1000) < 120 and not counts[3:].any()


def test_a_learner_advances_through_all_stages_and_is_demoted() -> None:
    """A learner that improves reaches the last stage; one that loses everything returns to the first."""
    rng = np.random.default_rng(1)
    curriculum = made("staged")
    seen = np.zeros(5)

    def better(task: int, games: int) -> float:
        seen[task] += 1
        return min(0.95, 0.1 + seen[task] / 400)

    messages, counts = play(curriculum, better, 6000, rng)
    assert [line[:12] for line in messages] == [f"stage {n} of 5" for n in (2, 3, 4, 5)]
    assert counts[4] > counts[:4].min() > 0
    messages, _ = play(curriculum, lambda task, games: 0.02, 2000, rng)
    assert [line[:20] for line in messages] == [f"back to stage {n} of 5"[:20] for n in (4, 3, 2, 1)]


def test_luck_is_not_success() -> None:
    """Of runs of 10,000 games with a true success of 0.55, fewer than 5 % ever pass 0.6."""
    rng = np.random.default_rng(2)
    outcomes = (result(0, 0.0), result(0, 1.0))
    lucky = 0
    for _ in range(200):
        curriculum = made("staged")
        lucky += bool(curriculum.update([outcomes[won] for won in (rng.random(10_000) < 0.55).astype(int)], 0))
    assert lucky / 200 < 0.05
    late = made("staged")
    weak = [outcomes[won] for won in (rng.random(10_000) < 0.5).astype(int)]
    assert late.update(weak, 0) == [] and late.update([outcomes[1]] * 100, 0)


def test_every_task_is_tried_first() -> None:
    """The first samples of a mixture are all tasks in order, for any batch size."""
    for kind in KINDS[1:]:
        curriculum, rng = made(kind), np.random.default_rng(0)
        first = [curriculum.sample(2, rng).tolist() for _ in range(3)]
        assert [task for some in first for task in some][:5] == [0, 1, 2, 3, 4]
        assert curriculum.sample(0, rng).shape == (0,) and curriculum.sample(3, rng).dtype == np.int32


def test_a_quarter_is_uniform() -> None:
    """Every task has at least a quarter of its uniform share."""
    curriculum = made("learnability")
    for task in range(5):
        curriculum.update([result(task, float(n % 2 and task == 3)) for n in range(20)], 0)
    assert curriculum.shares() == pytest.approx([0.05, 0.05, 0.05, 0.8, 0.05])
    assert sum(curriculum.metrics()[f"curriculum/share/{task}"] for task in TASKS) == pytest.approx(1.0)


def test_learnability_by_hand() -> None:
    """Success rates of 1/2 and 1/4 weigh 1/4 and 3/16; a task with too few games gets the largest weight."""
    curriculum = made("learnability", ("a", "b", "c"), uniform=0.0)
    rates: SuccessRates = curriculum._rates
    rates.won[:], rates.games[:], rates.results[:] = (8, 4, 0), (16, 16, 0), (16, 16, 9)
    assert curriculum.shares() == pytest.approx(np.array([4, 3, 4]) / 11)


def test_progress_by_hand() -> None:
    """A baseline of 0.2, then 0.6: p = 0.5, fast 0.05, slow 0.005, and the difference of their stretched values."""
    progress = LearningProgress(1)
    assert stretch(np.array([0.0, 0.1, 0.5, 1.0])) == pytest.approx([0.0, 0.5, 0.9, 1.0])
    for won in (10, 30):
        for n in range(WINDOW):
            progress.add(result(0, float(n < won)))
    fast, slow = 0.1 * 0.5, 0.1 * 0.05

    def r(p: float) -> float:
        return p * 0.9 / (p + 0.1 * (1 - 2 * p))

    assert progress.progress() == pytest.approx([r(fast) - r(slow)])
    assert progress.arrays()["chance"] == pytest.approx([0.2])


def test_progress_weights_by_hand() -> None:
    """Progress of 0 and 0.1 is one deviation below and above the mean; a task that never succeeded weighs nothing."""
    progress = LearningProgress(4)
    progress._windows[:] = (5, 5, 5, 1)
    progress._fast[:], progress._slow[:] = (0.1, 1.0, 0.0, 0.5), (0.1, 0.5, 0.0, 0.5)
    weights = progress.weights(SuccessRates(4), np.zeros(4))
    assert progress.progress() == pytest.approx([0.0, 0.1, 0.0, 0.0])
    assert weights[:3] == pytest.approx([1 / (1 + math.e), 1 / (1 + 1 / math.e), 0.0]) and np.isnan(weights[3])


def test_progress_is_small_for_slow_changes() -> None:
    """A task whose success drifts slowly through 1/2 has little progress: p stays in [0, 1]."""
    progress = LearningProgress(1)
    for window in range(60):
        for n in range(WINDOW):
            progress.add(result(0, float(n < 22 + window // 10)))
        assert 0 <= progress.progress()[0] < 0.25


def test_progress_prefers_tasks_that_improve() -> None:
    """A task that improves is played most; a task that is never won keeps little more than the uniform share."""
    counts, messages = np.zeros(4, int), list[str]()
    for seed in range(5):
        curriculum = made("progress", ("never", "always", "better", "even"))
        more, played = play(
            curriculum, lambda task, games: (0.0, 1.0, games / 5000, 0.5)[task], 4000, np.random.default_rng(seed)
        )
        counts, messages = counts + played, messages + more
    assert counts[2] == counts.max() > 1.4 * np.sort(counts)[-2]
    assert counts[0] < 0.1 * counts.sum()
    assert any("progress prefers better now" in line for line in messages)


def test_levels_by_hand() -> None:
    """Errors of 1, 4 and 2 have ranks 3, 1 and 2 and weights (1 / rank)^10; a tenth depends on age."""
    levels = PrioritisedLevels(4)
    for task, episode_return in ((0, 1.0), (1, -4.0), (2, 2.0)):
        levels.add(result(task, 0.0, episode_return))
    ranked = np.array([3.0**-10, 1.0, 2.0**-10])
    expected = 0.9 * ranked / ranked.sum() + 0.1 * np.array([6, 3, 1]) / 10
    weights = levels.weights(SuccessRates(4), np.array([6, 3, 1, 0]))
    assert weights[:3] == pytest.approx(expected) and np.isnan(weights[3])
    levels.add(result(1, 0.0, 5.0, 5.0))
    assert levels.arrays()["surprise"] == pytest.approx([1.0, 3.6, 2.0, 0.0])


def test_equal_levels_share_their_weights() -> None:
    """Levels with the same error share the weights of their ranks."""
    levels = PrioritisedLevels(3)
    for task in range(3):
        levels.add(result(task, 1.0, 1.0))
    assert levels.weights(SuccessRates(3), np.zeros(3)) == pytest.approx([0.3, 0.3, 0.3])


def test_levels_prefer_large_value_errors() -> None:
    """A task whose return is far from its value is played most; every task is still played."""
    curriculum, rng = made("levels"), np.random.default_rng(4)
    counts = np.zeros(5, int)
    for _ in range(400):
        drawn = curriculum.sample(8, rng)
        counts += np.bincount(drawn, minlength=5)
        curriculum.update([result(t, 0.0, rng.normal(0, 3.0 if t == 2 else 0.5)) for t in drawn.tolist()], 0)
    assert counts[2] > 0.6 * counts.sum() and counts.min() > 0.04 * counts.sum()


def test_learnability_prefers_even_tasks() -> None:
    """Tasks that are always or never won keep the uniform share only."""
    curriculum = made("learnability", ("never", "always", "even"))
    _, counts = play(curriculum, lambda task, games: (0.0, 1.0, 0.5)[task], 3000, np.random.default_rng(5))
    assert counts[2] > 0.7 * 3000 and counts[0] > 0.06 * 3000


def test_uniform_is_uniform() -> None:
    """All tasks have the same share, whatever the results."""
    curriculum = made("uniform")
    messages, counts = play(curriculum, lambda task, games: task / 4, 5000, np.random.default_rng(6))
    assert messages == [] and np.abs(counts - 1000).max() < 120


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_curriculum_continues_exactly(kind: str) -> None:
    """Restored from JSON, a curriculum samples and decides exactly as the original."""
    first = made(kind, episodes=60)
    play(first, lambda task, games: 0.9 if task < 2 else games / 2000, 1507, np.random.default_rng(7), batch=11)
    second: Curriculum = made(kind, episodes=60)
    second.restore(json.loads(json.dumps(first.describe(), allow_nan=False)))
    assert second.describe() == first.describe()
    runs = [play(one, lambda task, games: 0.8, 1000, np.random.default_rng(8), batch=7) for one in (first, second)]
    assert runs[0][0] == runs[1][0] and (runs[0][1] == runs[1][1]).all()
    assert second.describe() == first.describe() and second.metrics() == first.metrics()


def test_another_curriculum_is_not_restored() -> None:
    """The state of other tasks, or of another kind, is an error."""
    state = made("levels").describe()
    with pytest.raises(CheckpointError, match="another curriculum, with the tasks a, b, c, d, e"):
        made("levels", ("a", "b")).restore(state)
    with pytest.raises(CheckpointError, match="another curriculum"):
        made("progress").restore(state)


def test_metrics_have_success_rates_of_played_tasks() -> None:
    """The recent success rate is logged under the name of the task with its opponent."""
    curriculum = made("uniform", tasks=("a vs scripted:x", "b"))
    assert isinstance(curriculum, Mixture)
    curriculum.update([result(0, 1.0), result(0, 0.0)], 0)
    row = curriculum.metrics()
    assert row["curriculum/success/a vs scripted:x"] == pytest.approx(0.98 / 1.98)
    assert "curriculum/success/b" not in row and row["curriculum/share/b"] == 0.5
