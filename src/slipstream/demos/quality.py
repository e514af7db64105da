"""Check the quality of demos before training: bad episodes, actions, returns, lengths.

Bad episodes are listed in quarantine.json, and readers leave them out. A share of bad episodes above the limit is an
error, because the remaining episodes are then likely to be wrong as well. Columns are read in blocks of complete
episodes: a check that passes on a block has passed on each of its episodes, and only the episodes of a failing block
are checked one by one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.confidence import mean_interval
from slipstream.contracts import ActionSpec, Array
from slipstream.demos.format import EPISODE, TERMINATED, TRUNCATED, Schema
from slipstream.demos.reader import Demos, ShardView
from slipstream.errors import DemoError, MachineError
from slipstream.runs.layout import write_json

LIMIT = 0.01
"""The share of bad episodes that is accepted by default."""
BLOCK_BYTES = 64 * 2**20
SHORT = 32
"""Shorter episodes may be identical or constant in a small game, so they are not checked for either."""
BINS = 20
"""Histogram bins of a continuous action."""
NULL_RANGE = 0.01
"""A continuous part is null if it is within this share of its range around zero."""
LOST = "is lost: its record is damaged or its values are missing"
DAMAGED = "is damaged: its checksum is wrong"
EMPTY = "has no steps"
NUMBERS = "has NaN or infinite values in"
RANGE = "has an action out of its range"
FORBIDDEN = "has an action that its mask forbids"
STILL = "is constant: its observations never change"
COPY = "is a copy of"
OUTCOMES = {"won": 1, "drawn": 0, "lost": -1}
CAUSES = (LOST, DAMAGED, EMPTY, NUMBERS, RANGE, FORBIDDEN, STILL, COPY)


@dataclass
class ActionStats:
    """Statistics of actions, accumulated over blocks."""

    spec: ActionSpec
    null: tuple[int, ...] | None = None
    """The null option of each discrete part."""
    steps: int = 0
    null_steps: int = 0
    counts: list[Array] = field(default_factory=list)
    """The histogram of each part, over options or over bins."""
    sums: Array = field(init=False)
    squares: Array = field(init=False)
    low: Array = field(init=False)
    high: Array = field(init=False)

    def __post_init__(self) -> None:
        parts = self.spec.parts
        self.sums, self.squares = np.zeros(parts), np.zeros(parts)
        self.low, self.high = np.full(parts, np.inf), np.full(parts, -np.inf)
        sizes = (*self.spec.sizes, *(BINS,) * self.spec.continuous_parts)
        self.counts = [np.zeros(size, np.int64) for size in sizes]

    def add(self, actions: Array) -> None:
        """Add actions [steps, parts], which must be within their range."""
        if not len(actions):
            return
        self.steps += len(actions)
        self.low = np.minimum(self.low, actions.min(axis=0))
        self.high = np.maximum(self.high, actions.max(axis=0))
        first = self.spec.discrete_parts
        options, numbers = actions[:, :first].astype(np.int64, copy=False), actions[:, first:]
        for part, size in enumerate(self.spec.sizes):
            self.counts[part] += np.bincount(options[:, part], minlength=size)
        null = np.ones(len(actions), bool)
        if self.spec.sizes:
            null &= (options == np.array(self.null)).all(axis=1) if self.null is not None else False
        if self.spec.continuous_parts:
            sizes = [self._size(part) or 1.0 for part in range(first, self.spec.parts)]
            null &= (np.abs(numbers) <= NULL_RANGE * np.array(sizes)).all(axis=1)
            self.sums += actions.sum(axis=0, dtype=np.float64)
            self.squares += np.square(actions, dtype=np.float64).sum(axis=0)
            for k, (low, width) in enumerate(zip(self.spec.low, sizes, strict=True)):
                if self._size(first + k):
                    bins = ((numbers[:, k] - low) * (BINS / width)).astype(np.int64)
                    self.counts[first + k] += np.bincount(bins.clip(0, BINS - 1), minlength=BINS)
        self.null_steps += int(null.sum())

    def _size(self, part: int) -> float | None:
        """The range of a continuous part; None if it is unbounded."""
        number = part - self.spec.discrete_parts
        size = self.spec.high[number] - self.spec.low[number]
        return size if 0 < size < math.inf else None

    @property
    def null_share(self) -> float | None:
        """The share of steps with a null action; None if the null action is unknown."""
        known = self.null is not None or not self.spec.sizes
        known = known and all(low <= 0 <= high for low, high in zip(self.spec.low, self.spec.high, strict=True))
        return self.null_steps / self.steps if known and self.steps else None

    def parts(self) -> list[dict[str, Any]]:
        """The histogram of each part and its reach: the share of the options or of the range that is used."""
        if not self.steps:
            return []
        first = self.spec.discrete_parts
        found: list[dict[str, Any]] = [
            {"reach": float((c > 0).mean()), "histogram": c.tolist()} for c in self.counts[:first]
        ]
        mean = self.sums / self.steps
        spread = np.sqrt(np.maximum(self.squares / self.steps - mean * mean, 0.0))
        for part in range(first, self.spec.parts):
            size = self._size(part)
            facts = {"min": self.low[part], "mean": mean[part], "max": self.high[part], "std": spread[part]}
            reach = min(1.0, float(self.high[part] - self.low[part]) / size) if size else None
            histogram = self.counts[part].tolist() if size else None
            found.append({name: float(x) for name, x in facts.items()} | {"reach": reach, "histogram": histogram})
        return found


@dataclass
class QualityReport:
    """The result of a quality check."""

    demos: Demos
    """All complete episodes, including quarantined ones."""
    bad: dict[str, str]
    """The reason of each bad episode, by `SHARD/INDEX`."""
    by_hand: dict[str, str]
    """Episodes that were quarantined by hand, with the reason."""
    lost: int
    """Episodes that are in the index but not complete."""
    repeats: int
    """Short episodes that are identical to others, which is not an error."""
    actions: ActionStats
    verified: bool

    @property
    def episodes(self) -> int:
        """The number of episodes, including lost ones."""
        return len(self.demos) + self.lost

    @property
    def copies(self) -> int:
        """The number of bad episodes that are copies of other episodes."""
        return sum(reason.startswith(COPY) for reason in self.bad.values())

    @property
    def share(self) -> float:
        """The share of bad episodes; copies do no harm once they are left out and do not count."""
        return (len(self.bad) - self.copies) / max(1, self.episodes)

    @property
    def good(self) -> Demos:
        """The episodes to train on."""
        left_out = self.bad.keys() | self.by_hand.keys()
        return self.demos.pick([n for n in range(len(self.demos)) if self.demos.label(n) not in left_out])

    def facts(self) -> dict[str, Any]:
        """The report as JSON; all values except `bad` describe the good episodes."""
        good = self.good
        return {
            "path": str(self.demos.path),
            "env": self.demos.schema.env,
            "verified": self.verified,
            "episodes": self.episodes,
            "good": len(good),
            "bad": self.bad,
            "bad_share": self.share,
            "lost": self.lost,
            "copies": self.copies,
            "repeats": self.repeats,
            "by_hand": self.by_hand,
            **statistics(good),
            "null_share": self.actions.null_share,
            "actions": self.actions.parts(),
        }

    def lines(self) -> list[str]:
        """The report as text."""
        facts = self.facts()
        lines = [f"{self.demos.path}: {facts['good']:,} of {self.episodes:,} episodes are good"]
        if facts["good"]:
            lines += statistics_lines(facts) + _describe_actions(self.demos.schema.action, facts)
        if self.repeats:
            lines.append(f"repeats: {self.repeats:,} short episodes are identical to others; they are kept")
        if self.by_hand:
            lines.append(f"quarantined by hand: {len(self.by_hand):,}")
        if self.bad:
            rest = f", {self.copies:,} of them copies" if self.copies else ""
            lines += [f"bad: {len(self.bad):,}{rest}", *_listed(self.bad, 20)]
        return lines


def check_quality(path: Path, limit: float = LIMIT, verify: bool = True) -> QualityReport:
    """Check demos, quarantine bad episodes, and raise DemoError if their share exceeds the limit.

    A higher limit set with `slipstream demos check --allow` takes precedence.
    """
    report = examine(path, verify)
    allowed = allowed_share(report.demos.path)
    quarantine(report, allowed)
    enforce_limit(report, max(limit, allowed))
    return report


def examine(path: Path, verify: bool = True, null: Sequence[int] | None = None) -> QualityReport:
    """Check every episode without changing anything; `verify` reads all values to compare checksums."""
    demos = Demos.open(path, quarantined=True)
    lost = _lost(demos)
    if not len(demos):
        why = f": all {len(lost):,} in its index are damaged" if lost else ""
        raise DemoError(f"{demos.path} holds no complete episode{why}.", "record or import some")
    bad: dict[str, str] = dict(lost)
    repeats = _find_copies(demos, bad)
    by_hand = {label: why for label, why in demos.left_out.items() if not str(why).startswith(CAUSES)}
    actions = ActionStats(demos.schema.action, _null(demos.schema.action, null))
    for shard in demos.shards:
        view = ShardView(shard.path, demos.schema)  # a new view, so that its memory maps are freed with it
        view.records = shard.records  # a recording may still be appending
        for indices in _blocks(view):
            _check_block(view, indices, verify, bad)
            left_out = bad.keys() | by_hand.keys()
            good = [f"{view.name}/{index}" not in left_out for index in indices]
            values = _slice(view, "action", indices)
            if not all(good):
                values = values[np.repeat(good, view.records["steps"][indices.start : indices.stop])]
            actions.add(values)
    return QualityReport(demos, bad, by_hand, len(lost), repeats, actions, verify)


def quarantine(report: QualityReport, allowed: float = 0.0) -> None:
    """Write quarantine.json: the bad episodes, those quarantined by hand, and the allowed share of bad episodes."""
    file = report.demos.path / "quarantine.json"
    episodes = report.by_hand | report.bad
    try:
        if not episodes and not allowed:
            file.unlink(missing_ok=True)
        elif episodes != report.demos.left_out or allowed != allowed_share(report.demos.path):
            write_json(file, {"version": 1, "allowed": allowed, "episodes": episodes})
    except OSError as error:
        hint = "make the folder writable, or copy it: slipstream demos merge DIR --out NEW"
        raise MachineError(f"{file} could not be written: {error.strerror}.", hint) from error


def enforce_limit(report: QualityReport, limit: float) -> None:
    """Raise DemoError if the share of bad episodes exceeds `limit`."""
    if report.share <= limit:
        return
    path, counted = report.demos.path, {k: v for k, v in report.bad.items() if not v.startswith(COPY)}
    enough = math.ceil(report.share * 100 - 1e-9) / 100
    raise DemoError(
        f"{len(counted):,} of {report.episodes:,} episodes in {path} are bad ({report.share:.2%}); "
        f"the limit is {limit:.2%}.\n" + "\n".join(_listed(counted, 5)),
        "record or import them again, or, if the cause is known, train on the rest: "
        f"slipstream demos check {path} --allow {enough:g}",
    )


def statistics(demos: Demos) -> dict[str, Any]:
    """Statistics from the index alone: counts, returns, lengths, outcomes, and how episodes ended."""
    records = demos.episodes
    mean, low, high = mean_interval(records["return"].tolist())
    ended = records["ended"]
    return {
        "games": len(np.unique(demos.games)),
        "steps": demos.steps,
        "returns": {"mean": mean, "mean_low": low, "mean_high": high} | _spread(records["return"]),
        "lengths": {"mean": float(records["steps"].mean()) if len(records) else math.nan} | _spread(records["steps"]),
        "outcomes": {name: int((records["outcome"] == x).sum()) for name, x in OUTCOMES.items()},
        "ended": {
            "terminated": int(((ended & TERMINATED) > 0).sum()),
            "truncated": int(((ended & TRUNCATED) > 0).sum()),
            "cut": int((ended == 0).sum()),
        },
        "checksum": demos.checksum,
    }


def _spread(values: Array) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("min", "median", "max"), math.nan)
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}


def statistics_lines(facts: Mapping[str, Any]) -> list[str]:
    """The result of `statistics` as text."""
    returns, lengths = facts["returns"], facts["lengths"]
    interval = f" [{returns['mean_low']:.4g}, {returns['mean_high']:.4g}]" if facts["games"] > 1 else ""
    lines = [
        f"games: {facts['games']:,}, steps: {facts['steps']:,}",
        f"returns: mean {returns['mean']:.4g}{interval}, "
        + ", ".join(f"{key} {returns[key]:.4g}" for key in ("min", "median", "max")),
        f"lengths: mean {lengths['mean']:,.1f}, "
        + ", ".join(f"{key} {lengths[key]:,.0f}" for key in ("min", "median", "max")),
    ]
    if facts["outcomes"]["won"] or facts["outcomes"]["lost"]:
        lines.append("outcomes: " + ", ".join(f"{name} {count:,}" for name, count in facts["outcomes"].items()))
    lines.append("ended: " + ", ".join(f"{name} {count:,}" for name, count in facts["ended"].items() if count))
    return lines


def _describe_actions(spec: ActionSpec, facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for part, stats in enumerate(facts["actions"]):
        name = "actions" if spec.parts == 1 else f"action {part}"
        number = part - spec.discrete_parts
        if number >= 0:
            span = f" of [{spec.low[number]:g}, {spec.high[number]:g}]"
            reach = "" if stats["reach"] is None else f", reach {stats['reach']:.0%}{span}"
            lines.append(f"{name}: " + ", ".join(f"{k} {stats[k]:.3g}" for k in ("min", "mean", "max", "std")) + reach)
        else:
            counts = np.array(stats["histogram"])
            most = np.argsort(-counts, kind="stable")[:8]
            shares = ", ".join(f"{option}: {counts[option] / counts.sum():.1%}" for option in most if counts[option])
            more = ", ..." if (counts > 0).sum() > len(most) else ""
            lines.append(f"{name}: {int((counts > 0).sum())} of {len(counts)} options used ({shares}{more})")
    if facts["null_share"] is not None:
        lines.append(f"null actions: {facts['null_share']:.1%}")
    return lines


def _listed(bad: Mapping[str, str], most: int) -> list[str]:
    lines = [f"  {label} {reason}" for label, reason in list(bad.items())[:most]]
    return lines + ([f"  ... and {len(bad) - most:,} more (--json lists all)"] if len(bad) > most else [])


def allowed_share(path: Path) -> float:
    """The share of bad episodes allowed for these demos by `demos check --allow`."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
        return float(json.loads((path / "quarantine.json").read_text(encoding="utf-8")).get("allowed", 0.0))
    return 0.0


