"""The columns of a game's state, actions, observations and tasks, declared as classes with annotated fields.

    class Car(native.Record):
        x: float
        speed: float

    class State(native.State):
        clock_s: float
        goals: int
        cars: list[Car] = native.records(2)
        grid: native.Array[int] = native.array(8, 8)

A row of the state is one array of floats. `records` and `array` give the columns side by side, and `ball: Body` is one
record. Whole numbers and booleans are stored as floats, exactly up to 2**24. A world holds what is large and what
reward terms do not compare, such as a map; one of whole numbers alone is stored as integers.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import add, floordiv, mul
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from slipstream.errors import ConfigError

T = TypeVar("T")
NUMBERS = {float: "float", int: "int", bool: "bool"}
"""The kind of a column by its annotation."""


class Array(Generic[T]):
    """The type of a field that `array` declares, for type checkers; it is indexed by whole numbers."""

    def __getitem__(self, place: int | tuple[int, ...]) -> T:
        """The number at a place."""
        raise NotImplementedError

    def __setitem__(self, place: int | tuple[int, ...], value: T) -> None:
        """Set the number at a place."""
        raise NotImplementedError

    def __len__(self) -> int:
        """The numbers along the first axis."""
        raise NotImplementedError


@dataclass(frozen=True)
class Size:
    """A number that each variant of a game has its own value for, such as the number of cars."""

    name: str
    steps: tuple[tuple[str, int], ...] = ()
    """What is computed from it, such as `("*", 2)`."""

    def __add__(self, more: int) -> Size:
        """A number that follows from it."""
        return Size(self.name, (*self.steps, ("+", more)))

    def __sub__(self, less: int) -> Size:
        """A number that follows from it."""
        return self + -less

    def __mul__(self, factor: int) -> Size:
        """A number that follows from it."""
        return Size(self.name, (*self.steps, ("*", factor)))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Size:
        """A number that follows from it."""
        return Size(self.name, (*self.steps, ("//", divisor)))

    def __index__(self) -> int:
        """Only a game's functions and fields know the number."""
        raise ConfigError(f"`{self.name}` has a number in each variant only.", "use it in fields and in functions")

    def number(self, sizes: Mapping[str, int]) -> int | None:
        """Its number with the sizes of a variant; None if they do not have it."""
        found = sizes.get(self.name)
        for operation, other in self.steps if found is not None else ():
            found = {"+": add, "*": mul, "//": floordiv}[operation](found, other)
        return found


@dataclass(frozen=True)
class ArrayField:
    """What `array` declares."""

    shape: tuple[int | Size, ...]


@dataclass(frozen=True)
class RecordsField:
    """What `records` declares."""

    count: int | Size
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageField:
    """What `image` and `tokens` declare."""

    kind: str
    shape: tuple[int | Size, ...]


@dataclass(frozen=True)
class Choice:
    """A discrete part of an action: the names of its options and the number that each stands for."""

    names: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers given as such."""
        return all(isinstance(value, int) for value in self.values)


@dataclass(frozen=True)
class Box:
    """A continuous part of an action."""

    low: float
    high: float


@dataclass(frozen=True)
class Control:
    """A part of an action whose kind `env.actions` chooses."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    dead_zone: float
    """Numbers up to this one count as 0 where there are options."""

    @property
    def switch(self) -> bool:
        """Whether it is off or on, also where it is continuous."""
        return len(self.values) == 2

    @property
    def low(self) -> float:
        """The least value of the continuous kind."""
        return -1.0 if self.switch else min(self.values)

    @property
    def high(self) -> float:
        """The greatest value of the continuous kind."""
        return 1.0 if self.switch else max(self.values)


def size(name: str) -> Any:
    """A number that variants differ in: `SLOTS = native.size("slots")`, used in fields and in functions.

    `game.variant("2v2", ..., slots=2)` gives the number, or `game.option("slots", 1, 2)` lets `env.options.slots`
    choose it. Fields may use others that follow from it, such as `2 * SLOTS` and `SLOTS - 1`.
    """
    return Size(name)


