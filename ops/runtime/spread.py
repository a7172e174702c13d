"""Runs operators over the nodes of a Ray cluster, by Ray Data: for passes over many rows.

A table is cut as the operator allows, into more parts than there are workers, and each part is judged by one
task; neighbouring operators that judge single rows do so in the same task. An operator that compares all
rows, or reads a buffer, stays in this process. `stage.py` handles failed rows, as for every other stage, so
the result is the same as without a cluster.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from ops.runtime.native import judges_rows
from ops.runtime.specs import Spec, operator_class
from ops.runtime.stage import BatchError, Outcome, Stage, joined
from ops.runtime.workers import OperatorWorker, make_worker, streamed
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
        self.workers = workers
        self._inner = inner
        self.arguments = {
            "label": inner.name,
            "module": operator_class(spec.name).__module__,
            "name": spec.name,
            "args": dict(spec.args),
            "text_column": text_column,
        }
        """Arguments from which `make_worker` makes the operator."""

    @property
    def by_rows(self) -> bool:
        """Whether the operator judges each row alone."""
        return judges_rows(self._inner)

    def attempt(self, table: pa.Table) -> Outcome:
        """Judge the parts beside each other. Raises: OperatorError if a task ends without an answer."""
        found = chained([self], table)
        if found is None:
            return self._inner.attempt(table)
        rows, (lost,) = found
        return Outcome(rows, lost.dropped, lost.quarantined)

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Split as the operator itself does."""
        return self._inner.parts(table, max(1, count))


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows of a table on which an operator failed, by row number, with the reason."""

    dropped: dict[int, str] = field(default_factory=dict)
    quarantined: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Time that the operator took; in several tasks, the sum."""
    batch_error: str = ""
    """Text of the BatchError when the operator failed on the table as a whole."""


_LOSSES = TypeAdapter(list[Lost])


def chained(stages: Sequence[SpreadStage], table: pa.Table) -> tuple[pa.Table, list[Lost]] | None:
    """Judge `table` by operators one after another, in one pass over the cluster.

    Args: stages: one, or several that judge each row alone.
    Returns: the rows that are left, and what each operator lost; None if `table` is too small to be cut.
    Raises: OperatorError if a task ends without an answer; BatchError.
    """
    first = stages[0]
    parts = first.parts(table, min(_PARTS_EACH * first.workers, table.num_rows // _LEAST_ROWS))
    if len(parts) < 2:
        return None
    answers = _answers(stages, parts)
    rows = joined([part for part, _ in answers])
    return rows, [_sum(losses) for losses in zip(*(losses for _, losses in answers), strict=True)]


def _sum(losses: Sequence[Lost]) -> Lost:
    """Rows that an operator lost of all parts. Raises: BatchError if it failed on one as a whole."""
    found = Lost(seconds=sum(lost.seconds for lost in losses))
    for lost in losses:
        if lost.batch_error:
            raise BatchError(lost.batch_error)
        found.dropped.update(lost.dropped)
        found.quarantined.update(lost.quarantined)
    return found


def _answers(stages: Sequence[SpreadStage], parts: Sequence[pa.Table]) -> list[tuple[pa.Table, list[Lost]]]:
    """For each part the rows that are left, and what each operator lost of it."""
    data = need("ray.data", "ray", "operators on a Ray cluster")
    _quiet(data)
    blocks = [_block(n, streamed(part)) for n, part in enumerate(parts)]
    judged = data.from_arrow(blocks).map_batches(
        judge_parts,
        batch_format="pyarrow",
        compute=data.TaskPoolStrategy(size=stages[0].workers),
        num_cpus=1,
        fn_kwargs={"arguments": json.dumps([stage.arguments for stage in stages]), "path": list(sys.path)},
    )
    found: dict[int, tuple[pa.Table, list[Lost]]] = {}
    try:
        for block in judged.iter_batches(batch_format="pyarrow", batch_size=None):
            for n, rows, lost in zip(block["part"], block["rows"], block["lost"], strict=True):
                found[n.as_py()] = (_table(rows.as_py()), _LOSSES.validate_json(lost.as_py()))
    except need("ray", "ray", "operators on a Ray cluster").exceptions.RayError as err:
        names = ", ".join(f"'{stage.name}'" for stage in stages)
        raise OperatorError(
            f"{'operators' if len(stages) > 1 else 'operator'} {names} ended without an answer on the Ray "
            f"cluster: {err}; see its log there, or run the recipe with placement.use=local."
        ) from err
    return [found[n] for n in range(len(parts))]


def judge_parts(batch: pa.Table, arguments: str, path: Sequence[str]) -> pa.Table:
    """The work of one task: for each part the kept rows, and as JSON what was lost. Runs on the cluster."""
    sys.path += [entry for entry in path if entry not in sys.path]
    workers = _workers(arguments)
    blocks = []
    for n, rows in zip(batch["part"].to_pylist(), batch["rows"], strict=True):
        table, losses = _table(rows.as_py()), []
        for worker in workers:
            table, lost = _judged(worker, table)
            losses.append(asdict(lost))
        blocks.append(_block(n, streamed(table), json.dumps(losses)))
    return pa.concat_tables(blocks)


def _judged(worker: OperatorWorker, table: pa.Table) -> tuple[pa.Table, Lost]:
    began = time.perf_counter()
    if not table.num_rows:
        return table, Lost()
    try:
        outcome = worker.judge(table)
    except BatchError as err:
        return table.slice(0, 0), Lost(batch_error=str(err))
    return outcome.table, Lost(outcome.dropped, outcome.quarantined, time.perf_counter() - began)


def _block(part: int, rows: pa.Buffer, lost: str = "") -> pa.Table:
    """A row about one part; the part's own rows are one value of it, as bytes."""
    stream = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 1, [None, pa.py_buffer(struct.pack("=qq", 0, rows.size)), rows]
    )
    return pa.table({"part": [part], "rows": stream, "lost": [lost]})


def _table(rows: bytes) -> pa.Table:
    """Of memory of this process's own, and aligned: values in a block begin anywhere."""
    return pa.ipc.open_stream(rows).read_all()


@lru_cache(maxsize=8)
def _workers(arguments: str) -> list[OperatorWorker]:
    return [make_worker(buffer=None, **given) for given in json.loads(arguments)]


def _quiet(data: Any) -> None:
    """Ray Data's progress bars and plans would bury the run's own output."""
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
