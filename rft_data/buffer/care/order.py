"""The order of a table's rows: that of their row ids, which is the order they were written in.

Lance reads fragments in the order of their ids, and a merged fragment gets a new one. Up to version 0.8.0
a compaction could so put old rows behind newer ones; it lost none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rft_data.buffer.care import commits
from rft_data.buffer.care.folder import Snapshot
from rft_data.buffer.care.ranges import Numbers, to_ranges
from rft_data.buffer.creation import FORMAT

if TYPE_CHECKING:
    import lance

_ROWS = 512
_SEGMENT, _RANGE, _START, _END = 1, 1, 1, 2
"""Fields of the protobuf message in which Lance stores a fragment's row ids."""


def misplaced(snapshot: Snapshot) -> list[int]:
    """The fragments from the first one on that has rows with lower ids behind its own; none in order."""
    numbers = list(snapshot.fragments)
    row_ids = [snapshot.row_ids(number) for number in numbers]
    for at, own in enumerate(row_ids):
        later = [ids.min() for ids in row_ids[at + 1 :] if len(ids)]
        if len(own) and ((np.diff(own) < 0).any() or (later and min(later) < own.max())):
            return numbers[at:]
    return []


def put_in_order(path: Path) -> int:
    """Write the misplaced fragments of a table again, with the same row ids, in one commit.

    A search index of the table is dropped; `rft buffer search --index` makes it again.
    Returns: how many rows were written again.
    """
    import lance

    dataset = commits.latest(path)
    numbers = misplaced(Snapshot(dataset))
    if not numbers:
        return 0
    for index in dataset.describe_indices():  # Lance joins no fragments of which it has indexed only some
        commits.step()
        dataset.drop_index(index.name)
    snapshot = Snapshot(dataset)
    old = [snapshot.fragments[number].metadata for number in numbers]
    row_ids = np.sort(np.concatenate([snapshot.row_ids(number) for number in numbers]))
    commits.step()
    new = list(_written(dataset, row_ids))
    commits.step()
    operation = lance.LanceOperation.Rewrite([lance.LanceOperation.RewriteGroup(old, new)], [])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    return len(row_ids)


def _written(dataset: lance.LanceDataset, row_ids: Numbers) -> Iterator[lance.FragmentMetadata]:
    """Fragments, not yet committed, with the rows of these ids."""
    import lance

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(row_ids), _ROWS):
            part = row_ids[start : start + _ROWS].tolist()
            yield from dataset._take_rows(part, columns=dataset.schema.names).to_batches()

    written = lance.fragment.write_fragments(
        pa.RecordBatchReader.from_batches(dataset.schema, batches()),
        dataset,
        mode="append",
        data_storage_version=FORMAT,
        enable_stable_row_ids=True,
    )
    start = 0
    for fragment in written:
        own = row_ids[start : start + fragment.physical_rows]
        metadata = {**fragment.to_json(), "row_id_meta": {"Inline": list(_sequence(own))}}
        yield lance.FragmentMetadata.from_json(json.dumps(metadata))
        start += fragment.physical_rows


def _sequence(row_ids: Numbers) -> bytes:
    """Ascending row ids as Lance stores them: ranges, each with its end excluded."""
    return b"".join(
        _message(_SEGMENT, _message(_RANGE, _number(_START, first) + _number(_END, last + 1)))
        for first, last in to_ranges(row_ids)
    )


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _number(field: int, value: int) -> bytes:
    """A number's field; left out where it is 0, as protobuf does."""
    return _varint(field << 3) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
