"""From a game's functions to its kernels: every function rewritten, and the loops of `kernels` bound to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import numba
import numpy as np

from slipstream.contracts import Array
from slipstream.envs.native import controls, kernels
from slipstream.envs.native.controls import numbers_of
from slipstream.envs.native.layout import Columns, columns_of
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
from slipstream.envs.native.written import written_columns
from slipstream.errors import ConfigError, did_you_mean
from slipstream.system.numba_compile import OPTIONS, WITHOUT_REFERENCES, twin

TASK = ("_table", "_task")
WORKSPACE = ("_x", "_x_row")
ROLES: dict[str, tuple[str, ...]] = {
    "world": ("_w", "_env", *WORKSPACE, "_rng", *TASK),
    "reset": ("_s", "_env", "_w", *WORKSPACE, "_rng", *TASK),
    "step": ("_s", "_env", "_w", *WORKSPACE, "_acts", "_first", "_ticks", "_rng", *TASK),
    "prepare": ("_s", "_env", "_w", "_rng", *TASK),
    "observe": ("_s", "_env", "_w", *WORKSPACE, "_me", "_out", "_pixels", "_row", *TASK),
    "done": ("_s", "_env", "_w", *TASK),
    "outcome": ("_s", "_env", "_w", "_me", *TASK),
    "turn": ("_s", "_env", "_w", "_me", *TASK),
    "present": ("_s", "_env", "_w", "_me", *TASK),
    "mask": ("_s", "_env", "_w", "_me", "_option", *TASK),
    "reward": ("_b", "_s", "_env", "_w", "_acts", "_first", "_me", *TASK),
    "potential": ("_s", "_env", "_w", "_me", *TASK),
    "statistic": ("_b", "_s", "_env", "_w", "_acts", "_first", "_me", *TASK),
    "player": ("_out", "_pixels", "_row", "_acts"),
}
"""The low-level parameters of each kind of function."""
FORMS = {
    "world": "world(w: World, rng: native.Random)",
    "reset": "reset(s: State, rng: native.Random)",
    "step": "step(s: State, action: Action, rng: native.Random), with several agents actions: list[Action]",
    "prepare": "prepare(s: State, rng: native.Random)",
    "observe": "observe(s: State, me: int, seen: Seen)",
    "done": "done(s: State)",
    "outcome": "outcome(s: State, me: int)",
    "turn": "turn(s: State, me: int)",
    "present": "present(s: State, me: int)",
    "mask": "mask(s: State, me: int, option: int)",
    "reward": "reward(before: State, after: State, me: int)",
    "potential": "potential(s: State, me: int)",
    "statistic": "statistic(before: State, after: State, me: int)",
    "player": "player(seen: Seen, action: Action)",
}
"""How a function of each kind is written; parameters that it does not use are left out, `task: Task`, `w: World` and
`settings: native.Settings` may be added."""
WRITES = {
    "world": ("world", "scratch"),
    "reset": ("state", "world", "scratch"),
    "step": ("state", "world", "scratch"),
    "prepare": ("state",),
    "observe": ("observation", "scratch"),
    "player": ("action",),
}
"""What a function of each kind changes."""
EVERY_DECISION = (kernels.SUM, kernels.MEAN, kernels.MAXIMUM)
"""The kinds of statistics that every decision changes; the others are valued at the end of a game."""
RETURNS = {"reward": "float", "statistic": "float", "potential": "float"}
NOTHING = {
    "world": "def nothing(w, e, x, y, r, t, k): pass",
    "reset": "def nothing(s, e, w, x, y, r, t, k): pass",
    "prepare": "def nothing(s, e, w, r, t, k): pass",
    "done": "def running(s, e, w, t, k): return 0",
    "outcome": "def draw(s, e, w, me, t, k): return 0",
    "turn": "def always(s, e, w, me, t, k): return 1",
    "present": "def always(s, e, w, me, t, k): return 1",
}
"""What stands for a function that a game does not have."""


class Classes(NamedTuple):
    """The classes of a game's columns."""

    state: Columns
    action: Columns
    observation: Columns
    task: Columns | None
    world: Columns | None
    scratch: Columns | None
    settings: Columns | None


