"""Finds the nearest earlier rollout by embedding, in the table `embeddings` of `rft_data.reading.search`.

All queries of a batch go over the stored vectors in one exact pass: for hundreds of queries at a time that is
faster than as many searches of the approximate index, up to about a million rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.similarity.fingerprints import task_labels
from ops.similarity.shingles import Hashes
from rft_data.core.errors import OperatorError
from rft_data.core.filters import And, Compare, Filter, to_sql
from rft_data.core.words import MEASURING_SOURCES
from rft_data.reading.search.models import Embedder, unit_vectors
from rft_data.reading.search.vectors import TABLE, embed

Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_SCAN_ROWS = 8_192


class StoredVectors:
    """The vectors of one model in one buffer."""

    def __init__(self, store: Any, model: str, embedder: Embedder) -> None:
        """`model`: the name under which the vectors are stored.

        Raises: OperatorError when the store is not the buffer itself, which alone has vectors.
        """
        if not hasattr(store, "location"):
            raise OperatorError(
                f"similarity in meaning needs the buffer itself, got a {type(store).__name__}; "
                "run the operator where the buffer is, or with its argument 'buffer'."
            )
        self._store = store
        self._model = model
        self._embedder = embedder
        self._labels: Hashes = np.zeros(0, np.uint64)
        """By row number, a hash of the task."""
        self._compared = np.zeros(0, np.bool_)

    def nearest_earlier(self, table: pa.Table, *, across_tasks: bool) -> tuple[Ints, npt.NDArray[np.float32]]:
        """For each stored row of `table` the most similar one of a smaller `seq`, and their cosine.

        Rows of evaluation and probes are left out. -1 and -2.0 where there is no such row. A reader, which
        stores no vectors, compares with rows that have one and with the batch itself.
        """
        seqs = table["seq"].to_numpy()
        self._learn(int(seqs.max()))
        if not self._store.read_only:
            embed(self._store, self._embedder, name=self._model)
        vectors = self._row_vectors(table, seqs)
        best, cosine = np.full(len(seqs), -1), np.full(len(seqs), -2.0, np.float32)
        earlier = self._scan(Compare("seq", "lt", int(seqs.max())))
        for others, stored in chain(earlier, [(seqs, vectors)]):
            allowed = self._compared[others] & (others < seqs[:, None])
            if not across_tasks:
                allowed &= self._labels[others] == self._labels[seqs][:, None]
            found = np.where(allowed, vectors @ stored.T, np.float32(-2.0))
            place = found.argmax(axis=1)
            top = found[np.arange(len(seqs)), place]
            better = top > cosine
            best[better], cosine[better] = others[place[better]], top[better]
        return best, cosine

    def _learn(self, last: int) -> None:
        """Read the tasks of the rows up to `last` that are not known yet."""
        start = len(self._labels)
        if last < start:
            return
        window = And((Compare("seq", "ge", start), Compare("seq", "le", last)))
        rows = self._store.read("experiences", ["seq", "source", "taskset", "task_id"], window)
        place = rows["seq"].to_numpy() - start
        labels, compared = np.zeros(last + 1 - start, np.uint64), np.zeros(last + 1 - start, np.bool_)
        labels[place] = task_labels(rows)
        compared[place] = ~np.isin(rows["source"].to_numpy(), MEASURING_SOURCES)
        self._labels = np.concatenate([self._labels, labels])
        self._compared = np.concatenate([self._compared, compared])

    def _row_vectors(self, table: pa.Table, seqs: Ints) -> Vectors:
        """The vectors of these rows: stored ones, else made here (a reader stores none)."""
        rows: dict[int, npt.NDArray[np.float32]] = {}
        window = And((Compare("seq", "ge", int(seqs.min())), Compare("seq", "le", int(seqs.max()))))
        for others, stored in self._scan(window):
            rows.update(zip(others.tolist(), stored, strict=True))
        missing = [place for place, seq in enumerate(seqs.tolist()) if seq not in rows]
        if missing:
            made = unit_vectors(self._embedder, table["completion_text"].take(missing).to_pylist())
            rows.update(zip(seqs[missing].tolist(), made, strict=True))
        return np.stack([rows[seq] for seq in seqs.tolist()])

    def _scan(self, where: Filter) -> Iterator[tuple[Ints, Vectors]]:
        """(row numbers, vectors) of the model's stored vectors, in parts."""
        import lancedb

        db = lancedb.connect(self._store.location)
        if TABLE not in db.list_tables().tables:
            return
        table = db.open_table(TABLE)
        mine = to_sql(And((Compare("model", "eq", self._model), where)), table.schema)
        for batch in table.search().where(mine).select(["seq", "vec"]).to_batches(_SCAN_ROWS):
            stored = np.asarray(batch.column("vec").flatten(), np.float32).reshape(batch.num_rows, -1)
            yield np.asarray(batch.column("seq")), stored
