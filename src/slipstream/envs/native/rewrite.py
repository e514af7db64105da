"""Rewrites a game's functions from columns by name to columns by number, so that numba can compile them.

`s.cars[i].x` becomes `s[3 + i * 4]`. Lines keep their numbers, so tracebacks, debuggers and compile errors show the
user's own. The same text runs as plain Python, on the CPU and on a GPU, and must give the same bits in all of them, so
kinds of numbers are made explicit: every float has the precision of the game, and a whole number that meets a float
becomes one. (Numba would compute in float64 then, NumPy in float32.)
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from slipstream.envs.native import mathematics
from slipstream.envs.native.layout import Box, Choice, Columns, Control, Field, Size, columns_of
from slipstream.envs.native.sources import Function, GameError, Hint, Source
from slipstream.errors import did_you_mean


@dataclass(frozen=True)
class Ref:
    """Something with columns: a record at an offset of an array, or in a row of an array with two axes."""

    columns: Columns
    array: str
    offset: ast.expr | None = None
    """The first column; None: 0."""
    row: ast.expr | None = None
    """The row of an array with two axes."""
    writable: bool = True
    many: int | None = None
    """The number of records, if it is a list of them."""
    field: Field | None = None
    """The field, if it is an array of numbers."""
    pixels: str = ""
    """The array of bytes that holds the images and tokens of an observation."""


@dataclass(frozen=True)
class Rng:
    """The random numbers of the env: the array of integers that holds keys and counters, and the env's row."""

    array: str
    row: str


@dataclass(frozen=True)
class Given:
    """A number that a function gets under another name."""

    kind: str
    text: str


Kind = Any
"""`float`, `int`, `bool`, a tuple of kinds, a `Ref`, an `Rng`, or None where it is not known."""


def number(value: int) -> ast.expr:
    """A whole number as an expression."""
    return ast.Constant(value)


def value_of(node: ast.expr) -> int | None:
    """The value of a whole number in the text; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def plus(one: ast.expr | None, other: ast.expr | int) -> ast.expr:
    """The sum of two offsets, without adding 0."""
    right = number(other) if isinstance(other, int) else other
    left, more = value_of(one) if one is not None else 0, value_of(right)
    if one is None or left == 0:
        return right
    if more == 0:
        return one
    return number(left + more) if left is not None and more is not None else ast.BinOp(one, ast.Add(), right)


def times(one: ast.expr, size: int) -> ast.expr:
    """The product of an index and a size."""
    value = value_of(one)
    if value is not None:
        return number(value * size)
    return one if size == 1 else ast.BinOp(one, ast.Mult(), number(size))


def name(text: str) -> ast.expr:
    """A variable that is read."""
    return ast.Name(text, ast.Load())


def call(function: str, *args: ast.expr) -> ast.expr:
    """A call of one of our functions."""
    return ast.Call(name(function), list(args), [])


BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
WHOLE = (ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor)
STATEMENTS = "assignments, if, for ... in range(...) or over records, while, return, and calls"
EXACT = ("sqrt", "sin", "cos", "exp", "log", "floor", "hypot", "fabs", "atan2")
"""Functions of `math` that stand for our own, which give the same bits on every machine."""
HIDDEN = {
    "random": "take the env's own random numbers as a parameter: rng: native.Random",
    "numpy.random": "take the env's own random numbers as a parameter: rng: native.Random",
    "time": "count ticks in a column of the state",
}
"""What to use instead of modules whose results do not follow from the state."""
PARAMETERS = {
    "rng": "add the parameter rng: native.Random",
    "me": "add the parameter me: int",
    "settings": "add the parameter settings: native.Settings",
}
"""Names of parameters that functions may leave out."""
CONSTANTS = ("pi", "tau", "e", "inf", "nan")


@dataclass(frozen=True)
class Rewritten:
    """A function as Python can run it and numba compile it."""

    function: FunctionType
    returns: Kind
    reads: frozenset[str]
    """The low-level parameters that it uses."""
    writes: frozenset[str]
    """The arrays that it changes, by their low-level parameters."""
    text: str
    """The rewritten text with all constants, from which caches are named."""
    tree: ast.FunctionDef
    calls: Mapping[str, Rewritten]
    """The helpers that it calls, by the names in its tree."""


@dataclass
class Context:
    """What all functions of one game share while they are rewritten."""

    floats: type[np.generic]
    """float32 or float64."""
    checked: bool
    """Whether indices are checked and `print` is kept: for plain Python."""
    wrap: Callable[..., Any]
    """Compiles a helper, into its callers or once, or returns it as it is."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The numbers of the variant."""
    check_index: Any = None
    """The check of indices in compiled code, for functions of somebody else; None: there is none."""
    helpers: dict[int, Rewritten | None] = field(default_factory=dict)
    """Helpers by the identity of their `Function`; None while one is being rewritten."""
    compiled: dict[int, Any] = field(default_factory=dict)


def rewrite(
    source: Source,
    context: Context,
    parameters: Sequence[str],
    bindings: Mapping[str, Kind],
    returns: str = "",
    precision: str = "",
) -> Rewritten:
    """Rewrite a function to take `parameters`; `bindings` says what each of the user's parameters stands for."""
    return _Rewriter(source, context, bindings, returns, precision).rewrite(parameters)


