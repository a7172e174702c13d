"""Export: writes rows of a buffer in one of the formats, with a card that describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.codec import to_experiences, to_preferences, to_tasks
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.filters import Filter
from rft_data.core.lookup import lookup
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.core.words import MEASURING_SOURCES, Split
from rft_data.exchange.formats import targets
from rft_data.exchange.formats.card import ExportReport, Provenance, card
from rft_data.exchange.formats.columns import tables
from rft_data.exchange.formats.mining import mined_pairs
from rft_data.exchange.formats.payloads import inline_payloads
from rft_data.exchange.formats.records import Choices, Format, RawRow, Row
from rft_data.exchange.formats.registry import FORMATS
from rft_data.exchange.formats.rft import STORED, with_attachments
from rft_data.exchange.formats.training import DPO

_Outcome: TypeAlias = Experience | PreferencePair | Task | RawRow | RowError
"""A row of a table (a RawRow for the format `rft`), or why a group gives no pair."""
_TEXT_COLUMNS: Sequence[str] = ("prompt", "completion", "chosen", "rejected", "messages", "text")
_ROWS: Mapping[str, Callable[[pa.Table], Sequence[Experience | PreferencePair | Task]]] = {
    "experiences": to_experiences,
    "preferences": to_preferences,
    "tasks": to_tasks,
}


def export(
    buffer: Buffer,
    target: str | Path,
    *,
    format: str,
    table: str | None = None,
    where: Filter | None = None,
    overwrite: bool = False,
    margin: float = 0.0,
    threshold: float = 0.5,
) -> ExportReport:
    """Write rows of a buffer to a file or a `datasets` folder.

    Args:
        target: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .csv (plain text only), or a name without suffix for
            a datasets folder.
        format: a name from FORMATS.
        table: table to write from; None: the format's own (for `dpo`: stored pairs, then mined ones).
        where: only rows that it lets through; None: all.
        overwrite: replace what an earlier export wrote at `target`.
        margin: a pair is mined from a group when best reward - worst reward > margin (`dpo`).
        threshold: a completion is desirable when its reward >= threshold (`kto`, `trl-unpaired`).
    Raises: UnknownComponentError for an unknown format; RecipeError if the target exists or arguments
        exclude each other; RowError if no row could be written; MissingExtraError without `datasets`.
    """
    chosen: Format = lookup(format, FORMATS, "format")
    path = Path(target)
    kind = targets.target_kind(path)
    if kind == "csv" and not chosen.flat:
        flat = ", ".join(name for name, made in FORMATS.items() if made.flat)
        raise RecipeError(f"format '{format}' does not fit CSV; write .jsonl or .parquet. CSV holds: {flat}.")
    names = export_tables(chosen, table, filtered=where is not None)
    report = ExportReport(str(path), chosen.name, names)
    outgoing = _Outgoing(buffer, chosen, Choices(margin, threshold), report, flat=kind == "csv")
    with targets.staged(path, overwrite=overwrite) as stage:
        _write(stage / path.name, kind, chosen, names[0], outgoing.rows(where))
        report.skipped = dict(outgoing.skipped)
        if report.written == 0:
            raise RowError(_nothing(report, chosen, buffer))
        note = targets.card_path(stage / path.name)
        note.write_text(card(buffer, report, chosen, outgoing.seen, where), encoding="utf-8")
        report.card = str(targets.card_path(path))
    return report


def export_tables(chosen: Format, table: str | None, *, filtered: bool) -> tuple[str, ...]:
    """The tables that an export reads: `table`, else those of the format.

    Raises: RecipeError if the format is not written from that table, or a filter's table is not clear.
    """
    if table is not None:
        if table not in chosen.tables:
            raise RecipeError(
                f"format '{chosen.name}' is written from {' or '.join(chosen.tables)}, not from '{table}'."
            )
        return (table,)
    if chosen is not DPO:
        return chosen.tables[:1]
    if filtered:
        raise RecipeError(
            "format 'dpo' is written from two tables; say with table= (--table) which the filter is about."
        )
    return chosen.tables


def _nothing(report: ExportReport, chosen: Format, buffer: Buffer) -> str:
    reasons = (
        "; ".join(f"{count} x {reason}" for reason, count in report.skipped.items()) or "no row was selected"
    )
    others = [name for name in chosen.tables if name not in report.tables and buffer.counts()[name]]
    hint = f" There are rows in {' and '.join(others)}: give table= (--table)." if others else ""
    return f"nothing to write from {' and '.join(report.tables)} as '{chosen.name}': {reasons}.{hint}"


def _write(path: Path, kind: targets.TargetKind, chosen: Format, table: str, rows: Iterator[RawRow]) -> None:
    if kind == "jsonl":
        targets.write_jsonl(path, rows)
        return
    write = targets.write_parquet if kind == "parquet" else targets.write_folder
    if chosen.schemas:
        schema = chosen.schemas[table]
        write(path, schema, tables(schema, rows))
        return
    with targets.Spool(path.parent.with_name("spool.jsonl")) as spool:
        for row in rows:
            spool.write(row)
    schema = spool.schema()
    if kind == "csv":
        targets.write_csv(path, schema.names, spool.read())
    else:
        write(path, schema, tables(schema, map(targets.as_files, spool.read())))


class _Outgoing:
    """The rows to be written; counts those that are left out."""

    def __init__(
        self, buffer: Buffer, chosen: Format, choices: Choices, report: ExportReport, *, flat: bool
    ) -> None:
        self._buffer = buffer
        self._format = chosen
        self._choices = choices
        self._report = report
        self._flat = flat
        self._shape: dict[str, str] = {}
        self._payloads: set[str] | None = None
        self._fetch = lru_cache(maxsize=16)(buffer.payload)
        self.skipped: Counter[str] = Counter()
        self.seen = Provenance()

    def rows(self, where: Filter | None) -> Iterator[RawRow]:
        """Rows in the format; a row that the format cannot express is counted under its reason."""
        for record in self._records(where):
            self._report.selected += 1
            try:
                row = self._row(record)
            except RowError as err:
                self.skipped[str(err)] += 1
                continue
            self.seen.add(record)
            self._report.written += 1
            yield row

    def _records(self, where: Filter | None) -> Iterator[_Outcome]:
        for name in self._report.tables:
            if self._format is DPO and name == "experiences":
                yield from mined_pairs(self._buffer, where, self._choices.margin)
                continue
            shaped = ShapedRewards(self._buffer) if self._format.training and name == "experiences" else None
            for batch in self._buffer.batches(name, where=where):
                table = pa.Table.from_batches([batch])
                table = table if shaped is None else shaped.counted(table)
                yield from table.to_pylist() if self._format is STORED else _ROWS[name](table)

    def _row(self, record: _Outcome) -> RawRow:
        if isinstance(record, RowError):
            raise record
        if isinstance(record, Mapping):
            return with_attachments(record, self._fetch)
        if self._format.training:
            _refuse_evaluation(record)
        write = self._format.write
        assert write is not None  # noqa: S101
        row = write(record, self._choices)
        if self._flat:
            targets.check_flat(row)
        self._check_shape(row)
        return inline_payloads(row, self._payload)

    def _payload(self, name: str) -> tuple[str, bytes] | None:
        if self._payloads is None:
            self._payloads = set(self._buffer.read("payloads", ["payload_id"]).column(0).to_pylist())
        return self._fetch(name) if name in self._payloads else None

    def _check_shape(self, row: Row) -> None:
        """Refuse a row whose columns are not text and messages as those of the first row are."""
        shape = {name: _kind(row[name]) for name in _TEXT_COLUMNS if name in row}
        self._shape = self._shape or shape
        if shape != self._shape:
            first, this = (", ".join(f"{n} ({k})" for n, k in s.items()) for s in (self._shape, shape))
            raise RowError(f"the row has {this} but the first row written has {first}; write them apart")


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "messages"


def _refuse_evaluation(record: object) -> None:
    if isinstance(record, Experience) and record.source in MEASURING_SOURCES:
        raise RowError(f"a row of source '{record.source}' is not for training")
    if isinstance(record, Task) and record.split != Split.TRAIN:
        raise RowError(f"a task of split '{record.split}' is not for training")
