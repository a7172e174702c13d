"""The site of `make docs`: it builds without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.structure.files import File, Files

from docs.pages.site import navigation, on_page_markdown
from tests.docs.blocks import DOCS, ROOT

_LOADS = re.compile(
    r"<(?:script|link|img|iframe|source|audio|video)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
_KINDS = ["Start here", "How to", "How it works", "Reference"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a warning, such as a link that leads nowhere, is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        folder = tmp_path_factory.mktemp("site")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.heavy
def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert {f"{page.stem}.html" for page in DOCS} <= {page.name for page in pages}
    assert [found for page in pages for found in _LOADS.findall(page.read_text())] == []
    # these two make the theme's script load others: diagrams, and a repository's stars
    assert not [page.name for page in pages if re.search(r"class=\"(mermaid|md-source)\"", page.read_text())]
    assert [page for page in site.rglob("*.css") if "url(http" in page.read_text()] == []


@pytest.mark.slow
def test_the_readme_is_a_page_and_leads_to_the_others(site: Path) -> None:
    text = (site / "overview.html").read_text()
    assert 'href="own.html"' in text
    assert "recipes/quickstart.yaml" not in re.findall(r'href="([^"]+)"', text)


def test_what_loads_from_another_host_is_found() -> None:
    assert _LOADS.search('<script async src="https://cdn.example/x.js"></script>')
    assert _LOADS.search('<link rel="stylesheet" href="//fonts.example/css">')
    assert not _LOADS.search('<link rel="stylesheet" href="assets/x.css"><a href="https://example.org">x</a>')


def test_navigation_is_that_of_the_index_and_has_every_page() -> None:
    found = navigation((ROOT / "docs" / "index.md").read_text())
    assert [title for section in found for title in section] == _KINDS
    listed = [page for section in found for pages in section.values() for page in pages]
    assert len(listed) == len(set(listed))
    assert {page.name for page in DOCS} - {"index.md"} <= set(listed)


def test_links_out_of_the_docs_lead_to_pages_or_become_text() -> None:
    files = Files([File(name, "", "", False) for name in ("overview.md", "own.md")])
    text = (
        "[a](../README.md#x) [b](docs/own.md) [c](recipes/quickstart.yaml) [d](https://example.org/x) [e](#x)"
    )
    wanted = "[a](overview.md#x) [b](own.md) c [d](https://example.org/x) [e](#x)"
    assert on_page_markdown(text, page=None, files=files) == wanted
