"""What no buffer on Lance and this disk can beat: a file with fsync, and Lance's own writes and reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa

from benchmarks.peers import ArrowFile
from rft_data.buffer import Buffer
from rft_data.core.digests import ROLLOUT, TRAINED
from rft_data.core.schema import INCOMING, LEASES


def seconds(act: Callable[[], object]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def append_floors(folder: Path, tables: Sequence[pa.Table]) -> dict[str, float]:
    """Rows per second of an Arrow file with fsync, and of `add` of 512 rows to a bare LanceDB table."""
    import lancedb

    rows = sum(table.num_rows for table in tables)
    floor = ArrowFile(folder / "floor.arrow", INCOMING)
    found = {"arrow file + fsync": rows / seconds(lambda: [floor.append(table) for table in tables])}
    with Buffer(folder / "process-encoded", read_only=True) as buffer:
        stored = buffer.read("experiences")
    options = {"new_table_enable_stable_row_ids": "true", "new_table_data_storage_version": "2.2"}
    bare = lancedb.connect(str(folder / "bare"), storage_options=options).create_table(
        "t", schema=stored.schema
    )
    parts = [stored.slice(i, 512).combine_chunks() for i in range(0, stored.num_rows - 511, 512)]
    found["bare add of 512"] = 512 * len(parts) / seconds(lambda: [bare.add(part) for part in parts])
    return found


def lease_floors(folder: Path, stored: int, per_lease: int) -> dict[str, float]:
    """Rows per second of what Lance alone does for a lease: the commit of its row, the read of its rows."""
    leases = lance.dataset(str(folder / "buffer" / "leases.lance"))
    event = leases.to_table(limit=1).cast(LEASES)
    rows = lance.dataset(str(folder / "buffer" / "experiences.lance"))
    columns = ["seq", *TRAINED, *ROLLOUT, "digest"]
    found: dict[str, list[float]] = {"commit of a lease's row": [], "read of its rows": []}
    for first in range(0, stored, per_lease):
        found["read of its rows"].append(
            seconds(lambda at=first: rows._take_rows(list(range(at, at + per_lease)), columns=columns))
        )
        found["commit of a lease's row"].append(
            seconds(partial(lance.write_dataset, event, folder / "floor", mode="append"))
        )
    return {f"Lance alone, {name}": per_lease / statistics.median(times) for name, times in found.items()}
