"""Which stored rows and pairs no offline stage trains on: those of questions that are held out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rft_data.core.codec import from_table
from rft_data.core.heldout import prompt_share
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Message
from rft_data.core.schema import TABLES

_READ = ["task_id", "messages"]


class HeldoutPrompts:
    """A share of the questions. Of a stored task its own messages count: workflows add examples and more."""

    def __init__(self, store: BufferReader, share: float) -> None:
        """Read the tasks. `store`: a buffer, or a client of its hub; `share`: of prompts, by content hash."""
        self._share = share
        self._tasks: dict[str, float] = {}
        schema = pa.schema([TABLES["tasks"][0].field(name) for name in _READ])
        for batch in store.batches("tasks", _READ) if share > 0 else ():
            for row in from_table(pa.Table.from_batches([batch.select(_READ)]), schema):
                self._tasks[row["task_id"]] = prompt_share(row["messages"])

    def has(self, task_id: str | None, prompt: Sequence[Message]) -> bool:
        """Whether the question is held out: exactly where a taskset of the same `heldout` holds it out.

        Args: prompt: counts where the task is not stored.
        """
        known = self._tasks.get(task_id or "")
        return (prompt_share(prompt) if known is None else known) < self._share
