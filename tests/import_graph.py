"""Which module of this repository imports which, read from the source.

Every import statement counts: at module level, inside a function, under `TYPE_CHECKING`. `from package
import name` counts as an import of the module that defines `name`, where the package's `__init__` only
re-exports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("rft_data", "ops", "trainers", "explorers", "recipes")


@cache
def module_files() -> Mapping[str, Path]:
    """Module name to its file."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return {_module_name(file): file for file in files}


def _module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def syntax_tree(module: str) -> ast.Module:
    return ast.parse(module_files()[module].read_text())


@cache
def import_graph() -> Mapping[str, frozenset[str]]:
    """Each module and the modules of ours that it imports."""
    return {module: frozenset(_imports(module)) - {module} for module in module_files()}


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(syntax_tree(module)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import in line {node.lineno}; write the whole path"
            found = (defining_module(node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            found = (alias.name if alias.name in module_files() else None for alias in node.names)
        else:
            continue
        yield from (name for name in found if name is not None)


def defining_module(source: str, name: str) -> str | None:
    """The module that `from source import name` reads; None where `source` is none of ours."""
    if f"{source}.{name}" in module_files():
        return f"{source}.{name}"
    if source not in module_files():
        return None
    for node in syntax_tree(source).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            return defining_module(node.module or "", name) or source
    return source


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The sets of modules that reach each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, frozenset()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in index:
            visit(node)
    return found
