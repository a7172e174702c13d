"""Import: stores a source's rows in a buffer, in chunks; a bad row goes to `quarantine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.lookup import lookup
from rft_data.core.words import Split
from rft_data.exchange.formats.chunk_intake import ChunkIntake, ImportReport
from rft_data.exchange.formats.inputs import Source
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.modelscope import open_named
from rft_data.exchange.formats.records import Format, Origin
from rft_data.exchange.formats.registry import FORMATS, detect, shapes

CHUNK_ROWS = 1000
_DETECTED_FROM = 20
"""Rows whose columns decide the format."""
MEND = (
    "say which format it is (--format, in a recipe 'format'), or which columns are meant: --prompt COLUMN "
    "--completion COLUMN, for pairs --prompt, --chosen and --rejected (in a recipe's import 'prompt: COLUMN' "
    "and so on)"
)
"""Advice about columns that fit several formats, or none."""


@dataclass(frozen=True, slots=True)
class ReadyImport:
    """A source whose rows may be stored, once."""

    source: str
    """Its whole name."""
    format: Format
    origin: Origin
    chunks: Iterator[list[Found]]

    def into(self, buffer: Buffer) -> ImportReport:
        """Store the rows. Raises: RowError if the source cannot be read to its end."""
        report = ImportReport(self.source, self.format.name, self.origin.taskset)
        intake = ChunkIntake(buffer, self.format, self.origin, report)
        try:
            for chunk in self.chunks:
                intake.store(chunk)
        except RowError as err:
            raise RowError(
                f"{err} Rows before this place are stored; mend the file and import it again, nothing is "
                "stored twice."
            ) from err
        finally:
            intake.record()
        return report


def import_into(
    buffer: Buffer,
    source: str | Path | Source,
    *,
    format: str | Format | None = None,
    taskset: str | None = None,
    split: str = Split.TRAIN,
    limit: int | None = None,
) -> ImportReport:
    """Store a source's rows; importing it again stores no row twice.

    Args: as of `ready_import`.
    Raises: what `ready_import` raises, and RowError if the source cannot be read to its end (the rows before
        that are stored).
    """
    ready = ready_import(source, format=format, taskset=taskset, split=split, limit=limit)
    return ready.into(buffer)


def ready_import(
    source: str | Path | Source,
    *,
    format: str | Format | None = None,
    taskset: str | None = None,
    split: str = Split.TRAIN,
    limit: int | None = None,
) -> ReadyImport:
    """A source that is open, and whose format is known. Nothing is stored yet.

    Args:
        source: a file, a dataset folder (`path:split`), `hf://org/name:split@revision` or
            `modelscope://owner/name:split@revision`; or one that is open.
        format: a name from FORMATS, or a format; None: detected from the columns of the first rows.
        taskset: taskset of the rows; None: the name of the file or dataset.
        split: split of the tasks, `train` or `heldout`.
        limit: rows read at most.
    Raises: RecipeError for an unknown or ambiguous format; MissingFileError; RowError if the source is
        empty, or none of its first rows can be read.
    """
    if split not in list(Split):
        raise RecipeError(f"split is '{split}'; tasks belong to 'train' or 'heldout'.")
    opened = source if isinstance(source, Source) else open_named(source)
    chunks = _chunks(islice(opened.rows, limit))
    head = next(chunks, [])
    chosen = _format(format, head, opened)
    origin = Origin(taskset or opened.taskset, Split(split))
    ready = chain([head], chunks)
    if chosen.regroup is not None:
        ready = chain(_chunks(chosen.regroup(chain.from_iterable(ready))))
    return ReadyImport(opened.name, chosen, origin, ready)


def _chunks(rows: Iterator[Found]) -> Iterator[list[Found]]:
    """Rows in chunks; the rows before an error are a chunk of their own, then the error is raised."""
    chunk: list[Found] = []
    try:
        for found in rows:
            chunk.append(found)
            if len(chunk) == CHUNK_ROWS:
                yield chunk
                chunk = []
    except RowError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _format(name: str | Format | None, head: Sequence[Found], opened: Source) -> Format:
    if not head:
        raise RowError(f"{opened.name} holds no rows; there is nothing to import.")
    if name is None:
        good = [found.row for found in head if found.row is not None]
        if not good:
            raise RowError(
                f"{head[0].place}: {head[0].reason}; none of the first {len(head)} rows can be read."
            )
        return detect(good[:_DETECTED_FROM], opened.name, mend=MEND)
    if isinstance(name, Format):
        return name
    chosen: Format = lookup(name, FORMATS, "format")
    if chosen.read is None:
        raise RecipeError(f"format '{name}' is only written; to read such a file, one of:\n{shapes(FORMATS)}")
    return chosen