@dataclass
class Functions:
    """The functions of a game, as the user wrote them."""

    single: dict[str, Source] = field(default_factory=dict)
    """One function of each kind that there is one of."""
    rewards: dict[str, Source] = field(default_factory=dict)
    potentials: dict[str, Source] = field(default_factory=dict)
    """The potential of each reward term that has one."""
    statistics: dict[str, Source] = field(default_factory=dict)
    masks: dict[str, Source] = field(default_factory=dict)
    """The function of each part of an action that has a mask."""
    players: dict[str, Source] = field(default_factory=dict)

    def all(self) -> list[tuple[str, Source]]:
        """All functions with their kinds."""
        found = list(self.single.items())
        groups = ("reward", self.rewards), ("potential", self.potentials), ("statistic", self.statistics)
        for kind, named in (*groups, ("mask", self.masks), ("player", self.players)):
            found += [(kind, one) for one in named.values()]
        return found


def find_classes(game: str, functions: Functions, sizes: Mapping[str, int]) -> Classes:
    """The classes that the functions' annotations name, with the sizes of a variant."""
    found: dict[str, Columns] = {}
    for _, source in functions.all():
        for text, hint in source.hints().items():
            if hint is None or hint.fields is None or hint.kind == "record":
                continue
            columns = columns_of(hint.fields, sizes)
            known = found.setdefault(hint.kind, columns)
            if known == columns:
                continue
            if hint.kind == "settings" and columns.begins_with(known):
                found["settings"] = columns
            elif not (hint.kind == "settings" and known.begins_with(columns)):
                source.fail(None, f"`{text}` is {columns.name}, and the game's {hint.kind} is {known.name}.", "")
    for kind, function in (("state", "reset"), ("action", "step"), ("observation", "observe")):
        if kind not in found:
            raise GameError(f"The game `{game}` has no {kind}.", f"write {FORMS[function]}")
    return Classes(*(found.get(kind) for kind in Classes._fields))  # type: ignore[arg-type]


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
            bound = Ref(classes.action, "_acts", row=row, writable=writable, many=agents if many else None)
        elif role == "observation" and "_out" in low:
            bound = Ref(classes.observation, "_out", row=name("_row"), writable=writable, pixels="_pixels")
        elif role == "world" and "_w" in low and classes.world is not None:
            bound = Ref(classes.world, "_w", row=name("_env"), writable=writable)
        elif role == "scratch" and "_x" in low and classes.scratch is not None:
            bound = Ref(classes.scratch, "_x", row=name("_x_row"), writable=writable)
        elif role == "task" and "_task" in low and classes.task is not None:
            bound = Ref(classes.task, "_table", offset=name("_task"), writable=False)
        elif role == "settings" and "_table" in low and classes.settings is not None:
            bound = Ref(classes.settings, "_table", writable=False)
        elif role == "random" and "_rng" in low:
            bound = Rng("_rng", "_env")
        elif text in ("me", "option", "ticks") and f"_{text}" in low:
            bound = Given("int", f"_{text}")
        if bound is None:
            near = did_you_mean(text, ("me", "option", "ticks")) if role == "number" else ""
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
    next_world: Callable[..., None]
    """The world of one env's next game, for a GPU."""
    take_world: Callable[..., None]
    players: dict[str, Callable[..., None]]
    before: bool
    """Whether terms or statistics read the state before a decision."""
    plain_terms: dict[str, Callable[..., Any]]
    """The user's own reward terms in plain Python, to find where one reads out of range."""
    digest: str
    """A hash of all functions with the numbers that they use from their modules."""


@dataclass(frozen=True)
class Plan:
    """What the kernels of a game are built from."""

    name: str
    functions: Functions
    classes: Classes
    sizes: Mapping[str, int]
    agents: int
    floats: type[np.generic]
    how: tuple[tuple[int, int], ...]
    """How each statistic is combined, and the column of the statistic that it is divided by (-1: none)."""
    combinations: Array
    """The combinations of controls of the discrete kind."""
    terms: Mapping[str, Source] = field(default_factory=dict)
    """The user's own reward terms, after those of the game."""


