"""Check a native game: the same decisions played as plain Python, compiled, and on a GPU where there is one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, empty_rows
from slipstream.envs.adapters.env_checker import EnvReport, Problem
from slipstream.envs.native.build import build
from slipstream.envs.native.game import Game
from slipstream.envs.native.vector import NativeVector
from slipstream.errors import user_frames

ENVS = 8
PLAIN, COMPILED, ON_GPU = "in plain Python", "compiled", "on the GPU"
RESULTS = ("obs", "reward", "terminated", "truncated", "outcome", "active", "mask", "terms", "behaviour")
"""The arrays of a step that are compared, besides the state."""
WHOLE = 2.0**24
"""Whole numbers above this are not exact in a state of single precision."""
TIMED_ENVS, TIMED_STEPS = 256, 200
"""Envs and decisions of which the time is measured."""
DECISIONS, MOST_PLAIN_S = 10_000, 60.0
"""Decisions that are played unless a number is given, and the time after which fewer are."""
ENDLESS = 5_000
"""Decisions after which a game that has not ended is reported."""
FEWEST_GAMES = 100
"""Games from which sides are compared."""
MOST_SECONDS = 5.0
"""The most time to wait for games to end."""
UNLIKELY = 5.0
"""The difference of two sides, in standard errors, that is reported."""


class GPUVector:
    """A native game whose steps run on a GPU, with results on the host; for comparisons."""

    def __init__(self, vector: NativeVector) -> None:
        import torch

        from slipstream.vector.device import OUTPUTS, DeviceVector

        self._vector, self._device = vector, DeviceVector(vector, "cuda")
        rows, self._torch = empty_rows(vector.spec, vector.envs), torch
        self._rows = SimpleNamespace(**{name: torch.from_numpy(getattr(rows, name)).cuda() for name in OUTPUTS})

    @property
    def state(self) -> Array:
        """The state of every env, copied from the GPU."""
        self._device.pull()
        return self._vector.state

    def reset(self, out: Rows) -> None:
        """Begin the first game of every env."""
        self._vector.reset(out)
        self._device.push()

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every game."""
        self._device.begin()
        self._rows.terms.zero_()
        self._device.step(self._torch.from_numpy(action).cuda(), self._rows)
        for name, tensor in vars(self._rows).items():
            getattr(out, name)[...] = tensor.cpu().numpy()


