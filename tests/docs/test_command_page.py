"""The page of the command line is made from the commands, and current."""

from pathlib import Path

import pytest

from docs.pages.command import page

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_page_in_docs_is_the_one_the_commands_make() -> None:
    written = (ROOT / "docs" / "command.md").read_text()
    assert written == page(), "run `python -m docs.pages.command > docs/command.md`"
