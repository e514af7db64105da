"""Check a native game: the same decisions played as plain Python, compiled, and on a GPU where there is one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType, SimpleNamespace
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
ENOUGH = 2_000
"""Decisions from which a column of an observation that was always 0 is mentioned."""
PICTURE = 240, 160
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

        self.spec = vector.spec
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


def check_game(
    game: Game,
    decisions: int | None = None,
    seed: int = 0,
    variant: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> EnvReport:
    """Play random decisions in every way that this machine has, and list the first difference and other problems.

    Without `decisions` there are 10,000, or as many as plain Python plays in a minute. `options` are those of
    `GameOptions`; without a target every task is played.
    """
    check = _GameCheck(game, variant, seed, dict(options))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if check.plays_alike(decisions):
            check.constants()
            check.start()
            check.players()
            check.drawing()
            check.end()
            check.sides()
            check.report.steps_per_second = check.rate()
    return check.report


@dataclass
class _GameCheck:
    """The checks of one game."""

    game: Game
    variant: str
    seed: int
    options: dict[str, Any]
    report: EnvReport = field(default_factory=EnvReport)

    def __post_init__(self) -> None:
        self.spec = self.game.vector(1, self.variant, compiled=False, **self.options | {"seed": self.seed}).spec
        self.envs = max(ENVS, len(self.spec.tasks))
        self.columns = self.game.classes(self.variant, self.options.get("options", {})).state.names()

    def vector(self, envs: int, compiled: bool = True) -> NativeVector:
        """Envs of the game, spread over all tasks unless a target is given."""
        vector = self.game.vector(envs, self.variant, compiled=compiled, **self.options | {"seed": self.seed})
        if self.spec.tasks and not self.options.get("target"):
            vector.assign(np.arange(envs) % len(self.spec.tasks))
        return vector

    def plays_alike(self, decisions: int | None) -> bool:
        """Play the same decisions in every way, and look at their numbers; return whether there is no problem."""
        report, began = self.report, perf_counter()
        vectors: dict[str, Any] = {how: self.vector(self.envs, how != PLAIN) for how in (PLAIN, COMPILED)}
        if self.can_run_on_gpu():
            vectors[ON_GPU] = GPUVector(self.vector(self.envs))
        seen = np.zeros(self.spec.obs.floats, bool)
        for step, rows in enumerate(self.played(vectors, -(-(decisions or DECISIONS) // self.envs))):
            plain = rows[PLAIN]
            report.steps += self.envs
            report.episodes += int(_ended(plain, self.envs).sum())
            seen |= (self.spec.obs.vectors(plain.obs) != 0).any(axis=0)
            if any(self.differ(step, how, vectors, rows) for how in list(vectors)[1:]):
                return False
            self.numbers(step, vectors[PLAIN], plain)
            if report.problems:
                return False
            if decisions is None and perf_counter() - began > MOST_PLAIN_S:
                self.remark(
                    f"Plain Python played {report.steps:,} of {DECISIONS:,} decisions in {MOST_PLAIN_S:g} s.",
                    f"--steps {DECISIONS} plays all of them",
                )
                break
        if report.problems:
            return False
        if report.steps >= ENOUGH and seen.any():
            for name, ever in zip(self.game.labels(self.spec).obs, seen, strict=True):
                if not ever:
                    self.remark(f"`{name}` of the observation was always 0.", "fine, if it is rarely anything else")
        return True

    def remark(self, what: str, hint: str) -> None:
        """Add something that is allowed but often unintended."""
        self.report.remarks.append(Problem(what, hint))

    def can_run_on_gpu(self) -> bool:
        """Whether there is a GPU, and the game can run on it."""
        import torch

        if not self.spec.obs.plain or self.spec.action.masked:
            what = "images and tokens" if not self.spec.obs.plain else "action masks"
            self.remark(f"Games with {what} run on the CPU only.", "fine, if it is fast enough there")
            return False
        return torch.cuda.is_available()

    def played(self, vectors: Mapping[str, Any], steps: int) -> Iterator[dict[str, Rows]]:
        """Play the same random decisions in every way; the actions obey the masks. Errors are reported."""
        spec, rng = self.spec, np.random.default_rng(self.seed)
        rows = {how: empty_rows(spec, self.envs) for how in vectors}
        plain, others = vectors[PLAIN], {how: vector for how, vector in vectors.items() if how != PLAIN}
        for how, vector in others.items():
            vector.reset(rows[how])
        action = np.zeros((self.envs * spec.agents, spec.action.parts), spec.action.dtype)
        for step in range(steps + 1):
            for one in rows.values():
                one.terms[:] = 0
            before = plain.snapshot() if step else {}
            try:
                plain.step(action, rows[PLAIN]) if step else plain.reset(rows[PLAIN])
            except Exception as error:  # a function of the game can raise anything
                self.failure(error, f"decision {step}" if step else "the start")
                return
            if step and not np.isfinite(plain.state).all() and np.isfinite(before["state"]).all():
                self.find_line(plain, before, action, step)
                return
            if step:
                for how, vector in others.items():
                    vector.step(action, rows[how])
                yield rows
            action = random_actions(spec, rows[PLAIN].mask, rng)

    def failure(self, error: Exception, where: str) -> None:
        """Report what a function of the game raised."""
        lines = user_frames(error).strip()
        self.report.add(
            f"{type(error).__name__} at {where}: {error}" + (f"\n{lines}" if lines else ""), "correct the game there"
        )

    def find_line(self, plain: NativeVector, before: dict[str, Array], action: Array, step: int) -> None:
        """Report where a number of the state was born that is not finite, by playing the decision once more."""
        env, column = np.argwhere(~np.isfinite(plain.state))[0].tolist()
        what = f"`{self.columns[column]}` is {plain.state[env, column]} after decision {step} of env {env}."
        plain.restore(before)
        try:
            with np.errstate(divide="raise", invalid="raise", over="raise"):
                plain.step(action, empty_rows(self.spec, self.envs))
        except ArithmeticError as error:
            what += f"\n{user_frames(error).strip()}"
        self.report.add(what, "look for divisions by zero, and for square roots and logarithms of negative numbers")

    def differ(self, step: int, how: str, vectors: Mapping[str, Any], rows: Mapping[str, Rows]) -> bool:
        """Report the first column that differs between plain Python and another way."""
        plain, other = vectors[PLAIN].state, vectors[how].state
        wrong = np.argwhere(~_equal(plain, other))
        if len(wrong):
            env, column = wrong[0].tolist()
            values = f"{plain[env, column]!r} {PLAIN} and {other[env, column]!r} {how}"
            self.report.add(
                f"`{self.columns[column]}` differs after decision {step + 1} of env {env}: {values}.",
                "look for whole numbers above 2**31, comparisons of nearly equal numbers, and indices out of range",
            )
            return True
        for name in RESULTS:
            if not _equal(getattr(rows[PLAIN], name), getattr(rows[how], name)).all():
                self.report.add(f"`{name}` differs between {PLAIN} and {how}.", "please report it, with the game")
                return True
        return False

    def numbers(self, step: int, plain: NativeVector, rows: Rows) -> None:
        """Report results that are not finite, and whole numbers that are not exact."""
        if not np.isfinite(rows.reward).all():
            terms = [name for k, name in enumerate(self.spec.terms) if not np.isfinite(rows.terms[:, k]).all()]
            what = f"The reward term `{', '.join(terms)}` is not finite after decision {step + 1}."
            self.report.add(what, "fix the term")
        vectors = self.spec.obs.vectors(rows.obs)
        for row, column in np.argwhere(~np.isfinite(vectors))[:1].tolist():
            name = self.game.labels(self.spec).obs[column]
            self.report.add(
                f"`{name}` of the observation is {vectors[row, column]} after decision {step + 1}.",
                "correct the function @game.observe",
            )
        if plain.state.dtype == np.float32 and (np.abs(plain.state) >= WHOLE).any():
            column = int(np.argwhere(np.abs(plain.state) >= WHOLE)[0, 1])
            self.report.add(
                f"`{self.columns[column]}` is above 2**24, where whole numbers are not exact in single precision.",
                'count something smaller, or use precision="double"',
            )

    def constants(self) -> None:
        """Report numbers of the module that have changed since the game was compiled."""
        options = self.options.get("options", {})
        now = build(self.game.plan(variant=self.variant, options=options), compiled=False).digest
        if now != self.game.kernels(False, variant=self.variant, options=options).digest:
            self.report.add(
                "A number or table of the module changed while the game was played.",
                "keep what changes in the state; compiled functions see the numbers of the first time",
            )

    def start(self) -> None:
        """Report a game whose start does not follow from its seed alone."""
        vector, out = self.vector(2, compiled=False), empty_rows(self.spec, 2)
        vector.reset(out)
        vector.assign(np.full(2, min(0, len(self.spec.tasks) - 1)))
        vector.reset_envs([0, 1], out, [7, 7])
        same = _equal(vector.state[0], vector.state[1])
        if not same.all():
            self.report.add(
                f"`{self.columns[int(np.argmin(same))]}` differs between two games of the same seed.",
                "draw random numbers from native.Random, and read nothing that changes outside of the state",
            )

    def players(self) -> None:
        """Let every scripted player act."""
        vector, out = self.vector(self.envs), empty_rows(self.spec, self.envs)
        vector.reset(out)
        action = np.zeros((len(out.obs), self.spec.action.parts), self.spec.action.dtype)
        for player in self.game.players:
            try:
                self.game.act(player, out.obs, self.spec.action.kind, action)
            except Exception as error:
                self.failure(error, f"the first decision of `scripted:{player}`")

    def drawing(self) -> None:
        """Draw the start of a game, if it has a drawing."""
        vector, out = self.vector(1, compiled=False), empty_rows(self.spec, 1)
        vector.reset(out)
        scene = self.game.declare().scene
        try:
            if scene is not None:
                scene(PICTURE, vector.snapshot(), self.spec.step_seconds).paint(0.0)
        except Exception as error:
            self.failure(error, "drawing the start")

    def end(self) -> None:
        """Report a game none of whose envs ends within so many decisions of its own."""
        if self.report.episodes or self.report.steps <= ENDLESS:
            return
        vector, out, rng = self.vector(self.envs), empty_rows(self.spec, self.envs), np.random.default_rng(self.seed)
        vector.reset(out)
        began = perf_counter()
        for _ in range(ENDLESS):
            vector.step(random_actions(self.spec, out.mask, rng), out)
            if _ended(out, self.envs).any() or perf_counter() - began > MOST_SECONDS:
                return
        self.report.add(
            f"No game of {self.envs} ended in {ENDLESS:,} decisions.",
            "write a function @game.done, or give max_decisions=...",
        )

    def sides(self) -> None:
        """Remark on a side that does better than the other one when both play at random."""
        spec, teams = self.spec, np.array(self.spec.teams)
        if set(spec.teams) != {0, 1} or (teams == 0).sum() != (teams == 1).sum():
            return
        vector, out, rng = self.vector(TIMED_ENVS), empty_rows(spec, TIMED_ENVS), np.random.default_rng(self.seed)
        first, last = np.flatnonzero(teams == 0), np.flatnonzero(teams == 1)
        vector.reset(out)
        sums = np.zeros((TIMED_ENVS, spec.agents))
        leads: dict[str, list[float]] = {"outcome": [], "reward": []}
        began = perf_counter()
        while len(leads["reward"]) < 20 * FEWEST_GAMES and perf_counter() - began < MOST_SECONDS:
            vector.step(random_actions(spec, out.mask, rng), out)
            sums += out.reward.reshape(TIMED_ENVS, -1)
            over = _ended(out, TIMED_ENVS)
            for name, values in (("outcome", out.outcome.reshape(TIMED_ENVS, -1)), ("reward", sums)):
                leads[name] += (values[over][:, first].mean(axis=1) - values[over][:, last].mean(axis=1)).tolist()
            sums[over] = 0
        for name, found in leads.items():
            mean, games = float(np.mean(found or [0.0])), len(found)
            error = float(np.std(found or [0.0])) / math.sqrt(games or 1)
            if games >= FEWEST_GAMES and abs(mean) > UNLIKELY * error:
                self.remark(
                    f"Team {0 if mean > 0 else 1} is ahead by {abs(mean):.3g} of {name} on average of {games:,} games "
                    f"between random players (standard error {error:.2g}).",
                    "fine if the sides have different tasks; otherwise look for what favours the first to be computed",
                )

    def rate(self) -> float:
        """Decisions per second of the compiled game in one process."""
        vector = self.vector(TIMED_ENVS)
        out, rng = empty_rows(vector.spec, TIMED_ENVS), np.random.default_rng(0)
        vector.reset(out)
        action = random_actions(vector.spec, out.mask, rng)
        vector.step(action, out)
        began = perf_counter()
        for _ in range(TIMED_STEPS):
            vector.step(action, out)
        return TIMED_ENVS * TIMED_STEPS / (perf_counter() - began)


def _ended(rows: Rows, envs: int) -> Array:
    """Which envs' games have ended."""
    ended: Array = np.any((rows.terminated | rows.truncated).reshape(envs, -1), axis=1)
    return ended


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


def _equal(one: Array, two: Array) -> Array:
    same: Array = (one == two) | ((one != one) & (two != two))
    return same
