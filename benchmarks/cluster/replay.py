"""Stored rollouts, replayed: groups of eight with the contents of stored rows and ids of their own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa

from benchmarks.rows import GROUP, RowMaker
from rft_data.core.rows import TaskKey, experience_id_of
from rft_data.core.schema import INCOMING

POOL = 32
"""Distinct groups."""


def store_pool(path: Path, tokens: int) -> pa.Table:
    """Write rollouts of so many tokens to an Arrow file, which every explorer reads; returns them."""
    rows = RowMaker(tokens, pool=POOL * GROUP).table(POOL * GROUP)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return rows


class Replay:
    """The groups of one explorer, one after the other."""

    def __init__(self, path: Path, explorer: str) -> None:
        """`explorer`: makes the ids of its groups."""
        with pa.memory_map(str(path)) as file:
            self._pool = pa.ipc.open_file(file).read_all().combine_chunks()
        self._explorer = explorer
        self._numbers = itertools.count()

    def group(self) -> pa.Table:
        """The next group, ready for `append`."""
        number = next(self._numbers)
        group, task = f"run/{self._explorer}-{number:08d}", TaskKey("bench", f"t{number}")
        table = self._pool.slice(number % POOL * GROUP, GROUP)
        columns: dict[str, list[object]] = {
            "experience_id": [experience_id_of("run", task, 0, group, n) for n in range(GROUP)],
            "task_id": [task.task_id] * GROUP,
            "group_id": [group] * GROUP,
            "explorer_id": [self._explorer] * GROUP,
        }
        for name, values in columns.items():
            field = INCOMING.field(name)
            table = table.set_column(INCOMING.get_field_index(name), field, pa.array(values, field.type))
        pool = pa.system_memory_pool()  # a node has many explorers, each a thread: see `hub/frames.py`
        [batch] = table.combine_chunks(memory_pool=pool).to_batches()
        moved = pa.ipc.read_record_batch(batch.serialize(memory_pool=pool), batch.schema)  # and aligned
        return pa.Table.from_batches([moved], INCOMING)