def build(plan: Plan, compiled: bool) -> Kernels:
    """Rewrite all functions and bind the loops to them: compiled, or as plain Python."""
    context = Context(plan.floats, not compiled, inlined_here if compiled else _as_is, plan.sizes)
    plain = Context(plan.floats, True, _as_is, plan.sizes)
    guarded = context
    if compiled and plan.terms:
        guarded = replace(context, check_index=inlined_here(check_index), helpers={}, compiled={})
    made: dict[str, Rewritten] = {}
    own, columns = plan.functions, plan.classes

    def function(kind: str, key: str, source: Source, within: Context = context, inline: bool = True) -> Any:
        bindings = bind(kind, source, columns, plan.agents)
        made[key] = rewrite(source, within, ROLES[kind], bindings, RETURNS.get(kind, ""))
        return within.wrap(made[key].function, inline)

    def named(kind: str, sources: Mapping[str, Source]) -> dict[str, Any]:
        return {key: function(kind, f"{kind} {key}", one) for key, one in sources.items()}

    def of_user(key: str, source: Source) -> Any:
        try:
            return function("reward", f"reward {key}", source, guarded)
        except GameError as error:
            raise term_error(key, error, own) from error

    single = {kind: function(kind, kind, one, inline=kind != "world") for kind, one in own.single.items()}
    rewards = [*named("reward", own.rewards).values(), *(of_user(key, one) for key, one in plan.terms.items())]
    potentials = {list(own.rewards).index(key): one for key, one in named("potential", own.potentials).items()}
    statistics = list(named("statistic", own.statistics).values())
    masks, players = named("mask", own.masks), named("player", own.players)
    numbered = _numbered("statistic", statistics)
    generated: dict[str, tuple[str, dict[str, Any]]] = {
        "value_terms": (_terms_text(len(rewards)), _numbered("reward", rewards)),
        "shape_terms": (_potentials_text(list(potentials)), {f"potential_{k}": one for k, one in potentials.items()}),
        "value_statistics": (_statistics_text(plan.how, "value_statistics", EVERY_DECISION), numbered),
        "last_statistics": (_statistics_text(plan.how, "last_statistics", (kernels.LAST,)), numbered),
        "write_statistics": (_results_text(plan.how), {"float32": np.float32}),
        "clear": (_clear_text(columns.observation, written_columns(made["observe"], "_out")), {}),
        "allowed": (_mask_text(columns.action, list(masks)), {f"mask_{part}": one for part, one in masks.items()}),
    }
    numbers = {
        "AGENTS": plan.agents,
        "OBS": columns.observation.size,
        "PIXELS": columns.observation.bytes,
        "SETTINGS_SIZE": columns.settings.size if columns.settings else 0,
        "TASK_SIZE": columns.task.size if columns.task else 0,
        "POTENTIALS": len(potentials),
        "TURNS": "turn" in single,
        "ABSENCES": "present" in single,
        "BEFORE": bool(potentials) or any("_b" in one.reads for one in made.values()),
        "WHOLE_DECISIONS": "_ticks" in made["step"].reads,
        "PREPARES": "prepare" in single,
        "WORLD": "world" in single,
        "MASKED": bool(masks),
    }
    of_controls = numbers_of(columns.action, plan.combinations, plan.floats)
    texts = [f"{key}: {one.text}" for key, one in sorted(made.items())]
    texts += [text for text, _ in generated.values()]
    texts += [repr(numbers), plan.floats.__name__, repr(columns.action), repr(plan.combinations.tolist())]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    others = {kind: context.wrap(_function(text, digest)) for kind, text in NOTHING.items() if kind not in single}
    known: dict[str, Any] = numbers | of_controls | single | others
    known |= {
        "generate": known["world"],
        "outcome_of": known["outcome"],
        "acts_next": known["turn"],
        "takes_part": known["present"],
    } | {key: context.wrap(_function(text, digest, numbered)) for key, (text, numbered) in generated.items()}
    inner, outer = (inlined_here, compiled_kernel) if compiled else (_as_is, _as_is)

    def bound(template: Any, wrap: Callable[..., Any], suffix: str = "", **options: Any) -> Any:
        stem = template.__name__.removesuffix("_template")
        return wrap(twin(template, f"{stem}{suffix}_{plan.name}_{digest}", **known), **options)

    for key, template in {
        "decode": controls.decode_template,
        "option_of": controls.option_template,
        "encode": controls.encode_template,
        "task_place": kernels.task_place_template,
        "observe_env": kernels.observe_template,
        "mark_active": kernels.active_template,
        "write_masks": kernels.masks_template,
    }.items():
        known[key] = bound(template, inner)
    # What a step seldom does is compiled once, and called.
    known["observe_seldom"] = bound(kernels.observe_template, inner, "_seldom", inline=False)
    known["begin"] = bound(kernels.begin_template, inner, inline=False)
    known["play"] = bound(kernels.play_template, inner)
    return Kernels(
        step_all=bound(kernels.step_all_template, outer),
        begin_all=bound(kernels.begin_all_template, outer),
        observe=bound(kernels.observe_all_template, outer),
        step_env=bound(kernels.step_on_device_template, inner),
        next_world=bound(kernels.next_world_template, inner),
        take_world=bound(kernels.take_world_template, inner),
        players={
            key: bound_player(act, plan.name, key, made[f"player {key}"].text, columns, known, outer)
            for key, act in players.items()
        },
        before=bool(numbers["BEFORE"]),
        digest=digest,
        plain_terms={
            key: rewrite(one, plain, ROLES["reward"], bind("reward", one, columns, plan.agents), "float").function
            for key, one in plan.terms.items()
        },
    )