class _Rewriter:
    """Rewrites one function; see the top of this file."""

    def __init__(
        self, source: Source, context: Context, bindings: Mapping[str, Kind], returns: str, precision: str
    ) -> None:
        self.source, self.context, self.bindings, self.returns = source, context, bindings, returns
        self.floats: type[np.generic] = np.float64 if precision == "double" else context.floats
        self.globals: dict[str, Any] = {"_float": self.floats, "_game_float": context.floats} | mathematics.FUNCTIONS
        if context.check_index is not None:
            self.globals["_index"] = context.check_index
        self.constants = source.constants()
        self.kinds: dict[str, Kind] = {}
        self.returned: list[Kind] = []
        self.written: set[str] = set()
        self.fresh = 0
        self.text: list[str] = []
        self.calls: dict[str, Rewritten] = {}

    def rewrite(self, parameters: Sequence[str]) -> Rewritten:
        """Rewrite the function: until the kinds of all variables are known, and then once more."""
        tree = ast.parse(self.source.text)
        ast.increment_lineno(tree, self.source.line - 1)
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            raise GameError(f"`{self.source.function.__name__}` is not made by `def`.", "write def NAME(...): ...")
        self.kinds = dict(self.bindings)
        body: list[ast.stmt] = []
        for _ in range(10):
            before, self.returned, self.fresh = dict(self.kinds), [], 0
            body = self.block(definition.body)
            if self.kinds == before:
                break
        if self.returns and not self.returned:
            self.source.fail(None, "it returns nothing.", "return a number")
        arguments = ast.arguments([], [ast.arg(one) for one in parameters], None, [], [], None, [])
        made = ast.FunctionDef(definition.name, arguments, body or [ast.Pass()], [], None, None)
        ast.copy_location(made, definition)
        module = ast.Module([made], [])
        ast.fix_missing_locations(module)
        code = compile(module, self.source.file, "exec")
        names: dict[str, Any] = {"__builtins__": builtins, "__name__": self.source.function.__module__} | self.globals
        exec(code, names)
        function: FunctionType = names[definition.name]
        used = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)}
        text = "\n".join([ast.unparse(made), *self.text])
        # Numba names compiled code by this name, and a process may load several forms of a function from its cache.
        digest = hashlib.sha256(f"{self.floats.__name__} {self.context.floats.__name__} {text}".encode()).hexdigest()
        function.__name__ = function.__qualname__ = f"{definition.name}_{digest[:16]}"
        return Rewritten(
            function=function,
            returns=self.joined(self.returned),
            reads=frozenset(used & set(parameters)),
            writes=frozenset(self.written),
            text=text,
            tree=made,
            calls=self.calls,
        )

    def fail(self, node: ast.AST, what: str, hint: str = "") -> NoReturn:
        """Raise an error at a node; the text begins at line 1, nodes at the line in the file."""
        line = getattr(node, "lineno", self.source.line) - self.source.line + 1
        self.source.fail(ast.Constant(None, lineno=line), what, hint)

    # Statements

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Rewrite statements."""
        found: list[ast.stmt] = []
        for one in statements:
            made = self.statement(one)
            for new in made:
                ast.copy_location(new, one)
                ast.fix_missing_locations(new)
            found += made
        return found

    def statement(self, node: ast.stmt) -> list[ast.stmt]:  # noqa: RET503 (`fail` never returns)
        """Rewrite one statement."""
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                return []
            case ast.Expr(ast.Call(ast.Name("print"), args)):
                shown = [self.shown(one) for one in args]
                return [ast.Expr(ast.Call(name("print"), shown, []))] if self.context.checked else []
            case ast.Expr(ast.Call(ast.Name("breakpoint"), [])):
                return [node] if self.context.checked else []
            case ast.Expr(ast.Call() as value):
                return [ast.Expr(self.expr(value)[0])]
            case ast.Assign([target], value):
                return self.assign(target, value)
            case ast.AnnAssign(target, _, value) if value is not None:
                return self.assign(target, value)
            case ast.AugAssign(target, op, value):
                read = ast.copy_location(ast.BinOp(_loaded(target), op, value), node)
                return self.assign(target, ast.fix_missing_locations(read))
            case ast.Return(value):
                return [self.give_back(node, value)]
            case ast.If(test, body, orelse):
                return [ast.If(self.truth(test), self.block(body) or [ast.Pass()], self.block(orelse))]
            case ast.While(test, body, []):
                return [ast.While(self.truth(test), self.block(body) or [ast.Pass()], [])]
            case ast.For(ast.Name() as target, source, body, []):
                return self.loop(target, source, body)
            case ast.Break() | ast.Continue():
                return [node]
            case ast.Assert(test, message):
                return [ast.Assert(self.truth(test), message)] if self.context.checked else []
            case ast.Expr():
                self.fail(node, "this value is not used.", "return it, or assign it to a variable or a column")
            case ast.For():
                self.fail(node, "a loop needs `range(...)` or a list of records.", "write for i in range(n): ...")
            case ast.Global() | ast.Nonlocal():
                self.fail(node, f"`{', '.join(node.names)}` would change outside of the state.", "make it a column")
            case _:
                self.fail(node, f"a game's function cannot use `{type(node).__name__.lower()}`.", f"use {STATEMENTS}")

    def shown(self, node: ast.expr) -> ast.expr:
        """What `print` shows: a value, a text, or an f-string of values."""
        match node:
            case ast.Constant(str()):
                return node
            case ast.JoinedStr(values):
                return ast.JoinedStr([self.shown(one) for one in values])
            case ast.FormattedValue(value, conversion, form):
                return ast.FormattedValue(self.shown(value), conversion, form)
        return self.expr(node)[0]

    def give_back(self, node: ast.stmt, value: ast.expr | None) -> ast.stmt:
        """A return statement; the number has the kind that the caller expects."""
        if value is None:
            return ast.Return(None)
        made, kind = self.expr(value)
        if isinstance(kind, Ref | Rng):
            self.fail(node, "a function cannot return columns.", "return numbers, or several numbers as a tuple")
        if self.returns == "float":
            if isinstance(kind, tuple):
                self.fail(node, "these are several numbers.", "return one number")
            made, kind = self.as_float(made, kind), "float"
        self.returned.append(kind)
        return ast.Return(made)

    def assign(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """An assignment to variables or columns."""
        if isinstance(target, ast.Tuple):
            return self.assign_tuple(target, value)
        made, kind = self.expr(value)
        if isinstance(target, ast.Name):
            return self.assign_name(target, made, kind)
        return [self.store(target, made, kind)]

    def assign_tuple(self, target: ast.Tuple, value: ast.expr) -> list[ast.stmt]:
        """`a, b = ...`: all values are computed first."""
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            made = [self.expr(one) for one in value.elts]
            if all(isinstance(kind, Ref) for _, kind in made) and not _shared_names(target, value):
                return [one for pair in zip(target.elts, value.elts, strict=True) for one in self.assign(*pair)]
            names = [self.variable("t") for _ in made]
            found: list[ast.stmt] = []
            kept = []
            for text, (one, kind) in zip(names, made, strict=True):
                if isinstance(kind, Ref | Rng):
                    self.fail(value, "records are assigned one by one.", "write one assignment for each")
                found.append(ast.Assign([ast.Name(text, ast.Store())], one))
                kept.append((name(text), kind))
        else:
            whole, kinds = self.expr(value)
            if not isinstance(kinds, tuple) or len(kinds) != len(target.elts):
                self.fail(value, f"this is not {len(target.elts)} values.", "call a function that returns as many")
            text = self.variable("t")
            found = [ast.Assign([ast.Name(text, ast.Store())], whole)]
            kept = [(ast.Subscript(name(text), number(k), ast.Load()), kind) for k, kind in enumerate(kinds)]
        for one, (part, kind) in zip(target.elts, kept, strict=True):
            found += self.assign_name(one, part, kind) if isinstance(one, ast.Name) else [self.store(one, part, kind)]
        return found

    def assign_name(self, target: ast.Name, made: ast.expr, kind: Kind) -> list[ast.stmt]:
        """An assignment to a variable, which stays float once it was one."""
        bound = self.bindings.get(target.id)
        if bound is not None and not (isinstance(bound, str) and (bound == kind or bound == "float")):
            self.fail(target, f"`{target.id}` is a parameter, which cannot become this.", "use another name")
        if isinstance(kind, Ref):
            return self.alias(target, kind)
        if isinstance(kind, Rng):
            self.fail(target, "the random numbers have one name.", "use the parameter itself")
        known = self.kinds.get(target.id, kind)
        joined = self.joined([known, kind])
        self.kinds[target.id] = joined
        if joined == "float":
            made = self.as_float(made, kind)
        return [ast.Assign([ast.Name(target.id, ast.Store())], made)]

    def alias(self, target: ast.Name, ref: Ref) -> list[ast.stmt]:
        """`car = s.cars[i]`: the variable holds the number of the first column, or of the row."""
        if ref.many is not None or ref.field is not None:
            self.kinds[target.id] = ref
            return []
        if ref.row is not None and ref.columns.role in ("action", "observation"):
            self.kinds[target.id] = replace(ref, row=name(target.id))
            return [ast.Assign([ast.Name(target.id, ast.Store())], ref.row)]
        self.kinds[target.id] = replace(ref, offset=name(target.id))
        return [ast.Assign([ast.Name(target.id, ast.Store())], ref.offset or number(0))]

    def loop(self, target: ast.Name, source: ast.expr, body: list[ast.stmt]) -> list[ast.stmt]:
        """`for i in range(...)` or `for car in s.cars`."""
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "range":
            limits = []
            for one in source.args:
                made, kind = self.expr(one)
                if kind == "float":
                    self.fail(one, "range takes whole numbers.", "write int(...)")
                limits.append(made)
            self.kinds[target.id] = "int"
            head: list[ast.stmt] = []
            index, every = target.id, ast.Call(name("range"), limits, [])
        else:
            _, kind = self.expr(source)
            if not (isinstance(kind, Ref) and kind.many is not None):
                self.fail(source, "a loop needs `range(...)` or a list of records.", "write for i in range(n): ...")
            index, every = self.variable("i"), ast.Call(name("range"), [number(kind.many)], [])
            head = self.alias(target, self.at(kind, name(index)))
        return [ast.For(ast.Name(index, ast.Store()), every, [*head, *self.block(body)] or [ast.Pass()], [], None)]

    def store(self, target: ast.expr, made: ast.expr, kind: Kind) -> ast.stmt:
        """An assignment to a column."""
        if isinstance(kind, Ref | Rng | tuple):
            self.fail(target, "a column holds one number.", "assign columns one by one")
        place, found = self.place(target)
        ref, one = found
        if not ref.writable:
            self.fail(target, f"`{ast.unparse(target)}` belongs to what this function only reads.", "change it in step")
        self.written.add(ref.array)
        if one.part is not None:
            return ast.Assign([place], self.chosen(one, made, kind))
        whole = one.image or ref.columns.whole
        return ast.Assign([place], made if kind == "float" or whole else call("_float", made))

    # Expressions

    def expr(self, node: ast.expr) -> tuple[ast.expr, Kind]:
        """Rewrite an expression; also returns its kind."""
        made, kind = self._expr(node)
        if not hasattr(made, "lineno"):
            ast.copy_location(made, node)
        return made, kind

    def _expr(self, node: ast.expr) -> tuple[ast.expr, Kind]:  # noqa: RET503 (`fail` never returns)
        match node:
            case ast.Constant(value):
                return self.constant(node, value)
            case ast.Name(text):
                if text in self.kinds:
                    kind = self.kinds[text]
                    return (name(kind.text), kind.kind) if isinstance(kind, Given) else (name(text), kind)
                return self.outside(node)
            case ast.Attribute(value, _):
                if isinstance(self.kind_of(value), Ref):
                    return self.read(node)
                return self.outside(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.BinOp(left, op, right):
                return self.binary(node, self.expr(left), op, self.expr(right))
            case ast.UnaryOp(ast.Not(), value):
                return ast.UnaryOp(ast.Not(), self.truth(value)), "bool"
            case ast.UnaryOp(op, value):
                made, kind = self.expr(value)
                return ast.UnaryOp(op, made), "int" if kind == "bool" else kind
            case ast.BoolOp(op, values):
                return ast.BoolOp(op, [self.truth(one) for one in values]), "bool"
            case ast.Compare(left, ops, rights):
                return self.compare(left, ops, rights), "bool"
            case ast.IfExp(test, body, orelse):
                (one, two), kind = self.unified([self.expr(body), self.expr(orelse)])
                return ast.IfExp(self.truth(test), one, two), kind
            case ast.Tuple(values):
                parts = [self.expr(one) for one in values]
                return ast.Tuple([one for one, _ in parts], ast.Load()), tuple(kind for _, kind in parts)
            case ast.Call():
                return self.called(node)
            case _:
                self.fail(
                    node, f"a game's function cannot use `{ast.unparse(node)}`.", "use numbers, columns and calls"
                )

    def kind_of(self, node: ast.expr) -> Kind:
        """The kind of an expression whose value is not needed; None for names of the module."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id)
        if isinstance(node, ast.Attribute | ast.Subscript):
            root: ast.expr = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and root.id in self.kinds:
                return self.expr(node)[1]
        return None

    def constant(self, node: ast.expr, value: Any) -> tuple[ast.expr, Kind]:
        """A number of the text or of the module."""
        if isinstance(value, bool | np.bool_):
            return ast.Constant(bool(value)), "bool"
        if isinstance(value, int | np.integer):
            return ast.Constant(int(value)), "int"
        if not isinstance(value, float | np.floating):
            self.fail(node, f"{value!r} is not a number.", "use numbers; text cannot be compiled")
        held = ast.Constant(float(value)) if math.isfinite(value) else self.kept(float(value))
        return call("_float", held), "float"

    def kept(self, value: Any) -> ast.expr:
        """A name for a value of the module."""
        text = f"_constant{len(self.text)}"
        self.globals[text] = value
        self.text.append(f"{text} = {value!r}" if not isinstance(value, np.ndarray) else f"{text} = {value.tolist()!r}")
        return name(text)

    def value_outside(self, node: ast.expr) -> Any:
        """What a name or an attribute of the module stands for."""
        if isinstance(node, ast.Name):
            if node.id in self.constants:
                return self.constants[node.id]
            if hasattr(builtins, node.id):
                return getattr(builtins, node.id)
            near = did_you_mean(node.id, [*self.kinds, *self.constants])
            hint = PARAMETERS.get(node.id, "define it before it is used")
            self.fail(node, f"there is no `{node.id}`.{near}", hint)
        assert isinstance(node, ast.Attribute)
        value = self.value_outside(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else None
        if value is None or not hasattr(value, node.attr):
            self.fail(
                node, f"there is no `{ast.unparse(node)}`.", "use columns, parameters and constants of the module"
            )
        return getattr(value, node.attr)

    def outside(self, node: ast.expr) -> tuple[ast.expr, Kind]:
        """A constant of the module, as a number."""
        value = self.value_outside(node)
        if isinstance(value, Size):
            found = value.number(self.context.sizes)
            if found is None:
                self.fail(node, f"the variant has no size `{value.name}`.", "game.variant(NAME, ...) gives it")
            value = found
        if not isinstance(value, bool | int | float | np.number | np.bool_):
            what = "a module" if isinstance(value, ModuleType) else f"a {type(value).__name__}"
            hint = "use numbers, or tuples and arrays with [...]"
            self.fail(node, f"`{ast.unparse(node)}` is {what}, not a number.", hint)
        return self.constant(node, value)

    def subscript(self, node: ast.Subscript) -> tuple[ast.expr, Kind]:
        """A record of a list, a number of an array, or an item of a constant table."""
        kind = self.kind_of(node.value)
        if isinstance(kind, Ref):
            if kind.many is not None:
                return number(0), self.at(kind, self.index(node.slice, kind.many))
            return self.read(node)
        if isinstance(kind, tuple):
            made, _ = self.expr(node.value)
            place = value_of(node.slice)
            if place is None:
                self.fail(node, "values are taken from a tuple by a fixed number.", "write x[0]")
            return ast.Subscript(made, node.slice, ast.Load()), kind[place]
        base, places = _table_places(node)
        table = np.asarray(self.value_outside(base)) if _is_name(base) else None
        if table is None or table.dtype.kind not in "fiub":
            self.fail(node, f"`{ast.unparse(base)}` has no items.", "index columns, and tables of numbers")
        whole = table.dtype.kind in "iub"
        if len(places) != table.ndim:
            self.fail(node, f"`{ast.unparse(base)}` has {table.ndim} axes.", "give as many indices")
        held = self.kept(table.astype(np.int64 if whole else self.floats))
        made_places = [self.index(one, size) for one, size in zip(places, table.shape, strict=True)]
        slice_ = made_places[0] if len(made_places) == 1 else ast.Tuple(made_places, ast.Load())
        return ast.Subscript(held, slice_, ast.Load()), "int" if whole else "float"

    def index(self, node: ast.expr, size: int) -> ast.expr:
        """An index below `size`, which plain Python checks."""
        made, kind = self.expr(node)
        if kind not in ("int", "bool", None):
            self.fail(node, f"`{ast.unparse(node)}` is not a whole number.", "write int(...)")
        if isinstance(made, ast.Constant) or (isinstance(made, ast.UnaryOp) and isinstance(made.operand, ast.Constant)):
            value = ast.literal_eval(made)
            if not 0 <= value < size:
                self.fail(node, f"index {value} is not below {size}.", f"use 0 to {size - 1}")
        checks = self.context.checked or self.context.check_index is not None
        return call("_index", made, number(size)) if checks else made

    def at(self, ref: Ref, index: ast.expr) -> Ref:
        """One record of a list."""
        if ref.columns.role == "action":
            return replace(ref, row=plus(ref.row, index), many=None)
        return replace(ref, offset=plus(ref.offset, times(index, ref.columns.size)), many=None)

    def read(self, node: ast.expr) -> tuple[ast.expr, Kind]:
        """A column, or a reference to several."""
        found = self.find(node)
        if isinstance(found, Ref):
            return number(0), found
        place, ref, one = found
        if one.part is not None:
            return self.option_value(place, one)
        if ref.columns.role == "observation":
            return (call("int", place), "int") if one.image else (self.converted(place), "float")
        if one.number == "int":
            return call("int", place), "int"
        if one.number == "bool":
            return ast.Compare(place, [ast.NotEq()], [number(0)]), "bool"
        return (place if ref.columns.role == "state" and not self.double else self.converted(place)), "float"

    @property
    def double(self) -> bool:
        """Whether the function computes in double precision, and the game does not."""
        return self.floats is not self.context.floats

    def converted(self, place: ast.expr) -> ast.expr:
        """A number of an array whose precision may be another one."""
        return call("_float", place)

    def place(self, target: ast.expr) -> tuple[ast.expr, tuple[Ref, Field]]:
        """The column to which an assignment goes."""
        found: Any = None
        if isinstance(target, ast.Attribute | ast.Subscript) and isinstance(self.kind_of(target.value), Ref):
            found = self.find(target)
        if found is None or isinstance(found, Ref):
            self.fail(target, f"`{ast.unparse(target)}` cannot be assigned to.", "assign to variables and columns")
        place, ref, one = found
        return ast.Subscript(place.value, place.slice, ast.Store()), (ref, one)

    def find(self, node: ast.expr) -> Ref | tuple[ast.Subscript, Ref, Field]:
        """What `s.x`, `s.cars` or `s.grid[i]` names."""
        if isinstance(node, ast.Subscript):
            ref = self.kind_of(node.value)
            if isinstance(ref, Ref) and ref.field is not None:
                return self.element(node, ref, ref.field)
            if isinstance(ref, Ref) and ref.many is not None:
                return self.at(ref, self.index(node.slice, ref.many))
            self.fail(node, f"`{ast.unparse(node.value)}` has no items.", "index lists of records and arrays")
        assert isinstance(node, ast.Attribute)
        ref = self.kind_of(node.value)
        assert isinstance(ref, Ref)
        if ref.many is not None or ref.field is not None:
            self.fail(
                node, f"`{ast.unparse(node.value)}` is a list.", f"write {ast.unparse(node.value)}[i].{node.attr}"
            )
        one = ref.columns.fields.get(node.attr)
        if one is None:
            known = ", ".join(ref.columns.fields)
            near = did_you_mean(node.attr, ref.columns.fields)
            self.fail(node, f"{ref.columns.name} has no column `{node.attr}`.{near}", f"it has {known}")
        if one.record is not None:
            count = one.shape[0] if one.many else None
            return replace(ref, columns=one.record, offset=plus(ref.offset, one.start), many=count)
        if one.shape:
            return replace(ref, field=one)
        return self.column(ref, plus(ref.offset, one.start), one)

    def column(self, ref: Ref, column: ast.expr, one: Field) -> tuple[ast.Subscript, Ref, Field]:
        array = ref.pixels if one.image else ref.array
        slice_ = column if ref.row is None else ast.Tuple([ref.row, column], ast.Load())
        return ast.Subscript(name(array), slice_, ast.Load()), ref, one

    def element(self, node: ast.Subscript, ref: Ref, one: Field) -> tuple[ast.Subscript, Ref, Field]:
        """One number of an array of numbers."""
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(places) != len(one.shape):
            sizes = " x ".join(map(str, one.shape))
            self.fail(node, f"`{one.name}` has {sizes} numbers.", f"give {len(one.shape)} indices")
        offset: ast.expr = number(0)
        for place, size in zip(places, one.shape, strict=True):
            offset = plus(times(offset, size), self.index(place, size))
        start = one.start + (4 * ref.columns.size if one.image else 0)
        return self.column(replace(ref, field=None), plus(plus(ref.offset, start), offset), one)

    def option_value(self, place: ast.expr, one: Field) -> tuple[ast.expr, Kind]:
        """The value of a part of an action."""
        part = one.part
        if isinstance(part, Box):
            limits = [call("_float", ast.Constant(limit)) for limit in (part.low, part.high)]
            return call("_clip", call("_float", place), *limits), "float"
        if isinstance(part, Control):
            return self.converted(place), "float"
        assert isinstance(part, Choice)
        option = call("_option", place, number(len(part.values)))
        if part.values == tuple(range(len(part.values))) and one.number == "int":
            return option, "int"
        kind = np.int64 if one.number == "int" else self.floats
        held = self.kept(np.array(part.values, kind))
        return ast.Subscript(held, option, ast.Load()), one.number

    def chosen(self, one: Field, made: ast.expr, kind: Kind) -> ast.expr:
        """What an action holds for a value that a scripted player assigns."""
        if isinstance(one.part, Box):
            limits = [call("_float", ast.Constant(limit)) for limit in (one.part.low, one.part.high)]
            return call("_clip", self.as_float(made, kind), *limits)
        if isinstance(one.part, Control):
            return self.as_float(made, kind)
        assert isinstance(one.part, Choice)
        held = self.kept(np.array(one.part.values, self.floats))
        return call("_nearest", self.as_float(made, kind), held)

    def binary(
        self, node: ast.expr, left: tuple[ast.expr, Kind], op: ast.operator, right: tuple[ast.expr, Kind]
    ) -> tuple[ast.expr, Kind]:
        """An arithmetic operation."""
        for part, kind in (left, right):
            if isinstance(kind, Ref | Rng | tuple):
                self.fail(node, "columns are computed with one by one.", f"write {ast.unparse(part)}.NAME")
        if isinstance(op, ast.Pow):
            base, exponent = value_of(left[0]), value_of(right[0])
            if base is not None and exponent is not None and exponent >= 0:
                return number(base**exponent), "int"
            if exponent not in (2, 3):
                self.fail(node, "only `** 2` and `** 3` give the same bits everywhere.", "multiply instead")
            kind = "float" if left[1] == "float" else "int"
            return call("_square" if exponent == 2 else "_cube", left[0]), kind
        if isinstance(op, WHOLE):
            return ast.BinOp(left[0], op, right[0]), "int"
        if not isinstance(op, BINARY):
            self.fail(node, "a game's function cannot use this operator.", "use + - * / // % and ** 2")
        if isinstance(op, ast.Div):
            return ast.BinOp(self.as_float(*left), op, self.as_float(*right)), "float"
        (one, two), kind = self.unified([left, right])
        if kind == "float" and isinstance(op, ast.Mod | ast.FloorDiv):
            return call("_modulo" if isinstance(op, ast.Mod) else "_floor_divide", one, two), "float"
        return ast.BinOp(one, op, two), "int" if kind == "bool" else kind

    def compare(self, left: ast.expr, ops: Sequence[ast.cmpop], rights: Sequence[ast.expr]) -> ast.expr:
        """A comparison, of numbers only."""
        for op in ops:
            if isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot):
                self.fail(left, "only numbers are compared: < <= == != >= >.", "compare with each value")
        parts, _ = self.unified([self.expr(one) for one in (left, *rights)])
        return ast.Compare(parts[0], list(ops), parts[1:])

    def truth(self, node: ast.expr) -> ast.expr:
        """A condition."""
        made, kind = self.expr(node)
        if isinstance(kind, Ref | Rng | tuple):
            self.fail(node, "a condition is a number or a comparison.", "compare one of its columns")
        return made if kind == "bool" else ast.Compare(made, [ast.NotEq()], [number(0)])

    def called(self, node: ast.Call) -> tuple[ast.expr, Kind]:
        """A call: of a helper, of the random numbers, or of a function of Python or `native`."""
        if node.keywords:
            self.fail(node, "arguments are given by their order.", "leave out the names of arguments")
        if isinstance(node.func, ast.Attribute) and isinstance(self.kind_of(node.func.value), Rng):
            return self.random(node, node.func.attr, self.kind_of(node.func.value))
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            kind = self.expr(node.args[0])[1]
            if isinstance(kind, Ref) and kind.many is not None:
                return number(kind.many), "int"
            if isinstance(kind, Ref) and kind.field is not None:
                return number(kind.field.shape[0]), "int"
        function = self.value_outside(node.func) if _is_name(node.func) else None
        if isinstance(function, Function):
            return self.helper(node, function)
        if function in (min, max):
            return self.extreme(node, function)
        args = [self.expr(one) for one in node.args]
        for one, (_, kind) in zip(node.args, args, strict=True):
            if isinstance(kind, Ref | Rng | tuple):
                self.fail(one, "this function takes numbers.", "give it columns one by one")
        if function is abs and len(args) == 1:
            return call("abs", args[0][0]), args[0][1]
        if function in (int, bool) and len(args) == 1:
            truth = ast.Compare(args[0][0], [ast.NotEq()], [number(0)])
            return (call("int", args[0][0]), "int") if function is int else (truth, "bool")
        if function is float and len(args) == 1:
            return self.as_float(*args[0]), "float"
        return self.mathematical(node, function, args)

    def mathematical(self, node: ast.Call, function: Any, args: list[tuple[ast.expr, Kind]]) -> tuple[ast.expr, Kind]:
        """A function of `native` or `math`."""
        text = getattr(function, "__name__", "")
        ours = function in (getattr(mathematics, one, None) for one in EXACT)
        if not ours and not (function is getattr(math, text, None) or function is getattr(np, text, None)):
            module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
            hint = "call functions of `native`, or decorate your own with @native.function"
            for stem, instead in HIDDEN.items():
                hint = instead if module.startswith(stem) else hint
            self.fail(node, f"`{ast.unparse(node.func)}` cannot be called in a game's function.", hint)
        if text not in EXACT:
            known = ", ".join(f"native.{one}" for one in EXACT)
            self.fail(node, f"`{ast.unparse(node.func)}` differs between machines.", f"use {known}")
        if text == "sqrt":  # which every precision rounds alike
            return call("_float", call("_sqrt", *[self.as_float(*one) for one in args])), "float"
        found = call(f"_{text}", *[call("_double", one) for one, _ in args])
        return (found, "int") if text == "floor" else (call("_float", found), "float")

    def extreme(self, node: ast.Call, function: Any) -> tuple[ast.expr, Kind]:
        """`min` or `max` of numbers."""
        if len(node.args) < 2:
            self.fail(node, f"{function.__name__} takes two or more numbers here.", "write it as a loop")
        args, kind = self.unified([self.expr(one) for one in node.args])
        return ast.Call(name(function.__name__), args, []), kind

    def random(self, node: ast.Call, method: str, rng: Rng) -> tuple[ast.expr, Kind]:
        """A random number."""
        args = [self.expr(one) for one in node.args]
        if len(args) != {"uniform": 2, "integer": 1, "normal": 0, "seed": 0, "key": 0}.get(method, -1):
            self.fail(node, f"there is no `{ast.unparse(node)}`.", "use uniform(low, high), integer(count) or normal()")
        if method in ("seed", "key"):
            column = number(mathematics.GAME if method == "seed" else mathematics.KEY)
            return ast.Subscript(name(rng.array), ast.Tuple([name(rng.row), column], ast.Load()), ast.Load()), "int"
        if method == "integer":
            return call("_integer", name(rng.array), name(rng.row), args[0][0]), "int"
        if method == "normal":
            return call("_float", call("_normal", name(rng.array), name(rng.row))), "float"
        share = call("_float", call("_unit", name(rng.array), name(rng.row)))
        return call("_between", share, *[self.as_float(*one) for one in args]), "float"

    def helper(self, node: ast.Call, function: Function) -> tuple[ast.expr, Kind]:
        """A call of a function that `native.function` decorates."""
        parameters, bindings = self.signature(node, function)
        if len(node.args) != len(bindings):
            self.fail(node, f"`{function.name}` takes {len(bindings)} arguments, {len(node.args)} are given.", "")
        context = self.context
        if id(function) not in context.helpers:
            context.helpers[id(function)] = None
            made = rewrite(function.source, context, parameters, bindings, precision=function.precision)
            context.helpers[id(function)] = made
            context.compiled[id(function)] = context.wrap(made.function, function.inline)
        known = context.helpers[id(function)]
        if known is None:
            self.fail(node, f"`{function.name}` calls itself.", "use a loop")
        args: list[ast.expr] = []
        for one, (text, expected) in zip(node.args, bindings.items(), strict=True):
            args += self.argument(one, function, text, expected)
            if text in known.writes:
                given = self.expr(one)[1]
                if not given.writable:
                    self.fail(
                        one, f"`{function.name}` changes `{text}`, which this function only reads.", "copy numbers"
                    )
                self.written.add(given.array)
        held = f"_{function.name}"
        self.globals[held] = context.compiled[id(function)]
        self.calls[held] = known
        if known.text not in self.text:
            self.text.append(known.text)
        made_call = call(held, *args)
        if self.precision_of(function) is self.floats:
            return made_call, known.returns
        if isinstance(known.returns, tuple):
            self.fail(node, f"`{function.name}` returns several numbers of another precision.", "return one number")
        return (call("_float", made_call) if known.returns == "float" else made_call), known.returns

    def precision_of(self, function: Function) -> type[np.generic]:
        """The precision in which a helper computes."""
        return np.float64 if function.precision == "double" else self.context.floats

    def signature(self, node: ast.Call, function: Function) -> tuple[list[str], dict[str, Kind]]:
        """The low-level parameters of a helper, and what its own parameters stand for."""
        parameters: list[str] = []
        bindings: dict[str, Kind] = {}
        for text, hint in function.source.hints().items():
            kind = binding_of(hint, text, self.context.sizes)
            if kind is None:
                shown = f"`{text}` of `{function.name}`"
                self.fail(node, f"{shown} has no type.", "write float, int, bool, or one of your classes")
            bindings[text] = kind
            parameters += low_level(text, kind)
        return parameters, bindings

    def argument(self, node: ast.expr, function: Function, text: str, expected: Kind) -> list[ast.expr]:
        """What a helper gets for one of its parameters."""
        made, kind = self.expr(node)
        wrong = f"`{text}` of `{function.name}` is "
        if isinstance(expected, Ref):
            fits = isinstance(kind, Ref) and kind.field is None and kind.columns.begins_with(expected.columns)
            if not fits or (kind.many is None) != (expected.many is None):
                self.fail(node, f"{wrong}{expected.columns.name}.", f"give it {expected.columns.name}")
            row = [kind.row] if expected.row is not None and kind.row is not None else []
            offset = [kind.offset or number(0)] if expected.offset is not None else []
            pixels = [name(kind.pixels)] if expected.pixels else []
            return [name(kind.array), *pixels, *row, *offset]
        if isinstance(expected, Rng):
            if not isinstance(kind, Rng):
                self.fail(node, f"{wrong}native.Random.", "give it the random numbers")
            return [name(kind.array), name(kind.row)]
        if isinstance(kind, Ref | Rng | tuple):
            self.fail(node, f"{wrong}a number.", "give it one column")
        precision = self.precision_of(function)
        if expected == "float" and precision is not self.floats:
            return [call("_double" if precision is np.float64 else "_game_float", made)]
        return [self.as_float(made, kind) if expected == "float" else made]

    # Kinds

    def as_float(self, made: ast.expr, kind: Kind) -> ast.expr:
        """A number as a float of the game's precision."""
        return made if kind == "float" else call("_float", made)

    def unified(self, parts: Sequence[tuple[ast.expr, Kind]]) -> tuple[list[ast.expr], Kind]:
        """Numbers of one kind: all floats if one of them is."""
        kind = self.joined([kind for _, kind in parts])
        return [self.as_float(*one) if kind == "float" else one[0] for one in parts], kind

    def joined(self, kinds: Sequence[Kind]) -> Kind:
        """The kind of a value that has one of several kinds."""
        distinct = []
        for kind in kinds:
            if kind not in distinct:
                distinct.append(kind)
        if len(distinct) <= 1:
            return distinct[0] if distinct else None
        if "float" in distinct:
            return "float"
        return "int" if set(map(str, distinct)) <= {"int", "bool"} else None

    def variable(self, stem: str) -> str:
        """A new name."""
        self.fresh += 1
        return f"_{stem}{self.fresh}"


