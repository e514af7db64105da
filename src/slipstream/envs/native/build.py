"""From a game's functions to its kernels: every function rewritten, and the loops of `kernels` bound to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np

from slipstream.envs.native import kernels
from slipstream.envs.native.layout import Columns
from slipstream.envs.native.rewrite import (
    Context,
    Given,
    Kind,
    Ref,
    Rewritten,
    Rng,
    name,
    plus,
    rewrite,
)
from slipstream.envs.native.sources import GameError, Source
from slipstream.errors import did_you_mean
from slipstream.system.numba_compile import OPTIONS, WITHOUT_REFERENCES, twin

TASK = ("_table", "_task")
ROLES: dict[str, tuple[str, ...]] = {
    "reset": ("_s", "_env", "_rng", *TASK),
    "step": ("_s", "_env", "_acts", "_first", "_rng", *TASK),
    "observe": ("_s", "_env", "_me", "_out", "_pixels", "_row", *TASK),
    "done": ("_s", "_env", *TASK),
    "outcome": ("_s", "_env", "_me", *TASK),
    "turn": ("_s", "_env", "_me", *TASK),
    "mask": ("_s", "_env", "_me", "_option", *TASK),
    "reward": ("_b", "_s", "_env", "_acts", "_first", "_me", *TASK),
    "statistic": ("_b", "_s", "_env", "_acts", "_first", "_me", *TASK),
    "player": ("_out", "_pixels", "_row", "_acts"),
}
"""The low-level parameters of each kind of function."""
FORMS = {
    "reset": "reset(s: State, rng: native.Random)",
    "step": "step(s: State, action: Action, rng: native.Random), with several agents actions: list[Action]",
    "observe": "observe(s: State, me: int, seen: Seen)",
    "done": "done(s: State)",
    "outcome": "outcome(s: State, me: int)",
    "turn": "turn(s: State, me: int)",
    "mask": "mask(s: State, me: int, option: int)",
    "reward": "reward(before: State, after: State, me: int)",
    "statistic": "statistic(before: State, after: State, me: int)",
    "player": "player(seen: Seen, action: Action)",
}
"""How a function of each kind is written; parameters that it does not use are left out, `task: Task` may be added."""
WRITES = {"reset": ("state",), "step": ("state",), "observe": ("observation",), "player": ("action",)}
"""What a function of each kind changes."""
RETURNS = {"reward": "float", "statistic": "float"}


class Classes(NamedTuple):
    """The classes of a game's columns."""

    state: Columns
    action: Columns
    observation: Columns
    task: Columns | None


@dataclass
class Functions:
    """The functions of a game, as the user wrote them."""

    single: dict[str, Source] = field(default_factory=dict)
    """One function of each kind that there is one of."""
    rewards: dict[str, Source] = field(default_factory=dict)
    statistics: dict[str, Source] = field(default_factory=dict)
    masks: dict[str, Source] = field(default_factory=dict)
    """The function of each part of an action that has a mask."""
    players: dict[str, Source] = field(default_factory=dict)

    def all(self) -> list[tuple[str, Source]]:
        """All functions with their kinds."""
        found = list(self.single.items())
        for kind, named in (("reward", self.rewards), ("statistic", self.statistics)):
            found += [(kind, one) for one in named.values()]
        found += [("mask", one) for one in self.masks.values()]
        return found + [("player", one) for one in self.players.values()]


def find_classes(game: str, functions: Functions) -> Classes:
    """The classes that the functions' annotations name."""
    found: dict[str, Columns] = {}
    for _, source in functions.all():
        for text, hint in source.hints().items():
            if hint is None or hint.columns is None or hint.kind == "record":
                continue
            known = found.setdefault(hint.kind, hint.columns)
            if known != hint.columns:
                source.fail(None, f"`{text}` is {hint.columns.name}, and the game's {hint.kind} is {known.name}.", "")
    for kind, function in (("state", "reset"), ("action", "step"), ("observation", "observe")):
        if kind not in found:
            raise GameError(f"The game `{game}` has no {kind}.", f"write {FORMS[function]}")
    return Classes(found["state"], found["action"], found["observation"], found.get("task"))