def array(*shape: int) -> Any:
    """Numbers side by side, such as `grid: native.Array[int] = native.array(8, 8)`; `s.grid[1, 2]` is one of them."""
    if not shape or any(isinstance(one, int) and one < 1 for one in shape):
        raise ConfigError(f"native.array{shape} has no numbers.", "give one or more sizes, such as native.array(8, 8)")
    return ArrayField(shape)


def records(count: int, names: Sequence[str] = ()) -> Any:
    """A field of records side by side: `cars: list[Car] = native.records(2)`, read as `s.cars[i].x`.

    Labels have the number of each record, or its name in `names`.
    """
    if isinstance(count, int) and count < 1:
        raise ConfigError(f"native.records({count}) has no records.", "give a number of at least 1")
    if names and len(names) != count:
        raise ConfigError(f"native.records({count}) has {len(names)} names.", "give one for each record")
    return RecordsField(count, tuple(names))


def image(height: int, width: int, channels: int = 3) -> Any:
    """An image in an observation: `pixels: native.Array[int] = native.image(16, 16)`, values from 0 to 255."""
    return ImageField("image", (height, width, channels))


def tokens(count: int) -> Any:
    """Tokens in an observation, each (place, feature, value) from 0 to 255; place 255 marks an absent token."""
    return ImageField("tokens", (count, 3))


def choice(*names: str, **values: float) -> Any:
    """A discrete part of an action.

    `choice("left", "right")` is read as the number of the option, `choice(left=-1.0, right=1.0)` as the value.
    """
    if bool(names) == bool(values):
        raise ConfigError("native.choice takes names or values.", 'write choice("left", "right") or choice(left=-1)')
    return Choice(names or tuple(values), tuple(values.values()) or tuple(range(len(names))))


def box(low: float, high: float) -> Any:
    """A continuous part of an action; actions are clipped to the bounds."""
    if not low < high:
        raise ConfigError(f"native.box({low}, {high}) is empty.", "give a lower and a higher bound")
    return Box(float(low), float(high))


def control(*, dead_zone: float = 0.5, **values: float) -> Any:
    """A part of an action that `env.actions` makes discrete or continuous: `control(reverse=-1, coast=0, forward=1)`.

    `multi_discrete` has its values as options, `continuous` a number from the least to the greatest of them (with two
    values a switch, which is on above 0), and `discrete` one option for each combination of all controls, or those that
    `game.combinations` lists. Functions read the value.
    """
    if len(values) < 2:
        raise ConfigError("native.control takes two or more values.", "write control(off=0, on=1)")
    return Control(tuple(values), tuple(float(one) for one in values.values()), dead_zone)


class Fields:
    """The base of all classes with columns."""

    ROLE: ClassVar[str] = "record"
    ALLOWED: ClassVar[tuple[type, ...]] = (ArrayField, RecordsField)
    """The fields that such a class may have besides numbers."""


class Record(Fields):
    """Columns that occur several times in a state, such as those of a car."""


class State(Fields):
    """The columns of one env's state."""

    ROLE = "state"


class Action(Fields):
    """The parts of an agent's action: fields with `choice` or `box`."""

    ROLE = "action"
    ALLOWED = (Choice, Box, Control)


class Observation(Fields):
    """The columns of an agent's observation."""

    ROLE = "observation"
    ALLOWED = (ArrayField, RecordsField, ImageField)


class World(Fields):
    """What an env has besides its state: it is large, or reward terms do not compare it, such as a map."""

    ROLE = "world"


class Scratch(Fields):
    """Workspace of double precision, whose numbers mean nothing between two calls; all envs may share it."""

    ROLE = "scratch"


class Constants(Fields):
    """Numbers that are given once, as keyword arguments."""

    ALLOWED = ()

    def __init__(self, **values: float) -> None:
        columns = columns_of(type(self))
        for name in values:
            if name not in columns.fields:
                raise ConfigError(
                    f"{type(self).__name__} has no number `{name}`.", f"it has {', '.join(columns.fields)}"
                )
        defaults = {name: getattr(type(self), name) for name in columns.fields if hasattr(type(self), name)}
        missing = [name for name in columns.fields if name not in defaults | values]
        if missing:
            raise ConfigError(f"{type(self).__name__} has no value for `{missing[0]}`.", f"add {missing[0]}=NUMBER")
        self.values = tuple(float((defaults | values)[name]) for name in columns.fields)
        for name, value in zip(columns.fields, self.values, strict=True):
            setattr(self, name, value)