def _shared_names(one: ast.expr, other: ast.expr) -> set[str]:
    """The variables that occur in both of two expressions."""
    names = ({node.id for node in ast.walk(part) if isinstance(node, ast.Name)} for part in (one, other))
    return set.intersection(*names)


def _loaded(node: ast.expr) -> ast.expr:
    """A target of an assignment as it is read."""
    read = ast.parse(ast.unparse(node), mode="eval").body
    for one in ast.walk(read):
        ast.copy_location(one, node)
    return read


def _table_places(node: ast.Subscript) -> tuple[ast.expr, list[ast.expr]]:
    """The table and the indices of `TABLE[i][j]` or `TABLE[i, j]`."""
    base: ast.expr = node
    places: list[ast.expr] = []
    while isinstance(base, ast.Subscript):
        places = [*(base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]), *places]
        base = base.value
    return base, places


def _is_name(node: ast.expr) -> bool:
    """Whether an expression is a name, perhaps of a module."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def binding_of(hint: Hint | None, text: str, sizes: Mapping[str, int]) -> Kind:
    """What a parameter of a helper stands for; None if its annotation says nothing."""
    if hint is None or (hint.many and hint.kind != "action"):
        return None
    if hint.kind == "number":
        return hint.number
    if hint.kind == "random":
        return Rng(text, f"_{text}_row")
    assert hint.fields is not None
    constant = hint.kind in ("task", "settings")
    row = None if constant else name(f"_{text}_row")
    offset = name(f"_{text}_at") if hint.kind in ("record", "task") else None
    pixels = f"_{text}_pixels" if hint.kind == "observation" else ""
    columns, many = columns_of(hint.fields, sizes), 1 if hint.many else None
    return Ref(columns, text, offset, row, writable=not constant, many=many, pixels=pixels)


def low_level(text: str, kind: Kind) -> list[str]:
    """The parameters that stand for one parameter of a helper."""
    if isinstance(kind, Rng):
        return [kind.array, kind.row]
    if not isinstance(kind, Ref):
        return [text]
    more = [kind.pixels] if kind.pixels else []
    more += [kind.row.id] if isinstance(kind.row, ast.Name) else []
    more += [kind.offset.id] if isinstance(kind.offset, ast.Name) else []
    return [text, *more]
