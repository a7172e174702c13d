"""Modules import each other one way, strings name modules that exist, tests lie in the rooms they test."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from rft_data.core.lookup import MOVED
from tests.import_graph import PACKAGES, ROOT, circles, import_graph, module_files, syntax_tree

_MOST_LINES = 300
LONG = {
    "rft_data/core/words.py": "a dictionary: every closed set of words with the meaning of each",
    "rft_data/core/schema.py": "the tables: every column with its meaning",
    "rft_data/recipe/algorithms.py": "a table: what each algorithm presets",
}
"""Longer files, with why. None is added: a file that grows is split by reason to change."""
_MOST_ANY = 450
_NAMES_A_MODULE = re.compile(rf"(?<![\w/.])(?:{'|'.join(PACKAGES)})(?!\.(?:md|py|toml)\b)(?:\.\w+)+(?::\w+)?")


def test_circles_are_found() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b"), "d": frozenset("a")}
    assert circles(graph) == [["b", "c"]]


@pytest.mark.heavy
def test_no_module_imports_itself_through_others() -> None:
    assert circles(import_graph()) == []


def _strings_in_code() -> Iterator[tuple[str, str]]:
    for module in module_files():
        for node in ast.walk(syntax_tree(module)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{module}:{node.lineno}", node.value


def _strings_in_text() -> Iterator[tuple[str, str]]:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.yaml")]
    for page in pages:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for found in _NAMES_A_MODULE.finditer(line):
                yield f"{page.relative_to(ROOT)}:{number}", found[0]


def _exists(name: str) -> bool:
    """Whether `name` is a module, or a name that a module defines: `package.module:name` or with a dot."""
    if name in module_files():
        return True
    module, _, attribute = name.replace(":", ".").rpartition(".")
    return module in module_files() and attribute in _defined(module)


def _defined(module: str) -> set[str]:
    found: set[str] = set()
    body = syntax_tree(module).body
    for node in [*body, *(node for block in body if isinstance(block, ast.If) for node in block.body)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strings", [_strings_in_code, _strings_in_text])
def test_strings_that_name_a_module_name_one_that_exists(strings: Any) -> None:
    named = [(place, text) for place, text in strings() if _NAMES_A_MODULE.fullmatch(text)]
    assert len(named) > 10
    assert [f"{place} names {text}" for place, text in named if text not in MOVED and not _exists(text)] == []


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_entry_points_name_what_exists() -> None:
    project = _project()["project"]
    named = [*project["scripts"].values(), *project["entry-points"]["data_juicer.ops"].values()]
    assert [name for name in named if not _exists(name)] == []


def test_layer_contract_is_short_exhaustive_and_without_exceptions() -> None:
    contracts = _project()["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]
    assert sum(len(contract["layers"]) for contract in layers) <= 12
    assert [contract.get("exhaustive") for contract in layers if "containers" in contract] == [True]
    assert not [contract["name"] for contract in contracts if "ignore_imports" in contract]


def test_of_rft_data_only_recipe_run_and_cli_may_import_roles_and_operators() -> None:
    forbidden = [
        contract["source_modules"]
        for contract in _project()["tool"]["importlinter"]["contracts"]
        if {"ops", "trainers", "explorers"} <= set(contract.get("forbidden_modules", ()))
    ]
    free = ("rft_data.recipe", "rft_data.run", "rft_data.cli")
    held = tuple(name for names in forbidden for name in names)
    ours = [module for module in module_files() if module.startswith("rft_data.")]
    rooms = tuple(f"{name}." for name in (*held, *free))
    assert [module for module in ours if not f"{module}.".startswith(rooms)] == []


def test_files_are_short_but_for_those_named() -> None:
    lines = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in module_files().values()}
    long = {name for name, number in lines.items() if number > _MOST_LINES}
    assert long - set(LONG) == set(), "split it by reason to change"
    assert set(LONG) - long == set(), "it is short now: remove it from LONG"


@pytest.mark.slow
def test_few_types_are_left_open() -> None:
    uses = [
        module
        for module in module_files()
        for node in ast.walk(syntax_tree(module))
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    assert len(uses) < _MOST_ANY, "name the type; `object` where it is really any value"


def test_tests_lie_in_the_rooms_they_test() -> None:
    folders = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


@pytest.mark.slow
def test_only_the_recipe_asks_which_mode_it_is_of() -> None:
    asked = [
        f"{module}:{node.lineno}"
        for module in module_files()
        if not module.startswith("rft_data.recipe")
        for node in ast.walk(syntax_tree(module))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
        if any(name.endswith("Recipe") for name in map(ast.unparse, _alternatives(node.args[1])))
    ]
    assert asked == [], "ask rft_data.recipe.kinds, or give the recipe's classes a property"


def _alternatives(kinds: ast.expr) -> list[ast.expr]:
    """The types of `A | B` and of `(A, B)`."""
    if isinstance(kinds, ast.BinOp):
        return [*_alternatives(kinds.left), *_alternatives(kinds.right)]
    return kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
