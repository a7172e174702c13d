"""Runs an operator over the nodes of a Ray cluster, by Ray Data: for passes over many rows.

A table is cut as the operator allows, into more parts than there are workers, and each part is judged by one
task. An operator that compares all rows, or reads a buffer, stays in this process. `stage.py` handles failed
rows, as for every other stage, so the result is the same as without a cluster.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from ops.runtime.specs import Spec, operator_class
from ops.runtime.stage import BatchError, Outcome, Stage, merge
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
        return merge(self._answers(parts))

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Split as the operator itself does."""
        return self._inner.parts(table, max(1, count))

    def _answers(self, parts: Sequence[pa.Table]) -> list[Outcome]:
        data = need("ray.data", "ray", "operators on a Ray cluster")
        _quiet(data)
        blocks = [_block(n, streamed(part)) for n, part in enumerate(parts)]
        judged = data.from_arrow(blocks).map_batches(
            judge_parts,
            batch_format="pyarrow",
            compute=data.TaskPoolStrategy(size=self._workers),
            num_cpus=1,
            fn_kwargs={"arguments": self._arguments, "path": list(sys.path)},
        )
        found: dict[int, Outcome] = {}
        try:
            for block in judged.iter_batches(batch_format="pyarrow", batch_size=None):
                for n, rows, lost in zip(block["part"], block["rows"], block["lost"], strict=True):
                    found[n.as_py()] = _outcome(rows.as_py(), lost.as_py())
        except need("ray", "ray", "operators on a Ray cluster").exceptions.RayError as err:
            raise OperatorError(
                f"operator '{self.name}' ended without an answer on the Ray cluster: {err}; see its log "
                "there, or run the recipe with placement.use=local."
            ) from err
        return [found[n] for n in range(len(parts))]


def judge_parts(batch: pa.Table, arguments: str, path: Sequence[str]) -> pa.Table:
    """The work of one task: for each part the kept rows, and as JSON what was lost. Runs on the cluster."""
    sys.path += [entry for entry in path if entry not in sys.path]
    worker = _worker(arguments)
    blocks = []
    for n, rows in zip(batch["part"].to_pylist(), batch["rows"], strict=True):
        table = _table(rows.as_py())
        try:
            outcome = worker.judge(table)
            kept, lost = outcome.table, _Lost(outcome.dropped, outcome.quarantined)
        except BatchError as err:
            kept, lost = table.slice(0, 0), _Lost(batch_error=str(err))
        blocks.append(_block(n, streamed(kept), json.dumps(asdict(lost))))
    return pa.concat_tables(blocks)


@dataclass(frozen=True, slots=True)
class _Lost:
    """What a part lost, by row number, with the reason."""

    dropped: dict[int, str] = field(default_factory=dict)
    quarantined: dict[int, str] = field(default_factory=dict)
    batch_error: str = ""
    """Text of the BatchError when the operator failed on the part as a whole."""


_LOST = TypeAdapter(_Lost)


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
def _worker(arguments: str) -> OperatorWorker:
    given: Mapping[str, Any] = json.loads(arguments)
    return make_worker(buffer=None, **given)


def _outcome(rows: bytes, said: str) -> Outcome:
    lost = _LOST.validate_json(said)
    if lost.batch_error:
        raise BatchError(lost.batch_error)
    return Outcome(_table(rows), lost.dropped, lost.quarantined)


def _quiet(data: Any) -> None:
    """Ray Data's progress bars and plans would bury the run's own output."""
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