def bind(kind: str, source: Source, classes: Classes, agents: int) -> dict[str, Kind]:
    """What each of a function's parameters stands for."""
    low, hints = ROLES[kind], source.hints()
    states = sum(hint is not None and hint.kind == "state" for hint in hints.values())
    arrays = ["_b", "_s"] if "_b" in low and states > 1 else ["_s"]
    own = plus(name("_first"), name("_me")) if "_me" in low else name("_first")
    found: dict[str, Kind] = {}
    for text, hint in hints.items():
        role, many = (hint.kind, hint.many) if hint is not None else ("", False)
        writable = role in WRITES.get(kind, ())
        bound: Kind = None
        if role == "state" and "_s" in low and arrays:
            bound = Ref(classes.state, arrays.pop(0), row=name("_env"), writable=writable)
        elif role == "action" and "_acts" in low:
            if kind == "step" and many != (agents > 1):
                form = "actions: list[Action]" if agents > 1 else "action: Action"
                source.fail(None, f"`{text}`: the game has {agents} agent{'s' * (agents > 1)}.", f"write {form}")
            row = name("_row") if kind == "player" else name("_first") if many else own
            bound = Ref(classes.action, "_acts", row=row, writable=writable, many=agents if many else 0)
        elif role == "observation" and "_out" in low:
            bound = Ref(classes.observation, "_out", row=name("_row"), writable=writable, pixels="_pixels")
        elif role == "task" and "_task" in low and classes.task is not None:
            bound = Ref(classes.task, "_table", offset=name("_task"), writable=False)
        elif role == "random" and "_rng" in low:
            bound = Rng("_rng", "_env")
        elif text in ("me", "option") and f"_{text}" in low:
            bound = Given("int", f"_{text}")
        if bound is None:
            near = did_you_mean(text, ("me", "option")) if role == "number" else ""
            source.fail(None, f"`{text}` is not a parameter of a {kind} function.{near}", f"write {FORMS[kind]}")
        found[text] = bound
    return found


@dataclass(frozen=True)
class Kernels:
    """The loops of one game."""

    step_all: Callable[..., None]
    begin_all: Callable[..., None]
    observe: Callable[..., None]
    step_env: Callable[..., None]
    """One decision of one env, for a GPU."""
    players: dict[str, Callable[..., None]]
    before: bool
    """Whether terms or statistics read the state before a decision."""


@dataclass(frozen=True)
class Plan:
    """What the kernels of a game are built from."""

    name: str
    functions: Functions
    classes: Classes
    agents: int
    floats: type[np.generic]
    how: tuple[int, ...]
    terms: Mapping[str, Source] = field(default_factory=dict)
    """The user's own reward terms, after those of the game."""


def build(plan: Plan, compiled: bool) -> Kernels:
    """Rewrite all functions and bind the loops to them: compiled, or as plain Python."""
    context = Context(plan.floats, not compiled, inlined_here if compiled else _as_is)
    made: dict[str, Rewritten] = {}

    def function(kind: str, key: str, source: Source) -> Any:
        bindings = bind(kind, source, plan.classes, plan.agents)
        made[key] = rewrite(source, context, ROLES[kind], bindings, RETURNS.get(kind, ""))
        return context.wrap(made[key].function)

    single = {kind: function(kind, kind, one) for kind, one in plan.functions.single.items()}
    rewards = [function("reward", f"reward {key}", one) for key, one in plan.functions.rewards.items()]
    rewards += [function("reward", f"reward {key}", one) for key, one in plan.terms.items()]
    statistics = [function("statistic", f"statistic {key}", one) for key, one in plan.functions.statistics.items()]
    masks = {part: function("mask", f"mask {part}", one) for part, one in plan.functions.masks.items()}
    players = {key: function("player", f"player {key}", one) for key, one in plan.functions.players.items()}
    before = any("_b" in one.reads for one in made.values())
    columns = plan.classes
    generated = {
        "value_terms": _terms_text(len(rewards)),
        "value_statistics": _statistics_text(plan.how),
        "write_statistics": _results_text(plan.how),
        "allowed": _mask_text(columns.action, list(masks)),
    }
    numbers = {
        "AGENTS": plan.agents,
        "OBS": columns.observation.size,
        "PIXELS": columns.observation.bytes,
        "TASK_SIZE": columns.task.size if columns.task else 0,
        "TURNS": "turn" in single,
        "BEFORE": before,
    }
    texts = [f"{key}: {one.text}" for key, one in sorted(made.items())] + list(generated.values())
    digest = hashlib.sha256("\n".join([*texts, repr(numbers), plan.floats.__name__]).encode()).hexdigest()[:16]
    known: dict[str, Any] = numbers | {
        "reset": single.get("reset", context.wrap(_function("def nothing(s, e, r, t, k): pass"))),
        "step": single["step"],
        "observe": single["observe"],
        "done": single.get("done", context.wrap(_function("def running(s, e, t, k): return 0"))),
        "outcome_of": single.get("outcome", context.wrap(_function("def draw(s, e, me, t, k): return 0"))),
        "acts_next": single.get("turn", context.wrap(_function("def always(s, e, me, t, k): return 1"))),
        "value_terms": context.wrap(_function(generated["value_terms"], _numbered("reward", rewards))),
        "value_statistics": context.wrap(_function(generated["value_statistics"], _numbered("statistic", statistics))),
        "write_statistics": context.wrap(_function(generated["write_statistics"])),
        "allowed": context.wrap(_function(generated["allowed"], {f"mask_{part}": one for part, one in masks.items()})),
    }
    inner = inlined_here if compiled else _as_is

    def bound(template: Any, wrap: Callable[[Any], Any]) -> Any:
        own = twin(template, f"{template.__name__.removesuffix('_template')}_{plan.name}_{digest}", **known)
        return wrap(own)

    known["begin"] = bound(kernels.begin_template, inner)
    known["observe_env"] = bound(kernels.observe_template, inner)
    known["mark_active"] = bound(kernels.active_template, inner)
    known["write_masks"] = bound(kernels.masks_template, inner)
    known["play"] = bound(kernels.play_template, inner)
    outer = compiled_kernel if compiled else _as_is
    players = {
        key: bound_player(one, plan.name, key, made[f"player {key}"].text, columns, outer)
        for key, one in players.items()
    }
    return Kernels(
        step_all=bound(kernels.step_all_template, outer),
        begin_all=bound(kernels.begin_all_template, outer),
        observe=bound(kernels.observe_all_template, outer),
        step_env=bound(kernels.step_on_device_template, inner),
        players=players,
        before=before,
    )


