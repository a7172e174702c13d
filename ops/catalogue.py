"""Facts about each operator, read from its source: nothing is imported, so that asking costs no second.

The operators are ours and those of Data-Juicer that a recipe may name without `allow_unsafe_ops`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ops import OPERATOR_MODULES
from ops.runtime.allowlist import NATIVE_OPERATORS
from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import suggest

_ROOT = Path(__file__).parent
_WHOLE = {"group_key": "group", "whole_batch": "batch"}
"""Class attribute to the unit of an operator that judges more than single rows."""
_PLACEHOLDERS = {"str": "TEXT", "int": 1, "float": 1.0, "bool": True}
_OF_DATA_JUICER = re.compile(r"(?s)\n*:param (?:args|kwargs): .*|^Initialization method\.\s*")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operator."""

    name: str
    type: str
    """As the source writes it; "" where it says nothing."""
    default: str | None
    """As the source writes it; None: it must be given."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, as its class and its arguments are documented."""

    name: str
    ours: bool
    """False: one of Data-Juicer's."""
    unit: str
    """The unit that is judged together by default: row, group or batch."""
    about: str
    """Its effect, in a sentence."""
    doc: str
    """The docstring of its class, with formula and source where it has one."""
    arguments: tuple[Argument, ...]
    arguments_doc: str
    """The docstring of its arguments."""
    source: str
    """The file that defines it."""

    @property
    def signature(self) -> str:
        """Name and arguments: `grpo_advantage_mapper(scale: Scale = "group", ...)`."""
        shown = (
            f"{one.name}{': ' * bool(one.type)}{one.type}"
            + ("" if one.default is None else f" = {one.default}")
            for one in self.arguments
        )
        return f"{self.name}({', '.join(shown)})"

    @property
    def example(self) -> str:
        """Lines of a recipe with every argument whose value can be written there, at its default."""
        given = {one.name: value for one in self.arguments for value in _example_values(one)}
        key = "task_ops" if self.name.startswith("task_") or not self.ours else "experience_ops"
        inside = ", ".join(f"{name}: {json.dumps(value)}" for name, value in given.items())
        return f"{key}:\n  - {self.name}: {{{inside}}}"


def operators() -> list[Operator]:
    """Every operator: ours in the order of the table, then Data-Juicer's where it is installed."""
    names = [*OPERATOR_MODULES, *(sorted(NATIVE_OPERATORS) if find_spec("data_juicer") else ())]
    return [operator(name) for name in names]


def operator(name: str) -> Operator:
    """The operator called `name`. Raises: UnknownComponentError."""
    path = _source(name)
    if path is None:
        known = {*OPERATOR_MODULES, *NATIVE_OPERATORS}
        raise UnknownComponentError(
            f"there is no operator '{name}' among ours and the allowed ones of Data-Juicer;"
            f"{suggest(name, known)} See `rft ops list`."
        )
    found = _class(ast.parse(path.read_text()), name)
    method = next(
        (one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None
    )
    doc = inspect.cleandoc(ast.get_docstring(found) or "")
    said = "" if method is None else inspect.cleandoc(ast.get_docstring(method) or "")
    return Operator(
        name=name,
        ours=name in OPERATOR_MODULES,
        unit=_unit(found),
        about=re.split(r"(?<=\.)\s|\n\n|$", " ".join(doc.split("\n\n")[0].split()), maxsplit=1)[0],
        doc=doc,
        arguments=() if method is None else tuple(_arguments(method)),
        arguments_doc=_OF_DATA_JUICER.sub("", said).strip(),
        source=str(path),
    )


def _source(name: str) -> Path | None:
    """The file of an operator; None where there is no such operator here."""
    if name in OPERATOR_MODULES:
        return _ROOT.parent / f"{OPERATOR_MODULES[name].replace('.', '/')}.py"
    spec = find_spec("data_juicer") if name in NATIVE_OPERATORS else None
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "ops").glob(f"*/{name}.py"), None)


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    """The class that registers itself under a name. Raises: UnknownComponentError."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                if "register_module" in ast.unparse(decorator) and _registers(decorator, tree) == name:
                    return node
    raise UnknownComponentError(f"the module of operator '{name}' registers no class under that name.")


def _registers(decorator: ast.expr, tree: ast.Module) -> object:
    """The name in `register_module("name")`, also where it is a constant of the module."""
    argument = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
    if isinstance(argument, ast.Constant):
        return argument.value
    return next(
        (
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(argument, ast.Name)
            and argument.id in {target.id for target in node.targets if isinstance(target, ast.Name)}
        ),
        None,
    )


def _unit(found: ast.ClassDef) -> str:
    """The widest unit that the class says; one that derives from another's class has that one's."""
    if any(ast.unparse(base) in ("Deduplicator", "Selector") for base in found.bases):
        return "batch"
    said = {
        target.id
        for node in found.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    inherited = {"group_key"} if any("Advantage" in ast.unparse(base) for base in found.bases) else set()
    units = [unit for attribute, unit in _WHOLE.items() if attribute in said | inherited]
    return units[-1] if units else "row"


def _arguments(method: ast.FunctionDef) -> Iterator[Argument]:
    arguments = [*method.args.posonlyargs, *method.args.args][1:]
    missing: list[ast.expr | None] = [None] * (len(arguments) - len(method.args.defaults))
    pairs: Mapping[ast.arg, ast.expr | None] = dict(
        zip(arguments, [*missing, *method.args.defaults], strict=True)
    )
    pairs = {**pairs, **dict(zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True))}
    for one, default in pairs.items():
        kind = "" if one.annotation is None else ast.unparse(one.annotation)
        yield Argument(one.arg, kind, None if default is None else ast.unparse(default))


def _example_values(argument: Argument) -> Iterator[object]:
    """The default, where a recipe can say it; something of the type for one that must be given."""
    if argument.default is None:
        yield _PLACEHOLDERS.get(argument.type.partition(" |")[0], "TEXT")
        return
    try:
        value = ast.literal_eval(argument.default)
    except ValueError:  # an expression, such as sys.maxsize
        return
    if value is not None:
        yield value
