"""Leased rows joined with the newest verdicts of an operator pipeline, which are kept in memory."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from rft_data.buffer.experiences import Experiences
from rft_data.buffer.store import Store
from rft_data.buffer.verdicts import Verdicts
from rft_data.core.canonical import content_id
from rft_data.core.errors import IntegrityError
from rft_data.core.groups import Lease
from rft_data.core.protocols import LeasedBatch

_VERDICT_COLUMNS = ["seq", "pipeline_hash", "verdict", "advantage", "masked", "shaped_reward"]


class LeasedRows:
    """Stores verdicts and joins leases with them; safe to use from many threads."""

    def __init__(self, store: Store, experiences: Experiences) -> None:
        self._store = store
        self._experiences = experiences
        self._verdicts: dict[str, Verdicts] = {}
        """By pipeline hash."""
        self._lock = threading.RLock()

    def annotate(self, annotations: pa.Table) -> None:
        """Store verdicts that were checked, in one commit."""
        with self._lock:
            for pipeline_hash in set(annotations.column("pipeline_hash").to_pylist()):
                self._pipeline_verdicts(pipeline_hash)
            folded, self._verdicts = self._verdicts, {}  # read again if the outcome of this write is unknown
            self._store.add("annotations", annotations)
            self._verdicts = folded
            for verdicts in self._verdicts.values():
                verdicts.fold(annotations.select(_VERDICT_COLUMNS))

    def read(self, lease: Lease, pipeline_hash: str) -> LeasedBatch:
        """The lease's rows with the pipeline's verdicts; see `Buffer.leased`."""
        if content_id(list(lease.seqs)) != lease.digest:
            raise IntegrityError(
                f"lease {lease.consumer}/{lease.step}: its row numbers do not match its digest."
            )
        seqs = np.asarray(lease.seqs, np.int64)
        with self._lock:
            verdicts = self._pipeline_verdicts(pipeline_hash)
            unjudged = verdicts.missing(seqs)
            if unjudged:
                raise IntegrityError(
                    f"lease {lease.consumer}/{lease.step}: row {unjudged[0]} has no advantage from the "
                    "pipeline; put an advantage operator at the end of 'experience_ops'."
                )
            joined = {
                "advantage": verdicts.advantages(seqs),
                "masked": verdicts.masked(seqs),
                "shaped_reward": verdicts.shaped_rewards(seqs),
            }
        rows = self._experiences.take(seqs, trained_only=True)
        for name, column in joined.items():
            rows = rows.append_column(name, column)
        return LeasedBatch(lease, rows)

    def _pipeline_verdicts(self, pipeline_hash: str) -> Verdicts:
        """The pipeline's verdicts, read from the table at the first call."""
        if pipeline_hash not in self._verdicts:
            verdicts = Verdicts(pipeline_hash)
            for batch in self._store.rows("annotations").batches(_VERDICT_COLUMNS):
                verdicts.fold(batch)
            self._verdicts[pipeline_hash] = verdicts
        return self._verdicts[pipeline_hash]
