"""Which columns a function writes on every path, so that an observation need not be cleared before.

The analysis follows whole numbers that are known from the text: indices, offsets of records, and loops over ranges.
What it does not understand counts as not written.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

from slipstream.envs.native.rewrite import Rewritten

LEAVING = (ast.Return, ast.Break, ast.Continue)
OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def written_columns(function: Rewritten, array: str, known: Mapping[str, int | None] | None = None) -> set[int]:
    """The columns of a parameter of a function that it writes on every path; `known` are other parameters' values."""
    path = _Path(function, array, dict(known or {}))
    path.follow(function.tree.body)
    return path.found


class _Path:
    """What is known on one path through a function."""

    def __init__(self, function: Rewritten, array: str, known: dict[str, int | None]) -> None:
        self.function, self.array, self.known = function, array, known
        self.found: set[int] = set()

    def follow(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements as long as every path takes them; return whether all of them are taken."""
        return all(self.statement(one) for one in statements)

    def statement(self, node: ast.stmt) -> bool:
        """Follow one statement; return whether every path goes on after it."""
        match node:
            case ast.Assign([ast.Subscript(ast.Name(text), ast.Tuple([_, column]))]) if text == self.array:
                value = self.value(column)
                self.found |= set() if value is None else {value}
            case ast.Assign([ast.Name(text)], value):
                self.call(value)
                self.known[text] = self.value(value)
            case ast.Expr(value):
                self.call(value)
            case ast.If(_, body, orelse):
                return self.branch(body, orelse)
            case ast.For(ast.Name(text), ast.Call(ast.Name("range"), limits), body):
                return self.loop(text, [self.value(one) for one in limits], body)
            case ast.Return():
                return False
            case _:
                return self.skip(node)
        return True

    def branch(self, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt]) -> bool:
        """Keep what both branches write."""
        paths = [_Path(self.function, self.array, dict(self.known)) for _ in range(2)]
        goes_on = [path.follow(part) for path, part in zip(paths, (body, orelse), strict=True)]
        one, two = (path.known for path in paths)
        self.found |= paths[0].found & paths[1].found
        self.known = {text: value for text, value in one.items() if two.get(text) == value}
        return all(goes_on)

    def loop(self, text: str, limits: Sequence[int | None], body: Sequence[ast.stmt]) -> bool:
        """Follow a loop over a known range round by round."""
        numbers = [one for one in limits if one is not None]
        if len(numbers) < len(limits) or any(isinstance(one, LEAVING) for part in body for one in ast.walk(part)):
            return self.skip(ast.Module(list(body), []))
        for value in range(*numbers):
            self.known[text] = value
            self.follow(body)
        return True

    def skip(self, node: ast.AST) -> bool:
        """Forget what statements that may not be taken assign; return whether none of them leaves the function."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                self.known.pop(one.id, None)
        return not any(isinstance(one, ast.Return) for one in ast.walk(node))

    def call(self, node: ast.expr) -> None:
        """Follow a call of a helper that gets the array."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return
        helper = self.function.calls.get(node.func.id)
        if helper is None:
            return
        names = [one.arg for one in helper.tree.args.args]
        for text, given in zip(names, node.args, strict=True):
            if isinstance(given, ast.Name) and given.id == self.array:
                known = {name: self.value(one) for name, one in zip(names, node.args, strict=True)}
                self.found |= written_columns(helper, text, known)

    def value(self, node: ast.expr) -> int | None:
        """The value of a whole number, or of a comparison, if it is known."""
        match node:
            case ast.Constant(int(value)):
                return value
            case ast.Name(text):
                return self.known.get(text)
            case ast.Call(ast.Name("_index"), [value, _]):
                return self.value(value)
            case ast.Call(ast.Name(text), given) if text in self.function.calls:
                return self.result(self.function.calls[text], given)
            case ast.IfExp(test, body, orelse):
                taken = self.value(test)
                return None if taken is None else self.value(body if taken else orelse)
            case ast.BinOp(left, op, right):
                return self.combined(type(op), left, right)
            case ast.Compare(left, [op], [right]):
                return self.combined(type(op), left, right)
        return None

    def combined(self, op: type[ast.AST], left: ast.expr, right: ast.expr) -> int | None:
        """The value of two numbers joined by an operator."""
        one, two = self.value(left), self.value(right)
        if one is None or two is None or op not in OPERATORS or (op in (ast.FloorDiv, ast.Mod) and two == 0):
            return None
        return int(OPERATORS[op](one, two))

    def result(self, helper: Rewritten, given: Sequence[ast.expr]) -> int | None:
        """What a helper returns that is one expression."""
        match helper.tree.body:
            case [ast.Return(ast.expr() as value)]:
                names = [one.arg for one in helper.tree.args.args]
                known = {name: self.value(one) for name, one in zip(names, given, strict=True)}
                return _Path(helper, "", known).value(value)
        return None
