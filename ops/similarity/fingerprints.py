"""Finds stored rollouts that nearly repeat an earlier one; each is judged once, in the order of storing.

The verdict on a row depends only on the rows before it, so batches, restarts and replays agree. The
sketches are kept in a table beside the buffer's own, so that a restart hashes only the newest rows again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.similarity.shingles import Hashes, blocks, first_of_runs, shingles, text_hashes
from ops.similarity.sketches import SIZE, Sketches, SketchIndex, sketches
from rft_data.core.canonical import content_id
from rft_data.core.codec import one_array
from rft_data.core.errors import OperatorError
from rft_data.core.filters import And, Compare
from rft_data.core.words import MEASURING_SOURCES

Ints = npt.NDArray[np.int64]

FLUSH_ROWS = 4_096
"""Rows between two commits of the side table; after a restart at most as many are hashed again."""
_READ_ROWS = 4_096
_UNKNOWN = -1
_FORMAT = 1
"""Raise it with every change of sketches: older tables are then ignored, and rows hashed again."""
_SIDE = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("original", pa.int64(), nullable=False),
        pa.field("similarity", pa.float32(), nullable=False),
        pa.field("label", pa.uint64(), nullable=False),
        pa.field("sketch", pa.binary(2 * SIZE)),
    ]
)


def task_labels(table: pa.Table) -> Hashes:
    """A hash of each row's taskset and task: rows with the same label are rollouts of one task."""
    tasksets, tasks = (text_hashes(one_array(table[name])) for name in ("taskset", "task_id"))
    return tasksets * np.uint64(3) + tasks


class Fingerprints:
    """The verdicts on a store's rows, computed up to the newest row that was asked for."""

    def __init__(self, store: Any, *, column: str, n: int, threshold: float, across_tasks: bool) -> None:
        """Load the sketches that earlier processes stored beside the buffer.

        Args:
            store: a buffer or a client of one; only its owner keeps sketches, others start over.
            column, n: the n-grams, see `ops.similarity.shingles`.
            threshold: least Jaccard similarity of a near-duplicate.
            across_tasks: compare rollouts of different tasks as well.
        """
        self._store = store
        self._column = column
        self._n = n
        self._across_tasks = across_tasks
        settings = content_id(_FORMAT, column, n, threshold, across_tasks)
        self._name = f"fingerprints_{settings[:12]}"
        self._index = SketchIndex(threshold)
        self._owners: Ints = np.zeros(0, np.int64)
        """The row number of each sketch in the index."""
        self._original: Ints = np.zeros(0, np.int64)
        """By row number: the row it repeats, itself, or _UNKNOWN when it was not compared."""
        self._similarity: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self._waiting: list[pa.Table] = []
        self._load()

    def verdicts(self, seqs: Ints) -> tuple[Ints, npt.NDArray[np.float32]]:
        """For each stored row the one it nearly repeats (itself when none), and the estimated similarity.

        A row that is not compared (empty, of evaluation or probe) repeats none.
        """
        last = int(seqs.max(initial=-1))
        while len(self._original) <= last:
            self._advance(last)
        original = self._original[seqs]
        return np.where(original == _UNKNOWN, seqs, original), self._similarity[seqs]

    def _advance(self, last: int) -> None:
        """Judge the next rows, at most up to row `last`."""
        start = len(self._original)
        stop = min(last + 1, start + _READ_ROWS)
        window = And((Compare("seq", "ge", start), Compare("seq", "lt", stop)))
        columns = ["seq", "source", "taskset", "task_id", self._column]
        if self._column == "token_ids":
            columns.append("prompt_length")
        rows = self._store.read("experiences", columns, window).sort_by("seq")
        if stop == last + 1 and (not rows.num_rows or rows["seq"][-1].as_py() != last):
            raise OperatorError(f"row {last} is not stored, but operators were asked to judge it.")
        parts = [self._judged(part) for part in blocks(rows, self._column)]
        self._grow(stop, pa.concat_tables([_SIDE.empty_table(), *parts]))
        if sum(part.num_rows for part in self._waiting) >= FLUSH_ROWS:
            self._flush()

    def _judged(self, rows: pa.Table) -> pa.Table:
        """Rows of _SIDE for at most BLOCK_ROWS stored rows."""
        found = shingles(rows, self._column, self._n)
        seqs = rows["seq"].to_numpy()
        compared = (found.counts > 0) & ~np.isin(rows["source"].to_numpy(), MEASURING_SOURCES)
        labels = np.zeros(len(seqs), np.uint64) if self._across_tasks else task_labels(rows)
        made = sketches(found)
        before = len(self._index)
        places, alike = self._index.admit(made[compared], labels[compared])
        new = np.flatnonzero(compared)[places >= before]
        new = new[np.unique(places[places >= before], return_index=True)[1]]
        self._owners = np.concatenate([self._owners, seqs[new]])
        original, similarity = np.full(len(seqs), _UNKNOWN), np.zeros(len(seqs), np.float32)
        original[compared], similarity[compared] = self._owners[places], alike
        kept = original == seqs
        return _side_rows(seqs, original, similarity, labels, made, kept)

    def _grow(self, stop: int, judged: pa.Table) -> None:
        start = len(self._original)
        self._original = np.concatenate([self._original, np.full(stop - start, _UNKNOWN)])
        self._similarity = np.concatenate([self._similarity, np.zeros(stop - start, np.float32)])
        seqs = judged["seq"].to_numpy()
        self._original[seqs] = judged["original"].to_numpy()
        self._similarity[seqs] = judged["similarity"].to_numpy()
        self._waiting.append(judged)

    # --- the side table ---------------------------------------------------------------------------------

    def _load(self) -> None:
        table = self._open(create=False)
        if table is None:
            return
        rows = table.to_arrow().sort_by("seq")
        seqs = rows["seq"].to_numpy()
        rows = rows.filter(first_of_runs(seqs))
        originals = rows.filter(rows["sketch"].is_valid())
        self._owners = originals["seq"].to_numpy()
        self._index.restore(_stored_sketches(originals), originals["label"].to_numpy())
        self._grow(int(seqs[-1]) + 1 if len(seqs) else 0, rows)
        self._waiting = []

    def _flush(self) -> None:
        rows, self._waiting = pa.concat_tables(self._waiting), []
        table = self._open(create=True)
        if table is not None and rows.num_rows:
            table.add(rows)

    def _open(self, *, create: bool) -> Any:
        """The side table; None when there is none and this process does not create it."""
        location = getattr(self._store, "location", None)
        if location is None or (create and self._store.read_only):
            return None
        import lancedb

        db = lancedb.connect(location)
        if self._name in db.list_tables().tables:
            return db.open_table(self._name)
        return db.create_table(self._name, schema=_SIDE) if create else None


def _side_rows(
    seqs: Ints,
    original: Ints,
    similarity: npt.NDArray[np.float32],
    labels: Hashes,
    made: Sketches,
    kept: npt.NDArray[np.bool_],
) -> pa.Table:
    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(2 * SIZE), len(made), [None, pa.py_buffer(np.ascontiguousarray(made).tobytes())]
    )
    sketch = pa.array(np.where(kept, np.arange(len(made)), 0), mask=~kept)
    return pa.table([seqs, original, similarity, labels, packed.take(sketch)], schema=_SIDE)


def _stored_sketches(originals: pa.Table) -> Sketches:
    column = one_array(originals["sketch"])
    numbers = np.frombuffer(column.buffers()[1], np.uint16).reshape(-1, SIZE)
    return numbers[column.offset : column.offset + len(column)]
