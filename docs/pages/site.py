"""What `mkdocs.yml` hooks in: navigation as docs/index.md has it, and pages from beside docs/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
BESIDE: Mapping[str, str] = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that become pages, and their names there."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def navigation(index: str) -> list[dict[str, list[str]]]:
    """The sections of docs/index.md, each with its pages; a page of several is in the first."""
    _, *parts = _SECTION.split(index)
    seen: set[str] = {"index.md"}
    found = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        pages = [here(path) for _, path, _ in _LINK.findall(text)]
        fresh = [page for page in dict.fromkeys(pages) if page.endswith(".md") and page not in seen]
        seen.update(fresh)
        found.append({title: fresh})
    return found


def here(path: str) -> str:
    """The name in the site of a file that a page names from docs/, or from the repository."""
    path = path.removeprefix("../").removeprefix("docs/")
    return BESIDE.get(path, path)


def on_config(config: Any) -> Any:
    """Sets the navigation."""
    index = (ROOT / "docs" / "index.md").read_text()
    config.nav = ["index.md", *navigation(index), {"Contributing": "contributing.md"}]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages from beside docs/."""
    for source, name in BESIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Links to files that are no page, such as recipes, become their text."""

    def linked(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        if "://" in path:
            return found[0]
        return f"[{text}]({here(path)}{anchor})" if files.get_file_from_path(here(path)) else text

    return _LINK.sub(linked, markdown)
