"""The columns of a game's state, actions, observations and tasks, declared as classes with annotated fields.

    class Car(native.Record):
        x: float
        speed: float

    class State(native.State):
        clock_s: float
        goals: int
        cars: list[Car] = native.records(2)
        grid: native.Array[int] = native.array(8, 8)

A row of the state is one array of floats. `records` and `array` give the columns side by side. Whole numbers and
booleans are stored as floats, exactly up to 2**24.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from math import prod
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


@dataclass(frozen=True)
class ArrayField:
    """What `array` declares."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class RecordsField:
    """What `records` declares."""

    count: int


@dataclass(frozen=True)
class ImageField:
    """What `image` and `tokens` declare."""

    kind: str
    shape: tuple[int, ...]


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


def array(*shape: int) -> Any:
    """Numbers side by side, such as `grid: native.Array[int] = native.array(8, 8)`; `s.grid[1, 2]` is one of them."""
    if not shape or any(size < 1 for size in shape):
        raise ConfigError(f"native.array{shape} has no numbers.", "give one or more sizes, such as native.array(8, 8)")
    return ArrayField(shape)


def records(count: int) -> Any:
    """A field of records side by side: `cars: list[Car] = native.records(2)`, read as `s.cars[i].x`."""
    if count < 1:
        raise ConfigError(f"native.records({count}) has no records.", "give a number of at least 1")
    return RecordsField(count)


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
    ALLOWED = (Choice, Box)


class Observation(Fields):
    """The columns of an agent's observation."""

    ROLE = "observation"
    ALLOWED = (ArrayField, ImageField)


class Task(Fields):
    """The numbers that tasks differ in: `Level(trees=3)` is one task."""

    ROLE = "task"
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
    part: Choice | Box | None = None
    """The part of an action."""
    image: str = ""
    """`image` or `tokens`, whose numbers are bytes."""

    @property
    def size(self) -> int:
        """The number of its columns."""
        return prod(self.shape) * (self.record.size if self.record else 1)


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

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """The name of every column, such as `cars.1.x`."""
        found: list[str] = []
        for field in self.fields.values():
            if field.image:
                continue
            if field.record is not None:
                for index in range(field.shape[0]):
                    found += field.record.names(f"{prefix}{field.name}.{index}.")
            elif field.shape:
                found += [f"{prefix}{field.name}.{'.'.join(map(str, at))}" for at in _places(field.shape)]
            else:
                found.append(prefix + field.name)
        return tuple(found)


def _places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if not shape:
        return [()]
    return [(first, *rest) for first in range(shape[0]) for rest in _places(shape[1:])]


_known: dict[type, Columns] = {}


def columns_of(kind: type[Fields]) -> Columns:
    """The columns of a class; raises for a field that it cannot have."""
    if kind not in _known:
        _known[kind] = _read_columns(kind)
    return _known[kind]


def _read_columns(kind: type[Fields]) -> Columns:
    fields: dict[str, Field] = {}
    size = bytes_ = 0
    for name, annotation in _annotations(kind).items():
        given = getattr(kind, name, None)
        if given is not None and not isinstance(given, kind.ALLOWED) and kind.ROLE != "task":
            raise ConfigError(f"{kind.__name__}.{name} = {given!r} is not a field of {_article(kind.ROLE)}.", _HINT)
        if kind.ROLE == "action" and given is None:
            raise ConfigError(f"{kind.__name__}.{name} has no options.", f"write {name}: int = native.choice(...)")
        field = _field(kind, name, annotation, given, bytes_ if isinstance(given, ImageField) else size)
        fields[name] = field
        if field.image:
            bytes_ += field.size
        else:
            size += field.size
    if not fields:
        raise ConfigError(f"{kind.__name__} has no fields.", _HINT)
    parts = [field.part for field in fields.values()]
    if kind.ROLE == "action":  # actions of a batch hold the options of discrete parts first
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
        if one in (object, Fields, Record, State, Action, Observation, Task):
            continue
        try:
            found |= inspect.get_annotations(one, eval_str=True)
        except NameError as error:
            raise ConfigError(f"{kind.__name__}: {error}", "declare classes before those that contain them") from error
    return found


def _field(kind: type[Fields], name: str, annotation: Any, given: Any, start: int) -> Field:
    where = f"{kind.__name__}.{name}: {getattr(annotation, '__name__', annotation)}"
    if isinstance(given, RecordsField):
        (record,) = typing.get_args(annotation) or (None,)
        if not (isinstance(record, type) and issubclass(record, Record)):
            raise ConfigError(f"{where} is not a list of records.", f"write {name}: list[Car] = native.records(2)")
        return Field(name, start, shape=(given.count,), record=columns_of(record))
    if isinstance(given, ArrayField):
        number = NUMBERS.get((typing.get_args(annotation) or (None,))[0])
        if number is None:
            raise ConfigError(
                f"{where} does not say what numbers it holds.", f"write {name}: native.Array[float] = ..."
            )
        return Field(name, start, number, given.shape)
    if isinstance(given, ImageField):
        return Field(name, start, "int", given.shape, image=given.kind)
    number = NUMBERS.get(annotation)
    if number is None:
        raise ConfigError(f"{where} is not a number.", _HINT)
    if isinstance(given, Choice | Box):
        if number == "int" and (isinstance(given, Box) or not given.whole):
            raise ConfigError(f"{where} has values that are not whole numbers.", f"write {name}: float = ...")
        return Field(name, start, number, part=given)
    return Field(name, start, number)
