"""Rows that do not decode: every other row is kept, and a file full of them is gone through quickly."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair, verify
from rft_data.buffer.care import undecodable as module
from rft_data.buffer.care.examine import as_they_are
from rft_data.buffer.care.folder import Snapshot, TableFolder, attempt
from rft_data.buffer.care.fragment_rows import FragmentRows
from rft_data.buffer.care.ranges import Numbers
from rft_data.buffer.care.undecodable import column_at
from tests.rft_data.buffer.care.conftest import data_file, make_row, stored

ROWS = 1500


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """1,500 rows in one data file, and eight in another."""
    with Buffer(tmp_path / "large") as buffer:
        for start in range(0, ROWS, 500):
            buffer.append([make_row(number) for number in range(start, start + 500)])
        buffer.compact()
        buffer.append([make_row(number) for number in range(ROWS, ROWS + 8)])
    folder = TableFolder(tmp_path / "large", "experiences")
    kept = {str(file.path) for f in folder.fragments.values() for file in f.metadata.files}
    for manifest in folder.manifests[1:]:
        manifest.path.unlink()
    for path in (folder.path / "data").glob("*.lance"):
        if path.name not in kept:
            path.unlink()
    return tmp_path / "large"


def spoil(path: Path, start: float, end: float) -> None:
    """Fill a part of a file with noise."""
    data = bytearray(path.read_bytes())
    first, last = (int(part * len(data)) for part in (start, end))
    data[first:last] = np.random.default_rng(1).bytes(last - first)
    path.write_bytes(bytes(data))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that were tried to be read, a name for each try."""
    tried: list[str] = []

    def counted(snapshot: Snapshot, column: str, row_ids: Numbers) -> pa.ChunkedArray | None:
        tried.append(column)
        return column_at(snapshot, column, row_ids)

    monkeypatch.setattr(module, "column_at", counted)
    return tried


@pytest.mark.heavy
def test_a_file_in_which_no_row_decodes_is_given_up_after_few_tries_and_progress_is_told(
    large: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tries: list[str]
) -> None:
    spoil(data_file(large, "experiences"), 0.0, 0.8)
    monkeypatch.setattr(module, "_TELL_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        (finding,) = verify(large).of("unreadable_rows")
    assert finding.rows == ((0, ROWS - 1),)
    assert f"so far {ROWS} of {ROWS} rows do not" in caplog.text
    assert len(tries) < 4 * ROWS, "rows that one column lacks are not tried in another"
    assert len(repair(large).removed["experiences"]) == ROWS
    with Buffer(large) as buffer:
        assert len(buffer) == 8


@pytest.mark.slow
def test_the_rows_found_are_those_that_cannot_be_read_one_by_one(large: Path, tries: list[str]) -> None:
    spoil(data_file(large, "experiences"), 0.30, 0.34)
    head = TableFolder(large, "experiences").head
    assert head is not None
    number = next(iter(head.fragments))
    rows = FragmentRows(head, number, head.names)
    read = {row_id for batch in rows for row_id in batch.column("_rowid").to_pylist()}
    lost = set(rows.unreadable.tolist())
    assert lost
    assert read | lost == set(range(ROWS))
    assert not read & lost
    assert len(tries) < ROWS, "what reads as a whole is not tried row by row"
    some = sorted(lost)[:: max(1, len(lost) // 20)] + sorted(read)[::100]
    for row in some:
        scan = head.dataset.scanner(
            columns=head.names, fragments=[head.fragments[number]], offset=row, limit=1
        )
        assert (attempt(scan.to_table) is None) == (row in lost)
    ids = np.array(sorted(lost), np.int64)
    assert [name for name in head.names if column_at(head, name, ids) is None]
    assert all(column_at(head, name, ids[:0]) is not None for name in head.names)


@pytest.mark.slow
def test_columns_that_a_short_check_did_not_read_may_not_decode(large: Path) -> None:
    spoil(data_file(large, "experiences"), 0.50, 0.52)
    (table,) = as_they_are([TableFolder(large, "experiences")], deep=False, tried=True)
    assert not table.contents.faults
    assert table.folder.head is not None
    assert 8 < sum(batch.num_rows for batch in table.rows(table.folder.head.names)) < ROWS + 8


@pytest.mark.slow
def test_altered_rows_are_taken_from_the_version_before_compaction(root: Path, pristine: Path) -> None:
    """The rows decode, but two of them do not match their digest."""
    with Buffer(root) as buffer:
        buffer.compact()
    path = data_file(root, "experiences")
    data = path.read_bytes()
    for row in (3, 20):
        value = np.float32(make_row(row).logprobs[2]).tobytes()
        assert data.count(value) == 1
        data = data.replace(value, np.float32(-9.0).tobytes())
    path.write_bytes(data)
    assert verify(root).of("digest")[0].rows == ((3, 3), (20, 20))
    done = repair(root)
    assert (done.removed, done.recovered["experiences"]) == ({}, 2)
    assert stored(root, "experiences").equals(stored(pristine, "experiences"))
    assert not repair(root).changed
