"""`lancedb_write_mapper`: writes all rows to a new Lance table and passes them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

import ops.lance.lancedb_formatter  # noqa: F401  Data-Juicer's entry point loads operators: the source comes along
from ops.base import ArrowMapper, is_ray
from rft_data.buffer.location import OWNER
from rft_data.core.errors import ConflictError

_BATCH = 4096


@OPERATORS.register_module("lancedb_write_mapper")
class LanceDbWriteMapper(ArrowMapper, Mapper):
    """Writes every column of every row to `table` in the LanceDB folder `uri`; the rows pass unchanged.

    For dj-process: put it last. Columns keep their Arrow types; structs, such as Data-Juicer's stats, are
    stored as JSON. A buffer's folder is refused: its tables have one owner. A table that exists is refused
    too, unless `mode` says otherwise. In a pipeline of `rft` it writes the columns that other operators
    read, batch after batch: export a buffer with `rft buffer export` instead.
    """

    def __init__(
        self,
        uri: str = "",
        table: str = "rows",
        mode: Literal["create", "overwrite", "append"] = "create",
        *args: object,
        **kwargs: object,
    ) -> None:
        """Check the target; nothing is written yet.

        Args:
            uri: a LanceDB folder or URL, made when missing. It must be given: Data-Juicer knows no
                arguments without a default.
            mode: what happens to rows that `table` already has: `create` refuses to start with any.
        Raises: ValueError for another mode, no folder or name, or a folder that is a buffer.
        """
        super().__init__(*args, **kwargs)
        if mode not in ("create", "overwrite", "append") or not table or not uri:
            raise ValueError(
                f"mode is {mode!r}, uri {uri!r}, table {table!r}; wanted mode 'create', 'overwrite' or "
                "'append', a folder or URL, and a name"
            )
        if (Path(uri) / "schema_version").exists():
            raise ValueError(f"{uri} is a buffer, whose tables only its owner writes; give another folder")
        self.uri = uri
        self.table = table
        self.mode = mode
        self._started = False

    def process_table(self, table: pa.Table) -> pa.Table:
        """Append the rows to the table, and return them unchanged."""
        self._write(table)
        return table

    def run(self, dataset: Any, *, exporter: object = None, tracer: object = None) -> Any:
        """Write a Hugging Face, Nested or Ray dataset, and hand it on."""
        if is_ray(dataset):
            dataset = dataset.materialize()  # else it would be computed again for what comes after
            for batch in dataset.iter_batches(batch_size=_BATCH, batch_format="pyarrow"):
                self._write(batch)
            return dataset
        for batch in dataset.with_format("arrow").iter(_BATCH):
            self._write(batch)
        return dataset

    def _write(self, rows: pa.Table) -> None:
        """Raises: ConflictError when the table exists and `mode` is `create`, or the URL is a buffer."""
        import lancedb

        db = lancedb.connect(self.uri)
        rows = _storable(rows)
        known = db.list_tables().tables
        if OWNER in known:
            raise ConflictError(
                f"{self.uri} is a buffer, whose tables only its owner writes; give another URL"
            )
        exists = self.table in known
        if self._started or (exists and self.mode == "append"):
            db.open_table(self.table).add(rows)
        elif exists and self.mode == "create":
            raise ConflictError(
                f"{self.uri} has a table '{self.table}' already; give another name, or mode 'append' or "
                "'overwrite'."
            )
        else:
            db.create_table(self.table, rows, mode="overwrite" if exists else "create")
        self._started = True


def _storable(rows: pa.Table) -> pa.Table:
    """`rows` with structs and extension types (Data-Juicer's own columns) as JSON text."""
    columns = {}
    for name in rows.column_names:
        column = rows[name]
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if pa.types.is_struct(column.type):
            texts = [
                None if value is None else json.dumps(value, default=str) for value in column.to_pylist()
            ]
            column = pa.array(texts, pa.string())
        columns[name] = column
    return pa.table(columns)
