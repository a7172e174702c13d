"""Rows from CSV and Parquet files and Hugging Face datasets, in bounded memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rft_data.buffer.column_checks import MAX_TEXT_BYTES
from rft_data.core.errors import MissingFileError, RowError
from rft_data.exchange.formats.jsonlines import Found, open_file, parse_line
from rft_data.exchange.formats.records import RawRow

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

BATCH_ROWS = 1000
T = TypeVar("T")


def read_csv(path: Path) -> Iterator[Found]:
    """Rows of a CSV file with a header line; every cell is text, but `metadata` may hold a JSON object.

    Raises: RowError for a header that names a column twice or has other delimiters than commas, or where the
        quoting is broken.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_TEXT_BYTES + 1))
    line = 1
    try:
        with open_file(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            if len(set(header)) != len(header):
                raise RowError(f"{path}:1: the header has a column twice: {', '.join(header)}.")
            if len(header) == 1 and (mark := next((one for one in ";\t" if one in header[0]), "")):
                raise RowError(
                    f"{path}:1: the header {header[0]!r:.100} is one column, with {mark!r} in it; columns "
                    "are delimited by commas: write the file with commas, or as .jsonl."
                )
            line = reader.line_num + 1
            for cells in reader:
                if cells:
                    yield _csv_row(header, cells, f"{path}:{line}")
                line = reader.line_num + 1
    except (csv.Error, OSError, pa.ArrowException) as err:
        raise unreadable(f"{path}:{line}", err) from err


def _csv_row(header: list[str], cells: list[str], place: str) -> Found:
    excerpt = ",".join(cells)[:4096].encode(errors="backslashreplace").decode()
    if len(cells) != len(header):
        return Found(place, None, f"{len(cells)} cells under {len(header)} columns", excerpt)
    row: dict[str, object] = dict(zip(header, cells, strict=True))
    metadata = row.get("metadata")
    if isinstance(metadata, str) and metadata.startswith("{"):
        found = parse_line(metadata.encode(errors="surrogateescape"), place)
        if found.row is None:
            return Found(place, None, f"column 'metadata': {found.reason}", excerpt)
        row["metadata"] = found.row
    return Found(place, row)


def read_parquet(path: Path) -> Iterator[Found]:
    """Rows of a Parquet file."""
    try:
        with pq.ParquetFile(path) as file:
            yield from table_rows(file.iter_batches(BATCH_ROWS), str(path))
    except (OSError, pa.ArrowException) as err:
        raise unreadable(str(path), err) from err


def read_lance(path: Path) -> Iterator[Found]:
    """Rows of a Lance dataset, a folder `NAME.lance`."""
    import lance  # loads what only Lance needs

    try:
        yield from table_rows(lance.dataset(str(path)).to_batches(batch_size=BATCH_ROWS), str(path))
    except (OSError, ValueError, pa.ArrowException) as err:
        raise unreadable(str(path), err) from err


def unreadable(place: str, reason: object) -> RowError:
    """The error for a file that is damaged after `place`."""
    return RowError(f"{place}: the file cannot be read on: {reason}.")


def table_rows(batches: Iterable[pa.RecordBatch | pa.Table], name: str) -> Iterator[Found]:
    """Rows of Arrow batches, numbered from 1; columns of Arrow's JSON type are decoded."""
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            part = batch.slice(start, BATCH_ROWS)
            coded = {field.name: field.type for field in part.schema if _has_json(field.type)}
            try:
                rows = part.to_pylist()
            except (ValueError, OverflowError, pa.ArrowException):
                rows = [_one_row(part.slice(i, 1)) for i in range(part.num_rows)]
            for row in rows:
                number += 1
                yield _table_row(row, coded, f"{name}:{number}")


def _one_row(row: pa.RecordBatch | pa.Table) -> RawRow | str:
    """The row, or why it cannot be read."""
    try:
        made: RawRow = row.to_pylist()[0]
        return made
    except (ValueError, OverflowError, pa.ArrowException) as err:
        return str(err)


def _table_row(row: RawRow | str, coded: dict[str, pa.DataType], place: str) -> Found:
    if isinstance(row, str):
        return Found(place, None, f"a value cannot be read: {row}")
    try:
        return Found(place, {**row, **{name: _decoded(row[name], kind) for name, kind in coded.items()}})
    except ValueError as err:
        return Found(place, None, f"a JSON column holds what is not JSON: {err}", ascii(row)[:4096])


def _has_json(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.JsonType):
        return True
    return any(_has_json(kind.field(i).type) for i in range(kind.num_fields))


def _decoded(value: object, kind: pa.DataType) -> object:
    """A value with its parts of Arrow's JSON type decoded."""
    if isinstance(kind, pa.JsonType) and isinstance(value, str | bytes):
        return json.loads(value, parse_constant=_refuse)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(value, list):
        return [_decoded(item, kind.value_type) for item in value]
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)


def one_split(splits: Mapping[str, T], split: str | None, path: str) -> T:
    """One of the datasets at `path`, by split; `split` None: the only one.

    Raises: MissingFileError naming the splits.
    """
    chosen = next(iter(splits)) if split is None and len(splits) == 1 else split
    if chosen is None or chosen not in splits:
        names = ", ".join(splits) + ("" if split is None else f", not {split!r}")
        raise MissingFileError(
            f"{path} holds the splits {names}; choose one with 'split', or in an import: '{path}:NAME'."
        )
    return splits[chosen]


def dataset_rows(dataset: Dataset | IterableDataset, name: str) -> Iterator[Found]:
    """Rows of a dataset, with images and sounds as the bytes it stores."""
    return table_rows(dataset.with_format("arrow").iter(BATCH_ROWS), name)
