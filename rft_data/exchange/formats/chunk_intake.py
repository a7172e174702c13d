"""Stores the chunks of an import in a buffer, and counts what became of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.buffer.validation import Refused, admit, encode
from rft_data.core.canonical import content_id
from rft_data.core.errors import ConflictError, RowError
from rft_data.core.rows import Experience, TaskKey
from rft_data.core.version import __version__
from rft_data.exchange.formats.import_chunk import Chunk, excerpt, unseen
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.payloads import store_payloads
from rft_data.exchange.formats.records import Format, Origin, Record, StoredRow, import_run_id
from rft_data.exchange.formats.rft import STORED, read_stored, stored_table

_SHOWN = 10
"""Reasons of bad rows that a report keeps."""


@dataclass(slots=True)
class ImportReport:
    """Counts of a source's rows: rows = stored + already_there + quarantined.

    In a log of calls (`otlp`, `langfuse`, ...) a row is a conversation, or something that cannot be read.
    """

    source: str
    """Its whole name; for a dataset of the hub with the commit."""
    format: str
    taskset: str
    rows: int = 0
    stored: int = 0
    """Rows of which something was new."""
    already_there: int = 0
    quarantined: int = 0
    new: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("tasks", "experiences", "preferences", "feedback"), 0)
    )
    """New rows by table; a row of the source may become several."""
    problems: list[str] = field(default_factory=list)
    """`file:line: reason` of the first quarantined rows."""


class ChunkIntake:
    """Stores the chunks of one import and fills the report."""

    def __init__(self, buffer: Buffer, chosen: Format, origin: Origin, report: ImportReport) -> None:
        self._buffer = buffer
        self._format = chosen
        self._origin = origin
        self._report = report
        self._tasks: set[TaskKey] | None = None
        self._pairs: set[str] | None = None
        self._feedback: set[str] | None = None
        self._refused: set[str] | None = None

    def store(self, rows: Sequence[Found]) -> None:
        """Store one chunk: tasks, preferences, experiences, then the bad rows."""
        chunk = Chunk()
        for place, found in enumerate(rows):
            try:
                chunk.add(place, self._read(found))
            except RowError as err:
                chunk.drop(place, str(err))
            except RecursionError:
                chunk.drop(place, "nested too deep")
        table, places = self._admitted(chunk)
        fresh = self._add_tasks(chunk) | self._add_preferences(chunk)
        fresh |= self._add_experiences(chunk, table, places)
        fresh |= self._add_feedback(chunk)
        self._set_aside(rows, chunk)
        report = self._report
        report.rows += len(rows)
        report.quarantined += len(chunk.bad)
        report.stored += len(fresh - chunk.bad.keys())
        report.already_there += len(rows) - len(fresh | chunk.bad.keys())

    def _read(self, found: Found) -> Sequence[Record]:
        if found.row is None:
            raise RowError(found.reason)
        if self._format is STORED:
            stored = read_stored(found.row, self._origin)
            for record in stored:
                if isinstance(record, StoredRow):
                    self._attach(record)
            return stored
        read = self._format.read
        assert read is not None  # noqa: S101
        row, ids = store_payloads(found.row, self._buffer.add_payload)
        records = read(row, self._origin)
        if not ids:
            return records
        return [replace(r, payloads=tuple(ids)) if isinstance(r, Experience) else r for r in records]

    def _attach(self, record: StoredRow) -> None:
        for name, kind, data in record.attachments:
            if self._buffer.add_payload(data, kind) != name:
                raise RowError(f"attachment {name!r} is not the hash of its bytes")

    def _admitted(self, chunk: Chunk) -> tuple[pa.Table, list[int]]:
        """(the experiences that may be stored, as a table; the place of each). The others are dropped."""
        owners = [place for place, _ in chunk.experiences]
        if self._format is STORED:
            table, places, refused = stored_table(
                [row for _, row in chunk.experiences if isinstance(row, StoredRow)]
            )
        else:
            table, places, refused = encode(
                [row for _, row in chunk.experiences if isinstance(row, Experience)]
            )
        admitted, kept, more = admit(table, parsed=self._format is not STORED)
        refused += [Refused(places[item.index], item.reason, item.experience_id, {}) for item in more]
        for item in refused:
            chunk.drop(owners[item.index], item.reason, item.experience_id)
        owned = [owners[places[i]] for i in kept.tolist()]
        whole = [i for i, place in enumerate(owned) if place not in chunk.bad]
        if len(whole) < len(owned):
            admitted, owned = admitted.take(pa.array(whole, pa.int64())), [owned[i] for i in whole]
        return admitted, owned

    def _add_experiences(self, chunk: Chunk, table: pa.Table, places: Sequence[int]) -> set[int]:
        """The places whose experiences were new."""
        if table.num_rows == 0:
            return set()
        first = self._buffer.tail("experiences", 1, ["seq"]).column("seq").to_pylist()
        known = first[0] if first else -1
        fresh: dict[int, int] = {}
        for place, seq in zip(places, self._append(chunk, table, places), strict=True):
            if seq is not None and seq > known:
                fresh.setdefault(seq, place)
        return set(fresh.values())

    def _append(self, chunk: Chunk, table: pa.Table, places: Sequence[int]) -> list[int | None]:
        """Row numbers; None for a row that the buffer refuses because its id is stored with other content."""
        try:
            done = self._buffer.append(table)
        except ConflictError as err:
            if len(places) == 1:
                chunk.drop(places[0], str(err))
                return [None]
            half = len(places) // 2
            first = self._append(chunk, table.slice(0, half), places[:half])
            return first + self._append(chunk, table.slice(half), places[half:])
        self._report.new["experiences"] += done.stored
        return list(done.seqs)

    def _add_tasks(self, chunk: Chunk) -> set[int]:
        """The places whose tasks were new."""
        if not chunk.tasks:
            return set()
        if self._tasks is None:
            self._tasks = set(self._buffer.task_keys())
        fresh = unseen(((place, task.key) for place, task in chunk.tasks), self._tasks)
        self._report.new["tasks"] += self._buffer.add_tasks([task for _, task in chunk.tasks])
        return fresh

    def _add_preferences(self, chunk: Chunk) -> set[int]:
        """The places whose preference pairs were new."""
        if not chunk.pairs:
            return set()
        if self._pairs is None:
            self._pairs = set(self._buffer.read("preferences", ["preference_id"]).column(0).to_pylist())
        fresh = unseen(((place, pair.preference_id) for place, pair in chunk.pairs), self._pairs)
        self._report.new["preferences"] += self._buffer.add_preferences([pair for _, pair in chunk.pairs])
        return fresh

    def _add_feedback(self, chunk: Chunk) -> set[int]:
        """The places whose feedback was new. The experiences it is about are stored before it."""
        if not chunk.feedback:
            return set()
        if self._feedback is None:
            self._feedback = set(self._buffer.read("feedback", ["feedback_id"]).column(0).to_pylist())
        fresh = unseen(((place, item.feedback_id) for place, item in chunk.feedback), self._feedback)
        self._report.new["feedback"] += self._buffer.add_feedback([item for _, item in chunk.feedback])
        return fresh

    def _set_aside(self, rows: Sequence[Found], chunk: Chunk) -> None:
        """Store bad rows in `quarantine`, once: an earlier import's are found there by place and reason."""
        if not chunk.bad:
            return
        if self._refused is None:
            self._refused = set(self._buffer.read("quarantine", ["reason"]).column(0).to_pylist())
        new = []
        for place, (why, experience_id) in sorted(chunk.bad.items()):
            reason = f"{rows[place].place}: {why}"
            if len(self._report.problems) < _SHOWN:
                self._report.problems.append(reason)
            if reason not in self._refused:
                self._refused.add(reason)
                kept = {
                    "place": rows[place].place,
                    "format": self._format.name,
                    "text": excerpt(rows[place]),
                }
                new.append({"experience_id": experience_id, "reason": reason, "row": kept})
        self._buffer.add_rows("quarantine", new)

    def record(self) -> None:
        """Store the import in `runs`, if it stored any row."""
        if self._report.stored == 0:
            return
        recipe = {"import": self._report.source, "format": self._format.name, "rows": self._report.rows}
        row = {
            "run_id": import_run_id(self._origin.taskset),
            "recipe": recipe,
            "recipe_hash": content_id(recipe),
        }
        self._buffer.add_rows("runs", [{**row, "code_version": __version__, "attempt": 0}])
