"""Pages of docs/: all are in the index, and their links lead somewhere. What is in blocks: test_blocks.py."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of every link that is not to another site."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    kept = ("".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_") for title in headings)
    return {title.replace(" ", "-") for title in kept}


def test_every_page_is_in_the_index_and_the_readme_leads_there() -> None:
    listed = {path for path, _ in links(ROOT / "docs" / "index.md")}
    assert {page for page in DOCS if page.name != "index.md"} <= listed
    assert ROOT / "docs" / "index.md" in {path for path, _ in links(ROOT / "README.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = [
        f"{path.name}#{anchor}"
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert not broken


def test_the_page_of_architecture_shows_the_contract_of_the_folders() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (wanted,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["rft_data"]]
    (block,) = [b for b in _FENCE.findall((ROOT / "docs/architecture.md").read_text()) if "\ncli " in b]
    assert [re.split(r"  +", line)[0] for line in block.splitlines()[1:-1]] == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short_enough_to_read_once(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->|^ *[|#].*?$", "", page.read_text(), flags=re.M | re.S)
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n *[-*\d]", text)]
    sentences = [one for part in parts for one in re.split(r"(?<=[.!?:;])\s+", part)]
    assert [one for one in sentences if len(one.split()) > 44] == []


def test_glossary_is_sorted() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 40
    assert words == sorted(words)


def test_modules_named_by_path_exist() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(
            r"`((?:rft_data|ops|explorers|trainers|tests|recipes)/[\w/]+\.\w+)", page.read_text()
        )
    }
    assert not sorted((name, path) for name, path in named if not (ROOT / path).exists())
