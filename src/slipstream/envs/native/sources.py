"""The functions of a native game as the user wrote them: their text, their annotations, and errors at their lines."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, overload

from slipstream.envs.native.layout import Fields
from slipstream.errors import EnvError

F = TypeVar("F", bound=Callable[..., Any])


class GameError(EnvError):
    """A mistake in a function of a game, with the file and line."""


class Random:
    """The type of the random numbers of an env, for type checkers; they are part of its state."""

    def uniform(self, low: float, high: float) -> float:
        """A number from `low` to `high`, without `high`."""
        raise NotImplementedError

    def integer(self, count: int) -> int:
        """A whole number from 0 to `count` - 1."""
        raise NotImplementedError

    def normal(self) -> float:
        """A number of the standard normal distribution."""
        raise NotImplementedError

    def seed(self) -> int:
        """The seed of this game; the next game of the env has the next one."""
        raise NotImplementedError

    def key(self) -> int:
        """The key that all random numbers of this game follow from, which is made of its seed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Hint:
    """What the annotation of a parameter says."""

    kind: str
    """`number`, `random`, or the role of a class with columns, such as state, action, observation or record."""
    number: str = ""
    """`float`, `int` or `bool`."""
    fields: type[Fields] | None = None
    """The class with columns."""
    many: bool = False
    """Whether it is a list."""


@dataclass(frozen=True)
class Source:
    """A function of the user and its text, which workers that cannot read the file need too."""

    function: FunctionType
    text: str
    file: str
    line: int
    known: dict[str, Hint | None] = field(default_factory=dict)
    """What `hints` has found: classes of a script cannot be found in another process."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """Read the text of a function."""
        if not isinstance(function, FunctionType):
            raise GameError(f"{function!r} is not a function.", "decorate a function that `def` makes")
        try:
            lines, line = inspect.getsourcelines(function)
        except OSError as error:
            raise GameError(
                f"The text of `{function.__name__}` cannot be read, and a game is compiled from its text.",
                "write the game into a file, or into a cell of a notebook",
            ) from error
        return cls(function, textwrap.dedent("".join(lines)), function.__code__.co_filename, line)

    def constants(self) -> dict[str, Any]:
        """The values of the names that the function uses from its module and the functions around it."""
        closure = inspect.getclosurevars(self.function).nonlocals
        return dict(self.function.__globals__) | dict(closure)

    def hints(self) -> dict[str, Hint | None]:
        """What each parameter is, by its annotation; None where that says nothing."""
        if not self.known:
            names = self.constants()
            for text in inspect.signature(self.function).parameters:
                given = self.function.__annotations__.get(text)
                try:
                    self.known[text] = read_hint(_resolved(given, names))
                except NameError as error:
                    self.fail(None, f"`{text}`: {error}.", "define classes before the functions that use them")
        return self.known

    def __getstate__(self) -> dict[str, Any]:
        self.hints()
        return self.__dict__

    def fail(self, node: ast.AST | None, what: str, hint: str) -> NoReturn:
        """Raise an error at a node of the text."""
        line = self.line + getattr(node, "lineno", 1) - 1
        lines = self.text.splitlines()
        text = lines[line - self.line].strip() if 0 <= line - self.line < len(lines) else ""
        raise GameError(f'File "{self.file}", line {line}, in {self.function.__name__}: {what}\n    {text}', hint)


def _resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    """An annotation that may be a string, as Python resolves those of functions."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return inspect.get_annotations(holder, globals=dict(names), eval_str=True)["it"]


def read_hint(annotation: Any) -> Hint | None:
    """What an annotation says; None if nothing."""
    if annotation in (float, int, bool):
        return Hint("number", annotation.__name__)
    if annotation is Random:
        return Hint("random")
    many = get_origin(annotation) is list
    one = get_args(annotation)[0] if many else annotation
    if not (isinstance(one, type) and issubclass(one, Fields)):
        return None
    return Hint(one.ROLE, fields=one, many=many)


class Function:
    """A helper that a game's functions call; `native.function` makes it."""

    def __init__(self, function: Callable[..., Any], precision: str = "", inline: bool = True) -> None:
        self.source = Source.of(function)
        self.name = self.source.function.__name__
        self.precision, self.inline = precision, inline

    def __call__(self, *args: Any) -> NoReturn:
        """Only a game's functions call it, with the rows of an env."""
        raise GameError(f"`{self.name}` is called outside of a game's functions.", "call it from a function of a game")


@overload
def function(given: F) -> F: ...


@overload
def function(*, precision: str = "", inline: bool = True) -> Callable[[F], F]: ...


def function(given: F | None = None, *, precision: str = "", inline: bool = True) -> Any:
    """Decorate a helper that a game's functions call; its parameters need types, its result none.

    With `precision="double"` it computes in float64, whatever the precision of the game. With `inline=False` it is
    compiled once instead of into each caller, which starts sooner where a long helper is called in several places.
    """
    if precision not in ("", "double"):
        raise GameError(f"precision={precision!r} of a helper is unknown.", 'write precision="double", or leave it out')

    def wrap(one: F) -> F:
        return cast(F, Function(one, precision, inline))

    return wrap if given is None else wrap(given)
