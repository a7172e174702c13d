"""The buffer's benchmark compares like with like: every system is given, and gives back, the same rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.buffer import (
    DURABILITIES,
    append_bars,
    append_costs,
    from_clients,
    lease_bars,
    lease_costs,
)
from benchmarks.peers import SqliteQueue, sqlite_pickle, sqlite_raw
from benchmarks.rows import ARRAYS, RowMaker, arrays_of_rows, as_objects
from rft_data.buffer import Buffer
from rft_data.core.rows import Experience
from rft_data.core.schema import INCOMING


def arrays(row: Experience | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return row if isinstance(row, dict) else {name: np.asarray(getattr(row, name)) for name in ARRAYS}


@pytest.mark.slow
@pytest.mark.parametrize("peer", [sqlite_raw, sqlite_pickle])
@pytest.mark.parametrize("fsync", [False, True])
def test_sqlite_stores_what_the_buffer_stores_and_hands_it_out_once(
    tmp_path: Path, peer: Callable[..., SqliteQueue], fsync: bool
) -> None:
    table = RowMaker(50).table(32)
    rows = as_objects(table)
    queue = peer(tmp_path / "rows.db", fsync=fsync)
    from_clients(queue.append, [rows[:8], rows[8:16]])
    queue.insert(queue.encoded(rows[16:]))
    mode, synchronous = (
        queue._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    )
    assert (mode, synchronous) == ("wal", 2 if fsync else 0)
    given = {row.token_ids.tobytes(): row for row in rows}
    leased = [arrays(row) for _ in range(2) for row in queue.lease(15)]
    assert len(queue.lease(2, decode=False)) == 2
    assert queue.lease(1) == []
    queue.close()
    assert {row["token_ids"].tobytes() for row in leased} == {row.token_ids.tobytes() for row in rows[:30]}
    for row in leased:
        original = given[row["token_ids"].tobytes()]
        assert all(np.array_equal(row[name], getattr(original, name)) for name in ARRAYS)


@pytest.mark.slow
def test_objects_and_arrow_are_stored_as_the_same_rows(tmp_path: Path) -> None:
    table = RowMaker(50).table(16)
    objects = as_objects(table)
    assert all(
        np.array_equal(a["logprobs"], b.logprobs) for a, b in zip(arrays_of_rows(table), objects, strict=True)
    )
    with Buffer(tmp_path / "b") as buffer:
        from_clients(buffer.submit, [objects])
        again = buffer.append(table)
        assert (again.stored, len(buffer)) == (0, 16), "the digests of the objects are those of the table"
        assert buffer.read("experiences").select(INCOMING.names).equals(table)


@pytest.mark.slow
def test_the_bars_are_the_least_ratio_of_equal_terms(tmp_path: Path) -> None:
    figures = append_costs(tmp_path, 8, 512)
    terms = [
        f"rows_per_s, {durability}, {form}" for durability in DURABILITIES for form in ("encoded", "objects")
    ]
    ratios = [
        figures[f"{term}, buffer"] / figures[f"{term}, {system}"]
        for term in terms
        for system in ("sqlite raw", "sqlite pickle")
    ]
    bars = {bar.name: bar for bar in append_bars(figures)}
    assert bars["append_8row_vs_sqlite"].value == min(ratios)
    assert bars["append_cpu_us_per_row_8_arrow"].value == figures["cpu_us, process, encoded, buffer"]
    (tmp_path / "leases").mkdir()
    leases = lease_costs(tmp_path / "leases", 2, 2)
    assert set(leases) == {
        f"{term}, {form}, {system}"
        for term in ("hot", "reopened")
        for form in ("encoded", "arrays")
        for system in ("buffer", "sqlite raw", "sqlite pickle")
    } | {"Lance alone, commit of a lease's row", "Lance alone, read of its rows"}
    [hot, _] = lease_bars(leases)
    assert hot.value == min(
        leases["hot, encoded, buffer"] / leases["hot, encoded, sqlite raw"],
        leases["hot, arrays, buffer"] / leases["hot, arrays, sqlite raw"],
        leases["hot, arrays, buffer"] / leases["hot, arrays, sqlite pickle"],
    )
