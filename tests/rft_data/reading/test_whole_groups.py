"""Whole groups: every row of a group that matches, in the order stored, however many at a time."""

import pytest

from rft_data.buffer import Buffer
from rft_data.core.filters import parse_text
from rft_data.core.schema import EXPERIENCES
from rft_data.reading.whole_groups import whole_groups
from tests.rft_data.conftest import make_experience


@pytest.fixture
def mixed(buffer: Buffer) -> Buffer:
    """Groups a, b and c, their rows interleaved; one evaluation row; another run's group."""
    names = ["a", "b", "a", "c", "b", "a", "c"]
    rows = [
        make_experience(n, experience_id=f"e{n}", group_id=name, reward=float(n))
        for n, name in enumerate(names)
    ]
    rows.append(make_experience(7, experience_id="e7", group_id="a", source="eval"))
    rows.append(make_experience(8, experience_id="e8", group_id="z", run_id="other"))
    buffer.append(rows)
    return buffer


@pytest.mark.slow
def test_groups_come_whole_in_the_order_of_their_first_row(mixed: Buffer) -> None:
    found = whole_groups(mixed, "run")
    assert found.names == ("a", "b", "c")
    assert [found.group(place).tolist() for place in range(3)] == [[0, 2, 5], [1, 4], [3, 6]]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_batches_hold_whole_groups_and_every_row_once(mixed: Buffer, size: int) -> None:
    batches = [seqs.tolist() for seqs in whole_groups(mixed, "run").batches(size)]
    groups = [[0, 2, 5], [1, 4], [3, 6]]
    assert batches == [[seq for g in groups[at : at + size] for seq in g] for at in range(0, 3, size)]


def test_a_filter_chooses_groups_by_any_of_their_rows(mixed: Buffer) -> None:
    found = whole_groups(mixed, "run", parse_text("reward = 4", EXPERIENCES))
    assert found.names == ("b",)
    assert found.seqs.tolist() == [1, 4]


def test_evaluation_rows_take_part_only_if_the_filter_speaks_of_sources(mixed: Buffer) -> None:
    assert 7 not in whole_groups(mixed).seqs
    assert whole_groups(mixed, where=parse_text("source = 'eval'", EXPERIENCES)).names == ("a",)


def test_every_run_or_one(mixed: Buffer) -> None:
    assert whole_groups(mixed).names == ("a", "b", "c", "z")
    assert whole_groups(mixed, "other").seqs.tolist() == [8]


def test_nothing_stored_is_no_group(buffer: Buffer) -> None:
    found = whole_groups(buffer)
    assert len(found) == 0
    assert list(found.batches(4)) == []
    assert len(found.only({"a"})) == 0
