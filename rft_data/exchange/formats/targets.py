"""Files that an export writes: JSON lines, CSV, Parquet or a `datasets` folder.

They are written beside the target and renamed when complete, so that a target is never half written.
"""

from __future__ import annotations

import base64
import csv
import glob
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.lock import Lock, holder
from rft_data.core.lookup import need
from rft_data.exchange.formats.columns import IMAGE, arrow_type, common_type, features, final_type
from rft_data.exchange.formats.payloads import as_file
from rft_data.exchange.formats.records import RawRow

TargetKind: TypeAlias = Literal["jsonl", "csv", "parquet", "folder"]
CARD = "README.md"
CARD_MARK = "<!-- written by rft buffer export -->"
KINDS: Mapping[str, TargetKind] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".jsonl.zst": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
"""Kind of file by the end of its name; a name without suffix is a folder."""
_LOCK = "lock"
_CODECS = {".gz": "gzip", ".zst": "zstd"}


def target_kind(target: Path) -> TargetKind:
    """`jsonl`, `csv`, `parquet` or `folder` (for a name without suffix).

    Raises: RecipeError for any other name.
    """
    for suffix, kind in KINDS.items():
        if target.name.endswith(suffix):
            return kind
    if target.suffix == "":
        return "folder"
    raise RecipeError(
        f"{target}: files called '{target.suffix}' are not written; wanted {', '.join(KINDS)}, or a name "
        "without suffix for a datasets folder."
    )


def card_path(target: Path) -> Path:
    """Path of the dataset card: README.md in a folder, `<file>.README.md` beside a file."""
    return target / CARD if target_kind(target) == "folder" else target.with_name(f"{target.name}.{CARD}")


@contextmanager
def staged(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write the target and its card into; they are moved to their places at the end.

    The parent of the folder is scratch space and is removed at the end; if the export is killed, by the next
    one to the same target. An export at work holds the lock in it.
    Raises: RecipeError if the target exists and may not be replaced, or is a folder that no export wrote.
    """
    _may_write(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.name}.partial-"
    for left in target.parent.glob(f"{glob.escape(name)}*"):
        if not holder(left / _LOCK):
            shutil.rmtree(left, ignore_errors=True)
    stage = target.with_name(f"{name}{os.getpid()}")
    done = stage / "done"
    done.mkdir(parents=True)
    lock = Lock(stage / _LOCK)
    try:
        yield done
        _may_write(target, overwrite=overwrite)
        if target.is_dir():
            target.rename(stage / "replaced")
        for made in sorted(done.iterdir(), key=lambda path: path.name == target.name):
            os.replace(made, target.with_name(made.name))
    finally:
        lock.release()
        shutil.rmtree(stage, ignore_errors=True)


def _may_write(target: Path, *, overwrite: bool) -> None:
    card = card_path(target)
    ours = card.is_file() and CARD_MARK in card.read_text(encoding="utf-8")
    if target.exists() and not overwrite:
        raise RecipeError(f"{target} is there already; give another name, or overwrite=True (--overwrite).")
    if target.is_dir() and not ours:
        raise RecipeError(
            f"{target} is a folder that no export wrote; it is not replaced. Give another name."
        )
    if card.is_file() and not ours:
        raise RecipeError(f"{card} is a file that no export wrote; it is not replaced. Give another name.")


def write_jsonl(path: Path, rows: Iterable[RawRow]) -> None:
    """Rows as JSON lines, compressed when the name ends in .gz or .zst."""
    with pa.output_stream(str(path), compression=_CODECS.get(path.suffix)) as stream:
        for row in rows:
            stream.write(_dumped(row).encode() + b"\n")


class Spool:
    """A temporary file of rows that collects their columns and types, which a table needs first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._types: dict[str, pa.DataType] = {}
        self._stream = path.open("wb")

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, row: RawRow) -> None:
        self._stream.write(_dumped(row).encode() + b"\n")
        for name, value in row.items():
            kind = pa.list_(IMAGE) if name == "images" else arrow_type(value)
            self._types[name] = common_type(self._types.get(name, pa.null()), kind)

    def schema(self) -> pa.Schema:
        """The columns of all rows written, in the order they first appeared."""
        return pa.schema([(name, final_type(kind)) for name, kind in self._types.items()])

    def read(self) -> Iterator[RawRow]:
        """The rows written."""
        with self.path.open("rb") as stream:
            yield from map(json.loads, stream)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} in a row")


def check_flat(row: RawRow) -> None:
    """Raise RowError unless every value fits a CSV cell; metadata does, as JSON text."""
    for name, value in row.items():
        if name != "metadata" and not isinstance(value, str | int | float | None):
            raise RowError(f"column '{name}' is not plain text, as CSV needs; write .jsonl or .parquet")


def write_csv(path: Path, columns: list[str], rows: Iterable[RawRow]) -> None:
    """Rows as CSV with every cell quoted; `metadata`, numbers and booleans are JSON text, null is empty."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in columns])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _dumped(value)


def as_files(row: RawRow) -> RawRow:
    """The row with its images as bytes, as tables hold them."""
    images = row.get("images")
    if not images:
        return row
    if not isinstance(images, list):
        raise RowError(f"column 'images' holds {type(images).__name__}; a list of images is needed")
    return {**row, "images": [as_file(uri) for uri in images]}


def write_parquet(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Tables as one Parquet file, compressed with zstd; `datasets` loads it with the same columns."""
    schema = schema.with_metadata(features(schema))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.cast(schema))


def write_folder(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Tables as a folder for `datasets.load_from_disk`.

    Raises: MissingExtraError without `datasets`.
    """
    datasets = need("datasets", "ops", "writing a datasets folder")
    stream = path.parent.with_name("spool.arrow")
    schema = schema.with_metadata(features(schema))
    with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            writer.write_table(part.cast(schema))
    datasets.Dataset.from_file(str(stream)).save_to_disk(str(path))
