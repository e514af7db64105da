"""Checks of a native game: the same decisions played uncompiled, compiled, and on a GPU where there is one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, empty_rows
from slipstream.envs.adapters.env_checker import EnvReport
from slipstream.envs.native.game import Game
from slipstream.envs.native.vector import NativeVector
from slipstream.errors import user_frames

ENVS = 8
RESULTS = ("obs", "reward", "terminated", "truncated", "outcome", "active", "mask", "terms", "behaviour")
"""The arrays of a step that are compared, besides the state."""
WHOLE = 2.0**24
"""Whole numbers above this are not exact in a state of single precision."""
TIMED_ENVS, TIMED_STEPS = 256, 200
"""Envs and decisions of which the time is measured."""
ENDLESS = 5_000
"""Decisions after which a game that has not ended is reported."""


def check_game(game: Game, decisions: int = 10_000, seed: int = 0) -> EnvReport:
    """Play random decisions in plain Python and compiled, and list the first difference and other problems."""
    report = EnvReport()
    plain, compiled = (game.vector(ENVS, seed=seed, compiled=kind) for kind in (False, True))
    spec, columns = plain.spec, game.classes().state.names()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        played = _played(plain, compiled, seed, -(-decisions // ENVS), report)
        for step, (one, two) in enumerate(played):
            report.steps += ENVS
            report.episodes += int((one.terminated | one.truncated).reshape(ENVS, -1).any(axis=1).sum())
            if _differences(report, step, plain, compiled, one, two, columns):
                return report
            _check_numbers(report, step, plain, one, columns)
            if report.problems:
                return report
    if report.problems:
        return report
    if not report.episodes and report.steps > ENDLESS:
        report.add(
            f"No game ended in {report.steps:,} decisions.", "write a function @game.done, or give max_decisions=..."
        )
    _check_start(report, game, spec, seed)
    report.steps_per_second = _rate(game)
    return report


def _rate(game: Game) -> float:
    """Decisions per second of the compiled game in one process."""
    vector = game.vector(TIMED_ENVS)
    out, rng = empty_rows(vector.spec, TIMED_ENVS), np.random.default_rng(0)
    vector.reset(out)
    action = random_actions(vector.spec, out.mask, rng)
    vector.step(action, out)
    began = perf_counter()
    for _ in range(TIMED_STEPS):
        vector.step(action, out)
    return TIMED_ENVS * TIMED_STEPS / (perf_counter() - began)


def _played(
    plain: NativeVector, compiled: NativeVector, seed: int, steps: int, report: EnvReport
) -> Iterator[tuple[Rows, Rows]]:
    """Play the same random decisions twice; the actions obey the masks. What plain Python raises is reported."""
    spec, rng = plain.spec, np.random.default_rng(seed)
    one, two = (empty_rows(spec, ENVS) for _ in range(2))
    compiled.reset(two)
    action = np.zeros((len(one.reward), spec.action.parts), spec.action.dtype)
    for step in range(steps + 1):
        one.terms[:], two.terms[:] = 0, 0
        try:
            plain.step(action, one) if step else plain.reset(one)
        except Exception as error:  # a function of the game can raise anything
            where = f"decision {step}" if step else "the start"
            lines = user_frames(error).strip()
            report.add(f"{type(error).__name__} at {where}: {error}" + (f"\n{lines}" if lines else ""), "fix this line")
            return
        if step:
            compiled.step(action, two)
            yield one, two
        action = random_actions(spec, one.mask, rng)


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
    plain: NativeVector,
    compiled: NativeVector,
    one: Rows,
    two: Rows,
    columns: tuple[str, ...],
) -> bool:
    """Report the first column that differs between plain Python and compiled code."""
    wrong = np.argwhere(~_equal(plain.state, compiled.state))
    if len(wrong):
        env, column = wrong[0].tolist()
        values = f"{plain.state[env, column]!r} in plain Python and {compiled.state[env, column]!r} compiled"
        report.add(
            f"`{columns[column]}` differs after decision {step + 1} of env {env}: {values}.",
            "look for whole numbers above 2**31, comparisons of nearly equal numbers, and indices out of range",
        )
        return True
    for name in RESULTS:
        if not _equal(getattr(one, name), getattr(two, name)).all():
            report.add(f"`{name}` differs between plain Python and compiled code.", "please report it, with the game")
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


def _check_start(report: EnvReport, game: Game, spec: EnvSpec, seed: int) -> None:
    """Report a game whose start does not follow from its seed alone."""
    vector, out = game.vector(2, seed=seed, compiled=False), empty_rows(spec, 2)
    vector.reset(out)
    vector.reset_envs([0, 1], out, [7, 7])
    same = _equal(vector.state[0], vector.state[1])
    if not same.all():
        column = game.classes().state.names()[int(np.argmin(same))]
        report.add(
            f"`{column}` differs between two games of the same seed.",
            "draw random numbers from native.Random, and read nothing that changes outside of the state",
        )