def bound_player(
    act: Any, game: str, key: str, text: str, classes: Classes, wrap: Callable[[Any], Any]
) -> Callable[..., None]:
    """The loop of a scripted player over rows."""
    digest = hashlib.sha256((text + repr(classes.observation)).encode()).hexdigest()[:16]
    return wrap(twin(kernels.act_all_template, f"act_{game}_{key}_{digest}", act=act))  # type: ignore[no-any-return]


def inlined_here(function: FunctionType) -> Any:
    """Compile into the callers, without a cache of its own: the loops are cached, under a hash of all texts."""
    options: dict[str, Any] = OPTIONS | WITHOUT_REFERENCES | {"cache": False}
    return numba.njit(**options, forceinline=True)(function)


def compiled_kernel(function: FunctionType) -> Any:
    """Compile a loop; its name has a hash of all that it calls, so its cache is never out of date."""
    options: dict[str, Any] = OPTIONS | WITHOUT_REFERENCES
    return numba.njit(**options)(function)


def _as_is(function: Any) -> Any:
    return function


def _numbered(stem: str, functions: Sequence[Any]) -> dict[str, Any]:
    return {f"{stem}_{k}": one for k, one in enumerate(functions)}


def _function(text: str, names: Mapping[str, Any] | None = None) -> FunctionType:
    """A function from our own generated text."""
    scope: dict[str, Any] = {"__name__": __name__, **(names or {})}
    before = set(scope)
    exec(compile(text, f"<{__name__}>", "exec"), scope)
    return next(value for key, value in scope.items() if key not in before and isinstance(value, FunctionType))


def _terms_text(count: int) -> str:
    lines = [f"    values[row, {k}] = reward_{k}(b, s, e, acts, first, me, t, p)" for k in range(count)]
    return "\n".join(["def value_terms(b, s, e, acts, first, me, t, p, values, row):", *lines, "    return"])


def _statistics_text(how: Sequence[int]) -> str:
    forms = {
        kernels.SUM: "sums[e, me, {k}] + x{k}",
        kernels.MEAN: "sums[e, me, {k}] + x{k}",
        kernels.MAXIMUM: "max(sums[e, me, {k}], x{k})",
        kernels.LAST: "x{k}",
    }
    lines = []
    for k, one in enumerate(how):
        lines.append(f"    x{k} = statistic_{k}(b, s, e, acts, first, me, t, p)")
        lines.append(f"    sums[e, me, {k}] = {forms[one].format(k=k)}")
    return "\n".join(["def value_statistics(b, s, e, acts, first, me, t, p, sums):", *lines, "    return"])


def _results_text(how: Sequence[int]) -> str:
    lines = []
    for k, one in enumerate(how):
        mean = " / max(decisions, 1)" if one == kernels.MEAN else ""
        lines.append(f"    out[row, {k}] = sums[e, me, {k}]{mean}")
    return "\n".join(["def write_statistics(sums, e, me, decisions, out, row):", *lines, "    return"])


def _mask_text(action: Columns, masked: Sequence[str]) -> str:
    """Whether an option is allowed; the options of all parts are numbered side by side."""
    lines, start = [], 0
    for one in action.fields.values():
        options = len(getattr(one.part, "values", ()))
        if options and one.name in masked:
            lines.append(f"    if {start} <= option < {start + options}:")
            lines.append(f"        return 1 if mask_{one.name}(s, e, me, option - {start}, t, p) else 0")
        start += options
    return "\n".join(["def allowed(s, e, me, option, t, p):", *lines, "    return 1"])
