"""The newest stored verdict of each row. The index takes 8 bytes a row; verdicts are read on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.schema import ANNOTATIONS

_NOWHERE = -1


class StoredVerdicts:
    """Annotations as they were when this was made; the buffer may only grow meanwhile."""

    def __init__(self, buffer: Buffer, pipeline_hash: str | None = None) -> None:
        """`pipeline_hash`: only verdicts of this pipeline; None: of whichever judged a row last."""
        self._buffer = buffer
        self._at = np.full(0, _NOWHERE, np.int64)
        first = 0
        for batch in buffer.batches("annotations", ["seq", "pipeline_hash"]):
            seqs = np.asarray(batch.column("seq"), np.int64)
            places = np.arange(first, first + len(seqs))
            first += len(seqs)
            mine = seqs >= 0
            if pipeline_hash is not None:
                mine &= np.array(
                    [name == pipeline_hash for name in batch.column("pipeline_hash").to_pylist()]
                )
            if mine.any():
                self._grow(int(seqs[mine].max()) + 1)
                self._at[seqs[mine]] = places[mine]  # of a row judged twice in a batch the later place stays

    def _grow(self, rows: int) -> None:
        if rows > len(self._at):
            room = np.full(max(rows, 2 * len(self._at)) - len(self._at), _NOWHERE, np.int64)
            self._at = np.concatenate([self._at, room])

    def judged(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Those of these rows that have a verdict."""
        there: npt.NDArray[np.bool_] = self._places(seqs) != _NOWHERE
        return there

    def verdicts(self, seqs: Sequence[int] | npt.NDArray[np.int64]) -> pa.Table:
        """One row of ANNOTATIONS for each row number, all nulls where there is no verdict."""
        wanted = np.asarray(seqs, np.int64)
        places = self._places(wanted)
        found = np.unique(places[places != _NOWHERE])
        if not len(found):
            return pa.table({field.name: pa.nulls(len(wanted), field.type) for field in ANNOTATIONS})
        rows = self._buffer.lance("annotations").take_offsets(found.tolist()).to_arrow()
        rows = rows.select(ANNOTATIONS.names).combine_chunks()
        order = np.argsort(np.asarray(rows.column("seq")), kind="stable")
        known = np.asarray(rows.column("seq"))[order]
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        there = (places != _NOWHERE) & (known[at] == wanted)
        return rows.take(pa.array(order[at], mask=~there))

    def _places(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        known = (seqs >= 0) & (seqs < len(self._at))
        places = np.full(len(seqs), _NOWHERE, np.int64)
        places[known] = self._at[seqs[known]]
        return places