def check_index(index: int, size: int) -> int:
    """An index below `size`, checked in compiled code, whose messages are constant."""
    if index < 0 or index >= size:
        raise IndexError("an index is out of range")
    return index


def read_terms(terms: Mapping[str, Callable[..., Any]]) -> dict[str, Source]:
    """The texts of reward terms of somebody else."""
    found = {}
    for term, given in terms.items():
        if not isinstance(given, FunctionType):
            raise ConfigError(f"Reward term `{term}` is {given!r}.", "give a function that `def` makes")
        try:
            found[term] = Source.of(given)
        except GameError as error:
            raise ConfigError(f"Reward term `{term}` cannot be compiled: {error.message}", error.hint) from error
    return found


def term_error(term: str, error: GameError, functions: Functions) -> ConfigError:
    """The error of a reward term of somebody else, which is a setting; its hint says where the state's class is."""
    hint = error.hint
    if FORMS["reward"] in hint:
        states = (
            one for _, source in functions.all() for one in source.hints().values() if one and one.kind == "state"
        )
        state: Any = next(states).fields
        form = f"def {term}{FORMS['reward'].removeprefix('reward')} -> float".replace("State", state.__name__)
        hint = f"write {form}, with {state.__name__} of {state.__module__}"
    return ConfigError(f"Reward term `{term}` cannot be compiled: {error.message}", hint)


def bound_player(
    act: Any,
    game: str,
    key: str,
    text: str,
    classes: Classes,
    known: Mapping[str, Any],
    wrap: Callable[[Any], Any],
) -> Callable[..., None]:
    """The loop of a scripted player over rows."""
    parts = text, repr(classes.observation), repr(classes.action), repr(known["COMBINATIONS"].tolist())
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    names = {name: known[name] for name in ("CONTROLS", "encode", "to_float")}
    return wrap(twin(kernels.act_all_template, f"act_{game}_{key}_{digest}", act=act, **names))  # type: ignore[no-any-return]


def inlined_here(function: Callable[..., Any], inline: bool = True) -> Any:
    """Compile into the callers, without a cache of its own: the loops are cached, under a hash of all texts."""
    options: dict[str, Any] = OPTIONS | WITHOUT_REFERENCES | {"cache": False}
    return numba.njit(**options, forceinline=inline)(function)


def compiled_kernel(function: FunctionType) -> Any:
    """Compile a loop; its name has a hash of all that it calls, so its cache is never out of date."""
    options: dict[str, Any] = OPTIONS | WITHOUT_REFERENCES
    return numba.njit(**options)(function)