class Task(Constants):
    """The numbers that tasks differ in: `Level(trees=3)` is one task."""

    ROLE = "task"


class Settings(Constants):
    """What `env` settings say; a class of your own with more numbers declares `env.options`, with their defaults."""

    ROLE = "settings"
    ticks: int = 1
    """Ticks of a decision, `env.action_repeat`."""
    match_ticks: int = 0
    """The length of a game in ticks, `env.match_seconds`; 0 if the game does not say how many ticks a second has."""
    random_starts: float = 0.0
    """The share of games that begin in a random state, `env.random_starts`."""

    def check(self, given: Mapping[str, float]) -> None:
        """Raise a ConfigError for numbers that a game cannot have; `given` are those that `env.options` gave."""


@dataclass(frozen=True)
class Field:
    """One field of a class with columns."""

    name: str
    start: int
    """The first column, relative to the record; the part of an action; the byte of an image."""
    number: str = "float"
    """The kind of its numbers: float, int or bool."""
    shape: tuple[int, ...] = ()
    record: Columns | None = None
    """The columns of each record, if it is a list of records; `shape` is then their number."""
    part: Choice | Box | Control | None = None
    """The part of an action."""
    image: str = ""
    """`image` or `tokens`, whose numbers are bytes."""
    labels: tuple[str, ...] = ()
    """The name of each record, if they have names instead of numbers."""

    @property
    def size(self) -> int:
        """The number of its columns."""
        return prod(self.shape) * (self.record.size if self.record else 1)

    @property
    def many(self) -> bool:
        """Whether it is a list of records."""
        return self.record is not None and bool(self.shape)


@dataclass(frozen=True)
class Columns:
    """The fields of a class, in the order in which they are declared."""

    name: str
    role: str
    fields: dict[str, Field]
    size: int
    """The number of float columns; of an action, the number of parts."""
    bytes: int = 0
    """The number of bytes of images and tokens."""

    @property
    def whole(self) -> bool:
        """Whether all columns are whole numbers."""
        return all(field.record.whole if field.record else field.number != "float" for field in self.fields.values())

    def begins_with(self, other: Columns) -> bool:
        """Whether its first fields are those of another class of its role, as of a class that inherits from it."""
        mine = list(self.fields.items())[: len(other.fields)]
        return self.role == other.role and mine == list(other.fields.items())

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """The name of every column, such as `cars.1.x`."""
        found: list[str] = []
        for field in self.fields.values():
            if field.image:
                continue
            if field.record is not None and not field.shape:
                found += field.record.names(f"{prefix}{field.name}.")
            elif field.record is not None:
                for label in field.labels or range(field.shape[0]):
                    found += field.record.names(f"{prefix}{field.name}.{label}.")
            elif field.shape:
                found += [f"{prefix}{field.name}.{'.'.join(map(str, at))}" for at in _places(field.shape)]
            else:
                found.append(prefix + field.name)
        return tuple(found)


def _places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if not shape:
        return [()]
    return [(first, *rest) for first in range(shape[0]) for rest in _places(shape[1:])]


_known: dict[tuple[type, tuple[tuple[str, int], ...]], Columns] = {}


def columns_of(kind: type[Fields], sizes: Mapping[str, int] = MappingProxyType({})) -> Columns:
    """The columns of a class, with the sizes of a variant; raises for a field that it cannot have."""
    key = kind, tuple(sorted(sizes.items()))
    if key not in _known:
        _known[key] = _read_columns(kind, sizes)
    return _known[key]


