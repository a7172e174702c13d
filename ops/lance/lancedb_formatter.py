"""`lancedb_formatter`: lets dj-process read a buffer's experiences, tasks or annotations.

In a Data-Juicer recipe: `generated_dataset_config: {type: lancedb_formatter, buffer: runs/x/buffer, where:
"reward >= 0.5", columns: [...]}`. Registered when the entry point `ops.register` is imported; nothing of
`data_juicer.core` may be imported at the top, for Data-Juicer may be only half imported then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from data_juicer.format.formatter import FORMATTERS, BaseFormatter

from rft_data.buffer import Buffer
from rft_data.core.codec import to_tasks
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Filter, parse_text
from rft_data.core.lookup import suggest
from rft_data.core.schema import TABLES
from rft_data.tasks.record import played
from rft_data.tasks.table import task_table


@FORMATTERS.register_module("lancedb_formatter")
class LanceDbFormatter(BaseFormatter):
    """Reads one table of a buffer, read-only, also while a run writes to it.

    Columns keep their Arrow types (token ids stay list<int32>). The table `tasks` also has the columns that
    task operators need: `text` and those of PLAYED. The rows are held in memory: give `columns`, `where` or
    `limit` when there are many.
    """

    SUFFIXES: ClassVar[list[str]] = []
    """File endings it reads: none. Without this attribute Data-Juicer fails on every local file."""

    def __init__(
        self,
        buffer: str,
        table: str = "experiences",
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        **_: object,
    ) -> None:
        """Check the request; nothing is read yet.

        Args:
            buffer: folder or URL.
            where: a filter as `rft buffer` takes it (not SQL), for example `reward >= 0.5`.
            columns: None: all.
            limit: at most so many rows, in the order written.
        Raises: RecipeError for an unknown table or column, or a filter that does not fit the table.
        """
        if table not in TABLES:
            raise RecipeError(f"a buffer has no table '{table}';{suggest(table, TABLES)}")
        schema, _key = TABLES[table]
        self.buffer = buffer
        self.table = table
        self.where: Filter | None = parse_text(where, schema) if where else None
        self.columns = list(columns) if columns is not None else None
        self.limit = limit
        unknown = [name for name in self.columns or () if table != "tasks" and name not in schema.names]
        if unknown:
            raise RecipeError(
                f"table '{table}' has no column '{unknown[0]}';{suggest(unknown[0], schema.names)} "
                f"It has: {', '.join(schema.names)}."
            )

    def load_dataset(self, *_: object, **__: object) -> Any:
        """The rows as Data-Juicer's dataset.

        Raises: MissingFileError if there is no buffer.
        """
        # Data-Juicer's core only now: see the module's docstring.
        from data_juicer.core.data import NestedDataset
        from datasets import Dataset
        from datasets.table import InMemoryTable

        with Buffer(self.buffer, read_only=True) as opened:
            rows = self._read(opened).replace_schema_metadata(None)
        return NestedDataset(Dataset(InMemoryTable(rows.combine_chunks())))

    def _read(self, opened: Buffer) -> Any:
        if self.table != "tasks":
            return opened.read(self.table, self.columns, self.where, self.limit)
        tasks = to_tasks(opened.read("tasks", None, self.where, self.limit))
        made = task_table(tasks, played(opened))
        return made.select(self.columns) if self.columns is not None else made
