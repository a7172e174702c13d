"""The child process of `query.py`: one request on stdin, an Arrow stream on stdout, then it ends.

Started with `python -m rft_data.reading.query_worker`; what it may do is limited before the SQL is looked at.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from rft_data.core.schema import TABLES

NOT_SQL, FAILED, NO_MEMORY = 3, 4, 5
"""Exit codes: not a valid SELECT; failed while running; out of memory."""
_BATCH_ROWS = 1024
_CACHE_BYTES = 32 << 20
_SCAN: dict[str, Any] = {
    "batch_size": _BATCH_ROWS,
    "batch_readahead": 4,
    "fragment_readahead": 2,
    "io_buffer_size": 32 << 20,
}
"""Lance's own read-ahead needs more than 256 MiB for lists of 1,000 tokens; its I/O buffer is 2 GiB."""


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    signal.alarm(math.ceil(request["deadline_s"]) + 1)  # the end, if the parent dies before it can kill us
    import duckdb

    try:
        connection = _connect(request)
        _limit_memory(request["memory_bytes"])
        _check(duckdb.extract_statements(request["sql"]))
        _answer(connection.sql(request["sql"]), request)
    except (MemoryError, duckdb.OutOfMemoryException, pa.ArrowMemoryError) as err:
        _stop(NO_MEMORY, err)
    except (duckdb.ProgrammingError, duckdb.PermissionException, duckdb.NotSupportedError) as err:
        _stop(NOT_SQL, err)
    except (duckdb.Error, pa.ArrowException, OSError) as err:
        text = str(err).lower()
        _stop(NO_MEMORY if "memory" in text or "allocat" in text else FAILED, err)


def _connect(request: dict[str, Any]) -> Any:
    """A database whose only contents are the buffer's tables, locked down."""
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


def _table(location: str, name: str, schema: pa.Schema) -> Any:
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


def _limit_memory(more_bytes: int) -> None:
    """Allow this process so much address space beyond what its libraries have mapped already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _check(statements: list[Any]) -> None:
    kinds = [statement.type.name for statement in statements]
    if kinds not in (["SELECT"], ["EXPLAIN"]):
        found = ", ".join(kinds) or "nothing"
        _stop(NOT_SQL, f"exactly one SELECT is allowed, found {found}.")


def _answer(relation: Any, request: dict[str, Any]) -> None:
    """Write up to `max_rows` + 1 rows to stdout."""
    if relation is None:
        _stop(NOT_SQL, "the statement returns no rows.")
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    rows, size = 0, 0
    with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as out:
        for batch in reader:
            kept = batch.slice(0, request["max_rows"] + 1 - rows)
            rows, size = rows + kept.num_rows, size + kept.nbytes
            if size > request["result_bytes"]:
                limit = request["result_bytes"] / 2**20
                _stop(FAILED, f"its result is larger than {limit:g} MiB; aggregate, or name fewer columns.")
            out.write_batch(kept)
            if rows > request["max_rows"]:
                break
    sys.stdout.flush()


def _stop(code: int, why: object) -> NoReturn:
    sys.stderr.write(str(why))
    sys.stderr.flush()
    signal.alarm(0)
    sys.exit(code)


if __name__ == "__main__":
    main()
