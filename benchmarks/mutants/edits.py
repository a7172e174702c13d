"""Mutants of a source text: one small edit each, named by the text that it changes, not by a line number.

Not mutated: annotations, decorators, docstrings and f-strings, what is said to the log, `if TYPE_CHECKING`,
and `strict=` of zip (a guard that only a defect of the caller reaches).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OPPOSITES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "amin": "amax",
    "amax": "amin",
    "floor": "ceil",
    "ceil": "floor",
}
DROPPED: dict[type[ast.AST], str] = {ast.Raise: "raise", ast.Expr: "call"}
"""Statements whose change is named by their kind: the line says the rest."""
LOGGERS = ("log", "logger", "LOG", "logging", "warnings")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit of one module. The first four fields name it; they survive edits elsewhere in the file."""

    module: str
    """Path from the root of the repository."""
    function: str
    """Qualified name of the class and function around it; empty at the top of the module."""
    line: str
    """The line's text, stripped."""
    change: str
    """`old -> new`; of several alike in one line of a function all but the first end in `#2`, `#3`, ..."""
    start: int
    """Offset in the source's bytes."""
    end: int
    text: str
    """Text that stands there instead."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Its name in records."""
        return (self.module, self.function, self.line, self.change)

    def applied(self, source: bytes) -> bytes:
        """The whole text with this edit."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(module: str, source: bytes) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    found = sorted(_Finder(module, source).all(), key=lambda m: (m.start, m.end, m.change))
    seen: Counter[tuple[str, str, str, str]] = Counter()
    named = []
    for mutant in found:
        seen[mutant.key] += 1
        times = seen[mutant.key]
        named.append(mutant if times == 1 else replace(mutant, change=f"{mutant.change} #{times}"))
    return named


class _Finder:
    """Walks a module's syntax tree and yields an edit for each thing that may be changed."""

    def __init__(self, module: str, source: bytes) -> None:
        self._module = module
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def all(self) -> Iterator[Mutant]:
        yield from self._walk(ast.parse(self._source), "")

    def _walk(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        yield from self._here(node, function)
        for child in _children(node):
            yield from self._walk(child, function)

    def _here(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        for new in _changed(node):
            old, text = ast.unparse(node), ast.unparse(new)
            yield self._edit(node, function, text, f"{DROPPED.get(type(node), old)} -> {text}")
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_changed_inside(node.test):
            old, text = ast.unparse(node.test), ast.unparse(ast.UnaryOp(ast.Not(), node.test))
            yield self._edit(node.test, function, text, f"{old} -> {text}")

    def _edit(self, node: ast.AST, function: str, text: str, change: str) -> Mutant:
        where = {
            name: getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        }
        start = self._starts[where["lineno"] - 1] + where["col_offset"]
        end = self._starts[where["end_lineno"] - 1] + where["end_col_offset"]
        line = self._lines[where["lineno"] - 1].decode().strip()
        if isinstance(node, ast.expr):
            text = f"({text})"
        return Mutant(self._module, function, line, change, start, end, text)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that may be mutated."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and _is(node.test, "TYPE_CHECKING")):
        return
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_logging(node.value)):
        return
    skipped = {"annotation", "returns", "decorator_list", "type_params", "bases"}
    if isinstance(node, ast.Call) and _is(node.func, "zip"):
        skipped.add("keywords")
    for name, value in ast.iter_fields(node):
        if name not in skipped:
            yield from (
                item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST)
            )


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node's changed forms."""
    match node:
        case ast.Compare():
            yield from _compared(node)
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not (_is_text(left) or _is_text(right)):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in ARITHMETIC and not _is_text(value):
            yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Name(name) if name in OPPOSITES:
            yield ast.Name(OPPOSITES[name])
        case ast.Attribute(value, name) if name in OPPOSITES:
            yield ast.Attribute(value, OPPOSITES[name])
        case _:
            yield from _statements(node)


def _compared(node: ast.Compare) -> Iterator[ast.AST]:
    for place, op in enumerate(node.ops):
        ops = [*node.ops[:place], COMPARISONS[type(op)](), *node.ops[place + 1 :]]
        yield ast.Compare(node.left, ops, node.comparators)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Raise():
            yield ast.Pass()
        case ast.Expr(ast.Call() | ast.Await(ast.Call()) as value) if not _is_logging(value):
            yield ast.Pass()


def _is_changed_inside(test: ast.expr) -> bool:
    """Whether a condition is mutated where it compares or joins, so that its negation says nothing new."""
    return isinstance(test, ast.Compare | ast.BoolOp | ast.Constant) or (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    )


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_logging(node: ast.AST) -> bool:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in LOGGERS
