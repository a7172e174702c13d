"""Arguments of built-in operators, losses and batch operators, checked against their files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ops import OPERATOR_MODULES
from ops.runtime.allowlist import NATIVE_OPERATORS
from rft_data.core.lookup import suggest
from rft_data.recipe.names import BATCH_OPS, LOSSES
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.source_code import Signature, fits, function_signature, parsed
from rft_data.recipe.preflight.tree import Tree, batch_operators, entries, operators, value
from rft_data.recipe.section import Loc

_BASES = frozenset(
    (
        "ArrowMapper",
        "ArrowFilter",
        "ArrowOperator",
        "Pipeline",
        "Filter",
        "Mapper",
        "Deduplicator",
        "Selector",
    )
)
"""Bases of operators that take the arguments of every operator of Data-Juicer and no others."""


def argument_problems(tree: Tree) -> Iterator[Problem]:
    """Arguments that a built-in does not take, that it lacks, or that have a wrong type."""
    for loc, name, args in operators(tree):
        yield from _mistakes(loc, f"operator '{name}'", _operator(name), args)
    for loc, name, args in batch_operators(tree):
        if name in BATCH_OPS:
            yield from _mistakes(loc, f"batch operator '{name}'", _function("batch_ops", name), args)
    for loc, stage in entries(tree, "stages"):
        if isinstance(use := value(stage, "loss", "use"), str) and use in LOSSES:
            place = (*loc, "loss", "args")
            yield from _mistakes(
                place, f"loss '{use}'", _function("losses", use), value(stage, "loss", "args")
            )


def _mistakes(loc: Loc, what: str, signature: Signature | None, args: object) -> Iterator[Problem]:
    if signature is None or not (args is None or isinstance(args, Mapping)):
        return
    given: Mapping[str, object] = args or {}
    for missing in sorted(signature.required - given.keys()):
        yield Problem(loc, f"{what} needs the argument '{missing}'")
    for name, one in given.items():
        if name not in signature.kinds:
            if not signature.is_open:
                hint = suggest(str(name), signature.kinds)
                yield Problem((*loc, str(name)), f"{what} has no argument '{name}';{hint or ' remove it'}")
        elif (kind := signature.kinds[name]) is not None and not fits(one, kind):
            yield Problem((*loc, str(name)), f"found {one!r}; {what} wants {ast.unparse(kind)}")


@cache
def _operator(name: str) -> Signature | None:
    """The arguments of an operator; None for one of the user's own, and where its file does not tell."""
    path = _file(name)
    if path is None:
        return None
    classes = [node for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    node = next((one for one in classes if any(map(_registers, one.decorator_list))), None)
    shared = _shared()
    if node is None or shared is None:
        return None
    bases = {one.id for one in node.bases if isinstance(one, ast.Name)}
    made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if made is None:
        return Signature(shared, is_open=not bases <= _BASES)
    own = function_signature(made)
    return Signature({**shared, **own.kinds}, own.required, is_open=not bases <= _BASES)


def _registers(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr == "register_module"


def _file(name: str) -> Path | None:
    if name in OPERATOR_MODULES:
        root = Path(str(find_spec("ops").origin)).parent  # type: ignore[union-attr]
        return root.joinpath(*OPERATOR_MODULES[name].split(".")[1:]).with_suffix(".py")
    spec = find_spec("data_juicer") if name in NATIVE_OPERATORS else None
    if spec is None:
        return None
    path = Path(str(spec.origin)).parent / "ops" / name.rpartition("_")[2] / f"{name}.py"
    return path if path.is_file() else None


@cache
def _shared() -> Mapping[str, ast.expr | None] | None:
    """Arguments that every operator of Data-Juicer takes; None without it."""
    spec = find_spec("data_juicer")
    if spec is None:
        return None
    found: dict[str, ast.expr | None] = {}
    for node in ast.walk(parsed(Path(str(spec.origin)).parent / "ops" / "base_op.py")):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == "_BASE_PARAMS" for one in targets):
            keys = (
                node.value.keys if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) else []
            )
            found.update({str(key.value): None for key in keys if isinstance(key, ast.Constant)})
    return found


@cache
def _function(folder: str, name: str) -> Signature | None:
    """The arguments of the function called `name` in a folder of `trainers/policy`."""
    root = Path(str(find_spec("trainers").origin)).parent / "policy" / folder  # type: ignore[union-attr]
    for path in sorted(root.glob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return function_signature(node)
    return None
