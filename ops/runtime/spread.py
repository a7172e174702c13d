"""Runs an operator over the nodes of a Ray cluster, by Ray Data: for passes over many rows.

A table is cut as the operator allows, into more parts than there are workers, and each part is judged by one
task. An operator that compares all rows, or reads a buffer, stays in this process. `stage.py` handles failed
rows, as for every other stage, so the result is the same as without a cluster.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from ops.runtime.specs import Spec, operator_class
from ops.runtime.stage import BatchError, Outcome, Stage, merge
from ops.runtime.workers import Answer, OperatorWorker, make_worker, packed, unpacked
from rft_data.core.errors import OperatorError
from rft_data.core.lookup import need

_PARTS_EACH = 4
"""Parts for each worker, so that a slow part delays the others little."""
_LEAST_ROWS = 16
"""A part has at least so many rows: a task costs some milliseconds."""


class SpreadStage:
    """A stage whose operator runs in tasks of Ray Data, on the cluster that this process is connected to."""

    def __init__(self, inner: Stage, spec: Spec, text_column: str, workers: int) -> None:
        """`inner`: the same operator in this process. `workers`: how many tasks run at a time, at most."""
        self.name = inner.name
        self._inner = inner
        self._workers = workers
        self._arguments = json.dumps(
            {
                "label": inner.name,
                "module": operator_class(spec.name).__module__,
                "name": spec.name,
                "args": dict(spec.args),
                "text_column": text_column,
            }
        )

    def attempt(self, table: pa.Table) -> Outcome:
        """Judge the parts beside each other. Raises: OperatorError if a task ends without an answer."""
        parts = self.parts(table, min(_PARTS_EACH * self._workers, table.num_rows // _LEAST_ROWS))
        if len(parts) < 2:
            return self._inner.attempt(table)
        return merge([_outcome(answer) for answer in self._answers(parts)])

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Split as the operator itself does."""
        return self._inner.parts(table, max(1, count))

    def _answers(self, parts: Sequence[pa.Table]) -> list[Answer]:
        data = need("ray.data", "ray", "operators on a Ray cluster")
        _quiet(data)
        blocks = [pa.table({"part": [n], "rows": [packed(part)]}) for n, part in enumerate(parts)]
        judged = data.from_arrow(blocks).map_batches(
            judge_parts,
            batch_format="pyarrow",
            compute=data.TaskPoolStrategy(size=self._workers),
            num_cpus=1,
            fn_kwargs={"arguments": self._arguments, "path": list(sys.path)},
        )
        try:
            found = {row["part"]: row["answer"] for row in judged.take_all()}
        except need("ray", "ray", "operators on a Ray cluster").exceptions.RayError as err:
            raise OperatorError(
                f"operator '{self.name}' ended without an answer on the Ray cluster: {err}; see its log "
                "there, or run the recipe with placement.use=local."
            ) from err
        return [TypeAdapter(Answer).validate_json(found[n]) for n in range(len(parts))]


def judge_parts(batch: pa.Table, arguments: str, path: Sequence[str]) -> pa.Table:
    """The work of one task: an `Answer` as JSON for each part. Runs in a process of the cluster."""
    sys.path += [entry for entry in path if entry not in sys.path]
    worker = _worker(arguments)
    answers = [json.dumps(asdict(worker.attempt(rows))) for rows in batch["rows"].to_pylist()]
    return pa.table({"part": batch["part"], "answer": pa.array(answers, pa.string())})


@lru_cache(maxsize=8)
def _worker(arguments: str) -> OperatorWorker:
    given: Mapping[str, Any] = json.loads(arguments)
    return make_worker(buffer=None, **given)


def _outcome(answer: Answer) -> Outcome:
    if answer.batch_error:
        raise BatchError(answer.batch_error)
    return Outcome(unpacked(answer.rows), answer.dropped, answer.quarantined)


def _quiet(data: Any) -> None:
    """Ray Data's progress bars and plans would bury the run's own output."""
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
