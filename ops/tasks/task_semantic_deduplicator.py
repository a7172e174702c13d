"""`task_semantic_deduplicator`: drops tasks that ask what another task asks, in other words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import ArrowFilter, Judgement
from rft_data.reading.search.models import load_embedder, unit_vectors
from rft_data.tasks.table import held_out

_BLOCK = 1024
"""Rows compared at a time: memory stays at a block times the kept rows."""


@OPERATORS.register_module("task_semantic_deduplicator")
class TaskSemanticDeduplicator(ArrowFilter, Pipeline):
    """Keeps the first of each set of tasks whose prompts' embeddings have a cosine of `threshold` or more.

    Greedy, in row order, each training task against those kept before it and against every held-out task
    (column `split`); held-out tasks are never dropped. Time grows with the square of the tasks: meant for
    up to about 1e5, after the exact and MinHash deduplicators. The reason names the task that stays.
    """

    whole_batch = True
    required_columns = ("taskset", "task_id", "text")
    optional_columns = ("split",)

    def __init__(self, model: str = "", threshold: float = 0.95, *args: Any, **kwargs: Any) -> None:
        """model: folder or hub id of a sentence-transformers model; threshold: in (0, 1].

        Raises: ValueError without a model (it has a default only because Data-Juicer knows no arguments
            without one), or for another threshold. The model is loaded with the first batch.
        """
        super().__init__(*args, **kwargs)
        if not model or not 0 < threshold <= 1:
            raise ValueError(
                f"model is {model!r}, threshold {threshold}; wanted a model and a number above 0, at most 1"
            )
        self.model = model
        self.threshold = threshold
        self._embedder: Any = None

    def judge(self, table: pa.Table) -> Judgement:
        """Keep held-out tasks, and training tasks unlike all that are kept."""
        rows = table.num_rows
        protected = held_out(table)
        order = np.concatenate([np.flatnonzero(protected), np.flatnonzero(~protected)])
        self._embedder = self._embedder or load_embedder(self.model)
        vectors = unit_vectors(self._embedder, table["text"].to_pylist())[order] if rows else np.zeros((0, 1))
        twin, cosine = _twins(vectors, int(protected.sum()), self.threshold)
        keep = np.ones(rows, bool)
        keep[order[twin >= 0]] = False
        names = table["taskset"].to_pylist(), table["task_id"].to_pylist()
        place = np.empty(rows, np.int64)
        place[order] = np.arange(rows)
        reasons = []
        for row in np.flatnonzero(~keep):
            other = order[twin[place[row]]]
            similarity = cosine[place[row]]
            reasons.append(
                f"means the same as task {names[0][other]}/{names[1][other]} (cosine {similarity:.3f})"
            )
        return Judgement(keep, reasons)


def _twins(
    vectors: npt.NDArray[np.floating], protected: int, threshold: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """For each of N unit vectors the kept one before it that it is too near to (else -1), and their cosine.

    The first `protected` are kept whatever they are near to.
    """
    count = len(vectors)
    twin, cosine = np.full(count, -1), np.zeros(count)
    limit = threshold - 1e-6  # two equal texts may have a cosine of 1 - 1e-7
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        kept = np.flatnonzero(twin[:start] < 0)
        if len(kept):
            near = block @ vectors[kept].T
            best = near.argmax(axis=1)
            top = near[np.arange(len(block)), best]
            twin[start : start + len(block)] = np.where(top >= limit, kept[best], -1)
            cosine[start : start + len(block)] = top
        twin[:protected] = -1
        near = np.tril(block @ block.T, -1)
        for row in range(max(1, protected - start), len(block)):
            if twin[start + row] >= 0:
                continue
            near_kept = np.where(twin[start : start + row] < 0, near[row, :row], -1.0)
            best_row = int(near_kept.argmax())
            if near_kept[best_row] >= limit:
                twin[start + row], cosine[start + row] = start + best_row, near_kept[best_row]
    return twin, cosine
