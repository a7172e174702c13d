"""The child process of `query.py`: reads one line of JSON, answers with an Arrow stream, and ends.

Its rights are limited before it reads the SQL. A failure is an exit code and a text on stderr.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import pyarrow as pa

from rft_data.core.children import connected, limit_memory, without_pandas
from rft_data.core.schema import TABLES

if TYPE_CHECKING:
    import duckdb
    from lance import LanceDataset

NOT_SQL, FAILED, NO_MEMORY = 3, 4, 5
"""Exit codes: not a valid SELECT; failed while running; out of memory."""
_BATCH_ROWS = 1024
_CACHE_BYTES = 32 << 20
_SCAN: dict[str, Any] = {  # Lance declares texts as values, and takes numbers
    "batch_size": _BATCH_ROWS,
    "batch_readahead": 4,
    "fragment_readahead": 2,
    "io_buffer_size": 32 << 20,
}
"""With Lance's defaults, read-ahead needs over 256 MiB for lists of 1,000 tokens, the I/O buffer 2 GiB."""


class Request(TypedDict):
    """A request of `query.py` to the worker process."""

    location: str
    """Folder or URL of the buffer."""
    sql: str
    where: str | None
    """SQL condition that restricts the table `experiences`; None: all its rows."""
    max_rows: int
    memory_bytes: int
    result_bytes: int
    deadline_s: float


def main() -> None:
    """Answer one request."""
    channel = connected()
    without_pandas()
    request: Request = json.loads(channel.makefile("rb").readline())
    signal.alarm(math.ceil(request["deadline_s"]) + 1)  # where the system does not end it with its parent
    import duckdb

    try:
        connection = _connect(request)
        limit_memory(request["memory_bytes"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        _check(duckdb.extract_statements(request["sql"]))
        _answer(connection.sql(request["sql"]), request, channel)
    except (MemoryError, duckdb.OutOfMemoryException, pa.ArrowMemoryError) as err:
        _stop(NO_MEMORY, err)
    except (duckdb.ProgrammingError, duckdb.PermissionException, duckdb.NotSupportedError) as err:
        _stop(NOT_SQL, err)
    except (duckdb.Error, pa.ArrowException, OSError) as err:
        text = str(err).lower()
        _stop(NO_MEMORY if "memory" in text or "allocat" in text else FAILED, err)


def _connect(request: Request) -> duckdb.DuckDBPyConnection:
    """A database that contains only the buffer's tables, and whose settings are locked."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": "2",
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": f"{request['memory_bytes'] // 2 // 2**20} MiB",
        "temp_directory": "",
    }
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET TimeZone='UTC'")
    for name, (schema, _) in TABLES.items():
        restricted = name == "experiences" and request["where"] is not None
        connection.register(
            "all_experiences" if restricted else name, _table(request["location"], name, schema)
        )
        if restricted:
            rows = f"SELECT * FROM all_experiences WHERE {request['where']}"  # noqa: S608 - from to_sql
            connection.execute(f"CREATE VIEW experiences AS {rows}")
    connection.execute("SET lock_configuration=true")
    return connection


def _table(location: str, name: str, schema: pa.Schema) -> LanceDataset | pa.Table:
    import lance

    uri = f"{location}/{name}.lance"
    if "://" not in location and not Path(uri).is_dir():
        return schema.empty_table()
    try:
        return lance.dataset(
            uri,
            metadata_cache_size_bytes=_CACHE_BYTES,
            index_cache_size_bytes=_CACHE_BYTES,
            default_scan_options=_SCAN,
        )
    except (ValueError, FileNotFoundError):
        if "://" not in location:
            raise
        return schema.empty_table()


def _check(statements: list[duckdb.Statement]) -> None:
    kinds = [statement.type.name for statement in statements]
    if kinds not in (["SELECT"], ["EXPLAIN"]):
        found = ", ".join(kinds) or "nothing"
        _stop(NOT_SQL, f"exactly one SELECT is allowed, found {found}.")


def _answer(relation: duckdb.DuckDBPyRelation | None, request: Request, channel: socket.socket) -> None:
    """Send up to `max_rows` + 1 rows."""
    if relation is None:
        _stop(NOT_SQL, "the statement returns no rows.")
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    rows, size = 0, 0
    with channel.makefile("wb") as sink, pa.ipc.new_stream(sink, reader.schema) as out:
        for batch in reader:
            kept = batch.slice(0, request["max_rows"] + 1 - rows)
            rows, size = rows + kept.num_rows, size + kept.nbytes
            if size > request["result_bytes"]:
                limit = request["result_bytes"] / 2**20
                _stop(FAILED, f"its result is larger than {limit:g} MiB; aggregate, or name fewer columns.")
            out.write_batch(kept)
            if rows > request["max_rows"]:
                break


def _stop(code: int, why: object) -> NoReturn:
    sys.stderr.write(str(why))
    sys.exit(code)


if __name__ == "__main__":
    main()
