"""The files with the longest tests are there, and begin."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import FIRST, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]


def test_every_file_that_begins_is_there() -> None:
    assert [file for file in FIRST if not (ROOT / file).is_file()] == []
    assert len(set(FIRST)) == len(FIRST)


def test_they_begin_in_their_order_and_the_others_keep_theirs() -> None:
    found = [
        "tests/b.py::one",
        f"{FIRST[1]}::two",
        "tests/a.py::three",
        f"{FIRST[0]}::b",
        f"{FIRST[0]}::a[x::y]",
    ]
    items: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in found]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [found[place] for place in (3, 4, 1, 0, 2)]
