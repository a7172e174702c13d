"""The pictures of the page are small, and each is shown by a page."""

import re

from tests.docs.blocks import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())


def test_pictures_are_small_and_shown() -> None:
    assert PICTURES
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([a-z]+\.png)\)", (ROOT / "docs" / "page.md").read_text())
    assert sorted(shown) == [path.name for path in PICTURES]
    assert [path.name for path in PICTURES if path.stat().st_size > 60_000] == []
