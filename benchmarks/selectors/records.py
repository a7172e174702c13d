"""Raw records of long studies: one JSON line per cell, appended durably, so that a study can stop anywhere.

It knows what a cell is called and which code made it, not what the numbers mean.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rft_data.core.errors import IntegrityError
from rft_data.core.rows import content_id, now

FOLDER = Path(__file__).parent / "records"
"""Where the records that ship are."""


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

    def hashes(self) -> set[str]:
        """`recipe_hash` of every finished cell."""
        return {row["recipe_hash"] for row in self.rows()}

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


def newest(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[Mapping[str, Any]]:
    """The last record of each cell, a cell being named by its values of `keys`."""
    return list({tuple(row[key] for key in keys): row for row in rows}.values())


def code_version(modules: Sequence[str], within: Sequence[str]) -> str:
    """A hash of what these modules compute, and of what they import from the packages `within`.

    Comments, docstrings and layout do not count, so that mending a sentence does not ask for a new study.
    """
    found: dict[str, str] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        tree = _source(name)
        found[name] = ast.dump(tree)
        todo += [used for used in _imports(tree) if used.startswith(tuple(within))]
    return content_id(sorted(found.items()))


def _source(module: str) -> ast.Module:
    """Its syntax tree without docstrings."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise IntegrityError(f"there is no module '{module}' whose code could be recorded; is it installed?")
    tree = ast.parse(Path(spec.origin).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
