"""Raw records of long studies: one JSON line per cell, appended durably, so that a study can stop anywhere.

It knows what a cell is called and which code made it, not what the numbers mean.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.report import Bar
from rft_data.core.canonical import content_id
from rft_data.core.errors import IntegrityError, RftError
from rft_data.core.rows import now

_TIMES = frozenset({"seconds", "prepare_s"})
FOLDER = Path(__file__).parent / "records"
"""The folder of the records that ship."""


class RecordedCell(Protocol):
    """A run that is recorded."""

    @property
    def recipe_hash(self) -> str:
        """A hash of its settings and code."""

    @property
    def command(self) -> str:
        """Command that runs it alone."""


C = TypeVar("C", bound=RecordedCell)


class Records:
    """An append-only file of finished cells."""

    def __init__(self, path: Path) -> None:
        """The file is made with the first record."""
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """Every record, oldest first; a last line that a crash cut short does not count.

        Raises: IntegrityError for a damaged line before the last.
        """
        if not self.path.is_file():
            return []
        whole, _, _ = self.path.read_text().rpartition("\n")
        rows = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as err:
                raise IntegrityError(
                    f"{self.path}:{number} is not a record ({err}); remove the line, its cell runs again."
                ) from err
        return rows

    def found(self, cells: Sequence[RecordedCell]) -> list[dict[str, Any]]:
        """The newest record of every cell that has one of the present code and settings."""
        newest = {row["recipe_hash"]: row for row in self.rows()}
        return [newest[cell.recipe_hash] for cell in cells if cell.recipe_hash in newest]

    def missing(self, cells: Sequence[C]) -> list[C]:
        """The cells that no record of the present code and settings covers."""
        done = {row["recipe_hash"] for row in self.rows()}
        return [cell for cell in cells if cell.recipe_hash not in done]

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record, on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**record, "at": now().isoformat(timespec="seconds")}, allow_nan=False)
        with self.path.open("a+b") as file:
            file.seek(0)
            kept = file.read().rfind(b"\n") + 1
            file.truncate(kept)  # what a crash cut short
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def bars_of_all(bars: Sequence[Bar], missing: Sequence[object]) -> list[Bar]:
    """The bars; without a value while any of the cells that they are read from is missing."""
    return [replace(bar, value=None) for bar in bars] if missing else list(bars)


def repeat(cells: Sequence[C], records: Records, play: Callable[[C], Mapping[str, Any]], n: int) -> list[str]:
    """Run `n` random recorded cells again.

    Returns: a line for each value, times apart, that came out otherwise.
    Raises: RftError when no cell has a record of the present code.
    """
    known = [cell for cell in cells if cell not in records.missing(cells)]
    if not known:
        raise RftError(f"{records.path} has no record of the present code and settings; run the study first.")
    differ = []
    for cell in random.sample(known, min(n, len(known))):
        print(f"again: {cell.command}", flush=True)
        [before], again = records.found([cell]), json.loads(json.dumps(play(cell)))
        differ += [
            f"{cell.command}: {key} was {before[key]}, is {value}"
            for key, value in again.items()
            if key not in _TIMES and before[key] != value
        ]
    return differ


def repeated_bar(differ: Sequence[str]) -> Bar:
    """The bar of `repeat`, after its lines are printed."""
    for line in differ:
        print(line)
    return Bar("values_that_differ_when_repeated", len(differ), 0, ceiling=True)


def code_version(modules: Sequence[str], within: Sequence[str]) -> str:
    """A hash of what these modules compute, and of what they import from the packages `within`.

    Comments, docstrings and layout do not count, so that mending a sentence does not ask for a new study.
    """
    return content_id(sorted(followed(modules, within).items()))


def followed(modules: Sequence[str], within: Sequence[str]) -> dict[str, str]:
    """The modules, and what they import from the packages `within`: each one's code without words."""
    found: dict[str, str] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name], imports = _source(name)
        todo += [used for used in imports if used.startswith(tuple(within)) and _is_module(used)]
    return found


def _source(module: str) -> tuple[str, Sequence[str]]:
    """Its syntax tree without docstrings, as text, and the names that it imports."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise IntegrityError(f"there is no module '{module}' whose code could be recorded; is it installed?")
    found = os.stat(spec.origin)
    return _parsed(spec.origin, found.st_mtime_ns, found.st_size)


@cache
def _parsed(path: str, _written: int, _size: int) -> tuple[str, Sequence[str]]:
    tree = ast.parse(Path(path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
    return ast.dump(tree), tuple(_imports(tree))


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names that it may import; of `from package import name` also the module of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def _is_module(name: str) -> bool:
    package = importlib.util.find_spec(name.rpartition(".")[0])
    is_package = package is not None and package.submodule_search_locations is not None
    return is_package and importlib.util.find_spec(name) is not None
