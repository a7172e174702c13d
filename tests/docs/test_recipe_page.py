"""The page of recipe keys: made from the sections, current, and every key says what it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages.recipe import page, places
from rft_data.recipe.field_docs import field_docs
from rft_data.recipe.modes import MODES
from rft_data.recipe.section import Section

ROOT = Path(__file__).parents[2]


def sections(base: type[Section] = Section) -> Iterator[type[Section]]:
    """Every section class of the package."""
    for found in base.__subclasses__():
        if found.__module__.startswith("rft_data.recipe."):
            yield found
            yield from sections(found)


@pytest.mark.slow
def test_page_in_docs_is_the_one_the_sections_make() -> None:
    written = (ROOT / "docs" / "recipe.md").read_text()
    assert written == page(), "run `python -m docs.pages.recipe > docs/recipe.md`"


@pytest.mark.parametrize("section", list(sections()), ids=lambda section: section.__name__)
def test_every_key_says_what_it_does_in_more_than_three_words(section: type[Section]) -> None:
    short = {name: said for name, said in field_docs(section).items() if len(said.split()) <= 3}
    assert not short


def test_every_section_that_a_recipe_can_have_is_on_the_page() -> None:
    bases = {base for found in [*places(), *MODES.values()] for base in found.__mro__}
    assert not [section.__name__ for section in sections() if section not in bases]


@pytest.mark.slow
def test_titles_differ_so_that_links_lead_to_one_section() -> None:
    titles, text = [place.title for place in places().values()], page()
    assert len(titles) == len(set(titles))
    assert all(text.count(f"\n## {title}\n") == 1 for title in titles)
