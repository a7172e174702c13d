"""Reads Python files without running them: what they define, and what their functions take."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CONTAINERS: Mapping[str, type | tuple[type, ...]] = {
    "list": list, "List": list, "Sequence": list, "tuple": list, "Tuple": list, "set": list,
    "dict": dict, "Dict": dict, "Mapping": dict,
}  # fmt: skip
_SCALARS: Mapping[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "bool": bool, **_CONTAINERS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments that a function or a class takes by name."""

    kinds: Mapping[str, ast.expr | None]
    """Annotation of each argument; None without one."""
    required: frozenset[str] = frozenset()
    """Arguments without a default."""
    is_open: bool = False
    """Whether it takes further arguments of any name."""


@cache
def parsed(path: Path) -> ast.Module:
    """A file of an installed package as a tree. Raises: SyntaxError, OSError."""
    return parsed_now(path)


def parsed_now(path: Path) -> ast.Module:
    """A Python file as a tree, as it is now. Raises: SyntaxError, OSError."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def defines(module: ast.Module, name: str) -> bool:
    """Whether a module has something of this name; True where only running it would tell."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            return True
        if isinstance(node, ast.ImportFrom) and any(one.name == "*" for one in node.names):
            return True
    return name in set(names(module))


def names(module: ast.Module) -> Iterator[str]:
    """The names that a module defines, also inside its top-level `if` and `try`."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def function_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int = 1) -> Signature:
    """The arguments of a function after its first `skip`."""
    places = [*node.args.posonlyargs, *node.args.args]
    plain = len(places) - len(node.args.defaults)
    required = {one.arg for place, one in enumerate(places) if skip <= place < plain}
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    required |= {one.arg for one, default in pairs if default is None}
    taken = {one.arg: one.annotation for one in [*places[skip:], *node.args.kwonlyargs]}
    return Signature(taken, frozenset(required), node.args.kwarg is not None)


def class_node(module: ast.Module, name: str) -> ast.ClassDef | None:
    """The class of this name."""
    return next((n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name), None)


def fields(node: ast.ClassDef) -> dict[str, ast.expr]:
    """Annotated fields of a dataclass, without those of its bases."""
    return {
        one.target.id: one.annotation
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def fits(given: object, kind: ast.expr | None) -> bool:
    """Whether a JSON value may be given where `kind` is annotated; True for kinds that are not known here."""
    if given is None or kind is None:
        return True  # `x: str = None` is common
    if isinstance(kind, ast.BinOp):
        return fits(given, kind.left) or fits(given, kind.right)
    if isinstance(kind, ast.Constant):
        return kind.value is not None and fits(given, _named(kind.value))
    if isinstance(kind, ast.Subscript):
        return _fits_inside(given, kind)
    name = kind.id if isinstance(kind, ast.Name) else ""
    if name not in _SCALARS:
        return True
    return isinstance(given, _SCALARS[name]) and (name == "bool" or not isinstance(given, bool))


def _fits_inside(given: object, kind: ast.Subscript) -> bool:
    name = kind.value.id if isinstance(kind.value, ast.Name) else ""
    if name in ("Optional", "Annotated"):
        inner = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
        return fits(given, inner)
    if name == "Union" and isinstance(kind.slice, ast.Tuple):
        return any(fits(given, one) for one in kind.slice.elts)
    if name == "Literal":
        wanted = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        return given in [one.value for one in wanted if isinstance(one, ast.Constant)]
    return name not in _CONTAINERS or isinstance(given, _CONTAINERS[name])


def _named(text: object) -> ast.expr | None:
    """An annotation that is written as text."""
    try:
        return ast.parse(str(text), mode="eval").body
    except SyntaxError:
        return None
