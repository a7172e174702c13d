"""The buffer's benchmark compares like with like: every system is given, and gives back, the same rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.appends import DURABILITIES, FORMS, append_costs, from_clients
from benchmarks.buffer import append_bars, lease_bars
from benchmarks.leases import lease_costs
from benchmarks.peers import SqliteQueue, sqlite_pickle, sqlite_raw
from benchmarks.rows import ARRAYS, GROUP, RowMaker, arrays_of_rows, as_objects
from benchmarks.turns import Cost, medians, ratio, ratios_to, take_turns
from rft_data.buffer import Buffer
from rft_data.core.rows import Experience
from rft_data.core.schema import INCOMING

FIGURES = ("rows_per_s", "cpu_us", "ratio", "ratio_low", "ratio_high")


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
    figures = append_costs(tmp_path, 8, 64, 2)
    terms = [f"{durability}, {form}" for durability in DURABILITIES for form in FORMS]
    ratios = [
        figures[f"ratio, {term}, {system}"] for term in terms for system in ("sqlite raw", "sqlite pickle")
    ]
    bars = {bar.name: bar for bar in append_bars(figures)}
    assert bars["append_8row_vs_sqlite"].value == min(ratios)
    assert bars["append_cpu_us_per_row_8_arrow"].value == figures["cpu_us, process, encoded, buffer"]
    floors = {key for key in figures if "bare add of 8" in key}
    assert {
        f"{figure}, {durability}, encoded, bare add of 8" for figure in FIGURES for durability in DURABILITIES
    } == (floors)
    leases = lease_costs(tmp_path, 2, 2)
    rates = {
        f"rows_per_s, {term}, {form}, {system}"
        for term in ("hot", "reopened")
        for form in ("encoded", "arrays")
        for system in ("buffer", "sqlite raw", "sqlite pickle")
    }
    floors = {f"rows_per_s, {term}, encoded, bare commit" for term in ("hot", "reopened")}
    assert rates | floors | {"rows_per_s, reopened, encoded, bare commit and read"} == {
        key for key in leases if key.startswith("rows_per_s")
    }
    [hot, _] = lease_bars(leases)
    assert hot.value == min(
        leases["ratio, hot, encoded, sqlite raw"],
        leases["ratio, hot, arrays, sqlite raw"],
        leases["ratio, hot, arrays, sqlite pickle"],
    )
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        leased = buffer.read("leases").column("seqs").to_pylist()
    assert [seq for seqs in leased for seq in seqs] == list(range(2 * 2 * 3 * 2 * GROUP)), (
        "each row once, in order"
    )


def test_contenders_take_turns_in_an_order_that_alternates() -> None:
    taken: list[tuple[str, int]] = []

    def contender(name: str, rows: int) -> Callable[[int], Cost]:
        def slice_of(number: int) -> Cost:
            taken.append((name, number))
            return Cost(rows * (number + 1), 1.0, 0.5)

        return slice_of

    costs = take_turns({"a": contender("a", 30), "b": contender("b", 10)}, 3)
    assert taken == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert [one.rows for one in costs["a"]] == [60, 90, 120], "the first round warms up"
    assert medians(costs)["rows_per_s, a"] == 90
    assert medians(costs)["cpu_us, b"] == pytest.approx(0.5 / 30 * 1e6)
    assert ratios_to("a", costs) == {"ratio, b": 3.0, "ratio_low, b": 3.0, "ratio_high, b": 3.0}


def test_one_slow_slice_does_not_decide_a_ratio() -> None:
    ours = [Cost(10, 1.0, 1.0)] * 9
    theirs = [Cost(10, 2.0, 1.0)] * 8 + [Cost(10, 90.0, 1.0)]
    middle, low, high = ratio(ours, theirs)
    assert middle == low == 2.0
    assert high < 90