def _null(spec: ActionSpec, null: Sequence[int] | None) -> tuple[int, ...] | None:
    """Check the null option of each discrete part."""
    if null is None or not spec.sizes:
        return None
    if len(null) != spec.discrete_parts or any(not 0 <= n < size for n, size in zip(null, spec.sizes, strict=True)):
        given = ",".join(str(n) for n in null)
        sizes = ", ".join(f"0 to {size - 1}" for size in spec.sizes)
        raise DemoError(
            f"--null {given} is not an action of these demos.", f"give one option for each discrete part: {sizes}"
        )
    return tuple(null)


def _lost(demos: Demos) -> dict[str, str]:
    """The episodes that are in an index but not complete."""
    folder, found = demos.path / "shards", dict[str, str]()
    for path in sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []:
        file = path / "episodes.bin"
        listed = file.stat().st_size // EPISODE.itemsize if file.exists() else 0
        complete = len(ShardView(path, demos.schema).records)
        found |= {f"{path.name}/{index}": LOST for index in range(complete, listed)}
    return found


def _find_copies(demos: Demos, bad: dict[str, str]) -> int:
    """Mark extra copies of episodes as bad; return the number of short episodes that are merely identical.

    The same game of the same recording (or the same seed played twice) is a copy, whatever its length.
    """
    records, repeats = demos.episodes, 0
    identity = ["seed", "env", "game", "agent"]
    order = np.lexsort((records["checksum"], records["steps"]))
    same = records[order][["steps", "checksum"]]
    for run in np.split(order, np.flatnonzero(same[1:] != same[:-1]) + 1):
        first = int(run.min())
        for other in np.sort(run)[1:] if len(run) > 1 else []:
            if not _identical(demos, first, int(other)):
                continue
            if records["steps"][first] >= SHORT or records[identity][first] == records[identity][other]:
                bad[demos.label(other)] = f"{COPY} {demos.label(first)}"
            else:
                repeats += 1
    return repeats


