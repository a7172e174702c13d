"""SQL over a buffer's tables: DuckDB, read-only, in a child process.

The child reads the tables and no other file or network address, cannot change settings, has a memory limit,
and is killed after a deadline. It streams only the columns that a query names.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.buffer.whole_rows import is_whole
from rft_data.core.children import Child
from rft_data.core.digests import mismatches
from rft_data.core.errors import RecipeError, RftError, StalledError
from rft_data.core.filters import Filter, In, to_sql
from rft_data.core.schema import EXPERIENCES
from rft_data.reading.query_worker import FAILED, NO_MEMORY, NOT_SQL, Request

if TYPE_CHECKING:
    import pandas as pd

DEADLINE_S = 30.0
MEMORY_BYTES = 2 << 30
MAX_ROWS = 10_000
MAX_RESULT_BYTES = 64 << 20
_READ_AGAIN = 500
_INHERITED = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE", "TZ")
_FEW_THREADS = {
    "OMP_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "2",
    "LANCE_CPU_THREADS": "2",
    "LANCE_IO_THREADS": "4",
    "MALLOC_ARENA_MAX": "2",
}
"""Each thread reserves 64 MiB of address space, which counts towards the memory limit. With more threads, the
memory left for a query would depend on the machine's cores and load."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a query."""

    rows: pa.Table
    truncated: bool
    """Whether the query has more rows than `max_rows`."""

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a data frame."""
        return self.rows.to_pandas()


def query(
    buffer: Buffer,
    sql: str,
    *,
    where: Filter | None = None,
    max_rows: int = MAX_ROWS,
    deadline_s: float = DEADLINE_S,
    memory_bytes: int = MEMORY_BYTES,
) -> QueryResult:
    """Run one SELECT over the buffer's tables as they are now.

    `where`: restricts the table `experiences`, for example to a view's rows. Without ORDER BY the order of
    rows is not defined. Times are UTC.
    Raises: RecipeError if the SQL is not one valid SELECT (unknown names come with a suggestion);
        StalledError past `deadline_s`; RftError past `memory_bytes` or MAX_RESULT_BYTES; IntegrityError if
        the result has whole experiences and one of them is damaged.
    """
    request: Request = {
        "location": buffer.location,
        "sql": sql,
        "where": None if where is None else to_sql(where, EXPERIENCES),
        "max_rows": max_rows,
        "memory_bytes": memory_bytes,
        "result_bytes": MAX_RESULT_BYTES,
        "deadline_s": deadline_s,
    }
    code, out, err = _run(json.dumps(request), deadline_s)
    if code != 0:
        raise _failure(code, err, request)
    table = pa.ipc.open_stream(out).read_all()
    if is_whole("experiences", table.column_names):
        _check_rows(buffer, table)
    truncated = table.num_rows > max_rows
    return QueryResult(table.slice(0, max_rows), truncated)


def _check_rows(buffer: Buffer, found: pa.Table) -> None:
    """Read the rows again that do not match their digest: the query may have changed them, or damage.

    Raises: IntegrityError naming a row that is damaged.
    """
    names = [name for name in EXPERIENCES.names if name in found.column_names]
    try:
        rows = found.select(names).cast(pa.schema([EXPERIENCES.field(name) for name in names]))
    except (pa.ArrowException, ValueError):
        return  # columns of the query's own making under these names
    seqs = [rows["seq"][place].as_py() for place, _ in mismatches(rows)]
    for start in range(0, len(seqs), _READ_AGAIN):
        buffer.read("experiences", None, In("seq", tuple(seqs[start : start + _READ_AGAIN])))


def _run(request: str, deadline_s: float) -> tuple[int, bytes, str]:
    """(the child's exit code, its answer, its stderr).

    The child inherits only a short list of environment variables, so no secret.
    """
    allowed = {name: value for name, value in os.environ.items() if name in _INHERITED or name[:4] == "AWS_"}
    environment = {**allowed, **_FEW_THREADS, "LANCE_LOG": "error"}
    lines: list[str] = []
    answer = bytearray()
    end = time.monotonic() + deadline_s
    child = Child("rft_data.reading.query_worker", environment=environment, on_line=lines.append)
    try:
        child.send(f"{request}\n".encode())
        while part := child.receive(end):
            answer += part
        if child.wait(end - time.monotonic()) is None:
            raise TimeoutError("the child closed its connection and did not end")
    except TimeoutError as late:
        raise StalledError(
            f"the query did not finish within {deadline_s:g} s and was killed; ask for less, or wait longer."
        ) from late
    finally:
        code = child.close()
    return code, bytes(answer), "\n".join(lines).strip()


def _failure(code: int, err: str, request: Request) -> RftError:
    if code == NOT_SQL:
        return RecipeError(f"the query cannot be run: {err}")
    if code == FAILED:
        return RftError(f"the query failed: {err}")
    limit = request["memory_bytes"] / 2**20
    if code == NO_MEMORY or code < 0:
        return RftError(
            f"the query needed more than the {limit:g} MiB of memory it may use and was stopped; name fewer "
            "columns, aggregate, or allow more."
        )
    return RftError(f"the query process ended with code {code}: {err[-2000:]}")