def check_game(game: Game, decisions: int | None = None, seed: int = 0, variant: str = "") -> EnvReport:
    """Play random decisions in every way that this machine has, and list the first difference and other problems.

    Without `decisions` there are 10,000, or as many as plain Python plays in a minute.
    """
    report, began = EnvReport(), perf_counter()
    vectors: dict[str, Any] = {
        how: game.vector(ENVS, variant, seed=seed, compiled=how != PLAIN) for how in (PLAIN, COMPILED)
    }
    spec: EnvSpec = vectors[PLAIN].spec
    columns = game.classes(variant).state.names()
    if _can_run_on_gpu(spec, report):
        vectors[ON_GPU] = GPUVector(game.vector(ENVS, variant, seed=seed))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for step, rows in enumerate(_played(vectors, spec, seed, -(-(decisions or DECISIONS) // ENVS), report)):
            plain = rows[PLAIN]
            report.steps += ENVS
            report.episodes += int((plain.terminated | plain.truncated).reshape(ENVS, -1).any(axis=1).sum())
            for how in list(vectors)[1:]:
                if _differences(report, step, how, vectors, rows, columns):
                    return report
            _check_numbers(report, step, vectors[PLAIN], plain, columns)
            if report.problems:
                return report
            if decisions is None and perf_counter() - began > MOST_PLAIN_S:
                remark = f"Plain Python played {report.steps:,} of {DECISIONS:,} decisions in {MOST_PLAIN_S:g} s."
                report.remarks.append(Problem(remark, f"--steps {DECISIONS} plays all of them"))
                break
    if report.problems:
        return report
    if build(game.plan(variant=variant), compiled=False).digest != game.kernels(False, variant=variant).digest:
        report.add(
            "A number or table of the module changed while the game was played.",
            "keep what changes in the state; compiled functions see the numbers of the first time",
        )
    if not report.episodes and report.steps > ENDLESS:
        _check_end(report, game, variant, spec, seed)
    _check_start(report, game, variant, spec, seed)
    _check_sides(report, game, variant, spec, seed)
    report.steps_per_second = _rate(game, variant)
    return report


def _can_run_on_gpu(spec: EnvSpec, report: EnvReport) -> bool:
    """Whether there is a GPU, and the game can run on it."""
    import torch

    if not spec.obs.plain or spec.action.masked:
        what = "images and tokens" if not spec.obs.plain else "action masks"
        report.remarks.append(Problem(f"Games with {what} run on the CPU only.", "fine, if it is fast enough there"))
        return False
    return torch.cuda.is_available()


def _rate(game: Game, variant: str) -> float:
    """Decisions per second of the compiled game in one process."""
    vector = game.vector(TIMED_ENVS, variant)
    out, rng = empty_rows(vector.spec, TIMED_ENVS), np.random.default_rng(0)
    vector.reset(out)
    action = random_actions(vector.spec, out.mask, rng)
    vector.step(action, out)
    began = perf_counter()
    for _ in range(TIMED_STEPS):
        vector.step(action, out)
    return TIMED_ENVS * TIMED_STEPS / (perf_counter() - began)


def _played(
    vectors: Mapping[str, Any], spec: EnvSpec, seed: int, steps: int, report: EnvReport
) -> Iterator[dict[str, Rows]]:
    """Play the same random decisions in every way; the actions obey the masks. What plain Python raises is reported."""
    rng, rows = np.random.default_rng(seed), {how: empty_rows(spec, ENVS) for how in vectors}
    plain, others = vectors[PLAIN], {how: vector for how, vector in vectors.items() if how != PLAIN}
    for how, vector in others.items():
        vector.reset(rows[how])
    action = np.zeros((ENVS * spec.agents, spec.action.parts), spec.action.dtype)
    for step in range(steps + 1):
        for one in rows.values():
            one.terms[:] = 0
        try:
            plain.step(action, rows[PLAIN]) if step else plain.reset(rows[PLAIN])
        except Exception as error:  # a function of the game can raise anything
            where = f"decision {step}" if step else "the start"
            lines = user_frames(error).strip()
            report.add(f"{type(error).__name__} at {where}: {error}" + (f"\n{lines}" if lines else ""), "fix this line")
            return
        if step:
            for how, vector in others.items():
                vector.step(action, rows[how])
            yield rows
        action = random_actions(spec, rows[PLAIN].mask, rng)


def random_actions(spec: EnvSpec, mask: Array, rng: np.random.Generator) -> Array:
    """Random actions [rows, parts] that the mask allows."""
    rows, start, parts = len(mask), 0, []
    for size in spec.action.sizes:
        weights = rng.random((rows, size))
        if mask.shape[1]:
            weights *= mask[:, start : start + size]
            start += size
        parts.append(weights.argmax(axis=1).astype(np.float64))
    parts += [rng.uniform(low, high, rows) for low, high in zip(spec.action.low, spec.action.high, strict=True)]
    return np.stack(parts, axis=1).astype(spec.action.dtype)


def _differences(
    report: EnvReport,
    step: int,
    how: str,
    vectors: Mapping[str, Any],
    rows: Mapping[str, Rows],
    columns: tuple[str, ...],
) -> bool:
    """Report the first column that differs between plain Python and another way."""
    plain, other = vectors[PLAIN].state, vectors[how].state
    wrong = np.argwhere(~_equal(plain, other))
    if len(wrong):
        env, column = wrong[0].tolist()
        values = f"{plain[env, column]!r} {PLAIN} and {other[env, column]!r} {how}"
        report.add(
            f"`{columns[column]}` differs after decision {step + 1} of env {env}: {values}.",
            "look for whole numbers above 2**31, comparisons of nearly equal numbers, and indices out of range",
        )
        return True
    for name in RESULTS:
        if not _equal(getattr(rows[PLAIN], name), getattr(rows[how], name)).all():
            report.add(f"`{name}` differs between {PLAIN} and {how}.", "please report it, with the game")
            return True
    return False


def _equal(one: Array, two: Array) -> Array:
    same: Array = (one == two) | ((one != one) & (two != two))
    return same


def _check_numbers(report: EnvReport, step: int, plain: NativeVector, rows: Rows, columns: tuple[str, ...]) -> None:
    """Report numbers that are not finite, and whole numbers that are not exact."""
    for env, column in np.argwhere(~np.isfinite(plain.state))[:1].tolist():
        report.add(
            f"`{columns[column]}` is {plain.state[env, column]} after decision {step + 1} of env {env}.",
            "look for divisions by zero, and for square roots and logarithms of negative numbers",
        )
    if not np.isfinite(rows.reward).all():
        terms = [name for k, name in enumerate(plain.spec.terms) if not np.isfinite(rows.terms[:, k]).all()]
        report.add(f"The reward term `{', '.join(terms)}` is not finite after decision {step + 1}.", "fix the term")
    vectors = plain.spec.obs.vectors(rows.obs)
    if not np.isfinite(vectors).all():
        report.add(f"An observation is not finite after decision {step + 1}.", "fix the function @game.observe")
    if plain.state.dtype == np.float32 and (np.abs(plain.state) >= WHOLE).any():
        column = int(np.argwhere(np.abs(plain.state) >= WHOLE)[0, 1])
        report.add(
            f"`{columns[column]}` is above 2**24, where whole numbers are not exact in single precision.",
            'count something smaller, or use precision="double"',
        )


def _check_end(report: EnvReport, game: Game, variant: str, spec: EnvSpec, seed: int) -> None:
    """Report a game none of whose envs ends within so many decisions of its own."""
    vector, out, rng = game.vector(ENVS, variant, seed=seed), empty_rows(spec, ENVS), np.random.default_rng(seed)
    vector.reset(out)
    began = perf_counter()
    for _ in range(ENDLESS):
        vector.step(random_actions(spec, out.mask, rng), out)
        if (out.terminated | out.truncated).any() or perf_counter() - began > MOST_SECONDS:
            return
    report.add(
        f"No game of {ENVS} ended in {ENDLESS:,} decisions.", "write a function @game.done, or give max_decisions=..."
    )


def _check_start(report: EnvReport, game: Game, variant: str, spec: EnvSpec, seed: int) -> None:
    """Report a game whose start does not follow from its seed alone."""
    vector, out = game.vector(2, variant, seed=seed, compiled=False), empty_rows(spec, 2)
    vector.reset(out)
    vector.reset_envs([0, 1], out, [7, 7])
    same = _equal(vector.state[0], vector.state[1])
    if not same.all():
        column = game.classes(variant).state.names()[int(np.argmin(same))]
        report.add(
            f"`{column}` differs between two games of the same seed.",
            "draw random numbers from native.Random, and read nothing that changes outside of the state",
        )


def _check_sides(report: EnvReport, game: Game, variant: str, spec: EnvSpec, seed: int) -> None:
    """Remark on a side that does better than the other one when both play at random."""
    teams = np.array(spec.teams)
    if set(spec.teams) != {0, 1} or (teams == 0).sum() != (teams == 1).sum():
        return
    vector, out = game.vector(TIMED_ENVS, variant, seed=seed), empty_rows(spec, TIMED_ENVS)
    rng, first, last = np.random.default_rng(seed), np.flatnonzero(teams == 0), np.flatnonzero(teams == 1)
    vector.reset(out)
    sums, leads = np.zeros((TIMED_ENVS, spec.agents)), list[float]()
    began = perf_counter()
    while len(leads) < 20 * FEWEST_GAMES and perf_counter() - began < MOST_SECONDS:
        vector.step(random_actions(spec, out.mask, rng), out)
        sums += out.reward.reshape(TIMED_ENVS, -1)
        over = (out.terminated | out.truncated).reshape(TIMED_ENVS, -1).any(axis=1)
        result = out.outcome.reshape(TIMED_ENVS, -1) if out.outcome[out.terminated > 0].any() else sums
        leads += (result[over][:, first].mean(axis=1) - result[over][:, last].mean(axis=1)).tolist()
        sums[over] = 0
    if len(leads) < FEWEST_GAMES:
        return
    mean, error = float(np.mean(leads)), float(np.std(leads)) / math.sqrt(len(leads))
    if abs(mean) > UNLIKELY * error:
        side, ahead = (0, mean) if mean > 0 else (1, -mean)
        what = f"Team {side} is ahead by {ahead:.3g} on average of {len(leads):,} games between random players"
        report.remarks.append(
            Problem(
                f"{what} (standard error {error:.2g}).",
                "fine if the sides have different tasks; otherwise look for what favours the first to be computed",
            )
        )