def _as_is(function: Any, inline: bool = True) -> Any:
    return function


def _numbered(stem: str, functions: Sequence[Any]) -> dict[str, Any]:
    return {f"{stem}_{k}": one for k, one in enumerate(functions)}


def _function(text: str, digest: str, names: Mapping[str, Any] = MappingProxyType({})) -> FunctionType:
    """A function from our own generated text, named with the digest of the game."""
    scope: dict[str, Any] = {"__name__": __name__, **names}
    before = set(scope)
    exec(compile(text, f"<{__name__}>", "exec"), scope)
    made = next(value for key, value in scope.items() if key not in before and isinstance(value, FunctionType))
    made.__name__ = made.__qualname__ = f"{made.__name__}_{digest}"
    return made


def _terms_text(count: int) -> str:
    lines = []
    for k in range(count):
        lines.append(f"    if weights[{k}] != 0:")
        lines.append(f"        values[row, {k}] = reward_{k}(b, s, e, w, acts, first, me, t, p)")
    return "\n".join(
        ["def value_terms(b, s, e, w, acts, first, me, t, p, values, row, weights):", *lines, "    return"]
    )


def _potentials_text(terms: Sequence[int]) -> str:
    lines = []
    for k in terms:
        later, earlier = (f"potential_{k}({state}, e, w, me, t, p)" for state in "sb")
        lines.append(f"    values[row, {k}] = discount * {later} - {earlier}")
    return "\n".join(["def shape_terms(b, s, e, w, me, t, p, discount, values, row):", *lines, "    return"])


def _statistics_text(how: Sequence[tuple[int, int]], name: str, kinds: Sequence[int]) -> str:
    """Combine statistics of these kinds; where nothing changes, nothing is written."""
    forms = {
        kernels.SUM: ("x{k} != 0", "sums[e, me, {k}] + x{k}"),
        kernels.MEAN: ("x{k} != 0", "sums[e, me, {k}] + x{k}"),
        kernels.MAXIMUM: ("x{k} > sums[e, me, {k}]", "x{k}"),
        kernels.LAST: ("True", "x{k}"),
    }
    lines = []
    for k, (one, _) in enumerate(how):
        if one in kinds:
            changes, value = (text.format(k=k) for text in forms[one])
            lines.append(f"    x{k} = statistic_{k}(b, s, e, w, acts, first, me, t, p)")
            lines.append(f"    if {changes}:")
            lines.append(f"        sums[e, me, {k}] = {value}")
    return "\n".join([f"def {name}(b, s, e, w, acts, first, me, t, p, sums):", *lines, "    return"])


def _results_text(how: Sequence[tuple[int, int]]) -> str:
    lines = []
    for k, (one, by) in enumerate(how):
        if by >= 0:
            lines += [
                f"    d{k} = sums[e, me, {by}]",
                f"    out[row, {k}] = sums[e, me, {k}] / d{k} if d{k} > 0 else 0",
            ]
        else:
            mean = " * (float32(1.0) / float32(max(decisions, 1)))" if one == kernels.MEAN else ""
            lines.append(f"    out[row, {k}] = sums[e, me, {k}]{mean}")
    return "\n".join(["def write_statistics(sums, e, me, decisions, out, row):", *lines, "    return"])


def _clear_text(observation: Columns, written: set[int]) -> str:
    """Clear the columns of an observation that its function may not write."""
    lines = [f"    obs[row, {column}] = 0" for column in range(observation.size) if column not in written]
    return "\n".join(["def clear(obs, row):", *lines, "    return"])


def _mask_text(action: Columns, masked: Sequence[str]) -> str:
    """Whether an option is allowed; the options of all parts are numbered side by side."""
    lines, start = [], 0
    for one in action.fields.values():
        options = len(getattr(one.part, "values", ()))
        if options and one.name in masked:
            lines.append(f"    if {start} <= option < {start + options}:")
            lines.append(f"        return 1 if mask_{one.name}(s, e, w, me, option - {start}, t, p) else 0")
        start += options
    return "\n".join(["def allowed(s, e, w, me, option, t, p):", *lines, "    return 1"])