def _read_columns(kind: type[Fields], sizes: Mapping[str, int]) -> Columns:
    fields: dict[str, Field] = {}
    size = bytes_ = 0
    for name, annotation in _annotations(kind).items():
        given = getattr(kind, name, None)
        if given is not None and not isinstance(given, kind.ALLOWED) and not issubclass(kind, Constants):
            raise ConfigError(f"{kind.__name__}.{name} = {given!r} is not a field of {_article(kind.ROLE)}.", _HINT)
        if kind.ROLE == "action" and given is None:
            raise ConfigError(f"{kind.__name__}.{name} has no options.", f"write {name}: int = native.choice(...)")
        field = _field(kind, name, annotation, given, bytes_ if isinstance(given, ImageField) else size, sizes)
        fields[name] = field
        if field.image:
            bytes_ += field.size
        else:
            size += field.size
    if not fields:
        raise ConfigError(f"{kind.__name__} has no fields.", _HINT)
    if kind.ROLE == "action":  # actions of a batch hold the options of discrete parts first
        parts = [field.part for field in fields.values()]
        if len({isinstance(part, Control) for part in parts}) > 1:
            raise ConfigError(f"{kind.__name__} mixes controls with choices and boxes.", "make all of them controls")
        ordered = sorted(fields.values(), key=lambda field: isinstance(field.part, Box))
        fields = {f.name: Field(f.name, place, f.number, (), None, f.part) for place, f in enumerate(ordered)}
        size = len(parts)
    return Columns(kind.__name__, kind.ROLE, fields, size, bytes_)


_HINT = "declare fields as `x: float`, `cars: list[Car] = native.records(2)` or `grid: native.Array[int] = ...array(8)`"


def _article(role: str) -> str:
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def _annotations(kind: type) -> dict[str, Any]:
    """The annotations of a class and its bases; names that are not found here stay strings."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        if one in (object, Fields, Record, State, Action, Observation, World, Scratch, Constants, Task):
            continue
        try:
            found |= inspect.get_annotations(one, eval_str=True)
        except NameError as error:
            raise ConfigError(f"{kind.__name__}: {error}", "declare classes before those that contain them") from error
    return found


def _resolved(kind: type[Fields], name: str, given: int | Size, sizes: Mapping[str, int]) -> int:
    """A number of a field, perhaps one that variants differ in."""
    if not isinstance(given, Size):
        return given
    found = given.number(sizes)
    if found is None:
        known = f"it has {', '.join(sizes)}" if sizes else "game.variant(NAME, ...) gives them"
        raise ConfigError(f"{kind.__name__}.{name}: the variant has no size `{given.name}`.", known)
    return found


def _field(kind: type[Fields], name: str, annotation: Any, given: Any, start: int, sizes: Mapping[str, int]) -> Field:
    where = f"{kind.__name__}.{name}: {getattr(annotation, '__name__', annotation)}"
    if isinstance(given, RecordsField):
        (record,) = typing.get_args(annotation) or (None,)
        if not (isinstance(record, type) and issubclass(record, Record)):
            raise ConfigError(f"{where} is not a list of records.", f"write {name}: list[Car] = native.records(2)")
        count = _resolved(kind, name, given.count, sizes)
        return Field(name, start, shape=(count,), record=columns_of(record, sizes), labels=given.names)
    if isinstance(given, ArrayField):
        number = NUMBERS.get((typing.get_args(annotation) or (None,))[0])
        if number is None:
            raise ConfigError(
                f"{where} does not say what numbers it holds.", f"write {name}: native.Array[float] = ..."
            )
        return Field(name, start, number, tuple(_resolved(kind, name, one, sizes) for one in given.shape))
    if isinstance(given, ImageField):
        shape = tuple(_resolved(kind, name, one, sizes) for one in given.shape)
        return Field(name, start, "int", shape, image=given.kind)
    if isinstance(annotation, type) and issubclass(annotation, Record) and RecordsField in kind.ALLOWED:
        return Field(name, start, record=columns_of(annotation, sizes))
    number = NUMBERS.get(annotation)
    if number is None:
        raise ConfigError(f"{where} is not a number.", _HINT)
    if isinstance(given, Choice | Box | Control):
        whole = isinstance(given, Choice) and given.whole
        if number == "int" and not whole:
            raise ConfigError(f"{where} has values that are not whole numbers.", f"write {name}: float = ...")
        return Field(name, start, number, part=given)
    return Field(name, start, number)
