"""Blocks of README.md, CONTRIBUTING.md and docs/: each has a language, which says what is checked of it.

console: every command is run (`test_commands.py`), or a comment of the page says why not here, and which
tests run it: `<!-- not run here: COMMAND: why, tests/... -->`. yaml: it fits a recipe. python: a test runs it
by `run_block`, `python_block` or `python_blocks`. json: it parses. text: a picture or what a command prints.
A comment `<!-- not run: reason -->` on the line before a block of Python says why nothing can run it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
LANGUAGES = ("console", "yaml", "python", "json", "text")

FENCE = re.compile(
    r"^(?: *<!-- not run: (?P<why>.+?) -->\n+)? *```(?P<language>[^\n]*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str
    why_not: str
    """Why nothing can run it; empty where something does."""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"].strip(),
            textwrap.dedent(found["body"]),
            found["why"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def checked(language: str) -> list[Block]:
    """The blocks of all pages in this language."""
    return [one for page in PAGES for one in blocks(page) if one.language == language]


def python_blocks(page: str) -> list[str]:
    """The Python blocks of a page, for a test that runs all of them."""
    (path,) = (one for one in PAGES if one.name == page)
    return [one.body for one in blocks(path) if one.language == "python"]


def python_block(page: str, holds: str) -> str:
    """The one Python block of a page that holds a text, for a test that runs it as a file."""
    (code,) = (one for one in python_blocks(page) if holds in one)
    return code


def run_block(
    page: str, holds: str, replaced: Mapping[str, str] | None = None, **names: Any
) -> dict[str, Any]:
    """Run the one Python block of a page that holds a text, and return its names.

    Args:
        replaced: texts of the block to what stands for them here: a model, an address, a run that was made.
        names: what the page says is there before the block begins.
    """
    code = python_block(page, holds)
    for shown, here in (replaced or {}).items():
        assert shown in code, f"{page}: the block has no '{shown}'"
        code = code.replace(shown, here)
    space = {"__name__": "shown", **names}
    made = eval(compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)  # noqa: S307 - our own pages
    if inspect.iscoroutine(made):
        asyncio.run(made)
    return space
