"""Old rows behind newer ones, as a compaction by version 0.8.0 could leave them: found, and put in order."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair, verify
from rft_data.core import failpoints
from rft_data.core.errors import IntegrityError
from rft_data.reading.search import full_text
from rft_data.sampler.ledger import Ledger
from tests.rft_data.buffer.care.conftest import RUN, make_row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("decoded_here")]

TABLES = ("experiences", "annotations", "leases")


def disorder(root: Path, table: str, *, mixed: bool = False) -> None:
    """Merge all fragments but the last one; `mixed`: then that one too, so that one file has both."""
    location = str(root / f"{table}.lance")
    last = lance.dataset(location).get_fragments()[-1].fragment_id
    for excluded in ([last], []) if mixed else ([last],):
        dataset = lance.dataset(location)
        dataset.optimize.compact_files(target_rows_per_fragment=1000, excluded_fragment_ids=excluded)


def with_row_ids(root: Path, table: str) -> pa.Table:
    return lance.dataset(str(root / f"{table}.lance")).to_table(with_row_id=True)


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_out_of_order_are_refused_found_and_put_back(root: Path, mixed: bool) -> None:
    before = {table: with_row_ids(root, table) for table in TABLES}
    for table in TABLES:
        disorder(root, table, mixed=mixed)
    with pytest.raises(IntegrityError, match=r"not in the order they were written.*rft buffer repair"):
        Buffer(root)
    assert {(f.kind, f.table) for f in verify(root).damage} == {("order", table) for table in TABLES}
    done = repair(root)
    assert len(done.actions) == len(TABLES)
    assert {table: with_row_ids(root, table) for table in TABLES} == before
    assert not verify(root).damaged
    assert not repair(root).changed
    with Buffer(root) as buffer:
        assert len(Ledger(buffer, RUN, 0).leases("trainer")) == 4
        assert buffer.append([make_row(100)]).seqs == (before["experiences"].num_rows,)
        buffer.compact()
    with Buffer(root) as buffer:
        assert buffer.take([0, 48]).column("seq").to_pylist() == [0, 48]


def test_a_table_whose_search_index_ends_in_the_middle_is_put_in_order_without_it(root: Path) -> None:
    with Buffer(root) as buffer:
        full_text.index_text(buffer)
        buffer.append([make_row(100)])
        before = with_row_ids(root, "experiences")
    disorder(root, "experiences")
    repair(root)
    assert with_row_ids(root, "experiences") == before
    with Buffer(root) as buffer:
        full_text.index_text(buffer)
        assert len(full_text.search_text(buffer, "answer", 60)) == before.num_rows


@pytest.mark.parametrize("step", [1, 2, 3])
def test_wherever_the_repair_is_killed_the_next_one_finishes_it(root: Path, step: int) -> None:
    before = with_row_ids(root, "experiences")
    disorder(root, "experiences")
    with failpoints.armed("repair.step", step), pytest.raises(OSError, match="failpoint"):
        repair(root)
    repair(root)
    assert with_row_ids(root, "experiences") == before
    assert not verify(root).damaged
