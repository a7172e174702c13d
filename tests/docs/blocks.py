"""The fenced blocks of README.md, CONTRIBUTING.md and docs/: each has a language, which says what is checked.

console: every command exists; yaml: it fits a recipe; python: it compiles, and imports what exists; json: it
parses; text: a picture or what a command prints. A comment `<!-- not run: reason -->` on the line before a
block exempts it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

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
    """Why it is not checked; empty where it is."""

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
    """The blocks of all pages in this language, without those that are exempt."""
    return [one for page in PAGES for one in blocks(page) if one.language == language and not one.why_not]
