"""The files with the longest tests are there, and begin."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import LANES, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]
FIRST, SECOND = LANES


def ordered(nodeids: list[str]) -> list[str]:
    items: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in nodeids]
    pytest_collection_modifyitems(items)
    return [item.nodeid for item in items]


def test_every_file_that_begins_is_there_once() -> None:
    files = [*FIRST, *SECOND]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert len(set(files)) == len(files)


def test_one_lane_begins_and_the_other_is_in_the_middle_between_two_files() -> None:
    others = [f"tests/test_{number // 7}.py::test[a::{number}]" for number in range(70)]
    lanes = [[f"{file}::test_{n}" for n in range(2)] for file in (FIRST[1], FIRST[0], SECOND[2], SECOND[1])]
    found = ordered([*lanes[0], *others[:40], *lanes[2], *lanes[1], *others[40:], *lanes[3]])
    assert found[:4] == [*lanes[1], *lanes[0]]
    at = found.index(lanes[3][0])
    assert found[at : at + 4] == [*lanes[3], *lanes[2]]
    assert [one for one in found if one in others] == others, "the others keep their order"
    assert 39 <= at <= 39 + 4 + 7
    assert (at - 4) % 7 == 0, "a file was split"


def test_a_few_tests_are_all_there() -> None:
    few = ["tests/a.py::one", f"{SECOND[0]}::two", "tests/a.py::three", f"{FIRST[0]}::four"]
    assert sorted(ordered(few)) == sorted(few)
    assert ordered([]) == []
