"""The docstrings under a section's fields, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache

from rft_data.recipe.section import Section


def field_docs(section: type[Section]) -> Mapping[str, str]:
    """Docstring under each field, inherited ones included; "" where there is none."""
    found = dict.fromkeys(section.model_fields, "")
    for base in reversed(section.__mro__):
        if issubclass(base, Section) and base is not Section:
            found.update(_docs(base))
    return found


@cache
def _docs(section: type[Section]) -> tuple[tuple[str, str], ...]:
    """Sections share bases, and a schema asks for most of them several times."""
    return tuple(_written(section))


def _written(section: type[Section]) -> Iterator[tuple[str, str]]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(f"the source of {section.__name__} is no class")
    for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            said = after.value if isinstance(after, ast.Expr) else None
            text = said.value if isinstance(said, ast.Constant) else ""
            if statement.target.id in section.model_fields:
                yield statement.target.id, " ".join(str(text).split())