def _identical(demos: Demos, one: int, other: int) -> bool:
    """Whether two episodes hold the same values bit for bit."""
    left, right = demos.episode(one), demos.episode(other)
    return all(np.array_equal(_bytes(left[name]), _bytes(right[name])) for name in left)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _blocks(view: ShardView) -> Iterator[range]:
    """Yield blocks of consecutive complete episodes of about `BLOCK_BYTES` bytes."""
    records, per_step = view.records, sum(c.bytes for c in view.schema.columns if c.per != "episode")
    filled = np.cumsum(records["steps"] * max(1, per_step)) // BLOCK_BYTES
    edges = [0, *(np.flatnonzero(filled[1:] != filled[:-1]) + 1).tolist(), len(records)]
    return (range(low, high) for low, high in itertools.pairwise(edges))


def _slice(view: ShardView, name: str, indices: range) -> Array:
    """The values of a column over consecutive episodes."""
    column = view.schema.column(name)
    return view.column(name)[view.span(column, indices[0]).start : view.span(column, indices[-1]).stop]


def _check_block(view: ShardView, indices: range, verify: bool, bad: dict[str, str]) -> None:
    """Add the bad episodes of a block to `bad`."""
    names = [column.name for column in view.schema.columns if column.bytes]
    suspicious = bool(_fault(view.schema, {name: _slice(view, name, indices) for name in names}))
    for index in indices:
        label = f"{view.name}/{index}"
        if label in bad:
            continue
        reason, steps = "", view.records["steps"][index]
        if verify and not view.intact(index):
            reason = DAMAGED
        elif steps < 1:
            reason = EMPTY
        elif suspicious:
            reason = _fault(view.schema, view.values(index, names))
        if not reason and steps >= SHORT and _is_constant(view.values(index, ["obs"])["obs"]):
            reason = STILL
        if reason:
            bad[label] = reason


