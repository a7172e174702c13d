"""The experiences that a table shows, as files: tables of their columns, and training sets for TRL."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.filters import In
from rft_data.exchange.formats import export
from rft_data.web.listing import COLUMNS, ShownRow, listing
from rft_data.web.row_order import Order, ordered
from rft_data.web.searching import by_meaning, by_text, by_words
from rft_data.web.table_query import Asked

FileFormat: TypeAlias = Literal["csv", "jsonl", "rft", "sft", "sft-messages", "kto", "dpo"]
"""`csv` and `jsonl` hold the columns of the table, `rft` whole rows; the others train, by TRL."""
FORMATS: Sequence[str] = get_args(FileFormat)
MOST_ROWS = 2_000
"""Rows of a file."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the beginning of a cell that a spreadsheet takes for a formula."""


class AskedFile(Asked):
    """A table, and the format of a file of it."""

    format: FileFormat = "jsonl"


def shown_rows(buffer: Buffer, asked: Asked, most: int, embedders: Sequence[str] = ()) -> list[ShownRow]:
    """The rows that a table shows on its pages from this one on, in its order.

    Args: embedders: models by which a text can be searched for here.
    """
    choice = asked.choice
    if asked.by_text:
        return by_text(buffer, asked.means, embedders, asked.model, choice, most).rows
    if asked.words:
        return by_words(buffer, asked.words, choice, most).rows
    if asked.like is not None:
        return by_meaning(buffer, asked.like, asked.model, choice, most).rows
    if asked.order is Order.NEWEST:
        return listing(buffer, choice, asked.below, most).rows
    return ordered(buffer, choice, asked.order, asked.after, most).rows


def table_file(buffer: Buffer, asked: AskedFile, folder: Path, embedders: Sequence[str] = ()) -> Path:
    """Write what a table shows as a file in a folder, at most 2,000 rows.

    Args: embedders: see `shown_rows`.
    Raises: RowError when no row can be written so.
    """
    rows = shown_rows(buffer, asked, MOST_ROWS, embedders)
    if not rows:
        raise RowError("the table shows no rows, so there is nothing to write.")
    if asked.format == "csv":
        return _written(folder / "experiences.csv", _as_csv(rows))
    if asked.format == "jsonl":
        return _written(folder / "experiences.jsonl", _as_json_lines(rows))
    target = folder / f"{asked.format}.jsonl"
    seqs = tuple(row["seq"] for row in rows)
    export(buffer, target, format=asked.format, table="experiences", where=In("seq", seqs))
    return target


def command(buffer: Buffer, asked: Asked) -> str:
    """The command that writes all rows which the typed filter lets through, however many there are."""
    parts = ["rft", "buffer", "export", buffer.location, "FILE.jsonl", "--format", "sft"]
    parts += ["--where", asked.where] if asked.where.strip() else []
    return shlex.join(parts)


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _plain(row: ShownRow) -> dict[str, object]:
    """The columns of the table, and the newest verdict of each pipeline."""
    verdicts = ", ".join(str(one.verdict) for one in row["judgements"])
    columns: Mapping[str, object] = row
    return {name: columns[name] for name in COLUMNS} | {"verdict": verdicts}


def _as_json_lines(rows: Sequence[ShownRow]) -> str:
    return "".join(json.dumps(_plain(row), ensure_ascii=False, default=str) + "\n" for row in rows)


def _as_csv(rows: Sequence[ShownRow]) -> str:
    """Rows as CSV, with a quote before each text that a spreadsheet would run as a formula."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*COLUMNS, "verdict"])
    for row in rows:
        writer.writerow([_cell(value) for value in _plain(row).values()])
    return stream.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