def _fault(schema: Schema, values: Mapping[str, Array]) -> str:
    """The first fault in the values of one or several episodes; empty if there is none."""
    for name, array in values.items():
        if name == "obs":
            array = schema.obs.vectors(array)
        if array.dtype.kind == "f" and not _is_finite(array):
            return f"{NUMBERS} `{name}`"
    return _action_fault(schema.action, values["action"], values.get("mask"))


def _is_finite(array: Array) -> bool:
    """Whether all values are finite; a finite sum proves it, and is faster than testing each value."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):
            return True
    rows = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    return all(bool(np.isfinite(array[i : i + rows]).all()) for i in range(0, len(array), rows))


def _action_fault(spec: ActionSpec, action: Array, mask: Array | None) -> str:
    if not len(action):
        return ""
    first = spec.discrete_parts
    low, high = action.min(axis=0), action.max(axis=0)
    bounds = np.array(spec.low), np.array(spec.high)
    slack = 1e-4 * np.where(np.isfinite(bounds[1] - bounds[0]), bounds[1] - bounds[0], 0.0)
    if (low[first:] < bounds[0] - slack).any() or (high[first:] > bounds[1] + slack).any():
        return RANGE
    options = action[:, :first].astype(np.int64, copy=False)
    if (low[:first] < 0).any() or (high[:first] >= np.array(spec.sizes)).any() or (options != action[:, :first]).any():
        return RANGE
    if mask is not None:
        starts = np.cumsum([0, *spec.sizes[:-1]])
        if not mask[np.arange(len(action))[:, None], starts + options].all():
            return FORBIDDEN
    return ""


def _is_constant(obs: Array) -> bool:
    """Whether all observations of an episode are equal; the last and the middle one are compared first."""
    first = obs[0]
    if not first.size or (obs[-1] != first).any() or (obs[len(obs) // 2] != first).any():
        return False
    return all(bool((obs[i : i + 1024] == first).all()) for i in range(0, len(obs), 1024))
